"""Reads table schemas from the catalogue of MariaDB and MySQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lakegate.syncs.plan.table_schema import Column, ForeignKey, TableSchema, UniqueKey, action
from lakegate.syncs.targets.dialect import ANSWERS_NULL, Connection, ambiguous, places_of

COLUMNS = """
SELECT column_name, column_type, data_type, is_nullable = 'YES', character_set_name, collation_name,
  CASE WHEN extra LIKE '%%GENERATED%%' AND extra NOT LIKE '%%DEFAULT_GENERATED%%' THEN generation_expression END,
  extra LIKE '%%on update%%'
FROM information_schema.columns WHERE table_schema = coalesce(%s, database()) AND table_name = %s
ORDER BY ordinal_position"""
INDEXES = """
SELECT index_name, column_name, sub_part, {expression}
FROM information_schema.statistics WHERE table_schema = coalesce(%s, database()) AND table_name = %s
  AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"""
FOREIGN_KEYS = """
SELECT constraint_name, table_name, column_name, referenced_table_name, referenced_column_name,
  CASE referenced_table_schema WHEN table_schema THEN NULL WHEN database() THEN '' ELSE concat(referenced_table_schema, '.') END
FROM information_schema.key_column_usage WHERE table_schema = coalesce(%s, database())
  AND referenced_table_name IS NOT NULL AND %s IN (table_name, referenced_table_name)
ORDER BY table_name, constraint_name, ordinal_position"""
# A separate query, because MariaDB searches the tables of all databases for it.
CHILDREN_ELSEWHERE = """
SELECT constraint_name, table_name, column_name, referenced_table_name, referenced_column_name, table_schema
FROM information_schema.key_column_usage WHERE referenced_table_schema = coalesce(%s, database())
  AND referenced_table_name = %s AND table_schema <> referenced_table_schema
ORDER BY table_schema, table_name, constraint_name, ordinal_position"""
ACTIONS = """
SELECT table_name, constraint_name, delete_rule, update_rule FROM information_schema.referential_constraints
WHERE constraint_schema = coalesce(%s, database()) AND (table_name = %s OR referenced_table_name = %s)"""


def read_tables(
    connection: Connection, names: Iterable[str], quoted: Callable[[str], str]
) -> Mapping[str, TableSchema]:
    """Returns tables by requested name. Tables that do not exist are left out."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'information_schema' "
        "AND table_name = 'STATISTICS' AND column_name = 'EXPRESSION'"
    )
    expression = "expression" if cursor.fetchone()[0] else "NULL"
    found = {}
    for name in names:
        for place in places_of(name):
            table = _table(cursor, name, place, expression, quoted)
            if table is None:
                continue
            if name in found:
                raise ambiguous(name)
            found[name] = table
    return found


def _table(
    cursor: Any, name: str, place: tuple[str | None, str], expression: str, quoted: Callable[[str], str]
) -> TableSchema | None:
    schema, bare = place
    cursor.execute(COLUMNS, place)
    columns = tuple(
        Column(
            name=row[0],
            type=row[1] + (f" CHARACTER SET {row[4]} COLLATE {row[5]}" if row[5] else ""),
            kind=row[2].lower(),
            is_nullable=bool(row[3]),
            generated=row[6],
            is_renewed=bool(row[7]),
        )
        for row in cursor.fetchall()
    )
    if not columns:
        return None
    cursor.execute(INDEXES.format(expression=expression), place)
    indexes: dict[str, list[Sequence[Any]]] = {}
    for row in cursor.fetchall():
        indexes.setdefault(row[0], []).append(row)
    keys = tuple(_key(index, rows, columns, quoted) for index, rows in indexes.items())
    identity: tuple[str, ...] = ()
    required = {column.name for column in columns if not column.is_nullable and column.generated is None}
    for rows in indexes.values():
        parts = tuple(row[1] for row in rows)
        if not identity and all(part in required for part in parts) and all(row[2] is None for row in rows):
            identity = parts
    prefix = f"{schema}." if schema else ""
    cursor.execute(FOREIGN_KEYS, place)
    links = [(row, prefix, prefix if row[5] is None else row[5]) for row in cursor.fetchall()]
    rules = _rules(cursor, schema, bare) if links else {}
    cursor.execute(CHILDREN_ELSEWHERE, place)
    for row in cursor.fetchall():
        links.append((row, f"{row[5]}.", prefix))
        rules.update(_rules(cursor, row[5], bare))
    foreign = [key for key in _foreign_keys(links, rules) if name in (key.table, key.parent)]
    children = [key for key in foreign if key.parent == name]
    return TableSchema(
        name=name,
        columns=columns,
        identity=identity,
        unique_keys=keys,
        foreign_keys=tuple(key for key in foreign if key.table == name),
        is_referenced=bool(children),
        acting=tuple(key for key in children if key.on_delete or key.on_update),
        sql_name=".".join(quoted(part) for part in place if part is not None),
    )


