"""The value types of keys: how each is read, and how the JSON Schema and the reference describe it.

Rules for editors: a kind reads a node, or records a fault and returns None; it never raises. Rules between several keys
belong in `rules.py`. A fault repeats a value only through `document.shown`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from lakegate.config.model import Entry
from lakegate.config.yaml_nodes import Broken, Entries, Faults, Items, Node, Scalar, joined, shown, shown_key
from lakegate.redaction import HIDDEN, masked, setting
from lakegate.turns.protocol.ordering import After

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound=str)
JsonSchema = dict[str, object]

NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""The names of pipelines, tables and streams: they are used in folders, Spark job groups and command options."""
LOCK_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
NOT_IN_THIS_VERSION: Final = "not in this version"
DURATION_DAYS_MAX: Final = 36_500
COUNT_MAX: Final = 10**12
TEXT_CHARACTERS_MAX: Final = 20_000

_NUMBER = re.compile(
    r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|0x[0-9a-fA-F]+|0o[0-7]+"
)
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@dataclass(slots=True, kw_only=True)
class Reader:
    """The inputs of reading, and its findings so far."""

    base_dir: str
    """The absolute folder to which relative paths refer."""
    faults: Faults
    entries: list[Entry] = field(default_factory=list)

    def fault(self, node: Node, at: str, what: str, expected: str = "") -> None:
        """Records a fault of `node`; does nothing when a fault of it is known."""
        if not isinstance(node, Broken):
            self.faults.add(node.mark, at, what, expected)

    def record(self, at: str, node: Scalar, value: str) -> None:
        """Records a value and its origin, for `lakegate config show`."""
        text = value
        if node.written is not None and (node.takes_environment or masked(at, node.written) != node.written):
            # The reference is shown instead of its value, because secrets come in through references.
            text = node.written
        origin = "Python" if node.mark.where == at else node.mark.where
        self.entries.append(Entry(key=at, value=masked(at, text), origin=origin))

    def record_setting(self, at: str, name: str, node: Scalar) -> None:
        """Records a value whose key Lakegate does not know: shown only if it is known to be harmless."""
        if node.written is not None and node.takes_environment:
            value = re.sub(r"(\$\{\w+:-)[^}]*", rf"\g<1>{HIDDEN}", masked(at, node.written))
        else:
            value = setting(name, node.text)
        self.entries.append(Entry(key=at, value=value, origin="Python" if node.mark.where == at else node.mark.where))

    def record_default(self, at: str, value: str) -> None:
        """Records a default value."""
        self.entries.append(Entry(key=at, value=masked(at, value), origin="default"))


class Kind(Protocol[T_co]):
    """A value type."""

    @property
    def word(self) -> str:
        """The name of the type in the reference."""

    def read(self, node: Node, at: str, reader: Reader) -> T_co | None:
        """Returns the value; None, with a fault recorded, if `node` has another type."""

    def schema(self) -> JsonSchema:
        """Returns the JSON Schema of the type."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean "x"?)`, or an empty text."""
    close = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def scalar_of(node: Node, at: str, reader: Reader, expected: str) -> Scalar | None:
    """Returns `node` if it is a scalar; otherwise None, with a fault recorded."""
    match node:
        case Scalar() if node.is_null:
            reader.fault(node, at, "no value", expected)
        case Scalar():
            return node
        case Items():
            reader.fault(node, at, "a list", expected)
        case Entries():
            reader.fault(node, at, "a mapping", expected)
        case Broken():
            pass
    return None


def text_of(node: Node, at: str, reader: Reader, expected: str) -> Scalar | None:
    """Returns `node` if it is a scalar that YAML and the JSON Schema read as a text; otherwise None, with a fault recorded."""
    scalar = scalar_of(node, at, reader, expected)
    if scalar is None or _is_text(scalar):
        return scalar
    reader.fault(node, at, f"{shown(scalar, at)} is not a text", f"{expected}; put it in quotes")
    return None


def _is_text(node: Scalar) -> bool:
    if not node.is_plain or node.written is not None:
        return True
    return node.text not in _TRUTH and _NUMBER.fullmatch(node.text) is None


