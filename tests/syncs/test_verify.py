"""lakegate sync verify: what was planted in the target is found, and what is only written in another way is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.changes import Changes
from harness.memory_target import table as schema_of
from lakegate.demo.database_servers import Database
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.difference import Difference
from lakegate.syncs.plan.record import Record
from lakegate.syncs.replay import Replay
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.verify import VerifiedSync, verify
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fresh
from tests.syncs.unique_key_histories import as_sent, serial

TABLE = {
    "postgres": "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text, amount numeric(10,2), at timestamptz, "
    "facts jsonb, mail text UNIQUE)",
    "mariadb": "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(50), note text, amount decimal(10,2), "
    "at datetime(6), facts longtext, mail varchar(50) UNIQUE) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "sqlite": "CREATE TABLE t (id integer PRIMARY KEY, name text COLLATE NOCASE, note text, amount numeric, at text, "
    "facts text, mail text UNIQUE)",
}


def row(id: int, **values: Any) -> dict[str, Any]:
    """Makes a row of the source."""
    kept = {"id": id, "name": f"n{id}", "note": None, "amount": "1.50", "at": "2024-01-01T02:00:00+02:00"}
    return {**kept, "facts": {"b": 1, "a": [2]}, "mail": f"m{id}", **values}


def kept_in_step(kind: str, request: pytest.FixtureRequest, steps: Sequence[Step], *, until: int = 1 << 40) -> Database:
    """A database to which the changes up to a position were carried over."""
    database = fresh(kind, request)
    database.execute(TABLE[kind])
    carried(database, [change for change in changes_of(*steps) if change.seq <= until])
    return database


def carried(database: Database, changes: Sequence[Change]) -> None:
    """Applies all that is new."""
    target = database.target()
    try:
        list(run(Changes(changes), target, stream="s", settings=SyncSettings(changes_max=7)))
    finally:
        target.close()


def compared(database: Database, changes: Sequence[Change], **more: Any) -> VerifiedSync:
    """Returns the result of `verify`."""
    target = database.target()
    try:
        return verify(Changes(changes), target, stream="s", **more)
    finally:
        target.close()


STEPS = [
    *(c(n, row(n)) for n in range(30)),
    u(40, row(3), name="new"), d(40, row(4)), (41, "t", "u", row(5), {"id": 5, "amount": 7}),
    u(42, row(6), id=60), u(43, row(7), mail="m8x"),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_planted_is_found_and_nothing_else(kind: str, request: pytest.FixtureRequest) -> None:
    """A changed value, one of another case, '' for NULL, a cent, a second, a row too few and two too many."""
    database = kept_in_step(kind, request, STEPS)
    changes = changes_of(*STEPS)
    clean = compared(database, changes)
    (found,) = clean.tables
    assert (clean.differences, clean.position, found.at_source, found.in_target) == (0, len(STEPS) - 1, 29, 29)
    second = "'2024-01-01T02:00:01+02:00'" if kind == "sqlite" else "'2024-01-01 00:00:01'"
    database.execute(
        "UPDATE t SET name = 'N10' WHERE id = 10",
        "UPDATE t SET note = '' WHERE id = 11",
        "UPDATE t SET amount = amount + 0.01, name = 'other' WHERE id = 12",
        f"UPDATE t SET at = {second} WHERE id = 13",
        "DELETE FROM t WHERE id = 14",
        "INSERT INTO t (id, mail) VALUES (100, 'a'), (101, 'b')",
    )
    found = compared(database, changes)
    assert {(one.kind, one.key, one.columns) for one in found.tables[0].listed} == {
        ("different", (10,), ("name",)), ("different", (11,), ("note",)), ("different", (12,), ("name", "amount")),
        ("different", (13,), ("at",)), ("missing", (14,), ()), ("extra", (100,), ()), ("extra", (101,), ()),
    }  # fmt: skip
    assert (found.tables[0].missing, found.tables[0].extra, found.tables[0].different) == (1, 2, 4)
    short = compared(database, changes, listed_max=2)
    assert (short.differences, len(short.tables[0].listed)) == (7, 2)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_same_written_in_another_way_is_no_difference(kind: str, request: pytest.FixtureRequest) -> None:
    """A scale, a time zone, the order of JSON's keys: they are compared as the target's types have them."""
    database = kept_in_step(kind, request, STEPS)
    other = [u(50, row(n), amount=1.5, at="2023-12-31T19:00:00-05:00") for n in range(10, 20)]
    database.execute("UPDATE lakegate_stream SET position = 1000")
    facts = {"a": [2], "b": 1.0} if kind == "postgres" else {"b": 1, "a": [2]}
    as_sent = [*STEPS, *((tx, t, op, b, {**a, "facts": facts}) for tx, t, op, b, a in other)]
    assert compared(database, changes_of(*as_sent)).differences == 0


@pytest.mark.parametrize("kind", KINDS)
def test_it_compares_as_of_the_position_that_the_target_has(kind: str, request: pytest.FixtureRequest) -> None:
    """Changes that the target does not have yet are no differences; a run later they are in, and still there are none."""
    database = kept_in_step(kind, request, STEPS, until=20)
    found = compared(database, changes_of(*STEPS))
    assert (found.differences, found.position, found.tables[0].at_source) == (0, 20, 21)
    carried(database, changes_of(*STEPS))
    assert compared(database, changes_of(*STEPS)).position == len(STEPS) - 1


def test_rows_older_than_the_changes_are_not_called_extra(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Where a change is of a row that no change made, history begins in the middle."""
    database = fresh("sqlite", request)
    database.execute(TABLE["sqlite"], "INSERT INTO t (id, mail) VALUES (1, 'a'), (2, 'b')")
    changes = changes_of(u(1, row(1)))
    carried(database, changes)
    (found,) = compared(database, changes).tables
    assert (found.extra, found.differences, found.at_source, found.in_target) == (None, 0, 1, 2)


