"""Late streams: each is reported once, by one of the processes that run the pipeline."""

from __future__ import annotations

from lakegate.config import parse
from lakegate.ids import Epoch, JobName
from lakegate.turns.lateness import LateStreams
from lakegate.turns.protocol.lock_record import JobState, LockRecord
from lakegate.turns.stores.memory import MemoryTurnStore

HOUR_MS = 3_600_000
STREAM = "{table: t, every: 1h, source: {files: ./x, format: parquet}, append: {}}"
PIPELINE = parse(
    f"name: p\ntables:\n  t: {{path: ./t, lock: L}}\nstreams:\n  Alpha: {STREAM}\n  Beta: {STREAM}\n",
    origin="lakegate.yml",
    base_dir="/base",
    environ={},
)


def completed(store: MemoryTurnStore, *, beta_ms: int, idle_ms: int | None = None) -> None:
    """Alpha is idle since ever, Beta has completed its last turn then."""
    jobs = {
        JobName("Alpha"): JobState(completed_at_ms=0, idle_since_ms=0),
        JobName("Beta"): JobState(completed_at_ms=beta_ms, idle_since_ms=idle_ms),
    }
    store.compare_and_set("L", LockRecord(lock="L", epoch=Epoch(2), jobs=jobs), store.read("L").version)


def test_a_late_stream_is_reported_when_it_becomes_late_and_when_it_no_longer_is() -> None:
    """Once each, by the process that runs the first live stream of the lock; another one takes over without a second report."""
    store = MemoryTurnStore()
    alpha, beta = (store.open_session("L", JobName(name)) for name in ("Alpha", "Beta"))
    first, second = LateStreams(PIPELINE, ["Alpha"]), LateStreams(PIPELINE, ["Beta"])
    assert first.look(store, HOUR_MS) == []  # no record yet
    completed(store, beta_ms=0)
    for now_ms in (HOUR_MS, 2 * HOUR_MS):
        assert [*first.look(store, now_ms), *second.look(store, now_ms)] == []
    (event,) = [*first.look(store, 3 * HOUR_MS), *second.look(store, 3 * HOUR_MS)]
    assert (event.job, event.is_late, event.overdue_ms, event.every_ms) == ("Beta", True, 2 * HOUR_MS, HOUR_MS)
    alpha.close()
    assert [*first.look(store, 4 * HOUR_MS), *second.look(store, 4 * HOUR_MS)] == []
    completed(store, beta_ms=4 * HOUR_MS)
    (event,) = [*first.look(store, 4 * HOUR_MS), *second.look(store, 4 * HOUR_MS)]
    assert (event.job, event.is_late) == ("Beta", False)
    beta.close()


def test_an_idle_stream_is_not_late_and_nobody_reports_for_processes_that_are_gone() -> None:
    """It has nothing left to do; and without a live stream of its own, a process is not the one that reports."""
    store, streams = MemoryTurnStore(), LateStreams(PIPELINE, ["Alpha", "Beta"])
    completed(store, beta_ms=0, idle_ms=1)
    session = store.open_session("L", JobName("Alpha"))
    assert streams.look(store, 9 * HOUR_MS) == []
    session.close()
    completed(store, beta_ms=0)
    assert streams.look(store, 9 * HOUR_MS) == []
