"""Applies a source's changes to a target, batch by batch, from the position that the target stores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, assert_never

from lakegate.config.syncs import ForeignKeyActions, OnDdl, OnSchemaChange
from lakegate.errors import (
    CheckpointMismatch,
    ConstraintViolated,
    InvalidRequest,
    StagedRowsLost,
    Unavailable,
    UnsupportedTable,
)
from lakegate.syncs.effect_runner import Seen, run_protocol
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.apply_protocol import Complete, Mode, OnViolation, Stopped, SyncProgress, apply_batch
from lakegate.syncs.plan.change import NO_ROWS, Batch, Change, batches
from lakegate.syncs.plan.conflict_graph import conflict_queue
from lakegate.syncs.plan.dead_letters import joined
from lakegate.syncs.plan.definition import refuse_reserved, require_allowed
from lakegate.syncs.plan.foreign_key_actions import may_act, with_actions
from lakegate.syncs.plan.net_changes import FoundRows, Net, NetRow
from lakegate.syncs.plan.net_changes_fast import net_effect
from lakegate.syncs.plan.table_schema import TableSchema
from lakegate.syncs.ports import ChangeSource, DefinitionChanged, SetsApart, TargetDatabase, TargetView
from lakegate.syncs.schema_evolution import fitted

T = TypeVar("T")
Plan = Literal["staged", "conflict_queue"]
SNAPSHOT_MAX = 2_000_000
"""The maximum number of snapshot rows in one batch, if rows come before the rows that they refer to."""
JOINED_MAX = 200_000
"""The maximum number of other changes in one batch, if the target refuses the first of them."""
NAMED_MAX = 5
"""The maximum number of rows named in a message; further rows are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """The settings for applying changes."""

    mode: Mode = "atomic"
    plan: Plan = "staged"
    parallelism: int = 8
    on_violation: OnViolation = "stop"
    on_schema_change: OnSchemaChange = "stop"
    ddl: OnDdl = "stop"
    tables: frozenset[str] = frozenset()
    """The target tables that the sync names, for `ddl: apply`; empty if it names none."""
    foreign_key_actions: ForeignKeyActions = "auto"
    """`auto`: each source reports whether its changes contain the effects of foreign key actions. `in_log`: they do."""
    changes_max: int = 100_000
    """Maximum per batch; a larger source transaction is a batch by itself."""
    epoch: int | None = None
    """The epoch of the caller's turn; None for one more than the last writer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBatch:
    """A batch that was applied to the target."""

    batch: int
    changes: int
    through: int
    """The position of the batch's last change."""
    place: str | None
    """The source's state for resuming after the batch."""
    complete: Complete | None
    """None for a DDL statement."""
    committed_at_ms: int
    """When the target had committed the batch (wall clock)."""
    commits: Mapping[int, int] = field(default_factory=dict)
    """When the source committed the changes (its wall clock, ms) → number of changes, as far as the source tells."""


