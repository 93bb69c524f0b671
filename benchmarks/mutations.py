"""A batch of few requests on a large table: a `mutate` stream, compared with a streaming query whose function runs stock `MERGE`.

Both read the same JSON files with `trigger(availableNow=True)` and change the same rows of a table of their own. The stream also
stores the requests and their outcomes, takes a turn and carries a token. The first batch of a driver is measured in a process
of its own; later ones in interleaved pairs.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import delta.tables
from pyspark.sql import DataFrame, SparkSession

import lakegate
from benchmarks.measure import figures, machine, write

ROWS, FILES, REQUESTS = 1_000_000, 40, 1_000
FIRST, WARM, PAIRS = 3, 5, 10
COLUMNS = "alias STRING, new STRING"
CONF = {"spark.ui.enabled": "false"}


def main() -> None:
    """Measures and writes the result."""
    if len(sys.argv) > 1:
        print(json.dumps(first_ms(sys.argv[1])))
        return
    first: dict[str, list[float]] = {"stream": [], "script": []}
    for _ in range(FIRST):
        for kind, samples in first.items():
            command = [sys.executable, "-m", "benchmarks.mutations", kind]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            samples.append(json.loads(said.splitlines()[-1]))
    warm: dict[str, list[float]] = {"stream": [], "script": []}
    jobs = {"stream": 0, "script": 0}
    with tempfile.TemporaryDirectory() as name:
        spark = lakegate.session("mutations", conf=CONF)
        ways = {kind: Way(spark, Path(name) / kind, kind) for kind in warm}
        for number in range(WARM + PAIRS):
            for kind in sorted(ways, reverse=number % 2 == 0):
                before = number_of_jobs(spark)
                took_ms = ways[kind].batch_ms(number)
                if number >= WARM:
                    warm[kind].append(took_ms)
                    jobs[kind] += number_of_jobs(spark) - before
        rows = [sorted(way.rows()) for way in ways.values()]
        assert rows[0] == rows[1], "the tables differ"
    result = {
        "machine": machine(),
        "rows": ROWS,
        "files": FILES,
        "requests": REQUESTS,
        **{f"first_{kind}_ms": figures(samples) for kind, samples in first.items()},
        **{f"warm_{kind}_ms": figures(samples) for kind, samples in warm.items()},
        "jobs_of_a_warm_batch": {kind: round(count / PAIRS, 1) for kind, count in jobs.items()},
    }
    write("mutations", result)


def first_ms(kind: str) -> float:
    """Returns the time of the first batch of this driver."""
    with tempfile.TemporaryDirectory() as name:
        return Way(lakegate.session("mutations", conf=CONF), Path(name), kind).batch_ms(0)


def number_of_jobs(spark: SparkSession) -> int:
    """Returns the number of Spark jobs so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


class Way:
    """A table, a folder of requests, and what applies them."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str) -> None:
        self._spark, self._folder, self._kind = spark, folder, kind
        self._table, self._source = folder / "table", folder / "in"
        self._source.mkdir(parents=True)
        spark.sql(
            f"CREATE TABLE delta.`{self._table}` (id BIGINT, person STRING, amount DOUBLE, note STRING) USING delta "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        rows = spark.range(0, ROWS, 1, FILES).selectExpr(
            "id", "concat('p', id) AS person", "id * 1.5D AS amount", "concat('note ', id) AS note"
        )
        rows.write.format("delta").mode("append").save(str(self._table))
        self._pipeline = lakegate.Pipeline("mutations", storage=str(folder / "_lakegate"))
        self._pipeline.table("t", path=str(self._table)).mutate(
            name="Mutation",
            source=lakegate.files_json(str(self._source), schema=COLUMNS),
            match={"person": "alias"},
            set={"note": "new"},
            applies_to="arrived",
        )

    def batch_ms(self, number: int) -> float:
        """Returns the time of a batch, with the start and the end of its query."""
        picked = random.Random(number).sample(range(ROWS), REQUESTS)
        lines = (json.dumps({"alias": f"p{key}", "new": f"{number}-{key}"}) for key in picked)
        (self._source / f"{number}.json").write_text("\n".join(lines) + "\n")
        begun = time.perf_counter()
        if self._kind == "stream":
            self._pipeline.run(once=True, spark=self._spark)
        else:
            self._query()
        return (time.perf_counter() - begun) * 1000

    def _query(self) -> None:
        def merge(batch: DataFrame, _: int) -> None:
            table = delta.tables.DeltaTable.forPath(self._spark, str(self._table)).alias("t")
            merge = table.merge(batch.dropDuplicates(["alias"]).alias("s"), "t.person = s.alias")
            merge.whenMatchedUpdate(set={"note": "s.new"}).execute()

        stream = self._spark.readStream.schema(COLUMNS).json(str(self._source)).writeStream.foreachBatch(merge)
        stream = stream.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True)
        stream.start().awaitTermination()

    def rows(self) -> list[tuple[object, ...]]:
        """Returns all rows that a batch has changed."""
        changed = self._spark.read.format("delta").load(str(self._table)).where("note NOT LIKE 'note %'")
        return [tuple(row) for row in changed.collect()]


if __name__ == "__main__":
    main()
