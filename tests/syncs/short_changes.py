"""Changes of a source in short: a row that is created, deleted or updated, by one call each."""

from __future__ import annotations

from typing import Any

from lakegate.syncs.plan.change import Change

Step = tuple[Any, ...]
"""(transaction, table, op, before, after)."""


def changes_of(*steps: Step) -> list[Change]:
    """Changes from steps, numbered in their order."""
    return [
        Change(seq=seq, tx=str(tx), table=table, op=op, before=before, after=after)
        for seq, (tx, table, op, before, after) in enumerate(steps)
    ]


def c(tx: Any, row: dict[str, Any], table: str = "t") -> Step:
    """A row is created."""
    return (tx, table, "c", None, row)


def d(tx: Any, row: dict[str, Any], table: str = "t") -> Step:
    """A row is deleted."""
    return (tx, table, "d", row, None)


def u(tx: Any, row: dict[str, Any], table: str = "t", **new: Any) -> Step:
    """A row is updated."""
    return (tx, table, "u", row, {**row, **new})