def run(
    source: ChangeSource,
    target: TargetDatabase,
    *,
    stream: str,
    settings: SyncSettings | None = None,
    seen: Seen = lambda effect: None,
) -> Iterator[AppliedBatch]:
    """Applies the changes that the source has now, and yields each batch after it was applied.

    Args:
        source: Delivers changes in source order.
        target: Kept open.
        stream: The name under which the target stores the position.
        settings: The settings for applying changes.
        seen: Called before each step.

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
    progress: SyncProgress,
    how: SyncSettings,
    seen: Seen = lambda effect: None,
) -> Iterator[AppliedBatch]:
    """Does the work of `run` on an open stream, from `progress` on."""
    number = progress.last_batch
    known = set(source_position.tables(progress.place))

    def tried(batch: Batch) -> Prepared | None:
        if target.writers_max == 1:
            return None  # its staging tables belong to one connection; a second, concurrent connection would block it
        if batch.ddl is not None or how.on_schema_change == "add_columns":  # done when the batch is applied
            return None
        try:
            if how.foreign_key_actions == "auto" and may_act(batch.changes, target.tables(_tables_of(batch))):
                return None  # actions are read from the target, after the batch before is applied
            return prepared(batch, target, how)
        except InvalidRequest:  # a pending DDL statement may resolve it; otherwise refused later
            return None

    batches_ahead = ((batch, tried(batch)) for batch in pending_batches(source, progress, how))
    with contextlib.closing(ahead(batches_ahead)) as following:
        read = _Following(following)
        while (item := read.next()) is not None:
            batch, ready = item
            number += 1
            if (batch.is_snapshot or how.on_violation == "stop") and _is_joinable(batch):
                applied = _apply_with_more(batch, read, target, number, how, seen, ready)
            else:
                applied = apply_one(batch, target, number, how, seen, ready, known)
            known.update(_tables_of(batch))
            yield applied


class _Following:
    """Batches in order, of which the next one can be joined to the one before it."""

    def __init__(self, batches: Iterator[tuple[Batch, Prepared | None]]) -> None:
        self._batches = batches
        self._next: tuple[Batch, Prepared | None] | None = None

    def next(self) -> tuple[Batch, Prepared | None] | None:
        """Returns the next batch; None if there is none now."""
        found, self._next = self._next, None
        return found or next(self._batches, None)

    def joined(self, batch: Batch, count: int, *, changes_max: int, snapshot_only: bool) -> Batch | None:
        """Returns the batch joined with up to `count` joinable successors; None if there is none."""
        changes = list(batch.changes)
        while count and len(changes) < changes_max and (found := self.next()) is not None:
            if not _is_joinable(found[0]) or (snapshot_only and not found[0].changes[0].is_snapshot):
                self._next = found
                break
            changes += found[0].changes
            count -= 1
        return Batch(changes=tuple(changes)) if len(changes) > len(batch.changes) else None


def _is_joinable(batch: Batch) -> bool:
    """Returns whether a batch can be joined with adjacent batches."""
    return (not batch.is_load or batch.is_snapshot) and all(
        change.op not in ("t", "many", "ddl") for change in batch.changes
    )


def _apply_with_more(
    batch: Batch,
    following: _Following,
    target: TargetDatabase,
    number: int,
    how: SyncSettings,
    seen: Seen,
    ready: Prepared | None,
) -> AppliedBatch:
    """Applies a batch; if the target refuses it, applies it together with following batches as one batch.

    So an intermediate state that the source has left since is never refused because of where a batch ends. Rows of a snapshot may
    come before the rows that they refer to. A target that was loaded from a later copy of the source holds values that conflict
    with early changes, until the later changes are applied.
    """
    first: ConstraintViolated | None = None
    strict, is_snapshot = replace(how, on_violation="stop"), batch.is_snapshot
    while True:
        try:
            return apply_one(batch, target, number, strict, seen, ready)
        except ConstraintViolated as error:
            first = first or error
            larger = None
            if how.on_violation == "stop" or error.is_foreign_key:
                larger = following.joined(
                    batch, max(1, len(batch.changes) // how.changes_max),
                    changes_max=SNAPSHOT_MAX if is_snapshot else JOINED_MAX, snapshot_only=how.on_violation != "stop",
                )  # fmt: skip
        if larger is not None and how.mode == "parallel" and not is_snapshot:
            # Parts of the first batch may be applied. Then the target cannot be queried for the effects of actions.
            strict = replace(strict, mode="atomic")
            if may_act(larger.changes, target.tables(_tables_of(larger))):
                larger = None
        if larger is None:
            if how.on_violation == "stop":
                raise first
            return apply_one(batch, target, number, how, seen, None)
        batch, ready = larger, None


def apply_one(
    batch: Batch,
    target: TargetDatabase,
    number: int,
    how: SyncSettings,
    seen: Seen = lambda effect: None,
    ready: Prepared | None = None,
    known: Collection[str] = (),
) -> AppliedBatch:
    """Applies one batch.

    Args:
        batch: The batch to apply.
        target: The target with its stream open.
        number: The number of the batch, one more than the last.
        how: The settings.
        seen: Called before each step.
        ready: The batch as it was prepared ahead, if it was.
        known: Target tables of the stream's earlier changes: see `allow_definition`.
    """
    if batch.ddl is not None:
        allow_definition(batch.ddl, target, how, known)
        target.define(batch.ddl)
        return _applied(batch, number, None)
    try:
        try:
            complete = _apply(batch, target, how, seen, ready)
        except (DefinitionChanged, StagedRowsLost):
            complete = _again(batch, target, how, seen)
    except (Unavailable, UnsupportedTable) as error:
        names = dict.fromkeys(change.table for change in batch.changes if change.op not in NO_ROWS)
        error.tell(tables=", ".join(names), position=batch.through)
        raise
    return _applied(batch, number, complete)


def _applied(batch: Batch, number: int, complete: Complete | None) -> AppliedBatch:
    return AppliedBatch(
        batch=number, changes=batch.size, through=batch.through, place=batch.place, complete=complete,
        committed_at_ms=time.time_ns() // 1_000_000, commits=batch.commits,
    )  # fmt: skip


def allow_definition(
    change: Change, target: TargetDatabase | TargetView, how: SyncSettings, known: Collection[str]
) -> None:
    """Checks that a statement of the source may be executed in the target.

    Args:
        change: The statement.
        target: The target of the statement.
        how: The settings.
        known: Target tables of the stream's earlier changes. If the sync names no tables, these and new tables are allowed.

    Raises:
        InvalidRequest: The sync does not allow statements, or not this one.
    """
    if how.ddl == "stop":
        raise InvalidRequest(
            "the source sends a statement that changes a definition, and this sync does not execute any; nothing was written",
            advice="Execute it in the target and take it out of the source, or set `ddl: apply` if you trust who writes there",
            table=change.table,
            position=change.seq,
        )
    refuse_reserved(change.table, change.seq)
    there = target.tables([change.table]).get(change.table)
    own = how.tables or known
    if change.table not in own and (how.tables or there is not None):
        raise InvalidRequest(
            "the source sends a statement for a table that the sync does not name; nothing was written",
            advice="Name the table under `tables`, or take the statement out of the source",
            table=change.table,
            position=change.seq,
        )
    keys = () if there is None else [key.name for key in there.unique_keys]
    require_allowed(change.sql or "", change.table, tables=own, own_indexes=keys, seq=change.seq)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yields the items; a thread makes the next item while the current one is processed. The thread ends with the iterator."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="lakegate-ahead") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


def pending_batches(source: ChangeSource, progress: SyncProgress, how: SyncSettings) -> Iterator[Batch]:
    """Yields the source's current changes after `progress`, in batches.

    Raises:
        CheckpointMismatch: An unfinished batch cannot be read again as it was.
    """
    pending = progress.pending
    for batch in batches(_groups(source, progress, how), changes_max=how.changes_max, through=pending):
        if pending is not None and batch.through != pending and not batch.is_load:
            raise CheckpointMismatch(
                "an unfinished batch ends at a position where no transaction of the source ends any more; nothing was written",
                advice="Bring the source's changes back as they were, or make the target again from a snapshot",
                position=pending,
            )
        pending = None
        yield batch


def _groups(source: ChangeSource, progress: SyncProgress, how: SyncSettings) -> Iterator[tuple[Change, ...]]:
    """Yields the transactions after `progress`; first, if `pending_place` is set, exactly those of the unfinished batch."""
    if how.on_violation == "quarantine" and isinstance(source, SetsApart):
        source = source.setting_apart()
    after, place = progress.position, progress.place
    if progress.pending_place is not None:
        for group in source.transactions(after, place, until=progress.pending_place):
            yield group
            after = group[-1].seq
        place = progress.pending_place
    yield from source.transactions(after, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch prepared for the target's tables."""

    net: Net
    tables: Mapping[str, TableSchema]
    """The tables as of the preparation."""
    slots: int
    """The maximum number of transactions for the batch."""
    queues: tuple[tuple[int, ...], ...] | None
    is_cut: bool
    """Whether values were left out because the tables lack their columns."""


