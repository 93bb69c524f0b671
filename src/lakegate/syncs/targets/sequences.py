"""Moves sequences of target columns past the rows that a sync has written, for the time when other writers use the target.

A sync writes the values of its source and does not advance a sequence of the target. So the sequence's next value may be in use.
SQLite and AUTO_INCREMENT advance by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OF_POSTGRES = """
SELECT a.attname, c.oid::regclass::text, s.seqincrement, s.seqmin, s.seqmax
FROM pg_attribute a
JOIN (SELECT d.objid, d.refobjsubid FROM pg_depend d          -- identity and serial: the column owns the sequence
      WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%s)
        AND d.deptype IN ('a', 'i')
      UNION
      SELECT d.refobjid, f.adnum FROM pg_attrdef f            -- DEFAULT nextval('…')
      JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
      WHERE f.adrelid = to_regclass(%s)) u(sequence, number) ON u.number = a.attnum
JOIN pg_class c ON c.oid = u.sequence AND c.relkind = 'S'
JOIN pg_sequence s ON s.seqrelid = c.oid
WHERE a.attrelid = to_regclass(%s) ORDER BY a.attnum"""
OF_MARIADB = """
SELECT column_name, column_default FROM information_schema.columns
WHERE table_schema = coalesce(%s, database()) AND table_name = %s AND column_default LIKE 'nextval(%%' ORDER BY ordinal_position"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSequence:
    """The outcome for one sequence."""

    table: str
    column: str
    sequence: str
    was: int
    """The next value before the move."""
    now: int
    """The next value after the move."""


def move_postgres(cursor: Any, table: str, quoted: Callable[[str], str]) -> list[MovedSequence]:
    """Moves the sequences of a table's columns forward; moves none backward."""
    place, found = quoted(table), []
    cursor.execute(OF_POSTGRES, (place, place, place))
    for column, sequence, step, least, most in cursor.fetchall():
        end = "max" if step > 0 else "min"
        cursor.execute(f"SELECT {end}({quoted(column)})::numeric FROM {place}")
        (last,) = cursor.fetchone()
        cursor.execute(f"SELECT last_value, is_called FROM {sequence}")
        at, is_called = cursor.fetchone()
        was = int(at) + (int(step) if is_called else 0)
        if last is None or not (int(last) >= was if step > 0 else int(last) <= was) or not least <= int(last) <= most:
            found.append(MovedSequence(table=table, column=column, sequence=sequence, was=was, now=was))
            continue
        cursor.execute("SELECT setval(%s::regclass, %s, true)", (sequence, int(last)))
        found.append(MovedSequence(table=table, column=column, sequence=sequence, was=was, now=int(last) + int(step)))
    return found


def move_mariadb(cursor: Any, table: str, quoted: Callable[[str], str]) -> list[MovedSequence]:
    """Does the same for columns whose default is the next value of a MariaDB sequence."""
    schema, _, bare = table.rpartition(".")
    cursor.execute(OF_MARIADB, (schema or None, bare))
    found = []
    for column, default in cursor.fetchall():
        sequence = default.removeprefix("nextval(").removesuffix(")")  # the server writes the name quoted
        cursor.execute(f"SELECT next_not_cached_value, increment FROM {sequence}")
        was, step = map(int, cursor.fetchone())
        cursor.execute(f"SELECT {'max' if step > 0 else 'min'}({quoted(column)}) FROM {quoted(table)}")
        (last,) = cursor.fetchone()
        now = was
        if last is not None and (int(last) >= was if step > 0 else int(last) <= was):
            now = int(last) + step
            cursor.execute(f"SELECT setval({sequence}, {int(last)})")
            cursor.fetchall()
        found.append(MovedSequence(table=table, column=column, sequence=sequence.replace("`", ""), was=was, now=now))
    return found
