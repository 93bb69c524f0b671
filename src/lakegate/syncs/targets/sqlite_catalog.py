"""Reads table schemas from SQLite. Expressions and predicates are only in the text of the definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakegate.syncs.plan.table_schema import Column, ForeignKey, TableSchema, UniqueKey, action
from lakegate.syncs.targets.dialect import ANSWERS_NULL, Connection

TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|[^\w\s]|\s+""", re.DOTALL
)
CONFLICT_CLAUSE = re.compile(r"(?i)\bon\s+conflict\b")
VIRTUAL, STORED = 2, 3


def quoted(text: str) -> str:
    """Quotes an identifier by SQLite's own rule; the driver cannot compose identifiers."""
    return '"' + text.replace('"', '""') + '"'


def has_conflict_clause(connection: Connection, name: str) -> bool:
    """Returns whether the table's definition may have an ON CONFLICT clause, which skips or replaces rows."""
    cursor = connection.cursor()
    cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", (name,))
    found = cursor.fetchone()
    return found is not None and CONFLICT_CLAUSE.search(found[0] or "") is not None


def read_tables(connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
    """Returns tables by requested name. Tables that do not exist are left out."""
    cursor = connection.cursor()
    cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    found = cursor.fetchall()
    texts = {name.lower(): sql for name, sql in found}
    others = [name for name, _ in found]
    return {name: _table(cursor, name, texts, others) for name in names if name.lower() in texts}


def _table(cursor: Any, name: str, texts: Mapping[str, str], others: Sequence[str]) -> TableSchema:
    cursor.execute(f"PRAGMA table_xinfo({quoted(name)})")
    rows = cursor.fetchall()
    made = _generated(texts[name.lower()])
    names = [row[1] for row in rows]
    cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? COLLATE NOCASE", (name,))
    index_texts = dict(cursor.fetchall())
    primary = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
    cursor.execute(f"PRAGMA index_list({quoted(name)})")
    indexes = [row for row in cursor.fetchall() if row[2]]
    collations: dict[str, str] = {}
    keys: list[UniqueKey] = []
    nullable = {row[1] for row in rows if not row[3] and not row[5] and row[6] == 0}
    identity: tuple[str, ...] = tuple(primary)
    for _, index, _, origin, partial, *_ in indexes:
        cursor.execute(f"PRAGMA index_xinfo({quoted(index)})")
        parts = [row for row in cursor.fetchall() if row[5]]
        collations.update({row[2]: row[4] for row in parts if row[2] and row[4].upper() != "BINARY"})
        keys.append(_key(index, parts, index_texts.get(index), names, made, nullable, is_primary=origin == "pk"))
        columns = tuple(row[2] for row in parts)
        required = all(row[1] in (*primary,) or row[3] for row in rows if row[1] in columns)
        if not identity and not partial and None not in columns and required and not set(columns) & set(made):
            identity = columns
    if primary and not any(key.is_primary for key in keys):
        keys.insert(
            0,
            UniqueKey(
                name=f"{name}.{', '.join(primary)}",
                parts=tuple(map(quoted, primary)),
                columns=frozenset(primary),
                is_primary=True,
            ),
        )
    children = [
        replace(key, parent=name)
        for other in others
        for key in _foreign_keys(cursor, other)
        if key.parent.lower() == name.lower()
    ]
    return TableSchema(
        name=name,
        columns=tuple(
            Column(
                name=row[1],
                type=row[2] + (f" COLLATE {collations[row[1]]}" if row[1] in collations else ""),
                kind=row[2].lower(),
                is_nullable=not row[3],  # also in a primary key: it accepts NULL, or replaces NULL by a number
                generated=made.get(row[1].lower()) if row[6] in (VIRTUAL, STORED) else None,
            )
            for row in rows
        ),
        identity=identity,
        unique_keys=tuple(keys),
        foreign_keys=_foreign_keys(cursor, name),
        is_referenced=bool(children),
        acting=tuple(key for key in children if key.on_delete or key.on_update),
        sql_name=quoted(name),
    )


def _key(
    name: str,
    parts: Sequence[Sequence[Any]],
    sql: str | None,
    names: Sequence[str],
    made: Mapping[str, str],
    nullable: set[str],
    *,
    is_primary: bool,
) -> UniqueKey:
    written, predicate = ([], None) if sql is None else _index_text(sql)
    expressions, reading = [], list[str]()
    depends: set[str] = set()
    for place, (_, cid, column, _, collation, _) in enumerate(parts):
        if cid == -2:
            expressions.append(f"({written[place]}) COLLATE {collation}")
            depends |= _mentioned(written[place], names)
            reading.append(written[place])
        else:
            expressions.append(f"{quoted(column)} COLLATE {collation}")
            depends.add(column)
            if column.lower() in made:
                depends |= _mentioned(made[column.lower()], names)
                reading.append(made[column.lower()])
    if predicate is not None:
        depends |= _mentioned(predicate, names)
    plain = [row[2] for row in parts if row[2]]
    candidates, last = [one for one in plain if one in nullable], list[str]()
    if not candidates and predicate is None:
        candidates = [one for one in sorted(depends) if one in nullable]
        if any(ANSWERS_NULL.search(one) for one in reading):
            candidates, last = [], candidates
    return UniqueKey(
        name=name,
        parts=tuple(expressions),
        columns=frozenset(depends),
        predicate=predicate,
        is_primary=is_primary,
        park=candidates[0] if candidates else None,
        park_last=last[0] if last else None,
        plain=frozenset(plain),
    )


def _foreign_keys(cursor: Any, name: str) -> tuple[ForeignKey, ...]:
    """Returns the foreign keys of a table; columns are spelled as in their tables."""
    cursor.execute(f"PRAGMA foreign_key_list({quoted(name)})")
    groups: dict[int, list[Sequence[Any]]] = {}
    for row in cursor.fetchall():
        groups.setdefault(row[0], []).append(row)
    if not groups:
        return ()
    mine = _columns(cursor, name)
    found = list[ForeignKey]()
    for rows in groups.values():
        parent = rows[0][2]
        theirs = _columns(cursor, parent)
        primary = [row[1] for row in sorted(theirs.values(), key=lambda row: row[5]) if row[5]]
        columns = tuple(mine[row[3].lower()][1] for row in rows)
        on_delete, on_update = action(rows[0][6]), action(rows[0][5])
        defaults = dict[str, object]()
        if "SET DEFAULT" in (on_delete, on_update):
            for column in columns:
                cursor.execute(f"SELECT {mine[column.lower()][4] or 'NULL'}")
                defaults[column] = cursor.fetchone()[0]
        found.append(
            ForeignKey(
                table=name,
                columns=columns,
                parent=parent,
                parent_columns=tuple(
                    primary[place] if row[4] is None else theirs[row[4].lower()][1] if theirs else row[4]
                    for place, row in enumerate(rows)
                ),
                is_deferrable=True,  # `PRAGMA defer_foreign_keys`
                on_delete=on_delete,
                on_update=on_update,
                defaults=tuple(defaults.items()),
            )
        )
    return tuple(found)


def _columns(cursor: Any, name: str) -> Mapping[str, Sequence[Any]]:
    """Returns column in lower case → cid, name, type, NOT NULL, default, position in the primary key."""
    cursor.execute(f"PRAGMA table_xinfo({quoted(name)})")
    return {row[1].lower(): row for row in cursor.fetchall()}


def _generated(sql: str) -> dict[str, str]:
    """Returns column in lower case → expression, for the generated columns of a CREATE TABLE."""
    found = {}
    for definition in _split(_inside(_tokens(sql))):
        words = [token for token in definition if not token.isspace()]
        for place, word in enumerate(words[:-1]):
            if word.upper() == "AS" and words[place + 1] == "(":
                begin = _nth_word(definition, place + 1)
                found[words[0].strip('"`[]').lower()] = "".join(_inside(definition[begin:])).strip()
                break
    return found


def _index_text(sql: str) -> tuple[list[str], str | None]:
    """Returns the parts and the predicate of a CREATE INDEX, as they are written."""
    tokens = _tokens(sql)
    parts = _inside(tokens)
    after = tokens[tokens.index("(") + len(parts) + 2 :]
    where = next((place for place, token in enumerate(after) if token.upper() == "WHERE"), None)
    predicate = None if where is None else "".join(after[where + 1 :]).strip().rstrip(";")
    return [_bare("".join(part).strip()) for part in _split(parts)], predicate


def _bare(part: str) -> str:
    """Returns an indexed expression without its collation and direction."""
    return re.sub(r"(?i)(\s+collate\s+\w+)?(\s+(asc|desc))?\s*$", "", part)


def _tokens(sql: str) -> list[str]:
    return [token for token in TOKEN.findall(sql) if not token.startswith(("--", "/*"))]


def _inside(tokens: Sequence[str]) -> list[str]:
    """Returns the tokens between the first parenthesis and its closing one."""
    depth = 0
    found: list[str] = []
    for token in tokens:
        if token == ")":
            depth -= 1
            if depth == 0:
                return found
        if depth:
            found.append(token)
        if token == "(":
            depth += 1
    return found


def _split(tokens: Sequence[str]) -> list[list[str]]:
    """Splits tokens at commas that are in no parentheses."""
    depth = 0
    pieces: list[list[str]] = [[]]
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "," and depth == 0:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def _nth_word(tokens: Sequence[str], number: int) -> int:
    """Returns the index of the n-th token that is not whitespace."""
    return [place for place, token in enumerate(tokens) if not token.isspace()][number]


def _mentioned(expression: str, names: Sequence[str]) -> set[str]:
    """Returns the columns that an expression may read: those whose name occurs in the expression."""
    words = {token.strip('"`[]').lower() for token in _tokens(expression)}
    return {name for name in names if name.lower() in words}
