"""Databases that are kept in step: the composition root of `headgate sync`. Spark only where a table is the source."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypedDict, Unpack, assert_never

from headgate.core.keys import places
from headgate.core.keys.apply import DeadLetter, Progress
from headgate.core.keys.change import Batch
from headgate.core.keys.letters import KeptRow, corrected
from headgate.core.spec import (
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Pipeline,
    SyncSpec,
    TableSource,
)
from headgate.core.spec.document import Faults, from_values
from headgate.core.spec.parse import validate
from headgate.errors import InvalidRequest, Unavailable
from headgate.ports import ChangeSource
from headgate.sources.debezium import DebeziumChanges
from headgate.sources.debezium_files import EnvelopeFiles
from headgate.sources.files import ChangeFiles
from headgate.syncs.explain import NextBatch, explain
from headgate.syncs.patience import Patience
from headgate.syncs.run import AppliedBatch, SyncSettings, apply_net, apply_one, carry
from headgate.syncs.verify import Verified, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.targets.target import SqlTarget


WAIT_S = 0.2
"""Between looks whether the next try is due."""


class Source(ChangeSource, Protocol):
    """A source that can be asked again and again."""

    def fingerprint(self) -> object:
        """Changes when there is something new: cheap to ask for."""
        ...

    def close(self) -> None:
        """Gives up connections."""
        ...


def open_source(pipeline: Pipeline, spec: SyncSpec, spark: SparkSession | None = None) -> Source:
    """The source of a sync.

    Args:
        pipeline: Of the file.
        spec: The sync.
        spark: For a source that is a table; None: one is made as `headgate run` would.

    Raises:
        MissingExtra: Its client is not installed.
        InvalidRequest: The catalog has no such table.
    """
    match spec.source:
        case ChangeFilesSource(path=path, format=format, transaction=transaction):
            return ChangeFiles(files=path, format=format, table=spec.table, tables=spec.tables, transaction=transaction)
        case EnvelopeFilesSource(path=path, transactions=transactions):
            return DebeziumChanges(
                logs=EnvelopeFiles(files=path, transactions=transactions, tables=spec.tables), tables=spec.tables
            )
        case EnvelopeTopicsSource() as source:
            from headgate.sources.debezium_kafka import EnvelopeTopics

            logs = EnvelopeTopics(
                topics=source.topics, servers=source.servers, transactions=source.transactions,
                options=source.options, group=f"headgate-{pipeline.name}-{spec.name}",
            )  # fmt: skip
            return DebeziumChanges(logs=logs, tables=spec.tables)
        case TableSource(table=name, start=start):
            from headgate.delta.feed import TableFeed
            from headgate.inspect import session_of
            from headgate.site import locate

            session = spark or session_of(pipeline)
            location = locate(session, pipeline.tables[name])
            return TableFeed(spark=session, location=location, table=spec.table or name, start=start)
        case _:
            assert_never(spec.source)


def open_target(dsn: str, *, key: Sequence[str] = ()) -> SqlTarget:
    """The target database that a DSN names: `postgresql://…`, `mysql://…`, `sqlite:PATH` or `sqlite:///PATH`.

    Nothing is connected yet. `key`: the columns that tell rows apart, in place of each table's own.

    Raises:
        InvalidRequest: No target of this version has such a DSN.
        MissingExtra: Its driver is not installed.
    """
    from headgate.targets.target import SqlTarget

    match dsn.partition(":")[0]:
        case "postgresql" | "postgres":
            from headgate.targets.postgres import PostgresDialect

            return SqlTarget(PostgresDialect(dsn), key=key)
        case "mysql" | "mariadb":
            from headgate.targets.mariadb import MariadbDialect

            return SqlTarget(MariadbDialect(dsn), key=key)
        case "sqlite":
            from headgate.targets.sqlite import SqliteDialect

            return SqlTarget(SqliteDialect(dsn), key=key)
        case scheme:
            raise InvalidRequest(
                "this kind of target database is not in this version; nothing was done",
                advice="Use postgresql://, mysql:// or sqlite:PATH",
                scheme=scheme,  # never the DSN: it may hold a password
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a database is."""

    sync: str
    stream: str
    """Its name in the control tables."""
    position: int | None
    """The place in the source up to which the target has everything; None: nothing yet, or a first load is not complete."""
    last_batch: int
    epoch: int
    """Of the last writer; 0: none yet."""
    pending: int | None
    """The place where a batch ends that was begun and is not complete."""
    dead_rows: int
    waits_for: str | None = None
    """What the source has to send before anything more is applied."""
    waits_since_ms: int | None = None
    """Wall clock."""


