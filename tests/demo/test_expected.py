"""The replay and the comparison: right on a case small enough to work out by hand, and on real data with a known answer."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakegate.demo.expected import COLUMNS, Difference, Row, arrived, compare, replay
from lakegate.demo.records import ENGAGEMENTS, ERASURES, MUTATIONS, Inputs, read_inputs

PERSON = COLUMNS.index("person_id")


def made(rows: dict[str, str], mutations: list[tuple[str, str]], erased: list[str]) -> Inputs:
    """Inputs from id → alias, (alias, person) in order, and the erased."""
    at = datetime(2024, 5, 1, tzinfo=UTC)
    blank = dict.fromkeys(ENGAGEMENTS.names, None)
    engagements = [
        {**blank, "engagement_id": key, "alias_id": alias, "engagement_time": at, "arrival_seq": seq}
        for seq, (key, alias) in enumerate(rows.items())
    ]
    requests = [{"seq": seq, "alias_id": alias, "new_person_id": to} for seq, (alias, to) in enumerate(mutations)]
    return Inputs(
        engagements=pa.Table.from_pylist(engagements, schema=ENGAGEMENTS),
        mutations=pa.Table.from_pylist(requests, schema=MUTATIONS),
        erasures=pa.Table.from_pylist([{"person_id": person} for person in erased], schema=ERASURES),
    )


CASE = made(
    {"1": "ann", "2": "bob", "3": "ann", "4": "cas", "5": "dee", "6": "bob"},
    [("ann", "p1"), ("bob", "p2"), ("cas", "p1"), ("ann", "p3"), ("dee", "gone")],
    ["gone", "p1"],
)
EXPECTED = {"1": "p3", "2": "p2", "3": "p3", "6": "p2"}
IDS = {"1", "2", "3", "4", "5", "6"}


def final() -> list[Row]:
    return list(replay(CASE).values())


def changed(row: Row, **values: object) -> Row:
    return tuple(values.get(name, value) for name, value in zip(COLUMNS, row, strict=True))


def test_the_replay_of_a_small_case_is_what_a_hand_gets() -> None:
    """The last request for an alias counts, for earlier and later rows; the erased, by their last identity, are gone."""
    assert {key: row[PERSON] for key, row in replay(CASE).items()} == EXPECTED
    assert replay(CASE)["1"][COLUMNS.index("engagement_time")] == 1_714_521_600_000_000


def test_the_right_table_has_no_difference() -> None:
    """In any order of its rows."""
    difference = compare(replay(CASE), reversed(final()), brought=IDS)
    assert difference.is_none
    assert (difference.expected_rows, difference.final_rows) == (4, 4)


ROW_4 = next(row for row in arrived(CASE) if row[0] == "4")


@pytest.mark.parametrize(
    ("table", "what", "count"),
    [
        (final()[1:], "missing_rows", 1),
        ([*final(), *final()[:2], final()[0]], "doubled_rows", 3),
        ([changed(final()[0], person_id="ann"), *final()[1:]], "wrong_person_rows", 1),
        ([*final(), changed(ROW_4, person_id="p1")], "not_erased_rows", 1),
        ([*final(), changed(ROW_4, person_id="cas")], "not_erased_rows", 1),
        ([changed(final()[0], subject="other"), *final()[1:]], "other_rows", 1),
        ([*final(), changed(ROW_4, engagement_id="99")], "other_rows", 1),
        ([], "missing_rows", 4),
    ],
)
def test_each_kind_of_difference_is_counted_as_itself_alone(table: list[Row], what: str, count: int) -> None:
    """Missing, doubled, under a wrong person, not erased, otherwise changed: one name each, and never right."""
    difference = compare(replay(CASE), table, brought=IDS)
    kinds = [name for name in Difference.__dataclass_fields__ if name not in ("expected_rows", "final_rows")]
    assert {name: getattr(difference, name) for name in kinds if getattr(difference, name)} == {what: count}
    assert not difference.is_none
    assert difference.final_rows == len(table)


def test_a_missing_and_a_duplicate_row_do_not_cancel_each_other() -> None:
    """The count of rows is right, the table is not."""
    difference = compare(replay(CASE), [*final()[1:], final()[1]], brought=IDS)
    assert difference.final_rows == difference.expected_rows
    assert (difference.missing_rows, difference.doubled_rows, difference.is_none) == (1, 1, False)


@pytest.mark.data
def test_the_replay_of_real_data_has_the_known_digest(engagement_data: Path) -> None:
    """rlists ends in the digest that was made by SQL statements elsewhere."""
    known = json.loads((engagement_data / "expected.json").read_text())["rlists"]
    rows = replay(read_inputs(engagement_data, "rlists"))
    lines = "\n".join(sorted(f"{key}|{row[PERSON]}" for key, row in rows.items()))
    assert (len(rows), hashlib.sha256(lines.encode()).hexdigest()) == (known["final_rows"], known["final_sha256"])
