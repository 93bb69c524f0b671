"""Debezium's envelopes in files: one JSON message a line, or `{"key": …, "value": …}` where the key is kept, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.core.keys import numbers
from headgate.errors import CheckpointMismatch, Unavailable
from headgate.sources.debezium import Message
from headgate.sources.files import at, paths_of, stat_of

WRAPPED = ({"key", "value"}, {"value"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeFiles:
    """See `Logs`. Each file is a piece; an offset is a line, from 0."""

    files: str
    """A folder, a file or a glob."""
    transactions: str | None = None
    """The same for transaction metadata."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """If it names any, the files hold changes of no others."""
    is_one: bool = True

    def fingerprint(self) -> object:
        return tuple(stat_of(self._all()))

    def at(self) -> str:
        return at(self.files)

    def read(
        self, starts: Mapping[str, int], ends: Mapping[str, int] | None
    ) -> Sequence[tuple[str, Iterator[Message]]]:
        names = {str(path): path for path in self._all()}
        gone = sorted(ends.keys() - names.keys()) if ends is not None else ()
        if gone:
            raise CheckpointMismatch(
                "a file of a batch that was begun is gone; nothing was written", advice="Bring it back", file=gone[0]
            )
        return [
            (name, _lines(path, starts.get(name, 0), None if ends is None else ends.get(name, 0)))
            for name, path in names.items()
        ]

    def is_transactions(self, name: str) -> bool:
        return self.transactions is not None and name in {str(path) for path in paths_of(self.transactions)}

    def has(self, collection: str) -> bool:
        return not self.tables or collection in self.tables or collection.rpartition(".")[2] in self.tables

    def where(self, name: str, offset: int) -> Mapping[str, Any]:
        return {"file": name, "line": offset + 1}

    def close(self) -> None:
        """Nothing is kept open."""

    def _all(self) -> list[Path]:
        return [*paths_of(self.files), *(paths_of(self.transactions) if self.transactions else ())]


def _lines(path: Path, start: int, end: int | None) -> Iterator[Message]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                if end is not None and number >= end:
                    return
                if number >= start and line.strip():
                    yield _message(number, line)
    except OSError as error:
        raise Unavailable(f"a file of changes cannot be read: {error.strerror}", file=path) from error


def _message(number: int, line: bytes) -> Message:
    if line.startswith((b'{"key"', b'{"value"')):
        try:
            record = numbers.loads(line)
        except ValueError:
            return Message(number, line, None)  # where it is decoded, it is named
        if record.keys() in WRAPPED:
            value, key = record["value"], record.get("key")
            return Message(number, json.dumps(value).encode(), None if key is None else json.dumps(key).encode())
    return Message(number, line, None)
