"""The functions behind the read-only commands: they find the store, the logs and the checkpoints of a pipeline.

On the same layer as `runtime.py`. Nothing is created; Spark is started only where a function takes or makes a session.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakegate import settings
from lakegate.config import (
    Append,
    Erase,
    FilesSource,
    KafkaSource,
    Mutate,
    Pipeline,
    StreamSpec,
    SyncSpec,
    TableSpec,
)
from lakegate.config.coordinators import coordinator_place
from lakegate.delta.commit_file import Commit
from lakegate.delta.local_files import LocalCheckpoint, LocalLog, local_path, sqlite_file
from lakegate.errors import InvalidRequest, LakegateError, Unavailable
from lakegate.ids import TableLocation
from lakegate.ops import check, doctor
from lakegate.ops.erasure import BytesLeft, bytes_left
from lakegate.ops.finding import Finding, of_error
from lakegate.ops.kafka_lag import TopicLag, topic_lags
from lakegate.ops.status import LockStatus, lock_status
from lakegate.ops.stored_requests import StateCount, kept, set_aside
from lakegate.ops.verify import Counted, VerifiedTables, verify
from lakegate.spark.source_files import PassedOver, TakenFiles, is_local, listing, passed_over
from lakegate.syncs.plan.delay import SyncDelay
from lakegate.telemetry.events import LeftOut, PersonActed, TurnEnded
from lakegate.telemetry.ledger import read_actions, read_left_out, to_line
from lakegate.telemetry.ledger_days import newest_first, read_ledger, read_summary
from lakegate.telemetry.turn_totals import Totals
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.transitions import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lakegate.delta.table_log import DeltaTableLog
    from lakegate.syncs.session import SyncSession

NOBODY = Sessions(ids=frozenset(), jobs=frozenset())


@contextlib.contextmanager
def existing_store(url: str) -> Iterator[TurnStore | None]:
    """Opens the store of turns if it exists, until the block ends; yields None where nothing has run yet.

    Raises:
        Unavailable, InvalidRequest: As `site.open_store`.
    """
    from lakegate.runtime import open_store  # imports Spark, which takes a second

    file = sqlite_file(url)
    if file is not None and not file.exists():
        yield None
        return
    with contextlib.closing(open_store(url)) as store:
        yield store


def table_named(pipeline: Pipeline, name: str) -> TableSpec:
    """Returns the table of the file that `name` means: its name in the file, its path, or its name in the catalog.

    Raises:
        InvalidRequest: No such table.
    """
    if name in pipeline.tables:
        return pipeline.tables[name]
    wanted = str(Path(name).absolute())
    for table in pipeline.tables.values():
        if name == table.catalog_name or (table.path is not None and table.path in (name, wanted)):
            return table
    raise InvalidRequest(
        f"there is no table {name!r} in the pipeline; nothing was done",
        advice=f"The tables are: {', '.join(pipeline.tables)}",
    )


def stream_named(pipeline: Pipeline, name: str) -> StreamSpec:
    """Returns the stream of that name.

    Raises:
        InvalidRequest: No such stream.
    """
    try:
        return pipeline.stream(name)
    except KeyError:
        known = ", ".join(spec.name for spec in pipeline.streams)
        raise InvalidRequest(
            f"there is no stream {name!r}; nothing was done", advice=f"The streams are: {known}"
        ) from None


def locations(pipeline: Pipeline) -> dict[str, TableLocation]:
    """Returns table → path. Starts Spark if a table is known only by its name in the catalog.

    Raises:
        InvalidRequest: The catalog has no such table.
    """
    found = {name: TableLocation(table.path) for name, table in pipeline.tables.items() if table.path is not None}
    if len(found) < len(pipeline.tables):
        from lakegate.runtime import locate, session_for

        spark = session_for(pipeline)
        found |= {name: locate(spark, table) for name, table in pipeline.tables.items() if name not in found}
    return found


def requests_of(pipeline: Pipeline, stream: StreamSpec) -> str:
    """Returns the path of the requests of a `mutate` or `erase` stream."""
    return f"{pipeline.storage}/requests/{stream.name}"


def checkpoint_of(stream: StreamSpec) -> LocalCheckpoint | None:
    """Returns the stream's checkpoint if it is on this machine's disk."""
    path = None if stream.checkpoint is None else local_path(stream.checkpoint)
    return None if path is None else LocalCheckpoint(path)


def local_logs(places: Iterable[str]) -> dict[str, LocalLog]:
    """Returns location → log, for the tables that exist and are on this machine's disk."""
    found = {}
    for place in places:
        path = local_path(place)
        if path is not None and LocalLog(path).exists:
            found[place] = LocalLog(path)
    return found


