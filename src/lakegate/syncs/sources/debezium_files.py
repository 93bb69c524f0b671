"""Debezium's envelopes in files: one JSON message per line, or `{"key": …, "value": …}` where the key is kept, too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakegate.errors import CheckpointMismatch
from lakegate.syncs.sources.debezium_logs import Message
from lakegate.syncs.sources.files import at, paths_of, stat_of
from lakegate.syncs.sources.lines import TooLong, lines
from lakegate.syncs.sources.pieces import Mark, Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeFiles:
    """See `Logs`. Each file is a piece; an offset is a line, from 0."""

    files: str
    """A folder, a file or a glob."""
    transactions: str | None = None
    """The same for transaction metadata."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """If not empty, the files contain only changes of these tables."""
    is_one: bool = True
    _pieces: Pieces = field(default_factory=Pieces, compare=False, repr=False)

    def fingerprint(self) -> object:
        return tuple(stat_of(self._all()))

    def at(self) -> str:
        return at(self.files)

    def recognize(
        self, known: Mapping[str, Any], starts: Mapping[str, int], read: Collection[str]
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        marks: dict[str, Mark] = {name: (one[0], one[1], one[2], one[3]) for name, one in known.items()}

        def is_read(name: str, mark: Mark) -> bool:
            return name in read or starts.get(name, 0) >= mark[2]

        def is_same(name: str, was: Mark, now: Mark) -> bool:
            return was[3] == now[3] and now[2] >= starts.get(name, 0)

        found, names = self._pieces.recognize(self._all(), marks, is_read, is_same)
        if not known:  # an earlier version wrote the position
            names = {name: name for name in found}
        return {name: list(mark) for name, mark in found.items()}, names

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
        """Does nothing: no file is kept open."""

    def _all(self) -> list[Path]:
        return [*paths_of(self.files), *(paths_of(self.transactions) if self.transactions else ())]


def _lines(path: Path, start: int, end: int | None) -> Iterator[Message]:
    for number, line in enumerate(lines(path)):
        if end is not None and number >= end:
            return
        if number >= start and (isinstance(line, TooLong) or line.strip()):
            yield Message(number, line, None, may_be_wrapped=True)
