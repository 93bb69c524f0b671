"""Random statements on one table: as SQL, and as functions of plain rows. A replay one by one gives the rows that it must hold.

A statement is drawn from a seed and its name alone. So its name in a table's log identifies the statement, without a report
from the process that ran it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

KEYS = 400
"""Keys are below this: few, so that statements concern the same rows."""
POOL = (380, 412)
"""Keys that every second MERGE concerns; some of them are not in the table at first."""
LETTERS = ("a", "b", "ab", "it's", "ä", "", None)


class Row(NamedTuple):
    """A row; any column may be NULL."""

    k: int | None
    v: int | None
    w: int | None
    s: str | None
    p: int | None


COLUMNS = "k BIGINT, v INT, w INT, s STRING, p INT"


# ------------------------------------------------------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as SQL and as a function of a row: None where SQL gives NULL."""

    sql: str
    """With `@` before each column."""
    says: Callable[[Row], bool | None]

    def text(self, alias: str | None = None) -> str:
        """Returns the SQL for a table with this name."""
        return self.sql.replace("@", f"{alias}." if alias else "")

    def holds(self, row: Row) -> bool:
        """Returns whether a statement with this condition concerns the row."""
        return self.says(row) is True


def compare(column: str, symbol: str, value: int | str | None) -> Condition:
    """Compares a column with a literal."""
    test = {"=": operator.eq, "<": operator.lt, ">=": operator.ge, "<>": operator.ne}[symbol]
    return Condition(
        f"@{column} {symbol} {literal(value)}",
        lambda row: None if value is None or (is_ := getattr(row, column)) is None else bool(test(is_, value)),
    )


def same(column: str, value: int | str | None) -> Condition:
    """Equality for which NULL is a value."""
    return Condition(f"@{column} <=> {literal(value)}", lambda row: bool(getattr(row, column) == value))


def among(column: str, values: Sequence[int | str | None]) -> Condition:
    """IN; with a NULL in its list it is never false."""

    def says(row: Row) -> bool | None:
        is_ = getattr(row, column)
        if is_ is None:
            return None
        return True if is_ in values else None if None in values else False

    return Condition(f"@{column} IN ({', '.join(map(literal, values))})", says)


def modulo(column: str, divisor: int, rest: int) -> Condition:
    """Modulo of a column that is never negative: there Python and Spark agree."""
    return Condition(
        f"@{column} % {divisor} = {rest}",
        lambda row: None if (is_ := getattr(row, column)) is None else bool(is_ % divisor == rest),
    )


def begins(column: str, letters: str) -> Condition:
    """LIKE with a beginning."""
    return Condition(
        f"@{column} LIKE '{letters}%'",
        lambda row: None if (is_ := getattr(row, column)) is None else bool(is_.startswith(letters)),
    )


def is_null(column: str) -> Condition:
    """IS NULL."""
    return Condition(f"@{column} IS NULL", lambda row: getattr(row, column) is None)


def both(one: Condition, other: Condition) -> Condition:
    """Joins two conditions by AND."""

    def says(row: Row) -> bool | None:
        said = (one.says(row), other.says(row))
        return False if False in said else None if None in said else True

    return Condition(f"({one.sql} AND {other.sql})", says)


def either(one: Condition, other: Condition) -> Condition:
    """Joins two conditions by OR."""

    def says(row: Row) -> bool | None:
        said = (one.says(row), other.says(row))
        return True if True in said else None if None in said else False

    return Condition(f"({one.sql} OR {other.sql})", says)


def negated(one: Condition) -> Condition:
    """NOT."""
    return Condition(f"NOT ({one.sql})", lambda row: None if (said := one.says(row)) is None else not said)


def between(low: int, number: int) -> Condition:
    """Keys from `low` on, `number` of them."""
    return both(compare("k", ">=", low), compare("k", "<", low + number))


def literal(value: int | str | None) -> str:
    """Returns the value as SQL."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "\\'") + "'"


# ------------------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class After:
    """The effect of a statement on rows."""

    becomes: Sequence[Row | None]
    """In the order of the rows: the same object where the statement does not concern the row, None where it deletes the row."""
    added: Sequence[Row] = ()

    @property
    def rows(self) -> list[Row]:
        """Returns the table's rows after the statement."""
        return [row for row in self.becomes if row is not None] + list(self.added)


class Statement(Protocol):
    """A statement."""

    def sql(self, table: str) -> str:
        """Returns its text."""
        ...

    def after(self, rows: Sequence[Row]) -> After:
        """Returns its effect, run alone."""
        ...


