"""Lakegate: many Spark writers, one Delta table, in a stated order.

Importing this package needs only Python; each name below imports its dependencies at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakegate.api import JobCoordinator, coordinated, session, start, supervise
    from lakegate.config.build import files, files_json, kafka
    from lakegate.errors import (
        CheckpointMismatch,
        CommitInDoubt,
        ConstraintViolated,
        Corrupt,
        Fault,
        Fenced,
        InvalidRequest,
        JvmEnded,
        LakegateError,
        LostTurn,
        MissingExtra,
        NoFiles,
        StagedRowsLost,
        StoreUnavailable,
        TurnNotGranted,
        Unavailable,
        UnsupportedTable,
    )
    from lakegate.pipeline import Pipeline
    from lakegate.report.statements import StatementMetrics
    from lakegate.rows.delta_table import DeltaTable
    from lakegate.rows.explain import Explanation
    from lakegate.rows.keyed_changes import Written
    from lakegate.rows.keyed_writer import KeyedWriter, writer
    from lakegate.rows.publish import Publish, Snapshot, publish, snapshot
    from lakegate.rows.result import Result, on_statement
    from lakegate.rows.sql import explain_sql as explain
    from lakegate.rows.sql import sql
    from lakegate.streams.job import Turn
    from lakegate.streams.running_query import RunningQuery
    from lakegate.streams.supervisor import RunReport
    from lakegate.syncs.api import SyncReport, sync
    from lakegate.telemetry.events import StatementPublished
    from lakegate.telemetry.hooks import on_event
    from lakegate.telemetry.log_format import JsonFormatter

__version__ = "0.1.0"

_HOMES = {
    "CheckpointMismatch": "lakegate.errors",
    "CommitInDoubt": "lakegate.errors",
    "ConstraintViolated": "lakegate.errors",
    "Corrupt": "lakegate.errors",
    "DeltaTable": "lakegate.rows.delta_table",
    "Explanation": "lakegate.rows.explain",
    "Fault": "lakegate.errors",
    "Fenced": "lakegate.errors",
    "InvalidRequest": "lakegate.errors",
    "JobCoordinator": "lakegate.api",
    "JsonFormatter": "lakegate.telemetry.log_format",
    "JvmEnded": "lakegate.errors",
    "KeyedWriter": "lakegate.rows.keyed_writer",
    "LakegateError": "lakegate.errors",
    "LostTurn": "lakegate.errors",
    "MissingExtra": "lakegate.errors",
    "NoFiles": "lakegate.errors",
    "Pipeline": "lakegate.pipeline",
    "Publish": "lakegate.rows.publish",
    "Result": "lakegate.rows.result",
    "RunReport": "lakegate.streams.supervisor",
    "RunningQuery": "lakegate.streams.running_query",
    "Snapshot": "lakegate.rows.publish",
    "StagedRowsLost": "lakegate.errors",
    "StatementMetrics": "lakegate.report.statements",
    "StatementPublished": "lakegate.telemetry.events",
    "StoreUnavailable": "lakegate.errors",
    "SyncReport": "lakegate.syncs.api",
    "Turn": "lakegate.streams.job",
    "TurnNotGranted": "lakegate.errors",
    "Unavailable": "lakegate.errors",
    "UnsupportedTable": "lakegate.errors",
    "Written": "lakegate.rows.keyed_changes",
    "coordinated": "lakegate.api",
    "explain": "lakegate.rows.sql:explain_sql",
    "files": "lakegate.config.build",
    "files_json": "lakegate.config.build",
    "kafka": "lakegate.config.build",
    "on_event": "lakegate.telemetry.hooks",
    "on_statement": "lakegate.rows.result",
    "publish": "lakegate.rows.publish",
    "session": "lakegate.api",
    "snapshot": "lakegate.rows.publish",
    "sql": "lakegate.rows.sql",
    "start": "lakegate.api",
    "supervise": "lakegate.api",
    "sync": "lakegate.syncs.api",
    "writer": "lakegate.rows.keyed_writer",
}
__all__ = [
    "CheckpointMismatch",
    "CommitInDoubt",
    "ConstraintViolated",
    "Corrupt",
    "DeltaTable",
    "Explanation",
    "Fault",
    "Fenced",
    "InvalidRequest",
    "JobCoordinator",
    "JsonFormatter",
    "JvmEnded",
    "KeyedWriter",
    "LakegateError",
    "LostTurn",
    "MissingExtra",
    "NoFiles",
    "Pipeline",
    "Publish",
    "Result",
    "RunReport",
    "RunningQuery",
    "Snapshot",
    "StagedRowsLost",
    "StatementMetrics",
    "StatementPublished",
    "StoreUnavailable",
    "SyncReport",
    "Turn",
    "TurnNotGranted",
    "Unavailable",
    "UnsupportedTable",
    "Written",
    "coordinated",
    "explain",
    "files",
    "files_json",
    "kafka",
    "on_event",
    "on_statement",
    "publish",
    "session",
    "snapshot",
    "sql",
    "start",
    "supervise",
    "sync",
    "writer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakegate' has no attribute {name!r}")
    home, _, known_there_as = _HOMES[name].partition(":")
    return getattr(import_module(home), known_there_as or name)
