"""OPTIMIZE, REORG and VACUUM as statements, and the facts of a commit that maintenance needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from lakegate.delta.commit_file import Commit
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import Jvm
from lakegate.delta.table_log import DeltaTableLog
from lakegate.errors import Unavailable
from lakegate.ids import TableLocation
from lakegate.ports import WriteToken
from lakegate.quoting import quoted
from lakegate.rows.statement import Dml, relocation
from lakegate.streams.maintenance.schedule import MaintenanceEvent
from lakegate.turns.protocol.fencing import NotApplied, read_token, unpack

CHECK_CONF = "spark.databricks.delta.retentionDurationCheck.enabled"
LISTING_CONF = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
INVENTORY = "lakegate_inventory"
TASKS_PER_CORE = 4
"""VACUUM lists a table with as many tasks as this setting says. The default, 10,000, takes a minute and a half for ten files
on two cores."""
RECORD_ATTEMPTS_MAX = 100
HOUR_MS = 3_600_000
"""VACUUM … RETAIN takes hours and rounds down, even to 0."""


def retention_ms(session: SparkSession, properties: Mapping[str, str]) -> int:
    """Returns how long a table with these properties keeps removed files; Delta's default is 7 days."""
    return Jvm(session).retention_ms(properties)


def is_retention_checked(session: SparkSession) -> bool:
    """Returns True if Delta refuses a VACUUM of files younger than the retention; the user may have switched this check off."""
    return str(session.conf.get(CHECK_CONF, "true")).lower() != "false"


def whole_hours_ms(duration_ms: int) -> int:
    """Rounds a time up to whole hours, the unit of VACUUM."""
    return math.ceil(duration_ms / HOUR_MS) * HOUR_MS


def optimize(session: SparkSession, table: TableLocation, zorder_by: Sequence[str] = ()) -> Dml:
    """Returns an OPTIMIZE statement, with ZORDER BY if columns are named; a clustered table is clustered."""
    columns = ", ".join(quoted(column) for column in zorder_by)
    text = f"OPTIMIZE delta.{quoted(table)}" + (f" ZORDER BY ({columns})" if columns else "")
    return relocation(session, table, lambda: session.sql(text))


def purge(session: SparkSession, table: TableLocation) -> Dml:
    """Returns REORG … APPLY (PURGE), which rewrites files with hidden rows without these rows."""
    return relocation(session, table, lambda: session.sql(f"REORG TABLE delta.{quoted(table)} APPLY (PURGE)"))


def vacuum(
    session: SparkSession,
    table: TableLocation,
    *,
    older_than_ms: int | None,
    is_checked: bool = True,
    files: Sequence[tuple[str, int, int]] | None = None,
) -> None:
    """Deletes the files that the table removed some time ago.

    Args:
        session: A session in which nothing else writes.
        table: The table.
        older_than_ms: The time since the removal, rounded up to whole hours; None: the table's own retention.
        is_checked: Whether Delta refuses a time that is shorter than the table's retention.
        files: Only these, each with its URI, its size and the time when it was written; None: all files of the folder.
    """
    said = {} if is_checked else {CHECK_CONF: "false"}
    if session.conf.get(LISTING_CONF, None) is None:
        said[LISTING_CONF] = str(TASKS_PER_CORE * session.sparkContext.defaultParallelism)
    hours = "" if older_than_ms is None else f" RETAIN {whole_hours_ms(older_than_ms) // HOUR_MS} HOURS"
    named = ""
    if files is not None:
        rows = [(uri, size, False, written_ms) for uri, size, written_ms in files]
        layout = "path STRING, length BIGINT, isDir BOOLEAN, modificationTime BIGINT"
        session.createDataFrame(rows, layout).createOrReplaceTempView(INVENTORY)
        named = f" USING INVENTORY (SELECT * FROM {INVENTORY})"
    with confs(session, said):
        session.sql(f"VACUUM delta.{quoted(table)}{named}{hours}")


def record(log: DeltaTableLog, table: TableLocation, token: WriteToken) -> None:
    """Records the token in the table, in a separate commit, unless it is there already or a later turn has begun.

    Raises:
        Unavailable: Others committed first at every attempt; or the table cannot be written.
    """
    for _ in range(RECORD_ATTEMPTS_MAX):
        reading = log.read_tokens(table)
        if not isinstance(read_token(reading.tokens.get(token.token_id), unpack(token.number)), NotApplied):
            return
        log.commit_entry(table, reading.version, ((token.token_id, token.number),), token.user_metadata)
    raise Unavailable("others commit to the table faster than it can be read; what was done stands", table=table)


def event(commit: Commit, job: str) -> MaintenanceEvent:
    """Returns a commit as a job sees it."""
    said = commit.user_metadata or {}
    is_own = said.get("job") == job
    facts = said.get("user")
    return MaintenanceEvent(
        version=commit.version,
        at_ms=commit.timestamp_ms,
        step=str(said.get("step")) if is_own else None,
        facts=facts if is_own and isinstance(facts, dict) else {},
        changes_data=any(file.is_data_change for file in commit.added)
        or any(file.is_data_change for file in commit.removed),
        removes_files=bool(commit.removed),
    )
