"""The delay of a sync against its limits, from the batches that it applies."""

from __future__ import annotations

from lakegate.syncs.behind import BehindLimits
from lakegate.syncs.runner import AppliedBatch
from lakegate.telemetry.events import SyncBehind

MINUTE_MS = 60_000


def batch(*commits_ms: int) -> AppliedBatch:
    """Changes that the source committed then."""
    commits = dict.fromkeys(commits_ms, 1)
    return AppliedBatch(batch=1, changes=1, through=1, place=None, complete=None, committed_at_ms=0, commits=commits)


def shown(events: list[SyncBehind]) -> list[tuple[int, bool]]:
    return [(event.limit_ms // MINUTE_MS, event.is_behind) for event in events]


def test_each_limit_is_reported_when_it_is_exceeded_and_when_it_no_longer_is() -> None:
    """A backlog of an hour is carried; then the target is away for a while."""
    limits = BehindLimits("crm", {5 * MINUTE_MS, 30 * MINUTE_MS}, 60 * MINUTE_MS)
    assert shown(limits.applied(batch(0, 1 * MINUTE_MS), 60 * MINUTE_MS)) == [(5, True), (30, True)]
    assert shown(limits.applied(batch(50 * MINUTE_MS), 61 * MINUTE_MS)) == [(30, False)]
    assert shown(limits.passed(62 * MINUTE_MS, is_level=False)) == []
    assert shown(limits.passed(63 * MINUTE_MS, is_level=True)) == [(5, False)]
    assert shown(limits.passed(68 * MINUTE_MS, is_level=False)) == []
    assert shown(limits.passed(69 * MINUTE_MS, is_level=False)) == [(5, True)]


def test_a_sync_that_is_started_again_has_not_recovered() -> None:
    """It knows nothing of its delay, and reports neither that it is level nor that it is behind."""
    limits = BehindLimits("crm", {5 * MINUTE_MS}, 0)
    assert shown(limits.passed(MINUTE_MS, is_level=False)) == []
    assert shown(limits.applied(batch(), 2 * MINUTE_MS)) == []
    assert shown(limits.passed(6 * MINUTE_MS, is_level=False)) == [(5, True)]
    assert shown(BehindLimits("crm", {5 * MINUTE_MS}, 0).passed(1, is_level=True)) == [(5, False)]
