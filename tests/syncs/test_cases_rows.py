"""Acceptance cases 19 to 28 and 33 to 39: inserted, deleted and moved rows, and values that events leave out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from harness.changes import Changes, table_text
from lakegate.demo.database_servers import Database
from lakegate.errors import ConstraintViolated, Corrupt, Fenced, InvalidRequest, UnsupportedTable
from lakegate.syncs.effect_runner import AnyEffect
from lakegate.syncs.plan.apply_protocol import Apply
from lakegate.syncs.plan.change import Change
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources.files import ChangeFiles
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, WAYS, check_case, fill, fresh, state, sync

PG = [pytest.param("postgres", marks=pytest.mark.postgres)]
MY = [pytest.param("mariadb", marks=pytest.mark.mariadb)]
T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE)"
every = pytest.mark.parametrize("kind", KINDS)
on_postgres = pytest.mark.parametrize("kind", PG)
Request = pytest.FixtureRequest
Row = dict[str, Any]


def row(id: int, uk: Any) -> Row:
    """A row of `T`."""
    return {"id": id, "uk": uk}


def rows(*pairs: tuple[int, Any]) -> dict[str, list[Row]]:
    """The table `t` with these rows."""
    return {"t": [row(id, uk) for id, uk in pairs]}


@every
def test_case_19_primary_keys_move(kind: str, request: Request) -> None:
    """Updated, swapped through a third, carrying unique values along; and a whole chain `id = id + 1` in one statement."""
    before = rows((1, "x"), (2, "y"))
    check_case(kind, request, [T], before, [u(1, row(1, "x"), id=9)], rows((9, "x"), (2, "y")))
    swap = [u(1, row(1, "x"), id=3), u(1, row(2, "y"), id=1), u(1, row(3, "x"), id=2)]
    check_case(kind, request, [T], before, swap, rows((2, "x"), (1, "y")))
    carry = [u(1, row(1, "x"), id=3, uk="y"), u(1, row(2, "y"), uk="x")]
    check_case(kind, request, [T], before, carry, rows((3, "y"), (2, "x")))
    n = 30
    for order in (range(n), reversed(range(n))):
        chain = [u(1, row(i, f"v{i}"), id=i + 1) for i in order]
        check_case(
            kind, request, [T], rows(*((i, f"v{i}") for i in range(n))), chain,
            rows(*((i + 1, f"v{i}") for i in range(n))), [("parallel", 8, 1000)],
        )  # fmt: skip
    direct = [u(1, row(1, "x"), id=2), u(1, row(2, "y"), id=1)]
    check_case(kind, request, [T], before, direct, rows((2, "x"), (1, "y")))


@every
def test_case_20_delete_and_insert_with_one_value(kind: str, request: Request) -> None:
    """In both orders: the row that arrives keeps the value (`ON DUPLICATE KEY UPDATE` loses it without a word)."""
    for steps in (
        [d(1, row(3, "z")), c(1, row(10, "z"))],
        [c(1, row(10, "z")), d(1, row(3, "z"))],
    ):
        check_case(kind, request, [T], rows((3, "z"), (4, "w")), steps, rows((4, "w"), (10, "z")))


@every
def test_case_21_net_effects(kind: str, request: Request) -> None:
    """Came and went; went and came with another value; many updates of one row."""
    steps: list[Step] = [c(1, row(5, "n")), d(2, row(5, "n")), d(3, row(1, "x")), c(4, row(1, "y2"))]
    value = "y"
    for i in range(20):
        steps.append(u(5 + i, row(2, value), uk=f"w{i}"))
        value = f"w{i}"
    steps.append(c(99, row(7, "x")))
    check_case(kind, request, [T], rows((1, "x"), (2, "y")), steps, rows((1, "y2"), (2, value), (7, "x")))


@every
def test_case_22_merged_rows_and_a_value_between(kind: str, request: Request) -> None:
    """One frees, another takes, the first is touched again: folded, the take must not come first."""
    steps = [u(1, row(1, "x"), uk="f"), u(2, row(2, "y"), uk="x"), u(3, row(1, "f"), uk="g")]
    check_case(kind, request, [T], rows((1, "x"), (2, "y")), steps, rows((1, "g"), (2, "x")))


NUMBERS = {"postgres": "numeric(10,2)", "mariadb": "decimal(10,2)"}


@pytest.mark.parametrize("kind", [*PG, *MY])
def test_case_23_numbers(kind: str, request: Request) -> None:
    """Compared after the cast to the target's type; what the cast makes equal is a violation, and said."""
    table = f"CREATE TABLE t (id int PRIMARY KEY, uk {NUMBERS[kind]} UNIQUE)"
    database = fresh(kind, request)
    database.execute(table)
    fill(database, "t", [row(1, "1.00"), row(2, "2")])
    steps = [u(1, row(1, 1.0), uk=7.004), c(1, row(3, 1.001)), u(1, row(2, 2), uk="-0"), c(1, row(4, "2.000"))]
    sync(database, changes_of(*steps), mode="parallel")
    found = sorted((one["id"], str(one["uk"])) for one in database.rows("t"))
    assert found == [(1, "7.00"), (2, "0.00"), (3, "1.00"), (4, "2.00")]
    narrowed = changes_of(*steps, c(2, row(5, 9.991)), c(2, row(6, 9.989)))
    with pytest.raises(ConstraintViolated, match=r"t [56]"):
        sync(database, narrowed)
    if kind == "postgres":
        database = fresh(kind, request)
        database.execute("CREATE TABLE t (id int PRIMARY KEY, uk real UNIQUE)")
        fill(database, "t", [row(1, 0.1), row(2, "NaN")])
        sync(
            database,
            changes_of(u(1, row(1, 0.1), uk=-0.0), c(1, row(3, 0.100000001)), d(1, row(2, None)), c(1, row(4, "NaN"))),
        )
        values = {one["id"]: float(one["uk"]) for one in database.rows("t")}
        assert values.keys() == {1, 3, 4}
        assert (values[1], round(values[3], 6), math.isnan(values[4])) == (0.0, 0.1, True)


