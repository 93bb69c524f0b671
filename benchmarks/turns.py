"""The cost of a turn: without contention, and the hand-over between 2, 10 and 50 contenders, in processes of their own.

Baseline in the same run: an `flock` taken and freed on the same disk, which orders nobody and remembers nothing.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import figures, machine, write
from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.driver import Ports
from headgate.coordinator.machine import MachineClock, Uuids, this_process
from headgate.core.turns.order import NoRule
from headgate.core.turns.protocol import Order
from headgate.core.turns.tokens import job_token
from headgate.stores.sqlite import SqliteTurnStore
from headgate.testing.fakes import FakeTableLog, Recorder

TURNS = 500
CONTENDED_TURNS = 300


def coordinator(path: str, job: str) -> Coordinator:
    """A job on one lock; its tables are fakes, so that only the coordinator is measured."""
    ports = Ports(
        store=SqliteTurnStore(path), log=FakeTableLog(), clock=MachineClock(), randomness=Uuids(), events=Recorder()
    )
    order = Order(rule=NoRule(), absent_after_ms=None)
    return Coordinator(ports, lock="L", job=job, order=order, process=this_process(None), lock_timeout_s=600.0)


def uncontended(folder: Path) -> dict[str, object]:
    """Ask, grant and complete, by one job alone."""
    job = coordinator(str(folder / "turns.db"), "A")
    samples, locks = [], []
    with (folder / "flock").open("w") as file:
        for number in range(TURNS):
            begun = time.perf_counter()
            job.take(token_id=job_token("A"), query_id=None, batch=number, tables=()).complete()
            samples.append((time.perf_counter() - begun) * 1000)
            begun = time.perf_counter()
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_UN)
            locks.append((time.perf_counter() - begun) * 1000)
    job.close()
    return {"turn_ms": figures(samples[20:]), "flock_ms": figures(locks[20:])}


def contender(path: str, name: str, turns: int) -> None:
    """One process: takes its turns, and prints when each was granted and given back."""
    job = coordinator(path, name)
    sys.stdin.readline()
    for number in range(turns):
        turn = job.take(token_id=job_token(name), query_id=None, batch=number, tables=())
        granted = time.clock_gettime(time.CLOCK_MONOTONIC)
        freed = time.clock_gettime(time.CLOCK_MONOTONIC)
        turn.complete()
        print(json.dumps([turn.epoch, granted, freed]), flush=True)
    job.close()


def handover(folder: Path, contenders: int) -> dict[str, object]:
    """From one job's completing a turn to the next job's having it, while all of them want it."""
    path = str(folder / f"turns-{contenders}.db")
    turns = max(6, CONTENDED_TURNS // contenders)
    SqliteTurnStore(path).close()
    command = [sys.executable, "-m", "benchmarks.turns", path]
    processes = [
        subprocess.Popen([*command, f"job-{n}", str(turns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(contenders)
    ]
    time.sleep(1 + contenders * 0.15)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    rows = []
    for process in processes:
        output, _ = process.communicate()
        rows += [json.loads(line) for line in output.splitlines()]
    rows.sort()
    assert [row[0] for row in rows] == list(range(rows[0][0], rows[0][0] + len(rows))), "an epoch is missing or doubled"
    # Beginning and end are not contended by all.
    inner = rows[len(rows) // 5 : -len(rows) // 5]
    gaps = [(after[1] - before[2]) * 1000 for before, after in itertools.pairwise(inner)]
    return {"contenders": contenders, "handover_ms": figures(gaps)}


def main() -> None:
    """Measures and writes the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {"machine": machine(), **uncontended(folder)}
        result["handover"] = [handover(folder, contenders) for contenders in (2, 10, 50)]
    write("turns", result)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        contender(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
