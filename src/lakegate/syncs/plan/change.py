"""Changes of single rows at the source, and batches of changes that end at the source's transaction boundaries.

Rules for editors: a batch never ends inside a source transaction, however large the transaction is. Inside a transaction, the
source may violate its keys for a while (deferred constraints); at the boundaries it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

Op = Literal["c", "u", "d", "t", "many", "ddl", "mark", "unread"]
"""Create, update, delete, truncate; `many`: too many rows for single changes; `ddl`: a statement that changes a definition;
`mark`: only a position that the source has reached; `unread`: an unreadable record."""
NO_ROWS: Final[frozenset[Op]] = frozenset({"mark", "unread"})
"""Changes that belong to no table."""
UNREAD_BYTES_MAX: Final = 16 * 1024
"""The maximum number of bytes kept of an unreadable record."""
Image = Mapping[str, Any]
"""Column → value: a row, or the part of it that the source provides."""


class ManyRows(Protocol):
    """The rows that one transaction deleted from and wrote to a table, as whole rows that are not held in memory."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of each row."""
        ...

    @property
    def gone(self) -> int:
        """The number of deleted rows. A deleted row with the key of a written row is the same row, changed."""
        ...

    @property
    def put(self) -> int:
        """The number of written rows."""
        ...

    @property
    def is_whole(self) -> bool:
        """Returns whether the table consists of exactly the written rows."""
        ...

    def sample(self) -> Image | None:
        """Returns one of the rows; None if there is none."""
        ...

    def rows(self) -> Iterator[Sequence[object]]:
        """Yields the rows: whether the row was written, then its values."""
        ...

    def spread(self, write: Callable[[int, int, Iterator[Sequence[object]]], str | None]) -> Sequence[str]:
        """Writes parts of the rows concurrently in other processes; returns the reasons of refused parts.

        Args:
            write: Takes the number of the part's first row, the number after its last row, and its rows as `rows` yields them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A record of the source that cannot be read."""

    reason: str
    where: Mapping[str, Any]
    """File and line, or topic, partition and offset."""
    data: bytes
    """The beginning of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change as its source reports it."""

    seq: int
    """The position in the source. Positions increase; only changes of one transaction may share one."""
    tx: str | None
    """The source transaction; None for a change that is a transaction by itself."""
    table: str
    """Name of the target table."""
    op: Op
    before: Image | None = None
    """The row before; or only its key; or None if the source does not provide it."""
    after: Image | None = None
    """The row after. Missing columns kept their value."""
    is_partial: bool = False
    """Whether `after` lacks columns of the source's row. Only an existing target row can provide their values."""
    sql: str | None = None
    """The statement of a `ddl`."""
    many: ManyRows | None = None
    """The rows of a `many`, which is a transaction by itself."""
    is_snapshot: bool = False
    """Whether a snapshot of the source read the row. All its rows belong to one state, in any order."""
    shows_actions: bool = False
    """Whether the source reports the effects of foreign key actions, or has no such actions: then none are added."""
    unread: Unread | None = None
    """The record of an `unread`."""
    committed_at_ms: int | None = None
    """When the source committed the change (its wall clock), if it tells. None for rows of a snapshot."""
    place: str | None = None
    """On the last change of a transaction: the source's state for resuming after it, if `seq` is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A sequence of whole source transactions."""

    changes: tuple[Change, ...]

    @property
    def through(self) -> int:
        """The position of the last change."""
        return self.changes[-1].seq

    @property
    def place(self) -> str | None:
        """The source's state for resuming after the batch; None if `through` is enough."""
        return self.changes[-1].place

    @property
    def ddl(self) -> Change | None:
        """The DDL statement, if the batch is one."""
        return self.changes[0] if self.changes[0].op == "ddl" else None

    @property
    def many(self) -> ManyRows | None:
        """The rows, if the batch is one transaction with too many rows for single changes."""
        return self.changes[0].many

    @property
    def is_load(self) -> bool:
        """Returns whether the batch has rows of the initial load."""
        return _is_load(self.changes)

    @property
    def is_snapshot(self) -> bool:
        """Returns whether a snapshot read all rows. Then a row may come before the rows that it refers to."""
        return all(change.is_snapshot for change in self.changes)

    @property
    def size(self) -> int:
        """The number of row changes."""
        if self.many is not None:
            return self.many.gone + self.many.put
        return sum(change.op != "mark" for change in self.changes)

    @property
    def commits(self) -> Mapping[int, int]:
        """The number of row changes by the time of their commit at the source, as far as it is known."""
        if self.many is not None:
            at_ms = self.changes[0].committed_at_ms
            return {} if at_ms is None else {at_ms: self.size}
        found = (change.committed_at_ms for change in self.changes if change.op != "mark")
        return Counter(at_ms for at_ms in found if at_ms is not None)


def transactions(changes: Iterable[Change]) -> Iterator[tuple[Change, ...]]:
    """Groups changes that the source committed together: a transaction ends where `tx` changes."""
    group: list[Change] = []
    for change in changes:
        if group and (change.tx is None or change.tx != group[-1].tx):
            yield tuple(group)
            group = []
        group.append(change)
    if group:
        yield tuple(group)


def _is_load(changes: Sequence[Change]) -> bool:
    """Returns whether the rows are below position 0. A mark below 0 only states that position 0 is next."""
    return changes[0].seq < 0 and changes[0].op not in NO_ROWS


def batches(groups: Iterable[tuple[Change, ...]], *, changes_max: int, through: int | None = None) -> Iterator[Batch]:
    """Yields batches of at most `changes_max` changes, or of one larger transaction.

    A transaction that truncates a table, one with too many rows, and a DDL statement are batches by themselves. So are the
    rows of the initial load: their groups begin below position 0, and the last group ends at the load's position. The load may
    be cut anywhere and written again, because all its rows belong to one state.

    Args:
        groups: Whole transactions, in order.
        changes_max: At least 1.
        through: The end of the first batch after the initial load, regardless of its size: an earlier run began to apply that
            batch.
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
