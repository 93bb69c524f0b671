"""`verify` finds what is broken, by planting it; and says nothing of a pipeline that is whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from lakegate.ops.verify import VerifiedTables, verify
from tests.ops.lake import Lake, healthy


def of(lake: Lake) -> VerifiedTables:
    return verify(lake.rows, lake.counted(), lake.logs())


def test_a_whole_pipeline_has_no_violation(tmp_path: Path) -> None:
    """Every turn, commit and batch is looked at, and nothing is found or left out."""
    found = of(healthy(tmp_path))
    assert (found.turns, found.commits, found.batches) == (3, 6, 4)
    assert (found.violations, found.unchecked) == ([], [])


def _lose_a_batch(lake: Lake) -> None:
    """The commit of batch 2 is one without its token."""
    file = lake.commit_file(3)
    file.write_text("\n".join(line for line in file.read_text().split("\n") if '"userMetadata"' not in line))


def _lose_the_last(lake: Lake) -> None:
    lake.spark_log(4)


def _double_a_batch(lake: Lake) -> None:
    lake.batch(3)


def _overlap(lake: Lake) -> None:
    row = lake.rows[1]
    assert row.released_up_ms is not None
    late = row.released_at_ms + 1000, row.released_up_ms + 1000
    lake.rows[1] = dataclasses.replace(row, released_at_ms=late[0], released_up_ms=late[1])


def _same_epoch(lake: Lake) -> None:
    lake.rows.append(dataclasses.replace(lake.rows[1], job="Other", run="r2", versions={}))


def _epochs_fall(lake: Lake) -> None:
    lake.rows[0] = dataclasses.replace(lake.rows[0], granted_up_ms=9_000_000, released_up_ms=9_000_001)


def _other_offsets(lake: Lake) -> None:
    (lake.checkpoint / "offsets" / "1").write_text('v1\n{}\n{"logOffset":77}')


def _gap(lake: Lake) -> None:
    lake.commit_file(4).unlink()


def _late_writer(lake: Lake) -> None:
    lake.batch(4, epoch=2)
    lake.spark_log(4)


def _two_locks(lake: Lake) -> None:
    """Versions 2 and 3 are another lock's."""
    for version in (2, 3):
        file = lake.commit_file(version)
        file.write_text(file.read_text().replace('\\"lock\\": \\"L\\"', '\\"lock\\": \\"M\\"'))


def _log_cut_off(lake: Lake) -> None:
    lake.rows[-1] = dataclasses.replace(lake.rows[-1], versions={str(lake.table): (5, 6)})


def _checkpoint_back(lake: Lake) -> None:
    for folder in ("offsets", "commits"):
        (lake.checkpoint / folder / "3").unlink()


def _strange_job(lake: Lake) -> None:
    lake.rows[-1] = dataclasses.replace(lake.rows[-1], job="Other")


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_lose_a_batch, "batch 2 missing, though batch 3 is there"),
        (_lose_the_last, "batch 4 in the checkpoint's commit log, and not in the table"),
        (_double_a_batch, "batch 3 is there 2 times, in versions 5 and 6"),
        (_overlap, "the turn of In (epoch 2) and the turn of In (epoch 3) overlap by 950 ms"),
        (_same_epoch, "epoch 2 was given to In and to Other"),
        (_epochs_fall, "epochs do not rise with time"),
        (_other_offsets, "batch 1 (version 2) was written from other offsets"),
        (_gap, "version 4 of the log missing, between 3 and 5"),
        (_late_writer, "in epoch 2, after version 5 of epoch 3"),
        (_two_locks, "written under the lock L after M"),
        (_log_cut_off, "wrote version 6, and the log ends before it"),
        (_checkpoint_back, "the table holds batch 3, and the checkpoint ends with 2: it went back"),
        (_strange_job, "written by In in epoch 3, which is a turn of Other"),
    ],
)
def test_what_is_planted_is_found_and_nothing_else(tmp_path: Path, plant: Callable[[Lake], None], said: str) -> None:
    """One spoiled file gives one violation that names it."""
    lake = healthy(tmp_path)
    plant(lake)
    found = of(lake).violations
    assert len(found) == 1, found
    assert said in str(found[0])


