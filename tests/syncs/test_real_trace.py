"""Ten years of real changes, with 4,102 values handed from row to row: the target ends as a serial replay ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from lakegate.syncs.plan.change import Change
from lakegate.syncs.runner import SyncSettings, run
from tests.syncs.real_trace import source
from tests.syncs.target_databases import fresh

TYPES = {
    "postgres": {"path": "text PRIMARY KEY", "url": "text UNIQUE", "speakers": "jsonb", "duration": "int",
                 "legacy_id": "int", "n_tags": "int"},
    "mariadb": {"path": "varchar(500) PRIMARY KEY", "url": "varchar(700) UNIQUE", "speakers": "json", "duration": "int",
                "legacy_id": "int", "n_tags": "int"},
    "sqlite": {"path": "text PRIMARY KEY", "url": "text UNIQUE", "duration": "int", "legacy_id": "int", "n_tags": "int"},
}  # fmt: skip
COLUMNS = ("duration", "event", "language", "legacy_id", "n_tags", "path", "recorded", "speakers", "title", "url")
FINAL_SHA256 = "20fd0300bbed881d30a9e139ee8d3ec5e1ef277d49fa51da7c5ef964c77b6d9d"
"""Over the sorted last images as the file has them, found with nothing but a Parquet reader: 21,715 rows."""
pytestmark = pytest.mark.data


def table(database: Database) -> None:
    """The target table, with the unique key."""
    types = TYPES[database.kind]
    columns = ", ".join(f"{name} {types.get(name, 'text')}" for name in COLUMNS)
    end = " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" if database.kind == "mariadb" else ""
    database.execute(f"CREATE TABLE video ({columns}){end}")


def replayed(changes: Sequence[Change]) -> dict[str, Any]:
    """Key → last image, change by change."""
    rows: dict[str, Any] = {}
    for change in changes:
        if change.op in ("u", "d"):
            assert change.before is not None
            assert rows.pop(change.before["path"]) == change.before
        if change.after is not None:
            rows[change.after["path"]] = change.after
    return rows


def digest(rows: Sequence[Any]) -> str:
    """SHA-256 over the sorted JSON lines, as the trace's own `final_sha256` is made."""
    lines = sorted(json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":")) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def in_target(database: Database) -> list[dict[str, Any]]:
    """The target table, lists as lists."""
    return [
        {**row, "speakers": json.loads(row["speakers"]) if isinstance(row["speakers"], str) else row["speakers"]}
        for row in database.rows("video")
    ]


def test_the_file_is_read_as_it_is() -> None:
    """Every change, in order, each before-image what the change before it left."""
    changes = [change for group in source().transactions(-1) for change in group]
    assert len(changes) == 53_631
    assert digest(list(replayed(changes).values())) == FINAL_SHA256


SHORT = {
    ("postgres", 1_000, "atomic"), ("postgres", 10_000, "parallel"), ("postgres", 100_000, "atomic"),
    ("mariadb", 10_000, "parallel"), ("sqlite", 1_000, "atomic"),
}  # fmt: skip
MARKS = {"postgres": [pytest.mark.postgres], "mariadb": [pytest.mark.mariadb], "sqlite": []}
WINDOWS = [
    pytest.param(
        kind, window, mode, id=f"{kind}-{window}-{mode}",
        marks=[*MARKS[kind], *([] if (kind, window, mode) in SHORT else [pytest.mark.matrix])],
    )
    for kind in MARKS
    for window in (1_000, 10_000, 100_000)
    for mode in ("atomic", "parallel")
]  # fmt: skip


@pytest.mark.parametrize(("kind", "window", "mode"), WINDOWS)
def test_the_trace_ends_as_its_serial_replay(kind: str, window: int, mode: Any, request: pytest.FixtureRequest) -> None:
    """In windows of 1,000 and 10,000 changes and all at once; values do change hands."""
    database = fresh(kind, request)
    table(database)
    target = database.target()
    edges = 0
    settings = SyncSettings(mode=mode, parallelism=8, changes_max=window)
    for batch in run(source(), target, stream="pyvideo", settings=settings):
        assert batch.complete is not None
        edges += batch.complete.edges
    target.close()
    assert digest(in_target(database)) == FINAL_SHA256
    assert edges > 1000 or window > 10_000
