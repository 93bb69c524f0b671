"""A stream of `lakegate.yml` as work for the supervisor: its source, its kind, its table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.config import Append, Erase, FilesSource, KafkaSource, Maintain, Mutate, StreamSpec, TableSpec
from lakegate.delta import ownership
from lakegate.delta.jvm import JVM_ERRORS, first_line
from lakegate.delta.local_files import is_taken, local_path
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.spark.checkpoint import Checkpoint
from lakegate.spark.kafka_topics import Topics
from lakegate.spark.log_stores import log_store_of
from lakegate.spark.source_faults import file_trouble
from lakegate.spark.source_files import PassedOver, TakenFiles
from lakegate.spark.sources import Known, compared, left_out_columns, placed, read_stream, require_files
from lakegate.streams.append import AppendStream
from lakegate.streams.interfaces import BatchResult, StreamContext, StreamKind
from lakegate.streams.isolating import may_be_of_a_row, without_raising
from lakegate.streams.maintenance.stream import MaintainStream
from lakegate.streams.requests.erase import EraseStream
from lakegate.streams.requests.standing import RequestTables
from lakegate.streams.requests.stream import RequestStream
from lakegate.telemetry.events import BatchWritten, LeftOut, Noticed
from lakegate.turns.protocol.fencing import PREFIX, lock_token
from lakegate.turns.turn import HeldTurn


class StreamWork:
    """The work of one stream; see `streams.work.Work`."""

    def __init__(
        self,
        spec: StreamSpec,
        table: TableSpec,
        context: StreamContext,
        *,
        coordinator_id: str,
        coordinator: str | None,
    ) -> None:
        """Takes a stream and its table, the id of the coordinator's data, and the coordinator's location if it is known."""
        self._spec, self._table, self._context = spec, table, context
        self._coordinator_id, self._coordinator = coordinator_id, coordinator
        self._kind = kind_of(spec, table, context)
        self._is_governed = self._is_looked_at = False
        self._source = Known()
        self._checkpoint: Checkpoint | None = None
        self._topics = Topics(context.session, spec.source) if isinstance(spec.source, KafkaSource) else None
        self._told: set[tuple[str, str]] = set()
        self._left_out: list[str] = []
        self._required: int | None = None

    @property
    def checkpoint(self) -> str | None:
        return self._spec.checkpoint

    def tables(self) -> tuple[TableLocation, ...]:
        return self._kind.tables()

    def prepare(self) -> None:
        """Compares the table's note with this pipeline's lock and coordinator; changes nothing on a table that has one.

        Raises:
            InvalidRequest: the table belongs to another lock, takes its turns at another coordinator, or is written with
                another log store; or standing requests of the table are missing or belong to no stream: see
                `standing.RequestTables`.
            UnsupportedTable: a property makes Delta forget the table's tokens.
        """
        if self._is_governed and self._is_looked_at:
            return
        target, log = self._context.target, self._context.log
        if not self._is_looked_at:
            RequestTables(self._context).refuse()
            self._is_looked_at = True
        reading = log.read_tokens(target)
        if reading.version < 0:
            path = local_path(target)
            if path is not None and is_taken(path):
                raise InvalidRequest(
                    "the table's path holds other files and no Delta table; nothing was written",
                    advice="Name another folder, or convert it: CONVERT TO DELTA",
                    table=target,
                )
            return
        ownership.refuse_forgetting(target, log.metadata(target).properties)
        note = ownership.read_governed(self._context.session, target)
        if note is not None:
            store = log_store_of(self._context.session, target)
            said = ownership.compare(
                target,
                note,
                self._table.lock,
                self._coordinator_id,
                store.name,
                coordinator=self._coordinator,
                log_store_args=store.args,
            )
            if said is not None:
                self._notice(said)
            self._is_governed = True
            return
        locks = {token_id for token_id in reading.tokens if token_id.startswith(f"{PREFIX}lock/")}
        others = locks - {lock_token(self._table.lock)}
        if others:
            raise InvalidRequest(
                "the table is written under another lock; nothing was written",
                advice="Name the same lock in every pipeline that writes to this table",
                table=target,
                lock=min(others).removeprefix(f"{PREFIX}lock/"),
                wanted=self._table.lock,
            )
        if reading.version > 0 and not reading.tokens:
            self._notice(
                f"{target} was made without Lakegate and is not governed: other pipelines do not know to which lock it "
                f"belongs. Make it governed with: lakegate adopt {target} --lock {self._table.lock}"
            )
            self._is_governed = True
            return
        self._govern()

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        assert self._spec.source is not None, "only streams with a source have a query"
        assert self._spec.checkpoint is not None, "a stream with a source has a checkpoint"
        self._required = None
        is_files = isinstance(self._spec.source, FilesSource)
        checkpoint = self._checkpoint = Checkpoint(self._context.session, self._spec.checkpoint)
        checkpoint.refuse_damage("files" if is_files else "kafka")
        if self._topics is not None:
            for text in self._topics.look(checkpoint):
                self._leave_out(text)
        if is_files and self._source.taken is None:
            path = local_path(self._spec.checkpoint)
            self._source.taken = TakenFiles(checkpoint if path is None else path)
        frame = read_stream(
            self._context.session, self._spec.source, self._source, max_rows_per_batch=self._spec.max_rows_per_batch
        )
        for text in left_out_columns(self._spec.source, self._source):
            self._leave_out(text)
        writer = frame.writeStream.foreachBatch(on_batch).queryName(self._spec.name)
        return writer.option("checkpointLocation", self._spec.checkpoint)

    @property
    def turn_limit_batches(self) -> int:
        # Only one batch is computed before its turn: a second one would be computed in the turn, while others wait.
        return 1 if self.is_computed_ahead else self._spec.turn_limit_batches

    @property
    def is_computed_ahead(self) -> bool:
        return self._spec.coverage == "publish"

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        if self.is_computed_ahead:
            with self._computing():
                try:
                    self._kind.stage(self._placed(batch, batch_id), batch_id, before=before)
                except JVM_ERRORS as error:
                    if not self._may_be_of_a_row(error):
                        raise  # else the batch is computed in its turn, which finds the record

    def known(self) -> object:
        return self._kind.known()

    def keep_up(self, *, before: Collection[str]) -> None:
        self._kind.keep_up(before=before)

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        with self._computing():
            placed_batch = self._placed(batch, batch_id)
            try:
                result = self._kind.run_batch(turn, placed_batch, batch_id)
            except JVM_ERRORS as error:
                marked = without_raising(placed_batch, self._kind.evaluated) if self._may_be_of_a_row(error) else None
                if marked is None:
                    raise
                result = self._kind.run_batch(turn, marked, batch_id)
        if not self._is_governed and self._context.log.head(self._context.target) >= 0:
            self._govern()
        if not result.was_applied_before:
            turn.add_unmet(result.unmet)
            self._written(turn, result, batch_id, is_sweep=False)
        return result.rows_written

    def _written(self, turn: HeldTurn, result: BatchResult, batch_id: int, *, is_sweep: bool) -> None:
        self._context.events.emit(
            BatchWritten(
                lock=self._table.lock,
                job=self._spec.name,
                epoch=turn.epoch,
                batch=batch_id,
                is_sweep=is_sweep,
                rows_in=result.rows_in,
                rows_written=result.rows_written,
                rows_erased=result.rows_written if isinstance(self._spec.kind, Erase) else 0,
                dead_letters=result.dead_letters,
                dead_requests=result.requests_dead,
                unmet=result.unmet,
            )
        )

    def _may_be_of_a_row(self, error: BaseException) -> bool:
        assert self._spec.source is not None, "only streams with a source have batches"
        return may_be_of_a_row(error) and file_trouble(error, self._spec.source) is None

    @contextmanager
    def _computing(self) -> Iterator[None]:
        try:
            yield
        except AnalysisException as error:
            raise InvalidRequest(
                f"a batch of {self._spec.name} cannot be computed; the batch was not written",
                advice="Find the wrong key of the file with: lakegate check",
                reason=first_line(error),
            ) from error
        except Exception as error:
            known = None if self._spec.source is None else file_trouble(error, self._spec.source)
            if known is None:
                raise
            raise known from error

    def _placed(self, batch: DataFrame, batch_id: int) -> DataFrame:
        assert self._spec.source is not None, "only streams with a source have batches"
        if self._required != batch_id:
            require_files(self._context.session, self._spec.source, self._source, batch_id)
            self._required = batch_id
        records = None
        if isinstance(self._spec.source, KafkaSource) and self._checkpoint is not None:
            records = self._checkpoint.kafka_records(batch_id)
        return placed(batch, self._spec.source, records)

    def drained(self) -> tuple[str, ...]:
        there, taken, records = self._source.there, self._source.taken, self._source.records
        for name in [] if records is None else records.left_out():
            self._leave_out(f"records have a field that the stated schema lacks, and that is not read: {name}")
        files: list[PassedOver] = []
        if there is not None and taken is not None and isinstance(self._spec.source, FilesSource):
            files = compared(self._context.session, self._spec.source, there, taken.refresh(), is_drained=True)
        for one in files:
            new = {(one.reason, path) for path in one.files} - self._told
            if new:
                self._told |= new
                self._notice(str(one))
        return (*self._left_out, *map(str, files))

    def _leave_out(self, text: str) -> None:
        """Reports once, and records in the ledger, a part of the source that is not read and cannot be looked at later."""
        if text not in self._left_out:
            self._left_out.append(text)
            self._notice(text)
            now_ms = self._context.clock.wall_ms()
            self._context.events.emit(LeftOut(lock=self._table.lock, job=self._spec.name, text=text, at_ms=now_ms))

    def has_sweep_work(self) -> bool:
        return self._kind.has_sweep_work()

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        self._written(turn, self._kind.run_sweep(turn, batch_id), batch_id, is_sweep=True)

    def idle_at(self) -> Mapping[TableLocation, Version]:
        return self._kind.idle_at()

    def _govern(self) -> None:
        """Marks a table that Lakegate created. If a driver dies before this, the next driver completes it later."""
        session, target = self._context.session, self._context.target
        store = log_store_of(session, target)
        ownership.adopt(
            session,
            target,
            self._table.lock,
            self._coordinator_id,
            store.name,
            coordinator=self._coordinator,
            log_store_args=store.args,
        )
        self._is_governed = True

    def _notice(self, text: str) -> None:
        self._context.events.emit(Noticed(job=self._spec.name, text=text))


def kind_of(spec: StreamSpec, table: TableSpec, context: StreamContext) -> StreamKind:
    """Returns the stream's kind, ready to work."""
    match spec.kind:
        case Append():
            return AppendStream(spec, table, context)
        case Mutate():
            return RequestStream(spec, context)
        case Erase():
            return EraseStream(spec, context)
        case Maintain():
            return MaintainStream(spec, table, context)
