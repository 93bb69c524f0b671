"""The ports of turns: a store of lock records, a gate for writes, and the logs of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from lakegate.ids import JobName, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol.effects import CasReply, StepMark, Stored, TableTokens
from lakegate.turns.protocol.fencing import Token
from lakegate.turns.protocol.lock_record import LockRecord, Mark
from lakegate.turns.protocol.transitions import Sessions

SessionState = Literal["connected", "suspended", "lost"]
"""The state of a session as the store knows it: "suspended" while the connection is broken, "lost" for good."""


class StoreSession(Protocol):
    """A run of a job, as the store sees it. Alive until it is closed, the process dies, or the lease ends."""

    @property
    def id(self) -> SessionId:
        """Names this run; never used twice."""
        ...

    def describe_jvm(self, pid: int, start: int) -> None:
        """Records which JVM commits for this run, so that a successor can wait for its end."""
        ...

    def heartbeat(self) -> bool:
        """Renews the lease. True if the store answered that the session is alive; False if it answered that the session is gone.

        Raises:
            Unavailable: no answer; the lease may or may not have been renewed.
        """
        ...

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Reports every change of state to the listener as soon as it is known, also one before the call, from any thread.

        The listener must not block. A store that keeps no connection never calls it.
        """
        ...

    def close(self) -> None:
        """Ends the session; idempotent. Its tickets no longer count.

        Where the store does not answer, they stop counting after a lease.
        """
        ...


class TurnStore(Protocol):
    """Keeps lock records and knows which runs are alive. Linearizable per lock; blocking; safe to use from several threads.

    Every method raises `Unavailable` when the store does not answer (`compare_and_set` only if it is known that nothing was
    changed), and `InvalidRequest` for a record of a newer format or a request that is not allowed. Each has one deadline for
    the whole call.
    """

    @property
    def lease_s(self) -> float | None:
        """Seconds without a heartbeat after which others may count a session as dead; None if only its process's death ends it."""
        ...

    def coordinator_id(self) -> str:
        """A UUID created together with the store's data; another UUID means that the data were lost or replaced."""
        ...

    def open_session(self, lock: str, job: JobName) -> StoreSession:
        """Opens a new session for a run of `job`.

        Raises:
            TurnNotGranted: another run of this job is alive; the message names it.
        """
        ...

    def read(self, lock: str) -> Stored:
        """Returns the record as last written, and its version; `Stored(None, 0)` if there is none."""
        ...

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        """Writes `record` if the version is still `version`, and increments the version.

        "unknown" if the outcome is not known.

        Raises:
            StoreUnavailable: nothing was changed, as on a full disk.
        """
        ...

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        """Stores the mark of a new turn outside the record, unless a mark with the same or a higher epoch is stored; returns the
        mark that is stored then.

        Stored where a restored copy of the record does not overwrite it. Idempotent.
        """
        ...

    def live_sessions(self, lock: str) -> Sessions:
        """Returns the runs that are alive now, and the mark that `note_turn` stored.

        May still list a session that has just died; never omits a session that its owner may trust, nor a returned mark.
        """
        ...

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        """Returns when the record may differ from `version`, and after `timeout_s` at the latest. May return early.

        A caller that waits only for its turn names the job, and need not be woken by changes that leave its ticket waiting.
        """
        ...

    def locks(self) -> tuple[str, ...]:
        """Returns the names of the locks that have a record."""
        ...

    def close(self) -> None:
        """Closes connections; sessions opened here end."""
        ...


class WriteGate(Protocol):
    """Refuses commits outside of a turn, by its own clock: it also ends a turn whose Python process is stopped."""

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        """Lets the job commit to the table for this time from now; returns False, and changes nothing, if a later epoch has it.

        With `token_id`, its commits that change rows must carry a token of this id and epoch.
        """
        ...

    def revoke(self, table: TableLocation, epoch: int) -> None:
        """Ends the turn of this epoch; does nothing if another epoch has the table."""
        ...


class TableLog(Protocol):
    """The tokens in a table's log: reads them fresh, raises them by compare-and-set."""

    def read_tokens(self, table: TableLocation) -> TableTokens:
        """Returns the `lakegate/` ids at the table's head; version -1 and no ids where there is no table.

        Fresh: includes every commit that was acknowledged to any process before the call.
        """
        ...

    def prepare_write(self, table: TableLocation) -> None:
        """Announces a write with a token: a log may now prepare a cheap check of the stored token."""
        ...

    def commit_entry(
        self, table: TableLocation, after: Version, raised: tuple[tuple[TokenId, int], ...], user_metadata: str
    ) -> CasReply:
        """Makes one commit with these numbers and nothing else at exactly version `after` + 1.

        "stale": another commit has that version, and ours is nowhere in the log. "unknown": neither could be established.
        """
        ...

    def find_mark(self, table: TableLocation, token_id: TokenId, token: Token) -> StepMark | None:
        """Returns the step mark in `userMetadata` of the commit with this id, batch and step, at any epoch, searched backwards.

        None if the log no longer reaches back to it.
        """
        ...
