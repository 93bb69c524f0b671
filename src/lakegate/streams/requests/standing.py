"""Checks that the kept requests of a table's streams are complete and match the table's present columns, and acts if not.

No rename, widening or removal of a column, and no loss of a request table, ends a standing request silently: either requests
are adapted to their columns and their stream, or the streams of the table stop and report the reason.
Source: docs/explanation/requests.md, "Standing requests stand".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.delta.idempotent_writes import conflicts, tokened
from lakegate.delta.table_log import DeltaTableLog, LogGone, TableMetadata
from lakegate.errors import InvalidRequest, LakegateError
from lakegate.ids import TableLocation, TokenId, Version
from lakegate.ports import WriteToken
from lakegate.quoting import quoted, quoted_literal
from lakegate.spark.checkpoint import Checkpoint
from lakegate.spark.fitting import fitted
from lakegate.streams.interfaces import APPLY, SETTLE, BatchTurn, StreamContext, noted
from lakegate.streams.requests.column_names import Found, column_name, find_columns, is_same, stored_name
from lakegate.streams.requests.columns import digest, fields_of, moved_key
from lakegate.streams.requests.notes import RequestNote, delete_table, drop_note, read_notes, write_note
from lakegate.streams.requests.table import COLUMNS, NOTHING, PROPERTIES, TAKEN_FROM, RequestTable
from lakegate.streams.requests.watermark import Tested
from lakegate.telemetry.events import Noticed, TurnEnded
from lakegate.turns.protocol.fencing import query_token, unpack

PHYSICAL = "delta.columnMapping.physicalName"
KEPT = ("stored", "applied", "waiting")
"""States in which a request may still change rows."""


class ColumnMoved(LakegateError):
    """a column that requests stand for was renamed while a batch was computed; nothing was written"""

    exit_code = 6
    default_advice = "Run the stream again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """A reason to stop the streams of a table."""

    stream: str
    what: str
    advice: str

    def error(self, table: TableLocation) -> InvalidRequest:
        """Converts the reason to an error."""
        return InvalidRequest(f"{self.what}; nothing was written", advice=self.advice, table=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The wanted columns of a request table."""

    key: tuple[StructField, ...]
    """The target's present columns."""
    set: tuple[StructField, ...]
    is_other: bool
    """True if the stored names or types differ."""
    physical: str
    """Value of the property `COLUMNS`."""
    is_noted: bool


