"""An append stream: adds columns, sets bad records aside, applies standing requests to new rows, and leaves out duplicates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from lakegate.config import Append, Erase, Mutate, StreamSpec, TableSpec
from lakegate.delta.idempotent_writes import append, create_table
from lakegate.delta.table_log import TableMetadata
from lakegate.errors import Fault, InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.quoting import quoted
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.statement import Dml, appending
from lakegate.spark.fitting import attempted, fitted
from lakegate.spark.sources import BAD, ORDER, POSITION, RAW, RECORD, SOURCE_COLUMNS, partition_count
from lakegate.streams.bad_records import (
    Parted,
    column,
    parted,
    refusals,
    refuse_bad,
    remembered,
    set_aside,
    transformed,
    with_text,
)
from lakegate.streams.interfaces import APPEND, BatchResult, BatchTurn, StreamContext, enter_all
from lakegate.streams.precomputed import Precomputed
from lakegate.streams.refresh import Rest
from lakegate.streams.requests.columns import fields_of
from lakegate.streams.requests.standing import ColumnMoved, RequestTables
from lakegate.streams.requests.table import ddl
from lakegate.streams.requests.unsettled_batch import later_rules
from lakegate.streams.requests.visibility import Deciding, RequestsSnapshot
from lakegate.streams.table_rules import marked, rules_of
from lakegate.telemetry.events import Noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A batch with the table's columns, before the standing requests are applied to it."""

    metadata: TableMetadata
    """The table's definition when the batch was read."""
    parted: Parted
    """The records, with the source's columns."""
    partitions: int
    """The number of partitions of the micro-batch; 1 where the stream looks up no keys."""
    cached: list[DataFrame]

    def forget(self) -> None:
        """Frees the cached data."""
        for frame in self.cached:
            frame.unpersist()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """A batch after the standing requests were applied to it."""

    look: RequestsSnapshot
    """The state of the request tables that the batch was computed from."""
    version: Version | None
    """The target's version in which duplicate keys were looked up; None where the stream looks up no keys."""
    insert: Staged
    """The prepared commit."""
    refused: DataFrame | None
    """Records that break a rule of the table once standing requests have changed them; None where none are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """A batch that is computed before its turn."""

    batch_id: int
    read: _Read
    rest: Rest
    """Detects that other streams have stopped changing the request tables."""
    look: RequestsSnapshot
    """The last state of the request tables that was read."""
    settled: frozenset[str] = frozenset()
    """Other streams that have recorded the outcomes of a batch since this one was read, and have stored no other batch."""
    computed: _Computed | None
    """None where other streams hold the turn, or where they committed while the standing requests were read."""


class AppendStream:
    """Appends each record once, changed by the table's standing requests. Rows of erased keys are left out."""

    def __init__(self, spec: StreamSpec, table_spec: TableSpec, context: StreamContext) -> None:
        if not isinstance(spec.kind, Append):
            raise TypeError(f"{spec.name} is not an append stream")
        self._spec, self._append, self._table, self._context = spec, spec.kind, table_spec, context
        self._noticed: set[str] = set()
        self._ahead: Precomputed[_Ahead] = Precomputed(self._forget)
        self._deciding = Deciding(context, _deciding_on(context))
        self._standing = RequestTables(context, spec.name)

    def tables(self) -> tuple[TableLocation, ...]:
        """The target, the request tables that decide on its rows, and the dead letters if there may be any."""
        context = self._context
        letters = [context.dead_letters_of(self._spec)] if self._spec.keeps_letters else []
        return (context.target, *self._request_tables, *letters)

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """See `StreamKind.evaluated`."""
        records, log, target = self._records(batch), self._context.log, self._context.target
        return records if log.head(target) < 0 else self._prepared(records, log.metadata(target))

    def has_sweep_work(self) -> bool:
        """False: an append stream keeps nothing for later."""
        return False

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Does nothing: an append stream has no sweeps."""
        return BatchResult()

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns the head: a table never leaves work for an append stream."""
        return {self._context.target: self._context.log.head(self._context.target)}

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Reads a micro-batch and computes its commit. Does nothing while the table does not exist.

        Other turns may come first and add standing requests that apply to these rows. The commit is then left to `keep_up`.

        Raises:
            InvalidRequest: as `run_batch`.
        """
        self._ahead.drop()
        log, target = self._context.log, self._context.target
        if log.head(target) < 0 or self._standing.is_pending():
            return
        read = self._read(batch, self._records(batch), log.metadata(target), is_kept=True)
        look, computed = self._deciding.now(), None
        try:
            with refusals(self._spec, read.parted.whole):
                if not self._deciding.names & set(before):
                    computed = self._computed(read, look)
                else:
                    read.parted.good.count()
        except BaseException:
            read.forget()
            raise
        rest = Rest(self._context.clock)
        self._ahead.hold(batch_id, _Ahead(batch_id=batch_id, read=read, rest=rest, look=look, computed=computed))
        self._announce(computed, batch_id)

    def known(self) -> object:
        """See `StreamKind.known`."""
        return [self._context.log.known(table) for table in (self._context.target, *self._request_tables)]

    def keep_up(self, *, before: Collection[str]) -> None:
        """Recomputes the commit when other streams have changed the tables that it was computed from.

        It waits until no turn comes first that may add standing requests: by then the turn's holder has recorded its outcomes. An
        earlier recomputation would be repeated with the next batch. It also recomputes when others change nothing for a while.
        """
        self._ahead.update(partial(self._kept_up, before=before))

    def _kept_up(self, ahead: _Ahead, *, before: Collection[str]) -> _Ahead:
        look = self._deciding.now()
        settled = (ahead.settled | self._deciding.settled(ahead.look, look)) - look.stored.keys()
        is_at_rest, computed = ahead.rest.of(look), ahead.computed
        if computed is None or not self._holds(computed, look):
            self._announce(None, ahead.batch_id)
            is_due = is_at_rest or self._deciding.names & set(before) <= settled
            computed = self._computed(ahead.read, look) if is_due else None
            self._announce(computed, ahead.batch_id)
        return replace(ahead, look=look, settled=settled, computed=computed)

    def _announce(self, computed: _Computed | None, batch_id: int) -> None:
        """Announces a prepared commit to the streams of this driver that take later turns; None: withdraws it."""
        target, job = self._context.target, self._spec.name
        pending = publisher(self._context.session).pending_appends
        if computed is None:
            pending.withdraw(target, job)
        else:
            pending.announce(target, job, batch_id, computed.insert.commit)

    def _computed(self, read: _Read, look: RequestsSnapshot) -> _Computed | None:
        session, target = self._context.session, self._context.target
        version = self._context.log.head(target) if self._append.on_duplicate == "keep_first" else None
        try:
            rows, refused = self._met(read, look)
        except ColumnMoved:
            return None
        # Stored requests that count as standing are read at the current version. It must belong to the same moment as the outcomes.
        if look.unrecorded and not self._deciding.is_read(look):
            return None
        insert = publisher(session).stage(appending(session, rows, target, self._options))
        return _Computed(look=look, version=version, insert=insert, refused=refused)

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Appends one micro-batch in one commit.

        Raises:
            InvalidRequest: a record does not parse or fit and `on_bad_record` is `fail`, or the source lacks a column;
                nothing was written.
        """
        target, log = self._context.target, self._context.log
        ahead = self._ahead.of(batch_id)
        records = self._records(batch) if ahead is None else None
        if log.head(target) < 0:
            # CREATE makes version 0, and the entry commit follows. A first append that also created the table could not be
            # fenced, and might land after the append of an earlier run.
            records = self._records(batch) if records is None else records
            columns = self._table.columns or ddl(records.drop(*SOURCE_COLUMNS).schema)
            create_table(
                self._context.session,
                target,
                columns,
                self._table.partition_by,
                self._table.cluster_by,
                self._table.properties,
            )
        enter_all(turn, self.tables(), self._context.session, self._spec.name)
        self._standing.enter(turn)
        metadata, look = log.metadata(target, log.seen(target)), self._deciding.now()
        insert: Staged | None = None
        refused: DataFrame | None = None
        ahead = self._ahead.take(batch_id)
        if ahead is not None and not _is_same(ahead.read.metadata, metadata):
            self._ahead.drop()
            ahead = None
        if ahead is not None:
            read = ahead.read
            if ahead.computed is not None and self._holds(ahead.computed, look):
                insert, refused = ahead.computed.insert, ahead.computed.refused
            else:
                self._announce(None, batch_id)
        else:
            read = self._read(batch, self._records(batch) if records is None else records, metadata)
        try:
            rows: DataFrame | None = None
            if insert is None:
                rows, refused = self._met(read, look)
            bad = [frame for frame in (read.parted.bad, refused) if frame is not None]
            counts = set_aside(turn, self._context, self._spec, reduce(_union, bad) if bad else None, batch_id)
            write = self._write_of(insert, rows, is_ahead=ahead is not None)
            before = log.seen(target)
            tokens: list[WriteToken] = []

            def statement(token: WriteToken) -> None:
                tokens.append(token)
                write(token)

            with refusals(self._spec, read.parted.whole):
                is_new = turn.write(target, step=APPEND, name="append", statement=statement)
        finally:
            if ahead is None:
                read.forget()
            self._ahead.drop()
        written = self._written_by(tokens[-1], before) if is_new else 0
        return BatchResult(
            rows_written=written, dead_letters=counts.letters, unmet=counts.unmet, was_applied_before=not is_new
        )

    def _write_of(
        self, insert: Staged | None, rows: DataFrame | None, *, is_ahead: bool
    ) -> Callable[[WriteToken], object]:
        """Returns the function that writes a batch with a token: it commits the prepared statement, or computes the append now."""
        if insert is not None:
            return partial(publisher(self._context.session).finish, insert)
        assert rows is not None, "a batch without a prepared commit has rows"
        session, target = self._context.session, self._context.target
        insert_now = partial(append, rows, target, options=self._options)
        if not is_ahead:
            return insert_now

        def insert_without_stock(token: WriteToken) -> None:
            execute = partial(insert_now, token)
            dml = Dml(session=session, table=target, operation=Operation.INSERT, execute=execute)
            publisher(session).publish(dml, token)

        return insert_without_stock

    def _read(self, batch: DataFrame, records: DataFrame, metadata: TableMetadata, *, is_kept: bool = False) -> _Read:
        """Splits the records of a batch into those that fit and the others; `is_kept` if they will be read more than once."""
        found = parted(self._spec, self._prepared(records, metadata), is_kept=is_kept)
        partitions = partition_count(batch) if self._append.on_duplicate == "keep_first" else 1
        cached = [] if found.cached is None else [found.cached]
        return _Read(metadata=metadata, parted=found, partitions=partitions, cached=cached)

    def _met(self, read: _Read, look: RequestsSnapshot) -> tuple[DataFrame, DataFrame | None]:
        """Returns the rows after the standing requests, and the records that the table then refuses (None: none are kept)."""
        rows, refused, metadata = read.parted.good, None, read.metadata
        sets = any(isinstance(one.kind, Mutate) and one.kind.set for one in self._deciding.streams)
        if sets and rules_of(metadata):
            # Standing requests set values, so a good record may become a row that the table refuses.
            rows = self._without_erased(self._with_standing(remembered(rows), look, metadata), look, metadata)
            rows = with_text(marked(rows, metadata))
            if self._spec.on_bad_record == "fail":
                rows = refuse_bad(rows)
            else:
                refused, rows = rows.where(F.col(BAD).isNotNull()), rows.where(F.col(BAD).isNull())
        else:
            rows = self._without_erased(self._with_standing(rows, look, metadata), look, metadata)
        if self._append.on_duplicate == "keep_first":
            rows = self._first_of_key(rows, read)
        return rows.drop(*SOURCE_COLUMNS), refused

    def _holds(self, computed: _Computed, now: RequestsSnapshot) -> bool:
        """Returns True if no commit has changed the tables that a batch was computed from."""
        # Rows that others append matter only if the stream looks up keys.
        version = computed.version
        if version is not None and not self._context.log.is_unchanged(self._context.target, version):
            return False
        return not self._deciding.changed(computed.look, now)

    def _forget(self, ahead: _Ahead) -> None:
        self._announce(None, ahead.batch_id)
        ahead.read.forget()

    @property
    def _options(self) -> dict[str, str]:
        return {"mergeSchema": "true"} if self._spec.on_new_column == "add" else {}

    def _written_by(self, token: WriteToken, before: Version) -> int:
        """Returns the number of rows in the commit of this token, which is after `before`; the log has read it already."""
        log, target = self._context.log, self._context.target
        for commit in reversed(log.commits(target, before, log.seen(target))):
            if commit.tokens.get(token.token_id) == token.number:
                return int(commit.metrics.get("numOutputRows", 0))
        return 0

    # ------------------------------------------------------------------------------------------------------- columns

    def _records(self, batch: DataFrame) -> DataFrame:
        """Returns the batch after the user's function, with the columns of `columns`."""
        return transformed(self._spec, batch, lambda good: self._with_columns(remembered(good)))

    def _with_columns(self, batch: DataFrame) -> DataFrame:
        """Adds the columns of `columns`, each SQL over the original record; NULL where the record did not parse."""
        tried = {name: attempted(F.expr(sql)) for name, sql in self._append.columns.items()}
        is_good = F.col(BAD).isNull()
        misfits = [
            F.when(is_good & is_raised, F.lit(f"cannot be computed: {name}")) for name, (_, is_raised) in tried.items()
        ]
        values = {name: F.when(is_good, value) for name, (value, _) in tried.items()}
        return batch.withColumns({**values, BAD: F.coalesce(BAD, *misfits)}) if tried else batch

    def _prepared(self, batch: DataFrame, metadata: TableMetadata) -> DataFrame:
        """Returns the table's columns, and in `_lg_bad` the reason why a record does not fit."""
        kept, misfits = self._fitted(batch, metadata)
        bad = F.coalesce(BAD, *misfits)
        frame = batch.select(*kept.values(), ORDER, POSITION, bad.alias(BAD), RAW, RECORD)
        if checks := self._key_checks():
            frame = frame.withColumn(BAD, F.coalesce(BAD, *checks))
        return with_text(marked(frame, metadata))

    def _fitted(self, batch: DataFrame, metadata: TableMetadata) -> tuple[dict[str, Column], list[Column]]:
        """Returns table column → its value, and the tests that each record has to pass."""
        given = {field.name.lower(): field for field in batch.schema.fields if field.name not in SOURCE_COLUMNS}
        kept: dict[str, Column] = {}
        checks: list[Column] = []
        for wanted in metadata.schema.fields:
            field = given.pop(wanted.name.lower(), None)
            if field is None:
                if not wanted.nullable and not _is_filled_by_delta(wanted):
                    raise InvalidRequest(
                        faults=[
                            Fault(
                                where=f"streams.{self._spec.name}.append",
                                what=f"no value for the column {wanted.name}, which is NOT NULL",
                                expected="the column in the source, or under `columns`",
                            )
                        ]
                    )
                continue
            value, kind = column(field.name), field.dataType
            if self._spec.on_new_column == "ignore":
                value, kind = self._without_new_fields(field.name, value, kind, wanted.dataType)
            kept[wanted.name], misfit = fitted(value, kind, wanted)
            checks.append(misfit)
        self._extra(given, kept)
        return kept, checks

    def _extra(self, given: Mapping[str, StructField], kept: dict[str, Column]) -> None:
        """Adds the columns that the table lacks, or leaves them out and reports it."""
        if self._spec.on_new_column == "add":
            kept.update({field.name: column(field.name) for field in given.values()})
            return
        asked = [name for name in self._append.columns if name.lower() in given]
        if asked:
            raise InvalidRequest(
                faults=[
                    Fault(
                        where=f"streams.{self._spec.name}.append.columns.{name}",
                        what="the table has no such column",
                        expected="a column of the table, or `on_new_column: add`",
                    )
                    for name in asked
                ]
            )
        for field in given.values():
            self._leave_out(field.name)

    def _leave_out(self, name: str) -> None:
        """Reports once that a column, or a field by its dotted name, is left out."""
        if name not in self._noticed:
            self._noticed.add(name)
            text = f"the source has a column that the table lacks, and that is left out: {name}"
            self._context.events.emit(Noticed(job=self._spec.name, text=text))

    def _without_new_fields(
        self, name: str, value: Column, given: DataType, wanted: DataType
    ) -> tuple[Column, DataType]:
        """Returns a value without the fields that the table's column lacks, at any depth, and its type."""
        match given, wanted:
            case StructType(), StructType():
                types = {field.name.lower(): field.dataType for field in wanted.fields}
                parts, fields = [], []
                for field in given.fields:
                    at = f"{name}.{field.name}"
                    if field.name.lower() not in types:
                        self._leave_out(at)
                        continue
                    part, kind = self._without_new_fields(
                        at, value.getField(field.name), field.dataType, types[field.name.lower()]
                    )
                    parts.append(part.alias(field.name))
                    fields.append(StructField(field.name, kind, field.nullable))
                if StructType(fields) == given or not parts:
                    return value, given
                return F.when(value.isNotNull(), F.struct(*parts)), StructType(fields)
            case ArrayType(elementType=one), ArrayType(elementType=other):
                _, kind = self._without_new_fields(name, F.lit(None), one, other)
                if kind == one:
                    return value, given
                items = F.transform(value, lambda item: self._without_new_fields(name, item, one, other)[0])
                return items, ArrayType(kind, given.containsNull)
        return value, given

    def _key_checks(self) -> list[Column]:
        if self._append.on_duplicate != "keep_first":
            return []
        return [F.when(column(name).isNull(), F.lit(f"has no key: {name} is NULL")) for name in self._append.key]

    # ------------------------------------------------------------------------------------------------------ requests

    @property
    def _request_tables(self) -> list[TableLocation]:
        return [self._context.requests_of(stream) for stream in self._deciding.streams]

    def _with_standing(self, rows: DataFrame, look: RequestsSnapshot, metadata: TableMetadata) -> DataFrame:
        """Applies the table's standing mutations to the rows, stream by stream."""
        now_ms = self._context.clock.wall_ms()
        for stream in self._deciding.streams:
            if not isinstance(stream.kind, Mutate):
                continue
            standing = self._deciding.requests(stream, look).standing(
                moves_rows=stream.kind.moves_rows, stand_for_ms=stream.kind.stand_for_ms, now_ms=now_ms
            )
            if standing is not None:
                rows = meet(rows, standing, stream.kind, metadata)
            if stream.name in look.unrecorded and (later := later_rules(self._context, stream)) is not None:
                rows = meet(rows, later, stream.kind, metadata)
        return rows

    def _without_erased(self, rows: DataFrame, look: RequestsSnapshot, metadata: TableMetadata) -> DataFrame:
        for stream in self._deciding.streams:
            if not isinstance(stream.kind, Erase):
                continue
            erased = self._deciding.requests(stream, look).erased(is_unrecorded=stream.name in look.unrecorded)
            if erased is None:
                continue
            known = _with_match(rows, erased.columns, metadata)
            if known is None:
                continue  # no row of this batch can have an erased key
            names = {name.lower(): name for name in known.columns}
            renamed = erased.toDF(*[f"_lg_e{i}" for i in range(len(erased.columns))])
            same = [column(names[name.lower()]) == F.col(f"_lg_e{i}") for i, name in enumerate(erased.columns)]
            rows = known.join(renamed, same, "left_anti").select(*[column(name) for name in rows.columns])
        return rows

    # ---------------------------------------------------------------------------------------------------- duplicates

    def _first_of_key(self, rows: DataFrame, read: _Read) -> DataFrame:
        """Returns the rows whose key is neither in the table nor earlier in the batch."""
        key = [column(name) for name in self._append.key]
        # Without this, the window has `spark.sql.shuffle.partitions` partitions. Spark joins no small ones in cached data.
        rows = rows.coalesce(1) if read.partitions == 1 else rows.repartition(read.partitions, *key)
        place = Window.partitionBy(*key).orderBy(ORDER)
        rows = rows.withColumn("_lg_place", F.row_number().over(place)).where("_lg_place = 1").drop("_lg_place")
        rows = rows.persist()  # read for its keys, then written
        read.cached.append(rows)
        log, target = self._context.log, self._context.target
        there = log.read_at(self._context.session, target, log.head(target))
        names = list(self._append.key)
        known = there.select(*key).join(rows.select(*key), names, "left_semi")
        return rows.join(known, names, "left_anti")


