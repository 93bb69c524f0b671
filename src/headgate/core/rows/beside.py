"""What becomes of a statement beside others: in words, by what it reads and what they did. The rebase keeps to it."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.core.rows.statement import Reads, Statement

OTHERS: Mapping[str, str] = {
    "append": "rows are appended",
    "other rows": "rows of the same files are changed that it does not concern",
    "same rows": "rows are changed that it concerns",
    "relocation": "OPTIMIZE or ZORDER moves rows that it concerns",
    "definition": "the table's columns or properties are changed",
}
"""What another commit may do."""


BOTH = "committed with the rows that both marked (level 2)"


def outcome(statement: Statement, other: str, *, has_vectors: bool) -> str:
    """What becomes of it if that other commit came first.

    Args:
        statement: As classified.
        other: One of `OTHERS`.
        has_vectors: The table marks rows in deletion vectors; else a changed row has its file written anew.
    """
    again = "executed again on the table as it then is (level 4)"
    if other == "definition":
        return again
    match statement.reads:
        case Reads.NOTHING:
            return "committed as it is (level 1)"
        case Reads.TABLE:
            return again
        case Reads.PLACES:
            return _of_places(statement, other)
        case Reads.KEYS:
            return {
                "append": "committed as it is, if no appended row belongs to its source; else " + again,
                "other rows": BOTH if has_vectors else again,
            }.get(other, again)
        case Reads.ROWS:
            return _of_rows(statement, other, again, has_vectors=has_vectors)


def _of_rows(statement: Statement, other: str, again: str, *, has_vectors: bool) -> str:
    partly = "executed again on the files concerned (level 3)" if statement.is_divisible else again
    if other == "other rows":
        return BOTH if has_vectors else partly
    if statement.marks_rows:
        return "the rows that came are marked, those that are gone are left out (level 2)"
    if other == "append":
        return f"committed as it is, if no appended row meets its condition; else {partly}"
    return partly


def _of_places(statement: Statement, other: str) -> str:
    if other == "append":
        return "committed as it is (level 1)"
    if other == "relocation" or not statement.marks_rows:
        return "executed again on the table as it then is (level 4)"
    return "rows that were changed are marked in its copies (level 2)"
