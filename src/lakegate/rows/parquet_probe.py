"""Reads the values of few rows without Spark: a Spark job takes a tenth of a second, and most winning commits change few rows.

These values only ever rule rows out; Spark alone decides which rows a condition matches.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet
from pyroaring import BitMap64

from lakegate.delta.actions import Body
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.rows.conflict.data_skipping import Condition, Value, columns_of, may_hold_for
from lakegate.rows.small_file_cache import TableFiles

BYTES_MAX, ROWS_MAX = 2**20, 5_000
"""Limits of the bytes that are read of a row group's columns, and of the rows that are tested."""
WHOLE_MAX = 2**16
"""A file up to this size is read as a whole."""


class _Ranges(io.RawIOBase):
    """A file of which only the requested ranges are read."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        content = self._read(self._at, wanted)
        self._at += len(content)
        return content


def may_have(
    files: TableFiles,
    condition: Condition,
    file: Body,
    columns: Mapping[str, str],
    positions: BitMap64 | None = None,
) -> bool:
    """Returns True if a condition may hold for a row of a file.

    Args:
        files: Files of the table.
        condition: As parsed.
        file: Its `add`, or its `remove`.
        columns: Column name → name in the file; without columns that are not compared by value.
        positions: The rows to test; all by default.
    """
    wanted = {name: columns[name] for name in columns_of(condition) if name in columns}
    if not wanted or int(file.get("size") or 0) <= 0:
        return True
    partition = file.get("partitionValues") or {}
    wanted = {name: physical for name, physical in wanted.items() if physical not in partition}
    rows = _rows(files, file, wanted, positions)
    return rows is None or any(may_hold_for(condition, row) for row in rows)


def _rows(
    files: TableFiles, file: Body, wanted: Mapping[str, str], positions: BitMap64 | None
) -> Iterator[dict[str, Value | None]] | None:
    """Yields values of the rows to test, as far as they are integers or strings; None if they cannot be read here."""
    path, size = str(file["path"]), int(file["size"])
    is_below = ":" not in path
    name = unquote(path) if is_below else path
    if positions is None and size > BYTES_MAX:
        return None
    try:
        if size > WHOLE_MAX:
            read = partial(files.read_range, name, is_below=is_below)
            found = parquet.ParquetFile(_Ranges(read, size), pre_buffer=False)
        else:
            content = files.read(name, is_below=is_below)
            if content is None:
                return None
            found = parquet.ParquetFile(pa.BufferReader(content))
        meant = range(found.metadata.num_rows) if positions is None else positions
        if len(meant) > ROWS_MAX:
            return None
        fields = {field.name: field.type for field in found.schema_arrow}
        known = {name: physical for name, physical in wanted.items() if _is_plain(fields.get(physical))}
        if not known:
            return None
        table = _taken(found, list(known.values()), meant)
        if table is None:
            return None
        values = [table[physical].to_pylist() for physical in known.values()]
    except (*JVM_ERRORS, pa.ArrowException, OSError, UnicodeDecodeError):
        # A string in Spark may consist of any bytes.
        return None
    return (dict(zip(known, row, strict=True)) for row in zip(*values, strict=True))


def _taken(file: parquet.ParquetFile, names: list[str], positions: range | BitMap64) -> pa.Table | None:
    """Reads rows by position, from the row groups that have any of them; None if the columns of a row group are too large."""
    found, first = [], 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        here = [at - first for at in positions if first <= at < first + group.num_rows]
        first += group.num_rows
        if not here:
            continue
        columns = [group.column(place) for place in range(group.num_columns)]
        if sum(each.total_compressed_size for each in columns if each.path_in_schema in names) > BYTES_MAX:
            return None
        found.append(file.read_row_group(number, names, use_threads=False).take(here))
    return pa.concat_tables(found) if found else file.schema_arrow.empty_table()


def _is_plain(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_string(kind))
