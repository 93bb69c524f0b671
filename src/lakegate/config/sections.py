"""Mappings with known keys: keys, sections of keys, and sections under user-defined names.

Rules for editors: as in `kinds.py`. A section reads all its keys before it gives up on any, so every fault is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

from lakegate.config.value_types import (
    NAME_PATTERN,
    NOT_IN_THIS_VERSION,
    Choice,
    Duration,
    JsonSchema,
    Kind,
    Reader,
    duration_text,
    name_kind,
    refuse_node,
    suggestion,
)
from lakegate.config.yaml_nodes import Entries, Mark, Node, Scalar, joined, shown_key

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Generic[T_co]):
    """A key of a section: its type, its default, and its text in the reference."""

    name: str
    kind: Kind[T_co]
    meaning: str
    default: T_co | None = None
    default_text: str = ""
    """The default in words, when it depends on other values."""
    example: str = ""
    is_required: bool = False
    is_later: bool = False
    """Designed, but not built yet: refused, never ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The values of a section, by their keys."""

    at: str
    mark: Mark
    values: Mapping[str, object]
    key_marks: Mapping[str, Mark]
    """The marks of every key that was written, whether or not it could be read."""
    is_readable: bool = True
    """False for a value that is not a section: it has a name, and its fault is reported."""

    def __getitem__(self, key: Key[T]) -> T:
        return cast("T", self.values[key.name])  # stored by the key's own kind, see Section.read

    def get(self, key: Key[T]) -> T | None:
        """Returns the value; None if there is none, or if it could not be read."""
        return cast("T | None", self.values.get(key.name))

    def has(self, key: Key[T]) -> bool:
        """Returns True if the key was written."""
        return key.name in self.key_marks

    def mark_of(self, key: Key[T]) -> Mark:
        """Returns the mark of the key, otherwise that of its section."""
        return self.key_marks.get(key.name, self.mark)

    def path_of(self, key: Key[T]) -> str:
        """Returns the key's path."""
        return joined(self.at, key.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A mapping with known keys."""

    title: str
    keys: Sequence[Key[object]]
    short: str | None = None
    """The key that a plain text sets."""
    word: str = "section"

    def read(self, node: Node, at: str, reader: Reader) -> Fields | None:
        if isinstance(node, Scalar) and node.is_null:
            node = Entries(entries={}, key_marks={}, mark=node.mark)
        elif isinstance(node, Scalar) and self.short is not None:
            node = Entries(entries={self.short: node}, key_marks={self.short: node.mark}, mark=node.mark)
        if not isinstance(node, Entries):
            refuse_node(node, at, reader, f"a mapping with the keys {', '.join(self._names())}")
            return None
        known = {key.name: key for key in self.keys}
        for name in node.entries:
            if name not in known:
                what = f"unknown key {shown_key(name)}{suggestion(name, self._names())}"
                reader.faults.add(node.key_marks[name], at, what, "" if suggestion(name, known) else self._expected())
        values: dict[str, object] = {}
        for key in self.keys:
            self._read_key(key, node, at, reader, values)
        return Fields(at=at, mark=node.mark, values=values, key_marks=node.key_marks)

    def _read_key(self, key: Key[object], node: Entries, at: str, reader: Reader, values: dict[str, object]) -> None:
        path = joined(at, key.name)
        if key.name not in node.entries:
            if key.is_required:
                reader.faults.add(node.mark, path, "missing", _expected_of(key))
            elif key.default is not None:
                values[key.name] = key.default
                if not isinstance(key.default, Mapping):
                    reader.record_default(path, default_text(key))
            return
        if key.is_later:
            reader.faults.add(node.key_marks[key.name], path, NOT_IN_THIS_VERSION)
            return
        value = key.kind.read(_standing_at(node.entries[key.name], node.key_marks[key.name]), path, reader)
        if value is not None:
            values[key.name] = value

    def _names(self) -> list[str]:
        return [key.name for key in self.keys if not key.is_later]

    def _expected(self) -> str:
        return "one of " + ", ".join(self._names())

    def schema(self) -> JsonSchema:
        properties: JsonSchema = {}
        for key in self.keys:
            about = key.meaning + (" Not in this version." if key.is_later else "")
            properties[key.name] = {**key.kind.schema(), "description": about}
            if text := default_text(key):
                properties[key.name] = {**key.kind.schema(), "description": f"{about} Default: {text}."}
        section: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [key.name for key in self.keys if key.is_required]:
            section["required"] = required
        if self.short is None:
            return section if required else {**section, "type": ["object", "null"]}
        return {"anyOf": [section, cast("JsonSchema", properties[self.short])]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A mapping from user-defined names to sections of one form, in the order written."""

    of: Section
    thing: str
    word: str = "mapping: name to section"

    def read(self, node: Node, at: str, reader: Reader) -> Mapping[str, Fields] | None:
        if not isinstance(node, Entries):
            refuse_node(node, at, reader, f"a mapping: the name of each {self.thing}, and what it is")
            return None
        found: dict[str, Fields] = {}
        for name, item in node.entries.items():
            if re.fullmatch(NAME_PATTERN, name) is None:
                expected = name_kind(f"a name of a {self.thing}").expected
                reader.faults.add(node.key_marks[name], at, f"{shown_key(name)} cannot be used as a name", expected)
            fields = self.of.read(_standing_at(item, node.key_marks[name]), joined(at, name), reader)
            found[name] = fields or Fields(
                at=joined(at, name), mark=item.mark, values={}, key_marks={}, is_readable=False
            )
        return found

    def schema(self) -> JsonSchema:
        return {
            "type": "object",
            "patternProperties": {f"^{NAME_PATTERN}$": self.of.schema()},
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Either:
    """A single value, or a section."""

    value: Kind[object]
    section: Section

    @property
    def word(self) -> str:
        return f"{self.value.word}, or section"

    def read(self, node: Node, at: str, reader: Reader) -> object | None:
        return (self.value if isinstance(node, Scalar) else self.section).read(node, at, reader)

    def schema(self) -> JsonSchema:
        return {"anyOf": [self.value.schema(), self.section.schema()]}


def default_text(key: Key[object]) -> str:
    """Returns the default as it would be written; empty if there is none."""
    if key.default_text or key.default is None:
        return key.default_text
    if isinstance(key.kind, Duration) and isinstance(key.default, int):
        return duration_text(key.default)
    return str(key.default)


def _expected_of(key: Key[object]) -> str:
    if isinstance(key.kind, Choice):
        return " or ".join(key.kind.words)
    return key.meaning[:1].lower() + key.meaning[1:].rstrip(".")


def _standing_at(node: Node, mark: Mark) -> Node:
    """Moves a section's mark to its name: a missing key is best reported there, not a line below."""
    return replace(node, mark=mark) if isinstance(node, Entries) else node
