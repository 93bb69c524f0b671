"""The file, its coordinator and its tables: the keys as fields, and the rules between the keys of one section.

A field of a section is a key of the file and, with few exceptions, an attribute of the product. Its type, default, example and
meaning stand there; the reader, the JSON Schema and the reference come from it.

Only `reading.validate` gives complete data: paths are absolute, names are checked, and what follows from other values is filled in.
A section that code builds itself has the defaults of its fields alone, so that `CoordinatorSpec()` has no `url`.

Rules for editors: nothing here opens a file. Durations are milliseconds. Values that may hold a secret are left out of `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from lakegate.config.places import CoordinatorUrl, LocalPath, Path, WebAddress
from lakegate.config.sections import Named, Section, Written
from lakegate.config.streams import DAY_MS, ColumnNames, Ddl, FilesSource, StreamSpec
from lakegate.config.syncs import SyncSpec
from lakegate.config.value_types import LOCK_NAME, Choice, Entry, Milliseconds, Text, TextMap, Texts, name_type
from lakegate.config.yaml_nodes import shown_key
from lakegate.telemetry.hook_messages import BEHIND_AFTER_MS, HOOK_EVENTS, Hook, HookEvent

LogStoreWord = Literal["auto", "conditional", "dynamodb", "single_driver"]
LineageWord = Literal["openlineage"]

CATALOG_NAME: Final = Text(
    pattern=r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*){0,2}", expected="table, db.table or catalog.db.table"
)
_PROPERTY_REFUSED: Final = "delta.setTransactionRetentionDuration"
"""Deleting transaction ids would delete the record of written batches (rule 7 of turns)."""

_HOOK_EVENTS: Final = Texts(
    of=Text(pattern="|".join(HOOK_EVENTS), expected=f"{', '.join(HOOK_EVENTS[:-1])} or {HOOK_EVENTS[-1]}", word="event")
)


class CoordinatorSpec(Section, title="coordinator"):
    """The store in which jobs take turns. A plain text is its `url`."""

    short = "url"
    url: Annotated[str, CoordinatorUrl()] = Field(default="", examples=['"sqlite:./lake/_lakegate/turns.db"'])
    """The store of turns. `sqlite:PATH` serves the processes of one machine, `memory:` one process,
    `zookeeper://host:port,…/chroot` and `dynamodb://TABLE?region=…` several machines. Default: `sqlite:<storage>/turns.db`."""
    lock_timeout_ms: Milliseconds = Field(default=60_000, examples=["5m"])
    """How long a micro-batch waits for its turn before the stream gives up, writes nothing and tries later."""


class TableSpec(Section, title="tables.NAME"):
    """A Delta table, and how it is created if it does not exist."""

    name: str = Field(default="", exclude=True)
    """The name of the table in the file."""
    path: Path | None = Field(default=None, examples=["./lake/engagement"])
    """The path or URI of the table. Either this or `name`."""
    catalog_name: Annotated[str | None, CATALOG_NAME] = Field(
        default=None, serialization_alias="name", examples=["db.engagement"]
    )
    """The table's name in Spark's catalog. Either this or `path`."""
    lock: Annotated[str, LOCK_NAME] = Field(default="", examples=["ENGAGEMENT_HVS_DATA"])
    """The lock whose turns the writers of this table take. Tables with the same lock share its turns. Default: the table's name
    here."""
    columns: Ddl | None = Field(default=None, examples=['"engagement_id STRING NOT NULL, person_id STRING"'])
    """The table's columns, for its creation. Without it the first append creates the table in its turn."""
    partition_by: ColumnNames = Field(default=(), examples=["[org_id]"])
    """Partition columns, for its creation; on an existing table compared by `check`, never applied."""
    cluster_by: ColumnNames = Field(default=(), examples=["[org_id, engagement_time]"])
    """Clustering columns, for its creation; on an existing table compared by `check`, never applied."""
    properties: Annotated[Mapping[str, str], TextMap(of="a table property and its value")] = Field(
        default_factory=dict, examples=['{delta.enableDeletionVectors: "true"}']
    )
    """Table properties, for its creation; on an existing table compared by `check`, never applied."""

    def rules(self, written: Written) -> None:
        written.exactly_one("path", "name")
        if "partition_by" in written and "cluster_by" in written:
            written.refuse("", "partition_by and cluster_by together", "one of them", at="cluster_by")
        for name in self.properties or {}:
            if name.lower() == _PROPERTY_REFUSED.lower():
                what = f"{_PROPERTY_REFUSED} would let the table forget which batches were written"
                written.refuse("properties", what, "it to be left out")

    def made(self, written: Written) -> TableSpec:
        lock = self.lock or written.default("lock", written.name)
        return self.model_copy(update={"name": written.name, "lock": lock})


class HookSpec(Section, title="on_event.NAME"):
    """A receiver of messages about the runs of the pipeline: a webhook or a command."""

    webhook: Annotated[str | None, WebAddress()] = Field(default=None, repr=False, examples=['"${OPS_URL}"'])
    """The address to which each message is sent as JSON, with POST. Either this or `command`."""
    command: Annotated[tuple[str, ...], Texts(of=Text(expected="a program, or one of its words"), may_repeat=True)] = (
        Field(default=(), repr=False, examples=["[notify, --urgent]"])
    )
    """A program and its words, without a shell; it reads each message as JSON on its standard input. Either this or `webhook`."""
    events: Annotated[tuple[HookEvent, ...], _HOOK_EVENTS] = Field(default=(), examples=["[lost, late]"])
    """The kinds of messages: `lost`, `failed`, `late`, `dead_letters`, `unmet`, `erased`, `sync_behind`. Default: all."""
    behind_after_ms: Milliseconds = Field(default=BEHIND_AFTER_MS, examples=["10m"])
    """The delay above which a sync is `sync_behind`."""

    def rules(self, written: Written) -> None:
        written.exactly_one("webhook", "command")


