"""Runs a statement through its driver's publisher, and reports the result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakegate.delta.actions import Body
from lakegate.delta.idempotent_writes import APP_ID_CONF, NUMBER_CONF, second_write
from lakegate.delta.jvm import check_jvm, silence
from lakegate.delta.storage_errors import in_plain_words
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import Publisher, Staged
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.pending_appends import Announced
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml
from lakegate.rows.transaction import Meets, unknown
from lakegate.telemetry.events import StatementPublished

_guard = threading.Lock()
_publishers: dict[str, Publisher] = {}
_collectors = threading.local()
_turn_writes = threading.local()
_callbacks: list[Callable[[StatementPublished], None]] = []
LOGGER = logging.getLogger("lakegate")


def publisher(spark: SparkSession) -> Publisher:
    """Returns the publisher of a session's JVM.

    Raises:
        MissingExtra: The session was made without Delta, or without Lakegate's jar.
        UnsupportedTable: The session has a Delta for which this release was not made.
    """
    application = str(spark.sparkContext.applicationId)
    with _guard:
        if application not in _publishers:
            check_jvm(spark)
            _leave_lost_merges_to_us(spark)
            _publishers.clear()  # a driver has one application at a time
            _publishers[application] = Publisher(spark)
        return _publishers[application]


def _leave_lost_merges_to_us(spark: SparkSession) -> None:
    """Silences Delta's log of a MERGE whose commit was kept, which is a fatal error there; real errors are raised anyway."""
    silence(spark, "org.apache.spark.sql.delta.commands.MergeIntoCommand")


class Collector:
    """Takes the one statement of a function: it is executed and not committed."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.staged: Staged | None = None

    def take(self, dml: Dml) -> Result:
        """Executes the statement without committing it.

        Raises:
            InvalidRequest: The function has already made a statement; nothing was written.
        """
        if self.staged is not None:
            raise InvalidRequest(
                "with coverage `publish` a batch is one statement, as a second one would not see what the first one did; "
                "nothing was written",
                advice="Make it one MERGE, or leave the coverage `exclusive`",
            )
        self.staged = self._publisher.stage(dml)
        return Result(version=None, is_superseded=False, level=0, attempts=1, lost_puts=0, reasons=())


def stage(spark: SparkSession, table: TableLocation, operation: Operation, execute: Callable[[], object]) -> Staged:
    """Executes a statement; `finish` commits it. `operation` is `INSERT`, or one that reads the table."""
    return publisher(spark).stage(Dml(session=spark, table=table, operation=operation, execute=execute))


def stage_append(
    spark: SparkSession, rows: DataFrame, table: TableLocation, options: Mapping[str, str] | None = None
) -> Staged:
    """Writes the files of an append; `finish` commits it. `options` are those of Delta's writer."""
    writer = rows.write.format("delta").mode("append").options(**(options or {}))
    return stage(spark, table, Operation.INSERT, lambda: writer.save(table))


@in_plain_words()
def put(
    spark: SparkSession, table: TableLocation, operation: Operation, execute: Callable[[], object], token: WriteToken
) -> Result:
    """Executes and commits a statement with a token; Delta's work after the commit, such as a checkpoint, runs in the background.

    Args:
        spark: The session in which it is executed.
        table: Its table.
        operation: `INSERT`, or one that reads the table.
        execute: Runs it with the token in its options or in the session's settings, so that Delta skips a repeated write.
        token: The same token.
    """
    dml = Dml(session=spark, table=table, operation=operation, execute=execute)
    return _reported(dml, publisher(spark).publish(dml, token))


@contextmanager
def collected(spark: SparkSession) -> Iterator[Collector]:
    """Collects the statement that this thread executes in the block, without committing it; any other commit is refused."""
    collector = Collector(publisher(spark))
    _collectors.now = collector
    try:
        with publisher(spark).gate.closed():
            yield collector
    finally:
        _collectors.now = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWrite:
    """The one write that user code may make in its turn, or in a step of it, before the next step."""

    session: SparkSession
    """Its settings carry the token for stock writes."""
    token: WriteToken
    since: Mapping[str, Version]
    """Table → version at which its tokens were read; the tables that the turn fences."""
    applied: frozenset[str]
    """Those of them that already have the write."""

    def is_meant(self, dml: Dml) -> bool:
        """Returns True if a statement is this write, and its own session does not carry the token."""
        return plain(dml.table) in self.since and dml.session.conf.get(APP_ID_CONF, None) != self.token.token_id

    def make(self, dml: Dml) -> Result:
        """Executes and commits the write, with the token.

        Raises:
            InvalidRequest: The write was made before; this is a second one.
        """
        # As Delta does for stock writes: a write that has used the number removes it from the settings.
        if self.session.conf.get(NUMBER_CONF, None) != str(self.token.number):
            raise second_write()
        if plain(dml.table) in self.applied:
            result = Result(version=None, is_superseded=True, level=0, attempts=0, lost_puts=0, reasons=())
        else:
            shared = publisher(dml.session)
            staged = replace(shared.stage(dml), since=self.since[plain(dml.table)])
            result = shared.finish(staged, self.token)
        if result.version is not None or result.is_superseded:
            self.session.conf.unset(NUMBER_CONF)
        return result


