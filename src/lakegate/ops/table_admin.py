"""Commands of a person on tables and stored requests: govern a table, manage requests. On the layer of `runtime.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lakegate.config import Append, Erase, Mutate, Pipeline, StreamSpec, TableSpec
from lakegate.config.coordinators import coordinator_place
from lakegate.delta import ownership
from lakegate.delta.gate import Gate
from lakegate.delta.ownership import GovernedTable
from lakegate.delta.table_log import DeltaTableLog
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation, TokenId
from lakegate.ops.inspection import existing_store, stream_named, table_named
from lakegate.ports import Letter
from lakegate.rows.explain import Explanation
from lakegate.rows.sql import explain_sql
from lakegate.runtime import Site, locate, new_session, open_store, session_for
from lakegate.spark.log_stores import log_store_of
from lakegate.streams.dead_letters import Sent, SentAgain, StreamLetters
from lakegate.streams.interfaces import StreamContext, StreamKind
from lakegate.streams.pipeline_stream import kind_of
from lakegate.streams.requests import admin
from lakegate.streams.requests.admin import STUCK, StoredRequest, resend_requests
from lakegate.streams.requests.standing import RequestTables
from lakegate.streams.requests.table import STATES, RequestTable
from lakegate.telemetry.tee import Tee
from lakegate.turns.host import MachineClock
from lakegate.turns.protocol.fencing import PREFIX, job_token, lock_token, unpack
from lakegate.turns.protocol.ordering import ADHOC, NoRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.turn import HeldTurn

R = TypeVar("R")


def explain(statement: str, pipeline: Pipeline | None) -> Explanation:
    """Explains what a statement depends on, and how it behaves with concurrent statements; executes nothing.

    Args:
        statement: SQL.
        pipeline: The pipeline whose Spark settings are used, if any.

    Raises:
        InvalidRequest: The statement changes no Delta table, or cannot be parsed.
    """
    spark = new_session("lakegate explain") if pipeline is None else session_for(pipeline)
    return explain_sql(spark, statement)


def adopt(pipeline: Pipeline, name: str, lock: str | None) -> tuple[TableLocation, GovernedTable]:
    """Makes an existing table governed; its version and its data do not change. Idempotent.

    Args:
        pipeline: The pipeline whose coordinator grants the turns of the table's jobs.
        name: A table of the file, or the path of one that is not in it.
        lock: The lock; that of the file by default.

    Raises:
        InvalidRequest: The table does not exist, or another lock governs it; or it is not in the file and no lock was given.
        UnsupportedTable: The table's properties make Delta delete old tokens.
    """
    table = _table_or_path(pipeline, name, lock)
    spark = session_for(pipeline)
    location = locate(spark, table)
    tokens = DeltaTableLog(spark).read_tokens(location).tokens
    others = {one for one in tokens if one.startswith(f"{PREFIX}lock/")} - {lock_token(table.lock)}
    if others and ownership.read_governed(spark, location) is None:
        raise InvalidRequest(
            "the table is written under another lock; nothing was changed",
            advice="Name that lock, or let its jobs end and their turns be forgotten with the table",
            table=location,
            lock=min(others).removeprefix(f"{PREFIX}lock/"),
            wanted=table.lock,
        )
    with contextlib.closing(open_store(pipeline.coordinator.url)) as turns:
        coordinator_id = turns.coordinator_id()
    store = log_store_of(spark, location)
    return location, ownership.adopt(
        spark,
        location,
        table.lock,
        coordinator_id,
        store.name,
        coordinator=coordinator_place(pipeline.coordinator.url),
        log_store_args=store.args,
    )


def release(pipeline: Pipeline, name: str) -> tuple[TableLocation, bool]:
    """Removes the note that makes a table governed; returns True if there was one.

    Raises:
        InvalidRequest: One of its jobs has the turn.
    """
    table = _table_or_path(pipeline, name, "")
    spark = session_for(pipeline)
    location = locate(spark, table)
    with existing_store(pipeline.coordinator.url) as store:
        record = None if store is None or not table.lock else store.read(table.lock).record
    if record is not None and record.holder is not None and location in record.holder.tables:
        raise InvalidRequest(
            f"{record.holder.job} has the turn on the table; it was not released",
            advice="Wait until it has ended: lakegate status",
            table=location,
        )
    return location, ownership.release(spark, location)


def _table_or_path(pipeline: Pipeline, name: str, lock: str | None) -> TableSpec:
    try:
        table = table_named(pipeline, name)
    except InvalidRequest:
        if lock is None or ("/" not in name and not Path(name).exists()):
            raise
        path = name if "://" in name else str(Path(name).absolute())
        return TableSpec(name=name, path=path, catalog_name=None, lock=lock, columns=None)
    if lock and lock != table.lock:
        raise InvalidRequest(
            f"the file says that {table.name} has the lock {table.lock}, and --lock says {lock}; nothing was changed",
            advice="Leave --lock out, or correct the file",
        )
    return table


# -------------------------------------------------------------------------------------------------------- requests


def stream_context(pipeline: Pipeline, stream: StreamSpec) -> StreamContext:
    """Returns the context of a stream, for a person who inspects its stored data. Starts Spark."""
    spark = session_for(pipeline)
    return StreamContext(
        session=spark.newSession(),
        log=DeltaTableLog(spark),
        storage=pipeline.storage,
        target=locate(spark, pipeline.table_of(stream)),
        neighbours=tuple(one for one in pipeline.streams if one.table == stream.table),
        clock=MachineClock(),
        events=Tee([]),
    )


def last_batch(site: Site, token_id: TokenId, tables: Sequence[TableLocation]) -> int:
    """Returns the highest batch of a token id in these tables; -1 where there is none."""
    stored = [site.log.read_tokens(table).tokens.get(token_id) for table in tables]
    return max((unpack(number).batch for number in stored if number is not None), default=-1)


@contextlib.contextmanager
def adhoc_turn(
    site: Site, pipeline: Pipeline, lock: str, token_id: TokenId, tables: Sequence[TableLocation]
) -> Iterator[HeldTurn]:
    """Opens a turn of the job `adhoc` on a lock.

    Raises:
        TurnNotGranted: Not granted in time; nothing was changed.
    """
    coordinator = site.coordinator(
        lock=lock,
        job=ADHOC,
        order=Order(rule=NoRule(), absent_after_ms=None),
        lock_timeout_s=pipeline.coordinator.lock_timeout_ms / 1000,
        on_lost=lambda reason: None,
    )
    try:
        turn = coordinator.take(token_id=token_id, query_id=None, batch=None, tables=tuple(tables))
        try:
            yield turn
        except InvalidRequest:
            turn.complete()  # refused, and nothing is running
            raise
        except BaseException as error:
            turn.abandon(error)
            raise
        turn.complete()
    finally:
        coordinator.close()


def accept_loss(pipeline: Pipeline, name: str, reason: str) -> TableLocation:
    """Lets the streams of a table go on although active requests are gone; returns the table.

    Args:
        pipeline: The file.
        name: The stream that stored the requests; it may no longer be in the file.
        reason: The reason; it is stored in the note next to the table.

    Raises:
        InvalidRequest: No active requests of that stream exist for a table of the file; nothing was changed.
    """
    spark = session_for(pipeline)
    log = DeltaTableLog(spark)
    for table in pipeline.tables.values():
        location = locate(spark, table)
        context = StreamContext(
            session=spark.newSession(),
            log=log,
            storage=pipeline.storage,
            target=location,
            neighbours=tuple(one for one in pipeline.streams if one.table == table.name),
            clock=MachineClock(),
            events=Tee([]),
        )
        if log.head(location) >= 0 and RequestTables(context).accept_loss(name, reason=reason):
            return location
    raise InvalidRequest(
        f"no active requests of a stream {name!r} exist for a table of the file; nothing was changed",
        advice="See what is missing with: lakegate check",
    )


class RequestDesk:
    """Stored requests of one stream, for a person who inspects, retries or drops them."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        """Opens the desk of a stream.

        Raises:
            InvalidRequest: There is no such stream, or it stores no requests.
        """
        self._stream = stream_named(pipeline, name)
        if not isinstance(self._stream.kind, Mutate | Erase):
            what = "appends records" if isinstance(self._stream.kind, Append) else "maintains files"
            raise InvalidRequest(
                f"{name} {what} and stores no requests; nothing was done",
                advice="Name a stream of kind mutate or erase",
            )
        self._pipeline = pipeline
        self._context = stream_context(pipeline, self._stream)

    def rows(self, states: Sequence[str], *, rows_max: int) -> list[StoredRequest]:
        """Returns the newest requests in these states; all states if none is named. Never their values."""

        unknown = [state for state in states if state not in STATES]
        if unknown:
            raise InvalidRequest(
                f"there is no state {unknown[0]!r}; nothing was read", advice=f"The states are: {', '.join(STATES)}"
            )
        return admin.list_requests(self._context, self._stream, tuple(states) or STATES, rows_max=rows_max)

    def replay(self, ids: Sequence[str]) -> int:
        """Sets dead requests back to waiting, in a turn; returns their number.

        Raises:
            InvalidRequest: One of them is not dead, or another try would fail the same way; nothing was changed.
            TurnNotGranted: Not granted in time; nothing was changed.
        """
        return self._in_turn(ids, lambda turn: admin.replay_requests(turn, self._context, self._stream, ids))

    def drop(self, ids: Sequence[str], reason: str) -> int:
        """Drops dead requests, in a turn; returns their number.

        Raises:
            InvalidRequest, TurnNotGranted: As `replay`.
        """
        return self._in_turn(
            ids,
            lambda turn: admin.drop_requests(turn, self._context, self._stream, ids, reason=reason),
            states=STUCK,
        )

    def _in_turn(self, ids: Sequence[str], work: Callable[[HeldTurn], int], states: Sequence[str] = ("dead",)) -> int:
        """Runs `work` in a turn of the job `adhoc`."""
        location = self._context.requests_of(self._stream)
        self.refuse_unless_in(states, ids)
        pipeline = self._pipeline
        session, token_id = self._context.session, job_token(ADHOC)
        with (
            contextlib.closing(Site.open(session, url=pipeline.coordinator.url, storage=pipeline.storage)) as site,
            adhoc_turn(site, pipeline, pipeline.lock_of(self._stream), token_id, (location,)) as turn,
        ):
            turn.next_batch(last_batch(site, token_id, (location,)) + 1, None)
            return work(turn)

    def refuse_unless_in(self, states: Sequence[str], ids: Sequence[str]) -> None:
        """Refuses before a turn is taken: the entry of a turn would already add a version to the request table.

        Raises:
            InvalidRequest: One of the requests is in another state, or none was named.
        """
        location = self._context.requests_of(self._stream)
        rows = RequestTable(self._context.session, self._context.log, location).rows(states)
        dead = set() if rows is None else {row["request_id"] for row in rows.select("request_id").collect()}
        absent = [id_ for id_ in ids if id_ not in dead]
        if absent or not ids:
            raise InvalidRequest(
                f"not {' or '.join(states)} requests of {self._stream.name}: {', '.join(absent[:5]) or 'none was named'}; "
                "nothing was changed",
                advice=f"See them with: lakegate requests list {self._stream.name} --state dead",
            )


# ---------------------------------------------------------------------------------------------------- dead letters


class StreamDesk:
    """The dead letters and the dead requests of one stream."""

    def __init__(self, pipeline: Pipeline, stream: StreamSpec) -> None:
        self._pipeline, self._stream = pipeline, stream
        self._context = stream_context(pipeline, stream)
        self._letters = StreamLetters(self._context, stream)

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """See `lakegate.ops.dead_letters.Desk`."""
        return self._letters.rows(rows_max=rows_max, has_values=has_values)

    def drop(self, ids: Sequence[str], reason: str | None) -> int:
        """See `lakegate.ops.dead_letters.Desk`."""
        records, requests = self._parted(ids)
        count = 0
        if records:
            count += self._in_turn("drop", lambda turn: self._letters.drop(turn, records, reason))
        if requests:
            count += RequestDesk(self._pipeline, self._stream.name).drop(requests, reason or "")
        return count

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """See `lakegate.ops.dead_letters.Desk`."""
        records, requests = self._parted(ids)
        sent = Sent()
        if records:
            sent += self._in_turn("retry", lambda turn: self._send(turn, records, corrections))
        if requests:
            RequestDesk(self._pipeline, self._stream.name).refuse_unless_in(STUCK, requests)
            sent += self._in_turn("retry", lambda turn: self._send_requests(turn, requests, corrections))
        if sent.refused:
            raise InvalidRequest(
                f"{sent.refused} of {sent.count} were refused again and are set aside; the others were sent",
                advice=f"See why with: lakegate dead-letters list {self._stream.name}",
            )
        return sent.count

    def _parted(self, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Splits ids into records and requests; all of them exist."""
        records = [id_ for id_ in ids if id_.startswith("d-")]
        requests = [id_ for id_ in ids if not id_.startswith("d-")]
        if records or not ids or not isinstance(self._stream.kind, Mutate | Erase):
            self._letters.refuse_absent(records if records else ids)
        return records, requests

    def _kind(self) -> StreamKind:
        # A row that is refused again is set aside again, whatever the policy: it does not stop the others.
        kept = {"otherwise": "dead_letter"}
        expect = {name: one.model_copy(update=kept) for name, one in self._stream.expect.items()}
        spec = self._stream.model_copy(update={"on_bad_record": "dead_letter", "expect": expect, "transform": None})
        return kind_of(spec, self._pipeline.table_of(self._stream), self._context)

    def _send(self, turn: HeldTurn, ids: Sequence[str], corrections: Mapping[str, str]) -> Sent:
        letters, kind, number, sent = self._letters, self._kind(), turn.batch, Sent()
        for batch in letters.pending():
            turn.next_batch(batch, None)
            sent += letters.send(turn, batch, kind.run_batch)
            number = max(number, batch + 1)
        turn.next_batch(number, None)
        if letters.mark(turn, ids, corrections, number):
            sent += letters.send(turn, number, kind.run_batch)
        return sent

    def _send_requests(self, turn: HeldTurn, ids: Sequence[str], corrections: Mapping[str, str]) -> Sent:
        """Stores requests again, and applies them in a batch without records; after a kill the stream's next batch applies them."""
        count = resend_requests(turn, self._context, self._stream, ids, corrections)
        turn.next_batch(turn.batch + 1, None)
        nothing = self._letters.no_records()
        self._kind().run_batch(SentAgain(turn, self._stream.name), nothing, turn.batch)
        rows = RequestTable(self._context.session, self._context.log, self._context.requests_of(self._stream)).rows(
            STUCK
        )
        assert rows is not None, "they were looked up"
        return Sent(count, rows.where(rows["request_id"].isin(list(ids))).count())

    def _in_turn(self, what: str, work: Callable[[HeldTurn], R]) -> R:
        pipeline, context = self._pipeline, self._context
        token_id = job_token(f"{what}/{self._stream.name}")
        opened = Site.open(context.session, url=pipeline.coordinator.url, storage=pipeline.storage)
        site = replace(opened, log=context.log)  # the stream need not read again what the turn has read
        with (
            contextlib.closing(site),
            Gate(context.session).acting(self._stream.name, context.session),
            adhoc_turn(site, pipeline, pipeline.lock_of(self._stream), token_id, (self._letters.location,)) as turn,
        ):
            turn.acts_as = self._stream.name  # as its helpers do
            tables = (context.target, context.requests_of(self._stream), self._letters.location)
            turn.next_batch(last_batch(site, token_id, tables) + 1, None)
            return work(turn)
