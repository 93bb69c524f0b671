"""Computes the source's final rows independently: replays its records one by one as plain SQL on a scratch database.

Rules for editors: this module shares no reader, decoder, fold or plan with the code that applies changes: an error in shared code
would show no difference. SQLite itself runs the foreign key actions. Rows are stored in a file to save memory; the file is
deleted after the comparison.
"""

from __future__ import annotations

import base64
import json
import pickle
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from lakegate.syncs.plan.record import Record, Row
from lakegate.syncs.plan.table_schema import ForeignKey, TableSchema

GROUP_MAX = 100_000
"""In a larger transaction, it is not checked whether a row leaves a key after another row takes the key."""


class Replay:
    """Rows by table and key. Use as a context manager."""

    def __init__(self, tables: Mapping[str, TableSchema], *, has_actions: bool = True) -> None:
        """Prepares for records of these target tables, which must have a key.

        Args:
            tables: The tables by name.
            has_actions: Run foreign key actions, as for a source that does not log their effects.
        """
        self._tables = {name: one if has_actions else replace(one, foreign_keys=()) for name, one in tables.items()}
        self.troubles: dict[str, str] = {}
        """Table → why its rows could not be computed."""
        self.left_out: dict[str, set[str]] = {}
        """Table → columns whose values could not be read."""
        self._folder = tempfile.TemporaryDirectory(prefix="lakegate-verify-")
        self._file = sqlite3.connect(Path(self._folder.name) / "rows.db", isolation_level=None)
        self._number = {name: n for n, name in enumerate(self._tables)}
        self._linked = {name: _linked(name, self._tables) for name in self._tables}
        self._parked: dict[tuple[str, tuple[str | None, ...]], tuple[str | None, ...]] = {}
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA foreign_keys = ON"):
            self._file.execute(statement)
        for name in self._tables:
            self._make(name)
        self._file.execute("CREATE TABLE ever (t INT, k TEXT, image BLOB, PRIMARY KEY (t, k)) WITHOUT ROWID")
        self._file.execute("CREATE TABLE begun (t INT PRIMARY KEY)")
        # Never committed: foreign keys exist only for their actions, and a parent may be older than the first record.
        self._file.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._folder.cleanup()

    def take(self, records: Iterable[Record]) -> None:
        """Replays records in the order of the source."""
        group: list[Record] = []
        for record in records:
            if group and (record.tx is None or record.tx != group[-1].tx or len(group) >= GROUP_MAX):
                self._take(group)
                group = []
            group.append(record)
        self._take(group)

    def is_whole(self, name: str) -> bool:
        """Returns whether all rows of the table came from records. False if a change was for a row that no record inserted."""
        return self._file.execute("SELECT 1 FROM begun WHERE t = ?", (self._number[name],)).fetchone() is None

    def chunks(self, name: str, rows_max: int) -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any]]]]:
        """Yields the rows of a table in chunks: key and image."""
        linked, last = self._linked[name], -1
        fields = ", ".join(_column(linked, one) for one in linked)
        while True:
            found = self._file.execute(
                f"SELECT rowid, image, {fields} FROM d{self._number[name]} WHERE rowid > ? ORDER BY rowid LIMIT {int(rows_max)}",
                (last,),
            ).fetchall()
            if not found:
                return
            last = found[-1][0]
            rows = [self._row(name, image, values) for _, image, *values in found]
            yield [(tuple(row.get(one) for one in self._tables[name].identity), row) for row in rows]

    def row(self, name: str, key: Sequence[object]) -> dict[str, Any] | None:
        """Returns one row by its key; None if it does not exist."""
        found = self._found(name, tuple(map(_text, key)))
        return None if found is None else self._row(name, found[1], found[2:])

    # The methods below are private to this module.

    def _make(self, name: str) -> None:
        linked, number, schema = self._linked[name], self._number[name], self._tables[name]
        acting = _acting(schema, self._tables)
        defaults = {column: _text(value) for key in acting for column, value in key.defaults}
        parts = [f"{_column(linked, one)} TEXT DEFAULT {_literal(defaults.get(one))}" for one in linked]
        for key in acting:
            theirs = self._linked[key.parent]
            parts.append(
                f"FOREIGN KEY ({', '.join(_column(linked, one) for one in key.columns)}) "
                f"REFERENCES d{self._number[key.parent]} ({', '.join(_column(theirs, one) for one in key.parent_columns)}) "
                f"ON DELETE {key.on_delete or 'NO ACTION'} ON UPDATE {key.on_update or 'NO ACTION'} "
                "DEFERRABLE INITIALLY DEFERRED"
            )
        self._file.execute(f"CREATE TABLE d{number} (image BLOB, {', '.join(parts)})")
        keys = {schema.identity: False}
        for child in self._tables.values():
            for key in _acting(child, self._tables):
                if key.parent == name:
                    keys[key.parent_columns] = True
        for n, (columns, is_referenced) in enumerate(keys.items()):
            kind = "UNIQUE INDEX" if is_referenced else "INDEX"
            fields = ", ".join(_column(linked, one) for one in columns)
            self._file.execute(f"CREATE {kind} i{number}_{n} ON d{number} ({fields})")

    def _take(self, group: Sequence[Record]) -> None:
        leaves: dict[tuple[str, tuple[str | None, ...]], int] = {}
        if len(group) > 1:
            for n, record in enumerate(group):
                old, new = self._keys(record)
                if old is not None and (record.op == "d" or (record.op == "u" and new != old)):
                    leaves[record.table, old] = n
        for n, record in enumerate(group):
            if record.table not in self._tables or record.op not in ("c", "u", "d", "t"):
                continue
            try:
                self._one(record, n, leaves)
            except sqlite3.IntegrityError as error:
                self.troubles.setdefault(record.table, f"its records cannot be replayed one by one: {error}")
        self._parked.clear()

    def _one(self, record: Record, n: int, leaves: Mapping[tuple[str, tuple[str | None, ...]], int]) -> None:
        name, number = record.table, self._number[record.table]
        if record.op == "t":
            self._file.execute(f"DELETE FROM d{number}")
            self._file.execute("DELETE FROM begun WHERE t = ?", (number,))
            return
        old, new = self._keys(record)
        if old is None or (record.op != "d" and new is None):
            self.troubles.setdefault(name, "a record does not identify its row")
            return
        here = self._parked.pop((name, old), old) if record.op != "c" else old
        if record.op == "d":
            self._note_begun(name, old)
            self._file.execute(f"DELETE FROM d{number} WHERE {self._where(name)}", here)
            return
        assert new is not None
        if record.op == "u":
            self._note_begun(name, old)
        if record.op == "c" or new != here:
            there = self._found(name, new)
            if there is not None and leaves.get((name, new), -1) > n:
                marker = (*(None for _ in new[:-1]), json.dumps({"parked": [name, *new]}))
                self._set_key(name, new, marker)
                self._parked[name, new] = marker
            elif there is not None and record.op == "u":
                self._file.execute(f"DELETE FROM d{number} WHERE {self._where(name)}", new)
        found = self._found(name, here) if record.op == "u" else self._found(name, new)
        image = dict(record.after or {})
        if record.op == "u":
            base = self._row(name, found[1], found[2:]) if found is not None else self._ever(name, old)
            image = {**base, **image}
        known = {column.name for column in self._tables[name].columns}
        image = {column: value for column, value in image.items() if column in known}
        linked = self._linked[name]
        values = [_text(image.get(one)) for one in linked]
        blob = pickle.dumps(image)
        if found is None:
            marks = ", ".join("?" * (len(linked) + 1))
            self._file.execute(f"INSERT INTO d{number} VALUES ({marks})", (blob, *values))
        else:
            sets = ", ".join(f"{_column(linked, one)} = ?" for one in linked)
            self._file.execute(f"UPDATE d{number} SET image = ?, {sets} WHERE rowid = ?", (blob, *values, found[0]))
        self._file.execute("INSERT OR REPLACE INTO ever VALUES (?, ?, ?)", (number, json.dumps(new), blob))

    def _keys(self, record: Record) -> tuple[tuple[str | None, ...] | None, tuple[str | None, ...] | None]:
        """Returns the keys before and after, as texts; a key that is not shown equals the other one."""
        if record.table not in self._tables:
            return None, None
        identity = self._tables[record.table].identity

        def of(row: Row | None) -> tuple[str | None, ...] | None:
            if row is None or any(one not in row for one in identity):
                return None
            return tuple(_text(row[one]) for one in identity)

        old, new = of(record.before), of(record.after)
        if record.op == "d":
            return old or new, None
        if record.op == "c":
            return new, new
        return old or new, new or old

    def _where(self, name: str) -> str:
        linked = self._linked[name]
        return " AND ".join(f"{_column(linked, one)} IS ?" for one in self._tables[name].identity)

    def _found(self, name: str, key: tuple[str | None, ...]) -> tuple[Any, ...] | None:
        linked = self._linked[name]
        fields = ", ".join(_column(linked, one) for one in linked)
        sql = f"SELECT rowid, image, {fields} FROM d{self._number[name]} WHERE {self._where(name)}"
        found: tuple[Any, ...] | None = self._file.execute(sql, key).fetchone()
        return found

    def _set_key(self, name: str, old: tuple[str | None, ...], new: tuple[str | None, ...]) -> None:
        linked = self._linked[name]
        sets = ", ".join(f"{_column(linked, one)} = ?" for one in self._tables[name].identity)
        self._file.execute(f"UPDATE d{self._number[name]} SET {sets} WHERE {self._where(name)}", (*new, *old))

    def _row(self, name: str, image: bytes, values: Sequence[str | None]) -> dict[str, Any]:
        """Returns an image, with the values that a foreign key action has written."""
        row: dict[str, Any] = pickle.loads(image)
        for column, text in zip(self._linked[name], values, strict=True):
            if _text(row.get(column)) != text:
                row[column] = _value(text)
        return row

    def _ever(self, name: str, key: tuple[str | None, ...]) -> dict[str, Any]:
        sql = "SELECT image FROM ever WHERE t = ? AND k = ?"
        found = self._file.execute(sql, (self._number[name], json.dumps(key))).fetchone()
        return {} if found is None else pickle.loads(found[0])

    def _note_begun(self, name: str, key: tuple[str | None, ...]) -> None:
        sql = "SELECT 1 FROM ever WHERE t = ? AND k = ?"
        if self._file.execute(sql, (self._number[name], json.dumps(key))).fetchone() is None:
            self._file.execute("INSERT OR IGNORE INTO begun VALUES (?)", (self._number[name],))


