"""While a job waits for its turn, what it has computed follows what others commit: then the turn has less to do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from lakegate.delta.gate import Gate
from lakegate.ports import Clock

LOOK_S = 0.1
"""So often it is looked whether this driver knows of a new commit, which asks nothing of storage."""
ASK_S = 2.0
"""So often storage is asked what other drivers have committed, with a listing or two a table."""
REST_S = 6.0
"""Others rest when they have changed nothing for so long: what is computed now is not soon to follow more."""
LONG_S = 60.0
"""Who waits for longer than this keeps up for half of the time at most."""
LOGGER = logging.getLogger("lakegate")


class Rest:
    """Whether others rest, as it shows from one look at what they have committed to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: object = None
        self._since_s = 0.0

    def of(self, seen: object) -> bool:
        """Whether it was the same at every look for `REST_S` now."""
        now_s = self._clock.monotonic_s()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s >= REST_S


class Ahead(Protocol):
    """What computes batches before their turn; a `Work` is one."""

    @property
    def is_computed_ahead(self) -> bool:
        """Whether it does so now."""
        ...

    def known(self) -> object:
        """The versions of what it was computed from that this driver knows of; storage is not asked."""
        ...

    def keep_up(self, *, before: Collection[str]) -> None:
        """Has what was computed follow what others have committed since; `before`: whose turns may come before this job's."""
        ...


@contextmanager
def keeping_up(
    work: Ahead, gate: Gate, job: str, session: SparkSession, before: Callable[[], Collection[str]]
) -> Iterator[Callable[[], None]]:
    """In a thread of its own, from before the turn is asked for until what is yielded is called, which is when it has come.

    What has been begun then goes on in the turn, which would have to do it, too, and is waited for at the end of the block.
    An error ends it: what is wrong is found out again in the turn, and said there.
    """
    if not work.is_computed_ahead:
        yield lambda: None
        return
    is_over = threading.Event()

    def keep_up() -> None:
        seen: object = None
        asked_s, pause_s, long_s = 0.0, LOOK_S, time.monotonic() + LONG_S
        with gate.acting(job):
            while not is_over.wait(pause_s):
                known, begun_s = work.known(), time.monotonic()
                if known == seen and begun_s < asked_s + ASK_S:
                    continue
                seen, asked_s = known, begun_s
                work.keep_up(before=before())
                now_s = time.monotonic()
                pause_s = LOOK_S if now_s < long_s else max(LOOK_S, now_s - begun_s)

    def quietly() -> None:
        try:
            keep_up()
        except Exception:
            LOGGER.debug("%s does not keep up before its turn", job, exc_info=True)

    keeper = threading.Thread(
        target=inheritable_thread_target(session)(quietly), name=f"lakegate-{job}-ahead", daemon=True
    )
    keeper.start()
    try:
        yield is_over.set
    finally:
        is_over.set()
        keeper.join()
