"""Finds the records for which user code (a Python function, a UDF) raises. Spark fails the whole batch for one such record.

The search runs only after a batch has failed: the batch is evaluated in halves down to single records. A good batch costs nothing.
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
"""At most so many records of a batch are set aside in this way; a function that raises for more of them is wrong itself."""
REASON = "cannot be computed: the stream's function or an expression raises"


def may_be_of_a_row(error: BaseException) -> bool:
    """Returns True if the error of a batch may come from single records."""
    if not isinstance(error, JVM_ERRORS) or isinstance(error, AnalysisException):
        return False
    if is_lost(error) or conflict_name(error) is not None:
        return False
    return isinstance(error, PySparkException) or "PythonException" in str(error) or "SparkRuntime" in str(error)


def without_raising(batch: DataFrame, evaluated: Callable[[DataFrame], DataFrame]) -> DataFrame | None:
    """Marks as bad the records for which the batch's evaluation raises; None if the error does not come from single records.

    Args:
        batch: A micro-batch of the source.
        evaluated: Computes the stream's result of a batch.
    """
    place = F.xxhash64(ORDER)  # positions repeat where a file is read in several parts
    good = batch.where(F.col(BAD).isNull())
    try:
        places = sorted(row[0] for row in good.select(place).distinct().collect())
    except JVM_ERRORS:
        return None  # the source itself cannot be read
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
        return None  # an expression that raises for every record is wrong itself
    is_bad: Column = F.col(BAD).isNull() & place.isin(found)
    names = payload(batch)
    text = F.coalesce(RAW, F.to_json(F.struct(*map(column, names)), JSON)) if names else F.col(RAW)
    return batch.withColumns(
        {RAW: F.when(is_bad, text).otherwise(F.col(RAW)), BAD: F.when(is_bad, F.lit(REASON)).otherwise(F.col(BAD))}
    )
