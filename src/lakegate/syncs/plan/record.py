"""A record as it is in the source, for a comparison that shares no code with applying changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a source."""

    table: str
    """The target table."""
    op: str
    """c, u, d or t; other records are skipped."""
    before: Row | None
    after: Row | None
    tx: str | None = None
