"""How long a sync waits for a source or a target that is away: again and again, until a stated time is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakegate.errors import NoFiles, Unavailable

PAUSE_S, PAUSE_MAX_S = 0.5, 15.0
"""Before the second try, and at most; each is twice the one before it, drawn between half and the whole."""


@dataclass(slots=True)
class Patience:
    """The waits of one sync. A try that succeeds begins them again."""

    patience_s: float
    """So long after the first failure in a row nothing is tried again."""
    clock: Callable[[], float] = time.monotonic
    tries: int = 0
    """In a row that have failed."""
    since: float = 0.0
    """When the first of them failed."""
    retry_at: float = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the next try is later than now."""
        return self.tries > 0 and self.clock() < self.retry_at

    def fail(self, error: Unavailable) -> None:
        """Notes a try that failed: the next one may be made from `retry_at` on.

        Raises:
            Unavailable: `error`, if the time is over.
        """
        if isinstance(error, NoFiles):
            raise error  # a mistake in the settings more often than a moment
        now = self.clock()
        if not self.tries:
            self.since = now
        left = self.since + self.patience_s - now
        if left <= 0:
            error.tell(waited_s=round(now - self.since), tries=self.tries + 1)
            raise error
        pause = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self.tries, 10)) * random.SystemRandom().uniform(0.5, 1.0)
        self.tries, self.retry_at = self.tries + 1, now + min(pause, left)

    def succeed(self) -> bool:
        """Notes a try that succeeded; whether there had been failures."""
        had, self.tries = self.tries > 0, 0
        return had
