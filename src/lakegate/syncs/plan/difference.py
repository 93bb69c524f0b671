"""What a comparison of a target with its source says of one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lakegate.syncs.plan.net_changes import Key

Kind = Literal["missing", "extra", "different", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row of the target that is not as at the source. Values are never said."""

    table: str
    key: Key
    kind: Kind
    """Missing in the target, not at the source, not the same, or not to be had in the target's types."""
    columns: tuple[str, ...] = ()
    """Those that differ."""
    is_set_apart: bool = False
    """It is known: a row of this key waits among the sync's dead letters."""
