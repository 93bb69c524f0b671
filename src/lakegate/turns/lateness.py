"""Finds streams that are late, from the records of their locks."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lakegate.ids import JobName
from lakegate.telemetry.events import StreamLate
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.lock_record import LockRecord

if TYPE_CHECKING:
    from lakegate.config import Pipeline


def overdue_ms(record: LockRecord, job: str, every_ms: int | None, now_ms: int) -> int:
    """Returns the time since the job's last completed turn, or its first request, minus its pace; 0 for an idle job."""
    state = record.job(JobName(job))
    asked_ms = next((ticket.asked_at_ms for ticket in record.tickets if ticket.job == job), None)
    since_ms = asked_ms if state.completed_at_ms is None else state.completed_at_ms
    if every_ms is None or since_ms is None or state.idle_since_ms is not None:
        return 0
    return max(0, now_ms - since_ms - every_ms)


def is_late(record: LockRecord, job: str, every_ms: int | None, now_ms: int) -> bool:
    """Returns True if a job has missed a whole turn; a paused job has not."""
    is_paused = JobName(job) in record.paused
    return every_ms is not None and not is_paused and overdue_ms(record, job, every_ms, now_ms) > every_ms


class LateStreams:
    """The late streams of a pipeline, as one of the processes that run it reports them.

    Of several processes, the one that runs the first live job of a lock by name reports the lock's streams.
    """

    def __init__(self, pipeline: Pipeline, names: Collection[str]) -> None:
        """Takes the pipeline, and the streams that this process, or its children, run."""
        self._pipeline, self._names = pipeline, names
        self._late: set[str] = set()

    def look(self, store: TurnStore, now_ms: int) -> list[StreamLate]:
        """Returns the streams whose lateness has changed since the last look, if this process reports them."""
        changes = []
        for lock in dict.fromkeys(self._pipeline.lock_of(stream) for stream in self._pipeline.streams):
            record, live = store.read(lock).record, store.live_sessions(lock)
            if record is None:
                continue
            streams = self._pipeline.streams_of_lock(lock)
            is_mine = min((stream.name for stream in streams if stream.name in live.jobs), default=None) in self._names
            for stream in streams:
                is_so = is_late(record, stream.name, stream.every_ms, now_ms)
                if is_so == (stream.name in self._late):
                    continue
                self._late ^= {stream.name}
                if is_mine:
                    late_ms, every_ms = overdue_ms(record, stream.name, stream.every_ms, now_ms), stream.every_ms or 0
                    changes.append(
                        StreamLate(lock=lock, job=stream.name, is_late=is_so, overdue_ms=late_ms, every_ms=every_ms)
                    )
        return changes
