"""The keys of `lakegate.yml`: name, kind, default, meaning, example.

Rules for editors: the reader, the JSON Schema and the reference are generated from these tables, so a key is added only
here. A key of the design that is not built is `is_later`; it is refused by name, never ignored.
"""

from __future__ import annotations

from typing import Final

from lakegate.config.model import (
    AppliesTo,
    ChangeFormat,
    Coverage,
    FileFormat,
    ForeignKeyActions,
    LogStoreWord,
    OnBadRecord,
    OnDdl,
    OnDuplicate,
    OnNewColumn,
    OnSchemaChange,
    SyncPlan,
)
from lakegate.config.places import CoordinatorUrl, Dsn, Location
from lakegate.config.sections import Either, Key, Named, Section
from lakegate.config.value_types import (
    LOCK_PATTERN,
    AfterJobs,
    Choice,
    Count,
    Duration,
    Flag,
    Text,
    TextMap,
    Texts,
    name_kind,
)
from lakegate.syncs.plan.apply_protocol import Mode, OnViolation
from lakegate.syncs.plan.values import BytesAs
from lakegate.turns.protocol.ordering import AGING_MS

DAY_MS: Final = 86_400_000

_SQL = Text(expected="SQL", word="SQL")
_COLUMN_NAMES = Texts(of=Text(expected="a column's name", word="column"))
_SQL_BY_COLUMN = TextMap(of="a column and its SQL", is_sql=True)
_JOBS = Texts(of=name_kind("a stream's name"))

# coordinator
URL = Key(
    name="url",
    kind=CoordinatorUrl(),
    meaning="The store of turns. `sqlite:PATH` serves the processes of one machine, `memory:` one process, "
    "`zookeeper://host:port,…/chroot` and `dynamodb://TABLE?region=…` several machines.",
    default_text="`sqlite:<storage>/turns.db`",
    example='"sqlite:./lake/_lakegate/turns.db"',
)
LOCK_TIMEOUT = Key(
    name="lock_timeout",
    kind=Duration(),
    meaning="How long a micro-batch waits for its turn before the stream gives up, writes nothing and tries later.",
    default=60_000,
    default_text="60s",
    example="60s",
)
COORDINATOR_SECTION = Section(title="coordinator", keys=(URL, LOCK_TIMEOUT), short="url")

# tables
TABLE_PATH = Key(
    name="path",
    kind=Location(),
    meaning="The path or URI of the table. Either this or `name`.",
    example="./lake/engagement",
)
CATALOG_NAME = Key(
    name="name",
    kind=Text(
        pattern=r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*){0,2}",
        expected="table, db.table or catalog.db.table",
    ),
    meaning="The table's name in Spark's catalog. Either this or `path`.",
    example="db.engagement",
)
LOCK = Key(
    name="lock",
    kind=name_kind("a lock's name", LOCK_PATTERN),
    meaning="The lock whose turns the writers of this table take. Tables with the same lock share its turns.",
    default_text="the table's name here",
    example="ENGAGEMENT_HVS_DATA",
)
COLUMNS = Key(
    name="columns",
    kind=Text(expected="Spark DDL", word="DDL"),
    meaning="The table's columns, for its creation. Without it the first append creates the table in its turn.",
    example='"engagement_id STRING NOT NULL, person_id STRING"',
)
PARTITION_BY = Key(
    name="partition_by",
    kind=_COLUMN_NAMES,
    meaning="Partition columns, for its creation; on an existing table compared by `check`, never applied.",
    example="[org_id]",
)
CLUSTER_BY = Key(
    name="cluster_by",
    kind=_COLUMN_NAMES,
    meaning="Clustering columns, for its creation; on an existing table compared by `check`, never applied.",
    example="[org_id, engagement_time]",
)
PROPERTIES = Key(
    name="properties",
    kind=TextMap(of="a table property and its value"),
    meaning="Table properties, for its creation; on an existing table compared by `check`, never applied.",
    example='{delta.enableDeletionVectors: "true"}',
)
TABLE_SECTION = Section(
    title="tables.NAME", keys=(TABLE_PATH, CATALOG_NAME, LOCK, COLUMNS, PARTITION_BY, CLUSTER_BY, PROPERTIES)
)