@pytest.mark.parametrize("kind", [*PG, *MY])
def test_case_24_times(kind: str, request: Request) -> None:
    """One instant in two zones is one value; rounding to seconds makes values equal where the target says so."""
    type_ = {"postgres": "timestamptz(0)", "mariadb": "timestamp NULL"}[kind]
    database = fresh(kind, request)
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, uk {type_} UNIQUE)")
    zone = "+00:00" if kind == "postgres" else ""
    fill(database, "t", [row(1, f"2026-03-29 01:30:00{zone}"), row(2, f"2026-01-01 00:00:00{zone}")])
    steps = [
        u(1, row(1, "2026-03-29T01:30:00Z"), uk="2037-12-31T23:59:59Z"),
        c(1, row(3, "2026-03-29T03:30:00+02:00")),
        u(1, row(2, "2026-01-01T00:00:00Z"), uk=None),
        c(1, row(4, "2026-01-01T00:00:00.2Z")),
        c(1, row(5, "9999-12-31T23:59:59Z" if kind == "postgres" else "2038-01-19T03:14:07Z")),
    ]
    (done,) = sync(database, changes_of(*steps), mode="parallel")
    assert done.complete is not None
    assert done.complete.edges == 2
    seconds = {"postgres": "extract(epoch FROM uk)", "mariadb": "unix_timestamp(uk)"}[kind]
    found = {id: None if at is None else int(at) for id, at in database.query(f"SELECT id, {seconds} FROM t")}
    last = 253_402_300_799 if kind == "postgres" else 2**31 - 1
    assert found == {1: 2_145_916_799, 2: None, 3: 1_774_747_800, 4: 1_767_225_600, 5: last}
    with pytest.raises(ConstraintViolated):
        sync(
            database, changes_of(*steps, c(2, row(5, "2027-01-01T00:00:00.1Z")), c(2, row(6, "2027-01-01T00:00:00.3Z")))
        )


