"""What the turn protocol asks of the world: typed questions that a generator yields.

Production answers them with real stores and tables; the simulator answers them from memory, switches jobs at every one of
them, and loses requests or replies. Same code, explored exhaustively.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lakegate.effects import Effect
from lakegate.ids import Epoch, Nonce, TableLocation, TokenId, Version
from lakegate.turns.protocol.fencing import Token
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Mark
from lakegate.turns.protocol.transitions import Sessions

CasReply = Literal["done", "stale", "unknown"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A lock record as read. `version` identifies it for compare-and-set; 0 where there is none yet."""

    record: LockRecord | None
    version: int


@dataclass(frozen=True, slots=True)
class ReadRecord(Effect[Stored]):
    """The lock record as it is now, with its version."""


@dataclass(frozen=True, slots=True)
class CompareAndSet(Effect[CasReply]):
    """Put `record` in place of `version`. "unknown": the request or its reply may be lost."""

    record: LockRecord
    version: int


@dataclass(frozen=True, slots=True)
class NoteTurn(Effect[Mark]):
    """Note, apart from the record, that this turn begins; the mark that stands afterwards: the one of the highest epoch."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class LiveSessions(Effect[Sessions]):
    """Who is alive, and the turn that was noted last apart from the record.

    `holder`'s session counts as live while a JVM that it left behind still runs on this machine.
    """

    holder: Holder | None


@dataclass(frozen=True, slots=True)
class WaitForChange(Effect[Literal["changed", "timeout"]]):
    """Wait until the record may differ from `version`, or sessions may have died; "timeout" at the caller's deadline.

    Wake-ups may be spurious, and come at least every second: a rule may open by time alone.
    """

    version: int
    reason: str
    """Why we wait, for those who look."""


@dataclass(frozen=True, slots=True)
class WallClock(Effect[int]):
    """Milliseconds since 1970; for people, never for safety."""


@dataclass(frozen=True, slots=True)
class TableTokens:
    """The `lakegate/` ids of a table at its head. `version` is -1 where the table does not exist."""

    version: Version
    tokens: Mapping[TokenId, int]


@dataclass(frozen=True, slots=True)
class ReadTokens(Effect[TableTokens]):
    """A fresh reading of the table's tokens: never from a snapshot taken earlier."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class CommitEntry(Effect[CasReply]):
    """One empty commit that sets these numbers, at exactly version `after` + 1. "stale": that version is taken."""

    table: TableLocation
    after: Version
    raised: tuple[tuple[TokenId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """What identifies a step beside its token; compared when the step turns out to be applied already."""

    name: str
    offsets_sha256: str | None
    """SHA-256 of the bytes of `offsets/<batch>`, hex; None for a turn without source data."""


@dataclass(frozen=True, slots=True)
class FindMark(Effect[StepMark | None]):
    """The mark on the commit that carries `token`; None if the log no longer reaches back to it."""

    table: TableLocation
    token_id: TokenId
    token: Token


@dataclass(frozen=True, slots=True)
class Execute(Effect[Literal["done", "conflict"]]):
    """Run the statement of this step under its token. "done" says nothing about whether a commit was made."""

    table: TableLocation
    token_id: TokenId
    token: Token
    mark: StepMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Names one attempt of one run to take a turn."""

    nonce: Nonce
    holder: Holder
    """As it will stand in the record once granted; `since_ms` is filled in at the grant."""
    known_epoch: Epoch = Epoch(0)
    """The highest epoch that this run knows from elsewhere: its own turns, and the ledger."""
