"""The same three jobs without turns: plain Structured Streaming on stock Delta, as an expert would write it.

    python -m lakegate.demo.without JOB FOLDER [--kafka SERVERS] [--s3 URL]

They are written with care. Mutation and TTL store every request in tables that only they write, so that Ingestion writes a
later record under the right person, or not at all. Mutation deletes rows that it would move to an erased person. A batch of
requests may be repeated without harm. An append carries `txnAppId` and `txnVersion`, so that a repeated one is skipped. A write
that conflicts is repeated, and reads again what it depends on. Run one after another, in any order of their batches, they give
exactly the right table. They lack an order of writers.

The variant `naive` is the same but for the append, which carries no `txnAppId` and `txnVersion`.

The process creates its tables and prints the line `ready`. A line of its input is a variant: it runs the job to the end of its
source, and prints `done`. At the end of its input it ends.

On a local disk they use the same session as the jobs with turns: its log store is put-if-absent, so no commit is
overwritten. On S3 they use Delta's default: its log store for a single driver.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lakegate.delta.idempotent_writes import DELTA_CONFLICTS
from lakegate.delta.jvm import USER_METADATA_CONF
from lakegate.demo.expected import COLUMNS as NAMES
from lakegate.demo.lake import CAREFUL, COLUMNS, INGESTION, JOBS, MUTATION, PROPERTIES, TTL, VARIANTS, Lake
from lakegate.demo.records import BATCH_OFFSETS, FOLDERS, TOPIC_COLUMNS
from lakegate.runtime import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RETRIES_MAX = 10
"""How often a write is repeated after a conflict."""
RESTARTS_MAX = 3
"""How often a query is restarted after another error."""
RESTART_PAUSE_S = 1.0


def say(job: str, what: str, batch: int | None = None, **facts: object) -> None:
    """Prints a line of JSON on standard output about the job's current action."""
    line = {"job": job, "what": what, "batch": batch, "at_ms": time.time_ns() // 1_000_000, **facts}
    print(json.dumps(line), flush=True)


class Plain:
    """A job, its tables and its query, in one of the `VARIANTS`."""

    def __init__(self, job: str, lake: Lake, spark: SparkSession, variant: str, servers: str | None = None) -> None:
        self._job, self._spark, self._servers = job, spark, servers
        self._is_careful = variant == CAREFUL
        self._source = lake.inputs / FOLDERS[JOBS.index(job)]
        folder = lake.without / variant
        self._checkpoint = folder / "checkpoints" / job
        self._table = lake.table_without(variant)
        self._target = f"delta.`{self._table}`"
        self._mutations = f"delta.`{lake.location(folder / 'mutations')}`"
        self._erased = f"delta.`{lake.location(folder / 'erased')}`"
        self._write: Callable[[DataFrame, int], None] = {
            INGESTION: self._ingest,
            MUTATION: self._mutate,
            TTL: self._erase,
        }[job]

    def prepare(self) -> None:
        """Creates the job's own table."""
        made = {
            INGESTION: (self._target, COLUMNS),
            MUTATION: (self._mutations, "alias_id STRING, seq BIGINT, person_id STRING"),
            TTL: (self._erased, "person_id STRING"),
        }
        table, columns = made[self._job]
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta TBLPROPERTIES ({properties})"
        ).collect()

    def run(self) -> bool:
        """Processes all data of the source. Returns False if it failed too often, and gave up."""
        for attempt in range(RESTARTS_MAX + 1):
            if attempt:
                say(self._job, "restarted")
                time.sleep(RESTART_PAUSE_S)
            query = (
                self._records()
                .writeStream.foreachBatch(self._batch)
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            except Exception as error:
                # Any error: a scheduler restarts the job. `_batch` and the log report the error.
                print(error, file=sys.stderr, flush=True)
                continue
            return True
        return False

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        """Writes a micro-batch, again after each conflict; prints when a write to the shared table begins, and how it ends."""
        session = batch.sparkSession
        session.conf.set(USER_METADATA_CONF, json.dumps({"job": self._job, "batch": batch_id}))
        for attempt in range(RETRIES_MAX + 1):
            say(self._job, "began", batch_id)
            try:
                self._write(batch, batch_id)
            except Exception as error:
                is_conflict = isinstance(error, DELTA_CONFLICTS)
                say(self._job, "failed", batch_id, error=type(error).__name__, is_conflict=is_conflict)
                if not is_conflict or attempt == RETRIES_MAX:
                    raise
            else:
                say(self._job, "ended", batch_id)
                return

    def _records(self) -> DataFrame:
        """Returns the source: a folder of files or a topic of JSON records; a file, or a number of offsets, is a micro-batch."""
        if self._servers is None:
            schema = self._spark.read.parquet(str(self._source)).schema
            return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self._source))
        topic = self._source.name
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(BATCH_OFFSETS[topic]),
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        return records.selectExpr(f"from_json(CAST(value AS STRING), '{TOPIC_COLUMNS[topic]}') AS record").select(
            "record.*"
        )

    def _ingest(self, batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("records")
        rows = batch.sparkSession.sql(
            f"""
            WITH latest AS (SELECT alias_id, max_by(person_id, seq) AS person_id FROM {self._mutations} GROUP BY alias_id),
                 named AS (
                     SELECT records.*, coalesce(latest.person_id, records.alias_id) AS person_id
                     FROM records LEFT JOIN latest ON latest.alias_id = records.alias_id)
            SELECT {", ".join(NAMES)} FROM named WHERE NOT EXISTS (
                SELECT 1 FROM {self._erased} AS erased WHERE erased.person_id = named.person_id)
            """
        )
        writer = rows.write.format("delta").mode("append")
        if self._is_careful:
            writer = writer.option("txnAppId", self._job).option("txnVersion", str(batch_id))
        writer.save(self._table)

    def _mutate(self, batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("requests")
        session = batch.sparkSession
        session.sql(
            f"INSERT INTO {self._mutations} SELECT alias_id, seq, new_person_id AS person_id FROM requests"
        ).collect()
        session.sql(
            f"""
            MERGE INTO {self._target} AS target
            USING (
                SELECT asked.alias_id, asked.person_id, erased.person_id IS NOT NULL AS is_erased
                FROM (SELECT alias_id, max_by(new_person_id, seq) AS person_id FROM requests GROUP BY alias_id) AS asked
                LEFT JOIN (SELECT DISTINCT person_id FROM {self._erased}) AS erased
                    ON erased.person_id = asked.person_id) AS request
            ON target.alias_id = request.alias_id
            WHEN MATCHED AND request.is_erased THEN DELETE
            WHEN MATCHED AND target.person_id <> request.person_id THEN UPDATE SET person_id = request.person_id
            """
        ).collect()

    def _erase(self, batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("requests")
        session = batch.sparkSession
        session.sql(f"INSERT INTO {self._erased} SELECT person_id FROM requests").collect()
        session.sql(
            f"""
            MERGE INTO {self._target} AS target
            USING (SELECT DISTINCT person_id FROM requests) AS request ON target.person_id = request.person_id
            WHEN MATCHED THEN DELETE
            """
        ).collect()


def main() -> None:
    """Runs the job in each variant that the input names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kafka")
    parser.add_argument("--s3")
    given = parser.parse_args()
    named: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(named,), daemon=True).start()
    lake = Lake(given.folder, s3=given.s3)
    spark = new_session(
        f"{given.job} without turns",
        conf=lake.conf,
        kafka=given.kafka is not None,
        s3=lake.s3 is not None,
        log_store="auto" if lake.s3 is None else "single_driver",
    )
    jobs = {variant: Plain(given.job, lake, spark, variant, given.kafka) for variant in VARIANTS}
    for plain in jobs.values():
        plain.prepare()
    say(given.job, "ready")
    while True:
        say(given.job, "done" if jobs[named.get()].run() else "gave_up")


def _read_input(named: queue.SimpleQueue[str]) -> None:
    """Reads the variants, and ends this process at the end of its input, which the demo holds open while it lives."""
    for line in sys.stdin:
        named.put(line.strip())
    os._exit(0)


if __name__ == "__main__":
    main()
