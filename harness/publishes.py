"""Explores the publish of several tables: every run of the real protocol by publishers, writers and readers, with faults.

A publish must be in all of its tables or in none once somebody has looked, at most once, and as was reported to its
publisher. No writer with a gate may commit between a marker and the commit that follows it. Pinned versions have each
publish in all of their tables or in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lakegate.delta import publish_protocol as protocol
from lakegate.delta.publish_protocol import (
    AwaitDecision,
    DropIntent,
    DropNote,
    Follow,
    Head,
    Intent,
    ListNotes,
    Markers,
    PutData,
    PutIntent,
    PutMarker,
    ReadHead,
    ReadIntent,
    WriteNote,
)
from lakegate.effects import Effect, Steps, perform
from lakegate.ids import TableLocation, Version

Entry = tuple[str, str]
"""A commit: `marker` or `data` and the id of the publish, or `plain` and the writer."""


@dataclass(frozen=True, slots=True)
class PutPlain(Effect[bool]):
    """Commits a writer's own rows at exactly this version."""

    table: TableLocation
    version: Version


@dataclass(frozen=True, slots=True)
class PutOutside(Effect[None]):
    """Commits the rows of a writer without a gate, at the head."""

    table: TableLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A small world: what each actor does, on tables that are named by letters."""

    publishers: tuple[str, ...] = ()
    """The tables of each publisher, such as `ab`."""
    writers: tuple[str, ...] = ()
    """The table of each writer with a gate."""
    outside: tuple[str, ...] = ()
    """The table of each writer without a gate."""
    readers: tuple[str, ...] = ()
    """The tables whose versions each reader pins."""
    crashes: int = 0
    losses: int = 0
    """Total of lost requests, lost answers, late requests, and statements that cannot follow another commit."""

    @property
    def actors(self) -> tuple[tuple[str, str], ...]:
        """Kind and tables of each actor."""
        kinds = (
            ("publisher", self.publishers),
            ("writer", self.writers),
            ("outside", self.outside),
            ("reader", self.readers),
        )
        return tuple((kind, tables) for kind, each in kinds for tables in each)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables."""
        return tuple(sorted({table for _, tables in self.actors for table in tables}))


@dataclass(frozen=True, slots=True)
class State:
    """All that differs between runs."""

    logs: tuple[tuple[Entry, ...], ...]
    traces: tuple[tuple[Any, ...], ...]
    """The answers that each actor got, in order."""
    notes: frozenset[tuple[str, str]] = frozenset()
    """Publish and table."""
    intents: tuple[tuple[str, Markers], ...] = ()
    crashed: frozenset[int] = frozenset()
    losses: int = 0
    late: tuple[tuple[int, Effect[Any]], ...] = ()
    """Requests that are still in flight."""


class Wrong(Exception):
    """A rule is broken."""


STATES_MAX = 200_000
STEPS_MAX = 100
"""More than a process needs to end a publish."""


def explore(scenario: Scenario) -> tuple[int, str]:
    """Visits every reachable state; returns their number, and the first violation or an empty text."""
    _advance.cache_clear()
    first = State(logs=((),) * len(scenario.tables), traces=((),) * len(scenario.actors))
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        try:
            nexts = list(_nexts(scenario, state))
            _check(scenario, state)
            if not any(
                actor not in state.crashed for actor in range(len(state.traces)) if _is_at_work(scenario, state, actor)
            ):
                _check_end(scenario, state)
        except Wrong as wrong:
            return len(seen), f"{wrong}; {state}"
        for reached in nexts:
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
        if len(seen) > STATES_MAX:
            return len(seen), "runs do not come to an end"
    return len(seen), ""


def _is_at_work(scenario: Scenario, state: State, actor: int) -> bool:
    return isinstance(_advance(scenario, actor, state.traces[actor]), Effect)


def _nexts(scenario: Scenario, state: State) -> Iterator[State]:
    for actor in range(len(state.traces)):
        if actor in state.crashed:
            continue
        step = _advance(scenario, actor, state.traces[actor])
        if not isinstance(step, Effect):
            continue
        answer, after = _done(scenario, state, actor, step)
        yield _answered(after, actor, answer)
        if len(state.crashed) < scenario.crashes:
            yield replace(state, crashed=state.crashed | {actor})
        if state.losses == scenario.losses:
            continue
        spent = replace(state, losses=state.losses + 1)
        if isinstance(step, Follow):
            yield _answered(spent, actor, "behind")
        if isinstance(step, PutMarker | PutIntent | PutData | PutPlain):
            nothing = False if isinstance(step, PutMarker | PutPlain) else None
            yield _answered(spent, actor, nothing)  # the request was lost
            yield _answered(replace(after, losses=spent.losses), actor, nothing)  # its answer was lost
            yield _answered(replace(spent, late=(*state.late, (actor, step))), actor, nothing)
    for at, (actor, step) in enumerate(state.late):
        _, after = _done(scenario, state, actor, step)
        yield replace(after, late=state.late[:at] + state.late[at + 1 :])


def _answered(state: State, actor: int, answer: Any) -> State:
    traces = (*state.traces[:actor], (*state.traces[actor], answer), *state.traces[actor + 1 :])
    return replace(state, traces=traces)