@dataclass(slots=True, kw_only=True)
class SyncReport:
    """What a run did."""

    sync: str
    batches: int = 0
    changes: int = 0
    rows: int = 0
    set_apart: int = 0
    position: int | None = None
    """None: nothing was applied."""
    waits_for: str | None = None
    """What the source has to send before anything more is applied, as of the last batch."""

    def add(self, applied: AppliedBatch) -> None:
        """One more batch is in."""
        complete = applied.complete
        rows, dead = (0, 0) if complete is None else (complete.rows, len(complete.dead))
        self.batches, self.changes = self.batches + 1, self.changes + applied.changes
        self.rows, self.set_apart, self.position = self.rows + rows - dead, self.set_apart + dead, applied.through
        self.waits_for = (places.waiting(applied.place) or (None, 0))[0]


class SyncKeys(TypedDict, total=False):
    """Keys of a sync, as in the file."""

    start: str | Mapping[str, int]
    table: str
    tables: Mapping[str, str]
    key: str | Sequence[str]
    plan: str
    mode: str
    parallelism: int
    on_violation: str
    on_schema_change: str
    ddl: str
    patience: str


def sync(
    source: str | Mapping[str, object],
    *,
    to: str,
    name: str,
    pipeline: str = "python",
    once: bool = False,
    spark: SparkSession | None = None,
    **keys: Unpack[SyncKeys],
) -> SyncReport:
    """Keeps a database in step: applies what the source has, again until nothing is left to do.

    How far it came is a row of the target under `PIPELINE/NAME`: called again, it goes on from there.

    Args:
        source: A Delta table, by its path or its name in the catalog; or the keys of `from:`, as `{"files": "changes/*.jsonl"}`.
        to: The target database: `postgresql://…`, `mysql://…` or `sqlite:PATH`.
        name: The sync's name.
        pipeline: The pipeline's name.
        once: Only what the source has now.
        spark: For a source that is a table; the active session, or a new one, by default.
        **keys: As in the file.

    Raises:
        InvalidRequest: Every fault of what was given.
        ConstraintViolated: A row breaks a constraint of the target; its position stays at the last complete batch.
        Fenced: A later writer has begun.
        Unavailable: The source or the target does not answer.
    """
    given: dict[str, object] = {"from": source, "to": to, **keys}
    tables: dict[str, object] = {}
    if isinstance(source, str):
        table = keys.get("table") or source.rstrip("/").replace(".", "/").rpartition("/")[2]
        tables[table] = {"path" if "/" in source else "name": source}
        given["from"] = table
    faults = Faults()
    tree = from_values({"name": pipeline, "tables": tables, "sync": {name: given}}, key="", faults=faults)
    spec = validate(tree, base_dir=str(Path.cwd()), faults=faults, transforms={})
    report = SyncReport(sync=name)
    with Keeper(spec, spec.sync(name), spark=spark) as keeper:
        carrier = Carrier(keeper, is_patient_from_the_start=False)
        while True:
            changed = 0
            for applied in carrier.carry():
                report.add(applied)
                changed += 1
            if carrier.is_waiting:
                time.sleep(WAIT_S)
            elif once or not changed:
                return report


def syncs_of(pipeline: Pipeline, name: str | None = None) -> tuple[SyncSpec, ...]:
    """The syncs of the file, or the one of that name.

    Raises:
        InvalidRequest: There is none.
    """
    if not pipeline.syncs:
        raise InvalidRequest(
            "the file keeps no database in step; nothing was done", advice="Add a section sync: to headgate.yml"
        )
    if name is None:
        return pipeline.syncs
    try:
        return (pipeline.sync(name),)
    except KeyError:
        known = ", ".join(sync.name for sync in pipeline.syncs)
        raise InvalidRequest(f"there is no sync {name!r}; nothing was done", advice=f"The syncs are: {known}") from None


