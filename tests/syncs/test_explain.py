"""lakegate sync plan, on each kind of target: what it finds, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

from harness.changes import Changes
from lakegate.syncs.preview import explain
from lakegate.syncs.runner import SyncSettings
from tests.syncs.short_changes import c, changes_of, u
from tests.syncs.target_databases import KINDS, fill, fresh


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_finds_swaps_and_trouble_and_leaves_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """A swap is two edges in one component; a value that another row keeps is trouble; no table is made."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, uk varchar(20) UNIQUE)")
    rows = [{"id": n, "uk": f"v{n}"} for n in range(1, 5)]
    fill(database, "t", rows)
    one, two, *_ = rows
    steps = changes_of(
        u(1, one, uk="v2"), u(1, two, uk="v1"), c(2, {"id": 9, "uk": "v3"}), c(3, {"id": 10, "uk": "v10"})
    )
    target = database.target()
    try:
        found = explain(Changes(steps), target, stream="s", settings=SyncSettings(mode="parallel", parallelism=3))
    finally:
        target.close()
    assert found is not None
    assert (found.rows, found.edges, found.components, found.in_components) == ({"t": 4}, 2, 1, 2)
    assert found.transactions == (1 if kind == "sqlite" else 3)
    assert [(one.table, one.key) for one in found.troubles] == [("t", "[9]")]
    tables = {
        "postgres": "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()",
        "mariadb": "SELECT count(*) FROM information_schema.tables WHERE table_schema = database()",
        "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table'",
    }
    assert database.query(tables[kind]) == [(1,)]
