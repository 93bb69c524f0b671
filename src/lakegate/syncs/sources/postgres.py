"""A PostgreSQL database as a source of changes: a snapshot of its tables, then the transactions of a logical replication slot.

A position is the end of a transaction in the server's log, as a number. It is confirmed to the slot only after the target has it,
so the slot is never past the target: a slot that is past it belongs to someone else, or is another one.

Rules for editors: a transaction is delivered whole or not at all. What is received and not delivered is not confirmed. A load
that ends early is begun again with another slot and emptied tables, because its snapshot is gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lakegate.errors import CheckpointMismatch, Corrupt, InvalidRequest
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.routes import Routes
from lakegate.syncs.sources import pgoutput
from lakegate.syncs.sources.pgoutput import UNSENT, Began, Committed, Emptied, Malformed, Relation, RowSent
from lakegate.syncs.sources.postgres_server import RESYNC, Here, Server, SourceTable, quoted, translated
from lakegate.syncs.sources.postgres_stream import Stream
from lakegate.syncs.sources.postgres_texts import Read, reader

LOAD_ROWS: Final = 10_000
"""The maximum number of snapshot rows in one group; several groups make a batch."""
MARK_S: Final = 10.0
"""How often an idle sync writes how far the source's log was read, so that the slot need not keep it."""
MARK_BYTES: Final = 16 << 20
"""From this many bytes of the log on it is written at once: the size of a file of the log."""
FLUSH_S: Final = 0.7
"""The server has what was committed on its disk after at most this time (three times its `wal_writer_delay`)."""
WAIT_S: Final = 0.1
"""How often the server is asked how far it has read its log."""


