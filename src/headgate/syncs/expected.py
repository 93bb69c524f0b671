"""The rows that a source's changes end with, kept in a file while they are compared with a target: memory stays small."""

from __future__ import annotations

import pickle
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from headgate.core.keys.change import Change, Image
from headgate.core.keys.fold import Key, canonical
from headgate.core.keys.plain import net_effect
from headgate.core.keys.schema import TableSchema

CHANGES_MAX = 20_000
"""So many are folded at once."""
TABLES = (
    "CREATE TABLE told (place text PRIMARY KEY, name text, key blob, image blob) WITHOUT ROWID",
    "CREATE TABLE begun (name text PRIMARY KEY) WITHOUT ROWID",
)


class Expected:
    """Rows by table and key. Use as a context manager: the file ends with it."""

    def __init__(self) -> None:
        self._tables: dict[str, TableSchema] = {}
        self._known: dict[str, set[str]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-verify-")
        self._file = sqlite3.connect(Path(self._folder.name) / "rows.db", isolation_level=None)
        # It is thrown away in any case.
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", *TABLES):
            self._file.execute(statement)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._folder.cleanup()

    def meet(self, tables: Mapping[str, TableSchema]) -> None:
        """Tables whose changes will be taken."""
        self._tables.update(tables)
        self._known.update({name: {column.name for column in table.columns} for name, table in tables.items()})

    def take(self, changes: Sequence[Change]) -> None:
        """Whole transactions, each batch behind the one before it; of tables with a key."""
        for change in changes:
            if change.op == "t":
                self._file.execute("DELETE FROM told WHERE name = ?", (change.table,))
                self._file.execute("DELETE FROM begun WHERE name = ?", (change.table,))
        plain = [self._cut(change) for change in changes if change.op in ("c", "u", "d")]
        self._note_begun(plain)
        images: dict[tuple[str, Key], Image | None] = {}
        for row in net_effect(plain, self._tables).rows:
            image = row.image
            if image is not None and len(image) < len(self._tables[row.table].stored):
                image = {**(self._found(row.table, row.origin or row.key) or {}), **image}
            images[row.table, row.key] = image
        # Only now: a row may come from where another one goes.
        for (name, key), image in images.items():
            if image is None:
                self._file.execute("DELETE FROM told WHERE place = ?", (_place(name, key),))
            else:
                values = (_place(name, key), name, pickle.dumps(key), pickle.dumps(dict(image)))
                self._file.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", values)

    def is_whole(self, name: str) -> bool:
        """Whether every row of the table came with a change; not if a row was changed that no change had made."""
        return self._file.execute("SELECT 1 FROM begun WHERE name = ?", (name,)).fetchone() is None

    def chunks(self, name: str, rows_max: int) -> Iterator[list[tuple[Key, Image]]]:
        """The rows of a table in ranges of keys."""
        last = ""
        while True:
            found = self._file.execute(
                "SELECT place, key, image FROM told WHERE name = ? AND place > ? ORDER BY place LIMIT ?",
                (name, last, rows_max),
            ).fetchall()
            if not found:
                return
            last = found[-1][0]
            yield [(pickle.loads(key), pickle.loads(image)) for _, key, image in found]

    def _cut(self, change: Change) -> Change:
        """Without columns that the target does not have any more."""
        known = self._known[change.table]
        if all(image is None or image.keys() <= known for image in (change.before, change.after)):
            return change

        def cut(image: Image | None) -> Image | None:
            return None if image is None else {name: value for name, value in image.items() if name in known}

        return Change(
            seq=change.seq, tx=change.tx, table=change.table, op=change.op,
            before=cut(change.before), after=cut(change.after),
        )  # fmt: skip

    def _note_begun(self, changes: Iterable[Change]) -> None:
        made: set[tuple[str, Key]] = set()
        for change in changes:
            schema = self._tables[change.table]
            key = schema.key_of(change.before) or schema.key_of(change.after)
            if key is None:
                continue
            named = (change.table, canonical(key))
            if change.op != "c" and named not in made and self._found(change.table, key) is None:
                self._file.execute("INSERT OR IGNORE INTO begun VALUES (?)", (change.table,))
            made.add(named)
            after = schema.key_of(change.after)
            if after is not None:
                made.add((change.table, canonical(after)))

    def _found(self, name: str, key: Key) -> Image | None:
        found = self._file.execute("SELECT image FROM told WHERE place = ?", (_place(name, key),)).fetchone()
        return None if found is None else pickle.loads(found[0])


def _place(name: str, key: Key) -> str:
    return repr((name, canonical(key)))
