"""Values between a source and a target: the kinds of values, and the decoders for the schemas of Debezium's envelopes.

Rules for editors: a value is decoded here, once. The target decides how a column stores the value
(`lakegate.syncs.targets.encode`). A value that cannot be decoded becomes `Undecoded`, never a guess: only its row is faulty.

Source: Debezium's documentation of its connectors, "Data type mappings".
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from lakegate.syncs.plan import json_numbers

Decode = Callable[[Any], Any]
BytesAs = Literal["base64", "base64-url-safe", "hex"]
"""The encoding of bytes in an envelope without a schema (`binary.handling.mode`)."""
UNAVAILABLE = "__debezium_unavailable_value"
"""The default text for a large unchanged value that the source did not send. A connector may set another text."""
EPOCH = datetime(1970, 1, 1)
FRACTION_MAX = 6
"""The number of decimal places of a second that Python's types hold."""
BITS_MAX = 1 << 16
"""Up to this length, a bit string is padded with leading zeros. A column without a length reports about 2,000,000,000."""
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
"""The calendar repeats after this number of days and years."""
INFINITE_DAYS: Mapping[int, str] = {
    2_147_483_647: "infinity", -2_147_483_648: "-infinity",
    # The results of the driver's arithmetic on infinite dates.
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
    """A value does not fit its column. The row is faulty, not the target."""


class Bits(str):
    """A bit string as digits. Padded to the column's length, unless the column is varying."""

    __slots__ = ()


class BitsOfServer(Bits):
    """A bit string with all its leading zeros, as PostgreSQL itself writes it."""

    __slots__ = ()


class ArrayOfServer(list[Any]):
    """An array, with the text in which PostgreSQL writes it: the text also has its dimensions and their bounds."""

    def __init__(self, values: Iterable[Any], text: str) -> None:
        super().__init__(values)
        self.text = text


class Duration(int):
    """An interval in microseconds."""

    __slots__ = ()


class BareText(str):
    """A text of an envelope without a schema. The text may represent bytes."""

    __slots__ = ()

    def bytes(self) -> bytes:
        """Returns the bytes that the text represents.

        Raises:
            Misfit: The encoding of bytes is not configured, or the text is not in that encoding.
        """
        raise Misfit(
            "a text for a binary column, in an envelope without a schema: turn schemas on at the converter, or say how "
            "bytes are written under `from`, as `bytes: base64`"
        )


class BareNumber(int):
    """A whole number of an envelope without a schema. The number may represent a date or a time."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A value that does not match its schema."""

    raw: str
    reason: str

    def __str__(self) -> str:
        return self.raw


def bare(bytes_as: BytesAs | None) -> Decode:
    """Marks the values of an envelope without a schema.

    Args:
        bytes_as: The encoding of bytes in the envelope; None if not configured.
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
    """Returns the decoder of a schema's JSON values; None if they need no decoding."""
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
        return None  # decoded by a target that has such columns
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
    """Returns field → decoder for the fields of a struct that need one."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    found = {}
    for one in fields or ():
        if isinstance(one, dict) and "field" in one:
            decode = decoder(one)
            if decode is not None:
                found[one["field"]] = decode
    return found


def decimal(value: str | float | Decimal, scale: int) -> Decimal:
    """Returns an exact number from the base64 of its unscaled value, or from a converter with `decimal.format=NUMERIC`."""
    if not isinstance(value, str):
        return Decimal(str(value))
    number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    return Decimal(f"{number}e{-scale}")  # exact as text, regardless of the thread's decimal precision


def variable_decimal(value: Mapping[str, Any]) -> Decimal:
    """Returns an exact number from `{"scale": …, "value": base64}`."""
    return decimal(value["value"], int(value["scale"]))


def clock(microseconds: int, beyond: str = "") -> str:
    """Returns `hh:mm:ss.ffffff`, also for negative times and for more than a day. `beyond`: digits after the microseconds."""
    # MySQL's TIME can be negative or exceed a day, and PostgreSQL has 24:00:00. The target refuses what it cannot hold.
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
        items = pairs.items() if isinstance(pairs, dict) else pairs  # maps with non-text keys are lists of pairs
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
    """Returns a date outside Python's range as PostgreSQL writes it: `yyyyy-mm-dd`, and a suffix ` BC` or an empty text."""
    cycles, rest = divmod(days + EPOCH.toordinal() - 1, CYCLE_DAYS)
    there = date.fromordinal(rest + 1)
    return _dated(there.year + CYCLE_YEARS * cycles, f"{there.month:02}-{there.day:02}")


def _dated(year: int, month_and_day: str) -> tuple[str, str]:
    return f"{1 - year if year < 1 else year:04}-{month_and_day}", " BC" if year < 1 else ""


def _moment(per_second: int, infinite: Mapping[int, str]) -> Callable[[int], datetime | str]:
    # No zone: Debezium converts source values without a zone as if they were UTC.
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
    """Returns whole microseconds, and the digits after them."""
    if per_second <= 1_000_000:
        return value * (1_000_000 // per_second), ""
    micros, rest = divmod(value, per_second // 1_000_000)
    return micros, f"{rest:03}".rstrip("0")


def _zoned(text: str) -> datetime | str:
    """Returns a moment in UTC, or a text if the moment is outside Python's range."""
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
        # Split the absolute value, so that the digits after the microseconds are also right for negative times.
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
"""Name of a schema → decoder to Python's value."""


KEPT: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "lakegate_undecoded": (Undecoded, lambda one: [one.raw, one.reason], lambda pair: Undecoded(*pair)),
    "lakegate_bare_text": (BareText, str, BareText),
    "lakegate_bare_number": (BareNumber, int, BareNumber),
    "lakegate_bits_of_server": (BitsOfServer, str, BitsOfServer),
    "lakegate_bits": (Bits, str, Bits),
    "lakegate_microseconds": (Duration, int, Duration),
    "lakegate_datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "lakegate_date": (date, date.isoformat, date.fromisoformat),
    "lakegate_decimal": (Decimal, str, Decimal),
}
"""Mark → type, function that writes it as JSON, function that reads it. The first matching type is used."""


def to_json(value: Any) -> Any:
    """Returns the value with a mark at each part that JSON cannot represent."""
    if isinstance(value, dict):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    for mark, (kind, write, _) in KEPT.items():
        if isinstance(value, kind):
            return {mark: write(value)}
    return value


def from_json(value: Any) -> Any:
    """Returns the value that `to_json` wrote."""
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
    """Placeholders for a large unchanged value that the source did not send.

    Args:
        text: The connector's `unavailable.value.placeholder`; with the prefix `hex:`, its bytes.
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
        """Returns whether a JSON value is a placeholder."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, dict):
            return value == self._pair or str(value.get("wkb")) in _GEOMETRIES
        if not isinstance(value, list) or not value:
            return False
        if len(value) == 1 and (value[0] == self._uuid or self.has(value[0])):
            return True
        # An array of another type than text has one element for each byte of the placeholder.
        return len(value) == len(self._bytes) and [_byte(one) for one in value] == self._bytes


def _byte(value: object) -> object:
    try:
        if isinstance(value, str):
            value = decimal(value, 0)
        elif isinstance(value, dict):
            value = variable_decimal(value)
    except (ValueError, KeyError, TypeError):
        return None
    # Java's bytes are signed.
    return value + 256 if isinstance(value, int | float | Decimal) and -128 <= value < 0 else value


def _uuid_of(data: bytes) -> str:
    """Returns a name-based UUID (version 3), as Java's `nameUUIDFromBytes` does."""
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
"""Placeholders of PostGIS columns: points far away."""
