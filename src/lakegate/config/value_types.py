"""The value types of keys: how each is read, and how the JSON Schema and the reference describe it.

A value type annotates a field, as in `every_ms: Annotated[int | None, Duration()]`. Pydantic gives it the node of the file, and
checks what it returns. Plain Python values go to pydantic as they are.

Rules for editors: a type reads a node, or records a fault and returns None; it never raises. A value that could not be read is
None in its section, so that the rules between keys still run. A fault repeats a value only through `shown`. Each command imports
this module, so pydantic is imported where a configuration is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_args

from lakegate.config.yaml_nodes import Broken, Entries, Faults, Items, Mark, Node, Scalar, shown, shown_key, suggestion
from lakegate.redaction import HIDDEN, masked, setting
from lakegate.turns.protocol.ordering import After

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, ValidatorFunctionWrapHandler
    from pydantic_core import CoreSchema

T_co = TypeVar("T_co", covariant=True)
JsonSchema = dict[str, Any]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value in effect, for display: secrets are masked, variables are shown as references."""

    key: str
    value: str
    origin: str
    """`lakegate.yml:12`, `default`, `environment NAME`, `command line`, `Spark conf NAME`, `Python`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """The default of a key that is not written, in the place of its node: so the value type writes and records it."""

    value: object
    mark: Mark


@dataclass(slots=True, kw_only=True)
class Reader:
    """The inputs of reading, and its findings so far; pydantic's context."""

    base_dir: str
    """The absolute folder to which relative paths refer."""
    faults: Faults
    contradictions: Faults = field(default_factory=Faults)
    """Faults between several keys; of one line they are reported after those of single values."""
    notes: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def fault(self, node: Node, what: str, expected: str = "") -> None:
        """Records a fault of `node`; does nothing when a fault of it is known."""
        if not isinstance(node, Broken):
            self.faults.add(node.mark, what, expected)

    def record(self, node: Scalar, value: str) -> None:
        """Records a value and its origin, for `lakegate config show`."""
        key, text = node.mark.key, value
        if node.written is not None and (node.takes_environment or masked(key, node.written) != node.written):
            # The reference is shown instead of its value, because secrets come in through references.
            text = node.written
        self._record(node.mark, masked(key, text))

    def record_setting(self, name: str, node: Scalar) -> None:
        """Records a value whose key Lakegate does not know: shown only if it is known to be harmless."""
        if node.written is not None and node.takes_environment:
            value = re.sub(r"(\$\{\w+:-)[^}]*", rf"\g<1>{HIDDEN}", masked(node.mark.key, node.written))
        else:
            value = setting(name, node.text)
        self._record(node.mark, value)

    def _record(self, mark: Mark, value: str) -> None:
        origin = "Python" if mark.where == mark.key else mark.where
        self.entries.append(Entry(key=mark.key, value=value, origin=origin))

    def record_default(self, key: str, value: str) -> None:
        """Records a default value."""
        self.entries.append(Entry(key=key, value=masked(key, value), origin="default"))


def reader_of(info: ValidationInfo) -> Reader:
    """Returns the reader of a validation that was begun with it as pydantic's context."""
    assert isinstance(info.context, Reader)
    return info.context


