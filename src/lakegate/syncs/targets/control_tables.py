"""The control tables of a target: how far each stream is, who may write, which slots are in, which rows are set apart.

Rules for editors: whatever is written here is written in the transaction whose effect it tells of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakegate.errors import CommitInDoubt, Fenced
from lakegate.syncs.plan.apply_protocol import DeadRow, Progress
from lakegate.syncs.plan.dead_letters import KeptRow, kept_image, kept_row, kept_text
from lakegate.syncs.plan.net_changes import Net
from lakegate.syncs.targets.dialect import Dialect

CONTROL_TABLES = ("lakegate_stream", "lakegate_slot", "lakegate_dead")
LATER_COLUMNS = ("place", "pending_place")
"""Of `lakegate_stream`: an earlier version's table lacks them, or has them too short for many files."""


@dataclass(slots=True)
class Stream:
    """The stream that is written."""

    name: str
    epoch: int
    last_batch: int
    pending: int | None = None
    """Where a batch ends that was begun by the writer before."""
    is_preview: bool = False
    """It is only looked at: staging tables are temporary, and there is no fence."""

    @property
    def stage_prefix(self) -> str:
        """Staging tables are named by stream and epoch: a writer that was followed cannot touch those of its follower."""
        what = "plan" if self.is_preview else "stage"
        return f"lakegate_{what}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}_"


class Control:
    """Statements on the control tables, each on a cursor whose transaction is the caller's."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def make(self, cursor: Any) -> None:
        """The tables, where they are not there."""
        for statement in self._dialect.control():
            cursor.execute(statement)

    def take(self, cursor: Any, stream: str, epoch: int | None) -> Progress:
        """Makes the stream this writer's: with the epoch, or with the next.

        Raises:
            Fenced: A later epoch has begun.
        """
        found = self.read(cursor, stream, self._dialect.update)
        if found is None:
            sql = "INSERT INTO lakegate_stream (stream, epoch, last_batch, position) VALUES ({m}, 0, 0, -1)"
            self._execute(cursor, sql, stream)
            found = Progress(epoch=0, last_batch=0, position=-1)
        if epoch is not None and epoch < found.epoch:
            raise Fenced("a later writer has begun on this stream; nothing was written", stream=stream, epoch=epoch)
        now = found.epoch + 1 if epoch is None else epoch
        self._execute(cursor, "UPDATE lakegate_stream SET epoch = {m} WHERE stream = {m}", now, stream)
        return replace(found, epoch=now)

    def read(self, cursor: Any, stream: str, lock: str = "") -> Progress | None:
        """How far a stream is; None if there is none of that name."""
        # All columns: who only looks may meet a table that an earlier version made, without the last two.
        self._execute(cursor, "SELECT * FROM lakegate_stream WHERE stream = {m}" + lock, stream)
        row = cursor.fetchone()
        if row is None:
            return None
        _, epoch, last_batch, position, pending, *places = row
        place, pending_place = places or (None, None)
        return Progress(
            epoch=int(epoch), last_batch=int(last_batch), position=int(position),
            pending=None if pending is None else int(pending), place=place, pending_place=pending_place,
        )  # fmt: skip

    def fence(self, cursor: Any, stream: Stream, *, is_exclusive: bool) -> None:
        """Nothing, if the stream is this writer's still, and at the batch that it believes; nobody changes that meanwhile.

        Raises:
            Fenced: It is not.
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
        """Before the first slot of a batch."""
        self._execute(cursor, "DELETE FROM lakegate_slot WHERE stream = {m}", stream.name)
        sql = "UPDATE lakegate_stream SET pending = {m}, pending_place = {m} WHERE stream = {m}"
        self._execute(cursor, sql, net.through, net.place, stream.name)

    def note_slot(self, cursor: Any, stream: Stream, batch: int, slot: int) -> None:
        """With the rows of the slot."""
        sql = "INSERT INTO lakegate_slot (stream, batch, slot) VALUES ({m}, {m}, {m})"
        self._execute(cursor, sql, stream.name, batch, slot)

    def has_slot(self, cursor: Any, stream: Stream, batch: int, slot: int) -> bool:
        """Whether the slot is in."""
        sql = "SELECT count(*) FROM lakegate_slot WHERE stream = {m} AND batch = {m} AND slot = {m}"
        self._execute(cursor, sql, stream.name, batch, slot)
        return bool(cursor.fetchone()[0])

    def require_slots(self, cursor: Any, stream: Stream, batch: int, slots: int) -> None:
        """Nothing, if so many are in.

        Raises:
            CommitInDoubt: One is missing.
        """
        sql = "SELECT count(*) FROM lakegate_slot WHERE stream = {m} AND batch = {m}"
        self._execute(cursor, sql, stream.name, batch)
        if cursor.fetchone()[0] < slots:
            raise CommitInDoubt("a slot of the batch is missing in the target; the batch runs again", batch=batch)

    def finish(self, cursor: Any, stream: Stream, net: Net, batch: int, dead: Sequence[DeadRow]) -> None:
        """With the last of a batch: its position, and the rows that are set apart."""
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

    def drop_letters(self, cursor: Any, stream: str, ids: Sequence[tuple[int, int]]) -> int:
        """Deletes rows that are set apart; how many there were."""
        count = 0
        for batch, n in ids:
            sql = "DELETE FROM lakegate_dead WHERE stream = {m} AND batch = {m} AND n = {m}"
            self._execute(cursor, sql, stream, batch, n)
            count += int(cursor.rowcount)
        return count

    def letters(self, cursor: Any, stream: str, rows_max: int, *, with_records: bool) -> tuple[KeptRow, ...]:
        """Rows that are set apart, the oldest first, as they can be applied again; and records that cannot be read."""
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
        """How many rows are set apart."""
        self._execute(cursor, "SELECT count(*) FROM lakegate_dead WHERE stream = {m}", stream)
        return int(cursor.fetchone()[0])

    def _execute(self, cursor: Any, sql: str, *values: object) -> None:
        cursor.execute(sql.format(m=self._dialect.mark), values)