class PostgresChanges:
    """See `ChangeSource`. `seq` is the end of a transaction in the log; `place` names the server, its history and the tables."""

    def __init__(self, server: Server, tables: Mapping[str, str], *, only_looks: bool = False) -> None:
        """Opens no connection yet.

        Args:
            server: The source.
            tables: Source table, with or without its schema → target table. Unlisted tables keep their name.
            only_looks: Create, confirm and take over nothing.
        """
        self.server, self._tables, self._only_looks = server, tables, only_looks
        self._stream: _Transactions | None = None
        self.keys: Mapping[str, Collection[str]] = {}
        """Target table → the columns by which it knows its rows. The source must show them of each row before its change."""

    def looking(self) -> PostgresChanges:
        """See `lakegate.syncs.ports.Looks`."""
        self.close()  # one reader excludes another
        return PostgresChanges(self.server, self._tables, only_looks=True)

    def fingerprint(self) -> object:
        """Changes when the log has another transaction, and when the slot should learn how far the log was read."""
        if self._stream is None:
            with self.server.connected() as connection:
                return self.server.ends(connection)
        with self._closed_on_error():
            self._stream.catch_up()
            return self._stream.newest()

    def has_arrived(self) -> bool:
        """See `lakegate.syncs.ports.Announces`."""
        if self._stream is None:
            return True
        with self._closed_on_error():
            return self._stream.has_arrived()

    def confirm(self, position: int) -> None:
        """See `lakegate.syncs.ports.Confirms`."""
        if self._stream is not None:
            self._stream.stream.confirmed = max(self._stream.stream.confirmed, position)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def tables(self) -> Mapping[str, Mapping[str, None]]:
        """Returns target table → its source tables."""
        with self.server.connected(replicates=True) as connection:
            tables = self.server.checked(connection, without="pass")
        found: dict[str, dict[str, None]] = {}
        for table, (_, target) in zip(tables, self._routed(tables).values(), strict=True):
            found.setdefault(target, {})[table.collection] = None
        return found

    def begin(self, *, is_again: bool = False) -> str:
        """Checks everything that a load needs, creates the publication if there is none, and returns the place of the load.

        Args:
            is_again: The sync has loaded the tables before, so the slot is its own.

        Raises:
            InvalidRequest: The server lacks something, or the slot may be another sync's.
        """
        with self.server.connected(replicates=True) as connection:
            self._routed(self.server.checked(connection, without="pass"))
            if not is_again:
                self.server.require_no_slot(connection)
            self.server.checked(connection, without="create")
            return self._loading(self.server.here(connection).at)

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        if until is not None:
            return  # `seq` identifies the ends of transactions
        with translated():
            if after >= 0:
                yield from self._follow(after, place)
            else:
                self.close()
                yield from self._load(after, place)

    # ------------------------------------------------------------------------------------------------ all rows

    def _load(self, after: int, place: str | None) -> Iterator[tuple[Change, ...]]:
        """Yields all rows. The sync has recorded the load (`begin`), so that a slot of an earlier attempt is its own."""
        looks = self._only_looks
        with self.server.connected(replicates=True) as connection:
            source_position.read(source_position.POSTGRES, after, place, at=self.server.here(connection).at)
            tables = self.server.checked(connection, without="pass" if looks else "create")
            if not looks:
                self.server.drop_slot(connection)
        with self.server.snapshot(tables, has_slot=not looks) as (connection, point, here):
            tables = self.server.checked(connection, without="pass" if looks else "refuse")
            routed, loading = self._routed(tables), self._loading(here.at)
            if not looks:
                targets = dict.fromkeys(to for _, to in routed.values())
                yield _placed(
                    [Change(seq=-1, tx="load", table=one, op="t", shows_actions=True) for one in targets], loading
                )
            kinds = self.server.kinds(connection, {type for table in tables for _, type in table.columns})
            for table in tables:
                yield from self._rows(connection, table, routed[table.oid][1], kinds, loading)
            done = Change(seq=point, tx=None, table="", op="mark", is_snapshot=True, place=_place(here, routed))
            yield (done,)

    def _rows(
        self, connection: Any, table: SourceTable, to: str, kinds: Mapping[int, str], loading: str
    ) -> Iterator[tuple[Change, ...]]:
        readers = [(name, reader(kinds.get(type, ""))) for name, type in table.columns]
        only = "" if table.is_partitioned else "ONLY "  # rows of inheriting tables are published as theirs
        names = ", ".join(quoted(name) for name, _ in table.columns)
        query = f"SELECT {names} FROM {only}{quoted(table.schema, table.name)}"
        held: list[Change] = []
        with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as copy:
            for row in copy.rows():
                if len(held) == LOAD_ROWS:
                    yield _placed(held, loading)
                    held = []
                image = _image(readers, row)
                held.append(
                    Change(seq=-1, tx="load", table=to, op="c", after=image, is_snapshot=True, shows_actions=True)
                )
        if held:
            yield _placed(held, loading)

    # ------------------------------------------------------------------------------------------------ changes

    def _follow(self, after: int, place: str | None) -> Iterator[tuple[Change, ...]]:
        with self._closed_on_error():
            stream = self._stream
            if stream is None or stream.delivered != after:
                self.close()
                stream = self._stream = self._opened(after, place)
                stream.catch_up()
            self.confirm(after)
            is_idle = True
            try:
                while (group := stream.next()) is not None:
                    is_idle = False
                    yield group
            finally:
                if self._only_looks:
                    self.close()
            if is_idle and stream.is_mark_due() and not self._only_looks:
                yield (stream.mark(),)

    def _opened(self, after: int, place: str | None) -> _Transactions:
        """Begins to stream after a position."""
        connection = self.server.connect(replicates=True)
        try:
            here = self.server.here(connection)
            facts = source_position.read(source_position.POSTGRES, after, place, at=here.at)
            self.server.require_history(connection, here, int(facts.get("timeline", here.timeline)), after)
            self.server.require_slot(connection, after)
            tables = self.server.checked(connection)
            for table in tables:
                if table.oid not in facts.get("loaded", []):
                    raise _not_loaded(table.collection)
            routed = self._routed(tables)
            self.server.start(connection, after, takes_over=not self._only_looks)
            asked = self.server.connect()
        except BaseException:
            connection.close()
            raise
        return _Transactions(Stream(connection, after), asked, self.server, routed, self._require, _place(here, routed))

    def _routed(self, tables: Sequence[SourceTable]) -> Mapping[int, tuple[str, str]]:
        """Returns the id of each table → its name, and its target table."""
        routes = Routes(self._tables, {})
        routed = {table.oid: (table.collection, routes.target(table.collection, table.name)) for table in tables}
        for table in tables:
            if table.identity is not None:
                self._require(routed[table.oid][1], table.identity)
        return routed

    def _require(self, target: str, identity: Collection[str]) -> None:
        """Refuses a replica identity that does not show which row of the target changes."""
        lacking = set(self.keys.get(target, ())).difference(identity)
        if lacking:
            raise InvalidRequest(
                "the source's replica identity lacks columns that tell the target's rows apart; nothing was written",
                advice=f"Name its columns under `key`, or at the source: ALTER TABLE … REPLICA IDENTITY FULL; then: {RESYNC}",
                table=target, lacking=",".join(sorted(lacking)), replica_identity=",".join(sorted(identity)),
            )  # fmt: skip

    def _loading(self, at: str) -> str:
        return source_position.written(source_position.POSTGRES, {"at": at, "loading": True})

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except Exception:
            self.close()
            raise


