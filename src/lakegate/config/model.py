"""A pipeline as data, from `lakegate.yml` or the Python API: complete, checked, with every default filled in.

Rules for editors: nothing here decides or reads. Paths are absolute, durations are milliseconds, names are checked.
Values that may hold a secret are left out of `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lakegate.syncs.plan.apply_protocol import Mode, OnViolation
from lakegate.syncs.plan.values import UNAVAILABLE, BytesAs
from lakegate.turns.protocol.ordering import AGING_MS, OrderRule

Transform = Callable[[Any], Any]
"""User code over one micro-batch: DataFrame → DataFrame. The core does not know Spark, hence `Any`."""

OnDuplicate = Literal["allow", "keep_first"]
AppliesTo = Literal["arrived", "arrived_and_later"]
OnBadRecord = Literal["fail", "dead_letter"]
Coverage = Literal["exclusive", "publish"]
LogStoreWord = Literal["auto", "conditional", "dynamodb", "single_driver"]
"""The scope of a turn: the whole micro-batch, or only its commits."""
OnNewColumn = Literal["ignore", "add"]
FileFormat = Literal["parquet", "json"]
ChangeFormat = Literal["json", "parquet", "debezium"]
OnSchemaChange = Literal["stop", "ignore", "add_columns"]
OnDdl = Literal["stop", "apply"]
ForeignKeyActions = Literal["auto", "in_log"]
SyncPlan = Literal["staged", "conflict_queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSpec:
    """The store of turns."""

    url: str
    """`sqlite:/absolute/path`, `memory:` or `zookeeper://host:port,…/chroot?option=value`."""
    lock_timeout_ms: int
    """How long a batch waits for its turn before the run gives up and starts again from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A Delta table, and how it is created if it does not exist."""

    name: str
    """The name of the table in the file."""
    path: str | None
    """Absolute path or URI; None when the table is known by `catalog_name`."""
    catalog_name: str | None
    """`db.table`; None when the table is known by its path."""
    lock: str
    columns: str | None
    """Spark DDL; None: the first append creates the table."""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSource:
    """A folder, a file or a glob, read in the order of arrival."""

    path: str
    format: FileFormat
    schema: str | None
    """Spark DDL; None: taken from the Parquet files."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """A source of one or more Kafka topics."""

    topics: tuple[str, ...]
    servers: str
    value: Literal["json"]
    schema: str
    """Spark DDL of the decoded value."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


