"""The fixed cost of a supervised micro-batch, compared with the same batch in plain Structured Streaming: 30 interleaved pairs.

Both append the same small file to a Delta table of their own with `trigger(availableNow=True)`; ours takes a turn, carries the
token, reads it before and after, and completes the turn.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from benchmarks.measure import figures, machine, write

PAIRS, WARM_UP = 30, 5
ROWS = 1000


def main() -> None:
    """Measures and writes the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conf = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
        spark = lakegate.session("bench", conf={**conf, "spark.databricks.delta.snapshotPartitions": "2"})
        seed = folder / "seed"
        spark.range(ROWS).selectExpr("id", "concat('name-', id) AS name").coalesce(1).write.parquet(str(seed))
        file = next(seed.glob("*.parquet"))
        plain_ms, turn_ms = [], []
        plain, ours = Plain(spark, folder / "plain"), Ours(spark, folder / "ours")
        for number in range(PAIRS + WARM_UP):
            pair = [(plain, plain_ms), (ours, turn_ms)]
            for one, samples in pair if number % 2 else reversed(pair):
                shutil.copy(file, one.source / f"{number}.parquet")
                begun = time.perf_counter()
                one.run()
                if number >= WARM_UP:
                    samples.append((time.perf_counter() - begun) * 1000)
        for one in (plain, ours):
            assert spark.read.format("delta").load(str(one.table)).count() == ROWS * (PAIRS + WARM_UP)
    ratios = sorted(ours / plain for ours, plain in zip(turn_ms, plain_ms, strict=True))
    result = {
        "machine": machine(),
        "plain_ms": figures(plain_ms),
        "supervised_ms": figures(turn_ms),
        "ratio_of_medians": round(figures(turn_ms)["median"] / figures(plain_ms)["median"], 3),
        "median_of_pair_ratios": round(ratios[len(ratios) // 2], 3),
    }
    write("microbatch", result)


class Plain:
    """The same query without Lakegate."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.source, self.table = folder / "in", folder / "table"
        self.source.mkdir(parents=True)
        # Both append to a table that exists, so that the first batch is like the others.
        spark.createDataFrame([], "id BIGINT, name STRING").write.format("delta").save(str(self.table))

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """The sink function."""
        batch.write.format("delta").mode("append").save(str(self.table))

    def query(self) -> DataStreamWriter:
        """The query, up to its trigger."""
        frame = self.spark.readStream.schema("id BIGINT, name STRING").parquet(str(self.source))
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.foreachBatch(self.sink())

    def sink(self) -> Callable[[DataFrame, int], None]:
        """Returns the function that foreachBatch calls."""
        return self.write

    def run(self) -> None:
        """Runs one micro-batch."""
        self.query().trigger(availableNow=True).start().awaitTermination()


class Ours(Plain):
    """The same function, coordinated and supervised."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self.job = lakegate.JobCoordinator(
            spark, name="A", lock="L", storage=str(folder / "_lakegate"), tables=[str(self.table)]
        )

    def sink(self) -> Callable[[DataFrame, int], None]:
        return lakegate.coordinated(self.write, self.job)

    def run(self) -> None:
        lakegate.supervise(self.query, self.job, once=True)


if __name__ == "__main__":
    main()
