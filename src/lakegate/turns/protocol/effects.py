"""The effects of the turn protocol: typed requests to the outside that a generator yields.

Production answers them with real stores and tables. The simulator answers them from memory, switches jobs at every effect,
and loses requests or replies. The same code runs in both.
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
    """Reads the current lock record with its version."""


@dataclass(frozen=True, slots=True)
class CompareAndSet(Effect[CasReply]):
    """Replaces the record of `version` by `record`. "unknown": the request or its reply may be lost."""

    record: LockRecord
    version: int


@dataclass(frozen=True, slots=True)
class NoteTurn(Effect[Mark]):
    """Stores the mark of this turn outside the record; answers the mark of the highest epoch that is stored then."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class LiveSessions(Effect[Sessions]):
    """Reads the runs that are alive, and the last mark that was stored outside the record.

    `holder`'s session counts as live while its JVM still runs on this machine.
    """

    holder: Holder | None


@dataclass(frozen=True, slots=True)
class WaitForChange(Effect[Literal["changed", "timeout"]]):
    """Waits until the record may have changed from `version`, or sessions may have died; "timeout" at the caller's deadline.

    Wake-ups may be spurious, and come at least every second: an order rule may open by time alone.
    """

    version: int
    reason: str
    """The reason for waiting, for people who look."""


@dataclass(frozen=True, slots=True)
class WallClock(Effect[int]):
    """Reads milliseconds since 1970; for people, never for safety."""


@dataclass(frozen=True, slots=True)
class TableTokens:
    """The `lakegate/` ids of a table at its head. `version` is -1 where the table does not exist."""

    version: Version
    tokens: Mapping[TokenId, int]


@dataclass(frozen=True, slots=True)
class ReadTokens(Effect[TableTokens]):
    """Reads the table's tokens fresh, never from a snapshot taken earlier."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class CommitEntry(Effect[CasReply]):
    """Makes one empty commit that sets these numbers, at exactly version `after` + 1. "stale": that version is taken."""

    table: TableLocation
    after: Version
    raised: tuple[tuple[TokenId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """The identity of a step in addition to its token; compared when the step turns out to be applied already."""

    name: str
    offsets_sha256: str | None
    """SHA-256 of the bytes of `offsets/<batch>`, hex; None for a turn without source data."""


@dataclass(frozen=True, slots=True)
class FindMark(Effect[StepMark | None]):
    """Finds the mark on the commit that carries `token`; None if the log no longer reaches back to it."""

    table: TableLocation
    token_id: TokenId
    token: Token


@dataclass(frozen=True, slots=True)
class RunStatement(Effect[Literal["done", "conflict"]]):
    """Runs the statement of this step under its token. "done" does not mean that a commit was made."""

    table: TableLocation
    token_id: TokenId
    token: Token
    mark: StepMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt of a run to take a turn."""

    nonce: Nonce
    holder: Holder
    """The holder as the record will name it after the grant; `since_ms` is filled in at the grant."""
    known_epoch: Epoch = Epoch(0)
    """The highest epoch that this run knows from other sources: its own turns, and the ledger."""
