"""Casts values to a column's type and tests that nothing is lost: the one rule for records, keys, set values and folders.

A cast that fails or changes the value is a misfit: 7.9 is no BIGINT, '07' is no INT, 12:30 is no DATE. A cast that can be reversed
is none: 7.0 is a BIGINT, 1.5 is a DECIMAL(10, 2). Source: docs/explanation/requests.md, "What fits".

Rules for editors: a check is SQL over the value alone, and reads neither the clock nor the table.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakegate.delta.jvm import attempt
from lakegate.quoting import quoted

_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""Key under which Spark records that a STRING column is a CHAR(n) or a VARCHAR(n)."""
_EXACT = DecimalType(38, 18)
_PLAIN = r"^-?(0|[1-9][0-9]{0,19})([.][0-9]{1,18})?$"
"""Numbers that `_EXACT` can hold, as people write them: without blanks, plus sign, leading zeros or exponent."""
_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
_DAYS = (DateType, TimestampType, TimestampNTZType)


def attempted(value: Column) -> tuple[Column, Column]:
    """Returns a value that is NULL where its evaluation raises, and a test of whether it raises."""
    tried = ClassicColumn(attempt(_jc(F.struct(value.alias("value")))))
    return tried.getField("value"), tried.isNull()


def _jc(value: Column) -> object:
    return value._jc


def fitted(value: Column, given: DataType, wanted: StructField) -> tuple[Column, Column]:
    """Returns the value with a column's type, NULL if it does not fit; and the reason, NULL if it fits.

    Args:
        value: A value of the type `given`.
        given: Its type.
        wanted: The column.
    """
    name, text = wanted.name, str(wanted.metadata.get(_LENGTH) or wanted.dataType.simpleString())
    reason = F.lit(f"does not fit: {name} is not {text}")
    cast, is_changed = _cast(value, given, wanted.dataType)
    length = re.fullmatch(r"(char|varchar)\((\d+)\)", text)
    if length is not None:
        cast, is_longer = _cut(cast, length[1], int(length[2]))
        is_changed = is_longer if is_changed is None else is_changed | is_longer
    if is_changed is None:
        return cast.alias(name), F.lit(None).cast("string")
    is_misfit = value.isNotNull() & F.coalesce(is_changed, F.lit(True))
    return F.when(~is_misfit, cast).alias(name), F.when(is_misfit, reason)


def comparable(sql: str, kind: DataType, depth: int = 0) -> str:
    """Returns SQL of a value that `=` can compare; a MAP or VARIANT, which `=` refuses, is converted with all its content.

    Args:
        sql: The value.
        kind: Its type.
        depth: The number of enclosing lambda functions.
    """
    name = f"_lg_x{depth}"
    match kind:
        case VariantType():
            return f"to_json({sql})"
        case MapType(valueType=inner):
            pair = f"struct({name}, {comparable(f'{sql}[{name}]', inner, depth + 1)})"
            return f"transform(array_sort(map_keys({sql})), {name} -> {pair})"
        case ArrayType(elementType=inner) if not _is_comparable(inner):
            return f"transform({sql}, {name} -> {comparable(name, inner, depth + 1)})"
        case StructType(fields=fields) if not _is_comparable(kind):
            parts = ", ".join(comparable(f"{sql}.{quoted(one.name)}", one.dataType, depth) for one in fields)
            return f"CASE WHEN {sql} IS NOT NULL THEN struct({parts}) END"
    return sql


def _is_comparable(kind: DataType) -> bool:
    match kind:
        case ArrayType(elementType=inner):
            return _is_comparable(inner)
        case StructType(fields=fields):
            return all(_is_comparable(one.dataType) for one in fields)
    return not isinstance(kind, MapType | VariantType)


def _cast(value: Column, given: DataType, wanted: DataType) -> tuple[Column, Column | None]:
    """Returns the value with another type, and a test of whether the cast loses something; None: it never does. Ignores NULL."""
    if given == wanted:
        return value, None
    match given, wanted:
        case NullType(), _:
            return value.cast(wanted), None
        case StructType(), StructType():
            return _cast_struct(value, given, wanted)
        case ArrayType(elementType=one), ArrayType(elementType=other):
            _, is_changed = _cast(F.lit(None).cast(one), one, other)
            cast = F.transform(value, lambda item: _cast(item, one, other)[0])
            return cast, None if is_changed is None else F.exists(value, lambda item: _is_lost(item, one, other))
        case MapType(), MapType():
            keys, lost_key = _cast(F.map_keys(value), ArrayType(given.keyType), ArrayType(wanted.keyType))
            values, lost_value = _cast(F.map_values(value), ArrayType(given.valueType), ArrayType(wanted.valueType))
            lost = [one for one in (lost_key, lost_value) if one is not None]
            cast = F.map_from_arrays(keys, values)
            if not lost:
                return cast, None
            # A key that does not fit is NULL, and a map refuses NULL keys.
            return F.when(~reduce(or_, lost), cast), reduce(or_, lost)
        case AtomicType(), AtomicType() if _can_cast(given, wanted):
            cast = value.try_cast(wanted)
            return cast, ~F.coalesce(_is_given_back(value, cast, given, wanted), F.lit(False))
        case _:
            return F.lit(None).cast(wanted), F.lit(True)