def test_cleaned_up_history_is_reported_and_not_taken_for_lost(tmp_path: Path) -> None:
    """A log cut at its beginning, and offsets that Spark removed, leave less to compare and no violation."""
    lake = healthy(tmp_path)
    for version in (0, 1):
        lake.commit_file(version).unlink()
    (lake.checkpoint / "offsets" / "1").unlink()
    found = of(lake)
    assert found.violations == []
    said = "\n".join(found.unchecked)
    assert "versions before 2 were cleaned away" in said
    assert "batch 0: the log no longer reaches back" in said
    assert "offsets of batch 1: Spark has cleaned them away" in said


def test_a_turn_cut_off_by_another_may_have_noticed_late(tmp_path: Path) -> None:
    """What a fenced holder notes of its end says nothing about who wrote: the table refused it."""
    lake = healthy(tmp_path)
    _overlap(lake)
    lake.rows[1] = dataclasses.replace(lake.rows[1], outcome="fenced")
    assert of(lake).violations == []


def _clock_set_back(lake: Lake) -> None:
    """By ten minutes, after the first turn; the clock that only runs goes on."""
    for place, row in enumerate(lake.rows[1:], 1):
        granted_ms, released_ms = (row.granted_at_ms or 0) - 600_000, row.released_at_ms - 600_000
        lake.rows[place] = dataclasses.replace(row, granted_at_ms=granted_ms, released_at_ms=released_ms)


def _another_machine(lake: Lake) -> None:
    """The second turn was on a machine that is ten minutes behind, and started later."""
    _clock_set_back(lake)
    lake.rows[1] = dataclasses.replace(lake.rows[1], boot_id="c", granted_up_ms=5, released_up_ms=6)


def _a_system_that_names_no_start(lake: Lake) -> None:
    """On neither machine."""
    _another_machine(lake)
    for place, row in enumerate(lake.rows):
        lake.rows[place] = dataclasses.replace(row, boot_id="")


def _rows_of_before(lake: Lake) -> None:
    """Written by a version that notes only the wall clock, which was set back."""
    _clock_set_back(lake)
    for place, row in enumerate(lake.rows):
        lake.rows[place] = dataclasses.replace(row, boot_id=None, granted_up_ms=None, released_up_ms=None)


@pytest.mark.parametrize(
    ("plant", "is_told"),
    [
        (_clock_set_back, True),
        (_another_machine, False),
        (_a_system_that_names_no_start, False),
        (_rows_of_before, False),
    ],
)
def test_clocks_that_differ_make_no_overlap(tmp_path: Path, plant: Callable[[Lake], None], is_told: bool) -> None:
    """Turns are compared by a clock that both had; where there is none it is said that they were not."""
    lake = healthy(tmp_path)
    plant(lake)
    found = of(lake)
    assert (found.turns, found.violations) == (3, [])
    assert [text for text in found.unchecked if "overlap by the times of two clocks" in text] == found.unchecked
    assert bool(found.unchecked) is not is_told


def test_a_batch_that_is_written_and_not_in_the_commit_log_yet_is_no_violation(tmp_path: Path) -> None:
    """A stream in the middle of a batch, or killed in it: the batch comes again and is known by its token."""
    lake = healthy(tmp_path)
    lake.turn(4)
    (lake.checkpoint / "commits" / "4").unlink()
    assert of(lake).violations == []


def test_a_new_checkpoint_begins_a_new_count(tmp_path: Path) -> None:
    """Batches of an earlier checkpoint are counted by themselves: the same number is another batch."""
    lake = healthy(tmp_path)
    for file in lake.log.glob("*.json"):
        file.write_text(file.read_text().replace("lakegate/q1", "lakegate/q0"))
    for file in [*lake.checkpoint.glob("*/*")]:
        file.unlink()
    lake.turn(0)
    assert of(lake).violations == []


def test_a_table_given_to_another_lock_for_good_is_no_violation(tmp_path: Path) -> None:
    """After a release and an adoption the new lock's turns follow the old one's."""
    lake = healthy(tmp_path)
    file = lake.commit_file(5)
    file.write_text(file.read_text().replace('\\"lock\\": \\"L\\"', '\\"lock\\": \\"M\\"'))
    assert of(lake).violations == []
