"""A stream of a slot's messages: libpq's copy in both directions, which the driver has only at its lowest level.

Source: PostgreSQL's documentation, "Streaming Replication Protocol".
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from typing import Any, Final

import psycopg

EPOCH_S: Final = 946_684_800
REPLY_S = 10.0
"""How often the server learns where the reader stands."""
SILENCE_S = 60.0
"""How long the server may be silent although it was asked to answer. Then the connection counts as lost."""


class Stream:
    """The messages of a slot, from the connection on which `START_REPLICATION` was executed. For one thread at a time."""

    def __init__(self, connection: Any, after: int) -> None:
        self._connection, self._pg = connection, connection.pgconn
        self.reached = after
        """Everything below was received."""
        self.confirmed = after
        """Everything below is in the target. Another thread may set it: one step, and only upward."""
        self.is_asked = False
        """Whether the server waits for a reply, as it does before it shuts down."""
        self._told, self._replied_s = after, time.monotonic()
        self._asked_s: float | None = None
        """When the server was asked to answer; None if it has answered since."""

    def read(self, wait_s: float, end: int) -> bytes | None:
        """Returns the next message; None if none arrives in time.

        Args:
            wait_s: How long to wait.
            end: Where in the log the wait ends.

        Raises:
            psycopg.Error: The connection was lost, or the server ended the stream.
        """
        until = time.monotonic() + wait_s
        while True:
            self._reply_if_due()
            size, data = self._pg.get_copy_data(1)
            if size > 0:
                self._asked_s = None
                if data[:1] == b"w":
                    return bytes(data[25:])
                if data[:1] == b"k":
                    at, _, asks = struct.unpack("!QqB", data[1:18])
                    self.reached = max(self.reached, at)
                    if asks:
                        self.is_asked = True
                        self.reply()
                continue
            if size < 0:
                result = self._pg.get_result()
                if result is not None and result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result, encoding="utf-8")
                raise psycopg.OperationalError("the source ended its stream")
            left = until - time.monotonic() if self.reached < end else 0.0
            ready, _, _ = select.select([self._pg.socket], [], [], max(0.0, min(left, 1.0)))
            if ready:
                self._pg.consume_input()
            elif self._asked_s is not None and time.monotonic() - self._asked_s > SILENCE_S:
                raise psycopg.OperationalError("the source is silent")
            elif left <= 0:
                return None

    def reply(self, *, asks: bool = False) -> None:
        """Tells the server what was received and what is in the target. `asks`: let it answer with the end of its log."""
        now = int((time.time() - EPOCH_S) * 1_000_000)
        self._told, self._replied_s = self.confirmed, time.monotonic()
        if asks and self._asked_s is None:
            self._asked_s = self._replied_s
        self.is_asked = self.is_asked and self.confirmed < self.reached
        self._pg.put_copy_data(b"r" + struct.pack("!QQQqB", self.reached, self.confirmed, 0, now, asks))
        self._pg.flush()

    def close(self) -> None:
        """Confirms what is in the target, and ends the stream."""
        with contextlib.suppress(psycopg.Error):
            self.reply()
            self._pg.put_copy_end()
            self._pg.flush()
        self._connection.close()

    def _reply_if_due(self) -> None:
        is_late = time.monotonic() - self._replied_s > REPLY_S
        if self.confirmed > self._told or is_late:
            self.reply(asks=is_late)
