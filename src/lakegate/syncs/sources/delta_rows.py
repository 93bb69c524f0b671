"""Reads rows of a DataFrame in a form for targets (moments in UTC, nested values as JSON): one by one, or in parts on executors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType, TimestampType

from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import Unavailable
from lakegate.quoting import quoted
from lakegate.syncs.plan.change import Image

COME = "_lakegate_come"
"""The column that is true for an inserted row and false for a deleted row."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Decoder = Callable[[Any], Any]


def read_rows(frame: DataFrame, order: Sequence[str], *, is_local: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the rows of a DataFrame, sorted by some of its columns. With `is_local` the driver has them: no Spark job is run."""
    fields = frame.schema.fields
    names, decoders = [one.name for one in fields], [_decoder(one.dataType) for one in fields]
    rows: Iterable[Row]
    if is_local:
        rows = sorted(frame.selectExpr(*_coded(fields)).collect(), key=lambda row: [row[name] for name in order])
    else:
        frame = frame.sort(*order) if order else frame
        rows = frame.selectExpr(*_coded(fields)).toLocalIterator(prefetchPartitions=True)
    return (dict(zip(names, row, strict=True)) for row in _decoded(rows, decoders))


def _decoded(rows: Iterable[Row], decoders: Sequence[Decoder | None]) -> Iterator[Sequence[object]]:
    to_decode = [(place, decode) for place, decode in enumerate(decoders) if decode is not None]
    for row in rows:
        if not to_decode:
            yield row
            continue
        values = list(row)
        for place, decode in to_decode:
            if values[place] is not None:
                values[place] = decode(values[place])
        yield values


def _coded(fields: Sequence[StructField]) -> list[str]:
    return [f"{_column(quoted(one.name), one.dataType)} AS {quoted(one.name)}" for one in fields]


def _column(name: str, kind: DataType) -> str:
    if isinstance(kind, TimestampType):
        return f"unix_micros({name})"  # as a number: PySpark would convert to the machine's time zone
    if isinstance(kind, StructType | ArrayType | MapType) or kind.typeName() == "variant":
        return f"to_json({name})"
    return name


def _decoder(kind: DataType) -> Decoder | None:
    if isinstance(kind, TimestampType):
        return _moment
    return bytes if isinstance(kind, BinaryType) else None


def _moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyFrameRows:
    """The rows of a DataFrame, read on the executors. See `ManyRows`."""

    frame: DataFrame
    """Whether a row was inserted, then its values, encoded."""
    columns: tuple[str, ...]
    decoders: tuple[Decoder | None, ...]
    parts: Mapping[int, int]
    """Partition → number of rows."""
    gone: int
    put: int
    is_whole: bool

    @classmethod
    def of(cls, frame: DataFrame, *, is_whole: bool) -> ManyFrameRows:
        """Returns the rows of a DataFrame with the column `COME`. Counts them, which reads the files' footers."""
        fields = [one for one in frame.schema.fields if one.name != COME]
        counts = frame.groupBy(F.spark_partition_id().alias("part"), F.col(COME).alias("come")).count().collect()
        parts = Counter[int]()
        for row in counts:
            parts[row["part"]] += row["count"]
        return cls(
            frame=frame.selectExpr(COME, *_coded(fields)),
            columns=tuple(one.name for one in fields),
            decoders=(None, *(_decoder(one.dataType) for one in fields)),
            parts=parts,
            gone=sum(row["count"] for row in counts if not row["come"]),
            put=sum(row["count"] for row in counts if row["come"]),
            is_whole=is_whole,
        )

    def sample(self) -> Image | None:
        row = self.frame.first()
        return None if row is None else dict(zip(self.columns, next(_decoded([row], self.decoders))[1:], strict=True))

    def rows(self) -> Iterator[Sequence[object]]:
        yield from _decoded(self.frame.toLocalIterator(prefetchPartitions=True), self.decoders)

    def spread(self, write: Callable[[int, int, Iterator[Sequence[object]]], str | None]) -> Sequence[str]:
        starts = [0, *accumulate(self.parts.get(part, 0) for part in range(max(self.parts, default=-1) + 1))]
        decoders = self.decoders

        def written(part: int, rows: Iterable[Row]) -> Iterator[str]:
            first, end = (starts[min(one, len(starts) - 1)] for one in (part, part + 1))
            said = write(first, end, _decoded(rows, decoders))
            if said is not None:
                yield said

        try:
            return list(self.frame.rdd.mapPartitionsWithIndex(written).collect())
        except (PySparkException, *JVM_ERRORS) as error:
            raise Unavailable(f"rows could not be staged: {_reason(str(error))}; nothing was applied") from error


def _reason(said: str) -> str:
    """Returns the Python error within a long text of Spark."""
    lines = [line.strip() for line in said.strip().splitlines()]
    return next((line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)), lines[0])
