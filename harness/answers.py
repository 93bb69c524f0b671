"""Answers of the simulated world to each effect of a process, in every way that is possible.

The head of `transitions.py` says which steps are merged, and why that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from harness import worlds
from harness.frames import RAISED
from harness.jobs import (
    Batch,
    Checkpoint,
    CreateTable,
    PlanBatch,
    ReadCheckpoint,
    Sleep,
    WriteCommitLog,
)
from harness.processes import Processes, Step, put
from harness.worlds import FAULTS, Fault, Process, State, Violation
from lakegate.ids import JobName, Nonce, SessionId
from lakegate.turns.protocol.effects import (
    CommitEntry,
    CompareAndSet,
    FindMark,
    LiveSessions,
    NoteTurn,
    ReadRecord,
    ReadTokens,
    RunStatement,
    WaitForChange,
    WallClock,
)
from lakegate.turns.protocol.lock_record import LockRecord, Mark, higher
from lakegate.turns.protocol.protocol import CheckpointView


def spend(state: State, fault: Fault) -> State | None:
    """Returns the world with one fault of this kind less; None if none is left."""
    at = FAULTS.index(fault)
    left = state.budgets[at]
    return state._replace(budgets=put(state.budgets, at, left - 1)) if left else None


def _on_read_record(world: Processes, state: State, i: int, process: Process, _: ReadRecord) -> Iterator[Step]:
    yield from _read_record(world, state, i, world.locals.after(process.local, state.record))


def _on_live_sessions(world: Processes, state: State, i: int, process: Process, _: LiveSessions) -> Iterator[Step]:
    after = world.locals.after(process.local, _alive_now(state))
    yield (process.session, "asks who is alive"), world.move(state, i, after), False


def _noted(state: State, mark: Mark) -> tuple[State, Mark]:
    """Returns the world with the mark, unless a mark of an equal or higher epoch is noted; and the mark noted afterwards."""
    stands = higher(state.mark, mark)
    return state._replace(mark=stands), stands


def _alive_now(state: State) -> Hashable:
    return state.live, state.mark


def _on_note_turn(world: Processes, state: State, i: int, process: Process, effect: NoteTurn) -> Iterator[Step]:
    who, mark = process.session, effect.mark
    if world.scenario.may_go_back:
        state, mark = _noted(state, mark)
    done = world.move(state, i, world.locals.after(process.local, mark))
    yield (who, f"notes epoch {effect.mark.epoch}; noted is {mark.epoch} of {mark.nonce}"), done, False
    if world.scenario.may_go_back and (spent := spend(state, "fail")) is not None:
        failed = world.move(spent, i, world.locals.after(process.local, RAISED))
        yield (who, f"notes epoch {effect.mark.epoch}, but raises"), failed, True


def _on_wall_clock(world: Processes, state: State, i: int, process: Process, _: WallClock) -> Iterator[Step]:
    after = world.locals.after(process.local, worlds.time_of(world.records[state.record], world.scenario))
    yield (process.session, "reads the clock"), world.move(state, i, after), False


def _on_wait(world: Processes, state: State, i: int, process: Process, _: WaitForChange) -> Iterator[Step]:
    who, go = process.session, world.locals.after
    yield (who, "wakes up"), world.move(state, i, go(process.local, "changed")), False
    if (spent := spend(state, "giveup")) is not None:
        yield (who, "gives up"), world.move(spent, i, go(process.local, "timeout")), True


def _on_compare_and_set(world: Processes, state: State, i: int, process: Process, _: CompareAndSet) -> Iterator[Step]:
    yield from _compare_and_set(world, state, i, process.local)


def _on_commit_entry(world: Processes, state: State, i: int, process: Process, _: CommitEntry) -> Iterator[Step]:
    yield from _commit_entry(world, state, i, process.local)


def _on_find_mark(world: Processes, state: State, i: int, process: Process, effect: FindMark) -> Iterator[Step]:
    sought = (effect.token_id, effect.token.batch, effect.token.step)
    marks = state.tables[world.table_of[effect.table]].marks
    found = next((mark[3] for mark in marks if mark[:3] == sought), None)
    yield (
        (process.session, "looks up the mark"),
        world.move(state, i, world.locals.after(process.local, found)),
        False,
    )


def _on_read_checkpoint(world: Processes, state: State, i: int, process: Process, _: ReadCheckpoint) -> Iterator[Step]:
    who = process.session
    after = world.locals.after(process.local, _checkpoint(world, state, who))
    if world.is_only(state, who) and isinstance(world.effect(after), ReadRecord):
        yield from _read_record(world, state, i, world.locals.after(after, state.record))
    else:
        yield (who, "reads its checkpoint"), world.move(state, i, after), False


def _on_plan(world: Processes, state: State, i: int, process: Process, _: PlanBatch) -> Iterator[Step]:
    yield from _plan(world, state, i, process.local)


def _on_sleep(world: Processes, state: State, i: int, process: Process, _: Sleep) -> Iterator[Step]:
    place = world.job_of[process.session]
    record = world.records[state.record]
    has_data = not state.sources[place].is_finished
    # A run without data also has something to do: it finds out that a lost turn had finished.
    name = world.scenario.jobs[place].name
    has_to_say = world.scenario.may_go_back and record is not None and _is_not_idle(record, name, process.session)
    if has_data or (record is not None and record.job(name).lost is not None) or has_to_say:
        what = "sees new data" if has_data else "runs again at its pace"
        yield (process.session, what), world.move(state, i, world.locals.after(process.local, None)), False


def _is_not_idle(record: LockRecord, name: JobName, session: SessionId) -> bool:
    """Returns whether an older copy of the record names a turn or ticket of a sleeping job, or does not say that it is idle."""
    is_named = record.holder is not None and record.holder.session == session
    is_waiting = any(ticket.job == name for ticket in record.tickets)
    return is_named or is_waiting or record.job(name).idle_since_ms is None


def _read_record(world: Processes, state: State, i: int, local: int) -> Iterator[Step]:
    """Goes on, once the record has been read, to the effects that may not be merged with the reading."""
    process = state.processes[i]
    who, go, is_fine = process.session, world.locals.after, world.scenario.is_fine
    has_read_table = False
    may_read_tables = "wipe" not in world.scenario.faults and not world.scenario.may_go_back
    while not is_fine:
        effect = world.effect(local)
        if isinstance(effect, LiveSessions):
            local = go(local, _alive_now(state))
        elif isinstance(effect, NoteTurn) and not world.scenario.may_go_back:
            local = go(local, effect.mark)  # the record never goes back, so a mark adds nothing to it
        elif isinstance(effect, WallClock):
            local = go(local, worlds.time_of(world.records[state.record], world.scenario))
        elif (
            isinstance(effect, ReadTokens)
            and (may_read_tables or not has_read_table)
            and "_tables_epoch" in world.locals[local].functions
        ):
            local, has_read_table = go(local, _tokens(world, state, effect.table)), not may_read_tables
        else:
            break
    effect = world.effect(local)
    if is_fine or has_read_table:
        yield (who, "reads the record"), world.move(state, i, local), False
    elif isinstance(effect, CompareAndSet):
        yield from _compare_and_set(world, state, i, local)
    elif isinstance(effect, WaitForChange):
        top = go(local, "changed")
        if top != process.local:
            yield (who, "waits"), world.move(state, i, top), False
        if (spent := spend(state, "giveup")) is not None:
            yield (who, "gives up"), world.move(spent, i, go(local, "timeout")), True
    elif isinstance(effect, PlanBatch) and world.is_only(state, who):
        yield from _plan(world, state, i, local)
    else:
        yield (who, "reads the record"), world.move(state, i, local), False


def _compare_and_set(world: Processes, state: State, i: int, local: int) -> Iterator[Step]:
    who, go = state.processes[i].session, world.locals.after
    effect = world.effect(local)
    assert isinstance(effect, CompareAndSet)
    if effect.version != state.record:
        yield (who, "compare-and-set is stale"), world.move(state, i, go(local, "stale")), False
        return
    number = world.records.number(effect.record)
    world.doing = (who, (state.record, number))
    done = changed(world, state, number)
    yield world.doing, world.move(done, i, go(local, "done")), False
    if (spent := spend(state, "lost")) is not None:
        yield (who, "compare-and-set, request lost"), world.move(spent, i, go(local, "unknown")), True
        lost = done._replace(budgets=spent.budgets)
        yield (who, "compare-and-set, reply lost:"), world.move(lost, i, go(local, "unknown")), True
    if (spent := spend(state, "fail")) is not None:
        failed = done._replace(budgets=spent.budgets)
        yield (who, "compare-and-set is done, but raises"), world.move(failed, i, go(local, RAISED)), True


def changed(world: Processes, state: State, number: int) -> State:
    """Updates what the checks count after a change of the record."""
    change = (state.record, number)
    before, after = world.records[state.record], world.records[number]
    assert after is not None
    if change not in world.changes:
        granted, completed = worlds.granted_to(before, after), worlds.completed_by(before, after)
        world.changes[change] = (
            None if granted is None else world.place_of[granted],
            None if completed is None else world.place_of[completed],
        )
    granted_at, completed_at = world.changes[change]
    ghost = state.ghost
    waited = _waited(world, state, number, granted_at) if world.scenario.bounds_waiting else ghost.waited
    if granted_at is not None:
        worlds.check_order(ghost, granted_at, world.scenario.jobs)
        assert after.holder is not None
        if before is not None and not world.looks_at_absence:
            asked = worlds.as_asked(before, after, after.holder, world.scenario.jobs[granted_at])
            worlds.check_rank(asked, worlds.eligible(asked, state.live, _alive(world, state.live)), after.holder)
        ghost = ghost._replace(opened=put(ghost.opened, granted_at, True))
    if completed_at is not None:
        ghost = ghost._replace(finished_since=frozenset(x for x in ghost.finished_since if x[0] != completed_at))
    return state._replace(record=number, ghost=ghost._replace(waited=waited))


def _waited(world: Processes, state: State, number: int, granted_at: int | None) -> frozenset[tuple[str, int]]:
    counts = dict(state.ghost.waited)
    before, after = _let_in(world, state.record, state.live), _let_in(world, number, state.live)
    waited = {nonce: counts.get(nonce, 0) + (granted_at is not None and nonce in before) for nonce in after}
    record = world.records[number]
    assert record is not None
    for nonce, count in waited.items():
        ticket = record.ticket(Nonce(nonce))
        assert ticket is not None
        if count > world.scenario.grants_max(ticket.job):
            raise Violation(f"bound: an eligible ticket of {ticket.job} saw {count} other turns")
    return frozenset(waited.items())


def _let_in(world: Processes, number: int, live: frozenset[SessionId]) -> frozenset[str]:
    key = (number, live)
    if key not in world.eligible:
        world.eligible[key] = worlds.eligible(world.records[number], live, _alive(world, live))
    return world.eligible[key]


def _alive(world: Processes, live: frozenset[SessionId]) -> frozenset[JobName]:
    return frozenset(world.scenario.jobs[world.job_of[session]].name for session in live)


def _tokens(world: Processes, state: State, table: Any) -> Hashable:
    at = state.tables[world.table_of[table]]
    return (at.version, at.tokens)


def _on_read_tokens(world: Processes, state: State, i: int, process: Process, effect: ReadTokens) -> Iterator[Step]:
    after = world.locals.after(process.local, _tokens(world, state, effect.table))
    if isinstance(world.effect(after), CommitEntry) and not world.scenario.is_fine:
        yield from _commit_entry(world, state, i, after)
    else:
        what = f"reads the tokens of {effect.table}"
        world.doing = (process.session, what)
        yield world.doing, world.move(state, i, after, watched=process.watched), False


def _commit_entry(world: Processes, state: State, i: int, local: int) -> Iterator[Step]:
    who, go = state.processes[i].session, world.locals.after
    effect = world.effect(local)
    assert isinstance(effect, CommitEntry)
    place = world.table_of[effect.table]
    if state.tables[place].version != effect.after:
        yield (who, "entry commit lost to another commit"), world.move(state, i, go(local, "stale")), False
        return
    what = f"entry commit on {effect.table} raises {', '.join(token_id for token_id, _ in effect.raised)}"
    world.doing = (who, what)
    done = worlds.commit_entry(state, place, effect.raised, who)
    yield world.doing, world.move(done, i, go(local, "done")), False
    if (spent := spend(state, "lost")) is not None:
        yield (who, f"{what}, request lost"), world.move(spent, i, go(local, "unknown")), True
        lost = done._replace(budgets=spent.budgets)
        yield (who, f"{what}, reply lost"), world.move(lost, i, go(local, "unknown")), True


def _on_execute(world: Processes, state: State, i: int, process: Process, effect: RunStatement) -> Iterator[Step]:
    go = world.locals.after
    who, place, flight = process.session, world.table_of[effect.table], process.flight
    if flight is None:
        stored = dict(state.tables[place].tokens).get(effect.token_id)
        if stored is not None and stored >= effect.token.pack():
            yield (who, "Delta skips the write silently"), world.move(state, i, go(process.local, "done")), False
            return
        job = world.scenario.jobs[world.job_of[who]]
        begun = worlds.begin_transaction(effect, job, state.tables, place, who)
        moved = process._replace(flight=begun, watched=None if begun.effects else (place, False))
        what = f"JVM begins a transaction on {effect.table} v{state.tables[place].version}"
        yield (who, what), state._replace(processes=put(state.processes, i, moved)), False
    elif not flight.effects:
        done = world.move(state, i, go(process.local, "done"), watched=process.watched)
        yield (who, "statement matches nothing, no commit"), done, False
    elif flight.is_beaten:
        yield (who, "conflict"), world.move(state, i, go(process.local, "conflict")), False
    else:
        what = f"commits batch {effect.token.batch} step {effect.token.step} epoch {effect.token.epoch}"
        world.doing = (who, f"{what} to {effect.table}")
        landed = worlds.commit(state._replace(processes=put(state.processes, i, process._replace(flight=None))), flight)
        yield world.doing, world.move(landed, i, go(process.local, "done")), False
        if (spent := spend(state, "lost")) is not None:
            lost = landed._replace(budgets=spent.budgets)
            yield (who, f"{what}, reply lost"), world.move(lost, i, go(process.local, "conflict")), True


def _on_create_table(world: Processes, state: State, i: int, process: Process, effect: CreateTable) -> Iterator[Step]:
    place, local = world.table_of[effect.table], world.locals.after(process.local, None)
    table = state.tables[place]
    if table.version < 0:
        state = worlds.publish(state, place, table._replace(version=0), frozenset(), data_of=None)
    yield (process.session, f"makes {effect.table}, empty, if it is not there"), world.move(state, i, local), False


def _checkpoint(world: Processes, state: State, session: SessionId) -> Checkpoint:
    place = world.job_of[session]
    source = state.sources[place]
    view = CheckpointView(last_committed=source.committed - 1, is_batch_open=len(source.offsets) > source.committed)
    return Checkpoint(worlds.token_of(world.scenario.jobs[place].name, source.query), view)


def _plan(world: Processes, state: State, i: int, local: int) -> Iterator[Step]:
    who, go = state.processes[i].session, world.locals.after
    place = world.job_of[who]
    source, n = state.sources[place], state.sources[place].committed
    if len(source.offsets) > n:
        batch = Batch(n, source.offsets[n])
        yield (who, f"replays batch {n}"), world.move(_opened(world, state, place, who), i, go(local, batch)), False
        return
    first = source.planned
    if first == source.rows:
        yield (who, "has no data"), world.move(state, i, go(local, None)), False
        return
    ends = range(first + 1, source.rows + 1) if world.scenario.takes_any_rows else (first + 1,)
    for end in ends:
        planned = source._replace(offsets=(*source.offsets, (first, end)))
        opened = _opened(world, state._replace(sources=put(state.sources, place, planned)), place, who)
        batch = Batch(n, (first, end))
        yield (who, f"plans batch {n}, rows {first} to {end - 1}"), world.move(opened, i, go(local, batch)), False


def _opened(world: Processes, state: State, place: int, session: SessionId) -> State:
    """Marks the batch as open: from its planning if that is inside a turn, otherwise from the grant."""
    record = world.records[state.record]
    if record is None or record.holder is None or record.holder.session != session:
        return state
    return state._replace(ghost=state.ghost._replace(opened=put(state.ghost.opened, place, True)))


def _on_write_commit_log(
    world: Processes, state: State, i: int, process: Process, effect: WriteCommitLog
) -> Iterator[Step]:
    go, batch, token_id = world.locals.after, effect.batch, effect.token_id
    who, place = process.session, world.job_of[process.session]
    job, source = world.scenario.jobs[place], state.sources[place]
    if source.committed > batch.number or token_id != worlds.token_of(job.name, source.query):
        yield (
            (who, "commit log is there already, query fails"),
            world.move(state, i, go(process.local, "exists")),
            False,
        )
        return
    world.doing = (who, f"commit log of batch {batch.number}")
    worlds.check_commit_log(state, world.scenario, job, source.query, batch)
    finished = frozenset((other, place) for other in range(len(world.scenario.jobs)) if other != place)
    ghost = state.ghost._replace(
        opened=put(state.ghost.opened, place, False), finished_since=state.ghost.finished_since | finished
    )
    logged = state._replace(sources=put(state.sources, place, source._replace(committed=batch.number + 1)), ghost=ghost)
    yield world.doing, world.move(logged, i, go(process.local, "done")), False


HANDLERS: dict[type[Any], Callable[[Processes, State, int, Process, Any], Iterator[Step]]] = {
    ReadRecord: _on_read_record,
    LiveSessions: _on_live_sessions,
    NoteTurn: _on_note_turn,
    WallClock: _on_wall_clock,
    WaitForChange: _on_wait,
    CompareAndSet: _on_compare_and_set,
    ReadTokens: _on_read_tokens,
    CommitEntry: _on_commit_entry,
    FindMark: _on_find_mark,
    RunStatement: _on_execute,
    CreateTable: _on_create_table,
    ReadCheckpoint: _on_read_checkpoint,
    PlanBatch: _on_plan,
    WriteCommitLog: _on_write_commit_log,
    Sleep: _on_sleep,
}
"""Kind of effect → the steps that a process at it may take."""
