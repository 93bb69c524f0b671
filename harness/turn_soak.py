"""A soak of turns: three Spark drivers write one table with turns from one ZooKeeper, while drivers, network and server fail.

    python -m harness.turn_soak --seconds 600 --seed 1

Each driver reaches the server by a network of its own. A seed draws the faults: a driver is killed, its Python or its JVM is
stopped and continued, its network is cut, silent, slow, or loses the answers, the server is killed and restarted. A driver
that ended is restarted, as a platform would do. There is always work until the time is over. Then the faults end and the rest
is written. The soak checks that no two turns overlap, epochs rise, every offset range of every stream is in its table exactly
once, epochs never go down in the log (`lakegate verify`), and that the table has exactly the expected rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from harness.machine import machine
from harness.proxy import Mode, Proxy
from lakegate import settings
from lakegate.demo.expected import COLUMNS, compare, replay, rows_of
from lakegate.demo.generator import generate
from lakegate.demo.lake import INGESTION, JOBS, SPARK, Lake, pipeline_text
from lakegate.demo.records import FOLDERS, Cut, Inputs, write_inputs
from lakegate.demo.servers import ZookeeperNode, zookeeper
from lakegate.ops.inspection import verify_pipeline
from lakegate.runtime import new_session
from lakegate.turns.host import is_running, start_of

LEASE_S: Final = 6.0
FILE_ROWS: Final = 40
FILES: Final = Cut(ingest=400, mutation=200, delete=50)
READY_FILES: Final = 2
"""Files that each stream has waiting: there is always work, and a turn stays short."""
QUIET_S: Final = 60.0
"""Wait for a batch after a fault: faults without work between them would only test the start of a JVM."""
END_S: Final = 480.0
"""Limit for the rest once the faults are over: a batch that is rewritten, a session that has to end, a new JVM."""
EXITS_EXPECTED: Final = frozenset({-signal.SIGKILL, 3, 5, 6})
"""Exit statuses after which a driver is restarted: killed; not granted in time (the dead run's session is not over); turns lost
in a row; no server."""
NETWORKS: Final[tuple[Mode, ...]] = ("blackhole", "lose_replies", "refuse", "delay")
FAULTS: Final = ("kill", "stop python", "stop jvm", "restart server", *NETWORKS)


@dataclass
class Found:
    """The result of the soak."""

    seed: int
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    batches: int = 0
    commits: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns it as a result in `benchmarks/`."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


class Driver:
    """A stream in a process of its own with a JVM, restarted when it ends before its work is done."""

    def __init__(self, lake: Lake, job: str, found: Found, network: Proxy, idle_run: str) -> None:
        self.job, self.network = job, network
        self._found, self._log = found, lake.logs / f"{job}.log"
        arguments = ["run", job, "--until-idle", "--spec", str(_spec(lake, job)), "--output", "jsonl", "--child"]
        others = [part for other in JOBS for part in ("--among", other)]
        self._command = [sys.executable, "-m", "lakegate", *arguments, *others, "--idle-run", idle_run]
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=job)

    def pids(self) -> tuple[int, int | None] | None:
        """Returns the process ids of its Python and its JVM, if they run."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        with suppress(OSError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in map(int, children):
                if b"java" in Path(f"/proc/{child}/cmdline").read_bytes()[:200]:
                    return process.pid, child
        return process.pid, None

    def end(self) -> None:
        """Ends it at once, for good."""
        self._stop.set()
        pids = self.pids()
        for pid in pids or ():
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _run(self) -> None:
        while not self._stop.is_set():
            with (
                self._log.open("ab") as log,
                # Its input is a pipe from this process: when this process dies, the driver reads the pipe's end and stops.
                subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                ) as self._process,
            ):
                code = self._process.wait()
            if self._stop.is_set():
                return
            self._found.exits[code] += 1
            if code == 0:
                return
            if code not in EXITS_EXPECTED:
                self._found.wrong.append(f"{self.job} ended with exit status {code}; see {self._log}")
                return


