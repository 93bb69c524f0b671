"""All seams on one page: what the rooms below the composition root need from the outside, as Protocols with contracts.

Each port has a small fake in `harness/` and one conformance suite that every adapter and the fake pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lakegate.ids import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteToken:
    """What a statement has to put into its Delta commit: `txn.appId`, `txn.version`, and `userMetadata` (JSON)."""

    token_id: TokenId
    number: int
    user_metadata: str


class StatementConflict(Exception):
    """A statement lost to the commit of a writer that takes no turns; it may be run again from the token read on."""


class Clock(Protocol):
    """Time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and that go on while the machine sleeps, for deadlines."""
        ...


class Randomness(Protocol):
    """Chance and fresh ids."""

    def uuid(self) -> str:
        """A UUID never drawn before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """Something that was set aside."""

    name: str
    """Of the stream or the sync."""
    kind: str
    """`record` of a source, `request` of a mutate or erase stream, `row` of a sync."""
    id: str
    at_ms: int | None
    """When it was set aside, or first seen; None: not known."""
    reason: str
    position: str | None
    """Where it came from."""
    values: str | None = None
    """As JSON, or as text that does not parse; None where they were not asked for."""
