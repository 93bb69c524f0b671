"""The processes of a simulated world: they start, go from one local state to the next, become zombies, and die.

The head of `transitions.py` says which of their steps are merged, and why that loses nothing.
"""

from __future__ import annotations

from typing import Any

from harness import worlds
from harness.frames import LocalStates, Records
from harness.jobs import (
    NoteStep,
    ReadCheckpoint,
    Sleep,
    work,
)
from harness.worlds import FAULTS, Ghost, Process, Scenario, Source, State, Transaction, Violation
from lakegate.effects import Effect
from lakegate.ids import JobName, SessionId
from lakegate.turns.protocol.effects import (
    LiveSessions,
    ReadRecord,
    ReadTokens,
    Stored,
    TableTokens,
)
from lakegate.turns.protocol.ordering import Strict
from lakegate.turns.protocol.transitions import Sessions

Label = tuple[str, str | tuple[int, int]]
"""The process and its step; a change of the record as its numbers before and after."""
Step = tuple[Label, State, bool]
"""The label, the world afterwards, and whether a fault was spent."""

_NEEDS_NO_TURN = frozenset({"begin", "announce_idle"})
"""Functions in which a process may still change the record although its session is gone and the turn is not its own."""


_EXPIRE, _WIPE, _RESTORED = (FAULTS.index(fault) for fault in ("expire", "wipe", "restored"))
_ENDS_TURN = frozenset({"complete", "close_unclean"})


