"""The server of a PostgreSQL source: what it must have, its publication and its slot, and its tables as of one snapshot.

Rules for editors: nothing is created before everything is checked, because a table that is published without a replica identity
refuses its application's updates. A slot that another sync may use is never dropped.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal

from lakegate.errors import CheckpointMismatch, InvalidRequest, LakegateError, MissingExtra, Unavailable
from lakegate.syncs.sources.postgres_texts import OUTPUT

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise MissingExtra("the PostgreSQL driver is not installed", advice="pip install 'lakegate[postgres]'") from error

SETTINGS: Final[Mapping[str, str]] = {
    "row_security": "off", "wal_sender_timeout": "5min", "lock_timeout": "10s", "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}  # fmt: skip
"""Rows that a policy hides would be missing: with `off` they cause an error. The server waits for a reply longer than a batch
takes, and for a load as long as the load takes."""
SLOT_WAIT_S = 60.0
"""How long the creation of a slot waits for transactions that began before it."""
FREE_WAIT_S = 10.0
"""How long a slot takes to become free after its reader was ended."""
LOOK_WAIT_S = 1.0
"""The same if nothing is done about the reader: it may have just ended."""
IN_USE = "55006"
RESYNC = "Load the tables again with: lakegate sync resync NAME"
TABLE = """
SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""
IDENTITIES = """
SELECT c.oid::regclass::text, c.relreplident = 'f', ARRAY(
  SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
  WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
FROM pg_class c WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s) WHERE isleaf) ORDER BY c.oid <> %s"""
"""The replica identity of a table, then those of its partitions, whose own ones the server uses. A deferrable key is none."""
COLUMNS = """
SELECT attname, atttypid FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"""
KINDS = """
WITH RECURSIVE up(oid, base) AS (
  SELECT oid, oid FROM pg_type WHERE oid = ANY (%s)
  UNION ALL SELECT up.oid, t.typbasetype FROM up JOIN pg_type t ON t.oid = up.base WHERE t.typtype = 'd')
SELECT up.oid, coalesce((SELECT e.typname FROM pg_type e WHERE e.oid = b.typelem AND b.typcategory = 'A') || '[]', b.typname)
FROM up JOIN pg_type b ON b.oid = up.base WHERE b.typtype <> 'd'"""
PARENTS = "SELECT conrelid, confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY (%s) AND confrelid <> conrelid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table of the publication."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """The published columns, each with the oid of its type."""
    identity: frozenset[str] | None
    """The columns of the replica identity; None for whole rows."""
    is_partitioned: bool

    @property
    def collection(self) -> str:
        """The name with its schema."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Here:
    """The server's state."""

    at: str
    """The server and its database, by an id that no other server has."""
    timeline: int
    lsn: int
    """The end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A database whose changes are read."""

    address: str = field(repr=False)
    names: tuple[str, ...]
    """The tables, with or without their schemas; empty for all of the publication."""
    publication: str
    slot: str

    @contextlib.contextmanager
    def connected(self, *, replicates: bool = False) -> Iterator[Any]:
        """Opens a connection for the block; with `replicates` one that also takes commands of replication.

        Raises:
            InvalidRequest: The server refuses the login or a statement.
            Unavailable: The server does not answer.
        """
        with translated(), contextlib.closing(self.connect(replicates=replicates)) as connection:
            yield connection

    def connect(self, *, replicates: bool = False) -> Any:
        """Opens a connection that commits each statement. Raises the driver's errors; see `translated`."""
        given = str(conninfo_to_dict(self.address).get("options") or "")
        # The last one wins: the address may set times, and how values are written is fixed.
        options = " ".join((*_options(SETTINGS), given, *_options(OUTPUT)))
        more = {"replication": "database"} if replicates else {}
        # Bound by the client, because a connection for replication takes no statements with parameters.
        return psycopg.connect(
            make_conninfo(self.address, options=options, **more), autocommit=True, cursor_factory=psycopg.ClientCursor
        )

    def here(self, connection: Any) -> Here:
        """Returns where the server stands, on a connection for replication."""
        system, timeline, lsn, database = connection.execute("IDENTIFY_SYSTEM").fetchone()
        return Here(f"{system}/{database}", int(timeline), number(lsn))

    def ends(self, connection: Any) -> tuple[int, int]:
        """Returns the end of the server's log, and its end on disk, up to which it is sent.

        What is between them was committed with `synchronous_commit = off`, or is not committed.
        """
        row = connection.execute("SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()").fetchone()
        return number(row[0]), number(row[1])

    def require_no_slot(self, connection: Any) -> None:
        """Checks that the slot is free to be created.

        Raises:
            InvalidRequest: The slot exists: it may belong to another sync.
        """
        if connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (self.slot,)).fetchone():
            raise InvalidRequest(
                "the slot exists, and this sync has not loaded its tables: the slot may be another sync's; nothing was read",
                advice=f"Name another slot, or drop it: SELECT pg_drop_replication_slot('{self.slot}')",
                slot=self.slot,
            )

    def checked(
        self, connection: Any, *, without: Literal["refuse", "create", "pass"] = "refuse"
    ) -> Sequence[SourceTable]:
        """Checks the server, the publication and its tables; returns the tables, parents first.

        Args:
            connection: One on which nothing streams.
            without: What to do without a publication: refuse, create it, or go on as if all columns of all rows were published.

        Raises:
            InvalidRequest: Something is missing; the advice is the statement to execute.
        """
        (level, is_standby) = connection.execute("SELECT current_setting('wal_level'), pg_is_in_recovery()").fetchone()
        if level != "logical":
            raise InvalidRequest(
                "the source's log has too little for its changes to be read; nothing was read",
                advice="ALTER SYSTEM SET wal_level = 'logical', then restart it; a managed service has a setting of its own",
                wal_level=level,
            )
        if is_standby:
            raise InvalidRequest("the source is a standby; nothing was read", advice="Give the address of the primary")
        published = self._published(connection)
        found = [self._found(connection, name) for name in self.names or published or ()]
        identities = [self._identity(connection, oid) for oid, _, _, _ in found]
        if published is None:
            published = self._unpublished(connection, found, without)
        tables = []
        for (oid, schema, name, kind), identity in zip(found, identities, strict=True):
            if f"{schema}.{name}" not in published:
                way = "SET (publish_via_partition_root = true)" if kind == "p" else f"ADD TABLE {quoted(schema, name)}"
                raise InvalidRequest(
                    "a table is not in the publication, or only its partitions are; nothing was read",
                    advice=f"ALTER PUBLICATION {self._quoted} {way}. If it was in it before: {RESYNC}",
                    publication=self.publication, table=f"{schema}.{name}",
                )  # fmt: skip
            sent, where = published[f"{schema}.{name}"]
            if where:
                raise InvalidRequest(
                    "the publication has only some rows of a table, so the target could not be compared with it; nothing was read",
                    advice=f"Publish all its rows: ALTER PUBLICATION {self._quoted} SET TABLE …, without WHERE",
                    publication=self.publication, table=f"{schema}.{name}",
                )  # fmt: skip
            columns = connection.execute(COLUMNS, (oid,)).fetchall()
            tables.append(
                SourceTable(
                    oid=oid, schema=schema, name=name, is_partitioned=kind == "p", identity=identity,
                    columns=tuple(one for one in columns if sent is None or one[0] in sent),
                )
            )  # fmt: skip
        links = connection.execute(PARENTS, ([table.oid for table in tables],)).fetchall()
        return _parents_first(tables, links)

    def kinds(self, connection: Any, oids: Iterable[int]) -> Mapping[int, str]:
        """Returns the name of each type; of a domain that of its type, of an array that of its elements and `[]`."""
        return dict(connection.execute(KINDS, (list(oids),)).fetchall())

    def require_slot(self, connection: Any, after: int) -> None:
        """Checks that the slot has everything after a position.

        Raises:
            CheckpointMismatch: The slot is gone, or lost a part of the log, or was moved by someone else.
        """
        row = connection.execute(
            "SELECT confirmed_flush_lsn, wal_status FROM pg_replication_slots WHERE slot_name = %s AND plugin = 'pgoutput' "
            "AND database = current_database()", (self.slot,),
        ).fetchone()  # fmt: skip
        if row is None:
            raise CheckpointMismatch(
                "the slot is gone: it was dropped, or the source failed over to a server without it; changes since the target's "
                "position cannot be read; nothing was written",
                advice=RESYNC,
                slot=self.slot,
            )
        confirmed, status = row
        if status == "lost":
            raise CheckpointMismatch(
                "the slot lost a part of the log, which the source removed (max_slot_wal_keep_size); nothing was written",
                advice=RESYNC,
                slot=self.slot,
            )
        if number(confirmed) > after:
            raise CheckpointMismatch(
                "the slot is past the target's position: someone else read from it, or it was dropped and created again; "
                "nothing was written",
                advice=RESYNC,
                slot=self.slot, slot_is_at=confirmed, position=shown(after),
            )  # fmt: skip

    def require_history(self, connection: Any, here: Here, timeline: int, after: int) -> None:
        """Checks that the server has the history that the target has, also after a fail-over.

        Raises:
            CheckpointMismatch: The target has changes that this server never had.
        """
        ends = here.lsn
        if timeline > here.timeline:
            ends = -1
        elif timeline < here.timeline:
            _, content = connection.execute(f"TIMELINE_HISTORY {here.timeline}").fetchone()
            text = content if isinstance(content, str) else bytes(content).decode()
            lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
            ends = next((number(line[1]) for line in lines if int(line[0]) == timeline), -1)
        if ends < after:
            raise CheckpointMismatch(
                "the target has changes that the source does not have: it failed over to a server that lacked them, or was "
                "restored; nothing was written",
                advice=RESYNC,
                position=shown(after), source_has_until=shown(max(ends, 0)), timeline=here.timeline,
            )  # fmt: skip

    def start(self, connection: Any, after: int, *, takes_over: bool) -> None:
        """Begins to stream the changes after a position.

        Args:
            connection: For replication; it streams from now on.
            after: The position.
            takes_over: End another reader of the slot: the caller has fenced it.

        Raises:
            Unavailable: Another process reads from the slot.
        """
        command = (
            f"START_REPLICATION SLOT {self._slot} LOGICAL {shown(after)} "
            f"(proto_version '1', publication_names {sql.Literal(self._quoted).as_string(connection)})"
        )
        pg = connection.pgconn

        def attempt() -> None:
            result = pg.exec_(command.encode())
            if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result, encoding="utf-8")

        self._when_free(connection, attempt, takes_over=takes_over)

    def drop_slot(self, connection: Any) -> None:
        """Drops the slot if it exists. Ends its reader first: the caller has fenced it."""

        def attempt() -> None:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (self.slot,),
            )

        self._when_free(connection, attempt, takes_over=True)

    @contextlib.contextmanager
    def snapshot(self, tables: Sequence[SourceTable], *, has_slot: bool) -> Iterator[tuple[Any, int, Here]]:
        """Yields a connection that reads the tables as they are at a position, and that position.

        Args:
            tables: They keep their definitions until the end: a table that is rewritten is empty in an older snapshot.
            has_slot: Create the slot, whose changes begin after exactly this snapshot.
        """
        with self.connected(replicates=True) as log, self.connected() as connection:
            here = self.here(log)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if tables:
                names = ", ".join(quoted(table.schema, table.name) for table in tables)
                connection.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")  # takes no snapshot
            point = here.lsn
            if has_slot:
                point, name = self._created(log)
                connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
            log.close()
            yield connection, point, here

    def _created(self, log: Any) -> tuple[int, str]:
        """Creates the slot; returns its position and the name of the snapshot, which lasts while `log` is idle."""
        timer = threading.Timer(SLOT_WAIT_S, log.cancel)
        timer.start()
        try:
            row = log.execute(f"CREATE_REPLICATION_SLOT {self._slot} LOGICAL pgoutput EXPORT_SNAPSHOT").fetchone()
        except psycopg.errors.QueryCanceled as error:
            raise Unavailable(
                "the slot could not be created: transactions that began before it are still open at the source; nothing was read",
                advice="See them in pg_stat_activity, by xact_start, and end them",
                slot=self.slot,
            ) from error
        except psycopg.errors.ConfigurationLimitExceeded as error:
            raise InvalidRequest(
                "the source has no room for another slot; nothing was read",
                advice="Raise max_replication_slots and restart the server, or drop a slot that nobody needs",
            ) from error
        finally:
            timer.cancel()
        return number(row[1]), str(row[2])

    def _when_free(self, connection: Any, attempt: Any, *, takes_over: bool) -> None:
        """Does what fails while the slot has a reader."""
        until = time.monotonic() + (FREE_WAIT_S if takes_over else LOOK_WAIT_S)
        while True:
            try:
                attempt()
                return
            except psycopg.Error as error:
                if error.sqlstate != IN_USE:
                    raise
                if time.monotonic() > until:
                    raise Unavailable(
                        "another process reads from the slot; nothing was read",
                        advice="Wait until `lakegate sync run` has ended there, or end it",
                        slot=self.slot,
                    ) from error
            if takes_over:
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                    (self.slot,),
                )
            time.sleep(0.05)

    def _identity(self, connection: Any, oid: int) -> frozenset[str] | None:
        """Returns the columns of a table's replica identity; None for whole rows."""
        (_, is_whole, key), *partitions = connection.execute(IDENTITIES, (oid, oid, oid)).fetchall()
        for name, is_full, columns in [(_, is_whole, key), *partitions]:
            if not is_full and (is_whole or not columns or set(columns) != set(key)):
                raise InvalidRequest(
                    "a table of the source has no replica identity, or its partitions have different ones: once it is published, "
                    "the source refuses its updates and deletes, or does not say which row they were of; nothing was changed",
                    advice=f"Give it a primary key that is not deferrable, or: ALTER TABLE {name} REPLICA IDENTITY FULL",
                    table=name,
                )
        return None if is_whole else frozenset(key)

    def _published(self, connection: Any) -> Mapping[str, tuple[Sequence[str] | None, str | None]] | None:
        """Returns table → its published columns (None: all) and its row filter; None if there is no such publication."""
        row = connection.execute(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
            (self.publication,),
        ).fetchone()
        if row is None:
            return None
        if not row[0]:
            raise InvalidRequest(
                "the publication does not publish all changes; nothing was read",
                advice=f"ALTER PUBLICATION {self._quoted} SET (publish = 'insert, update, delete, truncate')",
                publication=self.publication,
            )
        more = "attnames::text[], rowfilter" if connection.info.server_version >= 150000 else "NULL, NULL"
        rows = connection.execute(
            f"SELECT schemaname || '.' || tablename, {more} FROM pg_publication_tables WHERE pubname = %s",
            (self.publication,),
        ).fetchall()
        return {name: (columns, where) for name, columns, where in rows}

    def _found(self, connection: Any, name: str) -> Any:
        schema, dot, rest = name.partition(".")
        places = [(name,), *([(schema, rest)] if dot and schema and rest else [])]
        rows = [connection.execute(TABLE, (quoted(*place),)).fetchone() for place in places]
        found = [row for row in rows if row is not None]
        if len(found) != 1:
            raise InvalidRequest(
                "the source has no such table; nothing was read"
                if not found
                else "a name with a dot matches two tables of the source; nothing was read",
                advice="Write it as SCHEMA.TABLE, in the case that the catalogue has it in",
                table=name,
            )
        return found[0]

    def _unpublished(self, connection: Any, found: Sequence[Any], how: str) -> Mapping[str, Any]:
        if not found:
            raise InvalidRequest(
                "the source has no such publication, and the sync names no tables for it; nothing was created",
                advice="Name them: from: {postgres: …, tables: [people]}",
                publication=self.publication,
            )
        names = ", ".join(quoted(row[1], row[2]) for row in found)
        statement = f"CREATE PUBLICATION {self._quoted} FOR TABLE {names} WITH (publish_via_partition_root = true)"
        if how == "pass":
            return {f"{row[1]}.{row[2]}": (None, None) for row in found}
        if how == "refuse":
            raise InvalidRequest(
                "the publication is gone; nothing was read",
                advice=f"Create it again: {statement}. If it was gone for a time: {RESYNC}",
                publication=self.publication,
            )
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise InvalidRequest(
                "the login may not create the publication; nothing was created",
                advice=f"Let the owner of the tables execute: {statement}",
                publication=self.publication,
            ) from error
        created = self._published(connection)
        assert created is not None
        return created

    @property
    def _quoted(self) -> str:
        return quoted(self.publication)

    @property
    def _slot(self) -> str:
        return quoted(self.slot)


