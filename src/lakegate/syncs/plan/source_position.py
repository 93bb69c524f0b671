"""A source's state for resuming (`place`): text that is stored next to a stream's position in the target.

Rules for editors: text that another kind of source wrote is refused, never interpreted: what comes after it is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from lakegate.errors import CheckpointMismatch
from lakegate.stored_json import Damaged, parsed

FILES = "change files"
DEBEZIUM = "debezium"
DELTA = "delta"
POSTGRES = "postgres"


def written(kind: str, facts: Mapping[str, Any]) -> str:
    """Returns the text of the state."""
    return json.dumps({"source": kind, **facts}, separators=(",", ":"))


def read(kind: str, position: int, place: str | None, *, at: str | None = None) -> Mapping[str, Any]:
    """Returns the facts that a source of this kind wrote; empty at the beginning.

    Args:
        kind: The kind of the source that is read.
        position: The target's position.
        place: The text stored next to the position.
        at: The address of this source, if it is compared.

    Raises:
        CheckpointMismatch: Another source wrote the text, or the position belongs to a source that writes no text.
    """
    facts: Mapping[str, Any] = {}
    if place is not None:
        try:
            facts = parsed(place)
        except Damaged:
            facts = {"source": "unknown"}
    found = facts.get("source", FILES) if place is not None or position >= 0 else kind
    if found != kind:
        raise other(found, kind, position)
    was = facts.get("at", at)  # earlier versions did not write `at`
    if at is not None and was != at:
        raise other(f"{kind} at {was}", f"those at {at}", position)
    return facts


def other(found: str, wanted: str, position: int, **facts: object) -> CheckpointMismatch:
    """Returns the error for a position that belongs to another source."""
    return CheckpointMismatch(
        f"the target's position is one of another source: it is of {found}, and this sync reads {wanted}; "
        "nothing was written",
        advice="Give the sync another name; a source that is a table or PostgreSQL: lakegate sync resync",
        position=position,
        **facts,
    )


def waits(
    what: str | None, was: Mapping[str, Any], now_ms: int, committed_at_ms: int | None = None
) -> Mapping[str, Any] | None:
    """Returns what a source waits for, and since when, as a part of its text. `since_ms` is kept while `what` is the same.

    Args:
        what: None if the source waits for nothing.
        was: The facts of the previous text.
        now_ms: The wall clock.
        committed_at_ms: When the oldest change that waits was committed, if that is known.
    """
    if what is None:
        return None
    before = was.get("waits") or {}
    found = {"for": what, "since_ms": before["since_ms"] if before.get("for") == what else now_ms}
    return found if committed_at_ms is None else {**found, "committed_at_ms": committed_at_ms}


def waiting(place: str | None) -> tuple[str, int] | None:
    """Returns what the source waits for, and since when (wall clock, ms); None if it waits for nothing."""
    try:
        found = json.loads(place or "{}").get("waits")
        return None if found is None else (str(found["for"]), int(found["since_ms"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def waiting_since_commit(place: str | None) -> int | None:
    """Returns when the oldest change that waits was committed at the source (ms); None if that is unknown."""
    try:
        return int(json.loads(place or "{}")["waits"]["committed_at_ms"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def tables(place: str | None) -> Collection[str]:
    """Returns the target tables of all changes so far, as far as the source records them."""
    try:
        return list(json.loads(place or "{}").get("tables") or {})
    except (ValueError, AttributeError):
        return []
