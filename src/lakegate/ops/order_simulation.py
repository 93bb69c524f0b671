"""`lakegate order simulate`: the effect of the order rules at the jobs' paces, replayed over days with the real transitions.

A turn takes its job's usual time, plus or minus 30 %; after a turn a job is idle until its pace is due again. Randomness
comes from a seed, so a replay can be repeated.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakegate.ids import Epoch, JobName, Nonce, SessionId
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Ticket
from lakegate.turns.protocol.ordering import AGING_MS, OrderRule, waits_for
from lakegate.turns.protocol.transitions import Sessions

DAY_MS = 86_400_000
DAYS_MAX = 366
SPREAD = 0.3
FIRST_WITHIN_MS = 60_000
"""Jobs begin within a minute of one another."""
POLLS_EVERY_MS = 60_000
"""The interval at which a polling job looks again."""
ASKS_AGAIN_MS = 1_000
"""The delay before a job that gave up asks again: its query is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """The pace of a job, the length of its turns, and its order rule."""

    job: str
    every_ms: int | None
    """None: again as soon as its turn is over."""
    takes_ms: int
    rule: OrderRule
    absent_after_ms: int | None = None
    priority: int = 0
    aging_ms: int | None = AGING_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of one job."""

    job: str
    turns: int
    wasted: int
    """Number of times that the job asked, waited and gave up."""
    longest_gap_ms: int
    """Between two completed turns, or to the begin or end of the replay."""
    mean_wait_ms: int | None
    """From the time when its pace was due to its turn; None if it never had a turn."""


def replay(
    jobs: Sequence[Paced], *, days: int, lock_timeout_ms: int, seed: int = 1, polls: bool = False
) -> list[Replayed]:
    """Returns the jobs' turns over these days, in the given order.

    Args:
        jobs: All jobs of one lock.
        days: Number of days, from an empty history.
        lock_timeout_ms: How long a job waits before it gives up and asks again.
        seed: The seed of the random lengths of turns.
        polls: The polling coordinator of the article: take the lock, read who was last, give it back, and try again later. A job
            has no place in a queue then.
    """
    run = _Run(jobs, seed=seed, lock_timeout_ms=lock_timeout_ms, polls=polls)
    end_ms = days * DAY_MS
    run.until(end_ms)
    found = []
    for one in jobs:
        done, waits = run.done[one.job], run.waits[one.job]
        gaps = (after - before for before, after in zip([0, *done], [*done, end_ms], strict=True))
        found.append(
            Replayed(
                job=one.job,
                turns=len(done),
                wasted=run.wasted[one.job],
                longest_gap_ms=round(max(gaps)),
                mean_wait_ms=round(sum(waits) / len(waits)) if waits else None,
            )
        )
    return found


@dataclass
class _Run:
    """The lock, and the events that are due."""

    jobs: Sequence[Paced]
    seed: int
    lock_timeout_ms: int
    polls: bool
    done: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wasted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._of = {one.job: one for one in self.jobs}
        names = frozenset(JobName(one.job) for one in self.jobs)
        self._live = Sessions(ids=frozenset(SessionId(name) for name in names), jobs=names)
        self._record = LockRecord(lock="L", epoch=Epoch(0))
        for one in self.jobs:  # registered without a turn: otherwise `after` would wait for a job that has not begun
            self._record = transitions.go_idle(
                self._record, JobName(one.job), {}, one.rule, one.absent_after_ms, now_ms=0
            )
        self._due: list[tuple[float, int, str, str, int]] = []
        self._n = 0
        self._wanted_ms: dict[str, float] = {}
        for one in self.jobs:
            self._push(self._chance.random() * FIRST_WITHIN_MS, "wants", one.job)

    def _push(self, at_ms: float, what: str, job: str, n: int = 0) -> None:
        self._n += 1
        heapq.heappush(self._due, (at_ms, self._n, what, job, n))

    def until(self, end_ms: float) -> None:
        while self._due and self._due[0][0] <= end_ms:
            at_ms, _, what, job, n = heapq.heappop(self._due)
            match what:
                case "wants":
                    self._wanted_ms[job] = at_ms
                    self._push(at_ms, "asks", job)
                case "asks":
                    self._ask(at_ms, job)
                case "gives up" if n == len(self.waits[job]) and self._record.ticket(Nonce(job)) is not None:
                    self._give_up(at_ms, job)
                case "ends":
                    self._end(at_ms, job)

    def _ask(self, at_ms: float, job: str) -> None:
        one = self._of[job]
        ticket = Ticket(
            job=JobName(job),
            session=SessionId(job),
            nonce=Nonce(job),
            asked_at_ms=round(at_ms),
            priority=one.priority,
            aging_ms=one.aging_ms,
        )
        self._record = transitions.ask(self._record, ticket, one.rule, one.absent_after_ms)
        self._grant(at_ms)
        if self._record.ticket(Nonce(job)) is not None:
            self._push(at_ms + self.lock_timeout_ms, "gives up", job, len(self.waits[job]))

    def _give_up(self, at_ms: float, job: str) -> None:
        self._record = transitions.give_up(self._record, Nonce(job))
        self.wasted[job] += 1
        self._push(at_ms + (POLLS_EVERY_MS if self.polls else ASKS_AGAIN_MS), "asks", job)

    def _grant(self, at_ms: float) -> None:
        """Starts the turn of a job that may go. A polling job that may not go has to come back."""
        while self._record.holder is None and self._record.tickets:
            if self.polls:
                first = self._record.tickets[0].job
                rule, absent_after_ms = self._record.rule(first)
                views = self._record.views(self._live.jobs)
                if waits_for(rule, first, views, now_ms=round(at_ms), absent_after_ms=absent_after_ms) is not None:
                    self._give_up(at_ms, first)
                    continue
                return self._begin(at_ms, first)
            for ticket in self._record.tickets:
                if transitions.reason_to_wait(self._record, ticket.nonce, self._live, round(at_ms)) is None:
                    return self._begin(at_ms, ticket.job)
            return None
        return None

    def _begin(self, at_ms: float, job: str) -> None:
        self._record = transitions.grant(self._record, _holder(job, round(at_ms)))
        self.waits[job].append(at_ms - self._wanted_ms[job])
        lasts_ms = self._chance.uniform(1 - SPREAD, 1 + SPREAD) * self._of[job].takes_ms
        self._push(at_ms + lasts_ms, "ends", job)

    def _end(self, at_ms: float, job: str) -> None:
        one = self._of[job]
        self._record = transitions.complete(self._record, now_ms=round(at_ms))
        self._record = transitions.go_idle(
            self._record, JobName(job), {}, one.rule, one.absent_after_ms, now_ms=round(at_ms)
        )
        self.done[job].append(at_ms)
        self._push(at_ms if not one.every_ms else (at_ms // one.every_ms + 1) * one.every_ms, "wants", job)
        self._grant(at_ms)


def _holder(job: str, since_ms: int) -> Holder:
    return Holder(
        nonce=Nonce(job),
        session=SessionId(job),
        job=JobName(job),
        run=job,
        host="",
        boot_id="",
        pid=0,
        pid_start=0,
        jvm_pid=None,
        jvm_start=None,
        token_ids=(),
        batch=None,
        tables=(),
        since_ms=since_ms,
    )
