"""Handles columns that changes have and the target table lacks: refuses, drops or adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakegate.config.syncs import OnSchemaChange
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.table_schema import TableSchema
from lakegate.syncs.ports import TargetDatabase


def fitted(
    changes: Sequence[Change],
    tables: Mapping[str, TableSchema],
    how: OnSchemaChange,
    target: TargetDatabase | None,
) -> tuple[Sequence[Change], Mapping[str, TableSchema]]:
    """Returns the changes without columns that the target lacks, and the tables, possibly with added columns.

    Args:
        changes: The changes of a batch.
        tables: The target's tables, by name.
        how: With `stop`, everything is returned unchanged; an unknown column is refused when the batch is folded.
        target: The target to which columns may be added; None if nothing must be written.
    """
    if how == "stop":
        return changes, tables
    known = {name: {column.name for column in schema.columns} for name, schema in tables.items()}
    unknown: dict[str, dict[str, object]] = {}
    for change in changes:
        columns = known.get(change.table)
        for image in (change.before, change.after):
            if columns is not None and image is not None and not image.keys() <= columns:
                there = unknown.setdefault(change.table, {})
                for name in image.keys() - columns:
                    if there.get(name) is None:
                        there[name] = image[name]
    if not unknown:
        return changes, tables
    if how == "add_columns" and target is not None:
        for table, columns_ in unknown.items():
            # A column that is NULL in all rows so far has no known type. Left out, it has the same value: NULL.
            wanted = {name: value for name, value in sorted(columns_.items()) if value is not None}
            if wanted:
                target.add_columns(table, wanted)
        tables = target.tables(list(tables))
        known = {name: {column.name for column in schema.columns} for name, schema in tables.items()}

    def cut(image: Image | None, columns: set[str]) -> Image | None:
        return image if image is None else {name: value for name, value in image.items() if name in columns}

    return [
        replace(change, before=cut(change.before, known[change.table]), after=cut(change.after, known[change.table]))
        if change.table in unknown
        else change
        for change in changes
    ], tables
