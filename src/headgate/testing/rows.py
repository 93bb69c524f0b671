"""Explores row-level concurrency: every run of the real protocol by a few writers on a table of a few rows, with faults.

A table is its log: real actions, whose `add` also holds the file's rows. Each commit must change the table as its statement
would have, run alone on the version before; each statement must be in the log at most once, and exactly once if its writer
was told so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pyroaring import BitMap64

from headgate.core.effects import Effect
from headgate.core.ids import Version
from headgate.core.rows import publish as publishing
from headgate.core.rows.actions import Action, changes, parse
from headgate.core.rows.effects import (
    Captured,
    Committed,
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
from headgate.core.rows.group import Group, Of, gather
from headgate.core.rows.publish import Published
from headgate.core.rows.statement import Reads, Statement
from headgate.core.rows.vectors import read, write_inline

Row = tuple[int, int]
"""Key and value."""
Log = tuple[str, ...]
"""The commits' texts."""


class Wrong(Exception):
    """A rule is broken."""


@dataclass(frozen=True, slots=True)
class Change:
    """A statement: what it does to one row (None: the row goes), and what it adds, given all rows."""

    name: str
    statement: Statement
    """On a table with vectors."""
    concerns: Callable[[Row], bool]
    becomes: Callable[[Row], Row | None] = lambda row: row
    adds: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: ()
    keys: frozenset[int] = frozenset()
    moves_all: bool = False
    """OPTIMIZE: all rows into one file, none changed."""
    asked: Callable[[Row], bool] | None = None
    """What is looked for in files that came, if it is less than what it concerns."""
    tells_number: bool = False
    """The values that it writes say how many rows it concerns, which only an execution on the whole table knows."""
    unmarks: Row | None = None
    """RESTORE, the part that matters here: a row that a vector marks is live again, where there is one."""

    def serially(self, rows: Counter[Row]) -> Counter[Row]:
        """The rows after it, run alone."""
        kept: Counter[Row] = Counter()
        concerned = sum(number for row, number in rows.items() if self.concerns(row))
        for row, number in rows.items():
            then = self.image(row, concerned) if self.concerns(row) else row
            if then is not None:
                kept[then] += number
        kept.update(self.adds(sorted(rows.elements())))
        return kept

    def image(self, row: Row, concerned: int) -> Row | None:
        """What becomes of a row that it concerns, as one of so many."""
        then = self.becomes(row)
        return then if then is None or not self.tells_number else (then[0], then[1] + concerned)


def delete(value: int) -> Change:
    """DELETE WHERE v = value."""
    kind = Statement(reads=Reads.ROWS, marks_rows=True)
    return Change(f"delete {value}", kind, lambda row: row[1] == value, lambda row: None)


def update(value: int, to: int) -> Change:
    """UPDATE SET v = to WHERE v = value."""
    kind = Statement(reads=Reads.ROWS)
    return Change(f"update {value} to {to}", kind, lambda row: row[1] == value, lambda row: (row[0], to))


def timed(value: int, to: int) -> Change:
    """UPDATE SET v = to + what is one for the whole execution WHERE v = value: as the time."""
    return replace(
        update(value, to),
        name=f"timed update {value}",
        statement=Statement(reads=Reads.ROWS, is_divisible=False),
        tells_number=True,
    )


def merge(key: int, to: int | None, *, inserts: bool = True) -> Change:
    """MERGE of one row: WHEN MATCHED UPDATE (or, without `to`, DELETE), WHEN NOT MATCHED INSERT."""
    return Change(
        f"merge {key}={to}",
        Statement(reads=Reads.KEYS, writes_all_matched=True),
        lambda row: row[0] == key,
        lambda row: None if to is None else (key, to),
        lambda rows: [(key, to or 0)] if inserts and all(row[0] != key for row in rows) else [],
        keys=frozenset({key}),
    )


