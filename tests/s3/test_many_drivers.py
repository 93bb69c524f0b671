"""Several drivers commit to one table on S3: what was acknowledged is there; with Delta's own store it is not."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.log_store_jvm import FLAGS, class_path, settings_for
from lakegate.demo.aws_server import AwsServer, InjectedFault
from lakegate.spark.jars import JarSources
from lakegate.spark.java import JavaSources, find_java
from lakegate.spark.log_stores import CLASSES

pytestmark = pytest.mark.slow

DRIVERS, COMMITS = 3, 50
PROGRAM = Path(__file__).parent / "java" / "CommitMany.java"
SLOW_PUTS = InjectedFault("delay", kind="PUT", key=r"_delta_log/\d{20}\.json$", times=None, delay_ms=30)
"""A put takes as long as between two data centres, so that drivers meet; longer than that of a machine to itself."""


class Driver:
    """A JVM with a log store and without Spark."""

    def __init__(self, name: str, command: list[str], settings: dict[str, str], log: Path) -> None:
        given = [f"{key}={value}" for key, value in settings.items()]
        self.name, self._log = name, log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, name, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def begin(self, store: str, table: str, commits: int) -> None:
        """Has it commit; returns at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{store} {table} {commits}\n")
        self.process.stdin.flush()

    def answers(self, last: str) -> list[tuple[int, str]]:
        """Reads its output up to a line: version and content of each commit that was acknowledged to it."""
        assert self.process.stdout is not None
        said = list(iter(lambda: self.process.stdout.readline().rstrip("\n") or "died", last))
        assert "died" not in said, self._log.read_text()[-3000:]
        return acknowledged(said)

    def kill(self) -> list[tuple[int, str]]:
        """Kills it with -9; returns the commits that were acknowledged before."""
        assert self.process.stdout is not None
        self.process.kill()
        return acknowledged(self.process.stdout.read().splitlines())

    def end(self) -> None:
        """Ends it, if it has not been killed."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def acknowledged(lines: list[str]) -> list[tuple[int, str]]:
    """Version and content of each commit that was acknowledged."""
    return [(int(version), content) for version, _, content in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module")
def start(
    aws_running: AwsServer, jars_from: JarSources, java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Driver]]:
    """Starts a driver of that name, which ends with the tests."""
    folder, running = tmp_path_factory.mktemp("drivers"), list[Driver]()
    command = [str(find_java(java_from).program), *FLAGS, "-cp", class_path(jars_from), str(PROGRAM)]
    settings = settings_for(aws_running)

    def one(name: str) -> Driver:
        running.append(Driver(name, command, settings, folder / f"{name}.log"))
        return running[-1]

    yield one
    for driver in running:
        driver.end()


@pytest.fixture(scope="module")
def drivers(start: Callable[[str], Driver]) -> list[Driver]:
    """Three of them, connected."""
    running = [start(f"driver{n}") for n in range(DRIVERS)]
    for driver in running:
        driver.answers("ready")
    return running


def race(drivers: list[Driver], store: str, table: str, commits: int = COMMITS) -> list[tuple[int, str]]:
    """Returns the acknowledged commits of all drivers."""
    for driver in drivers:
        driver.begin(CLASSES[store], f"s3a://lake/{table}", commits)
    return [made for driver in drivers for made in driver.answers("end")]


def stored(s3: Any, table: str) -> dict[int, str]:
    """Version → content, as a client that is not ours sees it."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=f"{table}/_delta_log/0")
    keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
    read = {key: s3.get_object(Bucket="lake", Key=key)["Body"].read().decode() for key in keys}
    return {int(key.rpartition("/")[2].removesuffix(".json")): text.rstrip("\n") for key, text in read.items()}


@pytest.mark.spark
@pytest.mark.jdk
@pytest.mark.every_case
@pytest.mark.parametrize("store", ["conditional", pytest.param("dynamodb", marks=pytest.mark.matrix)])
def test_nothing_that_was_acknowledged_is_lost(aws: AwsServer, s3: Any, drivers: list[Driver], store: str) -> None:
    """3 drivers with 50 commits each: 150 versions without a gap, each put once, holding what its driver put there."""
    aws.fail(SLOW_PUTS)
    made = race(drivers, store, store)

    assert dict(made) == stored(s3, store)
    assert len(made) == DRIVERS * COMMITS
    assert sorted(version for version, _ in made) == list(range(DRIVERS * COMMITS))
    puts = [
        one for one in aws.requests() if one.kind == "PUT" and one.status == 200 and f"{store}/_delta_log/0" in one.key
    ]
    contents: dict[str, set[str]] = {}
    for put in puts:
        contents.setdefault(put.key, set()).add(put.sha256)
    assert {key for key, found in contents.items() if len(found) > 1} == set()
    assert all(put.is_conditional for put in puts)


SECOND = r"/0{19}1\.json"
STEPS = {
    "puts its commit": ("conditional", InjectedFault("delay", kind="PUT", key=SECOND)),
    "puts it aside": ("dynamodb", InjectedFault("delay", kind="PUT", key=r"\.tmp/0{19}1\.json")),
    "enters it": ("dynamodb", InjectedFault("delay", kind="PutItem", key=SECOND)),
    "gives it its name": ("dynamodb", InjectedFault("delay", kind="PUT", key=r"_delta_log/0{19}1\.json$")),
    "completes its entry": ("dynamodb", InjectedFault("delay", kind="PutItem", key=SECOND, each=2)),
}
"""What a driver does when it is killed, and the request that is under way then."""
LATE_MS = 2500


@pytest.mark.spark
@pytest.mark.jdk
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_in_a_commit_blocks_no_writer_and_loses_no_commit(
    aws: AwsServer, s3: Any, drivers: list[Driver], start: Callable[[str], Driver], step: str
) -> None:
    """The others continue at once; acknowledged commits stay, although the dead driver's request arrives long afterwards."""
    store, request = STEPS[step]
    table, victim = f"{store}-{step.replace(' ', '-')}", start(step.replace(" ", "-"))
    victim.answers("ready")
    aws.fail(replace(request, delay_ms=LATE_MS))
    victim.begin(CLASSES[store], f"s3a://lake/{table}", 3)
    sent_s = time.monotonic() + 60
    while aws.faults_left() and time.monotonic() < sent_s:
        time.sleep(0.01)
    assert not aws.faults_left()
    made = victim.kill()
    assert len(made) == 1
    made += race(drivers, store, table, commits=5)
    carried_out_s = time.monotonic() + 60
    while not any(one.fault == "delay" for one in aws.requests()) and time.monotonic() < carried_out_s:
        time.sleep(0.1)
    there = stored(s3, table)

    assert made == [(version, content) for version, content in made if there.get(version) == content]
    assert sorted(there) == list(range(len(there)))
    is_made = any(f'"{victim.name}-1"' in content for content in there.values())
    assert len(there) == len(made) + is_made == 1 + 5 * DRIVERS + is_made
    if step in ("gives it its name", "completes its entry"):
        assert is_made  # its entry was there
    if step == "puts it aside":
        assert not is_made


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.jdk
def test_deltas_own_store_loses_commits_in_the_same_race(aws: AwsServer, s3: Any, drivers: list[Driver]) -> None:
    """Control of the race: without conditions, acknowledged commits are overwritten, and no driver gets an error."""
    aws.fail(SLOW_PUTS)
    made = race(drivers, "single_driver", "stock")

    there = Counter(stored(s3, "stock").values())
    lost = [content for _, content in made if content not in there]
    assert len(made) == DRIVERS * COMMITS
    assert len(lost) > 10
