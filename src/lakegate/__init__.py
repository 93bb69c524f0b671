"""Lakegate: many Spark writers, one Delta table, in a stated order.

Importing this needs nothing but Python; each name below brings what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakegate.api import JobCoordinator, coordinated, session, start, supervise
    from lakegate.core.spec.build import files, files_json, kafka
    from lakegate.online import SyncReport, sync
    from lakegate.pipelines import Pipeline
    from lakegate.streams.supervisor import RunReport
    from lakegate.tables.running import on_statement
    from lakegate.tables.sql import explain_sql as explain
    from lakegate.tables.sql import sql
    from lakegate.tables.table import DeltaTable

__version__ = "0.1.0"

_HOMES = {
    "DeltaTable": "lakegate.tables.table",
    "JobCoordinator": "lakegate.api",
    "Pipeline": "lakegate.pipelines",
    "RunReport": "lakegate.streams.supervisor",
    "SyncReport": "lakegate.online",
    "coordinated": "lakegate.api",
    "explain": "lakegate.tables.sql:explain_sql",
    "files": "lakegate.core.spec.build",
    "files_json": "lakegate.core.spec.build",
    "kafka": "lakegate.core.spec.build",
    "on_statement": "lakegate.tables.running",
    "session": "lakegate.api",
    "sql": "lakegate.tables.sql",
    "start": "lakegate.api",
    "supervise": "lakegate.api",
    "sync": "lakegate.online",
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
