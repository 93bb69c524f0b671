"""Databases that are kept in step: the composition root of `lakegate sync`. Spark only where a table is the source."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypedDict, Unpack, assert_never

from lakegate.config import (
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Pipeline,
    SyncSpec,
    TableSource,
)
from lakegate.config.parse import validate
from lakegate.config.yaml_nodes import Faults, from_values
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.patience import Patience
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.apply_protocol import Progress
from lakegate.syncs.plan.change import Batch, Image
from lakegate.syncs.plan.dead_letters import KeptRow, corrected
from lakegate.syncs.plan.difference import Difference
from lakegate.syncs.plan.net_changes import Key, NetRow, canonical
from lakegate.syncs.plan.values import Placeholders, bare
from lakegate.syncs.ports import ChangeSource
from lakegate.syncs.preview import NextBatch, explain
from lakegate.syncs.runner import AppliedBatch, SyncSettings, apply_net, apply_one, carry, pending_batches
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_envelope import Reading
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from lakegate.syncs.sources.files import ChangeFiles
from lakegate.syncs.sources.records import Raw, Records, add_envelopes, add_files, messages_of
from lakegate.syncs.verify import (
    LISTED_MAX,
    ComparedTable,
    Found,
    ReadRecords,
    Verified,
    as_net,
    in_both,
    repair_net,
    verify,
    verify_database,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakegate.syncs.targets.dialect import Dialect
    from lakegate.syncs.targets.sequences import MovedSequence
    from lakegate.syncs.targets.source_rows import SourceRows
    from lakegate.syncs.targets.sql_target import SqlTarget


SECOND_LOOK_MAX = 10_000
"""So many differences of a table are looked at twice, or repaired at once."""
SECOND_LOOK_S = 2.0
ROUNDS_MAX = 100
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
        spark: For a source that is a table; None: one is made as `lakegate run` would.

    Raises:
        MissingExtra: Its client is not installed.
        InvalidRequest: The catalog has no such table.
    """
    match spec.source:
        case ChangeFilesSource(path=path, format=format, transaction=transaction):
            return ChangeFiles(files=path, format=format, table=spec.table, tables=spec.tables, transaction=transaction)
        case EnvelopeFilesSource(path=path, transactions=transactions) as source:
            files = EnvelopeFiles(files=path, transactions=transactions, tables=spec.tables)
            return DebeziumChanges(logs=files, tables=spec.tables, reading=_reading(source))
        case EnvelopeTopicsSource() as source:
            from lakegate.syncs.sources.debezium_kafka import EnvelopeTopics

            logs = EnvelopeTopics(
                topics=source.topics, servers=source.servers, transactions=source.transactions,
                options=source.options, group=f"lakegate-{pipeline.name}-{spec.name}",
            )  # fmt: skip
            return DebeziumChanges(logs=logs, tables=spec.tables, reading=_reading(source))
        case TableSource(table=name, start=start):
            from lakegate.runtime import locate, session_of
            from lakegate.syncs.sources.delta_cdf import TableFeed

            session = spark or session_of(pipeline)
            location = locate(session, pipeline.tables[name])
            return TableFeed(spark=session, location=location, table=spec.table or name, start=start)
        case _:
            assert_never(spec.source)


def _reading(source: EnvelopeFilesSource | EnvelopeTopicsSource) -> Reading:
    return Reading(bytes_as=source.bytes_as, unavailable=Placeholders(source.placeholder))


def open_source_rows(dsn: str, to: str) -> SourceRows:
    """The source's own database, for a comparison with a target at `to`.

    Raises:
        InvalidRequest: It has no such address.
        MissingExtra: Its driver is not installed.
    """
    from lakegate.syncs.targets.source_rows import SourceRows

    return SourceRows(dialect_of(dsn), type(dialect_of(to)).__name__)


def dialect_of(dsn: str) -> Dialect:
    """What speaks to the database of this address; nothing is connected yet.

    Raises:
        InvalidRequest: No database of this version has such an address.
        MissingExtra: Its driver is not installed.
    """
    match dsn.partition(":")[0]:
        case "postgresql" | "postgres":
            from lakegate.syncs.targets.postgres import PostgresDialect

            return PostgresDialect(dsn)
        case "mysql" | "mariadb":
            from lakegate.syncs.targets.mariadb import MariadbDialect

            return MariadbDialect(dsn)
        case "sqlite":
            from lakegate.syncs.targets.sqlite import SqliteDialect

            return SqliteDialect(dsn)
        case scheme:
            raise InvalidRequest(
                "this kind of target database is not in this version; nothing was done",
                advice="Use postgresql://, mysql:// or sqlite:PATH",
                scheme=scheme,  # never the DSN: it may hold a password
            )


