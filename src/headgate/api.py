"""The composition root: settings in, working objects out. The only module that names adapters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate import settings
from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.driver import Ports
from headgate.coordinator.machine import MachineClock, Uuids, this_process
from headgate.core.ids import JobName, TableLocation
from headgate.core.spec import KafkaSource, StreamSpec, TableSpec
from headgate.core.spec import Pipeline as PipelineSpec
from headgate.core.spec.build import PipelineBuilder
from headgate.core.spec.data import Coverage
from headgate.core.spec.dynamodb import read_dynamodb
from headgate.core.spec.kinds import duration_ms
from headgate.core.spec.options import BadPlace
from headgate.core.spec.zookeeper import read_place
from headgate.core.turns import moves
from headgate.core.turns.protocol import Order
from headgate.delta import governed
from headgate.delta.gate import Gate
from headgate.delta.jvm import check_jvm
from headgate.delta.log import DeltaTableLog
from headgate.errors import INTERRUPTED_EXIT_CODE, Fault, HeadgateError, InvalidRequest, combined_exit_code
from headgate.events import Noticed, TurnEnded
from headgate.online import open_target as open_target
from headgate.ports import EventSink, TurnStore
from headgate.sinks.ledger import LedgerSink, read_ledger
from headgate.sinks.logs import LogSink
from headgate.sinks.tee import Tee
from headgate.spark import jars
from headgate.spark import session as spark_session
from headgate.spark.checkpoint import location_of
from headgate.spark.log_stores import log_store_of
from headgate.streams.always_on import RunningQuery
from headgate.streams.identity import checkpoint_check
from headgate.streams.job import BatchFunction, Coordinated, Job, QueryWork
from headgate.streams.steps import StreamContext
from headgate.streams.stock import StockTurns
from headgate.streams.stream import StreamWork
from headgate.streams.supervisor import RunReport, Supervisor

Place = TypeVar("Place")


def session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    log_store: str = "auto",
    progress: jars.Progress | None = None,
) -> SparkSession:
    """A Spark session with Delta, in which a commit on local disk is put-if-absent between processes.

    Args:
        name: The application's name.
        conf: Spark configuration; wins over what is set here.
        kafka: With the Kafka source.
        s3: With tables on S3, as `s3a://bucket/path`.
        log_store: How commits get to tables on S3: `auto` (`conditional`), `conditional`, `dynamodb`, `single_driver`.
        progress: Told about each jar that is fetched, the first time.

    Raises:
        InvalidRequest: a session that cannot be used is running already; nothing was changed.
        MissingExtra: no Java 17 or 21.
        Unavailable: a jar cannot be fetched.
    """
    made = spark_session.session(
        name,
        conf=conf,
        kafka=kafka,
        s3=s3,
        log_store=log_store,
        sources=settings.jar_sources(),
        java=settings.java_sources(),
        submitted=settings.is_submitted(),
        progress=progress,
    )
    if (made.conf.get(TAKE_TURNS_CONF, None) or "").lower() == "true":
        _take_turns(made)
    return made


TAKE_TURNS_CONF = "spark.headgate.takeTurns"
_STOCK: dict[str, StockTurns] = {}
"""Application → who takes turns for its stock writers."""


def _take_turns(spark: SparkSession) -> None:
    """Has what the session commits take turns, as its `job.coordinator.*` say; once in an application."""
    application = str(spark.sparkContext.applicationId)
    if application in _STOCK:
        return
    resolved = settings.resolve_job(_job_conf(spark))
    job = JobCoordinator._of(spark, resolved)
    _STOCK[application] = job.take_turns(resolved.coordinator.lock_timeout_ms)


def _job_conf(spark: SparkSession) -> dict[str, str]:
    return {key: str(value) for key, value in spark.sparkContext.getConf().getAll()} | dict(spark.conf.getAll)


def session_for(pipeline: PipelineSpec, *, kafka: bool, progress: jars.Progress | None = None) -> SparkSession:
    """A session with all that a pipeline's tables need; errors as of `session`."""
    return session(
        f"headgate {pipeline.name}",
        conf=pipeline.spark,
        kafka=kafka,
        s3=pipeline.needs_s3,
        log_store=pipeline.log_store,
        progress=progress,
    )


