"""A stream that maintains a table's files in turns of its own: compacts them, and deletes old ones. It has no source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame

from lakegate.config import Maintain, StreamSpec, TableSpec
from lakegate.config.value_types import duration_text
from lakegate.errors import Fault, InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.streams.interfaces import OPTIMIZE, VACUUM, BatchResult, BatchTurn, StreamContext, noted
from lakegate.streams.maintenance import schedule as steps
from lakegate.streams.maintenance import statements
from lakegate.streams.maintenance.progress import Watched, relocate
from lakegate.streams.maintenance.schedule import Maintained
from lakegate.streams.table_rules import lacking


class MaintainStream:
    """Runs OPTIMIZE where data has changed since the last time, then VACUUM; each step's commit carries the state."""

    def __init__(self, spec: StreamSpec, table_spec: TableSpec, context: StreamContext) -> None:
        if not isinstance(spec.kind, Maintain):
            raise TypeError(f"{spec.name} is not a stream that maintains")
        self._spec, self._kind, self._context = spec, spec.kind, context
        self._watched = Watched(
            context,
            spec.name,
            context.target,
            new=Maintained(),
            recorded=lambda event: Maintained.recorded(event.facts),
            unknown=lambda at, at_ms: Maintained(at=at, changed=at, removed_ms=at_ms),
        )

    def tables(self) -> tuple[TableLocation, ...]:
        """Returns the target."""
        return (self._context.target,)

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Is never called: there is no source."""
        raise AssertionError("a stream that maintains has no batches")

    def known(self) -> object:
        """Returns None: there is no result to keep up to date."""
        return None

    def keep_up(self, *, before: Collection[str]) -> None:
        """Does nothing: nothing was computed."""

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Is never called: there is no source."""
        raise AssertionError("a stream that maintains has no batches")

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """Is never called: there is no source."""
        raise AssertionError("a stream that maintains has no batches")

    def has_sweep_work(self) -> bool:
        """Returns True if a step is due; reads the log only."""
        state = self._watched.state()
        return self._is_optimize_due(state) or self._is_vacuum_due(state)

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns the head if nothing is due, else the version up to which the table was maintained."""
        state = self._watched.state()
        is_due = self._is_optimize_due(state) or self._is_vacuum_due(state)
        done = state.optimized if self._kind.optimize else state.vacuumed
        return {self._context.target: done if is_due else state.at}

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Runs the steps that are due.

        Raises:
            InvalidRequest: The table lacks a column to order by, or keeps its files longer than `vacuum_older_than`;
                nothing was done.
        """
        context, target = self._context, self._context.target
        if not turn.enter(target):
            return BatchResult()
        self._check()
        state = self._watched.state()
        if self._is_optimize_due(state):
            done = replace(state, optimized=state.at)
            turn.write(target, step=OPTIMIZE, name=steps.OPTIMIZE, statement=lambda token: self._optimize(done, token))
            state = self._watched.state()
        if self._is_vacuum_due(state):
            over = replace(state, vacuumed=state.at, vacuumed_ms=context.clock.wall_ms())
            turn.write(target, step=VACUUM, name=steps.VACUUM, statement=lambda token: self._vacuum(over, token))
        return BatchResult()

    def _is_optimize_due(self, state: Maintained) -> bool:
        return self._kind.optimize and state.is_optimize_due()

    def _is_vacuum_due(self, state: Maintained) -> bool:
        older_than_ms = self._kind.vacuum_older_than_ms
        return older_than_ms is not None and state.is_vacuum_due(
            retention_ms=statements.whole_hours_ms(older_than_ms), now_ms=self._context.clock.wall_ms()
        )

    def _optimize(self, state: Maintained, token: WriteToken) -> None:
        context = self._context
        dml = statements.optimize(context.session, context.target, self._kind.zorder_by)
        relocate(context.log, dml, noted(token, **state.facts()))

    def _vacuum(self, state: Maintained, token: WriteToken) -> None:
        context = self._context
        older_than_ms = self._kind.vacuum_older_than_ms
        if older_than_ms == statements.retention_ms(context.session, context.log.metadata(context.target).properties):
            older_than_ms = None
        statements.vacuum(context.session, context.target, older_than_ms=older_than_ms)
        statements.record(context.log, context.target, noted(token, **state.facts()))

    def _check(self) -> None:
        context, kind = self._context, self._kind
        metadata = context.log.metadata(context.target)
        at = f"streams.{self._spec.name}.maintain"
        faults = [
            Fault(where=f"{at}.zorder_by", what=f"the table has no column {column!r}")
            for column in lacking(metadata.schema, kind.zorder_by)
        ]
        if kind.vacuum_older_than_ms is not None and statements.is_retention_checked(context.session):
            kept_ms = statements.retention_ms(context.session, metadata.properties)
            if kind.vacuum_older_than_ms < kept_ms:
                faults.append(
                    Fault(where=f"{at}.vacuum_older_than", what=too_young(kind.vacuum_older_than_ms, kept_ms))
                )
        if faults:
            raise InvalidRequest(faults=faults, advice="See all that is wrong with the file: lakegate check")


def too_young(older_than_ms: int, kept_ms: int) -> str:
    """Returns the reason why files are not deleted so soon."""
    return (
        f"files of {duration_text(older_than_ms)} may still be read, or be of a write that is under way: the table keeps them for "
        f"{duration_text(kept_ms)} (delta.deletedFileRetentionDuration)"
    )
