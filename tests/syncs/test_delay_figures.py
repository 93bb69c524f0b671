"""The figures of a sync's delay: percentiles of a window, in bounded memory, as text that another process reads."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lakegate.syncs.plan.delay import BUCKET_MAX, MINUTE_MS, WINDOW_MS, Delays

NOW_MS = 1_800_000_000_000


def counted(*delays_ms: int, at_ms: int = NOW_MS) -> Delays:
    """Each delay once, all committed by the target at one time."""
    delays = Delays()
    for one in delays_ms:
        delays.add({at_ms - one: 1}, at_ms)
    return delays


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=300))
def test_percentiles_are_within_a_tenth(delays_ms: list[int]) -> None:
    """Of the delay that the same share of changes does not exceed."""
    found = counted(*delays_ms).figures(NOW_MS, 0)
    placed = sorted(delays_ms)
    for share, value in ((50, found.p50_ms), (99, found.p99_ms)):
        exact = placed[-(-share * len(placed) // 100) - 1]
        assert value is not None
        assert exact - 1 <= value <= exact * 1.1 + 1
    assert found.changes == len(delays_ms)


def test_a_batch_counts_each_of_its_changes() -> None:
    """99 changes of a second and one of an hour: the median is a second, and so is the 99th percentile."""
    delays = Delays()
    delays.add({NOW_MS - 1000: 99, NOW_MS - 3_600_000: 1}, NOW_MS)
    found = delays.figures(NOW_MS, None)
    assert found.changes == 100
    assert found.p50_ms == found.p99_ms is not None
    assert 1000 <= found.p99_ms <= 1100
    assert found.now_ms is None


def test_only_the_window_counts_and_nothing_of_it_is_no_delay() -> None:
    """After a quarter of an hour without changes the percentiles are unknown, not 0."""
    delays = counted(5_000)
    assert delays.figures(NOW_MS + WINDOW_MS - MINUTE_MS, 0).changes == 1
    late = delays.figures(NOW_MS + WINDOW_MS, 0)
    assert (late.changes, late.p50_ms, late.p99_ms) == (0, None, None)


def test_a_clock_that_is_ahead_gives_no_negative_delay() -> None:
    """The source's clock is an hour ahead."""
    found = counted(-3_600_000).figures(NOW_MS, 0)
    assert (found.p50_ms, found.changes) == (0, 1)


def test_memory_is_bounded() -> None:
    """A day of changes with any delays keeps 15 minutes, each of a bounded number of buckets."""
    delays, chance = Delays(), random.Random(1)
    for minute in range(24 * 60):
        at_ms = NOW_MS + minute * MINUTE_MS
        delays.add({at_ms - int(10 ** chance.uniform(0, 15)): 1 for _ in range(50)}, at_ms)
    assert len(delays.minutes) == 15
    assert max(bucket for counts in delays.minutes.values() for bucket in counts) <= BUCKET_MAX


def test_another_process_reads_the_same() -> None:
    """And adds to it; damaged text counts as none."""
    delays = counted(10, 200, 3_000)
    again = Delays.read(delays.written())
    assert again == delays
    again.add({NOW_MS: 1}, NOW_MS)
    assert again.figures(NOW_MS, 0).changes == 4
    for text in (None, "", "{", "[]", '{"minutes": {"x": {}}}', '{"minutes": 3}', "{}"):
        assert Delays.read(text) == Delays()
