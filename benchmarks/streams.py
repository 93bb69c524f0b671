"""The three streams on a real mailing-list archive, compared with a plain Spark script that does the same work with stock MERGE.

All start from empty tables in one JVM, one after the other, and must end in the data set's own digest. There are two plain
scripts. The first, which an engineer writes first, forgets each request after it has changed the existing rows. The second keeps
the requests in tables of its own and applies them to later rows as well, which is what the streams do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakegate
from benchmarks.measure import figures, machine, write
from lakegate.config.streams import Coverage

SOURCE = "rlists"
ROUNDS = 3
PARTS = {"ingest": 10, "mutation": 4, "delete": 2}
ORDER = {"ingest": "arrival_seq", "mutation": "seq", "delete": "person_id"}


def main() -> None:
    """Measures and writes the result."""
    data = Path(os.environ.get("LAKEGATE_TEST_DATA") or "../shared/data") / "engagement"
    if not data.is_dir():
        sys.exit(f"no data sets at {data}: set LAKEGATE_TEST_DATA")
    expected = json.loads((data / "expected.json").read_text())[SOURCE]
    conf = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, parts in PARTS.items():
            cut(data / kind / f"{SOURCE}.parquet", folder / "in" / kind, ORDER[kind], parts)
        spark = lakegate.session("bench", conf={**conf, "spark.databricks.delta.snapshotPartitions": "2"})
        plain_ms, keeping_ms, ours_ms = [], [], []
        for number in range(ROUNDS + 1):  # the first round warms the JVM up
            runs = [(plain, plain_ms), (keeping, keeping_ms), (ours, ours_ms)]
            for run, samples in runs if number % 2 else reversed(runs):
                target = folder / f"{run.__name__}-{number}"
                begun = time.perf_counter()
                run(spark, folder / "in", target)
                spent_ms = (time.perf_counter() - begun) * 1000
                assert digest(spark, target / "table") == expected["final_sha256"], f"{run.__name__} is wrong"
                if number:
                    samples.append(spent_ms)
                shutil.rmtree(target)
    result = {
        "machine": machine(),
        "source": SOURCE,
        "plain_merge_ms": figures(plain_ms),
        "plain_merge_that_keeps_requests_ms": figures(keeping_ms),
        "streams_ms": figures(ours_ms),
        "ratio_to_plain_merge": ratio(ours_ms, plain_ms),
        "ratio_to_plain_merge_that_keeps_requests": ratio(ours_ms, keeping_ms),
    }
    write("streams", result)


def ratio(ours_ms: list[float], theirs_ms: list[float]) -> float:
    """Returns the ratio of the medians."""
    return round(figures(ours_ms)["median"] / figures(theirs_ms)["median"], 3)


def cut(file: Path, folder: Path, order: str, parts: int) -> None:
    """Cuts a source into files, in its order."""
    rows = parquet.read_table(file).sort_by(order)
    size = -(-rows.num_rows // parts)
    folder.mkdir(parents=True)
    for number in range(parts):
        parquet.write_table(rows.slice(number * size, size), folder / f"{number:03}.parquet")


def digest(spark: SparkSession, table: Path) -> str:
    """Returns the data set's digest of a table: SHA-256 over its sorted lines."""
    rows = spark.read.format("delta").load(str(table)).select("engagement_id", "person_id").collect()
    return hashlib.sha256("\n".join(sorted(f"{a}|{b}" for a, b in rows)).encode()).hexdigest()


def ours(spark: SparkSession, source: Path, target: Path, coverage: Coverage | None = None, asked_s: float = 0) -> None:
    """Runs the three streams, in turns; with a coverage, each file is a batch and each batch a turn.

    If `asked_s` is not 0, each batch asks a service that takes that many seconds.
    """
    keys: dict[str, Any] = {}
    if coverage is not None:
        keys = {"coverage": coverage, "max_rows_per_batch": 1, "turn_limit": {"batches": 1}}
    pipeline = lakegate.Pipeline("bench", storage=str(target / "_lakegate"), coordinator=f"sqlite:{target}/turns.db")
    properties = {"delta.enableDeletionVectors": "true"}
    table = pipeline.table("engagement", path=str(target / "table"), properties=properties)
    ingestion = table.append(
        name="Ingestion",
        source=lakegate.files(str(source / "ingest")),
        columns={"person_id": "alias_id"},
        **keys,
    )
    mutation = table.mutate(
        name="Mutation",
        after="Ingestion",
        source=lakegate.files(str(source / "mutation")),
        match={"alias_id": "alias_id"},
        set={"person_id": "new_person_id"},
        sequence_by="seq",
        applies_to="arrived_and_later",
        **keys,
    )
    erasure = table.erase(
        name="TTL",
        after="Mutation",
        source=lakegate.files(str(source / "delete")),
        match={"person_id": "person_id"},
        **keys,
    )

    def ask(batch: DataFrame) -> DataFrame:
        time.sleep(asked_s)
        return batch

    if asked_s:
        for stream in (ingestion, mutation, erasure):
            stream(ask)
    pipeline.run(until_idle=True, spark=spark)


