"""Explains the next batch without applying it: its rows, the order of key releases, and the parts that must stay together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.apply_protocol import SyncProgress, whole_because
from lakegate.syncs.plan.change import Batch
from lakegate.syncs.plan.conflict_graph import assign, with_queues
from lakegate.syncs.ports import ChangeSource, DefinitionChanged, TargetView
from lakegate.syncs.runner import SyncSettings, allow_definition, pending_batches, prepared

TOGETHER = "one takes a value that another one releases, or a foreign key connects them"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that cannot be applied as it is."""

    table: str
    key: str
    """The key as JSON."""
    position: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch:
    """The batch that would be applied now."""

    batch: int
    changes: int
    through: int
    """The position of the batch's last change."""
    is_begun: bool
    """Whether an earlier run began to apply the batch. Then it is applied again."""
    rows: Mapping[str, int]
    """Table → number of rows that change."""
    edges: int
    """The number of pairs of rows in which one releases a value that the other takes."""
    components: int
    """The number of groups of rows that share a transaction."""
    largest: int
    in_components: int
    """The number of rows in those groups. The other rows are distributed freely."""
    transactions: int
    serial: tuple[str, ...]
    """The parts of the batch that are not distributed, and why."""
    troubles: tuple[RefusedRow, ...]
    statement: str | None
    """The DDL statement, if the batch is one."""


def explain(
    source: ChangeSource, target: TargetView, *, stream: str, settings: SyncSettings | None = None
) -> NextBatch | None:
    """Returns the next batch; None if the target has all current changes of the source. Writes nothing.

    Raises:
        InvalidRequest: A change has no key, no table or a column that the target lacks.
        CheckpointMismatch: An unfinished batch cannot be read again as it was.
    """
    how = settings or SyncSettings()
    progress = target.progress(stream) or SyncProgress(epoch=0, last_batch=0, position=-1)
    batch = next(pending_batches(source, progress, how), None)
    if batch is None:
        return None
    if batch.ddl is not None:
        troubles: tuple[RefusedRow, ...] = ()
        try:
            allow_definition(batch.ddl, target, how, source_position.tables(progress.place))
        except InvalidRequest as error:
            troubles = (RefusedRow(table=batch.ddl.table, key="", position=batch.through, reason=error.message),)
        return NextBatch(
            batch=progress.last_batch + 1, changes=1, through=batch.through, is_begun=progress.pending is not None,
            rows={}, edges=0, components=0, largest=0, in_components=0, transactions=1,
            serial=("a statement that changes a definition is a batch by itself",), troubles=troubles, statement=batch.ddl.sql,
        )  # fmt: skip
    try:
        return _explained(batch, target, progress, stream, how)
    except DefinitionChanged:
        return _explained(batch, target, progress, stream, how)


def _explained(batch: Batch, target: TargetView, progress: SyncProgress, stream: str, how: SyncSettings) -> NextBatch:
    ready = prepared(batch, target, how)
    net = ready.net
    because = list(whole_because(net, how.mode))
    if target.writers_max == 1 and how.mode == "parallel":
        because.append("this kind of database has one writer")
    slots = 1 if because else max(1, min(ready.slots, len(net.rows)))
    if net.many is not None:
        return NextBatch(
            batch=progress.last_batch + 1, changes=batch.size, through=batch.through, is_begun=progress.pending is not None,
            rows={net.many[0]: batch.size}, edges=0, components=0, largest=0, in_components=0, transactions=slots,
            serial=("a transaction with so many rows is not previewed: key conflicts are found when it is applied",),
            troubles=(), statement=None,
        )  # fmt: skip
    refused, found = target.preview(stream, net, slots)
    assignment = assign(found, rows=len(net.rows), slots=slots)
    if ready.queues is not None:
        assignment = with_queues(assignment, ready.queues, rows=len(net.rows), slots=slots)
    rows: dict[str, int] = {}
    for table in (*(row.table for row in net.rows), *(row.table for row in net.copies), *net.truncated):
        rows.setdefault(table, 0)
    for row in net.rows:
        rows[row.table] += 1
    for copies in net.copies:
        rows[copies.table] += abs(copies.count)
    troubles = [
        *((each.row, each.reason) for each in refused),
        *((c.row, f"{c.key}: the value belongs to the row {c.holder}" + _where(c.is_drift)) for c in found.clashes),
    ]
    in_components = sum(map(len, assignment.components))
    serial = [f"the whole batch is one transaction: {reason}" for reason in because]
    if in_components and not because:
        groups = f"{len(assignment.components)} group" + ("s" if len(assignment.components) > 1 else "")
        why = "they are in a conflict queue" if ready.queues else TOGETHER
        serial.append(f"{in_components} rows in {groups}: the rows of a group share a transaction, because {why}")
    return NextBatch(
        batch=progress.last_batch + 1,
        changes=len(batch.changes),
        through=batch.through,
        is_begun=progress.pending is not None,
        rows=rows,
        edges=len(found.edges),
        components=len(assignment.components),
        largest=len(assignment.components[0]) if assignment.components else min(1, len(net.rows)),
        in_components=in_components,
        transactions=slots,
        serial=tuple(serial),
        troubles=tuple(
            RefusedRow(
                table=net.rows[n].table,
                key=json.dumps(net.rows[n].key, default=str),
                position=net.rows[n].seq,
                reason=reason,
            )
            for n, reason in troubles
        ),
        statement=None,
    )


def _where(is_drift: bool) -> str:
    return ", which is not in this batch" if is_drift else ""
