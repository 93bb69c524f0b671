"""The shared ports: the interfaces that the code below the composition root needs from outside, with their contracts.

Each port has a small fake in `harness/` and one conformance suite that every adapter and the fake pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lakegate.ids import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteToken:
    """The values that a statement must put into its Delta commit: `txn.appId`, `txn.version`, and `userMetadata` (JSON)."""

    token_id: TokenId
    number: int
    user_metadata: str


class StatementConflict(Exception):
    """A statement conflicted with a writer that takes no turns; it may be retried, starting with a read of the token."""


class Clock(Protocol):
    """Time."""

    def wall_ms(self) -> int:
        """Returns milliseconds since 1970, for people."""
        ...

    def monotonic_s(self) -> float:
        """Returns seconds that never go back and that go on while the machine sleeps, for deadlines."""
        ...


class Randomness(Protocol):
    """Random and new ids."""

    def uuid(self) -> str:
        """Returns a UUID never drawn before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record, request or row that was set aside."""

    name: str
    """The name of the stream or the sync."""
    kind: str
    """`record` of a source, `request` of a mutate or erase stream, `row` of a sync."""
    id: str
    at_ms: int | None
    """The time when it was set aside, or first seen; None: not known."""
    reason: str
    position: str | None
    """Its origin."""
    values: str | None = None
    """The content as JSON, or as text that does not parse; None where it was not requested."""
