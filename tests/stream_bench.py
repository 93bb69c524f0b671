"""A place to run kinds of streams by hand: batches made in memory, turns with real tokens and no coordinator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.config import (
    Append,
    Erase,
    FilesSource,
    Maintain,
    Mutate,
    StreamKind,
    StreamSpec,
    TableSpec,
    Unmatched,
)
from lakegate.delta.table_log import DeltaTableLog
from lakegate.ids import Epoch, TableLocation, TokenId
from lakegate.ports import StatementConflict, WriteToken
from lakegate.streams.append import AppendStream
from lakegate.streams.interfaces import StreamContext
from lakegate.telemetry.events import Event
from lakegate.turns.protocol.fencing import Applied, NotApplied, Token, read_token, unpack

DAY_MS = 86_400_000


class Crash(Exception):
    """The process dies here."""


@dataclass
class HandClock:
    """Stands still until it is moved."""

    now_ms: int = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000


@dataclass
class Gathered:
    """Keeps events."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)


@dataclass
class HandTurn:
    """A turn over real tokens. `crash_after`: names of steps after whose commit the process dies."""

    log: DeltaTableLog
    job: str
    epoch: int
    batch: int
    crash_after: frozenset[str] = frozenset()
    crash_before: frozenset[str] = frozenset()
    is_sweep: bool = False
    written: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda name: None
    between: Callable[[str], object] = lambda name: None
    """Called between the look at the stored token and the write."""
    unmet: dict[str, int] = field(default_factory=dict)

    def add_unmet(self, unmet: Mapping[str, int]) -> None:
        self.unmet.update(unmet)

    def enter(self, table: TableLocation) -> bool:
        return self.log.head(table) >= 0

    def write(self, table: TableLocation, *, step: int, name: str, statement: Callable[[WriteToken], None]) -> bool:
        if name in self.crash_before:
            raise Crash(name)
        self.before(name)
        token_id = TokenId(f"lakegate/{self.job}" + ("/sweep" if self.is_sweep else ""))
        token = Token(epoch=Epoch(self.epoch), batch=self.batch, step=step)
        for _ in range(20):
            reading = read_token(self.log.read_tokens(table).tokens.get(token_id), token)
            if isinstance(reading, Applied):
                return False
            assert isinstance(reading, NotApplied), reading
            metadata = {"lakegate": 1, "job": self.job, "epoch": self.epoch, "batch": self.batch, "step": name}
            self.between(name)
            try:
                statement(WriteToken(token_id=token_id, number=token.pack(), user_metadata=json.dumps(metadata)))
            except StatementConflict:
                continue
            self.written.append(name)
            self.log.read_tokens(table)
            if name in self.crash_after:
                raise Crash(name)
            return True
        raise AssertionError("conflicts did not end")

    def amend(self, table: TableLocation, *, name: str, statement: Callable[[WriteToken], None]) -> None:
        if name in self.crash_before:
            raise Crash(name)
        token_id = TokenId(f"lakegate/{self.job}" + ("/sweep" if self.is_sweep else ""))
        stored = self.log.read_tokens(table).tokens.get(token_id)
        before = Token(epoch=Epoch(self.epoch), batch=-1) if stored is None else unpack(stored)
        token = Token(epoch=Epoch(self.epoch), batch=before.batch, step=before.step + 1)
        metadata = {"lakegate": 1, "job": self.job, "epoch": self.epoch, "batch": before.batch, "step": name}
        statement(WriteToken(token_id=token_id, number=token.pack(), user_metadata=json.dumps(metadata)))
        self.written.append(name)
        self.log.read_tokens(table)
        if name in self.crash_after:
            raise Crash(name)