def verify_pipeline(pipeline: Pipeline) -> VerifiedTables:
    """Compares turns, batches and logs with one another; see `checks.verify`.

    Raises:
        Corrupt: A file breaks its format.
    """
    rows = read_ledger(pipeline.storage)
    places = locations(pipeline)
    streams = []
    for stream in pipeline.streams:
        if stream.source is None:
            continue
        is_append = isinstance(stream.kind, Append)
        streams.append(
            Counted(
                job=stream.name,
                lock=pipeline.lock_of(stream),
                table=places[stream.table] if is_append else requests_of(pipeline, stream),
                step="append" if is_append else "store",
                checkpoint=checkpoint_of(stream),
            )
        )
    written = {table for row in rows for table in row.versions}
    logs = local_logs(dict.fromkeys([*places.values(), *(stream.table for stream in streams), *sorted(written)]))
    for counted in list(streams):
        path = local_path(counted.table)
        if counted.table in logs or path is None:
            continue
        # A stream that has not run has no request table yet; a request table that was lost after a run must be reported.
        if counted.checkpoint is not None and not counted.checkpoint.committed():
            streams.remove(counted)
        else:
            logs[counted.table] = LocalLog(path)
    found = verify(rows, streams, logs)
    spark = None
    if any(map(is_far, pipeline.streams)):
        from lakegate.runtime import session_for

        spark = session_for(pipeline)
    for source in sources_of(pipeline, spark=spark):
        for one in source.not_read:
            if one.reason == "rewritten":
                found.broken(source.job, str(one))
            else:
                found.unchecked.append(f"{source.job}: {one}")
        found.unchecked += [f"{source.job}: {one.text}" for one in source.left_out]
        if source.note is not None:
            found.unchecked.append(f"{source.job}: {source.note}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureStatus:
    """The files that an erase stream has left on disk, or why they cannot be counted."""

    job: str
    left: BytesLeft | None
    note: str | None


def status_of(pipeline: Pipeline) -> list[LockStatus]:
    """Returns the current state of every lock of the pipeline."""
    with existing_store(pipeline.coordinator.url) as store:
        return locks_in(store, pipeline)


def locks_in(store: TurnStore | None, pipeline: Pipeline) -> list[LockStatus]:
    """Returns the state of every lock of the pipeline in an open store; None: nothing has run yet."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for lock in dict.fromkeys(table.lock for table in pipeline.tables.values()):
        streams = pipeline.streams_of_lock(lock)
        rules = {stream.name: stream.order for stream in streams}
        record = None if store is None else store.read(lock).record
        live = NOBODY if store is None else store.live_sessions(lock)
        paces = {stream.name: stream.every_ms for stream in streams}
        priorities = {stream.name: stream.priority for stream in streams}
        found.append(lock_status(lock, record, live, now_ms, rules, paces, priorities))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStatus:
    """The contents of a stream's request table, or why they cannot be counted."""

    job: str
    kept: tuple[StateCount, ...]
    note: str | None


def kept_of(pipeline: Pipeline) -> list[KeptStatus]:
    """Returns the stored requests of each stream, by age."""
    found = []
    for stream in pipeline.streams:
        if not isinstance(stream.kind, Mutate | Erase):
            continue
        path = local_path(requests_of(pipeline, stream))
        try:
            rows = () if path is None else kept(LocalLog(path), time.time_ns() // 1_000_000)
            note = "requests are counted only on this machine's disk" if path is None else None
        except LakegateError as error:
            rows, note = (), f"requests cannot be counted: {error.message}"
        found.append(KeptStatus(job=stream.name, kept=rows, note=note))
    return found


def letters_of(pipeline: Pipeline) -> list[KeptStatus]:
    """Returns the records that each stream has set aside, by age; streams without any are left out."""
    found = []
    for stream in pipeline.streams:
        path = local_path(f"{pipeline.storage}/dead_letters/{stream.name}")
        try:
            one = None if path is None else set_aside(LocalLog(path), time.time_ns() // 1_000_000)
            note = "dead letters are counted only on this machine's disk" if path is None else None
        except LakegateError as error:
            one, note = None, f"dead letters cannot be counted: {error.message}"
        if one is not None or note is not None:
            found.append(KeptStatus(job=stream.name, kept=() if one is None else (one,), note=note))
    return found


def erasures_of(pipeline: Pipeline) -> list[ErasureStatus]:
    """Returns the files that each erase stream has left on disk."""
    found = []
    for stream in pipeline.streams:
        if not isinstance(stream.kind, Erase):
            continue
        table = pipeline.table_of(stream)
        path = None if table.path is None else local_path(table.path)
        if path is None:
            note = "files are counted only for a table with a path on this machine's disk"
            found.append(ErasureStatus(job=stream.name, left=None, note=note))
            continue
        # Its own requests are left out: they name erased persons as long as the erasures are active.
        others = [one for one in pipeline.streams if one.table == stream.table and one.name != stream.name]
        requests = [
            *(LocalLog(Path(requests_of(pipeline, one))) for one in others if isinstance(one.kind, Mutate)),
            *(LocalLog(Path(f"{pipeline.storage}/dead_letters/{one.name}")) for one in others),
        ]
        try:
            left = bytes_left(stream.name, LocalLog(path), requests, within_ms=stream.kind.physical_within_ms)
            found.append(ErasureStatus(job=stream.name, left=left, note=None if left else "nothing was erased yet"))
        except Unavailable as error:
            found.append(ErasureStatus(job=stream.name, left=None, note=f"files cannot be counted: {error.message}"))
    return found


LAG_TIMEOUT_S = 3.0
"""A broker that does not answer must not block the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagStatus:
    """The records that a stream has not read of its topics yet, or why that is unknown."""

    job: str
    topics: tuple[TopicLag, ...]
    note: str | None


def lags_of(pipeline: Pipeline) -> list[LagStatus]:
    """Returns the lag of each stream that reads Kafka."""
    from lakegate.syncs.sources.kafka import reach

    found = []
    for stream in pipeline.streams:
        source = stream.source
        if not isinstance(source, KafkaSource):
            continue
        checkpoint = checkpoint_of(stream)
        topics: tuple[TopicLag, ...] = ()
        note = None if checkpoint else "its checkpoint is not on this machine's disk"
        if checkpoint is not None:
            try:
                taken = checkpoint.kafka_offsets()
                firsts, ends = reach(source.servers, source.options, source.topics, timeout_s=LAG_TIMEOUT_S)
                topics = topic_lags(taken, firsts, ends)
            except LakegateError as error:
                note = error.message
        found.append(LagStatus(job=stream.name, topics=topics, note=note))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayStatus:
    """The delay of a sync, or why it is unknown."""

    sync: str
    delay: SyncDelay | None
    note: str | None
    dead_rows: int | None = None
    """Rows that the target has quarantined; None if that is unknown."""


def delays_of(pipeline: Pipeline) -> list[DelayStatus]:
    """Returns the delay of each sync. A target that does not answer is reported, not raised."""
    found = []
    if pipeline.syncs:
        from lakegate.syncs.session import SyncSession
    for spec in pipeline.syncs:
        try:
            with SyncSession(pipeline, spec) as session:
                now = session.standing()
            found.append(DelayStatus(sync=spec.name, delay=now.delay, note=None, dead_rows=now.dead_rows))
        except LakegateError as error:
            found.append(DelayStatus(sync=spec.name, delay=None, note=error.message))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The part of its source that a stream has not read, or why that is unknown."""

    job: str
    not_read: tuple[PassedOver, ...]
    """Files that exist."""
    left_out: tuple[LeftOut, ...]
    """Files that are missing, according to the ledger."""
    note: str | None


def is_far(stream: StreamSpec) -> bool:
    """Returns True if the stream's files, or their log in its checkpoint, are not on this machine's disk: Spark reads them."""
    if not isinstance(stream.source, FilesSource) or stream.checkpoint is None:
        return False
    return local_path(stream.checkpoint) is None or not is_local(stream.source.path)


def sources_of(pipeline: Pipeline, *, spark: SparkSession | None = None) -> list[SourceStatus]:
    """Returns each stream that has not read all of its current source, or for which that is unknown.

    Args:
        pipeline: The file.
        spark: Reads what is not on this machine's disk; None: skipped, and reported as skipped.
    """
    found = []
    for stream in pipeline.streams:
        if stream.source is None or stream.checkpoint is None:
            continue
        not_read: tuple[PassedOver, ...] = ()
        left_out: tuple[LeftOut, ...] = ()
        note = None
        try:
            left_out = tuple(read_left_out(pipeline.storage, stream.name))
            if isinstance(stream.source, FilesSource):
                checkpoint = local_path(stream.checkpoint)
                if spark is not None and is_far(stream):
                    not_read = _far(spark, stream.source, stream.checkpoint)
                elif is_far(stream) or checkpoint is None:
                    note = "its files or its checkpoint are not on this machine's disk: they are compared by the run and by verify"
                else:
                    there = listing(stream.source.path)
                    not_read = tuple(passed_over(there, TakenFiles(checkpoint).refresh(), is_drained=False))
        except LakegateError as error:
            note = f"its source cannot be read: {error.message}"
        if not_read or left_out or note is not None:
            found.append(SourceStatus(job=stream.name, not_read=not_read, left_out=left_out, note=note))
    return found


def _far(spark: SparkSession, source: FilesSource, location: str) -> tuple[PassedOver, ...]:
    from lakegate.delta.storage_errors import in_plain_words
    from lakegate.spark.checkpoint import Checkpoint
    from lakegate.spark.sources import compared, listed

    with in_plain_words():
        there = listed(spark, source.path)
        checkpoint = local_path(location)
        taken = TakenFiles(Checkpoint(spark, location) if checkpoint is None else checkpoint).refresh()
        return tuple(compared(spark, source, there, taken, is_drained=False))


def history_of(pipeline: Pipeline, table: TableSpec) -> Iterator[TurnEnded]:
    """Yields the turns of the table's lock in which one of its streams wrote, or tried to; newest first."""
    places = {table.path} if table.path is not None else set(locations(pipeline).values())
    jobs = {stream.name for stream in pipeline.streams if stream.table == table.name}
    for row in newest_first(pipeline.storage, table.lock):
        if row.job in jobs or not places.isdisjoint(row.versions):
            yield row


def turn_as_json(row: TurnEnded) -> dict[str, Any]:
    """Returns a turn in the ledger's own form, without its `format`."""
    return {key: value for key, value in json.loads(to_line(row)).items() if key != "format"}


def check_pipeline(pipeline: Pipeline, *, spark: SparkSession | None) -> list[Finding]:
    """Finds every fault of a pipeline that is visible before it runs; see `checks.check` and `checks.resolve`.

    Args:
        pipeline: A file without a fault of its own.
        spark: Resolves SQL and reads tables; None: these checks are skipped.
    """
    places = check.Places(pipeline)
    found = [*check.notes(pipeline), *check.storage(pipeline, places)]
    found += check.turns(pipeline, lambda: existing_store(pipeline.coordinator.url), places)
    rows: list[TurnEnded] = []
    try:
        rows = read_summary(pipeline.storage).rows
    except LakegateError as error:
        found += of_error(error, places.of("storage"))
    for table in pipeline.tables.values():
        found += check.table_folder(table, places)
    for stream in pipeline.streams:
        found += check.checkpoint(stream, rows, places)
        if spark is None or not isinstance(stream.source, FilesSource) or stream.source.schema is not None:
            found += check.source(stream, places)
    for sync in pipeline.syncs:
        found += _sync(pipeline, sync, places)
    if not pipeline.streams:
        return found
    if spark is None:
        skipped = "SQL, schemas and tables were not checked, because of --no-spark"
        return [*found, Finding(level="note", where="Spark", what=skipped)]
    broken = {one.where for one in found if one.level == "fault"}
    return found + _resolve(pipeline, spark, places, broken)


def _sync(pipeline: Pipeline, sync: SyncSpec, places: check.Places) -> list[Finding]:
    """Checks that the sync's target answers, and that its source exists."""
    from lakegate.syncs.session import SyncSession  # imports nothing of Spark

    found: list[Finding] = []
    looks: list[tuple[str, Callable[[SyncSession], object]]] = [
        ("from", SyncSession.newest),
        ("to", SyncSession.standing),
    ]
    for key, look in looks:
        where = places.of(f"sync.{sync.name}.{key}")
        try:
            with SyncSession(pipeline, sync) as session:
                look(session)
        except LakegateError as error:
            found += of_error(error, where)
    return found


def _resolve(pipeline: Pipeline, spark: SparkSession, places: check.Places, broken: set[str]) -> list[Finding]:
    from lakegate.delta.table_log import DeltaTableLog
    from lakegate.ops import schema_checks
    from lakegate.runtime import locate

    found: list[Finding] = []
    log = DeltaTableLog(spark)
    coordinator_id = None
    with contextlib.suppress(LakegateError), existing_store(pipeline.coordinator.url) as store:  # reported already
        coordinator_id = None if store is None else store.coordinator_id()
    known: dict[str, schema_checks.KnownTable] = {}
    for name, table in pipeline.tables.items():
        if places.of(f"tables.{name}.path") in broken:
            continue
        try:
            location = locate(spark, table)
        except LakegateError as error:
            found += of_error(error, places.of(f"tables.{name}.name"))
            continue
        known[name], said = schema_checks.table(
            spark, log, table, location, coordinator_id, coordinator_place(pipeline.coordinator.url), places
        )
        found += said
        if known[name].exists:
            found += _standing(pipeline, spark, log, table, location, places)
    appended: dict[str, StructType] = {}
    streams = sorted(pipeline.streams, key=lambda stream: not isinstance(stream.kind, Append))
    for stream in streams:
        there = known.get(stream.table)
        if there is not None and there.schema is None and stream.table in appended:
            there = replace(there, schema=appended[stream.table])
        schema, said = schema_checks.stream(spark, stream, there, places)
        if schema is not None:
            appended.setdefault(stream.table, schema)
        found += [one for one in said if one.where not in broken]
    return found


def _standing(
    pipeline: Pipeline,
    spark: SparkSession,
    log: DeltaTableLog,
    table: TableSpec,
    at: TableLocation,
    places: check.Places,
) -> list[Finding]:
    """Finds active requests for the table that are gone, belong to no stream, or have lost their columns."""
    from lakegate.streams.interfaces import StreamContext
    from lakegate.streams.requests.standing import RequestTables, recorded
    from lakegate.telemetry.tee import Tee
    from lakegate.turns.host import MachineClock

    neighbours = tuple(one for one in pipeline.streams if one.table == table.name)
    found: list[Finding] = []
    try:
        context = StreamContext(
            session=spark,
            log=log,
            storage=pipeline.storage,
            target=at,
            neighbours=neighbours,
            clock=MachineClock(),
            events=Tee([]),
            recorded=recorded(read_summary(pipeline.storage).rows),
        )
        for trouble in RequestTables(context).troubles():
            key = (
                f"streams.{trouble.stream}"
                if trouble.stream in {one.name for one in neighbours}
                else f"tables.{table.name}"
            )
            found.append(
                Finding(level="fault", where=places.of(key), what=trouble.what, advice=trouble.advice, exit_code=2)
            )
    except LakegateError as error:
        found += of_error(error, places.of(f"tables.{table.name}"))
    return found


def diagnose(pipeline: Pipeline | None, *, has_spark: bool) -> Iterator[Finding]:
    """Checks the machine, Spark, and the pipeline's storage, coordinator and tables; see `checks.doctor`.

    Args:
        pipeline: None: only the machine and Spark are checked.
        has_spark: A session may be started as a check.
    """
    streams = () if pipeline is None else pipeline.streams
    needs_kafka = any(isinstance(stream.source, KafkaSource) for stream in streams)
    needs_s3 = pipeline is not None and pipeline.needs_s3
    sets = ["delta", *(["kafka"] if needs_kafka else []), *(["s3a"] if needs_s3 else [])]
    found = list(doctor.machine(settings.java_sources(), settings.jar_sources(), sets))
    yield from found
    where = "Spark session"
    if not has_spark:
        yield Finding(level="note", where=where, what="not started, because of --no-spark")
    elif any(one.level == "fault" and one.where != "jars" for one in found):
        yield Finding(level="note", where=where, what="not started, because a requirement is missing")
    else:
        yield from _session(where, pipeline)
    if pipeline is not None:
        yield from doctor.place(pipeline, lambda: existing_store(pipeline.coordinator.url))


def diagnose_s3(pipeline: Pipeline | None, location: str, *, is_deep: bool, is_mended: bool) -> Iterator[Finding]:
    """Checks a table, or a checkpoint, on S3; see `checks.s3`.

    Raises:
        InvalidRequest: the location is not on S3, or no session for S3 can be made.
    """
    from lakegate.ops import s3
    from lakegate.runtime import new_session
    from lakegate.spark.log_stores import class_of, log_store_of

    if not location.startswith("s3a://"):
        raise InvalidRequest("--table is for tables on S3; nothing was done", advice="Write it as s3a://bucket/path")
    word, conf = ("auto", None) if pipeline is None else (pipeline.log_store, pipeline.spark)
    spark = new_session("lakegate doctor", conf=conf, s3=True, log_store=word)
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    name = log_store_of(spark, location).name
    yield from s3.examine(
        spark._jvm, hadoop, location, name, is_deep=is_deep, is_mended=is_mended, store_class=class_of(word)
    )


def _session(where: str, pipeline: Pipeline | None) -> Iterator[Finding]:
    from lakegate.delta.jvm import check_jvm
    from lakegate.runtime import new_session, session_for

    try:
        spark = new_session("lakegate doctor") if pipeline is None else session_for(pipeline)
        check_jvm(spark)
    except LakegateError as error:
        yield from of_error(error, where)
        return
    what = f"Spark {spark.version} with Delta, and with commits on local disk that are put-if-absent between processes"
    yield Finding(level="ok", where=where, what=what)


def commits_of(pipeline: Pipeline) -> list[tuple[str, Commit]]:
    """Returns every commit of the pipeline's tables on this machine's disk, each with its table's name in the file."""
    names = {str(place): name for name, place in locations(pipeline).items()}
    return [(names[place], commit) for place, log in local_logs(names).items() for commit in log.commits()]


def last_commits_of(pipeline: Pipeline, versions_max: int) -> list[tuple[str, Commit]]:
    """Returns the last commits of each table that has a path on this machine's disk, with the table's name. Starts no Spark."""
    names = {table.path: name for name, table in pipeline.tables.items() if table.path is not None}
    found = []
    for place, log in local_logs(names).items():
        newest = max(log.versions(), default=-1)
        found += [(names[place], commit) for commit in log.commits(newest - versions_max)]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLine:
    """A lock of the coordinator in a line."""

    lock: str
    epoch: int
    holder: str | None
    since_ms: int | None
    is_alive: bool | None
    """True if the holder is alive; None without a holder."""
    waiting: int
    in_doubt: int


def all_locks(pipeline: Pipeline) -> list[LockLine]:
    """Returns the pipeline's locks, and all others of its coordinator."""
    with existing_store(pipeline.coordinator.url) as store:
        names = dict.fromkeys([*(table.lock for table in pipeline.tables.values()), *(store.locks() if store else ())])
        return [_lock_line(store, lock) for lock in names]


def _lock_line(store: TurnStore | None, lock: str) -> LockLine:
    record = None if store is None else store.read(lock).record
    held = None if record is None else record.holder
    live = NOBODY if store is None else store.live_sessions(lock)
    return LockLine(
        lock=lock,
        epoch=0 if record is None else record.epoch,
        holder=None if held is None else held.job,
        since_ms=None if held is None else held.since_ms,
        is_alive=None if held is None else held.session in live.ids,
        waiting=0 if record is None else len(record.tickets),
        in_doubt=0 if record is None else len(record.in_doubt),
    )


def actions_of(pipeline: Pipeline) -> list[PersonActed]:
    """Returns the actions of persons on every lock, by time."""
    return read_actions(pipeline.storage)


def turns_of(pipeline: Pipeline) -> Iterator[TurnEnded]:
    """Yields the turns of every lock, the last one first."""
    return newest_first(pipeline.storage)


def last_turns_of(pipeline: Pipeline, turns_max: int) -> list[TurnEnded]:
    """Returns the last turns of each lock of the file, by lock, the last one first."""
    locks = dict.fromkeys(table.lock for table in pipeline.tables.values())
    return [row for lock in locks for row in islice(newest_first(pipeline.storage, lock), turns_max)]


def totals_of(pipeline: Pipeline) -> Totals:
    """Returns the sums of all turns, for each lock and job."""
    return read_summary(pipeline.storage).totals


def ledger_sizes(pipeline: Pipeline) -> frozenset[tuple[Path, int]] | None:
    """Returns the size of each file of the ledger: equal sizes mean equal rows. None while a file is being deleted."""
    try:
        return frozenset((path, path.stat().st_size) for path in (Path(pipeline.storage) / "ledger").rglob("*.jsonl"))
    except OSError:
        return None
