"""Describes in words, for `explain`, what happens to a statement when another commit comes first. `rebase.py` decides it."""

from __future__ import annotations

from collections.abc import Mapping

from lakegate.rows.conflict.read_set import Reads, Statement

OTHERS: Mapping[str, str] = {
    "append": "rows are appended",
    "other rows": "rows of the same files are changed that the statement does not concern",
    "same rows": "rows that the statement concerns are changed",
    "relocation": "OPTIMIZE or ZORDER moves rows that the statement concerns",
    "definition": "the table's columns or properties are changed",
}
"""Kinds of other commits."""


BOTH = "committed with the marked rows of both (level 2)"


def outcome(statement: Statement, other: str, *, has_vectors: bool) -> str:
    """Describes what happens to a statement if another commit came first.

    Args:
        statement: As classified.
        other: One of `OTHERS`.
        has_vectors: The table marks rows in deletion vectors; else a change of a row rewrites its file.
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
        return "new matching rows are marked, removed rows are left out (level 2)"
    return partly


def _of_places(statement: Statement, other: str) -> str:
    if other == "append":
        return "committed as it is (level 1)"
    if not statement.marks_rows:
        return "executed again on the table as it then is (level 4)"
    if other == "relocation":
        return "rows that the other commit moved stay where it moved them (level 2)"
    return "rows that were changed are marked as deleted in its copies (level 2)"
