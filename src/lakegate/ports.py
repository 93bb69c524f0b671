"""All seams on one page: what the rooms below the composition root need from the outside, as Protocols with contracts.

Each port has a small fake in `testing/` and one conformance suite that every adapter and the fake pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from lakegate.core.ids import JobName, SessionId, TableLocation, TokenId, Version
from lakegate.core.keys.apply import DeadRow, Outcome, Progress, Refusal
from lakegate.core.keys.change import Change, Image
from lakegate.core.keys.fold import Key, Net
from lakegate.core.keys.letters import KeptRow
from lakegate.core.keys.plan import Assignment, Found
from lakegate.core.keys.schema import TableSchema
from lakegate.core.turns.effects import CasReply, StepMark, Stored, TableTokens
from lakegate.core.turns.moves import Sessions
from lakegate.core.turns.record import LockRecord, Mark
from lakegate.core.turns.tokens import Token
from lakegate.events import Event

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteToken:
    """What a statement has to put into its Delta commit: `txn.appId`, `txn.version`, and `userMetadata` (JSON)."""

    token_id: TokenId
    number: int
    user_metadata: str


class StatementConflict(Exception):
    """A statement lost to the commit of a writer that takes no turns; it may be run again from the token read on."""


class EventSink(Protocol):
    """Takes events. Never raises into the work that it watches, except `Unavailable` where a row must not be lost."""

    def emit(self, event: Event) -> None:
        """One event; called in order by each thread."""
        ...


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


class ChangeSource(Protocol):
    """Changes in source order, each once, in whole source transactions."""

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        """Transactions whose changes all lie after the place `after` (-1: from the beginning); those known now.

        Args:
            after: `seq` of the last change that is in the target.
            place: What the source wrote on that change.
            until: What the source wrote on another: just the transactions up to there, the same at each call. None of
                them, where the ends of transactions are known by `seq` alone.

        Raises:
            CheckpointMismatch: The place is one of another source, or nothing can be read from there any more.
            Corrupt: What was read is no change, or the order of the source is broken; with file and line.
            Unavailable: The source does not answer.
        """
        ...


@runtime_checkable
class SetsApart(Protocol):
    """A source of records that may be damaged."""

    def setting_apart(self) -> ChangeSource:
        """The same; a record that cannot be read is a change of the kind `unread`, in place of an error."""
        ...


class TargetView(Protocol):
    """A target database as one looks at it who writes nothing: no stream is taken over, no writer is held up for long."""

    @property
    def writers_max(self) -> int | None:
        """How many transactions can write side by side; None: no limit of its own."""
        ...

    @property
    def slot_rows_max(self) -> int | None:
        """How many rows a slot should have at most; None: no limit."""
        ...

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Definitions by name; tables that do not exist are left out."""
        ...

    def related(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """See `TargetDatabase`."""
        ...

    def find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[Key], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        """See `TargetDatabase`."""
        ...

    def staged_key(self, table: str, n: int) -> Key:
        """See `TargetDatabase`."""
        ...

    def progress(self, stream: str) -> Progress | None:
        """What the target knows about a stream; None if it knows none of that name."""
        ...

    def dead_count(self, stream: str) -> int:
        """How many rows of the stream are set apart."""
        ...

    def preview(self, stream: str, net: Net, slots: int) -> tuple[tuple[Refusal, ...], Found]:
        """What `stage` and `look`, with duplicates, would say of a batch; staged in temporary tables of this session."""
        ...


class DefinitionChanged(Exception):
    """A target table is not what it was when the batch was folded; the batch may be folded and staged again."""


class TargetDatabase(Protocol):
    """A database to which one writer applies batches of one stream. Blocking.

    `stage`, `look`, `assign`, `begin`, `apply` and `finish` belong to one batch and are called in this order; `apply` may be
    called from several threads, for different slots. Each of them is one transaction behind the fence: it raises `Fenced`,
    and changes nothing, once a later epoch has opened the stream or the batch is in. Deadlocks, serialization failures and
    lost connections are tried again, a bounded number of times, then `Unavailable` is raised; whether a commit whose answer
    was lost was made is read from the target, never guessed.
    """

    @property
    def writers_max(self) -> int | None:
        """How many calls of `apply` can write side by side; None: no limit of its own."""
        ...

    @property
    def slot_rows_max(self) -> int | None:
        """How many rows a slot should have at most; None: no limit."""
        ...

    def open_stream(self, stream: str, *, epoch: int | None = None) -> Progress:
        """Takes the stream over: from here on writers of lower epochs are refused.

        Args:
            stream: Its name.
            epoch: Of the caller's turn; None: one more than the last.

        Raises:
            Fenced: A later epoch has the stream.
        """
        ...

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Definitions by name, kept until `forget_tables`; tables that do not exist are left out."""
        ...

    def related(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """These tables, and all that actions of foreign keys lead to from them; tables that cannot be read are left out."""
        ...

    def find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[Key], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        """Rows that have one of the values in these columns, by the target's equality.

        Returns:
            Number of the value, and the wanted columns.
        """
        ...

    def forget_tables(self) -> None:
        """Definitions are read again when they are asked for next."""
        ...

    def stage(self, net: Net, slots: int) -> tuple[Refusal, ...]:
        """Puts the net rows beside their tables, in place of what was staged before; row n in slot `n % slots`.

        Returns:
            Rows that no column takes, and parts of rows that the target does not have, with the reason; these are not
            staged.
        """
        ...

    def look(self, net: Net, *, duplicates: bool) -> Found:
        """Completes staged images from the target and finds who holds what another row ends with, by the target's equality.

        Args:
            net: The batch that is staged.
            duplicates: Staged rows are compared with each other, too. Without it, pairs that the batch itself brings are
                not found here but by `apply`. Definitions are read again.

        Raises:
            DefinitionChanged: With `duplicates`: one of them has changed.
        """
        ...

    def assign(self, assignment: Assignment) -> None:
        """Moves the rows that are named to their slots, and notes the keys that they let go of first."""
        ...

    def begin(self, net: Net) -> None:
        """Notes durably that this batch has been begun: `Progress.pending` until it is finished.

        Raises:
            StagedRowsLost: The target lost what was staged.
        """
        ...

    def apply(
        self, net: Net, slot: int, *, finish: bool = False, dead: Sequence[DeadRow] = (), is_trial: bool = False
    ) -> Outcome:
        """Applies the rows of one slot, or of `ALL`, in one transaction; applied again it changes nothing.

        Args:
            net: The batch that is staged.
            slot: Its number, or `ALL`.
            finish: Also what `finish` does, in the same transaction.
            dead: Rows set apart, written with `finish`.
            is_trial: Rolled back in any case.

        Raises:
            StagedRowsLost: The target lost what was staged; nothing of the slot is in, and the batch may be staged again.
            DefinitionChanged: A foreign key leads to a table since it was staged; the same.
        """
        ...

    def finish(self, net: Net, slots: int, dead: Sequence[DeadRow]) -> None:
        """Writes the position, and the rows that are set apart; all `slots` slots have been applied."""
        ...

    def letters(self) -> Sequence[KeptRow]:
        """Rows of the stream that are set apart, the oldest first: at most `LETTERS_MAX`."""
        ...

    def add_columns(self, table: str, values: Mapping[str, object]) -> None:
        """Adds columns, each of a type that takes a value like this one; one that is there by now is left as it is."""
        ...

    def staged_key(self, table: str, n: int) -> Key:
        """The key of a row that is staged."""
        ...

    def define(self, change: Change) -> None:
        """Executes a statement that changes a definition, and writes its position; definitions are read again after it."""
        ...

    def close(self) -> None:
        """Gives up the connections."""
        ...
