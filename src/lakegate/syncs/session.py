"""A sync that is open: applies the changes of its source, compares, repairs, and reports where it stands."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from lakegate.config import (
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Pipeline,
    PostgresSource,
    SyncSpec,
    TableSource,
)
from lakegate.delta.local_files import local_path
from lakegate.errors import InvalidRequest, LakegateError, Unavailable
from lakegate.syncs.adapters import Source, open_source, open_source_rows, open_target
from lakegate.syncs.missing import LEVEL, missing_since
from lakegate.syncs.patience import Patience
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.apply_protocol import SyncProgress
from lakegate.syncs.plan.change import Batch, Image
from lakegate.syncs.plan.dead_letters import KeptRow, corrected
from lakegate.syncs.plan.delay import Delays, SyncDelay
from lakegate.syncs.plan.difference import Difference
from lakegate.syncs.plan.net_changes import Key, Net, NetRow, canonical
from lakegate.syncs.plan.values import bare
from lakegate.syncs.ports import Announces, ChangeSource, Confirms, Looks
from lakegate.syncs.preview import NextBatch, explain
from lakegate.syncs.runner import AppliedBatch, SyncSettings, apply_net, apply_one, carry, pending_batches
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.records import Raw, Records, add_envelopes, add_files, messages_of
from lakegate.syncs.verify import (
    LISTED_MAX,
    ComparedTable,
    Found,
    ReadRecords,
    VerifiedSync,
    as_net,
    in_both,
    repair_net,
    verify,
    verify_database,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakegate.syncs.sources.postgres import PostgresChanges
    from lakegate.syncs.targets.sequences import MovedSequence


SECOND_LOOK_MAX = 10_000
"""The maximum number of differences of a table that are checked twice, or repaired together."""
SECOND_LOOK_S = 2.0
ROUNDS_MAX = 100
POLL_S, LOCAL_POLL_S, NOTICED_POLL_S, SENT_POLL_S = 1.0, 0.1, 0.02, 0.005
"""How often an idle sync asks its source for something new; files on this machine's disk, which cost one listing; a client
that notices new messages by itself, and a connection on which changes are sent, which cost no request."""
NOTE_S = 1.0
"""The minimum time between two records of the delays in the target."""
WAIT_S = 0.2
"""The pause between checks whether the next attempt is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStatus:
    """The progress of a database."""

    sync: str
    stream: str
    """The stream's name in the control tables."""
    position: int | None
    """The source position up to which the target has all changes; None before the first batch and during the initial load."""
    last_batch: int
    epoch: int
    """The epoch of the last writer; 0 if there was none."""
    pending: int | None
    """The end position of a batch that was begun and is not complete."""
    dead_rows: int
    waits_for: str | None = None
    """What the source must send before more can be applied."""
    waits_since_ms: int | None = None
    """Wall clock, in milliseconds."""
    delay: SyncDelay | None = None
    """From the commit at the source to the commit in the target."""


class Carrier:
    """Applies a sync's changes in passes, and waits while a source or a target is unavailable."""

    def __init__(
        self,
        session: SyncSession,
        *,
        is_patient_from_the_start: bool,
        waits: Callable[[Unavailable], None] = lambda error: None,
    ) -> None:
        """Opens nothing yet.

        Args:
            session: Kept open by the caller.
            is_patient_from_the_start: Also wait for a source or a target that was never reached.
            waits: Called when a wait begins.
        """
        self._session, self._waits = session, waits
        self._is_patient = is_patient_from_the_start
        self._patience = Patience(session.patience_s)
        self._passes: Iterator[Iterator[AppliedBatch]] | None = None
        self._newest: object = None

    @property
    def poll_s(self) -> float:
        """See `SyncSession.poll_s`."""
        return self._session.poll_s

    def has_news(self) -> bool:
        """Returns True if the source has changed since the last pass began, or cannot say."""
        try:
            has_arrived = self._session.has_arrived()
            return self._session.newest() != self._newest if has_arrived is None else has_arrived
        except LakegateError:
            return True  # the next pass reports the error, or waits

    @property
    def is_waiting(self) -> bool:
        """Returns whether the last attempt failed. Then more changes may be left than the last pass applied."""
        return self._patience.tries > 0

    def carry(self) -> Generator[AppliedBatch, None, None]:
        """Runs one pass. Ends early if source or target is unavailable. Does nothing before the next attempt is due.

        Raises:
            Unavailable: Source or target was unavailable for too long, or was never reached.
            LakegateError: See `SyncSession.passes`.
        """
        if self._patience.is_waiting:
            return
        try:
            if self._passes is None:
                self._passes = self._session.passes()
            asks = self._session.poll_s < POLL_S and self._session.has_arrived() is None
            self._newest = self._session.newest() if asks else None
            batches = next(self._passes)
            self._is_patient = True
            for applied in batches:
                self._patience.succeed()
                yield applied
            self._patience.succeed()
        except Unavailable as error:
            is_first = not self._patience.tries
            self._session.close(is_down=True)
            if not self._is_patient:
                raise
            self._patience.fail(error)
            self._passes = None
            if is_first:
                self._waits(error)