def merge_by_source(key: int, to: int, value: int) -> Change:
    """MERGE of one row: WHEN MATCHED UPDATE, WHEN NOT MATCHED BY SOURCE AND v = value DELETE."""
    return Change(
        f"merge {key}={to}, else delete {value}",
        Statement(reads=Reads.KEYS, has_condition=True, writes_all_matched=True),
        lambda row: row[0] == key or row[1] == value,
        lambda row: (key, to) if row[0] == key else None,
        keys=frozenset({key}),
        asked=lambda row: row[1] == value,
    )


def insert_absent(keys: Sequence[int], value: int) -> Change:
    """MERGE with nothing but WHEN NOT MATCHED INSERT: it depends on rows that it does not write."""
    return Change(
        f"insert {', '.join(map(str, keys))}={value} if absent",
        Statement(reads=Reads.KEYS),
        lambda row: False,
        adds=lambda rows: [(key, value) for key in keys if all(row[0] != key for row in rows)],
        keys=frozenset(keys),
    )


def append(key: int, value: int) -> Change:
    """INSERT VALUES."""
    return Change(
        f"append {key}={value}", Statement(reads=Reads.NOTHING), lambda row: False, adds=lambda rows: [(key, value)]
    )


def copy(value: int) -> Change:
    """INSERT … SELECT k + 10, v FROM itself WHERE v = value."""
    return Change(
        f"copy {value}",
        Statement(reads=Reads.TABLE),
        lambda row: False,
        adds=lambda rows: [(row[0] + 10, row[1]) for row in rows if row[1] == value],
    )


def restore(row: Row) -> Change:
    """A row that was deleted comes back in its old file."""
    return Change("restore", Statement(reads=Reads.TABLE), lambda row: False, adds=lambda rows: [row], unmarks=row)