class Pipeline(
    Section,
    title="lakegate.yml",
    json_schema_extra={
        "description": "A pipeline of Lakegate. A text may hold ${NAME} or ${NAME:-default}.",
        "anyOf": [{"required": ["streams"]}, {"required": ["sync"]}],
    },
):
    """The whole content of a file."""

    name: Annotated[str, name_type("the pipeline's name")] = Field(examples=["engagement"])
    """The pipeline's name."""
    storage: LocalPath = Field(default="", examples=["./lake/_lakegate"])
    """Where Lakegate keeps checkpoints, ledger, request tables and dead letters. Default: ./_lakegate."""
    keep_ledger_ms: Milliseconds = Field(default=400 * DAY_MS, serialization_alias="keep_ledger_for", examples=["90d"])
    """How long the ledger keeps turns. A run deletes older ones when it starts; sums and owners of checkpoints stay."""
    coordinator: CoordinatorSpec = Field(
        default_factory=CoordinatorSpec, examples=['{url: "sqlite:./lake/_lakegate/turns.db", lock_timeout: 5m}']
    )
    """The store of turns; a plain text is its `url`."""
    spark: Annotated[Mapping[str, str], TextMap(of="a Spark setting and its value", holds_settings=True)] = Field(
        default_factory=dict, repr=False, examples=['{spark.sql.shuffle.partitions: "4"}']
    )
    """Settings of the Spark sessions that Lakegate makes."""
    log_store: Annotated[LogStoreWord, Choice(LogStoreWord)] = Field(default="auto", examples=["auto"])
    """How commits reach the log of tables on S3: `conditional` puts, `dynamodb`, or Delta's own way for a `single_driver`.
    `auto`: `conditional`. On local disks it is always a hard link, elsewhere Delta's own way."""
    tables: Annotated[Mapping[str, TableSpec], Named("table")] = Field(default_factory=dict)
    """The tables, each under a name."""
    streams_by_name: Annotated[Mapping[str, StreamSpec], Named("stream")] = Field(
        default_factory=dict, serialization_alias="streams"
    )
    """The streams, each under its name, which is also the name of its job."""
    syncs_by_name: Annotated[Mapping[str, SyncSpec], Named("sync")] = Field(
        default_factory=dict, serialization_alias="sync"
    )
    """Databases that are kept in sync, each under a name. A file has `streams`, `sync`, or both."""
    hooks_by_name: Annotated[Mapping[str, HookSpec], Named("hook")] = Field(
        default_factory=dict, serialization_alias="on_event"
    )
    """Receivers of messages about runs, each under a name."""
    lineage: Annotated[LineageWord | None, Choice(LineageWord)] = Field(default=None, examples=["openlineage"])
    """Report each turn of a stream, and each batch of a sync, as a run to OpenLineage. Its client takes its settings from
    `openlineage.yml` and its own variables. Default: nothing is reported."""
    notes: tuple[str, ...] = Field(default=(), exclude=True)
    """Allowed settings that are worth a note; printed by `lakegate check`."""
    entries: tuple[Entry, ...] = Field(default=(), repr=False, exclude=True)

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        """The streams in the order written."""
        return tuple(self.streams_by_name.values())

    @property
    def syncs(self) -> tuple[SyncSpec, ...]:
        """The syncs in the order written."""
        return tuple(self.syncs_by_name.values())

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The receivers of messages in the order written."""
        return tuple(
            Hook(
                name=name,
                events=one.events or HOOK_EVENTS,
                behind_after_ms=one.behind_after_ms,
                webhook=one.webhook,
                command=one.command,
            )
            for name, one in self.hooks_by_name.items()
        )

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
        return self.streams_by_name[name]

    def sync(self, name: str) -> SyncSpec:
        """Returns the sync of that name.

        Raises:
            KeyError: no such sync.
        """
        return self.syncs_by_name[name]

    def table_of(self, stream: StreamSpec) -> TableSpec:
        """Returns the table that a stream writes to."""
        return self.tables[stream.table]

    def lock_of(self, stream: StreamSpec) -> str:
        """Returns the lock whose turns a stream takes."""
        return self.tables[stream.table].lock

    def streams_of_lock(self, lock: str) -> tuple[StreamSpec, ...]:
        """Returns the streams that take turns on one lock, in the order written."""
        return tuple(stream for stream in self.streams if self.lock_of(stream) == lock)

    def rules(self, written: Written) -> None:
        if "streams" not in written and "sync" not in written:
            written.refuse("streams", "missing", "at least one stream, or one sync")
        elif "streams" in written and self.streams_by_name == {}:
            written.refuse("streams", "no stream in it", "at least one stream")
        if "sync" in written and self.syncs_by_name == {}:
            written.refuse("sync", "no sync in it", "at least one sync")
        for name in self.spark or {}:
            if name.removeprefix("spark.").startswith("job.coordinator."):
                what = f"{shown_key(name)} is for jobs without a file"
                written.refuse("spark", what, "coordinator: and the table's lock: instead")
