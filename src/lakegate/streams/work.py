"""The port between the loop of turns and the kinds of streams: what the supervisor needs of a job's work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.ids import TableLocation, Version
from lakegate.turns.turn import HeldTurn


class Work(Protocol):
    """The work of one job, done in turns."""

    @property
    def checkpoint(self) -> str | None:
        """Location of the query's checkpoint; None for work without a source: it has no query, only sweeps."""
        ...

    @property
    def turn_limit_batches(self) -> int:
        """Number of micro-batches after which a turn ends although a backlog is left, so that others get theirs."""
        ...

    @property
    def is_computed_ahead(self) -> bool:
        """Returns True if `stage` prepares batches: the job is then busy before it asks for its turn."""
        ...

    def tables(self) -> tuple[TableLocation, ...]:
        """Returns every table that a turn of this job reads or writes."""
        ...

    def prepare(self) -> None:
        """Creates what must exist before the first turn; leaves everything that exists unchanged."""
        ...

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """Returns a new writer of the source, without a trigger, whose sink function calls `on_batch`."""
        ...

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Prepares a micro-batch before its turn is requested.

        Args:
            batch: The micro-batch.
            batch_id: Its number.
            before: The jobs whose turns may come before.
        """
        ...

    def known(self) -> object:
        """Returns the versions of the tables that `stage` has read, as far as this driver knows; does not ask storage."""
        ...

    def keep_up(self, *, before: Collection[str]) -> None:
        """Updates the result of `stage` after commits of others; called repeatedly while the job waits for its turn.

        Args:
            before: The jobs whose turns may come before.
        """
        ...

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        """Writes one micro-batch in the turn; idempotent under its tokens. Returns the number of rows taken from the source."""
        ...

    def drained(self) -> tuple[str, ...]:
        """Returns the parts of the source that were not read, one sentence per reason; called after a query has read everything."""
        ...

    def has_sweep_work(self) -> bool:
        """Returns True if data kept from earlier batches must be tested against newer rows."""
        ...

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        """Tests kept data against newer rows."""
        ...

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns table → version up to which nothing is left to do."""
        ...
