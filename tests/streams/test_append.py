"""Append streams on real Delta tables: columns, what does not fit, duplicates, a table that is not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.config import Append
from lakegate.errors import InvalidRequest
from lakegate.telemetry.events import Noticed
from tests.stream_bench import Bench, Crash, stream, table

RECORD = "id string, alias string"
COLUMNS = "id STRING NOT NULL, alias STRING, person STRING"
KEEP = Append(columns={"person": "alias"}, key=("id",), on_duplicate="keep_first")


def bench(session: SparkSession, root: Path, kind: Append, columns: str | None = COLUMNS, **more: object) -> Bench:
    return Bench(session, str(root), (stream("In", kind, **more),), table(columns))


@pytest.mark.also_without_caches
def test_a_batch_is_written_once_whatever_is_repeated(session: SparkSession, tmp_path: Path) -> None:
    """A batch whose commit was made before a crash is known by its token and not written again."""
    b = bench(session, tmp_path, Append(columns={"person": "upper(alias)"}))
    with pytest.raises(Crash):
        b.run("In", [("1", "a")], RECORD, 0, crash_after=frozenset({"append"}))
    again = b.run("In", [("1", "a")], RECORD, 0)
    assert (again.was_applied_before, again.rows_written) == (True, 0)
    assert b.run("In", [("2", "b"), ("3", "c")], RECORD, 1).rows_written == 2
    assert b.rows("id", "person") == [("1", "A"), ("2", "B"), ("3", "C")]


def test_first_append_makes_the_table_as_described(session: SparkSession, tmp_path: Path) -> None:
    """Without `columns:` version 0 is the empty table, as the first batch has it, with its partitions and properties."""
    spec = table(None, partition_by=("alias",), properties={"delta.enableDeletionVectors": "true"})
    b = Bench(session, str(tmp_path), (stream("In", KEEP),), spec)
    b.run("In", [("1", "a"), ("1", "z"), ("2", "b")], RECORD, 0)
    metadata = b.log.metadata(b.target)
    assert (metadata.version, metadata.partition_columns) == (1, ("alias",))
    assert metadata.properties["delta.enableDeletionVectors"] == "true"
    assert list(b.log.read_tokens(b.target).tokens) == ["lakegate/In"]
    assert b.rows("id", "person") == [("1", "a"), ("2", "b")]


@pytest.mark.slow
def test_the_same_record_in_two_files_is_kept_once(session: SparkSession, tmp_path: Path) -> None:
    """`keep_first`: the first in source order stays, within a batch and against the table."""
    b = bench(session, tmp_path, KEEP)
    b.run("In", [("1", "first"), ("2", "b"), ("1", "second")], RECORD, 0)
    b.run("In", [("2", "late"), ("3", "c")], RECORD, 1)
    assert b.rows("id", "alias") == [("1", "first"), ("2", "b"), ("3", "c")]


@pytest.mark.parametrize("partitions", [3, 1])
def test_a_batch_is_written_in_as_many_files_as_it_has_partitions(
    session: SparkSession, tmp_path: Path, partitions: int
) -> None:
    """Whatever `spark.sql.shuffle.partitions` is, and also where `keep_first` looks keys up; each batch adds its own files."""
    session.conf.set("spark.sql.shuffle.partitions", "40")
    b = bench(session, tmp_path, KEEP)
    for number in range(2):
        rows = b.batch([(str(i), f"{number}") for i in range(number, 20 + number)], RECORD, number)
        b.stream("In").run_batch(b.turn("In", number), rows.repartition(partitions), number)
        files = session.read.format("delta").load(b.target).inputFiles()
        assert len(files) <= partitions * (number + 1)
    assert len(b.rows("id")) == 21


@pytest.mark.parametrize(
    ("rows", "schema", "reason"),
    [
        ([("1", "a"), ("!", "{broken")], RECORD, "is not a JSON record"),
        ([("1", "a"), (None, "b")], RECORD, "id is NULL"),
        ([("1", 3), ("2", 2**40)], "id string, alias bigint", "alias is not int"),
    ],
)
def test_a_bad_record_stops_the_batch_and_is_named(
    session: SparkSession, tmp_path: Path, rows: list[tuple[object, ...]], schema: str, reason: str
) -> None:
    """`on_bad_record: fail` says what is wrong and where; the table is unchanged, and the record's values are not shown."""
    columns = COLUMNS if "bigint" not in schema else "id STRING, alias INT, person STRING"
    b = bench(session, tmp_path, Append(columns={"person": "'p'"}), columns)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        b.run("In", rows, schema, 0)
    assert "file0#1" in str(refused.value)
    assert "broken" not in str(refused.value)
    assert b.rows("id") == []


def test_bad_records_become_dead_letters(session: SparkSession, tmp_path: Path) -> None:
    """`on_bad_record: dead_letter` keeps each bad record with its reason and writes the good ones; once each."""
    b = bench(session, tmp_path, KEEP, on_bad_record="dead_letter")
    rows = [("1", "a"), ("!", "{broken"), (None, "b"), ("2", "c")]
    with pytest.raises(Crash):
        b.run("In", rows, RECORD, 0, crash_after=frozenset({"dead_letters"}))
    result = b.run("In", rows, RECORD, 0)
    assert (result.rows_written, result.dead_letters) == (2, 2)
    letters = session.read.format("delta").load(f"{tmp_path}/_lakegate/dead_letters/In").collect()
    assert sorted((row.raw, row.position, row.batch) for row in letters) == [
        ('{"alias":"b"}', "file0#2", 0),
        ("{broken", "file0#1", 0),
    ]
    assert b.rows("id") == [("1",), ("2",)]


def test_new_columns_are_left_out_or_added(session: SparkSession, tmp_path: Path) -> None:
    """A column that the table lacks is reported once and left out, or added as nullable."""
    b = bench(session, tmp_path, Append())
    ingest = b.stream("In")
    for batch in (0, 1):
        rows = b.batch([(str(batch), "a", 7)], "id string, alias string, extra int", batch)
        ingest.run_batch(b.turn("In", batch), rows, batch)
    assert [e.text for e in b.gathered.events if isinstance(e, Noticed) and "extra" in e.text] == [
        "the source has a column that the table lacks, and that is left out: extra"
    ]
    adding = Bench(session, str(tmp_path), (stream("In", Append(), on_new_column="add"),), b.table, epoch=b.epoch)
    adding.run("In", [("2", "a", 7)], "id string, alias string, extra int", 2)
    assert adding.rows("id", "extra") == [("0", None), ("1", None), ("2", 7)]


def test_a_column_that_cannot_be_filled_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    """A NOT NULL column without a source, or a computed column that the table lacks: refused before anything is written."""
    b = bench(session, tmp_path, Append())
    with pytest.raises(InvalidRequest, match="id, which is NOT NULL"):
        b.run("In", [("a",)], "alias string", 0)
    b = bench(session, tmp_path, Append(columns={"nobody": "alias"}))
    with pytest.raises(InvalidRequest, match="no such column"):
        b.run("In", [("1", "a")], RECORD, 0)


def test_a_function_of_the_user_changes_the_batch(session: SparkSession, tmp_path: Path) -> None:
    """The function sees only records that parse; rows that lose their place in the source are written all the same."""

    def double(batch: DataFrame) -> DataFrame:
        return batch.select("id", F.concat("alias", F.lit("!")).alias("alias"))

    b = bench(session, tmp_path, KEEP, transform=double, on_bad_record="dead_letter")
    assert b.run("In", [("1", "a"), ("!", "{")], RECORD, 0).dead_letters == 1
    assert b.rows("id", "person") == [("1", "a!")]