def optimize() -> Change:
    """OPTIMIZE."""
    kind = Statement(reads=Reads.PLACES, marks_rows=True)
    return Change("optimize", kind, lambda row: False, moves_all=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A small world."""

    files: tuple[tuple[Row, ...], ...]
    writers: tuple[Change, ...]
    marked: tuple[tuple[int, ...], ...] = ()
    """Rows of each file that a vector marks from the beginning."""
    outside: frozenset[int] = frozenset()
    """Writers of another driver, whom a reservation does not stop."""
    marks: bool = True
    """Whether stock statements mark rows in vectors; else they write files anew."""
    has_vectors: bool = True
    """Whether the table may have vectors."""
    has_feed: bool = False
    """Whether statements that take or change rows write what they did into the change feed."""
    faults: int = 0
    """Lost requests, lost or late answers, and crashes, in all."""
    executions_max: int = 99


@dataclass(frozen=True, slots=True)
class State:
    """Everything that differs between runs."""

    log: Log
    traces: tuple[tuple[tuple[str, int], ...], ...]
    """Of each writer: what it was told, in order; its answers follow from it and the log."""
    faults: int = 0
    crashed: frozenset[int] = frozenset()
    reserved_by: int | None = None
    late: tuple[tuple[int, int, str], ...] = ()
    """Puts that are still under way: writer, version, text."""


@dataclass(slots=True)
class Found:
    """What exploring has shown."""

    states: int = 0
    levels: Counter[int] = field(default_factory=Counter)
    violation: str = ""


def explore(scenario: Scenario) -> Found:
    """Every state that can be reached, until the first violation."""
    _advance.cache_clear()  # what the protocol answered when a bug was planted in it
    first = State(log=(_first(scenario),), traces=((),) * len(scenario.writers))
    seen, todo, found = {first}, [first], Found()
    levels: set[tuple[int, int, int]] = set()
    while todo:
        state = todo.pop()
        try:
            nexts = list(_nexts(scenario, state, levels))
        except Wrong as wrong:
            found.violation = f"{wrong}; {_told(scenario, state)}"
            break
        for reached in nexts:
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
        if not nexts and any(_is_waiting(scenario, state, writer) for writer in range(len(scenario.writers))):
            found.violation = f"nobody can go on; {_told(scenario, state)}"
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

    def told(*said: tuple[str, int], log: Log = state.log, **changed: Any) -> State:
        traces = (*state.traces[:writer], (*state.traces[writer], *said), *state.traces[writer + 1 :])
        return replace(state, traces=traces, log=log, **changed)

    match step:
        case Execute():
            pending = state.traces[writer][-1:] and state.traces[writer][-1][0] == "computed"
            if not pending:
                captured = _stock(scenario, writer, state.traces[writer], state.log)
                yield told(("computed", head)) if captured.actions else told(("nothing", head))
                return
            snapshot = state.traces[writer][-1][1]
            if head == snapshot and is_free:
                captured = _stock(scenario, writer, state.traces[writer][:-1], state.log)
                text = _text(writer, f"{writer}.0.{len(state.traces[writer])}", captured.actions)
                yield told(("put", head + 1), log=(*state.log, text))
            else:
                yield told(("captured", snapshot))
        case ReadChanges():
            yield told(("read", head))
        case Put(version=version, actions=actions):
            if not is_free:
                return
            id_ = _put_id(writer, state.traces[writer])
            text = _text(writer, id_, actions)
            is_won = version == head + 1
            yield told(("done" if is_won else "lost", 0), log=(*state.log, text) if is_won else state.log)
            if state.faults < scenario.faults:
                faults = state.faults + 1
                yield told(("lost", 0), faults=faults)
                if is_won:
                    yield told(("lost", 0), log=(*state.log, text), faults=faults)
                yield told(("lost", 0), faults=faults, late=(*state.late, (writer, version, text)))
        case Reserve():
            if state.reserved_by is None:
                yield told(("reserved", 0), reserved_by=writer)
        case _:
            raise AssertionError(f"not answered: {step}")


def _is_free(scenario: Scenario, state: State, writer: int, step: Effect[Any]) -> bool:
    """Whether nobody else has reserved the table: neither a stock put nor one of ours goes through then."""
    return writer in scenario.outside or state.reserved_by in (None, writer)


def _is_waiting(scenario: Scenario, state: State, writer: int) -> bool:
    if writer in state.crashed:
        return False
    return not isinstance(_advance(scenario, writer, state.traces[writer], state.log), Published)


# ------------------------------------------------------------------------------------------------------ one writer


@cache
def _advance(scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], log: Log) -> Published | Effect[Any]:
    """The writer's protocol, told what the trace says; its next question, or its end."""
    change = scenario.writers[writer]
    statement = change.statement if scenario.has_vectors else replace(change.statement, marks_rows=False)
    protocol = publishing.publish()
    place = 0
    answer: Any = None
    try:
        while True:
            effect = protocol.send(answer)
            match effect:
                case Describe():
                    answer = statement
                case ExecuteOn(files=files, version=version):
                    answer = _on_files(scenario, change, f"w{writer}-{place}o", files, log, version)
                case FindEntered() | MeetKeys() | FindMoved() | ReadVector() | WriteVectors():
                    answer = _looked_up(change, effect, log)
                case _:
                    if not _is_told(trace[place:]):
                        return effect
                    answer, place = _answer(scenario, writer, trace, place, log, effect)
    except StopIteration as end:
        published: Published = end.value
        return published


def _looked_up(change: Change, effect: Effect[Any], log: Log) -> Any:
    """What is asked of rows and vectors."""
    match effect:
        case FindEntered(files=files):
            entered, asked = {}, change.asked or change.concerns
            for file in files:
                rows = BitMap64(at for at, row in _live(file.after or {}) if asked(row))
                if rows:
                    entered[file.path] = rows
            return entered
        case MeetKeys(came=came, lost_rows=gone):
            before = [row for file in gone for row in _rows_of(_add_of(log, file.before or {}))]
            met = [row for file in came for _, row in _live(file.after or {})]
            return any(row[0] in change.keys for row in [*met, *before])
        case FindMoved(lost_rows=lost, copies=copies):
            return _moved_to(log, lost, copies)
        case ReadVector(descriptor=descriptor):
            return read(descriptor)
        case WriteVectors(vectors=vectors):
            return tuple(write_inline(vector) for vector in vectors)
    raise AssertionError(f"not looked up: {effect}")


def put_together(scenario: Scenario) -> str:
    """The first writer's commit wins; all others were computed before it, and go into the next version as a group.

    What is wrong with the table afterwards; empty if it is what a serial run gives of the winner and then the members, and
    every other writer is left as it was.
    """
    log: Log = (_first(scenario),)
    computed = [(change, _stock(scenario, writer, (), log)) for writer, change in enumerate(scenario.writers)]
    members = [(change, lost) for change, lost in computed[1:] if lost.actions]  # without, it has ended
    waiting = [Waiting(change.statement, lost) for change, lost in members]
    log = (*log, _text(0, "won", computed[0][1].actions))
    answer: Any = None
    protocol = gather(Version(1), {Version(1): parse(log[1])}, waiting)
    try:
        while True:
            asked = protocol.send(answer)
            assert isinstance(asked, Of)
            answer = _looked_up(members[asked.member][0], asked.effect, log)
    except StopIteration as end:
        group: Group = end.value
    expected = _rows(log)
    for member in group.members:
        expected = members[member][0].serially(expected)
    try:
        found = _rows((*log, _text(1, "group", group.actions)))
    except Wrong as wrong:
        return str(wrong)
    names = [members[member][0].name for member in group.members]
    if not _is_told_by_feed(group.actions, _rows(log), found):
        return f"{scenario.writers[0].name}, then {names}: the change feed shows another change"
    return "" if found == expected else f"{scenario.writers[0].name}, then {names} gave {sorted(found.elements())}"


def _is_told(rest: tuple[tuple[str, int], ...]) -> bool:
    """Whether the trace goes on with a whole answer; a statement that was computed has its own two steps."""
    return len(rest) > 1 or (len(rest) == 1 and rest[0][0] != "computed")


def _answer(
    scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], place: int, log: Log, effect: Effect[Any]
) -> tuple[Any, int]:
    """What the writer was told at a place of its trace, and the next place."""
    word, number = trace[place]
    match word:
        case "nothing":
            return Committed(None), place + 1
        case "computed" if trace[place + 1][0] == "put":
            return Committed(Version(number + 1)), place + 2
        case "computed":
            return _stock(scenario, writer, trace[:place], log[: number + 1]), place + 2
        case "read":
            assert isinstance(effect, ReadChanges)
            return changes(effect.after, [parse(text) for text in log[effect.after + 1 : number + 1]]), place + 1
        case "done" | "lost":
            return PutReply(is_done=word == "done", transaction_id=_put_id(writer, trace[:place])), place + 1
        case _:
            return None, place + 1


