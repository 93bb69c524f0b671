"""Every move that a lock record can make, as a pure function from a record to the next.

Rules for editors: a move is made only by compare-and-set on the version that it was computed from, so it may rely on all it
reads here. A move that only the holder may make checks that it is the holder *with this epoch*. Nothing here looks at a
clock or a store: times come in as arguments. Source: docs/explanation/turns.md.
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
    """Who is alive, as the store tells: sessions, and the jobs that they run."""

    ids: frozenset[SessionId]
    jobs: frozenset[JobName]
    mark: Mark | None = None
    """The turn of the highest epoch that was noted apart from the record."""


def begin_record(lock: str, tables_epoch: Epoch) -> LockRecord:
    """A record made from nothing: first use, or the coordinator's data are gone.

    The first grant gets `tables_epoch` + 1024. With + 1, a live old holder that has not written yet, and so left no
    trace, could share its number.
    """
    return LockRecord(lock=lock, epoch=Epoch(tables_epoch + JUMP - 1))


def outdated(record: LockRecord, known_epoch: Epoch) -> LockRecord:
    """An older copy of the record was restored: it goes on above everything that is known, and trusts nobody.

    As `begin_record` does: a live holder that the copy does not know lies below the next epoch, and each table is in doubt
    whole, so that the next entry commit raises that holder's id. The turn and the tickets that the copy names ended long
    ago; those who still wait ask again. Idle notes may be older than an unfinished batch, so each job says its own again.

    Args:
        record: As it was restored.
        known_epoch: The highest epoch that a mark, a table, a ledger or a live holder knows.
    """
    ended = record if record.holder is None else close(record)
    jobs = {name: replace(state, idle_since_ms=None) for name, state in ended.jobs.items()}
    epoch = Epoch(max(known_epoch, record.epoch) + JUMP - 1)
    return replace(ended, epoch=epoch, granted=None, tickets=(), tables={}, jobs=jobs)


def ask(record: LockRecord, ticket: Ticket, rule: OrderRule, absent_after_ms: int | None) -> LockRecord:
    """The job waits for a turn. Clears its idle note in the same step: from here on it has an unfinished batch."""
    state = record.job(ticket.job)
    return replace(
        record,
        tickets=(*(t for t in record.tickets if t.job != ticket.job), ticket),
        jobs=_with(record, ticket.job, replace(state, idle_since_ms=None, rule=rule_to_json(rule, absent_after_ms))),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a ticket is not served now, in words."""

    reason: str


def reason_to_wait(record: LockRecord, nonce: Nonce, live: Sessions, now_ms: int) -> Waits | None:
    """Why the ticket under `nonce` cannot be granted on this record; None if it can.

    Among the tickets whose rule lets them in the one of highest rank goes first, see `order.ranked`: one that waits for its
    predecessor does not block those behind it. A ticket whose session is gone, or whose job is paused, counts for nothing.

    Everybody who knows priorities finds the same first ticket in the same record. A version that does not know them serves
    its own ticket in the order of asking; that ticket has rank 0, so where it is first for us no other has more, and it is
    the earliest of them for itself, too: there is always one that both sides let go.
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
    """The one ticket for which `reason_to_wait` finds no reason; None while somebody has the turn, or all have to wait."""
    if record.holder is not None:
        return None
    let_in, _ = _sorted_out(record, live, now_ms)
    return ranked(let_in, last_change_ms(record))[0][1] if let_in else None


def _sorted_out(record: LockRecord, live: Sessions, now_ms: int) -> tuple[list[Ticket], dict[Nonce, str]]:
    """The live tickets that their rules let in, as asked; and why the others are kept out."""
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
    """The latest instant that the record names for something that lets a job in: what waiting is counted to."""
    times = [ticket.asked_at_ms for ticket in record.tickets]
    for state in record.jobs.values():
        times += [time for time in (state.completed_at_ms, state.idle_since_ms) if time is not None]
    return max(times, default=0)


def grant(record: LockRecord, holder: Holder) -> LockRecord:
    """The turn goes to `holder`; the same step assigns the epoch and takes the ticket away.

    Call only when `reason_to_wait` gave None on this very record, and nothing is known of a higher epoch (`outdated`).
    """
    return replace(
        record,
        epoch=Epoch(record.epoch + 1),
        granted=holder.nonce,
        holder=holder,
        tickets=tuple(t for t in record.tickets if t.nonce != holder.nonce),
    )


def give_up(record: LockRecord, nonce: Nonce) -> LockRecord:
    """The ticket under `nonce` is taken back."""
    return replace(record, tickets=tuple(t for t in record.tickets if t.nonce != nonce))


def pause(record: LockRecord, job: JobName, pause: Pause) -> LockRecord:
    """A person pauses a job: its ticket is gone, and it asks for none; a turn that it has goes on to its end."""
    tickets = tuple(ticket for ticket in record.tickets if ticket.job != job)
    return replace(record, tickets=tickets, paused={**record.paused, job: pause})


def resume(record: LockRecord, job: JobName) -> LockRecord:
    """The job may ask again."""
    return replace(record, paused={name: pause for name, pause in record.paused.items() if name != job})


def complete(record: LockRecord, *, now_ms: int) -> LockRecord:
    """The holder's turn ended clean: its function returned, the commit log is written, the query has terminated."""
    holder = _held(record)
    state = record.job(holder.job)
    done = replace(state, done=record.epoch, lost=None, turns=state.turns + 1, completed_at_ms=now_ms)
    return replace(record, holder=None, jobs=_with(record, holder.job, done))