def _rules(cursor: Any, schema: str | None, table: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Returns (table, constraint) → ON DELETE and ON UPDATE, for the foreign keys from a table or to it."""
    prefix = f"{schema}." if schema else ""
    cursor.execute(ACTIONS, (schema, table, table))
    return {(prefix + row[0], row[1]): (row[2], row[3]) for row in cursor.fetchall()}


def _foreign_keys(
    rows: Iterable[tuple[Sequence[Any], str, str]],
    rules: Mapping[tuple[str, str], tuple[str, str]],
) -> list[ForeignKey]:
    """Returns the foreign keys of rows of `FOREIGN_KEYS`, each row with the prefixes of its tables' names."""
    groups: dict[tuple[str, str], list[tuple[Sequence[Any], str]]] = {}
    for row, own, theirs in rows:
        groups.setdefault((own + row[1], row[0]), []).append((row, theirs + row[3]))
    return [
        ForeignKey(
            table=table,
            columns=tuple(row[2] for row, _ in parts),
            parent=parts[0][1],
            parent_columns=tuple(row[4] for row, _ in parts),
            on_delete=action(rules.get((table, constraint), ("", ""))[0]),
            on_update=action(rules.get((table, constraint), ("", ""))[1]),
        )
        for (table, constraint), parts in groups.items()
    ]


def _key(
    name: str, rows: Sequence[Sequence[Any]], columns: Sequence[Column], quoted: Callable[[str], str]
) -> UniqueKey:
    parts, depends, plain, made = [], set(), list[str](), list[str]()
    generated = {column.name: column.generated for column in columns if column.generated is not None}
    for _, column, length, expression in rows:
        if column is None:
            parts.append(f"({expression})")
            depends |= _mentioned(expression, columns)
            made.append(expression)
        else:
            parts.append(quoted(column) if length is None else f"left({quoted(column)}, {int(length)})")
            depends.add(column)
            plain.append(column)
            if column in generated:
                depends |= _mentioned(generated[column], columns)
                made.append(generated[column])
    nullable = {column.name for column in columns if column.is_nullable and column.generated is None}
    candidates, last = [one for one in plain if one in nullable], list[str]()
    if not candidates:
        candidates = [one for one in sorted(depends) if one in nullable]
        if any(ANSWERS_NULL.search(one) for one in made):
            candidates, last = [], candidates
    return UniqueKey(
        name=name,
        parts=tuple(parts),
        columns=frozenset(depends),
        is_primary=name == "PRIMARY",
        park=candidates[0] if candidates else None,
        park_last=last[0] if last else None,
        plain=frozenset(plain),
    )


def _mentioned(expression: str, columns: Sequence[Column]) -> set[str]:
    """Returns the columns that an expression may read: those whose name occurs in the expression."""
    return {one.name for one in columns if re.search(rf"(?<!\w){re.escape(one.name)}(?!\w)", expression, re.IGNORECASE)}
