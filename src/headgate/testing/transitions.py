"""What may happen next in a simulated world: every process at every effect, every transaction in flight, every fault left.

Fully asynchronous: no step trusts a clock, a paused process is one that is not scheduled, a zombie one whose session has
expired.

Rules for editors, for what is merged into one transition (`Scenario.is_fine` merges nothing, and must give the same verdict):
- Reading the record, sessions and clock happens at the instant of the compare-and-set that follows at once: had the record
  changed in between, the compare-and-set would have been stale and the protocol back at the top of its loop. The same for
  reading tokens before an entry commit, and for the first reading of a table that only feeds a grant; for all such
  readings where no record is ever lost, because then no table is above the record, and what is read changes nothing.
- Waiting is staying at the top of the loop; reading that the own turn has ended, which it then has for good, is done
  when it ends.
- The checkpoint of a job that has one process, and can get no other before that is dead, is read and planned at the
  instant of the reading beside it.
- A zombie that is about to read that its session or its turn is gone, for good, is gone itself, and so is one that
  would begin another run (unless `Scenario.zombies_go_on`).
- A crashed or expired process is replaced at once (it may stay unscheduled for any time), except where a rule looks at who
  is absent. A crash in flight leaves the transaction behind; that it never commits is the run where it is not scheduled.
  So a zombie needs no crash, and its end is only the point from which it is not scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from headgate.core.ids import JobName, SessionId
from headgate.core.turns.effects import (
    CommitEntry,
    CompareAndSet,
    Effect,
    Execute,
    FindMark,
    LiveSessions,
    ReadRecord,
    ReadTokens,
    Stored,
    TableTokens,
    WaitForChange,
    WallClock,
)
from headgate.core.turns.moves import Sessions
from headgate.core.turns.order import Strict
from headgate.core.turns.protocol import CheckpointView
from headgate.testing import worlds
from headgate.testing.frames import RAISED, LocalStates, Records
from headgate.testing.jobs import (
    Batch,
    Checkpoint,
    CreateTable,
    NoteStep,
    PlanBatch,
    ReadCheckpoint,
    Sleep,
    WriteCommitLog,
    work,
)
from headgate.testing.worlds import FAULTS, Fault, Ghost, Process, Scenario, Source, State, Transaction, Violation

Label = tuple[str, str | tuple[int, int]]
"""Who, and what; a change of the record as its numbers before and after."""
Step = tuple[Label, State, bool]
"""A label, the world afterwards, and whether a fault was spent."""


_NEEDS_NO_TURN = frozenset({"begin", "announce_idle"})
"""Where a process may still change the record although its session is gone and the turn is not its own."""


_EXPIRE, _WIPE = FAULTS.index("expire"), FAULTS.index("wipe")
_ENDS_TURN = frozenset({"complete", "close_unclean"})


class Transitions:
    """The transitions of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.records = Records()
        self.locals = LocalStates(self._start, self._answer, self.records)
        self._place = {job.name: i for i, job in enumerate(scenario.jobs)}
        self._table = {table: i for i, table in enumerate(scenario.tables)}
        self._job_of: dict[SessionId, int] = {}
        self._looks_at_absence = any(job.absent_after_ms is not None for job in scenario.jobs)
        self._changes: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        self._eligible: dict[tuple[int, frozenset[SessionId]], frozenset[str]] = {}
        self._handlers: dict[type[Any], Callable[[State, int, Process, Any], Iterator[Step]]] = {
            ReadRecord: self._on_read_record,
            LiveSessions: self._on_live_sessions,
            WallClock: self._on_wall_clock,
            WaitForChange: self._on_wait,
            CompareAndSet: self._on_compare_and_set,
            ReadTokens: self._on_read_tokens,
            CommitEntry: self._on_commit_entry,
            FindMark: self._on_find_mark,
            Execute: self._on_execute,
            CreateTable: self._on_create_table,
            ReadCheckpoint: self._on_read_checkpoint,
            PlanBatch: self._on_plan,
            WriteCommitLog: self._on_write_commit_log,
            Sleep: self._on_sleep,
        }
        self.doing: Label = ("", "")
        """The step being worked out, for the trace of a violation."""

    # ----------------------------------------------------------------------------------------------- start and answers

    def first(self) -> State:
        """The world at the start."""
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
            nothing = self._run(nothing, place)
        return nothing

    def _start(self, root: Any) -> Any:
        place, session = root
        return work(self.scenario.jobs[place], session)

    def _answer(self, effect: Effect[Any], key: Any) -> Any:
        match effect:
            case ReadRecord():
                return Stored(self.records[key], key)
            case LiveSessions():
                return Sessions(ids=key, jobs=frozenset(self.scenario.jobs[self._job_of[s]].name for s in key))
            case ReadTokens():
                return TableTokens(key[0], dict(key[1]))
            case _:
                return key

    def _effect(self, local: int) -> Effect[Any] | None:
        return self.locals[local].effect

    def _run(self, state: State, place: int) -> State:
        """A new process of the job starts, with a session of its own."""
        n = state.started[place]
        session = SessionId(f"{self.scenario.jobs[place].name}{n or ''}")
        self._job_of[session] = place
        process = Process(session, self.locals.root((place, session)), None, None)
        return state._replace(
            live=state.live | {session},
            processes=tuple(sorted((*state.processes, process), key=lambda process: process.session)),
            started=_put(state.started, place, n + 1),
        )

    # ----------------------------------------------------------------------------------------------- all that may happen

    def after(self, state: State) -> Iterator[Step]:
        """Every world that may come next.

        Raises:
            Violation: what `doing` says breaks an invariant.
        """
        for i, process in enumerate(state.processes):
            yield from self._step(state, i)
            yield from self._faults_of(state, i, process)
        for orphan in state.orphans:
            who = f"orphan JVM of {orphan.session}"
            self.doing = (who, "commits")
            gone = state._replace(orphans=state.orphans - {orphan})
            yield self.doing, worlds.commit(gone, orphan) if orphan.effects else gone, False
        if self._looks_at_absence:
            yield from self._presence(state)
        yield from self._faults_of_world(state)

    def check(self, state: State) -> None:
        """Invariants of a state.

        Raises:
            Violation: one does not hold.
        """
        self.doing = ("", "")
        worlds.check_holders(
            state, [p.session for p in state.processes if "write_batch" in self.locals[p.local].functions]
        )

    def is_end(self, state: State) -> bool:
        """All work is done and everybody sleeps, or a person is needed."""
        if self.is_halted(state):
            return True
        present = {self._job_of[session] for session in state.live}
        if len(present) < len(state.sources):
            return False
        for process in state.processes:
            place = self._job_of[process.session]
            is_asleep = isinstance(self._effect(process.local), Sleep) and state.sources[place].is_finished
            if process.session in state.live and not is_asleep and not self._is_starved(state, process):
                return False
        return True

    def _is_starved(self, state: State, process: Process) -> bool:
        """Whether it waits, under `strict`, for a job that has no data; allowed where the scenario says so."""
        rule = self.scenario.jobs[self._job_of[process.session]].rule
        if not self.scenario.strict_may_starve or not isinstance(rule, Strict):
            return False
        record = self.records[state.record]
        is_waiting = record is not None and any(t.session == process.session for t in record.tickets)
        return is_waiting and all(state.sources[self._place[JobName(name)]].is_finished for name in rule.jobs)

    def is_halted(self, state: State) -> bool:
        """A person is needed."""
        return any(self._effect(process.local) is None for process in state.processes)

    # ----------------------------------------------------------------------------------------------- one process

    def _move(
        self,
        state: State,
        i: int,
        local: int,
        flight: Transaction | None = None,
        watched: tuple[int, bool] | None = None,
    ) -> State:
        """The process goes to another local state; one that has ended leaves the world."""
        process = state.processes[i]
        while isinstance(effect := self._effect(local), NoteStep):
            if watched is not None and watched[1]:
                raise Violation(
                    "a statement that matched nothing counts as done although a later turn wrote since its snapshot"
                )
            local, watched = self.locals.after(local, None), None
        while self._has_ended_turn(state, process.session, local):
            local = self.locals.after(local, state.record)
        effect = self._effect(local)
        if effect is None and self.locals[local].result != "halt":
            return self._die(state, i)
        if self._is_over(state, process.session, local):
            return state._replace(processes=state.processes[:i] + state.processes[i + 1 :])
        if watched is not None and "write_step" not in self.locals[local].functions:
            watched = None
        moved = Process(process.session, local, flight, watched)
        return state._replace(processes=_put(state.processes, i, moved))

    def _has_ended_turn(self, state: State, session: SessionId, local: int) -> bool:
        """Whether it is about to read that its turn has ended, as it will read at any time from now on."""
        if self.scenario.is_fine or not self.locals[local].functions & _ENDS_TURN:
            return False
        record = self.records[state.record]
        is_over = record is None or record.holder is None or record.holder.session != session
        return is_over and isinstance(self._effect(local), ReadRecord)

    def _is_over(self, state: State, session: SessionId, local: int) -> bool:
        """Whether a zombie can do nothing more: it would find its session lost as soon as it looks."""
        if session in state.live:
            return False
        effect, functions = self._effect(local), self.locals[local].functions
        if isinstance(effect, ReadCheckpoint):
            return "write_batch" not in functions and not self.scenario.zombies_go_on
        if not isinstance(effect, ReadRecord) or functions & _NEEDS_NO_TURN:
            return False
        record = self.records[state.record]
        if record is None:
            return "take_turn" not in functions
        return record.holder is None or record.holder.session != session

    def _die(self, state: State, i: int) -> State:
        """The process is gone; what it has in flight goes on in the JVM."""
        process = state.processes[i]
        state = _left_behind(state._replace(processes=state.processes[:i] + state.processes[i + 1 :]), process)
        return state if self._looks_at_absence else self._expire(state, process.session)

    def _expire(self, state: State, session: SessionId) -> State:
        if session not in state.live:
            return state
        state = state._replace(live=state.live - {session})
        gone = tuple(p for p in state.processes if not self._is_over(state, p.session, p.local))
        state = state._replace(processes=gone)
        return state if self._looks_at_absence else self._run(state, self._job_of[session])

    def _is_only(self, state: State, session: SessionId) -> bool:
        if self.scenario.is_fine or state.budgets[_EXPIRE] or state.budgets[_WIPE]:
            return False
        place = self._job_of[session]
        return sum(self._job_of[p.session] == place for p in state.processes) == 1

    def _step(self, state: State, i: int) -> Iterator[Step]:
        process = state.processes[i]
        effect = self._effect(process.local)
        self.doing = (process.session, type(effect).__name__)
        if effect is not None:
            yield from self._handlers[type(effect)](state, i, process, effect)

    def _on_read_record(self, state: State, i: int, process: Process, _: ReadRecord) -> Iterator[Step]:
        yield from self._read_record(state, i, self.locals.after(process.local, state.record))

    def _on_live_sessions(self, state: State, i: int, process: Process, _: LiveSessions) -> Iterator[Step]:
        after = self.locals.after(process.local, state.live)
        yield (process.session, "asks who is alive"), self._move(state, i, after), False

    def _on_wall_clock(self, state: State, i: int, process: Process, _: WallClock) -> Iterator[Step]:
        yield (process.session, "reads the clock"), self._move(state, i, self.locals.after(process.local, 0)), False

    def _on_wait(self, state: State, i: int, process: Process, _: WaitForChange) -> Iterator[Step]:
        who, go = process.session, self.locals.after
        yield (who, "wakes up"), self._move(state, i, go(process.local, "changed")), False
        if (spent := _spend(state, "giveup")) is not None:
            yield (who, "gives up"), self._move(spent, i, go(process.local, "timeout")), True

    def _on_compare_and_set(self, state: State, i: int, process: Process, _: CompareAndSet) -> Iterator[Step]:
        yield from self._compare_and_set(state, i, process.local)

    def _on_commit_entry(self, state: State, i: int, process: Process, _: CommitEntry) -> Iterator[Step]:
        yield from self._commit_entry(state, i, process.local)

    def _on_find_mark(self, state: State, i: int, process: Process, effect: FindMark) -> Iterator[Step]:
        sought = (effect.token_id, effect.token.batch, effect.token.step)
        marks = state.tables[self._table[effect.table]].marks
        found = next((mark[3] for mark in marks if mark[:3] == sought), None)
        yield (
            (process.session, "looks up the mark"),
            self._move(state, i, self.locals.after(process.local, found)),
            False,
        )

    def _on_read_checkpoint(self, state: State, i: int, process: Process, _: ReadCheckpoint) -> Iterator[Step]:
        who = process.session
        after = self.locals.after(process.local, self._checkpoint(state, who))
        if self._is_only(state, who) and isinstance(self._effect(after), ReadRecord):
            yield from self._read_record(state, i, self.locals.after(after, state.record))
        else:
            yield (who, "reads its checkpoint"), self._move(state, i, after), False

    def _on_plan(self, state: State, i: int, process: Process, _: PlanBatch) -> Iterator[Step]:
        yield from self._plan(state, i, process.local)

    def _on_sleep(self, state: State, i: int, process: Process, _: Sleep) -> Iterator[Step]:
        place = self._job_of[process.session]
        record = self.records[state.record]
        has_data = not state.sources[place].is_finished
        # A run without data has something to do, too: it finds out that a lost turn had finished.
        if has_data or (record is not None and record.job(self.scenario.jobs[place].name).lost is not None):
            what = "sees new data" if has_data else "runs again at its pace"
            yield (process.session, what), self._move(state, i, self.locals.after(process.local, None)), False

    def _read_record(self, state: State, i: int, local: int) -> Iterator[Step]:
        """The record has been read; goes on to what may not be merged with that."""
        process = state.processes[i]
        who, go, is_fine = process.session, self.locals.after, self.scenario.is_fine
        has_read_table = False
        may_read_tables = "wipe" not in self.scenario.faults
        while not is_fine:
            effect = self._effect(local)
            if isinstance(effect, LiveSessions):
                local = go(local, state.live)
            elif isinstance(effect, WallClock):
                local = go(local, 0)
            elif (
                isinstance(effect, ReadTokens)
                and (may_read_tables or not has_read_table)
                and "_tables_epoch" in self.locals[local].functions
            ):
                local, has_read_table = go(local, self._tokens(state, effect.table)), not may_read_tables
            else:
                break
        effect = self._effect(local)
        if is_fine or has_read_table:
            yield (who, "reads the record"), self._move(state, i, local), False
        elif isinstance(effect, CompareAndSet):
            yield from self._compare_and_set(state, i, local)
        elif isinstance(effect, WaitForChange):
            top = go(local, "changed")
            if top != process.local:
                yield (who, "waits"), self._move(state, i, top), False
            if (spent := _spend(state, "giveup")) is not None:
                yield (who, "gives up"), self._move(spent, i, go(local, "timeout")), True
        elif isinstance(effect, PlanBatch) and self._is_only(state, who):
            yield from self._plan(state, i, local)
        else:
            yield (who, "reads the record"), self._move(state, i, local), False

    def _compare_and_set(self, state: State, i: int, local: int) -> Iterator[Step]:
        who, go = state.processes[i].session, self.locals.after
        effect = self._effect(local)
        assert isinstance(effect, CompareAndSet)
        if effect.version != state.record:
            yield (who, "compare-and-set is stale"), self._move(state, i, go(local, "stale")), False
            return
        number = self.records.number(effect.record)
        self.doing = (who, (state.record, number))
        done = self._changed(state, number)
        yield self.doing, self._move(done, i, go(local, "done")), False
        if (spent := _spend(state, "lost")) is not None:
            yield (who, "compare-and-set, request lost"), self._move(spent, i, go(local, "unknown")), True
            lost = done._replace(budgets=spent.budgets)
            yield (who, "compare-and-set, reply lost:"), self._move(lost, i, go(local, "unknown")), True
        if (spent := _spend(state, "fail")) is not None:
            failed = done._replace(budgets=spent.budgets)
            yield (who, "compare-and-set is done, but raises"), self._move(failed, i, go(local, RAISED)), True

    def _changed(self, state: State, number: int) -> State:
        """The record is another; what that means for the checks."""
        change = (state.record, number)
        before, after = self.records[state.record], self.records[number]
        assert after is not None
        if change not in self._changes:
            granted, completed = worlds.granted_to(before, after), worlds.completed_by(before, after)
            self._changes[change] = (
                None if granted is None else self._place[granted],
                None if completed is None else self._place[completed],
            )
        granted_at, completed_at = self._changes[change]
        ghost = state.ghost
        waited = self._waited(state, number, granted_at) if self.scenario.bounds_waiting else ghost.waited
        if granted_at is not None:
            worlds.check_order(ghost, granted_at, self.scenario.jobs)
            ghost = ghost._replace(opened=_put(ghost.opened, granted_at, True))
        if completed_at is not None:
            ghost = ghost._replace(finished_since=frozenset(x for x in ghost.finished_since if x[0] != completed_at))
        return state._replace(record=number, ghost=ghost._replace(waited=waited))

    def _waited(self, state: State, number: int, granted_at: int | None) -> frozenset[tuple[str, int]]:
        counts = dict(state.ghost.waited)
        before, after = self._let_in(state.record, state.live), self._let_in(number, state.live)
        waited = {nonce: counts.get(nonce, 0) + (granted_at is not None and nonce in before) for nonce in after}
        if any(count > len(self.scenario.jobs) - 1 for count in waited.values()):
            raise Violation("bound: an eligible ticket saw more than n - 1 other turns")
        return frozenset(waited.items())

    def _let_in(self, number: int, live: frozenset[SessionId]) -> frozenset[str]:
        key = (number, live)
        if key not in self._eligible:
            jobs = frozenset(self.scenario.jobs[self._job_of[session]].name for session in live)
            self._eligible[key] = worlds.eligible(self.records[number], live, jobs)
        return self._eligible[key]

    # ----------------------------------------------------------------------------------------------- tables

    def _tokens(self, state: State, table: Any) -> Hashable:
        at = state.tables[self._table[table]]
        return (at.version, at.tokens)

    def _on_read_tokens(self, state: State, i: int, process: Process, effect: ReadTokens) -> Iterator[Step]:
        after = self.locals.after(process.local, self._tokens(state, effect.table))
        if isinstance(self._effect(after), CommitEntry) and not self.scenario.is_fine:
            yield from self._commit_entry(state, i, after)
        else:
            what = f"reads the tokens of {effect.table}"
            self.doing = (process.session, what)
            yield self.doing, self._move(state, i, after, watched=process.watched), False

    def _commit_entry(self, state: State, i: int, local: int) -> Iterator[Step]:
        who, go = state.processes[i].session, self.locals.after
        effect = self._effect(local)
        assert isinstance(effect, CommitEntry)
        place = self._table[effect.table]
        if state.tables[place].version != effect.after:
            yield (who, "entry commit lost the race"), self._move(state, i, go(local, "stale")), False
            return
        what = f"entry commit on {effect.table} raises {', '.join(token_id for token_id, _ in effect.raised)}"
        self.doing = (who, what)
        done = worlds.commit_entry(state, place, effect.raised, who)
        yield self.doing, self._move(done, i, go(local, "done")), False
        if (spent := _spend(state, "lost")) is not None:
            yield (who, f"{what}, request lost"), self._move(spent, i, go(local, "unknown")), True
            lost = done._replace(budgets=spent.budgets)
            yield (who, f"{what}, reply lost"), self._move(lost, i, go(local, "unknown")), True

    def _on_execute(self, state: State, i: int, process: Process, effect: Execute) -> Iterator[Step]:
        go = self.locals.after
        who, place, flight = process.session, self._table[effect.table], process.flight
        if flight is None:
            stored = dict(state.tables[place].tokens).get(effect.token_id)
            if stored is not None and stored >= effect.token.pack():
                yield (who, "Delta skips the write silently"), self._move(state, i, go(process.local, "done")), False
                return
            job = self.scenario.jobs[self._job_of[who]]
            begun = worlds.begin_transaction(effect, job, state.tables, place, who)
            moved = process._replace(flight=begun, watched=None if begun.effects else (place, False))
            what = f"JVM begins a transaction on {effect.table} v{state.tables[place].version}"
            yield (who, what), state._replace(processes=_put(state.processes, i, moved)), False
        elif not flight.effects:
            done = self._move(state, i, go(process.local, "done"), watched=process.watched)
            yield (who, "statement matches nothing, no commit"), done, False
        elif flight.is_beaten:
            yield (who, "conflict"), self._move(state, i, go(process.local, "conflict")), False
        else:
            what = f"commits batch {effect.token.batch} step {effect.token.step} epoch {effect.token.epoch}"
            self.doing = (who, f"{what} to {effect.table}")
            landed = worlds.commit(
                state._replace(processes=_put(state.processes, i, process._replace(flight=None))), flight
            )
            yield self.doing, self._move(landed, i, go(process.local, "done")), False
            if (spent := _spend(state, "lost")) is not None:
                lost = landed._replace(budgets=spent.budgets)
                yield (who, f"{what}, reply lost"), self._move(lost, i, go(process.local, "conflict")), True

    def _on_create_table(self, state: State, i: int, process: Process, effect: CreateTable) -> Iterator[Step]:
        place, local = self._table[effect.table], self.locals.after(process.local, None)
        table = state.tables[place]
        if table.version < 0:
            state = worlds.publish(state, place, table._replace(version=0), frozenset(), data_of=None)
        yield (process.session, f"makes {effect.table}, empty, if it is not there"), self._move(state, i, local), False

    # ----------------------------------------------------------------------------------------------- checkpoint

    def _checkpoint(self, state: State, session: SessionId) -> Checkpoint:
        place = self._job_of[session]
        source = state.sources[place]
        view = CheckpointView(last_committed=source.committed - 1, is_batch_open=len(source.offsets) > source.committed)
        return Checkpoint(worlds.token_of(self.scenario.jobs[place].name, source.query), view)

    def _plan(self, state: State, i: int, local: int) -> Iterator[Step]:
        who, go = state.processes[i].session, self.locals.after
        place = self._job_of[who]
        source, n = state.sources[place], state.sources[place].committed
        if len(source.offsets) > n:
            batch = Batch(n, source.offsets[n], is_replay=True)
            yield (who, f"replays batch {n}"), self._move(self._opened(state, place, who), i, go(local, batch)), False
            return
        first = source.planned
        if first == source.rows:
            yield (who, "has no data"), self._move(state, i, go(local, None)), False
            return
        ends = range(first + 1, source.rows + 1) if self.scenario.takes_any_rows else (first + 1,)
        for end in ends:
            planned = source._replace(offsets=(*source.offsets, (first, end)))
            opened = self._opened(state._replace(sources=_put(state.sources, place, planned)), place, who)
            batch = Batch(n, (first, end), is_replay=False)
            yield (who, f"plans batch {n}, rows {first} to {end - 1}"), self._move(opened, i, go(local, batch)), False

    def _opened(self, state: State, place: int, session: SessionId) -> State:
        """A batch that is planned inside a turn is open from then on; one planned before, from the grant on."""
        record = self.records[state.record]
        if record is None or record.holder is None or record.holder.session != session:
            return state
        return state._replace(ghost=state.ghost._replace(opened=_put(state.ghost.opened, place, True)))

    def _on_write_commit_log(self, state: State, i: int, process: Process, effect: WriteCommitLog) -> Iterator[Step]:
        go, batch, token_id = self.locals.after, effect.batch, effect.token_id
        who, place = process.session, self._job_of[process.session]
        job, source = self.scenario.jobs[place], state.sources[place]
        if source.committed > batch.number or token_id != worlds.token_of(job.name, source.query):
            yield (
                (who, "commit log is there already, query fails"),
                self._move(state, i, go(process.local, "exists")),
                False,
            )
            return
        self.doing = (who, f"commit log of batch {batch.number}")
        worlds.check_commit_log(state, self.scenario, job, source.query, batch)
        finished = frozenset((other, place) for other in range(len(self.scenario.jobs)) if other != place)
        ghost = state.ghost._replace(
            opened=_put(state.ghost.opened, place, False), finished_since=state.ghost.finished_since | finished
        )
        logged = state._replace(
            sources=_put(state.sources, place, source._replace(committed=batch.number + 1)), ghost=ghost
        )
        yield self.doing, self._move(logged, i, go(process.local, "done")), False

    # ----------------------------------------------------------------------------------------------- faults

    def _faults_of(self, state: State, i: int, process: Process) -> Iterator[Step]:
        who = process.session
        effect = self._effect(process.local)
        is_quiet = (
            isinstance(effect, ReadCheckpoint | Sleep) and "write_batch" not in self.locals[process.local].functions
        )
        if effect is None or is_quiet:
            return
        if who in state.live:
            if (spent := _spend(state, "crash")) is not None:
                yield (who, "CRASH"), self._die(spent, i), True
            if (spent := _spend(state, "expire")) is not None:
                yield (who, "SESSION EXPIRES, the process lives"), self._expire(spent, who), True
        if (spent := _spend(state, "fail")) is not None:
            self.doing = (who, "RAISES")
            failed = self._move(_left_behind(spent, process), i, self.locals.after(process.local, RAISED))
            yield (who, "RAISES, what is in flight goes on in the JVM"), failed, True
        if process.flight is not None and (spent := _spend(state, "foreign")) is not None:
            yield ("foreign writer", "commits"), worlds.commit_foreign(spent, process.flight.table), True

    def _faults_of_world(self, state: State) -> Iterator[Step]:
        if state.record and (spent := _spend(state, "wipe")) is not None:
            asleep = [p for p in state.processes if isinstance(self._effect(p.local), Sleep)]
            wiped = spent._replace(
                record=0, live=frozenset(), processes=tuple(p for p in state.processes if p not in asleep)
            )
            for place in range(len(self.scenario.jobs) if not self._looks_at_absence else 0):
                wiped = self._run(wiped, place)
            yield ("coordinator", "WIPED, all sessions are gone"), wiped, True
        for place, source in enumerate(state.sources):
            who = self.scenario.jobs[place].name
            if source.committed and self._is_quiet(state, place):
                if (spent := _spend(state, "ckdel")) is not None:
                    new = Source(source.query + 1, (), 0, source.rows)
                    yield (who, "CHECKPOINT DELETED"), spent._replace(sources=_put(state.sources, place, new)), True
                if (spent := _spend(state, "rewind")) is not None:
                    n = source.committed - 1
                    old = source._replace(offsets=source.offsets[:n], committed=n)
                    yield (who, "CHECKPOINT RESTORED"), spent._replace(sources=_put(state.sources, place, old)), True
        if state.budgets[-1] and state.sources[0].committed == len(state.sources[0].offsets):
            source = state.sources[0]
            more = state._replace(
                sources=_put(state.sources, 0, source._replace(rows=source.rows + 1)),
                budgets=(*state.budgets[:-1], state.budgets[-1] - 1),
            )
            yield (self.scenario.jobs[0].name, "new data arrive"), more, False

    def _is_quiet(self, state: State, place: int) -> bool:
        mine = [p for p in state.processes if self._job_of[p.session] == place]
        return all(isinstance(self._effect(p.local), Sleep) for p in mine) and not any(
            self._job_of[orphan.session] == place for orphan in state.orphans
        )

    def _presence(self, state: State) -> Iterator[Step]:
        """Sessions of the dead expire, and jobs without a process start again, each at its own time."""
        running = {process.session for process in state.processes}
        for session in state.live - running:
            yield (session, "session of the dead expires"), state._replace(live=state.live - {session}), False
        for place in range(len(self.scenario.jobs)):
            if not any(self._job_of[session] == place for session in state.live):
                yield (self.scenario.jobs[place].name, "starts again"), self._run(state, place), False


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _left_behind(state: State, process: Process) -> State:
    """The world with what the process has in flight as a transaction of nobody, if it may still commit."""
    flight = process.flight
    if flight is None or flight.is_beaten or not flight.effects:
        return state
    return state._replace(orphans=state.orphans | {flight})


def _spend(state: State, fault: Fault) -> State | None:
    """The world with one fault of this kind less; None if none is left."""
    at = FAULTS.index(fault)
    left = state.budgets[at]
    return state._replace(budgets=_put(state.budgets, at, left - 1)) if left else None
