"""Which table of the target the changes of a source's table go to; two that meet in one are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakegate.errors import InvalidRequest

ANY = "*."
"""Before a table's name: whatever its schema and database are."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The tables of one sync."""

    tables: Mapping[str, str]
    """Source table → target table, with its schema and database, with `*.` in their place, or without; others keep their
    name."""
    met: dict[str, str]
    """Target table → the first table of the source whose changes went there."""

    def target(self, collection: str, table: str) -> str:
        """The target table of a change.

        Args:
            collection: The source's table, with its schema or database.
            table: Without.

        Raises:
            InvalidRequest: Another table of the source goes to the same, and the settings do not say so of both.
        """
        to = self.tables.get(collection) or self.tables.get(table) or self.tables.get(ANY + table) or table
        first = self.met.setdefault(to, collection)
        if first != collection and not (self._is_said(collection) and self._is_said(first)):
            raise InvalidRequest(
                "two tables of the source go to one table of the target; nothing of the second was written",
                advice=f"Name both with their schemas under `tables`, each with its table, or say `*.{table}: {to}` if "
                "all of that name belong into one",
                table=to, first=first, second=collection,
            )  # fmt: skip
        return to

    def _is_said(self, collection: str) -> bool:
        return collection in self.tables or ANY + collection.rpartition(".")[2] in self.tables
