"""Values between a source and a target: what a column may hold, and how the schemas of Debezium's envelopes say it.

Rules for editors: a value is decoded here, once, into what it is; how a column takes it is the target's business
(`lakegate.syncs.targets.encode`). A value that cannot be decoded is `Undecoded`, never a guess: its row alone is at fault.

Source: Debezium's documentation of its connectors, "Data type mappings".
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from lakegate.syncs.plan import json_numbers

Decode = Callable[[Any], Any]
BytesAs = Literal["base64", "base64-url-safe", "hex"]
"""How bytes are written in an envelope without a schema (`binary.handling.mode`)."""
UNAVAILABLE = "__debezium_unavailable_value"
"""In place of a large value that did not change and that the source did not send, unless the connector says another text."""
EPOCH = datetime(1970, 1, 1)
FRACTION_MAX = 6
"""Digits of a second that Python's types hold."""
BITS_MAX = 1 << 16
"""Up to here a bit string has the leading zeros of its column's length; a column without a length says two thousand million."""
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
"""After so many days the calendar repeats."""
INFINITE_DAYS: Mapping[int, str] = {
    2_147_483_647: "infinity", -2_147_483_648: "-infinity",
    # What the driver's arithmetic makes of them.
    -2_147_472_692: "infinity", -2_147_472_691: "-infinity",
}  # fmt: skip
INFINITE_MICROS: Mapping[int, str] = {
    9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity",
    (1 << 63) - 1: "infinity", -(1 << 63): "-infinity",
}  # fmt: skip
INFINITE_MILLIS: Mapping[int, str] = {
    **INFINITE_MICROS, 9_223_372_036_825_200: "infinity", -9_223_372_036_832_400: "-infinity",
}  # fmt: skip
ZONED = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(Z|[+-]\d\d:?\d\d(?::?\d\d)?)?")
NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


class Misfit(ValueError):
    """A value does not fit its column. The row is at fault, not the target."""


class Bits(str):
    """A bit string as digits. Leading zeros are those of the column's length, which a varying column does not have."""

    __slots__ = ()


class Duration(int):
    """An interval in microseconds."""

    __slots__ = ()


class BareText(str):
    """A text of an envelope without a schema: perhaps it stands for bytes."""

    __slots__ = ()

    def bytes(self) -> bytes:
        """What it stands for.

        Raises:
            Misfit: The source does not say how bytes are written, or this is not written so.
        """
        raise Misfit(
            "a text for a binary column, in an envelope without a schema: turn schemas on at the converter, or say how "
            "bytes are written under `from`, as `bytes: base64`"
        )


class BareNumber(int):
    """A whole number of an envelope without a schema: perhaps it stands for a date or a time."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A value that is not what its schema says."""

    raw: str
    reason: str

    def __str__(self) -> str:
        return self.raw