def test_it_says_why_nothing_can_be_compared(request: pytest.FixtureRequest) -> None:
    """Before the first batch, in the middle of one, and for a table without a key or one that is not there."""
    database = fresh("sqlite", request)
    database.execute(TABLE["sqlite"], "CREATE TABLE bare (a integer)")
    with pytest.raises(InvalidRequest, match="nothing of this source yet"):
        compared(database, changes_of(*STEPS))
    changes = changes_of(c(1, row(1)), c(2, {"a": 1}, table="bare"))
    carried(database, changes)
    found = compared(database, changes)
    assert {one.table: one.not_compared for one in found.tables} == {"t": None, "bare": "it has no key"}
    database.execute("UPDATE lakegate_stream SET pending = 9")
    with pytest.raises(Unavailable, match="is not complete"):
        compared(database, changes)


@pytest.mark.postgres
def test_a_value_that_the_target_cannot_have_is_a_difference_of_its_row(request: pytest.FixtureRequest) -> None:
    """The other rows are still compared."""
    database = kept_in_step("postgres", request, STEPS)
    database.execute("UPDATE lakegate_stream SET position = 1000", "UPDATE t SET name = 'x' WHERE id = 21")
    found = compared(database, changes_of(*STEPS, u(60, row(20), amount="much")))
    assert found.tables[0].listed == (
        Difference(table="t", key=(20,), kind="refused"), Difference(table="t", key=(21,), kind="different", columns=("name",)),
    )  # fmt: skip


def record(change: Change) -> Record:
    """A change as a record of its source."""
    return Record(table=change.table, op=change.op, before=change.before, after=change.after, tx=change.tx)


def test_the_rows_that_changes_end_with_are_those_of_a_serial_run() -> None:
    """Replayed one by one, with rows that move, swap keys and are shown in part, and keys that are checked at commits alone."""
    import random

    schema = {"t": schema_of("t", ["id"], [["a"], ["b", "c"]], ["v"])}
    for seed in range(60):
        chance = random.Random(seed)
        history = serial(chance, is_deferred=seed % 2 == 1)
        with Replay(schema) as replay:
            replay.take(record(one) for one in as_sent(history.changes, chance.choice(["whole", "changed"])))
            rows: dict[Any, Image] = {key: image for chunk in replay.chunks("t", 2) for key, image in chunk}
            assert rows == history.final, seed
            assert replay.is_whole("t")
