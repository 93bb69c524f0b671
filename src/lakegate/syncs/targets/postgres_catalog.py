"""Reads table schemas from the catalogue of PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakegate.syncs.plan.table_schema import Action, Column, ForeignKey, TableSchema, UniqueKey
from lakegate.syncs.targets.dialect import ANSWERS_NULL, Connection, ambiguous, places_of

# PostgreSQL looks up names without a schema in pg_catalog first. A table of pg_catalog is never a target.
OF_USERS = """
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s) AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
COLUMNS = """
SELECT a.attnum, a.attname, NOT a.attnotnull, a.attgenerated <> '', pg_get_expr(d.adbin, d.adrelid),
  -- of a domain the type below all domains: a staged row that is gone has NULLs
  format_type(b.oid, coalesce(nullif(d0.typmod, -1), a.atttypmod)),
  CASE WHEN a.attcollation NOT IN (0, y.typcollation) THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) END,
  -- of an array the kind of its elements, and []
  coalesce((SELECT e.typname FROM pg_type e WHERE e.oid = b.typelem AND b.typcategory = 'A') || '[]', b.typname),
  ARRAY(SELECT r.refobjsubid FROM pg_depend r WHERE r.classid = 'pg_attrdef'::regclass AND r.objid = d.oid
        AND r.refclassid = 'pg_class'::regclass AND r.refobjid = a.attrelid AND r.refobjsubid <> a.attnum),
  a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
CROSS JOIN LATERAL (WITH RECURSIVE up(oid, typmod, depth) AS (
    SELECT y.oid, -1, 0 UNION ALL
    SELECT t.typbasetype, coalesce(nullif(t.typtypmod, -1), up.typmod), depth + 1
    FROM up JOIN pg_type t ON t.oid = up.oid WHERE t.typtype = 'd')
  SELECT oid, typmod FROM up ORDER BY depth DESC LIMIT 1) d0
JOIN pg_type b ON b.oid = d0.oid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
INDEXES = """
SELECT coalesce(k.conname, c.relname), i.indisprimary, {nulls}, coalesce(k.condeferrable, false),
  pg_get_expr(i.indpred, i.indrelid),
  ARRAY(SELECT pg_get_indexdef(i.indexrelid, p, true) FROM generate_series(1, i.indnkeyatts) p ORDER BY p),
  ARRAY(SELECT CASE WHEN l.oid IS NOT NULL AND NOT l.collname = 'default'
               THEN quote_ident(n.nspname) || '.' || quote_ident(l.collname) END
        FROM unnest(i.indcollation) WITH ORDINALITY u(o, p) LEFT JOIN pg_collation l ON l.oid = u.o
        LEFT JOIN pg_namespace n ON n.oid = l.collnamespace ORDER BY p),
  ARRAY(SELECT s.nspname || '.' || o.oprname
        FROM unnest(k.conexclop) WITH ORDINALITY u(o_oid, p) JOIN pg_operator o ON o.oid = u.o_oid
        JOIN pg_namespace s ON s.oid = o.oprnamespace ORDER BY p),
  ARRAY(SELECT DISTINCT x FROM (
        SELECT unnest(i.indkey::int[]) UNION
        SELECT r.refobjsubid FROM pg_depend r WHERE r.classid = 'pg_class'::regclass AND r.objid = i.indexrelid
          AND r.refclassid = 'pg_class'::regclass AND r.refobjid = i.indrelid) z(x) WHERE x > 0),
  (i.indkey::int[])[0:i.indnkeyatts - 1], i.indisunique
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u', 'x')
WHERE i.indrelid = %s AND i.indislive AND (i.indisunique OR k.contype = 'x')
ORDER BY i.indisprimary DESC, i.indexrelid"""
FOREIGN_KEYS = """
SELECT k.conrelid, k.confrelid, k.condeferrable,
  ARRAY(SELECT attname::text FROM unnest(k.conkey) WITH ORDINALITY u(n, p)
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n ORDER BY p),
  ARRAY(SELECT attname::text FROM unnest(k.confkey) WITH ORDINALITY u(n, p)
        JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.n ORDER BY p),
  k.confdeltype, k.confupdtype,
  -- from version 15 on
  ARRAY(SELECT a.attname::text FROM jsonb_array_elements_text(coalesce(nullif(to_jsonb(k) -> 'confdelsetcols', 'null'), '[]')) u(n)
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n::int),
  ARRAY(SELECT json_build_array(a.attname, pg_get_expr(d.adbin, d.adrelid))::text
        FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE 'd' IN (k.confdeltype, k.confupdtype) AND a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey))
