"""Acceptance case 40: killed at any commit, or overtaken, a writer leaves nothing lost, doubled or torn for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.core.keys.apply import ALL
from headgate.core.keys.change import Change
from headgate.core.keys.fold import fold
from headgate.errors import Fenced
from headgate.testing.changes import scenarios
from headgate.testing.databases import Database
from tests.conftest import ROOT, data_dir
from tests.keys.rooms import KINDS, begin, expected, fresh, state, sync

PATH = data_dir() / "cdc" / "scenarios.json"
pytestmark = pytest.mark.data


def process(database: Database, folder: Path, mode: str, die_at: int, when: str) -> subprocess.CompletedProcess[str]:
    """One run in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.keys.applier",
        database.kind,
        database.dsn,
        str(folder),
        mode,
        str(die_at),
        when,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def write(folder: Path, changes: list[Change]) -> None:
    """The changes as a file."""
    folder.mkdir()
    names = ("seq", "tx", "table", "op", "before", "after")
    lines = [json.dumps({name: getattr(change, name) for name in names}) for change in changes]
    (folder / "changes.jsonl").write_text("\n".join(lines), encoding="utf-8")


def killed_at(kind: str, mode: str, at: list[int], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Dies at each of these commits, before and after; the next run ends as if nothing had been."""
    scenario = next(one for one in scenarios(PATH) if one.id == "mix-2")
    folder = tmp_path / "changes"
    for number in at:
        for when in ("before", "after"):
            database = fresh(kind, request)
            changes = begin(database, scenario)
            if not folder.is_dir():
                write(folder, changes)
            died = process(database, folder, mode, number, when)
            assert died.returncode == -9, died.stderr
            assert state(database, ["t"]) != expected(scenario) or number > 20
            again = process(database, folder, mode, 0, when)
            assert again.returncode == 0, again.stderr
            assert state(database, ["t"]) == expected(scenario), (number, when)
            assert database.query("SELECT count(*) FROM headgate_slot") == [(0,)]
            assert database.query("SELECT pending FROM headgate_stream") == [(None,)]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        pytest.param("postgres", "atomic", marks=pytest.mark.postgres),
        pytest.param("postgres", "parallel", marks=pytest.mark.postgres),
        pytest.param("mariadb", "parallel", marks=pytest.mark.mariadb),
        pytest.param("sqlite", "atomic"),
    ],
)
def test_case_40_killed_at_a_commit(kind: str, mode: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """In mode atomic the commit of the first batch's rows and position; in parallel that of a slot, and that of the end."""
    killed_at(kind, mode, [10, 12] if mode == "parallel" else [8], request, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_case_40_killed_at_every_commit(kind: str, mode: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The same, at each of the commits of the first three batches."""
    killed_at(kind, mode, list(range(1, 25)), request, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_case_40_a_writer_of_an_older_epoch(kind: str, request: pytest.FixtureRequest) -> None:
    """Overtaken at any step, it is refused at the next one that would write, and changes nothing."""
    scenario = next(one for one in scenarios(PATH) if one.id == "mix-1")
    database = fresh(kind, request)
    changes = begin(database, scenario)
    zombie = database.target()
    zombie.open_stream("s", epoch=7)
    net = fold(changes[:50], zombie.tables(["t"]))
    zombie.stage(net, 1)
    before = state(database, ["t"])
    successor = database.target()
    if kind != "sqlite":  # its temporary tables are its own
        successor.open_stream("s", epoch=8)
        for step in (
            lambda: zombie.look(net, duplicates=False),
            lambda: zombie.begin(net),
            lambda: zombie.apply(net, ALL, finish=True),
            lambda: zombie.apply(net, 0),
            lambda: zombie.finish(net, 1, ()),
            lambda: zombie.stage(net, 1),
        ):
            with pytest.raises(Fenced):
                step()
        assert state(database, ["t"]) == before
    with pytest.raises(Fenced):
        successor.open_stream("s", epoch=6)
    successor.close()
    zombie.close()
    sync(database, changes, epoch=9)
    assert state(database, ["t"]) == expected(scenario)
    with pytest.raises(Fenced):
        sync(database, changes, epoch=8)
