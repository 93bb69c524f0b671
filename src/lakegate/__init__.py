"""Lakegate: many Spark writers, one Delta table, in a stated order.

Importing this needs nothing but Python; each name below brings what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakegate.api import JobCoordinator, coordinated, session, start, supervise
    from lakegate.config.build import files, files_json, kafka
    from lakegate.pipeline import Pipeline
    from lakegate.rows.delta_table import DeltaTable
    from lakegate.rows.execution import on_statement
    from lakegate.rows.sql import explain_sql as explain
    from lakegate.rows.sql import sql
    from lakegate.streams.supervisor import RunReport
    from lakegate.syncs.api import SyncReport, sync

__version__ = "0.1.0"

_HOMES = {
    "DeltaTable": "lakegate.rows.delta_table",
    "JobCoordinator": "lakegate.api",
    "Pipeline": "lakegate.pipeline",
    "RunReport": "lakegate.streams.supervisor",
    "SyncReport": "lakegate.syncs.api",
    "coordinated": "lakegate.api",
    "explain": "lakegate.rows.sql:explain_sql",
    "files": "lakegate.config.build",
    "files_json": "lakegate.config.build",
    "kafka": "lakegate.config.build",
    "on_statement": "lakegate.rows.execution",
    "session": "lakegate.api",
    "sql": "lakegate.rows.sql",
    "start": "lakegate.api",
    "supervise": "lakegate.api",
    "sync": "lakegate.syncs.api",
}
__all__ = [
    "DeltaTable",
    "JobCoordinator",
    "Pipeline",
    "RunReport",
    "SyncReport",
    "coordinated",
    "explain",
    "files",
    "files_json",
    "kafka",
    "on_statement",
    "session",
    "sql",
    "start",
    "supervise",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lakegate' has no attribute {name!r}")
    home, _, known_there_as = _HOMES[name].partition(":")
    return getattr(import_module(home), known_there_as or name)
