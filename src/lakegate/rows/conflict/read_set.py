"""What has to be known of a statement that lost a race: decided from its plan, never from the `operation` that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reads(StrEnum):
    """What a statement's result depends on."""

    NOTHING = "nothing"
    """A blind append."""
    ROWS = "rows"
    """DELETE and UPDATE: each row for itself."""
    KEYS = "keys"
    """MERGE of a source that is frozen: pairs of a row and a row of the source that its condition holds for."""
    TABLE = "table"
    """Anything else: a source that reads the table, sub-queries, overwrites."""
    PLACES = "places"
    """OPTIMIZE and ZORDER: rows are copied into other files, and none is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What the rebase has to know of a statement."""

    reads: Reads
    marks_rows: bool = False
    """What it does to a row needs no copy of it: DELETE, and PLACES for a row that is gone, on a table with vectors."""
    has_condition: bool = False
    """Of KEYS: there is a WHEN NOT MATCHED BY SOURCE, whose condition is tested like that of ROWS."""
    writes_all_matched: bool = False
    """Of KEYS: every row that belongs to a row of the source is written, so one that winners took is found among its own."""
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
class Facts:
    """What Spark's analysis of a statement says."""

    operation: Operation
    has_vectors: bool
    """Deletes of the table mark rows in vectors."""
    has_row_ids: bool = False
    """The table tracks rows: equal ones are told from each other."""
    obstacles: Sequence[str] = ()
    """What about its condition or its source cannot be asked again later with the same answer."""
    has_condition: bool = False
    """Of a MERGE: there is a WHEN NOT MATCHED BY SOURCE."""
    writes_all_matched: bool = False
    """Of a MERGE: there is a WHEN MATCHED without a condition."""
    differs_by_execution: bool = False
    """Executions on some files each do not come to one on all of them. What it assigns is one execution's: it says what time
    it is, or is not a function of the row, and its source's row, alone. Or it is a MERGE with other clauses than WHEN MATCHED."""


def classify(facts: Facts) -> Statement:
    """What a statement reads, from what it is."""
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
