"""Searches one file for persons: the columns of a Parquet file, row group by row group, or a text; in bounded memory.

Statistics of row groups come first: what they exclude is not read. Bloom filters are not used: pyarrow reads none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegate.erasure.actions import Named, named_in
from lakegate.erasure.columns import Kind, Path, decoded
from lakegate.erasure.persons import Persons, typed

BATCH_ROWS = 65_536
BLOCK = 4 << 20
OVERLAP = 64 << 10
"""A value that is longer than this may be missed where two blocks of a text meet."""
PATTERNS_MAX = 200
MAGIC = (b"PAR1", b"PARE")
"""The first bytes of a Parquet file, and of one with an encrypted footer."""
OF_LOGS = (".json", ".parquet", ".crc", "_last_checkpoint")
"""Ends of the names of files in a log that hold actions, or facts in JSON."""
VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
"""Types that some writers name in a file, with those that are compared instead."""
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"LZ4Block": "lz4",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}


class NotLookedAt(Exception):
    """the file could not be searched"""


@dataclass(frozen=True, slots=True)
class Hit:
    """Rows of a person in a file."""

    column: str
    rows: frozenset[int]
    """Row indexes from 0; empty in a text."""
    persons: frozenset[int]


@dataclass(slots=True)
class Searched:
    """The result of the search of one file."""

    columns: list[str] = field(default_factory=list)
    rows: int = 0
    row_groups: int = 0
    row_groups_read: int = 0
    hits: list[Hit] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)


_Get = Callable[[pa.RecordBatch], tuple[pa.Array, pa.Array | None]]
"""Returns the values of a column, and the row of each value; None: a value a row."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: Path
    type: pa.DataType
    get: _Get
    is_flat: bool
    """One value a row."""


def data_file(
    file: Any, persons: Persons, given: Set[tuple[int, str]] = frozenset(), *, is_own: bool, anywhere: bool
) -> Searched:
    """Searches a Parquet file of data.

    Args:
        file: Open for reading, seekable.
        persons: The persons.
        given: Person and column of values that all rows have, by the file's partition.
        is_own: It is a file of the table: key columns are found by their path, otherwise by the name of the field.
        anywhere: Also look for the values in the text of all other columns.

    Raises:
        NotLookedAt: It is damaged, encrypted, or in a codec that is not known here.
    """
    try:
        parquet = pq.ParquetFile(file)
        found = Searched(rows=parquet.metadata.num_rows, row_groups=parquet.metadata.num_row_groups)
        leaves = list(_leaves(parquet.schema_arrow))
        keys = [(leaf, name) for leaf in leaves for name in _names(leaf.path, persons, is_own=is_own)]
        texts = [
            leaf for leaf in leaves if anywhere and _is_text(leaf.type) and not any(leaf is key for key, _ in keys)
        ]
        if any(_kind_of(leaf.type) is None for leaf, _ in keys):
            raise NotLookedAt("a key column has a type that is not known here")
        found.columns = sorted({".".join(leaf.path) for leaf in [*(leaf for leaf, _ in keys), *texts]})
        search = _Search(keys, texts, persons, given, found.rows)
        first = 0
        for group in range(found.row_groups):
            statistics = parquet.metadata.row_group(group)
            wanted = search.wanted(statistics)
            if wanted:
                found.row_groups_read += 1
                start = first
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=sorted(wanted)):
                    search.batch(batch, start)
                    start += batch.num_rows
            first += statistics.num_rows
        found.hits = search.hits()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise NotLookedAt(_reason(error)) from error
    return found


def _reason(error: Exception) -> str:
    text = str(error).lower()
    if "codec" in text or isinstance(error, pa.ArrowNotImplementedError):
        return "its codec or encoding is not known here"
    if "encrypt" in text or "decrypt" in text:
        return "it is encrypted"
    return f"it is damaged ({type(error).__name__})"


def _names(path: Path, persons: Persons, *, is_own: bool) -> list[str]:
    lower = tuple(part.lower() for part in path)
    return [
        name
        for name, column in persons.columns.items()
        if lower in column.paths or (not is_own and lower[-1] in column.lower_names)
    ]