@dataclass(frozen=True, slots=True)
class Set:
    """Assignments as SQL, with `@` before each column of the table, and as a function of a row."""

    sql: Mapping[str, str]
    of: Callable[[Row], Row]

    def text(self, alias: str | None = None) -> str:
        """Returns the SQL after SET."""
        return ", ".join(f"{column} = {value}" for column, value in self.values(alias).items())

    def values(self, alias: str | None = None) -> dict[str, str]:
        """Returns column → expression."""
        return {column: value.replace("@", f"{alias}." if alias else "") for column, value in self.sql.items()}


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE."""

    where: Condition
    alias: str | None = None

    def sql(self, table: str) -> str:
        return f"DELETE FROM {table} {self.alias or ''} WHERE {self.where.text(self.alias)}"

    def after(self, rows: Sequence[Row]) -> After:
        return After([None if self.where.holds(row) else row for row in rows])


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE."""

    where: Condition
    set: Set
    alias: str | None = None

    def sql(self, table: str) -> str:
        return f"UPDATE {table} {self.alias or ''} SET {self.set.text(self.alias)} WHERE {self.where.text(self.alias)}"

    def after(self, rows: Sequence[Row]) -> After:
        return After([self.set.of(row) if self.where.holds(row) else row for row in rows])


class Source(NamedTuple):
    """A row of a MERGE's source: `o` = 1 deletes the matched rows."""

    k: int | None
    o: int | None
    v: int | None
    s: str | None


SOURCE_COLUMNS = "k BIGINT, o INT, v INT, s STRING"
MERGED = Set({"v": "x.v", "w": "@w + 1", "s": "x.s"}, lambda row: row)
"""As SQL; the new row also depends on the source's row."""
INSERTED = {"k": "x.k", "v": "x.v", "w": "0", "s": "x.s", "p": "cast(x.k % 3 as int)"}
ORPHANED = Set({"w": "@w + 100"}, lambda row: row._replace(w=None if row.w is None else row.w + 100))


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE of a few rows with different keys: deletes, updates, inserts, and marks or deletes rows not in its source."""

    source: tuple[Source, ...]
    on: Condition | None = None
    """A condition on the table's row, in addition to the keys."""
    matched: Condition | None = None
    """A condition on the table's row, of WHEN MATCHED … UPDATE."""
    inserts: bool = True
    by_source: Condition | None = None
    """The condition of WHEN NOT MATCHED BY SOURCE."""
    is_deleting: bool = False
    """Whether that clause deletes; otherwise it updates."""
    is_null_equal: bool = False
    """Whether keys are compared by `<=>`."""

    def on_text(self) -> str:
        """Returns the SQL after ON."""
        keys = f"t.k {'<=>' if self.is_null_equal else '='} x.k"
        return keys if self.on is None else f"{keys} AND {self.on.text('t')}"

    def sql(self, table: str) -> str:
        values = ", ".join(
            f"(cast({literal(r.k)} as bigint), cast({literal(r.o)} as int), cast({literal(r.v)} as int),"
            f" cast({literal(r.s)} as string))"
            for r in self.source
        )
        clauses = ["WHEN MATCHED AND x.o = 1 THEN DELETE"]
        clauses.append(
            f"WHEN MATCHED {'' if self.matched is None else 'AND ' + self.matched.text('t')} "
            f"THEN UPDATE SET {MERGED.text('t')}"
        )
        if self.inserts:
            clauses.append(
                f"WHEN NOT MATCHED THEN INSERT ({', '.join(INSERTED)}) VALUES ({', '.join(INSERTED.values())})"
            )
        if self.by_source is not None:
            then = "DELETE" if self.is_deleting else f"UPDATE SET {ORPHANED.text('t')}"
            clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {self.by_source.text('t')} THEN {then}")
        return (
            f"MERGE INTO {table} t USING (SELECT * FROM VALUES {values} AS x(k, o, v, s)) x ON {self.on_text()} "
            + " ".join(clauses)
        )

    def after(self, rows: Sequence[Row]) -> After:
        by_key = {row.k: row for row in self.source}
        seen: set[int | None] = set()
        becomes: list[Row | None] = []
        for row in rows:
            is_key = row.k in by_key and (row.k is not None or self.is_null_equal)
            if is_key and (self.on is None or self.on.holds(row)):
                seen.add(row.k)
                becomes.append(self._matched(row, by_key[row.k]))
            elif self.by_source is not None and self.by_source.holds(row):
                becomes.append(None if self.is_deleting else ORPHANED.of(row))
            else:
                becomes.append(row)
        new = [row for row in self.source if row.k not in seen] if self.inserts else []
        return After(becomes, [Row(r.k, r.v, 0, r.s, None if r.k is None else r.k % 3) for r in new])

    def _matched(self, row: Row, by: Source) -> Row | None:
        if by.o == 1:
            return None
        if self.matched is not None and not self.matched.holds(row):
            return row
        return row._replace(v=by.v, w=None if row.w is None else row.w + 1, s=by.s)


