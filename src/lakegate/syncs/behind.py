"""Notices that a sync's delay has exceeded a limit, from the batches that it applies: it asks neither the source nor the target."""

from __future__ import annotations

from collections.abc import Collection

from lakegate.syncs.runner import AppliedBatch
from lakegate.telemetry.events import SyncBehind


class BehindLimits:
    """The limits of the delay of one sync, and whether each is exceeded."""

    def __init__(self, sync: str, limits_ms: Collection[int], now_ms: int) -> None:
        """Begins without knowing the delay: only that of the time from now on counts."""
        self._sync, self._limits_ms = sync, sorted(limits_ms)
        self._since_ms, self._is_known = now_ms, False
        self._exceeded: dict[int, bool] = {}

    def applied(self, batch: AppliedBatch, now_ms: int) -> list[SyncBehind]:
        """Takes a batch: the changes that are still missing are not older than its newest one."""
        self._since_ms, self._is_known = max(batch.commits, default=self._since_ms), bool(batch.commits)
        return self.passed(now_ms, is_level=False)

    def passed(self, now_ms: int, *, is_level: bool) -> list[SyncBehind]:
        """Returns the limits that are exceeded since the last call, or no longer are.

        Args:
            now_ms: The wall clock.
            is_level: The source had nothing else to apply. Otherwise the time since the newest applied change counts.
        """
        if is_level:
            self._since_ms, self._is_known = now_ms, True
        behind_ms, changes = max(0, now_ms - self._since_ms), []
        for limit_ms in self._limits_ms:
            is_behind = behind_ms > limit_ms
            if self._exceeded.get(limit_ms) != is_behind and (is_behind or self._is_known):
                self._exceeded[limit_ms] = is_behind
                changes.append(SyncBehind(sync=self._sync, is_behind=is_behind, behind_ms=behind_ms, limit_ms=limit_ms))
        return changes
