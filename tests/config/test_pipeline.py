"""`lakegate.yml` becomes data with every default, or all its faults are reported at once."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import pytest

from lakegate.config import (
    Append,
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Erase,
    FilesSource,
    KafkaSource,
    Maintain,
    Mutate,
    Pipeline,
    PostgresSource,
    SyncSpec,
    TableSource,
    Unmatched,
    parse,
)
from lakegate.config.reading import Override
from lakegate.errors import Fault, InvalidRequest
from lakegate.telemetry.hook_messages import HOOK_EVENTS
from lakegate.turns.protocol.ordering import After, NoRule, Strict

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

ENGAGEMENT = """\
name: engagement
storage: ./lake/_lakegate
coordinator: {url: "sqlite:./lake/_lakegate/turns.db", lock_timeout: 90s}
spark: {spark.sql.shuffle.partitions: 4}
log_store: auto
tables:
  engagement:
    path: ./lake/engagement
    lock: ENGAGEMENT_HVS_DATA
    columns: "engagement_id STRING NOT NULL, org_id STRING"
    partition_by: [org_id]
    properties: {delta.enableDeletionVectors: "true", delta.enableChangeDataFeed: true}
streams:
  Ingestion:
    table: engagement
    every: 1h
    source: {files: "./in/ingest", format: parquet}
    max_rows_per_batch: 5_000
    turn_limit: {batches: 3}
    append: {columns: {person_id: alias_id}, key: [engagement_id], on_duplicate: keep_first}
  Mutation:
    table: engagement
    every: 1h
    after: Ingestion
    source: {kafka: eng.mutations, servers: "h:9092", value: json, schema: "seq BIGINT", options: {startingOffsets: earliest}}
    mutate:
      match: {alias_id: alias_id}
      set: {person_id: new_person_id}
      delete_when: "op = 'delete'"
      sequence_by: seq
      applies_to: arrived_and_later
      stand_for: 365d
  TTL:
    table: engagement
    every: 1d
    after: Mutation
    source: {files: file:/in/delete/*.json, format: json, schema: person_id STRING}
    on_bad_record: dead_letter
    on_new_column: add
    checkpoint: ./old/checkpoint
    erase: {match: {person_id: person_id}, lift_when: "op = 'lift'"}
"""

SMALL = """\
name: p
tables:
  t: {path: ./t}
streams:
  One:
    table: t
    source: {files: ./in}
    append:
"""


def read(text: str, environ: Mapping[str, str] | None = None) -> Pipeline:
    return parse(text, origin="lakegate.yml", base_dir="/base", environ=environ or {})


def faults_of(text: str, environ: Mapping[str, str] | None = None) -> tuple[Fault, ...]:
    with pytest.raises(InvalidRequest) as raised:
        read(text, environ)
    assert raised.value.exit_code == 2
    assert raised.value.faults
    return raised.value.faults


def only_fault(text: str, environ: Mapping[str, str] | None = None) -> str:
    faults = faults_of(text, environ)
    assert len(faults) == 1, [str(fault) for fault in faults]
    return str(faults[0])


def with_stream(lines: str, *, kind: str = "    append:", source: str = "{files: ./in}") -> str:
    """A pipeline with one stream; `lines` begin at line 7."""
    return (
        f"name: p\ntables:\n  t: {{path: ./t}}\nstreams:\n  One:\n    table: t\n{lines}\n    source: {source}\n{kind}\n"
    )


def test_whole_example_becomes_data() -> None:
    """Every key of a full file is read, durations in milliseconds, paths absolute."""
    pipeline = read(ENGAGEMENT)
    assert (pipeline.name, pipeline.storage) == ("engagement", "/base/lake/_lakegate")
    assert pipeline.coordinator.url == "sqlite:/base/lake/_lakegate/turns.db"
    assert pipeline.coordinator.lock_timeout_ms == 90_000
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "4"}
    table = pipeline.tables["engagement"]
    assert (table.path, table.catalog_name, table.lock) == ("/base/lake/engagement", None, "ENGAGEMENT_HVS_DATA")
    assert table.columns == "engagement_id STRING NOT NULL, org_id STRING"
    assert (table.partition_by, table.cluster_by) == (("org_id",), ())
    assert table.properties == {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}

    ingestion, mutation, ttl = pipeline.streams
    assert (ingestion.name, ingestion.every_ms, ingestion.order) == ("Ingestion", HOUR_MS, NoRule())
    assert ingestion.source == FilesSource(path="/base/in/ingest", format="parquet", schema=None)
    assert ingestion.kind == Append(
        columns={"person_id": "alias_id"}, key=("engagement_id",), on_duplicate="keep_first"
    )
    assert (ingestion.max_rows_per_batch, ingestion.turn_limit_batches) == (5000, 3)

    assert mutation.order == After(("Ingestion",))
    assert mutation.source == KafkaSource(
        topics=("eng.mutations",),
        servers="h:9092",
        value="json",
        schema="seq BIGINT",
        options={"startingOffsets": "earliest"},
    )
    assert mutation.kind == Mutate(
        match={"alias_id": "alias_id"},
        set={"person_id": "new_person_id"},
        delete_when="op = 'delete'",
        sequence_by="seq",
        applies_to="arrived_and_later",
        stand_for_ms=365 * DAY_MS,
        unmatched=Unmatched(retry_for_ms=30 * DAY_MS, then="dead_letter"),
    )
    assert ttl.source == FilesSource(path="/in/delete/*.json", format="json", schema="person_id STRING")
    assert ttl.kind == Erase(match={"person_id": "person_id"}, lift_when="op = 'lift'")
    assert (ttl.on_bad_record, ttl.on_new_column, ttl.checkpoint) == ("dead_letter", "add", "/base/old/checkpoint")
    assert pipeline.notes == ()
    assert pipeline.lock_of(ttl) == "ENGAGEMENT_HVS_DATA"
    assert pipeline.streams_of_lock("ENGAGEMENT_HVS_DATA") == pipeline.streams
    assert pipeline.stream("TTL") is ttl


def test_defaults_are_those_of_the_design() -> None:
    """A file with the least that is required has every default filled in."""
    pipeline = read(SMALL)
    assert pipeline.storage == "/base/_lakegate"
    assert pipeline.coordinator.url == "sqlite:/base/_lakegate/turns.db"
    assert pipeline.coordinator.lock_timeout_ms == 60_000
    assert pipeline.tables["t"].lock == "t"
    (stream,) = pipeline.streams
    assert (stream.every_ms, stream.order, stream.absent_after_ms) == (None, NoRule(), 2 * HOUR_MS)
    assert (stream.max_rows_per_batch, stream.turn_limit_batches) == (1_000_000, 10)
    assert (stream.on_bad_record, stream.on_new_column) == ("fail", "ignore")
    assert stream.checkpoint == "/base/_lakegate/checkpoints/One"
    assert stream.kind == Append(columns={}, key=(), on_duplicate="allow")
    assert stream.source == FilesSource(path="/base/in", format="parquet", schema=None)


def test_all_faults_are_reported_at_once_with_their_lines() -> None:
    """Faults of different kinds, in different sections, come together, ordered by line."""
    text = """\
name: my pipeline
storge: x
storage: s3a://bucket/x
coordinator: {url: "dynamodb://turns", lock_timeout: 60}
log_store: unsafe
log_store: auto
tables:
  a: {path: ./x, name: y}
  b: {path: "${NOPE}"}
  c: [1]
streams:
  One:
    table: d
    evry: 1h
    after: [Two]
    source: {files: a, kafka: b}
    append: {on_duplicate: keep_frist, columns: {x: a, X: b}}
  Two:
    table: a
    after: Three
    strict: One
    coverage: publsh
    priority: high
    source: {kafka: t}
    mutate: {match: {p: q}, set: {P: r}, sequence_by: s}
    erase: {match: {p: q}, physical_within: 3}
  Three:
    table: a
    after: Two
    source: {files: ./d, format: json}
    max_rows_per_batch: "10"
    maintain: {zorder_by: z}
sync: {x: {from: nowhere, to: "oracle://u:secret@h", mode: both}}
"""
    expected = [
        (1, "cannot be used here"),
        (2, 'did you mean "storage"?'),
        (3, "s3a: paths are not in this version"),
        (4, "coordinator.url: no region"),
        (4, "coordinator.lock_timeout: '60' is not a duration"),
        (5, "log_store: 'unsafe' is not known"),
        (6, "'log_store' is there twice, first in line 5"),
        (8, "tables.a: path and name together"),
        (9, "the environment variable NOPE is not set"),
        (10, "tables.c: a list"),
        (13, "there is no table 'd'"),
        (14, 'did you mean "every"?'),
        (15, "streams.One.after: a list"),
        (16, "files and kafka together"),
        (17, "'X' and 'x' are one column for Spark"),
        (17, 'did you mean "keep_first"?'),
        (18, "mutate and erase together"),
        (21, "after and strict together"),
        (22, 'did you mean "publish"?'),
        (23, "streams.Two.priority: 'high' is not a count"),
        (24, "streams.Two.source.servers: missing"),
        (24, "streams.Two.source.schema: missing"),
        (25, "streams.Two.mutate.applies_to: missing; expected arrived or arrived_and_later"),
        (25, "set assigns 'p', a column of match"),
        (26, "streams.Two.erase.physical_within: '3' is not a duration"),
        (29, "Three waits for Two waits for Three"),
        (30, "streams.Three.source: a stream that maintains has no source"),
        (31, "streams.Three.max_rows_per_batch: '10' is not a count"),
        (31, "streams.Three.max_rows_per_batch: a stream that maintains has no source"),
        (32, "streams.Three.maintain.zorder_by: nothing is optimized"),
        (33, "sync.x.to: not the address of a database that this version knows"),
        (33, "sync.x.mode: 'both' is not known"),
        (33, "sync.x.from: there is no table 'nowhere'"),
    ]
    faults = faults_of(text)
    assert [fault.where for fault in faults] == [f"lakegate.yml:{line}" for line, _ in expected]
    for fault, (_, what) in zip(faults, expected, strict=True):
        assert what in str(fault)


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("1h", HOUR_MS), ("1d", DAY_MS), ("'2h'", 2 * HOUR_MS)],
)
def test_durations_become_milliseconds(text: str, value_ms: int) -> None:
    """The five units, quoted or not."""
    assert read(with_stream(f"    every: {text}")).streams[0].every_ms == value_ms


@pytest.mark.parametrize(
    "text", ["60", "0s", "-1s", "1.5h", "1 h", "1h30m", "1w", "36501d", "99999999999999999999d", "h", "[1h]"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Numbers without a unit, zero, other units, and more than a century."""
    assert only_fault(with_stream(f"    every: {text}")).startswith("lakegate.yml:7: streams.One.every: ")


def test_blank_value_is_refused_where_one_is_needed() -> None:
    """A key without a value is not the same as no key."""
    assert "streams.One.every: no value" in only_fault(with_stream("    every:"))


@pytest.mark.parametrize("text", ["true", "5", "1e3", "[a]", "{a: b}", "''", "' '", "~"])
def test_texts_are_texts(text: str) -> None:
    """Numbers, truth values, lists, mappings and nothing are not taken for a text."""
    faults = faults_of(with_stream("").replace("name: p\n", f"name: {text}\n"))
    assert [fault.where for fault in faults] == ["lakegate.yml:1"]


@pytest.mark.parametrize("text", ["'10'", "0", "-1", "1.5", "true", "10000000000000", "ten", "0x10"])
def test_counts_are_whole_numbers_from_one(text: str) -> None:
    """Everything else is refused, quoted digits too."""
    assert "max_rows_per_batch" in only_fault(with_stream(f"    max_rows_per_batch: {text}"))


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("./a/../b", "/base/b"),
        ("b/", "/base/b"),
        ("/abs/./b", "/abs/b"),
        ("//abs/b", "/abs/b"),
        ("file:/abs/b", "/abs/b"),
        ("file:///abs/b", "/abs/b"),
        ("file:b", "/base/b"),
        ("./a:b", "/base/a:b"),
        ("hdfs://nn:8020/lake/", "hdfs://nn:8020/lake"),
        ("in/2026-*/*.parquet", "/base/in/2026-*/*.parquet"),
    ],
)
def test_paths_are_relative_to_the_file(written: str, resolved: str) -> None:
    """One place has one spelling, whatever way it was written."""
    source = read(with_stream("", source=f'{{files: "{written}"}}')).streams[0].source
    assert isinstance(source, FilesSource)
    assert source.path == resolved


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("s3://bucket/x", "another name for s3a:, and a table has one"),
        ("s3a:/x", "not a bucket and a path"),
        ("abfss://c@a/x", "not in this version"),
        ("~/x", "${HOME}"),
        ("file://host/x", "a file: URI with a host"),
        ("nothing:/x", "a scheme that is not known"),
        ("file:", "not a path"),
    ],
)
def test_other_places_are_refused(written: str, message: str) -> None:
    """Other object stores are of a later version; what is mistyped is no local folder by accident."""
    assert message in only_fault(with_stream("", source=f'{{files: "{written}"}}'))


def test_storage_is_local() -> None:
    """Ledger and lock files need a local file system."""
    assert "hdfs: paths are not in this version here" in only_fault(SMALL + "storage: hdfs://nn/x\n")


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("sqlite:./t.db", "sqlite:/base/t.db"),
        ("sqlite:///abs/t.db", "sqlite:/abs/t.db"),
        ("memory:", "memory:"),
        ("zookeeper://h:1,g/x?session_timeout=30s", "zookeeper://h:1,g/x?session_timeout=30s"),
        ("dynamodb://turns?region=eu-west-1", "dynamodb://turns?region=eu-west-1"),
    ],
)
def test_coordinator_urls(url: str, resolved: str) -> None:
    """sqlite, memory, ZooKeeper and DynamoDB, in a section or as a bare text."""
    assert read(SMALL + f"coordinator: {{url: '{url}'}}\n").coordinator.url == resolved
    assert read(SMALL + f"coordinator: '{url}'\n").coordinator.url == resolved


@pytest.mark.parametrize(
    "url",
    ["turns.db", "postgres://h/db", "sqlite:", "memory:x", "sqlite:s3a://b/t.db", "zookeeper:h", "zookeeper://h?x=1"],
)
def test_what_is_no_coordinator_is_refused(url: str) -> None:
    """Nothing falls back to the default."""
    assert only_fault(SMALL + f"coordinator: '{url}'\n").startswith("lakegate.yml:9: coordinator.url: ")


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("", NoRule()),
        ("    after: A", After(("A",), "all")),
        ("    after: {any: [A, B]}", After(("A", "B"), "any")),
        ("    after: {all: [A, B]}", After(("A", "B"), "all")),
        ("    after: {any: A}", After(("A",), "any")),
        ("    strict: A", Strict(("A",))),
        ("    strict: [A, B]", Strict(("A", "B"))),
    ],
)
def test_order_rules(lines: str, rule: object) -> None:
    """Each form of the order arrives as its rule."""
    others = "".join(f"  {name}: {{table: t, source: {{files: ./{name}}}, append: {{}}}}\n" for name in "AB")
    assert read(with_stream(lines) + others).stream("One").order == rule


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("    after: Nobody", "no job of this lock has that name"),
        ("    after: One", "One waits for itself"),
        ("    strict: Nobody", "no job of this lock has that name"),
        ("    after: {some: [One]}", "not an order"),
        ("    after: {any: []}", "an empty list"),
        ("    after: {any: [One, One]}", "there twice"),
    ],
)
def test_orders_that_cannot_be(lines: str, message: str) -> None:
    """Unknown names, self-reference and other forms are reported with the line of the order."""
    faults = faults_of(with_stream(lines))
    assert faults[0].where == "lakegate.yml:7"
    assert message in str(faults[0])


def test_order_is_of_one_lock() -> None:
    """A stream of another lock takes no turns here, so waiting for it would be for ever."""
    text = with_stream("    after: Other").replace("  t: {path: ./t}", "  t: {path: ./t}\n  u: {path: ./u}")
    text += "  Other: {table: u, source: {files: ./o}, append: {}}\n"
    assert "no job of this lock has that name" in only_fault(text)
    assert read(text.replace("./u}", "./u, lock: t}")).stream("One").order == After(("Other",))


def test_stream_with_a_wrong_table_is_not_also_unknown() -> None:
    """One mistake gives one fault, not another for each stream that follows."""
    text = with_stream("    after: Other") + "  Other: {table: nope, source: {files: ./o}, append: {}}\n"
    assert "there is no table 'nope'" in only_fault(text)


def test_many_streams_with_many_orders_are_read_at_once() -> None:
    """Neither a long chain in which each waits for all before it, nor a crowd in which all wait for all, takes for ever."""
    names = [f"S{i}" for i in range(40)]
    head = "name: p\ntables: {t: {path: ./t}}\nstreams:\n"
    rest = "source: {files: ./in}, append: {}}"
    chain = [f"  {name}: {{table: t, after: {{all: [{', '.join(names[:i])}]}}, {rest}" for i, name in enumerate(names)]
    chain[0] = f"  S0: {{table: t, {rest}"
    assert len(read(head + "\n".join(chain) + "\n").streams) == 40
    crowd = [f"  {name}: {{table: t, after: {{all: [{', '.join(set(names) - {name})}]}}, {rest}" for name in names]
    assert faults_of(head + "\n".join(crowd) + "\n")


def test_price_of_strict_is_a_note() -> None:
    """What lint warns of is allowed, and said."""
    text = with_stream("    every: 1h\n    strict: Other")
    text += "  Other: {table: t, every: 1d, source: {files: ./o}, append: {}}\n"
    assert any("runs at the pace of Other" in note for note in read(text).notes)


def test_maintenance_has_a_pace_when_none_is_written() -> None:
    """A stream that must follow it is slowed down to it, so that is noted."""
    text = with_stream("    every: 1h\n    strict: Up") + "  Up: {table: t, maintain: {optimize: true}}\n"
    assert any("runs at the pace of Up" in note for note in read(text).notes)


KINDS = {
    "append without its key": ("append: {on_duplicate: keep_first}", "streams.One.append.key: missing"),
    "mutate that does nothing": ("mutate: {match: {a: a}, applies_to: arrived}", "neither set nor delete_when"),
    "mutate of an empty set": ("mutate: {match: {a: a}, set: {}, applies_to: arrived}", "neither set nor delete_when"),
    "mutate without applies_to": ("mutate: {match: {a: a}, set: {b: b}}", "streams.One.mutate.applies_to: missing"),
    "mutate without match": ("mutate: {set: {b: b}, applies_to: arrived}", "streams.One.mutate.match: missing"),
    "mutate of no column": ("mutate: {match: {}, set: {b: b}, applies_to: arrived}", "no column in it"),
    "sequence of moving requests": (
        "mutate: {match: {a: old}, set: {A: new}, sequence_by: seq, applies_to: arrived}",
        "could not be repaired",
    ),
    "standing of an arrived request": (
        "mutate: {match: {a: a}, set: {b: b}, applies_to: arrived, stand_for: 1d}",
        "an arrived request does not stand",
    ),
    "other applies_to": ("mutate: {match: {a: a}, set: {b: b}, applies_to: later}", "'later' is not known"),
    "erase without match": ("erase: {}", "streams.One.erase.match: missing"),
    "erase of blank SQL": ("erase: {match: {a: }}", "streams.One.erase.match.a: no value"),
    "maintain with a source": (
        "maintain: {optimize: true}",
        "streams.One.source: a stream that maintains has no source",
    ),
    "two kinds": ("append: {}\n    erase: {match: {a: a}}", "append and erase together"),
    "bytes of an erasure": ("erase: {match: {a: a}, physical_within: soon}", "'soon' is not a duration"),
}


@pytest.mark.parametrize(("kind", "message"), KINDS.values(), ids=KINDS.keys())
def test_kinds_that_cannot_be(kind: str, message: str) -> None:
    """Each rule between the keys of a kind gives one fault."""
    assert message in only_fault(with_stream("", kind=f"    {kind}"))


def test_stream_without_a_kind_is_refused() -> None:
    """A stream that does nothing is a mistake."""
    assert "streams.One: none of append, mutate, erase" in only_fault(with_stream("", kind=""))


def test_moving_requests_are_noted() -> None:
    """A `set` that assigns a match column is allowed in the order of the source, and said."""
    pipeline = read(with_stream("", kind="    mutate: {match: {a: old}, set: {a: new}, applies_to: arrived}"))
    assert isinstance(pipeline.streams[0].kind, Mutate)
    assert pipeline.streams[0].kind.moves_rows
    assert any("order of the source" in note for note in pipeline.notes)


def test_standing_erasure_is_noted() -> None:
    """For ever is a long time: `check` says so, until lift_when is given."""
    text = with_stream("", kind="    erase: {match: {a: a}}")
    assert any("stays active for ever" in note for note in read(text).notes)
    assert read(text.replace("{a: a}}", "{a: a}, lift_when: b}")).notes == ()


def test_null_in_set_is_sql_null() -> None:
    """NULL sets NULL; numbers and truth values are SQL as they are written."""
    kind = (
        read(with_stream("", kind="    mutate: {match: {a: a}, set: {b: null, c: 5, d: true}, applies_to: arrived}"))
        .streams[0]
        .kind
    )
    assert isinstance(kind, Mutate)
    assert kind.set == {"b": "null", "c": "5", "d": "true"}


SOURCES = {
    "neither": ("{format: parquet}", "none of files, kafka"),
    "JSON without schema": ("{files: ./in, format: json}", "source.schema: missing"),
    "Kafka without schema": ("{kafka: t, servers: h}", "source.schema: missing"),
    "Kafka without servers": ("{kafka: t, schema: a INT}", "source.servers: missing"),
    "format of Kafka": ("{kafka: t, servers: h, schema: a INT, format: json}", "source.format: not a key of kafka"),
    "servers of files": ("{files: ./in, servers: h}", "source.servers: not a key of files"),
    "a topic option": ("{kafka: t, servers: h, schema: a INT, options: {subscribePattern: x}}", "not for you to set"),
    "a rate option": ("{files: ./in, options: {maxFilesPerTrigger: 1}}", "expected max_rows_per_batch"),
    "an option of bad records": ("{files: ./in, options: {mode: FAILFAST}}", "expected on_bad_record"),
    "other format": ("{files: ./in, format: csv}", "'csv' is not known"),
    "other value": ("{kafka: t, servers: h, schema: a INT, value: avro}", "'avro' is not known"),
    "a text": ("./in", "streams.One.source: not a mapping"),
}


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES.keys())
def test_sources_that_cannot_be(source: str, message: str) -> None:
    """Each rule between the keys of a source gives one fault."""
    assert message in only_fault(with_stream("", source=source))


@pytest.mark.parametrize(
    "option",
    [
        *("maxFileAge", "fileNameOnly", "ignoreCorruptFiles", "ignoreMissingFiles", "pathGlobFilter", "modifiedAfter"),
        *("modifiedBefore", "recursiveFileLookup", "basePath", "latestFirst", "cleanSource"),
    ],
)
def test_options_of_a_source_that_would_pass_over_files_are_refused(option: str) -> None:
    """However they are written: nothing of a source is passed over because of an option."""
    for name in (option, option.upper()):
        assert "is not for you to set" in only_fault(
            with_stream("", source=f"{{files: ./in, options: {{{name}: 'true'}}}}")
        )


@pytest.mark.parametrize("source", [".", "./t", "./x/.."])
def test_a_source_does_not_hold_what_the_pipeline_writes(source: str) -> None:
    """Files are read at any depth, so a table, or a storage that is not hidden, would be read as records."""
    text = f"name: p\ntables: {{t: {{path: ./t}}}}\nstreams:\n  One: {{table: t, append: {{}}, source: {{files: {source}}}}}\n"
    assert "the source's folder holds what tables.t.path names" in only_fault(text)
    text = text.replace("path: ./t", "path: /elsewhere/t")
    assert read(text).streams[0].source is not None
    if source != "./t":
        assert "holds what storage names" in only_fault("storage: ./state\n" + text)


def test_stream_needs_a_source_unless_it_maintains() -> None:
    """Upkeep has no records, no checkpoint, and a pace of a day."""
    text = "name: p\ntables: {t: {path: ./t}}\nstreams:\n  One: {table: t, append: {}}\n"
    assert "streams.One.source: missing; expected where its records come from" in only_fault(text)
    upkeep = text.replace("append: {}", "maintain: {optimize: true}")
    stream = read(upkeep).streams[0]
    assert (stream.source, stream.checkpoint, stream.every_ms) == (None, None, DAY_MS)
    assert stream.kind == Maintain(optimize=True)
    assert read(upkeep.replace("maintain:", "every: 1h, maintain:")).streams[0].every_ms == HOUR_MS


MAINTAIN = {
    "nothing": ("{}", "", "streams.One.maintain: nothing to do in it"),
    "not even optimize": ("{optimize: false}", "", "streams.One.maintain: nothing to do in it"),
    "order without optimize": ("{zorder_by: a, vacuum_older_than: 30d}", "", "nothing is optimized"),
    "order by a partition": ("{optimize: true, zorder_by: [b, ORG]}", "partition_by: [org]", "'ORG' is a column that"),
    "order of a clustered table": ("{optimize: true, zorder_by: b}", "cluster_by: org", "the table has cluster_by"),
    "no duration": ("{vacuum_older_than: 30}", "", "'30' is not a duration"),
}


@pytest.mark.parametrize(("keys", "table", "message"), MAINTAIN.values(), ids=MAINTAIN.keys())
def test_maintenance_that_cannot_be(keys: str, table: str, message: str) -> None:
    """Each rule gives one fault."""
    text = f"name: p\ntables: {{t: {{path: ./t, {table}}}}}\nstreams:\n  One: {{table: t, maintain: {keys}}}\n"
    assert message in only_fault(text)


@pytest.mark.parametrize(
    "key", ["checkpoint: ./c", "turn_limit: {batches: 2}", "on_bad_record: fail", "coverage: exclusive"]
)
def test_keys_about_records_are_refused_where_there_are_none(key: str) -> None:
    """What would be ignored is a fault."""
    text = (
        f"name: p\ntables: {{t: {{path: ./t}}}}\nstreams:\n  One: {{table: t, {key}, maintain: {{optimize: true}}}}\n"
    )
    assert only_fault(text).endswith("a stream that maintains has no source")


def test_all_of_maintenance_and_physical_erasure_is_read() -> None:
    """The keys of the design, in milliseconds."""
    text = "name: p\ntables: {t: {path: ./t}}\nstreams:\n"
    text += "  Up: {table: t, maintain: {optimize: true, zorder_by: [a, b], vacuum_older_than: 30d}}\n"
    text += "  TTL: {table: t, source: {files: ./in}, erase: {match: {a: a}, lift_when: b, physical_within: 20d}}\n"
    upkeep, erase = read(text).streams
    assert upkeep.kind == Maintain(optimize=True, zorder_by=("a", "b"), vacuum_older_than_ms=30 * DAY_MS)
    assert isinstance(erase.kind, Erase)
    assert erase.kind.physical_within_ms == 20 * DAY_MS


def test_topics_in_one_text_or_in_a_list() -> None:
    """Several topics are separated by commas, as in Kafka's source, or are a list."""
    for topics in ("'a, b'", "[a, b]"):
        source = read(with_stream("", source=f"{{kafka: {topics}, servers: h, schema: a INT}}")).streams[0].source
        assert isinstance(source, KafkaSource)
        assert source.topics == ("a", "b")


TABLES = {
    "no place": ("{lock: L}", "tables.t: none of path, name"),
    "both partitions and clusters": ("{path: ./t, partition_by: a, cluster_by: b}", "partition_by and cluster_by"),
    "forgetting transactions": (
        "{path: ./t, properties: {delta.setTransactionRetentionDuration: 1d}}",
        "forget which batches were written",
    ),
    "a lock with a slash": ("{path: ./t, lock: a/b}", "'a/b' cannot be used here"),
    "a catalog name of four parts": ("{name: a.b.c.d}", "expected table, db.table or catalog.db.table"),
    "storage": ("{path: ./_lakegate, lock: L}\nstorage: ./_lakegate", "the same place as storage"),
}


@pytest.mark.parametrize(("table", "message"), TABLES.values(), ids=TABLES.keys())
def test_tables_that_cannot_be(table: str, message: str) -> None:
    """Each rule between the keys of a table gives one fault."""
    assert message in only_fault(SMALL.replace("{path: ./t}", table))


def test_two_tables_at_one_place_are_refused() -> None:
    """Two locks on one table would guard nothing, however the place is spelled."""
    text = SMALL.replace("  t: {path: ./t}", "  t: {path: ./t}\n  u: {path: file:/base/x/../t}")
    assert "tables.u.path: the same place as tables.t.path" in only_fault(text)


def test_two_streams_on_one_checkpoint_are_refused() -> None:
    """Two queries on one checkpoint would overwrite each other's offsets."""
    text = with_stream("    checkpoint: ./c") + "  Two: {table: t, source: {files: ./o}, append: {}, checkpoint: c/}\n"
    assert "streams.Two.checkpoint: the same place as streams.One.checkpoint" in only_fault(text)


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "-x", "a.b", "x" * 65, "é"])
def test_names_that_cannot_be_folders_are_refused(name: str) -> None:
    """Names of streams become folders and options of the command."""
    assert "cannot be used as a name" in only_fault(SMALL.replace("One", f"'{name}'"))


def test_article_keys_in_the_spark_section_are_refused() -> None:
    """They are for jobs without a file; here they would compete with the file's own keys."""
    assert "for jobs without a file" in only_fault(SMALL + "spark: {spark.job.coordinator.name: x}\n")


def test_file_needs_a_stream() -> None:
    """A pipeline without streams does nothing."""
    assert "streams: missing" in only_fault("name: p\n")
    assert "no stream in it" in only_fault("name: p\nstreams: {}\n")


SYNC = """\
name: p
sync:
  crm: {from: {files: "changes/*.jsonl"}, to: "sqlite:x.db"}
"""


def test_a_sync_has_every_default() -> None:
    """A file may have nothing but one; places are relative to the file."""
    pipeline = parse(SYNC, origin="lakegate.yml", base_dir="/base", environ={})
    assert (pipeline.streams, len(pipeline.syncs)) == ((), 1)
    assert pipeline.sync("crm") == SyncSpec(
        name="crm",
        source=ChangeFilesSource(path="/base/changes/*.jsonl", format=None, transaction="tx"),
        to="sqlite:/base/x.db",
        table=None,
        tables={},
        plan="staged",
        mode="atomic",
        parallelism=8,
        on_violation="stop",
    )


def test_a_sync_takes_what_is_written() -> None:
    """Every key of this version."""
    text = """\
name: p
sync:
  crm:
    from: {files: ./in, format: parquet, transaction: commit_id}
    to: "${DSN}"
    tables: {a: b}
    plan: conflict_queue
    mode: parallel
    parallelism: 3
    on_violation: quarantine
    on_schema_change: stop
"""
    dsn = "postgresql://me:pa55@h:5432/db"
    pipeline = parse(text, origin="lakegate.yml", base_dir="/base", environ={"DSN": dsn})
    sync = pipeline.sync("crm")
    assert sync.source == ChangeFilesSource(path="/base/in", format="parquet", transaction="commit_id")
    assert (sync.to, sync.tables, sync.plan, sync.mode) == (dsn, {"a": "b"}, "conflict_queue", "parallel")
    assert (sync.parallelism, sync.on_violation) == (3, "quarantine")
    assert "pa55" not in repr(pipeline)
    assert {entry.value for entry in pipeline.entries if entry.key == "sync.crm.to"} == {"${DSN}"}


def test_a_sync_takes_envelopes_and_tables() -> None:
    """Each source has its own keys; a table begins with a snapshot unless `start` says otherwise."""

    def source(written: str) -> object:
        text = SYNC.replace('{files: "changes/*.jsonl"}', written) + "tables: {lake: {path: ./lake}}\n"
        return parse(text, origin="lakegate.yml", base_dir="/base", environ={}).sync("crm").source

    assert source("{files: e, format: debezium, transactions: t}") == EnvelopeFilesSource(
        path="/base/e", transactions="/base/t"
    )
    assert source("{kafka: 'a, b', servers: 'h:1', transactions: t, options: {sasl.password: pa55}}") == (
        EnvelopeTopicsSource(topics=("a", "b"), servers="h:1", transactions="t", options={"sasl.password": "pa55"})
    )
    assert source("{postgres: 'postgresql://h/d', tables: [a, s.b], slot: s}") == PostgresSource(
        dsn="postgresql://h/d", tables=("a", "s.b"), slot="s"
    )
    assert source("{postgres: 'postgresql://h/d', publication: P}, tables: {a: b}") == PostgresSource(
        dsn="postgresql://h/d", publication="P"
    )
    assert source("lake") == TableSource(table="lake", start="snapshot")
    assert source("lake, start: latest") == TableSource(table="lake", start="latest")
    assert source("lake, start: {version: 0}") == TableSource(table="lake", start=0)
    assert source("lake, start: {version: 7}, key: [id], on_schema_change: ignore") == TableSource(
        table="lake", start=7
    )


def test_the_password_of_a_database_is_masked() -> None:
    """Also where it is written in the file itself, in either place that an address has for it."""
    address = "postgresql://me:pa55@h/db?password=pa55"
    text = SYNC.replace("sqlite:x.db", address).replace('files: "changes/*.jsonl"', f'postgres: "{address}"')
    pipeline = parse(text, origin="lakegate.yml", base_dir="/base", environ={})
    for key in ("to", "from.postgres"):
        (shown,) = (entry.value for entry in pipeline.entries if entry.key == f"sync.crm.{key}")
        assert shown == "postgresql://me:***@h/db?password=***"
    assert "pa55" not in repr(pipeline)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('{files: "changes/*.jsonl"}', "lake", "there is no table 'lake'; expected one under tables: none"),
        ('{files: "changes/*.jsonl"}', "{kafka: crm}", "sync.crm.from.servers: missing"),
        (
            '{files: "changes/*.jsonl"}',
            "{kafka: crm, servers: 'h:1', format: json}",
            "topics are read in Debezium's format",
        ),
        ('{files: "changes/*.jsonl"}', "{kafka: crm, servers: 'h:1', options: {group.id: x}}", "is not for you to set"),
        (
            '{files: "changes/*.jsonl"}',
            "{kafka: crm, servers: 'h:1', transaction: x}",
            "say their transaction themselves",
        ),
        ('{files: "changes/*.jsonl"}', "{files: a, transactions: b}", "only Debezium has transaction metadata apart"),
        ('{files: "changes/*.jsonl"}', "{files: a, servers: 'h:1'}", "sync.crm.from.servers: it belongs to kafka"),
        ('{files: "changes/*.jsonl"}', "{files: a, kafka: b, servers: 'h:1'}", "files and kafka together"),
        ('{files: "changes/*.jsonl"}', "{files: 's3://b/c'}", "s3: paths are not in this version"),
        ('{files: "changes/*.jsonl"}', "{}", "sync.crm.from: none of files, kafka"),
        ('{files: "changes/*.jsonl"}', "{files: a, tables: [b]}", "sync.crm.from.tables: it belongs to postgres"),
        ('{files: "changes/*.jsonl"}', "{postgres: 'mysql://me:pa55@h/d'}", "not the address of a PostgreSQL database"),
        ('{files: "changes/*.jsonl"}', "{postgres: 'postgresql://h/d', format: json}", "it is not for a database"),
        (
            '{files: "changes/*.jsonl"}',
            "{postgres: 'postgresql://h/d', bytes: hex}",
            "only Debezium's envelopes need it",
        ),
        ('{files: "changes/*.jsonl"}', "{postgres: 'postgresql://h/d', slot: A-b}", "small letters, digits and _"),
        (
            '{files: "changes/*.jsonl"}',
            "{postgres: 'postgresql://h/d'}, table: a",
            "name its target under `tables`",
        ),
        ("from:", "start: snapshot, from:", "sync.crm.start: only a table has a snapshot and versions"),
        ("from: {files:", "table: a, from: {format: debezium, files:", "name its target under `tables`"),
        ("from:", "table: a, tables: {b: c}, from:", "table and tables together"),
        ("from:", "parallelism: 0, from:", "sync.crm.parallelism: '0' is not a count"),
        ('"sqlite:x.db"', '"host=h password=pa55"', "not the address of a database"),
        ('"sqlite:x.db"', '"mysql://me:pa/55@h/db"', "an @ behind the first /"),
        ('"sqlite:x.db"', '"mysql://me:pa@55@h/db"', "a second @"),
        (', to: "sqlite:x.db"', "", "sync.crm.to: missing"),
        ("crm:", "c/m:", "cannot be used as a name"),
    ],
)
def test_what_a_sync_cannot_be(old: str, new: str, fault: str) -> None:
    """One fault, which never repeats an address."""
    message = only_fault(SYNC.replace(old, new))
    assert fault in message
    assert "55" not in message


def test_a_sync_and_a_stream_have_two_names() -> None:
    """`lakegate run NAME` means one of them."""
    assert "sync.One: a stream has this name, too" in only_fault(
        SMALL + "sync: {One: {from: {files: a}, to: 'sqlite:x.db'}}\n"
    )


def test_sync_is_not_empty() -> None:
    """Neither is it none."""
    assert "no sync in it" in only_fault("name: p\nsync: {}\n")


DOCUMENTS = {
    "empty": ("", "lakegate.yml:1: the file is empty"),
    "only a comment": ("# nothing\n", "lakegate.yml:1: the file is empty"),
    "a list": ("- a\n", "lakegate.yml:1: a list"),
    "a text": ("hello\n", "lakegate.yml:1: not a mapping"),
    "not YAML": ("name: p\nstreams: [\n", "lakegate.yml:3: not YAML"),
    "a tab": ("name: p\n\tstreams: x\n", "lakegate.yml:2: not YAML"),
    "two documents": (SMALL + "---\n" + SMALL, "lakegate.yml:9: a second document"),
    "a control character": ("name: p\nstreams: \x01\n", "lakegate.yml:2: a character that YAML does not allow"),
    "an escaped one": (SMALL + 'storage: "a\\0b"\n', "lakegate.yml:9: storage: a control character"),
    "an escaped surrogate": (SMALL + 'storage: "a\\ud800"\n', "lakegate.yml:9: storage: a control character"),
    "an escape beyond Unicode": (SMALL + 'storage: "\\UFFFFFFFF"\n', "lakegate.yml:9"),
    "too long": ("#" * 300_000, "lakegate.yml:1: the file is 300000 characters long"),
    "too deep": ("[" * 5000, "lakegate.yml:1: nested too deep"),
    "an alias": (SMALL + "storage: &x ./s\nlog_store: *x\n", "lakegate.yml:10: log_store: YAML aliases"),
    "a tag": (SMALL + "storage: !!python/object:os.system x\n", "lakegate.yml:9: storage: YAML tags"),
    "a key that is a list": (SMALL + "? [a]\n: b\n", "lakegate.yml:9: a key that is not a text"),
    "a merge key": (SMALL + "<<: {storage: x}\n", "lakegate.yml:9: unknown key '<<'"),
}


@pytest.mark.parametrize(("text", "message"), DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_documents_that_cannot_be_read(text: str, message: str) -> None:
    """What is not a plain YAML mapping is refused in words, with its line."""
    assert only_fault(text).startswith(message)


def test_aliases_cannot_blow_the_tree_up() -> None:
    """A file of a few hundred bytes that stands for billions of values is refused before anything is built."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    started = time.monotonic()
    assert any("aliases" in str(fault) for fault in faults_of("\n".join(lines)))
    assert time.monotonic() - started < 30


def test_variables_are_expanded() -> None:
    """Set, defaulted, empty, doubled: as in a shell; a number may come from a variable."""
    text = with_stream("    max_rows_per_batch: ${ROWS}\n    every: ${PACE:-2h}", source='{files: "${LAKE}/${X:-in}"}')
    text += "spark: {a: '$${X} ${EMPTY} ${EMPTY:-d}'}\n"
    pipeline = read(text, {"ROWS": "7", "LAKE": "/lake", "EMPTY": ""})
    (stream,) = pipeline.streams
    assert (stream.max_rows_per_batch, stream.every_ms) == (7, 2 * HOUR_MS)
    assert isinstance(stream.source, FilesSource)
    assert stream.source.path == "/lake/in"
    assert pipeline.spark == {"a": "${X}  d"}


def test_expansion_is_not_yaml() -> None:
    """What a variable holds cannot add keys or change the structure, and is not expanded again."""
    pipeline = read(SMALL + "spark: {a: '${X}'}\n", {"X": "{b: c}\nname: q ${X}"})
    assert pipeline.spark == {"a": "{b: c}\nname: q ${X}"}
    assert pipeline.name == "p"


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A-b}", "${A:b}", "a${B"])
def test_references_that_cannot_be_read(text: str) -> None:
    """A mistyped reference is never taken for a text."""
    assert "${NAME} or ${NAME:-default}" in only_fault(SMALL + f"storage: '{text}'\n")


def test_unset_variable_is_a_fault_with_its_name() -> None:
    """Nothing is replaced by an empty text in silence."""
    assert only_fault(SMALL + "storage: ${LAKE}/s\n").startswith(
        "lakegate.yml:9: storage: the environment variable LAKE is not set"
    )


def test_quotes_are_recommended_for_references_in_braces() -> None:
    """The commonest mistake with references has its own advice."""
    assert "needs quotes" in only_fault(SMALL + "spark: {a: ${X}}\n", {"X": "1"})


SECRET = "hunter2"
LEAKS = {
    "wrong type under a secret key": f"spark: {{fs.s3a.secret.key: [{SECRET}]}}",
    "unknown key": f"password: {SECRET}",
    "forgotten blank": f"spark: {{password:{SECRET}}}",
    "unknown key without a blank": f"coordinator: {{password:{SECRET}}}",
    "URL": f"coordinator: 'postgres://me:{SECRET}@host/db'",
    "URL with a parameter": f"coordinator: 'postgres://host/db?password={SECRET}'",
    "path": f"storage: 's3a://me:{SECRET}@bucket/x'",
    "unknown scheme": f"storage: 'foo://me:{SECRET}@bucket/x'",
    "tag": f"storage: !{SECRET}!x y",
    "expanded duration": "coordinator: {lock_timeout: '${SECRET}'}",
    "expanded choice": "log_store: ${SECRET}",
    "expanded URL": "coordinator: ${SECRET}",
    "default of a reference": f"log_store: ${{PASSWORD:-{SECRET}}}",
    "bad reference": f"spark: {{password: '${{{SECRET}'}}",
    "not YAML": f"spark: {{password: '{SECRET}}}",
    "control character": f'spark: {{password: "{SECRET}\\0"}}',
}


@pytest.mark.parametrize("line", LEAKS.values(), ids=LEAKS.keys())
def test_no_fault_repeats_a_secret(line: str) -> None:
    """Neither values of secret keys, nor passwords in URLs, nor what came from the environment."""
    for fault in faults_of(SMALL + line + "\n", {"SECRET": SECRET}):
        assert SECRET not in str(fault)


_BAD, _STREAM = f"'password:{SECRET}'", "{table: t, source: {files: ./in}, append: }"
REFUSED_NAMES = {
    "table of a stream": f"tables: {{password:{SECRET}}}\nstreams: {{One: {_STREAM}}}",
    "table like that of a stream": f"tables: {{password:{SECRET}}}\nstreams: {{One: {{table: passwords}}}}",
    "table of a sync": f"tables: {{password:{SECRET}}}\nsync: {{crm: {{from: t, to: sqlite:x.db}}}}",
    "table at the same place": f"tables: {{{_BAD}: {{path: ./t}}, t: {{path: ./t}}}}\nstreams: {{One: {_STREAM}}}",
    "table below a source": f"tables: {{{_BAD}: {{path: ./in/x}}, t: {{path: ./t}}}}\nstreams: {{One: {_STREAM}}}",
    "stream that another waits for": f"""tables: {{t: {{path: ./t}}}}
streams:
  One: {{table: t, after: Two, source: {{files: ./in}}, append: }}
  {_BAD}: {_STREAM}""",
    "stream that waits": f"""tables: {{t: {{path: ./t}}}}
streams: {{{_BAD}: {{table: t, after: Two, source: {{files: ./in}}, append: }}}}""",
    "stream and sync of one name": f"""tables: {{t: {{path: ./t}}}}
streams: {{{_BAD}: {_STREAM}}}
sync: {{{_BAD}: {{from: t, to: sqlite:x.db}}}}""",
}


@pytest.mark.parametrize("text", REFUSED_NAMES.values(), ids=REFUSED_NAMES.keys())
def test_no_fault_repeats_what_is_no_name(text: str) -> None:
    """A forgotten blank makes a name of a key and its secret; the faults of others that list names leave it out."""
    faults = [str(fault) for fault in faults_of(f"name: p\n{text}\n")]
    assert any("cannot be used as a name" in fault for fault in faults)
    assert [fault for fault in faults if SECRET in fault] == []


def test_secrets_are_masked_and_references_kept_in_what_is_shown() -> None:
    """`config show` gets no secret, wherever it stands, and neither does a log that prints the pipeline."""
    options = "{kafka.sasl.jaas.config: '${JAAS}', kafka.ssl.key.password: hunter2, other: '${JAAS}', more: '${TOKEN:-hunter2}'}"
    text = with_stream("", source=f"{{kafka: t, servers: h, schema: a INT, options: {options}}}")
    text += "spark: {spark.url: 'jdbc:x://me:hunter2@h/db;password=hunter2', plain: hunter2, spark.driver.memory: 3g}\n"
    pipeline = read(text, {"JAAS": SECRET})
    source = pipeline.streams[0].source
    assert source.options["other"] == SECRET
    for entry in pipeline.entries:
        assert SECRET not in entry.value
    assert SECRET not in repr(pipeline)
    values = {entry.key: entry.value for entry in pipeline.entries}
    assert values["streams.One.source.options.other"] == "${JAAS}"
    assert values["streams.One.source.options.more"] == "***"
    assert values["spark.plain"] == "***"
    assert values["spark.spark.url"] == "***"
    assert values["spark.spark.driver.memory"] == "3g"


def test_hooks_are_read_and_their_addresses_shown_nowhere() -> None:
    """A webhook or a command; all events by default; the words of a command may repeat."""
    hooks = f"""on_event:
  ops: {{webhook: "${{OPS}}", events: lost}}
  page: {{command: [notify, -v, -v], behind_after: 10m}}
  chat: {{webhook: "https://chat/{SECRET}"}}
"""
    pipeline = read(with_stream("") + hooks, {"OPS": f"https://ops:8443/{SECRET}?x={SECRET}"})
    ops, page, chat = pipeline.hooks
    assert (ops.name, ops.webhook, ops.events) == ("ops", f"https://ops:8443/{SECRET}?x={SECRET}", ("lost",))
    assert (page.command, page.behind_after_ms, page.webhook) == (("notify", "-v", "-v"), 600_000, None)
    assert (chat.events, chat.behind_after_ms) == (HOOK_EVENTS, 300_000)
    values = {entry.key: entry.value for entry in pipeline.entries}
    assert (values["on_event.ops.webhook"], values["on_event.chat.webhook"]) == ("${OPS}", "***")
    assert SECRET not in repr(pipeline) + repr(pipeline.hooks) + repr(pipeline.entries)


HOOKS_THAT_CANNOT_BE = {
    "two": (f'{{webhook: "https://{SECRET}", command: x}}', "webhook and command together"),
    "none": ("{events: lost}", "none of webhook, command"),
    "a kind of address": (f'{{webhook: "ftp://{SECRET}"}}', "not the address of a webhook"),
    "a user": (f'{{webhook: "https://u:{SECRET}@host/"}}', "not the address of a webhook"),
    "a line": (f'{{webhook: "https://host/{SECRET}\\nX: y"}}', "not the address of a webhook"),
    "an event": ("{command: x, events: [lost, found]}", "'found' cannot be used here; expected lost, failed, late"),
}


@pytest.mark.parametrize(("hook", "message"), HOOKS_THAT_CANNOT_BE.values(), ids=HOOKS_THAT_CANNOT_BE.keys())
def test_hooks_that_cannot_be(hook: str, message: str) -> None:
    """Each is refused, and no fault repeats an address."""
    fault = only_fault(with_stream("") + f"on_event:\n  ops: {hook}\n")
    assert message in fault
    assert SECRET not in fault


def test_every_value_remembers_its_line_and_defaults_are_called_so() -> None:
    """`config show --origin` can name the line of each value written."""
    pipeline = read(ENGAGEMENT)
    lines = ENGAGEMENT.split("\n")
    origins = {entry.key: entry for entry in pipeline.entries}
    for entry in pipeline.entries:
        if entry.origin != "default":
            line = lines[int(entry.origin.removeprefix("lakegate.yml:")) - 1]
            last = re.sub(r"\[\d+\]$", "", entry.key.rsplit(".", 1)[-1])
            assert last in line
    assert origins["streams.TTL.absent_after"].origin == "default"
    assert origins["streams.TTL.turn_limit.batches"].value == "10"
    assert origins["streams.TTL.checkpoint"].origin == "lakegate.yml:40"


def test_override_goes_before_the_file() -> None:
    """A value from elsewhere replaces the file's and keeps its own origin, also where the file has none."""
    override = Override(path=("coordinator", "url"), value="memory:", origin="environment X")
    for text in (SMALL, SMALL + "coordinator: sqlite:x\n", SMALL + "coordinator: {url: sqlite:x, lock_timeout: 5s}\n"):
        pipeline = parse(text, origin="lakegate.yml", base_dir="/base", environ={}, overrides=[override])
        assert pipeline.coordinator.url == "memory:"
        assert {entry.key: entry.origin for entry in pipeline.entries}["coordinator.url"] == "environment X"
    assert pipeline.coordinator.lock_timeout_ms == 5000


def test_override_of_one_key_keeps_the_others_of_a_short_section() -> None:
    """`coordinator: "memory:"` stays the store of turns: in another one this process would exclude nobody."""
    override = Override(path=("coordinator", "lock_timeout"), value="5s", origin="environment X")
    for url in ("memory:", "zookeeper://h:2181/turns"):
        text = f"{SMALL}coordinator: {url!r}\n"
        pipeline = parse(text, origin="lakegate.yml", base_dir="/base", environ={}, overrides=[override])
        assert (pipeline.coordinator.url, pipeline.coordinator.lock_timeout_ms) == (url, 5000)
        origins = {entry.key: entry.origin for entry in pipeline.entries}
        assert origins["coordinator.url"] == "lakegate.yml:9"
        assert origins["coordinator.lock_timeout"] == "environment X"


@pytest.mark.parametrize("text", [SMALL + "coordinator: [1]\n", SMALL + "coordinator: *url\n", "[1]", "text"])
@pytest.mark.parametrize("path", [("coordinator", "lock_timeout"), ("coordinator", "url"), ("storage",)])
def test_what_cannot_be_read_keeps_its_fault_under_an_override(text: str, path: tuple[str, ...]) -> None:
    """An override replaces a value; it does not mend what stands around it."""
    override = Override(path=path, value="memory:" if path[-1] == "url" else "5s", origin="environment X")
    with pytest.raises(InvalidRequest) as raised:
        parse(text, origin="lakegate.yml", base_dir="/base", environ={}, overrides=[override])
    assert raised.value.faults == faults_of(text)


def test_fault_of_an_override_names_its_origin() -> None:
    """The fault names the option or variable that set the value, as the file did not."""
    override = Override(path=("storage",), value="s3a://x", origin="command line")
    with pytest.raises(InvalidRequest) as raised:
        parse(SMALL, origin="lakegate.yml", base_dir="/base", environ={}, overrides=[override])
    assert raised.value.faults[0].where == "command line"