# streams: source
FILES = Key(
    name="files",
    kind=Location(),
    meaning="A folder with everything below it, a file or a glob. Files are read whole, in the order of their times. Folder names "
    "`name=value` give columns. A path that exists as it is written is not read as a glob. Either this or `kafka`.",
    example='"./in/ingest"',
)
FORMAT: Key[FileFormat] = Key(
    name="format",
    kind=Choice[FileFormat](words=("parquet", "json")),
    meaning="The files' format; `json` is one record per line.",
    default_text="parquet",
    example="parquet",
)
KAFKA = Key(
    name="kafka",
    kind=Texts(of=Text(pattern=r"[A-Za-z0-9._, -]+", expected="a topic's name", word="topic"), separator=","),
    meaning="The topic or topics. Either this or `files`.",
    example="eng.mutations",
)
SERVERS = Key(
    name="servers",
    kind=Text(expected="host:port, with commas between several"),
    meaning="The brokers to begin with; required with `kafka`.",
    example='"h1:9092,h2:9092"',
)
VALUE = Key(
    name="value",
    kind=Choice(words=("json",)),
    meaning="How a Kafka record's value is decoded.",
    default_text="json",
    example="json",
)
SOURCE_SCHEMA = Key(
    name="schema",
    kind=Text(expected="Spark DDL", word="DDL"),
    meaning="The records' columns. Required for JSON and Kafka.",
    default_text="for Parquet, that of the files",
    example='"alias_id STRING, new_person_id STRING, seq BIGINT"',
)
OPTIONS = Key(
    name="options",
    kind=TextMap(of="an option and its value", holds_settings=True),
    meaning="Options of Spark's source, as Spark spells them. Secrets by reference: `${NAME}`.",
    example="{startingOffsets: earliest}",
)
SOURCE_SECTION = Section(title="source", keys=(FILES, FORMAT, KAFKA, SERVERS, VALUE, SOURCE_SCHEMA, OPTIONS))

# streams: append
APPEND_COLUMNS = Key(
    name="columns",
    kind=_SQL_BY_COLUMN,
    meaning="Columns to add: table column to SQL over the record.",
    example="{person_id: alias_id}",
)
APPEND_KEY = Key(
    name="key",
    kind=_COLUMN_NAMES,
    meaning="The columns that identify a record; required with `keep_first`.",
    example="[engagement_id]",
)
ON_DUPLICATE: Key[OnDuplicate] = Key(
    name="on_duplicate",
    kind=Choice[OnDuplicate](words=("allow", "keep_first")),
    meaning="`keep_first`: a row whose key is already in the table, or earlier in the batch, is not written again. "
    "With `allow` redelivered offsets and files are still written once, but repeated records are not detected.",
    default="allow",
    example="keep_first",
)
APPEND_SECTION = Section(title="append", keys=(APPEND_COLUMNS, APPEND_KEY, ON_DUPLICATE))

