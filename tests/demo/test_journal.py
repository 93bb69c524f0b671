"""Results of the jobs without turns: writes, overlaps, conflicts."""

from __future__ import annotations

from lakegate.demo.journal import Line, batches, conflicts, overlaps, writes
from lakegate.report.data import CommitRow, Ended


def line(at_ms: int, job: str, what: str, batch: int | None = 0, error: str | None = None) -> Line:
    is_conflict = error is not None and error.startswith("Concurrent")
    return Line(job=job, what=what, batch=batch, at_ms=at_ms, error=error, is_conflict=is_conflict)


LINES = [
    line(10, "Ingestion", "began"),
    line(20, "Ingestion", "ended"),
    line(15, "TTL", "began"),
    line(40, "TTL", "failed", error="ConcurrentDeleteReadException"),
    line(20, "Mutation", "began"),
    line(35, "Mutation", "ended"),
    line(41, "TTL", "restarted", None),
    line(50, "TTL", "began"),
    line(60, "TTL", "ended"),
    line(60, "Ingestion", "began", 1),
    line(70, "Ingestion", "killed", None),
    line(80, "Ingestion", "began", 1),
    line(90, "Ingestion", "failed", 1, error="OutOfMemoryError"),
]


def commit(version: int, at_ms: int, job: str) -> CommitRow:
    return CommitRow(table="t", version=version, timestamp_ms=at_ms, job=job, operation="WRITE")


def test_a_write_lasts_from_its_beginning_to_its_end_however_it_ended() -> None:
    """Written, failed, killed; one left open lasts to the last line."""
    found = writes(LINES, ())
    assert [(one.job, one.from_ms, one.until_ms, one.ended) for one in found] == [
        ("Ingestion", 10, 20, Ended.WRITTEN),
        ("TTL", 15, 40, Ended.CONFLICT),
        ("Mutation", 20, 35, Ended.WRITTEN),
        ("TTL", 50, 60, Ended.WRITTEN),
        ("Ingestion", 60, 70, Ended.KILLED),
        ("Ingestion", 80, 90, Ended.FAILED),
    ]
    left_open = writes([*LINES, line(95, "TTL", "began", 1), line(99, "Mutation", "restarted")], ())[-1]
    assert (left_open.until_ms, left_open.ended) == (99, Ended.FAILED)


def test_a_commit_is_that_of_the_write_of_its_job_that_went_on() -> None:
    """The killed write has committed; the one after it, which found its batch in the table, has not."""
    commits = [commit(1, 15, "Ingestion"), commit(2, 30, "Mutation"), commit(3, 69, "Ingestion")]
    found = {(one.job, one.from_ms): one.versions for one in writes(LINES, commits)}
    assert {write: versions for write, versions in found.items() if versions} == {
        ("Ingestion", 10): (1,),
        ("Mutation", 20): (2,),
        ("Ingestion", 60): (3,),
    }


def test_overlaps_are_pairs_of_two_jobs_that_wrote_at_once() -> None:
    """TTL overlapped Ingestion and Mutation; that one write begins as another ends is no overlap."""
    assert overlaps(writes(LINES, ())) == 2
    assert overlaps([]) == 0


def test_only_conflicts_count_as_conflicts_and_a_batch_counts_once() -> None:
    """Other errors are no conflicts; a batch that was written twice is one batch."""
    assert conflicts(LINES) == {"ConcurrentDeleteReadException": 1}
    assert batches(LINES) == 3
    assert batches([*LINES, line(95, "TTL", "ended")]) == 3