def _put_id(writer: int, trace: tuple[tuple[str, int], ...]) -> str:
    return f"{writer}.{len(trace)}"


def _stock(scenario: Scenario, writer: int, trace: tuple[tuple[str, int], ...], log: Log) -> Captured:
    """What stock Delta computes for the writer's statement on the log's last version."""
    change, name = scenario.writers[writer], f"w{writer}-{len(trace)}"
    return _computed(scenario, change, name, _files(log), Version(len(log) - 1))


def _on_files(
    scenario: Scenario, change: Change, name: str, files: Sequence[Mapping[str, Any]], log: Log, version: Version
) -> Captured | Committed:
    """The same on some files only."""
    bodies = {body["path"]: body if "rows" in body else _add_of(log, body) for body in files}
    if any(_files(log[: version + 1]).get(path) != body for path, body in bodies.items()):
        raise Wrong("a statement was executed on files that are not in the table")
    captured = _computed(scenario, change, name, bodies, version)
    return captured if captured.actions else Committed(None)


def _computed(
    scenario: Scenario, change: Change, name: str, files: Mapping[str, Mapping[str, Any]], version: Version
) -> Captured:
    images: list[Row] = []
    gone: list[Row] = []
    copied: list[Row] = []
    out: list[Action] = []
    if change.moves_all and len(files) < 2 and all("deletionVector" not in body for body in files.values()):
        return Captured(version=version, actions=(), info={})
    concerned = sum(change.concerns(row) for body in files.values() for _, row in _live(body))
    for body in files.values():
        if change.unmarks is not None:
            back = BitMap64(at for at in _marked(body) if tuple(body["rows"][at]) == change.unmarks)
            if back and not out:
                out.append(Action("remove", {key: body[key] for key in ("path", "stats", "deletionVector")}))
                out.append(
                    Action("add", {**body, "deletionVector": write_inline(_marked(body) - BitMap64([back.min()]))})
                )
            continue
        live = _live(body)
        hit = [at for at, row in live if change.concerns(row) or change.moves_all]
        if not hit:
            continue
        rows = dict(live)
        gone += [rows[at] for at in hit]
        images += [
            then
            for at in hit
            if (then := rows[at] if change.moves_all else change.image(rows[at], concerned)) is not None
        ]
        out.append(Action("remove", {key: body[key] for key in ("path", "stats", "deletionVector") if key in body}))
        if len(hit) == len(live):
            continue
        if scenario.marks:
            marked = _marked(body) | BitMap64(hit)
            out.append(Action("add", {**body, "deletionVector": write_inline(marked)}))
        else:
            copied += [row for at, row in live if at not in hit]
    if change.unmarks is not None:
        return Captured(version=version, actions=tuple(out), info={})
    images += change.adds(sorted(row for body in files.values() for _, row in _live(body)))
    if scenario.has_feed and gone and not change.moves_all:
        out.append(Action("cdc", {"path": f"{name}c", "dataChange": False, "gone": gone, "came": list(images)}))
    if images or copied:
        out.append(Action("add", _file(name, [*images, *copied])))
    return Captured(version=version, actions=tuple(out), info={})


