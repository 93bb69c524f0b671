"""The seam between the loop of turns and the kinds of streams: what a kind is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakegate.config import StreamSpec
from lakegate.delta.gate import Gate
from lakegate.delta.table_log import DeltaTableLog
from lakegate.ids import TableLocation, Version
from lakegate.ports import Clock, WriteToken
from lakegate.spark.threads import beside
from lakegate.telemetry.events import EventSink

T = TypeVar("T")
APPEND = 0
"""Step numbers are fixed per table: they are part of the tokens of tables that exist."""
STORE, APPLY, SETTLE, FORGET, DEAD_LETTERS = 0, 1, 2, 3, 4
OPTIMIZE, PURGE, VACUUM = 5, 6, 7


class BatchTurn(Protocol):
    """A turn, as the writing of one micro-batch sees it; `coordinator.turn.HeldTurn` is one."""

    @property
    def epoch(self) -> int:
        """The fencing token of the turn."""
        ...

    def enter(self, table: TableLocation) -> bool:
        """Makes `table` refuse earlier turns; before the first read or write of it in this turn. Idempotent; several threads may
        enter different tables.

        False if there is no such table yet: it is made empty and entered then, so that its first write can be fenced.
        """
        ...

    def write(self, table: TableLocation, *, step: int, name: str, statement: Callable[[WriteToken], None]) -> bool:
        """Runs `statement` once under its token; False if an earlier run had applied it and it was not called.

        The table's tokens are read before it and after it, which is what `DeltaTableLog.seen` then tells.

        A statement that raises `StatementConflict` is run again from the token read on, so it may be called several times.
        """
        ...

    def amend(self, table: TableLocation, *, name: str, statement: Callable[[WriteToken], None]) -> None:
        """Runs `statement`, which changes how a table keeps what is in it and not what is, under a token of its own.

        It is no step of the batch: whoever calls looks whether it is needed, and it may be called again after a crash. Its number
        lies above those of all steps that the table has, and below the next batch's. `table` need not exist.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """What the kinds of streams work with."""

    session: SparkSession
    """A session that nothing else writes with."""
    log: DeltaTableLog
    storage: str
    """Root of checkpoints, request tables and dead letters, without a trailing slash."""
    target: TableLocation
    """Where the stream's table is, or will be."""
    neighbours: tuple[StreamSpec, ...]
    """Every stream of the pipeline on this table, this one included, in the order written."""
    clock: Clock
    events: EventSink
    recorded: Mapping[TableLocation, tuple[Version, int]] = field(default_factory=dict)
    """Table → its highest version in the ledger, and when that turn ended (ms)."""

    def requests_of(self, stream: StreamSpec) -> TableLocation:
        """Where the request table of a `mutate` or `erase` stream is."""
        return TableLocation(f"{self.storage}/requests/{stream.name}")

    def dead_letters_of(self, stream: StreamSpec) -> TableLocation:
        """Where the records of a stream are kept that do not parse or fit."""
        return TableLocation(f"{self.storage}/dead_letters/{stream.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What one micro-batch, or one sweep, did. Counts of rows."""

    rows_in: int | None = None
    """Records of the source; None where counting them would have cost a pass of its own."""
    rows_written: int = 0
    """Appended; or, for requests, changed and deleted in the table."""
    requests_matched: int = 0
    requests_waiting: int = 0
    dead_letters: int = 0
    was_applied_before: bool = False
    """An earlier run had written the batch; nothing was written now."""


class StreamKind(Protocol):
    """One kind of stream: `append`, `mutate`, `erase` or `maintain`."""

    def tables(self) -> tuple[TableLocation, ...]:
        """Every table that a turn reads or writes, the target first."""
        ...

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Does what can be done of a micro-batch before its turn; `run_batch` of the same one uses it, if it still holds.

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
        """Has what `stage` did follow what others have committed since, if that is worth while before the turn; nothing is
        committed.

        Args:
            before: The jobs whose turns may come before.
        """
        ...

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Writes one micro-batch; idempotent under the turn's tokens."""
        ...

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """What a micro-batch comes to before anything of the table but its definition is looked at; nothing is written."""
        ...

    def has_sweep_work(self) -> bool:
        """Whether there is work without data of the source: kept requests that have not been tested against rows that came
        since, files to look after; from the logs alone."""
        ...

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Does that work."""
        ...

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """The version of the target up to which nothing is left to do."""
        ...


def as_job(session: SparkSession, job: str, work: Callable[[], T]) -> Callable[[], T]:
    """Work in another thread, whose commits are the job's as they are in the one that its batch runs in."""
    gate = Gate(session)

    def acting() -> T:
        with gate.acting(job):
            return work()

    return acting


def enter_all(turn: BatchTurn, tables: Sequence[TableLocation], session: SparkSession, job: str) -> None:
    """Has a turn of a job enter its tables at the same time: each is a commit, and a wait for storage.

    Raises:
        Fenced, LostTurn: As `BatchTurn.enter`; the entries that were begun have ended.
    """
    with beside(session) as begin:
        others = [begin(as_job(session, job, partial(turn.enter, table))) for table in tables[1:]]
        turn.enter(tables[0])
        for other in others:
            other.result()
