"""The streams of a pipeline: the keys below `streams`, and what they are for the product.

Rules for editors: a key is one field; its type, default, example and meaning stand there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lakegate.config.places import Path
from lakegate.config.sections import FromSection, Named, Section, Written
from lakegate.config.value_types import (
    PRIORITY,
    AfterJobs,
    Choice,
    Flag,
    Milliseconds,
    Text,
    TextMap,
    Texts,
    WholeNumber,
    duration_text,
    name_type,
)
from lakegate.config.yaml_nodes import shown_key
from lakegate.turns.protocol.ordering import AGING_MS, After, NoRule, OrderRule, Strict

Transform = Callable[[Any], Any]
"""User code over one micro-batch: DataFrame → DataFrame. The core does not know Spark, hence `Any`."""

OnDuplicate = Literal["allow", "keep_first"]
AppliesTo = Literal["arrived", "arrived_and_later"]
OnBadRecord = Literal["fail", "dead_letter"]
Otherwise = Literal["fail", "drop", "dead_letter"]
OnNewColumn = Literal["ignore", "add"]
Coverage = Literal["exclusive", "publish"]
"""The scope of a turn: the whole micro-batch, or only its commits."""
FileFormat = Literal["parquet", "json"]

DAY_MS: Final = 86_400_000
MAINTAIN_EVERY_MS: Final = DAY_MS
"""Without a pace a maintain stream would compact after every commit of the other streams."""

Sql = Annotated[str, Text(expected="SQL", word="SQL")]
Ddl = Annotated[str, Text(expected="Spark DDL", word="DDL")]
SqlByColumn = Annotated[Mapping[str, str], TextMap(of="a column and its SQL", is_sql=True)]
ColumnNames = Annotated[tuple[str, ...], Texts(of=Text(expected="a column's name", word="column"))]
Topics = Annotated[
    tuple[str, ...],
    Texts(of=Text(pattern=r"[A-Za-z0-9._, -]+", expected="a topic's name", word="topic"), separator=","),
]
Servers = Annotated[str, Text(expected="host:port, with commas between several")]
TABLE_NAME: Final = name_type("a name under tables")
_STREAMS: Final = Texts(of=name_type("a stream's name"))

_KAFKA_OPTIONS_TAKEN: Final[Mapping[str, str]] = {
    "subscribe": "kafka",
    "subscribepattern": "kafka",
    "assign": "kafka",
    "kafka.bootstrap.servers": "servers",
    "maxoffsetspertrigger": "max_rows_per_batch",
    "minoffsetspertrigger": "max_rows_per_batch",
}
_FILES_OPTIONS_TAKEN: Final[Mapping[str, str]] = {
    "path": "files",
    "latestfirst": "files, which are taken in the order of arrival",
    "maxfilespertrigger": "max_rows_per_batch",
    "maxbytespertrigger": "max_rows_per_batch",
    "cleansource": "nothing: files stay where they are",
    "maxfileage": "nothing: no file is too old to be read",
    "filenameonly": "nothing: two files of one name in two folders are two files",
    "ignorecorruptfiles": "nothing: a damaged file stops the stream",
    "ignoremissingfiles": "nothing: a file that is gone before it was read stops the stream",
    "pathglobfilter": "files, with a glob such as in/*.json",
    "modifiedbefore": "files, with a glob of those to read",
    "modifiedafter": "files, with a glob of those to read",
    "recursivefilelookup": "files: a folder stands for all files below it, in/*.json for those of one folder",
    "basepath": "nothing: folders name=value below the source give columns",
    "mode": "on_bad_record",
    "columnnameofcorruptrecord": "on_bad_record",
}


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


class StreamSource(Section, title="source"):
    """The files or Kafka topics that a stream reads."""

    files: Path | None = Field(default=None, examples=['"./in/ingest"'])
    """A folder with everything below it, a file or a glob. Files are read whole, in the order of their times. Folder names
    `name=value` give columns. A path that exists as it is written is not read as a glob. Either this or `kafka`."""
    format: Annotated[FileFormat | None, Choice(FileFormat)] = Field(default=None, examples=["parquet"])
    """The files' format; `json` is one record per line. Default: parquet."""
    kafka: Topics | None = Field(default=None, examples=["eng.mutations"])
    """The topic or topics. Either this or `files`."""
    servers: Servers | None = Field(default=None, examples=['"h1:9092,h2:9092"'])
    """The brokers to begin with; required with `kafka`."""
    value: Annotated[Literal["json"] | None, Choice(Literal["json"])] = Field(default=None, examples=["json"])
    """How a Kafka record's value is decoded. Default: json."""
    columns: Ddl | None = Field(
        default=None,
        serialization_alias="schema",
        examples=['"alias_id STRING, new_person_id STRING, seq BIGINT"'],
    )
    """The records' columns. Required for JSON and Kafka. Default: for Parquet, that of the files."""
    options: Annotated[Mapping[str, str], TextMap(of="an option and its value", holds_settings=True)] = Field(
        default_factory=dict, repr=False, examples=["{startingOffsets: earliest}"]
    )
    """Options of Spark's source, as Spark spells them. Secrets by reference: `${NAME}`."""

    def made(self, written: Written) -> FilesSource | KafkaSource:
        if "kafka" in written and "files" not in written:
            return KafkaSource(
                topics=self.kafka or (),
                servers=self.servers or "",
                value=written.default("value", "json") if self.value is None else self.value,
                schema=self.columns or "",
                options=self.options,
            )
        return FilesSource(
            path=self.files or "",
            format=written.default("format", "parquet") if self.format is None else self.format,
            schema=self.columns,
            options=self.options,
        )


