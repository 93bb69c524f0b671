"""The values of small files, read without Spark: a job of Spark takes a tenth of a second, and most winners bring few rows.

They only ever rule rows out; what a condition really holds for is Spark's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet
from pyroaring import BitMap64

from headgate.core.rows.actions import Body
from headgate.core.rows.statistics import Condition, Value, columns_of, may_hold_for
from headgate.delta.jvm import JVM_ERRORS, Jvm

BYTES_MAX, ROWS_MAX = 2**18, 5_000


def may_have(
    jvm: Jvm,
    root: object,
    condition: Condition,
    file: Body,
    columns: Mapping[str, str],
    positions: BitMap64 | None = None,
) -> bool:
    """Whether a condition may hold for a row of a file.

    Args:
        jvm: Of the statement's session.
        root: The table's folder, a Hadoop `Path`.
        condition: Described.
        file: Its `add`, or its `remove`.
        columns: Name of each column → its name in the file, but for those that are compared in another way than by value.
        positions: Of the rows that are meant; all by default.
    """
    wanted = {name: columns[name] for name in columns_of(condition) if name in columns}
    if not wanted or not 0 < int(file.get("size") or 0) <= BYTES_MAX:
        return True
    partition = file.get("partitionValues") or {}
    wanted = {name: physical for name, physical in wanted.items() if physical not in partition}
    rows = _rows(jvm, root, str(file["path"]), wanted)
    if rows is None:
        return True
    return any(
        may_hold_for(condition, row) for place, row in enumerate(rows) if positions is None or place in positions
    )


def _rows(jvm: Jvm, root: object, path: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Value | None]] | None:
    """Values of each row, as far as they are integers or strings; None where the file cannot be read here."""
    try:
        content = jvm.read_bytes(jvm.absolute(path) if ":" in path else jvm.path(root, unquote(path)))
        if content is None:
            return None
        file = parquet.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows > ROWS_MAX:
            return None
        # By their places: a name with a dot would be taken for a path.
        fields = {field.name: field.type for field in file.schema_arrow}
        table = file.read()
    except (*JVM_ERRORS, pa.ArrowException, OSError):
        return None
    known = {name: physical for name, physical in wanted.items() if _is_plain(fields.get(physical))}
    if not known:
        return None
    values = [table[physical].to_pylist() for physical in known.values()]
    return (dict(zip(known, row, strict=True)) for row in zip(*values, strict=True))


def _is_plain(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_string(kind))
