"""Runs work that waits for storage (reads, entries of a turn, files) in parallel threads that inherit Spark's job tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

AT_ONCE_MAX = 2
T = TypeVar("T")


class InParallel(Protocol):
    """Runs work in a thread that inherits the job tags of this one; the jobs of a lost turn are cancelled by these tags."""

    def __call__(self, work: Callable[[], T]) -> Future[T]:
        """Starts the work."""
        ...


@contextmanager
def in_parallel(session: SparkSession) -> Iterator[InParallel]:
    """Yields a function that starts work in parallel threads; all of it has ended when the block ends."""
    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="lakegate-parallel") as pool:

        def begin(work: Callable[[], T]) -> Future[T]:
            inherited: Callable[[Callable[[], T]], Callable[[], T]] = inheritable_thread_target(session)
            return pool.submit(inherited(work))

        yield begin
