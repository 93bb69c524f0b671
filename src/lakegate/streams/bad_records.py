"""Records on their way into a table: good and bad records, the user's function, and dead letters.

Where a bad record must stop the batch, an error inside Spark's own job stops it and names the record. So a good batch is not
read twice only to check it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakegate.config import StreamSpec
from lakegate.delta.idempotent_writes import append, create_table
from lakegate.delta.jvm import scala_object
from lakegate.errors import InvalidRequest
from lakegate.quoting import quoted
from lakegate.rows.plan_analysis import PATTERNS
from lakegate.spark.sources import BAD, ORDER, POSITION, RAW, RECORD, SOURCE_COLUMNS
from lakegate.streams.expectations import UNMET, BadCounts, becomes, counted, stopped, with_unmet
from lakegate.streams.interfaces import DEAD_LETTERS, BatchTurn, StreamContext

_MARK = "lakegate: bad record"
_MESSAGE = re.compile(rf"{_MARK} \[\[(.*?)\]\] \[\[(.*?)\]\]", re.DOTALL)
LETTER_COLUMNS = "raw STRING, reason STRING, position STRING, batch BIGINT, at_ms BIGINT"
NONE_BAD = BadCounts(unmet={})
LETTER_PROPERTIES = {"delta.dataSkippingNumIndexedCols": "0"}
"""Nobody uses statistics of these texts, and they would stay in the log for a month after the texts were deleted."""


def column(name: str) -> Column:
    """A column by its exact name, whatever characters it contains."""
    return F.col(quoted(name))


def payload(frame: DataFrame) -> list[str]:
    """The record's own columns."""
    return [name for name in frame.columns if name not in SOURCE_COLUMNS]