def open_store(url: str) -> TurnStore:
    """The store that a coordinator URL names: `sqlite:PATH`, `memory:`, `zookeeper://…` or `dynamodb://…`.

    Raises:
        InvalidRequest: no store of this version has such a URL.
        MissingExtra: its driver is not installed.
        Unavailable: it cannot be reached.
    """
    scheme, _, rest = url.partition(":")
    match scheme:
        case "sqlite":
            from headgate.stores.sqlite import SqliteTurnStore

            return SqliteTurnStore(rest.removeprefix("//") if rest.startswith("///") else rest)
        case "memory":
            return _memory_store()
        case "zookeeper":
            return _zookeeper_store(url)
        case "dynamodb":
            from headgate.stores.dynamodb import DynamodbTurnStore

            return DynamodbTurnStore(_place(read_dynamodb, url))
        case _:
            raise InvalidRequest(f"coordinator {scheme}: is not in this version", advice="Use sqlite:PATH or memory:")


def _zookeeper_store(url: str) -> TurnStore:
    from headgate.stores.zookeeper import ZookeeperTurnStore
    from headgate.stores.zookeeper_client import Secrets

    password, key_password = settings.zookeeper_passwords()
    return ZookeeperTurnStore(_place(read_place, url), Secrets(password=password, key_password=key_password))


def _place(read: Callable[[str], Place], url: str) -> Place:
    try:
        return read(url)
    except BadPlace as bad:
        raise InvalidRequest(f"coordinator: {bad}; nothing was done") from bad


_MEMORY: list[TurnStore] = []


