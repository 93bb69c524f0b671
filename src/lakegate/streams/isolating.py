"""Finds the records for which user code raises, as a Python function or a UDF: Spark ends the whole batch for one of them.

Only after a batch has failed: it is evaluated in halves until single records are left, so a good batch costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakegate.delta.idempotent_writes import conflict_name
from lakegate.delta.jvm import JVM_ERRORS, is_lost
from lakegate.spark.sources import BAD, ORDER, RAW
from lakegate.streams.bad_records import JSON, column, payload

FOUND_MAX = 100
"""So many records of a batch are set aside in this way; a function that raises for more of them is wrong itself."""
REASON = "cannot be computed: the stream's function or an expression raises"


def may_be_of_a_row(error: BaseException) -> bool:
    """Whether what ended a batch may be the fault of single records."""
    if not isinstance(error, JVM_ERRORS) or isinstance(error, AnalysisException):
        return False
    if is_lost(error) or conflict_name(error) is not None:
        return False
    return isinstance(error, PySparkException) or "PythonException" in str(error) or "SparkRuntime" in str(error)


def without_raising(batch: DataFrame, evaluated: Callable[[DataFrame], DataFrame]) -> DataFrame | None:
    """The batch with the records marked as bad for which its evaluation raises; None if that is not the fault of single records.

    Args:
        batch: A micro-batch of the source.
        evaluated: What the stream makes of a batch.
    """
    place = F.xxhash64(ORDER)  # positions repeat where a file is read in several parts
    good = batch.where(F.col(BAD).isNull())
    try:
        places = sorted(row[0] for row in good.select(place).distinct().collect())
    except JVM_ERRORS:
        return None  # reading the source is what raises
    found: list[int] = []

    def raises(among: Sequence[int]) -> bool:
        part = good.where(place.between(among[0], among[-1]))
        try:
            evaluated(part).write.format("noop").mode("overwrite").save()
        except JVM_ERRORS as error:
            if is_lost(error):
                raise
            return True
        return False

    pending: list[Sequence[int]] = [places] if places else []
    while pending:
        among = pending.pop()
        if not raises(among):
            continue
        if len(among) > 1:
            pending += [among[len(among) // 2 :], among[: len(among) // 2]]
            continue
        found += among
        if len(found) > FOUND_MAX:
            return None
    if not found or (len(found) == len(places) and len(found) > 1):
        return None  # what raises for every record is wrong itself
    is_bad: Column = F.col(BAD).isNull() & place.isin(found)
    names = payload(batch)
    text = F.coalesce(RAW, F.to_json(F.struct(*map(column, names)), JSON)) if names else F.col(RAW)
    return batch.withColumns(
        {RAW: F.when(is_bad, text).otherwise(F.col(RAW)), BAD: F.when(is_bad, F.lit(REASON)).otherwise(F.col(BAD))}
    )