class _Search:
    """The state of one file's search."""

    def __init__(
        self,
        keys: Sequence[tuple[_Leaf, str]],
        texts: Sequence[_Leaf],
        persons: Persons,
        given: Set[tuple[int, str]],
        rows: int,
    ) -> None:
        self._keys, self._texts, self._persons = keys, texts, persons
        self._values = [_values(persons, name, leaf.type) for leaf, name in keys]
        self._patterns = _patterns(persons) if texts else []
        self._given = given
        # Column and person → rows; a partition is a column of all rows.
        self._rows = {("partition", number): set(range(rows)) for number in persons.whole(given)}

    def wanted(self, group: Any) -> set[str]:
        """Returns the columns to read of a row group; none if its statistics exclude every person."""
        possible: set[str] = set()
        for (leaf, _), values in zip(self._keys, self._values, strict=True):
            if values and _may_hold(group, leaf, list(values)):
                possible |= {key.path[0] for key, _ in self._keys}
        return possible | {leaf.path[0] for leaf in self._texts}

    def batch(self, batch: pa.RecordBatch, first: int) -> None:
        """Searches rows that begin at row `first` of the file."""
        in_row: dict[tuple[int, str], dict[int, str]] = {}
        for (leaf, name), values in zip(self._keys, self._values, strict=True):
            if values and leaf.path[0] in batch.schema.names:
                array, rows = leaf.get(batch)
                is_hit = pc.is_in(array, value_set=pa.array(list(values), leaf.type))
                for value, row in _selected(array, rows, is_hit):
                    for number in values[value]:
                        in_row.setdefault((number, name), {})[row] = ".".join(leaf.path)
        self._add(in_row, first)
        for leaf in self._texts:
            if leaf.path[0] in batch.schema.names:
                self._text(leaf, batch, first)

    def _add(self, in_row: dict[tuple[int, str], dict[int, str]], first: int) -> None:
        for number in {number for number, _ in in_row}:
            needed = [name for name, _ in self._persons.all[number].values if (number, name) not in self._given]
            known = [in_row[number, name] for name in needed if (number, name) in in_row]
            if len(known) < len(needed) or not known:
                continue
            for row in set.intersection(*(set(one) for one in known)):
                label = ", ".join(sorted({one[row] for one in known}))
                self._rows.setdefault((label, number), set()).add(first + row)

    def _text(self, leaf: _Leaf, batch: pa.RecordBatch, first: int) -> None:
        array, rows = leaf.get(batch)
        for pattern in self._patterns:
            for text, row in _selected(array, rows, pc.match_substring_regex(array, pattern)):
                for number in self._persons.whole(self._persons.in_text(text)):
                    self._rows.setdefault((".".join(leaf.path), number), set()).add(first + row)

    def hits(self) -> list[Hit]:
        """Returns what was found, by column."""
        by_column: dict[str, tuple[set[int], set[int]]] = {}
        for (column, number), rows in self._rows.items():
            all_rows, numbers = by_column.setdefault(column, (set(), set()))
            all_rows |= rows
            numbers.add(number)
        return [Hit(column, frozenset(rows), frozenset(numbers)) for column, (rows, numbers) in by_column.items()]


def _selected(array: pa.Array, rows: pa.Array | None, is_hit: pa.Array) -> Iterator[tuple[Any, int]]:
    """Yields the values that were hit, each with its row."""
    places = pc.indices_nonzero(is_hit)
    yield from zip(
        array.take(places).to_pylist(), (places if rows is None else rows.take(places)).to_pylist(), strict=True
    )


