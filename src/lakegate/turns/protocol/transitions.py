"""Every transition of a lock record, as a pure function from a record to the next.

Rules for editors: a transition is made only by compare-and-set on the version that it was computed from, so it may rely on
everything that it reads here. A transition that only the holder may make checks that it is the holder *with this epoch*.
Nothing here reads a clock or a store: times come in as arguments. Source: docs/explanation/turns.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol.fencing import JUMP
from lakegate.turns.protocol.lock_record import Holder, InDoubt, JobState, LockRecord, Mark, Member, Pause, Ticket
from lakegate.turns.protocol.ordering import OrderRule, ranked, rule_to_json, waits_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The runs that are alive according to the store: sessions, and the jobs that they run."""

    ids: frozenset[SessionId]
    jobs: frozenset[JobName]
    mark: Mark | None = None
    """The mark of the turn with the highest epoch, stored outside the record."""


def begin_record(lock: str, tables_epoch: Epoch) -> LockRecord:
    """Returns a new record: for the first use, or if the coordinator's data are gone.

    The first grant gets `tables_epoch` + 1024. With + 1, a live old holder that has not written yet, and so left no trace,
    could share its number.
    """
    return LockRecord(lock=lock, epoch=Epoch(tables_epoch + JUMP - 1))


def outdated(record: LockRecord, known_epoch: Epoch) -> LockRecord:
    """Continues from a restored older copy of the record, above every known epoch and with every table in doubt.

    As in `begin_record`: a live holder that the copy does not contain has an epoch below the next one, and each table is fully
    in doubt, so that the next entry commit raises that holder's id. The turn and the tickets in the copy ended long ago; jobs
    that still wait ask again. Idle notes may be older than an unfinished batch, so each job announces its own again.

    Args:
        record: The restored record.
        known_epoch: The highest epoch that a mark, a table, a ledger or a live holder knows.
    """
    ended = record if record.holder is None else close(record)
    jobs = {name: replace(state, idle_since_ms=None) for name, state in ended.jobs.items()}
    epoch = Epoch(max(known_epoch, record.epoch) + JUMP - 1)
    return replace(ended, epoch=epoch, granted=None, tickets=(), tables={}, jobs=jobs)


