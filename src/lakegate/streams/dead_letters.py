"""The dead letters of one stream: list them, drop them, and send them again through the stream, each once.

Sending again has three steps. Each is a commit with a token, so a command that is killed continues where it stopped:
1. `mark`: the letters get a batch number and the corrected record;
2. the stream writes that batch like a batch of its source;
3. `sent`: the letters of that batch are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.delta.idempotent_writes import conflicts, tokened
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.ports import Letter, WriteToken
from lakegate.quoting import quoted
from lakegate.spark.sources import BAD, ORDER, POSITION, RAW, Known, schema_of, with_json
from lakegate.streams.bad_records import JSON, payload, transformed
from lakegate.streams.interfaces import BatchResult, BatchTurn, StreamContext, noted
from lakegate.streams.requests.admin import STUCK
from lakegate.streams.requests.table import RequestTable

DROP, MARK, SENT = 0, 1, 9
"""Steps on the table of dead letters. `DEAD_LETTERS`, for records that are refused again, is between `MARK` and `SENT`."""
ID = (
    "concat('d-', left(sha2(concat_ws('\\u0001', coalesce(position, ''), cast(batch AS STRING), cast(at_ms AS STRING), "
    "coalesce(raw, '')), 256), 12))"
)
"""SQL: a letter's id, made of columns that never change. Equal records of one batch without a position share one id."""
SENDING = "is being sent again; lakegate dead-letters retry ends it"
OPTIONAL = {"retry_batch": "BIGINT", "retry_raw": "STRING"}
"""Columns that are added to the table of letters when a letter is first sent again."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of sending letters again."""

    count: int = 0
    refused: int = 0
    """The number of letters that were refused again; they are set aside under ids of their own."""

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.count + other.count, self.refused + other.refused)