class SyncSession:
    """A sync of a pipeline: its source, its target, and the settings with which changes are applied."""

    def __init__(self, pipeline: Pipeline, spec: SyncSpec, *, spark: SparkSession | None = None) -> None:
        """Opens nothing yet."""
        self.name = spec.name
        # Contains the pipeline's name: two files may have a sync of the same name on the same database.
        self.stream = f"{pipeline.name}/{spec.name}"
        self._pipeline, self._spec, self._spark = pipeline, spec, spark
        self._opened: Source | None = None
        self._epoch: int | None = None
        self._delays, self._noted_s, self._is_noted = Delays(), 0.0, True
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
        if self._opened is None:  # a query of the target alone needs no source, and no Spark
            self._opened = open_source(self._pipeline, self._spec, self._spark)
        return self._opened

    @property
    def _looked(self) -> ChangeSource:
        """The source in a mode in which reading changes nothing."""
        source = self._source
        return source.looking() if isinstance(source, Looks) else source

    @property
    def poll_s(self) -> float:
        """The interval in seconds at which an idle sync asks its source for something new."""
        if self._spec.poll_ms is not None:
            return self._spec.poll_ms / 1000
        match self._spec.source:
            case EnvelopeTopicsSource():
                return NOTICED_POLL_S
            case PostgresSource():
                return SENT_POLL_S
            case TableSource():
                from lakegate.syncs.sources.delta_cdf import TableFeed

                source = self._source
                is_local = isinstance(source, TableFeed) and local_path(source.location) is not None
                return LOCAL_POLL_S if is_local else POLL_S
            case _:
                return LOCAL_POLL_S

    @property
    def patience_s(self) -> float:
        """The time to wait for an unavailable source or target."""
        return self._spec.patience_ms / 1000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, *, is_down: bool = False) -> None:
        """Closes the connections.

        Args:
            is_down: The target may be unavailable: the delays of the last second are not recorded in it.
        """
        if not is_down:
            with contextlib.suppress(LakegateError):
                self._note_delays()
        self._is_noted = True
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._target.close()

    @property
    def caveat(self) -> str | None:
        """The limits of the source's guarantees; None if its transactions are delivered whole."""
        source = self._spec.source
        if isinstance(source, EnvelopeFilesSource | EnvelopeTopicsSource) and source.transactions is None:
            return (
                "without transaction metadata each change stands alone: right for each key and at the end of each batch "
                "that holds all of a transaction; a swap that a batch cuts in two is refused as a violation"
            )
        return None

    def plan(self) -> NextBatch | None:
        """Returns the batch that would be applied now. Writes nothing.

        Raises:
            LakegateError: See `explain`.
        """
        return explain(self._looked, self._target, stream=self.stream, settings=self._settings)

    def newest(self) -> object:
        """Returns a value that changes when the source has something new.

        Raises:
            Unavailable: The source does not answer or does not exist.
        """
        return self._source.fingerprint()

    def has_arrived(self) -> bool | None:
        """Returns whether the source has noticed something new since the last pass; None if it must be asked: see `newest`."""
        source: object = self._source
        return source.has_arrived() if isinstance(source, Announces) else None

    def verify(self, listed_max: int, *, source_dsn: str | None = None, found: Found | None = None) -> VerifiedSync:
        """Compares the target with the source. Writes only temporary tables.

        The source is read independently of the sync's reader: from its own database, if its address is given here or in the
        file; from a table at the target's version; or else record by record from its files or topics.

        Args:
            listed_max: The maximum number of differences listed per table.
            source_dsn: The source's database.
            found: Called with each table's differences.

        Raises:
            LakegateError: See `lakegate.syncs.verify`.
        """
        told: Found = found or (lambda table, differences, row: None)
        dsn = source_dsn or self._spec.source_dsn
        if dsn is None and isinstance(self._spec.source, PostgresSource):
            dsn = self._spec.source.dsn
        if dsn is None:
            return verify(
                self._source, self._target, stream=self.stream, listed_max=listed_max, read=self._reader(),
                has_more=self._has_more, found=told,
            )  # fmt: skip

        def look(listed: int) -> VerifiedSync:
            with open_source_rows(dsn, self._spec.to) as database:
                return verify_database(
                    database, self._target, stream=self.stream, tables=self._source_tables(), listed_max=listed,
                    has_more=more, found=told,
                )  # fmt: skip

        def more(progress: SyncProgress) -> bool:
            try:
                return self._has_more(progress)
            except Unavailable:
                if not isinstance(self._spec.source, PostgresSource):
                    raise
                return False  # a run reads from the slot, and applies what there is

        first = look(max(listed_max, SECOND_LOOK_MAX))
        if not first.differences:
            return first
        time.sleep(SECOND_LOOK_S)  # by then, changes in transit have arrived
        both = in_both(first, look(max(listed_max, SECOND_LOOK_MAX)))
        return replace(both, tables=tuple(replace(one, listed=one.listed[:listed_max]) for one in both.tables))

    def cutover(self) -> tuple[MovedSequence, ...]:
        """Moves the sequences of the target past the rows that the sync has written, so that other clients can insert rows.

        Raises:
            InvalidRequest: The source has changes that the target lacks, or nothing was applied yet.
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

    def repair(self, *, source_dsn: str | None = None) -> tuple[int, VerifiedSync]:
        """Repairs the differences that `verify` finds, in batches at the target's position.

        Returns the number of rows, and the remaining differences. Rows that the source does not have are deleted; the others are
        written as at the source. Takes the stream over: a concurrent run ends with status 5.

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

    def _reader(self) -> Callable[[SyncProgress], contextlib.AbstractContextManager[ReadRecords]] | None:
        """Returns a reader of the source's records independent of the sync's; None for a table, which knows its rows."""
        spec = self._spec
        if isinstance(spec.source, TableSource | PostgresSource):
            return None

        @contextlib.contextmanager
        def read(progress: SyncProgress) -> Iterator[ReadRecords]:
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

    def _has_more(self, progress: SyncProgress) -> bool:
        """Returns whether a run would apply more changes now."""
        return any(batch.size for batch in pending_batches(self._looked, progress, self._settings))

    def _source_tables(self) -> dict[str, str]:
        """Returns target table → source table, of the sync's settings and records; empty text for several source tables."""
        sources: dict[str, dict[str, None]] = {}
        progress = self._target.progress(self.stream)
        reader = self._reader()
        if isinstance(self._spec.source, PostgresSource):
            sources.update({name: dict(met) for name, met in self._postgres.tables().items()})
        if progress is not None and reader is not None:
            with reader(progress) as records:
                sources.update({name: dict(met) for name, met in records.tables.items()})
        for source, target in self._spec.tables.items():
            if not source.startswith("*.") and not any(one.endswith(source) for one in sources.get(target, ())):
                sources.setdefault(target, {})[source] = None
        if self._spec.table is not None:
            sources.setdefault(self._spec.table, {self._spec.table: None})
        return {target: next(iter(met)) if len(met) == 1 else "" for target, met in sources.items()}

    def standing(self) -> SyncStatus:
        """Returns the progress of the target. Writes nothing.

        Raises:
            Unavailable: The target does not answer.
        """
        progress = self._target.progress(self.stream)
        delay = self.delay(progress)
        has_begun = progress is not None and progress.position >= 0
        waits_for, since_ms = (None if progress is None else source_position.waiting(progress.place)) or (None, None)
        return SyncStatus(
            sync=self.name,
            stream=self.stream,
            position=progress.position if progress is not None and has_begun else None,
            last_batch=0 if progress is None else progress.last_batch,
            epoch=0 if progress is None else progress.epoch,
            pending=None if progress is None else progress.pending,
            dead_rows=self._target.dead_count(self.stream),
            waits_for=waits_for,
            waits_since_ms=since_ms,
            delay=delay,
        )

    def delay(self, progress: SyncProgress | None = None) -> SyncDelay:
        """Returns the delay of the last changes and of those that are missing. Writes nothing, and starts no Spark.

        Args:
            progress: The target's record; None: it is read.

        Raises:
            Unavailable: The target does not answer.
        """
        if progress is None:
            progress = self._target.progress(self.stream)
        delays = self._delays if self._delays.minutes else Delays.read(self._target.delays(self.stream))
        since = missing_since(self._pipeline, self._spec, progress, self._opened)
        at_ms = time.time_ns() // 1_000_000
        return delays.figures(at_ms, 0 if since == LEVEL else None if since is None else max(0, at_ms - since))

    def _note_delays(self, after_s: float = 0.0) -> None:
        """Records the delays in the target, unless that is done, or was done less than so many seconds ago."""
        if not self._is_noted and time.monotonic() - self._noted_s >= after_s:
            self._target.note_delays(self._delays.written())
            self._noted_s, self._is_noted = time.monotonic(), True

    def kept_rows(self) -> tuple[KeptRow, ...]:
        """Returns quarantined rows, oldest first, with their values.

        Raises:
            Unavailable: The target does not answer.
        """
        return self._target.kept_rows(self.stream)

    def drop_letters(self, ids: Sequence[str]) -> int:
        """Deletes quarantined rows without applying them; returns how many were deleted.

        Raises:
            InvalidRequest: An id does not exist; nothing was changed.
        """
        return self._target.drop_letters(self.stream, [(one.batch, one.n) for one in self._named(ids)])

    def retry_letters(self, ids: Sequence[str], corrections: Mapping[str, object]) -> tuple[int, int]:
        """Applies quarantined rows in one batch; returns how many were applied, and how many were quarantined again.

        Takes the stream over: a concurrent run ends with status 5, and continues when it is started again.

        Raises:
            InvalidRequest: An id does not exist, or a row cannot be corrected this way; nothing was changed.
            Unavailable: A batch is unfinished, or the target does not answer.
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
                f"{self.name} has no such quarantined row; nothing was changed",
                advice=f"See them with: lakegate dead-letters list {self.name}",
                id=", ".join(unknown) or None,
            )
        return [known[one] for one in dict.fromkeys(ids)]

    def passes(self) -> Iterator[Iterator[AppliedBatch]]:
        """Takes the stream over; each pass applies the changes that the source has at that time. There is always a next pass.

        After an error, a new call continues with the same epoch, so it does not take the stream over from a later writer.

        Raises:
            LakegateError: See `run`; also raised within a pass.
        """
        self.newest()  # without a source, no other writer is fenced
        progress = self._target.open_stream(self.stream, epoch=self._epoch)
        self._epoch = progress.epoch
        self._delays = Delays.read(self._target.delays(self.stream))
        self._refuse_rows(progress)
        progress = self._begun(progress)
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
                if applied.commits:
                    self._delays.add(applied.commits, applied.committed_at_ms)
                    self._is_noted = False
                if isinstance(self._source, Confirms):
                    self._source.confirm(applied.through)
                yield applied
                self._note_delays(NOTE_S)

        while True:
            self._note_delays(NOTE_S)
            now = self.newest()
            yield one() if now != seen else iter(())
            seen = now

    def resync(self) -> Sequence[AppliedBatch]:
        """Makes the target equal to the source's current state; later changes continue from there. Returns its batches.

        Of a table: in one transaction and in place, so that readers see one step. Of a PostgreSQL database: the tables are emptied
        and loaded again.

        Raises:
            InvalidRequest: The source cannot show all its rows.
            LakegateError: See `run`.
        """
        source = self._source
        if isinstance(self._spec.source, PostgresSource):
            self._know_keys()
            progress = self._target.open_stream(self.stream)
            place = self._postgres.begin(is_again=progress.place is not None)
            return list(carry(source, self._target, self._noted(progress, place), self._settings))
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
        return [apply_one(whole, self._target, progress.last_batch + 1, settings)]

    @property
    def _postgres(self) -> PostgresChanges:
        from lakegate.syncs.sources.postgres import PostgresChanges

        assert isinstance(self._source, PostgresChanges)
        return self._source

    def _begun(self, progress: SyncProgress) -> SyncProgress:
        """Prepares a PostgreSQL source, and records the load that comes first, so that a later run knows the slot as its own."""
        if not isinstance(self._spec.source, PostgresSource):
            return progress
        self._know_keys()
        if progress.position >= 0 or progress.place is not None or progress.pending is not None:
            return progress
        return self._noted(progress, self._postgres.begin())

    def _know_keys(self) -> None:
        """Tells a PostgreSQL source by which columns the target knows its rows."""
        tables = self._target.tables(list(self._postgres.tables()))
        self._postgres.keys = {name: table.identity for name, table in tables.items()}

    def _noted(self, progress: SyncProgress, place: str) -> SyncProgress:
        """Records that the tables are loaded from this place on, in a batch without changes."""
        net = Net(rows=(), changes=0, through=-1, place=place)
        apply_net(net, self._target, replace(self._settings, mode="atomic"))
        return SyncProgress(epoch=progress.epoch, last_batch=progress.last_batch + 1, position=-1, place=place)

    def _refuse_rows(self, progress: SyncProgress) -> None:
        """Refuses an initial load into a table with rows, because the load deletes no rows that its snapshot lacks."""
        source = self._spec.source
        if progress.last_batch or progress.pending is not None:  # the rows may belong to an unfinished batch
            return
        match source:
            case TableSource(start="snapshot"):
                tables = [self._spec.table or source.table]
            case PostgresSource():
                tables = list(self._postgres.tables())
            case _:
                return
        for table in [one for one in self._target.tables(tables) if self._target.has_rows(one)]:
            raise InvalidRequest(
                "the target table has rows, and this sync never loaded it; nothing was written",
                advice=f"To make it equal to the source, deleting what the source does not have: lakegate sync resync {self.name}",
                table=table,
            )
