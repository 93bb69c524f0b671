"""The syncs of a pipeline: the keys below `sync`, and what they are for the product.

Rules for editors: as in `streams.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lakegate.config.places import DatabaseUrl, LocalPath
from lakegate.config.sections import FromSection, Section, Written
from lakegate.config.streams import TABLE_NAME, ColumnNames, Servers, Topics
from lakegate.config.value_types import Choice, Count, Milliseconds, Reader, Text, TextMap, Texts, WholeNumber
from lakegate.config.yaml_nodes import Node, shown_key
from lakegate.syncs.plan.apply_protocol import Mode, OnViolation
from lakegate.syncs.plan.values import UNAVAILABLE, BytesAs

ChangeFormat = Literal["json", "parquet", "debezium"]
OnSchemaChange = Literal["stop", "ignore", "add_columns"]
OnDdl = Literal["stop", "apply"]
ForeignKeyActions = Literal["auto", "in_log"]
SyncPlan = Literal["staged", "conflict_queue"]
_Begin = Literal["snapshot", "latest"]

_CLIENT_OPTIONS_TAKEN: Final = frozenset(
    {"bootstrap.servers", "group.id", "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store"}
)
"""Settings of a sync's client: only the target states where reading begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilesSource:
    """Files of changes: a folder, a file or a glob."""

    path: str
    format: Literal["json", "parquet"] | None
    """None: by a file's ending."""
    transaction: str
    """The column or key that names the source's transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeFilesSource:
    """Files of Debezium's envelopes: a folder, a file or a glob."""

    path: str
    transactions: str | None
    """The files of transaction metadata, in the same form."""
    bytes_as: BytesAs | None = None
    """The encoding of bytes without a schema; None: not stated."""
    placeholder: str = UNAVAILABLE
    """The text instead of a large value that did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeTopicsSource:
    """Kafka topics of Debezium's envelopes."""

    topics: tuple[str, ...]
    servers: str
    transactions: str | None
    """The topic of transaction metadata."""
    bytes_as: BytesAs | None = None
    """The encoding of bytes without a schema; None: not stated."""
    placeholder: str = UNAVAILABLE
    """The text instead of a large value that did not change."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """The change data feed of a table of the file."""

    table: str
    """Key of `Pipeline.tables`."""
    start: _Begin | int
    """The start of the sync; a number is the first version whose changes are applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSource:
    """A PostgreSQL database whose log is read through a slot."""

    dsn: str = field(repr=False)
    tables: tuple[str, ...] = ()
    """Empty: all of the publication."""
    publication: str | None = None
    """None: named after the pipeline and the sync."""
    slot: str | None = None
    """None: named like the publication."""


SyncSource = ChangeFilesSource | EnvelopeFilesSource | EnvelopeTopicsSource | PostgresSource | TableSource


