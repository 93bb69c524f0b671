"""The entry points for existing jobs: sessions whose commits take turns, and queries that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate import settings
from lakegate.config.coordinators import coordinator_place
from lakegate.config.streams import Coverage
from lakegate.config.value_types import duration_ms
from lakegate.delta import ownership
from lakegate.errors import Fault, InvalidRequest
from lakegate.ids import JobName, TableLocation
from lakegate.runtime import Site, new_session
from lakegate.spark import jars
from lakegate.spark import session as spark_session
from lakegate.spark.checkpoint import location_of
from lakegate.spark.log_stores import log_store_of
from lakegate.streams.checkpoint_owner import checkpoint_check
from lakegate.streams.implicit_turns import StockTurns
from lakegate.streams.job import BatchFunction, Coordinated, Job, QueryWork
from lakegate.streams.running_query import RunningQuery
from lakegate.streams.supervisor import RunReport, Supervisor
from lakegate.telemetry.events import Noticed
from lakegate.telemetry.ledger_days import read_summary
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.protocol import Order


def session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    log_store: str = "auto",
    progress: jars.Progress | None = None,
) -> SparkSession:
    """Returns a Spark session with Delta, in which a commit on local disk is put-if-absent between processes.

    Args:
        name: The application's name.
        conf: Spark configuration; overrides the settings made here.
        kafka: With the Kafka source.
        s3: With tables on S3, as `s3a://bucket/path`.
        log_store: How commits reach tables on S3: `auto` (`conditional`), `conditional`, `dynamodb`, `single_driver`.
        progress: Called for each jar that is fetched at the first use.

    Raises:
        InvalidRequest: an unsuitable session is running already; nothing was changed.
        MissingExtra: no Java 17 or 21.
        Unavailable: a jar cannot be fetched.
    """
    made = new_session(name, conf=conf, kafka=kafka, s3=s3, log_store=log_store, progress=progress)
    if (made.conf.get(TAKE_TURNS_CONF, None) or "").lower() == "true":
        _take_turns(made)
    return made


TAKE_TURNS_CONF = "spark.lakegate.takeTurns"
_STOCK: dict[str, StockTurns] = {}
"""Application → the turns for its stock writers."""


def _take_turns(spark: SparkSession) -> None:
    """Makes the session's commits take turns, as its `job.coordinator.*` settings state; once per application."""
    application = str(spark.sparkContext.applicationId)
    if application in _STOCK:
        return
    resolved = settings.resolve_job(_job_conf(spark))
    job = JobCoordinator._of(spark, resolved)
    _STOCK[application] = job.take_turns(resolved.coordinator.lock_timeout_ms)


def _job_conf(spark: SparkSession) -> dict[str, str]:
    return {key: str(value) for key, value in spark.sparkContext.getConf().getAll()} | dict(spark.conf.getAll)


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
        """Opens a coordinator for one job.

        Args:
            spark: A session made by `lakegate.session`, or one that `lakegate doctor` finds fit.
            name: The job's name, unique on its lock.
            lock: The name of the lock that the jobs share.
            predecessor: The strict order rule: the job whose turn must have been the last; a comma list means any of them.
            priority: Of the jobs whose rule lets them in, the job with the highest priority goes.
            url: The store of turns; `sqlite:<storage>/turns.db` by default.
            storage: The folder of the ledger; `./_lakegate` by default.
            lock_timeout: The longest wait for a turn, as `60s`.
            tables: Paths of the Delta tables that the job writes to.

        Raises:
            InvalidRequest: lists every fault of these arguments.
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
        """Opens a coordinator from the session's `job.coordinator.*`, `spark.job.coordinator.*`, or the environment.

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
        self._place = coordinator_place(resolved.coordinator.url)
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
        """Raises an error if no tables are known, or if a table takes its turns on another lock."""
        super().need_tables()
        while self._unknown_notes:
            table = self._unknown_notes[-1]
            note = ownership.read_governed(self._spark, table)
            if note is not None:
                lock, coordinator_id = self._coordinator.lock, self._site.store.coordinator_id()
                store = log_store_of(self._spark, table)
                said = ownership.compare(
                    table, note, lock, coordinator_id, store.name, coordinator=self._place, log_store_args=store.args
                )
                if said is not None:
                    self._site.events.emit(Noticed(job=self.name, text=said))
            self._unknown_notes.pop()

    def close(self) -> None:
        """Ends this run of the job, and its connection to the coordinator."""
        super().close()
        self._site.close()

    def _lost(self, reason: str) -> None:
        self.turn_lost(reason)
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
        """See `lakegate.supervise`."""
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
        except Exception as error:
            raise self._site.jvm_ended(error) or error from None
        finally:
            self._running = None
            self.attach(None)
        return supervisor.report

    def start(self, writer: DataStreamWriter, *, new_checkpoint: bool) -> RunningQuery:
        """See `lakegate.start`."""
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
        """Makes the session's later commits wait for turns of this job, which are taken automatically."""
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
            read_summary(self._site.storage, on_damage=self._site.say).rows,
            job=self.name,
            location=location,
            is_new_allowed=is_new_allowed,
        )

    def _is_idle(self, work: QueryWork) -> bool:
        record = self._coordinator.record()
        if record is None:
            return False
        return transitions.is_settled(record, {JobName(self.name): work.idle_at()}, self._coordinator.live())


