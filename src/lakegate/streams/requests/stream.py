"""A stream of requests in a turn: stores requests, applies them, records their outcomes, each once; and sweeps kept requests.

`mutate` and `erase` differ in the allowed operations; an erasure also removes other requests of the person. `rules` decides the
effect of a set of requests; the other modules read them, execute the decision and record it. The driver holds the requests of
one batch, and the kept ones of their keys, as Arrow tables; it never holds rows of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from lakegate.config import Erase, StreamSpec
from lakegate.ids import TableLocation, Version
from lakegate.streams.bad_records import transformed
from lakegate.streams.interfaces import BatchResult, BatchTurn, StreamContext, enter_all
from lakegate.streams.requests.apply import locations, target_schema
from lakegate.streams.requests.batch import KeptOfErased, StoredBatches
from lakegate.streams.requests.columns import Intake
from lakegate.streams.requests.parts import Parts
from lakegate.streams.requests.precompute import PrecomputedBatches
from lakegate.streams.requests.resolver import Held
from lakegate.streams.requests.rules import Admitted
from lakegate.streams.requests.sweep import Sweeps

SOURCE_CONF = "spark.databricks.delta.merge.materializeSource"
"""`none`: the source of a stream's MERGE is fixed rows, or a fixed version of a table, so each read gives the same."""


class RequestStream:
    """A mutate stream: updates and deletes by request, see *mutate* in docs/explanation/requests.md; `EraseStream` adds to it."""

    def __init__(self, spec: StreamSpec, context: StreamContext) -> None:
        self._spec, self._context = spec, context
        self._parts = Parts.of(spec, context)
        context.session.conf.set(SOURCE_CONF, "none")
        self._sweeps = Sweeps(self._parts)
        self._stored = StoredBatches(self._parts, self._sweeps, self._kept_of_erased)
        self._precomputed = PrecomputedBatches(self._parts, self._stored)

    def tables(self) -> tuple[TableLocation, ...]:
        """Returns the target, the stream's requests, those of erasures that may concern its rows, and the dead letters."""
        context = self._context
        erasures = [
            context.requests_of(stream)
            for stream in context.neighbours
            if self._parts.sets_values and isinstance(stream.kind, Erase)
        ]
        letters = [context.dead_letters_of(self._spec)] if self._spec.keeps_letters else []
        return locations(context.target, self._parts.requests.location, *erasures, *letters)

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """See `PrecomputedBatches.stage`."""
        self._precomputed.stage(batch, batch_id, before=before)

    def known(self) -> object:
        """See `StreamKind.known`."""
        return self._precomputed.known()

    def keep_up(self, *, before: Collection[str]) -> None:
        """See `PrecomputedBatches.keep_up`."""
        self._precomputed.keep_up(before=before)

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Stores and applies one micro-batch of requests, and records the outcomes.

        Raises:
            InvalidRequest: a record does not parse or fit and `on_bad_record` is `fail`, or the table lacks a column;
                nothing was written.
        """
        parts, schema = self._parts, target_schema(self._context)
        try:
            parts.storing.check_columns(schema)
            has_changed = parts.standing.enter(turn)
            # Only with `coverage: publish`: the batch may be computed, or read, already.
            if not has_changed and self._precomputed.is_computed(batch_id, schema):
                return self._precomputed.run(turn, self.tables(), batch_id)
            records = self._precomputed.records(batch_id)
            records = transformed(self._spec, batch) if records is None else records
            prepared = parts.storing.prepared(records, schema)
            if parts.storing.make_table(prepared, schema):
                parts.standing.write_notes()
            enter_all(turn, self.tables(), self._context.session, self._spec.name)
            look = parts.deciding.in_turn()
            taken = parts.storing.taken_in(prepared, str(turn.epoch), batch_id)
            bad, is_new = parts.storing.store(turn, taken, batch_id)
            self._precomputed.end_updates(batch_id)
            result = self._stored.run(turn, batch_id, look)
            # A batch of bad records alone stores no request.
            is_old = result.was_applied_before and not is_new
            return replace(result.with_bad(bad), was_applied_before=is_old)
        finally:
            self._precomputed.drop()

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """See `StreamKind.evaluated`."""
        return Intake(self._spec, target_schema(self._context)).prepared(transformed(self._spec, batch))

    def has_sweep_work(self) -> bool:
        """Returns True if a kept request has not been tested on all rows, or has waited too long; reads the logs only."""
        return self._sweeps.has_work_at(self._context.log.head(self._context.target))

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns the target's head if every kept request was tested on it, else the version up to which they were tested."""
        head = self._context.log.head(self._context.target)
        if not self._sweeps.has_work_at(head):
            return {self._context.target: head}
        last = self._parts.progress.last()
        return {self._context.target: last.tested if last else Version(-1)}

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """See `Sweeps.run`."""
        for table in self.tables():
            turn.enter(table)
        self._parts.standing.enter(turn)
        return self._sweeps.run(turn, batch_id)

    def _kept_of_erased(self, held: Held, admitted: Admitted) -> Sequence[KeptOfErased]:
        """Returns other rows to delete for erased persons; none for mutations."""
        return ()
