"""The statements of the explored tables: the properties that each declares, and its effect on rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lakegate.rows.conflict.read_set import Reads, Statement

Row = tuple[int, int]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Change:
    """A statement: its effect on one row (None: the row is deleted), and the rows that it adds, given all rows."""

    name: str
    statement: Statement
    """On a table with vectors."""
    concerns: Callable[[Row], bool]
    becomes: Callable[[Row], Row | None] = lambda row: row
    adds: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: ()
    keys: frozenset[int] = frozenset()
    moves_all: bool = False
    """OPTIMIZE: all rows into one file, none changed."""
    asked: Callable[[Row], bool] | None = None
    """The condition on files of concurrent commits, if it is narrower than the rows that the statement concerns."""
    tells_number: bool = False
    """The values that it writes contain the number of rows that it concerns, which only an execution on the whole table knows."""
    unmarks: Row | None = None
    """RESTORE, the part that matters here: a row that a vector marks, if there is one, is live again."""

    def serially(self, rows: Counter[Row]) -> Counter[Row]:
        """Returns the rows after the statement, run alone."""
        kept: Counter[Row] = Counter()
        concerned = sum(number for row, number in rows.items() if self.concerns(row))
        for row, number in rows.items():
            then = self.image(row, concerned) if self.concerns(row) else row
            if then is not None:
                kept[then] += number
        kept.update(self.adds(sorted(rows.elements())))
        return kept

    def image(self, row: Row, concerned: int) -> Row | None:
        """Returns the new image of a row that the statement concerns, as one of `concerned` rows."""
        then = self.becomes(row)
        return then if then is None or not self.tells_number else (then[0], then[1] + concerned)


def delete(value: int) -> Change:
    """DELETE WHERE v = value."""
    kind = Statement(reads=Reads.ROWS, marks_rows=True, is_divisible=True)
    return Change(f"delete {value}", kind, lambda row: row[1] == value, lambda row: None)


def update(value: int, to: int) -> Change:
    """UPDATE SET v = to WHERE v = value."""
    kind = Statement(reads=Reads.ROWS, is_divisible=True)
    return Change(f"update {value} to {to}", kind, lambda row: row[1] == value, lambda row: (row[0], to))


def timed(value: int, to: int) -> Change:
    """UPDATE SET v = to + a value that is constant for the whole execution, such as the time, WHERE v = value."""
    return replace(
        update(value, to),
        name=f"timed update {value}",
        statement=Statement(reads=Reads.ROWS, is_divisible=False),
        tells_number=True,
    )


def merge(key: int, to: int | None, *, inserts: bool = True) -> Change:
    """MERGE of one row: WHEN MATCHED UPDATE (or, without `to`, DELETE), and, if it `inserts`, WHEN NOT MATCHED INSERT."""
    return Change(
        f"merge {key}={to}" + ("" if inserts else " if there"),
        Statement(reads=Reads.KEYS, writes_all_matched=True, is_divisible=not inserts),
        lambda row: row[0] == key,
        lambda row: None if to is None else (key, to),
        lambda rows: [(key, to or 0)] if inserts and all(row[0] != key for row in rows) else [],
        keys=frozenset({key}),
    )


def merge_some(key: int, value: int, to: Row) -> Change:
    """MERGE of one row: WHEN MATCHED AND v = value UPDATE, which may give the row another key."""
    return Change(
        f"merge {key} of {value}={to}",
        Statement(reads=Reads.KEYS, is_divisible=True),
        lambda row: row == (key, value),
        lambda row: to,
        keys=frozenset({key}),
    )


def merge_by_source(key: int, to: int, value: int) -> Change:
    """MERGE of one row: WHEN MATCHED UPDATE, WHEN NOT MATCHED BY SOURCE AND v = value DELETE."""
    return Change(
        f"merge {key}={to}, else delete {value}",
        Statement(reads=Reads.KEYS, has_condition=True, writes_all_matched=True),
        lambda row: row[0] == key or row[1] == value,
        lambda row: (key, to) if row[0] == key else None,
        keys=frozenset({key}),
        asked=lambda row: row[1] == value,
    )


def insert_absent(keys: Sequence[int], value: int) -> Change:
    """MERGE with only WHEN NOT MATCHED INSERT: it depends on rows that it does not write."""
    return Change(
        f"insert {', '.join(map(str, keys))}={value} if absent",
        Statement(reads=Reads.KEYS),
        lambda row: False,
        adds=lambda rows: [(key, value) for key in keys if all(row[0] != key for row in rows)],
        keys=frozenset(keys),
    )


def append(key: int, value: int) -> Change:
    """INSERT VALUES."""
    return Change(
        f"append {key}={value}", Statement(reads=Reads.NOTHING), lambda row: False, adds=lambda rows: [(key, value)]
    )


def copy(value: int) -> Change:
    """INSERT … SELECT k + 10, v FROM itself WHERE v = value."""
    return Change(
        f"copy {value}",
        Statement(reads=Reads.TABLE),
        lambda row: False,
        adds=lambda rows: [(row[0] + 10, row[1]) for row in rows if row[1] == value],
    )


def restore(row: Row) -> Change:
    """A row that was deleted comes back in its old file."""
    return Change("restore", Statement(reads=Reads.TABLE), lambda row: False, adds=lambda rows: [row], unmarks=row)


def optimize() -> Change:
    """OPTIMIZE."""
    kind = Statement(reads=Reads.PLACES, marks_rows=True)
    return Change("optimize", kind, lambda row: False, moves_all=True)