FROM pg_constraint k WHERE k.contype = 'f' AND k.conparentid = 0 AND %s IN (k.conrelid, k.confrelid) ORDER BY k.oid"""

ACTIONS: Mapping[str, Action] = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


def read_tables(
    connection: Connection, names: Iterable[str], quoted: Callable[[str], str]
) -> Mapping[str, TableSchema]:
    """Returns tables by requested name. Tables that do not exist are left out."""
    cursor = connection.cursor()
    oids: dict[str, int] = {}
    sql_names: dict[str, str] = {}
    for name in names:
        for place in places_of(name):
            sql_name = ".".join(quoted(part) for part in place if part is not None)
            cursor.execute(OF_USERS, (sql_name,))
            row = cursor.fetchone()
            if row is None:
                continue
            if name in oids:
                raise ambiguous(name)
            oids[name], sql_names[name] = row[0], sql_name
    cursor.execute("SELECT oid, current_schema()::regnamespace = relnamespace, relname, relnamespace::regnamespace::text "
                   "FROM pg_class WHERE relkind IN ('r', 'p')")  # fmt: skip
    name_of = {oid: (name if is_here else f"{schema}.{name}") for oid, is_here, name, schema in cursor.fetchall()}
    name_of.update({oid: name for name, oid in oids.items()})
    cursor.execute("SELECT current_setting('server_version_num')::int")
    (version,) = cursor.fetchone()
    nulls = "i.indnullsnotdistinct" if version >= 150000 else "false"
    return {
        name: replace(_table(cursor, name, oid, name_of, nulls), sql_name=sql_names[name]) for name, oid in oids.items()
    }


def _table(cursor: Any, name: str, oid: int, name_of: Mapping[int, str], nulls: str) -> TableSchema:
    cursor.execute(COLUMNS, (oid,))
    rows = cursor.fetchall()
    by_number = {row[0]: row[1] for row in rows}
    bases = {row[1]: [by_number[n] for n in row[8]] if row[3] else [] for row in rows}
    columns = tuple(
        Column(
            name=row[1],
            type=row[5] + (f" COLLATE {row[6]}" if row[6] else ""),
            kind=row[7],
            is_nullable=row[2],
            generated=row[4] if row[3] else None,
            is_numbered=row[9],
        )
        for row in rows
    )
    cursor.execute(INDEXES.format(nulls=nulls), (oid,))
    keys, identity = [], ()
    for row in cursor.fetchall():
        key, numbers = _key(row, by_number, bases, columns), row[9]
        keys.append(key)
        is_plain = row[10] and key.predicate is None and 0 not in numbers
        parts = tuple(by_number[n] for n in numbers if n)
        if is_plain and not identity:
            if key.is_primary or all(not c.is_nullable and c.generated is None for c in columns if c.name in parts):
                identity = parts
    cursor.execute(FOREIGN_KEYS, (oid,))
    foreign, acting, is_referenced = list[ForeignKey](), list[ForeignKey](), False
    for child, parent, deferrable, mine, theirs, deleted, updated, sets, defaults in cursor.fetchall():
        is_referenced |= parent == oid
        link = ForeignKey(
            table=name_of[child], columns=tuple(mine), parent=name_of[parent], parent_columns=tuple(theirs),
            is_deferrable=deferrable,
            on_delete=ACTIONS.get(deleted), on_update=ACTIONS.get(updated), delete_columns=tuple(sets) or None,
            defaults=tuple(_default(cursor, *json.loads(one)) for one in defaults),
        )  # fmt: skip
        if child == oid:
            foreign.append(link)
        if parent == oid and (link.on_delete or link.on_update):
            acting.append(link)
    return TableSchema(
        name=name, columns=columns, identity=identity, unique_keys=tuple(keys), foreign_keys=tuple(foreign),
        is_referenced=is_referenced, acting=tuple(acting),
    )  # fmt: skip


def _default(cursor: Any, column: str, expression: str) -> tuple[str, object]:
    """Returns a column and the current value of its default."""
    cursor.execute(f"SELECT {expression}")
    return column, cursor.fetchone()[0]


def _key(
    row: Sequence[Any], by_number: Mapping[int, str], bases: Mapping[str, Sequence[str]], columns: Sequence[Column]
) -> UniqueKey:
    name, is_primary, nulls_equal, deferrable, predicate, parts, collations, operators, used, numbers, _ = row
    own = [by_number[n] for n in used]
    depends = {*own, *(base for one in own for base in bases[one])}
    plain = [by_number[n] for n in numbers if n]
    nullable = {column.name for column in columns if column.is_nullable and column.generated is None}
    # Columns that make a part NULL when they are NULL: the part itself, or a column that its expression reads.
    made = [part for part, n in zip(parts, numbers, strict=True) if not n]
    made += [column.generated for column in columns if column.name in plain and column.generated is not None]
    candidates, last = [one for one in plain if one in nullable], list[str]()
    if not candidates and made and predicate is None:
        candidates = [one for one in sorted(depends) if one in nullable]
        if any(ANSWERS_NULL.search(one) for one in made):
            candidates, last = [], candidates
    return UniqueKey(
        name=name,
        parts=tuple(
            f"({part})" + (f" COLLATE {collation}" if collation else "")
            for part, collation in zip(parts, collations, strict=True)
        ),
        columns=frozenset(depends),
        predicate=predicate,
        nulls_equal=nulls_equal,
        is_deferrable=deferrable,
        is_primary=is_primary,
        operators=tuple(f"OPERATOR({schema}.{op})" for schema, op in (one.split(".", 1) for one in operators)) or None,
        park=candidates[0] if candidates and not nulls_equal else None,
        park_last=last[0] if last and not nulls_equal else None,
        plain=frozenset(plain),
    )
