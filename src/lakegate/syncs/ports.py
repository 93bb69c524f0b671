"""Describes what a sync needs from outside: a source of changes and a target database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from lakegate.syncs.plan.apply_protocol import DeadRow, Outcome, Progress, Refusal
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.conflict_graph import Assignment, Found
from lakegate.syncs.plan.dead_letters import KeptRow
from lakegate.syncs.plan.net_changes import Key, Net
from lakegate.syncs.plan.table_schema import TableSchema


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
