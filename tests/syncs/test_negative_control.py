"""Without the plan the same tests fail: rows spread by primary key, in set statements or one by one, conflict."""

from __future__ import annotations

from typing import Any

import pytest

from harness.changes import Changes, scenarios
from lakegate.demo.database_servers import Database
from lakegate.errors import ConstraintViolated
from lakegate.syncs.plan.conflict_graph import Found
from lakegate.syncs.plan.net_changes import Net
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.targets.sql_target import SqlTarget
from tests.conftest import data_dir
from tests.syncs.real_trace import PATH as TRACE
from tests.syncs.real_trace import source
from tests.syncs.target_databases import KINDS, begin, expected, fresh, lacks, state

PATH = data_dir() / "cdc" / "scenarios.json"
MUST_FAIL = {"uk-swap-null", "uk-swap-delete-insert", "uk-reverse-50", "mix-1", "mix-2"}
"""Rows that stay exchange values. Where values are only handed on, applying refused slots again, alone, may happen to help."""
pytestmark = pytest.mark.data


class Blind(SqlTarget):
    """Sees nobody in anybody's way."""

    def look(self, net: Net, *, duplicates: bool) -> Found:
        super().look(net, duplicates=False)
        return Found()


def fails_without_plan(database: Database, name: str) -> bool:
    """Returns whether the scenario is refused, or ends wrong."""
    scenario = next(one for one in scenarios(PATH) if one.id == name)
    changes = begin(database, scenario)
    blind = Blind(database.target()._dialect)
    try:
        list(run(Changes(changes), blind, stream="s", settings=SyncSettings(mode="parallel", parallelism=8)))
    except ConstraintViolated:
        return True
    finally:
        blind.close()
    return state(database, scenario.tables) != expected(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_plan_the_scenarios_fail(kind: str, request: pytest.FixtureRequest) -> None:
    """Each of those in which rows that stay exchange values."""
    passed = {name for name in MUST_FAIL - lacks(kind) if not fails_without_plan(fresh(kind, request), name)}
    assert passed == set()


def test_eight_lanes_by_primary_key_break_the_real_trace(tmp_path: Any) -> None:
    """Row by row, lane after lane, in windows of 10,000: hundreds of violations, as the trace's own account says."""
    import sqlite3
    import zlib

    if not TRACE.is_file():
        pytest.skip("no trace")
    changes = [change for group in source().transactions(-1) for change in group]
    database = sqlite3.connect(tmp_path / "lanes.db", isolation_level=None)
    database.execute("CREATE TABLE video (path text PRIMARY KEY, url text UNIQUE)")
    broken = 0
    database.execute("BEGIN")
    for begin_at in range(0, len(changes), 10_000):
        lanes: dict[int, list[Any]] = {}
        for change in changes[begin_at : begin_at + 10_000]:
            image = change.after or change.before
            assert image is not None
            lanes.setdefault(zlib.crc32(image["path"].encode()) % 8, []).append(change)
        for lane in sorted(lanes):
            for change in lanes[lane]:
                try:
                    if change.before is not None:
                        database.execute("DELETE FROM video WHERE path = ?", (change.before["path"],))
                    if change.after is not None:
                        database.execute("INSERT INTO video VALUES (?, ?)", (change.after["path"], change.after["url"]))
                except sqlite3.IntegrityError:
                    broken += 1
    database.execute("ROLLBACK")
    database.close()
    assert broken > 500
