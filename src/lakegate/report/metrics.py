"""The metrics and their current values, from the lock records, the ledger and the requests on disk.

`METRICS` is the only table of names: the exposition, the reference page, and the check of the shipped alert rules and
dashboard are generated from it. Times are seconds, as usual in Prometheus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from lakegate.ops.status import JobStatus, LockStatus
from lakegate.ops.stored_requests import AGES, StateCount
from lakegate.syncs.plan.delay import SyncDelay
from lakegate.telemetry.events import PersonActed
from lakegate.telemetry.turn_totals import BUCKETS_S, Spans, Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric: its name without Prometheus' suffixes, its type, its labels, and its help text."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        suffixes = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        return tuple(self.name + suffix for suffix in suffixes[self.kind])


_LOCK, _JOB = ("lock",), ("lock", "job")

INFO = Metric(name="lakegate_info", kind="gauge", labels=("pipeline", "version"), help="1; names pipeline and version.")
EPOCH = Metric(name="lakegate_lock_epoch", kind="gauge", labels=_LOCK, help="Number of the last granted turn.")
HELD = Metric(
    name="lakegate_lock_held_seconds", kind="gauge", labels=_JOB, help="How long the current turn has been held."
)
HOLDER_ALIVE = Metric(
    name="lakegate_lock_holder_alive", kind="gauge", labels=_JOB, help="0 if the holder's process is gone, else 1."
)
WAITING = Metric(name="lakegate_lock_waiting", kind="gauge", labels=_LOCK, help="Jobs that wait for their turn.")
IN_DOUBT = Metric(
    name="lakegate_lock_in_doubt", kind="gauge", labels=_LOCK, help="Ids of unclean turns that are not fenced yet."
)
RUNNING = Metric(name="lakegate_job_running", kind="gauge", labels=_JOB, help="1 if a run of the job is alive.")
PAUSED = Metric(name="lakegate_job_paused", kind="gauge", labels=_JOB, help="1 if a person has paused the job.")
IDLE = Metric(name="lakegate_job_idle", kind="gauge", labels=_JOB, help="1 if the job has nothing left to do.")
LOST = Metric(
    name="lakegate_job_lost",
    kind="gauge",
    labels=_JOB,
    help="1 if its last turn ended unclean and it has not run since.",
)
ASKED = Metric(name="lakegate_job_waiting_seconds", kind="gauge", labels=_JOB, help="How long it has waited; 0 if not.")
EVERY = Metric(
    name="lakegate_job_every_seconds",
    kind="gauge",
    labels=_JOB,
    help="The pace of the job; none for a job without pace.",
)
OVERDUE = Metric(
    name="lakegate_job_overdue_seconds",
    kind="gauge",
    labels=_JOB,
    help="Time since its last turn, minus its pace.",
)
LATE = Metric(name="lakegate_job_late", kind="gauge", labels=_JOB, help="1 if it has missed a whole turn.")
COMPLETED = Metric(
    name="lakegate_job_last_completed_timestamp_seconds",
    kind="gauge",
    labels=_JOB,
    help="Time at which its last turn was completed.",
)
TURNS = Metric(name="lakegate_turns", kind="counter", labels=(*_JOB, "outcome"), help="Turns that ended, by outcome.")
BATCHES = Metric(name="lakegate_batches", kind="counter", labels=_JOB, help="Micro-batches of these turns.")
COMMITS = Metric(name="lakegate_commits", kind="counter", labels=_JOB, help="Versions that these turns committed.")
UNMET = Metric(
    name="lakegate_unmet_expectations",
    kind="counter",
    labels=(*_JOB, "expectation"),
    help="Records of these turns that do not meet an expectation, and that were dropped or set aside.",
)
TURN_HELD = Metric(name="lakegate_turn_held_seconds", kind="histogram", labels=_JOB, help="How long turns were held.")
TURN_WAITED = Metric(
    name="lakegate_turn_waited_seconds", kind="histogram", labels=_JOB, help="How long jobs waited for granted turns."
)
ACTIONS = Metric(
    name="lakegate_actions", kind="counter", labels=("lock", "action"), help="Actions of persons: pause, resume, break."
)
KEPT = Metric(
    name="lakegate_requests_kept",
    kind="gauge",
    labels=("job", "state", "age"),
    help="Stored requests that wait or are dead, by age: under this bound, and not under the previous one.",
)
OLDEST = Metric(
    name="lakegate_requests_oldest_timestamp_seconds",
    kind="gauge",
    labels=("job", "state"),
    help="When the oldest of them was first seen.",
)
DELAY = Metric(
    name="lakegate_sync_delay_seconds",
    kind="gauge",
    labels=("sync", "quantile"),
    help="From the commit at the source to the commit in the target: quantiles of the last 15 minutes; none if nothing came.",
)
DELAY_NOW = Metric(
    name="lakegate_sync_delay_now_seconds",
    kind="gauge",
    labels=("sync",),
    help="Age of the oldest change that the source has and the target does not; 0 if there is none; none if it is unknown.",
)
METRICS: Final = (
    *(INFO, EPOCH, HELD, HOLDER_ALIVE, WAITING, IN_DOUBT),
    *(RUNNING, PAUSED, IDLE, LOST, ASKED, EVERY, OVERDUE, LATE, COMPLETED),
    *(TURNS, BATCHES, COMMITS, UNMET, TURN_HELD, TURN_WAITED, ACTIONS, KEPT, OLDEST),
    *(DELAY, DELAY_NOW),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsInput:
    """The input of the metrics."""

    pipeline: str
    version: str
    now_ms: int
    locks: Sequence[LockStatus]
    turns: Totals
    actions: Sequence[PersonActed]
    kept: Sequence[tuple[str, Sequence[StateCount]]]
    """Job → contents of its request table."""
    delays: Sequence[tuple[str, SyncDelay]] = ()
    """Sync → its delay."""


def families(facts: MetricsInput) -> Iterator[Family]:
    """Yields every metric with its samples, in the order of `METRICS`."""
    yield _gauge(INFO, [((facts.pipeline, facts.version), 1)])
    yield from _of_locks(facts)
    yield from _of_jobs(facts)
    yield from _of_turns(facts.turns)
    done = Counter((act.lock, act.action) for act in facts.actions if act.outcome == "done")
    yield counter(ACTIONS, sorted(done.items()))
    yield _gauge(
        KEPT,
        [
            ((job, one.state, age), one.ages[age])
            for job, rows in facts.kept
            for one in rows
            for age in (*(name for name, _ in AGES), "older")
        ],
    )
    yield _gauge(OLDEST, [((job, one.state), one.oldest_ms / 1000) for job, rows in facts.kept for one in rows])
    quantiles = [
        ((sync, name), at) for sync, one in facts.delays for name, at in (("0.5", one.p50_ms), ("0.99", one.p99_ms))
    ]
    yield _gauge(DELAY, [(labels, at / 1000) for labels, at in quantiles if at is not None])
    yield _gauge(DELAY_NOW, [((sync,), one.now_ms / 1000) for sync, one in facts.delays if one.now_ms is not None])


def _of_locks(facts: MetricsInput) -> Iterator[Family]:
    locks = facts.locks
    held = [(lock.lock, lock.holder) for lock in locks if lock.holder is not None]
    yield _gauge(EPOCH, [((lock.lock,), lock.epoch) for lock in locks])
    yield _gauge(HELD, [((lock, one.job), max(0, facts.now_ms - one.since_ms) / 1000) for lock, one in held])
    yield _gauge(HOLDER_ALIVE, [((lock, one.job), one.is_alive) for lock, one in held])
    yield _gauge(WAITING, [((lock.lock,), len(lock.queue)) for lock in locks])
    yield _gauge(IN_DOUBT, [((lock.lock,), len(lock.in_doubt)) for lock in locks])


def _of_jobs(facts: MetricsInput) -> Iterator[Family]:
    jobs = [(lock, job) for lock in facts.locks for job in lock.jobs]

    def each(metric: Metric, values: Iterable[tuple[JobStatus, LockStatus, float | None]]) -> Family:
        return _gauge(metric, [((lock.lock, job.job), value) for job, lock, value in values if value is not None])

    yield each(RUNNING, ((job, lock, job.is_alive) for lock, job in jobs))
    yield each(PAUSED, ((job, lock, job.paused is not None) for lock, job in jobs))
    yield each(IDLE, ((job, lock, job.idle_since_ms is not None) for lock, job in jobs))
    yield each(LOST, ((job, lock, job.lost is not None) for lock, job in jobs))
    yield each(ASKED, ((job, lock, _waited_s(lock, job, facts.now_ms)) for lock, job in jobs))
    yield each(EVERY, ((job, lock, _seconds(job.every_ms)) for lock, job in jobs))
    yield each(OVERDUE, ((job, lock, job.overdue_ms / 1000) for lock, job in jobs))
    yield each(LATE, ((job, lock, job.is_late) for lock, job in jobs))
    yield each(COMPLETED, ((job, lock, _seconds(job.completed_at_ms)) for lock, job in jobs))


def _of_turns(turns: Totals) -> Iterator[Family]:
    outcomes = [((*job, name), count) for job, sums in turns.items() for name, count in sums.outcomes.items()]
    yield counter(TURNS, sorted(outcomes))
    yield counter(BATCHES, sorted((job, sums.batches) for job, sums in turns.items()))
    yield counter(COMMITS, sorted((job, sums.commits) for job, sums in turns.items()))
    unmet = [((*job, name), count) for job, sums in turns.items() for name, count in sums.unmet.items()]
    yield counter(UNMET, sorted(unmet))
    yield _histogram(TURN_HELD, {job: sums.held for job, sums in turns.items()})
    yield _histogram(TURN_WAITED, {job: sums.waited for job, sums in turns.items()})


def _waited_s(lock: LockStatus, job: JobStatus, now_ms: int) -> float:
    asked_ms = next((one.asked_at_ms for one in lock.queue if one.job == job.job), None)
    return 0.0 if asked_ms is None else max(0, now_ms - asked_ms) / 1000


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _gauge(metric: Metric, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def counter(metric: Metric, samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    """Returns a counter with a sample for each set of labels."""
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family


def _histogram(metric: Metric, spans: Mapping[tuple[str, ...], Spans]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, one in sorted(spans.items()):
        counts = list(accumulate(map(float, one.counts)))
        if counts[-1]:
            family.add_metric(labels, list(zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True)), one.sum_s)
    return family
