"""Explores row-level concurrency: every run of the real protocol by a few writers on a table of a few rows, with faults.

Each commit must change the table as its statement would, run alone on the version before. Each statement must be in the
log at most once, and exactly once if success was reported to its writer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from pyroaring import BitMap64

from harness.row_statements import Change, Row
from harness.row_tables import (
    Log,
    Wrong,
    add_of,
    computed,
    file_of,
    files_of,
    is_in_the_feed,
    live_of,
    moved_to,
    parse,
    rows_in,
    rows_of,
    text_of,
    writer_of,
)
from lakegate.delta.actions import Action, Captured, Committed, changes
from lakegate.delta.deletion_vectors import read, write_inline
from lakegate.effects import Effect, Steps, drive, perform
from lakegate.ids import Version
from lakegate.rows.conflict import commit_protocol as publishing
from lakegate.rows.conflict.commit_protocol import Published
from lakegate.rows.conflict.effects import (
    Describe,
    Execute,
    ExecuteOn,
    FindEntered,
    FindMoved,
    MeetKeys,
    Put,
    PutReply,
    ReadChanges,
    ReadVector,
    Reserve,
    Waiting,
    WriteVectors,
)
from lakegate.rows.conflict.group_commit import gather
from lakegate.rows.conflict.read_set import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A small world."""

    files: tuple[tuple[Row, ...], ...]
    writers: tuple[Change, ...]
    marked: tuple[tuple[int, ...], ...] = ()
    """Rows of each file that a vector marks at the beginning."""
    outside: frozenset[int] = frozenset()
    """Writers that do not pass a gate: a reservation does not stop them."""
    marks: bool = True
    """Whether stock statements mark rows in vectors; otherwise they rewrite files."""
    has_vectors: bool = True
    """Whether the table may have vectors."""
    has_feed: bool = False
    """Whether statements that delete or change rows write their changes into the change feed."""
    faults: int = 0
    """Total of lost requests, lost or late answers, crashes, and reservations that expire or are ignored."""
    executions_max: int = 99
    speculates: bool = False
    """A change computed before its turn is rebased onto another writer's append before that append is put."""
    follows: int = 0
    """Rebases of each writer's change between its early computation and its put; 0: no change is computed before its turn."""


@dataclass(frozen=True, slots=True)
class State:
    """All that differs between runs."""

    log: Log
    traces: tuple[tuple[tuple[str, int], ...], ...]
    """Trace of each writer: the replies that it got, in order; trace and log determine its answers."""
    faults: int = 0
    crashed: frozenset[int] = frozenset()
    reserved_by: int | None = None
    late: tuple[tuple[int, int, str], ...] = ()
    """Puts that are still in flight: writer, version, text."""


@dataclass(slots=True)
class Found:
    """The result of exploring."""

    states: int = 0
    levels: Counter[int] = field(default_factory=Counter)
    violation: str = ""


def explore(scenario: Scenario) -> Found:
    """Visits every reachable state, until the first violation."""
    _advance.cache_clear()  # forget answers of a protocol with a planted bug
    first = State(log=(_first(scenario),), traces=((),) * len(scenario.writers))
    seen, todo, found = {first}, [first], Found()
    levels: set[tuple[int, int, int]] = set()
    while todo:
        state = todo.pop()
        try:
            nexts = list(_nexts(scenario, state, levels))
        except Wrong as wrong:
            found.violation = f"{wrong}; {_described(scenario, state)}"
            break
        for reached in nexts:
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
        if not nexts and any(_is_waiting(scenario, state, writer) for writer in range(len(scenario.writers))):
            found.violation = f"nobody can go on; {_described(scenario, state)}"
            break
    found.states = len(seen)
    found.levels = Counter(level for _, _, level in levels)
    return found


# ------------------------------------------------------------------------------------------------------ transitions


def _nexts(scenario: Scenario, state: State, levels: set[tuple[int, int, int]]) -> Iterator[State]:
    for writer in range(len(scenario.writers)):
        if writer in state.crashed:
            continue
        step = _advance(scenario, writer, state.traces[writer], state.log)
        if isinstance(step, Published):
            levels.add((writer, len(state.log), step.level))
            _check_end(scenario, state, writer, step)
            if state.reserved_by == writer:
                yield replace(state, reserved_by=None)
            continue
        for reached in _answers(scenario, state, writer, step):
            _check(scenario, reached)
            yield reached
        if state.faults < scenario.faults:
            released = None if state.reserved_by == writer else state.reserved_by
            yield replace(state, crashed=state.crashed | {writer}, faults=state.faults + 1, reserved_by=released)
    if state.reserved_by is not None and state.faults < scenario.faults:
        yield replace(state, reserved_by=None, faults=state.faults + 1)
    for at, (_, version, text) in enumerate(state.late):
        rest = state.late[:at] + state.late[at + 1 :]
        if len(state.log) == version:
            arrived = replace(state, log=(*state.log, text), late=rest)
            _check(scenario, arrived)
            yield arrived
        else:
            yield replace(state, late=rest)


