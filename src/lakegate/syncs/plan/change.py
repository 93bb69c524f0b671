"""A change of one row at the source, and batches of changes that end where the source's transactions end.

Rules for editors: a batch is never cut inside a source transaction, however large that is. Between its statements the
source may have been in a state that its keys forbid (deferred constraints); at its ends it never was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

Op = Literal["c", "u", "d", "t", "many", "ddl", "mark", "unread"]
"""Created, updated, deleted, truncated; rows that are too many to be changes; a statement that changes the definition of a
table; nothing but a place, so far has the source come; and a record that cannot be read."""
NO_ROWS: Final[frozenset[Op]] = frozenset({"mark", "unread"})
"""Changes that are of no table."""
UNREAD_BYTES_MAX: Final = 16 * 1024
"""So much of a record that cannot be read is kept."""
Image = Mapping[str, Any]
"""Column → value: a row, or as much of it as the source says."""


class ManyRows(Protocol):
    """What one transaction took out of a table and put into it, as whole rows that nobody holds in memory."""

    @property
    def columns(self) -> Sequence[str]:
        """Of each row."""
        ...

    @property
    def gone(self) -> int:
        """How many rows were taken out; one under the key of a row that was put in is the same row, changed."""
        ...

    @property
    def put(self) -> int:
        """How many were put in."""
        ...

    @property
    def is_whole(self) -> bool:
        """The table has the rows that were put in, and no others."""
        ...

    def sample(self) -> Image | None:
        """One of the rows; None if there is none."""
        ...

    def rows(self) -> Iterator[Sequence[object]]:
        """One after another: whether it was put in, then its values."""
        ...

    def spread(self, write: Callable[[int, int, Iterator[Sequence[object]]], str | None]) -> Sequence[str]:
        """Has parts of the rows written side by side, in other processes; what any of them was refused for.

        Args:
            write: Takes the number of its first row, of the first row behind it, and those as `rows` has them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A record of the source that cannot be read."""

    reason: str
    where: Mapping[str, Any]
    """File and line, or topic, partition and offset."""
    data: bytes
    """Its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, as its source tells it."""

    seq: int
    """Its place in the source: rising; only changes of one transaction may share it."""
    tx: str | None
    """Its transaction at the source; None where it stands alone."""
    table: str
    """Name of the target table."""
    op: Op
    before: Image | None = None
    """The row before; or its key only; or None where the source does not say."""
    after: Image | None = None
    """The row after. Columns that are missing kept their value."""
    is_partial: bool = False
    """The source has columns that `after` leaves out: what they are, only a row that is there already can tell."""
    sql: str | None = None
    """The statement of a `ddl`."""
    many: ManyRows | None = None
    """The rows of a `many`, which is a transaction of its own."""
    is_snapshot: bool = False
    """A snapshot of the source read the row. Its rows are of one state, whatever order they come in."""
    shows_actions: bool = False
    """Its source says what actions of foreign keys did, or has none: nothing is to be added to it."""
    unread: Unread | None = None
    """The record of an `unread`."""
    place: str | None = None
    """On the last change of a transaction: what the source needs to go on behind it, where `seq` is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole source transactions in order."""

    changes: tuple[Change, ...]

    @property
    def through(self) -> int:
        """The place of its last change."""
        return self.changes[-1].seq

    @property
    def place(self) -> str | None:
        """What the source needs to go on behind it; None: `through` is enough."""
        return self.changes[-1].place

    @property
    def ddl(self) -> Change | None:
        """The statement, if this batch is nothing but one."""
        return self.changes[0] if self.changes[0].op == "ddl" else None

    @property
    def many(self) -> ManyRows | None:
        """The rows, if it is one transaction of too many."""
        return self.changes[0].many

    @property
    def is_load(self) -> bool:
        """Whether it is of the rows that a first load begins with."""
        return _is_load(self.changes)

    @property
    def is_snapshot(self) -> bool:
        """Whether all of it was read by a snapshot: rows may come before those that they refer to."""
        return all(change.is_snapshot for change in self.changes)

    @property
    def size(self) -> int:
        """How many changes of rows it has."""
        if self.many is not None:
            return self.many.gone + self.many.put
        return sum(change.op != "mark" for change in self.changes)


def transactions(changes: Iterable[Change]) -> Iterator[tuple[Change, ...]]:
    """Changes in groups that the source committed together: a transaction ends where `tx` changes."""
    group: list[Change] = []
    for change in changes:
        if group and (change.tx is None or change.tx != group[-1].tx):
            yield tuple(group)
            group = []
        group.append(change)
    if group:
        yield tuple(group)


def _is_load(changes: Sequence[Change]) -> bool:
    """Whether its rows are below place 0; a mark there says only that place 0 is the next."""
    return changes[0].seq < 0 and changes[0].op not in NO_ROWS


def batches(groups: Iterable[tuple[Change, ...]], *, changes_max: int, through: int | None = None) -> Iterator[Batch]:
    """Batches of at most `changes_max` changes, or of one transaction that is larger.

    A transaction that truncates a table, one of too many rows, and a statement that changes a definition are batches of their
    own. So are the rows of a first load, which come in groups that begin below place 0, the last of which ends at the load's.
    However they are cut, they may be written again: they are all of one state.

    Args:
        groups: Whole transactions, in order.
        changes_max: At least 1.
        through: Where the first batch behind a first load ends, whatever its size: where a run before this one had begun to
            apply it.
    """
    held: list[Change] = []
    for group in groups:
        is_alone = any(change.op in ("t", "many", "ddl") for change in group)
        is_load = _is_load(group)
        is_pinned = through is not None and not is_load and group[-1].seq <= through
        if held and not is_pinned and (is_alone or len(held) + len(group) > changes_max):
            yield Batch(changes=tuple(held))
            held = []
        held.extend(group)
        if is_pinned:
            if group[-1].seq == through:
                yield Batch(changes=tuple(held))
                held, through = [], None
        elif is_alone or len(held) >= changes_max or (is_load and group[-1].seq >= 0):
            yield Batch(changes=tuple(held))
            held = []
    if held:
        yield Batch(changes=tuple(held))
