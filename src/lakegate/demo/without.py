"""The same three jobs without turns: plain Structured Streaming on stock Delta, as an expert would write it.

    python -m lakegate.demo.without JOB FOLDER [--kafka SERVERS] [--s3 URL]

They are written with care. Mutation and TTL store every request in tables that only they write, so that Ingestion writes a
later record under the right person, or not at all. Mutation deletes rows that it would move to an erased person. A batch of
requests may be repeated without harm. A job whose query fails is restarted from its checkpoint. Run one after another, in any
order of their batches, they give exactly the right table. They lack an order of writers, and an append is not tied to its
micro-batch (no `txnAppId`, `txnVersion`), so that a repeated append duplicates rows.

On a local disk they use the same session as the jobs with turns: its log store is put-if-absent, so no commit is
overwritten. On S3 they use Delta's default: its log store for a single driver.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakegate.delta.idempotent_writes import DELTA_CONFLICTS
from lakegate.demo.expected import COLUMNS as NAMES
from lakegate.demo.lake import COLUMNS, INGESTION, JOBS, MUTATION, PROPERTIES, TTL, Lake
from lakegate.demo.records import BATCH_OFFSETS, FOLDERS, TOPIC_COLUMNS
from lakegate.errors import Unavailable
from lakegate.runtime import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESTARTS_MAX = 10
RESTART_PAUSE_S = 1.0
START_S = 300.0
"""How long a job waits for the others at the start: three JVMs on a busy machine."""


def say(job: str, what: str, batch: int | None = None, **facts: object) -> None:
    """Prints a line of JSON on standard output about the job's current action."""
    line = {"job": job, "what": what, "batch": batch, "at_ms": time.time_ns() // 1_000_000, **facts}
    print(json.dumps(line), flush=True)


class Plain:
    """A job, its tables and its query."""

    def __init__(self, job: str, lake: Lake, spark: SparkSession, servers: str | None = None) -> None:
        self._job, self._spark, self._servers = job, spark, servers
        self._source = lake.inputs / FOLDERS[JOBS.index(job)]
        self._ready = lake.without / "ready"
        self._checkpoint = lake.without / "checkpoints" / job
        self._target = f"delta.`{lake.table_without}`"
        self._mutations = f"delta.`{lake.location(lake.without / 'mutations')}`"
        self._erased = f"delta.`{lake.location(lake.without / 'erased')}`"
        self._write: Callable[[DataFrame, int], None] = {
            INGESTION: self._ingest,
            MUTATION: self._mutate,
            TTL: self._erase,
        }[job]

    def prepare(self) -> None:
        """Creates the job's own table, and waits until all three jobs are up, as in a running system.

        Raises:
            Unavailable: another job did not start.
        """
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
        self._ready.mkdir(parents=True, exist_ok=True)
        (self._ready / self._job).touch()
        deadline_s = time.monotonic() + START_S
        while len(list(self._ready.iterdir())) < len(JOBS):
            if time.monotonic() > deadline_s:
                raise Unavailable(f"not all jobs came up within {START_S:g} s; nothing was written")
            time.sleep(0.02)

    def run(self) -> bool:
        """Processes all data of the source. Returns False if it failed too often, and gave up."""
        for attempt in range(RESTARTS_MAX + 1):
            if attempt:
                say(self._job, "restarted")
                time.sleep(RESTART_PAUSE_S)
            query = (
                self._records()
                .writeStream.foreachBatch(self._write)
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
            except Exception as error:
                # Any error: a scheduler restarts the job. `_writing` and the log report the error.
                print(error, file=sys.stderr, flush=True)
                continue
            return True
        return False

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
        with self._writing(batch_id):
            rows.write.format("delta").mode("append").save(self._target.removeprefix("delta.").strip("`"))

    def _mutate(self, batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("requests")
        session = batch.sparkSession
        session.sql(
            f"INSERT INTO {self._mutations} SELECT alias_id, seq, new_person_id AS person_id FROM requests"
        ).collect()
        with self._writing(batch_id):
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
        with self._writing(batch_id):
            session.sql(
                f"""
                MERGE INTO {self._target} AS target
                USING (SELECT DISTINCT person_id FROM requests) AS request ON target.person_id = request.person_id
                WHEN MATCHED THEN DELETE
                """
            ).collect()

    @contextmanager
    def _writing(self, batch_id: int) -> Iterator[None]:
        """Prints when the write to the shared table begins, and how it ends."""
        say(self._job, "began", batch_id)
        try:
            yield
        except BaseException as error:
            is_conflict = isinstance(error, DELTA_CONFLICTS)
            say(self._job, "failed", batch_id, error=type(error).__name__, is_conflict=is_conflict)
            raise
        say(self._job, "ended", batch_id)


def main() -> int:
    """Runs one job to its end; returns 0 if it processed everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kafka")
    parser.add_argument("--s3")
    given = parser.parse_args()
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    lake = Lake(given.folder, s3=given.s3)
    spark = new_session(
        f"{given.job} without turns",
        conf=lake.conf,
        kafka=given.kafka is not None,
        s3=lake.s3 is not None,
        log_store="auto" if lake.s3 is None else "single_driver",
    )
    plain = Plain(given.job, lake, spark, given.kafka)
    plain.prepare()
    return 0 if plain.run() else 1


def _end_with_the_demo() -> None:
    """Ends this process at the end of its input, which the demo holds open while it lives."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
