"""The ledger of months: merged into days, each turn once at every moment, and short to read."""

from __future__ import annotations

import builtins
import io
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lakegate.errors import Corrupt
from lakegate.telemetry import ledger, ledger_days
from lakegate.telemetry.events import LeftOut, PersonActed, TurnEnded
from lakegate.telemetry.ledger import LedgerSink
from lakegate.telemetry.ledger_days import last_rows, merge_old_runs, newest_first, read_ledger, read_summary
from lakegate.telemetry.turn_totals import Totals, add_turns
from tests.telemetry.ended_turns import row

DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def months(storage: Path, *, turns: int = 600, seed: int = 1) -> list[TurnEnded]:
    """Writes turns of 400 days by three jobs on two locks, each run with up to three turns; and ages the files."""
    chance, sink = random.Random(seed), LedgerSink(storage)
    rows: list[TurnEnded] = []
    for number in range(turns):
        job, lock = chance.choice("ABC"), chance.choice(["L", "L/.."])
        at_ms = NOW_MS - 400 * DAY_MS + number * (400 * DAY_MS // turns)
        epoch = None if chance.random() < 0.1 else number
        one = replace(
            row(number),
            lock=lock,
            job=job,
            run=f"{job}{lock[:1]}{len(lock)}-{number // 20}",
            epoch=epoch,
            query_id=chance.choice([f"q{job}", f"q{job}{number // 300}", None]),
            asked_at_ms=at_ms - 10,
            granted_at_ms=None if epoch is None else at_ms - 5,
            released_at_ms=at_ms,
            versions={} if epoch is None else {f"/t{job}": (number, number + 1)},
            outcome="gave_up" if epoch is None else "completed",
        )
        if epoch is not None and chance.random() < 0.1:
            one = replace(one, outcome="lost", closed_by="B", batches=None, run=f"dead-{number}")
        rows.append(one)
        sink.emit(one)
    age(storage)
    return rows


def age(storage: Path) -> None:
    """Gives each file of a run the time of its last turn."""
    for path in ledger.run_files(storage):
        ended_ms = max(one.released_at_ms for one in ledger.rows_in(path, ledger.from_line))
        os.utime(path, ns=(ended_ms * 1_000_000, ended_ms * 1_000_000))


def merge(storage: Path, *, keep_days: int = 1_000) -> None:
    merge_old_runs(storage, now_ms=NOW_MS, before_ms=NOW_MS - keep_days * DAY_MS)


def same(totals: Totals, rows: list[TurnEnded]) -> bool:
    expected = add_turns({}, rows)
    for one in (*totals.values(), *expected.values()):
        for spans in (one.held, one.waited):
            spans.sum_s = round(spans.sum_s, 6)
    return totals == expected


def test_merged_turns_are_the_same_turns(tmp_path: Path) -> None:
    """As a whole, by lock, the last first, in sums, and what the start of a run needs; and only recent runs keep a file."""
    rows = months(tmp_path)
    before = read_ledger(tmp_path)
    assert Counter(map(ledger.identity, before)) == Counter(map(ledger.identity, rows))
    needed = last_rows(before)
    for _ in range(2):
        merge(tmp_path)
        assert read_ledger(tmp_path) == before
        assert read_ledger(tmp_path, "L/..") == [one for one in before if one.lock == "L/.."]
        assert list(newest_first(tmp_path)) == before[::-1]
        assert list(newest_first(tmp_path, "L")) == [one for one in before[::-1] if one.lock == "L"]
        summary = read_summary(tmp_path)
        assert summary.rows == needed
        assert same(summary.totals, rows)
    assert len(ledger.run_files(tmp_path)) < 30
    assert {path.suffix for path in (tmp_path / "ledger" / "L").iterdir()} <= {".jsonl", ""}


def test_later_turns_are_added_to_what_is_merged(tmp_path: Path) -> None:
    """Also to a day that has a file, and by a process that was stopped for longer than a run counts as recent."""
    rows = months(tmp_path)
    merge(tmp_path)
    sink = LedgerSink(tmp_path)
    for number in range(600, 900):
        later = replace(rows[number % 300], epoch=number, run=f"later-{number}", closed_by=None, outcome="completed")
        rows.append(later)
        sink.emit(later)
    stopped = replace(rows[0], outcome="fenced", epoch=7_000, released_at_ms=NOW_MS)
    rows.append(stopped)
    sink.emit(stopped)
    assert same(read_summary(tmp_path).totals, rows)
    age(tmp_path)
    merge(tmp_path)
    assert Counter(map(ledger.identity, read_ledger(tmp_path))) == Counter(map(ledger.identity, rows))
    assert same(read_summary(tmp_path).totals, rows)
    assert read_summary(tmp_path).rows == last_rows(rows)


def test_old_days_are_deleted_and_what_a_run_needs_of_them_stays(tmp_path: Path) -> None:
    """The sums, the epoch, the versions, and whose checkpoint it is; actions and left out inputs go by their time."""
    rows = months(tmp_path)
    needed = last_rows(rows)
    sink = LedgerSink(tmp_path)
    act = PersonActed(action_id="x", lock="L", job="A", action="pause", by="me", reason="", at_ms=1, outcome="done")
    sink.emit(act)
    sink.emit(LeftOut(lock="L", job="A", text="a field", at_ms=1))
    for path in (*tmp_path.rglob("x.jsonl"), *tmp_path.rglob("left_out/*.jsonl")):
        os.utime(path, (1_000, 1_000))
    merge(tmp_path)
    assert (tmp_path / "ledger/L/actions/x.jsonl").exists()
    merge(tmp_path, keep_days=30)
    kept_from_ms = NOW_MS - 30 * DAY_MS
    assert [one.released_at_ms for one in read_ledger(tmp_path)] == [
        one.released_at_ms for one in rows if one.released_at_ms >= kept_from_ms - kept_from_ms % DAY_MS
    ]
    assert not list(tmp_path.rglob("x.jsonl")) + list(tmp_path.rglob("left_out/*.jsonl"))
    for _ in range(2):
        assert read_summary(tmp_path).rows == needed
        assert same(read_summary(tmp_path).totals, rows)
        merge(tmp_path, keep_days=1)
    assert {one.released_at_ms // DAY_MS for one in read_ledger(tmp_path)} <= {999, 1_000}


class Crash(BaseException):
    """The process is killed here."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Ends the merge at its step number `at`, before or in the middle of a write or a deletion; returns the steps."""
    steps: list[str] = []

    def step(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            if len(steps) == at:
                if name == "append":
                    real(args[0], args[1][: len(args[1]) * 2 // 3])
                raise Crash
            return real(*args, **kwargs)

        return run

    monkeypatch.setattr(ledger_days, "_append_whole", step("append", ledger_days._append_whole))
    monkeypatch.setattr(ledger_days, "write_file", step("summary", ledger_days.write_file))
    monkeypatch.setattr(Path, "unlink", step("unlink", Path.unlink))
    return steps


@pytest.mark.parametrize("keep_days", [1_000, 200])
def test_a_crash_at_any_step_of_a_merge_loses_no_turn_and_counts_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_days: int
) -> None:
    """A second merge ends what the first one began."""
    kept_from_ms = NOW_MS - keep_days * DAY_MS
    at, is_whole = 0, False
    while not is_whole:
        at += 1 if at < 12 else 7
        storage = tmp_path / str(at)
        rows = months(storage, turns=120, seed=at)
        kept = {ledger.identity(one) for one in rows if one.released_at_ms // DAY_MS >= kept_from_ms // DAY_MS}
        monkeypatch.setattr(ledger_days, "FILES_MIN", 1)
        with monkeypatch.context() as patch:
            steps = crashing(patch, at)
            try:
                merge(storage, keep_days=keep_days)
                is_whole = True
            except Crash:
                pass
        for _ in range(2):
            found = [ledger.identity(one) for one in read_ledger(storage)]
            assert len(set(found)) == len(found)
            assert kept <= set(found), steps
            assert same(read_summary(storage).totals, rows), (at, steps)
            assert read_summary(storage).rows == last_rows(rows)
            merge(storage, keep_days=keep_days)
        assert {ledger.identity(one) for one in read_ledger(storage)} == kept


def test_readers_see_each_turn_once_while_others_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lists and in sums; two merges at one time are one."""
    rows = months(tmp_path, turns=300)
    before = read_ledger(tmp_path)
    monkeypatch.setattr(ledger_days, "FILES_MIN", 1)
    monkeypatch.setattr(ledger_days, "FILES_MAX", 3)
    is_over = threading.Event()

    def merges() -> None:
        while not is_over.is_set():
            merge(tmp_path)

    threads = [threading.Thread(target=merges) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        looks = 0
        while len(ledger.run_files(tmp_path)) > 20 or looks < 3:
            looks += 1
            assert read_ledger(tmp_path) == before
            assert list(newest_first(tmp_path)) == before[::-1]
            assert same(read_summary(tmp_path).totals, rows)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_sums_are_read_again_if_files_were_merged_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the merged turns would be missing: the summary was read before, and the files of their runs are gone."""
    rows = months(tmp_path)
    real = ledger_days._stored

    def then_merges(*args: Any) -> Any:
        found = real(*args)
        monkeypatch.setattr(ledger_days, "_stored", real)
        merge(tmp_path)
        return found

    monkeypatch.setattr(ledger_days, "_stored", then_merges)
    (tmp_path / "ledger/L/days").mkdir()
    assert same(read_summary(tmp_path).totals, rows)
    assert list(tmp_path.rglob("summary.json"))


def test_short_reads_of_a_long_ledger_open_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last five turns, the metrics and the start of a run."""
    months(tmp_path, turns=2_000)
    merge(tmp_path)
    opened: list[str] = []
    real = io.open

    def noted(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(io, "open", noted)
    monkeypatch.setattr(builtins, "open", noted)
    assert len(list(islice(newest_first(tmp_path, "L"), 5))) == 5
    assert 0 < len(opened) < 15
    del opened[:]
    read_summary(tmp_path)
    assert 0 < len(opened) < 20


def test_a_run_of_months_writes_files_that_can_be_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is full is followed by another one; a new process of the same run goes on in the last one."""
    monkeypatch.setattr(ledger, "FILE_BYTES_MAX", 2_000)
    for numbers in (range(1, 12), range(12, 30)):
        sink = LedgerSink(tmp_path)
        for number in numbers:
            sink.emit(row(number))
    sizes = [path.stat().st_size for path in ledger.run_files(tmp_path)]
    assert len(sizes) > 4
    assert max(sizes) < 3_000
    assert [one.epoch for one in read_ledger(tmp_path)] == list(range(1, 30))


def test_a_damaged_file_of_a_run_stays_and_a_damaged_summary_is_made_again(tmp_path: Path) -> None:
    """The damaged line is named at each read, as before; sums and rows come from the days."""
    rows = months(tmp_path)
    damaged = next(path for path in ledger.run_files(tmp_path) if path.name.startswith("AL"))
    lost = [ledger.identity(one) for one in ledger.rows_in(damaged, ledger.from_line)]
    whole = [one for one in rows if ledger.identity(one) not in lost]
    damaged.write_bytes(b"x\n")
    os.utime(damaged, (1_000, 1_000))
    merge(tmp_path)
    with pytest.raises(Corrupt):
        read_ledger(tmp_path)
    for text in ("", "{}", '{"format":1}', '{"format":2}'):
        for path in tmp_path.rglob("summary.json"):
            path.write_text(text)
        named: list[Corrupt] = []
        summary = read_summary(tmp_path, on_damage=named.append)
        assert [one.facts["path"] for one in named] == [damaged]
        assert same(summary.totals, whole)
        assert summary.rows == last_rows(whole)
