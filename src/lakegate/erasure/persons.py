"""The persons that a search looks for: their values as each type, as words of a text, and as salted hashes.

Rules for editors: pure. Equality is that of values, not of texts. A doubt counts as found: a search may report too much, and must
not report too little.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from lakegate.erasure.columns import KeyColumn, Kind, decoded

SHORTENED = 32
"""Delta keeps this many characters of a text in statistics."""
SHORT, SHORT_WITHOUT_LETTERS = 3, 6
"""A value of fewer characters, like `a` or `2024`, is found in a text only if it names the column, too."""
_WORD = re.compile(r"\w+")
_BARE = re.compile(r"[-+.\deE]+|true|false")
"""Values that JSON writes without quotes."""


@dataclass(frozen=True, slots=True)
class Person:
    """A key: a value for each column, as text. A row is the person's if it has all of them."""

    values: tuple[tuple[str, str], ...]

    def hashed(self, salt: str) -> str:
        """Returns the salted hash under which a certificate names the person."""
        return hashlib.sha256(json.dumps([salt, *self.values]).encode()).hexdigest()


def typed(text: str, kind: Kind) -> Any:
    """Returns the value that a text stands for in a column of a kind; None if no value of that kind is written so."""
    try:
        match kind:
            case "text":
                return text
            case "number":
                number = Decimal(text)
                return number if number.is_finite() else None
            case "float":
                return float(text)
            case "date":
                return date.fromisoformat(text[:10]) if _instant(text).time() == datetime.min.time() else None
            case "timestamp":
                return _instant(text)
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "binary":
                return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except (ValueError, KeyError, InvalidOperation):
        return None


def as_text(value: object) -> str:
    """Returns the text that `typed` reads back to the value."""
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case bytes():
            return f"0x{value.hex()}"
        case _:
            return str(value)


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _milliseconds(moment: datetime) -> datetime:
    """Returns the instant as statistics have it: in UTC, to the millisecond."""
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _forms(text: str, kinds: Iterable[Kind]) -> Iterator[object]:
    """Yields a value in the forms in which logs hold it."""
    for kind in kinds:
        value = typed(text, kind)
        match value:
            case None:
                continue
            case str():
                yield value
                if len(value) > SHORTENED:
                    yield ("shortened", value[:SHORTENED])
            case bool():
                yield ("boolean", value)
            case float():
                yield Decimal(str(value))
            case datetime():
                yield _milliseconds(value)
            case _:
                yield value


def _forms_of_leaf(leaf: object, kinds: Iterable[Kind]) -> Iterator[object]:
    match leaf:
        case None:
            return
        case bool():
            yield ("boolean", leaf)
        case int() | float():
            yield Decimal(str(leaf))
        case str():
            yield from _forms(leaf, kinds)
            if len(leaf) >= SHORTENED:
                yield ("shortened", leaf[:SHORTENED])
        case datetime():
            yield _milliseconds(leaf)
        case _:
            yield leaf


