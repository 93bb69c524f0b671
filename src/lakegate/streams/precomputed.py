"""The result of a micro-batch that is computed before its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class KeptUp(Protocol):
    """Work whose result for a batch is updated while its job waits for the turn."""

    def known(self) -> object:
        """Returns the versions of the tables that the result depends on, as far as this driver knows; does not ask storage."""
        ...

    def keep_up(self, *, before: Collection[str]) -> None:
        """Updates the result after commits of others, if that is worthwhile before the turn. Commits nothing.

        Args:
            before: The jobs whose turns may come before.
        """
        ...


@dataclass(slots=True)
class _Held(Generic[T]):
    batch_id: int
    result: T
    is_taken: bool = False


class Precomputed(Generic[T]):
    """Holds the result of one batch: updated after commits of others until the batch's turn takes it.

    Two threads use it: one runs the batches, the other updates the result while the job waits for its turn.

    Args:
        forget: Frees the resources of a result.
    """

    def __init__(self, forget: Callable[[T], None] = lambda result: None) -> None:
        self._forget = forget
        self._held: _Held[T] | None = None
        self._guard = threading.Lock()
        """Held during an update."""

    def hold(self, batch_id: int, result: T) -> None:
        """Holds the result of a batch; forgets an earlier one."""
        self.drop()
        self._held = _Held(batch_id, result)

    def now(self) -> T | None:
        """Returns the result as it is now; None if there is none."""
        held = self._held
        return None if held is None else held.result

    def of(self, batch_id: int) -> T | None:
        """Returns the result of this batch as it is now; None if there is none, or if it is another batch's."""
        held = self._held
        return held.result if held is not None and held.batch_id == batch_id else None

    def update(self, updated: Callable[[T], T]) -> None:
        """Replaces the result; does nothing without one, and after the turn has taken it."""
        with self._guard:
            held = self._held
            if held is not None and not held.is_taken:
                held.result = updated(held.result)

    def take(self, batch_id: int) -> T | None:
        """Returns the result of this batch, after an update in progress; it is not updated any more."""
        with self._guard:
            held = self._held
            if held is None or held.batch_id != batch_id:
                return None
            held.is_taken = True
            return held.result

    def drop(self) -> None:
        """Forgets the result, after an update in progress."""
        with self._guard:
            held, self._held = self._held, None
        if held is not None:
            self._forget(held.result)