@on_postgres
def test_case_25_other_types(kind: str, request: Request) -> None:
    """Order of JSON keys, case of a UUID, bytes with zeros, enum and boolean keys: the target's equality."""
    uuid = "0b5f6fd0-43ab-4b7c-9a0f-5b4f5b9f0aaa"
    for type_, old, new in [
        ("jsonb", {"a": 1, "b": 2}, {"b": 2, "a": 1.0}),
        ("uuid", uuid, uuid.upper()),
        ("bytea", "\\x610062", "\\x610062"),
        ("bool", True, "t"),
        ("mood", "sad", "sad"),
        ("bit(3)", "101", "101"),
    ]:
        database = fresh(kind, request)
        database.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'ok')", f"CREATE TABLE t (id int PRIMARY KEY, uk {type_} UNIQUE)"
        )
        fill(database, "t", [row(1, json.dumps(old) if isinstance(old, dict) else old)])
        (done,) = sync(database, changes_of(u(1, row(1, old), uk=None), c(1, row(2, new))), mode="parallel")
        assert done.complete is not None
        assert done.complete.edges == 1, type_
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, uk bytea UNIQUE)")
    fill(database, "t", [row(1, b"a\0b")])
    (done,) = sync(database, changes_of(u(1, row(1, "\\x610062"), uk=None), c(1, row(2, "\\x610063"))))
    assert done.complete is not None
    assert done.complete.edges == 0  # the comparison does not end at the zero


@every
def test_case_26_keys_that_collide(kind: str, request: Request) -> None:
    """The plan that compares what the events say folds letters, and takes too much together: right, only slower."""
    database = fresh(kind, request)
    database.execute(COLLIDE[kind])
    fill(database, "t", [row(i, f"v{i}") for i in range(50)])
    steps = [u(1, row(i, f"v{i}"), uk=f"V{i}" if i % 2 else f"v{i + 100}") for i in range(50)]
    steps += [c(1, row(i + 1000, f"v{i}")) for i in range(50)]
    sync(database, changes_of(*steps), mode="parallel", plan="conflict_queue")
    changed = {i: f"V{i}" if i % 2 else f"v{i + 100}" for i in range(50)}
    assert {one["id"]: one["uk"] for one in database.rows("t")} == changed | {i + 1000: f"v{i}" for i in range(50)}


COLLIDE = {"postgres": T, "sqlite": T, "mariadb": T.replace("UNIQUE", "COLLATE utf8mb4_bin UNIQUE")}


@every
def test_case_27_a_row_that_meets_itself(kind: str, request: Request) -> None:
    """Leaving a value and coming back to it in one transaction waits for nobody."""
    steps = [u(1, row(1, "x"), uk="y"), u(1, row(1, "y"), uk="x"), u(1, row(1, "x"), id=2), u(1, row(2, "x"), id=1)]
    done = check_case(kind, request, [T], rows((1, "x")), steps, rows((1, "x")))
    assert done.complete is not None


@every
def test_case_28_tables_without_a_primary_key(kind: str, request: Request) -> None:
    """A unique key without NULLs tells rows apart; without any key, rows are taken one by one, copies and all."""
    table = "CREATE TABLE t (uk varchar(9) NOT NULL UNIQUE, id int)"
    steps = [u(1, row(1, "a"), uk="b"), u(1, row(2, "b"), uk="a")]
    check_case(kind, request, [table], rows((1, "a"), (2, "b")), steps, rows((1, "b"), (2, "a")))
    copies = [{"a": 1, "b": None}] * 3
    steps = [
        d(1, {"a": 1, "b": None}), c(1, {"a": 2, "b": "x"}), c(2, {"a": 2, "b": "x"}), u(3, {"a": 1, "b": None}, b="y"),
        c(4, {"a": 3, "b": None}), d(5, {"a": 3, "b": None}),
    ]  # fmt: skip
    final = {"t": [{"a": 1, "b": None}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "x"}]}
    ways = [("atomic", 1, 100), ("atomic", 8, 1)]
    check_case(kind, request, ["CREATE TABLE t (a int, b varchar(9))"], {"t": copies}, steps, final, ways)
    if kind != "sqlite":
        database = fresh(kind, request)
        database.execute("CREATE TABLE t (a int, b varchar(9))")
        with pytest.raises(InvalidRequest, match="without any key"):
            sync(database, changes_of(c(1, {"a": 1, "b": None})), mode="parallel")


