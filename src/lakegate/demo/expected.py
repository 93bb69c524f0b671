"""The true answer, by a plain replay in Python; and the difference of a final table from it.

Nothing here uses Spark, Delta or turns: the reference must not share their mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakegate.demo.records import ENGAGEMENTS, Inputs

COLUMNS = (*ENGAGEMENTS.names, "person_id")
"""The table's columns, in the order of a `Row`; instants are microseconds since 1970."""

Row = tuple[object, ...]

_ALIAS = COLUMNS.index("alias_id")
_PERSON = COLUMNS.index("person_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The extra and missing rows of a table. Counts of rows."""

    expected_rows: int
    final_rows: int
    missing_rows: int
    doubled_rows: int
    """Copies beyond the first of a row."""
    wrong_person_rows: int
    """Rows, each counted once, of which a copy is under a wrong person."""
    not_erased_rows: int
    """Rows, each counted once, that belong to an erased person and still exist."""
    other_rows: int
    """Rows that no input contains, or with another column that differs from the input."""

    @property
    def is_none(self) -> bool:
        """True if the table is exactly right."""
        return self.final_rows == self.expected_rows and not (
            self.missing_rows or self.doubled_rows or self.wrong_person_rows or self.not_erased_rows or self.other_rows
        )


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


def compare(expected: Mapping[str, Row], found: Iterable[Row], *, brought: Iterable[str]) -> Difference:
    """Compares the rows of a final table with `expected`.

    Args:
        expected: engagement_id → the correct row.
        found: The whole table.
        brought: The ids of all engagements that ever arrived.
    """
    copies: Counter[str] = Counter()
    wrong_person: set[str] = set()
    other: set[str] = set()
    for row in found:
        key = str(row[0])
        copies[key] += 1
        right = expected.get(key)
        if right is None or row == right:
            continue
        if row[_PERSON] != right[_PERSON]:
            wrong_person.add(key)
        if row[:_PERSON] != right[:_PERSON]:
            other.add(key)
    strangers = copies.keys() - expected.keys()
    not_erased = strangers & set(brought)
    return Difference(
        expected_rows=len(expected),
        final_rows=copies.total(),
        missing_rows=len(expected.keys() - copies.keys()),
        doubled_rows=copies.total() - len(copies),
        wrong_person_rows=len(wrong_person),
        not_erased_rows=len(not_erased),
        other_rows=len(other | (strangers - not_erased)),
    )
