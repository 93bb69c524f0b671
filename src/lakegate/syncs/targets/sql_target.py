"""`TargetDatabase` over SQL: stage, look, assign, apply; the same steps in every dialect.

Source: docs/explanation/keys.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lakegate.errors import ConstraintViolated, InvalidRequest, StagedRowsLost, Unavailable
from lakegate.syncs.plan.apply_protocol import ALL, Applied, DeadRow, Refusal, SlotOutcome, SyncProgress
from lakegate.syncs.plan.change import Change, Image, ManyRows
from lakegate.syncs.plan.conflict_graph import Assignment, Clash, Edge, Found, Tie
from lakegate.syncs.plan.dead_letters import LETTERS_MAX, KeptRow
from lakegate.syncs.plan.definition import refuse_reserved
from lakegate.syncs.plan.net_changes import Key, Net, NetRow, null_key
from lakegate.syncs.plan.table_schema import TableSchema, keyed, parents_first
from lakegate.syncs.ports import DefinitionChanged
from lakegate.syncs.targets.apply_sql import Writing
from lakegate.syncs.targets.bulk_staging import SPREAD_ROWS, Part
from lakegate.syncs.targets.compare import SqlComparison
from lakegate.syncs.targets.connections import Connections, ViolatedError
from lakegate.syncs.targets.control_tables import CONTROL_TABLES, LATER_COLUMNS, Control, Stream
from lakegate.syncs.targets.dialect import Connection, Dialect
from lakegate.syncs.targets.sequences import MovedSequence
from lakegate.syncs.targets.staging import Questions, StagedTable, add_duplicates, sort_holders

R = TypeVar("R")
ABSENT = (
    "the change shows only a part of the row, and the target does not have the row: the row is older than the initial load, "
    "was quarantined, or was deleted in the target"
)
FIND_MAX = 200
"""The maximum number of values that one query looks up."""


class SqlTarget:
    """The target database of one stream."""

    def __init__(self, dialect: Dialect, *, key: Sequence[str] = ()) -> None:
        """Opens no connection yet. `key`: columns that identify rows in every table, instead of the table's own key."""
        self._dialect, self._key = dialect, tuple(key)
        self._questions, self._writing = Questions(dialect), Writing(dialect)
        self._control, self._connections = Control(dialect), Connections(dialect)
        self._stream: Stream | None = None
        self._tables: dict[str, TableSchema] = {}
        self._unnamed: dict[str, TableSchema] = {}
        self._staged: dict[str, StagedTable] = {}
        self._made: dict[str, tuple[TableSchema, bool, str]] = {}
        self._stages_made = 0
        self._letters: tuple[KeptRow, ...] | None = None
        """Quarantined rows of the open stream; None if they must be read again."""

    @property
    def writers_max(self) -> int | None:
        return self._dialect.writers_max

    @property
    def slot_rows_max(self) -> int | None:
        return self._dialect.slot_rows_max

    def open_stream(self, stream: str, *, epoch: int | None = None) -> SyncProgress:
        if len(self._catalogue(CONTROL_TABLES)) < len(CONTROL_TABLES):
            self._transaction(self._control.make, fenced=False)
        self._extend()

        def take() -> SyncProgress:
            return self._transaction(lambda cursor: self._control.take(cursor, stream, epoch), fenced=False)

        try:
            progress = take()
        except ViolatedError:  # another process has just inserted the row
            progress = take()
        self._stream = Stream(stream, progress.epoch, progress.last_batch, progress.pending)
        self._made, self._staged, self._letters = {}, {}, None
        with contextlib.suppress(Unavailable):  # a staging table that is still in use is left to the next run
            self._drop_stages()
        return progress

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        known = self._tables  # another thread may call `forget_tables` meanwhile
        missing = [name for name in names if name not in known]
        for name in missing:
            refuse_reserved(name)
        if missing:
            known.update((name, keyed(table, self._key)) for name, table in self._catalogue(missing).items())
        return {name: known[name] for name in names if name in known}

    def related(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        found = dict(self.tables(names))
        if any("." in name for name in names):
            # Read together, so that foreign keys name each table as the changes do, with or without its schema.
            links = {name: table.acting for name, table in self._catalogue(list(names)).items()}
            found = {name: replace(table, acting=links.get(name, table.acting)) for name, table in found.items()}
        spelled = {name.lower(): name for name in names} if self._dialect.ignores_case else {}
        waiting = list(found)
        while waiting:
            parent = found[waiting.pop()]
            acting = [replace(key, table=spelled.get(key.table.lower(), key.table)) for key in parent.acting]
            found[parent.name] = replace(parent, acting=tuple(acting))
            fresh = [key.table for key in acting if key.table not in found]
            found.update(self._schemas(fresh))
            waiting += [name for name in dict.fromkeys(fresh) if name in found]
        return found

    def _staged_schemas(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Returns definitions of tables that changes name, or that only foreign key actions reach."""
        unnamed = [name for name in names if name in self._unnamed and name not in self._tables]
        return {**self.tables([name for name in names if name not in unnamed]), **self._schemas(unnamed)}

    def _schemas(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """Returns definitions by name. `key` applies only to tables that `tables` was asked for."""
        known = self._unnamed
        missing = [name for name in names if name not in self._tables and name not in known]
        if missing:
            known.update(self._catalogue(missing))
        found = {name: self._tables.get(name) or known.get(name) for name in names}
        return {name: table for name, table in found.items() if table is not None}

    def find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[Key], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        found: list[tuple[int, Image]] = []
        for begin in range(0, len(values), FIND_MAX):
            part = list(enumerate(values[begin : begin + FIND_MAX], begin))
            found += self._find(table, columns, part, wanted)
        return found

    def forget_tables(self) -> None:
        self._tables, self._unnamed = {}, {}

    def stage(self, net: Net, slots: int) -> tuple[Refusal, ...]:
        if net.many is not None:
            self._stage_many(*net.many, slots, net.through)
            return ()
        staged: dict[str, StagedTable] = {}
        names = dict.fromkeys([*(row.table for row in net.rows), *(row.table for row in net.copies), *net.truncated])
        schemas = self._staged_schemas(list(names))
        for name in names:
            if name not in schemas:
                raise InvalidRequest("the target has no such table; nothing was written", table=name)
            staged[name] = StagedTable(schemas[name], schemas[name].sql_name, "", is_emptied=name in net.truncated)
        for row in net.rows:
            staged[row.table].add(row)
        some = [table for table in staged.values() if table.rows]
        self._make_stages(some)
        self._staged = staged

        def write(cursor: Any) -> None:
            for table in some:
                self._dialect.empty(cursor.connection, table.stage)
                self._add_rows(cursor.connection, table, table.rows, slots)
                self._dialect.analyze(cursor.connection, table.stage, len(table.rows))

        refused: list[Refusal] = []
        try:
            self._transaction(write)
        except ViolatedError:
            for table in some:
                self._empty(table.stage)
            for table in some:
                own = self._refused(table, table.rows, slots)
                table.refused += len(own)
                refused += own
        for table in some:
            absent = self._absent(table)
            table.refused += len(absent)
            refused += absent
        return tuple(refused)

    def look(self, net: Net, *, duplicates: bool) -> Found:
        if duplicates:
            self._check_definitions()

        def find(cursor: Any) -> Found:
            edges: list[Edge] = []
            clashes: list[Clash] = []
            tables = [table for table in self._staged.values() if table.count]
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
        named = assignment.slot_of.keys() | assignment.vacate.keys()
        marks = {
            name: [
                (n, assignment.slot_of.get(n), assignment.vacate.get(n))
                for n in (named if table.count > len(table.rows) else (row.n for row in table.rows if row.n in named))
            ]
            for name, table in self._staged.items()
        }
        for name, table in self._staged.items():
            for _, _, bits in marks[name]:
                table.vacated |= bits or 0

        def move(cursor: Any) -> None:
            for name, table in self._staged.items():
                self._writing.assign(cursor, table, marks[name])

        if assignment.slot_of or assignment.vacate:
            self._transaction(move)

    def begin(self, net: Net) -> None:
        def note(cursor: Any) -> None:
            self._require_staged(cursor)
            self._control.note_begun(cursor, self._open, net)

        self._transaction(note, is_exclusive=True)

    def apply(
        self, net: Net, slot: int, *, finish: bool = False, dead: Sequence[DeadRow] = (), is_trial: bool = False
    ) -> SlotOutcome:
        stream = self._open
        batch = stream.last_batch + 1
        has_row = slot >= 0 and not is_trial

        def work(cursor: Any) -> None:
            # `begin` has counted the staged rows. Only a whole table can be lost after that (an unlogged table is emptied).
            self._require_staged(cursor, rows_max=None if slot == ALL else 1)
            self._require_definitions(cursor)
            if has_row:
                self._control.note_slot(cursor, stream, batch, slot)
            tables = parents_first([table.schema for table in self._staged.values()])
            self._writing.apply(cursor, [self._staged[table.name] for table in tables], slot, net, self._schemas)
            if finish:
                self._control.finish(cursor, stream, net, batch, dead)

        def is_done() -> bool:
            if finish:
                return self._has_batch(batch)
            asked = self._control.has_slot
            return has_row and self._transaction(lambda cursor: asked(cursor, stream, batch, slot), fenced=False)

        try:
            self._transaction(work, is_exclusive=finish, is_trial=is_trial, is_done=is_done)
        except ViolatedError as error:
            return error.violated
        if finish:
            self._ended(batch, net, dead)
        return Applied()

    def finish(self, net: Net, slots: int, dead: Sequence[DeadRow]) -> None:
        stream = self._open
        batch = stream.last_batch + 1

        def write(cursor: Any) -> None:
            self._control.require_slots(cursor, stream, batch, slots)
            self._control.finish(cursor, stream, net, batch, dead)

        self._transaction(write, is_exclusive=True, is_done=lambda: self._has_batch(batch))
        self._ended(batch, net, dead)

    def _ended(self, batch: int, net: Net, dead: Sequence[DeadRow]) -> None:
        self._open.last_batch = batch
        if net.letters or dead:
            self._letters = None

    def letters(self) -> tuple[KeptRow, ...]:
        if self._letters is None:
            self._letters = self.kept_rows(self._open.name, with_records=False)
        return self._letters

    def kept_rows(self, stream: str, *, with_records: bool = True) -> tuple[KeptRow, ...]:
        """Returns quarantined rows of a stream, oldest first, with their values; and unreadable records."""
        if not self._has_table("lakegate_dead"):
            return ()
        asked = self._control.letters
        return self._transaction(
            lambda cursor: asked(cursor, stream, LETTERS_MAX, with_records=with_records), fenced=False
        )

    def drop_letters(self, stream: str, ids: Sequence[tuple[int, int]]) -> int:
        """Deletes quarantined rows of a stream without applying them; returns how many were deleted."""
        asked = self._control.drop_letters
        return self._transaction(lambda cursor: asked(cursor, stream, ids), fenced=False)

    def add_columns(self, table: str, values: Mapping[str, object]) -> None:
        schema = self._catalogue([table])[table]
        there = {column.name for column in schema.columns}
        for name in [one for one in values if one not in there]:
            kinds = (self._dialect.types.get(one) for one in type(values[name]).__mro__)
            kind = next((one for one in kinds if one is not None), self._dialect.types[str])
            sql = f"ALTER TABLE {schema.sql_name} ADD COLUMN {self._dialect.name(name)} {kind}"
            self._execute(sql, is_exclusive=True)
        self.forget_tables()

    def move_sequences(self, tables: Sequence[str]) -> tuple[MovedSequence, ...]:
        """Moves the sequences of columns of existing tables past their rows; moves none backward."""
        there = list(self.tables(tables))

        def move(cursor: Any) -> tuple[MovedSequence, ...]:
            return tuple(moved for name in there for moved in self._dialect.move_sequences(cursor, name))

        return self._transaction(move, fenced=False)

    def has_rows(self, table: str) -> bool:
        """Returns whether a table has any row."""

        def read(connection: Connection) -> bool:
            cursor = connection.cursor()
            sql_name = self._dialect.catalogue(connection, [table])[table].sql_name
            cursor.execute(f"SELECT 1 FROM {sql_name} LIMIT 1")
            return cursor.fetchone() is not None

        return self._connections.read(read)

    def staged_key(self, table: str, n: int) -> Key:
        staged = self._staged[table]
        columns = ", ".join(map(self._dialect.name, staged.schema.identity))

        def read(connection: Connection) -> Key:
            cursor = connection.cursor()
            cursor.execute(f"SELECT {columns} FROM {staged.stage} WHERE lg_n = {int(n)}")
            return tuple(cursor.fetchone() or ())

        return self._connections.read(read)

    def define(self, change: Change) -> None:
        """See the port."""
        stream = self._open
        batch = stream.last_batch + 1
        empty = Net(rows=(), changes=1, through=change.seq, place=change.place)
        is_repeated = stream.pending == change.seq
        # In a database that commits each DDL statement by itself, this record shows a repetition.
        self._transaction(lambda cursor: self._control.note_begun(cursor, stream, empty), is_exclusive=True)

        def work(cursor: Any) -> None:
            try:
                cursor.execute(change.sql)
            except self._dialect.errors as error:
                if not (is_repeated and self._dialect.is_repeated(error)):
                    raise
            self._control.finish(cursor, stream, empty, batch, ())

        try:
            self._transaction(work, is_exclusive=True)
        except ViolatedError as error:
            raise InvalidRequest(
                f"a statement of the source cannot be executed in the target: {error.violated.reason}",
                position=change.seq,
            ) from error
        self.forget_tables()
        stream.last_batch = batch

    def progress(self, stream: str) -> SyncProgress | None:
        if not self._has_table("lakegate_stream"):
            return None
        return self._transaction(lambda cursor: self._control.read(cursor, stream), fenced=False)

    def dead_count(self, stream: str) -> int:
        if not self._has_table("lakegate_dead"):
            return 0
        return self._transaction(lambda cursor: self._control.count_dead(cursor, stream), fenced=False)

    def note_delays(self, text: str) -> None:
        """Replaces the counts of the open stream's delays; see `lakegate.syncs.plan.delay.Delays`."""
        self._transaction(lambda cursor: self._control.note_delays(cursor, self._open, text))

    def delays(self, stream: str) -> str | None:
        """Returns the counts of a stream's delays; None if there are none."""
        if not self._has_table("lakegate_delay"):
            return None
        return self._transaction(lambda cursor: self._control.delays(cursor, stream), fenced=False)

    def preview(self, stream: str, net: Net, slots: int) -> tuple[tuple[Refusal, ...], Found]:
        # One thread, so one connection: temporary tables are visible to every statement.
        self._stream = Stream(stream, 0, 0, is_preview=True)
        self._made, self._staged = {}, {}
        try:
            refused = self.stage(net, slots)
            edges = self.look(net, duplicates=False)
            clashes = self.look(net, duplicates=True).clashes
        finally:
            self._stream = None
            self.close()  # this also drops the temporary tables
        return refused, replace(edges, clashes=clashes)

    def compare(self, stream: str, work: Callable[[SqlComparison], R]) -> R:
        """See `lakegate.syncs.verify`."""
        has_stream, has_dead = self._has_table("lakegate_stream"), self._has_table("lakegate_dead")

        def look(connection: Connection) -> R:
            connection.rollback()
            self._dialect.snapshot(connection)
            cursor = connection.cursor()
            progress = self._control.read(cursor, stream) if has_stream else None
            set_apart = self._control.count_dead(cursor, stream) if has_dead else 0
            return work(SqlComparison(self._dialect, connection, progress, set_apart))

        try:
            return self._connections.read(look)
        finally:
            self.close()  # this also drops the temporary tables

    def close(self) -> None:
        self._connections.close()

    def _find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[tuple[int, Key]], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        """See `find`. A value that does not fit its column matches no row."""
        name, by_name = self._dialect.name, {column.name: column for column in table.columns}
        asked = [by_name[column] for column in columns]
        one = (
            f"{', '.join(map(name, wanted))} FROM {table.sql_name} WHERE "
            + " AND ".join(f"{name(column)} = {self._dialect.mark}" for column in columns)
        )  # fmt: skip
        sql = " UNION ALL ".join(f"SELECT {n}, {one}" for n, _ in values)

        def read(cursor: Any) -> Sequence[tuple[int, Image]]:
            pairs = (pair for _, key in values for pair in zip(asked, key, strict=True))
            cursor.execute(sql, [self._dialect.parameter(column, value) for column, value in pairs])
            return [(int(n), dict(zip(wanted, row, strict=True))) for n, *row in cursor.fetchall()]

        try:
            return self._transaction(read, fenced=False)
        except ViolatedError:
            middle = len(values) // 2
            if not middle:
                return ()
            return [
                part for half in (values[:middle], values[middle:]) for part in self._find(table, columns, half, wanted)
            ]

    def _transaction(
        self,
        work: Callable[[Any], R],
        *,
        fenced: bool = True,
        is_exclusive: bool = False,
        is_trial: bool = False,
        is_done: Callable[[], bool] | None = None,
    ) -> R:
        """Runs `work` in one transaction that checks the fence first."""

        def before(cursor: Any) -> None:
            if fenced and not self._open.is_preview:
                self._control.fence(cursor, self._open, is_exclusive=is_exclusive)

        return self._connections.transaction(work, before=before, is_trial=is_trial, is_done=is_done)

    def _require_staged(self, cursor: Any, *, rows_max: int | None = None) -> None:
        """Checks that the staged rows still exist; counts at most `rows_max` per table.

        Raises:
            StagedRowsLost: Staged rows are missing.
        """
        for table in self._staged.values():
            staged = table.count - table.refused
            wanted = staged if rows_max is None else min(staged, rows_max)
            if wanted or (rows_max is None and table.count):
                cursor.execute(self._questions.held(table, rows_max))
                if int(cursor.fetchone()[0]) != wanted:
                    raise StagedRowsLost(table=table.schema.name)

    def _require_definitions(self, cursor: Any) -> None:
        """Checks that no foreign key refers by now to a table whose rows are deleted and inserted again.

        Such a key could delete the children, too.

        Raises:
            DefinitionChanged: Such a foreign key exists.
        """
        replaced = [name for name, table in self._staged.items() if self._writing.replaces(table)]
        found = self._dialect.catalogue(cursor.connection, replaced) if replaced else {}
        if any(table.is_referenced for table in found.values()):
            self.forget_tables()
            raise DefinitionChanged(", ".join(replaced))

    def _execute(self, sql: str, *, fenced: bool = True, is_exclusive: bool = False) -> None:
        self._transaction(lambda cursor: cursor.execute(sql), fenced=fenced, is_exclusive=is_exclusive)

    def _empty(self, stage: str) -> None:
        self._transaction(lambda cursor: self._dialect.empty(cursor.connection, stage))

    def _has_table(self, name: str) -> bool:
        return name in self._catalogue([name])

    def _catalogue(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        return self._connections.read(lambda connection: self._dialect.catalogue(connection, names))

    @property
    def _open(self) -> Stream:
        assert self._stream is not None, "open_stream comes first"
        return self._stream

    def _has_batch(self, batch: int) -> bool:
        found = self._transaction(lambda cursor: self._control.read(cursor, self._open.name), fenced=False)
        return found is not None and found.last_batch >= batch

    def _extend(self) -> None:
        """Adds or widens columns of a control table that an earlier version made."""
        there = {column.name: column.kind for column in self._catalogue(["lakegate_stream"])["lakegate_stream"].columns}
        kind = self._dialect.types[str]
        for name in [one for one in LATER_COLUMNS if there.get(one) != kind]:
            # Only in MariaDB is the existing type `text` too short.
            what = "MODIFY" if name in there else "ADD COLUMN"
            self._execute(f"ALTER TABLE lakegate_stream {what} {name} {kind}", fenced=False)

    def _stage_many(self, name: str, many: ManyRows, slots: int, through: int) -> None:
        """Stages rows that this process does not hold in memory.

        Raises:
            ConstraintViolated: A row does not fit its columns. Which row is not known.
            InvalidRequest: A row has NULL in its key.
        """
        schema = self.tables([name])[name]
        table = StagedTable(schema, schema.sql_name, "")
        table.add_many(many)
        self._make_stages([table])
        self._staged = {name: table}
        stored = {column.name: column for column in schema.stored}
        part = Part(
            dialect=self._dialect, stage=table.stage, slots=slots, identity=frozenset(schema.identity),
            columns=[(place, stored[one]) for place, one in enumerate(many.columns) if one in stored],
        )  # fmt: skip

        def write(cursor: Any) -> None:
            self._dialect.empty(cursor.connection, table.stage)
            if not is_spread:
                part.write(cursor.connection, 0, table.count, many.rows())

        def end(cursor: Any) -> int:
            others = 0
            nulls = " OR ".join(f"{self._dialect.name(one)} IS NULL" for one in schema.nullable_key)
            if nulls:
                cursor.execute(f"SELECT 1 FROM {table.stage} WHERE {nulls} LIMIT 1")
                if cursor.fetchone():
                    raise null_key(schema, through)
            if many.is_whole:
                cursor.execute(self._questions.others_gone(table))
                others = int(cursor.rowcount)
            self._dialect.analyze(cursor.connection, table.stage, table.count + others)
            return others

        is_spread = self._dialect.writers_max != 1 and table.count >= SPREAD_ROWS
        try:
            self._transaction(write)
            refused = many.spread(part) if is_spread else ()
        except ViolatedError as error:
            refused = [error.violated.reason]
        if refused:
            self._empty(table.stage)
            raise ConstraintViolated(
                f"a row of a transaction of {table.count:,} does not fit its columns: {refused[0]}; "
                "the target stays at the last complete batch",
                table=name,
            )
        others = self._transaction(end)  # counted only now, because the transaction may have been retried
        table.gone, table.count = table.gone + others, table.count + others

    def _make_stages(self, tables: Sequence[StagedTable]) -> None:
        """Creates the staging tables that are missing for these definitions of the target tables."""
        stream, statements, made = self._open, list[str](), dict(self._made)
        for table in tables:
            kept = made.get(table.schema.name)
            if kept is None or kept[:2] != (table.schema, bool(table.moved)):
                self._stages_made += 1  # a name is never reused: another table may have it
                name = self._dialect.name(f"{stream.stage_prefix}{stream.epoch}_{self._stages_made}")
                origin = [
                    f"lg_o{i} {next(c.type for c in table.schema.columns if c.name == k)} NULL"
                    for i, k in enumerate(table.schema.identity)
                    if table.moved
                ]
                statements += [f"DROP TABLE IF EXISTS {name if kept is None else kept[2]}"]
                statements += self._writing.stage_table(name, table.schema, origin, is_temporary=stream.is_preview)
                made[table.schema.name] = (table.schema, bool(table.moved), name)
            table.stage = made[table.schema.name][2]

        def make(cursor: Any) -> None:
            for statement in statements:
                cursor.execute(statement)

        if statements:
            self._transaction(make)
            self._made = made

    def _add_rows(self, connection: Connection, table: StagedTable, rows: Sequence[NetRow], slots: int) -> None:
        columns = table.stage_columns(slots)
        types = {column.name: column for column in table.schema.columns}
        types.update({f"lg_o{i}": types[name] for i, name in enumerate(table.schema.identity)})
        values = table.stage_rows(rows, slots)
        self._dialect.write(connection, table.stage, columns, [types.get(name) for name in columns], values)

    def _refused(self, table: StagedTable, rows: Sequence[NetRow], slots: int) -> list[Refusal]:
        """Stages rows; finds rows that do not fit by halving, and returns them with the reason."""
        try:
            self._transaction(lambda cursor: self._add_rows(cursor.connection, table, rows, slots))
            return []
        except ViolatedError as error:
            if len(rows) == 1:
                return [Refusal(row=rows[0].n, reason=error.violated.reason)]
        middle = len(rows) // 2
        return [*self._refused(table, rows[:middle], slots), *self._refused(table, rows[middle:], slots)]

    def _absent(self, table: StagedTable) -> Sequence[Refusal]:
        """Unstages partial rows that do not exist in the target."""
        if not table.has_partial:
            return ()
        partial = {row.n for row in table.rows if row.is_partial}

        def take_back(cursor: Any) -> Sequence[int]:
            cursor.execute(self._questions.absent(table))
            absent = sorted(partial.intersection(int(n) for (n,) in cursor.fetchall()))
            self._writing.take_back(cursor, table, absent)
            return absent

        return [Refusal(row=n, reason=ABSENT) for n in self._transaction(take_back)]

    def _check_definitions(self) -> None:
        """Checks definitions after a refusal: the cause may be a key that was added since."""
        names, unnamed = list(self._staged), [name for name in self._staged if name in self._unnamed]
        self.forget_tables()
        self._schemas(unnamed)
        if any(self._staged[name].schema != schema for name, schema in self._staged_schemas(names).items()):
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
