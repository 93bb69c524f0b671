"""The publish of several tables, explored; and each of its rules, left out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import publishes
from harness.publishes import PutPlain, Scenario, explore
from harness.simulator import planted
from lakegate.delta import publish_protocol as protocol
from lakegate.delta.publish_protocol import (
    DropIntent,
    DropNote,
    Follow,
    Head,
    Intent,
    ListNotes,
    PutData,
    PutIntent,
    PutMarker,
    ReadHead,
    WriteNote,
)
from lakegate.effects import Effect, Steps, perform
from lakegate.ids import TableLocation, Version

SCENARIOS = {
    "alone": Scenario(publishers=("ab",), crashes=1, losses=2),
    "three tables": Scenario(publishers=("abc",), crashes=1, losses=1),
    "a writer on the first table": Scenario(publishers=("ab",), writers=("a",), crashes=1),
    "a writer on the last table": Scenario(publishers=("ab",), writers=("b",), crashes=1),
    "a writer, and lost answers": Scenario(publishers=("ab",), writers=("b",), losses=1),
    "a writer without a gate": Scenario(publishers=("ab",), writers=("b",), outside=("b",)),
    "a reader": Scenario(publishers=("ab",), readers=("ab",)),
    "two publishers": Scenario(publishers=("ab", "ab")),
    "two publishers that share a table": Scenario(publishers=("ab", "bc"), crashes=1),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_publish_is_made_on_all_of_its_tables_or_on_none(name: str) -> None:
    """In every run."""
    states, violation = explore(SCENARIOS[name])
    assert violation == ""
    assert states > 20


real_perform = perform


def without(kind: type[Effect[Any]], answer: Callable[[Any], Any]) -> Callable[[Effect[Any]], Steps[Any]]:
    """Returns a `perform` that gives this answer to effects of a kind, and leaves them out."""

    def perform(effect: Effect[Any]) -> Steps[Any]:
        if isinstance(effect, kind):
            return answer(effect)
        return (yield from real_perform(effect))

    return perform


def first_answer_counts(publish_id: str, markers: protocol.Markers) -> Steps[Intent]:
    """The publisher takes its own put for the decision."""
    yield from perform(PutIntent(publish_id, markers))
    return Intent(markers)


def finish_once(publish_id: str, intent: Intent) -> Steps[None]:
    """The commits are made without a look whether another process has made them."""
    for table, _ in intent.markers:
        head = yield from perform(ReadHead(table))
        yield from perform(PutData(publish_id, table, Version(head.version + 1)))
        yield from perform(DropNote(publish_id, table))


def notes_dropped_first(publish_id: str, intent: Intent) -> Steps[None]:
    """Writers go on before the commits are made."""
    for table, marker in intent.markers:
        yield from perform(DropNote(publish_id, table))
        while not (head := (yield from perform(ReadHead(table)))).has_data_of(marker):
            yield from perform(PutData(publish_id, table, Version(head.version + 1)))


def marked_over(publish_id: str, table: TableLocation) -> Steps[Version]:
    """An open publish of another publisher is not waited for."""
    while True:
        head = yield from perform(ReadHead(table))
        if head.is_open and head.publish_id == publish_id:
            assert head.marker is not None
            return head.marker
        yield from perform(Follow(table, head.version))
        if (yield from perform(PutMarker(table, Version(head.version + 1)))):
            return Version(head.version + 1)


def pinned_at_once(tables: Any) -> Steps[dict[TableLocation, Version]]:
    """The heads are read one after the other, once."""
    heads = yield from protocol._heads(tables)
    return {table: head.version for table, head in heads.items()}


real_resolve = protocol.resolve


def resolve_drops_the_intent(publish_id: str, table: TableLocation) -> Steps[None]:
    """A process that finishes a publish removes its intent."""
    yield from real_resolve(publish_id, table)
    yield from perform(DropIntent(publish_id))


def checked_too_early(table: TableLocation) -> Steps[None]:
    """The gate looks for notes before the writer's snapshot, not after."""
    while True:
        notes = yield from perform(ListNotes(table))
        for publish_id in sorted(notes):
            yield from protocol.resolve(publish_id, table)
        head = yield from perform(ReadHead(table))
        if not notes and (yield from perform(PutPlain(table, Version(head.version + 1)))):
            return


FOUND_IN = {
    "an open publish is ignored": "two publishers",
    "a later marker does not count": "two publishers",
    "the intent goes too early": "a writer on the first table",
    "the gate looks too early": "a writer on the first table",
    "heads are read once": "a reader",
}
"""The scenario in which a bug shows; `alone` by default."""
BUGS: dict[str, tuple[Any, str, Any]] = {
    "no marker": (protocol, "perform", without(PutMarker, lambda asked: True)),
    "no note": (protocol, "perform", without(WriteNote, lambda asked: None)),
    "no look at what was decided": (protocol, "_decide", first_answer_counts),
    "no look whether the commit was made": (protocol, "_finish", finish_once),
    "the notes go first": (protocol, "_finish", notes_dropped_first),
    "an open publish is ignored": (protocol, "_mark", marked_over),
    "the intent goes too early": (protocol, "resolve", resolve_drops_the_intent),
    "heads are read once": (protocol, "pin", pinned_at_once),
    "the gate looks too early": (publishes, "_write", checked_too_early),
    "a later marker does not count": (
        Head,
        "has_data_of",
        lambda head, marker: head.marker == marker and not head.is_open,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_rule_is_needed(bug: str) -> None:
    """Without it some run breaks a promise, or no run comes to its end."""
    with planted(*BUGS[bug]):
        _, violation = explore(SCENARIOS[FOUND_IN.get(bug, "alone")])
    assert violation