# streams: mutate
MATCH = Key(
    name="match",
    kind=_SQL_BY_COLUMN,
    meaning="The rows to change: table column to SQL over the request; all must be equal.",
    example="{alias_id: alias_id}",
    is_required=True,
)
SET = Key(
    name="set",
    kind=_SQL_BY_COLUMN,
    meaning="The new values: table column to SQL over the request. Required unless `delete_when` is given.",
    example="{person_id: new_person_id}",
)
DELETE_WHEN = Key(
    name="delete_when",
    kind=_SQL,
    meaning="SQL over the request: where it is true the matching rows are deleted, not changed.",
    example="\"op = 'delete'\"",
)
SEQUENCE_BY = Key(
    name="sequence_by",
    kind=_SQL,
    meaning="SQL over the request: its position in the order of the requests for one key; a late request with a lower one is "
    "not applied. Refused when `set` assigns a column of `match`.",
    default_text="the order of the source",
    example="seq",
)
APPLIES_TO: Key[AppliesTo] = Key(
    name="applies_to",
    kind=Choice[AppliesTo](words=("arrived", "arrived_and_later")),
    meaning="`arrived`: kept until it has matched once, then settled. `arrived_and_later`: "
    "stays active, also for later rows.",
    example="arrived_and_later",
    is_required=True,
)
STAND_FOR = Key(
    name="stand_for",
    kind=Duration(),
    meaning="How long an `arrived_and_later` request stays active.",
    default_text="for ever",
    example="365d",
)
RETRY_FOR = Key(
    name="retry_for",
    kind=Duration(),
    meaning="How long after it was first seen an `arrived` request that never matched is kept.",
    default=30 * DAY_MS,
    example="30d",
)
THEN = Key(
    name="then",
    kind=Choice(words=("dead_letter",)),
    meaning="The state of the request after that time.",
    default="dead_letter",
    example="dead_letter",
)
UNMATCHED_SECTION = Section(title="unmatched", keys=(RETRY_FOR, THEN))
UNMATCHED = Key(
    name="unmatched",
    kind=UNMATCHED_SECTION,
    meaning="The treatment of `arrived` requests that never match.",
    default_text="{retry_for: 30d, then: dead_letter}",
    example="{retry_for: 30d, then: dead_letter}",
)
MUTATE_SECTION = Section(title="mutate", keys=(MATCH, SET, DELETE_WHEN, SEQUENCE_BY, APPLIES_TO, STAND_FOR, UNMATCHED))

# streams: erase
LIFT_WHEN = Key(
    name="lift_when",
    kind=_SQL,
    meaning="SQL over the request: where it is true an earlier erasure ends, for a person who comes back.",
    default_text="an erasure stays active for ever",
    example="\"op = 'lift'\"",
)
PHYSICAL_WITHIN = Key(
    name="physical_within",
    kind=Duration(),
    meaning="The time after an erasure by which its bytes are gone from files of the table, of other streams' requests and of dead "
    "letters: the stream rewrites them in time, and deletes the old ones.",
    default_text="they stay until other jobs purge and vacuum the files",
    example="30d",
)
ERASE_SECTION = Section(title="erase", keys=(MATCH, LIFT_WHEN, PHYSICAL_WITHIN))

# streams: maintain
OPTIMIZE = Key(
    name="optimize",
    kind=Flag(),
    meaning="Compact small files, whenever rows were added or changed since the last time.",
    default=False,
    default_text="false",
    example="true",
)
ZORDER_BY = Key(
    name="zorder_by",
    kind=_COLUMN_NAMES,
    meaning="Order the rows by these columns; only with `optimize`, and not on a table with `cluster_by`.",
    example="[engagement_time]",
)
VACUUM_OLDER_THAN = Key(
    name="vacuum_older_than",
    kind=Duration(),
    meaning="Delete files that left the table at least this long ago; not less than its `delta.deletedFileRetentionDuration`.",
    default_text="none are deleted",
    example="30d",
)
MAINTAIN_SECTION = Section(title="maintain", keys=(OPTIMIZE, ZORDER_BY, VACUUM_OLDER_THAN))

