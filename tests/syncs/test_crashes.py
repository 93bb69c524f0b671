"""Acceptance case 40: killed at any commit, or overtaken, a writer leaves nothing lost, doubled or torn for good."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from harness.changes import Changes, scenarios
from lakegate.demo.database_servers import Database, fresh_postgres
from lakegate.errors import Fenced, StagedRowsLost
from lakegate.syncs.effect_runner import AnyEffect
from lakegate.syncs.plan.apply_protocol import ALL, Apply, Begin
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.net_changes import fold
from lakegate.syncs.runner import SyncSettings, run
from tests.conftest import ROOT, data_dir
from tests.syncs.commits import Ended, When, counted
from tests.syncs.target_databases import KINDS, begin, crash_postgres, expected, fresh, lacks, state, sync

PATH = data_dir() / "cdc" / "scenarios.json"
SCENARIOS = {one.id: one for one in scenarios(PATH)} if PATH.is_file() else {}
FIRST_OF_A_BATCH = 4
pytestmark = pytest.mark.data


def process(database: Database, folder: Path, mode: str, die_at: int, when: str) -> subprocess.CompletedProcess[str]:
    """Starts a run in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.syncs.applier",
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
    scenario = SCENARIOS["mix-2"]
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
            assert database.query("SELECT count(*) FROM lakegate_slot") == [(0,)]
            assert database.query("SELECT pending FROM lakegate_stream") == [(None,)]


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


def ended_at(kind: str, name: str, mode: str, at: int, when: When, request: pytest.FixtureRequest) -> bool:
    """Ends at that commit, and the next run makes it as if nothing had been; False if there are not so many commits."""
    scenario, database = SCENARIOS[name], fresh(kind, request)
    changes, is_over = begin(database, scenario), [False]

    def on_commit(number: int, now: When) -> None:
        if is_over[0] or (number, now) == (at, when):
            is_over[0] = True
            raise Ended

    third = max(2, len(changes) // 3)
    with counted(on_commit), contextlib.suppress(Ended):
        sync(database, changes, mode=mode, parallelism=3, changes_max=third)
    if is_over[0]:  # the next run has other batch limits; a batch that was begun keeps its end
        sync(database, changes, mode=mode, parallelism=2, changes_max=third // 2)
    assert state(database, scenario.tables) == expected(scenario), (mode, at, when)
    assert database.query("SELECT count(*) FROM lakegate_slot") == [(0,)]
    return is_over[0]


@pytest.mark.parametrize(
    "kind", [KINDS[0], pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.matrix]), KINDS[2]]
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_ends_at_any_commit_is_completed_later(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    """As by kill -9, for the target: its connections are closed, and what was not committed is gone."""
    if name in lacks(kind):
        pytest.skip(f"{kind} has no such table")
    is_thorough = os.environ.get("LAKEGATE_MATRIX", "0") not in ("", "0")
    for mode in ("atomic", "parallel"):
        # The first ones make the control tables, and take the stream.
        for at in itertools.count(1 if is_thorough else FIRST_OF_A_BATCH, 1 if is_thorough else 5):
            whens: tuple[When, ...] = ("before", "after") if is_thorough else ("before" if at % 2 else "after",)
            if not all(ended_at(kind, name, mode, at, when, request) for when in whens):
                break
        assert at > FIRST_OF_A_BATCH, "it ended nowhere"


@pytest.mark.parametrize("kind", KINDS)
def test_case_40_a_writer_of_an_older_epoch(kind: str, request: pytest.FixtureRequest) -> None:
    """Overtaken at any step, it is refused at the next one that would write, and changes nothing."""
    scenario = SCENARIOS["mix-1"]
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


@pytest.mark.parametrize(("mode", "step"), [("atomic", Apply), ("parallel", Begin), ("parallel", Apply)])
def test_a_batch_is_staged_again_after_the_server_crashed(
    mode: Literal["atomic", "parallel"], step: type[AnyEffect], mortal_postgres: str
) -> None:
    """PostgreSQL empties staging tables when it recovers from a crash: no batch is lost by that, and none is written in part."""
    scenario, database = SCENARIOS["mix-2"], fresh_postgres(mortal_postgres)
    changes, steps = begin(database, scenario), itertools.count(1)

    def seen(effect: AnyEffect) -> None:
        if isinstance(effect, step) and next(steps) == 2:
            crash_postgres(database)

    target, settings = database.target(), SyncSettings(mode=mode, parallelism=3, changes_max=40)
    done = list(run(Changes(changes), target, stream="s", settings=settings, seen=seen))
    target.close()
    assert state(database, scenario.tables) == expected(scenario)
    assert [one.batch for one in done] == list(range(1, len(done) + 1))


def test_a_server_that_keeps_crashing_ends_the_run(mortal_postgres: str) -> None:
    """With the position at the last batch that is in; the next run makes up for the rest."""
    scenario, database = SCENARIOS["mix-2"], fresh_postgres(mortal_postgres)
    changes = begin(database, scenario)

    def seen(effect: AnyEffect) -> None:
        if isinstance(effect, Apply):
            crash_postgres(database)

    target = database.target()
    with pytest.raises(StagedRowsLost):
        list(run(Changes(changes), target, stream="s", settings=SyncSettings(changes_max=40), seen=seen))
    target.close()
    assert database.query("SELECT last_batch, position FROM lakegate_stream") == [(0, -1)]
    sync(database, changes)
    assert state(database, scenario.tables) == expected(scenario)
