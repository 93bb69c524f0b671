"""The demo's folder, its pipeline's file, and what the command refuses; no JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakegate import settings
from lakegate.cli import demo
from lakegate.cli.app import app
from lakegate.config import Append, Erase, FilesSource, Mutate
from lakegate.demo.generator import generate
from lakegate.demo.killer import Killed, Killer
from lakegate.demo.lake import JAVA_OPTIONS, JOBS, LOCK, Lake, fill, open_lake
from lakegate.demo.records import Cut
from lakegate.errors import InvalidRequest
from lakegate.turns.protocol.ordering import After, NoRule

CUT = Cut(ingest=3, mutation=2, delete=1)


def test_the_pipelines_file_says_what_the_demo_shows(tmp_path: Path) -> None:
    """lakegate.yml has no fault: three streams on one lock, each after the one before, one file a batch, one batch a turn."""
    with open_lake(tmp_path / "lake") as lake:
        fill(lake, generate(1, 100), CUT)
    pipeline = settings.load_pipeline(str(lake.spec), environ={})
    assert tuple(stream.name for stream in pipeline.streams) == JOBS
    assert {pipeline.lock_of(stream) for stream in pipeline.streams} == {LOCK}
    assert [stream.order for stream in pipeline.streams] == [NoRule(), After(("Ingestion",)), After(("Mutation",))]
    assert [type(stream.kind) for stream in pipeline.streams] == [Append, Mutate, Erase]
    assert {stream.turn_limit_batches for stream in pipeline.streams} == {1}
    assert pipeline.streams[0].max_rows_per_batch == 34  # 100 rows in three files
    assert pipeline.tables["engagement"].path == lake.table
    assert pipeline.storage == str(lake.storage)
    for stream, folder in zip(pipeline.streams, ("ingest", "mutation", "delete"), strict=True):
        assert isinstance(stream.source, FilesSource)
        assert stream.source.path == str(lake.inputs / folder)


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Neither a folder with files that no demo made, nor a file, is touched."""
    (tmp_path / "thesis.txt").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InvalidRequest, match="nothing was changed"), open_lake(place):
            raise AssertionError("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_demo_empties_what_the_first_one_made_and_nothing_else(tmp_path: Path) -> None:
    """The same folder serves again; a file that the user put into it stays."""
    with open_lake(tmp_path) as lake:
        fill(lake, generate(1, 100), CUT)
        lake.report.write_text("old")
        (tmp_path / "my-notes.txt").write_text("kept")
    with open_lake(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.json", "my-notes.txt"]


def test_the_archive_of_classes_outlives_a_demo_and_every_driver_maps_it(tmp_path: Path) -> None:
    """Those of the pipeline's file, too; without the file no driver asks for it."""
    with open_lake(tmp_path) as lake:
        assert "SharedArchiveFile" not in lake.conf[JAVA_OPTIONS]
        lake.archive.write_text("classes")
    with open_lake(tmp_path) as lake:
        fill(lake, generate(1, 100), CUT)
        option = f'"-XX:SharedArchiveFile={lake.archive}"'
        assert option in lake.conf[JAVA_OPTIONS]
        assert option in settings.load_pipeline(str(lake.spec), environ={}).spark[JAVA_OPTIONS]


def test_two_demos_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    """The second says that one is running, and takes nothing away from it."""
    with open_lake(tmp_path) as lake:
        fill(lake, generate(1, 100), CUT)
        with pytest.raises(InvalidRequest, match="a demo is running"), open_lake(tmp_path):
            raise AssertionError("it was opened")
        assert lake.spec.exists()


def test_the_killer_waits_for_the_second_append(tmp_path: Path) -> None:
    """One append, or commits of other kinds, kill nobody; the second append kills the process, once."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    killed: list[Killed] = []

    def commit(version: int, operation: str) -> None:
        own = log / f".{version}"
        own.write_text(f'{{"commitInfo":{{"operation":"{operation}"}}}}\n')
        own.rename(log / f"{version:020}.json")

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with Killer(Lake(tmp_path).commits(str(tmp_path)), lambda: process.pid, killed.append) as killer:
            for version, operation in enumerate(("CREATE TABLE", "WRITE", "MERGE", "MERGE")):
                commit(version, operation)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
            assert killer.killed is None
            commit(4, "WRITE")
            assert process.wait(30) == -9
        assert [one.pid for one in killed] == [process.pid]


def test_what_cannot_be_shown_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """--full with --data, and a source that is not there: exit 2, and no folder."""
    assert demo.demo_command in [command.callback for command in app.registered_commands]
    folder = tmp_path / "lake"
    for arguments, said in (
        (["--full", "--data", str(tmp_path)], "--data brings its own records"),
        (["--data", str(tmp_path), "--source", "git"], "there is no file"),
    ):
        result = CliRunner().invoke(app, ["demo", "--dir", str(folder), *arguments])
        assert isinstance(result.exception, InvalidRequest)
        assert said in str(result.exception)
    assert os.listdir(tmp_path) == []
