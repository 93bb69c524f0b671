"""What the supervisor needs of a job's work: the port between the loop of turns and the kinds of streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.ids import TableLocation, Version
from lakegate.turns.turn import HeldTurn


class Work(Protocol):
    """One job's work, done in turns."""

    @property
    def checkpoint(self) -> str | None:
        """Location of the query's checkpoint; None for work without a source: it has no query, only sweeps."""
        ...

    @property
    def turn_limit_batches(self) -> int:
        """After so many micro-batches the turn is given to others before a backlog goes on."""
        ...

    @property
    def is_computed_ahead(self) -> bool:
        """Whether `stage` does anything: the job is at work then before it asks for its turn, and not idle any more."""
        ...

    def tables(self) -> tuple[TableLocation, ...]:
        """Every table that a turn of this job reads or writes."""
        ...

    def prepare(self) -> None:
        """Makes what must exist before the first turn; changes nothing that is there already."""
        ...

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """A new writer of the source whose sink function leads to `on_batch`; without a trigger."""
        ...

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Does what can be done of a micro-batch before its turn is asked for.

        Args:
            batch: The micro-batch.
            batch_id: Its number.
            before: The jobs whose turns may come before.
        """
        ...

    def known(self) -> object:
        """The versions of what `stage` has read that this driver knows of; storage is not asked."""
        ...

    def keep_up(self, *, before: Collection[str]) -> None:
        """Has what `stage` did follow what others have committed since; called now and then while the job waits for its turn.

        Args:
            before: The jobs whose turns may come before.
        """
        ...

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        """Writes one micro-batch in the turn; idempotent under its tokens. The rows taken from the source."""
        ...

    def drained(self) -> tuple[str, ...]:
        """What of the source was passed over, a sentence for each reason; called when a query has read all there is."""
        ...

    def has_sweep_work(self) -> bool:
        """Whether something kept from earlier batches must be tested against what has come since."""
        ...

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        """Tests what is kept against what has come since."""
        ...

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Table → version up to which nothing is left to do."""
        ...
