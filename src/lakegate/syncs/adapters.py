"""Opens the source and the target that a sync names: the composition root of `syncs/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

from lakegate.config import (
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Pipeline,
    PostgresSource,
    SyncSpec,
    TableSource,
)
from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.values import Placeholders
from lakegate.syncs.ports import ChangeSource
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_envelope import Reading
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from lakegate.syncs.sources.files import ChangeFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakegate.syncs.targets.dialect import Dialect
    from lakegate.syncs.targets.source_rows import SourceRows
    from lakegate.syncs.targets.sql_target import SqlTarget


class Source(ChangeSource, Protocol):
    """A source that can be read repeatedly."""

    def fingerprint(self) -> object:
        """Returns a value that changes when there is something new; cheap to compute."""
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


def open_source(
    pipeline: Pipeline, spec: SyncSpec, spark: SparkSession | None = None, *, answer_s: float = 20.0
) -> Source:
    """Opens the source of a sync.

    Args:
        pipeline: The pipeline of the sync's file.
        spec: The sync.
        spark: For a source that is a table. None: a session is created as for `lakegate run`.
        answer_s: The maximum time for a broker's answer, and for the arrival of a message that is known to exist.

    Raises:
        MissingExtra: The source's client is not installed.
        InvalidRequest: The catalog has no such table.
    """
    match spec.source:
        case ChangeFilesSource(path=path, format=format, transaction=transaction):
            return ChangeFiles(files=path, format=format, table=spec.table, tables=spec.tables, transaction=transaction)
        case EnvelopeFilesSource(path=path, transactions=transactions) as source:
            files = EnvelopeFiles(files=path, transactions=transactions, tables=spec.tables)
            return DebeziumChanges(logs=files, tables=spec.tables, reading=_reading(source))
        case EnvelopeTopicsSource() as source:
            from lakegate.syncs.sources.debezium_kafka import EnvelopeTopics

            logs = EnvelopeTopics(
                topics=source.topics, servers=source.servers, transactions=source.transactions,
                options=source.options, group=f"lakegate-{pipeline.name}-{spec.name}", answer_s=answer_s,
            )  # fmt: skip
            return DebeziumChanges(logs=logs, tables=spec.tables, reading=_reading(source))
        case TableSource(table=name, start=start):
            from lakegate.runtime import locate, session_for
            from lakegate.syncs.sources.delta_cdf import TableFeed

            session = spark or session_for(pipeline)
            location = locate(session, pipeline.tables[name])
            return TableFeed(spark=session, location=location, table=spec.table or name, start=start)
        case PostgresSource() as source:
            from lakegate.syncs.sources.postgres import PostgresChanges
            from lakegate.syncs.sources.postgres_server import Server
            from lakegate.syncs.targets.postgres import address_of

            usual = slot_name(pipeline.name, spec.name)
            server = Server(address_of(source.dsn), source.tables, source.publication or usual, source.slot or usual)
            return PostgresChanges(server, spec.tables)
        case _:
            assert_never(spec.source)


def slot_name(pipeline: str, sync: str) -> str:
    """Returns the name of a sync's slot and publication, unless the sync names them. A slot's name has few characters."""
    return re.sub("[^a-z0-9_]", "_", f"lakegate_{pipeline}_{sync}".lower())[:63]


def _reading(source: EnvelopeFilesSource | EnvelopeTopicsSource) -> Reading:
    return Reading(bytes_as=source.bytes_as, unavailable=Placeholders(source.placeholder))


def open_source_rows(dsn: str, to: str) -> SourceRows:
    """Returns the source's own database, for a comparison with a target at `to`.

    Raises:
        InvalidRequest: `dsn` is not the address of a supported database.
        MissingExtra: The driver is not installed.
    """
    from lakegate.syncs.targets.source_rows import SourceRows

    return SourceRows(dialect_of(dsn), type(dialect_of(to)).__name__)


def dialect_of(dsn: str) -> Dialect:
    """Returns the dialect for the database of this address. Opens no connection yet.

    Raises:
        InvalidRequest: This version supports no database with such an address.
        MissingExtra: The driver is not installed.
    """
    match dsn.partition(":")[0]:
        case "postgresql" | "postgres":
            from lakegate.syncs.targets.postgres import PostgresDialect

            return PostgresDialect(dsn)
        case "mysql" | "mariadb":
            from lakegate.syncs.targets.mariadb import MariadbDialect

            return MariadbDialect(dsn)
        case "sqlite":
            from lakegate.syncs.targets.sqlite import SqliteDialect

            return SqliteDialect(dsn)
        case scheme:
            raise InvalidRequest(
                "this version does not support this kind of target database; nothing was done",
                advice="Use postgresql://, mysql:// or sqlite:PATH",
                scheme=scheme,  # never the DSN: it may hold a password
            )


def open_target(dsn: str, *, key: Sequence[str] = ()) -> SqlTarget:
    """Returns the target database of a DSN: `postgresql://…`, `mysql://…`, `sqlite:PATH` or `sqlite:///PATH`.

    Opens no connection yet. `key`: the columns that identify rows, instead of each table's own key.

    Raises:
        InvalidRequest: This version supports no target with such a DSN.
        MissingExtra: The driver is not installed.
    """
    from lakegate.syncs.targets.sql_target import SqlTarget

    return SqlTarget(dialect_of(dsn), key=key)
