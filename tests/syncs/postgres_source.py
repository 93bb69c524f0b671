"""A sync from a PostgreSQL database to any target, in this process; and its slot, which ends with the test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.changes import table_text
from lakegate.config import Pipeline, parse
from lakegate.demo.database_servers import Database, fresh_postgres
from lakegate.syncs.runner import AppliedBatch
from lakegate.syncs.session import Carrier, SyncSession


@contextlib.contextmanager
def source_of(server: str) -> Iterator[Database]:
    """An empty schema whose changes can be read; its slot and its publication are dropped at the end."""
    database = fresh_postgres(server)
    try:
        yield database
    finally:
        name = slot_of(database)
        database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}'",
            f"DROP PUBLICATION IF EXISTS {name}",
        )
        for _ in range(100):
            with contextlib.suppress(Exception):
                database.execute(
                    f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
                )
                break


def slot_of(source: Database) -> str:
    """The name of the slot and the publication: that of the source's schema."""
    return "s_" + source.dsn.rpartition("%3D")[2]


def written(source: Database, target: Database, tables: Sequence[str], more: str = "", dsn: str | None = None) -> str:
    """The file of a sync."""
    name = slot_of(source)
    origin: dict[str, object] = {"postgres": dsn or source.dsn, "publication": name, "slot": name}
    if tables:
        origin["tables"] = list(tables)
    return f"name: p\nsync:\n  crm:\n    from: {json.dumps(origin)}\n    to: {json.dumps(target.dsn)}\n{more}"


def pipeline_of(text: str) -> Pipeline:
    """The file, read."""
    return parse(text, origin="lakegate.yml", base_dir=str(Path.cwd()), environ={})


@contextlib.contextmanager
def session_of(
    source: Database, target: Database, tables: Sequence[str], more: str = "", *, changes_max: int | None = None,
    dsn: str | None = None,
) -> Iterator[SyncSession]:  # fmt: skip
    """The sync, open."""
    pipeline = pipeline_of(written(source, target, tables, more, dsn))
    with contextlib.closing(SyncSession(pipeline, pipeline.sync("crm"))) as session:
        if changes_max is not None:
            session._settings = replace(session._settings, changes_max=changes_max)
        yield session


def applied(session: SyncSession) -> list[AppliedBatch]:
    """Applies until nothing is left."""
    return apply_with(Carrier(session, is_patient_from_the_start=False))


def apply_with(carrier: Carrier) -> list[AppliedBatch]:
    """The same for a sync that goes on."""
    done: list[AppliedBatch] = []
    while more := [one for one in carrier.carry() if one.changes]:
        done += more
    return done


def rows(database: Database, table: str) -> list[str]:
    """A whole table as text."""
    return table_text(database.rows(table))


def same(source: Database, target: Database, *tables: str) -> bool:
    """Whether the tables are the same, whole; shows the first difference."""
    for table in tables:
        assert rows(target, table) == rows(source, table), table
    return True


def confirmed(source: Database) -> int:
    """The position that was confirmed to the slot."""
    found: list[tuple[Any, ...]] = source.query(
        f"SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = '{slot_of(source)}'"
    )
    return int(found[0][0])