def _memory_store() -> TurnStore:
    """One store for the process: jobs that are to take turns must meet in it."""
    from headgate.stores.memory import MemoryTurnStore

    if not _MEMORY:
        _MEMORY.append(MemoryTurnStore())
    return _MEMORY[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the jobs of one pipeline meet: the store of turns, the storage, the tables' logs, and who watches."""

    spark: SparkSession
    storage: str
    store: TurnStore
    log: DeltaTableLog
    events: EventSink

    @classmethod
    def open(cls, spark: SparkSession, *, url: str, storage: str, watchers: Sequence[EventSink] = ()) -> Self:
        """Opens the store and the ledger.

        Raises:
            MissingExtra: the session was made without Delta, or without Headgate's jar.
            UnsupportedTable: it has another Delta than this release was made for.
            Unavailable: the store or the ledger cannot be used.
        """
        check_jvm(spark)
        events = Tee([LedgerSink(storage), LogSink(), *watchers])
        return cls(spark=spark, storage=storage, store=open_store(url), log=DeltaTableLog(spark), events=events)

    def coordinator(
        self, *, lock: str, job: str, order: Order, lock_timeout_s: float, on_lost: Callable[[str], None]
    ) -> Coordinator:
        """One run's side of a lock."""
        jvm: Any = self.spark._jvm
        ports = Ports(
            store=self.store,
            log=self.log,
            clock=MachineClock(),
            randomness=Uuids(),
            events=self.events,
            gate=Gate(self.spark),
        )
        return Coordinator(
            ports,
            lock=lock,
            job=job,
            order=order,
            process=this_process(int(jvm.java.lang.ProcessHandle.current().pid())),
            lock_timeout_s=lock_timeout_s,
            on_lost=on_lost,
        )

    def say(self, error: HeadgateError) -> None:
        """Tells the watchers of something that went wrong and will be tried again."""
        self.events.emit(Noticed(job=None, text=str(error)))


def _pace_ms(every: str | None) -> int | None:
    pace_ms = None if every is None else duration_ms(every)
    if every is not None and pace_ms is None:
        raise InvalidRequest(faults=[Fault(where="every", what=repr(every), expected="a duration, as 15m or 1h")])
    return pace_ms


class JobCoordinator(Job):
    """A job's handle on its turns, from the keys `job.coordinator.*`."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        name: str,
        lock: str,
        predecessor: str | None = None,
        priority: int = 0,
        url: str | None = None,
        storage: str | None = None,
        lock_timeout: str | None = None,
        tables: Sequence[str] = (),
    ) -> None:
        """A coordinator for one job.

        Args:
            spark: A session made by `headgate.session`, or one that `headgate doctor` finds fit.
            name: The job's name, unique on its lock.
            lock: Names what the jobs share.
            predecessor: The strict rule of the article: whose turn must have been the last; a comma list means any of them.
            priority: Among those whose rule lets them in, the highest goes.
            url: Where turns are kept; `sqlite:<storage>/turns.db` by default.
            storage: Folder of the ledger; `./_headgate` by default.
            lock_timeout: How long to wait for a turn, as `60s`.
            tables: Paths of the Delta tables that the job writes to.

        Raises:
            InvalidRequest: every fault of these.
        """
        given = {
            "name": name,
            "lock.name": lock,
            "predecessor": predecessor,
            "priority": str(priority) if priority else None,
            "url": url,
            "storage": storage,
            "lock.timeout": lock_timeout,
            "tables": ",".join(tables) or None,
        }
        resolved = settings.resolve_job(
            cli={key: value for key, value in given.items() if value is not None}, cli_origin="JobCoordinator(…)"
        )
        self._open(spark, resolved)

    @classmethod
    def from_conf(cls, spark: SparkSession) -> Self:
        """A coordinator from the session's `job.coordinator.*`, `spark.job.coordinator.*`, or the environment.

        Raises:
            InvalidRequest: a key is missing, unknown, or of a wrong form; all are listed.
        """
        return cls._of(spark, settings.resolve_job(_job_conf(spark)))

    @classmethod
    def _of(cls, spark: SparkSession, resolved: settings.JobSettings) -> Self:
        made = cls.__new__(cls)
        made._open(spark, resolved)
        return made

    def _open(self, spark: SparkSession, resolved: settings.JobSettings) -> None:
        spark_session.require_fit(spark)
        self._site = Site.open(spark, url=resolved.coordinator.url, storage=resolved.storage)
        for note in resolved.notes:
            self._site.events.emit(Noticed(job=resolved.job, text=note))
        self._running: Supervisor | RunningQuery | None = None
        coordinator = self._site.coordinator(
            lock=resolved.lock,
            job=resolved.job,
            order=Order(rule=resolved.order, absent_after_ms=resolved.absent_after_ms, priority=resolved.priority),
            lock_timeout_s=resolved.coordinator.lock_timeout_ms / 1000,
            on_lost=self._lost,
        )
        self._unknown_notes = [TableLocation(table) for table in resolved.tables]
        tables = tuple(self._unknown_notes)
        super().__init__(spark, coordinator, self._site.log, tables=tables)

    def need_tables(self) -> None:
        """Refuses to go on without tables, and with one that takes its turns elsewhere."""
        super().need_tables()
        while self._unknown_notes:
            table = self._unknown_notes[-1]
            note = governed.read_governed(self._spark, table)
            if note is not None:
                lock, coordinator_id = self._coordinator.lock, self._site.store.coordinator_id()
                store = log_store_of(self._spark, table)
                said = governed.compare(table, note, lock, coordinator_id, store.name, log_store_args=store.args)
                if said is not None:
                    self._site.events.emit(Noticed(job=self.name, text=said))
            self._unknown_notes.pop()

    def _lost(self, reason: str) -> None:
        if self._running is not None:
            self._running.turn_lost(reason)

    def supervise(
        self,
        make_query: Callable[[], DataStreamWriter],
        *,
        every: str | None,
        once: bool,
        until_idle: bool,
        new_checkpoint: bool,
    ) -> RunReport:
        """See `headgate.supervise`."""
        self._need_rest()
        work = QueryWork(make_query, self)
        supervisor = Supervisor(
            self._spark,
            self._coordinator,
            work,
            self._log,
            check_query_id=self._checkpoint_check(work.checkpoint, new_checkpoint),
        )
        self._running = supervisor
        try:
            if once:
                supervisor.run_once()
            elif until_idle:
                supervisor.run_until(lambda: self._is_idle(work), on_waiting=self._site.say)
            else:
                supervisor.run_paced(_pace_ms(every), on_waiting=self._site.say)
        finally:
            self._running = None
            self.attach(None)
        return supervisor.report

    def start(self, writer: DataStreamWriter, *, new_checkpoint: bool) -> RunningQuery:
        """See `headgate.start`."""
        self._need_rest()
        self.need_tables()
        running = RunningQuery(
            self._spark,
            self._coordinator,
            self,
            check_query_id=self._checkpoint_check(location_of(writer), new_checkpoint),
            on_end=self._at_rest,
        )
        self._running = running
        try:
            running.start(writer)
        except BaseException:
            self._at_rest()
            raise
        return running

    def take_turns(self, wait_ms: int) -> StockTurns:
        """Has what the session commits from now on wait for turns of this job, which are taken for it."""
        self.need_tables()
        made = StockTurns(self._spark, self._coordinator, self)
        made.start(wait_ms)
        return made

    def _at_rest(self) -> None:
        self._running = None

    def _need_rest(self) -> None:
        if self._running is not None:
            raise InvalidRequest(f"a query of {self.name} is running already; a second one was not started")

    def _checkpoint_check(self, location: str, is_new_allowed: bool) -> Callable[[str | None], None]:
        return checkpoint_check(
            read_ledger(self._site.storage), job=self.name, location=location, is_new_allowed=is_new_allowed
        )

    def _is_idle(self, work: QueryWork) -> bool:
        record = self._coordinator.record()
        return record is not None and moves.is_settled(record, {JobName(self.name): work.idle_at()})


def coordinated(
    function: BatchFunction, job: Job, *, coverage: Coverage = "exclusive"
) -> Callable[[DataFrame, int], None]:
    """`function(batch, batch_id)` for `foreachBatch`, so that it runs in the job's turn, each batch exactly once.

    Write with `batch.sparkSession`: the turn's token is set there. Several writes are steps:
    `with job.turn(batch_id) as turn: with turn.step("merge"): …`. Run the query with `headgate.start` or `headgate.supervise`.

    Args:
        function: Takes the micro-batch and its number.
        job: Its job.
        coverage: "exclusive": the function runs in the turn. "publish": it runs before the turn, beside those of other jobs,
            and its one statement, made with `headgate.DeltaTable` or `headgate.sql`, is put in the turn on top of theirs.
    """
    return Coordinated(function, job, coverage=coverage)


def supervise(
    make_query: Callable[[], DataStreamWriter],
    job: JobCoordinator,
    *,
    every: str | None = None,
    once: bool = False,
    until_idle: bool = False,
    new_checkpoint: bool = False,
) -> RunReport:
    """Runs a coordinated query in turns: the loop behind `headgate run`, for a query of your own.

    Each run makes the query anew with `trigger(availableNow=True)`; its first micro-batch takes the turn, which is given back
    when the query has ended with its commit log written. A source without data takes no turn.

    Args:
        make_query: Gives a `DataStreamWriter` with `foreachBatch(coordinated(function, job))` and a `checkpointLocation`.
        job: The job.
        every: The pace, as `1h`; None: again as soon as it ended.
        once: One turn on what the source has now.
        until_idle: Again until nothing is left to do.
        new_checkpoint: The checkpoint is meant to be a new one; its source is read again from its beginning.

    Raises:
        TurnNotGranted: with `once`, or when nobody else is alive who could let this job in.
        CheckpointMismatch: the checkpoint and the table disagree.
        HeadgateError: see its class.
    """
    return job.supervise(make_query, every=every, once=once, until_idle=until_idle, new_checkpoint=new_checkpoint)


def start(writer: DataStreamWriter, job: JobCoordinator, *, new_checkpoint: bool = False) -> RunningQuery:
    """Starts a coordinated query that stays on, in place of `writer.start()`: each micro-batch takes a turn.

    The turn is waited for within `foreachBatch`, for the job's `lock.timeout` at most, and given back when Spark's commit log
    names the batch. While there is no data the job says that it is idle. What goes wrong ends the query, and comes out of
    `awaitTermination()`; the batch comes again with the next start.

    Args:
        writer: With `foreachBatch(coordinated(function, job))`, a `checkpointLocation`, and a trigger of your choice.
        job: The job.
        new_checkpoint: The checkpoint is meant to be a new one; its source is read again from its beginning.

    Raises:
        TurnNotGranted: another run of the job is alive.
        CheckpointMismatch: the checkpoint and the ledger disagree.
        InvalidRequest: the query has no checkpoint, or async progress tracking; it was not started.
    """
    return job.start(writer, new_checkpoint=new_checkpoint)


# ------------------------------------------------------------------------------------------------- pipelines

Pace = Literal["once", "until_idle", "paced"]


class PipelineRun:
    """Streams of one pipeline in this driver: one after another by their turns, a thread for each."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        names: Sequence[str] = (),
        *,
        among: Sequence[str] = (),
        new_checkpoints: Collection[str] = (),
        watchers: Sequence[EventSink] = (),
        spark: SparkSession | None = None,
        progress: jars.Progress | None = None,
    ) -> None:
        """Makes everything ready; nothing runs yet.

        Args:
            pipeline: What the file, or Python, says.
            names: Streams to run here; all by default.
            among: Streams that must be idle before a run until idle ends; those of `names` by default.
            new_checkpoints: Jobs whose checkpoint is meant to be a new one.
            watchers: Told of every event, after the ledger.
            spark: A session to use; one is made by default.
            progress: Told about each jar that is fetched.

        Raises:
            InvalidRequest: there is no such stream; or the session cannot be used.
            Unavailable: the coordinator or the storage cannot be used.
        """
        self.pipeline = pipeline
        self._specs = [_stream(pipeline, name) for name in names] or list(pipeline.streams)
        self._among = [_stream(pipeline, name) for name in among] or self._specs
        for name in new_checkpoints:
            _stream(pipeline, name)
        if spark is None:
            needs_kafka = any(isinstance(spec.source, KafkaSource) for spec in self._specs)
            spark = session(
                f"headgate {pipeline.name}",
                conf=pipeline.spark,
                kafka=needs_kafka,
                s3=pipeline.needs_s3,
                log_store=pipeline.log_store,
                progress=progress,
            )
        self.site = Site.open(spark, url=pipeline.coordinator.url, storage=pipeline.storage, watchers=watchers)
        rows = read_ledger(pipeline.storage)
        self._targets = {spec.name: locate(spark, pipeline.table_of(spec)) for spec in (*self._specs, *self._among)}
        self._supervisors = {
            spec.name: self._supervisor(spec, rows, is_new_allowed=spec.name in new_checkpoints) for spec in self._specs
        }
        self._errors: dict[str, BaseException] = {}

    def _supervisor(self, spec: StreamSpec, rows: list[TurnEnded], *, is_new_allowed: bool) -> Supervisor:
        site, pipeline = self.site, self.pipeline
        lock = pipeline.lock_of(spec)
        coordinator = site.coordinator(
            lock=lock,
            job=spec.name,
            order=Order(
                rule=spec.order,
                absent_after_ms=spec.absent_after_ms,
                priority=spec.priority,
                aging_ms=spec.aging_ms,
            ),
            lock_timeout_s=pipeline.coordinator.lock_timeout_ms / 1000,
            on_lost=lambda reason: self._supervisors[spec.name].turn_lost(reason),
        )
        context = StreamContext(
            session=site.spark.newSession(),
            log=site.log,
            storage=pipeline.storage,
            target=self._targets[spec.name],
            neighbours=tuple(one for one in pipeline.streams if one.table == spec.table),
            clock=MachineClock(),
            events=site.events,
        )
        work = StreamWork(spec, pipeline.table_of(spec), context, coordinator_id=site.store.coordinator_id())
        return Supervisor(
            site.spark,
            coordinator,
            work,
            site.log,
            check_query_id=checkpoint_check(
                rows, job=spec.name, location=spec.checkpoint or "", is_new_allowed=is_new_allowed
            ),
        )

    def run(self, pace: Pace) -> dict[str, RunReport]:
        """Runs the streams, and returns when they have ended. One that fails stops the others after their turn.

        Raises:
            HeadgateError: the first by `EXIT_CODE_PRECEDENCE` of what the streams ended with.
        """
        if len(self._specs) == 1:
            self._run_one(self._specs[0], pace)
        else:
            threads = [
                threading.Thread(target=self._run_one, args=(spec, pace), name=f"headgate-{spec.name}")
                for spec in self._specs
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._errors:
            codes = [exit_code_of(error) for error in self._errors.values()]
            worst = combined_exit_code(codes)
            first = next(error for error in self._errors.values() if exit_code_of(error) == worst)
            for name, error in self._errors.items():
                if error is not first:
                    self.site.events.emit(Noticed(job=name, text=str(error)))
            raise first
        return {name: supervisor.report for name, supervisor in self._supervisors.items()}

    def stop(self) -> None:
        """Ends every stream after the turn that it has. Safe from a signal handler."""
        for supervisor in self._supervisors.values():
            supervisor.stop()

    def _run_one(self, spec: StreamSpec, pace: Pace) -> None:
        supervisor = self._supervisors[spec.name]
        try:
            match pace:
                case "once":
                    supervisor.run_once()
                case "until_idle":
                    supervisor.run_until(self._is_settled, on_waiting=self.site.say)
                case "paced":
                    supervisor.run_paced(spec.every_ms, on_waiting=self.site.say)
        except BaseException as error:
            self._errors[spec.name] = error
            self.stop()
        finally:
            supervisor.close()

    def _is_settled(self) -> bool:
        heads = {table: self.site.log.head(table) for table in set(self._targets.values())}
        for lock in {self.pipeline.lock_of(spec) for spec in self._among}:
            record = self.site.store.read(lock).record
            jobs = {
                JobName(spec.name): {self._targets[spec.name]: heads[self._targets[spec.name]]}
                for spec in self._among
                if self.pipeline.lock_of(spec) == lock
            }
            if record is None or not moves.is_settled(record, jobs):
                return False
        return True


def exit_code_of(error: BaseException) -> int:
    """The command's exit status for an error."""
    if isinstance(error, HeadgateError):
        return error.exit_code
    return INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1


def locate(spark: SparkSession, table: TableSpec) -> TableLocation:
    """Where a table is.

    Raises:
        InvalidRequest: the catalog has no Delta table of that name.
    """
    if table.path is not None:
        return TableLocation(table.path)
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {table.catalog_name}").first()
    except AnalysisException as error:
        raise InvalidRequest(
            f"the catalog has no Delta table {table.catalog_name}; nothing was run",
            advice="Make it first, or give the table a `path`",
        ) from error
    assert detail is not None
    return TableLocation(str(detail["location"]).removeprefix("file:").rstrip("/"))


def _stream(pipeline: PipelineSpec, name: str) -> StreamSpec:
    try:
        return pipeline.stream(name)
    except KeyError:
        known = ", ".join(spec.name for spec in pipeline.streams)
        raise InvalidRequest(
            f"there is no stream {name!r}; nothing was run", advice=f"The streams are: {known}"
        ) from None


class Pipeline(PipelineBuilder):
    """A pipeline written in Python: the keys of `headgate.yml`, and the same meaning."""

    def run(
        self,
        *streams: str,
        until_idle: bool = False,
        once: bool = False,
        new_checkpoints: Collection[str] = (),
        spark: SparkSession | None = None,
    ) -> dict[str, RunReport]:
        """Runs the streams in this driver: at their pace, once, or until nothing is left to do.

        Returns:
            Stream → what it did.

        Raises:
            InvalidRequest: every fault of the pipeline.
            HeadgateError: see its class; what was not written comes again.
        """
        spec = self.build(base_dir=settings.working_directory())
        run = PipelineRun(spec, streams, new_checkpoints=new_checkpoints, spark=spark)
        return run.run("once" if once else "until_idle" if until_idle else "paced")
