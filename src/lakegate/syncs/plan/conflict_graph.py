"""Who has to let go before whom, what belongs into one transaction, and how the rest is spread.

A row that ends with a unique value that another row holds when the batch begins is an edge: releaser → acquirer. If a batch
begins and ends in states that the keys allow, images of its end never conflict with each other: the only thing that can
stand in the way is a value not yet let go. So it is enough that every releaser with an edge lets go first, in whatever
order, through chains, swaps and rings over any number of keys; and that both ends of an edge share a transaction.

Rules for editors: edges come from the target, with the target's own equality. Nothing here compares values, but
`conflict_queue`, which is the published reference and can only compare what the events say.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lakegate.errors import MissingExtra
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.net_changes import Net, canonical
from lakegate.syncs.plan.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class Edge:
    """Row `releaser` of the batch holds in the target what row `acquirer` ends with, under key number `key` of the table."""

    releaser: int
    acquirer: int
    key: int


@dataclass(frozen=True, slots=True)
class Tie:
    """Two rows of the batch that belong into one transaction, because a foreign key leads from one to the other."""

    child: int
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A row of the batch that cannot be right beside another: not an order problem, a true violation, or drift."""

    row: int
    table: str
    key: str
    """The name of the constraint."""
    other: int | None
    """The other row, if it is in the batch."""
    holder: str
    """The primary key of the other row, for people."""

    @property
    def is_drift(self) -> bool:
        """Whether the other row is one that this batch does not touch."""
        return self.other is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the target says about the staged rows."""

    edges: tuple[Edge, ...] = ()
    ties: tuple[Tie, ...] = ()
    clashes: tuple[Clash, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where each row goes. Rows that are not named stay in slot `n % slots`, as they were staged."""

    slots: int
    slot_of: Mapping[int, int] = field(default_factory=dict)
    vacate: Mapping[int, int] = field(default_factory=dict)
    """Row → the keys of its table that it must let go of first, as bits."""
    components: tuple[tuple[int, ...], ...] = ()
    """Rows that share a transaction, the largest component first; single rows are not listed."""

    def component_by_row(self) -> dict[int, tuple[int, ...]]:
        """Row → all rows that share a transaction with it, itself included; without single rows."""
        return {row: members for members in self.components for row in members}


def components(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Nodes that are connected, the largest group first; each group in rising order."""
    try:  # here, so that reading a pipeline does not need it
        import numpy as np
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
    except ImportError as error:
        raise MissingExtra(
            "what finds the rows that share a transaction is not installed; nothing was written",
            advice="pip install 'lakegate[sync]'",
        ) from error

    found = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    if not len(found):
        return ()
    nodes, numbered = np.unique(found, return_inverse=True)
    links = numbered.reshape(-1, 2)
    graph = coo_array((np.ones(len(links), dtype=np.int8), (links[:, 0], links[:, 1])), shape=(len(nodes), len(nodes)))
    _, label = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for node, group in zip(nodes.tolist(), label.tolist(), strict=True):
        groups.setdefault(group, []).append(node)
    return tuple(sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group)))


def assign(found: Found, *, rows: int, slots: int) -> Assignment:
    """Components to slots, the largest first and each to the slot that has least; the other rows stay spread."""
    groups = components(
        [(edge.releaser, edge.acquirer) for edge in found.edges] + [(tie.child, tie.parent) for tie in found.ties]
    )
    vacate: dict[int, int] = {}
    for edge in found.edges:
        vacate[edge.releaser] = vacate.get(edge.releaser, 0) | 1 << edge.key
    slot_of = spread(groups, rows=rows, slots=slots) if slots > 1 else {}
    return Assignment(slots=slots, slot_of=slot_of, vacate=vacate, components=groups)


def spread(groups: Sequence[tuple[int, ...]], *, rows: int, slots: int) -> dict[int, int]:
    """Row → slot for the members of `groups`, which are sorted by falling size."""
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
    """The same assignment, with each queue in one slot."""
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
    """The published model: all rows of a table that share a value of any unique key with another row, as one group.

    Args:
        changes: Of the batch; every image that a row had counts, before and after.
        net: Their net effect.
        tables: Whose unique keys are compared, as the events write them.

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
                    # Folded, so that it is coarser than most equalities: the article compares what the events say.
                    text = repr([str(value).casefold().rstrip() for value in values])
                    holders.setdefault((change.table, place, text), set()).add(n)
    queues: dict[str, set[int]] = {}
    for (table, _, _), sharing in holders.items():
        if len(sharing) > 1:
            queues.setdefault(table, set()).update(sharing)
    return tuple(sorted((tuple(sorted(queue)) for queue in queues.values()), key=lambda queue: (-len(queue), queue)))
