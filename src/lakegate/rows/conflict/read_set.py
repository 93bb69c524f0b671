"""The read set of a statement: decided from its plan, never from the `operation` in its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reads(StrEnum):
    """The part of the table and the source on which a statement's result depends."""

    NOTHING = "nothing"
    """A blind append."""
    ROWS = "rows"
    """DELETE and UPDATE: each row independently."""
    KEYS = "keys"
    """MERGE with a frozen source: pairs of a row and a source row that match its condition."""
    TABLE = "table"
    """All other statements: a source that reads the table, sub-queries, overwrites."""
    PLACES = "places"
    """OPTIMIZE and ZORDER: copy rows into other files, and change none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The properties of a statement that the rebase needs."""

    reads: Reads
    marks_rows: bool = False
    """Its effect on a row needs no copy of the row: DELETE, and PLACES for a removed row, on a table with vectors."""
    has_condition: bool = False
    """For KEYS: there is a WHEN NOT MATCHED BY SOURCE, whose condition is tested like that of ROWS."""
    writes_all_matched: bool = False
    """For KEYS: every matched row is written, so a row that a winning commit removed is among the rows that it wrote."""
    is_divisible: bool = False
    """For ROWS and KEYS: the statement may be executed again on a subset of the files. Rows are independent, so a row that a
    concurrent commit removed, and that this statement did not write, is irrelevant."""


class Operation(StrEnum):
    """A statement's kind, as Delta names it in the table's history."""

    DELETE = "DELETE"
    UPDATE = "UPDATE"
    MERGE = "MERGE"
    INSERT = "WRITE"
    OVERWRITE = "OVERWRITE"
    OPTIMIZE = "OPTIMIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFacts:
    """The result of Spark's analysis of a statement."""

    operation: Operation
    has_vectors: bool
    """A DELETE on the table marks rows in vectors."""
    has_row_ids: bool = False
    """The table tracks rows: equal rows are distinguished."""
    obstacles: Sequence[str] = ()
    """Reasons why its condition or source may give another result later."""
    has_condition: bool = False
    """For a MERGE: there is a WHEN NOT MATCHED BY SOURCE."""
    writes_all_matched: bool = False
    """For a MERGE: there is a WHEN MATCHED without a condition."""
    differs_by_execution: bool = False
    """Separate executions on parts of the files may differ from one execution on all of them. Either its assigned values depend
    on the execution (the current time, or more than the row and its source row). Or it is a MERGE that has other clauses than
    WHEN MATCHED."""


def classify(facts: StatementFacts) -> Statement:
    """Returns a statement's read set, from its analysis."""
    match facts.operation:
        case Operation.OPTIMIZE:
            return Statement(reads=Reads.PLACES, marks_rows=facts.has_vectors and not facts.has_row_ids)
        case Operation.OVERWRITE:
            return Statement(reads=Reads.TABLE)
        case _ if facts.obstacles:
            return Statement(reads=Reads.TABLE)
        case Operation.INSERT:
            return Statement(reads=Reads.NOTHING)
        case Operation.MERGE:
            return Statement(
                reads=Reads.KEYS,
                has_condition=facts.has_condition,
                writes_all_matched=facts.writes_all_matched,
                is_divisible=not facts.differs_by_execution,
            )
        case Operation.DELETE:
            return Statement(reads=Reads.ROWS, marks_rows=facts.has_vectors, is_divisible=True)
        case Operation.UPDATE:
            return Statement(reads=Reads.ROWS, is_divisible=not facts.differs_by_execution)
