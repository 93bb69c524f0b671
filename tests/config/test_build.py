"""A pipeline written in Python is the same data as the file that says the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from inspect import Parameter, signature
from pathlib import Path
from traceback import format_exception_only
from typing import Any, cast, is_typeddict

import pytest
from pydantic import ValidationError

from lakegate.config import (
    Append,
    Erase,
    Maintain,
    Mutate,
    Pipeline,
    StreamSpec,
    SyncSpec,
    TableSource,
    TableSpec,
    parse,
)
from lakegate.config.build import (
    AppendKeys,
    EraseKeys,
    MaintainKeys,
    MutateKeys,
    PipelineBuilder,
    TableBuilder,
    files,
    files_json,
    kafka,
)
from lakegate.config.sections import Section
from lakegate.config.streams import OF_RECORDS, StreamSource
from lakegate.errors import InvalidRequest
from lakegate.syncs.api import SyncKeys

FILE = """\
name: engagement
storage: ./lake/_lakegate
coordinator: {url: "sqlite:./turns.db", lock_timeout: 90s}
spark: {spark.sql.shuffle.partitions: "4"}
tables:
  engagement:
    path: ./lake/engagement
    lock: L
    partition_by: [org_id]
    properties: {delta.enableChangeDataFeed: "true"}
streams:
  Ingestion:
    table: engagement
    every: 1h
    source: {kafka: eng.records, servers: "h:1", schema: "a STRING", options: {startingOffsets: earliest}}
    append: {columns: {person_id: alias_id}, key: [engagement_id], on_duplicate: keep_first}
    expect: {positive: {where: a > 0, otherwise: drop}, named: {where: a IS NOT NULL}}
    max_rows_per_batch: 500
    turn_limit: {batches: 2}
  Mutation:
    table: engagement
    after: {any: [Ingestion]}
    source: {files: ./in/mutation, format: json, schema: "seq BIGINT"}
    mutate:
      match: {alias_id: alias_id}
      set: {person_id: new_person_id}
      applies_to: arrived
      unmatched: {retry_for: 1d}
  TTL:
    table: engagement
    strict: Mutation
    source: {files: ./in/delete}
    erase: {match: {person_id: person_id}, physical_within: 30d}
  Upkeep:
    table: engagement
    after: TTL
    maintain: {optimize: true, zorder_by: person_id, vacuum_older_than: 30d}