def _cast_struct(value: Column, given: StructType, wanted: StructType) -> tuple[Column, Column | None]:
    """Casts field by field, by name; a missing field is NULL, and an unknown one stays, for Delta to add or to refuse."""
    by_name = {field.name.lower(): field for field in given.fields}
    parts, lost = [], []
    for field in wanted.fields:
        own = by_name.pop(field.name.lower(), None)
        if own is None:
            parts.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        cast, is_changed = _cast(value.getField(own.name), own.dataType, field.dataType)
        parts.append(cast.alias(field.name))
        if is_changed is not None:
            lost.append(value.getField(own.name).isNotNull() & is_changed)
    parts += [value.getField(name).alias(name) for name in (field.name for field in by_name.values())]
    return F.when(value.isNotNull(), F.struct(*parts)), reduce(or_, lost) if lost else None


def _is_lost(item: Column, given: DataType, wanted: DataType) -> Column:
    _, is_changed = _cast(item, given, wanted)
    assert is_changed is not None, "a cast that never loses anything needs no test"
    return item.isNotNull() & is_changed


def _can_cast(given: DataType, wanted: DataType) -> bool:
    """Returns True if values of the two types can mean the same; a number is never a time, although Spark would cast it."""
    pair = (given, wanted)
    if any(isinstance(one, StringType) for one in pair):
        return True
    if all(isinstance(one, NumericType | BooleanType) for one in pair):
        return True
    return all(isinstance(one, _DAYS) for one in pair)


def _is_given_back(value: Column, cast: Column, given: DataType, wanted: DataType) -> Column:
    match given, wanted:
        case StringType(), _:
            return _is_text_given_back(value, cast, wanted)
        case BinaryType(), StringType():
            return F.is_valid_utf8(cast)
    is_same = cast.try_cast(given).eqNullSafe(value)
    # Floating point saturates: 2^63 cast to BIGINT is the highest BIGINT, which cast back is 2^63. No DOUBLE equals that BIGINT.
    if _is_coarser(given, wanted):
        return is_same & (value != _highest(given))
    if _is_coarser(wanted, given):
        return is_same & (cast != _highest(wanted))
    return is_same


def _is_coarser(whole: DataType, other: DataType) -> bool:
    """Returns True if the highest number of an integer type has no equal in a floating-point type."""
    return (isinstance(whole, LongType) and isinstance(other, FloatType | DoubleType)) or (
        isinstance(whole, IntegerType) and isinstance(other, FloatType)
    )


def _highest(kind: DataType) -> Column:
    return F.lit((1 << (63 if isinstance(kind, LongType) else 31)) - 1).cast(kind)


def _is_text_given_back(text: Column, cast: Column, wanted: DataType) -> Column:
    """Tests that a text equals the value as Spark writes it, apart from trailing zeros, a `T`, and a time zone of an instant."""
    written = cast.cast("string")
    match wanted:
        case BinaryType():
            return F.lit(True)
        case IntegralType():
            return written == text
        case FractionalType():
            is_equal = F.when(text.rlike(_PLAIN), text.try_cast(_EXACT) == cast.try_cast(_EXACT))
            return (written == text) | F.coalesce(is_equal, F.lit(False))
        case TimestampType() | TimestampNTZType():
            plain = F.regexp_replace(F.regexp_replace(text, "T", " "), r"[.]0+$|(?<=[.][0-9]{1,6})0+$", "")
            is_equal = text.rlike(f"{_INSTANT}$") & (written == plain)
            if isinstance(wanted, TimestampNTZType):
                return is_equal
            return is_equal | (cast.isNotNull() & text.rlike(f"{_INSTANT}{_ZONE}$"))
    return written == text


def _cut(text: Column, kind: str, length: int) -> tuple[Column, Column]:
    """Returns a text as CHAR(n) or VARCHAR(n), and a test of whether it is longer; blanks at its end do not count."""
    is_longer = text.isNotNull() & (F.length(F.rtrim(text)) > length)
    padded = F.rpad(text, length, " ")
    if kind == "char":
        return padded, is_longer
    return F.when(F.length(text) > length, padded).otherwise(text), is_longer
