"""The true answer, by a plain replay in Python; and the difference of a final table from it.

Nothing here uses Spark, Delta or turns: the reference must not share their mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakegate.demo.records import ENGAGEMENTS, Inputs
from lakegate.report.data import FaultKind

COLUMNS = (*ENGAGEMENTS.names, "person_id")
"""The table's columns, in the order of a `Row`; instants are microseconds since 1970."""

Row = tuple[object, ...]

_ALIAS = COLUMNS.index("alias_id")
_PERSON = COLUMNS.index("person_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a row in the table's change data feed; of an update, the row after it."""

    key: str
    version: int
    is_delete: bool


def rows_of(table: pa.Table) -> list[Row]:
    """Returns the rows of a table that has `COLUMNS`, in its own order."""
    columns = []
    for name in COLUMNS:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns.append(column.to_pylist())
    return list(zip(*columns, strict=True))


def arrived(inputs: Inputs) -> list[Row]:
    """Returns every engagement as it arrives: its alias is its person."""
    return rows_of(inputs.engagements.append_column("person_id", inputs.engagements.column("alias_id")))


def replay(inputs: Inputs) -> dict[str, Row]:
    """Returns the final table: every engagement under the person of the last request for its alias, without erased people.

    Returns:
        engagement_id → its row.
    """
    person_of: dict[str, str] = {}
    requests = zip(
        inputs.mutations.column("alias_id").to_pylist(),
        inputs.mutations.column("new_person_id").to_pylist(),
        strict=True,
    )
    for alias, person in requests:
        person_of[alias] = person
    erased = set(inputs.erasures.column("person_id").to_pylist())
    final: dict[str, Row] = {}
    for row in arrived(inputs):
        alias = str(row[_ALIAS])
        person = person_of.get(alias, alias)
        if person not in erased:
            final[str(row[0])] = (*row[:_PERSON], person)
    return final


def compare(
    expected: Mapping[str, Row], found: Iterable[Row], *, brought: Iterable[str]
) -> dict[FaultKind, Counter[str]]:
    """Compares the rows of a final table with `expected`.

    Args:
        expected: engagement_id → the correct row.
        found: The whole table.
        brought: The ids of all engagements that ever arrived.

    Returns:
        Kind → engagement_id → the number of rows.
    """
    copies: Counter[str] = Counter()
    wrong: set[str] = set()
    for row in found:
        key = str(row[0])
        copies[key] += 1
        if key in expected and row != expected[key]:
            wrong.add(key)
    strangers, known = copies.keys() - expected.keys(), set(brought)
    return {
        FaultKind.MISSING: Counter(expected.keys() - copies.keys()),
        FaultKind.DOUBLED: Counter({key: count - 1 for key, count in copies.items() if count > 1}),
        FaultKind.ERASED: Counter(strangers & known),
        FaultKind.UNKNOWN: Counter(strangers - known),
        FaultKind.WRONG: Counter(wrong),
    }


def blamed(
    faults: Mapping[FaultKind, Counter[str]], changes: Iterable[Change]
) -> list[tuple[FaultKind, int | None, int]]:
    """Returns the faults by the commit that brought each: kind, version, rows.

    Of a doubled row these are the last commits that wrote its copies; of a missing row it is the commit that deleted it; of any
    other the last one that wrote it. The version is None where no commit of the feed did, as after a lost commit.
    """
    written: dict[str, list[int]] = {}
    deleted: dict[str, list[int]] = {}
    for change in sorted(changes, key=lambda change: change.version):
        (deleted if change.is_delete else written).setdefault(change.key, []).append(change.version)
    counts: Counter[tuple[FaultKind, int | None]] = Counter()
    for kind, keys in faults.items():
        for key, rows in keys.items():
            versions = (deleted if kind is FaultKind.MISSING else written).get(key, [])[-rows:]
            counts.update((kind, version) for version in versions)
            if rows > len(versions):
                counts[kind, None] += rows - len(versions)
    return [(kind, version, rows) for (kind, version), rows in counts.items()]
