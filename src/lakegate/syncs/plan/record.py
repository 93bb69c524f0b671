"""A record of a source as it stands there, for a comparison that shares nothing with what applies changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record."""

    table: str
    """The target table."""
    op: str
    """c, u, d or t; others are passed over."""
    before: Row | None
    after: Row | None
    tx: str | None = None