def ask(record: LockRecord, ticket: Ticket, rule: OrderRule, absent_after_ms: int | None) -> LockRecord:
    """Adds the job's ticket. Clears its idle note in the same step: from here on the job has an unfinished batch."""
    state = record.job(ticket.job)
    return replace(
        record,
        tickets=(*(t for t in record.tickets if t.job != ticket.job), ticket),
        jobs=_with(record, ticket.job, replace(state, idle_since_ms=None, rule=rule_to_json(rule, absent_after_ms))),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """The reason in words why a ticket is not served now."""

    reason: str


def reason_to_wait(record: LockRecord, nonce: Nonce, live: Sessions, now_ms: int) -> Waits | None:
    """Returns why the ticket under `nonce` cannot be granted on this record; None if it can.

    Among the tickets whose rule lets them in, the ticket of highest rank goes first, see `order.ranked`: a ticket that waits
    for its predecessor does not block the tickets behind it. A ticket whose session is gone, or whose job is paused, is ignored.

    All processes that know priorities find the same first ticket in the same record. A version that does not know priorities
    serves its own ticket in the order of asking. That ticket has rank 0: where it is first for us, no other has a higher rank,
    and it is also the earliest, so that both versions let it go. There is always one ticket that both let go.
    """
    if record.holder is not None:
        held = record.holder
        return Waits(f"{held.job} has the turn (epoch {record.epoch}, pid {held.pid} on {held.host})")
    let_in, kept_out = _sorted_out(record, live, now_ms)
    if nonce in kept_out:
        return Waits(kept_out[nonce])
    ranks = ranked(let_in, last_change_ms(record))
    mine = next((rank for rank, ticket in ranks if ticket.nonce == nonce), None)
    if mine is None:
        return Waits("has no live ticket")
    rank, first = ranks[0]
    if first.nonce == nonce:
        return None
    return Waits(
        f"{first.job} asked earlier" if rank == mine else f"{first.job} goes first: rank {rank:.1f} over {mine:.1f}"
    )


def first_to_go(record: LockRecord, live: Sessions, now_ms: int) -> Ticket | None:
    """Returns the one ticket that `reason_to_wait` lets go; None while a turn is in progress, or all have to wait."""
    if record.holder is not None:
        return None
    let_in, _ = _sorted_out(record, live, now_ms)
    return ranked(let_in, last_change_ms(record))[0][1] if let_in else None


def _sorted_out(record: LockRecord, live: Sessions, now_ms: int) -> tuple[list[Ticket], dict[Nonce, str]]:
    """Returns the live tickets that their rules let in, as asked; and why the others must wait."""
    views = record.views(live.jobs)
    let_in: list[Ticket] = []
    kept_out: dict[Nonce, str] = {}
    for ticket in record.tickets:
        if ticket.session not in live.ids or ticket.job in record.paused:
            continue
        rule, absent_after_ms = record.rule(ticket.job)
        reason = waits_for(rule, ticket.job, views, now_ms=now_ms, absent_after_ms=absent_after_ms)
        if reason is None:
            let_in.append(ticket)
        else:
            kept_out[ticket.nonce] = reason
    return let_in, kept_out


def last_change_ms(record: LockRecord) -> int:
    """Returns the latest time in the record at which a job may have become free to go; waiting is counted to it."""
    times = [ticket.asked_at_ms for ticket in record.tickets]
    for state in record.jobs.values():
        times += [time for time in (state.completed_at_ms, state.idle_since_ms) if time is not None]
    return max(times, default=0)


def grant(record: LockRecord, holder: Holder) -> LockRecord:
    """Grants the turn to `holder`; the same step assigns the epoch and removes the ticket.

    Call only when `reason_to_wait` gave None on this very record, and no higher epoch is known (`outdated`).
    """
    return replace(
        record,
        epoch=Epoch(record.epoch + 1),
        granted=holder.nonce,
        holder=holder,
        tickets=tuple(t for t in record.tickets if t.nonce != holder.nonce),
    )


def give_up(record: LockRecord, nonce: Nonce) -> LockRecord:
    """Removes the ticket under `nonce`."""
    return replace(record, tickets=tuple(t for t in record.tickets if t.nonce != nonce))


def pause(record: LockRecord, job: JobName, pause: Pause) -> LockRecord:
    """Pauses a job: its ticket is removed, and it asks for none; a turn in progress goes on to its end."""
    tickets = tuple(ticket for ticket in record.tickets if ticket.job != job)
    return replace(record, tickets=tickets, paused={**record.paused, job: pause})


def resume(record: LockRecord, job: JobName) -> LockRecord:
    """Lets the job ask again."""
    return replace(record, paused={name: pause for name, pause in record.paused.items() if name != job})


def complete(record: LockRecord, *, now_ms: int) -> LockRecord:
    """Ends the holder's turn clean: its function returned, the commit log is written, the query has terminated."""
    holder = _held(record)
    state = record.job(holder.job)
    done = replace(state, done=record.epoch, lost=None, turns=state.turns + 1, completed_at_ms=now_ms)
    return replace(record, holder=None, jobs=_with(record, holder.job, done))


def close(record: LockRecord) -> LockRecord:
    """Ends the holder's turn unclean, or after its session died: a transaction of it may still be running.

    Made by the holder itself; by any process once the holder's session is dead; or by a person who breaks the lock at any time.
    The holder's unfinished writes are then in doubt, and the table refuses them once the next turn has entered it.
    Needs no grant, otherwise a ring of `strict` rules could wait for a dead job for ever.
    """
    holder = _held(record)
    kept = tuple(entry for entry in record.in_doubt if entry.token_id not in holder.token_ids)
    merged = tuple(
        InDoubt(
            token_id=token_id,
            epoch=record.epoch,
            tables=tuple(
                sorted({*holder.tables, *(t for e in record.in_doubt if e.token_id == token_id for t in e.tables)})
            ),
        )
        for token_id in holder.token_ids
    )
    state = replace(record.job(holder.job), lost=(record.epoch, holder.batch))
    # A turn that named no table (a program of `lakegate turn`) has written to none, and no fence would ever end its doubt.
    in_doubt = tuple(entry for entry in kept + merged if entry.tables)
    return replace(record, holder=None, in_doubt=in_doubt, jobs=_with(record, holder.job, state))


def done_late(record: LockRecord, job: JobName, *, now_ms: int) -> LockRecord:
    """Marks a lost turn as done: the job found in its checkpoint that the turn had finished; only the job can find out."""
    state = record.job(job)
    if state.lost is None:
        raise ValueError(f"{job} has no lost turn")
    done = Epoch(max(state.done, state.lost[0]))
    late = replace(state, done=done, lost=None, turns=state.turns + 1, completed_at_ms=now_ms)
    return replace(record, jobs=_with(record, job, late))


def add_table(record: LockRecord, table: TableLocation) -> LockRecord:
    """Adds a table that the holder will write; done before the first write, so that a fence covers it."""
    holder = _held(record)
    return replace(record, holder=replace(holder, tables=tuple(sorted({*holder.tables, table}))))


def confirm_fence(
    record: LockRecord, table: TableLocation, raised: frozenset[TokenId], *, is_whole: bool
) -> LockRecord:
    """Confirms the holder's entry commit: these ids are no longer in doubt on the table.

    `is_whole`: the commit raised every id of the table, which is trusted from now on.
    """
    _held(record)
    entries = (
        replace(entry, tables=tuple(t for t in entry.tables if t != table)) if entry.token_id in raised else entry
        for entry in record.in_doubt
    )
    tables = {**record.tables, table: record.epoch} if is_whole else record.tables
    return replace(record, in_doubt=tuple(entry for entry in entries if entry.tables), tables=tables)


def go_idle(
    record: LockRecord,
    job: JobName,
    idle_at: Mapping[TableLocation, Version],
    rule: OrderRule,
    absent_after_ms: int | None,
    *,
    now_ms: int,
    run: str | None = None,
) -> LockRecord:
    """Records that the job has nothing left to do up to these table versions.

    `run`: the run until idle in which the job is idle; None outside of one.
    """
    state = record.job(job)
    since = now_ms if state.idle_since_ms is None else state.idle_since_ms
    idle = replace(state, idle_since_ms=since, idle_at=dict(idle_at), rule=rule_to_json(rule, absent_after_ms))
    members = {name: member for name, member in record.members.items() if name != job}
    if run is not None:
        members[job] = Member(run=run)
    # A ticket that is still there came back with an older copy of the record: it would never be used.
    tickets = tuple(ticket for ticket in record.tickets if ticket.job != job)
    return replace(record, jobs=_with(record, job, idle), members=members, tickets=tickets)


def find_work(record: LockRecord, job: JobName) -> LockRecord:
    """Withdraws the job's idle note: the job has found work, and does so before it asks for its turn."""
    return replace(record, jobs=_with(record, job, replace(record.job(job), idle_since_ms=None)))


def is_said(record: LockRecord, job: JobName, idle_at: Mapping[TableLocation, Version], run: str | None) -> bool:
    """Returns True if the idle note of the job is already as `go_idle` would leave it."""
    state = record.job(job)
    member = None if run is None else Member(run=run)
    return (
        state.idle_since_ms is not None
        and dict(state.idle_at) == dict(idle_at)
        and record.members.get(job) == member
        and all(ticket.job != job for ticket in record.tickets)
    )


def leave(record: LockRecord, job: JobName, run: str) -> LockRecord:
    """Records that the job has left this run: the other jobs of the run no longer wait for its idle note."""
    return replace(record, members={**record.members, job: Member(run=run, has_left=True)})


def is_settled(
    record: LockRecord,
    heads: Mapping[JobName, Mapping[TableLocation, Version]],
    live: Sessions,
    *,
    run: str | None = None,
) -> bool:
    """Returns True if nothing is left to do: no turn, no ticket, and every job is idle at the head of its tables, paused, or
    has left.

    A note from before the run does not count: a job that relied on such a note would end before others have begun, and they
    would then wait for ever for its note on the versions that they committed. For the same reason a job that has left counts
    as settled at every version: it left only after all were settled, or because it was stopped. Work that the others find
    later is newer. A job that has *died* has not left: its work is done when it is started again.

    Args:
        record: The lock's record.
        heads: Job → the versions that its idle note must name.
        live: The runs that are alive. A turn or a ticket of a dead run is no reason to wait: it may never be cleaned up.
        run: The run of these jobs: only a note written in it counts. None: any note counts.
    """
    if record.holder is not None and record.holder.session in live.ids:
        return False
    if any(ticket.session in live.ids for ticket in record.tickets):
        return False
    return all(_is_at_rest(record, job, versions, run) for job, versions in heads.items() if job not in record.paused)


def _is_at_rest(record: LockRecord, job: JobName, versions: Mapping[TableLocation, Version], run: str | None) -> bool:
    member = record.members.get(job)
    if run is not None:
        if member is None or member.run != run:
            return False
        if member.has_left:
            return True
    state = record.job(job)
    return state.idle_since_ms is not None and dict(state.idle_at) == dict(versions)


def _held(record: LockRecord) -> Holder:
    if record.holder is None:
        raise ValueError("nobody holds the turn")
    return record.holder


def _with(record: LockRecord, job: JobName, state: JobState) -> dict[JobName, JobState]:
    return {**record.jobs, job: state}