def coordinated(
    function: BatchFunction, job: Job, *, coverage: Coverage = "exclusive"
) -> Callable[[DataFrame, int], None]:
    """Wraps `function(batch, batch_id)` for `foreachBatch`, so that it runs in the job's turn, each batch exactly once.

    Write with `batch.sparkSession`: the turn's token is set there. Several writes are steps:
    `with job.turn(batch_id) as turn: with turn.step("merge"): …`. Run the query with `lakegate.start` or `lakegate.supervise`.

    Args:
        function: Takes the micro-batch and its number.
        job: The job.
        coverage: "exclusive": the function runs in the turn. "publish": it runs before the turn, concurrently with other jobs,
            and its one statement, made with `lakegate.DeltaTable` or `lakegate.sql`, is committed in the turn after theirs.
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
    """Runs a coordinated query in turns: the loop behind `lakegate run`, for your own query.

    Each run creates the query again with `trigger(availableNow=True)`. Its first micro-batch takes the turn, which is given back
    when the query has ended with its commit log written. A source without data takes no turn.

    Args:
        make_query: Returns a `DataStreamWriter` with `foreachBatch(coordinated(function, job))` and a `checkpointLocation`.
        job: The job.
        every: The pace, as `1h`; None: again as soon as a run has ended.
        once: Take one turn on the data that the source has now.
        until_idle: Repeat until nothing is left to do.
        new_checkpoint: The checkpoint is new on purpose; its source is read again from its beginning.

    Raises:
        TurnNotGranted: with `once`, or when no other live job could let this job in.
        CheckpointMismatch: the checkpoint and the table disagree.
        JvmEnded: the driver's JVM was killed; start the program again.
        LakegateError: see its class.
    """
    return job.supervise(make_query, every=every, once=once, until_idle=until_idle, new_checkpoint=new_checkpoint)


def start(writer: DataStreamWriter, job: JobCoordinator, *, new_checkpoint: bool = False) -> RunningQuery:
    """Starts a coordinated query that keeps running, instead of `writer.start()`: each micro-batch takes a turn.

    `foreachBatch` waits for the turn, for the job's `lock.timeout` at most. The turn is given back when Spark's commit log
    contains the batch. While there is no data the job announces that it is idle. An error ends the query and is raised by
    `awaitTermination()`; the batch runs again with the next start.

    Args:
        writer: With `foreachBatch(coordinated(function, job))`, a `checkpointLocation`, and a trigger of your choice.
        job: The job.
        new_checkpoint: The checkpoint is new on purpose; its source is read again from its beginning.

    Raises:
        TurnNotGranted: another run of the job is alive.
        CheckpointMismatch: the checkpoint and the ledger disagree.
        InvalidRequest: the query has no checkpoint, or async progress tracking; it was not started.
    """
    return job.start(writer, new_checkpoint=new_checkpoint)
