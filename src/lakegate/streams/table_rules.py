"""The rules that a table imposes on each row: NOT NULL, CHECK, invariants, lengths and generated values; as tests of single rows.

Delta evaluates them during the write, and a single row that breaks a rule fails the whole write. Here each rule is a test over
a row with all columns of the table. If a user's expression raises for a row, it has no value for that row.
Source: Delta protocol, "Column Invariants", "CHECK Constraints", "Generated Columns".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from lakegate.delta.jvm import JVM_ERRORS
from lakegate.delta.table_log import TableMetadata
from lakegate.spark.fitting import attempted
from lakegate.spark.sources import BAD
from lakegate.streams.bad_records import column

CONSTRAINT = "delta.constraints."
GENERATED, DEFAULT, IDENTITY, INVARIANT = (
    "delta.generationExpression",
    "CURRENT_DEFAULT",
    "delta.identity.start",
    "delta.invariants",
)
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that a table imposes on each row."""

    reason: str
    """The reason given for a row that breaks the rule; names only, no values."""
    is_broken: Column
    """Test over a row with all columns of the table; never NULL, and never raises."""
    text: str
    """Text with the names of the columns that the rule depends on, and maybe others."""

    def may_hang_on(self, names: Collection[str]) -> bool:
        """Returns True if the rule may depend on one of these columns."""
        return any(name.lower() in self.text for name in names)


def rules_of(metadata: TableMetadata, given: Sequence[str] | None = None) -> list[Rule]:
    """Returns the rules that a table imposes on each row.

    Args:
        metadata: The table's definition.
        given: Columns whose values the caller gives; Delta fills the others. None: all columns.
    """
    names = None if given is None else {name.lower() for name in given}
    unknown = {
        field.name for field in metadata.schema.fields if IDENTITY in field.metadata and not _is_in(field, names)
    }
    found = [*_not_null(metadata.schema, names), *_lengths(metadata.schema)]
    for field in metadata.schema.fields:
        if GENERATED in field.metadata and _is_in(field, names):
            value, is_raised = attempted(F.expr(field.metadata[GENERATED]))
            is_other = is_raised | ~column(field.name).eqNullSafe(value.cast(field.dataType))
            reason = f"does not fit: {field.name} is not its generated value"
            found.append(Rule(reason=reason, is_broken=is_other, text=_text(field.name, field.metadata[GENERATED])))
        elif GENERATED in field.metadata:
            _, is_raised = attempted(F.expr(field.metadata[GENERATED]))
            reason = f"does not fit: the generated value of {field.name} cannot be computed"
            found.append(Rule(reason=reason, is_broken=is_raised, text=_text(field.metadata[GENERATED])))
    # Last: constraints may refer to generated values.
    return [*found, *_checks(metadata, unknown)]


def _text(*words: str) -> str:
    return " ".join(words).replace("``", "`").lower()


def _is_in(field: StructField, names: set[str] | None) -> bool:
    return names is None or field.name.lower() in names


def _checks(metadata: TableMetadata, unknown: set[str]) -> Iterator[Rule]:
    said = {
        name.removeprefix(CONSTRAINT): sql for name, sql in metadata.properties.items() if name.startswith(CONSTRAINT)
    }
    for field in metadata.schema.fields:
        if INVARIANT in field.metadata:
            said[f"of {field.name}"] = str(json.loads(field.metadata[INVARIANT])["expression"]["expression"])
    for name, sql in sorted(said.items()):
        if any(re.search(rf"(?i)\b{re.escape(one)}\b", sql) for one in unknown):
            continue  # Delta assigns the identity value when it writes the row
        holds, _ = attempted(F.expr(sql).cast("boolean"))
        # As in Delta, NULL does not pass.
        yield Rule(
            reason=f"violates the constraint {name}", is_broken=~F.coalesce(holds, F.lit(False)), text=_text(sql)
        )


def _not_null(schema: StructType, names: set[str] | None) -> Iterator[Rule]:
    for field in schema.fields:
        is_filled = any(name in field.metadata for name in (GENERATED, IDENTITY)) and not _is_in(field, names)
        if not is_filled:
            yield from _not_null_in(field, column(field.name), field.name)


