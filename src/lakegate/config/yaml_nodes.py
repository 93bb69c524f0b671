"""Converts text or Python values to a tree of nodes that know their location; faults are collected, not raised.

Rules for editors: nothing here knows the keys of `lakegate.yml`. The tree is built from YAML's events, so that depth and
size are limited before anything is built, no tag is ever constructed, and an alias cannot make the tree explode. Plain
scalars follow YAML 1.2 (`yes` and `on` are texts), as editors with the JSON Schema do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

import yaml

from lakegate.errors import Fault
from lakegate.redaction import is_secret_key, masked

TEXT_LENGTH_MAX: Final = 256 * 1024
"""PyYAML needs seconds for a file of this size; a pipeline of a hundred streams is a tenth of it."""
DEPTH_MAX: Final = 16
"""Twice the depth of the deepest key of the grammar."""
NODES_MAX: Final = 50_000
FAULTS_MAX: Final = 200
"""Without a limit, a file of another kind would print a fault per line."""
SHOWN_LENGTH_MAX: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The location of a node."""

    where: str
    """`lakegate.yml:12`, `environment LAKEGATE_STORAGE`, or the path of a key of the Python API."""
    line: int = 0
    """From 1; 0 outside a file."""
    key: str = ""
    """The path of the key, `tables.t.lock`; empty for the whole document."""

    def below(self, name: str) -> Mark:
        """Returns the mark of the key `name` below this one, at the same place."""
        key = joined(self.key, name)
        return replace(self, key=key, where=key if self.where == self.key else self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value, still as text."""

    text: str
    """After the expansion of variables."""
    mark: Mark
    is_plain: bool = False
    """Written without quotes: it may be a number, a truth value or null."""
    written: str | None = None
    """The text as written, when variables were expanded."""
    takes_environment: bool = False
    """Part of `text` came from the environment, and must not be repeated."""

    @property
    def is_null(self) -> bool:
        """Returns True if nothing was written."""
        return self.is_plain and self.written is None and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A mapping, in the order written."""

    entries: Mapping[str, Node]
    key_marks: Mapping[str, Mark]
    mark: Mark
    """The place of the mapping's own key: a missing key is best reported there, not a line below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A node with a known fault; readers add no further fault for it."""

    mark: Mark


Node = Scalar | Items | Entries | Broken


@dataclass(slots=True)
class Faults:
    """Collects faults, so that all of them are reported at once."""

    found: list[tuple[int, Fault]] = field(default_factory=list)

    def add(self, mark: Mark, what: str, expected: str = "", *, about: str | None = None) -> None:
        """Records a fault at `mark` about its key, or about the key with the path `about` (empty for the whole document)."""
        key = mark.key if about is None else about
        named = f"{shown_path(key)}: {what}" if key and mark.where != key else what
        where = shown_path(mark.where) if mark.where == mark.key else mark.where
        self.found.append((mark.line, Fault(where=where, what=named, expected=expected)))

    def in_order(self) -> tuple[Fault, ...]:
        """Returns all faults by line, without repetitions."""
        ordered = dict.fromkeys(fault for _, fault in sorted(self.found, key=lambda pair: pair[0]))
        return tuple(ordered)[:FAULTS_MAX]


def shown(node: Scalar) -> str:
    """Returns a value as a fault may repeat it: never a secret, and a reference instead of its value."""
    key = node.mark.key
    if node.written is not None:
        return f"{masked(key, node.written)!r}, as expanded,"
    if is_secret_key(key):
        return "the value (not shown)"
    text = masked(key, node.text)
    return repr(text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 1] + "…")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean "x"?)`, or an empty text."""
    close = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def shown_key(key: str) -> str:
    """Returns a key as a fault may repeat it: `{password:abc}` without a blank makes one key of both."""
    return repr(key) if re.fullmatch(r"[\w$.<-]{1,80}", key) else "the key (not shown: it is not a plain word)"


def shown_path(key: str) -> str:
    """Returns the path of a key as a fault may repeat it."""
    return key if re.fullmatch(r"[\w$.<\[\]-]{1,200}", key) else re.sub(r"[^\w$.<\[\]-].*", "…", key, flags=re.DOTALL)


def from_yaml(text: str, *, origin: str, environ: Mapping[str, str], faults: Faults) -> Node | None:
    """Returns the tree of a YAML document, or None when it cannot be read.

    Args:
        text: The whole document.
        origin: Its name, for the marks.
        environ: The variables for `${NAME}` and `${NAME:-default}`.
        faults: Receives the faults.
    """
    start = Mark(where=f"{origin}:1", line=1)
    if len(text) > TEXT_LENGTH_MAX:
        faults.add(start, f"the file is {len(text)} characters long", f"at most {TEXT_LENGTH_MAX}")
        return None
    builder = _Builder(origin=origin, environ=environ, faults=faults)
    try:
        return builder.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except _GiveUp:
        return None
    except yaml.MarkedYAMLError as error:
        line = builder.line if error.problem_mark is None else error.problem_mark.line + 1
        # A tag handle in the message may be the beginning of a password.
        problem = re.sub(r"(tag handle) .*", r"\1", error.problem or "it cannot be read", flags=re.DOTALL)
        what = f"not YAML: {problem}"
        if "${" in text.split("\n")[min(line, text.count("\n") + 1) - 1]:
            what += " (inside { } or [ ] a text with ${…} needs quotes)"
        faults.add(Mark(where=f"{origin}:{line}", line=line), what)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = "a character that YAML does not allow"
        faults.add(Mark(where=f"{origin}:{line}", line=line), what, "printable text")
    except (yaml.YAMLError, ValueError, OverflowError):
        # PyYAML lets chr() fail on escapes beyond Unicode.
        faults.add(Mark(where=f"{origin}:{builder.line}", line=builder.line), "not YAML near this line")
    return None


def from_values(value: object, *, key: str, faults: Faults, depth: int = 0) -> Node:
    """Returns the tree of plain Python values; a key with the value None counts as not given. Variables are not expanded."""
    mark = Mark(where=key or "pipeline", key=key)
    match value:
        case _ if depth > DEPTH_MAX:
            faults.add(mark, "nested too deep", f"at most {DEPTH_MAX} levels")
            return Broken(mark=mark)
        case bool():
            return Scalar(text=str(value).lower(), mark=mark, is_plain=True)
        case int() | float():
            # An integer beyond Python's limit for text cannot be a value of any key.
            text = str(value) if isinstance(value, float) or abs(value) < 10**30 else "1e30"
            return Scalar(text=text, mark=mark, is_plain=True)
        case str() | PurePath():
            return _checked(Scalar(text=str(value), mark=mark), faults)
        case Mapping():
            entries: dict[str, Node] = {}
            for name, item in value.items():
                if not isinstance(name, str):
                    faults.add(mark, f"a key {_of_type(name)}", "a text")
                elif item is not None:
                    entries[name] = from_values(item, key=joined(key, name), faults=faults, depth=depth + 1)
            marks = {name: Mark(where=joined(key, name), key=joined(key, name)) for name in entries}
            return Entries(entries=entries, key_marks=marks, mark=mark)
        case list() | tuple():
            items = [
                from_values(item, key=f"{key}[{i}]", faults=faults, depth=depth + 1) for i, item in enumerate(value)
            ]
            return Items(items=tuple(items), mark=mark)
        case _:
            faults.add(mark, f"a value {_of_type(value)}", "a text, a number, a truth value, a list or a mapping")
            return Broken(mark=mark)


def joined(key: str, name: str) -> str:
    """Returns the path of `name` under `key`."""
    return f"{key}.{name}" if key else name


def _of_type(value: object) -> str:
    return f"of type {type(value).__name__}"


class _GiveUp(Exception):
    """The fault is recorded, and parsing cannot continue."""


class _Builder:
    """Builds the tree from events; `line` is the last line seen."""

    def __init__(self, *, origin: str, environ: Mapping[str, str], faults: Faults) -> None:
        self.origin = origin
        self.environ = environ
        self.faults = faults
        self.line = 1
        self.nodes = 0

    def document(self, events: Iterator[yaml.Event]) -> Node | None:
        tree: Node | None = None
        for event in events:
            match event:
                case yaml.StreamStartEvent() | yaml.StreamEndEvent() | yaml.DocumentEndEvent():
                    pass
                case yaml.DocumentStartEvent():
                    if tree is not None:
                        self.faults.add(self._mark(event, ""), "a second document", "one document")
                        raise _GiveUp
                case _:
                    tree = self._node(event, events, "", 0)
        return tree

    def _mark(self, event: yaml.Event, key: str) -> Mark:
        if event.start_mark is not None:
            self.line = event.start_mark.line + 1
        return Mark(where=f"{self.origin}:{self.line}", line=self.line, key=key)

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], key: str, depth: int) -> Node:
        mark = self._mark(event, key)
        self.nodes += 1
        if depth > DEPTH_MAX or self.nodes > NODES_MAX:
            what = "nested too deep" if depth > DEPTH_MAX else "too many values"
            self.faults.add(mark, what, f"at most {DEPTH_MAX} levels and {NODES_MAX} values", about="")
            raise _GiveUp
        if isinstance(event, yaml.AliasEvent):
            self.faults.add(mark, "YAML aliases are not supported", "the value itself")
            return Broken(mark=mark)
        if getattr(event, "tag", None) not in (None, "!"):
            self.faults.add(mark, "YAML tags are not supported", "a plain or a quoted value")
        match event:
            case yaml.MappingStartEvent():
                return self._mapping(mark, events, key, depth)
            case yaml.SequenceStartEvent():
                items: list[Node] = []
                while not isinstance(event := next(events), yaml.SequenceEndEvent):
                    items.append(self._node(event, events, f"{key}[{len(items)}]", depth + 1))
                return Items(items=tuple(items), mark=mark)
            case yaml.ScalarEvent():
                node = Scalar(text=event.value, mark=mark, is_plain=event.style is None)
                return _checked(_expanded(node, self.environ, self.faults), self.faults)
            case _:
                raise ValueError(f"not the beginning of a node: {type(event).__name__}")

    def _mapping(self, mark: Mark, events: Iterator[yaml.Event], key: str, depth: int) -> Node:
        entries: dict[str, Node] = {}
        marks: dict[str, Mark] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key_mark = self._mark(event, key)
            if not isinstance(event, yaml.ScalarEvent):
                self.faults.add(key_mark, "a key that is not a text", "a text")
                self._node(event, events, key, depth + 1)
                self._node(next(events), events, key, depth + 1)
                continue
            name = event.value
            node = self._node(next(events), events, joined(key, name), depth + 1)
            if name in entries:
                what = f"{shown_key(name)} is there twice, first in line {marks[name].line}"
                self.faults.add(key_mark, what, "each key once")
                continue
            marks[name] = key_mark.below(name)
            entries[name] = replace(node, mark=marks[name]) if isinstance(node, Entries) else node
        return Entries(entries=entries, key_marks=marks, mark=mark)


_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>.*))?", re.DOTALL)


def _expanded(node: Scalar, environ: Mapping[str, str], faults: Faults) -> Scalar | Broken:
    """Returns `node` with `${NAME}` and `${NAME:-default}` replaced; `$${` stands for `${`."""
    if "${" not in node.text:
        return node
    is_broken = takes_environment = False

    def value(found: re.Match[str]) -> str:
        nonlocal is_broken, takes_environment
        if found["inside"] is None:
            return "${"
        inside = _INSIDE.fullmatch(found["inside"])
        if inside is None or not found["end"]:
            expected = "${NAME} or ${NAME:-default}; $${ for the text ${"
            faults.add(node.mark, "a reference that cannot be read", expected)
            is_broken = True
        elif environ.get(inside["name"]) or (inside["default"] is None and inside["name"] in environ):
            takes_environment = True
            return environ[inside["name"]]
        elif inside["default"] is not None:
            return str(inside["default"])
        else:
            what = f"the environment variable {inside['name']} is not set"
            faults.add(node.mark, what, f"it to be set, or a default: ${{{inside['name']}:-…}}")
            is_broken = True
        return ""

    text = _VARIABLE.sub(value, node.text)
    if is_broken:
        return Broken(mark=node.mark)
    return Scalar(
        text=text, mark=node.mark, is_plain=node.is_plain, written=node.text, takes_environment=takes_environment
    )


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def _checked(node: Scalar | Broken, faults: Faults) -> Scalar | Broken:
    """Returns `node`, unless it contains characters that no file name, SQL text or message may contain."""
    if isinstance(node, Scalar) and _CONTROL.search(node.text):
        faults.add(node.mark, "a control character", "printable text")
        return Broken(mark=node.mark)
    return node