@every
def test_case_33_definitions_change_in_the_stream(kind: str, request: Request) -> None:
    """TRUNCATE, a key that is added and dropped, a column that gets wider: each in its order among the changes."""
    add, drop, widen = {
        "postgres": (
            "ALTER TABLE t ADD CONSTRAINT k UNIQUE (b)",
            "ALTER TABLE t DROP CONSTRAINT k",
            "ALTER TABLE t ALTER b TYPE text",
        ),
        "mariadb": ("ALTER TABLE t ADD UNIQUE k (b)", "ALTER TABLE t DROP KEY k", "ALTER TABLE t MODIFY b varchar(99)"),
        "sqlite": ("CREATE UNIQUE INDEX k ON t (b)", "DROP INDEX k", "ALTER TABLE t ADD COLUMN w text"),
    }[kind]

    def wide(id: int, b: str) -> Row:
        return {"id": id, "b": b}

    def ddl(sql: str) -> Change:
        return Change(seq=0, tx=None, table="t", op="ddl", sql=sql)

    parts: list[Any] = [
        *changes_of(c(1, wide(1, "x")), c(1, wide(2, "x"))), Change(seq=0, tx="2", table="t", op="t"),
        *changes_of(c(2, wide(1, "x")), c(2, wide(2, "y"))), ddl(add),
        *changes_of(u(3, wide(1, "x"), b="y"), u(3, wide(2, "y"), b="x")), ddl(drop),
        *changes_of(c(4, wide(3, "x"))), ddl(widen), *changes_of(c(5, wide(4, "x" * 40))),
    ]  # fmt: skip
    from dataclasses import replace

    changes = [replace(one, seq=seq) for seq, one in enumerate(parts)]
    for mode in ("atomic", "parallel"):
        database = fresh(kind, request)
        database.execute("CREATE TABLE t (id int PRIMARY KEY, b varchar(9))")
        fill(database, "t", [wide(77, "old")])
        sync(database, changes, mode=mode, ddl="apply")
        found = sorted((one["id"], one["b"]) for one in database.rows("t"))
        assert found == [(1, "y"), (2, "x"), (3, "x"), (4, "x" * 40)]


@every
@pytest.mark.parametrize("how", ["stop", "ignore"])
def test_case_33_a_column_that_the_target_gets_first(
    kind: str, how: Literal["stop", "ignore"], request: Request
) -> None:
    """While a sync runs: the changes that have it, later, bring its values."""
    database = fresh(kind, request)
    database.execute(T)
    began = itertools.count()

    def seen(effect: AnyEffect) -> None:
        if isinstance(effect, Apply) and next(began) == 0:
            database.execute("ALTER TABLE t ADD COLUMN n int")

    steps = [c(1, row(1, "x")), c(2, {**row(2, "y"), "n": 5}), c(3, {**row(3, "z"), "n": 6})]
    target, settings = database.target(), SyncSettings(on_schema_change=how, changes_max=1)
    assert len(list(run(Changes(changes_of(*steps)), target, stream="s", settings=settings, seen=seen))) == 3
    target.close()
    assert sorted((one["id"], one["n"]) for one in database.rows("t")) == [(1, None), (2, 5), (3, 6)]


