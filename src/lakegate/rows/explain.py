"""Explains what a statement depends on, and what happens to it when other commits come first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakegate.notebook import Shown
from lakegate.rows.conflict.concurrency import OTHERS, outcome
from lakegate.rows.conflict.read_set import Reads, Statement, StatementFacts, classify
from lakegate.rows.execution import ROW_IDS, VECTORS
from lakegate.rows.quick import why_not_analysed
from lakegate.rows.statement import Dml

READS = {
    Reads.NOTHING: "nothing of the table: it only appends",
    Reads.ROWS: "each row for itself",
    Reads.KEYS: "pairs of a row of the table and a row of its source",
    Reads.TABLE: "more than single rows",
    Reads.PLACES: "the positions of rows, not their values",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Shown):
    """The properties of a statement that are known before it is executed."""

    table: str
    operation: str
    reads: str
    """The part of the table on which its result depends."""
    condition: str | None
    """Condition of the rows that it concerns; for a MERGE, of the pairs."""
    keys: tuple[str, ...]
    """For a MERGE: integer columns of the table that are equal to an expression of the source in each pair. Other commits' files
    are not read if their statistics rule out the keys of the source."""
    obstacles: tuple[str, ...]
    """Reasons why it is executed again as a whole; empty if it is not."""
    why_stock: str | None
    """Why stock Delta executes it; None if the driver tries to, without a Spark job."""
    outcomes: Mapping[str, str]
    """Kind of another commit → what happens to this statement."""

    def __str__(self) -> str:
        lines = [f"{self.operation} of {self.table}", f"  depends on: {self.reads}"]
        if self.condition is not None:
            lines.append(f"  condition: {self.condition}")
        if self.keys:
            lines.append(f"  keys: {', '.join(self.keys)}")
        lines += [f"  because {obstacle}" for obstacle in self.obstacles]
        way = "in the driver, if it finds few rows" if self.why_stock is None else f"by stock Delta: {self.why_stock}"
        lines.append(f"  executed: {way}")
        lines.append("  if another commit comes first, and")
        lines += [f"    {other}: {what}" for other, what in self.outcomes.items()]
        return "\n".join(lines)


def explain(dml: Dml) -> Explanation:
    """Explains a statement; nothing is executed."""
    jvm = dml.jvm
    metadata = json.loads(jvm.snapshot(jvm.delta_log(dml.table)).metadata().json())["metaData"]
    properties = metadata.get("configuration") or {}
    facts: StatementFacts = dml.facts(
        has_vectors=properties.get(VECTORS) == "true", has_row_ids=properties.get(ROW_IDS) == "true"
    )
    statement: Statement = classify(facts)
    said: Any = dml.on if dml.on is not None else dml.condition
    return Explanation(
        table=dml.table,
        operation=dml.operation.value,
        reads=READS[statement.reads],
        condition=None if said is None else said._jc.toString(),
        keys=dml.keys(),
        obstacles=tuple(dict.fromkeys(facts.obstacles)),
        why_stock=why_not_analysed(dml),
        outcomes={words: outcome(statement, other, has_vectors=facts.has_vectors) for other, words in OTHERS.items()},
    )