def _linked(name: str, tables: Mapping[str, TableSchema]) -> tuple[str, ...]:
    """Returns the columns that the scratch table has: those of the key, and of foreign keys with actions."""
    own = [column for key in _acting(tables[name], tables) for column in key.columns]
    theirs = [
        column
        for child in tables.values()
        for key in _acting(child, tables)
        if key.parent == name
        for column in key.parent_columns
    ]
    return tuple(dict.fromkeys([*tables[name].identity, *own, *theirs]))


def _acting(schema: TableSchema, tables: Mapping[str, TableSchema]) -> list[ForeignKey]:
    """Returns the foreign keys with an action, between replayed tables."""
    return [key for key in schema.foreign_keys if key.parent in tables and (key.on_delete or key.on_update)]


def _column(linked: Sequence[str], name: str) -> str:
    return f"c{linked.index(name)}"


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def _text(value: object) -> str | None:
    """Returns one text for equal key values: numbers by their value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, bytes):
        return json.dumps({"bytes": base64.b64encode(value).decode()})
    if isinstance(value, float | Decimal):
        number = Decimal(str(value))
        if number.is_finite() and number == number.to_integral_value():
            return str(int(number))
        return json.dumps({"number": str(number.normalize())})
    return json.dumps(value, default=str, sort_keys=True)


def _value(text: str | None) -> Any:
    value = None if text is None else json.loads(text)
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        return base64.b64decode(value["bytes"])
    if isinstance(value, dict) and value.keys() == {"number"}:
        return Decimal(value["number"])
    return value
