"""Results of the jobs without turns: windows of writing, overlaps, conflicts."""

from __future__ import annotations

from lakegate.demo.journal import Line, Window, batches, conflicts, overlaps, windows


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


def test_a_window_is_from_the_beginning_of_a_write_to_its_end_however_it_ended() -> None:
    """Ended, failed and killed close a window; one left open lasts to the last line."""
    assert windows(LINES)[:3] == [
        Window(job="Ingestion", from_ms=10, until_ms=20),
        Window(job="TTL", from_ms=15, until_ms=40, error="ConcurrentDeleteReadException"),
        Window(job="Mutation", from_ms=20, until_ms=35),
    ]
    assert Window(job="Ingestion", from_ms=60, until_ms=70) in windows(LINES)
    assert windows([*LINES, line(95, "TTL", "began", 1), line(99, "Mutation", "restarted")])[-1].until_ms == 99


def test_overlaps_are_pairs_of_two_jobs_that_wrote_at_once() -> None:
    """TTL overlapped Ingestion and Mutation; that one write begins as another ends is no overlap."""
    assert overlaps(LINES) == 2
    assert overlaps([]) == 0


def test_only_conflicts_count_as_conflicts_and_a_batch_counts_once() -> None:
    """Other errors are no conflicts; a batch that was written twice is one batch."""
    assert conflicts(LINES) == {"ConcurrentDeleteReadException": 1}
    assert batches(LINES) == 3
    assert batches([*LINES, line(95, "TTL", "ended")]) == 3
