"""The composition root: settings in, working objects out. The only module that names adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate import settings
from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.driver import Ports
from headgate.coordinator.machine import MachineClock, Uuids, this_process
from headgate.core.ids import JobName, TableLocation
from headgate.core.turns.protocol import Order
from headgate.delta.log import DeltaTableLog
from headgate.errors import HeadgateError, InvalidRequest
from headgate.events import Noticed
from headgate.ports import EventSink, TurnStore
from headgate.sinks.ledger import LedgerSink, read_ledger
from headgate.sinks.tee import Tee
from headgate.spark import jars
from headgate.spark import session as spark_session
from headgate.streams.job import BatchFunction, Coordinated, Job, QueryWork
from headgate.streams.supervisor import RunReport, Supervisor


def session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    progress: jars.Progress | None = None,
) -> SparkSession:
    """A Spark session with Delta, in which a commit on local disk is put-if-absent between processes.

    Args:
        name: The application's name.
        conf: Spark configuration; wins over what is set here.
        kafka: With the Kafka source.
        s3: With S3; not in this version.
        progress: Told about each jar that is fetched, the first time.

    Raises:
        InvalidRequest: a session that cannot be used is running already; nothing was changed.
        MissingExtra: no Java 17 or 21.
        Unavailable: a jar cannot be fetched.
    """
    return spark_session.session(
        name,
        conf=conf,
        kafka=kafka,
        s3=s3,
        sources=settings.jar_sources(),
        java=settings.java_sources(),
        submitted=settings.is_submitted(),
        progress=progress,
    )


def open_store(url: str) -> TurnStore:
    """The store that a coordinator URL names: `sqlite:PATH` or `memory:`.

    Raises:
        InvalidRequest: no store of this version has such a URL.
        Unavailable: it cannot be reached.
    """
    scheme, _, rest = url.partition(":")
    match scheme:
        case "sqlite":
            from headgate.stores.sqlite import SqliteTurnStore

            return SqliteTurnStore(rest.removeprefix("//") if rest.startswith("///") else rest)
        case "memory":
            return _memory_store()
        case _:
            raise InvalidRequest(f"coordinator {url!r} is not in this version", advice="Use sqlite:PATH or memory:")


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
            Unavailable: one of them cannot be used.
        """
        events = Tee([LedgerSink(storage), *watchers])
        return cls(spark=spark, storage=storage, store=open_store(url), log=DeltaTableLog(spark), events=events)

    def coordinator(
        self, *, lock: str, job: str, order: Order, lock_timeout_s: float, on_lost: Callable[[str], None]
    ) -> Coordinator:
        """One run's side of a lock."""
        jvm: Any = self.spark._jvm
        ports = Ports(store=self.store, log=self.log, clock=MachineClock(), randomness=Uuids(), events=self.events)
        return Coordinator(
            ports,
            lock=lock,
            job=job,
            order=order,
            process=this_process(int(jvm.java.lang.ProcessHandle.current().pid())),
            lock_timeout_s=lock_timeout_s,
            on_lost=on_lost,
        )


class JobCoordinator(Job):
    """A job's handle on its turns, from the keys `job.coordinator.*`."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        name: str,
        lock: str,
        predecessor: str | None = None,
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
            "url": url,
            "storage": storage,
            "lock.timeout": lock_timeout,
            "tables": ",".join(tables) or None,
        }
        resolved = settings.resolve_job(cli={key: value for key, value in given.items() if value is not None})
        self._open(spark, resolved)

    @classmethod
    def from_conf(cls, spark: SparkSession) -> Self:
        """A coordinator from the session's `job.coordinator.*`, `spark.job.coordinator.*`, or the environment.

        Raises:
            InvalidRequest: a key is missing, unknown, or of a wrong form; all are listed.
        """
        made = cls.__new__(cls)
        conf = {key: str(value) for key, value in spark.sparkContext.getConf().getAll()} | dict(spark.conf.getAll)
        made._open(spark, settings.resolve_job(conf))
        return made

    def _open(self, spark: SparkSession, resolved: settings.JobSettings) -> None:
        spark_session.require_fit(spark)
        self._site = Site.open(spark, url=resolved.coordinator.url, storage=resolved.storage)
        for note in resolved.notes:
            self._site.events.emit(Noticed(job=resolved.job, text=note))
        self._supervisor: Supervisor | None = None
        coordinator = self._site.coordinator(
            lock=resolved.lock,
            job=resolved.job,
            order=Order(rule=resolved.order, absent_after_ms=resolved.absent_after_ms),
            lock_timeout_s=resolved.coordinator.lock_timeout_ms / 1000,
            on_lost=self._lost,
        )
        tables = tuple(TableLocation(table) for table in resolved.tables)
        super().__init__(spark, coordinator, self._site.log, tables=tables)

    def _lost(self, reason: str) -> None:
        if self._supervisor is not None:
            self._supervisor.turn_lost(reason)

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
        supervisor = Supervisor(
            self._spark,
            self._coordinator,
            QueryWork(make_query, self, self._log),
            self._log,
            turn_limit_batches=10,
            check_query_id=checkpoint_check(
                self._site, self._coordinator.lock, JobName(self.name), is_new_allowed=new_checkpoint
            ),
        )
        self._supervisor = supervisor
        try:
            run_supervisor(supervisor, self._site.events, every=every, once=once, until_idle=until_idle)
        finally:
            self._supervisor = None
            self.attach(None)
        return supervisor.report


def coordinated(function: BatchFunction, job: Job) -> Callable[[DataFrame, int], None]:
    """`function(batch, batch_id)` for `foreachBatch`, so that it runs in the job's turn, each batch exactly once.

    Write with `batch.sparkSession`: the turn's token is set there. Several writes are steps:
    `with job.turn(batch_id) as turn: with turn.step("merge"): …`. Run the query with `headgate.supervise`.
    """
    return Coordinated(function, job)