def _answers(scenario: Scenario, state: State, writer: int, step: Effect[Any]) -> Iterator[State]:
    head = len(state.log) - 1
    is_free = _is_free(scenario, state, writer, step)

    def described(*said: tuple[str, int], log: Log = state.log, **changed: Any) -> State:
        traces = (*state.traces[:writer], (*state.traces[writer], *said), *state.traces[writer + 1 :])
        return replace(state, traces=traces, log=log, **changed)

    match step:
        case Execute():
            pending = state.traces[writer][-1:] and state.traces[writer][-1][0] == "computed"
            if not pending:
                captured = _stock(scenario, writer, state.traces[writer], state.log)
                yield described(("computed", head)) if captured.actions else described(("nothing", head))
                return
            snapshot = state.traces[writer][-1][1]
            if head == snapshot and is_free and not _is_staged(scenario, state.traces[writer][:-1]):
                captured = _stock(scenario, writer, state.traces[writer][:-1], state.log)
                text = text_of(writer, _stock_id(writer, state.traces[writer][:-1]), captured.actions)
                yield described(("put", head + 1), log=(*state.log, text))
                if state.faults < scenario.faults:
                    # The store retried after a lost answer, and took its own commit for another writer's.
                    yield described(("captured", snapshot), log=(*state.log, text), faults=state.faults + 1)
            else:
                yield described(("captured", snapshot))
        case ReadChanges():
            yield described(("read", head))
        case Put(version=version, actions=actions):
            if not is_free:
                return
            id_ = _put_id(writer, state.traces[writer])
            text = text_of(writer, id_, actions)
            is_won = version == head + 1
            yield described(("done" if is_won else "lost", 0), log=(*state.log, text) if is_won else state.log)
            if state.faults < scenario.faults:
                faults = state.faults + 1
                yield described(("lost", 0), faults=faults)
                if is_won:
                    yield described(("lost", 0), log=(*state.log, text), faults=faults)
                yield described(("lost", 0), faults=faults, late=(*state.late, (writer, version, text)))
        case Reserve():
            if state.reserved_by in (None, writer):
                yield described(("reserved", 0), reserved_by=writer)
        case _:
            raise AssertionError(f"not answered: {step}")


def _is_free(scenario: Scenario, state: State, writer: int, step: Effect[Any]) -> bool:
    """Returns whether no other writer has reserved the table: a reservation stops stock puts and ours."""
    return writer in scenario.outside or state.reserved_by in (None, writer)


def _is_waiting(scenario: Scenario, state: State, writer: int) -> bool:
    if writer in state.crashed:
        return False
    return not isinstance(_advance(scenario, writer, state.traces[writer], state.log), Published)


# ------------------------------------------------------------------------------------------------------ one writer


@cache
def _advance(scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], log: Log) -> Published | Effect[Any]:
    """Runs the writer's protocol with the replies of the trace; returns its next effect, or its end."""
    change = scenario.writers[writer]
    statement = change.statement if scenario.has_vectors else replace(change.statement, marks_rows=False)
    protocol = _waited(scenario, writer) if scenario.follows else publishing.publish()
    place = 0
    answer: Any = None
    try:
        while True:
            effect = protocol.send(answer)
            match effect:
                case Describe():
                    answer = statement
                case ExecuteOn(files=files, version=version):
                    answer = _on_files(scenario, writer, f"w{writer}-{place}o", files, log, version)
                case FindEntered() | MeetKeys() | FindMoved() | ReadVector() | WriteVectors():
                    answer = _looked_up(change, effect, log)
                case _:
                    if not _has_answer(trace[place:]):
                        return effect
                    answer, place = _answer(scenario, writer, trace, place, log, effect)
    except StopIteration as end:
        published: Published = end.value
        return published