class Append(Section, title="append"):
    """Appends each record as a row."""

    columns: SqlByColumn = Field(default_factory=dict, examples=["{person_id: alias_id}"])
    """Columns to add: table column to SQL over the record."""
    key: ColumnNames = Field(default=(), examples=["[engagement_id]"])
    """The columns that identify a record; required with `keep_first`."""
    on_duplicate: Annotated[OnDuplicate, Choice(OnDuplicate)] = Field(default="allow", examples=["keep_first"])
    """`keep_first`: a row whose key is already in the table, or earlier in the batch, is not written again. With `allow`
    redelivered offsets and files are still written once, but repeated records are not detected."""

    def rules(self, written: Written) -> None:
        if self.on_duplicate == "keep_first" and "key" not in written:
            what = "missing, and on_duplicate is keep_first"
            written.refuse("key", what, "the columns of the key", at="on_duplicate")


class Unmatched(Section, title="unmatched"):
    """The time for which an `arrived` request that never matches is kept, and its state after that."""

    retry_for_ms: Milliseconds = Field(default=30 * DAY_MS, examples=["30d"])
    """How long after it was first seen an `arrived` request that never matched is kept."""
    then: Annotated[Literal["dead_letter"], Choice(Literal["dead_letter"])] = Field(
        default="dead_letter", examples=["dead_letter"]
    )
    """The state of the request after that time."""


