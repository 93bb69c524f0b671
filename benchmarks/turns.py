"""The cost of a turn: alone, handed over between 2, 10 and 50 contenders, and taken over after `kill -9`.

On a file and on one ZooKeeper server, each contender a process of its own. Baselines in the same run: `kazoo.recipe.lock.Lock`
on the same server, which has no order, no fencing token and no history; a bare create and delete there; an `flock`.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from benchmarks.measure import figures, machine, write
from harness.contender import coordinator, store_of
from lakegate.demo.servers import zookeeper
from lakegate.settings import java_sources
from lakegate.turns.protocol.fencing import job_token

TURNS = 500
CONTENDED_TURNS = 500
HOLD_S = 0.02
"""How long each turn lasts, so that the next request does not coincide with the hand-over, as with turns that do work."""
TAKE_OVERS = 8
LEASE_S = 4.0
KAZOO = "kazoo://"

Free = Callable[[], object]
Take = Callable[[], Free]
"""Waits for the turn; returns the function that gives it back."""


def open_job(url: str, job: str) -> tuple[Take, Callable[[], None]]:
    """Returns the functions that take a job's turns and end the job. Its tables are fakes: only the coordinator is measured."""
    if not url.startswith(KAZOO):
        run = coordinator(store_of(url), "L", job, timeout_s=600.0)
        run.open()
        return lambda: run.take(token_id=job_token(run.job), query_id=None, batch=0, tables=()).complete, run.close
    client = KazooClient(url.removeprefix(KAZOO), timeout=LEASE_S)
    client.start()
    lock = client.Lock("/kazoo/L", job)

    def take() -> Free:
        lock.acquire()
        return lock.release

    return take, client.stop


def timed_ms(action: Callable[[], object], times: int) -> dict[str, float]:
    """Returns the figures of an action that runs `times` times, without the first runs."""
    samples = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        samples.append((time.perf_counter() - begun) * 1000)
    return figures(samples[20:])


def alone(urls: dict[str, str], address: str, folder: Path) -> dict[str, Any]:
    """Measures a turn taken and given back by one job, and the baselines."""
    found: dict[str, Any] = {}
    for name, url in urls.items():
        take, end = open_job(url, "alone")
        found[name] = timed_ms(lambda take=take: take()(), TURNS)
        end()
    client = KazooClient(address)
    client.start()

    def bare() -> None:
        client.delete(client.create("/bare", b"", ephemeral=True))

    with (folder / "flock").open("w") as file:

        def lock() -> None:
            fcntl.flock(file, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_UN)

        found["flock"] = timed_ms(lock, TURNS)
    found["bare create and delete"] = timed_ms(bare, TURNS)
    client.stop()
    return found


def contender(url: str, name: str, turns: int) -> None:
    """Runs one process: takes its turns, and prints when each was granted and given back."""
    take, end = open_job(url, name)
    say("open")
    sys.stdin.readline()
    for _ in range(turns):
        free = take()
        granted = now_s()
        say(json.dumps(["granted", granted]))
        if turns == 1:
            sys.stdin.readline()  # holds it until it is killed, or reads a line
        time.sleep(HOLD_S)
        freed = now_s()
        free()
        say(json.dumps(["held", granted, freed]))
    end()


def now_s() -> float:
    """Returns the time of the clock that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def say(text: str) -> None:
    """Prints one line for the parent process."""
    print(text, flush=True)


class Started:
    """Contenders in processes of their own, all connected."""

    def __init__(self, url: str, names: list[str], turns: int) -> None:
        command = [sys.executable, "-m", "benchmarks.turns", url]
        self.processes = [
            subprocess.Popen([*command, name, str(turns)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name in names
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"

    def go(self, process: subprocess.Popen[str]) -> None:
        """Lets one process begin, or continue."""
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def handover(url: str, contenders: int, in_all: int = CONTENDED_TURNS) -> dict[str, Any]:
    """Measures the time from the start of one job's release to the next job's grant, while all jobs want the turn."""
    turns = max(6, in_all // contenders)
    started = Started(url, [f"job-{n}" for n in range(contenders)], turns)
    for process in started.processes:
        started.go(process)
    rows = []
    for process in started.processes:
        output, _ = process.communicate()
        rows += [line[1:] for line in map(json.loads, output.splitlines()) if line[0] == "held"]
    rows.sort()
    assert len(rows) == contenders * turns, "a turn is missing"
    assert all(was[1] <= now[0] for was, now in itertools.pairwise(rows)), "two turns overlap"
    inner = rows[len(rows) // 5 : -len(rows) // 5]  # beginning and end are not contended by all
    return figures([(after[0] - before[1]) * 1000 for before, after in itertools.pairwise(inner)])


def take_over(url: str, times: int = TAKE_OVERS) -> dict[str, Any]:
    """Measures the time from `kill -9` of the holder to the turn of the waiting job."""
    samples = []
    for number in range(times):
        started = Started(url, [f"holder-{number}", f"heir-{number}"], 1)
        holder, heir = started.processes
        assert holder.stdout is not None
        assert heir.stdout is not None
        started.go(holder)
        holder.stdout.readline()
        started.go(heir)
        time.sleep(0.5 + 0.1 * number)  # at a different moment between two heartbeats each time
        killed = now_s()
        os.kill(holder.pid, signal.SIGKILL)
        samples.append((json.loads(heir.stdout.readline())[1] - killed) * 1000)
        heir.communicate("\n")
        holder.communicate()
    return figures(samples)


def main() -> None:
    """Measures and writes the result."""
    with tempfile.TemporaryDirectory() as name, zookeeper(Path(name), java=java_sources()) as (node,):
        folder = Path(name)

        def urls(root: str) -> dict[str, str]:
            return {
                "sqlite": f"sqlite:{folder}/{root}.db",
                "zookeeper": f"zookeeper://{node.address}/{root}?session_timeout={LEASE_S:g}s",
                "kazoo lock": f"{KAZOO}{node.address}",
            }

        for url in urls("handover").values():
            take, end = open_job(url, "first")
            take()()
            end()
        result = {"machine": machine(), "lease_s": LEASE_S, "alone_ms": alone(urls("alone"), node.address, folder)}
        result["handover_ms"] = {
            contenders: {name: handover(url, contenders) for name, url in urls("handover").items()}
            for contenders in (2, 10, 50)
        }
        result["take_over_ms"] = {name: take_over(url) for name, url in urls("taken").items()}
    write("turns", result)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        contender(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
