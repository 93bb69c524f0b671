"""Random histories of three tables that foreign keys connect, executed by a source and carried over to a target of its kind."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.changes import table_text
from lakegate.demo.database_servers import Database
from lakegate.syncs.plan.change import Change

Family = Literal["unlogged", "logged", "deferred"]
"""The source does not log what its actions do; it does; it has no actions, and checks its keys at commits."""
Row = dict[str, Any]
COLUMNS = {
    "p": ["id", "a", "b", "v"],
    "q": ["g", "n", "pid", "code", "up_g", "up_n", "w"],
    "r": ["id", "g", "n", "tag"],
}
KEYS = {"p": ["id"], "q": ["g", "n"], "r": ["id"]}
UNIQUE = [("p", ["a"]), ("q", ["code"]), ("q", ["pid", "w"]), ("r", ["tag"])]
LINKS = [("q", ["pid"], "p"), ("q", ["up_g", "up_n"], "q"), ("r", ["g", "n"], "q")]


@dataclass(slots=True)
class History:
    """The changes of a source, and the final rows of its tables."""

    ddl: list[str]
    changes: list[Change] = field(default_factory=list)
    final: dict[str, list[str]] = field(default_factory=dict)


def tables(chance: random.Random, kind: str, family: Family) -> list[str]:
    """Definitions of the target's tables, with actions drawn by chance."""
    deletes = ["", "ON DELETE CASCADE", "ON DELETE SET NULL", "ON DELETE RESTRICT"]
    updates = ["", "ON UPDATE CASCADE", "ON UPDATE SET NULL"]
    if kind != "mariadb":
        deletes.append("ON DELETE SET DEFAULT")

    def link(columns: Sequence[str], parent: str, *, is_own: bool = False) -> str:
        update = chance.choice(updates[:1] if is_own and kind == "mariadb" else updates)
        actions = "" if family == "deferred" else f"{chance.choice(deletes[:3] if is_own else deletes)} {update}"
        later = " DEFERRABLE" if kind == "postgres" and chance.random() < 0.2 else ""
        return f", FOREIGN KEY ({', '.join(columns)}) REFERENCES {parent} ({', '.join(KEYS[parent])}) {actions}{later}"

    own = link(["up_g", "up_n"], "q", is_own=True) if chance.random() < 0.5 else ""
    return [
        "CREATE TABLE p (id int PRIMARY KEY, a int UNIQUE, b int, v int)",
        "CREATE TABLE q (g int, n int, pid int DEFAULT 5, code int UNIQUE, up_g int, up_n int, w int, PRIMARY KEY (g, n), "
        f"UNIQUE (pid, w){link(['pid'], 'p')}{own})",
        f"CREATE TABLE r (id int PRIMARY KEY, g int, n int, tag int UNIQUE{link(['g', 'n'], 'q')})",
    ]


def statements(chance: random.Random) -> Iterator[tuple[str, str, Row, Row]]:
    """(op, table, key, values): one, or some that belong together."""
    table = chance.choice("ppqqr")
    small = [None, 1, 2, 3, 4, 5]

    def key(of: str) -> Row:
        return (
            {"id": chance.randrange(1, 6)} if of != "q" else {"g": chance.randrange(1, 4), "n": chance.randrange(1, 3)}
        )

    def other(of: str) -> tuple[Any, Any]:
        found = key(of) if chance.random() < 0.7 else {}
        return found.get("g"), found.get("n")

    up, to = other("q"), other("q")
    values: Row = {
        "p": {"a": chance.choice(small), "b": chance.choice(small), "v": chance.randrange(99)},
        "q": {
            "pid": chance.choice(small),
            "code": chance.choice(small),
            "up_g": up[0],
            "up_n": up[1],
            "w": chance.choice(small),
        },
        "r": {"g": to[0], "n": to[1], "tag": chance.choice(small)},
    }[table]
    what = chance.choices(["c", "u", "d", "again", "move", "turn"], [6, 6, 3, 3, 3, 1])[0]
    mine = key(table)
    if what == "turn":  # two parents exchange their keys by way of a third one
        one, two = chance.sample(range(1, 6), 2)
        yield from (("u", "p", {"id": old}, {"id": new}) for old, new in ((one, 9), (two, one), (9, two)))
    elif what == "again":
        yield "d", table, mine, {}
        yield "c", table, mine, values
    elif what == "move":
        yield "u", table, mine, key(table)
    elif what == "u":
        names = chance.sample(sorted(values), chance.randrange(1, len(values) + 1))
        if {"up_g", "up_n", "g", "n"} & set(names):
            names = sorted({*names, *(one for one in values if one in ("up_g", "up_n", "g", "n"))})
        yield "u", table, mine, {name: values[name] for name in names}
    else:
        yield what, table, mine, values