class Mutate(Section, title="mutate"):
    """Takes each record as a request to change or delete the rows that match it, once or also later."""

    match: SqlByColumn = Field(examples=["{alias_id: alias_id}"])
    """The rows to change: table column to SQL over the request; all must be equal."""
    set: SqlByColumn = Field(default_factory=dict, examples=["{person_id: new_person_id}"])
    """The new values: table column to SQL over the request. Required unless `delete_when` is given."""
    delete_when: Sql | None = Field(default=None, examples=["\"op = 'delete'\""])
    """SQL over the request: where it is true the matching rows are deleted, not changed."""
    sequence_by: Sql | None = Field(default=None, examples=["seq"])
    """SQL over the request: its position in the order of the requests for one key; a late request with a lower one is not
    applied. Refused when `set` assigns a column of `match`. Default: the order of the source."""
    applies_to: Annotated[AppliesTo, Choice(AppliesTo)] = Field(examples=["arrived_and_later"])
    """`arrived`: kept until it has matched once, then settled. `arrived_and_later`: stays active, also for later rows."""
    stand_for_ms: Milliseconds | None = Field(default=None, examples=["365d"])
    """How long an `arrived_and_later` request stays active. Default: for ever."""
    # No factory: the defaults in a section that was left out would be recorded for every mutation, and only `arrived` has these.
    unmatched: Unmatched = Field(default=Unmatched(), examples=["{retry_for: 30d, then: dead_letter}"])
    """The treatment of `arrived` requests that never match."""

    @property
    def moves_rows(self) -> bool:
        """True if `set` assigns a match column, so that a row moves from one key to another."""
        return bool(self._moved())

    def _moved(self) -> list[str]:
        """Returns the columns of `match` that `set` assigns, in lower case."""
        return sorted({column.lower() for column in self.match or {}} & {column.lower() for column in self.set or {}})

    def rules(self, written: Written) -> None:
        if self.match == {}:
            written.refuse("match", "no column in it", "at least one column")
        if self.set == {} and "delete_when" not in written:
            written.refuse("", "neither set nor delete_when", "the new values of the rows", at="set")
        if (moved := self._moved()) and "sequence_by" in written:
            names = ", ".join(shown_key(column) for column in moved)
            what = f"set assigns {names}, a column of match; a request that comes late could not be repaired"
            written.refuse("sequence_by", what, "it to be left out")
        elif moved:
            written.note("set assigns a column of match, so requests apply in the order of the source")
        if self.applies_to == "arrived_and_later" and "unmatched" in written:
            written.note("unmatched ends arrived requests only; these stand whether they match or not")
        if self.applies_to == "arrived" and "stand_for" in written:
            written.refuse("stand_for", "an arrived request does not stand", "applies_to: arrived_and_later")

    def made(self, written: Written) -> Mutate:
        if self.applies_to == "arrived" and "unmatched" not in written:
            written.default("unmatched.retry_for", duration_text(self.unmatched.retry_for_ms))
        return self


class Erase(Section, title="erase"):
    """Takes each record as a request to delete all rows that match it, now and later."""

    match: SqlByColumn = Field(examples=["{alias_id: alias_id}"])
    """The rows to delete: table column to SQL over the request; all must be equal."""
    lift_when: Sql | None = Field(default=None, examples=["\"op = 'lift'\""])
    """SQL over the request: where it is true an earlier erasure ends, for a person who comes back. Default: an erasure stays
    active for ever."""
    physical_within_ms: Milliseconds | None = Field(default=None, examples=["30d"])
    """The time after an erasure by which its bytes are gone from files of the table, of other streams' requests and of dead
    letters: the stream rewrites them in time, and deletes the old ones. Default: they stay until other jobs purge and vacuum
    the files."""

    def rules(self, written: Written) -> None:
        if "lift_when" not in written:
            written.note("an erasure stays active for ever, also for a person who comes back; lift_when: would end it")


class Maintain(Section, title="maintain"):
    """Compacts the table's files, deletes old ones, or both; no row is changed."""

    optimize: Annotated[bool, Flag()] = Field(default=False, examples=["true"])
    """Compact small files, whenever rows were added or changed since the last time."""
    zorder_by: ColumnNames = Field(default=(), examples=["[engagement_time]"])
    """Order the rows by these columns; only with `optimize`, and not on a table with `cluster_by`."""
    vacuum_older_than_ms: Milliseconds | None = Field(default=None, examples=["30d"])
    """Delete files that left the table at least this long ago; not less than its `delta.deletedFileRetentionDuration`. Default:
    none are deleted."""

    def rules(self, written: Written) -> None:
        if self.optimize:
            return
        if "zorder_by" in written:
            written.refuse("zorder_by", "nothing is optimized", "optimize: true")
        elif "vacuum_older_than" not in written:
            written.refuse("", "nothing to do in it", "optimize: true, or vacuum_older_than:, or both")