class RequestTables:
    """The request tables that apply to one table, as one of its streams uses them.

    Args:
        context: The stream's context.
        name: The stream's name; None for a caller that only looks.
    """

    def __init__(self, context: StreamContext, name: str | None = None) -> None:
        self._context, self._name = context, name
        self._owners = {one.name: one for one in context.neighbours if isinstance(one.kind, Mutate | Erase)}
        self._right_for: StructType | None = None
        """Columns of the target for which everything was found to be right."""
        self._calm_for: StructType | None = None
        """Columns for which no request table has to be brought up to date."""
        self._seen: dict[TableLocation, Version] = {}

    # ------------------------------------------------------------------------------------------------------- looking

    def refuse(self) -> None:
        """Compares the present request tables with what is recorded of them; changes nothing.

        Raises:
            InvalidRequest: standing requests are missing, or belong to no stream, or their columns no longer exist.
        """
        for trouble in self.troubles():
            raise trouble.error(self._context.target)

    def troubles(self) -> list[StopReason]:
        """Returns every reason that would stop a stream of the table."""
        target = self._context.target
        if not self._context.log.head(target) >= 0:
            notes: dict[str, RequestNote] = {}
        else:
            notes = read_notes(self._context.session, target)
        found = []
        heirs = []
        for note in notes.values():
            if note.stream in self._owners:
                found += self._changed(self._owners[note.stream], note)
            elif (heir := self._heir(note)) is not None:
                heirs.append(heir.name)
            else:
                found += self._left(note)
        for stream in self._owners.values():
            if stream.name not in heirs:
                found += self._older(stream, notes.get(stream.name))
            if all(one.stream != stream.name for one in found):  # else the table may be a wrong one
                layout = self._layout(stream)
                found += [layout] if isinstance(layout, StopReason) else []
        return found

    def is_pending(self) -> bool:
        """Returns True if a turn must bring request tables up to date before their requests are used in a decision."""
        schema = self._schema()
        if schema is None or schema in (self._right_for, self._calm_for):
            return False
        layouts = [self._layout(stream) for stream in self._owners.values()]
        notes = read_notes(self._context.session, self._context.target)
        if notes.keys() <= self._owners.keys() and not any(
            isinstance(one, StopReason) or (one and one.is_other) for one in layouts
        ):
            self._calm_for = schema
            return False
        return True

    def _schema(self) -> StructType | None:
        """Returns the target's columns as of the last read of its log."""
        log, target = self._context.log, self._context.target
        if log.seen(target) < 0 and log.head(target) < 0:
            return None
        return log.metadata(target, log.seen(target)).schema

    def _changed(self, stream: StreamSpec, note: RequestNote) -> list[StopReason]:
        """Returns the faults of the request table of a stream of the file, found by its note."""
        location, log = self._context.requests_of(stream), self._context.log
        head = log.head(location)
        if note.table_id is None:
            return []
        if head < 0:
            where = ""
            if note.location != location and log.head(note.location) >= 0:
                where = f"; they lie at {note.location}, and `storage` names another place"
            return [_gone(stream.name, f"the request table of {stream.name} is gone{where}")]
        if log.metadata(location).id != note.table_id:
            return [_gone(stream.name, f"the request table of {stream.name} was created again")]
        if head < note.version:
            text = f"the request table of {stream.name} is at version {head} and was at {note.version}: an older copy was restored"
            return [_gone(stream.name, text)]
        with suppress(LogGone):
            for commit in log.commits(location, note.version, head):
                if not commit.is_lakegate and any(file.is_data_change for file in commit.removed):
                    said = f"{commit.operation}, version {commit.version}"
                    return [_gone(stream.name, f"requests of {stream.name} were changed by another writer ({said})")]
        return []

    def _older(self, stream: StreamSpec, note: RequestNote | None) -> list[StopReason]:
        """Returns a fault if ledger, checkpoint or the table's tokens know requests that the request table lacks."""
        context, location = self._context, self._context.requests_of(stream)
        done = self._batches_of(stream)  # first: a batch in progress is stored before it is applied
        has = context.log.read_tokens(location)
        known = _own_batches(has.tokens)
        accepted = {} if note is None else note.batches
        version, at_ms = context.recorded.get(location, (Version(-1), 0))
        what = "is gone" if has.version < 0 else "is older than it was"
        if version > has.version and (note is None or at_ms > note.accepted_ms):
            return [
                _gone(stream.name, f"the request table of {stream.name} {what}: the ledger has its version {version}")
            ]
        for token, batch in done.items():
            is_own = token in known or token == self._query_of(stream)
            if is_own and batch > max(known.get(token, -1), accepted.get(token, -1)):
                text = f"the request table of {stream.name} {what}: batch {batch} was done, and it does not have it"
                return [_gone(stream.name, text)]
        return []

    def _batches_of(self, stream: StreamSpec) -> dict[str, int]:
        """Returns token id → the last batch that is done by the stream's checkpoint, or by the table; of other streams, too."""
        done = dict(_applied_batches(self._context.log.read_tokens(self._context.target).tokens))
        if stream.checkpoint is not None and (token := self._query_of(stream)) is not None:
            with suppress(LakegateError):  # the stream itself reports it
                last = Checkpoint(self._context.session, stream.checkpoint).look().last_committed
                done[token] = max(last, done.get(token, -1))
        return done

    def _query_of(self, stream: StreamSpec) -> str | None:
        """Returns the token id of the stream's checkpoint; None if it has none yet."""
        with suppress(LakegateError):
            query = (
                None if stream.checkpoint is None else Checkpoint(self._context.session, stream.checkpoint).query_id()
            )
            return None if query is None else query_token(query)
        return None

    def _left(self, note: RequestNote) -> list[StopReason]:
        """Returns the faults of a request table that belongs to no stream of the file."""
        context, name = self._context, note.stream
        if note.table_id is None:
            return []
        if context.log.head(note.location) < 0 or context.log.metadata(note.location).id != note.table_id:
            return [
                _gone(name, f"the requests of {name}, which is no stream of the file, are gone from {note.location}")
            ]
        kept = RequestTable(context.session, context.log, note.location).rows(KEPT)
        is_done = (F.col("state") == "applied") & (F.col("applies_to") == "arrived")
        if kept is None or kept.where((F.col("op") != "lift") & ~is_done).isEmpty():
            return []
        return [
            StopReason(
                stream=name,
                what=f"requests of {name} stand for the table, and {name} is no stream of the file",
                advice=f"Restore the stream. A stream with a new name inherits its requests if it has the same kind and columns. "
                f"To end the requests: lakegate requests accept-loss {name} --reason …",
            )
        ]

    # ------------------------------------------------------------------------------------------------------- columns

    def _layout(self, stream: StreamSpec) -> _Layout | StopReason | None:
        """Returns the wanted columns of a stream's request table; None if the request table or the target does not exist."""
        log, location, target = self._context.log, self._context.requests_of(stream), self._context.target
        if log.head(location) < 0 or log.head(target) < 0:
            return None
        requests, wanted = log.metadata(location), log.metadata(target)
        kind = stream.kind
        assert isinstance(kind, Mutate | Erase)
        said = {"match": list(kind.match), **({"set": list(kind.set)} if isinstance(kind, Mutate) else {})}
        is_other = False
        found: dict[str, tuple[StructField, ...]] = {}
        physical: dict[str, list[str]] = {}
        for part, key in (("key", "match"), ("set", "set")):
            stored = requests.schema[part].dataType
            assert isinstance(stored, StructType)
            if stored == NOTHING:
                found[part] = ()
                continue
            columns = _columns(requests, part, wanted)
            if columns.missing:
                return StopReason(
                    stream=stream.name,
                    what=f"requests of {stream.name} stand for the column {columns.missing[0]}, which the table no longer has",
                    advice=f"Restore the column, or end the requests: lakegate requests accept-loss {stream.name} --reason …",
                )
            if not is_same(columns.names, said.get(key, ())):
                return StopReason(
                    stream=stream.name,
                    what=f"the requests of {stream.name} were stored for other columns than `{key}` names: "
                    f"{', '.join(columns.names)}",
                    advice=f"Restore the old `{key}`, and add a stream for the new one",
                )
            found[part] = tuple(wanted.schema[name] for name in columns.names)
            physical[part] = [_physical(field) for field in found[part]]
            is_other |= any(
                stored_name(now.name).lower() != field.name.lower()
                or now.dataType.simpleString() != field.dataType.simpleString()
                for now, field in zip(found[part], stored.fields, strict=True)
            )
        text = json.dumps(physical)
        return _Layout(
            key=found["key"],
            set=found["set"],
            is_other=is_other,
            physical=text,
            is_noted=requests.properties.get(COLUMNS) == text,
        )

    def accept_loss(self, name: str, *, reason: str) -> bool:
        """Accepts the present requests of a stream, or their absence; False if no stream of that name has any for the table.

        Lost or older requests are not checked any more; requests of a stream that the file does not have stand no more.
        """
        context = self._context
        note, stream = read_notes(context.session, context.target).get(name), self._owners.get(name)
        if note is None:
            if stream is None:
                return False
            location = context.requests_of(stream)
            note = RequestNote(stream=name, kind=_kind(stream), location=location, table_id=None, version=Version(-1))
        batches: dict[str, int] = {}
        if stream is not None:
            batches = self._batches_of(stream)
        now_ms = context.clock.wall_ms()
        accepted = replace(note, table_id=None, version=Version(-1), accepted_ms=now_ms, batches=batches, reason=reason)
        write_note(context.session, context.target, accepted)
        return True

    # --------------------------------------------------------------------------------------------------- in the turn

    def enter(self, turn: BatchTurn) -> bool:
        """Brings the request tables up to date, in a turn that has entered the target; returns True if anything was changed.

        Raises:
            InvalidRequest: as `refuse`; or requests hold values that a column can no longer hold.
        """
        schema = self._schema()
        if schema is not None and self._right_for == schema:
            self._refuse_lost()
            return False
        self.refuse()
        changed = False
        if schema is not None:
            changed = self._take_over(turn)
            for stream in self._owners.values():
                layout = self._layout(stream)
                if isinstance(layout, _Layout):
                    changed |= self._laid_out(turn, stream, layout)
            self.write_notes()
            self._right_for = schema
        self._refuse_lost()
        return changed

    def _refuse_lost(self) -> None:
        """Raises InvalidRequest if a request table was lost or set back while this process runs."""
        for stream in self._owners.values():
            location, log = self._context.requests_of(stream), self._context.log
            # The turn has entered the tables of other streams, so their logs have been read.
            head = log.head(location) if stream.name == self._name else log.seen(location)
            before = self._seen.get(location, Version(-1))
            if head < before:
                what = (
                    f"the request table of {stream.name} is gone" if head < 0 else f"that of {stream.name} was set back"
                )
                raise _gone(stream.name, what).error(self._context.target)
            self._seen[location] = head

    def write_notes(self) -> None:
        """Notes next to the table its request tables. Call it in a turn, before a new request table has its first request."""
        context = self._context
        if self._schema() is None:
            return  # there is no table yet; the turn of its first append writes the notes
        notes = read_notes(context.session, context.target)
        for stream in self._owners.values():
            location = context.requests_of(stream)
            head = context.log.head(location)
            if head < 0:
                continue
            before = notes.get(stream.name)
            wanted = RequestNote(
                stream=stream.name,
                kind=_kind(stream),
                location=location,
                table_id=context.log.metadata(location).id,
                version=head,
                accepted_ms=0 if before is None else before.accepted_ms,
                batches={} if before is None else before.batches,
                reason="" if before is None else before.reason,
            )
            # Only the stream itself updates the version in its note: the others would only rewrite the note.
            if before is None or stream.name == self._name or replace(before, version=head) != wanted:
                write_note(context.session, context.target, wanted)

    def _laid_out(self, turn: BatchTurn, stream: StreamSpec, layout: _Layout) -> bool:
        """Gives a request table the present names and types of the columns; returns True if it had others."""
        location = self._context.requests_of(stream)
        if layout.is_other:
            turn.enter(location)
            self._refuse_misfits(stream, layout)
            turn.amend(location, name="columns", statement=lambda token: self._rewrite(stream, layout, token))
            text = f"the requests of {stream.name} were adapted to the table's columns: {', '.join(f.name for f in layout.key)}"
            self._context.events.emit(Noticed(job=self._name, text=text))
        if not layout.is_noted:
            turn.enter(location)
            name, value = quoted_literal(COLUMNS), quoted_literal(layout.physical)
            self._context.session.sql(f"ALTER TABLE delta.{quoted(location)} SET TBLPROPERTIES ({name} = {value})")
        return layout.is_other

    def _rewrite(self, stream: StreamSpec, layout: _Layout, token: WriteToken) -> None:
        location, log = self._context.requests_of(stream), self._context.log
        rows = log.read_at(self._context.session, location, log.head(location))
        key, set_, schema = layout.key, layout.set, rows.schema
        values = {"key": _cast(schema, "key", key), "set": _cast(schema, "set", set_)}
        effect = F.struct(
            F.col("effect.op").alias("op"),
            _cast(schema, "effect.set", set_, like="set").alias("set"),
            F.col("effect.ends_at").alias("ends_at"),
        )
        values["effect"] = F.when(F.col("effect").isNotNull(), effect)
        rows = rows.select(*[values.get(name, F.col(name)).alias(name) for name in rows.columns])
        own = fields_of(rows.schema["key"].dataType, "key")
        rows = rows.withColumn("key_hash", F.when(F.col("key_hash").isNotNull(), digest(own)))
        if set_:
            ends_at = moved_key(own, fields_of(rows.schema["set"].dataType, "effect.set"))
            ends_at = F.when(F.col("effect.ends_at").isNotNull() & (F.col("effect.ends_at") != ""), ends_at).otherwise(
                F.col("effect.ends_at")
            )
            rows = rows.withColumn(
                "effect", F.when(F.col("effect").isNotNull(), F.col("effect").withField("ends_at", ends_at))
            )
        writer = rows.write.format("delta").mode("overwrite").partitionBy("state").option("overwriteSchema", "true")
        writer = writer.option("txnAppId", token.token_id).option("txnVersion", str(token.number))
        with conflicts():
            writer.option("userMetadata", token.user_metadata).save(location)

    def _refuse_misfits(self, stream: StreamSpec, layout: _Layout) -> None:
        """Raises InvalidRequest if a request that may still change rows has a value that its column cannot hold."""
        rows = RequestTable(self._context.session, self._context.log, self._context.requests_of(stream)).raw()
        lost: list[Column] = []
        for part, wanted in (("key", layout.key), ("set", layout.set)):
            stored = rows.schema[part].dataType
            assert isinstance(stored, StructType)
            if wanted:
                lost += [
                    fitted(F.col(f"{part}.{quoted(own.name)}"), own.dataType, _named(now))[1].isNotNull()
                    for own, now in zip(stored.fields, wanted, strict=True)
                ]
        kept = rows.where(F.col("state").isin(list(KEPT)) & reduce(or_, lost))
        count = kept.count()
        if count:
            raise InvalidRequest(
                f"{count} requests of {stream.name} have values that the columns {', '.join(f.name for f in layout.key)} can no "
                "longer have; nothing was written",
                advice="Restore the old type of the column",
                table=self._context.target,
            )

    # ------------------------------------------------------------------------------------------------------ new names

    def _heir(self, note: RequestNote) -> StreamSpec | None:
        """Returns the stream that inherits the requests of a missing stream: the only like one without a request table."""
        log = self._context.log
        if note.table_id is None:
            return None
        for stream in self._owners.values():
            location = self._context.requests_of(stream)
            if log.head(location) >= 0 and log.metadata(location).properties.get(TAKEN_FROM) == note.table_id:
                return stream
        if log.head(note.location) < 0 or log.metadata(note.location).id != note.table_id:
            return None
        like = [one for one in self._owners.values() if self._is_like(one, note)]
        return like[0] if len(like) == 1 else None

    def _is_like(self, stream: StreamSpec, note: RequestNote) -> bool:
        log, kind = self._context.log, stream.kind
        if _kind(stream) != note.kind or log.head(self._context.requests_of(stream)) >= 0:
            return False
        requests, wanted = log.metadata(note.location), log.metadata(self._context.target)
        assert isinstance(kind, Mutate | Erase)
        key, set_ = _columns(requests, "key", wanted), _columns(requests, "set", wanted)
        assigned = list(kind.set) if isinstance(kind, Mutate) else []
        if key.missing or not is_same(key.names, kind.match):
            return False
        return requests.schema["set"].dataType == NOTHING if not assigned else is_same(set_.names, assigned)

    def _take_over(self, turn: BatchTurn) -> bool:
        """Gives requests of renamed streams to their new streams; continues after a crash in between."""
        context, changed = self._context, False
        for note in read_notes(context.session, context.target).values():
            heir = None if note.stream in self._owners else self._heir(note)
            if heir is None:
                continue
            location = context.requests_of(heir)
            if context.log.head(location) < 0:
                turn.amend(location, name="take over", statement=lambda token: self._copy(note, heir, token))  # noqa: B023
            turn.enter(location)
            write_note(
                context.session,
                context.target,
                replace(
                    note,
                    stream=heir.name,
                    location=location,
                    table_id=context.log.metadata(location).id,
                    version=context.log.head(location),
                    # What the new stream may have had under this name before, and lost to another stream, is not checked.
                    accepted_ms=context.clock.wall_ms(),
                    batches=self._batches_of(heir),
                ),
            )
            delete_table(context.session, note.location)
            drop_note(context.session, context.target, note.stream)
            text = f"{heir.name} has inherited the requests of {note.stream}, which is no stream of the file any more"
            context.events.emit(Noticed(job=self._name, text=text))
            changed = True
        return changed

    def _copy(self, note: RequestNote, heir: StreamSpec, token: WriteToken) -> None:
        """Creates the new stream's request table, with all rows, in one commit."""
        context, session = self._context, self._context.session
        location, source = context.requests_of(heir), context.log.metadata(note.location)
        rows = context.log.read_at(session, note.location, source.version)
        kept = rows.where(F.col("state").isin("applied", "waiting"))
        row = kept.agg(F.count("*").alias("n"), F.min("first_seen_ms").alias("oldest")).collect()[0]
        # Nothing counts as tested: the sweep that follows tests all rows, and counts the kept requests again.
        tested = Tested(tested=Version(-1), kept=row["n"], oldest_ms=row["oldest"])
        properties = {**PROPERTIES, TAKEN_FROM: source.id}
        if COLUMNS in source.properties:
            properties[COLUMNS] = source.properties[COLUMNS]
        listed = ", ".join(f"{quoted_literal(key)} = {quoted_literal(value)}" for key, value in properties.items())
        view = f"lakegate_{source.id.replace('-', '_')}"
        rows.createOrReplaceTempView(view)
        with tokened(session, noted(token, stream=heir.name, **tested.facts())), conflicts():
            session.sql(
                f"CREATE TABLE delta.{quoted(location)} USING delta PARTITIONED BY (state) TBLPROPERTIES ({listed}) "
                f"AS SELECT * FROM {view}"
            )
        session.catalog.dropTempView(view)


