"""Decodes values from the texts in which PostgreSQL writes them.

The texts are those of the session settings `OUTPUT`. A type that is not listed here stays a text, which is what a column of the
same type in another PostgreSQL takes.

Source: PostgreSQL's documentation, "Data Types", with "Array Input and Output Syntax" and "hstore External Representation".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from lakegate.syncs.plan.values import ArrayOfServer, BitsOfServer, Duration, Undecoded

Read = Callable[[str], Any]
OUTPUT: Mapping[str, str] = {
    "DateStyle": "ISO", "IntervalStyle": "iso_8601", "TimeZone": "UTC", "bytea_output": "hex", "extra_float_digits": "3",
    "lc_monetary": "C", "client_encoding": "UTF8",
}  # fmt: skip
"""The session settings that decide how the server writes values."""
ARRAY = "[]"
"""Suffix of the kind of an array, after the kind of its elements."""
_CLOCK = re.compile(r"PT(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,6}))?S)?")
_ITEM = {between: re.compile(r'"((?:[^"\\]|\\.)*)"|([^{}"\\' + between + "]+)", re.DOTALL) for between in (",", ";")}
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |$)', re.DOTALL)


def reader(kind: str) -> Read | None:
    """Returns the function that decodes the texts of a type; None if they stay as they are.

    Args:
        kind: The type's name in the catalogue, without domains; of an array that of its elements and `[]`.
    """
    if kind.endswith(ARRAY):
        each, between = reader(kind.removesuffix(ARRAY)), ";" if kind == "box[]" else ","
        return _safe(kind, lambda text: _array(text, each, between))
    read = READERS.get(kind)
    return None if read is None else _safe(kind, read)


def _safe(kind: str, read: Read) -> Read:
    def attempt(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, ArithmeticError, AttributeError) as error:
            return Undecoded(text, f"the text of a value of type {kind} cannot be read ({error})")

    return attempt


def _date(text: str) -> date | str:
    # Others are infinite, or outside of Python's range: each target takes or refuses the text.
    return date.fromisoformat(text) if len(text) == len("2026-01-02") else text


def _moment(text: str) -> datetime | str:
    if text[4:5] != "-" or text.endswith("BC"):
        return text.replace(" ", "T", 1).replace("+00", "+00:00", 1)
    return datetime.fromisoformat(text)


def _interval(text: str) -> Duration | str:
    """Returns a number of microseconds. Years, months and days have no fixed length: such an interval stays a text."""
    parts = _CLOCK.fullmatch(text)
    if parts is None:
        return text
    hours, minutes, sign, seconds, fraction = parts.groups(default="0")
    micros = int(seconds) * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    return Duration((int(hours) * 60 + int(minutes)) * 60_000_000 + (-micros if sign == "-" else micros))


def _money(text: str) -> Decimal:
    return Decimal(re.sub(r"[$,]", "", text))


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("no hex")
    return bytes.fromhex(text[2:])


def _array(text: str, each: Read | None, between: str) -> ArrayOfServer:
    # Bounds are written, as in `[0:1]={1,2}`, if the numbers of the elements do not begin with 1.
    body = text[text.index("]={") + 2 :] if text.startswith("[") else text
    found, end = _items(body, 0, each, between)
    if end != len(body):
        raise ValueError("text after the end of an array")
    return ArrayOfServer(found, text)


def _items(text: str, at: int, each: Read | None, between: str) -> tuple[list[Any], int]:
    """Returns the elements of the array that begins at `at`, and its end."""
    if text[at : at + 1] != "{":
        raise ValueError("an array does not begin with {")
    found: list[Any] = []
    at += 1
    while text[at : at + 1] != "}":
        if text[at : at + 1] == "{":
            inner, at = _items(text, at, each, between)
            found.append(inner)
        elif item := _ITEM[between].match(text, at):
            at = item.end()
            quoted, plain = item.groups()
            value = _unescaped(quoted) if quoted is not None else None if plain == "NULL" else plain
            found.append(value if value is None or each is None else each(value))
        else:
            raise ValueError("an element of an array")
        if text[at : at + 1] == between:
            at += 1
        elif text[at : at + 1] != "}":
            raise ValueError("an element of an array is followed by something else")
    return found, at + 1


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) if "\\" in text else text


def _hstore(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ValueError("a pair of an hstore")
        name, value = pair.groups()
        found[_unescaped(name)] = None if value is None else _unescaped(value)
        at = pair.end()
    return found


READERS: Mapping[str, Read] = {
    "bool": lambda text: text == "t",
    **dict.fromkeys(("int2", "int4", "int8", "oid"), int),
    **dict.fromkeys(("float4", "float8"), float),
    "numeric": Decimal,
    "money": _money,
    "bytea": _bytes,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _moment,
    "interval": _interval,
    "bit": BitsOfServer,
    "varbit": BitsOfServer,
    "hstore": _hstore,
}
"""Type → function from its text to Python's value."""