# streams
TABLE = Key(
    name="table",
    kind=name_kind("a name under tables"),
    meaning="The table that the stream writes to: a name under `tables`.",
    example="engagement",
    is_required=True,
)
EVERY = Key(
    name="every",
    kind=Duration(),
    meaning="The pace of the stream; `--once` and `--until-idle` ignore it.",
    default_text="again as soon as it has work; `1d` with `maintain`",
    example="1h",
)
AFTER = Key(
    name="after",
    kind=AfterJobs(names=_JOBS),
    meaning="The predecessors: each named stream must have completed a turn since this stream's last turn, or be idle.",
    default_text="first come, first served",
    example="Ingestion",
)
STRICT = Key(
    name="strict",
    kind=_JOBS,
    meaning="The strict predecessors: the last completed turn on the lock must belong to one of these streams.",
    example="Ingestion",
)
ABSENT_AFTER = Key(
    name="absent_after",
    kind=Duration(),
    meaning="The time without a live run after which a stream named in `after` no longer blocks this stream.",
    default=7_200_000,
    example="2h",
)
PRIORITY = Key(
    name="priority",
    kind=Count(),
    meaning="Of the streams whose order rule lets them in, the highest priority goes first; waiting raises it, see `aging`.",
    default_text="0",
    example="5",
)
AGING = Key(
    name="aging",
    kind=Duration(),
    meaning="The waiting time that raises the priority by one, so that no stream waits for ever.",
    default=AGING_MS,
    example="5m",
)
SOURCE = Key(
    name="source",
    kind=SOURCE_SECTION,
    meaning="The source of its records; required except with `maintain`.",
)
APPEND = Key(name="append", kind=APPEND_SECTION, meaning="Append rows. One of `append`, `mutate`, `erase`, `maintain`.")
MUTATE = Key(name="mutate", kind=MUTATE_SECTION, meaning="Change rows. One of `append`, `mutate`, `erase`, `maintain`.")
ERASE = Key(
    name="erase", kind=ERASE_SECTION, meaning="Delete rows for good. One of `append`, `mutate`, `erase`, `maintain`."
)
MAINTAIN = Key(
    name="maintain",
    kind=MAINTAIN_SECTION,
    meaning="Maintain the table's files; no row is changed. One of `append`, `mutate`, `erase`, `maintain`.",
)
MAINTAIN_EVERY_MS: Final = DAY_MS
"""Without a pace a maintain stream would compact after every commit of the other streams."""
MAX_ROWS_PER_BATCH = Key(
    name="max_rows_per_batch",
    kind=Count(),
    meaning="The maximum number of rows in a micro-batch; a file is read whole.",
    default=1_000_000,
    example="1000000",
)
BATCHES = Key(
    name="batches",
    kind=Count(),
    meaning="The maximum number of micro-batches in a turn, so that a backlog does not block the others for hours. "
    "With `coverage: publish` it has one.",
    default=10,
    example="10",
)
TURN_LIMIT_SECTION = Section(title="turn_limit", keys=(BATCHES,))
TURN_LIMIT = Key(
    name="turn_limit",
    kind=TURN_LIMIT_SECTION,
    meaning="The maximum length of a turn.",
    default_text="{batches: 10}",
    example="{batches: 10}",
)
ON_BAD_RECORD: Key[OnBadRecord] = Key(
    name="on_bad_record",
    kind=Choice[OnBadRecord](words=("fail", "dead_letter")),
    meaning="The treatment of a record that cannot be read or does not fit.",
    default="fail",
    example="dead_letter",
)
ON_NEW_COLUMN: Key[OnNewColumn] = Key(
    name="on_new_column",
    kind=Choice[OnNewColumn](words=("ignore", "add")),
    meaning="The treatment of a source column that the table does not have; it is reported in any case.",
    default="ignore",
    example="add",
)
CHECKPOINT = Key(
    name="checkpoint",
    kind=Location(),
    meaning="The streaming checkpoint; may name an existing one.",
    default_text="`<storage>/checkpoints/<stream>`",
    example="./lake/checkpoints/ingestion",
)
COVERAGE: Key[Coverage] = Key(
    name="coverage",
    kind=Choice[Coverage](words=("exclusive", "publish")),
    meaning="The scope of the turn: `exclusive`, the whole micro-batch; `publish`, only its commits: the "
    "changes of a batch are computed before, concurrently with the turns of others; invalidated results are recomputed.",
    default="exclusive",
    example="exclusive",
)
STREAM_SECTION = Section(
    title="streams.NAME",
    keys=(
        TABLE,
        EVERY,
        AFTER,
        STRICT,
        ABSENT_AFTER,
        PRIORITY,
        AGING,
        SOURCE,
        APPEND,
        MUTATE,
        ERASE,
        MAINTAIN,
        MAX_ROWS_PER_BATCH,
        TURN_LIMIT,
        ON_BAD_RECORD,
        ON_NEW_COLUMN,
        CHECKPOINT,
        COVERAGE,
    ),
)