def _waited(scenario: Scenario, writer: int) -> Steps[Published]:
    """Runs a writer whose change is computed before its turn: it is rebased now and then, and put at last."""
    executed = yield from perform(Execute())
    assert isinstance(executed, Captured), "nothing is put when it is computed ahead"
    staged, speculation = executed, None
    if scenario.speculates:
        speculation = yield from publishing.speculate(staged, _coming(scenario, writer), None)
    for _ in range(scenario.follows):
        followed = yield from publishing.rebase_ahead(staged, speculation)
        if followed is not None:
            staged, speculation = followed.commit, None
    if speculation is not None and (followed := (yield from publishing.adopt(staged, speculation))) is not None:
        staged = followed.commit
    return (yield from publishing.publish(staged, executed.version))


def _coming(scenario: Scenario, writer: int) -> Mapping[str, Mapping[str, Any]]:
    """Returns the files of the first other writer that only appends; its rows do not depend on the table."""
    for other, change in enumerate(scenario.writers):
        if other != writer and change.statement.reads is Reads.NOTHING:
            computed = _stock(scenario, other, (), (_first(scenario),))
            return {action.body["path"]: action.body for action in computed.actions}
    return {}


def _looked_up(change: Change, effect: Effect[Any], log: Log) -> Any:
    """Answers an effect that reads rows or vectors."""
    match effect:
        case FindEntered(files=files):
            entered, asked = {}, change.asked or change.concerns
            for file in files:
                rows = BitMap64(at for at, row in live_of(file.after or {}) if asked(row))
                if rows:
                    entered[file.path] = rows
            return entered
        case MeetKeys(came=came, lost_rows=gone):
            before = [row for file in gone for row in rows_in(add_of(log, file.before or {}))]
            met = [row for file in came for _, row in live_of(file.after or {})]
            return any(row[0] in change.keys for row in [*met, *before])
        case FindMoved(lost_rows=lost, copies=copies):
            return moved_to(log, lost, copies)
        case ReadVector(descriptor=descriptor):
            return read(descriptor)
        case WriteVectors(vectors=vectors):
            return tuple(write_inline(vector) for vector in vectors)
    raise AssertionError(f"not looked up: {effect}")


def put_together(scenario: Scenario) -> str:
    """Commits the first writer's statement; commits all others, which were computed before it, as a group in the next version.

    Returns the fault of the table afterwards; empty if the table equals a serial run of the first commit and then the members,
    and every other writer is unchanged.
    """
    log: Log = (_first(scenario),)
    computed = [(change, _stock(scenario, writer, (), log)) for writer, change in enumerate(scenario.writers)]
    members = [(change, lost) for change, lost in computed[1:] if lost.actions]  # one without actions has ended
    waiting = [Waiting(change.statement, lost) for change, lost in members]
    log = (*log, text_of(0, "won", computed[0][1].actions))
    protocol = gather(Version(1), {Version(1): parse(log[1])}, waiting)
    group = drive(protocol, lambda asked: _looked_up(members[asked.member][0], asked.effect, log))
    expected = rows_of(log)
    for member in group.members:
        expected = members[member][0].serially(expected)
    try:
        found = rows_of((*log, text_of(1, "group", group.actions)))
    except Wrong as wrong:
        return str(wrong)
    names = [members[member][0].name for member in group.members]
    if not is_in_the_feed(group.actions, rows_of(log), found):
        return f"{scenario.writers[0].name}, then {names}: the change feed shows another change"
    return "" if found == expected else f"{scenario.writers[0].name}, then {names} gave {sorted(found.elements())}"


def _has_answer(rest: tuple[tuple[str, int], ...]) -> bool:
    """Returns whether the trace continues with a complete answer; a computed statement takes two steps."""
    return len(rest) > 1 or (len(rest) == 1 and rest[0][0] != "computed")


def _answer(
    scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], place: int, log: Log, effect: Effect[Any]
) -> tuple[Any, int]:
    """Returns the writer's reply at a position of its trace, and the next position."""
    word, number = trace[place]
    match word:
        case "nothing":
            nothing = Captured(version=Version(number), actions=(), info={}, is_nothing=True)
            return nothing if _is_staged(scenario, trace[:place]) else Committed(None), place + 1
        case "computed" if trace[place + 1][0] == "put":
            return Committed(Version(number + 1)), place + 2
        case "computed":
            captured = _stock(scenario, writer, trace[:place], log[: number + 1])
            return replace(captured, info={**captured.info, "txnId": _stock_id(writer, trace[:place])}), place + 2
        case "read":
            assert isinstance(effect, ReadChanges)
            return changes(effect.after, [parse(text) for text in log[effect.after + 1 : number + 1]]), place + 1
        case "done" | "lost":
            return PutReply(is_done=word == "done", transaction_id=_put_id(writer, trace[:place])), place + 1
        case _:
            return None, place + 1