@dataclass(frozen=True, slots=True)
class Ripple:
    """MERGE of the table with itself: all rows whose key some row with the condition has."""

    where: Condition

    def sql(self, table: str) -> str:
        return (
            f"MERGE INTO {table} t USING (SELECT DISTINCT k FROM {table} WHERE {self.where.text()}) x ON t.k = x.k "
            f"WHEN MATCHED THEN UPDATE SET w = t.w + 1"
        )

    def after(self, rows: Sequence[Row]) -> After:
        keys = {row.k for row in rows if self.where.holds(row)} - {None}
        add = GROWN.of
        return After([add(row) if row.k in keys else row for row in rows])


@dataclass(frozen=True, slots=True)
class Append:
    """INSERT of rows, or an append by `df.write`."""

    rows: tuple[Row, ...]

    def sql(self, table: str) -> str:
        return f"INSERT INTO {table} VALUES {values_of(self.rows)}"

    def after(self, rows: Sequence[Row]) -> After:
        return After(rows, self.rows)


@dataclass(frozen=True, slots=True)
class Copy:
    """INSERT … SELECT of the table's own rows."""

    where: Condition

    def sql(self, table: str) -> str:
        return f"INSERT INTO {table} SELECT k, v, w + 1000, s, p FROM {table} WHERE {self.where.text()}"

    def after(self, rows: Sequence[Row]) -> After:
        found = [row for row in rows if self.where.holds(row)]
        return After(rows, [row._replace(w=None if row.w is None else row.w + 1000) for row in found])


