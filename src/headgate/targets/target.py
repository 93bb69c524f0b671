"""`TargetDatabase` over SQL: stage, look, assign, apply; the same steps in each dialect.

Source: docs/explanation/keys.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headgate.core.keys.apply import Applied, DeadLetter, DeadRow, Outcome, Progress, Refusal
from headgate.core.keys.change import Change
from headgate.core.keys.fold import Net, NetRow
from headgate.core.keys.plan import Assignment, Clash, Edge, Found, Tie
from headgate.core.keys.schema import TableSchema, keyed, parents_first
from headgate.errors import CommitInDoubt, Fenced, InvalidRequest, Unavailable
from headgate.ports import DefinitionChanged
from headgate.targets.compare import SqlComparison
from headgate.targets.connections import Connections, ViolatedError
from headgate.targets.dialect import Connection, Dialect
from headgate.targets.staged import Questions, StagedTable, add_duplicates, sort_holders
from headgate.targets.writing import Writing

R = TypeVar("R")
DISTINCT_SLOTS = "SELECT count(*) FROM headgate_slot WHERE stream = {m} AND batch = {m}"


@dataclass(slots=True)
class _Stream:
    """The stream that is written."""

    name: str
    epoch: int
    last_batch: int
    position: int
    pending: int | None
    is_preview: bool = False
    """It is only looked at: staging tables are temporary, and there is no fence."""

    @property
    def stage_prefix(self) -> str:
        """Staging tables are named by stream and epoch: a writer that was followed cannot touch those of its follower."""
        what = "plan" if self.is_preview else "stage"
        return f"headgate_{what}_{hashlib.sha256(self.name.encode()).hexdigest()[:8]}_"


class SqlTarget:
    """The target database of one stream."""

    def __init__(self, dialect: Dialect, *, key: Sequence[str] = ()) -> None:
        """Nothing is connected yet; `key`: the columns that tell rows apart in every table, in place of its own."""
        self._dialect, self._key = dialect, tuple(key)
        self._questions, self._writing = Questions(dialect), Writing(dialect)
        self._connections = Connections(dialect)
        self._stream: _Stream | None = None
        self._tables: dict[str, TableSchema] = {}
        self._staged: dict[str, StagedTable] = {}
        self._made: dict[str, tuple[TableSchema, bool, str]] = {}

    @property
    def writers_max(self) -> int | None:
        return self._dialect.writers_max

    @property
    def slot_rows_max(self) -> int | None:
        return self._dialect.slot_rows_max

    def open_stream(self, stream: str, *, epoch: int | None = None) -> Progress:
        def make(cursor: Any) -> None:
            for statement in self._dialect.control():
                cursor.execute(statement)

        self._transaction(make, fenced=False)
        self._extend()

        def take(cursor: Any) -> Progress:
            found = self._read(cursor, stream, self._dialect.update)
            if found is None:
                self._execute(
                    cursor,
                    "INSERT INTO headgate_stream (stream, epoch, last_batch, position) VALUES ({m}, 0, 0, -1)",
                    stream,
                )
                found = Progress(epoch=0, last_batch=0, position=-1)
            if epoch is not None and epoch < found.epoch:
                raise Fenced("a later writer has begun on this stream; nothing was written", stream=stream, epoch=epoch)
            now = found.epoch + 1 if epoch is None else epoch
            self._execute(cursor, "UPDATE headgate_stream SET epoch = {m} WHERE stream = {m}", now, stream)
            return replace(found, epoch=now)

        progress = self._transaction(take, fenced=False)
        self._stream = _Stream(stream, progress.epoch, progress.last_batch, progress.position, progress.pending)
        self._made, self._staged = {}, {}
        with contextlib.suppress(Unavailable):  # one that is still being written to is left to the next
            self._drop_stages()
        return progress

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        missing = [name for name in names if name not in self._tables]
        if missing:
            self._tables.update((name, keyed(table, self._key)) for name, table in self._catalogue(missing).items())
        return {name: self._tables[name] for name in names if name in self._tables}

    def forget_tables(self) -> None:
        self._tables = {}

    def stage(self, net: Net, slots: int) -> tuple[Refusal, ...]:
        staged: dict[str, StagedTable] = {}
        names = dict.fromkeys([*(row.table for row in net.rows), *(row.table for row in net.copies), *net.truncated])
        schemas = self.tables(list(names))
        for name in names:
            if name not in schemas:
                raise InvalidRequest("the target has no such table; nothing was written", table=name)
            staged[name] = StagedTable(schemas[name], self._dialect.name(name), "", is_emptied=name in net.truncated)
        for row in net.rows:
            staged[row.table].add(row)
        refused: list[Refusal] = []
        for table in staged.values():
            if table.rows:
                table.stage = self._stage_table(table)
                refused += self._stage_rows(table, table.rows, slots, is_first=True)
        self._staged = staged
        return tuple(refused)

    def look(self, net: Net, *, duplicates: bool) -> Found:
        if duplicates:
            self._check_definitions()

        def find(cursor: Any) -> Found:
            edges: list[Edge] = []
            clashes: list[Clash] = []
            tables = [table for table in self._staged.values() if table.rows]
            if not duplicates:
                self._complete(cursor, tables)
            for table in tables:
                for number, key in enumerate(table.schema.unique_keys):
                    if table.put and not table.is_emptied and (not key.is_primary or key.operators):
                        for sql in self._questions.holders(table, number):
                            cursor.execute(sql)
                            sort_holders(cursor.fetchall(), table, number, edges, clashes)
                    if table.put and duplicates:
                        cursor.execute(self._questions.duplicates(table, number))
                        add_duplicates(cursor.fetchall(), table, number, clashes)
            return Found(edges=tuple(edges), ties=tuple(self._ties(cursor, tables)), clashes=tuple(clashes))

        return self._transaction(find)

    def assign(self, assignment: Assignment) -> None:
        for table in self._staged.values():
            for row in table.rows:
                table.vacated |= assignment.vacate.get(row.n, 0)

        def move(cursor: Any) -> None:
            of_table = {
                table.schema.name: [
                    (row.n, assignment.slot_of.get(row.n), assignment.vacate.get(row.n))
                    for row in table.rows
                    if row.n in assignment.slot_of or row.n in assignment.vacate
                ]
                for table in self._staged.values()
            }
            for name, marks in of_table.items():
                self._writing.assign(cursor, self._staged[name], marks)

        if assignment.slot_of or assignment.vacate:
            self._transaction(move)

    def begin(self, net: Net) -> None:
        stream = self._open

        def note(cursor: Any) -> None:
            self._execute(cursor, "DELETE FROM headgate_slot WHERE stream = {m}", stream.name)
            self._execute(
                cursor,
                "UPDATE headgate_stream SET pending = {m}, pending_place = {m} WHERE stream = {m}",
                net.through, net.place, stream.name,
            )  # fmt: skip

        self._transaction(note, is_exclusive=True)

    def apply(
        self, net: Net, slot: int, *, finish: bool = False, dead: Sequence[DeadRow] = (), is_trial: bool = False
    ) -> Outcome:
        stream = self._open
        batch = stream.last_batch + 1
        has_row = slot >= 0 and not is_trial

        def work(cursor: Any) -> None:
            if has_row:
                self._execute(
                    cursor,
                    "INSERT INTO headgate_slot (stream, batch, slot) VALUES ({m}, {m}, {m})",
                    stream.name, batch, slot,
                )  # fmt: skip
            tables = parents_first([table.schema for table in self._staged.values()])
            self._writing.apply(cursor, [self._staged[table.name] for table in tables], slot, net, self.tables)
            if finish:
                self._finish(cursor, net, batch, dead)

        def is_done() -> bool:
            if finish:
                return self._transaction(lambda cursor: self._batch_in_target(cursor), fenced=False) >= batch
            return has_row and self._transaction(lambda cursor: self._has_slot(cursor, batch, slot), fenced=False)

        try:
            self._transaction(work, is_exclusive=finish, is_trial=is_trial, is_done=is_done)
        except ViolatedError as error:
            return error.violated
        if finish:
            stream.last_batch, stream.position = batch, net.through
        return Applied()

    def finish(self, net: Net, slots: int, dead: Sequence[DeadRow]) -> None:
        stream = self._open
        batch = stream.last_batch + 1

        def write(cursor: Any) -> None:
            self._execute(cursor, DISTINCT_SLOTS, stream.name, batch)
            if cursor.fetchone()[0] < slots:
                raise CommitInDoubt("a slot of the batch is missing in the target; the batch runs again", batch=batch)
            self._finish(cursor, net, batch, dead)

        def is_done() -> bool:
            return self._transaction(lambda cursor: self._batch_in_target(cursor), fenced=False) >= batch

        self._transaction(write, is_exclusive=True, is_done=is_done)
        stream.last_batch, stream.position = batch, net.through

    def add_columns(self, table: str, values: Mapping[str, object]) -> None:
        there = {column.name for column in self._catalogue([table])[table].columns}
        for name in [one for one in values if one not in there]:
            kind = self._dialect.types.get(type(values[name]), self._dialect.types[str])
            sql = f"ALTER TABLE {self._dialect.name(table)} ADD COLUMN {self._dialect.name(name)} {kind}"
            self._transaction(lambda cursor, sql=sql: cursor.execute(sql), is_exclusive=True)  # type: ignore[misc]
        self.forget_tables()

    def keys(self, table: str) -> Sequence[Sequence[object]]:
        """The keys of all rows of a table, as the target has them."""
        schema = self.tables([table])[table]
        columns = ", ".join(map(self._dialect.name, schema.identity))

        def read(connection: Connection) -> Sequence[Sequence[object]]:
            cursor = connection.cursor()
            cursor.execute(f"SELECT {columns} FROM {self._dialect.name(table)}")
            return list(cursor.fetchall())

        return self._connections.read(read)

    def define(self, change: Change) -> None:
        """See the port."""
        stream = self._open
        batch = stream.last_batch + 1
        empty = Net(rows=(), changes=1, through=change.seq, place=change.place)
        is_repeated = stream.pending == change.seq
        self.begin(empty)  # where a statement commits by itself, this is what tells a repetition

        def work(cursor: Any) -> None:
            try:
                cursor.execute(change.sql)
            except self._dialect.errors as error:
                if not (is_repeated and self._dialect.is_repeated(error)):
                    raise
            self._finish(cursor, empty, batch, ())

        try:
            self._transaction(work, is_exclusive=True)
        except ViolatedError as error:
            raise InvalidRequest(
                f"a statement of the source cannot be executed in the target: {error.violated.reason}",
                position=change.seq,
            ) from error
        self.forget_tables()
        stream.last_batch, stream.position = batch, change.seq

    def progress(self, stream: str) -> Progress | None:
        if not self._has_table("headgate_stream"):
            return None
        return self._transaction(lambda cursor: self._read(cursor, stream, ""), fenced=False)

    def dead_count(self, stream: str) -> int:
        if not self._has_table("headgate_dead"):
            return 0
        return self._transaction(lambda cursor: self._count_dead(cursor, stream), fenced=False)

    def dead_letters(self, stream: str, *, rows_max: int) -> tuple[DeadLetter, ...]:
        if not self._has_table("headgate_dead"):
            return ()

        def read(cursor: Any) -> tuple[DeadLetter, ...]:
            self._execute(
                cursor,
                "SELECT batch, table_name, row_key, seq, image IS NULL, reason FROM headgate_dead WHERE stream = {m} "
                "ORDER BY batch DESC, n DESC LIMIT {m}",
                stream, rows_max,
            )  # fmt: skip
            return tuple(
                DeadLetter(batch=int(batch), table=table, key=key, position=int(seq), is_gone=bool(gone), reason=reason)
                for batch, table, key, seq, gone, reason in cursor.fetchall()
            )

        return self._transaction(read, fenced=False)

    def preview(self, stream: str, net: Net, slots: int) -> tuple[tuple[Refusal, ...], Found]:
        # One thread, so one connection: the temporary tables are there whenever they are asked for.
        self._stream = _Stream(stream, 0, 0, -1, None, is_preview=True)
        self._made, self._staged = {}, {}
        try:
            refused = self.stage(net, slots)
            edges = self.look(net, duplicates=False)
            clashes = self.look(net, duplicates=True).clashes
        finally:
            self._stream = None
            self.close()  # and the temporary tables with it
        return refused, replace(edges, clashes=clashes)

    def compare(self, stream: str, work: Callable[[SqlComparison], R]) -> R:
        """See `headgate.syncs.verify`."""
        has_stream, has_dead = self._has_table("headgate_stream"), self._has_table("headgate_dead")

        def look(connection: Connection) -> R:
            connection.rollback()
            self._dialect.snapshot(connection)
            cursor = connection.cursor()
            progress = self._read(cursor, stream, "") if has_stream else None
            set_apart = self._count_dead(cursor, stream) if has_dead else 0
            return work(SqlComparison(self._dialect, connection, progress, set_apart))

        try:
            return self._connections.read(look)
        finally:
            self.close()  # and the temporary tables with it

    def close(self) -> None:
        self._connections.close()

    # What follows is this module's own.

    def _transaction(
        self,
        work: Callable[[Any], R],
        *,
        fenced: bool = True,
        is_exclusive: bool = False,
        is_trial: bool = False,
        is_done: Callable[[], bool] | None = None,
    ) -> R:
        """One transaction behind the fence."""

        def before(cursor: Any) -> None:
            if fenced and not (self._stream is not None and self._stream.is_preview):
                self._fence(cursor, is_exclusive=is_exclusive)

        return self._connections.transaction(work, before=before, is_trial=is_trial, is_done=is_done)

    def _count_dead(self, cursor: Any, stream: str) -> int:
        self._execute(cursor, "SELECT count(*) FROM headgate_dead WHERE stream = {m}", stream)
        return int(cursor.fetchone()[0])

    def _has_table(self, name: str) -> bool:
        return name in self._catalogue([name])

    def _catalogue(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        return self._connections.read(lambda connection: self._dialect.catalogue(connection, names))

    @property
    def _open(self) -> _Stream:
        assert self._stream is not None, "open_stream comes first"
        return self._stream

    def _execute(self, cursor: Any, sql: str, *values: object) -> None:
        cursor.execute(sql.format(m=self._dialect.mark), values)

    def _read(self, cursor: Any, stream: str, lock: str) -> Progress | None:
        # All columns: who only looks may meet a table that an earlier version made, without the last two.
        self._execute(cursor, "SELECT * FROM headgate_stream WHERE stream = {m}" + lock, stream)
        row = cursor.fetchone()
        if row is None:
            return None
        _, epoch, last_batch, position, pending, *places = row
        place, pending_place = places or (None, None)
        return Progress(
            epoch=int(epoch), last_batch=int(last_batch), position=int(position),
            pending=None if pending is None else int(pending), place=place, pending_place=pending_place,
        )  # fmt: skip

    def _extend(self) -> None:
        """Columns that an earlier version's table lacks."""
        there = {column.name for column in self._catalogue(["headgate_stream"])["headgate_stream"].columns}
        for name in [one for one in ("place", "pending_place") if one not in there]:
            sql = f"ALTER TABLE headgate_stream ADD COLUMN {name} text"
            self._transaction(lambda cursor, sql=sql: cursor.execute(sql), fenced=False)  # type: ignore[misc]

    def _batch_in_target(self, cursor: Any) -> int:
        found = self._read(cursor, self._open.name, "")
        return -1 if found is None else found.last_batch

    def _has_slot(self, cursor: Any, batch: int, slot: int) -> bool:
        sql = "SELECT count(*) FROM headgate_slot WHERE stream = {m} AND batch = {m} AND slot = {m}"
        self._execute(cursor, sql, self._open.name, batch, slot)
        return bool(cursor.fetchone()[0])

    def _fence(self, cursor: Any, *, is_exclusive: bool) -> None:
        stream = self._open
        found = self._read(cursor, stream.name, self._dialect.update if is_exclusive else self._dialect.share)
        if found is None or found.epoch != stream.epoch:
            raise Fenced(
                "a later writer has begun on this stream; nothing was written",
                stream=stream.name,
                epoch=stream.epoch,
                later=None if found is None else found.epoch,
            )
        if found.last_batch != stream.last_batch:
            raise Fenced("this batch is in the target already; nothing was written", batch=found.last_batch)

    def _finish(self, cursor: Any, net: Net, batch: int, dead: Sequence[DeadRow]) -> None:
        stream = self._open
        for each in dead:
            self._execute(
                cursor,
                "INSERT INTO headgate_dead (stream, batch, n, table_name, row_key, image, seq, reason) "
                "VALUES ({m}, {m}, {m}, {m}, {m}, {m}, {m}, {m})",
                stream.name, batch, each.row.n, each.row.table, json.dumps(each.row.key, default=str),
                None if each.row.image is None else json.dumps(each.row.image, default=str), each.row.seq, each.reason,
            )  # fmt: skip
        self._execute(cursor, "DELETE FROM headgate_slot WHERE stream = {m}", stream.name)
        self._execute(
            cursor,
            "UPDATE headgate_stream SET last_batch = {m}, position = {m}, place = {m}, pending = NULL, "
            "pending_place = NULL WHERE stream = {m}",
            batch, net.through, net.place, stream.name,
        )  # fmt: skip

    def _stage_table(self, table: StagedTable) -> str:
        """The staging table for this definition of the target table, empty."""
        made = self._made.get(table.schema.name)
        if made is not None and made[:2] == (table.schema, bool(table.moved)):
            return made[2]
        stream = self._open
        name = self._dialect.name(f"{stream.stage_prefix}{stream.epoch}_{len(self._made)}")
        origin = [
            f"hg_o{i} {next(c.type for c in table.schema.columns if c.name == k)}"
            for i, k in enumerate(table.schema.identity)
            if table.moved
        ]
        statements = self._writing.stage_table(name, table.schema, origin, is_temporary=stream.is_preview)

        def make(cursor: Any) -> None:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            for statement in statements:
                cursor.execute(statement)

        self._transaction(make)
        self._made[table.schema.name] = (table.schema, bool(table.moved), name)
        return name

    def _stage_rows(
        self, table: StagedTable, rows: Sequence[NetRow], slots: int, *, is_first: bool = False
    ) -> list[Refusal]:
        """Stages rows; of those that do not fit, by halving, says which and why."""
        columns = table.stage_columns(slots)
        types = {column.name: column for column in table.schema.columns}

        def write(connection: Connection) -> None:
            if is_first:
                self._dialect.empty(connection, table.stage)
            values = table.stage_rows(rows, slots)
            self._dialect.write(connection, table.stage, columns, [types.get(name) for name in columns], values)
            if is_first:
                self._dialect.analyze(connection, table.stage, len(rows))

        try:
            self._transaction(lambda cursor: write(cursor.connection))
            return []
        except ViolatedError as error:
            if len(rows) == 1:
                return [Refusal(row=rows[0].n, reason=error.violated.reason)]
        if is_first:
            self._transaction(lambda cursor: self._dialect.empty(cursor.connection, table.stage))
        middle = len(rows) // 2
        return [*self._stage_rows(table, rows[:middle], slots), *self._stage_rows(table, rows[middle:], slots)]

    def _check_definitions(self) -> None:
        """After a refusal: perhaps it was a key that has been added since."""
        names = list(self._staged)
        self.forget_tables()
        if any(self._staged[name].schema != schema for name, schema in self.tables(names).items()):
            raise DefinitionChanged(", ".join(names))

    def _complete(self, cursor: Any, tables: Sequence[StagedTable]) -> None:
        keys = [key for table in self._tables.values() for key in table.foreign_keys]
        for table in tables:
            referenced = frozenset(
                column for key in keys if key.parent == table.schema.name for column in key.parent_columns
            )
            if not table.is_emptied:
                for sql in self._questions.completions(table, referenced):
                    cursor.execute(sql)
            if table.gone and table.put and not table.is_exact:
                cursor.execute(self._questions.void(table))

    def _ties(self, cursor: Any, tables: Sequence[StagedTable]) -> Iterator[Tie]:
        by_name = {table.schema.name: table for table in tables}
        for child in tables:
            for key in child.schema.foreign_keys:
                parent = by_name.get(key.parent)
                if parent is not None:
                    for sql in self._questions.ties(child, parent, key):
                        cursor.execute(sql)
                        yield from (Tie(int(a), int(b)) for a, b in cursor.fetchall())

    def _drop_stages(self) -> None:
        def drop(cursor: Any) -> None:
            for name in self._dialect.stage_tables(cursor.connection, self._open.stage_prefix):
                cursor.execute(f"DROP TABLE IF EXISTS {self._dialect.name(name)}")

        self._transaction(drop)