def prepared(
    batch: Batch, target: TargetDatabase | TargetView, how: SyncSettings, extended: TargetDatabase | None = None
) -> Prepared:
    """Returns a batch prepared for the target: its net effect, tables and slots.

    Args:
        batch: A batch of row changes.
        target: The target whose tables are used.
        how: The settings.
        extended: The same target, if columns may be added to its tables.

    Raises:
        InvalidRequest: A change has no key, no table or a column that the target lacks.
    """
    shown = _shown(batch)
    changes, tables = fitted(shown, target.tables(_tables_of(batch)), how.on_schema_change, extended)
    is_cut, reached, is_repeatable = changes is not shown, tables, True
    if how.foreign_key_actions == "auto" and may_act(changes, tables):
        reached = target.related(list(tables))
        acted = with_actions(changes, reached, target.find)
        changes, is_repeatable = acted.changes, acted.is_repeatable
    net = replace(
        net_effect(changes, reached),
        place=batch.place,
        has_actions=not is_repeatable,
        unread=tuple((change.seq, change.unread) for change in batch.changes if change.unread is not None),
    )
    if batch.many is not None:
        net = _net_of_many(batch, target, tables)
    slots = how.parallelism
    if target.slot_rows_max is not None:
        slots = max(slots, -(-len(net.rows) // target.slot_rows_max))
    if target.writers_max == 1:
        slots = 1
    queues = None
    if how.plan == "conflict_queue" and batch.many is None:
        queues = conflict_queue([change for change in changes if change.op not in NO_ROWS], net, reached)
    if net.copies and how.mode == "parallel" and target.writers_max != 1:
        raise InvalidRequest(
            "a table without any key cannot be written by several transactions; nothing was written",
            advice="Give the table a key, or use mode: atomic",
            table=net.copies[0].table,
        )
    return Prepared(net=net, tables=tables, slots=slots, queues=queues, is_cut=is_cut)


def _tables_of(batch: Batch) -> list[str]:
    return list(dict.fromkeys(change.table for change in batch.changes if change.op not in NO_ROWS))


def _shown(batch: Batch) -> Sequence[Change]:
    """Returns the changes; for many rows, one sample change with all columns."""
    if batch.many is None:
        return batch.changes
    sample = batch.many.sample()
    return [] if sample is None else [replace(batch.changes[0], op="u", many=None, after=sample)]


def _net_of_many(batch: Batch, target: TargetDatabase | TargetView, tables: Mapping[str, TableSchema]) -> Net:
    many, (name, seq) = batch.many, (batch.changes[0].table, batch.through)
    assert many is not None
    if name not in tables or not tables[name].identity:
        raise InvalidRequest(
            f"a transaction of {batch.size:,} rows needs a target table with a key; the target has none; nothing was written",
            table=name,
            position=seq,
        )

    def find(n: int) -> NetRow:
        return NetRow(n=n, table=name, key=target.staged_key(name, n), image=None, origin=None, seq=seq)

    return Net(rows=FoundRows(batch.size, find), many=(name, many), changes=batch.size, through=seq, place=batch.place)


def _apply(batch: Batch, target: TargetDatabase, how: SyncSettings, seen: Seen, ready: Prepared | None) -> Complete:
    if (ready is None and how.on_schema_change != "add_columns") or (ready is not None and ready.is_cut):
        target.forget_tables()  # missing columns may have been added
    if ready is None or target.tables(list(ready.tables)) != ready.tables:
        ready = prepared(batch, target, how, extended=target)
    net = ready.net
    if letters := target.letters():
        net = joined(net, letters, target.tables(list(dict.fromkeys(one.table for one in letters))))
    return apply_net(net, target, how, slots=ready.slots, queues=ready.queues, seen=seen)


def apply_net(
    net: Net,
    target: TargetDatabase,
    how: SyncSettings,
    *,
    slots: int = 1,
    queues: tuple[tuple[int, ...], ...] | None = None,
    seen: Seen = lambda effect: None,
) -> Complete:
    """Applies a net effect as the stream's next batch.

    Raises:
        ConstraintViolated: With `on_violation: stop`.
    """
    protocol = apply_batch(net, mode=how.mode, slots=slots, on_violation=how.on_violation, queues=queues)
    end = run_protocol(protocol, target, parallelism=how.parallelism, seen=seen)
    match end:
        case Complete():
            return end
        case Stopped():
            raise violated(end)
        case _:
            assert_never(end)


def _again(batch: Batch, target: TargetDatabase, how: SyncSettings, seen: Seen) -> Complete:
    """Applies a batch again to tables that changed since it was prepared."""
    try:
        return _apply(batch, target, how, seen, None)
    except DefinitionChanged as error:
        raise Unavailable(
            "the target's tables were changed again while a batch was applied to them; the whole batch is applied again"
        ) from error


def violated(stopped: Stopped) -> ConstraintViolated:
    """Returns the error for a stopped batch: the constraint, and both rows where they are known."""
    rows = [f"{row.table} {', '.join(map(str, row.key))} (position {row.seq})" for row in stopped.rows[:NAMED_MAX]]
    if len(stopped.rows) > NAMED_MAX:
        rows.append(f"and {len(stopped.rows) - NAMED_MAX} more")
    clash = next(iter(stopped.clashes), None)
    stays = (
        "the position stays at the last complete batch; other parts of this batch were applied; the next run applies the whole "
        "batch again"
        if stopped.is_begun
        else "the target stays at the last complete batch"
    )
    error = ConstraintViolated(
        f"the changes break a constraint of the target: {stopped.violation.reason}; {stays}",
        constraint=stopped.violation.constraint or (clash.key if clash else None),
        rows="; ".join(rows) or None,
        holder=clash.holder if clash else None,
        holder_is_outside_the_batch=clash.is_drift if clash else None,
    )
    error.is_foreign_key = stopped.violation.is_foreign_key
    return error
