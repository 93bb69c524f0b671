"""The replay and the comparison: right on a case small enough to work out by hand, and on real data with a known answer."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakegate.demo.expected import COLUMNS, Change, Row, arrived, blamed, compare, replay
from lakegate.demo.records import ENGAGEMENTS, ERASURES, MUTATIONS, Inputs, read_inputs
from lakegate.report.data import FaultKind

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


def counts(table: list[Row]) -> dict[FaultKind, int]:
    """The kinds of rows that differ, with their number."""
    found = compare(replay(CASE), table, brought=IDS)
    return {kind: keys.total() for kind, keys in found.items() if keys}


def test_the_right_table_has_no_difference() -> None:
    """In any order of its rows."""
    assert counts(final()[::-1]) == {}


ROW_4 = next(row for row in arrived(CASE) if row[0] == "4")


@pytest.mark.parametrize(
    ("table", "kind", "count"),
    [
        (final()[1:], FaultKind.MISSING, 1),
        ([*final(), *final()[:2], final()[0]], FaultKind.DOUBLED, 3),
        ([changed(final()[0], person_id="ann"), *final()[1:]], FaultKind.WRONG, 1),
        ([*final(), changed(ROW_4, person_id="p1")], FaultKind.ERASED, 1),
        ([*final(), changed(ROW_4, person_id="cas")], FaultKind.ERASED, 1),
        ([changed(final()[0], subject="other"), *final()[1:]], FaultKind.WRONG, 1),
        ([*final(), changed(ROW_4, engagement_id="99")], FaultKind.UNKNOWN, 1),
        ([], FaultKind.MISSING, 4),
    ],
)
def test_each_kind_of_difference_is_counted_as_itself_alone(table: list[Row], kind: FaultKind, count: int) -> None:
    """Missing, doubled, of erased people, of no input, with a wrong value: one name each, and never right."""
    assert counts(table) == {kind: count}


def test_a_missing_and_a_duplicate_row_do_not_cancel_each_other() -> None:
    """The count of rows is right, the table is not."""
    table = [*final()[1:], final()[1]]
    assert len(table) == len(EXPECTED)
    assert counts(table) == {FaultKind.MISSING: 1, FaultKind.DOUBLED: 1}


def test_the_kinds_add_up_to_the_rows_of_the_table() -> None:
    """Also where a row has several faults: a doubled row of an erased person, a doubled row with a wrong value."""
    wrong = changed(final()[0], person_id="ann")
    table = [wrong, wrong, *final()[2:], ROW_4, ROW_4, changed(ROW_4, engagement_id="99")]
    found = Counter(counts(table))
    added = found[FaultKind.DOUBLED] + found[FaultKind.ERASED] + found[FaultKind.UNKNOWN]
    assert len(EXPECTED) - found[FaultKind.MISSING] + added == len(table)
    assert found == {
        FaultKind.MISSING: 1,
        FaultKind.DOUBLED: 2,
        FaultKind.ERASED: 1,
        FaultKind.UNKNOWN: 1,
        FaultKind.WRONG: 1,
    }


def test_a_row_that_differs_is_traced_to_the_commit_that_brought_it() -> None:
    """Doubled: the last commits that wrote it; missing: the one that deleted it; any other: the last that wrote it."""

    def written(key: str, version: int) -> Change:
        return Change(key=key, version=version, is_delete=False)

    changes = [
        written("1", 5), written("1", 2), Change(key="2", version=4, is_delete=True), written("2", 1), written("4", 3),
        written("3", 1), written("3", 6),
    ]  # fmt: skip
    faults = {
        FaultKind.DOUBLED: Counter({"1": 1}),
        FaultKind.MISSING: Counter({"2": 1}),
        FaultKind.ERASED: Counter({"4": 1, "5": 1}),
        FaultKind.WRONG: Counter({"3": 1}),
    }
    assert set(blamed(faults, changes)) == {
        (FaultKind.DOUBLED, 5, 1),
        (FaultKind.MISSING, 4, 1),
        (FaultKind.ERASED, 3, 1),
        (FaultKind.ERASED, None, 1),  # no commit of the feed: it was lost
        (FaultKind.WRONG, 6, 1),
    }


@pytest.mark.data
def test_the_replay_of_real_data_has_the_known_digest(engagement_data: Path) -> None:
    """rlists ends in the digest that was made by SQL statements elsewhere."""
    known = json.loads((engagement_data / "expected.json").read_text())["rlists"]
    rows = replay(read_inputs(engagement_data, "rlists"))
    lines = "\n".join(sorted(f"{key}|{row[PERSON]}" for key, row in rows.items()))
    assert (len(rows), hashlib.sha256(lines.encode()).hexdigest()) == (known["final_rows"], known["final_sha256"])