def _is_staged(scenario: Scenario, before: tuple[tuple[str, int], ...]) -> bool:
    """Returns whether an execution is the one before the turn, judged by the writer's replies before it."""
    return scenario.follows > 0 and not before


def _put_id(writer: int, trace: tuple[tuple[str, int], ...]) -> str:
    return f"{writer}.{len(trace)}"


def _stock_id(writer: int, trace: tuple[tuple[str, int], ...]) -> str:
    return f"{writer}.0.{len(trace)}"


def _stock(scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], log: Log) -> Captured:
    """Returns the commit that stock Delta computes for the writer's statement on the log's last version."""
    name = f"w{writer}-{len(trace)}"
    return _whole(scenario.writers[writer], name, log, is_marking=scenario.marks, has_feed=scenario.has_feed)


@lru_cache(1 << 16)
def _whole(change: Change, name: str, log: Log, *, is_marking: bool, has_feed: bool) -> Captured:
    return computed(change, name, files_of(log), Version(len(log) - 1), is_marking=is_marking, has_feed=has_feed)


def _on_files(
    scenario: Scenario, writer: int, name: str, files: Sequence[Mapping[str, Any]], log: Log, version: Version
) -> Captured | Committed:
    """Returns the commit that stock Delta computes for the writer's statement on some files only."""
    bodies = {body["path"]: body if "rows" in body else add_of(log, body) for body in files}
    there = {**files_of(log[: version + 1]), **(_coming(scenario, writer) if scenario.speculates else {})}
    if any(there.get(path) != body for path, body in bodies.items()):
        raise Wrong("a statement was executed on files that are not in the table")
    change = scenario.writers[writer]
    captured = computed(change, name, bodies, version, is_marking=scenario.marks, has_feed=scenario.has_feed)
    return captured if captured.actions else Committed(None)


def _first(scenario: Scenario) -> str:
    actions = []
    for at, rows in enumerate(scenario.files):
        body = file_of(f"f{at}", rows)
        if scenario.marked and scenario.marked[at]:
            body["deletionVector"] = write_inline(BitMap64(scenario.marked[at]))
        actions.append(Action("add", body))
    return text_of(-1, "first", actions)


# --------------------------------------------------------------------------------------------------------- the rules


def _check(scenario: Scenario, state: State) -> None:
    """Checks that the last commit does what its statement does, and that its statement was not in the log before."""
    if len(state.log) < 2:
        return
    if not scenario.has_vectors and "deletionVector" in state.log[-1]:
        raise Wrong("a table that has no vectors got one")
    writer = writer_of(state.log[-1])
    before, after = rows_of(state.log[:-1]), rows_of(state.log)
    expected = scenario.writers[writer].serially(before)
    if after != expected:
        raise Wrong(
            f"{scenario.writers[writer].name} gave {sorted(after.elements())}, not {sorted(expected.elements())}"
        )
    if not is_in_the_feed(parse(state.log[-1]), before, after):
        raise Wrong(f"the change feed of {scenario.writers[writer].name} shows another change than there was")
    if [writer_of(text) for text in state.log].count(writer) > 1:
        raise Wrong(f"{scenario.writers[writer].name} was done twice")


def _check_end(scenario: Scenario, state: State, writer: int, end: Published) -> None:
    """Checks the result that was reported to the writer."""
    change = scenario.writers[writer]
    if end.attempts > scenario.executions_max:
        raise Wrong(f"{change.name} was executed {end.attempts} times")
    if end.version is not None:
        if len(state.log) <= end.version or writer_of(state.log[end.version]) != writer:
            raise Wrong(f"{change.name} got version {end.version}, which is not its own")
        return
    if any(writer_of(text) == writer for text in state.log):
        raise Wrong(f"{change.name} got no version, and has one")
    if change.unmarks is not None:
        return  # its effect depends on the files
    versions = (rows_of(state.log[: at + 1]) for at in range(len(state.log)))
    if all(change.serially(rows) != rows for rows in versions):
        raise Wrong(f"{change.name} was left out, though there was something to do at every version")


def _described(scenario: Scenario, state: State) -> str:
    commits = [scenario.writers[writer_of(text)].name for text in state.log[1:]]
    rows = [sorted(row for body in files_of(state.log[:1]).values() for row in rows_in(body))]
    return f"table {rows[0]}, log: {', '.join(commits)}; traces {state.traces}"
