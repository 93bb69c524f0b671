"""Decides how changes of rows by their key become few MERGE statements, with the result of the same changes one by one.

Rules for editors:
- A statement has at most one row for a key: two source rows that match one row of the table are an error of MERGE.
- Changes of one key keep their order. Changes of different keys have no order among each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

SHAPES_MAX = 8
"""A statement has rows of at most this many shapes: each is up to two clauses, which every row is tested with."""


class RowRefused(Exception):
    """A statement was refused because of one of its rows; nothing was written."""


@dataclass(frozen=True, slots=True)
class Written:
    """The commit that has a change."""

    version: int | None
    """None: it changed nothing, as a delete of a key that is not in the table."""
    rows: int
    """Number of keys that were written together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """An upsert or a delete of one key."""

    key: Hashable
    """Equal for two changes if, and only if, SQL finds their keys equal."""
    values: Mapping[str, object]
    """Column → value; of a delete only those of the key."""
    is_delete: bool
    size_bytes: int
    done: Future[Written] = field(default_factory=Future)


@dataclass(slots=True)
class FoldedRow:
    """All changes of one key, as one change with the same effect."""

    values: dict[str, object]
    is_delete: bool
    changes: list[Change]
    is_anew: bool = False
    """An upsert after a delete: a column that is not given does not keep its value, but gets that of a new row."""

    @classmethod
    def of(cls, change: Change) -> FoldedRow:
        """Returns the row of a single change."""
        return cls(dict(change.values), change.is_delete, [change])

    def add(self, change: Change) -> None:
        """Adds the next change of its key."""
        self.changes.append(change)
        if change.is_delete:
            self.values, self.is_delete, self.is_anew = dict(change.values), True, False
        else:
            self.is_anew = self.is_anew or self.is_delete
            self.is_delete = False
            self.values.update(change.values)

    @property
    def shape(self) -> tuple[bool, bool, frozenset[str]]:
        """Rows with the same shape are written by the same clauses."""
        return self.is_delete, self.is_anew, frozenset(self.values)


def fold(changes: Iterable[Change]) -> list[FoldedRow]:
    """Folds changes in their order; returns one row for each key."""
    found: dict[Hashable, FoldedRow] = {}
    for change in changes:
        known = found.get(change.key)
        if known is None:
            found[change.key] = FoldedRow.of(change)
        else:
            known.add(change)
    return list(found.values())


def statements(rows: Iterable[FoldedRow]) -> list[list[FoldedRow]]:
    """Distributes rows over as few statements as `SHAPES_MAX` allows. One is enough unless rows give many sets of columns."""
    by_shape: dict[tuple[bool, bool, frozenset[str]], list[FoldedRow]] = {}
    for row in rows:
        by_shape.setdefault(row.shape, []).append(row)
    shapes = list(by_shape.values())
    return [
        [row for shape in shapes[first : first + SHAPES_MAX] for row in shape]
        for first in range(0, len(shapes), SHAPES_MAX)
    ]


def split(rows: Sequence[FoldedRow]) -> list[list[FoldedRow]]:
    """Splits the rows of a statement that was refused because of one of them: in halves; then a key's changes, one by one.

    Returns an empty list if it was a single change: this is the refused one.
    """
    if len(rows) > 1:
        middle = len(rows) // 2
        return [list(rows[:middle]), list(rows[middle:])]
    changes = rows[0].changes
    return [[FoldedRow.of(change)] for change in changes] if len(changes) > 1 else []