class StreamLetters:
    """The dead letters of one stream."""

    def __init__(self, context: StreamContext, spec: StreamSpec) -> None:
        self._context, self._spec = context, spec
        self.location: TableLocation = context.dead_letters_of(spec)

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """Returns the newest letters and dead requests, newest first; with their values only on request."""
        found = [*self._records(rows_max, has_values=has_values), *self._requests(rows_max, has_values=has_values)]
        return sorted(found, key=lambda one: -(one.at_ms or 0))[:rows_max]

    def _records(self, rows_max: int, *, has_values: bool) -> list[Letter]:
        frame = self._frame()
        if frame is None:
            return []
        sending = F.col("retry_batch").isNotNull()
        values = F.coalesce("retry_raw", "raw") if has_values else F.lit(None).cast("string")
        newest = frame.orderBy(F.desc("at_ms"), F.desc("batch")).limit(rows_max)
        reason = F.when(sending, F.lit(SENDING)).otherwise(F.col("reason"))
        shown = newest.select("id", "at_ms", reason.alias("reason"), "position", values.alias("values"))
        return [Letter(name=self._spec.name, kind="record", **row.asDict()) for row in shown.collect()]

    def _requests(self, rows_max: int, *, has_values: bool) -> list[Letter]:
        if not isinstance(self._spec.kind, Mutate | Erase):
            return []
        table = RequestTable(self._context.session, self._context.log, self._context.requests_of(self._spec))
        dead = table.rows(STUCK)
        if dead is None:
            return []
        values = F.to_json(F.struct("key", "set"), JSON) if has_values else F.lit(None).cast("string")
        shown = (
            dead.orderBy(F.desc("first_seen_ms"))
            .limit(rows_max)
            .select(
                F.col("request_id").alias("id"),
                F.col("first_seen_ms").alias("at_ms"),
                F.when(F.col("state") == "stored", F.lit("is stored and not applied yet"))
                .otherwise(F.coalesce("reason", F.lit("")))
                .alias("reason"),
                F.col("source_position").alias("position"),
                values.alias("values"),
            )
        )
        return [Letter(name=self._spec.name, kind="request", **row.asDict()) for row in shown.collect()]

    def refuse_absent(self, ids: Sequence[str]) -> None:
        """Raises InvalidRequest if an id belongs to no letter, or if there are no ids."""
        frame = self._frame()
        there = set() if frame is None else {row["id"] for row in frame.select("id").collect()}
        absent = [id_ for id_ in ids if id_ not in there]
        if absent or not ids:
            raise InvalidRequest(
                f"not dead letters of {self._spec.name}: {', '.join(absent[:5]) or 'none was named'}; nothing was changed",
                advice=f"See them with: lakegate dead-letters list {self._spec.name}",
            )

    def drop(self, turn: BatchTurn, ids: Sequence[str], reason: str | None) -> int:
        """Deletes letters and returns their number. The reason stays in the table's history.

        Raises:
            InvalidRequest: one of them is being sent again; nothing was changed.
        """
        frame = self._frame()
        assert frame is not None, "they were looked up"
        named = frame.where(F.col("id").isin(list(ids)))
        sending = [row["id"] for row in named.where("retry_batch IS NOT NULL").select("id").collect()]
        if sending:
            raise InvalidRequest(
                f"{sending[0]} is being sent again; nothing was dropped",
                advice=f"End that with: lakegate dead-letters retry {self._spec.name} {sending[0]}",
            )
        count = named.count()
        wanted = self._context.session.createDataFrame([(id_,) for id_ in dict.fromkeys(ids)], "id STRING")
        facts = {"reason": reason, "dropped": list(ids)}
        self._merge(turn, DROP, "drop", wanted, f"{ID} = s.id", lambda merge: merge.whenMatchedDelete(), facts)
        return count

    # ------------------------------------------------------------------------------------------------- sending again

    def pending(self) -> list[int]:
        """Returns the batches that are marked and not finished, in order."""
        frame = self._frame()
        if frame is None:
            return []
        marked = frame.where("retry_batch IS NOT NULL").select("retry_batch").distinct()
        return sorted(row["retry_batch"] for row in marked.collect())

    def mark(self, turn: BatchTurn, ids: Sequence[str], corrections: Mapping[str, str], batch_id: int) -> int:
        """Does step 1; returns the number of records.

        Raises:
            InvalidRequest: a correction names no column of the record; nothing was changed.
        """
        frame = self._frame()
        assert frame is not None, "they were looked up"
        # Letters that an earlier command had marked were sent before this step.
        letters = frame.where(F.col("id").isin(list(ids)) & F.col("retry_batch").isNull())
        found = letters.select("id", "raw").collect()
        if not found:
            return 0
        fixed = {row["id"]: self._corrected(row["raw"], corrections) for row in found}
        turn.enter(self.location)
        self._add_columns()
        wanted = self._context.session.createDataFrame(list(fixed.items()), "id STRING, text STRING")
        values = {"retry_batch": f"{batch_id}L", "retry_raw": "s.text"}
        condition = f"{ID} = s.id AND t.retry_batch IS NULL"
        self._merge(turn, MARK, "mark", wanted, condition, lambda merge: merge.whenMatchedUpdate(set=values), {})
        return len(found)

    def send(self, turn: BatchTurn, batch_id: int, write: Callable[[BatchTurn, DataFrame, int], BatchResult]) -> Sent:
        """Does steps 2 and 3; returns the number of records sent, and how many of them were set aside again.

        Args:
            turn: A turn that has begun that batch.
            batch_id: The number under which the letters are marked.
            write: Writes a batch of the stream. It raises `InvalidRequest` only before it has written anything.
        """
        frame = self._frame()
        assert frame is not None, "they were looked up"
        letters = frame.where(F.col("retry_batch") == batch_id)
        count = letters.count()
        try:
            result = write(SentAgain(turn, self._spec.name), self._read(letters, self._schema), batch_id)
        except InvalidRequest:
            values = {"retry_batch": "NULL", "retry_raw": "NULL"}
            self._end(turn, batch_id, "unmark", lambda merge: merge.whenMatchedUpdate(set=values))
            raise
        self._end(turn, batch_id, "sent", lambda merge: merge.whenMatchedDelete())
        return Sent(count=count, refused=result.dead_letters)

    def _end(self, turn: BatchTurn, batch_id: int, name: str, clause: Callable[[Any], Any]) -> None:
        source = self._context.session.createDataFrame([(batch_id,)], "batch BIGINT")
        self._merge(turn, SENT, name, source, "t.retry_batch = s.batch", clause, {})

    def _merge(
        self,
        turn: BatchTurn,
        step: int,
        name: str,
        source: DataFrame,
        condition: str,
        clause: Callable[[Any], Any],
        facts: Mapping[str, object],
    ) -> None:
        session = self._context.session

        def statement(token: WriteToken) -> None:
            merge = DeltaTable.forPath(session, self.location).alias("t").merge(source.alias("s"), condition)
            with tokened(session, noted(token, stream=self._spec.name, **facts)), conflicts():
                clause(merge).execute()

        turn.enter(self.location)
        turn.write(self.location, step=step, name=name, statement=statement)

    def _frame(self) -> DataFrame | None:
        """Returns the letters with `id`, and with the columns that older tables lack; None if there is no table."""
        version = self._context.log.head(self.location)
        if version < 0:
            return None
        frame = self._context.log.read_at(self._context.session, self.location, version)
        for name, kind in OPTIONAL.items():
            if name not in frame.columns:
                frame = frame.withColumn(name, F.lit(None).cast(kind))
        return frame.withColumn("id", F.expr(ID))

    def _add_columns(self) -> None:
        there = self._context.log.metadata(self.location).schema.names
        lacking = ", ".join(f"{name} {kind}" for name, kind in OPTIONAL.items() if name not in there)
        if lacking:
            self._context.session.sql(f"ALTER TABLE delta.{quoted(self.location)} ADD COLUMNS ({lacking})")

    # ------------------------------------------------------------------------------------------------------- records

    @cached_property
    def _schema(self) -> StructType:
        """The columns of the source and of what the stream's function returns: records are set aside before it and after it."""
        assert self._spec.source is not None, "a stream with dead letters has a source"
        source = schema_of(self._context.session, self._spec.source)
        if self._spec.transform is None:
            return source
        without_expectations = self._spec.model_copy(update={"expect": {}})
        left = transformed(without_expectations, self._read(self._no_letters(), source))
        after = [field for field in left.schema.fields if field.name in payload(left)]
        names = {field.name.lower() for field in after}
        return StructType([*after, *[field for field in source.fields if field.name.lower() not in names]])

    def _corrected(self, raw: str | None, corrections: Mapping[str, str]) -> str:
        """Returns the record as JSON with corrected values. A text that is no JSON object is replaced by the corrections alone."""
        if not corrections:
            return raw or ""
        try:
            record = json.loads(raw or "", parse_float=_Exact)
        except ValueError:
            record = {}
        if not isinstance(record, dict):
            record = {}
        fields = {field.name.lower(): field for field in self._schema.fields}
        for name, text in corrections.items():
            field = fields.get(name.lower())
            if field is None:
                raise InvalidRequest(
                    f"the records of {self._spec.name} have no column {name}; nothing was sent again",
                    advice=f"The columns are: {', '.join(one.name for one in fields.values())}",
                )
            record = {key: value for key, value in record.items() if key.lower() != name.lower()}
            record[field.name] = _value(text, is_text=isinstance(field.dataType, StringType))
        return json.dumps(record, ensure_ascii=False)

    def no_records(self) -> DataFrame:
        """A micro-batch of the source without records."""
        return self._read(self._no_letters(), self._schema)

    def _no_letters(self) -> DataFrame:
        columns = "raw STRING, retry_raw STRING, at_ms BIGINT, batch BIGINT, position STRING"
        return self._context.session.createDataFrame([], columns)

    def _read(self, letters: DataFrame, schema: StructType) -> DataFrame:
        """Letters as a micro-batch with these columns."""
        text = F.coalesce("retry_raw", "raw").alias("_lg_text")
        texts = letters.coalesce(1).select(text, "at_ms", "batch", F.col("position").alias(POSITION))
        read = with_json(self._context.session, texts, schema, Known(), {})
        return read.select(
            *[F.col(f"_lg_value.{quoted(field.name)}").alias(field.name) for field in schema.fields],
            F.struct("at_ms", "batch", F.monotonically_increasing_id().alias("row")).alias(ORDER),
            POSITION,
            BAD,
            F.when(F.col(BAD).isNotNull(), F.col("_lg_text")).alias(RAW),
        )


