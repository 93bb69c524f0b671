"""The control tables of a target: position of each stream, its writer, applied slots, quarantined rows, and delays.

Rules for editors: each record here is written in the same transaction as the effect that it describes; except delays, which are
known only after a commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakegate.errors import CommitInDoubt, Fenced
from lakegate.syncs.plan.apply_protocol import DeadRow, SyncProgress
from lakegate.syncs.plan.dead_letters import KeptRow, kept_image, kept_row, kept_text
from lakegate.syncs.plan.net_changes import Net
from lakegate.syncs.targets.dialect import Dialect

CONTROL_TABLES = ("lakegate_stream", "lakegate_slot", "lakegate_dead", "lakegate_delay")
LATER_COLUMNS = ("place", "pending_place")
"""Columns of `lakegate_stream` that are missing, or too short for many files, in a table made by an earlier version."""


@dataclass(slots=True)
class Stream:
    """The stream that this writer writes."""

    name: str
    epoch: int
    last_batch: int
    pending: int | None = None
    """End position of a batch that the previous writer began."""
    is_preview: bool = False
    """Whether the stream is only read: staging tables are temporary, and there is no fence."""

    @property
    def stage_prefix(self) -> str:
        """Returns the prefix of staging tables. It names stream and epoch: a fenced writer cannot touch its successor's."""
        what = "plan" if self.is_preview else "stage"
        return f"lakegate_{what}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}_"


