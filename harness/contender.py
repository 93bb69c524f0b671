"""A job without Spark, as a process of its own: takes turns, and writes in each of them to a file that shows who wrote when.

    python -m harness.contender URL LOCK JOB JOURNAL TURNS LINES PAUSE_S [TIMEOUT_S]

Each turn writes `LINES` lines, one every `PAUSE_S` seconds, each after a check that the turn is still its own. A turn that is
lost is no fault: the job goes on with the next. It prints one line for each thing that happens.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.fakes import FakeTableLog, Recorder
from lakegate.config.dynamodb import read_dynamodb
from lakegate.config.zookeeper import read_place
from lakegate.errors import LostTurn, TurnNotGranted, Unavailable
from lakegate.ids import TableLocation
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.host import MachineClock, Uuids, this_process
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.ordering import NoRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.stores.dynamodb import DynamodbTurnStore
from lakegate.turns.stores.sqlite import SqliteTurnStore
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore
from lakegate.turns.turn import HeldTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A write under a turn, as the journal shows it."""

    epoch: int
    job: str
    number: int
    at_s: float
    """CLOCK_MONOTONIC, the same for all processes of the machine."""


def append(journal: Path, line: Line) -> None:
    """Appends a line: the order of the file is the order of the writes."""
    with journal.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps([line.epoch, line.job, line.number, line.at_s]) + "\n")


def read(journal: Path) -> list[Line]:
    """Returns the lines that were written so far."""
    if not journal.exists():
        return []
    rows = (json.loads(text) for text in journal.read_text(encoding="utf-8").splitlines())
    return [Line(epoch=epoch, job=job, number=number, at_s=at_s) for epoch, job, number, at_s in rows]


def faults(journal: Path) -> list[str]:
    """Returns the faults in the journal: turns that overlap, share an epoch, or go back."""
    found = []
    for was, now in pairwise(read(journal)):
        if now.epoch < was.epoch:
            found.append(f"{now.job} wrote in turn {now.epoch} after {was.job} had in turn {was.epoch}")
        if now.epoch == was.epoch and (now.job != was.job or now.number != was.number + 1):
            found.append(f"{was.job} and {now.job} both wrote in turn {now.epoch}")
        if now.epoch > was.epoch and now.number != 0:
            found.append(f"turn {now.epoch} begins with line {now.number}")
    return found


def store_of(url: str) -> TurnStore:
    """Opens the store that a URL names."""
    if url.startswith("zookeeper:"):
        return ZookeeperTurnStore(read_place(url))
    if url.startswith("dynamodb:"):
        return DynamodbTurnStore(read_dynamodb(url))
    return SqliteTurnStore(url[7:])


def coordinator(store: TurnStore, lock: str, job: str, *, timeout_s: float) -> Coordinator:
    """Makes a run of the job in this process."""
    ports = RunnerPorts(store=store, log=FakeTableLog(), clock=MachineClock(), randomness=Uuids(), events=Recorder())
    process: Process = this_process(None)
    order = Order(rule=NoRule(), absent_after_ms=None)
    return Coordinator(
        ports,
        lock=lock,
        job=job,
        order=order,
        process=process,
        lock_timeout_s=timeout_s,
        on_lost=lambda reason: say(f"lost at {time.monotonic():.3f}: {reason}"),
    )


def take(run: Coordinator) -> HeldTurn:
    """Waits for the run's next turn and returns it."""
    return run.take(token_id=job_token(run.job), query_id=None, batch=0, tables=(TableLocation("/journal"),))


def say(text: str) -> None:
    """Prints one line for the parent process."""
    # In one call: two threads print here.
    os.write(1, f"{text}\n".encode())


def main(
    url: str, lock: str, job: str, journal: str, turns: str, lines: str, pause_s: str, timeout_s: str = "60"
) -> None:
    """Takes the given number of turns."""
    run = coordinator(store_of(url), lock, job, timeout_s=float(timeout_s))
    run.open()
    say("open")
    left = int(turns)
    while left:
        try:
            turn = take(run)
        except (TurnNotGranted, LostTurn, Unavailable) as error:
            say(f"not granted: {type(error).__name__}: {error}")
            continue
        say(f"granted {turn.epoch}")
        try:
            for number in range(int(lines)):
                time.sleep(float(pause_s))
                turn.check()
                append(Path(journal), Line(epoch=turn.epoch, job=job, number=number, at_s=time.monotonic()))
                say(f"wrote {number}")
            turn.complete()
            say(f"completed {turn.epoch}")
            left -= 1
        except (LostTurn, Unavailable) as error:
            say(f"failed {turn.epoch} at {time.monotonic():.3f}: {type(error).__name__}: {error}")
            turn.abandon(error)
            run.close()
    run.close()
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
