"""Carries a source's changes over to a target, batch by batch, from the position that the target itself has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from headgate.core.keys.apply import Complete, Mode, OnViolation, Progress, Stopped, apply_batch
from headgate.core.keys.change import Batch, batches
from headgate.core.keys.fold import Net, fold
from headgate.core.keys.plan import conflict_queue
from headgate.errors import CheckpointMismatch, ConstraintViolated, InvalidRequest
from headgate.ports import ChangeSource, DefinitionChanged, TargetDatabase, TargetView
from headgate.sync.apply import Seen, drive

Plan = Literal["staged", "conflict_queue"]
NAMED_MAX = 5
"""So many rows are named in a message; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How changes are applied."""

    mode: Mode = "atomic"
    plan: Plan = "staged"
    parallelism: int = 8
    on_violation: OnViolation = "stop"
    changes_max: int = 50_000
    """Per batch; a larger source transaction is a batch of its own."""
    epoch: int | None = None
    """Of the caller's turn; None: one more than the last writer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBatch:
    """One batch that is in the target."""

    batch: int
    changes: int
    through: int
    """Its position: the place of its last change."""
    complete: Complete | None
    """None for a statement that changes a definition."""


def run(
    source: ChangeSource,
    target: TargetDatabase,
    *,
    stream: str,
    settings: SyncSettings | None = None,
    seen: Seen = lambda effect: None,
) -> Iterator[AppliedBatch]:
    """Applies what the source has now, and yields each batch once it is in.

    Args:
        source: In source order.
        target: Kept open.
        stream: Under this name the target knows the position.
        settings: How.
        seen: Told before each step.

    Raises:
        ConstraintViolated: With `on_violation: stop`.
        InvalidRequest: A change has no key, no table or a column that the target lacks.
        Fenced: A later writer has begun.
    """
    how = settings or SyncSettings()
    yield from carry(source, target, target.open_stream(stream, epoch=how.epoch), how, seen)


def carry(
    source: ChangeSource,
    target: TargetDatabase,
    progress: Progress,
    how: SyncSettings,
    seen: Seen = lambda effect: None,
) -> Iterator[AppliedBatch]:
    """What `run` does on a stream that is open, from `progress` on."""
    number = progress.last_batch
    for batch in pending_batches(source, progress, how):
        number += 1
        if batch.ddl is not None:
            target.define(batch.ddl)
            yield AppliedBatch(batch=number, changes=1, through=batch.through, complete=None)
        else:
            try:
                complete = _apply(batch, target, how, seen)
            except DefinitionChanged:
                complete = _apply(batch, target, how, seen)
            yield AppliedBatch(batch=number, changes=len(batch.changes), through=batch.through, complete=complete)


def pending_batches(source: ChangeSource, progress: Progress, how: SyncSettings) -> Iterator[Batch]:
    """What the source has behind `progress` now, in batches.

    Raises:
        CheckpointMismatch: A batch was begun that cannot be read again as it was.
    """
    pending = progress.pending
    for batch in batches(source.transactions(progress.position), changes_max=how.changes_max, through=pending):
        if pending is not None and batch.through != pending:
            raise CheckpointMismatch(
                "a batch was begun that ends where the source has no end of a transaction now; nothing was written",
                advice="Bring the source's changes back as they were, or make the target again from a snapshot",
                position=pending,
            )
        pending = None
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch, as it meets the target's tables."""

    net: Net
    slots: int
    """How many transactions it may be spread over."""
    queues: tuple[tuple[int, ...], ...] | None


def prepared(batch: Batch, target: TargetDatabase | TargetView, how: SyncSettings) -> Prepared:
    """The net effect of a batch.

    Raises:
        InvalidRequest: A change has no key, no table or a column that the target lacks.
    """
    names = list(dict.fromkeys(change.table for change in batch.changes))
    tables = target.tables(names)
    net = fold(batch.changes, tables)
    slots = how.parallelism
    if target.slot_rows_max is not None:
        slots = max(slots, -(-len(net.rows) // target.slot_rows_max))
    if target.writers_max == 1:
        slots = 1
    queues = None
    if how.plan == "conflict_queue":
        queues = conflict_queue(batch.changes, net, tables)
    if net.copies and how.mode == "parallel" and target.writers_max != 1:
        raise InvalidRequest(
            "a table without any key cannot be written by several transactions; nothing was written",
            advice="Give the table a key, or use mode: atomic",
            table=net.copies[0].table,
        )
    return Prepared(net=net, slots=slots, queues=queues)


def _apply(batch: Batch, target: TargetDatabase, how: SyncSettings, seen: Seen) -> Complete:
    ready = prepared(batch, target, how)
    protocol = apply_batch(
        ready.net, mode=how.mode, slots=ready.slots, on_violation=how.on_violation, queues=ready.queues
    )
    end = drive(protocol, target, parallelism=how.parallelism, seen=seen)
    match end:
        case Complete():
            return end
        case Stopped():
            raise violated(end)
        case _:
            assert_never(end)


def violated(stopped: Stopped) -> ConstraintViolated:
    """The error of a batch that was stopped: the constraint, and both rows where they are known."""
    rows = [f"{row.table} {', '.join(map(str, row.key))} (position {row.seq})" for row in stopped.rows[:NAMED_MAX]]
    if len(stopped.rows) > NAMED_MAX:
        rows.append(f"and {len(stopped.rows) - NAMED_MAX} more")
    clash = next(iter(stopped.clashes), None)
    return ConstraintViolated(
        f"the changes break a constraint of the target: {stopped.violation.reason}; "
        "the target stays at the last complete batch",
        constraint=stopped.violation.constraint or (clash.key if clash else None),
        rows="; ".join(rows) or None,
        holder=clash.holder if clash else None,
        holder_is_outside_the_batch=clash.is_drift if clash else None,
    )