@dataclass
class Bench:
    """A table, its streams, and a counter of epochs."""

    session: SparkSession
    root: str
    streams: tuple[StreamSpec, ...]
    table: TableSpec
    clock: HandClock = field(default_factory=HandClock)
    gathered: Gathered = field(default_factory=Gathered)
    epoch: int = 0

    def __post_init__(self) -> None:
        # For ten rows, compiling a plan costs more than running it.
        self.session.conf.set("spark.sql.codegen.wholeStage", "false")
        self.session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        self.log = DeltaTableLog(self.session)

    @property
    def target(self) -> TableLocation:
        return TableLocation(f"{self.root}/table")

    def context(self) -> StreamContext:
        return StreamContext(
            session=self.session,
            log=self.log,
            storage=f"{self.root}/_lakegate",
            target=self.target,
            neighbours=self.streams,
            clock=self.clock,
            events=self.gathered,
        )

    def stream(self, name: str) -> Any:
        """The kind of that name, new: nothing is remembered between turns but what is in tables."""
        spec = next(stream for stream in self.streams if stream.name == name)
        match spec.kind:
            case Append():
                return AppendStream(spec, self.table, self.context())
            case Mutate():
                from lakegate.streams.requests.stream import RequestStream

                return RequestStream(spec, self.context())
            case Erase():
                from lakegate.streams.requests.erase import EraseStream

                return EraseStream(spec, self.context())
            case Maintain():
                from lakegate.streams.maintenance.stream import MaintainStream

                return MaintainStream(spec, self.table, self.context())

    def turn(self, name: str, batch: int, **more: Any) -> HandTurn:
        self.epoch += 1
        return HandTurn(self.log, name, self.epoch, batch, **more)

    def run(self, name: str, rows: Sequence[tuple[Any, ...]], schema: str, batch: int, **more: Any) -> Any:
        return self.stream(name).run_batch(self.turn(name, batch, **more), self.batch(rows, schema, batch), batch)

    def sweep(self, name: str, batch: int, **more: Any) -> Any:
        return self.stream(name).run_sweep(self.turn(name, batch, is_sweep=True, **more), batch)

    def batch(self, rows: Sequence[tuple[Any, ...]], schema: str, batch: int) -> DataFrame:
        """A micro-batch as spark/sources.py makes it, in the order of `rows`; a row `("!", text)` did not parse."""
        good = [(*row, i, None, None) for i, row in enumerate(rows) if row[:1] != ("!",)]
        width = len(schema.split(","))
        bad = [
            (*([None] * width), i, "is not a JSON record of the stated schema", row[1])
            for i, row in enumerate(rows)
            if row[:1] == ("!",)
        ]
        frame = self.session.createDataFrame(good + bad, f"{schema}, _lg_n int, _lg_bad string, _lg_raw string")
        order = F.struct(F.lit(f"file{batch}").alias("file"), F.col("_lg_n").alias("row"))
        place = F.concat(F.lit(f"file{batch}#"), F.col("_lg_n").cast("string"))
        return frame.withColumn("_lg_order", order).withColumn("_lg_position", place).drop("_lg_n")

    def rows(self, *columns: str, version: int | None = None) -> list[tuple[Any, ...]]:
        """The table's rows, sorted."""
        frame = self.log.read_at(self.session, self.target, self.log.head(self.target) if version is None else version)
        return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)

    def requests(self, name: str) -> dict[str, tuple[str, str | None]]:
        """Position of each request in the source → its state and reason."""
        return {row.source_position: (row.state, row.reason) for row in self.request_rows(name)}

    def request_rows(self, name: str) -> list[Any]:
        """The rows of the request table."""
        return self.session.read.format("delta").load(f"{self.root}/_lakegate/requests/{name}").collect()

    def states(self, name: str) -> dict[str, str]:
        return {position: state for position, (state, _) in sorted(self.requests(name).items())}


def stream(name: str, kind: StreamKind, **more: Any) -> StreamSpec:
    given: dict[str, Any] = {
        "absent_after_ms": DAY_MS,
        "source": FilesSource(path="/nowhere", format="json", schema="a STRING"),
        "checkpoint": "/nowhere",
        type(kind).__name__.lower(): kind,
        **more,
    }
    return StreamSpec(name=name, table="t", **given)


def mutate(
    *,
    match: Mapping[str, str],
    set_: Mapping[str, str],
    applies_to: str = "arrived_and_later",
    delete_when: str | None = None,
    sequence_by: str | None = None,
    stand_for_ms: int | None = None,
    retry_for_ms: int = 30 * DAY_MS,
) -> Mutate:
    return Mutate(
        match=match,
        set=set_,
        delete_when=delete_when,
        sequence_by=sequence_by,
        applies_to=applies_to,
        stand_for_ms=stand_for_ms,
        unmatched=Unmatched(retry_for_ms=retry_for_ms, then="dead_letter"),
    )


def table(columns: str | None, **more: Any) -> TableSpec:
    return TableSpec(name="t", path="/nowhere", catalog_name=None, lock="L", columns=columns, **more)