def bare(bytes_as: BytesAs | None) -> Decode:
    """Marks the values of an envelope without a schema.

    Args:
        bytes_as: How bytes are written in it; None: the source does not say.
    """
    text: type[BareText] = BareText if bytes_as is None else _BARE[bytes_as]

    def mark(value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return text(value)
        if kind is int:
            return BareNumber(value)
        return [mark(one) for one in value] if kind is list else value

    return mark


def decoder(schema: Mapping[str, Any]) -> Decode | None:
    """What makes a value out of its JSON, by its schema; None if it is what it looks like."""
    name = str(schema.get("name") or "")
    parameters = schema.get("parameters") or {}
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(parameters.get("scale", 0))
        return lambda value: decimal(value, scale)
    if name == "io.debezium.data.VariableScaleDecimal":
        return variable_decimal
    if name == "io.debezium.data.Bits":
        length = int(parameters.get("length", 1))
        return lambda value: _bits(base64.b64decode(value, validate=True), length)
    if name in LOGICAL:
        return LOGICAL[name]
    if name.startswith("io.debezium.data.geometry.") or name.endswith(".SparseDoubleVector"):
        return None  # a target that has such columns takes them apart
    match schema.get("type"):
        case "bytes":
            return lambda value: base64.b64decode(value, validate=True)
        case "float" | "double" | "float32" | "float64":
            return lambda value: float(value) if isinstance(value, str) and value in NOT_FINITE else value
        case "array":
            each = _of(schema.get("items"))
            return None if each is None else lambda values: [None if one is None else each(one) for one in values]
        case "map":
            return _map(_of(schema.get("keys")), _of(schema.get("values")))
        case "struct":
            return _struct(columns(schema))
    return None


def columns(schema: object) -> Mapping[str, Decode]:
    """Field → decoder of a struct, for the fields that need one."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    found = {}
    for one in fields or ():
        if isinstance(one, dict) and "field" in one:
            decode = decoder(one)
            if decode is not None:
                found[one["field"]] = decode
    return found


def decimal(value: str | float | Decimal, scale: int) -> Decimal:
    """An exact number from base64 of its unscaled value, or from a converter with `decimal.format=NUMERIC`."""
    if not isinstance(value, str):
        return Decimal(str(value))
    number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    return Decimal(f"{number}e{-scale}")  # as text it is exact, whatever the precision of this thread


def variable_decimal(value: Mapping[str, Any]) -> Decimal:
    """An exact number from `{"scale": …, "value": base64}`."""
    return decimal(value["value"], int(value["scale"]))


def clock(microseconds: int, beyond: str = "") -> str:
    """`hh:mm:ss.ffffff`, below zero and beyond a day, too; `beyond`: digits behind the microseconds."""
    # MySQL's TIME is negative or beyond a day, and PostgreSQL has 24:00:00: what the target cannot hold, it refuses.
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    fraction = (f"{rest:06}" if rest or beyond else "") + beyond
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (f".{fraction}" if fraction else "")
    return f"-{text}" if microseconds < 0 else text


def _of(schema: object) -> Decode | None:
    return decoder(schema) if isinstance(schema, dict) else None


def _map(key: Decode | None, value: Decode | None) -> Decode | None:
    if key is None and value is None:
        return None

    def read(pairs: Any) -> Any:
        items = pairs.items() if isinstance(pairs, dict) else pairs  # keys that are not texts come as a list of pairs
        decoded = ((k if key is None else key(k), v if v is None or value is None else value(v)) for k, v in items)
        return dict(decoded)

    return read


def _struct(decoders: Mapping[str, Decode]) -> Decode | None:
    if not decoders:
        return None

    def read(value: Any) -> Any:
        return {
            name: one if one is None or name not in decoders else decoders[name](one) for name, one in value.items()
        }

    return read


def _bits(data: bytes, length: int) -> Bits:
    digits = f"{int.from_bytes(data, 'little'):b}"
    return Bits(digits.zfill(length) if length <= BITS_MAX else digits)


def _day(days: int) -> date | str:
    if days in INFINITE_DAYS:
        return INFINITE_DAYS[days]
    try:
        return (EPOCH + timedelta(days=days)).date()
    except OverflowError:
        text, era = _far(days)
        return text + era


def _far(days: int) -> tuple[str, str]:
    """A date that Python does not have, as PostgreSQL writes it: `yyyyy-mm-dd`, and ` BC` where that belongs behind all."""
    cycles, rest = divmod(days + EPOCH.toordinal() - 1, CYCLE_DAYS)
    there = date.fromordinal(rest + 1)
    return _dated(there.year + CYCLE_YEARS * cycles, f"{there.month:02}-{there.day:02}")


def _dated(year: int, month_and_day: str) -> tuple[str, str]:
    return f"{1 - year if year < 1 else year:04}-{month_and_day}", " BC" if year < 1 else ""


def _moment(per_second: int, infinite: Mapping[int, str]) -> Callable[[int], datetime | str]:
    # Without a zone: what the source keeps without one, Debezium counts as if it were UTC.
    def read(value: int) -> datetime | str:
        if value in infinite:
            return infinite[value]
        micros, beyond = _split(value, per_second)
        try:
            moment = EPOCH + timedelta(microseconds=micros)
        except OverflowError:
            days, rest = divmod(micros, 86_400_000_000)
            text, era = _far(days)
            return f"{text}T{clock(rest, beyond)}{era}"
        return moment if not beyond else f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}{beyond}"

    return read


def _split(value: int, per_second: int) -> tuple[int, str]:
    """Whole microseconds, and the digits behind them."""
    if per_second <= 1_000_000:
        return value * (1_000_000 // per_second), ""
    micros, rest = divmod(value, per_second // 1_000_000)
    return micros, f"{rest:03}".rstrip("0")


def _zoned(text: str) -> datetime | str:
    """A moment in UTC; a text where Python has no such moment."""
    if text in ("infinity", "-infinity"):
        return text
    parts = ZONED.fullmatch(text)
    if parts is None:
        return datetime.fromisoformat(text).astimezone(UTC)
    year, month, day, hour, minute, second, fraction, zone = parts.groups()
    beyond = (fraction or "")[FRACTION_MAX:].rstrip("0")
    if not beyond and len(year) == len("2026"):
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except OverflowError:
            pass
    date_text, era = _dated(int(year), f"{month}-{day}")
    offset = "+00:00" if zone in ("Z", None) else zone
    fraction = f".{fraction.rstrip('0')}" if fraction and fraction.rstrip("0") else ""
    return f"{date_text}T{hour}:{minute}:{second or '00'}{fraction}{offset}{era}"


def _time(per_second: int) -> Callable[[int], str]:
    def read(value: int) -> str:
        # From the front, so that digits behind microseconds belong to what lies before zero, too.
        micros, beyond = _split(abs(value), per_second)
        text = clock(micros, beyond)
        return f"-{text}" if value < 0 else text

    return read


def _nano_duration(value: int) -> Duration:
    if value % 1_000:
        raise ValueError("an interval of nanoseconds")
    return Duration(value // 1_000)


class _Base64(BareText):
    __slots__ = ()

    def bytes(self) -> bytes:
        return _or_misfit(lambda: base64.b64decode(self, validate=True), "base64")


class _Base64UrlSafe(BareText):
    __slots__ = ()

    def bytes(self) -> bytes:
        return _or_misfit(lambda: base64.b64decode(self, altchars=b"-_", validate=True), "base64-url-safe")


class _Hex(BareText):
    __slots__ = ()

    def bytes(self) -> bytes:
        return _or_misfit(lambda: bytes.fromhex(self), "hex")


def _or_misfit(read: Callable[[], bytes], how: str) -> bytes:
    try:
        return read()
    except ValueError as error:
        raise Misfit(f"a text for a binary column is not {how}") from error


_BARE: Mapping[BytesAs, type[BareText]] = {"base64": _Base64, "base64-url-safe": _Base64UrlSafe, "hex": _Hex}
LOGICAL: Mapping[str, Decode] = {
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.Timestamp": _moment(1_000, INFINITE_MILLIS),
    "org.apache.kafka.connect.data.Timestamp": _moment(1_000, INFINITE_MILLIS),
    "io.debezium.time.MicroTimestamp": _moment(1_000_000, INFINITE_MICROS),
    "io.debezium.time.NanoTimestamp": _moment(1_000_000_000, {}),
    "io.debezium.time.ZonedTimestamp": _zoned,
    "io.debezium.time.Time": _time(1_000),
    "org.apache.kafka.connect.data.Time": _time(1_000),
    "io.debezium.time.MicroTime": _time(1_000_000),
    "io.debezium.time.NanoTime": _time(1_000_000_000),
    "io.debezium.time.MicroDuration": Duration,
    "io.debezium.time.NanoDuration": _nano_duration,
    "io.debezium.time.IsoDate": lambda text: text.removesuffix("Z"),
    "io.debezium.time.IsoTime": lambda text: text.removesuffix("Z"),
    "io.debezium.time.IsoTimestamp": lambda text: text.removesuffix("Z"),
}
"""A schema's name → its value, as Python has it."""


KEPT: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "lakegate_undecoded": (Undecoded, lambda one: [one.raw, one.reason], lambda pair: Undecoded(*pair)),
    "lakegate_bare_text": (BareText, str, BareText),
    "lakegate_bare_number": (BareNumber, int, BareNumber),
    "lakegate_bits": (Bits, str, Bits),
    "lakegate_microseconds": (Duration, int, Duration),
    "lakegate_datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "lakegate_date": (date, date.isoformat, date.fromisoformat),
    "lakegate_decimal": (Decimal, str, Decimal),
}
"""Mark → type, how it is written in JSON, and how it is read again. The first type that fits."""


