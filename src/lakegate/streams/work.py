"""The port between the loop of turns and the kinds of streams: what the supervisor needs of a job's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.streams.interfaces import InTurns
from lakegate.streams.refresh import Ahead
from lakegate.turns.turn import HeldTurn


class Work(InTurns, Ahead, Protocol):
    """The work of one job, done in turns."""

    @property
    def checkpoint(self) -> str | None:
        """Location of the query's checkpoint; None for work without a source: it has no query, only sweeps."""
        ...

    @property
    def turn_limit_batches(self) -> int:
        """Number of micro-batches after which a turn ends although a backlog is left, so that others get theirs."""
        ...

    def prepare(self) -> None:
        """Creates what must exist before the first turn; leaves everything that exists unchanged."""
        ...

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """Returns a new writer of the source, without a trigger, whose sink function calls `on_batch`."""
        ...

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        """Writes one micro-batch in the turn; idempotent under its tokens. Returns the number of rows taken from the source."""
        ...

    def drained(self) -> tuple[str, ...]:
        """Returns the parts of the source that were not read, one sentence per reason; called after a query has read everything."""
        ...

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        """Does the work of `has_sweep_work`."""
        ...