def plain(spark: SparkSession, source: Path, target: Path) -> None:
    """Runs the same three queries by hand, each awaited before the next begins; a request concerns only existing rows."""
    table = str(target / "table")

    def ingest(batch: DataFrame, batch_id: int) -> None:
        append(batch.withColumn("person_id", F.col("alias_id")), table)

    def mutate(batch: DataFrame, batch_id: int) -> None:
        change(latest(batch), table)

    def erase(batch: DataFrame, batch_id: int) -> None:
        remove(batch.select("person_id").distinct(), table)

    run_by_hand(spark, source, target, {"ingest": ingest, "mutation": mutate, "delete": erase})


def keeping(spark: SparkSession, source: Path, target: Path) -> None:
    """Runs them by hand, with every request kept in a table and applied to later rows as well, as the streams do."""
    table, moved, erased = (str(target / name) for name in ("table", "moved", "erased"))
    spark.createDataFrame([], "alias_id STRING, person_id STRING, seq LONG").write.format("delta").save(moved)
    spark.createDataFrame([], "person_id STRING").write.format("delta").save(erased)

    def ingest(batch: DataFrame, batch_id: int) -> None:
        session = batch.sparkSession
        rules = session.read.format("delta").load(moved).select("alias_id", F.col("person_id").alias("now"))
        rows = batch.join(F.broadcast(rules), "alias_id", "left")
        rows = rows.withColumn("person_id", F.coalesce("now", "alias_id")).drop("now")
        gone = session.read.format("delta").load(erased)
        append(rows.join(F.broadcast(gone), "person_id", "left_anti").select(*batch.columns, "person_id"), table)

    def mutate(batch: DataFrame, batch_id: int) -> None:
        rules = latest(batch)
        kept = (
            DeltaTable.forPath(batch.sparkSession, moved).alias("t").merge(rules.alias("m"), "t.alias_id = m.alias_id")
        )
        kept.whenMatchedUpdateAll("m.seq > t.seq").whenNotMatchedInsertAll().execute()
        change(rules, table)

    def erase(batch: DataFrame, batch_id: int) -> None:
        people = batch.select("person_id").distinct()
        kept = DeltaTable.forPath(batch.sparkSession, erased).alias("t")
        kept.merge(people.alias("d"), "t.person_id = d.person_id").whenNotMatchedInsertAll().execute()
        remove(people, table)

    run_by_hand(spark, source, target, {"ingest": ingest, "mutation": mutate, "delete": erase})


def append(rows: DataFrame, table: str) -> None:
    """Appends to the target."""
    rows.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true").save(table)


def latest(batch: DataFrame) -> DataFrame:
    """Returns the last request of each alias."""
    last = F.max_by("new_person_id", "seq").alias("person_id")
    return batch.groupBy("alias_id").agg(last, F.max("seq").cast("long").alias("seq"))


def change(rules: DataFrame, table: str) -> None:
    """Applies the last request of each alias to its rows."""
    merge = DeltaTable.forPath(rules.sparkSession, table).alias("t").merge(rules.alias("m"), "t.alias_id = m.alias_id")
    merge.whenMatchedUpdate(set={"person_id": "m.person_id"}).execute()


def remove(people: DataFrame, table: str) -> None:
    """Deletes the rows of people."""
    merge = (
        DeltaTable.forPath(people.sparkSession, table).alias("t").merge(people.alias("d"), "t.person_id = d.person_id")
    )
    merge.whenMatchedDelete().execute()


def run_by_hand(
    spark: SparkSession, source: Path, target: Path, functions: Mapping[str, Callable[[DataFrame, int], None]]
) -> None:
    """Runs three streaming queries, one after another."""
    for kind, function in functions.items():
        schema = spark.read.parquet(str(source / kind)).schema
        writer = spark.readStream.schema(schema).parquet(str(source / kind)).writeStream.foreachBatch(function)
        query = (
            writer.option("checkpointLocation", str(target / f"checkpoint-{kind}")).trigger(availableNow=True).start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