def _is_told_by_feed(actions: Sequence[Action], before: Counter[Row], after: Counter[Row]) -> bool:
    """Whether a commit's change files, if it has any, say all that it did: of such a commit readers look at nothing else."""
    told = [action.body for action in actions if action.kind == "cdc"]
    if not told:
        return True
    shown = Counter(before)
    for body in told:
        shown.subtract((row[0], row[1]) for row in body["gone"])
        shown.update((row[0], row[1]) for row in body["came"])
    return {row: number for row, number in shown.items() if number} == dict(+after)


def _moved_to(log: Log, lost: Sequence[Any], copies: Sequence[Mapping[str, Any]]) -> dict[str, BitMap64] | None:
    """Where lost rows are in the copies."""
    gone: Counter[Row] = Counter()
    for change in lost:
        gone.update(_rows_of(_add_of(log, change.before)))
        gone.subtract(_rows_of(change.after) if change.after else [])
    found: dict[str, BitMap64] = {}
    for body in copies:
        for at, row in _live(body):
            if gone[row] > 0:
                gone[row] -= 1
                found.setdefault(body["path"], BitMap64()).add(at)
    return found if not +gone else None


# -------------------------------------------------------------------------------------------------------- the table


def _first(scenario: Scenario) -> str:
    actions = []
    for at, rows in enumerate(scenario.files):
        body = _file(f"f{at}", rows)
        if scenario.marked and scenario.marked[at]:
            body["deletionVector"] = write_inline(BitMap64(scenario.marked[at]))
        actions.append(Action("add", body))
    return _text(-1, "first", actions)


def _file(path: str, rows: Sequence[Row]) -> dict[str, Any]:
    stats = json.dumps({"numRecords": len(rows)})
    return {"path": path, "dataChange": True, "stats": stats, "rows": [list(row) for row in rows]}


def _text(writer: int, id_: str, actions: Sequence[Action]) -> str:
    info = Action("commitInfo", {"txnId": id_, "writer": writer})
    return "\n".join(action.to_json() for action in (info, *actions))


