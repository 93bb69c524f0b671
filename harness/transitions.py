"""The possible next steps of a simulated world: each process at its effect, each transaction in flight, each fault left.

Fully asynchronous: no step trusts a clock, a paused process is one that is not scheduled, a zombie is one whose session has
expired.

Rules for editors, about the steps merged into one transition (`Scenario.is_fine` merges nothing, and must give the same verdict):
- Reading the record, sessions and clock happens at the instant of the compare-and-set that follows: had the record
  changed in between, the compare-and-set would have been stale and the protocol back at the top of its loop. The same holds
  for reading tokens before an entry commit, and for the first reading of a table that only feeds a grant. It holds for all
  such readings where no record is ever lost: then no table is above the record, and the value read changes nothing.
- Waiting means staying at the top of the loop. A process reads that its own turn has ended, which is final, at the instant
  when the turn ends.
- The checkpoint of a job that has one process, and can get no other before that one is dead, is read and planned at the
  instant of the adjacent reading.
- A zombie that is about to read that its session or its turn is gone for good is removed, and so is one that
  would begin another run (unless `Scenario.zombies_go_on`).
- A crashed or expired process is replaced at once (it may stay unscheduled for any time), except where a rule looks at who
  is absent. A crash in flight leaves the transaction behind; that it never commits is the run where it is not scheduled.
  So a zombie needs no crash, and its end is only the point from which it is not scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import worlds
from harness.answers import HANDLERS, changed, spend
from harness.frames import RAISED
from harness.jobs import (
    ReadCheckpoint,
    Sleep,
)
from harness.processes import Processes, Step, left_behind, put
from harness.worlds import Process, Source, State
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import Pause


def after(world: Processes, state: State) -> Iterator[Step]:
    """Yields every world that may come next.

    Raises:
        Violation: the step in `world.doing` breaks an invariant.
    """
    for i, process in enumerate(state.processes):
        yield from _step(world, state, i)
        yield from _faults_of(world, state, i, process)
    for orphan in state.orphans:
        who = f"orphan JVM of {orphan.session}"
        world.doing = (who, "commits")
        gone = state._replace(orphans=state.orphans - {orphan})
        yield world.doing, worlds.commit(gone, orphan) if orphan.effects else gone, False
    if world.looks_at_absence:
        yield from _presence(world, state)
    yield from _faults_of_world(world, state)


def _step(world: Processes, state: State, i: int) -> Iterator[Step]:
    process = state.processes[i]
    effect = world.effect(process.local)
    world.doing = (process.session, type(effect).__name__)
    if effect is not None:
        yield from HANDLERS[type(effect)](world, state, i, process, effect)


def _faults_of(world: Processes, state: State, i: int, process: Process) -> Iterator[Step]:
    who = process.session
    effect = world.effect(process.local)
    is_quiet = isinstance(effect, ReadCheckpoint | Sleep) and "write_batch" not in world.locals[process.local].functions
    if effect is None or is_quiet:
        return
    if who in state.live:
        if (spent := spend(state, "crash")) is not None:
            yield (who, "CRASH"), world.die(spent, i), True
        if (spent := spend(state, "expire")) is not None:
            yield (who, "SESSION EXPIRES, the process lives"), world.expire(spent, who), True
    if (spent := spend(state, "fail")) is not None:
        world.doing = (who, "RAISES")
        failed = world.move(left_behind(spent, process), i, world.locals.after(process.local, RAISED))
        yield (who, "RAISES, what is in flight goes on in the JVM"), failed, True
    if process.flight is not None and (spent := spend(state, "foreign")) is not None:
        yield ("foreign writer", "commits"), worlds.commit_foreign(spent, process.flight.table), True


def _faults_of_world(world: Processes, state: State) -> Iterator[Step]:
    if state.record and (spent := spend(state, "wipe")) is not None:
        asleep = [p for p in state.processes if isinstance(world.effect(p.local), Sleep)]
        wiped = spent._replace(
            record=0, live=frozenset(), processes=tuple(p for p in state.processes if p not in asleep)
        )
        for place in range(len(world.scenario.jobs) if not world.looks_at_absence else 0):
            wiped = world.run(wiped, place)
        yield ("coordinator", "WIPED, all sessions are gone"), wiped, True
    for place, source in enumerate(state.sources):
        who = world.scenario.jobs[place].name
        if source.committed and _is_quiet(world, state, place):
            if (spent := spend(state, "ckdel")) is not None:
                new = Source(source.query + 1, (), 0, source.rows)
                yield (who, "CHECKPOINT DELETED"), spent._replace(sources=put(state.sources, place, new)), True
            if (spent := spend(state, "rewind")) is not None:
                n = source.committed - 1
                old = source._replace(offsets=source.offsets[:n], committed=n)
                yield (who, "CHECKPOINT RESTORED"), spent._replace(sources=put(state.sources, place, old)), True
    yield from _acts_of_a_person(world, state)
    if state.budgets[-1] and state.sources[0].committed == len(state.sources[0].offsets):
        source = state.sources[0]
        more = state._replace(
            sources=put(state.sources, 0, source._replace(rows=source.rows + 1)),
            budgets=(*state.budgets[:-1], state.budgets[-1] - 1),
        )
        yield (world.scenario.jobs[0].name, "new data arrive"), more, False


def _acts_of_a_person(world: Processes, state: State) -> Iterator[Step]:
    """Breaks the lock; pauses the first job; resumes it when no other process has work left, or its turn is lost.

    It is not resumed earlier, so that a job that waits for the paused one is seen to be stuck.
    """
    record = world.records[state.record]
    if record is None:
        return
    yield from _copies(world, state)
    first = world.scenario.jobs[0].name
    if record.holder is not None and (spent := spend(state, "broken")) is not None:
        number = world.records.number(transitions.close(record))
        yield ("a person", f"breaks the lock of {record.holder.job}"), changed(world, spent, number), True
    if first not in record.paused and (spent := spend(state, "pause")) is not None:
        number = world.records.number(transitions.pause(record, first, Pause(since_ms=0, by="", reason="")))
        yield ("a person", f"pauses {first}"), changed(world, spent, number), True
    others_are_done = all(source.is_finished for source in state.sources[1:]) and not record.tickets
    if first in record.paused and (others_are_done or record.job(first).lost is not None):
        number = world.records.number(transitions.resume(record, first))
        yield ("a person", f"resumes {first}"), changed(world, state, number), False


def _copies(world: Processes, state: State) -> Iterator[Step]:
    """Takes a copy of the record once and restores it once, with any steps in between."""
    spent = spend(state, "restored")
    if spent is None:
        return
    if state.copy is None:
        yield ("a person", "takes a copy of the record"), state._replace(copy=state.record), True
    elif state.copy != state.record:
        # The checks' counts by the record restart with it.
        ghost = state.ghost._replace(waited=frozenset())
        yield ("a person", "RESTORES THE COPY"), spent._replace(record=state.copy, copy=None, ghost=ghost), True


def _is_quiet(world: Processes, state: State, place: int) -> bool:
    mine = [p for p in state.processes if world.job_of[p.session] == place]
    return all(isinstance(world.effect(p.local), Sleep) for p in mine) and not any(
        world.job_of[orphan.session] == place for orphan in state.orphans
    )


def _presence(world: Processes, state: State) -> Iterator[Step]:
    """Expires sessions of dead processes and restarts jobs without a process, each at its own time."""
    running = {process.session for process in state.processes}
    for session in state.live - running:
        yield (session, "session of the dead expires"), state._replace(live=state.live - {session}), False
    for place in range(len(world.scenario.jobs)):
        if not any(world.job_of[session] == place for session in state.live):
            yield (world.scenario.jobs[place].name, "starts again"), world.run(state, place), False
