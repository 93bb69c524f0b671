"""The decoder of pgoutput's messages, byte by byte; and of the texts in which PostgreSQL writes values."""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.syncs.plan.values import BitsOfServer, Duration, Undecoded
from lakegate.syncs.sources.pgoutput import (
    UNSENT,
    Began,
    Committed,
    Emptied,
    Malformed,
    Relation,
    RelationColumn,
    Row,
    RowSent,
    decoded,
)
from lakegate.syncs.sources.postgres_texts import reader

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(st.none(), st.just(UNSENT), TEXT)
OID, LSN = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
ROWS = st.lists(VALUES, max_size=6).map(tuple)


def text(value: str) -> bytes:
    """A text with its end."""
    return value.encode() + b"\0"


def row(values: Row) -> bytes:
    """The values of a row."""
    parts = [struct.pack("!h", len(values))]
    for one in values:
        if one is None:
            parts.append(b"n")
        elif isinstance(one, str):
            parts.append(b"t" + struct.pack("!I", len(one.encode())) + one.encode())
        else:
            parts.append(b"u")
    return b"".join(parts)


@given(OID, TEXT, TEXT, st.lists(st.tuples(TEXT, OID, st.booleans()), max_size=5))
def test_a_relation(id: int, schema: str, table: str, columns: list[tuple[str, int, bool]]) -> None:
    """Its columns, and which of them identify a row."""
    body = b"".join(bytes([is_key]) + text(name) + struct.pack("!Ii", type, -1) for name, type, is_key in columns)
    data = b"R" + struct.pack("!I", id) + text(schema) + text(table) + b"d" + struct.pack("!h", len(columns)) + body
    assert decoded(data) == Relation(id, schema, table, tuple(RelationColumn(*one) for one in columns))


@given(OID, ROWS, st.one_of(st.none(), ROWS), st.booleans())
def test_rows(id: int, new: Row, old: Row | None, is_whole: bool) -> None:
    """Inserted, updated with and without the row before, and deleted."""
    head = struct.pack("!I", id)
    assert decoded(b"I" + head + b"N" + row(new)) == RowSent("c", id, None, new, False)
    before = b"" if old is None else (b"O" if is_whole else b"K") + row(old)
    whole = old is not None and is_whole
    assert decoded(b"U" + head + before + b"N" + row(new)) == RowSent("u", id, old, new, whole)
    if old is not None:
        assert decoded(b"D" + head + before) == RowSent("d", id, old, None, is_whole)


@given(LSN, LSN, st.integers(0, 2**50), OID)
def test_a_transaction(commit: int, end: int, at: int, xid: int) -> None:
    """Its id, the time of its commit, and its end."""
    assert decoded(b"B" + struct.pack("!qqI", commit, at, xid)) == Began(xid, 946_684_800_000 + at // 1000)
    assert decoded(b"C" + struct.pack("!bqqq", 0, commit, end, at)) == Committed(end)


@given(st.lists(OID, max_size=4))
def test_emptied_tables(ids: list[int]) -> None:
    """All tables of one statement."""
    assert decoded(b"T" + struct.pack(f"!Ib{len(ids)}I", len(ids), 0, *ids)) == Emptied(tuple(ids))


@pytest.mark.parametrize("data", [b"Oxxx", b"Yxxx", b"Mxxx"])
def test_messages_to_skip(data: bytes) -> None:
    """Origins, types and messages of applications say nothing of rows."""
    assert decoded(data) is None


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(Malformed):
        decoded(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"Z", b"I\0\0\0\1K\0\0", b"D\0\0\0\1N\0\0", b"U\0\0\0\1X\0\0", b"C" + bytes(26), b"I\0\0\0\1N\0\1t\0\0\0\5ab",
     b"I\0\0\0\1N\0\1b\0\0\0\0", b"R\0\0\0\1abc"],
)  # fmt: skip
def test_damaged_messages(data: bytes) -> None:
    """A part, an unknown message, or more than there should be."""
    with pytest.raises(Malformed):
        decoded(data)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("bool", "t", True),
        ("bool", "f", False),
        ("int8", "-9223372036854775808", -(2**63)),
        ("float8", "-Infinity", float("-inf")),
        ("numeric", "1.10", Decimal("1.10")),
        ("money", "-$1,012.30", Decimal("-1012.30")),
        ("bytea", "\\x00ff", b"\0\xff"),
        ("date", "2024-10-04", date(2024, 10, 4)),
        ("date", "infinity", "infinity"),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("timestamp", "2024-10-04 01:02:03.5", datetime(2024, 10, 4, 1, 2, 3, 500_000)),
        ("timestamp", "12026-04-22 00:00:00", "12026-04-22T00:00:00"),
        ("timestamptz", "2024-10-04 01:02:03+00", datetime(2024, 10, 4, 1, 2, 3, tzinfo=UTC)),
        ("timestamptz", "-infinity", "-infinity"),
        ("interval", "PT26H3M4.5S", Duration(93_784_500_000)),
        ("interval", "PT-1H-0.000001S", Duration(-3_600_000_001)),
        ("interval", "P1DT2H", "P1DT2H"),
        ("varbit", "0011", BitsOfServer("0011")),
        ("hstore", '"a\\"b"=>"1,2", "b"=>NULL', {'a"b': "1,2", "b": None}),
        ("text[]", '{a,"",";x","q\\"\\\\,{}","NULL",NULL}', ["a", "", ";x", 'q"\\,{}', "NULL", None]),
        ("int4[]", "[0:1][2:3]={{1,2},{3,NULL}}", [[1, 2], [3, None]]),
        ("box[]", "{(3,2),(0,0);(1,1),(0,0)}", ["(3,2),(0,0)", "(1,1),(0,0)"]),
    ],
)
def test_texts_of_values(kind: str, written: str, value: Any) -> None:
    """As each type is written."""
    read = reader(kind)
    assert read is not None
    found = read(written)
    assert found == value
    assert type(value) is list or type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "written"), [("int4", "x"), ("date", "2024-99-99"), ("bytea", "abc"), ("int4[]", "{1,2"), ("hstore", "a")]
)
def test_a_text_that_is_no_value_is_never_guessed(kind: str, written: str) -> None:
    """Only its row is faulty."""
    read = reader(kind)
    assert read is not None
    assert isinstance(read(written), Undecoded)


@given(st.lists(st.one_of(st.none(), TEXT), max_size=6))
def test_an_array_of_texts(values: list[str | None]) -> None:
    """Whatever its elements are."""

    def quoted(one: str) -> str:
        return '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"'

    read = reader("text[]")
    assert read is not None
    assert read("{" + ",".join("NULL" if one is None else quoted(one) for one in values) + "}") == values
