"""Connections to a target, and transactions on them. Retries after a conflict or a lost connection."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lakegate.errors import ConstraintViolated, Unavailable, UnsupportedTable
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.targets.dialect import Connection, Dialect
from lakegate.syncs.targets.faults import FaultKind, KnownFault
from lakegate.syncs.targets.silence import Silence

R = TypeVar("R")
TRIES_MAX = 8
"""The maximum number of attempts of a transaction after conflicts or lost connections."""
READS_MAX = 3
"""The same for reads."""
PAUSE_S = 0.05
"""The pause before the second attempt. The pause doubles with each attempt, with a random factor from 0.5 to 1."""


class ViolatedError(ConstraintViolated):
    """A statement was refused because of the values of its rows."""

    def __init__(self, violated: Violated) -> None:
        super().__init__(
            f"the target refused a statement because of its rows: {violated.reason}; nothing of it was written"
        )
        self.violated, self.is_foreign_key = violated, violated.is_foreign_key


class Connections:
    """A pool with as many connections as are used concurrently. Thread-safe."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._free: list[Connection] = []
        self._lock = threading.Lock()
        self.silence = Silence(dialect)

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            with contextlib.suppress(*self._dialect.errors):
                connection.close()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lends an unused connection. The connection returns to the pool unless it is broken."""
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None:
            try:
                connection = self._dialect.connect()
            except self._dialect.errors as error:
                raise _unavailable(error, self._dialect.fault(error), "nothing was written") from error
        lent = connection
        self.silence.begin(lent)
        try:
            yield connection
        except BaseException as error:
            try:
                connection.rollback()
            except self._dialect.errors:
                connection = None
            if connection is not None and isinstance(error, self._dialect.errors):
                if self._dialect.fault(error).fault is FaultKind.GONE:
                    with contextlib.suppress(*self._dialect.errors):
                        connection.close()
                    connection = None
                    self.close()  # unused connections lead to the same lost server
            raise
        finally:
            self.silence.end(lent)
            if connection is not None:
                with self._lock:
                    self._free.append(connection)

    def read(self, work: Callable[[Connection], R]) -> R:
        """Does `work`, which only reads. Retries a few times after a conflict or a lost connection.

        Raises:
            Unavailable: The target does not answer.
            UnsupportedTable: The target refused a statement.
        """
        for attempt in range(1, READS_MAX + 1):
            try:
                with self.lend() as connection:
                    found = work(connection)
                    connection.rollback()
                    return found
            except self._dialect.errors as error:
                known = self._dialect.fault(error)
                if known.fault in (FaultKind.OTHER, FaultKind.VIOLATION):
                    raise UnsupportedTable(
                        f"the target refused a statement: {_words(error)}; nothing was written"
                    ) from error
                if attempt == READS_MAX or known.fault is FaultKind.AWAY:
                    raise _unavailable(error, known, "nothing was written") from error
                time.sleep(PAUSE_S)
        raise AssertionError("unreachable")

    def transaction(
        self,
        work: Callable[[Any], R],
        *,
        before: Callable[[Any], None] = lambda cursor: None,
        is_trial: bool = False,
        is_done: Callable[[], bool] | None = None,
    ) -> R:
        """Does `work` in one transaction. Retries a bounded number of times after a conflict.

        Args:
            work: Everything that the transaction does; it may be called several times.
            before: Called first.
            is_trial: The transaction is rolled back in any case, after the checks that a commit would make.
            is_done: Called if the connection was lost during a commit; returns whether the commit was made.

        Raises:
            ViolatedError: The rows break a rule of the target.
            Unavailable: Too many conflicts, or the target does not answer, or the target cannot write now.
            UnsupportedTable: The target refused a statement for another reason.
        """
        for attempt in range(1, TRIES_MAX + 1):
            committing = False
            try:
                with self.lend() as connection:
                    self._dialect.begin(connection)
                    cursor = connection.cursor()
                    before(cursor)
                    result = work(cursor)
                    committing = not is_trial
                    if is_trial:
                        self._dialect.end_trial(connection)
                    else:
                        connection.commit()
                    return result
            except self._dialect.errors as error:
                known = self._dialect.fault(error)
                fault = known.fault
                if fault is FaultKind.AWAY:
                    raise _unavailable(error, known, "the batch was not applied") from error
                if fault is FaultKind.VIOLATION:
                    raise ViolatedError(self._dialect.violated(error)) from error
                if fault is FaultKind.OTHER:
                    raise UnsupportedTable(
                        f"the target refused a statement: {_words(error)}; the batch was not applied"
                    ) from error
                if attempt == TRIES_MAX:
                    raise _unavailable(error, known, "the batch was not applied", tries=attempt) from error
                time.sleep(PAUSE_S * 2 ** (attempt - 1) * random.SystemRandom().uniform(0.5, 1.0))
                # If the answer to a commit was lost, read whether the commit was made; never guess.
                if fault is FaultKind.GONE and committing and is_done is not None and is_done():
                    return None  # type: ignore[return-value]  # work with an `is_done` returns nothing
        raise AssertionError("unreachable")


def _unavailable(error: BaseException, known: KnownFault, what: str, tries: int | None = None) -> Unavailable:
    """Returns the error of a temporary fault."""
    usual = "the target database does not answer"
    if known.fault is FaultKind.AGAIN:
        usual = "a conflict with another transaction" if tries is None else "each attempt ended in a conflict"
    return Unavailable(f"{known.words or usual}: {_words(error)}; {what}", tries=tries)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())
