"""An erase stream: deletes the rows of persons, now and later, and what other streams keep about these persons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.delta.idempotent_writes import conflicts, tokened
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.quoting import quoted
from lakegate.streams.interfaces import FORGET, BatchResult, BatchTurn, StreamContext
from lakegate.streams.maintenance.purge import PhysicalErasure
from lakegate.streams.requests.apply import locations
from lakegate.streams.requests.column_names import stored_name
from lakegate.streams.requests.columns import fields_of
from lakegate.streams.requests.resolver import Held
from lakegate.streams.requests.rules import Admitted
from lakegate.streams.requests.stream import RequestStream
from lakegate.streams.requests.table import RequestTable

FORGOTTEN_STATES = ("waiting", "dead")
"""States of other streams' requests that an erasure removes. A standing mutation stays, because it still applies to
matching rows that arrive late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Rows of another table that name erased persons."""

    location: TableLocation
    rows: DataFrame
    persons: DataFrame
    condition: str

    def is_empty(self) -> bool:
        """Returns True if there are no such rows; then no commit is made."""
        return self.rows.alias("t").join(F.broadcast(self.persons.alias("s")), F.expr(self.condition)).isEmpty()

    def forget(self, turn: BatchTurn) -> None:
        """Deletes the rows, in a step of the turn."""
        session = self.persons.sparkSession

        def statement(token: WriteToken) -> None:
            merge = DeltaTable.forPath(session, self.location).alias("t")
            with tokened(session, token), conflicts():
                merge.merge(self.persons.alias("s"), self.condition).whenMatchedDelete().execute()

        turn.write(self.location, step=FORGET, name="forget", statement=statement)


class EraseStream(RequestStream):
    """Erasures by request, see *erase* in docs/explanation/requests.md."""

    def __init__(self, spec: StreamSpec, context: StreamContext) -> None:
        if not isinstance(spec.kind, Erase):
            raise TypeError(f"{spec.name} is not an erase stream")
        super().__init__(spec, context)
        self._columns = list(spec.kind.match)
        self._empty_at: dict[TableLocation, Version] = {}
        """Request table of another stream → a version at which it had no request in `FORGOTTEN_STATES`."""
        within_ms = spec.kind.physical_within_ms
        self._physical = (
            None
            if within_ms is None
            else PhysicalErasure(
                spec, context, locations(context.target, *self._others(), *self._letters()), within_ms=within_ms
            )
        )

    def tables(self) -> tuple[TableLocation, ...]:
        """Also returns the other streams' requests and dead letters, from which erased persons are removed."""
        return locations(*super().tables(), *self._others(), *self._letters())

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Also checks whether others keep anything, so that the turn need not."""
        super().stage(batch, batch_id, before=before)
        for location in self._others():
            self._may_keep(RequestTable(self._context.session, self._context.log, location))

    def has_sweep_work(self) -> bool:
        """Also returns True if bytes of erased rows are due for deletion."""
        return super().has_sweep_work() or (self._physical is not None and self._physical.is_due())

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Erases the rows first, then the bytes."""
        result = super().run_sweep(turn, batch_id) if super().has_sweep_work() else BatchResult()
        if self._physical is not None and self._physical.is_due():
            self._physical.run(turn)
        return result

    def _others(self) -> list[TableLocation]:
        context = self._context
        return [context.requests_of(stream) for stream in context.neighbours if isinstance(stream.kind, Mutate)]

    def _letters(self) -> list[TableLocation]:
        """Returns the dead letters of other streams. In the stream's own, a bad record would be the erasure itself."""
        context = self._context
        return [
            context.dead_letters_of(stream)
            for stream in context.neighbours
            if stream.keeps_letters and stream.name != self._spec.name
        ]

    def _kept_of_erased(self, held: Held, admitted: Admitted) -> Sequence[_Kept]:
        erased = {request.key: request.id for request in admitted.in_order if request.op == "erase"}
        if not erased:
            return ()
        rows: pa.Table = held.taken(list(erased.values())).select(["key"])
        persons = self._context.session.createDataFrame(rows)
        return [one for one in (*self._requests_of(persons), *self._letters_of(persons)) if not one.is_empty()]

    def _requests_of(self, persons: DataFrame) -> Iterator[_Kept]:
        for location in self._others():
            table = RequestTable(self._context.session, self._context.log, location)
            if self._may_keep(table):
                found = table.raw().where(F.col("state").isin(*FORGOTTEN_STATES))
                states = ", ".join(f"'{state}'" for state in FORGOTTEN_STATES)
                said = [
                    " AND ".join(
                        f"t.{part}.{quoted(stored_name(name))} = s.key.{quoted(name)}" for name in self._columns
                    )
                    for part in ("key", "set")
                    if self._is_named_in(found, part)
                ]
                if said:
                    named = f"t.state IN ({states}) AND ({' OR '.join(f'({one})' for one in said)})"
                    yield _Kept(location=location, rows=found, persons=persons, condition=named)

    def _may_keep(self, table: RequestTable) -> bool:
        """Returns True if a table has files of `FORGOTTEN_STATES`. If it had none, later commits show it, without a Spark job."""
        head, before = table.head(), self._empty_at.pop(table.location, None)
        if head < 0:
            return False
        if before is None or before > head or table.may_gain(FORGOTTEN_STATES, before, head):
            kept = table.rows(FORGOTTEN_STATES)
            if kept is not None and kept.inputFiles():
                return True
        self._empty_at[table.location] = head
        return False

    def _letters_of(self, persons: DataFrame) -> Iterator[_Kept]:
        for location in self._letters():
            version = self._context.log.head(location)
            if version >= 0:
                # Records that did not parse have no columns: the key is searched for as a JSON string.
                said = [f"instr(t.raw, concat('\"', s.key.{quoted(name)}, '\"')) > 0" for name in self._columns]
                letters = self._context.log.read_at(self._context.session, location, version)
                yield _Kept(location=location, rows=letters, persons=persons, condition=" AND ".join(said))

    def _is_named_in(self, requests: DataFrame, part: str) -> bool:
        names = fields_of(requests.schema[part].dataType, part)
        return {stored_name(name).lower() for name in self._columns} <= {name.lower() for name in names}
