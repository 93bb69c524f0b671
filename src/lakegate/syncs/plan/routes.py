"""Maps source tables to target tables; refuses two source tables with the same target table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakegate.errors import InvalidRequest

ANY = "*."
"""Prefix of a table's name that matches any schema and database."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The table mapping of one sync."""

    tables: Mapping[str, str]
    """Source table → target table. A source table is written with its schema and database, with `*.`, or bare. Unlisted tables
    keep their name."""
    met: dict[str, str]
    """Target table → the first source table whose changes went there."""

    def target(self, collection: str, table: str) -> str:
        """Returns the target table of a change.

        Args:
            collection: The source's table, with its schema or database.
            table: The source's table without them.

        Raises:
            InvalidRequest: Another source table has the same target table, and the settings do not name both.
        """
        to = self.tables.get(collection) or self.tables.get(table) or self.tables.get(ANY + table) or table
        first = self.met.setdefault(to, collection)
        if first != collection and not (self._is_said(collection) and self._is_said(first)):
            raise InvalidRequest(
                "two tables of the source go to one table of the target; nothing of the second was written",
                advice=f"Name both with their schemas under `tables`, each with its table, or write `*.{table}: {to}` if "
                "all tables of that name go to one",
                table=to, first=first, second=collection,
            )  # fmt: skip
        return to

    def _is_said(self, collection: str) -> bool:
        return collection in self.tables or ANY + collection.rpartition(".")[2] in self.tables
