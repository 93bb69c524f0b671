"""What becomes of a statement beside others: in words, by what it reads and what they did. The rebase keeps to it."""

from __future__ import annotations

from collections.abc import Mapping

from lakegate.rows.conflict.read_set import Reads, Statement

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
    partly = "executed again on the files concerned (level 3)" if statement.is_divisible else again
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
            concerns = "belongs to its source" + (
                ", or meets the condition of its WHEN NOT MATCHED BY SOURCE" if statement.has_condition else ""
            )
            return {
                "append": f"committed as it is, if no appended row {concerns}; else {partly}",
                "other rows": f"committed as it is, or {BOTH.removeprefix('committed ')}" if has_vectors else partly,
            }.get(other, partly)
        case Reads.ROWS:
            return _of_rows(statement, other, partly, has_vectors=has_vectors)


def _of_rows(statement: Statement, other: str, partly: str, *, has_vectors: bool) -> str:
    if other == "other rows":
        return BOTH if has_vectors else partly
    if other == "append":
        appended = "rows that do are marked, too (level 2)" if statement.marks_rows else partly
        return f"committed as it is, if no appended row meets its condition; else {appended}"
    if statement.marks_rows:
        return "the rows that came are marked, those that are gone are left out (level 2)"
    return partly


def _of_places(statement: Statement, other: str) -> str:
    if other == "append":
        return "committed as it is (level 1)"
    if not statement.marks_rows:
        return "executed again on the table as it then is (level 4)"
    if other == "relocation":
        return "rows that were moved stay where they were put (level 2)"
    return "rows that were changed are marked in its copies (level 2)"