class _Transactions:
    """The transactions of a stream."""

    def __init__(
        self, stream: Stream, asked: Any, server: Server, routed: Mapping[int, tuple[str, str]],
        require: Callable[[str, Collection[str]], None], place: str,
    ) -> None:  # fmt: skip
        """Takes both connections over.

        Args:
            stream: The messages.
            asked: A connection for statements.
            server: The source.
            routed: The id of each table → its name, and its target table.
            require: Takes a target table and the columns of its replica identity; refuses them if they do not suffice.
            place: The place of each transaction.
        """
        self.stream, self._asked, self._server, self._routed, self._place = stream, asked, server, routed, place
        self._require = require
        self.delivered = stream.confirmed
        """The end of the last delivered transaction."""
        self._newest = stream.confirmed
        self._relations: dict[int, _Relation | None] = {}
        self._kinds: dict[int, str] = {}
        self._began: Began | None = None
        self._rows: list[tuple[_Relation, RowSent | None]] = []
        """The changes of the transaction that is being received; None: the table was emptied."""
        self._ready: tuple[Change, ...] | None = None
        self._marked_s = time.monotonic()

    def close(self) -> None:
        """Closes both connections."""
        self.stream.close()
        self._asked.close()

    def catch_up(self) -> None:
        """Receives up to the first whole transaction, or all that the log has now."""
        if self._receive():
            return
        (end, on_disk), until_s = self._server.ends(self._asked), time.monotonic() + FLUSH_S
        while self.stream.reached < (end if time.monotonic() < until_s else on_disk):
            self.stream.reply(asks=True)  # the answer says how far the server has read its log
            if self._receive(WAIT_S, end):
                return

    def has_arrived(self) -> bool:
        """Returns whether there is something for the target, without a question to the server."""
        return self._receive() or self.is_mark_due()

    def newest(self) -> object:
        """Returns a value that changes when there is something for the target."""
        return self._newest, self.stream.reached if self._ready is None and self.is_mark_due() else None

    def next(self) -> tuple[Change, ...] | None:
        """Returns the next transaction; None if none has arrived."""
        self._receive()
        found, self._ready = self._ready, None
        if found is not None:
            self.delivered = found[-1].seq
        return found

    def is_mark_due(self) -> bool:
        """Returns whether the target should record how far the log was read, without a change."""
        moved = self.stream.reached - self.delivered
        if self._began is not None or moved <= 0:
            return False
        is_late = time.monotonic() - self._marked_s > MARK_S
        return is_late or self.stream.is_asked or moved >= MARK_BYTES

    def mark(self) -> Change:
        """Returns a change that only records how far the log was read."""
        self.delivered, self._marked_s = self.stream.reached, time.monotonic()
        return Change(seq=self.delivered, tx=None, table="", op="mark", place=self._place)

    def _receive(self, wait_s: float = 0.0, end: int = 0) -> bool:
        """Receives up to the first whole transaction; returns whether there is one. For the arguments see `Stream.read`."""
        while self._ready is None and (data := self.stream.read(wait_s, end)) is not None:
            try:
                self._take(pgoutput.decoded(data))
            except Malformed as error:
                raise Corrupt(
                    f"the source sends a message that cannot be read: {error}; nothing was written"
                ) from error
        return self._ready is not None

    def _take(self, message: pgoutput.Sent) -> None:
        match message:
            case Began():
                self._began, self._rows = message, []
            case Committed(end=end):
                began, rows, self._began, self._rows = self._began, self._rows, None, []
                assert began is not None, "the protocol begins a transaction first"
                self.stream.reached = max(self.stream.reached, end)
                if rows and end > self.delivered:
                    self._newest = end
                    changes = [relation.change(row, end, began) for relation, row in rows]
                    self._ready = _placed(changes, self._place)
            case Relation():
                self._relations[message.id] = self._relation(message)
            case RowSent():
                self._rows += [(relation, message) for relation in self._known(message.relation)]
            case Emptied(relations=ids):
                self._rows += [(relation, None) for id in ids for relation in self._known(id)]
            case None:
                pass

    def _known(self, id: int) -> Sequence[_Relation]:
        """Returns the table; nothing if the sync does not name it."""
        relation = self._relations[id]
        return () if relation is None else (relation,)

    def _relation(self, message: Relation) -> _Relation | None:
        if message.id not in self._routed:
            collection = f"{message.schema}.{message.table}"
            if not self._server.names or collection in {name for name, _ in self._routed.values()}:
                raise _not_loaded(collection)  # added, or made again under the name
            return None  # the publication has more tables than the sync names
        _, target = self._routed[message.id]  # whatever the table's name is by now
        self._require(target, [column.name for column in message.columns if column.is_key])
        unknown = {column.type for column in message.columns} - self._kinds.keys()
        if unknown:
            self._kinds.update(self._server.kinds(self._asked, unknown))
        return _Relation(message, target, self._kinds)


