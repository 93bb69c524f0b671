"""Runs a statement through the publisher of its driver, and tells how it ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from headgate.core.ids import TableLocation
from headgate.delta.commits import commit_info
from headgate.delta.dml import Dml
from headgate.delta.jvm import Jvm, check_jvm
from headgate.delta.publish import Publisher
from headgate.tables.result import Result, result_of

_guard = threading.Lock()
_publishers: dict[str, Publisher] = {}


def publisher(spark: SparkSession) -> Publisher:
    """The one of a session's JVM.

    Raises:
        MissingExtra: The session was made without Delta, or without Headgate's jar.
        UnsupportedTable: It has another Delta than this release was made for.
    """
    application = str(spark.sparkContext.applicationId)
    with _guard:
        if application not in _publishers:
            check_jvm(spark)
            _publishers.clear()  # a driver has one application at a time
            _publishers[application] = Publisher(spark)
        return _publishers[application]


def run(dml: Dml) -> Result:
    """Execute a statement and get its commit into the table."""
    outcome = publisher(dml.session).publish(dml)

    def read_info(version: int) -> Mapping[str, Any]:
        jvm = Jvm(dml.session)
        log = jvm.delta_log(dml.table)
        return commit_info(jvm.read_text(log, jvm.path(log.logPath(), f"{version:020d}.json")) or "")

    return result_of(outcome, read_info)


def location_of(jdt: Any) -> TableLocation:
    """Of the table of a stock `DeltaTable`'s JVM object."""
    return TableLocation(str(jdt.deltaLog().dataPath().toString()))