class Persons:
    """An index over persons: who is named by a value of a column, by a text, by a path. Persons are numbers, from 0."""

    def __init__(self, persons: Sequence[Person], columns: Mapping[str, KeyColumn], salt: str) -> None:
        self.all, self.columns, self.salt = tuple(persons), columns, salt
        self._kinds = {name: frozenset(column.kinds) or frozenset[Kind](("text",)) for name, column in columns.items()}
        self._by_value: dict[str, dict[object, set[int]]] = {name: {} for name in columns}
        self._by_word: dict[str, set[str]] = {}
        self._named_by: dict[str, set[tuple[int, str]]] = {}
        for number, person in enumerate(self.all):
            for name, text in person.values:
                for form in _forms(text, self._kinds[name]):
                    self._by_value[name].setdefault(form, set()).add(number)
                for written in {text, json.dumps(text)[1:-1], text.replace("'", "''"), text.replace("'", "\\'")}:
                    self._named_by.setdefault(written, set()).add((number, name))
                    first = _WORD.search(written)
                    self._by_word.setdefault(first[0] if first else "", set()).add(written)

    @property
    def texts(self) -> list[str]:
        """The values as they may be written in a text: also with the escapes of JSON and SQL."""
        return sorted(self._named_by)

    def hashes(self, numbers: Iterable[int]) -> list[str]:
        """Returns the salted hashes of persons, sorted."""
        return sorted(self.all[number].hashed(self.salt) for number in numbers)

    def with_value(self, name: str, leaf: object) -> set[int]:
        """Returns the persons that have a value of the log in a key column."""
        known = self._by_value[name]
        return {number for form in _forms_of_leaf(leaf, self._kinds[name]) for number in known.get(form, ())}

    def in_text(self, text: str) -> set[tuple[int, str]]:
        """Returns person and column for each value that is in the text as whole words."""
        found: set[tuple[int, str]] = set()
        for word in _WORD.finditer(text) if self._by_word else ():
            for value in self._by_word.get(word[0], ()):
                start = word.start() - _lead(value)
                end = start + len(value)
                if start >= 0 and text[start:end] == value and not _is_word(text[end : end + 1], value[-1]):
                    found |= self._found(value, text)
        for value in self._by_word.get("", ()):
            if value in text:
                found |= self._found(value, text)
        return found

    def _found(self, value: str, text: str) -> set[tuple[int, str]]:
        named = self._named_by[value]
        if len(value) >= (SHORT if any(one.isalpha() for one in value) else SHORT_WITHOUT_LETTERS):
            return named
        return {(number, name) for number, name in named if any(one in text for one in self.columns[name].names)}

    def without(self, text: str) -> str:
        """Returns a text with stars, as many bytes, instead of the values of persons; JSON stays JSON: its bare numbers stay."""
        whole = self.whole(self.in_text(text))
        for value in sorted(self._named_by, key=len, reverse=True):
            if value in text and any(number in whole for number, _ in self._named_by[value]):
                start, end = (r"\b" if _WORD.fullmatch(one) else "" for one in (value[0], value[-1]))
                text = re.sub(f"{start}{re.escape(value)}{end}", _starred, text)
        return text

    def in_partition(self, partition: Mapping[str, str | None]) -> set[tuple[int, str]]:
        """Returns person and column for each value of a partition, by physical names of its columns."""
        return {
            (number, name)
            for name, column in self.columns.items()
            for physical, value in partition.items()
            if (physical.lower(),) in column.paths
            for number in self.with_value(name, value)
        }

    def in_path(self, path: str) -> set[tuple[int, str]]:
        """Returns person and column for each value in the path of a file: as a partition, or as words."""
        found: set[tuple[int, str]] = set()
        for segment in path.split("/"):
            name, value = self._partition(segment)
            for form in {value, decoded(value), decoded(decoded(value))}:  # on disk escaped once, in the log twice
                if name is None:
                    found |= self.in_text(form)
                else:
                    found |= {(number, name) for number in self.with_value(name, form)}
        return found

    def masked(self, path: str) -> str:
        """Returns the path with a salted hash instead of each value of a key column."""
        return "/".join(self._masked(segment) for segment in path.split("/"))

    def _masked(self, segment: str) -> str:
        name, value = self._partition(segment)
        if name is None and not self.in_path(segment):
            return segment
        digest = hashlib.sha256(f"{self.salt}{value}".encode()).hexdigest()[:12]
        return f"{segment.partition('=')[0]}=#{digest}" if name is not None else f"#{digest}"

    def _partition(self, segment: str) -> tuple[str | None, str]:
        """Returns the key column and the value of a partition's folder; of another segment all of it."""
        folder, _, value = segment.partition("=")
        known = (
            name for name, column in self.columns.items() if value and decoded(folder).lower() in column.lower_names
        )
        name = next(known, None)
        return name, segment if name is None else value

    def whole(self, found: Iterable[tuple[int, str]]) -> set[int]:
        """Returns the persons of which every column was found."""
        columns: dict[int, set[str]] = {}
        for number, name in found:
            columns.setdefault(number, set()).add(name)
        return {number for number, names in columns.items() if len(names) == len(self.all[number].values)}


def _lead(value: str) -> int:
    first = _WORD.search(value)
    return first.start() if first else 0


def _is_word(after: str, last: str) -> bool:
    return bool(after) and bool(_WORD.fullmatch(after)) and bool(_WORD.fullmatch(last))


def _starred(found: re.Match[str]) -> str:
    start, end = found.span()
    before = found.string[max(0, start - 2) : start].rstrip()[-1:]
    after = found.string[end : end + 2].lstrip()[:1]
    if _BARE.fullmatch(found[0]) and before in (":", ",", "[") and after in (",", "}", "]"):
        return found[0]
    return "*" * len(found[0].encode())
