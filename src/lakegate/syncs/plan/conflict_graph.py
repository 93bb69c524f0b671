"""The order in which rows release keys, the rows that must share a transaction, and the distribution of the rest.

An edge releaser → acquirer means: a row ends with a unique value that another row holds when the batch begins. If a batch
begins and ends in states that the keys allow, the final images never conflict with each other; only a value that is not yet
released can conflict. So it suffices that every releaser with an edge releases first, in any order, even for chains, swaps and
cycles over any number of keys, and that both ends of an edge share a transaction.

Rules for editors: edges come from the target, with the target's own equality. Nothing here compares values, except
`conflict_queue`: the published reference, which can only compare the values in the events.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.net_changes import Net, canonical
from lakegate.syncs.plan.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class Edge:
    """Row `releaser` of the batch holds in the target the value with which row `acquirer` ends, in the table's key `key`."""

    releaser: int
    acquirer: int
    key: int


@dataclass(frozen=True, slots=True)
class Tie:
    """Two rows of the batch that must share a transaction because a foreign key connects them."""

    child: int
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A row of the batch that conflicts with another row: not a matter of order, but a true violation, or drift."""

    row: int
    table: str
    key: str
    """The name of the constraint."""
    other: int | None
    """The other row, if it is in the batch."""
    holder: str
    """The primary key of the other row, for messages."""

    @property
    def is_drift(self) -> bool:
        """Returns whether the batch does not change the other row."""
        return self.other is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The target's answer about the staged rows."""

    edges: tuple[Edge, ...] = ()
    ties: tuple[Tie, ...] = ()
    clashes: tuple[Clash, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The slot of each row. Rows that are not named stay in slot `n % slots`, as they were staged."""

    slots: int
    slot_of: Mapping[int, int] = field(default_factory=dict)
    vacate: Mapping[int, int] = field(default_factory=dict)
    """Row → bits of the keys of its table that the row must release first."""
    components: tuple[tuple[int, ...], ...] = ()
    """Rows that share a transaction, the largest component first; single rows are not listed."""

    def component_by_row(self) -> dict[int, tuple[int, ...]]:
        """Returns row → all rows that share a transaction with it, including itself; without single rows."""
        return {row: members for members in self.components for row in members}


def components(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Returns groups of connected nodes, the largest group first; each group in ascending order."""
    above: dict[int, int] = {}

    def top(node: int) -> int:
        found = above.setdefault(node, node)
        while found != above[found]:
            found = above[found]
        while node != found:  # so that later searches are short
            above[node], node = found, above[node]
        return found

    for one, other in pairs:
        above[top(one)] = top(other)
    groups: dict[int, list[int]] = {}
    for node in sorted(above):
        groups.setdefault(top(node), []).append(node)
    return tuple(sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group)))


def assign(found: Found, *, rows: int, slots: int) -> Assignment:
    """Assigns components to slots: the largest first, each to the slot with the fewest rows. Other rows stay distributed."""
    groups = components(
        [(edge.releaser, edge.acquirer) for edge in found.edges] + [(tie.child, tie.parent) for tie in found.ties]
    )
    vacate: dict[int, int] = {}
    for edge in found.edges:
        vacate[edge.releaser] = vacate.get(edge.releaser, 0) | 1 << edge.key
    slot_of = spread(groups, rows=rows, slots=slots) if slots > 1 else {}
    return Assignment(slots=slots, slot_of=slot_of, vacate=vacate, components=groups)


def spread(groups: Sequence[tuple[int, ...]], *, rows: int, slots: int) -> dict[int, int]:
    """Returns row → slot for the members of `groups`, which are sorted by descending size."""
    load = [(rows + slots - 1 - slot) // slots for slot in range(slots)]
    for group in groups:
        for row in group:
            load[row % slots] -= 1
    heap = [(size, slot) for slot, size in enumerate(load)]
    heapq.heapify(heap)
    slot_of: dict[int, int] = {}
    for group in groups:
        size, slot = heapq.heappop(heap)
        slot_of.update(dict.fromkeys(group, slot))
        heapq.heappush(heap, (size + len(group), slot))
    return slot_of


def with_queues(assignment: Assignment, queues: Sequence[tuple[int, ...]], *, rows: int, slots: int) -> Assignment:
    """Returns the same assignment, with each queue in one slot."""
    chains = [pair for group in (*assignment.components, *queues) for pair in pairwise(group)]
    groups = components(chains)
    return Assignment(
        slots=slots,
        slot_of=spread(groups, rows=rows, slots=slots),
        vacate=assignment.vacate,
        components=groups,
    )


def conflict_queue(
    changes: Iterable[Change], net: Net, tables: Mapping[str, TableSchema]
) -> tuple[tuple[int, ...], ...]:
    """Returns the published model's groups, one per table: all rows that share a value of any unique key with another row.

    Args:
        changes: The changes of the batch; every image counts, before and after.
        net: The net effect of the changes.
        tables: The tables whose unique keys are compared, as the events write them.

    Source: docs/explanation/keys.md, "The conflict queue".
    """
    number = {(row.table, canonical(row.key)): row.n for row in net.rows}
    holders: dict[tuple[str, int, str], set[int]] = {}
    for change in changes:
        schema = tables[change.table]
        for image in (change.before, change.after):
            key = schema.key_of(image)
            n = None if key is None else number.get((change.table, canonical(key)))
            if image is None or n is None:
                continue
            for place, unique in enumerate(schema.unique_keys):
                values = [image.get(name) for name in sorted(unique.columns)]
                if unique.nulls_equal or None not in values:
                    # Casefolded, to be coarser than most equalities: the published model compares the values of events.
                    text = repr([str(value).casefold().rstrip() for value in values])
                    holders.setdefault((change.table, place, text), set()).add(n)
    queues: dict[str, set[int]] = {}
    for (table, _, _), sharing in holders.items():
        if len(sharing) > 1:
            queues.setdefault(table, set()).update(sharing)
    return tuple(sorted((tuple(sorted(queue)) for queue in queues.values()), key=lambda queue: (-len(queue), queue)))