class Carrier:
    """Applies what a sync's source has, pass by pass, and waits for a source or a target that is away."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        is_patient_from_the_start: bool,
        waits: Callable[[Unavailable], None] = lambda error: None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            keeper: Kept open by the caller.
            is_patient_from_the_start: Also what was never there is waited for.
            waits: Called when a wait begins.
        """
        self._keeper, self._waits = keeper, waits
        self._is_patient = is_patient_from_the_start
        self._patience = Patience(keeper.patience_s)
        self._passes: Iterator[Iterator[AppliedBatch]] | None = None

    @property
    def is_waiting(self) -> bool:
        """The last try failed: there may be more to do than the last pass did."""
        return self._patience.tries > 0

    def carry(self) -> Generator[AppliedBatch, None, None]:
        """One pass. It ends early if source or target is away; called before the next try is due, it does nothing.

        Raises:
            Unavailable: They were away for too long, or never there.
            HeadgateError: See `Keeper.passes`.
        """
        if self._patience.is_waiting:
            return
        try:
            if self._passes is None:
                self._passes = self._keeper.passes()
            batches = next(self._passes)
            self._is_patient = True
            for applied in batches:
                self._patience.succeed()
                yield applied
            self._patience.succeed()
        except Unavailable as error:
            is_first = not self._patience.tries
            if not self._is_patient:
                raise
            self._patience.fail(error)
            self._passes = None
            self._keeper.close()
            if is_first:
                self._waits(error)