Source = FilesSource | KafkaSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Appends rows."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Table column → SQL over the record, added to the record's own columns."""
    key: tuple[str, ...] = ()
    on_duplicate: OnDuplicate = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """The treatment of an `arrived` request that never matched."""

    retry_for_ms: int
    then: Literal["dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutate:
    """Changes existing rows, future rows, or both (rules M1 to M8 of docs/explanation/requests.md)."""

    match: Mapping[str, str]
    """Table column → SQL over the request."""
    set: Mapping[str, str]
    """Table column → SQL over the request; empty when requests only delete."""
    delete_when: str | None
    sequence_by: str | None
    """SQL over the request; None: the order of the source."""
    applies_to: AppliesTo
    stand_for_ms: int | None
    """How long a standing request applies to later rows; None: for ever."""
    unmatched: Unmatched

    @property
    def moves_rows(self) -> bool:
        """True if `set` assigns a match column, so that a row moves from one key to another."""
        return not {column.lower() for column in self.match}.isdisjoint(column.lower() for column in self.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Deletes all matching rows, now and later (rules E1 to E5 of docs/explanation/requests.md)."""

    match: Mapping[str, str]
    """Table column → SQL over the request."""
    lift_when: str | None
    """SQL over the request that ends an erasure; None: it stays active for ever."""
    physical_within_ms: int | None = None
    """The time after an erasure by which its bytes are gone from the files; None: left to other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintain:
    """Maintains the table's files; no row is changed."""

    optimize: bool
    zorder_by: tuple[str, ...] = ()
    vacuum_older_than_ms: int | None = None
    """Files that left the table at least this long ago are deleted; None: none are."""


StreamKind = Append | Mutate | Erase | Maintain


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A job: a source, a table, its kind, and its schedule. A maintain stream has no source and no checkpoint."""

    name: str
    table: str
    """Key of `Pipeline.tables`."""
    every_ms: int | None
    """The pace; None: again as soon as it has work."""
    order: OrderRule
    absent_after_ms: int
    priority: int = 0
    aging_ms: int = AGING_MS
    """The waiting time that raises the priority by one."""
    source: Source | None
    kind: StreamKind
    max_rows_per_batch: int
    turn_limit_batches: int
    """The number of micro-batches after which the turn is given back and taken again, while a backlog is processed."""
    on_bad_record: OnBadRecord
    on_new_column: OnNewColumn
    checkpoint: str | None
    coverage: Coverage = "exclusive"
    transform: Transform | None = None
    """User code run on each micro-batch before `kind`; only from Python."""


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
    start: Literal["snapshot", "latest"] | int
    """The start of the sync; a number is the first version whose changes are applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSpec:
    """A database that is kept in sync with a source of changes."""

    name: str
    source: ChangeFilesSource | EnvelopeFilesSource | EnvelopeTopicsSource | TableSource
    to: str = field(repr=False)
    """Its DSN; may hold a password."""
    table: str | None
    """The target table of changes that name no table, or of a table as the source."""
    tables: Mapping[str, str]
    """Source table → target table; others keep their name."""
    key: tuple[str, ...] = ()
    """The columns that identify rows; empty: as the target has it."""
    plan: SyncPlan
    mode: Mode
    parallelism: int
    on_violation: OnViolation
    on_schema_change: OnSchemaChange = "stop"
    ddl: OnDdl = "stop"
    foreign_key_actions: ForeignKeyActions = "auto"
    patience_ms: int = 180_000
    source_dsn: str | None = field(default=None, repr=False)
    """The source's own database, for comparisons; may hold a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value in effect, for display: secrets are masked, variables are shown as references."""

    key: str
    value: str
    origin: str
    """`lakegate.yml:12`, `default`, `environment NAME`, `command line`, `Spark conf NAME`, `Python`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The whole content of a file."""

    name: str
    storage: str
    keep_ledger_ms: int
    coordinator: CoordinatorSpec
    log_store: LogStoreWord
    spark: Mapping[str, str] = field(repr=False)
    tables: Mapping[str, TableSpec]
    streams: tuple[StreamSpec, ...]
    """In the order written."""
    syncs: tuple[SyncSpec, ...] = ()
    """In the order written."""
    notes: tuple[str, ...] = ()
    """Allowed settings that are worth a note; printed by `lakegate check`."""
    entries: tuple[Entry, ...] = field(default=(), repr=False)

    @property
    def needs_s3(self) -> bool:
        """True if a session for it needs S3. A catalog table may be on S3 without a visible path: then `log_store` states it."""
        places = [*(table.path for table in self.tables.values()), *(stream.checkpoint for stream in self.streams)]
        places += [stream.source.path for stream in self.streams if isinstance(stream.source, FilesSource)]
        return self.log_store != "auto" or any(place is not None and place.startswith("s3a:") for place in places)

    def stream(self, name: str) -> StreamSpec:
        """Returns the stream of that name.

        Raises:
            KeyError: no such stream.
        """
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise KeyError(name)

    def sync(self, name: str) -> SyncSpec:
        """Returns the sync of that name.

        Raises:
            KeyError: no such sync.
        """
        for sync in self.syncs:
            if sync.name == name:
                return sync
        raise KeyError(name)

    def table_of(self, stream: StreamSpec) -> TableSpec:
        """Returns the table that a stream writes to."""
        return self.tables[stream.table]

    def lock_of(self, stream: StreamSpec) -> str:
        """Returns the lock whose turns a stream takes."""
        return self.tables[stream.table].lock

    def streams_of_lock(self, lock: str) -> tuple[StreamSpec, ...]:
        """Returns the streams that take turns on one lock, in the order written."""
        return tuple(stream for stream in self.streams if self.lock_of(stream) == lock)