def open_target(dsn: str, *, key: Sequence[str] = ()) -> SqlTarget:
    """The target database that a DSN names: `postgresql://…`, `mysql://…`, `sqlite:PATH` or `sqlite:///PATH`.

    Nothing is connected yet. `key`: the columns that tell rows apart, in place of each table's own.

    Raises:
        InvalidRequest: No target of this version has such a DSN.
        MissingExtra: Its driver is not installed.
    """
    from lakegate.syncs.targets.sql_target import SqlTarget

    return SqlTarget(dialect_of(dsn), key=key)


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
        self.waits_for = (source_position.waiting(applied.place) or (None, 0))[0]


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
    foreign_key_actions: str
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
            "lakegate.yml has no section `sync`; nothing was done", advice="Add a section sync: to lakegate.yml"
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
            LakegateError: See `Keeper.passes`.
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
            foreign_key_actions=spec.foreign_key_actions,
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
            LakegateError: See `explain`.
        """
        return explain(self._source, self._target, stream=self.stream, settings=self._settings)

    def newest(self) -> object:
        """Changes when the source has something new.

        Raises:
            Unavailable: It does not answer, or is not there.
        """
        return self._source.fingerprint()

    def verify(self, listed_max: int, *, source_dsn: str | None = None, found: Found | None = None) -> Verified:
        """The target, compared with the source. Nothing is written but temporary tables.

        The source is read in another way than changes are applied: its own database, if its address is given here or in the file;
        a table at the target's version; else the records of its files or topics, one by one, as they stand there.

        Args:
            listed_max: So many differences of a table are listed.
            source_dsn: The source's database.
            found: Told of each table's differences.

        Raises:
            LakegateError: See `lakegate.syncs.verify`.
        """
        told: Found = found or (lambda table, differences, row: None)
        dsn = source_dsn or self._spec.source_dsn
        if dsn is None:
            return verify(
                self._source, self._target, stream=self.stream, listed_max=listed_max, read=self._reader(),
                has_more=self._has_more, found=told,
            )  # fmt: skip

        def look(listed: int) -> Verified:
            with open_source_rows(dsn, self._spec.to) as database:
                return verify_database(
                    database, self._target, stream=self.stream, tables=self._source_tables(), listed_max=listed,
                    has_more=self._has_more, found=told,
                )  # fmt: skip

        first = look(max(listed_max, SECOND_LOOK_MAX))
        if not first.differences:
            return first
        time.sleep(SECOND_LOOK_S)  # what was on its way between the two is there by then
        both = in_both(first, look(max(listed_max, SECOND_LOOK_MAX)))
        return replace(both, tables=tuple(replace(one, listed=one.listed[:listed_max]) for one in both.tables))

    def cutover(self) -> tuple[MovedSequence, ...]:
        """Moves the sequences of the target past the rows that the sync has written, so that others can insert.

        Raises:
            InvalidRequest: The source has more that the target does not have, or nothing was applied yet.
            Unavailable: The target does not answer.
        """
        progress = self._target.progress(self.stream)
        if progress is None or progress.last_batch == 0 or progress.pending is not None or self._has_more(progress):
            raise InvalidRequest(
                "the target does not have everything that the source has; nothing was moved",
                advice="Let nobody write to the source any more, then: lakegate sync run --until-idle",
                sync=self.name,
            )
        source = self._spec.source
        tables = [self._spec.table or source.table] if isinstance(source, TableSource) else list(self._source_tables())
        return self._target.move_sequences(tables)

    def repair(self, *, source_dsn: str | None = None) -> tuple[int, Verified]:
        """Writes what `verify` finds, as batches of this sync at its position: how many rows, and what differs after that.

        Rows that the source does not have are deleted, the others written as they are there. Takes the stream over: a run that
        is on ends with status 5.

        Raises:
            ConstraintViolated: The target refuses a row; its position stays.
            LakegateError: See `verify`.
        """
        repaired = 0
        for _ in range(ROUNDS_MAX):
            progress = self._target.open_stream(self.stream)
            rows: list[NetRow] = []

            def take(
                table: ComparedTable, differences: Sequence[Difference], row: Callable[[Key], Image | None]
            ) -> None:
                rows.extend(as_net(differences, row, progress.position, len(rows)))  # noqa: B023  # called in this round

            seen = self.verify(SECOND_LOOK_MAX, source_dsn=source_dsn, found=take)
            wanted = {(one.table, canonical(one.key)) for table in seen.tables for one in table.listed}
            last = {(row.table, canonical(row.key)): row for row in rows}
            net = [row._replace(n=n) for n, row in enumerate(last[place] for place in last if place in wanted)]
            if not net:
                return repaired, seen
            apply_net(
                repair_net(net, progress), self._target, replace(self._settings, mode="atomic", on_violation="stop")
            )
            repaired += len(net)
        return repaired, self.verify(LISTED_MAX, source_dsn=source_dsn)

    def _reader(self) -> Callable[[Progress], contextlib.AbstractContextManager[ReadRecords]] | None:
        """What reads the source's records without the sync's reader; None: a table tells its rows."""
        spec = self._spec
        if isinstance(spec.source, TableSource):
            return None

        @contextlib.contextmanager
        def read(progress: Progress) -> Iterator[ReadRecords]:
            with Records() as records:
                records.shows_actions = spec.foreign_key_actions == "in_log"
                records.counts_unread = spec.on_violation == "quarantine"
                if isinstance(spec.source, ChangeFilesSource):
                    add_files(
                        records, spec.source.path, table=spec.table, tables=spec.tables,
                        transaction=spec.source.transaction, through=progress.position,
                    )  # fmt: skip
                else:
                    ends = {
                        name: int(one[0]) for name, one in json.loads(progress.place or "{}").get("logs", {}).items()
                    }
                    changes, metadata = self._messages()
                    assert isinstance(spec.source, EnvelopeFilesSource | EnvelopeTopicsSource)
                    add_envelopes(
                        records, changes, metadata, tables=spec.tables, ends=ends, placeholder=spec.source.placeholder,
                        mark=None if spec.source.bytes_as is None else bare(spec.source.bytes_as),
                    )  # fmt: skip
                yield records

        return read

    def _messages(self) -> tuple[Iterable[Raw], Iterable[Raw] | None]:
        source = self._spec.source
        if isinstance(source, EnvelopeFilesSource):
            return messages_of(source.path), None if source.transactions is None else messages_of(source.transactions)
        assert isinstance(self._source, DebeziumChanges)
        logs = self._source.logs

        def of(*, is_metadata: bool) -> Iterator[Raw]:
            for name, messages in logs.read({}, None):
                if logs.is_transactions(name) == is_metadata:
                    for one in messages:
                        if isinstance(one.value, bytes):
                            yield Raw(name, one.offset, one.value, None)

        return of(is_metadata=False), None if logs.transactions is None else of(is_metadata=True)

    def _has_more(self, progress: Progress) -> bool:
        """Whether a run would apply more changes now."""
        return any(batch.size for batch in pending_batches(self._source, progress, self._settings))

    def _source_tables(self) -> dict[str, str]:
        """Target table → the source's: those that the sync names, and those of its records; empty where several meet in one."""
        sources: dict[str, dict[str, None]] = {}
        progress = self._target.progress(self.stream)
        reader = self._reader()
        if progress is not None and reader is not None:
            with reader(progress) as records:
                sources.update({name: dict(met) for name, met in records.tables.items()})
        for source, target in self._spec.tables.items():
            if not source.startswith("*.") and not any(one.endswith(source) for one in sources.get(target, ())):
                sources.setdefault(target, {})[source] = None
        if self._spec.table is not None:
            sources.setdefault(self._spec.table, {self._spec.table: None})
        return {target: next(iter(met)) if len(met) == 1 else "" for target, met in sources.items()}

    def standing(self) -> Standing:
        """How far the target is. Nothing is written.

        Raises:
            Unavailable: The target does not answer.
        """
        progress = self._target.progress(self.stream)
        has_begun = progress is not None and progress.position >= 0
        waits_for, since_ms = (None if progress is None else source_position.waiting(progress.place)) or (None, None)
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
                advice="Let it be finished first: lakegate sync run",
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
                advice=f"See them with: lakegate dead-letters list {self.name}",
                id=", ".join(unknown) or None,
            )
        return [known[one] for one in dict.fromkeys(ids)]

    def passes(self) -> Iterator[Iterator[AppliedBatch]]:
        """Takes the stream over; each pass then applies what the source has by that time. There is always a next pass.

        Called again after an error, it goes on as the same writer: a later one is not taken over from.

        Raises:
            LakegateError: See `run`; within a pass, too.
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
            LakegateError: See `run`.
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
                advice=f"To make it equal to the source, deleting what the source does not have: lakegate sync resync {self.name}",
                table=table,
            )
