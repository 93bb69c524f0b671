"""Writes single rows by their key: rows that many threads give are collected, and written together by one MERGE at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Self

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from lakegate.errors import ConstraintViolated, InvalidRequest, Unavailable, summary
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.keyed_changes import Change, FoldedRow, RowRefused, Written, fold, split, statements
from lakegate.rows.keyed_columns import KeyedColumns
from lakegate.rows.keyed_compaction import Compaction
from lakegate.rows.keyed_merge import KeyedMerge
from lakegate.rows.result import Result
from lakegate.rows.statement import location_of

FLUSH_ROWS, FLUSH_ROWS_MAX = 5_000, 10_000
"""A MERGE of 5,000 rows takes little longer than one of 20; one of more than 10,000 is not executed without a Spark job."""
FLUSH_BYTES, FLUSH_BYTES_MAX = 8 << 20, 16 << 20
DELAY_MS = 20
WAITING_MAX = 4
"""The rows that wait are as many as this number of flushes takes; then `upsert` and `delete` block."""
LOGGER = logging.getLogger("lakegate")


def writer(
    spark: SparkSession,
    table: str,
    *,
    key: str | Sequence[str],
    flush_rows: int = FLUSH_ROWS,
    flush_bytes: int = FLUSH_BYTES,
    delay_ms: int = DELAY_MS,
    compact_every: int | None = None,
) -> KeyedWriter:
    """Opens a writer of single rows: collects them, and writes them by their key with one MERGE at a time.

    Use it in a `with` block. It has a session of its own, and one thread; many threads may use it.

    Args:
        spark: The session in which a name of a table is looked up.
        table: A Delta table, by its path or its name in the catalog.
        key: The columns by which a row is known; the table must have at most one row for each key.
        flush_rows: Rows that one MERGE takes at most; so many do not wait for `delay_ms`. At most 10,000.
        flush_bytes: The same in bytes, as estimated from the rows. At most 16 MiB.
        delay_ms: The longest time that a row waits for others, unless a MERGE is running.
        compact_every: Run OPTIMIZE in the background when the writer has added this many files; None: never.

    Raises:
        InvalidRequest: An argument is invalid: every fault of the key is named.
    """
    is_path = "/" in table and not table.startswith("delta.`")
    found = DeltaTable.forPath(spark, table) if is_path else DeltaTable.forName(spark, table)
    for name, value, most in (
        ("flush_rows", flush_rows, FLUSH_ROWS_MAX),
        ("flush_bytes", flush_bytes, FLUSH_BYTES_MAX),
        ("compact_every", 1 if compact_every is None else compact_every, None),
    ):
        if value < 1 or (most is not None and value > most):
            upto = "" if most is None else f" to {most:,}"
            raise InvalidRequest(f"{name} is a number from 1{upto}; nothing was done", found=value)
    columns = KeyedColumns(spark, location_of(found._jdt), [key] if isinstance(key, str) else key)
    return KeyedWriter(
        columns,
        KeyedMerge(spark, columns).merge,
        Compaction(spark, columns.table, compact_every),
        flush_rows=flush_rows,
        flush_bytes=flush_bytes,
        delay_s=delay_ms / 1000,
        start=inheritable_thread_target(spark),
    )


class KeyedWriter:
    """Writes rows by their key. Made by `lakegate.writer`. Safe to use from several threads.

    Changes of one key are written in the order in which they were given. A MERGE by key that is repeated has the same effect as
    once; still the writer repeats none whose outcome it does not know, as others may have changed the rows since.
    """

    def __init__(
        self,
        columns: KeyedColumns,
        merge: Callable[[Sequence[FoldedRow]], Result],
        compaction: Compaction,
        *,
        flush_rows: int = FLUSH_ROWS,
        flush_bytes: int = FLUSH_BYTES,
        delay_s: float = DELAY_MS / 1000,
        start: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            columns: Checks the rows.
            merge: Writes rows with different keys by one statement, or raises `RowRefused`.
            compaction: Counts the files of statements.
            flush_rows: As of `lakegate.writer`.
            flush_bytes: As of `lakegate.writer`.
            delay_s: As of `lakegate.writer`, in seconds.
            start: Wraps the work of the thread; None: nothing does.
        """
        self._columns, self._merge, self._compaction = columns, merge, compaction
        self._flush_rows, self._flush_bytes, self._delay_s = flush_rows, flush_bytes, delay_s
        self._news = threading.Condition()
        """Guards all that follows; notified whenever one of it changes."""
        self._waiting: deque[tuple[float, Change]] = deque()
        self._waiting_bytes = 0
        self._given, self._ended, self._urgent = 0, 0, 0
        """Numbers of changes: given; with an outcome; and until which nobody waits for others to come."""
        self._is_closed = False
        self._died: BaseException | None = None
        self.rows_failed = 0
        """Changes whose futures have an error."""
        work = self._flush_on
        self._thread = threading.Thread(target=start(work) if start else work, name="lakegate-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Returns the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the writer; rows that were given are written, also if the block has raised an error."""
        self.close()

    @property
    def small_files(self) -> int:
        """The number of files that the writer has added since it was opened, or since its last OPTIMIZE. All of them are small."""
        return self._compaction.files

    def upsert(self, row: Mapping[str, object]) -> Future[Written]:
        """Gives a row to be updated, or inserted if the table does not have its key.

        Blocks while rows of four flushes wait.

        Args:
            row: Column → value, with all columns of the key. A column that is not given keeps its value; in an inserted row it gets
                its default, or NULL.

        Returns:
            A future of the commit. It fails with `ConstraintViolated` if the table refuses this row. If a statement fails for
            another reason, all rows of the flush that are not written yet fail with it; after `CommitInDoubt` they may be written.

        Raises:
            InvalidRequest: A column is unknown, a value is not of its type, a part of the key is missing, or the writer is closed.
        """
        return self._give(self._columns.upsert(row))

    def delete(self, key: object) -> Future[Written]:
        """Gives a row to be deleted. A key that the table does not have is no error. Blocks and fails as `upsert` does.

        Args:
            key: The columns of the key with their values; or the value; or a tuple of the values, in the order of the key.

        Returns:
            A future of the commit.

        Raises:
            InvalidRequest: The key is incomplete, a value is not of its column's type, or the writer is closed.
        """
        return self._give(self._columns.delete(key))

    def flush(self) -> None:
        """Blocks until all rows that were given before have an outcome, which their futures tell.

        Raises:
            InvalidRequest: It is called by a callback of a future, for which the writer waits.
        """
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "flush was called by a callback of a future, and would wait for itself; nothing was done"
            )
        with self._news:
            until = self._urgent = self._given
            self._news.notify_all()
            self._news.wait_for(lambda: self._ended >= until or self._died is not None)

    def close(self) -> None:
        """Writes the rows that were given before, waits for them, and ends the thread. A second call does nothing.

        It raises no error of a row: the futures have them, and a warning in the log has their number.
        """
        with self._news:
            was_closed, self._is_closed = self._is_closed, True
            self._news.notify_all()
        if threading.current_thread() is self._thread:
            return  # called by a callback of a future: the thread ends after the rows that wait
        self._thread.join()
        self._compaction.join()
        if self.rows_failed and not was_closed:
            LOGGER.warning("%d rows given to a writer of %s were not written", self.rows_failed, self._columns.table)

    def _give(self, change: Change) -> Future[Written]:
        with self._news:
            # A callback of a future must not wait for its own thread.
            if threading.current_thread() is not self._thread:
                self._news.wait_for(self._has_room)
            if self._died is not None:
                raise Unavailable("the writer's thread has ended; the row was not taken") from self._died
            if self._is_closed:
                raise InvalidRequest("the writer is closed; the row was not taken", table=self._columns.table)
            self._waiting.append((time.monotonic(), change))
            self._waiting_bytes += change.size_bytes
            self._given += 1
            if len(self._waiting) == 1 or self._is_due():
                self._news.notify_all()
        return change.done

    def _has_room(self) -> bool:
        if self._is_closed or self._died is not None:
            return True  # then `_give` raises an error
        is_room = len(self._waiting) < WAITING_MAX * self._flush_rows
        return is_room and self._waiting_bytes < WAITING_MAX * self._flush_bytes

    def _flush_on(self) -> None:
        taken: list[Change] = []
        try:
            while taken := self._next():
                self._write([change for change in taken if change.done.set_running_or_notify_cancel()])
                self._end(len(taken))
        except BaseException as error:
            with self._news:
                self._died = error
                left = [*taken, *(change for _, change in self._waiting)]
                self._waiting.clear()
                self._news.notify_all()
            self._fail([change for change in left if not change.done.done()], error)
            LOGGER.error("the thread of a writer of %s has ended unexpectedly: %s", self._columns.table, summary(error))

    def _next(self) -> list[Change]:
        """Waits for the next changes to be written together; returns none if the writer is closed and all are written."""
        with self._news:
            while not self._is_due():
                first = self._waiting[0][0] if self._waiting else None
                self._news.wait(None if first is None else max(0.0, first + self._delay_s - time.monotonic()))
            taken: list[Change] = []
            room = self._flush_bytes
            while (
                self._waiting
                and len(taken) < self._flush_rows
                and (not taken or room >= self._waiting[0][1].size_bytes)
            ):
                change = self._waiting.popleft()[1]
                room -= change.size_bytes
                self._waiting_bytes -= change.size_bytes
                taken.append(change)
            self._news.notify_all()
            return taken

    def _is_due(self) -> bool:
        if not self._waiting:
            return self._is_closed
        return (
            self._is_closed
            or len(self._waiting) >= self._flush_rows
            or self._waiting_bytes >= self._flush_bytes
            or self._urgent > self._ended
            or time.monotonic() >= self._waiting[0][0] + self._delay_s
        )

    def _write(self, changes: list[Change]) -> None:
        """Writes changes with as few statements as possible, and gives each its outcome."""
        pending = deque(statements(fold(changes)))
        while pending:
            rows = pending.popleft()
            try:
                result = self._merge(rows)
            except RowRefused as refused:
                parts = split(rows)
                pending.extendleft(reversed(parts))
                if not parts:
                    error = ConstraintViolated(
                        "the table refuses the row; it was not written",
                        advice="Correct the row, and give it again",
                        table=self._columns.table,
                        reason=str(refused),
                    )
                    error.__cause__ = refused.__cause__
                    self._fail(rows[0].changes, error)
                continue
            except Exception as error:
                # Not about a row. Statements that were not begun would fail as well, or would wait as long for the storage.
                self._fail([change for part in (rows, *pending) for row in part for change in row.changes], error)
                return
            written = Written(version=result.version, rows=len(rows))
            for row in rows:
                for change in row.changes:
                    change.done.set_result(written)
            self._compaction.count(result)

    def _fail(self, changes: Sequence[Change], error: BaseException) -> None:
        self.rows_failed += len(changes)
        for change in changes:
            change.done.set_exception(error)

    def _end(self, number: int) -> None:
        with self._news:
            self._ended += number
            self._news.notify_all()