class SyncFrom(Section, title="from"):
    """The files, Kafka topics or PostgreSQL database whose changes a sync applies; instead, a table of this file may be named."""

    files: LocalPath | None = Field(default=None, examples=['"changes/*.jsonl"'])
    """Files of changes: a folder, a file or a glob. They are merged by the changes' positions in the source, whatever their
    names. Either this, `kafka` or `postgres`."""
    kafka: Topics | None = Field(default=None, examples=["crm.public.people"])
    """The topic or topics of changes, as Debezium writes them. Either this, `files` or `postgres`."""
    postgres: DatabaseUrl | None = Field(default=None, repr=False, examples=['"${SOURCE_DSN}"'])
    """The PostgreSQL database whose tables are loaded, and whose changes are then read from its log. Either this, `files` or
    `kafka`."""
    tables: Annotated[tuple[str, ...], Texts(of=Text(expected="a table's name", word="table"))] = Field(
        default=(), examples=["[people, sales.orders]"]
    )
    """The tables of the database, with or without their schemas; only with `postgres`. Default: all of the publication, which
    must then exist."""
    publication: Annotated[str | None, Text(expected="a publication's name", word="publication")] = Field(
        default=None, examples=["crm"]
    )
    """The publication that has the tables; it is created if it does not exist. Default: `lakegate_PIPELINE_SYNC`."""
    slot: Annotated[
        str | None, Text(pattern=r"[a-z0-9_]{1,63}", expected="small letters, digits and _", word="slot")
    ] = Field(default=None, examples=["crm"])
    """The replication slot from which changes are read; the sync creates it. Default: `lakegate_PIPELINE_SYNC`."""
    servers: Servers | None = Field(default=None, examples=['"h1:9092,h2:9092"'])
    """The brokers to begin with; required with `kafka`."""
    format: Annotated[ChangeFormat | None, Choice(ChangeFormat)] = Field(default=None, examples=["parquet"])
    """How changes are written: `json` is one change per line, `debezium` one of Debezium's JSON envelopes per line or message.
    Default: by a file's ending: `.parquet`, or `json`; with `kafka`: `debezium`."""
    transaction: Annotated[str, Text(expected="a column's name", word="column")] = Field(
        default="tx", examples=["commit_id"]
    )
    """The column, or the key of a line, that names the source's transaction; not with `debezium`."""
    transactions: Annotated[str | None, Text(expected="a topic, or files")] = Field(
        default=None, examples=["crm.transaction"]
    )
    """Debezium's transaction metadata: the topic, with `files` a folder, a file or a glob. With it transactions are applied
    whole; without it each change is a transaction of its own."""
    bytes_as: Annotated[BytesAs | None, Choice(BytesAs)] = Field(
        default=None, serialization_alias="bytes", examples=["base64"]
    )
    """How Debezium writes bytes in envelopes without a schema: the connector's `binary.handling.mode`, whose default is
    `base64`. Without this key a text for a binary column is refused, because its encoding is unknown. Default: not said."""
    placeholder: Annotated[str, Text()] = Field(default=UNAVAILABLE, examples=["__not_sent"])
    """The text that Debezium sends instead of a large value that did not change: the connector's
    `unavailable.value.placeholder`; with `hex:` in front, its bytes."""
    options: Annotated[Mapping[str, str], TextMap(of="an option of librdkafka and its value", holds_settings=True)] = (
        Field(default_factory=dict, repr=False, examples=["{security.protocol: SASL_SSL}"])
    )
    """More options of the Kafka client, with librdkafka's names; only with `kafka`."""

    def rules(self, written: Written) -> None:
        written.exactly_one("files", "kafka", "postgres")
        is_kafka, is_files, unwanted = "kafka" in written, "files" in written, "it to be left out"
        if "postgres" in written:
            written.refuse_all("servers", "options", "format", what="it is not for a database", expected=unwanted)
            if not (self.postgres or "postgres").startswith("postgres"):
                written.refuse("postgres", "not the address of a PostgreSQL database", "postgresql://…")
        else:
            written.refuse_all("tables", "publication", "slot", what="it belongs to postgres", expected=unwanted)
        if is_kafka and not is_files:
            if "servers" not in written:
                written.refuse("servers", "missing", "host:port of the brokers")
            if self.format in ("json", "parquet"):
                written.refuse("format", "topics are read in Debezium's format", "debezium")
        elif is_files and not is_kafka:
            written.refuse_all("servers", "options", what="it belongs to kafka", expected=unwanted)
        if is_kafka or self.format == "debezium" or "postgres" in written:
            what = "changes say their transaction themselves"
            written.refuse_all("transaction", what=what, expected=unwanted)
        if not is_kafka and self.format != "debezium":
            what = "only Debezium has transaction metadata apart"
            written.refuse_all("transactions", what=what, expected=unwanted)
            written.refuse_all("bytes", "placeholder", what="only Debezium's envelopes need it", expected=unwanted)
        placeholder = self.placeholder or ""
        if placeholder.startswith("hex:") and not re.fullmatch(r"hex:([0-9a-fA-F]{2})+", placeholder):
            written.refuse("placeholder", "not hex", "pairs of hex digits behind `hex:`")
        for name in self.options or {}:
            if name in _CLIENT_OPTIONS_TAKEN:
                written.refuse("options", f"{shown_key(name)} is not for you to set", unwanted)

    def made(self, written: Written) -> SyncSource:
        if "kafka" in written:
            return EnvelopeTopicsSource(
                topics=self.kafka or (),
                servers=self.servers or "",
                transactions=self.transactions,
                bytes_as=self.bytes_as,
                placeholder=self.placeholder,
                options=self.options,
            )
        if "postgres" in written:
            return PostgresSource(
                dsn=self.postgres or "", tables=self.tables or (), publication=self.publication, slot=self.slot
            )
        path = self.files or ""
        if self.format == "debezium":
            metadata = self.transactions and posixpath.join(written.reader.base_dir, self.transactions)
            return EnvelopeFilesSource(
                path=path, transactions=metadata, bytes_as=self.bytes_as, placeholder=self.placeholder
            )
        return ChangeFilesSource(path=path, format=self.format, transaction=self.transaction)


class _SectionOrTable(FromSection):
    """The data of a section; or a table of the file, by its name."""

    def read(self, node: Node, reader: Reader) -> Any:
        found = FromSection.read(self, node, reader)
        return TableSource(table=found, start="snapshot") if isinstance(found, str) else found


class StartVersion(Section, title="start"):
    """Starts a sync at a version of its table, without a snapshot."""

    version: Annotated[int, Count(minimum=0)] = Field(examples=["17"])
    """The first version of the table whose changes are applied."""

    def made(self, written: Written) -> int:
        return self.version