@contextmanager
def in_turn(write: TurnWrite) -> Iterator[None]:
    """Gives the turn's token to statements that this thread executes in the block, in any session."""
    before = getattr(_turn_writes, "now", None)
    _turn_writes.now = write
    try:
        yield
    finally:
        _turn_writes.now = before


@in_plain_words()
def run(dml: Dml) -> Result:
    """Executes a statement and commits it."""
    collector: Collector | None = getattr(_collectors, "now", None)
    if collector is not None:
        return collector.take(dml)
    write: TurnWrite | None = getattr(_turn_writes, "now", None)
    if write is not None and write.is_meant(dml):
        return _reported(dml, write.make(dml))
    return _reported(dml, publisher(dml.session).publish(dml))


def plain(location: str) -> str:
    """Returns a table's location as a key: a path of local disk has one form, however it is written."""
    return location.removeprefix("file:").replace("//", "/").rstrip("/")


@in_plain_words()
def finish(staged: Staged, stamp: WriteToken | None = None, meets: Meets = unknown) -> Result:
    """Commits a staged statement."""
    return _reported(staged.dml, publisher(staged.dml.session).finish(staged, stamp, meets))


def known(staged: Staged) -> Version:
    """Returns the version of the statement's table that this driver knows."""
    return publisher(staged.dml.session).base(staged.dml).version


def follow(staged: Staged, meets: Meets = unknown) -> Staged:
    """Rebases a staged statement on the commits made since, without committing it: `finish` then has less to do."""
    return publisher(staged.dml.session).follow(staged, meets)


def speculate(staged: Staged, coming: Mapping[str, Body], meets: Meets) -> Staged:
    """Rebases a staged statement speculatively on pending appends of this driver; see `coming`."""
    return publisher(staged.dml.session).speculate(staged, coming, meets)


def announce(staged: Staged, job: str, batch: int) -> None:
    """Announces, within this driver, an append that the job is going to commit for a batch."""
    publisher(staged.dml.session).coming.announce(staged.dml.table, job, batch, staged.commit)


def withdraw(spark: SparkSession, table: TableLocation, job: str) -> None:
    """Withdraws the job's announcement: the append is committed, or will not be."""
    publisher(spark).coming.withdraw(table, job)


def coming(spark: SparkSession, table: TableLocation, jobs: Collection[str] | None = None) -> dict[str, Body]:
    """Returns path → `add` of the files that these jobs, or all jobs, have announced."""
    return publisher(spark).coming.adds(table, jobs)


def announced(spark: SparkSession, table: TableLocation, job: str) -> Announced | None:
    """Returns the append that a job has announced."""
    return publisher(spark).coming.of(table, job)


def on_statement(callback: Callable[[StatementPublished], None]) -> Callable[[], None]:
    """Registers a callback for every statement that this process publishes; returns a function that removes it.

    The callback runs in the statement's thread, after its commit; its errors are logged and ignored.
    """
    _callbacks.append(callback)
    return lambda: _callbacks.remove(callback)


def _reported(dml: Dml, result: Result) -> Result:
    """Passes a statement's result to the callbacks, and returns it."""
    counts = {one.name: getattr(result, one.name) for one in fields(StatementPublished) if hasattr(result, one.name)}
    event = StatementPublished(table=dml.table, operation=dml.operation.value, **counts)
    LOGGER.debug("%s", event)
    for callback in list(_callbacks):
        try:
            callback(event)
        except Exception:
            LOGGER.exception("a callback for statements failed")
    return result


def location_of(jdt: Any) -> TableLocation:
    """Returns the table's location of a stock `DeltaTable`'s JVM object."""
    return TableLocation(str(jdt.deltaLog().dataPath().toString()))