# sync: from
SYNC_FILES = Key(
    name="files",
    kind=Location(schemes=()),
    meaning="Files of changes: a folder, a file or a glob. They are merged by the changes' positions in the source, whatever "
    "their names. Either this or `kafka`.",
    example='"changes/*.jsonl"',
)
SYNC_KAFKA = Key(
    name="kafka",
    kind=KAFKA.kind,
    meaning="The topic or topics of changes, as Debezium writes them. Either this or `files`.",
    example="crm.public.people",
)
SYNC_TRANSACTIONS = Key(
    name="transactions",
    kind=Text(expected="a topic, or files"),
    meaning="Debezium's transaction metadata: the topic, with `files` a folder, a file or a glob. With it transactions are applied "
    "whole; without it each change is a transaction of its own.",
    example="crm.transaction",
)
SYNC_OPTIONS = Key(
    name="options",
    kind=TextMap(of="an option of librdkafka and its value", holds_settings=True),
    meaning="More options of the Kafka client, with librdkafka's names; only with `kafka`.",
    example="{security.protocol: SASL_SSL}",
)
SYNC_FORMAT: Key[ChangeFormat] = Key(
    name="format",
    kind=Choice[ChangeFormat](words=("json", "parquet", "debezium")),
    meaning="How changes are written: `json` is one change per line, `debezium` one of Debezium's JSON envelopes per line or "
    "message.",
    default_text="by a file's ending: `.parquet`, or `json`; with `kafka`: `debezium`",
    example="parquet",
)
SYNC_TRANSACTION = Key(
    name="transaction",
    kind=Text(expected="a column's name", word="column"),
    meaning="The column, or the key of a line, that names the source's transaction; not with `debezium`.",
    default="tx",
    example="commit_id",
)
SYNC_BYTES: Key[BytesAs] = Key(
    name="bytes",
    kind=Choice[BytesAs](words=("base64", "base64-url-safe", "hex")),
    meaning="How Debezium writes bytes in envelopes without a schema: the connector's `binary.handling.mode`, whose default "
    "is `base64`. Without this key a text for a binary column is refused, because its encoding is unknown.",
    default_text="not said",
    example="base64",
)
SYNC_PLACEHOLDER = Key(
    name="placeholder",
    kind=Text(expected="a text"),
    meaning="The text that Debezium sends instead of a large value that did not change: the connector's "
    "`unavailable.value.placeholder`; with `hex:` in front, its bytes.",
    default="__debezium_unavailable_value",
    example="__not_sent",
)
SYNC_FROM_SECTION = Section(
    title="from",
    keys=(
        SYNC_FILES, SYNC_KAFKA, SERVERS, SYNC_FORMAT, SYNC_TRANSACTION, SYNC_TRANSACTIONS, SYNC_BYTES, SYNC_PLACEHOLDER,
        SYNC_OPTIONS,
    ),
)  # fmt: skip

