"""Does the work that a commit leaves for later, such as checksums and checkpoints, in threads of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lakegate.errors import summary

AFTERWARDS_MAX = 8
"""Limit of checksums, and of checkpoints, that wait to be written; beyond it the committing thread writes them itself."""
LOGGER = logging.getLogger("lakegate")
Work = Callable[[], Callable[[], object] | None]
"""Work that a commit leaves. It returns its long part, for example a checkpoint, if there is one."""


class Afterwards:
    """Does the work that commits leave for later: one thread for long work, another for all other work."""

    def __init__(self) -> None:
        self._short, self._long = _Lane("lakegate-afterwards"), _Lane("lakegate-checkpoints")

    def __call__(self, work: Work) -> None:
        """Queues the work. A failure is logged and does not reach the commit."""
        self._short.take(lambda: self._done(work))

    def wait(self) -> None:
        """Blocks until all work that was queued before is done."""
        self._short.wait()
        self._long.wait()

    def _done(self, work: Work) -> None:
        more = work()
        if more is not None:
            self._long.take(more)


class _Lane:
    """A thread with a bounded queue; if the queue is full, the calling thread does the work itself."""

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
                summary(error),
            )
