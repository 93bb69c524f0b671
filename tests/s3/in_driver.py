"""Functions that a test may call in a Spark driver on S3; each runs there, and its result goes back as JSON.

python -m tests.s3.in_driver CONF
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.gate import JOB_CONF, Gate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import LakegateError
from lakegate.ids import TableLocation
from lakegate.rows.publish import Publish
from lakegate.spark.checkpoint import Checkpoint
from lakegate.spark.session import require_fit
from lakegate.streams.maintenance.statements import CHECK_CONF
from tests.cli import command as commands


def make(spark: SparkSession, table: str) -> None:
    """A table of twenty rows in two files, and a file that it has no more."""
    for mode, first in (("overwrite", 0), ("overwrite", 0), ("append", 10)):
        spark.range(first, first + 10).coalesce(1).write.format("delta").mode(mode).save(table)


def statements(spark: SparkSession, table: str) -> dict[str, Callable[[], object]]:
    """A few of what stock Delta commits; all of it is in tests/delta/test_gate.py."""

    def vacuum() -> None:
        with confs(spark, {CHECK_CONF: "false"}):
            spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")

    return {
        "append": lambda: spark.range(20, 21).coalesce(1).write.format("delta").mode("append").save(table),
        "delete": lambda: spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1"),
        "optimize": lambda: spark.sql(f"OPTIMIZE delta.`{table}`"),
        "vacuum": vacuum,
    }


def publish(spark: SparkSession, one: str, other: str, dies: bool) -> list[dict[str, int]]:
    """Publishes a row in both tables; the publisher may die after its decision. Returns the versions and the rows of both."""
    real = Publish._put_data

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    if dies:
        Publish._put_data, Publish._is_aborted = die, lambda self: True  # type: ignore[method-assign]
    made = None
    try:
        with lakegate.publish(spark, [one, other]) as made:
            for table in (one, other):
                lakegate.sql(spark, f"INSERT INTO delta.`{table}` VALUES (100)")
    except KeyboardInterrupt:
        Publish._put_data = real  # type: ignore[method-assign]
    now = lakegate.snapshot(spark, [one, other])
    return [
        dict(made.versions) if made else {},
        now.versions,
        {table: now.read(table).count() for table in (one, other)},
    ]


def outside_of_its_turn(spark: SparkSession, table: str) -> dict[str, str]:
    """Statement → what it is refused with, while another job has the turn; empty if it is not."""
    gate, location = Gate(spark), TableLocation(table)
    gate.govern(location)
    gate.grant(location, "Ingestion", 3, 600_000)
    said = {}
    for name, work in statements(spark, table).items():
        try:
            work()
        except JVM_ERRORS as refused:
            said[name] = str(refused)
        else:
            said[name] = ""
    return said


def in_its_turn(spark: SparkSession, table: str) -> list[str]:
    """Returns the operations of the same statements from the table's history, the oldest first."""
    gate, location = Gate(spark), TableLocation(table)
    gate.grant(location, "A", 4, 600_000)
    with confs(spark, {JOB_CONF: "A"}):
        for work in statements(spark, table).values():
            work()
    gate.release(location)
    return [str(row.operation) for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()][::-1]


def session_with(spark: SparkSession, log_store: str, conf: dict[str, str]) -> str:
    """Returns the error that refuses the running session, or "fit"."""
    return _refused(lambda: lakegate.session("again", s3=True, log_store=log_store, conf=conf))


def own_settings(spark: SparkSession, conf: dict[str, str]) -> list[str]:
    """The same for a session of one's own with other settings; and for a checkpoint on S3 that it would write."""
    own = spark.newSession()
    for key, value in conf.items():
        own.conf.set(key, value)
    return [
        _refused(lambda: require_fit(own, s3=True)),
        _refused(lambda: Checkpoint(own, "s3a://lake/checkpoints/own")),
    ]


def statement(spark: SparkSession, text: str) -> list[Any]:
    """Exit status and words of the error that a statement ends with."""
    try:
        lakegate.sql(spark, text)
    except LakegateError as error:
        return [error.exit_code, str(error)]
    return [0, ""]


def command(spark: SparkSession, *arguments: str) -> list[Any]:
    """Exit status and errors of `lakegate ARGUMENTS`, with the session that runs."""
    ran = commands.lakegate(*arguments)
    return [ran.code, ran.err]


def _refused(work: Callable[[], object]) -> str:
    try:
        work()
    except LakegateError as error:
        return str(error)
    return "fit"


STEPS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (make, outside_of_its_turn, in_its_turn, session_with, own_settings, statement, command, publish)
}


def main(conf: str) -> None:
    """Answers until its input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark prints is no answer
    spark = lakegate.session("asked", s3=True, conf=json.loads(conf))
    print("ready", file=answers)
    for line in sys.stdin:
        step, arguments = json.loads(line)
        try:
            answer = {"answer": STEPS[step](spark, *arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
