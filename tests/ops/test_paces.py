"""The replay of the jobs' paces: what rules come to over days, on the article's own example and with priorities."""

from __future__ import annotations

import pytest

from lakegate.ops.order_simulation import Paced, Replayed, replay
from lakegate.turns.protocol.ordering import After, NoRule, OrderRule, Strict

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def article(mutation: OrderRule, ttl: OrderRule) -> list[Paced]:
    """Ingestion and Mutation every hour, TTL every day; turns of 10, 15 and 30 minutes."""
    return [
        Paced(job="Ingestion", every_ms=HOUR_MS, takes_ms=10 * MINUTE_MS, rule=NoRule()),
        Paced(job="Mutation", every_ms=HOUR_MS, takes_ms=15 * MINUTE_MS, rule=mutation),
        Paced(job="TTL", every_ms=24 * HOUR_MS, takes_ms=30 * MINUTE_MS, rule=ttl),
    ]


STRICT = article(Strict(("Ingestion",)), Strict(("Mutation",)))
AFTER = article(After(("Ingestion",)), After(("Mutation",)))


def gap_h(found: list[Replayed], job: str) -> float:
    return next(one.longest_gap_ms for one in found if one.job == job) / HOUR_MS


def test_a_coordinator_without_a_queue_starves_the_articles_ttl_under_strict() -> None:
    """Its daily turn comes after 76 hours, and it has looked for it in vain 5,225 times in 30 days."""
    found = replay(STRICT, days=30, lock_timeout_ms=2 * MINUTE_MS, polls=True)
    assert [(one.turns, one.wasted) for one in found] == [(717, 2994), (717, 571), (28, 5225)]
    assert gap_h(found, "TTL") == pytest.approx(76, abs=0.5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("polls", [False, True])
def test_under_after_the_daily_turn_comes_every_day(seed: int, polls: bool) -> None:
    """Whatever chance brings: 24 hours, and what the turn itself takes."""
    found = replay(AFTER, days=30, lock_timeout_ms=2 * MINUTE_MS, seed=seed, polls=polls)
    assert gap_h(found, "TTL") < 24.6
    assert [one.turns for one in found][2] == 30


def test_a_queue_alone_keeps_the_daily_turn_daily() -> None:
    """A ticket that stays in the queue meets the door when it opens."""
    assert gap_h(replay(STRICT, days=30, lock_timeout_ms=2 * MINUTE_MS), "TTL") < 25


def test_a_third_job_that_comes_often_starves_a_strict_one() -> None:
    """Each of its turns closes the door again: what lint warns of. Under `after` it is served."""
    often = Paced(job="Often", every_ms=None, takes_ms=MINUTE_MS, rule=NoRule())
    first = Paced(job="First", every_ms=24 * HOUR_MS, takes_ms=MINUTE_MS, rule=NoRule())

    def then(rule: OrderRule) -> Replayed:
        jobs = [often, first, Paced(job="Then", every_ms=HOUR_MS, takes_ms=MINUTE_MS, rule=rule)]
        return replay(jobs, days=3, lock_timeout_ms=10 * MINUTE_MS)[2]

    assert then(Strict(("First",))).turns <= 4
    assert then(After(("First",))).turns > 60


def test_a_priority_shortens_the_wait_and_aging_keeps_the_others_served() -> None:
    """Two jobs that fill the lock, and one that is urgent."""

    def busy(name: str, priority: int = 0, aging_ms: int | None = 5 * MINUTE_MS) -> Paced:
        return Paced(
            job=name, every_ms=None, takes_ms=5 * MINUTE_MS, rule=NoRule(), priority=priority, aging_ms=aging_ms
        )

    def waits(*jobs: Paced) -> list[Replayed]:
        return replay(jobs, days=1, lock_timeout_ms=24 * HOUR_MS)

    fair = waits(busy("A"), busy("B"), busy("C"))
    urgent = waits(busy("A", 2), busy("B"), busy("C"))
    starved = waits(busy("A", 2, None), busy("B", 1, None), busy("C", 0, None))
    assert (urgent[0].mean_wait_ms or 0) < 0.8 * (fair[0].mean_wait_ms or 0)
    assert urgent[2].longest_gap_ms < 30 * MINUTE_MS
    assert starved[2].turns == 0


def test_the_same_seed_gives_the_same_replay() -> None:
    """And another one another."""
    first, again, other = (replay(AFTER, days=3, lock_timeout_ms=MINUTE_MS, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
