"""The first step of a batch of requests: converts records to requests, and stores each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.delta.idempotent_writes import append, create_table
from lakegate.errors import Fault, InvalidRequest
from lakegate.ports import WriteToken
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.statement import appending
from lakegate.streams.bad_records import Parted, parted, refusals, set_aside
from lakegate.streams.expectations import BadCounts
from lakegate.streams.interfaces import STORE, BatchTurn, StreamContext
from lakegate.streams.requests.columns import Intake, stored
from lakegate.streams.requests.rules import Meaning
from lakegate.streams.requests.standing import columns_property
from lakegate.streams.requests.table import COLUMNS, PROPERTIES, RequestTable, ddl, layout
from lakegate.streams.table_rules import lacking, rules_of


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedBatch:
    """A micro-batch converted to requests."""

    rows: DataFrame
    """Rows of the request table."""
    parted: Parted

    def forget(self) -> None:
        """Frees the cached data."""
        if self.parted.cached is not None:
            self.parted.cached.unpersist()


class Storing:
    """Stores the records of one stream in its request table."""

    def __init__(self, context: StreamContext, spec: StreamSpec, requests: RequestTable, meaning: Meaning) -> None:
        kind = spec.kind
        assert isinstance(kind, Mutate | Erase)
        self._context, self._spec, self._requests, self._meaning = context, spec, requests, meaning
        self._match: Sequence[str] = list(kind.match)
        self._set: Sequence[str] = list(kind.set) if isinstance(kind, Mutate) else []

    def check_columns(self, schema: StructType | None) -> None:
        """Raises InvalidRequest if the table lacks a column that the stream names. A schema of None: there is no table yet."""
        if schema is None:
            return
        kind = "mutate" if isinstance(self._spec.kind, Mutate) else "erase"
        faults = [
            Fault(where=f"streams.{self._spec.name}.{kind}.{key}.{name}", what="the table has no such column")
            for key, names in (("match", self._match), ("set", self._set))
            for name in lacking(schema, names)
        ]
        if faults:
            raise InvalidRequest(faults=faults, advice="Name a column of the table")

    def prepared(self, records: DataFrame, schema: StructType | None) -> DataFrame:
        """Returns the requests of a batch, as `Intake.prepared` does, tested against the rules of the table that was last seen."""
        log, target = self._context.log, self._context.target
        rules = [] if schema is None else rules_of(log.metadata(target, log.seen(target)))
        return Intake(self._spec, schema, rules).prepared(records)

    def make_table(self, prepared: DataFrame, schema: StructType | None) -> bool:
        """Creates the request table if there is none, else compares its columns. Returns True if it is new."""
        if self._requests.head() >= 0:
            self.refuse_other_columns(prepared)
            return False
        columns, properties = ddl(self._layout_of(prepared)), PROPERTIES
        if schema is not None:
            by_name = {field.name.lower(): field for field in schema.fields}
            parts = {"key": self._match, "set": self._set}
            fields = {part: [by_name[name.lower()] for name in names] for part, names in parts.items()}
            properties = {**PROPERTIES, COLUMNS: columns_property(fields)}
        create_table(self._context.session, self._requests.location, columns, ["state"], properties=properties)
        return True

    def refuse_other_columns(self, prepared: DataFrame) -> None:
        """Raises InvalidRequest if the columns have changed: requests are read by column position, so values would be mixed up."""
        location, wanted = self._requests.location, self._layout_of(prepared)
        there = self._context.log.metadata(location).schema
        changed = [
            name for name in ("key", "set", "seq") if not _same_type(there[name].dataType, wanted[name].dataType)
        ]
        if changed:
            raise InvalidRequest(
                f"the requests of {self._spec.name} were stored for other columns or types than they have now "
                f"({', '.join(changed)}); nothing was written",
                advice="Restore the old `match`, `set` and `sequence_by`, and add a stream for the new ones",
                table=location,
            )

    def _layout_of(self, prepared: DataFrame) -> StructType:
        found = prepared.schema
        values = found["set"].dataType if self._set else None
        sequence = found["seq"].dataType if self._meaning.has_sequence else None
        match = found["key"].dataType
        assert isinstance(match, StructType)
        assert values is None or isinstance(values, StructType)
        return layout(match, values, sequence)

    def taken_in(self, prepared: DataFrame, stamp: str, batch_id: int) -> IngestedBatch:
        """Returns a batch as rows of the request table, and its records that do not fit. `prepared`: the result of `prepared`."""
        log, kind, found = self._context.log, self._spec.kind, parted(self._spec, prepared)
        rows = stored(
            found.good,
            log.metadata(self._requests.location).schema,
            applies_to=kind.applies_to if isinstance(kind, Mutate) else "arrived_and_later",
            stamp=stamp,
            batch_id=batch_id,
            now_ms=self._context.clock.wall_ms(),
            head=log.head(self._context.target),
        )
        return IngestedBatch(rows=rows, parted=found)

    def written(self, rows: DataFrame, batch_id: int) -> Staged:
        """Writes the requests of a batch to files, uncommitted; from now on other streams may use them in their decisions."""
        session, location = self._context.session, self._requests.location
        ours = publisher(session)
        store = ours.stage(appending(session, rows, location))
        ours.pending_appends.announce(location, self._spec.name, batch_id, store.commit)
        return store

    def withdraw(self) -> None:
        """Withdraws the announced requests, because they are stored or were given up."""
        publisher(self._context.session).pending_appends.withdraw(self._requests.location, self._spec.name)

    def store(
        self, turn: BatchTurn, taken: IngestedBatch, batch_id: int, staged: Staged | None = None
    ) -> tuple[BadCounts, bool]:
        """Stores the batch's requests. Returns the numbers of bad records, and False if an earlier run had stored the batch."""
        location = self._requests.location

        def statement(token: WriteToken) -> None:
            session = self._context.session
            ours = publisher(session)
            store = staged or ours.stage(appending(session, taken.rows, location))
            if store.commit.is_nothing:  # each record was left out: a commit without rows says that the batch is done
                append(taken.rows, location, token)
            else:
                ours.finish(store, token)

        try:
            counts = set_aside(turn, self._context, self._spec, taken.parted.bad, batch_id)
            with refusals(self._spec, taken.parted.whole):
                is_new = turn.write(location, step=STORE, name="store", statement=statement)
        finally:
            taken.forget()
        self.withdraw()
        return counts, is_new


def _same_type(one: DataType, other: DataType) -> bool:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return [(f.name.lower(), f.dataType.simpleString()) for f in one.fields] == [
            (f.name.lower(), f.dataType.simpleString()) for f in other.fields
        ]
    return one.simpleString() == other.simpleString()