def _done(scenario: Scenario, state: State, actor: int, step: Effect[Any]) -> tuple[Any, State]:
    """Returns the answer to an effect, and the state after it."""
    intents = dict(state.intents)
    match step:
        case ReadHead(table=table):
            return _head(_log(scenario, state, table)), state
        case ListNotes(table=table):
            return frozenset(id_ for id_, where in state.notes if where == table), state
        case WriteNote(table=table):
            return None, replace(state, notes=state.notes | {(str(actor), table)})
        case DropNote(publish_id=id_, table=table):
            return None, replace(state, notes=state.notes - {(id_, table)})
        case ReadIntent(publish_id=id_):
            return Intent(intents[id_]) if id_ in intents else None, state
        case PutIntent(publish_id=id_, markers=markers):
            return None, replace(state, intents=tuple(sorted({id_: markers, **intents}.items())))
        case DropIntent(publish_id=id_):
            return None, replace(state, intents=tuple(each for each in state.intents if each[0] != id_))
        case Follow():
            return "followed", state
        case AwaitDecision():
            return True, state  # the other answer is to look again, later
        case PutMarker(table=table, version=version):
            return _put(scenario, state, table, version, ("marker", str(actor)))
        case PutData(publish_id=id_, table=table, version=version):
            return None, _put(scenario, state, table, version, ("data", id_))[1]
        case PutPlain(table=table, version=version):
            return _put(scenario, state, table, version, ("plain", str(actor)))
        case PutOutside(table=table):
            return _put(scenario, state, table, Version(len(_log(scenario, state, table))), ("outside", str(actor)))
    raise AssertionError(f"not answered: {step}")


def _log(scenario: Scenario, state: State, table: str) -> tuple[Entry, ...]:
    return state.logs[scenario.tables.index(table)]


def _put(scenario: Scenario, state: State, table: str, version: int, entry: Entry) -> tuple[bool, State]:
    place = scenario.tables.index(table)
    log = state.logs[place]
    if len(log) != version:
        return False, state
    return True, replace(state, logs=(*state.logs[:place], (*log, entry), *state.logs[place + 1 :]))


@cache
def _head(log: tuple[Entry, ...]) -> Head:
    version = Version(len(log) - 1)
    for at in range(len(log) - 1, -1, -1):
        kind, id_ = log[at]
        if kind == "marker":
            is_open = ("data", id_) not in log[at:]
            return Head(version, Version(at), id_ if is_open else None, is_open)
    return Head(version)


@cache
def _advance(scenario: Scenario, actor: int, trace: tuple[Any, ...]) -> Any:
    """Runs an actor with these answers; returns its next effect, or its end."""
    kind, tables = scenario.actors[actor]
    named = [TableLocation(table) for table in tables]
    steps: Steps[Any]
    match kind:
        case "publisher":
            steps = protocol.publish(str(actor), named)
        case "writer":
            steps = _write(named[0])
        case "outside":
            steps = perform(PutOutside(named[0]))
        case _:
            steps = protocol.pin(named)
    answers = iter(trace)
    answer: Any = None
    try:
        while True:
            effect = steps.send(answer)
            try:
                answer = next(answers)
            except StopIteration:
                return effect
    except StopIteration as end:
        return end.value


def _write(table: TableLocation) -> Steps[None]:
    """Commits as a statement with a gate does: it resolves the publishes whose notes it finds after it has read the head."""
    while True:
        head = yield from perform(ReadHead(table))
        notes = yield from perform(ListNotes(table))
        for publish_id in sorted(notes):
            yield from protocol.resolve(publish_id, table)
        if not notes and (yield from perform(PutPlain(table, Version(head.version + 1)))):
            return


# --------------------------------------------------------------------------------------------------------- the rules


def _check(scenario: Scenario, state: State) -> None:
    """Checks the logs, and the ends reported so far."""
    for table in scenario.tables:
        log = _log(scenario, state, table)
        data = [id_ for kind, id_ in log if kind == "data"]
        if len(data) != len(set(data)):
            raise Wrong(f"a publish is in table {table} twice")
        for at, (kind, id_) in enumerate(log):
            if kind == "data":
                marked = max((place for place in range(at) if log[place] == ("marker", id_)), default=None)
                if marked is None:
                    raise Wrong(f"a publish is in table {table} without its marker")
                if any(entry[0] in ("plain", "data") for entry in log[marked + 1 : at]):
                    raise Wrong(f"a commit came between a marker in table {table} and the commit that follows it")
    for actor, (kind, tables) in enumerate(scenario.actors):
        end = _advance(scenario, actor, state.traces[actor])
        if isinstance(end, Effect):
            continue
        if kind == "publisher":
            found = {("data", str(actor)) in _log(scenario, state, table) for table in tables}
            if found != {end == "published"}:
                raise Wrong(f"publisher {actor} got the answer: {end}")
        if kind == "reader":
            _check_pins(scenario, state, end)


def _check_pins(scenario: Scenario, state: State, pins: Mapping[TableLocation, Version]) -> None:
    for actor, (kind, tables) in enumerate(scenario.actors):
        if kind == "publisher":
            seen = {
                ("data", str(actor)) in _log(scenario, state, table)[: pins[TableLocation(table)] + 1]
                for table in tables
                if TableLocation(table) in pins
            }
            if len(seen) > 1:
                raise Wrong(f"a reader pinned half of publish {actor}: {pins}")


def _check_end(scenario: Scenario, state: State) -> None:
    """Lets a new process look at every table, then checks that each publish is in all of its tables or in none."""
    for table in scenario.tables:
        while ids := sorted(id_ for id_, where in state.notes if where == table):
            steps, answer = protocol.resolve(ids[0], TableLocation(table)), None
            with suppress(StopIteration):
                for _ in range(STEPS_MAX):
                    answer, state = _done(scenario, state, -1, steps.send(answer))
                raise Wrong(f"publish {ids[0]} does not come to an end")
    for late in state.late:
        _, state = _done(scenario, state, *late)
    _check(scenario, state)
    for actor, (kind, tables) in enumerate(scenario.actors):
        if kind == "publisher" and len({("data", str(actor)) in _log(scenario, state, table) for table in tables}) > 1:
            raise Wrong(f"publish {actor} is in some of its tables")
