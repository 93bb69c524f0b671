"""Does what a commit leaves for later, as checksums and checkpoints, in threads of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lakegate.delta.jvm import first_line

AFTERWARDS_MAX = 8
"""Checksums that may wait to be written, and checkpoints; more are written by those who commit."""
LOGGER = logging.getLogger("lakegate")
Work = Callable[[], Callable[[], object] | None]
"""What a commit leaves. It returns what takes long, as a checkpoint does, if there is any."""


class Afterwards:
    """Does in threads of its own what commits leave for later: one for what takes long, another for all else."""

    def __init__(self) -> None:
        self._short, self._long = _Lane("lakegate-afterwards"), _Lane("lakegate-checkpoints")

    def __call__(self, work: Work) -> None:
        """Queues the work. A failure is logged and does not reach the commit."""
        self._short.take(lambda: self._done(work))

    def wait(self) -> None:
        """Until all that was asked before is done."""
        self._short.wait()
        self._long.wait()

    def _done(self, work: Work) -> None:
        more = work()
        if more is not None:
            self._long.take(more)


class _Lane:
    """One thread; with too much for it, what it is asked is done in the thread that asks."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._room = threading.Semaphore(AFTERWARDS_MAX)

    def take(self, work: Callable[[], object]) -> None:
        if not self._room.acquire(blocking=False):
            self._do(work)
            return
        try:
            self._pool.submit(self._do, work).add_done_callback(lambda _: self._room.release())
        except RuntimeError:  # the interpreter ends
            self._room.release()
            self._do(work)

    def wait(self) -> None:
        self._pool.submit(lambda: None).result()

    @staticmethod
    def _do(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            LOGGER.info(
                "work after a commit (a checksum or a checkpoint) failed, and is left to a later commit: %s",
                first_line(error),
            )