class ValueType(Generic[T_co]):
    """A type of values, as the annotation of a field."""

    @property
    def word(self) -> str:
        """The name of the type in the reference."""
        raise NotImplementedError

    def read(self, node: Node, reader: Reader) -> T_co | None:
        """Returns the value; None, with a fault recorded, if `node` has another type."""
        raise NotImplementedError

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        """Returns the JSON Schema of the type; `of_field` is the one that pydantic has for the field's Python type."""
        raise NotImplementedError

    def written(self, value: Any) -> str:
        """Returns `value` as it would be written in the file."""
        return str(value)

    def validate(self, given: Any, inner: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Returns the value of a node, of a default, or of Python; `inner` is the validator of the field's Python type."""
        match given:
            case Scalar() | Items() | Entries() | Broken():
                value = self.read(given, reader_of(info))
                return None if value is None else inner(value)
            case Default(value=value, mark=mark):
                reader_of(info).record_default(mark.key, self.written(value))
                return value
            case _:
                return inner(given)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_wrap_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        return self.schema(handler(schema))


def refuse(node: Node, reader: Reader, expected: str) -> None:
    """Records that `node` has another shape than what was expected: a scalar, or a mapping."""
    match node:
        case Scalar():
            reader.fault(node, "no value" if node.is_null else "not a mapping", expected)
        case Items():
            reader.fault(node, "a list", expected)
        case Entries():
            reader.fault(node, "a mapping", expected)
        case Broken():
            pass


def scalar_of(node: Node, reader: Reader, expected: str) -> Scalar | None:
    """Returns `node` if it is a scalar; otherwise None, with a fault recorded."""
    if isinstance(node, Scalar) and not node.is_null:
        return node
    refuse(node, reader, expected)
    return None


def text_of(node: Node, reader: Reader, expected: str) -> Scalar | None:
    """Returns `node` if it is a scalar that YAML and the JSON Schema read as a text; otherwise None, with a fault recorded."""
    scalar = scalar_of(node, reader, expected)
    if scalar is None or _is_text(scalar):
        return scalar
    reader.fault(node, f"{shown(scalar)} is not a text", f"{expected}; put it in quotes")
    return None


def _is_text(node: Scalar) -> bool:
    if not node.is_plain or node.written is not None:
        return True
    return node.text not in _TRUTH and _NUMBER.fullmatch(node.text) is None


def or_reference(schema: JsonSchema) -> JsonSchema:
    """Returns the JSON Schema `schema`, or a text with a variable in it, which is checked once it is expanded."""
    return {"anyOf": [schema, {"type": "string", "pattern": r"\$\{"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(ValueType[str]):
    """A text, optionally of one form."""

    pattern: str | None = None
    expected: str = "a text"
    word: str = "text"

    def read(self, node: Node, reader: Reader) -> str | None:
        scalar = text_of(node, reader, self.expected)
        if scalar is None:
            return None
        if not scalar.text.strip():
            reader.fault(node, "an empty text", self.expected)
        elif len(scalar.text) > TEXT_CHARACTERS_MAX:
            reader.fault(node, "a text that is too long", f"at most {TEXT_CHARACTERS_MAX} characters")
        elif self.pattern is not None and re.fullmatch(self.pattern, scalar.text) is None:
            reader.fault(node, f"{shown(scalar)} cannot be used here", self.expected)
        else:
            reader.record(scalar, scalar.text)
            return scalar.text
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        if self.pattern is None:
            return {"type": "string", "minLength": 1}
        return or_reference({"type": "string", "pattern": f"^{self.pattern}$"})


def name_type(of: str, pattern: str = NAME_PATTERN) -> Text:
    """Returns the type of a name that may be part of a path."""
    more = ", . " if "." in pattern else " "
    return Text(pattern=pattern, expected=f"{of}: letters, digits, _, -{more}and a letter or digit first", word="name")


LOCK_NAME: Final = name_type("a lock's name", LOCK_PATTERN)


@dataclass(frozen=True, slots=True)
class Count(ValueType[int]):
    """A whole number, from 1 unless 0 means something."""

    minimum: int = 1

    @property
    def word(self) -> str:
        return f"whole number from {self.minimum}"

    def read(self, node: Node, reader: Reader) -> int | None:
        expected = f"a whole number from {self.minimum} to {COUNT_MAX}, without quotes"
        scalar = scalar_of(node, reader, expected)
        if scalar is None:
            return None
        is_number = scalar.is_plain or scalar.written is not None
        if is_number and re.fullmatch(r"[0-9][0-9_]{0,15}", scalar.text):
            value = int(scalar.text.replace("_", ""))
            if self.minimum <= value <= COUNT_MAX:
                reader.record(scalar, str(value))
                return value
        reader.fault(node, f"{shown(scalar)} is not a count", expected)
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({**of_field, "minimum": self.minimum, "maximum": COUNT_MAX})


@dataclass(frozen=True, slots=True)
class Flag(ValueType[bool]):
    """A truth value: true or false."""

    word = "true or false"

    def read(self, node: Node, reader: Reader) -> bool | None:
        scalar = scalar_of(node, reader, "true or false")
        if scalar is None:
            return None
        if (scalar.is_plain or scalar.written is not None) and scalar.text in _TRUTH:
            reader.record(scalar, scalar.text.lower())
            return _TRUTH[scalar.text]
        reader.fault(node, f"{shown(scalar)} is neither", "true or false")
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference(of_field)

    def written(self, value: bool) -> str:
        return str(value).lower()


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


@dataclass(frozen=True, slots=True)
class Duration(ValueType[int]):
    """A length of time, in milliseconds once read."""

    word = "duration"

    def read(self, node: Node, reader: Reader) -> int | None:
        expected = "a duration above zero like 250ms, 30s, 15m, 1h or 1d"
        scalar = scalar_of(node, reader, expected)
        if scalar is None:
            return None
        value = duration_ms(scalar.text)
        if value is None:
            reader.fault(node, f"{shown(scalar)} is not a duration", expected)
        else:
            reader.record(scalar, scalar.text)
        return value

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({"type": "string", "pattern": r"^[0-9]{1,15}(ms|s|m|h|d)$"})

    def written(self, value: int) -> str:
        return duration_text(value)


Milliseconds = Annotated[int, Duration()]
WholeNumber = Annotated[int, Count()]
PRIORITY: Final = Count(minimum=0)
"""0 is the default, so it can be written, too."""


@dataclass(frozen=True, slots=True)
class Choice(ValueType[str]):
    """A choice between a few words."""

    among: Any
    """The words as a type: `Literal["allow", "keep_first"]`."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words in the order of the reference."""
        return get_args(self.among)

    @property
    def word(self) -> str:
        return " or ".join(f"`{word}`" for word in self.words)

    def read(self, node: Node, reader: Reader) -> str | None:
        expected = " or ".join(self.words)
        scalar = scalar_of(node, reader, expected)
        if scalar is None:
            return None
        if scalar.text in self.words:
            reader.record(scalar, scalar.text)
            return scalar.text
        hint = "" if scalar.takes_environment else suggestion(scalar.text, self.words)
        reader.fault(node, f"{shown(scalar)} is not known{hint}", expected)
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({"enum": list(self.words)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(ValueType[tuple[str, ...]]):
    """A list of texts, distinct unless they `may_repeat`; a single text counts as a list of one."""

    of: Text
    separator: str | None = None
    """The separator between several texts in one text."""
    may_repeat: bool = False

    @property
    def word(self) -> str:
        return f"{self.of.word} or list"

    def read(self, node: Node, reader: Reader) -> tuple[str, ...] | None:
        if not isinstance(node, Items):
            text = self.of.read(node, reader)
            if text is None or self.separator is None:
                return None if text is None else (text,)
            return tuple(dict.fromkeys(part.strip() for part in text.split(self.separator) if part.strip())) or None
        if not node.items:
            reader.fault(node, "an empty list", f"{self.of.expected}, or several")
            return None
        texts: list[str] = []
        for item in node.items:
            text = self.of.read(item, reader)
            if text in texts and not self.may_repeat:
                reader.fault(item, f"{shown_key(text)} is there twice", "each once")
            elif text is not None:
                texts.append(text)
        return tuple(texts) if len(texts) == len(node.items) else None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        one = self.of.schema({})
        is_distinct = {} if self.may_repeat else {"uniqueItems": True}
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, **is_distinct}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMap(ValueType[Mapping[str, str]]):
    """Names and their texts; numbers and truth values are kept as written."""

    of: str
    is_sql: bool = False
    """Columns and SQL: column names are compared as in Spark, case-insensitively, and no text is empty."""
    holds_settings: bool = False
    """Settings of Spark, of a reader or of a client: any of them may be a secret, whatever its name."""

    @property
    def word(self) -> str:
        return "mapping: column to SQL" if self.is_sql else "mapping"

    def read(self, node: Node, reader: Reader) -> Mapping[str, str] | None:
        if not isinstance(node, Entries):
            refuse(node, reader, f"a mapping, each {self.of}")
            return None
        values: dict[str, str] = {}
        seen: dict[str, str] = {}
        for name, item in node.entries.items():
            value = self._value(name, item, reader)
            same = seen.setdefault(name.lower(), name)
            if self.is_sql and same != name:
                what = f"{shown_key(name)} and {shown_key(same)} are one column for Spark"
                reader.faults.add(node.key_marks[name], what, "each column once", about=node.mark.key)
            elif value is not None:
                values[name] = value
        return values if len(values) == len(node.entries) else None

    def _value(self, name: str, item: Node, reader: Reader) -> str | None:
        if not isinstance(item, Scalar):
            reader.fault(item, "a list or a mapping", "a text")
            return None
        if not name.strip():
            reader.fault(item, "an empty name", self.of)
        elif (self.is_sql or item.is_plain) and item.written is None and not item.text.strip():
            reader.fault(item, "no value", self.of)
        elif len(item.text) > TEXT_CHARACTERS_MAX:
            reader.fault(item, "a text that is too long", f"at most {TEXT_CHARACTERS_MAX} characters")
        else:
            if self.holds_settings:
                reader.record_setting(name, item)
            else:
                reader.record(item, item.text)
            return item.text
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


@dataclass(frozen=True, slots=True)
class AfterJobs(ValueType[After]):
    """An order rule: `X`, `{any: [X, Y]}` or `{all: [X, Y]}`."""

    names: Texts
    word = "name, `{any: […]}` or `{all: […]}`"

    def read(self, node: Node, reader: Reader) -> After | None:
        mode, named = "all", node
        if isinstance(node, Entries) and list(node.entries) in (["any"], ["all"]):
            ((mode, named),) = node.entries.items()
        elif not isinstance(node, Scalar):
            what = "a list" if isinstance(node, Items) else "not an order"
            reader.fault(node, what, "a stream's name, {any: [X, Y]} or {all: [X, Y]}")
            return None
        jobs = self.names.read(named, reader)
        return None if jobs is None else After(jobs, "any" if mode == "any" else "all")

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        one, many = self.names.of.schema({}), self.names.schema({})
        modes = [
            {"type": "object", "properties": {mode: many}, "required": [mode], "additionalProperties": False}
            for mode in ("any", "all")
        ]
        return {"anyOf": [one, *modes]}