class SyncSpec(Section, title="sync.NAME"):
    """A database that is kept in sync with a source of changes."""

    name: str = Field(default="", exclude=True)
    source: Annotated[SyncSource, _SectionOrTable(SyncFrom, TABLE_NAME)] = Field(
        serialization_alias="from", examples=['{files: "changes/*.jsonl"}']
    )
    """Where changes come from: `{files: …}`, `{kafka: …}`, `{postgres: …}`, or a table of this file by its name: its change data
    feed."""
    # As written; the product reads `source.start`.
    start: Annotated[_Begin | int | None, FromSection(StartVersion, Choice(_Begin))] = Field(
        default=None, examples=["snapshot"]
    )
    """For a table as the source: `snapshot`, all its rows, then its changes; `latest`, changes from now on; `{version: n}`,
    changes from that version on. Default: snapshot."""
    to: DatabaseUrl = Field(repr=False, examples=['"${CRM_DSN}"'])
    """The target database: `postgresql://…`, `mysql://…` or `sqlite:PATH`. Passwords by reference: `${NAME}`."""
    table: Annotated[str | None, Text(expected="a table's name")] = Field(default=None, examples=["engagement"])
    """The target table of changes that name no table, and of a table as the source. Default: with a table as the source: its
    name."""
    tables: Annotated[Mapping[str, str], TextMap(of="a source table and its target table")] = Field(
        default_factory=dict, examples=["{people: crm_people}"]
    )
    """Source table to target table. A table that is not named here keeps its name."""
    key: ColumnNames = Field(default=(), examples=["[engagement_id]"])
    """The columns that identify rows in every table of this sync, instead of its primary key. They should have an index in the
    target, and no NULL. Default: the target's primary key, else a unique key without NULLs."""
    plan: Annotated[SyncPlan, Choice(SyncPlan)] = Field(default="staged", examples=["staged"])
    """How to find the rows that must share a transaction: `staged`, by a query to the target; `conflict_queue`, by the values
    in the changes; for comparison."""
    mode: Annotated[Mode, Choice(Mode)] = Field(default="atomic", examples=["atomic"])
    """`atomic`: one transaction for a batch. `parallel`: several concurrently; a transaction of the source may be seen in part
    until its batch is complete. On SQLite the same as `atomic`."""
    parallelism: WholeNumber = Field(default=8, examples=["8"])
    """How many transactions, each on a connection of its own, in mode `parallel`."""
    on_violation: Annotated[OnViolation, Choice(OnViolation)] = Field(default="stop", examples=["quarantine"])
    """The treatment of a row that breaks a constraint, and of a record that cannot be read: `stop`, nothing of its batch is
    applied; `quarantine`, it is quarantined with its reason, and the rest is applied."""
    on_schema_change: Annotated[OnSchemaChange, Choice(OnSchemaChange)] = Field(default="stop", examples=["stop"])
    """What happens when a change has a column that the target lacks: `stop`; `ignore`, its values are left out; `add_columns`,
    it is added to the target once it has a value, as a type that fits the values."""
    ddl: Annotated[OnDdl, Choice(OnDdl)] = Field(default="stop", examples=["apply"])
    """What happens when the source sends a statement that changes a definition: `stop`; or `apply`, it is executed in the
    target if it is of the stated list and for a table of this sync."""
    foreign_key_actions: Annotated[ForeignKeyActions, Choice(ForeignKeyActions)] = Field(
        default="auto", examples=["in_log"]
    )
    """Whether the changes show what ON DELETE and ON UPDATE did at the source. `auto`: those of PostgreSQL, SQL Server, Oracle,
    Db2 and of a Delta table do; those of MySQL, MariaDB and change files do not, so the target's own actions are taken for the
    source's. `in_log`: they do, or the source has no such actions; nothing is added to the changes."""
    patience_ms: Milliseconds = Field(default=180_000, examples=["10m"])
    """How long `sync run` waits for a target or a source that has become unavailable, as in a restart or a fail-over, or that
    cannot be written now; then it ends with status 6."""
    poll_ms: Milliseconds | None = Field(default=None, examples=["1s"])
    """How often `sync run` asks the source for something new while it is idle. Default: changes from Kafka and PostgreSQL are
    noticed as they arrive, looked for every 20ms and 5ms; 100ms for files and a table on a local disk, else 1s."""
    source_dsn: DatabaseUrl | None = Field(default=None, repr=False, examples=['"${SOURCE_DSN}"'])
    """The source's own database, which `sync verify` and `sync repair` read instead of the changes. A login that may only read
    is enough. Default: the comparison uses the changes in their files or topics; with `postgres`, its database."""

    def rules(self, written: Written) -> None:
        unwanted = "it to be left out"
        match self.source:
            case TableSource():
                what = "the source is one table: its target is named by `table`"
                written.refuse_all("tables", what=what, expected=unwanted)
            case ChangeFilesSource() | EnvelopeFilesSource() | EnvelopeTopicsSource() | PostgresSource():
                written.refuse_all("start", what="only a table has a snapshot and versions", expected=unwanted)
        if isinstance(self.source, EnvelopeFilesSource | EnvelopeTopicsSource | PostgresSource):
            what = "changes say their table: name its target under `tables`"
            written.refuse_all("table", what=what, expected=unwanted)
        if "table" in written and "tables" in written:
            written.refuse("", "table and tables together", "one of them", at="table")

    def made(self, written: Written) -> SyncSpec:
        source = self.source
        if isinstance(source, TableSource):
            written.default("start", "snapshot")
            source = replace(source, start="snapshot" if self.start is None else self.start)
        return self.model_copy(update={"name": written.name, "source": source})