def _deciding_on(context: StreamContext) -> list[StreamSpec]:
    """Returns the streams whose standing requests apply to later rows: mutations, then erasures, each in the order written."""
    streams = context.neighbours
    mutations = [
        stream
        for stream in streams
        if isinstance(stream.kind, Mutate) and stream.kind.applies_to == "arrived_and_later"
    ]
    return mutations + [stream for stream in streams if isinstance(stream.kind, Erase)]


def _with_match(rows: DataFrame, match: Sequence[str], metadata: TableMetadata) -> DataFrame | None:
    """Returns rows with the columns that requests match, also those that Delta fills in; None if one of them is NULL in all rows.

    Raises:
        ColumnMoved: The table has no such column: the requests must be moved to its new name first.
    """
    known, given = (
        {field.name.lower(): field for field in metadata.schema.fields},
        {name.lower() for name in rows.columns},
    )
    for name in match:
        field = known.get(name.lower())
        if name.lower() in given:
            continue
        if field is None:
            raise ColumnMoved
        filled = field.metadata.get("delta.generationExpression") or field.metadata.get("CURRENT_DEFAULT")
        if filled is None:
            return None
        rows = rows.withColumn(field.name, F.expr(filled).cast(field.dataType))
    return rows


def meet(rows: DataFrame, standing: DataFrame, mutate: Mutate, metadata: TableMetadata) -> DataFrame:
    """Applies the standing requests of one stream to rows: deletes them, changes them, or leaves them as they are.

    Args:
        rows: Rows on their way into the table.
        standing: `key`, `op`, `set`; at most one row per key.
        mutate: The stream's keys.
        metadata: The table's definition.
    """
    match = list(fields_of(standing.schema["key"].dataType, "key"))
    known = _with_match(rows, match, metadata)
    if known is None:
        return rows
    names = {name.lower(): name for name in known.columns}
    rules = standing.select(F.struct("key", "op", "set").alias("_lg_rule"))
    same = [column(names[name.lower()]) == F.col(f"_lg_rule.key.{quoted(name)}") for name in match]
    met = known.join(rules, same, "left").where(F.expr("_lg_rule IS NULL OR _lg_rule.op <> 'delete'"))
    is_met = F.col("_lg_rule").isNotNull()
    values = [column(name) for name in rows.columns]
    for name in mutate.set:
        value = F.col(f"_lg_rule.set.{quoted(name)}")
        held = names.get(name.lower())
        if held not in rows.columns:
            values.append(F.when(is_met, value).alias(name))
        else:
            values[rows.columns.index(held)] = F.when(is_met, value).otherwise(column(held)).alias(held)
    return met.select(*values)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _is_same(before: TableMetadata, now: TableMetadata) -> bool:
    """Returns True if the columns and rules of a table are unchanged."""
    return (before.id, before.schema, before.properties) == (now.id, now.schema, now.properties)


def _is_filled_by_delta(field: StructField) -> bool:
    return any(
        name in field.metadata for name in ("delta.generationExpression", "CURRENT_DEFAULT", "delta.identity.start")
    )
