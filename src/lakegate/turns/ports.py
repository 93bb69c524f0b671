"""Describes what turns need from outside: a store of lock records, a gate for writes, and the logs of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from lakegate.ids import JobName, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol.effects import CasReply, StepMark, Stored, TableTokens
from lakegate.turns.protocol.fencing import Token
from lakegate.turns.protocol.lock_record import LockRecord, Mark
from lakegate.turns.protocol.transitions import Sessions

SessionState = Literal["connected", "suspended", "lost"]
"""What a store knows of a session without asking: "suspended" while it cannot be told whether it is alive, "lost" for good."""


class StoreSession(Protocol):
    """One run of one job, as the store sees it. Alive until closed, until the process dies, or until the lease ends."""

    @property
    def id(self) -> SessionId:
        """Names this run; never used twice."""
        ...

    def describe_jvm(self, pid: int, start: int) -> None:
        """Tells which JVM commits for this run, so that a successor can wait for its end."""
        ...

    def heartbeat(self) -> bool:
        """Renews the lease. True if the store answered that the session is alive; False if it says it is gone.

        Raises:
            Unavailable: no answer; the lease may or may not have been renewed.
        """
        ...

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Tells the listener of every change of state as soon as it is known, from any thread, and of one before the call.

        The listener must not block. A store that keeps no connection never calls it.
        """
        ...

    def close(self) -> None:
        """Ends the session; idempotent. Its tickets count for nothing from here on.

        Where the store does not answer, they count for nothing after a lease.
        """
        ...


class TurnStore(Protocol):
    """Keeps lock records and knows who is alive. Linearizable per lock; blocking; safe to use from several threads.

    Every method raises `Unavailable` when the store does not answer, `compare_and_set` only where it is known that it changed
    nothing, and `InvalidRequest` for a
    record of a newer format, or where it is not allowed to do what is asked. Each has one deadline for the whole call.
    """

    @property
    def lease_s(self) -> float | None:
        """After how long without a heartbeat others may count a session as dead; None if only its death ends it."""
        ...

    def coordinator_id(self) -> str:
        """A UUID made together with the store's data; another one means that the data were lost or exchanged."""
        ...

    def open_session(self, lock: str, job: JobName) -> StoreSession:
        """A new session for a run of `job`.

        Raises:
            TurnNotGranted: another run of this job is alive; the message names it.
        """
        ...

    def read(self, lock: str) -> Stored:
        """The record as last written, and its version; `Stored(None, 0)` if there is none."""
        ...

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        """Puts `record` in place if the version is still `version`, and counts that up by one.

        "unknown" if the outcome cannot be told.

        Raises:
            StoreUnavailable: nothing was changed, as on a full disk.
        """
        ...

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        """Notes a turn that begins, apart from the record, unless one with as high an epoch is noted; what stands then.

        Kept where a copy of the record that is put back does not reach it. Idempotent.
        """
        ...

    def live_sessions(self, lock: str) -> Sessions:
        """Who is alive now, and what was noted by `note_turn`.

        May still list a session that has just died; never omits one that its owner may trust, nor a mark that was returned.
        """
        ...

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        """Returns when the record may differ from `version`, and after `timeout_s` at the latest. May return early.

        Who only waits for its turn names the job, and need not be woken by changes that leave its ticket waiting.
        """
        ...

    def locks(self) -> tuple[str, ...]:
        """Names of the locks that have a record."""
        ...

    def close(self) -> None:
        """Gives up connections; sessions opened here end."""
        ...


class WriteGate(Protocol):
    """Refuses commits outside of a turn, by a clock of its own: it also ends a turn whose Python process stands still."""

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        """Lets the job commit to the table for so long from now; False, and nothing changed, if a later epoch has it.

        With `token_id`, its commits that change rows must carry a token of this id and epoch.
        """
        ...

    def revoke(self, table: TableLocation, epoch: int) -> None:
        """Ends the turn of this epoch; nothing if another has the table."""
        ...


class TableLog(Protocol):
    """Tokens in a table's log: read them fresh, raise them by compare-and-set."""

    def read_tokens(self, table: TableLocation) -> TableTokens:
        """The `lakegate/` ids at the table's head now; version -1 and no ids where there is no table.

        Fresh: a commit that was acknowledged to anybody before the call is seen.
        """
        ...

    def prepare_write(self, table: TableLocation) -> None:
        """A write with a token is about to be made: a log that can make its look at the stored token cheap does so now."""
        ...

    def commit_entry(
        self, table: TableLocation, after: Version, raised: tuple[tuple[TokenId, int], ...], user_metadata: str
    ) -> CasReply:
        """One commit of these numbers and nothing else at exactly version `after` + 1.

        "stale": that version is another's, and ours is nowhere in the log. "unknown": neither could be established.
        """
        ...

    def find_mark(self, table: TableLocation, token_id: TokenId, token: Token) -> StepMark | None:
        """The step mark in `userMetadata` of the commit with this id, batch and step, at any epoch, searched backwards.

        None if the log no longer reaches back to it.
        """
        ...
