"""Stages rows that no single process holds, in parts; each process opens its own connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.targets.dialect import Connection, Dialect
from lakegate.syncs.targets.faults import FaultKind
from lakegate.syncs.targets.staging import GONE, MARKS, PUT

SPREAD_ROWS = 100_000
"""From this number of rows on, many processes stage them; fewer rows are staged by this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Writes a part of many rows to a staging table, in this process or in another one with its own connection."""

    dialect: Dialect
    stage: str
    columns: Sequence[tuple[int, Column]]
    """The staged columns: index among a row's values, and the column."""
    identity: frozenset[str]
    slots: int

    def __call__(self, first: int, end: int, rows: Iterator[Sequence[object]]) -> str | None:
        """Stages a part in one transaction; returns why it was refused, or None. Safe to call again for the same part."""
        connection = self.dialect.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"DELETE FROM {self.stage} WHERE lg_n >= {int(first)} AND lg_n < {int(end)}")
            self.write(connection, first, end, rows)
            connection.commit()
        except self.dialect.errors as error:
            if self.dialect.fault(error).fault is not FaultKind.VIOLATION:
                raise
            return self.dialect.violated(error).reason
        finally:
            connection.close()
        return None

    def write(self, connection: Connection, first: int, end: int, rows: Iterator[Sequence[object]]) -> None:
        """Stages a part in the caller's transaction."""
        names = [*MARKS, *(["lg_slot"] if self.slots > 1 else []), *(column.name for _, column in self.columns)]
        types = [None] * (len(names) - len(self.columns)) + [column for _, column in self.columns]
        self.dialect.write(connection, self.stage, names, types, self._staged(first, end, rows))

    def _staged(self, first: int, end: int, rows: Iterator[Sequence[object]]) -> Iterator[Sequence[object]]:
        slots, n = self.slots, first - 1
        of_put = [place + 1 for place, _ in self.columns]
        of_gone = [place + 1 if column.name in self.identity else None for place, column in self.columns]
        for n, row in enumerate(rows, first):
            mark = (n % slots,) if slots > 1 else ()
            if row[0]:
                yield (n, PUT, 1, *mark, *[row[place] for place in of_put])
            else:
                yield (n, GONE, 0, *mark, *[None if place is None else row[place] for place in of_gone])
        if n + 1 != end:
            raise RuntimeError(f"a part of {end - first} rows changed its size when it was read again: {n + 1 - first}")