class Processes:
    """The processes of one scenario: how they start, continue and die, and how they look at the end."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.records = Records()
        self.locals = LocalStates(self._start, self._answer, self.records)
        self.place_of = {job.name: i for i, job in enumerate(scenario.jobs)}
        self.table_of = {table: i for i, table in enumerate(scenario.tables)}
        self.job_of: dict[SessionId, int] = {}
        self.looks_at_absence = any(job.absent_after_ms is not None for job in scenario.jobs)
        self.changes: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        self.eligible: dict[tuple[int, frozenset[SessionId]], frozenset[str]] = {}
        self.doing: Label = ("", "")
        """The step being worked out, for the trace of a violation."""

    # ----------------------------------------------------------------------------------------------- start and answers

    def first(self) -> State:
        """Returns the world at the start."""
        jobs = self.scenario.jobs
        record = worlds.first_record(self.scenario)
        nothing = State(
            record=0 if record is None else self.records.number(record),
            live=frozenset(),
            tables=worlds.first_tables(self.scenario),
            sources=tuple(
                Source(0, (), 0, 0 if self.scenario.is_first_dry and place == 0 else self.scenario.rows)
                for place in range(len(jobs))
            ),
            processes=(),
            orphans=frozenset(),
            budgets=(*(self.scenario.faults.get(fault, 0) for fault in FAULTS), self.scenario.arrivals),
            started=(0,) * len(jobs),
            ghost=Ghost((False,) * len(jobs), frozenset(), frozenset()),
        )
        for place in range(len(jobs)):
            nothing = self.run(nothing, place)
        return nothing

    def _start(self, root: Any) -> Any:
        place, session = root
        return work(self.scenario.jobs[place], session)

    def _answer(self, effect: Effect[Any], key: Any) -> Any:
        match effect:
            case ReadRecord():
                return Stored(self.records[key], key)
            case LiveSessions():
                ids, mark = key
                jobs = frozenset(self.scenario.jobs[self.job_of[s]].name for s in ids)
                return Sessions(ids=ids, jobs=jobs, mark=mark)
            case ReadTokens():
                return TableTokens(key[0], dict(key[1]))
            case _:
                return key

    def effect(self, local: int) -> Effect[Any] | None:
        """Returns the effect that a process in this local state yields; None where the process has ended."""
        return self.locals[local].effect

    def run(self, state: State, place: int) -> State:
        """Starts a new process of the job, with a session of its own."""
        n = state.started[place]
        session = SessionId(f"{self.scenario.jobs[place].name}{n or ''}")
        self.job_of[session] = place
        process = Process(session, self.locals.root((place, session)), None, None)
        return state._replace(
            live=state.live | {session},
            processes=tuple(sorted((*state.processes, process), key=lambda process: process.session)),
            started=put(state.started, place, n + 1),
        )

    def check(self, state: State) -> None:
        """Checks the invariants of a state.

        Raises:
            Violation: one does not hold.
        """
        self.doing = ("", "")
        if "broken" in self.scenario.faults or self.scenario.may_go_back:
            return  # an operator's action leaves two live holders; their effects on the tables are still checked
        worlds.check_holders(
            state, [p.session for p in state.processes if "write_batch" in self.locals[p.local].functions]
        )

    def is_end(self, state: State) -> bool:
        """Returns whether all work is done and all processes sleep, or a person is needed."""
        if self.is_halted(state):
            return True
        present = {self.job_of[session] for session in state.live}
        if len(present) < len(state.sources):
            return False
        for process in state.processes:
            place = self.job_of[process.session]
            is_asleep = isinstance(self.effect(process.local), Sleep) and state.sources[place].is_finished
            if process.session in state.live and not is_asleep and not self._is_starved(state, process):
                return False
        return True

    def _is_starved(self, state: State, process: Process) -> bool:
        """Returns whether it waits, under `strict`, for a job that has no data; allowed where the scenario says so."""
        rule = self.scenario.jobs[self.job_of[process.session]].rule
        if not self.scenario.strict_may_starve or not isinstance(rule, Strict):
            return False
        record = self.records[state.record]
        is_waiting = record is not None and any(t.session == process.session for t in record.tickets)
        return is_waiting and all(state.sources[self.place_of[JobName(name)]].is_finished for name in rule.jobs)

    def is_halted(self, state: State) -> bool:
        """Returns whether a person is needed."""
        return any(self.effect(process.local) is None for process in state.processes)

    def move(
        self,
        state: State,
        i: int,
        local: int,
        flight: Transaction | None = None,
        watched: tuple[int, bool] | None = None,
    ) -> State:
        """Moves the process to another local state; a process that has ended leaves the world."""
        process = state.processes[i]
        while isinstance(effect := self.effect(local), NoteStep):
            if watched is not None and watched[1]:
                raise Violation(
                    "a statement that matched nothing counts as done although a later turn wrote since its snapshot"
                )
            local, watched = self.locals.after(local, None), None
        while self._has_ended_turn(state, process.session, local):
            local = self.locals.after(local, state.record)
        effect = self.effect(local)
        if effect is None and self.locals[local].result != "halt":
            return self.die(state, i)
        if self._is_over(state, process.session, local):
            return state._replace(processes=state.processes[:i] + state.processes[i + 1 :])
        if watched is not None and "write_step" not in self.locals[local].functions:
            watched = None
        moved = Process(process.session, local, flight, watched)
        return state._replace(processes=put(state.processes, i, moved))

    def _has_ended_turn(self, state: State, session: SessionId, local: int) -> bool:
        """Returns whether the process will next read that its turn has ended, now and at any later time."""
        # A turn that has ended may come back with an older copy of the record.
        if self.scenario.is_fine or self._may_come_back(state) or not self.locals[local].functions & _ENDS_TURN:
            return False
        record = self.records[state.record]
        is_over = record is None or record.holder is None or record.holder.session != session
        return is_over and isinstance(self.effect(local), ReadRecord)

    def _is_over(self, state: State, session: SessionId, local: int) -> bool:
        """Returns whether a zombie can do nothing more: its next look would show that its session is lost."""
        if session in state.live:
            return False
        effect, functions = self.effect(local), self.locals[local].functions
        if isinstance(effect, ReadCheckpoint):
            return "write_batch" not in functions and not self.scenario.zombies_go_on
        if not isinstance(effect, ReadRecord) or functions & _NEEDS_NO_TURN or self._may_come_back(state):
            return False
        record = self.records[state.record]
        if record is None:
            return "take_turn" not in functions
        return record.holder is None or record.holder.session != session

    def _may_come_back(self, state: State) -> bool:
        return bool(state.budgets[_RESTORED])

    def die(self, state: State, i: int) -> State:
        """Ends the process; its transaction in flight continues in the JVM."""
        process = state.processes[i]
        state = left_behind(state._replace(processes=state.processes[:i] + state.processes[i + 1 :]), process)
        return state if self.looks_at_absence else self.expire(state, process.session)

    def expire(self, state: State, session: SessionId) -> State:
        """Ends the session; the process continues as a zombie."""
        if session not in state.live:
            return state
        state = state._replace(live=state.live - {session})
        gone = tuple(p for p in state.processes if not self._is_over(state, p.session, p.local))
        state = state._replace(processes=gone)
        return state if self.looks_at_absence else self.run(state, self.job_of[session])

    def is_only(self, state: State, session: SessionId) -> bool:
        """Returns whether its job has, and can get, no other process while it lives."""
        if self.scenario.is_fine or state.budgets[_EXPIRE] or state.budgets[_WIPE]:
            return False
        place = self.job_of[session]
        return sum(self.job_of[p.session] == place for p in state.processes) == 1


def put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """Returns the tuple with another value at one position."""
    return (*values[:at], value, *values[at + 1 :])


def left_behind(state: State, process: Process) -> State:
    """Returns the world with the process's transaction in flight as one without an owner, if it may still commit."""
    flight = process.flight
    if flight is None or flight.is_beaten or not flight.effects:
        return state
    return state._replace(orphans=state.orphans | {flight})
