"""Rows that the target refuses alone may fit with later ones: children before their parents, a target that is ahead."""

from __future__ import annotations

from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from lakegate.errors import ConstraintViolated
from lakegate.syncs.runner import AppliedBatch, SyncSettings, run
from lakegate.syncs.sources.debezium import DebeziumChanges
from tests.syncs.envelopes import postgres
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fresh, sync
from tests.syncs.topics import Topics

FIRM = "CREATE TABLE firm (id int PRIMARY KEY)"
STAFF = (
    "CREATE TABLE staff (id int PRIMARY KEY, firm_id int, boss int, FOREIGN KEY (firm_id) REFERENCES firm (id), "
    "FOREIGN KEY (boss) REFERENCES staff (id))"
)


def row(table: str, op: str = "r", **values: Any) -> dict[str, Any]:
    """A row of a snapshot, or one that was created behind it."""
    said = {"snapshot": "true"} if op == "r" else {"before": 1_000}
    return {**postgres(1_000 + values["id"], table=table, op=op, **said), "after": values}


def applied(database: Database, rows: list[Any], **settings: Any) -> list[AppliedBatch]:
    """Carries them over in batches of three."""
    target = database.target()
    try:
        return list(run(DebeziumChanges(logs=Topics(t=rows)), target, stream="s", settings=SyncSettings(
            changes_max=3, **settings)))  # fmt: skip
    finally:
        target.close()


@pytest.mark.parametrize("kind", KINDS)
def test_children_may_come_long_before_their_parents(kind: str, request: pytest.FixtureRequest) -> None:
    """Of another table, and of their own; changes after the snapshot are applied as usual, and orphans are reported."""
    for mode in ("atomic", "parallel"):
        database = fresh(kind, request)
        database.execute(FIRM, STAFF)
        staff = [row("staff", id=n, firm_id=1 + n % 2, boss=20) for n in range(1, 21)]
        rows = [*staff, row("firm", id=2), row("firm", id=1), row("firm", id=3), row("firm", "c", id=4)]
        batches = applied(database, rows, mode=mode)
        assert (sum(one.changes for one in batches), batches[-1].through) == (24, 23)
        assert database.query("SELECT count(*), min(firm_id), min(boss) FROM staff") == [(20, 1, 20)]
        assert database.query("SELECT count(*) FROM firm") == [(4,)]
        database = fresh(kind, request)
        database.execute(FIRM, STAFF)
        orphan = row("staff", id=30, firm_id=99, boss=None)
        with pytest.raises(ConstraintViolated, match=r"(?i)foreign key"):
            applied(database, [*rows[:22], orphan, *rows[22:]], mode="atomic")
        assert database.query("SELECT count(*) FROM staff") == [(0,)]
        batches = applied(database, [*rows[:22], orphan, *rows[22:]], mode=mode, on_violation="quarantine")
        dead = [one.row.key for batch in batches if batch.complete is not None for one in batch.complete.dead]
        assert dead == [(30,)]
        assert database.query("SELECT count(*) FROM staff") == [(20,)]


ITEM = "CREATE TABLE item (id int PRIMARY KEY, kind varchar(9) NOT NULL, no varchar(9), UNIQUE (kind, no))"


def item(id: int, kind: str, no: str) -> dict[str, Any]:
    """A row whose kind and number together are its own."""
    return {"id": id, "kind": kind, "no": no}


AHEAD: dict[str, tuple[list[str], list[Step], list[str]]] = {
    "values that change hands": (
        ["INSERT INTO item VALUES (1, 'B', 'n2'), (2, 'A', 'n1')"],
        [
            c(1, item(1, "A", "n1"), "item"), c(2, item(2, "B", "n2"), "item"), u(3, item(1, "A", "n1"), "item", kind="C"),
            u(4, item(2, "B", "n2"), "item", kind="A", no="n1"), u(5, item(1, "C", "n1"), "item", kind="B", no="n2"),
        ],
        ["(1, 'B', 'n2')", "(2, 'A', 'n1')"],
    ),
    "a child whose parent is gone by now": (
        ["INSERT INTO firm VALUES (2)"],
        [
            c(1, {"id": 7, "firm_id": 1, "boss": None}, "staff"), (2, "staff", "u", {"id": 7}, {"id": 7, "firm_id": 2}),
            d(3, {"id": 1}, "firm"), c(4, item(1, "A", "n1"), "item"),
        ],
        ["(1, 'A', 'n1')"],
    ),
    "a part of a row that is gone by now": (
        [],
        [
            (1, "item", "u", {"id": 3}, {"id": 3, "no": "n9"}), d(2, item(3, "A", "n9"), "item"),
            c(3, item(3, "Z", "n3"), "item"),
        ],
        ["(3, 'Z', 'n3')"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_ahead_of_its_stream_is_caught_up_with(kind: str, request: pytest.FixtureRequest) -> None:
    """It was loaded from a later copy of the source: whether it fits does not depend on where batches end."""
    for name, (fill, steps, expected) in AHEAD.items():
        for size, mode, policy in (
            (1, "atomic", "stop"),
            (2, "parallel", "stop"),
            (9, "atomic", "stop"),
            (1, "atomic", "quarantine"),
        ):
            database = fresh(kind, request)
            database.execute(FIRM, STAFF, ITEM, *fill)
            sync(database, changes_of(*steps), changes_max=size, mode=mode, on_violation=policy)
            found = [str(row) for row in database.query("SELECT id, kind, no FROM item ORDER BY id")]
            assert found == expected, (name, size, mode, policy)
            if fill and "firm" in fill[0]:
                assert database.query("SELECT id, firm_id FROM staff") == [(7, 2)], (size, mode, policy)


def test_what_never_fits_is_refused_as_before(request: pytest.FixtureRequest) -> None:
    """The row that is refused first is named, whatever follows it; nothing of what follows is in."""
    database = fresh("sqlite", request)
    database.execute(ITEM, "INSERT INTO item VALUES (9, 'A', 'n1')")
    steps = [c(1, item(1, "A", "n1"), "item"), c(2, item(2, "A", "n2"), "item"), c(3, item(3, "A", "n2"), "item")]
    for mode in ("atomic", "parallel"):
        with pytest.raises(ConstraintViolated) as refused:
            sync(database, changes_of(*steps), changes_max=1, mode=mode)
        assert (refused.value.facts["rows"], refused.value.facts["holder"]) == ("item 1 (position 0)", "9")
        assert database.query("SELECT id FROM item") == [(9,)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_key_is_known_by_the_code_of_the_error(kind: str, request: pytest.FixtureRequest) -> None:
    """Servers word their errors in many languages, and a constraint of another kind may have any name."""
    database = fresh(kind, request)
    named = '"foreign key"' if kind != "mariadb" else "`foreign key`"
    database.execute(FIRM, STAFF, f"CREATE TABLE paid (id int PRIMARY KEY, CONSTRAINT {named} CHECK (id > 5))")
    for table, values, expected in (("staff", {"firm_id": 99, "boss": None}, True), ("paid", {}, False)):
        with pytest.raises(ConstraintViolated, match=r"(?i)foreign key") as raised:
            applied(database, [row(table, id=3, **values)], mode="atomic")
        assert raised.value.is_foreign_key is expected
