"""The batch that makes a target table equal to a snapshot of its source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from headgate.core.keys.change import Batch, Change
from headgate.core.keys.fold import canonical
from headgate.core.keys.schema import TableSchema
from headgate.errors import InvalidRequest
from headgate.ports import TargetDatabase


class TargetWithKeys(TargetDatabase, Protocol):
    """A target that tells which rows it has."""

    def keys(self, table: str) -> Sequence[Sequence[object]]:
        """The keys of all rows."""
        ...


def replace_all(table: str, target: TargetWithKeys, version: int, place: str, rows: Iterable[Change]) -> Batch:
    """Rows that the snapshot does not have are gone, all others are as in the snapshot.

    A key that the target writes in another way than the source is gone and comes in one batch: that is no change to it.

    Raises:
        InvalidRequest: The target table has no key.
    """
    schema: TableSchema = target.tables([table])[table]
    if not schema.identity:
        raise InvalidRequest(
            "a table without any key cannot be made equal row by row; nothing was written",
            advice="Give the table a key, or name columns under `key`",
            table=table,
        )
    come = list(rows)
    there = {canonical(schema.key_of(change.after) or ()) for change in come}
    gone = [
        Change(seq=version, tx=str(version), table=table, op="d", before=dict(zip(schema.identity, key, strict=True)))
        for key in target.keys(table)
        if canonical(tuple(key)) not in there
    ]
    mark = Change(seq=version, tx=None, table=table, op="mark", place=place)
    return Batch(changes=(*gone, *(replace(change, op="u") for change in come), mark))