def refuse_lost(session: SparkSession, log: DeltaTableLog, table: TableLocation) -> None:
    """Checks, for a writer without streams, that the table's request tables exist and are not older than the table.

    Raises:
        InvalidRequest: A request table is missing, was created again, or is older; nothing was written.
    """
    tokens = log.read_tokens(table)
    if tokens.version < 0:
        return
    for note in read_notes(session, table).values():
        if note.table_id is None:
            continue
        has = log.read_tokens(note.location)
        is_there = has.version >= note.version and log.metadata(note.location).id == note.table_id
        known = _own_batches(has.tokens)
        behind = [
            token
            for token, batch in _applied_batches(tokens.tokens).items()
            if token in known and batch > max(known[token], note.batches.get(token, -1))
        ]
        if not is_there or behind:
            what = f"the request table of {note.stream} is {'older than it was' if behind else 'gone'}: {note.location}"
            raise _gone(note.stream, what).error(table)


def _gone(name: str, what: str) -> StopReason:
    advice = f"Restore its newest copy. To end its requests: lakegate requests accept-loss {name} --reason …"
    return StopReason(stream=name, what=what, advice=advice)


def recorded(rows: Iterable[TurnEnded]) -> dict[TableLocation, tuple[Version, int]]:
    """Returns table → its highest version in the ledger, and when that turn ended (ms)."""
    found: dict[TableLocation, tuple[Version, int]] = {}
    for row in rows:
        for table, versions in row.versions.items():
            newest = (Version(max(versions, default=-1)), row.released_at_ms)
            found[TableLocation(table)] = max(newest, found.get(TableLocation(table), newest))
    return found