@every
def test_case_34_large_values_that_are_not_sent(kind: str, request: Request) -> None:
    """A row whose value moves keeps what the event leaves out; so does one whose key moves, and a column of the target's own."""
    table = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE, big text, own int DEFAULT 7)"

    def big(id: int, uk: str, text: str, own: int = 7) -> Row:
        return {"id": id, "uk": uk, "big": text, "own": own}

    steps: list[Step] = [
        ("1", "t", "u", {"id": 1}, {"id": 1, "uk": "y"}), ("1", "t", "u", {"id": 2}, {"id": 2, "uk": "x"}),
        ("2", "t", "u", {"id": 3}, {"id": 4, "uk": "v"}), ("3", "t", "c", None, {"id": 5, "uk": "z", "big": "five"}),
    ]  # fmt: skip
    before = [big(1, "x", "one" * 4000, 1), big(2, "y", "two" * 4000, 2), big(3, "z", "three" * 4000, 3)]
    final = [
        big(1, "y", "one" * 4000, 1), big(2, "x", "two" * 4000, 2), big(4, "v", "three" * 4000, 3), big(5, "z", "five"),
    ]  # fmt: skip
    check_case(kind, request, [table], {"t": before}, steps, {"t": final})


@every
def test_case_35_no_value_before(kind: str, request: Request) -> None:
    """REPLICA IDENTITY DEFAULT: only the target knows what is let go."""
    steps: list[Step] = [
        ("1", "t", "u", None, row(1, "y")), ("1", "t", "u", {"id": 2}, row(2, "x")), ("2", "t", "d", {"id": 3}, None),
        ("2", "t", "c", None, row(4, "z")),
    ]  # fmt: skip
    done = check_case(kind, request, [T], rows((1, "x"), (2, "y"), (3, "z")), steps, rows((1, "y"), (2, "x"), (4, "z")))
    assert done.complete is not None
    assert done.complete.edges == 3


@every
def test_case_36_a_source_that_checks_at_the_end(kind: str, request: Request) -> None:
    """Two rows swap without a value in between; the batch is not cut between them, however small batches are."""
    steps = [u(1, row(1, "v1"), uk="v3"), u(1, row(2, "v3"), uk="v1")]
    for changes_max in (1, 2):
        check_case(
            kind,
            request,
            [T],
            rows((1, "v1"), (2, "v3")),
            steps,
            rows((1, "v3"), (2, "v1")),
            [("atomic", 1, changes_max)],
        )


@every
def test_case_37_a_transaction_larger_than_a_batch(kind: str, request: Request) -> None:
    """Kept whole: one batch, one position."""
    database = fresh(kind, request)
    database.execute(T)
    steps = [c(1, row(1, "a")), *(c(2, row(i, f"v{i}")) for i in range(10, 60)), c(3, row(2, "b"))]
    done = sync(database, changes_of(*steps), changes_max=10)
    assert [(one.changes, one.through) for one in done] == [(1, 0), (50, 50), (1, 51)]


@every
def test_case_38_delivered_twice(kind: str, request: Request) -> None:
    """An event, a piece, everything: nothing changes. A stale batch of a writer that was overtaken is refused."""
    database = fresh(kind, request)
    database.execute(T)
    changes = changes_of(c(1, row(1, "x")), u(2, row(1, "x"), uk="y"), c(3, row(2, "x")))
    sync(database, changes[:2])
    assert [one.through for one in sync(database, changes)] == [2]
    assert sync(database, changes) == []
    assert state(database, ["t"]) == {"t": table_text([row(1, "y"), row(2, "x")])}
    slow = database.target()
    going = run(Changes(changes_of(*[c(i, row(i + 10, f"s{i}")) for i in range(3, 9)])[3:]), slow, stream="s",
                settings=SyncSettings(changes_max=1))  # fmt: skip
    next(going)
    sync(database, changes)  # another opens the stream
    with pytest.raises(Fenced, match="later writer"):
        next(going)
    slow.close()
    assert len(database.rows("t")) == 3