StreamKind = Append | Mutate | Erase | Maintain


class Expectation(Section, title="expect.NAME"):
    """A condition that each record of a stream meets."""

    where: Sql = Field(examples=['"amount > 0"'])
    """SQL over the record that is true for a record as expected. False, NULL, or an evaluation that raises: the record does not
    meet it. Refused: aggregates, sub-queries, and SQL whose result may differ when the batch runs again, such as `rand()` or
    `current_date()`."""
    otherwise: Annotated[Otherwise, Choice(Otherwise)] = Field(default="fail", examples=["dead_letter"])
    """The treatment of a record that does not meet it: `fail` stops the stream before anything of the batch is written, `drop`
    leaves the record out and counts it, `dead_letter` sets it aside."""


class TurnLimit(Section, title="turn_limit"):
    """The maximum length of a turn."""

    batches: WholeNumber = Field(default=10, examples=["10"])
    """The maximum number of micro-batches in a turn, so that a backlog does not block the others for hours. With `coverage:
    publish` it has one."""


class StreamSpec(Section, title="streams.NAME"):
    """A stream: a job that writes to one table in turns. With `maintain` it has no source and no checkpoint."""

    name: str = Field(default="", exclude=True)
    table: Annotated[str, TABLE_NAME] = Field(examples=["engagement"])
    """The table that the stream writes to: a name under `tables`."""
    every_ms: Milliseconds | None = Field(default=None, examples=["1h"])
    """The pace of the stream; `--once` and `--until-idle` ignore it. Default: again as soon as it has work; `1d` with
    `maintain`."""
    after: Annotated[After | None, AfterJobs(_STREAMS)] = Field(default=None, examples=["Ingestion"])
    """The predecessors: each named stream must have completed a turn since this stream's last turn, or be idle. Default: first
    come, first served."""
    strict: Annotated[tuple[str, ...], _STREAMS] = Field(default=(), examples=["Ingestion"])
    """The strict predecessors: the last completed turn on the lock must belong to one of these streams."""
    absent_after_ms: Milliseconds = Field(default=7_200_000, examples=["2h"])
    """The time without a live run after which a stream named in `after` no longer blocks this stream."""
    priority: Annotated[int, PRIORITY] = Field(default=0, examples=["5"])
    """Of the streams whose order rule lets them in, the highest priority goes first; waiting raises it, see `aging`."""
    aging_ms: Milliseconds = Field(default=AGING_MS, examples=["5m"])
    """The waiting time that raises the priority by one, so that no stream waits for ever."""
    source: Annotated[Source | None, FromSection(StreamSource)] = None
    """The source of its records; required except with `maintain`."""
    append: Append | None = None
    """Append rows. One of `append`, `mutate`, `erase`, `maintain`."""
    mutate: Mutate | None = None
    """Change rows. One of `append`, `mutate`, `erase`, `maintain`."""
    erase: Erase | None = None
    """Delete rows for good. One of `append`, `mutate`, `erase`, `maintain`."""
    maintain: Maintain | None = None
    """Maintain the table's files; no row is changed. One of `append`, `mutate`, `erase`, `maintain`."""
    max_rows_per_batch: WholeNumber = Field(default=1_000_000, examples=["1000000"])
    """The maximum number of rows in a micro-batch; a file is read whole."""
    turn_limit: TurnLimit = Field(default_factory=TurnLimit, examples=["{batches: 10}"])
    """The maximum length of a turn."""
    on_bad_record: Annotated[OnBadRecord, Choice(OnBadRecord)] = Field(default="fail", examples=["dead_letter"])
    """The treatment of a record that cannot be read or does not fit."""
    expect: Annotated[Mapping[str, Expectation], Named("expectation")] = Field(default_factory=dict)
    """Conditions that each record that can be read meets, each under a name."""
    on_new_column: Annotated[OnNewColumn, Choice(OnNewColumn)] = Field(default="ignore", examples=["add"])
    """The treatment of a source column that the table does not have; it is reported in any case."""
    checkpoint: Path | None = Field(default=None, examples=["./lake/checkpoints/ingestion"])
    """The streaming checkpoint; may name an existing one. Default: `<storage>/checkpoints/<stream>`."""
    coverage: Annotated[Coverage, Choice(Coverage)] = Field(default="exclusive", examples=["exclusive"])
    """The scope of the turn: `exclusive`, the whole micro-batch; `publish`, only its commits: the changes of a batch are
    computed before, concurrently with the turns of others; invalidated results are recomputed."""
    transform: Transform | None = Field(default=None, exclude=True)
    """User code run on each micro-batch before `kind`; only from Python."""

    @property
    def kind(self) -> StreamKind:
        """The part of the stream that says what it does with its records, or with the table's files."""
        kind = self.append or self.mutate or self.erase or self.maintain
        if kind is None:
            raise ValueError(f"the stream {self.name} has no kind")
        return kind

    @property
    def keeps_letters(self) -> bool:
        """True if some of its records may become dead letters."""
        return self.on_bad_record == "dead_letter" or self._may("dead_letter")

    @property
    def sets_aside(self) -> bool:
        """True if a record may be left out of a batch that is written; False if each bad record stops the stream."""
        return self.keeps_letters or self._may("drop")

    def _may(self, otherwise: Otherwise) -> bool:
        return any(one.otherwise == otherwise for one in self.expect.values())

    @property
    def order(self) -> OrderRule:
        """The streams for which it waits."""
        return self.after or (Strict(self.strict) if self.strict else NoRule())

    @property
    def turn_limit_batches(self) -> int:
        """The number of micro-batches after which the turn is given back and taken again, while a backlog is processed."""
        return self.turn_limit.batches

    def rules(self, written: Written) -> None:
        if "after" in written and "strict" in written:
            written.refuse("", "after and strict together", "one of them", at="strict")
        written.exactly_one("append", "mutate", "erase", "maintain")
        if "source" not in written and "maintain" not in written:
            written.refuse("source", "missing", "where its records come from: files or kafka")
        if self.maintain is not None:
            written.refuse_all(*OF_RECORDS, what="a stream that maintains has no source")
        elif self.source is not None:
            _check_source(self.source, written.below("source"))

    def made(self, written: Written) -> StreamSpec:
        found: dict[str, object] = {"name": written.name}
        if "maintain" in written and self.every_ms is None:
            found["every_ms"] = MAINTAIN_EVERY_MS
            written.default("every", duration_text(MAINTAIN_EVERY_MS))
        return self.model_copy(update=found)


OF_RECORDS: Final = (
    "source",
    "max_rows_per_batch",
    "turn_limit",
    "on_bad_record",
    "expect",
    "on_new_column",
    "checkpoint",
    "coverage",
)
"""The keys of a stream that concern records."""


def _check_source(source: Source, written: Written) -> None:
    written.exactly_one("files", "kafka")
    is_kafka, is_files = "kafka" in written, "files" in written
    if is_kafka and is_files:
        return
    if is_kafka and "servers" not in written:
        written.refuse("servers", "missing", "host:port of the brokers")
    if is_kafka:
        written.refuse_all("format", what="not a key of kafka")
    elif is_files:
        written.refuse_all("servers", "value", what="not a key of files")
    if isinstance(source, KafkaSource) or source.format == "json":
        if "schema" not in written:
            of = "Kafka records" if is_kafka else "JSON files"
            written.refuse("schema", "missing", f"the columns of {of} as Spark DDL")
    taken = _KAFKA_OPTIONS_TAKEN if is_kafka else _FILES_OPTIONS_TAKEN
    for name in source.options or {}:
        if name.lower() in taken:
            written.refuse("options", f"{shown_key(name)} is not for you to set", taken[name.lower()])