class _Relation:
    """A table as the server sends it."""

    def __init__(self, message: Relation, target: str, kinds: Mapping[int, str]) -> None:
        self.target = target
        self._readers = [(column.name, reader(kinds.get(column.type, ""))) for column in message.columns]
        self._key = [column.is_key for column in message.columns]

    def change(self, row: RowSent | None, seq: int, began: Began) -> Change:
        """Returns the change of a row; None: of all rows, which were deleted."""
        tx, at_ms = str(began.xid), began.at_ms
        if row is None:
            return Change(seq=seq, tx=tx, table=self.target, op="t", shows_actions=True, committed_at_ms=at_ms)
        before = after = None
        if row.old is not None:
            before = _image(self._readers, row.old, None if row.is_old_whole else self._key)
        if row.new is not None:
            after = _image(self._readers, row.new)
            after = {**(before or {}), **after}  # large values that did not change, of the key or of a whole row
        return Change(
            seq=seq, tx=tx, table=self.target, op=row.op, before=before, after=after,
            is_partial=after is not None and len(after) < len(self._readers), shows_actions=True, committed_at_ms=at_ms,
        )  # fmt: skip


def _image(
    readers: Sequence[tuple[str, Read | None]], row: Sequence[Any], wanted: Sequence[bool] | None = None
) -> dict[str, Any]:
    """Returns a row by its columns, without values that were not sent. `wanted`: which columns the row has; None for all."""
    image = {}
    for n, ((name, read), value) in enumerate(zip(readers, row, strict=True)):
        if value is UNSENT or not (wanted is None or wanted[n]):
            continue
        image[name] = value if value is None or read is None else read(value)
    return image


def _place(here: Here, routed: Mapping[int, tuple[str, str]]) -> str:
    """Returns the place of a transaction: the server and its history, and the tables, which were loaded.

    A table that the sync no longer names is left out: it misses changes from then on.
    """
    tables = {to: name for name, to in routed.values()}
    facts = {"at": here.at, "timeline": here.timeline, "tables": tables, "loaded": list(routed)}
    return source_position.written(source_position.POSTGRES, facts)


def _placed(changes: Sequence[Change], place: str) -> tuple[Change, ...]:
    return (*changes[:-1], replace(changes[-1], place=place))


def _not_loaded(collection: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        "the sync never loaded a table of the source, or did not read it for a time; nothing was written",
        advice=f"Take it out of the sync's tables, or of the publication. Or: {RESYNC}",
        table=collection,
    )
