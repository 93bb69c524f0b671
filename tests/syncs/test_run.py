"""Events between a source and a target: files, definitions that change, a source that changed unnoticed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.changes import Changes
from lakegate.errors import CheckpointMismatch, ConstraintViolated, Corrupt, InvalidRequest, Unavailable
from lakegate.syncs.adapters import open_target
from lakegate.syncs.effect_runner import AnyEffect
from lakegate.syncs.plan.apply_protocol import Apply
from lakegate.syncs.plan.change import Change, batches, transactions
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources.files import ChangeFiles
from tests.syncs.short_changes import c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fill, fresh, sync

T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE, b varchar(50))"
every = pytest.mark.parametrize("kind", KINDS)


def row(id: int, uk: Any, b: Any = None) -> dict[str, Any]:
    """A row of `T`."""
    return {"id": id, "uk": uk, "b": b}


@every
@pytest.mark.parametrize("policy", ["stop", "quarantine"])
def test_a_key_that_somebody_adds_is_found_when_it_is_broken(
    kind: str, policy: str, request: pytest.FixtureRequest
) -> None:
    """The definition is read again, the batch is planned again, and no row is quarantined or stops the sync."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x", "one"), row(2, "y", "two")])
    steps = [c(1, row(3, "z")), u(2, row(1, "x", "one"), b="two"), u(2, row(2, "y", "two"), b="one")]
    target = database.target()
    settings = SyncSettings(changes_max=1, on_violation=policy)
    going = run(Changes(changes_of(*steps)), target, stream="s", settings=settings)
    next(going)
    database.execute("CREATE UNIQUE INDEX late ON t (b)")
    done = next(going)
    target.close()
    assert done.complete is not None
    assert (done.complete.edges, done.complete.dead) == (2, ())
    assert sorted((one["id"], one["b"]) for one in database.rows("t")) == [(1, "two"), (2, "one"), (3, None)]


@every
def test_keys_that_somebody_adds_again_and_again_are_an_error_of_the_target(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A batch is planned a second time, not without an end: the next run applies it."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a varchar(50), b varchar(50))")
    rows = [{"id": i, "a": f"a{i}", "b": f"b{i}"} for i in range(4)]
    fill(database, "t", rows)
    changes = changes_of(u(1, rows[0], a="a1"), u(1, rows[1], a="a0"), u(1, rows[2], b="b3"), u(1, rows[3], b="b2"))
    late = ["CREATE UNIQUE INDEX later ON t (b)", "CREATE UNIQUE INDEX late ON t (a)"]

    def seen(effect: AnyEffect) -> None:
        if isinstance(effect, Apply) and late:
            database.execute(late.pop())

    target = database.target()
    with pytest.raises(Unavailable, match=r"changed again while.*tables=t.*position=3"):
        list(run(Changes(changes), target, stream="s", seen=seen))
    target.close()
    assert not late
    sync(database, changes)
    assert {(row["a"], row["b"]) for row in database.rows("t")} == {
        ("a1", "b0"),
        ("a0", "b1"),
        ("a2", "b3"),
        ("a3", "b2"),
    }


@every
def test_a_begun_batch_is_repeated_to_its_end_or_not_at_all(kind: str, request: pytest.FixtureRequest) -> None:
    """Whatever the settings say now; and if the source no longer ends there, nothing is written."""
    if kind == "sqlite":
        pytest.skip("one writer begins no batch in parts")
    database = fresh(kind, request)
    database.execute(T)
    changes = changes_of(*(c(i, row(i, f"v{i}")) for i in range(9)))
    sync(database, changes[:2])
    database.execute("UPDATE lakegate_stream SET pending = 6")
    with pytest.raises(CheckpointMismatch, match="position=6"):
        sync(database, changes[:5])
    joined = [replace(one, tx="6" if one.seq in (6, 7) else one.tx) for one in changes]
    with pytest.raises(CheckpointMismatch, match="position=6"):
        sync(database, joined)
    assert len(database.rows("t")) == 2
    done = sync(database, changes, changes_max=2)
    assert [one.through for one in done] == [6, 8]


