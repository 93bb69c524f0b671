"""The three streams on a real mailing-list archive beside a plain Spark script that does the same work with stock MERGE.

Both start from empty tables in one JVM, one after the other, and both must end in the data set's own digest. The plain script
is what an engineer writes who runs the three jobs by hand: ingest, then mutate, then erase, with nothing kept for later rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as parquet
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from benchmarks.measure import figures, machine, write

SOURCE = "rlists"
ROUNDS = 3
PARTS = {"ingest": 10, "mutation": 4, "delete": 2}
ORDER = {"ingest": "arrival_seq", "mutation": "seq", "delete": "person_id"}


def main() -> None:
    """Measures and writes the result."""
    data = Path(os.environ.get("HEADGATE_TEST_DATA") or "../shared/data") / "engagement"
    if not data.is_dir():
        sys.exit(f"no data sets at {data}: set HEADGATE_TEST_DATA")
    expected = json.loads((data / "expected.json").read_text())[SOURCE]
    conf = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, parts in PARTS.items():
            cut(data / kind / f"{SOURCE}.parquet", folder / "in" / kind, ORDER[kind], parts)
        spark = headgate.session("bench", conf={**conf, "spark.databricks.delta.snapshotPartitions": "2"})
        plain_ms, ours_ms = [], []
        for number in range(ROUNDS + 1):  # the first round warms the JVM up
            pair = [(plain, plain_ms), (ours, ours_ms)]
            for run, samples in pair if number % 2 else reversed(pair):
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
        "streams_ms": figures(ours_ms),
        "ratio_of_medians": round(figures(ours_ms)["median"] / figures(plain_ms)["median"], 3),
    }
    write("streams", result)


def cut(file: Path, folder: Path, order: str, parts: int) -> None:
    """Cuts a source into files, in its order."""
    rows = parquet.read_table(file).sort_by(order)
    size = -(-rows.num_rows // parts)
    folder.mkdir(parents=True)
    for number in range(parts):
        parquet.write_table(rows.slice(number * size, size), folder / f"{number:03}.parquet")


def digest(spark: SparkSession, table: Path) -> str:
    """The data set's digest of a table: SHA-256 over its sorted lines."""
    rows = spark.read.format("delta").load(str(table)).select("engagement_id", "person_id").collect()
    return hashlib.sha256("\n".join(sorted(f"{a}|{b}" for a, b in rows)).encode()).hexdigest()


def ours(spark: SparkSession, source: Path, target: Path) -> None:
    """The three streams, in turns."""
    pipeline = headgate.Pipeline("bench", storage=str(target / "_headgate"), coordinator=f"sqlite:{target}/turns.db")
    properties = {"delta.enableDeletionVectors": "true"}
    table = pipeline.table("engagement", path=str(target / "table"), properties=properties)
    table.append(name="Ingestion", source=headgate.files(str(source / "ingest")), columns={"person_id": "alias_id"})
    table.mutate(
        name="Mutation",
        after="Ingestion",
        source=headgate.files(str(source / "mutation")),
        match={"alias_id": "alias_id"},
        set={"person_id": "new_person_id"},
        sequence_by="seq",
        applies_to="arrived_and_later",
    )
    table.erase(
        name="TTL", after="Mutation", source=headgate.files(str(source / "delete")), match={"person_id": "person_id"}
    )
    pipeline.run(until_idle=True, spark=spark)


def plain(spark: SparkSession, source: Path, target: Path) -> None:
    """The same three queries by hand, each awaited before the next begins."""
    table = str(target / "table")

    def ingest(batch: DataFrame, batch_id: int) -> None:
        rows = batch.withColumn("person_id", F.col("alias_id"))
        rows.write.format("delta").mode("append").option("delta.enableDeletionVectors", "true").save(table)

    def mutate(batch: DataFrame, batch_id: int) -> None:
        last = batch.groupBy("alias_id").agg(F.max_by("new_person_id", "seq").alias("new_person_id"))
        merge = (
            DeltaTable.forPath(batch.sparkSession, table).alias("t").merge(last.alias("m"), "t.alias_id = m.alias_id")
        )
        merge.whenMatchedUpdate(set={"person_id": "m.new_person_id"}).execute()

    def erase(batch: DataFrame, batch_id: int) -> None:
        people = batch.select("person_id").distinct()
        merge = (
            DeltaTable.forPath(batch.sparkSession, table)
            .alias("t")
            .merge(people.alias("d"), "t.person_id = d.person_id")
        )
        merge.whenMatchedDelete().execute()

    for kind, function in (("ingest", ingest), ("mutation", mutate), ("delete", erase)):
        schema = spark.read.parquet(str(source / kind)).schema
        writer = spark.readStream.schema(schema).parquet(str(source / kind)).writeStream.foreachBatch(function)
        query = (
            writer.option("checkpointLocation", str(target / f"checkpoint-{kind}")).trigger(availableNow=True).start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