class Keeper:
    """One sync of a pipeline: its source, its target, and how changes get from one to the other."""

    def __init__(self, pipeline: Pipeline, spec: SyncSpec, *, spark: SparkSession | None = None) -> None:
        """Nothing is opened yet."""
        self.name = spec.name
        # With the pipeline's name: two files may have a sync of one name, and one database.
        self.stream = f"{pipeline.name}/{spec.name}"
        self._pipeline, self._spec, self._spark = pipeline, spec, spark
        self._opened: Source | None = None
        self._epoch: int | None = None
        self._target = open_target(spec.to, key=spec.key)
        self._settings = SyncSettings(
            mode=spec.mode,
            plan=spec.plan,
            parallelism=spec.parallelism,
            on_violation=spec.on_violation,
            on_schema_change=spec.on_schema_change,
            ddl=spec.ddl,
            tables=frozenset([*spec.tables.values(), *([spec.table] if spec.table else [])]),
        )

    @property
    def _source(self) -> Source:
        if self._opened is None:  # what only asks the target needs no source, and no Spark
            self._opened = open_source(self._pipeline, self._spec, self._spark)
        return self._opened

    @property
    def patience_s(self) -> float:
        """How long it waits for what is away."""
        return self._spec.patience_ms / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._target.close()

    @property
    def caveat(self) -> str | None:
        """What the source cannot promise; None: its transactions come whole."""
        source = self._spec.source
        if isinstance(source, EnvelopeFilesSource | EnvelopeTopicsSource) and source.transactions is None:
            return (
                "without transaction metadata each change stands alone: right for each key and at the end of each batch "
                "that holds all of a transaction; a swap that a batch cuts in two is refused as a violation"
            )
        return None

    def plan(self) -> NextBatch | None:
        """The batch that would be applied now. Nothing is written.

        Raises:
            HeadgateError: See `explain`.
        """
        return explain(self._source, self._target, stream=self.stream, settings=self._settings)

    def newest(self) -> object:
        """Changes when the source has something new.

        Raises:
            Unavailable: It does not answer, or is not there.
        """
        return self._source.fingerprint()

    def verify(self, listed_max: int) -> Verified:
        """The target, compared with the source as of the target's position. Nothing is written but temporary tables.

        Raises:
            HeadgateError: See `verify`.
        """
        return verify(self._source, self._target, stream=self.stream, listed_max=listed_max)

    def standing(self) -> Standing:
        """How far the target is. Nothing is written.

        Raises:
            Unavailable: The target does not answer.
        """
        progress = self._target.progress(self.stream)
        has_begun = progress is not None and progress.position >= 0
        waits_for, since_ms = (None if progress is None else places.waiting(progress.place)) or (None, None)
        return Standing(
            sync=self.name,
            stream=self.stream,
            position=progress.position if progress is not None and has_begun else None,
            last_batch=0 if progress is None else progress.last_batch,
            epoch=0 if progress is None else progress.epoch,
            pending=None if progress is None else progress.pending,
            dead_rows=self._target.dead_count(self.stream),
            waits_for=waits_for,
            waits_since_ms=since_ms,
        )

    def dead_letters(self, rows_max: int) -> tuple[DeadLetter, ...]:
        """Rows that are set apart, the latest first.

        Raises:
            Unavailable: The target does not answer.
        """
        return self._target.dead_letters(self.stream, rows_max=rows_max)

    def kept_rows(self) -> tuple[KeptRow, ...]:
        """Rows that are set apart, the oldest first, with their values.

        Raises:
            Unavailable: The target does not answer.
        """
        return self._target.kept_rows(self.stream)

    def drop_letters(self, ids: Sequence[str]) -> int:
        """Deletes rows that are set apart, without writing them; how many.

        Raises:
            InvalidRequest: One of the ids is none; nothing was changed.
        """
        return self._target.drop_letters(self.stream, [(one.batch, one.n) for one in self._named(ids)])

    def retry_letters(self, ids: Sequence[str], corrections: Mapping[str, object]) -> tuple[int, int]:
        """Writes rows that are set apart, in one batch: how many are in, and how many were set apart again.

        Takes the stream over: a run that is on ends with status 5, and goes on when it is started again.

        Raises:
            InvalidRequest: One of the ids is none, or cannot be corrected so; nothing was changed.
            Unavailable: A batch was begun and is not complete, or the target does not answer.
        """
        letters = self._named(ids)
        progress = self._target.open_stream(self.stream)
        if progress.pending is not None:
            raise Unavailable(
                "a batch was begun and is not complete; nothing was sent",
                advice="Let it be finished first: headgate sync run",
                position=progress.position,
            )
        net = corrected(letters, corrections, self._target.tables(list({one.table: None for one in letters})))
        net = replace(net, through=progress.position, place=progress.place)
        complete = apply_net(net, self._target, replace(self._settings, mode="atomic", on_violation="quarantine"))
        return len(net.rows) - len(complete.dead), len(complete.dead)

    def _named(self, ids: Sequence[str]) -> list[KeptRow]:
        known = {one.id: one for one in self.kept_rows()}
        unknown = [one for one in ids if one not in known]
        if unknown or not ids:
            raise InvalidRequest(
                f"{self.name} has set no such row apart; nothing was changed",
                advice=f"See them with: headgate dead-letters list {self.name}",
                id=", ".join(unknown) or None,
            )
        return [known[one] for one in dict.fromkeys(ids)]

    def passes(self) -> Iterator[Iterator[AppliedBatch]]:
        """Takes the stream over; each pass then applies what the source has by that time. There is always a next pass.

        Called again after an error, it goes on as the same writer: a later one is not taken over from.

        Raises:
            HeadgateError: See `run`; within a pass, too.
        """
        self.newest()  # without a source nobody is taken over from
        progress = self._target.open_stream(self.stream, epoch=self._epoch)
        self._epoch = progress.epoch
        self._refuse_rows(progress)
        seen: object = None

        def one() -> Iterator[AppliedBatch]:
            nonlocal progress
            for applied in carry(self._source, self._target, progress, self._settings):
                progress = replace(
                    progress,
                    last_batch=applied.batch,
                    position=applied.through,
                    place=applied.place,
                    pending=None,
                    pending_place=None,
                )
                yield applied

        while True:
            now = self.newest()
            yield one() if now != seen else iter(())
            seen = now

    def resync(self) -> AppliedBatch:
        """Makes the target equal to the source as it is now, in one transaction; changes then go on behind that.

        Rows that the source does not have are deleted, the others written. In place, so that readers see one step.

        Raises:
            InvalidRequest: The source cannot show all its rows.
            HeadgateError: See `run`.
        """
        source = self._source
        if not isinstance(self._spec.source, TableSource) or not hasattr(source, "snapshot"):
            raise InvalidRequest(
                "only a source that is a table can show all its rows; nothing was done",
                advice="Let the source send a snapshot, empty the target's tables, and give the sync another name",
                sync=self.name,
            )
        table = self._spec.table or self._spec.source.table
        progress = self._target.open_stream(self.stream)
        if table not in self._target.tables([table]):
            raise InvalidRequest("the target does not have the table; nothing was done", table=table)
        whole = Batch(changes=(source.snapshot(),))
        settings = replace(self._settings, mode="atomic")
        return apply_one(whole, self._target, progress.last_batch + 1, settings)

    def _refuse_rows(self, progress: Progress) -> None:
        """A first load is for an empty table: what a snapshot lacks is not deleted by it."""
        source = self._spec.source
        if not isinstance(source, TableSource) or source.start != "snapshot":
            return
        if progress.last_batch or progress.pending is not None:  # the rows may be those of a batch that was begun
            return
        table = self._spec.table or source.table
        if table in self._target.tables([table]) and self._target.has_rows(table):
            raise InvalidRequest(
                "the target table has rows, and the table was never carried over; nothing was written",
                advice=f"To make it equal to the source, deleting what the source does not have: headgate sync resync {self.name}",
                table=table,
            )