@dataclass(frozen=True, slots=True)
class Replace:
    """INSERT … REPLACE WHERE: replaces the rows with a condition by other rows with the condition."""

    where: Condition
    rows: tuple[Row, ...]

    def sql(self, table: str) -> str:
        return (
            f"INSERT INTO {table} REPLACE WHERE {self.where.text()} "
            f"SELECT * FROM VALUES {values_of(self.rows)} AS x(k, v, w, s, p)"
        )

    def after(self, rows: Sequence[Row]) -> After:
        return After([None if self.where.holds(row) else row for row in rows], self.rows)


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE, with or without ZORDER: no row is changed."""

    is_zordered: bool = False

    def sql(self, table: str) -> str:
        return f"OPTIMIZE {table}" + (" ZORDER BY (k)" if self.is_zordered else "")

    def after(self, rows: Sequence[Row]) -> After:
        return After(rows)


def values_of(rows: Sequence[Row]) -> str:
    """Returns the SQL after VALUES."""
    types = ("bigint", "int", "int", "string", "int")
    return ", ".join(
        "(" + ", ".join(f"cast({literal(v)} as {type_})" for v, type_ in zip(row, types, strict=True)) + ")"
        for row in rows
    )


# ------------------------------------------------------------------------------------------------------------ chance

GROWN = Set({"w": "@w + 1"}, lambda row: row._replace(w=None if row.w is None else row.w + 1))
SETS = (
    GROWN,
    Set({"v": "(@v + 1) % 5"}, lambda row: row._replace(v=None if row.v is None else (row.v + 1) % 5)),
    Set({"k": f"(@k + 137) % {KEYS}"}, lambda row: row._replace(k=None if row.k is None else (row.k + 137) % KEYS)),
    Set({"p": "(@p + 1) % 3"}, lambda row: row._replace(p=None if row.p is None else (row.p + 1) % 3)),
    Set({"p": "coalesce(@p, 1)", "s": "'ab'"}, lambda row: row._replace(p=1 if row.p is None else row.p, s="ab")),
    Set(
        {"v": "NULL", "s": "cast(@v as string)"},
        lambda row: row._replace(v=None, s=None if row.v is None else str(row.v)),
    ),
)


def base(seed: str) -> list[Row]:
    """Returns the rows that a table begins with."""
    chance = Random(f"{seed}/base")
    rows = [_row(chance, key) for key in range(KEYS)]
    return rows + rows[:12] + [_row(chance, None) for _ in range(6)]


def draw(seed: str, name: str) -> tuple[Statement, Random]:
    """Returns the statement with this name, and its random generator for all further decisions."""
    chance = Random(f"{seed}/{name}")
    kinds = {_delete: 18, _update: 28, _merge: 26, _append: 14, _copy: 3, _ripple: 3, _replace: 4, _optimize: 4}
    (kind,) = chance.choices(list(kinds), weights=list(kinds.values()))
    return kind(chance), chance


def _row(chance: Random, key: int | None) -> Row:
    value = chance.choice((0, 0, 1, 1, 2, 3, 4, None))
    part = None if chance.random() < 0.06 else chance.randrange(3)
    return Row(key, value, 0 if chance.random() < 0.95 else None, chance.choice(LETTERS), part)


def _condition(chance: Random) -> Condition:
    low = chance.randrange(KEYS)
    near = between(low, chance.choice((3, 8, 20, 60)))
    value, letter = chance.randrange(5), chance.choice(LETTERS)
    forms: tuple[Callable[[], Condition], ...] = (
        lambda: among("k", [chance.randrange(KEYS) for _ in range(5)]),
        lambda: modulo("k", 53, chance.randrange(53)),
        lambda: both(near, compare("v", "=", value)),
        lambda: both(near, negated(compare("v", "=", value))),  # not of a row without a value
        lambda: both(near, either(is_null("v"), compare("v", "<", 2))),
        lambda: both(near, among("v", [value, None])),
        lambda: both(near, negated(among("v", [value, None]))),  # of no row at all
        lambda: both(near, same("s", letter)),
        lambda: both(near, begins("s", "a")),
        lambda: both(both(near, compare("p", "=", chance.randrange(3))), compare("s", "<>", letter or "b")),
        lambda: both(is_null("k"), compare("v", "=", value)),
        lambda: both(both(compare("v", "=", value % 2), compare("w", ">=", 1)), negated(compare("k", "<", 300))),
        lambda: either(both(compare("p", "=", 1), compare("w", ">=", 1000)), compare("k", "=", low)),
        lambda: both(compare("p", "=", chance.randrange(3)), compare("w", ">=", 3)),
    )
    return chance.choice(forms)()


def _alias(chance: Random) -> str | None:
    return chance.choice((None, "t"))


def _delete(chance: Random) -> Statement:
    return Delete(_condition(chance), _alias(chance))


def _update(chance: Random) -> Statement:
    if chance.random() < 0.35:  # moves rows into the condition of the statement that moves them back
        value = chance.randrange(2)
        where = both(between(chance.randrange(KEYS), 60), compare("v", "=", value))
        moved = Set({"v": str(1 - value), "w": "@w + 1"}, lambda row: GROWN.of(row)._replace(v=1 - value))
        return Update(where, moved, _alias(chance))
    return Update(_condition(chance), chance.choice(SETS), _alias(chance))


def _merge(chance: Random) -> Statement:
    low = chance.randrange(KEYS - 8)
    keys: list[int | None] = list(range(low, low + 3))
    if chance.random() < 0.5:
        keys += chance.sample(range(*POOL), 3)
    if chance.random() < 0.15:
        keys.append(None)
    by_source = both(between(low, 10), compare("v", "<", 3)) if chance.random() < 0.2 else None
    source = tuple(
        Source(key, chance.choice((0, 0, 0, 1, None)), chance.choice((0, 1, 2, 3, None)), chance.choice(LETTERS))
        for key in dict.fromkeys(keys)
    )
    return Merge(
        source,
        on=compare("v", "<", 3) if chance.random() < 0.2 else None,
        matched=compare("s", "<>", "b") if chance.random() < 0.2 else None,
        inserts=chance.random() < 0.9,
        by_source=by_source,
        is_deleting=chance.random() < 0.3,
        # Both together raise in stock Delta 4.4, even without a concurrent writer: "did not match any merge clause".
        is_null_equal=by_source is None and chance.random() < 0.12,
    )


def _append(chance: Random) -> Statement:
    keys = [chance.randrange(KEYS + 10) for _ in range(chance.choice((1, 4, 9)))]
    return Append(tuple(_row(chance, None if chance.random() < 0.05 else key) for key in keys))


def _copy(chance: Random) -> Statement:
    return Copy(between(chance.randrange(KEYS), 8))


def _ripple(chance: Random) -> Statement:
    return Ripple(_condition(chance))


def _replace(chance: Random) -> Statement:
    low = chance.randrange(KEYS)
    where, rows = between(low, 8), [_row(chance, chance.randrange(low, low + 8)) for _ in range(5)]
    if chance.random() < 0.5:
        where = both(where, compare("p", "=", 1))
        rows = [row._replace(p=1) for row in rows]
    return Replace(where, tuple(rows))


def _optimize(chance: Random) -> Statement:
    return Optimize(is_zordered=chance.random() < 0.4)
