"""Several drivers commit to one table on S3: what was acknowledged is there; with Delta's own store it is not."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.spark.jars import JarSources
from headgate.spark.java import JavaSources, find_java
from headgate.spark.log_stores import CLASSES
from headgate.testing.aws_server import AwsServer, Fault
from headgate.testing.log_store_jvm import FLAGS, class_path, settings_for

DRIVERS, COMMITS = 3, 50
PROGRAM = Path(__file__).parent / "java" / "CommitMany.java"
SLOW_PUTS = Fault("delay", kind="PUT", key=r"_delta_log/\d{20}\.json$", times=None, delay_ms=30)
"""A put takes as long as between two data centres, so that drivers meet; longer than that of a machine to itself."""


class Driver:
    """One JVM with a log store and no Spark."""

    def __init__(self, name: str, command: list[str], settings: dict[str, str], log: Path) -> None:
        given = [f"{key}={value}" for key, value in settings.items()]
        self._log = log
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
        """What it said up to a line: version and content of each commit that was acknowledged to it."""
        assert self.process.stdout is not None
        said = list(iter(lambda: self.process.stdout.readline().rstrip("\n") or "died", last))  # type: ignore[union-attr]
        assert "died" not in said, self._log.read_text()[-3000:]
        return [(int(version), content) for version, _, content in (line.partition(" ") for line in said)]


@pytest.fixture(scope="module")
def drivers(
    aws_running: AwsServer, jars_from: JarSources, java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Driver]]:
    """Three of them, connected."""
    folder = tmp_path_factory.mktemp("drivers")
    command = [str(find_java(java_from).program), *FLAGS, "-cp", class_path(jars_from), str(PROGRAM)]
    settings = settings_for(aws_running)
    running = [Driver(f"driver{n}", command, settings, folder / f"{n}.log") for n in range(DRIVERS)]
    try:
        for driver in running:
            driver.answers("ready")
        yield running
    finally:
        for driver in running:
            driver.process.kill()
            driver.process.communicate()


def race(drivers: list[Driver], store: str, table: str) -> list[tuple[int, str]]:
    """What all of them were told."""
    for driver in drivers:
        driver.begin(CLASSES[store], f"s3a://lake/{table}", COMMITS)
    return [told for driver in drivers for told in driver.answers("end")]


def stored(s3: Any, table: str) -> dict[int, str]:
    """Version → content, as a client that is not ours sees it."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=f"{table}/_delta_log/0")
    keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
    read = {key: s3.get_object(Bucket="lake", Key=key)["Body"].read().decode() for key in keys}
    return {int(key.rpartition("/")[2].removesuffix(".json")): text.rstrip("\n") for key, text in read.items()}


@pytest.mark.spark
@pytest.mark.jdk
@pytest.mark.parametrize("store", ["conditional", "dynamodb"])
def test_nothing_that_was_acknowledged_is_lost(aws: AwsServer, s3: Any, drivers: list[Driver], store: str) -> None:
    """3 drivers with 50 commits each: 150 versions without a gap, each put once, holding what its driver put there."""
    aws.fail(SLOW_PUTS)
    told = race(drivers, store, store)

    assert dict(told) == stored(s3, store)
    assert len(told) == DRIVERS * COMMITS
    assert sorted(version for version, _ in told) == list(range(DRIVERS * COMMITS))
    puts = [
        one for one in aws.requests() if one.kind == "PUT" and one.status == 200 and f"{store}/_delta_log/0" in one.key
    ]
    contents: dict[str, set[str]] = {}
    for put in puts:
        contents.setdefault(put.key, set()).add(put.sha256)
    assert {key for key, found in contents.items() if len(found) > 1} == set()
    assert all(put.is_conditional for put in puts)


@pytest.mark.spark
@pytest.mark.jdk
def test_deltas_own_store_loses_commits_in_the_same_race(aws: AwsServer, s3: Any, drivers: list[Driver]) -> None:
    """The race is one: without conditions, acknowledged commits are overwritten, and no driver is told."""
    aws.fail(SLOW_PUTS)
    told = race(drivers, "single_driver", "stock")

    there = Counter(stored(s3, "stock").values())
    lost = [content for _, content in told if content not in there]
    assert len(told) == DRIVERS * COMMITS
    assert len(lost) > 10
