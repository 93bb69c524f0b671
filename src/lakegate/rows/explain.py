"""What a statement depends on, and what becomes of it beside others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakegate.rows.conflict.concurrency import OTHERS, outcome
from lakegate.rows.conflict.read_set import Facts, Reads, Statement, classify
from lakegate.rows.statement import Dml
from lakegate.rows.transaction import ROW_IDS, VECTORS

READS = {
    Reads.NOTHING: "nothing of the table: it only appends",
    Reads.ROWS: "each row for itself",
    Reads.KEYS: "pairs of a row of the table and a row of its source",
    Reads.TABLE: "more than single rows",
    Reads.PLACES: "where rows are, not what they say",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of a statement before it is executed."""

    table: str
    operation: str
    reads: str
    """What its result depends on."""
    condition: str | None
    """Which rows it concerns; of a MERGE, which pairs."""
    keys: tuple[str, ...]
    """Of a MERGE: whole numbers among the table's columns that are equal to something of its source in each pair. Files of others
    whose statistics leave no room for the source's are not read."""
    obstacles: tuple[str, ...]
    """Why it is executed again as a whole, where it is."""
    outcomes: Mapping[str, str]
    """What another commit may have done → what becomes of this one."""

    def __str__(self) -> str:
        lines = [f"{self.operation} of {self.table}", f"  depends on: {self.reads}"]
        if self.condition is not None:
            lines.append(f"  condition: {self.condition}")
        if self.keys:
            lines.append(f"  keys: {', '.join(self.keys)}")
        lines += [f"  because {obstacle}" for obstacle in self.obstacles]
        lines.append("  if another commit comes first, and")
        lines += [f"    {other}: {what}" for other, what in self.outcomes.items()]
        return "\n".join(lines)


def explain(dml: Dml) -> Explanation:
    """Of a statement; nothing is executed."""
    jvm = dml.jvm
    metadata = json.loads(jvm.snapshot(jvm.delta_log(dml.table)).metadata().json())["metaData"]
    properties = metadata.get("configuration") or {}
    facts: Facts = dml.facts(
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
        outcomes={words: outcome(statement, other, has_vectors=facts.has_vectors) for other, words in OTHERS.items()},
    )
