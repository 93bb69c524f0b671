"""Commits on local disk: one writer per version, whatever the number of processes, and never half a file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakegate.spark.jars import JarSources, fetch, own_jar
from lakegate.spark.java import JavaSources, find_java
from lakegate.spark.log_stores import GATE

if TYPE_CHECKING:
    pass

VERSIONS = 10_000
LINES = 50
RACER = Path(__file__).parent / "java" / "RaceForVersions.java"


def race(store: str, folder: Path, *, jars: JarSources, java: JavaSources, versions: int) -> tuple[set[int], set[int]]:
    """Returns the versions acknowledged to each of two racing processes; no version may have been read half written."""
    import pyspark

    (folder / "_delta_log").mkdir(parents=True)
    spark_jars = Path(pyspark.__file__).parent / "jars" / "*"
    class_path = os.pathsep.join(map(str, [own_jar(), *fetch(["delta"], sources=jars), spark_jars]))
    command = [
        str(find_java(java).program),
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        class_path,
        str(RACER),
    ]
    with (folder / "racers.log").open("wb") as log:
        racers = [
            subprocess.Popen(
                [*command, store, str(folder), str(own), str(versions), str(LINES)], stdout=log, stderr=log
            )
            for own in (0, 1)
        ]
        try:
            codes = [racer.wait(240) for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
                racer.wait()
    assert codes == [0, 0], (folder / "racers.log").read_text()
    won: list[set[int]] = []
    for own in (0, 1):
        told = (folder / f"writer-{own}.txt").read_text().splitlines()
        assert told.pop() == "end"
        assert [line for line in told if line.startswith("torn")] == []
        won.append({int(line.split()[1]) for line in told})
    return won[0], won[1]


@pytest.mark.spark
@pytest.mark.jdk
def test_one_version_is_never_acknowledged_to_two_processes(
    tmp_path: Path, jars_from: JarSources, java_from: JavaSources
) -> None:
    """Of 10,000 versions each is acknowledged to exactly one of two processes, and holds what that one wrote, whole."""
    won = race(GATE, tmp_path, jars=jars_from, java=java_from, versions=VERSIONS)

    assert won[0] & won[1] == set()
    assert won[0] | won[1] == set(range(VERSIONS))
    assert min(len(won[0]), len(won[1])) > VERSIONS // 100, "they hardly met: this was no race"
    for own in (0, 1):
        for version in won[own]:
            lines = (tmp_path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
            assert lines == [f"writer {own} line {line}" for line in range(LINES)]
    assert len(list((tmp_path / "_delta_log").iterdir())) == VERSIONS, "something was left behind"
