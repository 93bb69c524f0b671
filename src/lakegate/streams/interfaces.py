"""The interface between the loop of turns and the kinds of streams: their arguments and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakegate.config import StreamSpec
from lakegate.delta.gate import Gate
from lakegate.delta.table_log import DeltaTableLog
from lakegate.ids import TableLocation, Version
from lakegate.ports import Clock, WriteToken
from lakegate.spark.threads import in_parallel
from lakegate.streams.expectations import BadCounts
from lakegate.streams.precomputed import KeptUp
from lakegate.telemetry.events import EventSink

T = TypeVar("T")
APPEND = 0
"""Step numbers are fixed per table: they are part of the tokens in existing tables."""
STORE, APPLY, SETTLE, FORGET, DEAD_LETTERS = 0, 1, 2, 3, 4
OPTIMIZE, PURGE, VACUUM = 5, 6, 7


class BatchTurn(Protocol):
    """A turn, as the code that writes one micro-batch sees it; `coordinator.turn.HeldTurn` is one."""

    @property
    def epoch(self) -> int:
        """The fencing token of the turn."""
        ...

    def enter(self, table: TableLocation) -> bool:
        """Makes `table` refuse earlier turns. Call it before the first read or write of the table in this turn. Idempotent; several
        threads may enter different tables.

        Returns False if the table does not exist yet: it is then created empty and entered, so that its first write can be fenced.
        """
        ...

    def write(self, table: TableLocation, *, step: int, name: str, statement: Callable[[WriteToken], None]) -> bool:
        """Runs `statement` once under its token. Returns False, without calling it, if an earlier run had applied it.

        The table's tokens are read before and after the statement; `DeltaTableLog.seen` then returns the version read.

        A statement that raises `StatementConflict` is run again after the tokens are read again, so it may be called several times.
        """
        ...

    def amend(self, table: TableLocation, *, name: str, statement: Callable[[WriteToken], None]) -> None:
        """Runs `statement` under a token of its own. It changes how a table stores its rows, not the rows themselves.

        It is no step of the batch: the caller checks whether it is needed, and it may be called again after a crash. Its number
        is above those of all steps of the table, and below those of the next batch. `table` need not exist.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """The dependencies of a stream kind."""

    session: SparkSession
    """A session in which nothing else writes."""
    log: DeltaTableLog
    storage: str
    """Root of checkpoints, request tables and dead letters, without a trailing slash."""
    target: TableLocation
    """The path of the stream's table, which may not exist yet."""
    neighbours: tuple[StreamSpec, ...]
    """Every stream of the pipeline on this table, this one included, in the order written."""
    clock: Clock
    events: EventSink
    recorded: Mapping[TableLocation, tuple[Version, int]] = field(default_factory=dict)
    """Table → its highest version in the ledger, and when that turn ended (ms)."""

    def requests_of(self, stream: StreamSpec) -> TableLocation:
        """The path of the request table of a `mutate` or `erase` stream."""
        return TableLocation(f"{self.storage}/requests/{stream.name}")

    def dead_letters_of(self, stream: StreamSpec) -> TableLocation:
        """The path of the dead letters of a stream: records that do not parse or fit."""
        return TableLocation(f"{self.storage}/dead_letters/{stream.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of one micro-batch, or of one sweep. Counts of rows."""

    rows_in: int | None = None
    """Records of the source; None where counting them would need a separate read."""
    rows_written: int = 0
    """Rows appended; for requests, rows changed and deleted in the table."""
    requests_matched: int = 0
    requests_waiting: int = 0
    requests_dead: int = 0
    dead_letters: int = 0
    unmet: Mapping[str, int] = field(default_factory=dict)
    """Expectation → records that do not meet it."""
    was_applied_before: bool = False
    """An earlier run had written the batch; nothing was written now."""

    def with_bad(self, bad: BadCounts) -> BatchResult:
        """Returns the result with the numbers of bad records."""
        return replace(self, dead_letters=bad.letters, unmet=bad.unmet)


class InTurns(KeptUp, Protocol):
    """Work that is done in turns; a job's `Work` and a stream's `StreamKind` add to it."""

    def tables(self) -> tuple[TableLocation, ...]:
        """Returns every table that a turn reads or writes, the target first."""
        ...

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Prepares a micro-batch before its turn; `run_batch` of the same batch uses the result if it still holds.

        Args:
            batch: The micro-batch.
            batch_id: Its number.
            before: The jobs whose turns may come before.
        """
        ...

    def has_sweep_work(self) -> bool:
        """Returns True if there is work without new source data: kept requests to test against new matching rows, or files to
        maintain. Reads the logs only."""
        ...

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns table → version up to which nothing is left to do."""
        ...


class StreamKind(InTurns, Protocol):
    """A kind of stream: `append`, `mutate`, `erase` or `maintain`."""

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Writes one micro-batch; idempotent under the turn's tokens."""
        ...

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """Computes a micro-batch from the table's definition alone, without its rows and requests; writes nothing."""
        ...

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Does the work of `has_sweep_work`."""
        ...


def as_job(session: SparkSession, job: str, work: Callable[[], T]) -> Callable[[], T]:
    """Wraps work for another thread, so that its commits belong to the job like those of the batch's own thread."""
    gate = Gate(session)

    def acting() -> T:
        with gate.acting(job):
            return work()

    return acting


def enter_all(turn: BatchTurn, tables: Sequence[TableLocation], session: SparkSession, job: str) -> None:
    """Enters the tables of a turn in parallel: each entry is a commit, and waits for storage.

    Raises:
        Fenced, LostTurn: As `BatchTurn.enter`; all entries that were started have ended.
    """
    with in_parallel(session) as begin:
        others = [begin(as_job(session, job, partial(turn.enter, table))) for table in tables[1:]]
        turn.enter(tables[0])
        for other in others:
            other.result()


def noted(token: WriteToken, **facts: object) -> WriteToken:
    """Adds facts of a stream to a token, under `user` in its commit's `userMetadata`."""
    said: dict[str, Any] = json.loads(token.user_metadata)
    said["user"] = {**said.get("user", {}), **facts}
    return replace(token, user_metadata=json.dumps(said))
