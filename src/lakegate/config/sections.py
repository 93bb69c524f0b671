"""Sections: pydantic models that are read from mappings of the file, with all faults at once.

Rules for editors: as in `value_types.py`. A section reads all its keys before it gives up on any, so every fault is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, get_args

from pydantic import (
    AliasGenerator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from lakegate.config.value_types import (
    NAME_PATTERN,
    Choice,
    Default,
    JsonSchema,
    Reader,
    ValueType,
    name_type,
    reader_of,
    refuse,
)
from lakegate.config.yaml_nodes import Broken, Entries, Node, Scalar, joined, shown_key, suggestion

Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Written:
    """The keys of a section as they stand in the file, for the rules between them."""

    entries: Entries
    reader: Reader

    @property
    def name(self) -> str:
        """The last part of the section's path."""
        return self.entries.mark.key.rpartition(".")[2]

    def __contains__(self, key: str) -> bool:
        """Returns True if the key was written, whether or not its value could be read."""
        return key in self.entries.key_marks

    def below(self, *path: str) -> Written:
        """Returns the section at `path` below this one, which could be read."""
        node: Node = self.entries
        for key in path:
            node = node.entries[key] if isinstance(node, Entries) else node
        return Written(node if isinstance(node, Entries) else _no_entries(node), self.reader)

    def refuse(self, key: str, what: str, expected: str = "", *, at: str | None = None) -> None:
        """Records a contradiction.

        Args:
            key: The key that it is about; empty for the section itself.
            what: The text of the fault.
            expected: What would be right.
            at: The key whose line is named, if it is not `key`; without it the section's line is named.
        """
        place = self.entries.mark
        mark = self.entries.key_marks.get(key if at is None else at, place)
        self.reader.contradictions.add(mark, what, expected, about=joined(place.key, key) if key else place.key)

    def refuse_all(self, *keys: str, what: str, expected: str = "") -> None:
        """Records a contradiction for each of `keys` that was written."""
        for key in keys:
            if key in self:
                self.refuse(key, what, expected)

    def exactly_one(self, *keys: str) -> None:
        """Records a contradiction unless one of `keys` was written."""
        given, names = [key for key in keys if key in self], ", ".join(keys)
        if not given:
            self.refuse("", f"none of {names}", f"one of {names}")
        elif len(given) > 1:
            self.refuse("", f"{' and '.join(given)} together", f"one of {names}", at=keys[0])

    def note(self, text: str) -> None:
        """Records a note on the section."""
        self.reader.notes.append(f"{self.entries.mark.key}: {text}")

    def default(self, key: str, value: Word) -> Word:
        """Returns `value`, and records it as the default of a key that depends on other keys."""
        if key not in self:
            self.reader.record_default(joined(self.entries.mark.key, key), value)
        return value