def to_json(value: Any) -> Any:
    """The value with a mark at each part that JSON has no word for."""
    if isinstance(value, dict):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    for mark, (kind, write, _) in KEPT.items():
        if isinstance(value, kind):
            return {mark: write(value)}
    return value


def from_json(value: Any) -> Any:
    """What `to_json` wrote."""
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, one),) = value.items()
        if mark in KEPT:
            return KEPT[mark][2](one)
    return {name: from_json(one) for name, one in value.items()}


class Placeholders:
    """What stands in for a large value that did not change and that the source did not send.

    Args:
        text: The connector's `unavailable.value.placeholder`; with `hex:` in front, its bytes.
    """

    def __init__(self, text: str) -> None:
        data = bytes.fromhex(text.removeprefix("hex:")) if text.startswith("hex:") else text.encode()
        text = data.decode("utf-8", "replace")
        pair = {text: text}
        forms = {data.hex(), *(encode(data).decode() for encode in (base64.b64encode, base64.urlsafe_b64encode))}
        self._texts = frozenset({text, json_numbers.dumps(pair).replace(": ", ":"), json_numbers.dumps(pair), *forms})
        self._uuid = _uuid_of(data)
        self._pair, self._bytes = pair, list(data)

    def has(self, value: object) -> bool:
        """Whether a value, as it stands in the JSON, is one."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, dict):
            return value == self._pair or str(value.get("wkb")) in _GEOMETRIES
        if not isinstance(value, list) or not value:
            return False
        if len(value) == 1 and (value[0] == self._uuid or self.has(value[0])):
            return True
        # Of an array of anything but texts: one element for each byte.
        return len(value) == len(self._bytes) and [_byte(one) for one in value] == self._bytes


def _byte(value: object) -> object:
    try:
        if isinstance(value, str):
            value = decimal(value, 0)
        elif isinstance(value, dict):
            value = variable_decimal(value)
    except (ValueError, KeyError, TypeError):
        return None
    # A byte of Java has a sign.
    return value + 256 if isinstance(value, int | float | Decimal) and -128 <= value < 0 else value


def _uuid_of(data: bytes) -> str:
    """A UUID made of the digest of a name (version 3), as Java's `nameUUIDFromBytes` does."""
    digest = bytearray(hashlib.md5(data, usedforsecurity=False).digest())
    digest[6], digest[8] = digest[6] & 0x0F | 0x30, digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


_GEOMETRIES = frozenset(
    base64.b64encode(bytes.fromhex(one)).decode()
    for one in (
        "0101000020E6100000000000FC83D797C1000000FC83D797C1",
        "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
    )
)
"""Of PostGIS: points far away."""
