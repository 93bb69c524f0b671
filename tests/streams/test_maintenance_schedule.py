"""Due times to compact, rewrite and delete files: decided from commits and times alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakegate.ids import Version
from lakegate.streams.maintenance.schedule import Erased, Maintained, MaintenanceEvent, Purged, folded

DAY = 86_400_000
WEEK, MONTH = 7 * DAY, 30 * DAY


def event(
    version: int, at_ms: int = 0, *, step: str | None = None, changes: bool = False, removes: bool = False, **facts: Any
) -> MaintenanceEvent:
    return MaintenanceEvent(
        version=Version(version), at_ms=at_ms, step=step, facts=facts, changes_data=changes, removes_files=removes
    )


def test_optimize_is_due_after_data_have_changed_and_its_own_commit_does_not_count() -> None:
    """A commit that only moves rows, or holds no file, makes nothing due; an append does."""
    new = folded(Maintained(), [event(0), event(1, changes=True)])
    assert new.is_optimize_due()
    done = Maintained(at=Version(1), changed=Version(1), optimized=Version(1))
    after = folded(done, [event(1, changes=True), event(2, DAY, step="optimize", removes=True), event(3)])
    assert not after.is_optimize_due()
    assert (after.at, after.removed_ms) == (3, DAY)
    assert folded(after, [event(4, changes=True)]).is_optimize_due()


def test_vacuum_is_due_again_when_files_that_were_too_young_are_old_enough() -> None:
    """Without any other commit, once; a table from which nothing was taken away needs none."""
    state = Maintained(at=Version(5), changed=Version(3), removed_ms=DAY, vacuumed=Version(4), vacuumed_ms=2 * DAY)
    due = {day: state.is_vacuum_due(retention_ms=WEEK, now_ms=day * DAY) for day in (3, 8, 9)}
    assert due == {3: False, 8: False, 9: True}
    again = Maintained(at=Version(6), changed=Version(3), removed_ms=DAY, vacuumed=Version(5), vacuumed_ms=9 * DAY)
    assert not again.is_vacuum_due(retention_ms=WEEK, now_ms=99 * DAY)
    never = Maintained(at=Version(4), changed=Version(3), vacuumed=Version(4), vacuumed_ms=DAY)
    assert not never.is_vacuum_due(retention_ms=WEEK, now_ms=99 * DAY)


def test_what_a_commit_carries_is_read_back() -> None:
    """Facts of both kinds of state, through JSON's types; other facts are none."""
    state = Maintained(at=Version(5), changed=Version(3), removed_ms=7, vacuumed=Version(4), vacuumed_ms=9)
    assert Maintained.recorded(state.facts()) == state
    erased = Erased(at=Version(5), hidden_ms=3, purged=(Purged(at_ms=2, since_ms=1),))
    assert Erased.recorded(erased.facts()) == erased
    tested: Mapping[str, Any] = {"tested": 4, "kept": 0, "oldest_ms": None, "swept": -1}
    assert (Maintained.recorded(tested), Erased.recorded(tested)) == (None, None)


def test_a_purge_is_due_so_early_that_its_files_may_be_deleted_in_time() -> None:
    """30 days, of which the old files are kept for 7, and the stream comes once a day, for each of both."""
    state = folded(
        Erased(), [event(0), event(1, DAY, step="apply", removes=True), event(2, 5 * DAY, step="apply", removes=True)]
    )
    due = [
        state.is_purge_due(within_ms=MONTH, retention_ms=WEEK, pace_ms=DAY, now_ms=day * DAY) for day in (1, 21, 22, 40)
    ]
    assert due == [False, False, True, True]
    assert state.is_purge_due(within_ms=WEEK, retention_ms=WEEK, pace_ms=DAY, now_ms=DAY)


def test_an_apply_that_removed_nothing_and_commits_of_others_erase_nothing() -> None:
    """Only the stream's own steps that took rows away count."""
    events = [event(0, step="apply"), event(1, changes=True, removes=True), event(2, step="settle", removes=True)]
    assert folded(Erased(), events).since_ms is None


def test_each_purge_waits_for_its_own_time_and_a_vacuum_ends_those_that_are_old_enough() -> None:
    """A second purge before the first one's files are gone does not put them off."""
    state = folded(Erased(), [event(1, DAY, step="forget", removes=True)])
    state = folded(state, [event(2, 3 * DAY, step="purge", covers_ms=DAY)])
    # The facts of a purge say that nothing is hidden any more; here they were not asked for.
    state = Erased(at=state.at, hidden_ms=None, purged=state.purged)
    state = folded(state, [event(3, 4 * DAY, step="apply", removes=True)])
    state = Erased(at=state.at, hidden_ms=None, purged=(*state.purged, Purged(at_ms=6 * DAY, since_ms=4 * DAY)))
    due = {day: state.is_vacuum_due(retention_ms=WEEK, now_ms=day * DAY) for day in (9, 10, 11)}
    assert due == {9: False, 10: False, 11: True}
    assert state.since_ms == DAY
    after = state.vacuumed(retention_ms=WEEK, now_ms=11 * DAY)
    assert (after.since_ms, after.purged) == (4 * DAY, (Purged(at_ms=6 * DAY, since_ms=4 * DAY),))
    assert after.vacuumed(retention_ms=WEEK, now_ms=14 * DAY).since_ms is None