def or_reference(schema: JsonSchema) -> JsonSchema:
    """Returns the JSON Schema `schema`, or a text with a variable in it, which is checked once it is expanded."""
    return {"anyOf": [schema, {"type": "string", "pattern": r"\$\{"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text, optionally of one form."""

    pattern: str | None = None
    expected: str = "a text"
    word: str = "text"

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = text_of(node, at, reader, self.expected)
        if scalar is None:
            return None
        if not scalar.text.strip():
            reader.fault(node, at, "an empty text", self.expected)
        elif len(scalar.text) > TEXT_CHARACTERS_MAX:
            reader.fault(node, at, "a text that is too long", f"at most {TEXT_CHARACTERS_MAX} characters")
        elif self.pattern is not None and re.fullmatch(self.pattern, scalar.text) is None:
            reader.fault(node, at, f"{shown(scalar, at)} cannot be used here", self.expected)
        else:
            reader.record(at, scalar, scalar.text)
            return scalar.text
        return None

    def schema(self) -> JsonSchema:
        if self.pattern is None:
            return {"type": "string", "minLength": 1}
        return or_reference({"type": "string", "pattern": f"^{self.pattern}$"})


def name_kind(of: str, pattern: str = NAME_PATTERN) -> Text:
    """Returns the type of a name that may be part of a path."""
    more = ", . " if "." in pattern else " "
    return Text(pattern=pattern, expected=f"{of}: letters, digits, _, -{more}and a letter or digit first", word="name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A whole number from 1."""

    word: str = "whole number"

    def read(self, node: Node, at: str, reader: Reader) -> int | None:
        expected = f"a whole number from 1 to {COUNT_MAX}, without quotes"
        scalar = scalar_of(node, at, reader, expected)
        if scalar is None:
            return None
        is_number = scalar.is_plain or scalar.written is not None
        if is_number and re.fullmatch(r"[0-9][0-9_]{0,15}", scalar.text):
            value = int(scalar.text.replace("_", ""))
            if 1 <= value <= COUNT_MAX:
                reader.record(at, scalar, str(value))
                return value
        reader.fault(node, at, f"{shown(scalar, at)} is not a count", expected)
        return None

    def schema(self) -> JsonSchema:
        return or_reference({"type": "integer", "minimum": 1, "maximum": COUNT_MAX})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A truth value: true or false."""

    word: str = "true or false"

    def read(self, node: Node, at: str, reader: Reader) -> bool | None:
        scalar = scalar_of(node, at, reader, "true or false")
        if scalar is None:
            return None
        if (scalar.is_plain or scalar.written is not None) and scalar.text in _TRUTH:
            reader.record(at, scalar, scalar.text.lower())
            return _TRUTH[scalar.text]
        reader.fault(node, at, f"{shown(scalar, at)} is neither", "true or false")
        return None

    def schema(self) -> JsonSchema:
        return or_reference({"type": "boolean"})


_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int | None:
    """Returns `250ms`, `30s`, `15m`, `1h` or `1d` in milliseconds; None if it is not a duration from 1 ms to a century."""
    found = re.fullmatch(r"(\d{1,15})(ms|s|m|h|d)", text, flags=re.ASCII)
    if found is None:
        return None
    value = int(found[1]) * _DURATION_UNITS_MS[found[2]]
    return value if 0 < value <= DURATION_DAYS_MAX * _DURATION_UNITS_MS["d"] else None


def duration_text(value_ms: int) -> str:
    """Returns a duration as it would be written, in the largest unit that divides it."""
    unit = next(unit for unit, size in reversed(_DURATION_UNITS_MS.items()) if value_ms % size == 0)
    return f"{value_ms // _DURATION_UNITS_MS[unit]}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A length of time, in milliseconds once read."""

    word: str = "duration"

    def read(self, node: Node, at: str, reader: Reader) -> int | None:
        expected = "a duration above zero like 250ms, 30s, 15m, 1h or 1d"
        scalar = scalar_of(node, at, reader, expected)
        if scalar is None:
            return None
        value = duration_ms(scalar.text)
        if value is None:
            reader.fault(node, at, f"{shown(scalar, at)} is not a duration", expected)
        else:
            reader.record(at, scalar, scalar.text)
        return value

    def schema(self) -> JsonSchema:
        return or_reference({"type": "string", "pattern": r"^[0-9]{1,15}(ms|s|m|h|d)$"})


@dataclass(frozen=True, kw_only=True)  # Python 3.11 cannot make `Choice[X](…)` of a frozen class with slots
class Choice(Generic[C]):
    """A choice between a few words."""

    words: tuple[C, ...]
    later: tuple[str, ...] = ()
    """Words of the design that this version does not support yet."""

    @property
    def word(self) -> str:
        return " or ".join(f"`{word}`" for word in self.words)

    def read(self, node: Node, at: str, reader: Reader) -> C | None:
        expected = " or ".join(self.words)
        scalar = scalar_of(node, at, reader, expected)
        if scalar is None:
            return None
        for word in self.words:
            if scalar.text == word:
                reader.record(at, scalar, word)
                return word
        if scalar.text in self.later:
            reader.fault(node, at, f"{shown(scalar, at)} is {NOT_IN_THIS_VERSION}", expected)
        else:
            hint = "" if scalar.takes_environment else suggestion(scalar.text, self.words)
            reader.fault(node, at, f"{shown(scalar, at)} is not known{hint}", expected)
        return None

    def schema(self) -> JsonSchema:
        return or_reference({"enum": [*self.words, *self.later]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A list of distinct texts; a single text counts as a list of one."""

    of: Text
    separator: str | None = None
    """The separator between several texts in one text."""

    @property
    def word(self) -> str:
        return f"{self.of.word} or list"

    def read(self, node: Node, at: str, reader: Reader) -> tuple[str, ...] | None:
        if not isinstance(node, Items):
            text = self.of.read(node, at, reader)
            if text is None or self.separator is None:
                return None if text is None else (text,)
            return tuple(dict.fromkeys(part.strip() for part in text.split(self.separator) if part.strip())) or None
        if not node.items:
            reader.fault(node, at, "an empty list", f"{self.of.expected}, or several")
            return None
        texts: list[str] = []
        for i, item in enumerate(node.items):
            text = self.of.read(item, f"{at}[{i}]", reader)
            if text in texts:
                reader.fault(item, f"{at}[{i}]", f"{shown_key(text)} is there twice", "each once")
            elif text is not None:
                texts.append(text)
        return tuple(texts) if len(texts) == len(node.items) else None

    def schema(self) -> JsonSchema:
        one = self.of.schema()
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap:
    """Names and their texts; numbers and truth values are kept as written."""

    of: str = "a name and a text"
    is_sql: bool = False
    """Columns and SQL: column names are compared as in Spark, case-insensitively, and no text is empty."""
    holds_settings: bool = False
    """Settings of Spark, of a reader or of a client: any of them may be a secret, whatever its name."""

    @property
    def word(self) -> str:
        return "mapping: column to SQL" if self.is_sql else "mapping"

    def read(self, node: Node, at: str, reader: Reader) -> Mapping[str, str] | None:
        if not isinstance(node, Entries):
            refuse_node(node, at, reader, f"a mapping, each {self.of}")
            return None
        values: dict[str, str] = {}
        seen: dict[str, str] = {}
        for name, item in node.entries.items():
            value = self._value(name, item, joined(at, name), reader)
            same = seen.setdefault(name.lower(), name)
            if self.is_sql and same != name:
                what = f"{shown_key(name)} and {shown_key(same)} are one column for Spark"
                reader.faults.add(node.key_marks[name], at, what, "each column once")
            elif value is not None:
                values[name] = value
        return values if len(values) == len(node.entries) else None

    def _value(self, name: str, item: Node, at: str, reader: Reader) -> str | None:
        if isinstance(item, Items | Entries | Broken):
            reader.fault(item, at, "a list or a mapping", "a text")
            return None
        if not name.strip():
            reader.fault(item, at, "an empty name", self.of)
        elif (self.is_sql or item.is_plain) and item.written is None and not item.text.strip():
            reader.fault(item, at, "no value", self.of)
        elif len(item.text) > TEXT_CHARACTERS_MAX:
            reader.fault(item, at, "a text that is too long", f"at most {TEXT_CHARACTERS_MAX} characters")
        else:
            if self.holds_settings:
                reader.record_setting(at, name, item)
            else:
                reader.record(at, item, item.text)
            return item.text
        return None

    def schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterJobs:
    """An order rule: `X`, `{any: [X, Y]}` or `{all: [X, Y]}`."""

    names: Texts
    word: str = "name, `{any: […]}` or `{all: […]}`"

    def read(self, node: Node, at: str, reader: Reader) -> After | None:
        expected = "a stream's name, {any: [X, Y]} or {all: [X, Y]}"
        match node:
            case Scalar():
                jobs = self.names.read(node, at, reader)
                return None if jobs is None else After(jobs, "all")
            case Entries(entries=entries) if list(entries) == ["any"]:
                jobs = self.names.read(entries["any"], joined(at, "any"), reader)
                return None if jobs is None else After(jobs, "any")
            case Entries(entries=entries) if list(entries) == ["all"]:
                jobs = self.names.read(entries["all"], joined(at, "all"), reader)
                return None if jobs is None else After(jobs, "all")
            case _:
                reader.fault(node, at, "a list" if isinstance(node, Items) else "not an order", expected)
                return None

    def schema(self) -> JsonSchema:
        one, many = self.names.of.schema(), self.names.schema()
        modes = [
            {"type": "object", "properties": {mode: many}, "required": [mode], "additionalProperties": False}
            for mode in ("any", "all")
        ]
        return {"anyOf": [one, *modes]}


def refuse_node(node: Node, at: str, reader: Reader, expected: str) -> None:
    """Records that a mapping was expected."""
    match node:
        case Scalar() if node.is_null:
            reader.fault(node, at, "no value", expected)
        case Scalar():
            reader.fault(node, at, "not a mapping", expected)
        case _:
            reader.fault(node, at, "a list", expected)