class Source:
    """A database that executes statements and says what its log would."""

    def __init__(self, database: Database, family: Family) -> None:
        self._connection = database.connect()
        self._cursor = self._connection.cursor()
        self._mark = "?" if database.kind == "sqlite" else "%s"
        self._family = family
        if database.kind == "sqlite":
            self._cursor.execute("PRAGMA foreign_keys = ON")

    def run(self, chance: random.Random, transactions: int, refusals: tuple[type[BaseException], ...]) -> list[Change]:
        """Transactions of random statements; what the source refuses is not in them."""
        said: list[Change] = []
        for number in range(transactions):
            self._cursor.execute("BEGIN")
            log: list[Change] = []
            for _ in range(8 if number == 0 else chance.randrange(1, 5)):
                self._cursor.execute("SAVEPOINT one")
                mine: list[Change] = []
                try:
                    for statement in statements(chance):
                        mine += self._step(str(number), *statement)
                except refusals:
                    self._cursor.execute("ROLLBACK TO SAVEPOINT one")
                    continue
                log += mine
            with contextlib.suppress(refusals):
                if self._family != "deferred" or self._is_valid():
                    self._cursor.execute("COMMIT")
                    said += log
                    continue
            self._cursor.execute("ROLLBACK")
        return [_numbered(one, seq) for seq, one in enumerate(said)]

    def close(self) -> None:
        """Gives up its connection."""
        self._connection.close()

    def rows(self, table: str) -> dict[tuple[Any, ...], Row]:
        """All rows by key."""
        self._cursor.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}")
        found = [dict(zip(COLUMNS[table], row, strict=True)) for row in self._cursor.fetchall()]
        return {tuple(row[name] for name in KEYS[table]): row for row in found}

    def _step(self, tx: str, op: str, table: str, key: Row, values: Row) -> Iterator[Change]:
        before = {name: self.rows(name) for name in COLUMNS}
        place = tuple(key.values())
        if op == "c":
            new = {**key, **values}
            marks = ", ".join([self._mark] * len(new))
            self._cursor.execute(f"INSERT INTO {table} ({', '.join(new)}) VALUES ({marks})", list(new.values()))
        else:
            where = " AND ".join(f"{name} = {self._mark}" for name in key)
            sets = ", ".join(f"{name} = {self._mark}" for name in values)
            sql = f"DELETE FROM {table} WHERE {where}" if op == "d" else f"UPDATE {table} SET {sets} WHERE {where}"
            self._cursor.execute(sql, [*(values.values() if op == "u" else ()), *key.values()])
        after = {name: self.rows(name) for name in COLUMNS}
        to = tuple({**key, **values}[name] for name in key)
        old, new_row = before[table].get(place), after[table].get(to) if op != "d" else None
        changes: list[Change] = []
        if (op == "c" or old is not None) and old != new_row:
            changes.append(Change(seq=0, tx=tx, table=table, op=op, before=old, after=new_row))  # type: ignore[arg-type]
        if self._family == "logged" and changes:
            for name in ("r", "q", "p"):
                for one in sorted(before[name].keys() | after[name].keys()):
                    was, now = before[name].get(one), after[name].get(one)
                    if was != now and (name, one) not in {(table, place), (table, to)}:
                        kind = "u" if was and now else "c" if now else "d"
                        changes.append(Change(seq=0, tx=tx, table=name, op=kind, before=was, after=now))  # type: ignore[arg-type]
        yield from changes

    def _is_valid(self) -> bool:
        rows = {name: self.rows(name) for name in COLUMNS}
        for table, columns in UNIQUE:
            values = [tuple(row[one] for one in columns) for row in rows[table].values()]
            values = [value for value in values if None not in value]
            if len(values) != len(set(values)):
                return False
        links = [(tuple(row[one] for one in columns), to) for name, columns, to in LINKS for row in rows[name].values()]
        return all(None in value or value in rows[to] for value, to in links)


def _numbered(change: Change, seq: int) -> Change:
    return Change(seq=seq, tx=change.tx, table=change.table, op=change.op, before=change.before, after=change.after)


def history(
    seed: int, kind: str, family: Family, source: Database, refusals: tuple[type[BaseException], ...]
) -> History:
    """Makes a history: definitions of the target, the source's changes, and the final rows of its tables."""
    chance = random.Random(f"{family} {seed}")
    found = History(tables(chance, kind, family))
    free = [f"CREATE TABLE {name} ({', '.join(f'{one} int' for one in COLUMNS[name])}, PRIMARY KEY ({', '.join(KEYS[name])}))"
            for name in COLUMNS]  # fmt: skip
    source.execute(*(free if family == "deferred" else found.ddl))
    running = Source(source, family)
    try:
        found.changes = running.run(chance, chance.randrange(3, 12), refusals)
        found.final = {name: table_text(list(running.rows(name).values())) for name in COLUMNS}
    finally:
        running.close()
    return found


def as_sent(changes: Sequence[Change], how: str) -> list[Change]:
    """Cuts the changes' images. `key`: only keys of before; `changed`: also only changed columns of after."""
    found = []
    for one in changes:
        names, before, after = KEYS[one.table], one.before, one.after
        if how != "whole" and before is not None:
            if how == "changed" and after is not None:
                after = {k: v for k, v in after.items() if k in names or before[k] != v}
            before = {name: before[name] for name in names}
        found.append(Change(seq=one.seq, tx=one.tx, table=one.table, op=one.op, before=before, after=after))
    return found