JSON = {
    # As exact as the values are: a record that is set aside may be sent again.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def remembered(frame: DataFrame) -> DataFrame:
    """Returns a frame that keeps each original record in `_lg_record`, whatever happens to its columns."""
    names = payload(frame)
    return frame.withColumn(
        RECORD, F.struct(*map(column, names)) if names else F.lit(None).cast("struct<nothing: int>")
    )


def with_text(frame: DataFrame) -> DataFrame:
    """Returns a frame with the text of each bad record in `_lg_raw`: the text that did not parse, else the columns as JSON."""
    text = F.coalesce(RAW, F.to_json(RECORD, JSON))
    return frame.withColumn(RAW, F.when(F.col(BAD).isNotNull(), text)).drop(RECORD)


def transformed(
    spec: StreamSpec, batch: DataFrame, computed: Callable[[DataFrame], DataFrame] | None = None
) -> DataFrame:
    """Applies the user's function to the records that parse, tests expectations, and applies `computed` to those that meet them.

    Each record is evaluated once. A record that parses keeps its position in the source as long as the function keeps the `_lg_`
    columns.
    """
    expected = partial(with_unmet, spec)
    if spec.transform is None:
        batch = over_good(batch, expected) if spec.expect else batch
        return batch if computed is None else over_good(batch, computed)
    is_strict = spec.on_bad_record == "fail"
    good = spec.transform(refuse_bad(batch) if is_strict else batch.where(F.col(BAD).isNull()))
    if not isinstance(good, DataFrame):
        raise InvalidRequest(
            f"the function of {spec.name} gave back {type(good).__name__}; nothing was written",
            advice="Return a DataFrame",
        )
    if ORDER not in good.columns:
        # Rows without a position are numbered in the order in which Spark returns them.
        good = good.withColumn(ORDER, F.struct(F.monotonically_increasing_id().alias("row")))
        batch = batch.withColumn(ORDER, F.struct(F.monotonically_increasing_id().alias("row")))
    for name in (POSITION, BAD, RAW):
        if name not in good.columns:
            good = good.withColumn(name, F.lit(None).cast("string"))
    good = expected(good)
    if computed is not None:
        good = over_good(good, computed) if spec.expect else computed(good)
    return good if is_strict else _with_bad(good, batch)


def over_good(batch: DataFrame, computed: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Applies `computed` to a batch. Bad records get no values.

    Spark evaluates a Python UDF for every row that it reads, even inside a CASE branch that is not chosen. So a batch with a UDF
    is read twice: once for the good records, once for the bad ones.
    """
    whole = computed(batch)
    if not _has_python(whole):
        return whole
    return _with_bad(computed(batch.where(F.col(BAD).isNull())), batch)


def _with_bad(good: DataFrame, batch: DataFrame) -> DataFrame:
    bad = with_text(remembered(batch)).where(F.col(BAD).isNotNull()).select(ORDER, POSITION, BAD, RAW)
    return good.unionByName(bad, allowMissingColumns=True)


def _has_python(frame: DataFrame) -> bool:
    jdf: Any = frame._jdf
    pattern = scala_object(frame.sparkSession._jvm, PATTERNS).PYTHON_UDF()
    return bool(jdf.queryExecution().analyzed().containsPattern(pattern))


def refuse_bad(frame: DataFrame) -> DataFrame:
    """Returns the same rows; the first bad one stops the job (see `refusals`)."""
    told = F.concat(F.lit(f"{_MARK} [["), F.coalesce(POSITION, F.lit("?")), F.lit("]] [["), F.col(BAD), F.lit("]]"))
    return frame.where(F.assert_true(F.col(BAD).isNull(), told).isNull())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """The records of a batch, parted into those that fit and the others."""

    whole: DataFrame
    """All records; bad ones have a reason."""
    good: DataFrame
    bad: DataFrame | None
    """None where each bad record stops the stream: then it stops the job that reads `good` (see `refusals`)."""
    cached: DataFrame | None


def parted(spec: StreamSpec, whole: DataFrame, *, is_kept: bool = False) -> Parted:
    """Parts the records of a batch; `is_kept`: they will be read more than once."""
    if not spec.sets_aside:
        good = refuse_bad(whole)
        return Parted(whole=whole, good=good, bad=None, cached=good.persist() if is_kept else None)
    cached = whole.persist()
    good, bad = cached.where(F.col(BAD).isNull()), cached.where(F.col(BAD).isNotNull())
    return Parted(whole=whole, good=good, bad=bad, cached=cached)


@contextmanager
def refusals(spec: StreamSpec, whole: DataFrame | None = None) -> Iterator[None]:
    """Raises InvalidRequest for a bad record that stopped a job (see `refuse_bad`), with its reason and position.

    Args:
        spec: The stream.
        whole: The records of the batch, if some may not meet an expectation: these are counted.
    """
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, PySparkException) else f"{error}{getattr(error, 'java_exception', '')}"
        found = _MESSAGE.search(text)
        if found is None:
            raise
        unmet: Mapping[str, int] = {}
        if whole is not None and found[2].startswith(UNMET):
            unmet = counted(spec, whole.where(F.col(BAD).isNotNull())).unmet
        raise stopped(spec, found[1], found[2], unmet) from error


def refuse_stored(spec: StreamSpec, refused: Mapping[str, str]) -> None:
    """Raises InvalidRequest for requests that the table refuses, if `on_bad_record` is `fail`.

    Args:
        spec: The stream.
        refused: Request id → reason.
    """
    if spec.on_bad_record != "fail":
        return
    id_, reason = next(iter(refused.items()))
    raise InvalidRequest(
        f"a request of {spec.name} {reason}; it is stored, and it was not applied, nor were those after it",
        advice=f"Correct it or take it out: lakegate dead-letters list {spec.name}. Or set `on_bad_record: dead_letter`",
        request=id_,
    )


def set_aside(
    turn: BatchTurn, context: StreamContext, spec: StreamSpec, bad: DataFrame | None, batch_id: int
) -> BadCounts:
    """Writes the bad records of a batch to the dead letters, but for those that are dropped; returns their numbers.

    Raises:
        InvalidRequest: One of them stops the stream; nothing was written.
    """
    if bad is None:
        return NONE_BAD
    counts = counted(spec, bad)
    if counts.first is not None:
        raise stopped(spec, *counts.first, counts.unmet)
    if counts.letters == 0:
        return counts
    location = context.dead_letters_of(spec)
    letters = bad.where(becomes(spec, "dead_letter")).select(
        F.coalesce(RAW, F.to_json(F.struct(*map(column, payload(bad))), JSON)).alias("raw"),
        F.col(BAD).alias("reason"),
        F.col(POSITION).alias("position"),
        F.lit(batch_id).cast("bigint").alias("batch"),
        F.lit(context.clock.wall_ms()).cast("bigint").alias("at_ms"),
    )
    if context.log.head(location) < 0:
        create_table(context.session, location, LETTER_COLUMNS, properties=LETTER_PROPERTIES)
    turn.enter(location)
    turn.write(
        location, step=DEAD_LETTERS, name="dead_letters", statement=lambda token: append(letters, location, token)
    )
    return counts
