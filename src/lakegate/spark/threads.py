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


class Beside(Protocol):
    """Has something done in a thread with the tags of this one, by which the jobs of a lost turn are cancelled."""

    def __call__(self, work: Callable[[], T]) -> Future[T]:
        """Begin it."""
        ...


@contextmanager
def beside(session: SparkSession) -> Iterator[Beside]:
    """Whatever was begun in the block has ended with it."""
    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="lakegate-beside") as pool:

        def begin(work: Callable[[], T]) -> Future[T]:
            inherited: Callable[[Callable[[], T]], Callable[[], T]] = inheritable_thread_target(session)
            return pool.submit(inherited(work))

        yield begin