class _Exact(float):
    """A number of a record that keeps its original text."""

    def __new__(cls, text: str) -> _Exact:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def _value(text: str, *, is_text: bool) -> object:
    """Parses the TEXT of `--set column=TEXT`: `null` is NULL; other text is JSON, unless the column itself is text."""
    if text == "null":
        return None
    try:
        found: object = json.loads(text, parse_float=_Exact)
    except ValueError:
        return text
    return found if not is_text or (isinstance(found, str) and text.startswith('"')) else text


class SentAgain:
    """A person's turn in which a stream writes letters: its commits name the stream."""

    def __init__(self, turn: BatchTurn, stream: str) -> None:
        self._turn, self._stream = turn, stream

    @property
    def epoch(self) -> int:
        """The fencing token of the turn."""
        return self._turn.epoch

    def enter(self, table: TableLocation) -> bool:
        """Enters a table, like the turn."""
        return self._turn.enter(table)

    def write(self, table: TableLocation, *, step: int, name: str, statement: Callable[[WriteToken], None]) -> bool:
        """Writes like the turn, with the stream's name in the commit."""
        return self._turn.write(
            table, step=step, name=name, statement=lambda token: statement(noted(token, stream=self._stream))
        )

    def amend(self, table: TableLocation, *, name: str, statement: Callable[[WriteToken], None]) -> None:
        """Amends a table, like the turn."""
        self._turn.amend(table, name=name, statement=statement)
