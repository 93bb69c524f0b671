"""Decodes the messages of PostgreSQL's output plugin `pgoutput`, protocol version 1: bytes to messages, and nothing else.

Rules for editors: this module keeps no state between messages. A message that is not listed in the protocol is an error; the
messages to skip are listed here.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple, cast

EPOCH_MS = 946_684_800_000
"""PostgreSQL counts from the year 2000: the time between the two beginnings, in milliseconds."""
SKIPPED = frozenset("OYM")
"""The origin of a transaction, a type's name, and a message of an application."""
KEY_FLAG = 1


class Unsent(Enum):
    """Stands for a large value that did not change, so that the server does not send it."""

    UNSENT = "unsent"


UNSENT = Unsent.UNSENT
Row = tuple[str | Unsent | None, ...]
"""Values as the server writes them, in the order of the columns."""


class Malformed(ValueError):
    """Bytes are no message of the protocol."""


class RelationColumn(NamedTuple):
    """A column that the server sends."""

    name: str
    type: int
    """The oid of its type."""
    is_key: bool
    """Whether the column belongs to the replica identity."""


class Relation(NamedTuple):
    """The definition of a table, sent before the first change of the table and after each change of its definition."""

    id: int
    schema: str
    table: str
    columns: tuple[RelationColumn, ...]


class Began(NamedTuple):
    """The begin of a transaction. Transactions are sent whole, in the order of their commits."""

    xid: int
    at_ms: int
    """The time of the commit, in milliseconds since 1970."""


class Committed(NamedTuple):
    """The end of a transaction."""

    end: int
    """The position after the commit."""


class RowSent(NamedTuple):
    """A changed row."""

    op: Literal["c", "u", "d"]
    relation: int
    old: Row | None
    """The row before; or None if its key did not change."""
    new: Row | None
    is_old_whole: bool
    """Whether `old` is the whole row. Otherwise it has only the columns of the replica identity."""


class Emptied(NamedTuple):
    """Tables that one statement emptied."""

    relations: tuple[int, ...]


Sent = Relation | Began | Committed | RowSent | Emptied | None
"""None for a message to skip."""


def decoded(data: bytes) -> Sent:
    """Decodes one message.

    Raises:
        Malformed: The bytes are no message of the protocol.
    """
    try:
        reader = _Reader(data)
        found = _message(reader)
        if found is not None and reader.at != len(data):
            raise Malformed(f"{len(data) - reader.at} bytes after the end of a message {data[:1]!r}")
        return found
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"a message {data[:1]!r} of {len(data)} bytes: {error}") from error


def _message(reader: _Reader) -> Sent:
    match kind := reader.letter():
        case "B":
            _, at, xid = reader.numbers("qqI")
            return Began(xid, EPOCH_MS + at // 1000)
        case "C":
            _, _, end, _ = reader.numbers("bqqq")
            return Committed(end)
        case "R":
            (id,) = reader.numbers("I")
            schema, table = reader.text(), reader.text()
            _, count = reader.numbers("bh")
            return Relation(id, schema, table, tuple(reader.column() for _ in range(count)))
        case "I":
            (id,) = reader.numbers("I")
            reader.expect("N")
            return RowSent("c", id, None, reader.row(), False)
        case "U" | "D":
            (id,) = reader.numbers("I")
            before, old = reader.letter(), None
            if before in ("K", "O"):
                old = reader.row()
            if kind == "U" and old is not None:
                reader.expect("N")
            elif (before != "N" and kind == "U") or (old is None and kind == "D"):
                raise Malformed(f"{before!r} in a message {kind!r}")
            op = cast(Literal["u", "d"], kind.lower())
            return RowSent(op, id, old, reader.row() if kind == "U" else None, before == "O")
        case "T":
            count, _ = reader.numbers("Ib")
            return Emptied(cast(tuple[int, ...], reader.numbers(f"{count}I")))
        case _ if kind in SKIPPED:
            return None
        case _:
            raise Malformed(f"a message {kind!r} is not known")


class _Reader:
    """A message, read from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def numbers(self, format: str) -> Sequence[int]:
        size = struct.calcsize(f"!{format}")
        found = struct.unpack_from(f"!{format}", self._data, self.at)
        self.at += size
        return found

    def letter(self) -> str:
        self.at += 1
        return chr(self._data[self.at - 1])

    def expect(self, letter: str) -> None:
        if (found := self.letter()) != letter:
            raise Malformed(f"{found!r} where {letter!r} is expected")

    def text(self) -> str:
        end = self._data.find(b"\0", self.at)
        if end < 0:
            raise Malformed("a text without an end")
        found = self._data[self.at : end].decode()
        self.at = end + 1
        return found

    def column(self) -> RelationColumn:
        (flags,) = self.numbers("B")
        name = self.text()
        type, _ = self.numbers("Ii")
        return RelationColumn(name, type, bool(flags & KEY_FLAG))

    def row(self) -> Row:
        (count,) = self.numbers("h")
        return tuple(self._value() for _ in range(count))

    def _value(self) -> str | Unsent | None:
        match kind := self.letter():
            case "t":
                (size,) = self.numbers("I")
                if self.at + size > len(self._data):
                    raise Malformed("a value that is longer than its message")
                self.at += size
                return self._data[self.at - size : self.at].decode()
            case "n":
                return None
            case "u":
                return UNSENT
            case _:
                raise Malformed(f"a value of kind {kind!r}")