def close(record: LockRecord) -> LockRecord:
    """The holder's turn ended unclean, or its session is dead: a transaction of it may still be running.

    Made by the holder itself; by any process once the holder's session is dead; or by a person who breaks the lock, whatever
    the holder does: what it still has under way is in doubt then, and refused by the table once the next turn has entered it.
    Needs no grant, else a ring of `strict` rules could wait for the dead for ever.
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
    # A turn that has said no table has written to none, and no fence would ever end its doubt: a program of `lakegate turn`.
    in_doubt = tuple(entry for entry in kept + merged if entry.tables)
    return replace(record, holder=None, in_doubt=in_doubt, jobs=_with(record, holder.job, state))


def done_late(record: LockRecord, job: JobName, *, now_ms: int) -> LockRecord:
    """The job finds in its own checkpoint that its lost turn had finished; only its owner can know."""
    state = record.job(job)
    if state.lost is None:
        raise ValueError(f"{job} has no lost turn")
    done = Epoch(max(state.done, state.lost[0]))
    late = replace(state, done=done, lost=None, turns=state.turns + 1, completed_at_ms=now_ms)
    return replace(record, jobs=_with(record, job, late))


def add_table(record: LockRecord, table: TableLocation) -> LockRecord:
    """The holder will write to one more table; said before the first write, so that a fence covers it."""
    holder = _held(record)
    return replace(record, holder=replace(holder, tables=tuple(sorted({*holder.tables, table}))))


def confirm_fence(
    record: LockRecord, table: TableLocation, raised: frozenset[TokenId], *, is_whole: bool
) -> LockRecord:
    """The holder's entry commit is in the table: these ids are no longer in doubt there.

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
    """The job says that it has nothing left to do, up to these table versions.

    `run`: the run until idle in which it says so; None outside of one.
    """
    state = record.job(job)
    since = now_ms if state.idle_since_ms is None else state.idle_since_ms
    idle = replace(state, idle_since_ms=since, idle_at=dict(idle_at), rule=rule_to_json(rule, absent_after_ms))
    members = {name: member for name, member in record.members.items() if name != job}
    if run is not None:
        members[job] = Member(run=run)
    # A ticket that still stands came back with an older copy of the record: nobody would ever use it.
    tickets = tuple(ticket for ticket in record.tickets if ticket.job != job)
    return replace(record, jobs=_with(record, job, idle), members=members, tickets=tickets)


def find_work(record: LockRecord, job: JobName) -> LockRecord:
    """The job takes its idle note back: it has found work, which it does before it asks for its turn."""
    return replace(record, jobs=_with(record, job, replace(record.job(job), idle_since_ms=None)))


def is_said(record: LockRecord, job: JobName, idle_at: Mapping[TableLocation, Version], run: str | None) -> bool:
    """Whether the idle note of the job stands as `go_idle` would leave it."""
    state = record.job(job)
    member = None if run is None else Member(run=run)
    return (
        state.idle_since_ms is not None
        and dict(state.idle_at) == dict(idle_at)
        and record.members.get(job) == member
        and all(ticket.job != job for ticket in record.tickets)
    )


def leave(record: LockRecord, job: JobName, run: str) -> LockRecord:
    """The job ends in this run: the others of the run do not wait any more for what it could say."""
    return replace(record, members={**record.members, job: Member(run=run, has_left=True)})


def is_settled(
    record: LockRecord,
    heads: Mapping[JobName, Mapping[TableLocation, Version]],
    live: Sessions,
    *,
    run: str | None = None,
) -> bool:
    """Whether nothing is left to do: nobody has the turn or waits, and every job is idle at the head of its tables, or paused,
    or has left.

    A note from before the run says nothing about what has come since: a job that goes by it ends before others have begun,
    and they would wait for ever for a note at a head that they have moved. For the same reason one that has left counts as
    settled wherever the head is. It has left only after all were settled, or because somebody has stopped it; what the others
    find later came after that. One that has *died* has not left: what it had to do is done when it is started again.

    Args:
        record: The lock's record.
        heads: Job → the versions that its idle note must name.
        live: Who is alive. What the dead have left, a turn or a ticket, is no reason to wait: nobody may ever clear it up.
        run: The run whose jobs these are: only a note that was said in it counts. None: any note does.
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
