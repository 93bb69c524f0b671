"""Races that no pair of plain statements shows, made without chance: what is left is what stock Delta leaves one by one."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from harness.tables import KINDS, audit, make
from lakegate.delta.actions import Body
from lakegate.delta.idempotent_writes import confs
from lakegate.ids import TableLocation
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.conflict.rebase import ENTERED
from lakegate.rows.result import Result
from lakegate.rows.row_reader import TableRows
from lakegate.rows.sql import statement
from lakegate.rows.transaction import GROUP_CONF
from tests.delta.delta_tables import commit_paths, foreign_commit, last_add, make_table, rows, write_token
from tests.waiting import is_held, wait_until


@pytest.fixture(scope="module")
def first(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, the first of which has a vector; version 1 is the one before it has."""
    path = tmp_path_factory.mktemp("races") / "first"
    make(session, KINDS["vectors"], path)
    return path


def content(session: SparkSession, path: Path) -> tuple[list[str], Counter[tuple[object, ...]]]:
    """Columns and rows."""
    frame = session.read.format("delta").load(str(path))
    return frame.columns, Counter(map(tuple, frame.collect()))


def followed(session: SparkSession, path: Path, ours: str, winners: Sequence[str]) -> Result:
    """Rebases a statement onto statements that commit after it was computed; `{t}` stands for the table."""
    staged = computed(session, path, ours)
    one_by_one(session, path, winners)
    return publisher(session).finish(staged)


def computed(session: SparkSession, path: Path, text: str) -> Staged:
    """A statement that is not put."""
    dml = statement(session, text.format(t=f"delta.`{path}`"))
    assert dml is not None
    return publisher(session).stage(dml)


def one_by_one(session: SparkSession, path: Path, texts: Sequence[str]) -> None:
    """By stock Delta alone."""
    for text in texts:
        session.sql(text.format(t=f"delta.`{path}`"))


# -------------------------------------------------------------------------------------------------------- the table's line


