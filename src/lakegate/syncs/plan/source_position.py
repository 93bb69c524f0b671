"""Where a source goes on, as text beside a stream's position in the target; and whose text it is.

Rules for editors: a place that another kind of source wrote is refused, never interpreted: what follows it there is unknown.
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


def written(kind: str, facts: Mapping[str, Any]) -> str:
    """The text of a place."""
    return json.dumps({"source": kind, **facts}, separators=(",", ":"))


def read(kind: str, position: int, place: str | None, *, at: str | None = None) -> Mapping[str, Any]:
    """What a source of this kind wrote; empty at the beginning.

    Args:
        kind: Of the source that is read.
        position: The target's.
        place: What stands beside it.
        at: Where this source is, if that is compared.

    Raises:
        CheckpointMismatch: Another source wrote it, or one that writes none.
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
    was = facts.get("at", at)  # earlier versions wrote none
    if at is not None and was != at:
        raise other(f"{kind} at {was}", f"those at {at}", position)
    return facts


def other(found: str, wanted: str, position: int, **facts: object) -> CheckpointMismatch:
    """The error of a position that belongs to another source."""
    return CheckpointMismatch(
        f"the target's position is one of another source: it is of {found}, and this sync reads {wanted}; "
        "nothing was written",
        advice="Give the sync another name; a source that is a table: lakegate sync resync",
        position=position,
        **facts,
    )


def waits(what: str | None, was: Mapping[str, Any], now_ms: int) -> Mapping[str, Any] | None:
    """What a source waits for, and since when, as a part of its place: `since_ms` stays while it is the same.

    Args:
        what: None: it waits for nothing.
        was: The facts of the place before.
        now_ms: The wall clock.
    """
    if what is None:
        return None
    before = was.get("waits") or {}
    return {"for": what, "since_ms": before["since_ms"] if before.get("for") == what else now_ms}


def waiting(place: str | None) -> tuple[str, int] | None:
    """What the source of a place waits for, and since when (wall clock, ms); None: for nothing."""
    try:
        found = json.loads(place or "{}").get("waits")
        return None if found is None else (str(found["for"]), int(found["since_ms"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def tables(place: str | None) -> Collection[str]:
    """The target tables that changes were for up to a place, as far as its source notes them."""
    try:
        return list(json.loads(place or "{}").get("tables") or {})
    except (ValueError, AttributeError):
        return []
