"""Applies a batch to the target, as a generator: stage, look, assign, apply, and handle rows that do not fit.

Mode `atomic`: one transaction for the batch and its position. Mode `parallel`: one transaction for each slot, and a last one
that writes the position after all slots. The batch is recorded as begun before the first slot.

Rules for editors: a batch that was begun is finished with the same end position, by the writer that comes next. Its rows are
images of the end of the batch, so all of them may be applied again. Every retry has a bound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lakegate.effects import Effect, Steps, perform
from lakegate.syncs.plan.conflict_graph import Assignment, Clash, Found, assign, with_queues
from lakegate.syncs.plan.dead_letters import unread_row
from lakegate.syncs.plan.net_changes import Net, NetRow

Mode = Literal["atomic", "parallel"]
OnViolation = Literal["stop", "quarantine"]
DEAD = -1
"""The slot of quarantined rows."""
ALL = -2
"""All slots of rows that are not quarantined."""
REST = 1 << 20
"""During the search for faulty rows: the slot of rows that are not in the current trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProgress:
    """The target's record of a stream."""

    epoch: int
    """Epoch of the writer that may write now."""
    last_batch: int
    """Number of the last complete batch; 0 if there is none."""
    position: int
    """The source position up to which the target has all changes; -1 at the beginning."""
    pending: int | None = None
    """The end position of a batch that was begun and is not complete."""
    place: str | None = None
    """The source's state for resuming at `position`; None if the number is enough."""
    pending_place: str | None = None
    """The same for `pending`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A row that the target refuses regardless of the other rows."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The transaction of a slot was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """The target refused a statement of the slot; the slot's transaction was rolled back."""

    reason: str
    constraint: str | None = None
    table: str | None = None
    is_foreign_key: bool = False
    """Whether a row refers to a missing row. Later changes may add the missing row."""


SlotOutcome = Applied | Violated


@dataclass(frozen=True, slots=True)
class Stage(Effect[tuple[Refusal, ...]]):
    """Stages the net rows in staging tables. Row n goes to slot `n % slots`. Returns rows that do not fit their columns, and
    partial rows that are missing in the target."""

    net: Net
    slots: int


@dataclass(frozen=True, slots=True)
class LookUp(Effect[Found]):
    """Completes the staged images from the target, then finds the holders of key values that other rows need.

    Args:
        duplicates: Also compares the staged rows with each other; only to explain a violation.
    """

    net: Net
    duplicates: bool = False


@dataclass(frozen=True, slots=True)
class Assign(Effect[None]):
    """Moves rows to slots, and records the keys that they release first."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Begin(Effect[None]):
    """Records the batch as begun, before any part of it becomes visible."""

    net: Net


@dataclass(frozen=True, slots=True)
class Apply(Effect[tuple[SlotOutcome, ...]]):
    """Runs one transaction for each slot, concurrently: fence, release, update, insert, delete.

    Args:
        finish: The slot is the whole batch: position and quarantined rows are written in the same transaction.
        is_trial: The transaction is rolled back in any case.
    """

    net: Net
    slots: tuple[int, ...]
    finish: bool = False
    dead: tuple[DeadRow, ...] = ()
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class Finish(Effect[None]):
    """Writes the position and the quarantined rows, after all slots."""

    net: Net
    slots: int
    dead: tuple[DeadRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRow:
    """A quarantined row, with the reason."""

    row: NetRow
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The batch breaks a constraint and the policy is `stop`: the position stays at the last complete batch."""

    violation: Violated
    rows: tuple[NetRow, ...]
    """Rows that cannot be applied, as far as they were found."""
    clashes: tuple[Clash, ...] = ()
    is_begun: bool = False
    """Whether other slots of the batch were committed. The position is that of the last complete batch; the next run finishes
    the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The batch and its position were committed."""

    rows: int
    edges: int
    components: int
    largest: int
    slots: int
    retried_alone: int
    dead: tuple[DeadRow, ...] = ()