@pytest.mark.slow
def test_others_wait_for_a_put_and_not_for_a_rebase(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another statement of the driver is put meanwhile; one that lost a put by that is not overtaken by a third."""
    session = session.newSession()
    session.conf.set(GROUP_CONF, "1")  # those that wait would share a version
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(10)).coalesce(1).write.format("delta").mode("append").save(table)
    first, second, third = (
        computed(session, Path(table), f"UPDATE {{t}} SET v = 'x' WHERE id = {number}") for number in range(3)
    )
    one_by_one(session, Path(table), ["DELETE FROM {t} WHERE id = 9"])
    follows = {id(one.dml): [threading.Event(), threading.Event()] for one in (first, second, third)}
    may_go_on = [threading.Event(), threading.Event()]
    write_vectors = TableRows.write_vectors

    def held(self: TableRows, vectors: Sequence[BitMap64]) -> Sequence[Body]:
        times = follows[id(self._dml)]
        now = next(place for place, each in enumerate(times) if not each.is_set())
        times[now].set()
        if self._dml is first.dml:
            assert may_go_on[now].wait(120)
        return write_vectors(self, vectors)

    monkeypatch.setattr(TableRows, "write_vectors", held)
    ours = publisher(session)
    with ThreadPoolExecutor(3) as pool:
        one = pool.submit(ours.finish, first)
        assert follows[id(first.dml)][0].wait(120)
        two = pool.submit(ours.finish, second).result(120)
        may_go_on[0].set()
        assert follows[id(first.dml)][1].wait(120)
        three = pool.submit(ours.finish, third)
        assert follows[id(third.dml)][0].wait(120)
        assert not wait([three], timeout=1).done, "the first one keeps the line"
        may_go_on[1].set()
        ends = [two, one.result(120), three.result(120)]
    assert [(end.version, end.lost_puts) for end in ends] == [(3, 0), (4, 1), (5, 1)]
    assert {end.level for end in ends} == {2}
    assert ends[1].publish_ms >= ends[1].held_ms > 0
    assert ends[2].waited_ms >= 900
    found = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert found == {**dict.fromkeys(range(3), "x"), **dict.fromkeys(range(3, 9), "a")}
    audit(tmp_path / "t")


# -------------------------------------------------------------------------------------------------------- the table reserved


@pytest.mark.matrix
@pytest.mark.also_without_caches
def test_an_update_that_each_append_concerns_gets_the_table_to_itself(session: SparkSession, tmp_path: Path) -> None:
    """Whenever it is executed a row comes in that it concerns: the third time it is not overtaken, and an append waits."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(5)).write.format("delta").mode("append").save(table)
    held: list[Future[None]] = []

    def append(id_: int) -> None:
        rows(session, id_).write.format("delta").mode("append").save(table)

    dml = statement(session, f"UPDATE delta.`{table}` SET v = concat(v, 'b') WHERE v = 'a'")
    assert dml is not None
    run_on = dml.execute_on
    assert run_on is not None
    with confs(session, {"spark.lakegate.holdMs": "300000"}), ThreadPoolExecutor(1) as other:

        def overtaken(path: str) -> object:
            if len(held) < 4:  # without a reservation it would never end
                came = other.submit(append, 11 + len(held))
                held.append(came)
                wait_until(lambda: came.done() or is_held(session))
            return run_on(path)

        staged = publisher(session).stage(replace(dml, execute_on=overtaken))
        append(10)
        published = publisher(session).finish(staged)
        for came in held:
            came.result()
    assert (published.level, published.attempts, published.reasons) == (5, 3, (ENTERED, ENTERED))
    history = session.sql(f"DESCRIBE HISTORY delta.`{table}`").orderBy("version").collect()
    assert [commit.operation for commit in history[2:]] == ["WRITE", "WRITE", "UPDATE", "WRITE"]
    found = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert found == {**dict.fromkeys((*range(5), 10, 11), "ab"), 12: "a"}
    audit(tmp_path / "t")


@pytest.mark.slow
def test_a_statement_that_a_writer_without_a_gate_outruns_says_so(
    session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reservation stops only writers with a gate: the statement retries until it is not overtaken, and logs this."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1, 2).write.format("delta").mode("append").save(table)
    dml = statement(session, f"DELETE FROM delta.`{table}` WHERE id = 2 AND now() > '2000-01-01'")
    assert dml is not None
    ours = dml
    executions = 0

    def outrun() -> object:
        nonlocal executions
        executions += 1
        try:
            return ours.execute()
        finally:  # it ends with an error where its commit is kept
            if executions <= 4:
                add = {**last_add(table), "path": f"came-{executions}.parquet"}
                shutil.copy(Path(table, last_add(table)["path"]), Path(table, add["path"]))
                foreign_commit(table, {"add": add})

    with caplog.at_level("WARNING", "lakegate"):
        staged = publisher(session).stage(replace(dml, execute=outrun, quick=None))
        published = publisher(session).finish(staged, write_token(1, 0))
    assert (executions, published.level, published.attempts) == (5, 5, 5)
    told = [message for message in caplog.messages if "ignores the reservation" in message]
    assert [number for message in told for number in (2, 3, 4) if f"(attempt {number} " in message] == [2, 3]
    assert all(row.id == 1 for row in session.read.format("delta").load(table).collect())


APPENDING = """
import sys, threading
import lakegate
from harness.soak import CONF

session = lakegate.session("appender", conf=CONF)
row = session.createDataFrame([(2, "a")], "id BIGINT, v STRING").coalesce(1)
asked = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), asked.set()), daemon=True).start()
while not asked.is_set():
    row.write.format("delta").mode("append").save(sys.argv[1])
    print("came", flush=True)
"""


@pytest.mark.slow
def test_a_statement_that_another_driver_outruns_gets_the_table_to_itself(
    session: SparkSession, tmp_path: Path
) -> None:
    """Appends of a driver of its own, one after another, each of which concerns it: they wait, as those of its own do."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1, 2).write.format("delta").mode("append").save(table)
    note = Path(table, "_lakegate", "reserved")
    dml = statement(session, f"DELETE FROM delta.`{table}` WHERE id = 2 AND now() > '2000-01-01'")
    assert dml is not None
    ours = dml
    executions = 0

    def overtaken() -> object:
        nonlocal executions
        executions += 1
        assert executions <= 6, "it goes on and on"
        try:
            return ours.execute()
        finally:  # it ends with an error, as its commit is kept each time
            there, held_since = len(commit_paths(table)), None
            while len(commit_paths(table)) == there:
                held_since = (held_since or time.monotonic()) if note.exists() else None
                if held_since is not None and time.monotonic() - held_since > 3:  # longer than an append takes
                    break
                time.sleep(0.05)

    with subprocess.Popen(
        [sys.executable, "-c", APPENDING, table], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "came\n"
            staged = publisher(session).stage(replace(dml, execute=overtaken, quick=None))
            published = publisher(session).finish(staged, write_token(1, 0))
            assert published.level == 5
            assert not note.exists()
            wait_until(lambda: len(commit_paths(table)) > (published.version or 0) + 1)  # it goes on
        finally:
            other.communicate("")
    assert other.returncode == 0
    assert published.version is not None
    left = session.read.format("delta").option("versionAsOf", published.version).load(table)
    assert [row.id for row in left.collect()] == [1]
    audit(tmp_path / "t")


@pytest.mark.also_without_caches
@pytest.mark.parametrize("when", ["before it is put", "while it is executed again"])
def test_a_table_that_was_replaced_is_written_as_it_then_is(session: SparkSession, tmp_path: Path, when: str) -> None:
    """Its log goes on: a serial run would have executed the statement on the new table."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    dml = statement(session, f"DELETE FROM delta.`{path}` WHERE id IN (3, 1000) AND now() > '2000-01-01'")
    assert dml is not None
    ours = dml
    new = f"CREATE OR REPLACE TABLE delta.`{path}` USING delta AS SELECT * FROM delta.`{path}` WHERE id < 10"
    executions = 0

    def replaced() -> object:
        nonlocal executions
        executions += 1
        try:
            return ours.execute()
        finally:  # it ends with an error where its commit is kept
            if executions == (1 if when == "before it is put" else 2):
                with ThreadPoolExecutor(1) as other:  # a thread of its own: this one's commits are the statement's
                    other.submit(session.sql, new).result()

    staged = publisher(session).stage(replace(dml, execute=replaced, quick=None))
    session.sql(f"INSERT INTO delta.`{path}` SELECT 1000, 0, 0, 1, 'x'")
    published = publisher(session).finish(staged, write_token(1, 0))
    assert published.level >= 2
    assert published.version is not None
    found = {row.id for row in session.read.format("delta").load(str(path)).collect()}
    assert 3 not in found
    assert 1000 not in found
    assert max(found) < 10
    audit(path)


# ------------------------------------------------------------------------------------------------------------- what wins

CHANGES = {
    "UPDATE": "UPDATE {t} SET n = n * 3 + 2 WHERE v IN (0, 1)",
    "DELETE": "DELETE FROM {t} WHERE v IN (0, 1)",
}
INSERT = "INSERT INTO {t} VALUES (60, 1, 0, 1, 'x'), (61, 4, 0, 1, 'x')"
RESTORES: dict[str, tuple[list[str], int, dict[str, int]]] = {
    # What was done before the statements are computed, the version that is restored, their levels.
    "marked rows come back": ([], 1, {"UPDATE": 4, "DELETE": 4}),
    "a file goes": ([INSERT], 2, {"UPDATE": 3, "DELETE": 2}),
    "files come back": (["DELETE FROM {t} WHERE id >= 0", INSERT], 2, {"UPDATE": 3, "DELETE": 2}),
}


DEFINITION = ('{"metaData"', '{"protocol"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_stock"),
    [
        pytest.param(
            name,
            is_stock,
            marks=[pytest.mark.matrix] if is_stock and name != "marked rows come back" else [],
            id=f"{name}, by {'Delta' if is_stock else 'another engine'}",
        )
        for name in RESTORES
        for is_stock in (True, False)
    ],
)
def test_rows_that_restore_brings_back_are_changed_and_those_that_it_takes_are_not(
    session: SparkSession, first: Path, tmp_path: Path, name: str, *, is_stock: bool
) -> None:
    """RESTORE wins: vectors mark less than before, files of before are gone, files that were gone are there.

    Delta sets the table's definition with it, changed or not, and what follows that is executed again. Others need not.
    """
    before, version, levels = RESTORES[name]
    won = tmp_path / "won"
    shutil.copytree(first, won)
    one_by_one(session, won, before)
    paths = {ours: Path(shutil.copytree(won, tmp_path / ours)) for ours in CHANGES}
    staged = {ours: computed(session, path, CHANGES[ours]) for ours, path in paths.items()}
    one_by_one(session, won, [f"RESTORE TABLE {{t}} TO VERSION AS OF {version}"])
    commit = commit_paths(TableLocation(str(won)))[-1]
    lines = commit.read_text().splitlines(keepends=True)
    assert sum(line.startswith(DEFINITION) for line in lines) == 2
    text = "".join(line for line in lines if is_stock or not line.startswith(DEFINITION))
    for ours, path in paths.items():
        (path / "_delta_log" / commit.name).write_text(text)
        published = publisher(session).finish(staged[ours])
        serial = Path(shutil.copytree(won, tmp_path / f"{ours}, serially"))
        one_by_one(session, serial, [CHANGES[ours]])
        assert content(session, path) == content(session, serial)
        assert published.level == (4 if is_stock else levels[ours])
        assert ("rows were restored" in published.reasons) == (not is_stock and name == "marked rows come back")


MERGE = (
    "MERGE WITH SCHEMA EVOLUTION INTO {{t}} t USING (SELECT id, {n}L AS n, {n}L AS {more} FROM range({begin}, {end})) s "
    "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
WIDENS = MERGE.format(n=7, more="m", begin=38, end=43)
EVOLVING = {
    "it wins": (CHANGES["UPDATE"], [WIDENS], 4),
    "it follows changes of other rows": (WIDENS, ["UPDATE {t} SET n = 5 WHERE id = 30", INSERT], 2),
    "it follows changes of its own rows": (WIDENS, ["UPDATE {t} SET n = 5 WHERE id = 38"], 4),
    "it follows a row of its keys": (WIDENS, ["INSERT INTO {t} VALUES (41, 0, 0, 1, 'x')"], 4),
    "it follows another": (MERGE.format(n=8, more="o", begin=39, end=44), [WIDENS], 4),
}
LONG = ("it follows changes of its own rows",)
"""What pairs of statements that widen nothing show as well."""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] if name in LONG else []) for name in EVOLVING]
)
def test_a_merge_that_widens_the_table_rebases_and_others_rebase_onto_it(
    session: SparkSession, first: Path, tmp_path: Path, name: str
) -> None:
    """The new column is there once, with what a serial run has in it: NULL in rows that the MERGE did not write."""
    ours, winners, level = EVOLVING[name]
    path, serial = tmp_path / "t", tmp_path / "serial"
    for copy in (path, serial):
        shutil.copytree(first, copy)
    outcome = followed(session, path, ours, winners)
    one_by_one(session, serial, [*winners, ours])
    assert content(session, path) == content(session, serial)
    assert outcome.level == level
    audit(path)


@pytest.mark.parametrize("now", ["current_timestamp()", "'now'"])
def test_an_update_writes_one_value_of_the_current_time(session: SparkSession, tmp_path: Path, now: str) -> None:
    """A new matching row makes the whole statement run again: a partial rerun would write two different times."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT, at TIMESTAMP", enableDeletionVectors="true")
    one_by_one(session, tmp_path / "t", ["INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, id % 2, NULL FROM range(6)"])
    ours = f"UPDATE {{t}} SET at = {now} WHERE v = 0"
    outcome = followed(session, tmp_path / "t", ours, ["INSERT INTO {t} VALUES (10, 0, NULL)"])
    found = {row.id: row.at for row in session.read.format("delta").load(table).collect()}
    assert {id_ for id_, at in found.items() if at is not None} == {0, 2, 4, 10}
    assert {id_ for id_, at in found.items() if at is None} == {1, 3, 5}
    assert len({at for at in found.values() if at is not None}) == 1
    assert (outcome.level, outcome.attempts) == (4, 2)
    audit(tmp_path / "t")
