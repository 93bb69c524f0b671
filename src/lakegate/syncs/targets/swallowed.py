"""Finds rows that the target skipped without an error because of a trigger, a rule or a clause of the table.

The rows of each statement are counted. Rows are compared only if the count is not the expected one: a trigger may have written
them to another table, as in trigger-based partitioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.targets.connections import ViolatedError
from lakegate.syncs.targets.dialect import Dialect
from lakegate.syncs.targets.staging import GONE, PUT, Questions, StagedTable


class Swallowed:
    """Checks of one dialect, each within the transaction that wrote.

    Every method raises `ViolatedError` if the target skipped a row.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._questions = dialect, Questions(dialect)

    def require_put(self, cursor: Any, table: StagedTable, mine: str, written: int) -> None:
        """Checks that every row to write is in the target with its values.

        Args:
            cursor: The cursor of the transaction.
            table: The staged rows.
            mine: The condition for the rows `s` of this transaction.
            written: How many rows the UPDATEs and INSERTs counted.
        """
        if not table.put:
            return
        rows = f"{table.stage} s WHERE s.lg_op = {PUT} AND {mine}"
        if _count(cursor, rows) == written:
            return
        name, match = self._dialect.name, self._questions.match(table, "t", "s")
        kinds = []
        for said, mask in table.masks.items():
            columns = [one for one in table.schema.stored if one.name in said and not one.is_numbered]
            same = [self._dialect.stored_same(one, f"s.{name(one.name)}", f"t.{name(one.name)}") for one in columns]
            kinds.append(" AND ".join([f"s.lg_mask = {mask}", *same]))
        found = f"SELECT 1 FROM {table.table} t WHERE {match} AND ({' OR '.join(kinds)})"
        _refuse(table, _count(cursor, f"{rows} AND NOT EXISTS ({found})"), "write")

    def require_gone(self, cursor: Any, table: StagedTable, mine: str, deleted: int) -> None:
        """Checks that no row to delete is still in the target. `deleted`: the number of rows that the DELETE counted."""
        rows = f"{table.stage} s WHERE s.lg_op = {GONE} AND {mine}"
        if _count(cursor, rows) == deleted:
            return
        match = self._questions.match(table, "t", "s")
        _refuse(table, _count(cursor, f"{rows} AND EXISTS (SELECT 1 FROM {table.table} t WHERE {match})"), "delete")

    def require_empty(self, cursor: Any, tables: Sequence[StagedTable]) -> None:
        """Checks that the emptied tables are empty."""
        for table in tables:
            _refuse(table, _count(cursor, f"(SELECT 1 FROM {table.table} LIMIT 1) t"), "delete")

    def require_copy(self, cursor: Any, table: StagedTable, values: Sequence[object], *, is_gone: bool) -> None:
        """Checks a statement on a table without a key that did not count one row: valid only if no such row is left."""
        if is_gone:
            same = self._dialect.same_row(table.schema.stored)
            cursor.execute(f"SELECT count(*) FROM {table.table} WHERE {same}", values)
        if not is_gone or int(cursor.fetchone()[0]):
            _refuse(table, 1, "delete" if is_gone else "write")


def _count(cursor: Any, rows: str) -> int:
    cursor.execute(f"SELECT count(*) FROM {rows}")
    return int(cursor.fetchone()[0])


def _refuse(table: StagedTable, count: int, what: str) -> None:
    if count:
        rows = "a row" if count == 1 else f"{count:,} rows"
        raise ViolatedError(
            Violated(
                reason=f"the target did not {what} {rows} of {table.schema.name} and reported no error: "
                "a trigger, a rule or a conflict clause of the table skipped it",
                table=table.schema.name,
            )
        )