def _own_batches(tokens: Mapping[TokenId, int]) -> dict[str, int]:
    """Returns token id of a request table's own stream → its last batch there. Others only enter, or delete after erasures."""
    found = {token: unpack(number) for token, number in tokens.items()}
    return {token: said.batch for token, said in found.items() if said.batch >= 0 and said.step <= SETTLE}


def _applied_batches(tokens: Mapping[TokenId, int]) -> dict[str, int]:
    """Returns token id → the last batch whose requests changed rows of a table; a sweep is no batch of requests."""
    found = {token: unpack(number) for token, number in tokens.items() if not token.endswith("/sweep")}
    return {token: said.batch for token, said in found.items() if said.step == APPLY and said.batch >= 0}


def columns_property(fields: Mapping[str, Sequence[StructField]]) -> str:
    """Returns the property `COLUMNS` of a new request table."""
    return json.dumps({part: [_physical(field) for field in of_part] for part, of_part in fields.items() if of_part})


def _kind(stream: StreamSpec) -> str:
    return "erase" if not isinstance(stream.kind, Mutate) else f"mutate {stream.kind.applies_to}"


def _physical(field: StructField) -> str:
    return str(field.metadata.get(PHYSICAL, field.name))


def _columns(requests: TableMetadata, part: str, target: TableMetadata) -> Found:
    """Finds the target's columns for a part of the requests."""
    stored = requests.schema[part].dataType
    assert isinstance(stored, StructType)
    if stored == NOTHING:
        return Found(names=(), missing=())
    said = json.loads(requests.properties.get(COLUMNS, "{}")).get(part)
    names = [column_name(name) for name in stored.names]
    return find_columns(names, said, {field.name: _physical(field) for field in target.schema.fields})


def _named(column: StructField) -> StructField:
    return StructField(stored_name(column.name), column.dataType, True, column.metadata)


def _cast(schema: StructType, place: str, wanted: Sequence[StructField], like: str | None = None) -> Column:
    """Returns a struct of requests with other names and types, field by field in order."""
    stored = schema[like or place].dataType
    assert isinstance(stored, StructType)
    if not wanted:
        return F.col(place)
    parts = [
        fitted(F.col(f"{place}.{quoted(own.name)}"), own.dataType, _named(now))[0]
        for own, now in zip(stored.fields, wanted, strict=True)
    ]
    return F.when(F.col(place).isNotNull(), F.struct(*parts))
