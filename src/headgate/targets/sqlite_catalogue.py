"""What SQLite's schema says about tables. Expressions and predicates stand only in the text of the definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headgate.core.keys.schema import Column, ForeignKey, TableSchema, UniqueKey
from headgate.targets.dialect import ANSWERS_NULL, Connection

TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|[^\w\s]|\s+""", re.DOTALL
)
CONFLICT_CLAUSE = re.compile(r"(?i)\bon\s+conflict\b")
VIRTUAL, STORED = 2, 3


def quoted(text: str) -> str:
    """An identifier; the driver has no composition of identifiers, this is the database's own rule."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in text.split(".", 1))


def has_conflict_clause(connection: Connection, name: str) -> bool:
    """Whether the table's definition may say that a row in conflict is skipped, or takes the place of another."""
    cursor = connection.cursor()
    cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", (name,))
    found = cursor.fetchone()
    return found is not None and CONFLICT_CLAUSE.search(found[0] or "") is not None


def read_tables(connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
    """Tables by the names that were asked for; those that do not exist are left out."""
    cursor = connection.cursor()
    cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    texts = {name.lower(): sql for name, sql in cursor.fetchall()}
    return {name: _table(cursor, name, texts) for name in names if name.lower() in texts}


def _table(cursor: Any, name: str, texts: Mapping[str, str]) -> TableSchema:
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
    return TableSchema(
        name=name,
        columns=tuple(
            Column(
                name=row[1],
                type=row[2] + (f" COLLATE {collations[row[1]]}" if row[1] in collations else ""),
                kind=row[2].lower(),
                is_nullable=not row[3],  # a primary key, too: it takes NULLs, or numbers in their place
                generated=made.get(row[1].lower()) if row[6] in (VIRTUAL, STORED) else None,
            )
            for row in rows
        ),
        identity=identity,
        unique_keys=tuple(keys),
        foreign_keys=tuple(_foreign_keys(cursor, name, texts, nullable)),
        is_referenced=any(
            row[2].lower() == name.lower() for other in texts for row in _foreign_key_rows(cursor, other)
        ),
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


def _foreign_key_rows(cursor: Any, name: str) -> Sequence[Sequence[Any]]:
    cursor.execute(f"PRAGMA foreign_key_list({quoted(name)})")
    return list(cursor.fetchall())


def _foreign_keys(cursor: Any, name: str, texts: Mapping[str, str], nullable: set[str]) -> Iterator[ForeignKey]:
    groups: dict[int, list[Sequence[Any]]] = {}
    for row in _foreign_key_rows(cursor, name):
        groups.setdefault(row[0], []).append(row)
    for rows in groups.values():
        parent = rows[0][2]
        theirs = [row[4] for row in rows]
        if None in theirs:
            cursor.execute(f"PRAGMA table_info({quoted(parent)})")
            theirs = [row[1] for row in sorted(cursor.fetchall(), key=lambda row: row[5]) if row[5]]
        yield ForeignKey(
            table=name,
            columns=tuple(row[3] for row in rows),
            parent=parent,
            parent_columns=tuple(theirs),
            is_deferrable=True,  # `PRAGMA defer_foreign_keys`
            is_nullable=all(row[3] in nullable for row in rows),
        )


def _generated(sql: str) -> dict[str, str]:
    """Column in lower case → expression of the generated columns of a CREATE TABLE."""
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
    """Parts and predicate of a CREATE INDEX, as they are written."""
    tokens = _tokens(sql)
    parts = _inside(tokens)
    after = tokens[tokens.index("(") + len(parts) + 2 :]
    where = next((place for place, token in enumerate(after) if token.upper() == "WHERE"), None)
    predicate = None if where is None else "".join(after[where + 1 :]).strip().rstrip(";")
    return [_bare("".join(part).strip()) for part in _split(parts)], predicate


def _bare(part: str) -> str:
    """An indexed expression without its collation and direction."""
    return re.sub(r"(?i)(\s+collate\s+\w+)?(\s+(asc|desc))?\s*$", "", part)


def _tokens(sql: str) -> list[str]:
    return [token for token in TOKEN.findall(sql) if not token.startswith(("--", "/*"))]


def _inside(tokens: Sequence[str]) -> list[str]:
    """What stands between the first parenthesis and its partner."""
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
    """Pieces between commas that stand in no parentheses."""
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
    """The place of the n-th token that is no space."""
    return [place for place, token in enumerate(tokens) if not token.isspace()][number]


def _mentioned(expression: str, names: Sequence[str]) -> set[str]:
    """Columns that an expression may read: those whose name occurs in it."""
    words = {token.strip('"`[]').lower() for token in _tokens(expression)}
    return {name for name in names if name.lower() in words}