def _not_null_in(field: StructField, value: Column, path: str) -> Iterator[Rule]:
    if not field.nullable:
        yield Rule(reason=f"does not fit: {path} is NULL", is_broken=value.isNull(), text=_text(path))
    if isinstance(field.dataType, StructType):
        for inner in field.dataType.fields:
            yield from _not_null_in(inner, value.getField(inner.name), f"{path}.{inner.name}")


def _lengths(schema: StructType) -> Iterator[Rule]:
    for field in schema.fields:
        said = field.metadata.get(_LENGTH)
        if said is None:
            continue
        is_longer = _is_longer(column(field.name), DataType.fromDDL(str(said)))
        if is_longer is not None:
            reason = f"does not fit: {field.name} is not {said}"
            yield Rule(reason=reason, is_broken=F.coalesce(is_longer, F.lit(False)), text=_text(field.name))


def _is_longer(value: Column, kind: DataType) -> Column | None:
    """Returns a test of whether a text in a value is longer than its type allows; None if the type has no length."""
    match kind:
        case CharType(length=length) | VarcharType(length=length):
            return F.length(value) > length
        case StructType():
            inner = [_is_longer(value.getField(field.name), field.dataType) for field in kind.fields]
        case ArrayType(elementType=element):
            inner = [_any_longer(value, element)]
        case MapType(keyType=key, valueType=held):
            inner = [_any_longer(F.map_keys(value), key), _any_longer(F.map_values(value), held)]
        case _:
            return None
    found = [F.coalesce(one, F.lit(False)) for one in inner if one is not None]
    longer: Column | None = None
    for one in found:
        longer = one if longer is None else longer | one
    return longer


def _any_longer(values: Column, element: DataType) -> Column | None:
    if _is_longer(F.lit(None), element) is None:
        return None

    def is_longer(item: Column) -> Column:
        found = _is_longer(item, element)
        assert found is not None, "the caller has checked the type"
        return F.coalesce(found, F.lit(False))

    return F.exists(values, is_longer)


def whole(frame: DataFrame, metadata: TableMetadata) -> DataFrame:
    """Adds the table's other columns to a frame, filled as Delta fills them; identity columns are NULL."""
    there = {name.lower() for name in frame.columns}
    lacking = [field for field in metadata.schema.fields if field.name.lower() not in there]
    plain = {
        field.name: attempted(F.expr(field.metadata[DEFAULT]) if DEFAULT in field.metadata else F.lit(None))[0].cast(
            _without_lengths(field.dataType)
        )
        for field in lacking
        if GENERATED not in field.metadata
    }
    generated = {
        field.name: attempted(F.expr(field.metadata[GENERATED]))[0].cast(field.dataType)
        for field in lacking
        if GENERATED in field.metadata
    }
    frame = frame.withColumns(plain) if plain else frame
    return frame.withColumns(generated) if generated else frame


def _without_lengths(kind: DataType) -> DataType:
    return StringType() if isinstance(kind, CharType | VarcharType) else kind


def marked(frame: DataFrame, metadata: TableMetadata) -> DataFrame:
    """Returns a frame whose `_lg_bad` also names the rule of the table that a row breaks."""
    found = rules_of(metadata, frame.columns)
    if not found:
        return frame
    checks = [F.when(rule.is_broken, F.lit(rule.reason)) for rule in found]
    return whole(frame, metadata).withColumn(BAD, F.coalesce(BAD, *checks)).select(*map(column, frame.columns))


def rules_broken_by(frame: DataFrame, rules: Sequence[Rule]) -> list[Rule]:
    """Returns the rules that can be tested with the columns of a frame alone."""
    return [rule for rule in rules if _can_select(frame, rule.is_broken)]


def _can_select(frame: DataFrame, value: Column) -> bool:
    # PySpark logs each such error with its stack trace. The logger must be created as PySpark creates it.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    was, logger.disabled = logger.disabled, True
    try:
        frame.select(value)
    except (AnalysisException, *JVM_ERRORS):
        return False
    finally:
        logger.disabled = was
    return True


def lacking(schema: StructType, names: Sequence[str]) -> list[str]:
    """Returns the names that are no columns of the table."""
    there = {name.lower() for name in schema.names}
    return [name for name in names if name.lower() not in there]
