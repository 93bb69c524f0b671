"""The composition root of turns: the session, the store of turns, the ledger. The only module that names their adapters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakegate import settings
from lakegate.config import KafkaSource, StreamSpec, TableSpec
from lakegate.config import Pipeline as PipelineSpec
from lakegate.config.dynamodb import read_dynamodb
from lakegate.config.options import BadPlace
from lakegate.config.zookeeper import read_place
from lakegate.delta.gate import Gate
from lakegate.delta.jvm import check_jvm
from lakegate.delta.open_publishes import SettledTableLog
from lakegate.delta.table_log import DeltaTableLog
from lakegate.errors import InvalidRequest, JvmEnded, LakegateError, Unavailable
from lakegate.ids import TableLocation
from lakegate.private_files import make_folder
from lakegate.spark import jars
from lakegate.spark import session as spark_session
from lakegate.telemetry.events import EventSink, Noticed
from lakegate.telemetry.ledger import LedgerSink
from lakegate.telemetry.log_sink import LogSink
from lakegate.telemetry.tee import Tee
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.host import MachineClock, Uuids, this_process
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.protocol import Order

Place = TypeVar("Place")


def new_session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    log_store: str = "auto",
    progress: jars.Progress | None = None,
) -> SparkSession:
    """Opens a session, see `lakegate.session`; commits do not take turns by configuration alone."""
    return spark_session.session(
        name,
        conf=conf,
        kafka=kafka,
        s3=s3,
        log_store=log_store,
        sources=settings.jar_sources(),
        java=settings.java_sources(),
        environ=settings.process_environment(),
        submitted=settings.is_submitted(),
        logs=settings.spark_logs(),
        progress=progress,
    )


def session_for(
    pipeline: PipelineSpec, streams: Sequence[StreamSpec] | None = None, *, progress: jars.Progress | None = None
) -> SparkSession:
    """Returns a session with everything that a pipeline's tables, and these or all of its streams, need; errors as of `session`."""
    return new_session(
        f"lakegate {pipeline.name}",
        conf=pipeline.spark,
        kafka=any(isinstance(spec.source, KafkaSource) for spec in (pipeline.streams if streams is None else streams)),
        s3=pipeline.needs_s3,
        log_store=pipeline.log_store,
        progress=progress,
    )


def open_store(url: str) -> TurnStore:
    """Opens the store that a coordinator URL names: `sqlite:PATH`, `memory:`, `zookeeper://…` or `dynamodb://…`.

    Raises:
        InvalidRequest: no store of this version has such a URL.
        MissingExtra: its driver is not installed.
        Unavailable: it cannot be reached.
    """
    scheme, _, rest = url.partition(":")
    match scheme:
        case "sqlite":
            from lakegate.turns.stores.sqlite import SqliteTurnStore

            return SqliteTurnStore(rest.removeprefix("//") if rest.startswith("///") else rest)
        case "memory":
            return _memory_store()
        case "zookeeper":
            return _zookeeper_store(url)
        case "dynamodb":
            from lakegate.turns.stores.dynamodb import DynamodbTurnStore

            return DynamodbTurnStore(_place(read_dynamodb, url))
        case _:
            raise InvalidRequest(f"coordinator {scheme}: is not in this version", advice="Use sqlite:PATH or memory:")


def _zookeeper_store(url: str) -> TurnStore:
    from lakegate.turns.stores.zookeeper import ZookeeperTurnStore
    from lakegate.turns.stores.zookeeper_client import Secrets

    password, key_password = settings.zookeeper_passwords()
    return ZookeeperTurnStore(_place(read_place, url), Secrets(password=password, key_password=key_password))


def _place(read: Callable[[str], Place], url: str) -> Place:
    try:
        return read(url)
    except BadPlace as bad:
        raise InvalidRequest(f"coordinator: {bad}; nothing was done") from bad


_MEMORY: list[TurnStore] = []


def _memory_store() -> TurnStore:
    """Returns the one store of this process: jobs that take turns together must share it."""
    from lakegate.turns.stores.memory import MemoryTurnStore

    if not _MEMORY:
        _MEMORY.append(MemoryTurnStore())
    return _MEMORY[0]


def locate(spark: SparkSession, table: TableSpec) -> TableLocation:
    """Returns the path of a table.

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


def make_private(storage: str) -> None:
    """Makes the storage folders in which Spark writes: Spark would let everybody read them.

    Raises:
        Unavailable: A folder cannot be made.
    """
    try:
        for name in ("ledger", "checkpoints", "requests", "dead_letters"):
            make_folder(Path(storage) / name)
    except OSError as error:
        raise Unavailable(f"the storage cannot be written: {error.strerror}", path=storage) from error


JVM_GONE_S = 2.0
"""How long an error is held back to check whether the JVM is ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The shared parts of the jobs of one pipeline: the store of turns, the storage, the tables' logs, and the watchers."""

    spark: SparkSession
    storage: str
    store: TurnStore
    log: DeltaTableLog
    events: EventSink
    process: Process
    """This driver: its Python process and its JVM."""

    @classmethod
    def open(cls, spark: SparkSession, *, url: str, storage: str, watchers: Sequence[EventSink] = ()) -> Self:
        """Opens the store and the ledger.

        Raises:
            MissingExtra: the session was made without Delta, or without Lakegate's jar.
            UnsupportedTable: the session has a Delta version that this release does not support.
            Unavailable: the store or the ledger cannot be used.
        """
        check_jvm(spark)
        events = Tee([LedgerSink(storage), LogSink(), *watchers])
        jvm: Any = spark._jvm
        return cls(
            spark=spark,
            storage=storage,
            store=open_store(url),
            log=SettledTableLog(spark),
            events=events,
            process=this_process(int(jvm.java.lang.ProcessHandle.current().pid())),
        )

    def coordinator(
        self,
        *,
        lock: str,
        job: str,
        order: Order,
        lock_timeout_s: float,
        on_lost: Callable[[str], None],
        known_epoch: int = 0,
    ) -> Coordinator:
        """Returns one run's side of a lock."""
        ports = RunnerPorts(
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
            process=self.process,
            lock_timeout_s=lock_timeout_s,
            on_lost=on_lost,
            known_epoch=known_epoch,
        )

    def jvm_ended(self, error: BaseException) -> JvmEnded | None:
        """Returns the error to raise instead if the JVM of this driver has ended, as by the out-of-memory killer; else None."""
        pid, start = self.process.jvm_pid, self.process.jvm_start
        if pid is None or start is None or isinstance(error, KeyboardInterrupt):
            return None
        # Connections break a moment before the process is gone.
        deadline_s = time.monotonic() + (0.0 if isinstance(error, LakegateError) else JVM_GONE_S)
        while self.process.is_running(pid, start):
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(0.05)
        ended = JvmEnded(pid=pid)
        ended.__cause__ = error
        return ended

    def close(self) -> None:
        """Closes the store's connections."""
        self.store.close()

    def say(self, error: LakegateError) -> None:
        """Reports an error that will be retried to the watchers."""
        self.events.emit(Noticed(job=None, text=f"{error.summary}. {error.advice}"))
