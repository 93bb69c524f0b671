"""The result of comparing one row of a target with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lakegate.syncs.plan.net_changes import Key

Kind = Literal["missing", "extra", "different", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that differs between target and source. Values are never reported."""

    table: str
    key: Key
    kind: Kind
    """Missing in the target; not at the source; different; or not representable in the target's types."""
    columns: tuple[str, ...] = ()
    """The columns that differ."""
    is_set_apart: bool = False
    """Whether the difference is known: a row with this key is quarantined."""