class Control:
    """Statements on the control tables, each on a cursor in the caller's transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def make(self, cursor: Any) -> None:
        """Creates the tables that do not exist."""
        for statement in self._dialect.control():
            cursor.execute(statement)

    def take(self, cursor: Any, stream: str, epoch: int | None) -> SyncProgress:
        """Makes this writer the owner of the stream, with the given epoch or the next one.

        Raises:
            Fenced: A later epoch has begun.
        """
        found = self.read(cursor, stream, self._dialect.update)
        if found is None:
            sql = "INSERT INTO lakegate_stream (stream, epoch, last_batch, position) VALUES ({m}, 0, 0, -1)"
            self._execute(cursor, sql, stream)
            found = SyncProgress(epoch=0, last_batch=0, position=-1)
        if epoch is not None and epoch < found.epoch:
            raise Fenced("a later writer has begun on this stream; nothing was written", stream=stream, epoch=epoch)
        now = found.epoch + 1 if epoch is None else epoch
        self._execute(cursor, "UPDATE lakegate_stream SET epoch = {m} WHERE stream = {m}", now, stream)
        return replace(found, epoch=now)

    def read(self, cursor: Any, stream: str, lock: str = "") -> SyncProgress | None:
        """Returns the progress of a stream; None if no stream has that name."""
        # `*`, because a preview may meet a table of an earlier version without the last two columns.
        self._execute(cursor, "SELECT * FROM lakegate_stream WHERE stream = {m}" + lock, stream)
        row = cursor.fetchone()
        if row is None:
            return None
        _, epoch, last_batch, position, pending, *places = row
        place, pending_place = places or (None, None)
        return SyncProgress(
            epoch=int(epoch), last_batch=int(last_batch), position=int(position),
            pending=None if pending is None else int(pending), place=place, pending_place=pending_place,
        )  # fmt: skip

    def fence(self, cursor: Any, stream: Stream, *, is_exclusive: bool) -> None:
        """Checks that this writer still owns the stream, at the batch it expects; locks this until the transaction ends.

        Raises:
            Fenced: A later writer has begun, or the batch is applied already.
        """
        found = self.read(cursor, stream.name, self._dialect.update if is_exclusive else self._dialect.share)
        if found is None or found.epoch != stream.epoch:
            raise Fenced(
                "a later writer has begun on this stream; nothing was written",
                stream=stream.name,
                epoch=stream.epoch,
                later=None if found is None else found.epoch,
            )
        if found.last_batch != stream.last_batch:
            raise Fenced("this batch is in the target already; nothing was written", batch=found.last_batch)

    def note_begun(self, cursor: Any, stream: Stream, net: Net) -> None:
        """Records a batch as begun, before its first slot."""
        self._execute(cursor, "DELETE FROM lakegate_slot WHERE stream = {m}", stream.name)
        sql = "UPDATE lakegate_stream SET pending = {m}, pending_place = {m} WHERE stream = {m}"
        self._execute(cursor, sql, net.through, net.place, stream.name)

    def note_slot(self, cursor: Any, stream: Stream, batch: int, slot: int) -> None:
        """Records a slot, in the transaction that writes its rows."""
        sql = "INSERT INTO lakegate_slot (stream, batch, slot) VALUES ({m}, {m}, {m})"
        self._execute(cursor, sql, stream.name, batch, slot)

    def has_slot(self, cursor: Any, stream: Stream, batch: int, slot: int) -> bool:
        """Returns whether the slot has been applied."""
        sql = "SELECT count(*) FROM lakegate_slot WHERE stream = {m} AND batch = {m} AND slot = {m}"
        self._execute(cursor, sql, stream.name, batch, slot)
        return bool(cursor.fetchone()[0])

    def require_slots(self, cursor: Any, stream: Stream, batch: int, slots: int) -> None:
        """Checks that this number of slots has been applied.

        Raises:
            CommitInDoubt: A slot is missing.
        """
        sql = "SELECT count(*) FROM lakegate_slot WHERE stream = {m} AND batch = {m}"
        self._execute(cursor, sql, stream.name, batch)
        if cursor.fetchone()[0] < slots:
            raise CommitInDoubt("a slot of the batch is missing in the target; the batch runs again", batch=batch)

    def finish(self, cursor: Any, stream: Stream, net: Net, batch: int, dead: Sequence[DeadRow]) -> None:
        """Records the end of a batch, in its last transaction: its position and its quarantined rows."""
        self.drop_letters(cursor, stream.name, net.letters)
        bytes_max = self._dialect.value_bytes_max(cursor.connection)
        for each in dead:
            self._execute(
                cursor,
                "INSERT INTO lakegate_dead (stream, batch, n, table_name, row_key, image, seq, reason) "
                "VALUES ({m}, {m}, {m}, {m}, {m}, {m}, {m}, {m})",
                stream.name, batch, each.row.n, each.row.table, kept_text(each.row.key),
                None if each.row.image is None else kept_image(each.row, bytes_max), each.row.seq, each.reason,
            )  # fmt: skip
        self._execute(cursor, "DELETE FROM lakegate_slot WHERE stream = {m}", stream.name)
        self._execute(
            cursor,
            "UPDATE lakegate_stream SET last_batch = {m}, position = {m}, place = {m}, pending = NULL, "
            "pending_place = NULL WHERE stream = {m}",
            batch, net.through, net.place, stream.name,
        )  # fmt: skip

    def note_delays(self, cursor: Any, stream: Stream, text: str) -> None:
        """Replaces the counts of delays. A table of its own: earlier versions read all columns of `lakegate_stream`."""
        self._execute(cursor, "DELETE FROM lakegate_delay WHERE stream = {m}", stream.name)
        self._execute(cursor, "INSERT INTO lakegate_delay (stream, delays) VALUES ({m}, {m})", stream.name, text)

    def delays(self, cursor: Any, stream: str) -> str | None:
        """Returns the counts of delays as `note_delays` wrote them."""
        self._execute(cursor, "SELECT delays FROM lakegate_delay WHERE stream = {m}", stream)
        row = cursor.fetchone()
        return None if row is None else row[0]

    def drop_letters(self, cursor: Any, stream: str, ids: Sequence[tuple[int, int]]) -> int:
        """Deletes quarantined rows; returns how many were deleted."""
        count = 0
        for batch, n in ids:
            sql = "DELETE FROM lakegate_dead WHERE stream = {m} AND batch = {m} AND n = {m}"
            self._execute(cursor, sql, stream, batch, n)
            count += int(cursor.rowcount)
        return count

    def letters(self, cursor: Any, stream: str, rows_max: int, *, with_records: bool) -> tuple[KeptRow, ...]:
        """Returns quarantined rows, oldest first, in a form that can be applied again; on request also unreadable records."""
        rows_only = "" if with_records else "AND table_name <> '' "
        self._execute(
            cursor,
            "SELECT batch, n, table_name, row_key, image, seq, reason FROM lakegate_dead WHERE stream = {m} "
            f"{rows_only}ORDER BY batch, n LIMIT {{m}}",
            stream, rows_max,
        )  # fmt: skip
        return tuple(
            kept_row(int(batch), int(n), table, key, image, int(seq), reason)
            for batch, n, table, key, image, seq, reason in cursor.fetchall()
        )

    def count_dead(self, cursor: Any, stream: str) -> int:
        """Returns the number of quarantined rows."""
        self._execute(cursor, "SELECT count(*) FROM lakegate_dead WHERE stream = {m}", stream)
        return int(cursor.fetchone()[0])

    def _execute(self, cursor: Any, sql: str, *values: object) -> None:
        cursor.execute(sql.format(m=self._dialect.mark), values)