@pytest.mark.parametrize("kind", KINDS[:2])  # SQLite has no decimals
def test_a_number_arrives_with_all_its_digits(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A float would end it at the seventeenth."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n decimal(38, 12), f double precision)")
    said = ["12345678901234567890.123456789012", "0.1", "-99999999999999999999.5"]
    lines = [
        f'{{"seq": {i}, "tx": "{i}", "table": "t", "op": "c", "after": {{"id": {i}, "n": {n}, "f": 0.1}}}}'
        for i, n in enumerate(said)
    ]
    (tmp_path / "changes.jsonl").write_text("\n".join(lines))
    target = database.target()
    list(run(ChangeFiles(files=str(tmp_path / "changes.jsonl")), target, stream="s"))
    target.close()
    assert [one["n"] for one in sorted(database.rows("t"), key=lambda one: one["id"])] == [Decimal(n) for n in said]
    assert {one["f"] for one in database.rows("t")} == {0.1}


@every
@pytest.mark.parametrize("step", ["insert", "update", "before", "delete"])
def test_a_row_without_its_key_is_refused(kind: str, step: str, request: pytest.FixtureRequest) -> None:
    """Where `key` names a column that may be NULL: written, such a row would be one more with each change of it."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (n int, k varchar(50), b varchar(50))")
    fill(database, "t", [{"n": 1, "k": "x", "b": "one"}, {"n": 2, "k": None, "b": "two"}])
    was, now = {"n": 2, "k": None, "b": "two"}, {"n": 2, "k": "y", "b": "two"}
    steps = {"insert": c(1, was), "update": u(1, now, k=None), "before": u(1, was, k="y"), "delete": d(1, was)}
    target = database.target(key=["k"])
    with pytest.raises(InvalidRequest, match=r"a row has NULL in a column.*table=t key=k position="):
        list(run(Changes(changes_of(steps[step])), target, stream="s"))
    target.close()
    assert sorted(one["b"] for one in database.rows("t")) == ["one", "two"]


def test_batches_end_where_transactions_end() -> None:
    """Never inside one; an emptied table, a definition and a load are alone; a place where to end goes before the size."""
    sizes = [1, 2, 5, 1, 1]
    changes = changes_of(*(c(tx, row(0, "")) for tx, size in enumerate(sizes) for _ in range(size)))

    def cut(changes_max: int, through: int | None = None) -> list[int]:
        return [len(one.changes) for one in batches(transactions(changes), changes_max=changes_max, through=through)]

    assert cut(1) == sizes
    assert cut(3) == [3, 5, 2]
    assert cut(100) == [10]
    assert cut(1, through=7) == [8, 1, 1]
    below = [replace(one, seq=-1, tx="-1") for one in changes[:6]]
    load = [tuple(below[:3]), tuple(below[3:]), (below[0], replace(changes[6], seq=5))]
    rest = list(transactions(changes[7:]))
    assert [len(one.changes) for one in batches([*load, *rest], changes_max=6)] == [6, 2, 3]
    assert [len(one.changes) for one in batches([*load, *rest], changes_max=100, through=8)] == [8, 2, 1]
    begins = (Change(seq=-1, tx=None, table="t", op="mark"),)  # and loads nothing
    behind = batches([begins, *rest], changes_max=100, through=8)
    assert [(len(one.changes), one.is_load) for one in behind] == [(3, False), (1, False)]
    changes[8] = replace(changes[8], op="t", after=None)
    assert cut(100) == [8, 1, 1]


def lines(path: Path, *records: dict[str, Any]) -> ChangeFiles:
    """A file of changes."""
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return ChangeFiles(files=str(path))


GOOD = {"seq": 0, "tx": "a", "table": "t", "op": "c", "before": None, "after": {"id": 1}}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"op": "x"}, "op is none of"), ({"seq": "1"}, "seq is not a number"), ({"table": None}, "names no table"),
        ({"after": None}, "after is missing"), ({"after": [1]}, "after is not an object"), ({"op": "ddl"}, "sql is missing"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_change_is_named(bad: dict[str, Any], says: str, tmp_path: Path) -> None:
    """File and line, and what is wrong with it."""
    source = lines(tmp_path / "c.jsonl", GOOD, {**GOOD, "seq": 1, **bad})
    with pytest.raises(Corrupt, match=says) as error:
        list(source.transactions(-1))
    assert error.value.facts["line"] == 2


def test_files_are_merged_by_place_and_never_torn(tmp_path: Path) -> None:
    """Order within a file is checked; what was delivered before is dropped; nothing is opened that is not there."""
    lines(tmp_path / "z.jsonl", GOOD, {**GOOD, "seq": 3, "tx": "c"})
    lines(tmp_path / "a.jsonl", {**GOOD, "seq": 1, "tx": "b"}, {**GOOD, "seq": 2, "tx": "b"})
    lines(tmp_path / "again.jsonl", GOOD, {**GOOD, "seq": 1, "tx": "b"}, {**GOOD, "seq": 2, "tx": "b"})
    source = ChangeFiles(files=str(tmp_path), tables={"t": "u"})
    assert [[one.seq for one in group] for group in source.transactions(-1)] == [[0], [1, 2], [3]]
    assert [[one.seq for one in group] for group in source.transactions(2)] == [[3]]
    assert {one.table for group in source.transactions(-1) for one in group} == {"u"}
    with pytest.raises(Corrupt, match="not in the order of seq"):
        list(lines(tmp_path / "back.jsonl", {**GOOD, "seq": 9}, {**GOOD, "seq": 8, "tx": "b"}).transactions(-1))
    with pytest.raises(Unavailable, match="no file of changes"):
        list(ChangeFiles(files=str(tmp_path / "none*.jsonl")).transactions(-1))


@every
def test_bad_changes_are_named_and_nothing_is_written(kind: str, request: pytest.FixtureRequest) -> None:
    """A table or a column that the target lacks, a change without its key: table and position."""
    database = fresh(kind, request)
    database.execute(T)
    for bad, says in [
        (c(1, row(1, "x"), "absent"), "table=absent"),
        (c(1, {"id": 1, "other": 2}), "column=other"),
        (d(1, {"uk": "x"}), "key=id"),
        (("1", "t", "d", None, None), "key=id"),
    ]:
        with pytest.raises(InvalidRequest, match=says) as error:
            sync(database, changes_of(c(0, row(9, "fine")), bad))
        assert error.value.facts["position"] == 1
    assert database.rows("t") == []


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_change_before_its_snapshot_is_named_and_makes_no_half_row(
    kind: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """Of a row that the target does not have, the change shows a part; the rest of the row would be lost without a word."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x", "one"), row(4, "w", "four")])
    shown: list[Any] = [
        ("u", None, {"id": 1, "uk": "new"}), ("u", None, {"id": 2, "uk": "x"}),
        ("u", {"id": 3}, {"id": 8}), ("u", {"id": 4}, {"id": 9}),
        ("c", None, row(5, "five", "b")), ("u", None, {"id": 5, "uk": "y"}),
    ]  # fmt: skip
    changes = [replace(one, is_partial=one.op == "u") for one in changes_of(*(("1", "t", *each) for each in shown))]
    with pytest.raises(ConstraintViolated, match="shows only a part of the row, and the target does not have") as error:
        sync(database, changes, mode=mode)
    assert error.value.facts["rows"] == "t 2 (position 1); t 8 (position 2)"
    assert sorted(one["id"] for one in database.rows("t")) == [1, 4]
    (done,) = sync(database, changes, mode=mode, on_violation="quarantine")
    assert done.complete is not None
    assert sorted(one.row.key for one in done.complete.dead) == [(2,), (8,)]
    there = sorted((one["id"], one["uk"], one["b"]) for one in database.rows("t"))
    assert there == [(1, "new", "one"), (5, "y", "b"), (9, "w", "four")]