def _options(settings: Mapping[str, str]) -> Iterator[str]:
    return (f"-c {name}={value}" for name, value in settings.items())


def quoted(*parts: str) -> str:
    """Returns a quoted name."""
    return sql.Identifier(*parts).as_string(None)


def number(lsn: str) -> int:
    """Returns a position in the log as a number."""
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def shown(lsn: int) -> str:
    """Returns a position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises the driver's errors as Lakegate's."""
    try:
        yield
    except psycopg.Error as error:
        raise translation(error) from error


def translation(error: psycopg.Error) -> LakegateError:
    """Returns Lakegate's error for the driver's."""
    words, state = " ".join(str(error).split()), error.sqlstate or ""
    if re.search("(?i)wal ?sender", words) and re.search("must be superuser|permission denied", words):
        return InvalidRequest(
            "the login may not read the source's log; nothing was read",
            advice="ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …)",
        )
    if state == "42501":
        return InvalidRequest(
            f"the login may not read from the source: {words}; nothing was read",
            advice="GRANT USAGE ON SCHEMA … and GRANT SELECT ON the tables",
        )
    if state[:2] in ("", "08", "53", "55", "57", "58"):
        return Unavailable(f"the source does not answer: {words}; nothing was written")
    return InvalidRequest(f"the source refused a statement: {words}; nothing was written")


def _parents_first(tables: Sequence[SourceTable], links: Sequence[tuple[int, int]]) -> Sequence[SourceTable]:
    """Returns tables before those that refer to them. In a circle of references the order does not matter: rows join a batch."""
    by_oid = {table.oid: table for table in tables}
    parents: dict[int, set[int]] = {oid: set() for oid in by_oid}
    for child, parent in links:
        if parent in parents:
            parents[child].add(parent)
    try:
        return [by_oid[oid] for oid in TopologicalSorter(parents).static_order()]
    except CycleError:
        return tables