def written(path: Path, changes: Sequence[Change]) -> None:
    """A file of changes."""
    names = ("seq", "tx", "table", "op", "before", "after")
    path.write_text(
        "".join(json.dumps({n: getattr(one, n) for n in names}) + "\n" for one in changes), encoding="utf-8"
    )


def files_into(database: Database, place: Path) -> None:
    """Carries a folder over."""
    target = database.target()
    try:
        list(run(ChangeFiles(files=str(place)), target, stream="f"))
    finally:
        target.close()


@every
def test_case_39_files_in_another_order(kind: str, request: Request, tmp_path: Path) -> None:
    """The file with the take is called before the file with the release: the place in the source counts."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x")])
    changes = changes_of(u(1, row(1, "x"), uk="y"), c(2, row(2, "x")), d(3, row(1, "y")), c(4, row(3, "y")))
    place = tmp_path / "changes"
    place.mkdir()
    written(place / "a.jsonl", [changes[1], changes[3]])
    written(place / "b.jsonl", [changes[0], changes[2]])
    written(place / "c.jsonl", [changes[0]])  # delivered twice
    files_into(database, place)
    assert state(database, ["t"]) == {"t": table_text([row(2, "x"), row(3, "y")])}
    (place / "d.jsonl").write_text('{"seq": 9, "table": "t", "op": "x"}\n')
    with pytest.raises(Corrupt, match=r"d\.jsonl line=1"):
        files_into(database, place)


@on_postgres
@pytest.mark.parametrize("key", ["id", "id, part", "name"])
def test_numbers_that_postgres_gives_are_those_of_the_source(kind: str, key: str, request: Request) -> None:
    """It refuses an UPDATE of such a column even with an equal value; for a new value the row is deleted and inserted."""
    table = (
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY UNIQUE, part text NOT NULL DEFAULT 'p', name text NOT NULL, "
        f"n int, own text, PRIMARY KEY ({key}))"
    )

    def line(id: int, name: str, n: int) -> dict[str, Any]:
        return {"id": id, "part": "p", "name": name, "n": n}

    before = [{**line(1, "a", 1), "own": "kept"}, {**line(2, "b", 2), "own": "kept"}]
    database = fresh(kind, request)
    database.execute(
        table, "INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1, 'p', 'a', 1, 'kept'), (2, 'p', 'b', 2, 'kept')"
    )
    sync(database, changes_of(u(1, line(1, "a", 1), n=7), u(1, line(2, "b", 2), n=8), c(2, line(4, "d", 4))))
    after = [{**before[0], "n": 7}, {**before[1], "n": 8}, {**line(4, "d", 4), "own": None}]
    assert state(database, ["t"]) == {"t": table_text(after)}
    if key == "name":  # the numbers change under the keys
        steps = changes_of(u(3, line(1, "a", 7), id=2), u(3, line(2, "b", 8), id=5))
        sync(database, steps, stream="other")
        after = [{**after[0], "id": 2}, {**after[1], "id": 5}, after[2]]
        assert state(database, ["t"]) == {"t": table_text(after)}
        database.execute(
            "CREATE TABLE child (up text REFERENCES t ON DELETE CASCADE)", "INSERT INTO child VALUES ('a')"
        )
        with pytest.raises(UnsupportedTable, match=r"GENERATED ALWAYS.*column=id"):
            sync(database, changes_of(u(4, line(2, "a", 7), id=9)), stream="third")
        sync(database, changes_of(u(4, line(2, "a", 7), n=9)), stream="third")
        assert state(database, ["t"]) == {"t": table_text([{**after[0], "n": 9}, *after[1:]])}
        assert database.query("SELECT up FROM child") == [("a",)]


@on_postgres
def test_numbers_that_postgres_gives_to_rows_without_a_key(kind: str, request: Request) -> None:
    """They are the source's."""
    table = "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, n int)"
    check_case(kind, request, [table], {"t": []}, [c(1, {"id": 5, "n": 1})], {"t": [{"id": 5, "n": 1}]}, WAYS[:1])