def test_a_target_is_chosen_by_its_dsn(tmp_path: Path) -> None:
    """And one that does not answer says so; the DSN, which may hold a password, is not in the message."""
    with pytest.raises(Unavailable, match=r"does not answer.*a\.db"):
        open_target(f"sqlite:{tmp_path / 'a.db'}").open_stream("s")
    (tmp_path / "a.db").touch()
    for epoch, dsn in enumerate((f"sqlite:{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'a.db'}"), 1):
        target = open_target(dsn)
        assert target.open_stream("s").epoch == epoch
        target.close()
    with pytest.raises(InvalidRequest, match="scheme=oracle") as error:
        open_target("oracle://u:secret@h/db")
    assert "secret" not in str(error.value)
    for dsn in ("postgresql://u:secret@127.0.0.1:1/db", "mysql://u:secret@127.0.0.1:1/db"):
        with pytest.raises(Unavailable, match="does not answer") as gone:
            open_target(dsn).open_stream("s")
        assert "secret" not in str(gone.value)


@every
def test_an_older_control_table_is_extended_and_a_place_stays(kind: str, request: pytest.FixtureRequest) -> None:
    """What the source wrote on the last change comes back with the position; one of another source is refused."""
    database = fresh(kind, request)
    database.execute(T)
    changes = changes_of(c(0, row(1, "x")), c(1, row(2, "y")))
    sync(database, changes[:1])
    for name in ("place", "pending_place"):
        database.execute(f"ALTER TABLE lakegate_stream DROP COLUMN {name}")
    looking = database.target()
    progress = looking.progress("s")
    looking.close()
    assert progress is not None
    assert (progress.position, progress.place) == (0, None)
    sync(database, [changes[0], replace(changes[1], place='{"source":"debezium"}')])
    target = database.target()
    progress = target.open_stream("s")
    target.close()
    assert (progress.position, progress.place) == (1, '{"source":"debezium"}')
    with pytest.raises(CheckpointMismatch, match="it is of debezium, and this sync reads change files"):
        list(ChangeFiles(files="none").transactions(progress.position, progress.place))


