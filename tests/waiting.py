"""Waiting with a limit: for a condition, or for a commit that the gate holds; and rows that are computed once a test allows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

WAIT_S_MAX = 120


def waits_for(df: DataFrame, started: Path, released: Path) -> DataFrame:
    """`df`, computed no sooner than the file `released` is there; makes `started` when the computation begins."""

    def wait(value):  # with hints Spark takes it for a pandas function
        started.touch()
        deadline = time.monotonic() + WAIT_S_MAX
        while not released.exists():
            assert time.monotonic() < deadline, "nobody released the statement"
            time.sleep(0.02)
        return value

    return df.withColumn("id", F.udf(wait, "bigint")("id"))


def is_held(session: SparkSession) -> bool:
    """Returns whether a commit waits in the gate."""
    jvm = session._jvm
    assert jvm is not None
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean().dumpAllThreads(False, False)
    return any("lakegate.Gate.pause" in str(thread.toString()) for thread in threads)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Polls, with a limit."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
