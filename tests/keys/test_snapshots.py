"""Rows of a snapshot come in any order: children long before their parents, in batches that are smaller than the snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import ConstraintViolated
from headgate.sources.debezium import DebeziumChanges
from headgate.syncs.run import AppliedBatch, SyncSettings, run
from headgate.testing.databases import Database
from tests.keys.rooms import KINDS, fresh
from tests.keys.test_positions import Topics, postgres

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
    """Of another table, and of their own; what came behind the snapshot is applied as ever, and orphans are told."""
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