@pytest.mark.mariadb
@pytest.mark.parametrize("is_older", [False, True])
def test_a_place_is_as_long_as_it_is(is_older: bool, request: pytest.FixtureRequest) -> None:
    """One that names thousands of files: longer than what MariaDB calls `text`, of which a control table was made before."""
    database = fresh("mariadb", request)
    database.execute(T)
    changes, place = changes_of(c(0, row(1, "x")), c(1, row(2, "y"))), json.dumps({"files": ["a file" * 20] * 1_000})
    sync(database, changes[:1])
    if is_older:
        database.execute("ALTER TABLE lakegate_stream MODIFY place text, MODIFY pending_place text")
    sync(database, [changes[0], replace(changes[1], place=place)], mode="parallel", parallelism=2)
    assert database.query("SELECT position, place FROM lakegate_stream") == [(1, place)]


def test_a_position_of_other_files_is_refused(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Their numbers mean other changes: what lies below the position would be left out without a word."""
    database = fresh("sqlite", request)
    database.execute(T)
    lines(tmp_path / "a.jsonl", {**GOOD, "seq": 7, "after": row(1, "x")})
    lines(tmp_path / "b.jsonl", {**GOOD, "seq": 3, "after": row(2, "y")})
    for name, says in [("a", None), ("a", None), ("b", r"change files at .*a\.jsonl.* reads those at .*b\.jsonl")]:
        target = database.target()
        expected = contextlib.nullcontext() if says is None else pytest.raises(CheckpointMismatch, match=says)
        with expected:
            list(run(ChangeFiles(files=str(tmp_path / f"{name}.jsonl")), target, stream="s"))
        target.close()
    database.execute("UPDATE lakegate_stream SET place = NULL")  # as earlier versions left it
    target = database.target()
    assert list(run(ChangeFiles(files=str(tmp_path / "b.jsonl")), target, stream="s")) == []
    target.close()


@pytest.mark.parametrize("kind", KINDS)
def test_tables_whose_staging_changes_do_not_take_each_others_place(kind: str, request: pytest.FixtureRequest) -> None:
    """Rows of both tables move to other keys, after batches in which none did."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, w int)")
    steps = [
        c(1, {"id": 1, "v": 1}, "a"), c(1, {"id": 1, "w": 1}, "b"),
        (2, "a", "u", {"id": 1}, {"id": 2}), (2, "b", "u", {"id": 1}, {"id": 3}),
    ]  # fmt: skip
    sync(database, changes_of(*steps), changes_max=2)
    assert (database.query("SELECT id, v FROM a"), database.query("SELECT id, w FROM b")) == ([(2, 1)], [(3, 1)])


def test_what_is_prepared_ahead_never_takes_the_connection_of_a_target_that_has_one(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staging tables of SQLite are seen by one connection: only the thread that applies may ask the target."""
    import threading

    database = fresh("sqlite", request)
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    target = database.target()
    asked: set[str] = set()
    tables = target.tables

    def noted(names: Any) -> Any:
        asked.add(threading.current_thread().name)
        return tables(names)

    monkeypatch.setattr(target, "tables", noted)
    steps = changes_of(*(c(n, {"id": n}, "ab"[n % 2]) for n in range(20)))
    applied = list(run(Changes(steps), target, stream="s", settings=SyncSettings(changes_max=1)))
    target.close()
    assert (len(applied), asked) == (20, {threading.current_thread().name})