class Feeder:
    """Hands every stream its files one by one, as the stream processes them."""

    def __init__(self, lake: Lake, staged: Path) -> None:
        self._lake, self._staged = lake, staged
        self.handed = dict.fromkeys(FOLDERS, 0)
        for folder in FOLDERS:
            (lake.inputs / folder).mkdir(parents=True)
        self.feed()

    @property
    def written(self) -> int:
        """Returns how many batches have a commit log."""
        return sum(map(self._written, JOBS))

    def _written(self, job: str) -> int:
        return sum(name.isdigit() for name in _names(self._lake.storage / "checkpoints" / job / "commits"))

    def feed(self) -> None:
        """Adds files to every stream up to its limit."""
        for folder, job in zip(FOLDERS, JOBS, strict=True):
            done = self._written(job)
            while self.handed[folder] < done + READY_FILES:
                file = self._staged / folder / f"part-{self.handed[folder]:04}.parquet"
                if not file.exists():
                    break
                file.rename(self._lake.inputs / folder / file.name)
                self.handed[folder] += 1


def soak(folder: Path, *, seconds: float, seed: int, show: Callable[[str], None], faults_min: int) -> Found:
    """Runs it in an empty folder.

    Args:
        folder: For all files; a fault that is found names its logs.
        seconds: How long there are faults; the streams start before, and write the rest afterwards.
        seed: Draws the records and the faults.
        show: Called with a line for each fault.
        faults_min: The number of faults that there are at least, however long it takes.
    """
    lake, found = Lake(folder), Found(seed=seed, seconds=seconds)
    inputs = generate(seed, FILES.ingest * FILE_ROWS)
    largest = write_inputs(inputs, folder / "staged", FILES)
    lake.logs.mkdir(parents=True)
    with ExitStack() as stack:
        (node,) = stack.enter_context(zookeeper(folder / "zookeeper", java=settings.java_sources()))
        drivers, idle_run = [], str(uuid.uuid4())
        for job in JOBS:
            network = stack.enter_context(Proxy(node.port, delay_s=0.15))
            url = f"zookeeper://{network.address}/soak?session_timeout={LEASE_S:g}s&call_timeout=20s"
            text = pipeline_text(lake, largest).replace("sqlite:./lake/_lakegate/turns.db", url)
            _spec(lake, job).write_text(text.replace("lock_timeout: 10m", "lock_timeout: 2m"), encoding="utf-8")
            drivers.append(Driver(lake, job, found, network, idle_run))
        feeder = Feeder(lake, folder / "staged")
        for driver in drivers:
            stack.callback(driver.end)
            driver.thread.start()
        _until(
            lambda: all(driver.pids() for driver in drivers) and len(lake.commits(lake.table).names()) > 2, 120, feeder
        )
        _break_things(drivers, node, feeder, found, random.Random(seed), seconds, faults_min, show)
        deadline_s = time.monotonic() + END_S
        for driver in drivers:
            driver.thread.join(max(0.0, deadline_s - time.monotonic()))
            if driver.thread.is_alive():
                found.wrong.append(f"{driver.job} had not ended {END_S:.0f} s after the last fault")
    _check(lake, inputs, largest, feeder.handed, found)
    return found