@dataclass(slots=True)
class _State:
    """The state of a batch in progress."""

    net: Net
    slots: int
    assignment: Assignment
    found: Found
    dead: dict[int, str] = field(default_factory=dict)
    _components: dict[int, tuple[int, ...]] | None = None

    def component_of(self, row: int) -> tuple[int, ...]:
        """Returns all rows that share a transaction with this one, including itself."""
        if self._components is None:
            self._components = self.assignment.component_by_row()
        return self._components.get(row, (row,))

    def dead_rows(self) -> tuple[DeadRow, ...]:
        rows = [DeadRow(row=self.net.rows[n], reason=reason) for n, reason in sorted(self.dead.items())]
        for n, (seq, unread) in enumerate(self.net.unread, len(self.net.rows)):
            rows.append(DeadRow(row=unread_row(n, seq, unread), reason=unread.reason))
        return tuple(rows)


def whole_because(net: Net, mode: Mode) -> tuple[str, ...]:
    """Returns the reasons why the batch must be one transaction; empty if it need not be."""
    reasons = ["mode is atomic"] if mode == "atomic" else []
    # Emptied tables and rows without a key have no slots, and a batch that is not repeatable cannot be split.
    if net.truncated:
        reasons.append(f"it empties {', '.join(net.truncated)}")
    if net.copies:
        reasons.append(f"{net.copies[0].table} has no key")
    if not net.is_repeatable:
        reasons.append("a row moves to another key, and the changes do not show the whole row")
    if net.has_actions:
        reasons.append("foreign keys delete or change rows that the changes do not show")
    return tuple(reasons)


def apply_batch(
    net: Net,
    *,
    mode: Mode,
    slots: int,
    on_violation: OnViolation,
    queues: Sequence[tuple[int, ...]] | None = None,
) -> Steps[Complete | Stopped]:
    """Applies one batch.

    Args:
        net: The net effect of the batch.
        mode: One transaction, or one for each slot.
        slots: The number of transactions in mode `parallel`.
        on_violation: What to do with rows that break a constraint by themselves.
        queues: Groups of the plan `conflict_queue`. They share a transaction even if they need not.
    """
    slots = 1 if whole_because(net, mode) else max(1, min(slots, len(net.rows)))
    refused = yield from perform(Stage(net, slots))
    found = yield from perform(LookUp(net))
    assignment = assign(found, rows=len(net.rows), slots=slots)
    if queues is not None:
        assignment = with_queues(assignment, queues, rows=len(net.rows), slots=slots)
    state = _State(net, slots, assignment, found)
    if refused and on_violation == "stop":
        return Stopped(violation=Violated(reason=refused[0].reason), rows=tuple(net.rows[each.row] for each in refused))
    yield from perform(Assign(assignment))
    yield from _set_apart(state, {each.row: each.reason for each in refused})
    alone = 0
    if slots == 1:
        stopped = yield from _atomically(state, on_violation)
    else:
        yield from perform(Begin(net))
        outcomes = yield from perform(Apply(net, tuple(range(slots))))
        residue = [slot for slot, outcome in enumerate(outcomes) if isinstance(outcome, Violated)]
        stopped, alone = None, len(residue)
        for slot in residue:
            stopped = stopped or (yield from _alone(state, slot, on_violation))
        if stopped is None:
            yield from perform(Finish(net, slots, state.dead_rows()))
    if stopped is not None:
        return replace(stopped, is_begun=slots > 1)
    return Complete(
        rows=len(net.rows) + len(net.unread),
        edges=len(found.edges),
        components=len(assignment.components),
        largest=len(assignment.components[0]) if assignment.components else min(1, len(net.rows)),
        slots=slots,
        retried_alone=alone,
        dead=state.dead_rows(),
    )


def _atomically(state: _State, on_violation: OnViolation) -> Steps[Stopped | None]:
    """Applies the whole batch in one transaction; after a violation once more without the faulty rows."""
    (outcome,) = yield from perform(Apply(state.net, (ALL,), True, state.dead_rows()))
    if isinstance(outcome, Applied):
        return None
    stopped = yield from _find_guilty(state, outcome, range(len(state.net.rows)), on_violation)
    if stopped is not None:
        return stopped
    (outcome,) = yield from perform(Apply(state.net, (ALL,), True, state.dead_rows()))
    return None if isinstance(outcome, Applied) else Stopped(violation=outcome, rows=())