class Section(BaseModel):
    """A mapping with known keys: its fields, by their serialization alias, which is by default the name without its unit.

    The text below a field is the meaning of its key, in the JSON Schema and in the reference. Its last sentence may be a default
    in words: `Default: for ever.` A field with `exclude=True` is not a key of the file. A value that could not be read is None
    until the faults are reported; only `reading.validate` returns sections without such a value and with every default. Not
    for `model_dump`: it writes secrets out.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
        use_attribute_docstrings=True,
        alias_generator=AliasGenerator(serialization_alias=lambda name: name.removesuffix("_ms")),
    )
    short: ClassVar[str | None] = None
    """The key that a plain text sets."""

    def rules(self, written: Written) -> None:
        """Records contradictions between the keys of this section, and notes on them; a field that could not be read is None."""

    def made(self, written: Written) -> Any:
        """Returns the product's data of this section, with the defaults that depend on other keys."""
        return self

    @classmethod
    def keys_of_file(cls) -> dict[str, tuple[str, FieldInfo]]:
        """Returns the keys in the order of the reference: key of the file → name and description of the field."""
        fields = [(name, field) for name, field in cls.model_fields.items() if not field.exclude]
        return {str(field.serialization_alias): (name, field) for name, field in fields}

    if not TYPE_CHECKING:  # with it a type checker would let any attribute be set

        def __setattr__(self, name: str, value: object) -> NoReturn:
            """Refuses a change; pydantic's own error repeats the value, which may be a secret."""
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> NoReturn:
            raise FrozenInstanceError(f"cannot delete field {name!r}")

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, build: ModelWrapValidatorHandler[Section], info: ValidationInfo) -> Any:
        """Returns what the section makes; None, with a fault recorded, if the node is not a mapping."""
        if not isinstance(given, Node):
            return build(given)
        reader, entries = reader_of(info), cls.entries_of(given)
        if entries is None:
            refuse(given, reader, f"a mapping with the keys {', '.join(cls.keys_of_file())}")
            return None
        section, written = build(cls._values(entries, reader)), Written(entries, reader)
        section.rules(written)
        return section.made(written)

    @classmethod
    def entries_of(cls, node: Node) -> Entries | None:
        """Returns the mapping that `node` is, or stands for; None if the section cannot be read from it."""
        match node:
            case Entries():
                return node
            case Scalar() if node.is_null:
                return _no_entries(node)
            case Scalar() if cls.short is not None:
                mark = node.mark.below(cls.short)
                entries = {cls.short: replace(node, mark=mark)}
                return Entries(entries=entries, key_marks={cls.short: mark}, mark=node.mark)
            case _:
                return None

    @classmethod
    def _values(cls, entries: Entries, reader: Reader) -> dict[str, object]:
        """Returns the node of each key, or its default, by the name of the field; unknown and missing keys are recorded."""
        keys = cls.keys_of_file()
        for key in [key for key in entries.entries if key not in keys]:
            hint = suggestion(key, keys)
            what, expected = f"unknown key {shown_key(key)}{hint}", "" if hint else f"one of {', '.join(keys)}"
            reader.faults.add(entries.key_marks[key], what, expected, about=entries.mark.key)
        values: dict[str, object] = {}
        for key, (name, field) in keys.items():
            mark = entries.mark.below(key)
            if key in entries.entries:
                values[name] = entries.entries[key]
            elif field.is_required():
                reader.faults.add(entries.mark, "missing", _expected(field), about=mark.key)
                values[name] = Broken(mark=mark)
            elif field.default_factory is field.annotation:  # a section: read without keys, it records its defaults
                values[name] = Entries(entries={}, key_marks={}, mark=mark)
            elif has_default(field):
                values[name] = Default(value=field.default, mark=mark)
        return values

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        reference = handler(schema)
        section = handler.resolve_ref_schema(reference)
        for key, (_, field) in cls.keys_of_file().items():
            meaning, default = meaning_and_default(field)
            section["properties"][key]["description"] = f"{meaning} Default: {default}." if default else meaning
            for name in ("default", "examples"):
                section["properties"][key].pop(name, None)
        if cls.short is not None:
            whole = {name: section.pop(name) for name in list(section) if name not in ("title", "description")}
            section["anyOf"] = [whole, whole["properties"][cls.short]]
        elif "required" not in section:
            section["type"] = ["object", "null"]
        return reference


def overridden(section: type[Section], node: Node, path: Sequence[str], value: Scalar) -> Node:
    """Returns `node`, from which `section` is read, with `value` at `path`; a node that cannot be read stays, for its fault."""
    entries = section.entries_of(node)
    if entries is None:
        return node
    key, *rest = path
    mark = replace(value.mark, key=joined(entries.mark.key, key))
    below: Node = value
    if rest:
        _, field = section.keys_of_file()[key]
        inner = section_of(field)
        assert inner is not None, f"{key} is not a section"
        below = overridden(inner, entries.entries.get(key, Entries(entries={}, key_marks={}, mark=mark)), rest, value)
    return replace(entries, entries={**entries.entries, key: below}, key_marks={key: mark, **entries.key_marks})


