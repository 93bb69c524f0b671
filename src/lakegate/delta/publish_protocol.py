"""Decides how the commits of several tables become one publish: all of them are made, or none.

The publisher writes a note in the folder of each table, so that writers with a gate wait, and then commits a marker to each
table, in the order of their paths. A marker changes no row. A commit that was computed before the marker loses its version to
the marker, and a commit that is computed after the marker finds the note. Then the publisher writes the intent, put if absent:
the intent has the computed commits and is the atomic point. A process that finds a note finishes the publish if there is an
intent; if there is none and the publisher is dead, the process puts an abort in the intent's place.

Source: docs/explanation/publish.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lakegate.effects import Effect, Steps, perform
from lakegate.ids import TableLocation, Version


@dataclass(frozen=True, slots=True)
class Head:
    """A table's newest version, and its last marker."""

    version: Version
    marker: Version | None = None
    """Version of the last marker; None if the table has none."""
    publish_id: str | None = None
    """The publish to which an open marker belongs; None if the log no longer has the marker."""
    is_open: bool = False
    """True if no commit of its publish follows the marker. The publish may have been aborted."""

    def has_data_of(self, marker: Version) -> bool:
        """Returns True if the commit of a decided publish with this marker was made: later markers wait for it."""
        return self.marker is not None and (self.marker > marker or (self.marker == marker and not self.is_open))


Markers = tuple[tuple[TableLocation, Version], ...]
"""Each table of a publish, and the version of its marker."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The decision about a publish."""

    markers: Markers
    """Empty if the publish was aborted."""

    @property
    def is_aborted(self) -> bool:
        """True if none of its commits may be made."""
        return not self.markers


Outcome = Literal["published", "aborted", "behind", "fenced"]
"""How `publish` ends. `behind`: a statement has to be executed again. `fenced`: a later turn has written a table."""


@dataclass(frozen=True, slots=True)
class ReadHead(Effect[Head]):
    """Reads a table's newest version."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class ListNotes(Effect[frozenset[str]]):
    """Lists the publishes that have a note in a table's folder."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class WriteNote(Effect[None]):
    """Writes the publish's own note in a table's folder."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class DropNote(Effect[None]):
    """Removes the note of a publish from a table's folder."""

    publish_id: str
    table: TableLocation


@dataclass(frozen=True, slots=True)
class Follow(Effect[Literal["followed", "behind", "fenced"]]):
    """Rebases the publish's statement on a version of its table. `behind`: it has to be executed again."""

    table: TableLocation
    version: Version


@dataclass(frozen=True, slots=True)
class PutMarker(Effect[bool]):
    """Commits the marker at exactly this version; False: another commit has it, or the answer was lost."""

    table: TableLocation
    version: Version


@dataclass(frozen=True, slots=True)
class PutIntent(Effect[None]):
    """Writes the intent, or the abort if there are no markers, unless there is an intent or an abort. The answer may be lost."""

    publish_id: str
    markers: Markers = ()


@dataclass(frozen=True, slots=True)
class ReadIntent(Effect[Intent | None]):
    """Reads the decision about a publish; None if there is none."""

    publish_id: str


@dataclass(frozen=True, slots=True)
class DropIntent(Effect[None]):
    """Removes the intent of the publish, which is done on all tables."""

    publish_id: str


@dataclass(frozen=True, slots=True)
class AwaitDecision(Effect[bool]):
    """Waits for a moment; True if the publisher counts as dead."""

    publish_id: str


@dataclass(frozen=True, slots=True)
class PutData(Effect[None]):
    """Commits the publish's computed commit of a table at exactly this version, if it is free. The answer may be lost."""

    publish_id: str
    table: TableLocation
    version: Version