@cache
def _files(log: Log) -> Mapping[str, Mapping[str, Any]]:
    """The table's files, by the protocol's own rule: a file and its vector together are one."""
    live: dict[tuple[str, str], Mapping[str, Any]] = {}
    for text in log:
        commit = parse(text)
        for action in commit:
            if action.kind == "remove":
                if live.pop(_key(action.body), None) is None:
                    raise Wrong("a commit removes what is not in the table")
        for action in commit:
            if action.kind == "add":
                live[_key(action.body)] = action.body
    if len({path for path, _ in live}) != len(live):
        raise Wrong("a file is in the table twice")
    return {path: body for (path, _), body in live.items()}


def _key(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["path"], json.dumps(body.get("deletionVector"))


def _marked(body: Mapping[str, Any]) -> BitMap64:
    descriptor = body.get("deletionVector")
    return read(descriptor) if descriptor else BitMap64()


def _live(body: Mapping[str, Any]) -> list[tuple[int, Row]]:
    marked = _marked(body)
    return [(at, (row[0], row[1])) for at, row in enumerate(body.get("rows", ())) if at not in marked]


def _rows_of(body: Mapping[str, Any]) -> list[Row]:
    return [row for _, row in _live(body)]


def _add_of(log: Log, removed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `add` that a `remove` takes back."""
    for text in log:
        for action in parse(text):
            if action.kind == "add" and _key(action.body) == _key(removed):
                return action.body
    raise Wrong("a removed file was never added")


@cache
def _rows(log: Log) -> Counter[Row]:
    return Counter(row for body in _files(log).values() for row in _rows_of(body))


def _writer_of(text: str) -> int:
    return int(parse(text)[0].body["writer"])


# --------------------------------------------------------------------------------------------------------- the rules


def _check(scenario: Scenario, state: State) -> None:
    """The last commit does what its statement does, and its statement was not there before."""
    if len(state.log) < 2:
        return
    if not scenario.has_vectors and "deletionVector" in state.log[-1]:
        raise Wrong("a table that has no vectors got one")
    writer = _writer_of(state.log[-1])
    before, after = _rows(state.log[:-1]), _rows(state.log)
    expected = scenario.writers[writer].serially(before)
    if after != expected:
        raise Wrong(
            f"{scenario.writers[writer].name} gave {sorted(after.elements())}, not {sorted(expected.elements())}"
        )
    if not _is_told_by_feed(parse(state.log[-1]), before, after):
        raise Wrong(f"the change feed of {scenario.writers[writer].name} shows another change than there was")
    if [_writer_of(text) for text in state.log].count(writer) > 1:
        raise Wrong(f"{scenario.writers[writer].name} was done twice")


def _check_end(scenario: Scenario, state: State, writer: int, end: Published) -> None:
    """What the writer was told is so."""
    change = scenario.writers[writer]
    if end.executions > scenario.executions_max:
        raise Wrong(f"{change.name} was executed {end.executions} times")
    if end.version is not None:
        if len(state.log) <= end.version or _writer_of(state.log[end.version]) != writer:
            raise Wrong(f"{change.name} was told of version {end.version}, which is not its own")
        return
    if any(_writer_of(text) == writer for text in state.log):
        raise Wrong(f"{change.name} was told of no version, and has one")
    if change.unmarks is not None:
        return  # what it does depends on the files
    versions = (_rows(state.log[: at + 1]) for at in range(len(state.log)))
    if all(change.serially(rows) != rows for rows in versions):
        raise Wrong(f"{change.name} was left out, though there was something to do at every version")


def _told(scenario: Scenario, state: State) -> str:
    commits = [scenario.writers[_writer_of(text)].name for text in state.log[1:]]
    rows = [sorted(row for body in _files(state.log[:1]).values() for row in _rows_of(body))]
    return f"table {rows[0]}, log: {', '.join(commits)}; traces {state.traces}"