def _no_entries(node: Node) -> Entries:
    return Entries(entries={}, key_marks={}, mark=node.mark)


def type_of(field: FieldInfo) -> ValueType[Any] | None:
    """Returns the value type of a field; None if its value is a section."""
    of_alternatives = [
        one for alternative in get_args(field.annotation) for one in getattr(alternative, "__metadata__", ())
    ]
    return next((one for one in (*field.metadata, *of_alternatives) if isinstance(one, ValueType)), None)


def section_of(field: FieldInfo) -> type[Section] | None:
    """Returns the section that a key's value is, or may be."""
    value_type = type_of(field)
    if isinstance(value_type, FromSection):
        return value_type.section
    found = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
    return next((one for one in found if issubclass(one, Section)), None)


def has_default(field: FieldInfo) -> bool:
    """Returns True if the key has a default that is a value of its type."""
    return (
        type_of(field) is not None
        and not field.is_required()
        and field.default_factory is None
        and field.default not in (None, "", ())
    )


def meaning_and_default(field: FieldInfo) -> tuple[str, str]:
    """Returns the meaning of a key, and its default as it would be written or in words; empty if there is none."""
    meaning, _, words = " ".join((field.description or "").split()).partition(" Default: ")
    value_type = type_of(field)
    if has_default(field) and value_type is not None:
        return meaning, value_type.written(field.default)
    return meaning, words.removesuffix(".") or _default_of_section(field)


def _default_of_section(field: FieldInfo) -> str:
    """Returns the section that a key is by default, as it would be written; empty if not all of its keys have defaults."""
    section = field.annotation
    if not (isinstance(section, type) and issubclass(section, Section)):
        return ""
    keys = section.keys_of_file().items()
    defaults = [(key, type_of(inner), inner.default) for key, (_, inner) in keys if has_default(inner)]
    words = ", ".join(f"{key}: {value_type.written(default)}" for key, value_type, default in defaults if value_type)
    return f"{{{words}}}" if len(defaults) == len(keys) else ""


def _expected(field: FieldInfo) -> str:
    value_type = type_of(field)
    if isinstance(value_type, Choice):
        return " or ".join(value_type.words)
    meaning, _ = meaning_and_default(field)
    return meaning[:1].lower() + meaning[1:].removesuffix(".")


@dataclass(frozen=True, slots=True)
class Named(ValueType[Mapping[str, Node]]):
    """A mapping from user-defined names to sections of one form, in the order written."""

    thing: str
    word = "mapping: name to section"

    def read(self, node: Node, reader: Reader) -> Mapping[str, Node] | None:
        if not isinstance(node, Entries):
            refuse(node, reader, f"a mapping: the name of each {self.thing}, and what it is")
            return None
        for name, mark in node.key_marks.items():
            if re.fullmatch(NAME_PATTERN, name) is None:
                expected = name_type(f"a name of a {self.thing}").expected
                what = f"{shown_key(name)} cannot be used as a name"
                reader.faults.add(mark, what, expected, about=node.mark.key)
        return node.entries

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        sections = {f"^{NAME_PATTERN}$": of_field["additionalProperties"]}
        return {"type": "object", "patternProperties": sections, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class FromSection(ValueType[Any]):
    """The data that a section makes; or a single value."""

    section: type[Section]
    or_value: ValueType[Any] | None = None

    @property
    def word(self) -> str:
        return "section" if self.or_value is None else f"{self.or_value.word}, or section"

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return of_field if self.or_value is None else {"anyOf": [self.or_value.schema({}), of_field]}

    def read(self, node: Node, reader: Reader) -> Any:
        if isinstance(node, Scalar) and self.or_value is not None:
            return self.or_value.read(node, reader)
        return self.section.model_validate(node, context=reader)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        values = ValueType.__get_pydantic_core_schema__(self, source, handler)
        # The JSON Schema is that of the section; nothing is read from JSON.
        return core_schema.json_or_python_schema(handler.generate_schema(self.section), values)