# sync
START_VERSION = Key(
    name="version",
    kind=Count(),
    meaning="The first version of the table whose changes are applied.",
    example="17",
    is_required=True,
)
_START = Section(title="start", keys=(START_VERSION,))
SYNC_FROM = Key(
    name="from",
    kind=Either(value=name_kind("a name under tables"), section=SYNC_FROM_SECTION),
    meaning="Where changes come from: `{files: …}`, `{kafka: …}`, or a table of this file by its name: its change data feed.",
    example='{files: "changes/*.jsonl"}',
    is_required=True,
)
SYNC_START = Key(
    name="start",
    kind=Either(value=Choice(words=("snapshot", "latest")), section=_START),
    meaning="For a table as the source: `snapshot`, all its rows, then its changes; `latest`, changes from now on; "
    "`{version: n}`, changes from that version on.",
    default_text="snapshot",
    example="snapshot",
)
SYNC_TO = Key(
    name="to",
    kind=Dsn(),
    meaning="The target database: `postgresql://…`, `mysql://…` or `sqlite:PATH`. Passwords by reference: `${NAME}`.",
    example='"${CRM_DSN}"',
    is_required=True,
)
SYNC_TABLE = Key(
    name="table",
    kind=Text(expected="a table's name"),
    meaning="The target table of changes that name no table, and of a table as the source.",
    default_text="with a table as the source: its name",
    example="engagement",
)
SYNC_TABLES = Key(
    name="tables",
    kind=TextMap(of="a source table and its target table"),
    meaning="Source table to target table. A table that is not named here keeps its name.",
    example="{people: crm_people}",
)
SYNC_KEY = Key(
    name="key",
    kind=_COLUMN_NAMES,
    meaning="The columns that identify rows in every table of this sync, instead of its primary key. They should have "
    "an index in the target, and no NULL.",
    default_text="the target's primary key, else a unique key without NULLs",
    example="[engagement_id]",
)
SYNC_PLAN: Key[SyncPlan] = Key(
    name="plan",
    kind=Choice[SyncPlan](words=("staged", "conflict_queue")),
    meaning="How to find the rows that must share a transaction: `staged`, by a query to the target; `conflict_queue`, "
    "by the values in the changes; for comparison.",
    default="staged",
    example="staged",
)
SYNC_MODE: Key[Mode] = Key(
    name="mode",
    kind=Choice[Mode](words=("atomic", "parallel")),
    meaning="`atomic`: one transaction for a batch. `parallel`: several concurrently; a transaction of the source may be "
    "seen in part until its batch is complete. On SQLite the same as `atomic`.",
    default="atomic",
    example="atomic",
)
SYNC_PARALLELISM = Key(
    name="parallelism",
    kind=Count(),
    meaning="How many transactions, each on a connection of its own, in mode `parallel`.",
    default=8,
    default_text="8",
    example="8",
)
SYNC_ON_VIOLATION: Key[OnViolation] = Key(
    name="on_violation",
    kind=Choice[OnViolation](words=("stop", "quarantine")),
    meaning="The treatment of a row that breaks a constraint, and of a record that cannot be read: `stop`, nothing of its batch "
    "is applied; `quarantine`, it is quarantined with its reason, and the rest is applied.",
    default="stop",
    example="quarantine",
)
SYNC_ON_SCHEMA_CHANGE: Key[OnSchemaChange] = Key(
    name="on_schema_change",
    kind=Choice[OnSchemaChange](words=("stop", "ignore", "add_columns")),
    meaning="What happens when a change has a column that the target lacks: `stop`; `ignore`, its values are left out; "
    "`add_columns`, it is added to the target once it has a value, as a type that fits the values.",
    default="stop",
    example="stop",
)
SYNC_DDL: Key[OnDdl] = Key(
    name="ddl",
    kind=Choice[OnDdl](words=("stop", "apply")),
    meaning="What happens when the source sends a statement that changes a definition: `stop`; or `apply`, it is executed in "
    "the target if it is of the stated list and for a table of this sync.",
    default="stop",
    example="apply",
)
SYNC_FOREIGN_KEY_ACTIONS: Key[ForeignKeyActions] = Key(
    name="foreign_key_actions",
    kind=Choice[ForeignKeyActions](words=("auto", "in_log")),
    meaning="Whether the changes show what ON DELETE and ON UPDATE did at the source. `auto`: those of PostgreSQL, SQL Server, "
    "Oracle, Db2 and of a Delta table do; those of MySQL, MariaDB and change files do not, so the target's own actions are "
    "taken for the source's. `in_log`: they do, or the source has no such actions; nothing is added to the changes.",
    default="auto",
    example="in_log",
)
SYNC_PATIENCE = Key(
    name="patience",
    kind=Duration(),
    meaning="How long `sync run` waits for a target or a source that has become unavailable, as in a restart or a fail-over, "
    "or that cannot be written now; then it ends with status 6.",
    default=180_000,
    default_text="3m",
    example="10m",
)
SYNC_SOURCE_DSN = Key(
    name="source_dsn",
    kind=Dsn(),
    meaning="The source's own database, which `sync verify` and `sync repair` read instead of the changes. A login that may "
    "only read is enough.",
    default_text="the comparison uses the changes in their files or topics",
    example='"${SOURCE_DSN}"',
)
SYNC_SECTION = Section(
    title="sync.NAME",
    keys=(
        SYNC_FROM,
        SYNC_START,
        SYNC_TO,
        SYNC_TABLE,
        SYNC_TABLES,
        SYNC_KEY,
        SYNC_PLAN,
        SYNC_MODE,
        SYNC_PARALLELISM,
        SYNC_ON_VIOLATION,
        SYNC_ON_SCHEMA_CHANGE,
        SYNC_DDL,
        SYNC_FOREIGN_KEY_ACTIONS,
        SYNC_PATIENCE,
        SYNC_SOURCE_DSN,
    ),
)

