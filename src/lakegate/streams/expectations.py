"""Expectations on the records of a stream: which records do not meet them, and what becomes of these records.

A record that does not meet its expectations is a bad record: its reason, in `_lg_bad`, names them, and it takes the way of bad
records. A record that does not parse is not tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakegate.config.streams import Expectation, Otherwise, StreamSpec
from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line
from lakegate.errors import Fault, InvalidRequest
from lakegate.rows.plan_analysis import alone, analysed, obstacles_of
from lakegate.spark.fitting import attempted
from lakegate.spark.sources import BAD, ORDER, POSITION, SOURCE_COLUMNS
from lakegate.telemetry.hook_messages import tallied

UNMET = "does not meet "
"""Begins the reason of a record that does not meet an expectation; their names follow, with commas between."""


def faults_of(records: DataFrame, expectations: Mapping[str, Expectation]) -> Iterator[tuple[str, str]]:
    """Yields name → fault for each expectation that cannot be tested on records, or whose result may differ in a replay."""
    jvm, records = Jvm(records.sparkSession), records.drop(*SOURCE_COLUMNS)
    for name, one in expectations.items():
        try:
            with jvm.active():
                # As a filter: Spark then refuses aggregates, windows, and what is not true or false.
                condition = analysed(records.where(F.expr(one.where))).condition()
                obstacles = obstacles_of(jvm, alone(jvm, condition), "it")
        except JVM_ERRORS as error:
            obstacles = [first_line(error)]
        if obstacles:
            yield name, f"{one.where!r}: {', '.join(obstacles)}"


def with_unmet(spec: StreamSpec, batch: DataFrame) -> DataFrame:
    """Marks the records that do not meet an expectation as bad; NULL, and an evaluation that raises, do not meet it.

    Raises:
        InvalidRequest: An expectation cannot be tested; see `faults_of`.
    """
    if not spec.expect:
        return batch
    faults = [
        Fault(where=f"streams.{spec.name}.expect.{name}.where", what=what)
        for name, what in faults_of(batch, spec.expect)
    ]
    if faults:
        raise InvalidRequest(faults=faults)
    unmet = [
        F.when(~F.coalesce(attempted(F.expr(one.where))[0], F.lit(False)), F.lit(name))
        for name, one in spec.expect.items()
    ]
    names = F.concat_ws(", ", *unmet)
    return batch.withColumn(BAD, F.coalesce(BAD, F.when(names != "", F.concat(F.lit(UNMET), names))))


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCounts:
    """The numbers of bad records in a batch."""

    letters: int = 0
    """Records that are set aside."""
    unmet: Mapping[str, int]
    """Expectation → records that do not meet it; those with none are left out."""
    first: tuple[str, str] | None = None
    """Position and reason of the first record that stops the stream."""


def becomes(spec: StreamSpec, otherwise: Otherwise) -> Column:
    """Returns a test of whether this becomes of a bad record: of several treatments `fail` counts first, `drop` last."""
    stops, kept = _asks(spec, "fail"), _asks(spec, "dead_letter")
    return {"fail": stops, "dead_letter": ~stops & kept, "drop": ~stops & ~kept}[otherwise]


def _asks(spec: StreamSpec, otherwise: Otherwise) -> Column:
    """Returns a test of whether the stream's policy, or an expectation that a bad record does not meet, asks for a treatment."""
    asking = [is_unmet(name) for name, one in spec.expect.items() if one.otherwise == otherwise]
    found = F.lit(spec.on_bad_record == otherwise) & ~F.startswith(BAD, F.lit(UNMET))
    for one in asking:
        found |= one
    return found


def is_unmet(name: str) -> Column:
    """Returns a test of whether a bad record does not meet an expectation; by its reason."""
    names = F.split(F.substr(BAD, F.lit(len(UNMET) + 1)), ", ")
    return F.startswith(BAD, F.lit(UNMET)) & F.array_contains(names, name)


def counted(spec: StreamSpec, bad: DataFrame) -> BadCounts:
    """Counts the bad records of a batch, in one Spark job."""
    stopping = F.when(becomes(spec, "fail"), F.struct(ORDER, POSITION, BAD))
    row = bad.agg(
        F.count_if(becomes(spec, "dead_letter")).alias("letters"),
        F.min(stopping).alias("first"),
        *[F.count_if(is_unmet(name)).alias(f"unmet {name}") for name in spec.expect],
    ).collect()[0]
    unmet = {name: row[f"unmet {name}"] for name in spec.expect if row[f"unmet {name}"]}
    first = None if row["first"] is None else (row["first"][POSITION] or "?", row["first"][BAD])
    return BadCounts(letters=row["letters"], unmet=unmet, first=first)


def stopped(spec: StreamSpec, position: str, reason: str, unmet: Mapping[str, int]) -> InvalidRequest:
    """Returns the error for a batch with a record that stops the stream.

    Args:
        spec: The stream.
        position: The place of the first such record.
        reason: Its reason.
        unmet: Expectation → number of records that do not meet it.
    """
    nothing = "the batch was not written and the checkpoint stays"
    if not reason.startswith(UNMET):
        return InvalidRequest(
            f"a record of {spec.name} {reason}; {nothing}",
            advice="Correct the record, or set `on_bad_record: dead_letter`",
            position=position,
        )
    stops = {name: count for name, count in unmet.items() if spec.expect[name].otherwise == "fail"}
    return InvalidRequest(
        f"records of {spec.name} do not meet an expectation: {tallied(stops)}; {nothing}",
        advice="Correct the records, or give the expectation `otherwise: dead_letter` or `otherwise: drop`",
        position=position,
    )