def _break_things(
    drivers: list[Driver],
    node: ZookeeperNode,
    feeder: Feeder,
    found: Found,
    chance: random.Random,
    seconds: float,
    faults_min: int,
    show: Callable[[str], None],
) -> None:
    """Injects faults: each ends, and a batch is written, before the next; all kinds come before any is repeated."""
    begun_s, kinds = time.monotonic(), list[str]()
    while time.monotonic() - begun_s < seconds or found.faults.total() < faults_min:
        kinds = kinds or chance.sample(FAULTS, len(FAULTS))
        kind, driver = kinds.pop(), chance.choice(drivers)
        length_s, pause_s, written = chance.uniform(0.3, 1.5) * LEASE_S, chance.uniform(0.0, 3.0), feeder.written
        pids = driver.pids()
        if pids is None or pids[1] is None:
            _pause(0.5, feeder)  # it is about to be restarted
            kinds.append(kind)
            continue
        is_server = kind == "restart server"
        lasting = "" if kind == "kill" else f" for {length_s:.1f} s"
        show(f"{time.monotonic() - begun_s:6.1f} s  {kind}{lasting}{'' if is_server else f': {driver.job}'}")
        found.faults[kind] += 1
        if kind == "kill":
            os.kill(pids[0], signal.SIGKILL)
        elif kind == "restart server":
            node.kill()
            _pause(length_s / 2, feeder)
            node.start()
            node.wait()
        elif kind.startswith("stop"):
            pid = pids[0] if kind == "stop python" else pids[1]
            start = start_of(pid)
            os.kill(pid, signal.SIGSTOP)
            try:
                _pause(length_s, feeder)
            finally:
                if is_running(pid, start):
                    os.kill(pid, signal.SIGCONT)
        else:
            driver.network.be(next(mode for mode in NETWORKS if mode == kind))
            _pause(length_s, feeder)
            driver.network.be("pass")
        _until(lambda: feeder.written > written, QUIET_S, feeder)  # noqa: B023 - called before the next round
        _pause(pause_s, feeder)


def _pause(seconds: float, feeder: Feeder) -> None:
    _until(lambda: False, seconds, feeder)


def _until(is_so: Callable[[], bool], seconds: float, feeder: Feeder) -> None:
    deadline_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline_s:
        feeder.feed()
        time.sleep(0.1)


def _check(lake: Lake, inputs: Inputs, largest: dict[str, int], handed: dict[str, int], found: Found) -> None:
    """Checks what has to hold after any faults."""
    pipeline = settings.load_pipeline(str(_spec(lake, INGESTION)))
    verified = verify_pipeline(pipeline)
    found.wrong += [str(one) for one in verified.violations] + [f"not checked: {one}" for one in verified.unchecked]
    found.turns, found.batches, found.commits = verified.turns, verified.batches, verified.commits
    if verified.batches != sum(handed.values()):
        found.wrong.append(f"{sum(handed.values())} files were handed out, and {verified.batches} batches are written")
    for file in (lake.storage / "ledger").rglob("*.jsonl"):
        found.outcomes.update(json.loads(line)["outcome"] for line in file.read_text().splitlines())
    rows = {folder: handed[folder] * largest[folder] for folder in FOLDERS}
    given = replace(
        inputs,
        engagements=inputs.engagements.slice(0, rows["ingest"]),
        mutations=inputs.mutations.slice(0, rows["mutation"]),
        erasures=inputs.erasures.slice(0, rows["delete"]),
    )
    spark = new_session("soak", conf=SPARK)
    try:
        final = rows_of(spark.read.format("delta").load(lake.table).select(*COLUMNS).toArrow())
    finally:
        spark.stop()
    found.rows = len(final)
    brought = [str(key) for key in given.engagements.column("engagement_id").to_pylist()]
    faults = compare(replay(given), final, brought=brought)
    if any(faults.values()):
        counts = {kind.value: keys.total() for kind, keys in faults.items() if keys}
        found.wrong.append(f"the table is not as it should be: {counts}")


def _spec(lake: Lake, job: str) -> Path:
    return lake.root / f"lakegate-{job}.yml"


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def main() -> int:
    """Runs it; returns exit status 1 if anything is wrong, and then keeps the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--faults", type=int, default=len(FAULTS), help="so many at least, however long it takes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--result", type=Path, help="a file for what was found, as JSON")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    folder, on = Path(tempfile.mkdtemp(prefix="lakegate-turn-soak-")), machine()
    found = soak(
        folder,
        seconds=chosen.seconds,
        seed=chosen.seed,
        show=lambda text: print(text, flush=True),
        faults_min=chosen.faults,
    )
    text = json.dumps({"machine": on, **found.to_json()}, indent=2)
    print(text)
    if chosen.result is not None:
        chosen.result.write_text(text + "\n", encoding="utf-8")
    if found.wrong:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