"""


def engagement_pipeline() -> tuple[PipelineBuilder, TableBuilder]:
    """FILE, in Python."""
    pipeline = PipelineBuilder(
        "engagement",
        storage="./lake/_lakegate",
        coordinator={"url": "sqlite:./turns.db", "lock_timeout": "90s"},
        spark={"spark.sql.shuffle.partitions": 4},
    )
    engagement = pipeline.table(
        "engagement",
        path="./lake/engagement",
        lock="L",
        partition_by=["org_id"],
        properties={"delta.enableChangeDataFeed": True},
    )
    engagement.append(
        name="Ingestion",
        every="1h",
        source=kafka("eng.records", servers="h:1", schema="a STRING", options={"startingOffsets": "earliest"}),
        columns={"person_id": "alias_id"},
        key=["engagement_id"],
        on_duplicate="keep_first",
        expect={"positive": {"where": "a > 0", "otherwise": "drop"}, "named": {"where": "a IS NOT NULL"}},
        max_rows_per_batch=500,
        turn_limit={"batches": 2},
    )
    engagement.mutate(
        name="Mutation",
        after={"any": ["Ingestion"]},
        source=files_json("./in/mutation", schema="seq BIGINT"),
        match={"alias_id": "alias_id"},
        set={"person_id": "new_person_id"},
        applies_to="arrived",
        unmatched={"retry_for": "1d"},
    )
    engagement.erase(
        name="TTL",
        strict="Mutation",
        source=files("./in/delete"),
        match={"person_id": "person_id"},
        physical_within="30d",
    )
    engagement.maintain(name="Upkeep", after="TTL", optimize=True, zorder_by="person_id", vacuum_older_than="30d")
    return pipeline, engagement


def names_of(one: Any) -> set[str]:
    """The names of the keys of a TypedDict, or of the keywords of a function."""
    if is_typeddict(one):
        return set(one.__annotations__)
    return {name for name, parameter in signature(one).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY}


def keys_of(section: type[Section]) -> set[str]:
    return set(section.keys_of_file())


OF_STREAM = keys_of(StreamSpec) - {"table", "append", "mutate", "erase", "maintain"}


def without_origins(pipeline: Pipeline) -> Pipeline:
    return pipeline.model_copy(update={"entries": ()})


def test_python_and_file_give_the_same_pipeline() -> None:
    """The same keys, the same meaning, the same data; only the origins differ."""
    built = engagement_pipeline()[0].build(base_dir="/base")
    read = parse(FILE, origin="lakegate.yml", base_dir="/base", environ={})
    assert without_origins(built) == without_origins(read)
    assert {entry.origin for entry in built.entries} == {"Python", "default"}
    assert built.notes == read.notes


def test_decorated_function_becomes_the_code_of_its_stream() -> None:
    """A stream may be declared by a call or by a decorator; the function stays usable."""
    pipeline = PipelineBuilder("p")
    table = pipeline.table("t", path="./t")

    @table.append(name="One", source=files("./in"))
    def one(batch: Any) -> Any:
        return (batch, 1)

    table.append(name="Two", source=files("./in2"))
    built = pipeline.build(base_dir="/base")
    assert built.stream("One").transform is one
    assert one("batch") == ("batch", 1)
    assert built.stream("Two").transform is None


def test_faults_of_python_name_the_key() -> None:
    """There is no line, so the fault names the path of the key; all faults are reported at once."""
    pipeline = PipelineBuilder("p", storage="s3a://b/x")
    table = pipeline.table("t")
    table.append(name="One", source={"files": 5}, every="soon", coverage="whole")
    more = cast(Any, table)
    more.mutate(name="Two", source=object(), macth={}, match={"a": "a"}, set={"b": None}, priority="high")
    with pytest.raises(InvalidRequest) as raised:
        pipeline.build(base_dir="/base")
    told = [(fault.where, fault.what) for fault in raised.value.faults]
    assert ("storage", "s3a: paths are not in this version here") in told
    assert ("tables.t", "none of path, name") in told
    assert ("streams.One.source.files", "'5' is not a text") in told
    assert ("streams.One.every", "'soon' is not a duration") in told
    assert ("streams.One.coverage", "'whole' is not known") in told
    assert ("streams.Two.source", "a value of type object") in told
    assert any(where == "streams.Two.macth" and "unknown key" in what for where, what in told)
    assert ("streams.Two.mutate", "streams.Two.mutate.applies_to: missing") in told
    assert ("streams.Two.priority", "'high' is not a count") in told


def test_no_fault_of_python_repeats_what_is_no_key() -> None:
    """The path of a key is the place of its fault; what a file would not show there is not shown."""
    pipeline = PipelineBuilder("p")
    pipeline.table("password:hunter2", path="./t").append(name="One", source={"files": "in", "token:hunter2": 1})
    with pytest.raises(InvalidRequest) as raised:
        pipeline.build(base_dir="/base")
    assert {"tables.password…", "streams.One.source.token…"} <= {fault.where for fault in raised.value.faults}
    assert "hunter2" not in str(raised.value)


def test_texts_of_python_are_not_expanded() -> None:
    """A text of Python is what it is."""
    pipeline = PipelineBuilder("p", spark={"a": "${X}"})
    pipeline.table("t", path=cast(str, Path("./t"))).append(name="One", source=files("./in"))
    built = pipeline.build(base_dir="/base")
    assert built.spark == {"a": "${X}"}
    assert built.tables["t"].path == "/base/t"


def test_second_table_stream_or_function_of_a_name_is_refused() -> None:
    """As a file refuses a key that is there twice."""
    pipeline = PipelineBuilder("p")
    table = pipeline.table("t", path="./t")
    stream = table.append(name="One", source=files("./in"))
    stream(lambda batch: batch)
    with pytest.raises(InvalidRequest, match="the table 't' is there twice"):
        pipeline.table("t", path="./u")
    with pytest.raises(InvalidRequest, match="the stream 'One' is there twice"):
        table.erase(name="One", source=files("./in"), match={"a": "a"})
    with pytest.raises(InvalidRequest, match="the function of the stream 'One' is there twice"):
        stream(lambda batch: batch)


def test_building_again_sees_what_was_added() -> None:
    """A built pipeline is data of its own."""
    pipeline = PipelineBuilder("p")
    table = pipeline.table("t", path="./t")
    table.append(name="One", source=files("./in"))
    first = pipeline.build(base_dir="/base")
    table.append(name="Two", source=files("./in2"))
    assert [stream.name for stream in first.streams] == ["One"]
    assert [stream.name for stream in pipeline.build(base_dir="/base").streams] == ["One", "Two"]


def test_bare_coordinator_is_its_url() -> None:
    """`coordinator="sqlite:…"` as in the file."""
    pipeline = PipelineBuilder("p", coordinator="memory:")
    pipeline.table("t", path="./t").append(name="One", source=files("./in"))
    assert pipeline.build(base_dir="/base").coordinator.url == "memory:"


@pytest.mark.parametrize(
    ("keywords", "keys"),
    [
        (names_of(PipelineBuilder), keys_of(Pipeline) - {"name", "tables", "streams", "sync"}),
        (names_of(PipelineBuilder.table), keys_of(TableSpec)),
        (names_of(files) | names_of(kafka) | {"files", "kafka"}, keys_of(StreamSource)),
        (names_of(AppendKeys), OF_STREAM | keys_of(Append)),
        (names_of(MutateKeys), OF_STREAM | keys_of(Mutate)),
        (names_of(EraseKeys), OF_STREAM | keys_of(Erase)),
        (names_of(MaintainKeys), (OF_STREAM - set(OF_RECORDS)) | keys_of(Maintain)),
        (names_of(SyncKeys), keys_of(SyncSpec) - {"from", "to"}),
    ],
    ids=["pipeline", "table", "source", "append", "mutate", "erase", "maintain", "sync"],
)
def test_python_has_every_key_of_the_file(keywords: set[str], keys: set[str]) -> None:
    """A key that only the file had could not be given in Python; a keyword that is no key would be a fault."""
    assert keywords == keys


def test_import_of_the_package_needs_the_standard_library_only() -> None:
    """`import lakegate` loads neither YAML nor Spark."""
    code = "import lakegate, sys; assert not {'yaml', 'pyspark', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pipeline_cannot_be_changed() -> None:
    """Neither it nor a part of it: what was checked is what runs. The error does not repeat a value, which may be a secret."""
    built = engagement_pipeline()[0].build(base_dir="/base")
    for part in (built, built.coordinator, built.tables["engagement"], *built.streams, built.streams[0].kind):
        name = next(iter(type(part).model_fields))
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'") as raised:
            setattr(part, name, "zookeeper://u:hunter2@h")
        assert "hunter2" not in "".join(format_exception_only(raised.value))
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(part, name)
    assert built == engagement_pipeline()[0].build(base_dir="/base")


def test_help_of_the_command_needs_no_pydantic() -> None:
    """Only what reads a configuration waits for the import of pydantic."""
    code = (
        "import sys; from importlib import import_module; from lakegate.cli.app import COMMANDS\n"
        "for name in COMMANDS: import_module(f'lakegate.cli.{name}')\n"
        "assert 'pydantic' not in sys.modules and 'pydantic_core' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_python_values_of_sections_are_checked_by_their_type() -> None:
    """A source or a start that code builds itself is one of those that the product knows."""
    source = TableSource(table="t", start=3)
    assert SyncSpec(source=source, start=3, to="sqlite:x.db").source is source
    with pytest.raises(ValidationError, match="source"):
        StreamSpec(table="t", source=cast(Any, "in"))
    with pytest.raises(ValidationError, match="start"):
        SyncSpec(source=source, start=cast(Any, "soon"), to="sqlite:x.db")
