"""Keeps the result of a batch up to date with commits of others while its job waits for the turn, which is then shorter."""

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
from lakegate.errors import summary
from lakegate.ports import Clock
from lakegate.streams.precomputed import KeptUp

LOOK_S = 0.1
"""How often this driver's own knowledge of new commits is checked, without a request to storage."""
ASK_S = 2.0
"""How often storage is asked for commits of other drivers, with one or two listings per table."""
REST_S = 6.0
"""Others are at rest when they have changed nothing for so long: a result computed now is not likely to be outdated soon."""
LONG_S = 60.0
"""A job that waits longer than this spends at most half of the time on keeping up."""
LOGGER = logging.getLogger("lakegate")


class Rest:
    """Detects whether others are at rest, from repeated reads of what they have committed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: object = None
        self._since_s = 0.0

    def of(self, seen: object) -> bool:
        """Returns True if `seen` has been the same at every call for `REST_S`."""
        now_s = self._clock.monotonic_s()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s >= REST_S


class Ahead(KeptUp, Protocol):
    """Work that may compute batches before their turn; a `Work` is one."""

    @property
    def is_computed_ahead(self) -> bool:
        """Returns True if the work computes its batches before their turn: the job is then busy before it asks for its turn."""
        ...


@contextmanager
def keeping_up(
    work: Ahead, gate: Gate, job: str, session: SparkSession, before: Callable[[], Collection[str]]
) -> Iterator[Callable[[], None]]:
    """Keeps a batch up to date in a separate thread, from before the turn is requested until the yielded function is called.

    Call it when the turn is granted. An update that has begun continues in the turn, which needs it, too; the end of the block
    waits for it. An error ends the thread: the turn meets the same error again and reports it.
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
        except Exception as error:
            LOGGER.debug("%s does not keep up before its turn: %s", job, summary(error))

    keeper = threading.Thread(
        target=inheritable_thread_target(session)(quietly), name=f"lakegate-{job}-ahead", daemon=True
    )
    keeper.start()
    try:
        yield is_over.set
    finally:
        is_over.set()
        keeper.join()
