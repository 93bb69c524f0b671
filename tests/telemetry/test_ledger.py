"""The ledger's files: what is on disk when a line could not be written whole."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from lakegate.errors import Corrupt, Unavailable
from lakegate.telemetry.events import LeftOut
from lakegate.telemetry.ledger import LedgerSink, read_left_out
from lakegate.telemetry.ledger_days import read_ledger
from tests.telemetry.ended_turns import row


def test_a_line_for_which_the_disk_has_no_room_is_refused_and_spoils_no_other(tmp_path: Path) -> None:
    """Half of it is not left for the next one to be written behind."""
    ledger = LedgerSink(tmp_path)
    ledger.emit(row(1))
    [file] = tmp_path.glob("ledger/L/*.jsonl")
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(Unavailable, match="the ledger cannot be written"):
            ledger.emit(row(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before
    ledger.emit(row(3))
    assert [one.epoch for one in read_ledger(tmp_path)] == [1, 3]


def test_what_a_stopped_run_reports_of_its_turn_counts_and_not_what_others_report(tmp_path: Path) -> None:
    """Two others may report a turn, too, if the second one did not learn of the first."""
    ledger = LedgerSink(tmp_path)
    for by in ("B", "C"):
        ledger.emit(replace(row(1), outcome="lost", batches=None, closed_by=by))
    [lost] = read_ledger(tmp_path)
    assert lost.outcome == "lost"
    ledger.emit(replace(row(1), outcome="fenced"))
    ledger.emit(row(2))
    assert [(one.epoch, one.outcome, one.closed_by) for one in read_ledger(tmp_path)] == [
        (1, "fenced", None),
        (2, row(2).outcome, None),
    ]


def test_a_reader_of_the_ledger_may_skip_a_damaged_line(tmp_path: Path) -> None:
    """A run does not end because a line of the past is damaged; it is named all the same."""
    ledger = LedgerSink(tmp_path)
    for epoch in (1, 2, 3):
        ledger.emit(row(epoch))
    [file] = tmp_path.glob("ledger/L/*.jsonl")
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], b"\xff\xff", b"x" * 2_500_000, lines[2], b""]))
    damage: list[Corrupt] = []
    assert [one.epoch for one in read_ledger(tmp_path, on_damage=damage.append)] == [1, 3]
    assert [one.facts["path"] for one in damage] == [file] * len(damage)
    assert damage[0].facts["line"] == 2


def test_inputs_that_streams_left_out_are_kept_once_for_each_text(tmp_path: Path) -> None:
    """By job, with its last time; no row of the turns, and no name of a job leads out of the folder."""
    sink = LedgerSink(tmp_path)
    for at_ms, job, text in ((1, "In/..", "a"), (2, "In/..", "b"), (3, "In/..", "a"), (4, "Other", "c")):
        sink.emit(LeftOut(lock="L/..", job=job, text=text, at_ms=at_ms))
    assert [(row.text, row.at_ms) for row in read_left_out(tmp_path, "In/..")] == [("b", 2), ("a", 3)]
    assert read_ledger(tmp_path) == []
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".jsonl"}
