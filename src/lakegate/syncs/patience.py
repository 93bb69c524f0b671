"""Limits how long a sync waits for an unavailable source or target: retries until a configured time is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakegate.errors import NoFiles, Unavailable

PAUSE_S, PAUSE_MAX_S = 0.5, 15.0
"""The pause before the second attempt, and the maximum. Each pause is twice the last one, times a random factor from 0.5 to 1."""


@dataclass(slots=True)
class Patience:
    """The waits of one sync. A successful attempt resets them."""

    patience_s: float
    """No attempt is made later than this time after the first of several consecutive failures."""
    clock: Callable[[], float] = time.monotonic
    tries: int = 0
    """The number of consecutive failed attempts."""
    since: float = 0.0
    """The time of the first of them."""
    retry_at: float = 0.0

    @property
    def is_waiting(self) -> bool:
        """Returns whether the next attempt is not due yet."""
        return self.tries > 0 and self.clock() < self.retry_at

    def fail(self, error: Unavailable) -> None:
        """Records a failed attempt: the next one is due at `retry_at`.

        Raises:
            Unavailable: `error`, if the time is over.
        """
        if isinstance(error, NoFiles):
            raise error  # more often a mistake in the settings than a temporary fault
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
        """Records a successful attempt; returns whether there were failures before."""
        had, self.tries = self.tries > 0, 0
        return had
