"""Where a source goes on, as text beside a stream's position in the target; and whose text it is.

Rules for editors: a place that another kind of source wrote is refused, never interpreted: what follows it there is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headgate.errors import CheckpointMismatch
from headgate.stored_json import Damaged, parsed

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
        advice="Give the sync another name; a source that is a table: headgate sync resync",
        position=position,
        **facts,
    )
