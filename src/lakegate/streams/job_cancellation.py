"""Cancels the Spark jobs of a lost turn that runs without a query of ours. A query's own jobs are cancelled by its stop.

The jobs are found by a tag of the thread that works in the turn. The user's own groups and tags stay, and jobs of other threads
continue.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import Fenced, LostTurn

AGAIN_S = 0.5
"""Seconds between two cancellations of a tag: code that catches the end of one job may start the next."""


class TurnJobs:
    """The Spark jobs that one thread starts between the grant of a turn and its end."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._tag = f"lakegate-turn-{uuid.uuid4().hex}"
        self._guard = threading.Lock()
        self._lost: str | None = None
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tags the jobs that this thread starts.

        Raises:
            LostTurn: the turn was lost meanwhile, even if the code raised another error because of that, or caught it.
        """
        self._context.addJobTag(self._tag)
        try:
            yield
        except (Fenced, LostTurn):
            raise
        except Exception as error:
            self._raise_if_lost(error)
            raise
        finally:
            self._ended.set()
            with suppress(*JVM_ERRORS, ConnectionError):  # Spark may be gone, or its JVM
                self._context.removeJobTag(self._tag)
        self._raise_if_lost(None)

    def cancel(self, reason: str) -> None:
        """Cancels the running jobs and those started later. Safe from any thread, and if called twice; returns at once."""
        with self._guard:
            is_news, self._lost = self._lost is None, self._lost or reason
        if is_news:
            threading.Thread(target=self._cancel, name="lakegate-cancel", daemon=True).start()

    def _cancel(self) -> None:
        with suppress(*JVM_ERRORS):
            while not self._ended.is_set():
                self._context.cancelJobsWithTag(self._tag)
                self._ended.wait(AGAIN_S)

    def _raise_if_lost(self, error: Exception | None) -> None:
        if self._lost is not None:
            raise LostTurn(
                f"the turn was lost: {self._lost}; its Spark jobs were cancelled, and nothing more was written"
            ) from error
