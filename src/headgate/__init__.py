"""Headgate: many Spark writers, one Delta table, in a stated order.

Importing this needs nothing but Python; each name below brings what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.api import JobCoordinator, coordinated, session, start, supervise
    from headgate.core.spec.build import files, files_json, kafka
    from headgate.online import SyncReport, sync
    from headgate.pipelines import Pipeline
    from headgate.streams.supervisor import RunReport
    from headgate.tables.running import on_statement
    from headgate.tables.sql import explain_sql as explain
    from headgate.tables.sql import sql
    from headgate.tables.table import DeltaTable

__version__ = "0.1.0"

_HOMES = {
    "DeltaTable": "headgate.tables.table",
    "JobCoordinator": "headgate.api",
    "Pipeline": "headgate.pipelines",
    "RunReport": "headgate.streams.supervisor",
    "SyncReport": "headgate.online",
    "coordinated": "headgate.api",
    "explain": "headgate.tables.sql:explain_sql",
    "files": "headgate.core.spec.build",
    "files_json": "headgate.core.spec.build",
    "kafka": "headgate.core.spec.build",
    "on_statement": "headgate.tables.running",
    "session": "headgate.api",
    "sql": "headgate.tables.sql",
    "start": "headgate.api",
    "supervise": "headgate.api",
    "sync": "headgate.online",
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
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    home, _, known_there_as = _HOMES[name].partition(":")
    return getattr(import_module(home), known_there_as or name)