# the file
NAME = Key(
    name="name",
    kind=name_kind("the pipeline's name"),
    meaning="The pipeline's name.",
    example="engagement",
    is_required=True,
)
STORAGE = Key(
    name="storage",
    kind=Location(schemes=()),
    meaning="Where Lakegate keeps checkpoints, ledger, request tables and dead letters.",
    default_text="./_lakegate",
    example="./lake/_lakegate",
)
KEEP_LEDGER_FOR = Key(
    name="keep_ledger_for",
    kind=Duration(),
    meaning="How long the ledger keeps turns. A run deletes files of older ones when it starts; the last of each job stays.",
    default=400 * 86_400_000,
    example="90d",
)
COORDINATOR = Key(
    name="coordinator",
    kind=COORDINATOR_SECTION,
    meaning="The store of turns; a plain text is its `url`.",
    example='{url: "sqlite:./lake/_lakegate/turns.db", lock_timeout: 60s}',
)
SPARK = Key(
    name="spark",
    kind=TextMap(of="a Spark setting and its value", holds_settings=True),
    meaning="Settings of the Spark sessions that Lakegate makes.",
    example='{spark.sql.shuffle.partitions: "4"}',
)
LOG_STORE: Key[LogStoreWord] = Key(
    name="log_store",
    kind=Choice[LogStoreWord](words=("auto", "conditional", "dynamodb", "single_driver")),
    meaning="How commits reach the log of tables on S3: `conditional` puts, `dynamodb`, or Delta's own way for a "
    "`single_driver`. `auto`: `conditional`. On local disks it is always a hard link, elsewhere Delta's own way.",
    default="auto",
    example="auto",
)
TABLES = Key(name="tables", kind=Named(of=TABLE_SECTION, thing="table"), meaning="The tables, each under a name.")
STREAMS = Key(
    name="streams",
    kind=Named(of=STREAM_SECTION, thing="stream"),
    meaning="The streams, each under its name, which is also the name of its job.",
)
SYNC = Key(
    name="sync",
    kind=Named(of=SYNC_SECTION, thing="sync"),
    meaning="Databases that are kept in sync, each under a name. A file has `streams`, `sync`, or both.",
)
FILE_SECTION = Section(
    title="the file", keys=(NAME, STORAGE, KEEP_LEDGER_FOR, COORDINATOR, SPARK, LOG_STORE, TABLES, STREAMS, SYNC)
)
