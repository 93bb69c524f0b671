"""Describes what a sync needs from outside: a source of changes and a target database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from lakegate.syncs.plan.apply_protocol import DeadRow, Refusal, SlotOutcome, SyncProgress
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.conflict_graph import Assignment, Found
from lakegate.syncs.plan.dead_letters import KeptRow
from lakegate.syncs.plan.net_changes import Key, Net
from lakegate.syncs.plan.table_schema import TableSchema


class ChangeSource(Protocol):
    """Delivers changes in source order, each once, in whole source transactions."""

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        """Yields the currently known transactions after position `after` (-1: from the beginning).

        Args:
            after: `seq` of the last change that is in the target.
            place: The `place` that the source wrote on that change.
            until: A later `place` of the source: yields exactly the transactions up to there, the same at each call. Yields
                none if `seq` alone identifies the ends of transactions.

        Raises:
            CheckpointMismatch: The position belongs to another source, or the source can no longer be read from there.
            Corrupt: A record is not a change, or the order of the source is broken; with file and line.
            Unavailable: The source does not answer.
        """
        ...


@runtime_checkable
class SetsApart(Protocol):
    """A source of records that may be damaged."""

    def setting_apart(self) -> ChangeSource:
        """Returns the source in a mode that delivers an unreadable record as a change of op `unread` instead of an error."""
        ...


@runtime_checkable
class Confirms(Protocol):
    """A source that keeps its changes until the target has them."""

    def confirm(self, position: int) -> None:
        """Records that the target has everything up to a position. May be called while another thread reads."""
        ...


@runtime_checkable
class Announces(Protocol):
    """A source to which changes are sent, so that nobody need ask for them."""

    def has_arrived(self) -> bool | None:
        """Returns whether the next pass would apply something, without a question to anybody; None if it must be asked."""
        ...


@runtime_checkable
class Looks(Protocol):
    """A source on which reading has effects: it creates something, or one reader excludes another."""

    def looking(self) -> ChangeSource:
        """Returns the source in a mode that changes nothing."""
        ...


class TargetView(Protocol):
    """A read-only view of a target database: does not take a stream over, and blocks no writer for long."""

    @property
    def writers_max(self) -> int | None:
        """The maximum number of concurrent write transactions; None for no limit."""
        ...

    @property
    def slot_rows_max(self) -> int | None:
        """The recommended maximum number of rows in a slot; None for no limit."""
        ...

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Returns definitions by name. Tables that do not exist are left out."""
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

    def progress(self, stream: str) -> SyncProgress | None:
        """Returns the target's record of a stream; None if there is no stream of that name."""
        ...

    def dead_count(self, stream: str) -> int:
        """Returns the number of quarantined rows of the stream."""
        ...

    def preview(self, stream: str, net: Net, slots: int) -> tuple[tuple[Refusal, ...], Found]:
        """Returns the results of `stage` and `look`, with duplicates, for a batch. Stages in temporary tables of the session."""
        ...


class DefinitionChanged(Exception):
    """A target table has changed since the batch was folded. The batch may be folded and staged again."""


class TargetDatabase(Protocol):
    """A database to which one writer applies batches of one stream. Blocking.

    A new SQL database does not implement this protocol: it implements `targets/dialect.py::Dialect`, and `SqlTarget` does the rest.

    `stage`, `look`, `assign`, `begin`, `apply` and `finish` belong to one batch and are called in this order; `apply` may be
    called from several threads, for different slots. Each of them is one transaction behind the fence: it raises `Fenced`,
    and changes nothing, if a later epoch has opened the stream or the batch was applied. Deadlocks, serialization failures and
    lost connections are retried a bounded number of times, then `Unavailable` is raised. If the answer to a commit is lost, the
    outcome is read from the target, never guessed.
    """

    @property
    def writers_max(self) -> int | None:
        """The maximum number of concurrent calls of `apply`; None for no limit."""
        ...

    @property
    def slot_rows_max(self) -> int | None:
        """The recommended maximum number of rows in a slot; None for no limit."""
        ...

    def open_stream(self, stream: str, *, epoch: int | None = None) -> SyncProgress:
        """Takes the stream over: from now on, writers of lower epochs are refused.

        Args:
            stream: The name of the stream.
            epoch: The epoch of the caller's turn; None for one more than the last.

        Raises:
            Fenced: A later epoch has the stream.
        """
        ...

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Returns definitions by name, cached until `forget_tables`. Tables that do not exist are left out."""
        ...

    def related(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Returns these tables and all tables that foreign key actions reach from them. Unreadable tables are left out."""
        ...

    def find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[Key], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        """Finds the rows that have one of the values in these columns, by the target's equality.

        Returns:
            Index of the value, and the wanted columns.
        """
        ...

    def forget_tables(self) -> None:
        """Clears the cached definitions."""
        ...

    def stage(self, net: Net, slots: int) -> tuple[Refusal, ...]:
        """Stages the net rows in staging tables, replacing earlier staged rows; row n in slot `n % slots`.

        Returns:
            Rows that do not fit their columns, and partial rows that the target does not have, with the reason. These rows are
            not staged.
        """
        ...

    def look(self, net: Net, *, duplicates: bool) -> Found:
        """Completes staged images from the target, and finds the holders of values that other rows end with.

        Uses the target's equality.

        Args:
            net: The staged batch.
            duplicates: Also compare staged rows with each other. Otherwise conflicts within the batch are found only by
                `apply`. Reads definitions again.

        Raises:
            DefinitionChanged: With `duplicates`: a definition has changed.
        """
        ...

    def assign(self, assignment: Assignment) -> None:
        """Moves the named rows to their slots, and records the keys that they release first."""
        ...

    def begin(self, net: Net) -> None:
        """Records durably that this batch was begun: sets `SyncProgress.pending` until the batch is finished.

        Raises:
            StagedRowsLost: The target lost the staged rows.
        """
        ...

    def apply(
        self, net: Net, slot: int, *, finish: bool = False, dead: Sequence[DeadRow] = (), is_trial: bool = False
    ) -> SlotOutcome:
        """Applies the rows of one slot, or of `ALL`, in one transaction. Idempotent.

        Args:
            net: The staged batch.
            slot: The number of the slot, or `ALL`.
            finish: Also do the work of `finish`, in the same transaction.
            dead: Quarantined rows, written with `finish`.
            is_trial: Roll back in any case.

        Raises:
            StagedRowsLost: The target lost the staged rows; nothing of the slot was applied, and the batch may be staged again.
            DefinitionChanged: A foreign key has been added that refers to a staged table; the same.
        """
        ...

    def finish(self, net: Net, slots: int, dead: Sequence[DeadRow]) -> None:
        """Writes the position and the quarantined rows, after all `slots` slots have been applied."""
        ...

    def letters(self) -> Sequence[KeptRow]:
        """Returns quarantined rows of the stream, oldest first: at most `LETTERS_MAX`."""
        ...

    def add_columns(self, table: str, values: Mapping[str, object]) -> None:
        """Adds columns with types that accept these values. A column that already exists is left unchanged."""
        ...

    def staged_key(self, table: str, n: int) -> Key:
        """Returns the key of a staged row."""
        ...

    def define(self, change: Change) -> None:
        """Executes a DDL statement and writes its position. Clears the cached definitions."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...
