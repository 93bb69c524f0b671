"""Encodes values for PostgreSQL's columns, as the texts that the types read.

Source: PostgreSQL's documentation, "Data Types", with "Array Value Input Syntax"; hstore and pgvector, "Text representation".
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from lakegate.syncs.plan import json_numbers
from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.plan.values import ArrayOfServer, BareText, Bits, BitsOfServer, Duration, Misfit
from lakegate.syncs.targets.encode import (
    EWKB_SRID,
    PLAIN,
    bytes_of,
    geometry_of,
    no_whole_number,
    number_of,
    text_of,
    unmarked,
)

NUMBERS = frozenset({"int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money"})
TIMES = frozenset({"date", "time", "timetz", "timestamp", "timestamptz", "interval"})
SHAPES = frozenset({"point", "line", "lseg", "box", "path", "polygon", "circle"})
VECTORS = frozenset({"vector", "halfvec"})
TEXT: frozenset[type] = frozenset({type(None), str})
BYTES: frozenset[type] = frozenset({bytes})
ARRAY = "[]"
"""Suffix of the kind of an array column, after the kind of its elements."""
NO_EQUALITY = frozenset({"xml", "point", "jsonpath"})
"""Types without equality, compared as texts."""
OTHER_EQUALITY = SHAPES - {"point"}
"""Types whose equality compares areas or lengths, or treats near points as equal."""


def plain(column: Column) -> frozenset[type]:
    """See `rows_of`."""
    kind = column.kind
    if kind in TIMES:
        return PLAIN - {int, float}
    if kind == "hstore":
        return frozenset()
    if kind == "bytea":
        return TEXT | BYTES
    if kind in ("json", "jsonb") or kind in SHAPES:
        return TEXT
    if kind == "bool":
        return PLAIN | {bool}
    return PLAIN - BYTES if kind in ("bit", "varbit") else PLAIN


def encode(column: Column, value: Any) -> object:
    """See `encoded`."""
    kind = column.kind
    if isinstance(value, ArrayOfServer):
        return value.text
    if kind.endswith(ARRAY):
        return _array(column, value) if isinstance(value, list | tuple) else text_of(unmarked(value))
    if kind in TIMES:
        return _time(column, value)
    if kind in NUMBERS:
        return number_of(value)
    if kind == "bytea":
        return bytes_of(value)
    if kind in ("json", "jsonb"):
        return str(value) if isinstance(value, str) else json_numbers.dumps(value)
    if kind in ("bit", "varbit"):
        return _bits(column, value)
    if kind == "hstore":
        return _hstore(value)
    if isinstance(value, Mapping):
        if kind in SHAPES:
            return _shape(kind, value)
        if kind in ("geometry", "geography") and "wkb" in value:
            return _ewkb(value)
        if kind == "sparsevec":
            return _sparse(value)
    if kind in VECTORS and isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    if isinstance(value, BareText | UUID | bool) and kind == "bool":
        return value if isinstance(value, bool) else str(value)
    return value if isinstance(value, bytes) else text_of(unmarked(value) if not isinstance(value, Duration) else value)


def _time(column: Column, value: object) -> object:
    no_whole_number(column, value)
    if isinstance(value, Duration):
        return f"{int(value)} microseconds" if column.kind == "interval" else text_of(value)
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)} microseconds"
    return unmarked(value)


def _bits(column: Column, value: object) -> object:
    if isinstance(value, bool):
        return "1" if value else "0"
    if not isinstance(value, Bits) or isinstance(value, BitsOfServer):
        return text_of(unmarked(value))
    if column.kind == "varbit":
        return value.lstrip("0") or "0"  # the envelope does not contain the number of leading zeros
    length = re.search(r"\((\d+)\)", column.type)
    return str(value).zfill(int(length[1]) if length else 1)


def _array(column: Column, values: Sequence[Any]) -> str:
    if not _is_any(values):
        return "{}"
    element = replace(column, kind=column.kind.removesuffix(ARRAY))
    between = ";" if element.kind == "box" else ","
    return "{" + between.join(_element(element, one) for one in values) + "}"


def _element(column: Column, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple) and column.kind not in ("json", "jsonb", *VECTORS):
        return "{" + ",".join(_element(column, one) for one in value) + "}"
    text = text_of(value if value.__class__ in plain(column) else encode(column, value))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_any(values: Sequence[Any]) -> bool:
    """Returns whether an array has an element at some depth."""
    return any(_is_any(one) if isinstance(one, list | tuple) else True for one in values)


def _hstore(value: object) -> object:
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.startswith("{") else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return str(value)
        value = found
    if not isinstance(value, Mapping):
        raise Misfit("not pairs of texts")
    return ", ".join(
        f"{_quoted(str(name))}=>{'NULL' if one is None else _quoted(text_of(one))}" for name, one in value.items()
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ewkb(value: Mapping[str, Any]) -> str:
    wkb, srid = geometry_of(value)
    if not srid:
        return wkb.hex()
    order = "<" if wkb[0] == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
    return (wkb[:1] + struct.pack(f"{order}II", kind | EWKB_SRID, srid) + wkb[5:]).hex()


def _shape(kind: str, value: Mapping[str, Any]) -> str:
    """Returns the text of a PostgreSQL shape from Debezium's struct."""
    if kind == "circle" and "wkb" not in value:
        x, y, radius = (text_of(float(value[one])) for one in ("x", "y", "radius"))
        return f"<({x},{y}),{radius}>"
    if kind == "line" and "wkb" not in value:
        return "{" + ",".join(text_of(float(value[one])) for one in ("a", "b", "c")) + "}"
    points = _points(geometry_of(value)[0]) if value.get("wkb") else [(float(value["x"]), float(value["y"]))]
    texts = [f"({text_of(x)},{text_of(y)})" for x, y in points]
    match kind:
        case "point":
            return texts[0]
        case "box":
            return f"{texts[0]},{texts[2]}"
        case "polygon":
            return f"({','.join(texts[:-1] if len(texts) > 1 and texts[0] == texts[-1] else texts)})"
        case "path":
            said = {**value, **(value.get("extensions") or {})}
            is_closed = str(said.get("closed", "false")).lower() == "true"
            return f"({','.join(texts)})" if is_closed else f"[{','.join(texts)}]"
        case _:
            return f"[{','.join(texts)}]"


def _points(wkb: bytes) -> list[tuple[float, float]]:
    """Returns the points of a WKB point, line string, or polygon of one ring."""
    order = "<" if wkb[0] == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
    if kind == 1:
        return [struct.unpack_from(f"{order}dd", wkb, 5)]
    start = 5 if kind == 2 else 9
    if kind not in (2, 3) or (kind == 3 and struct.unpack_from(f"{order}I", wkb, 5) != (1,)):
        raise Misfit("a geometry that is no point, line or ring")
    (count,) = struct.unpack_from(f"{order}I", wkb, start)
    return [struct.unpack_from(f"{order}dd", wkb, start + 4 + 16 * n) for n in range(count)]


def _sparse(value: Mapping[str, Any]) -> str:
    pairs = value["vector"]
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return "{" + ",".join(f"{int(i)}:{text_of(one)}" for i, one in items) + f"}}/{int(value['dimensions'])}"