def _alone(state: _State, slot: int, on_violation: OnViolation) -> Steps[Stopped | None]:
    """Applies a refused slot alone, after all other slots."""
    (outcome,) = yield from perform(Apply(state.net, (slot,)))
    if isinstance(outcome, Applied):
        return None
    slot_of = state.assignment.slot_of
    rows = {n for n in range(len(state.net.rows)) if slot_of.get(n, n % state.slots) == slot}
    stopped = yield from _find_guilty(state, outcome, rows, on_violation)
    if stopped is not None:
        return stopped
    (outcome,) = yield from perform(Apply(state.net, (slot,)))
    return None if isinstance(outcome, Applied) else Stopped(violation=outcome, rows=())


def _find_guilty(
    state: _State, violation: Violated, rows: Collection[int], on_violation: OnViolation
) -> Steps[Stopped | None]:
    """Quarantines the components that cannot be applied; or, with policy `stop`, returns them."""
    found = yield from perform(LookUp(state.net, True))
    clashes = tuple(clash for clash in found.clashes if clash.row in rows and clash.row not in state.dead)
    if on_violation == "stop":
        named = tuple(dict.fromkeys(clash.row for clash in clashes))
        if not named and state.net.many is None:  # halving would look up rows of `many` one by one
            named = tuple((yield from _bisect(state, _alive(state, rows), first_only=True)))
            yield from _put_back(state)
        return Stopped(violation=violation, rows=tuple(state.net.rows[n] for n in named), clashes=clashes)
    guilty: dict[int, str] = {}
    for clash in clashes:
        reason = f"{clash.key} of {clash.table}: the value belongs to the row {clash.holder}"
        for n in state.component_of(clash.row):
            guilty.setdefault(n, reason)
    yield from _set_apart(state, guilty)
    if state.net.many is None or not guilty:
        yield from _set_apart(state, (yield from _bisect(state, _alive(state, rows))))
    yield from _put_back(state)
    return None


def _alive(state: _State, rows: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(set(rows) - state.dead.keys()))


def _bisect(state: _State, rows: tuple[int, ...], *, first_only: bool = False) -> Steps[dict[int, str]]:
    """Returns row → reason for components that cannot be applied even alone. Finds each by halving in `log2(rows)` trials."""
    groups = list(dict.fromkeys(state.component_of(n) for n in rows))
    return (yield from _halve(state, groups, first_only))


def _halve(state: _State, groups: list[tuple[int, ...]], first_only: bool) -> Steps[dict[int, str]]:
    if not groups:
        return {}
    tried = {n for group in groups for n in group}
    slot_of = {n: (DEAD if n in state.dead else 0 if n in tried else REST) for n in range(len(state.net.rows))}
    yield from perform(Assign(Assignment(slots=state.slots, slot_of=slot_of)))
    (outcome,) = yield from perform(Apply(state.net, (0,), is_trial=True))
    if isinstance(outcome, Applied):
        return {}
    if len(groups) == 1:
        return dict.fromkeys(groups[0], outcome.reason)
    middle = len(groups) // 2
    guilty = yield from _halve(state, groups[:middle], first_only)
    if guilty and first_only:
        return guilty
    return {**guilty, **(yield from _halve(state, groups[middle:], first_only))}


def _set_apart(state: _State, guilty: dict[int, str]) -> Steps[None]:
    """Quarantines these rows, and all rows that depend on them."""
    more = {member: reason for row, reason in guilty.items() for member in state.component_of(row)}
    fresh = {row: reason for row, reason in {**more, **guilty}.items() if row not in state.dead}
    if fresh:
        state.dead.update(fresh)
        yield from perform(Assign(Assignment(slots=state.slots, slot_of=dict.fromkeys(fresh, DEAD))))


def _put_back(state: _State) -> Steps[None]:
    """Moves every row back to its assigned slot after a search."""
    usual = {n: state.assignment.slot_of.get(n, n % state.slots) for n in range(len(state.net.rows))}
    yield from perform(Assign(Assignment(slots=state.slots, slot_of={**usual, **dict.fromkeys(state.dead, DEAD)})))
