"""The delay of a sync: from the commit of a change at its source to its commit in the target.

Rules for editors: an unknown delay is None, never 0. The time comes in as an argument.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakegate.stored_json import Damaged, parsed

MINUTE_MS = 60_000
WINDOW_MS = 15 * MINUTE_MS
"""The window of the percentiles: the current minute and the 14 minutes before it."""
GROWTH = 1.1
"""The ratio of two adjacent delays that are distinguished, so that memory is bounded: a percentile is within 10 percent."""
BUCKET_MAX = 300
"""The bucket of all longer delays: GROWTH ** 300 ms is 80 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDelay:
    """The delay from the commit of a change at its source to its commit in the target."""

    p50_ms: int | None
    """The median of the changes that the target committed in the last `window_ms`; None if there is none of known delay."""
    p99_ms: int | None
    """The 99th percentile of the same changes."""
    changes: int
    """The number of these changes."""
    now_ms: int | None
    """The age of the oldest change that the source has and the target does not; 0 if there is none, None if it is unknown."""
    window_ms: int = WINDOW_MS


@dataclass(slots=True)
class Delays:
    """The delays of recent changes, counted per minute."""

    minutes: dict[int, dict[int, int]] = field(default_factory=dict)
    """Minute of the commit in the target → bucket of the delay → number of changes."""

    def add(self, commits: Mapping[int, int], committed_at_ms: int) -> None:
        """Counts the changes of a batch. A negative delay, from a clock that is ahead, counts as 0.

        Args:
            commits: Time of the commit at the source, in ms → number of changes.
            committed_at_ms: When the target committed the batch.
        """
        minute = committed_at_ms // MINUTE_MS
        self.minutes = {n: counts for n, counts in self.minutes.items() if abs(minute - n) < WINDOW_MS // MINUTE_MS}
        for at_ms, count in commits.items():
            counts, bucket = self.minutes.setdefault(minute, {}), _bucket(committed_at_ms - at_ms)
            counts[bucket] = counts.get(bucket, 0) + count

    def figures(self, at_ms: int, now_ms: int | None) -> SyncDelay:
        """Returns the percentiles as of an instant.

        Args:
            at_ms: The end of the window.
            now_ms: See `SyncDelay`.
        """
        counts: dict[int, int] = {}
        for minute, some in self.minutes.items():
            if minute > (at_ms - WINDOW_MS) // MINUTE_MS:
                for bucket, count in some.items():
                    counts[bucket] = counts.get(bucket, 0) + count
        return SyncDelay(
            p50_ms=_percentile(counts, 0.5),
            p99_ms=_percentile(counts, 0.99),
            changes=sum(counts.values()),
            now_ms=now_ms,
        )

    def written(self) -> str:
        """Returns the counts as text."""
        return json.dumps({"minutes": self.minutes}, separators=(",", ":"))

    @classmethod
    def read(cls, text: str | None) -> Delays:
        """Returns the counts that `written` wrote; none if there are none, or they cannot be read: nothing depends on them."""
        try:
            found = parsed(text or "{}").get("minutes", {})
            return cls({int(n): {int(b): int(count) for b, count in some.items()} for n, some in found.items()})
        except (Damaged, ValueError, TypeError, AttributeError):
            return cls()


def _bucket(delay_ms: int) -> int:
    return min(BUCKET_MAX, math.ceil(math.log(max(0, delay_ms) + 1, GROWTH)))


def _percentile(counts: Mapping[int, int], share: float) -> int | None:
    """Returns the delay that this share of the changes does not exceed."""
    left = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            return round(GROWTH**bucket) - 1
    return None