def publish(publish_id: str, tables: Sequence[TableLocation]) -> Steps[Outcome]:
    """Makes the commits of staged statements, one on each table, together or not at all.

    Args:
        publish_id: A random id.
        tables: In the order in which all publishes mark them.
    """
    markers: list[tuple[TableLocation, Version]] = []
    for table in tables:
        yield from perform(WriteNote(table))
    for table in tables:
        marked = yield from _mark(publish_id, table)
        if isinstance(marked, str):
            yield from _drop_notes(publish_id, tables)
            return marked
        markers.append((table, marked))
    intent = yield from _decide(publish_id, tuple(markers))
    if intent.is_aborted:
        yield from _drop_notes(publish_id, tables)
        return "aborted"
    yield from _finish(publish_id, intent)
    yield from perform(DropIntent(publish_id))
    return "published"


def _mark(publish_id: str, table: TableLocation) -> Steps[Version | Literal["behind", "fenced"]]:
    while True:
        head = yield from perform(ReadHead(table))
        if head.is_open and head.publish_id == publish_id:
            assert head.marker is not None, "an open publish has a marker"
            return head.marker  # its answer was lost
        if head.is_open:
            notes = yield from perform(ListNotes(table))
            # If the log no longer has the marker, any other note may be that of its publish.
            others = notes - {publish_id} if head.publish_id is None else notes & {head.publish_id}
            if others:
                yield from resolve(min(others), table)
                continue
        followed = yield from perform(Follow(table, head.version))
        if followed != "followed":
            return followed
        version = Version(head.version + 1)
        if (yield from perform(PutMarker(table, version))):
            return version


def _drop_notes(publish_id: str, tables: Sequence[TableLocation]) -> Steps[None]:
    for table in tables:
        yield from perform(DropNote(publish_id, table))


def _decide(publish_id: str, markers: Markers) -> Steps[Intent]:
    """Writes the intent, or the abort, and returns what stands there then: the first of both."""
    while True:
        yield from perform(PutIntent(publish_id, markers))
        intent = yield from perform(ReadIntent(publish_id))
        if intent is not None:
            return intent


def resolve(publish_id: str, table: TableLocation) -> Steps[None]:
    """Ends a publish whose note stands in the folder of a table, if it is decided or its publisher is dead.

    The note is still there afterwards if the publisher may still decide.
    """
    intent = yield from perform(ReadIntent(publish_id))
    if intent is None:
        if not (yield from perform(AwaitDecision(publish_id))):
            return
        intent = yield from _decide(publish_id, ())
    if intent.is_aborted:
        yield from perform(DropNote(publish_id, table))
    yield from _finish(publish_id, intent)


def _finish(publish_id: str, intent: Intent) -> Steps[None]:
    """Makes the commits of a decided publish that no other process has made. Its notes stay until all are made."""
    for table, marker in intent.markers:
        while not (head := (yield from perform(ReadHead(table)))).has_data_of(marker):
            yield from perform(PutData(publish_id, table, Version(head.version + 1)))
    yield from _drop_notes(publish_id, [table for table, _ in intent.markers])


def pin(tables: Sequence[TableLocation]) -> Steps[dict[TableLocation, Version]]:
    """Returns a version of each table such that every publish is in all of its tables' versions, or in none."""
    while True:
        heads = yield from _heads(tables)
        is_settled = True
        for table in tables:
            for publish_id in sorted((yield from perform(ListNotes(table)))):
                intent = yield from perform(ReadIntent(publish_id))
                if intent is not None and not intent.is_aborted:
                    is_settled = False
                    yield from resolve(publish_id, table)
        # Between both reads all tables were at these heads at once, as far as publishes are concerned.
        if is_settled and _publishes(heads) == _publishes((yield from _heads(tables))):
            return {table: head.version for table, head in heads.items()}


def _heads(tables: Sequence[TableLocation]) -> Steps[dict[TableLocation, Head]]:
    heads = {}
    for table in tables:
        heads[table] = yield from perform(ReadHead(table))
    return heads


def _publishes(heads: Mapping[TableLocation, Head]) -> list[tuple[Version | None, bool]]:
    return [(head.marker, head.is_open) for head in heads.values()]
