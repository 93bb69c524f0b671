"""Applies the table's changes to PostgreSQL: an application's database, with its own keys, in sync with the lake.

The server comes with the extra `demo`, runs in a folder of its own, and ends with this stage.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakegate.config import SyncSpec, TableSource
from lakegate.demo.database_servers import Database, postgres_server
from lakegate.settings import load_pipeline
from lakegate.syncs.api import SyncReport
from lakegate.syncs.session import SyncSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakegate.demo.lake import Lake

TABLE = "engagement"
DEFINITION = f"""
CREATE TABLE {TABLE} (
    engagement_id text PRIMARY KEY, source text NOT NULL, org_id text, alias_id text NOT NULL, role text,
    engagement_type text, engagement_time timestamptz, arrival_time timestamptz, arrival_seq bigint NOT NULL,
    thread_id text, subject text, payload text, person_id text NOT NULL,
    UNIQUE (source, arrival_seq)
)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The result of the stage."""

    batches: int
    changes: int
    rows: int
    """The number of rows in the database at the end."""
    differences: int
    """Rows that differ from the table."""
    elapsed_s: float


def carry(lake: Lake, spark: SparkSession) -> Carried:
    """Applies all commits of the table, and compares.

    Raises:
        LakegateError: See `lakegate.syncs.session.SyncSession`.
        Unavailable: The server did not start.
    """
    began_s = time.monotonic()
    # Not in the lake's folder: the path of a socket may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="lakegate-demo-") as folder,
        postgres_server(Path(folder) / "postgres") as dsn,
    ):
        database = Database("postgres", dsn)
        database.execute(DEFINITION)
        sync = SyncSpec(
            name="crm", source=TableSource(table="engagement", start=0), to=dsn, table=TABLE, tables={},
            plan="staged", mode="atomic", parallelism=2, on_violation="stop",
        )  # fmt: skip
        report = SyncReport(sync=sync.name)
        with contextlib.closing(SyncSession(load_pipeline(str(lake.spec)), sync, spark=spark)) as session:
            for applied in next(session.passes()):
                report.add(applied)
            found = session.verify(0)
        return Carried(
            batches=report.batches,
            changes=report.changes,
            rows=sum(table.in_target for table in found.tables),
            differences=found.differences,
            elapsed_s=time.monotonic() - began_s,
        )