def _patterns(persons: Persons) -> list[str]:
    values = [re.escape(text) for text in persons.texts]
    return ["|".join(values[at : at + PATTERNS_MAX]) for at in range(0, len(values), PATTERNS_MAX)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _kind_of(kind: pa.DataType) -> Kind | None:
    """Returns how values of an Arrow type are compared; None if it has no plain values."""
    types = pa.types
    tests: Sequence[tuple[Callable[[pa.DataType], bool], Kind]] = (
        (_is_text, "text"),
        (types.is_boolean, "boolean"),
        (types.is_integer, "number"),
        (types.is_decimal, "number"),
        (types.is_floating, "float"),
        (types.is_date, "date"),
        (types.is_timestamp, "timestamp"),
        (lambda one: types.is_binary(one) or types.is_large_binary(one) or types.is_fixed_size_binary(one), "binary"),
    )
    return next((name for test, name in tests if test(kind)), None)


def _values(persons: Persons, name: str, kind: pa.DataType) -> dict[Any, set[int]]:
    """Returns the persons by their value in a column of the type, as Arrow gives it back."""
    found: dict[Any, set[int]] = {}
    plain = _kind_of(kind)
    for number, person in enumerate(persons.all):
        for column, text in person.values:
            value = typed(text, plain) if column == name and plain is not None else None
            if value is not None and (fitting := _fitting(value, kind)) is not None:
                found.setdefault(fitting, set()).add(number)
    return found


def _fitting(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        if value != value.to_integral_value():
            return None
        value = int(value)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        value = value.replace(tzinfo=None)
    try:
        scalar = pa.array([value], kind)[0].as_py()
    except (pa.ArrowException, OverflowError, ValueError):
        return None  # the column cannot hold it
    return scalar


def _may_hold(group: Any, leaf: _Leaf, values: Sequence[Any]) -> bool:
    """Returns False if the statistics of a row group exclude all values."""
    if not leaf.is_flat:
        return True
    wanted = ".".join(leaf.path)
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == wanted:
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return True
            try:
                least, most = _comparable(statistics.min), _comparable(statistics.max)
                # A bound that is NaN, as of old writers, excludes nothing.
                return least != least or most != most or any(least <= _comparable(value) <= most for value in values)
            except (TypeError, ValueError):  # a text that was shortened within a character
                return True
    return True


def _comparable(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    for one in schema:

        def get(batch: pa.RecordBatch, name: str = one.name) -> tuple[pa.Array, pa.Array | None]:
            return batch.column(name), None

        yield from _below((one.name,), one.type, get, is_flat=True)


def _below(path: Path, kind: pa.DataType, get: _Get, *, is_flat: bool) -> Iterator[_Leaf]:
    types = pa.types
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            inner = kind.field(number)

            def of_struct(batch: pa.RecordBatch, number: int = number) -> tuple[pa.Array, pa.Array | None]:
                array, rows = get(batch)
                return pc.struct_field(array, number), rows

            yield from _below((*path, inner.name), inner.type, of_struct, is_flat=is_flat)
    elif types.is_map(kind):
        pairs = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))

        def of_map(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
            array, rows = get(batch)
            return array.cast(pairs), rows

        yield from _below(path, pairs, of_map, is_flat=False)
    elif types.is_list(kind) or types.is_large_list(kind):

        def of_list(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
            array, rows = get(batch)
            parents = pc.list_parent_indices(array)
            return pc.list_flatten(array), parents if rows is None else rows.take(parents)

        yield from _below(path, kind.value_type, of_list, is_flat=False)
    elif types.is_dictionary(kind) or str(kind) in VIEWS:
        plain = VIEWS.get(str(kind)) or kind.value_type

        def of_encoded(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
            array, rows = get(batch)
            return array.cast(plain), rows

        yield from _below(path, plain, of_encoded, is_flat=is_flat)
    else:
        yield _Leaf(path, kind, get, is_flat)


def log_actions(file: Any, *, is_parquet: bool) -> Iterator[dict[str, Any]]:
    """Yields the actions of a file of a log: of a commit or a checkpoint, in order.

    Raises:
        NotLookedAt: It is damaged.
    """
    try:
        if is_parquet:
            for batch in pq.ParquetFile(file).iter_batches(1024):
                for row in batch.to_pylist():
                    yield {kind: body for kind, body in row.items() if body is not None}
            return
        for line in _lines(file):
            if line.strip():
                action = json.loads(line, parse_float=Decimal)
                if not isinstance(action, dict):
                    raise ValueError("no object")
                yield action
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise NotLookedAt(_reason(error)) from error


def _lines(file: Any) -> Iterator[bytes]:
    rest = b""
    while block := file.read(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    yield rest


def log_file(file: Any, persons: Persons, *, is_parquet: bool, is_own: bool) -> Searched:
    """Searches a file of a log.

    Raises:
        NotLookedAt: It is damaged.
    """
    found = Searched()
    for action in log_actions(file, is_parquet=is_parquet):
        found.named += named_in(action, persons, is_strict=is_own)
    return found


def text(file: Any, persons: Persons) -> Searched:
    """Searches a file for the texts of the values, as words.

    Raises:
        NotLookedAt: It is compressed.
    """
    found, numbers, rest = Searched(), set[tuple[int, str]](), b""
    while block := file.read(BLOCK):
        if not rest:
            known = next((name for magic, name in COMPRESSED.items() if block.startswith(magic)), None)
            if known is not None:
                raise NotLookedAt(f"it is compressed ({known})")
        read = (rest + block).decode(errors="replace")
        for form in {read, decoded(read)}:  # a checkpoint has paths as URIs
            numbers |= persons.in_text(form)
        rest = block[-OVERLAP:]
    whole = persons.whole(numbers)
    for name in sorted({name for number, name in numbers if number in whole}):
        found.named.append(Named("text", name, frozenset(n for n, one in numbers if one == name and n in whole)))
    return found


def merged(named: Iterable[Named]) -> list[tuple[str, str, int, frozenset[int]]]:
    """Returns place, column, number of actions, and persons, each place and column once."""
    found: dict[tuple[str, str], tuple[int, frozenset[int]]] = {}
    for one in named:
        count, numbers = found.get((one.where, one.column), (0, frozenset()))
        found[one.where, one.column] = (count + 1, numbers | one.persons)
    return [(where, column, count, numbers) for (where, column), (count, numbers) in found.items()]
