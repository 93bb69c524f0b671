"""Deletes the bytes of erased rows: rewrites the files that contain them, and deletes the old files after the retention time.

First a purge (REORG), late enough to serve many erasures, and early enough that the files may be deleted in time. Then, when
the table's retention has passed, a VACUUM. Each is a step of a sweep of the erase stream. Source: docs/explanation/requests.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakegate.config import StreamSpec
from lakegate.config.value_types import duration_text
from lakegate.errors import Fault, InvalidRequest
from lakegate.ids import TableLocation
from lakegate.ports import WriteToken
from lakegate.streams.interfaces import PURGE, VACUUM, BatchTurn, StreamContext, noted
from lakegate.streams.maintenance import schedule as steps
from lakegate.streams.maintenance import statements
from lakegate.streams.maintenance.progress import Watched, relocate
from lakegate.streams.maintenance.schedule import Erased

VECTORS = "deletionVectors"


class PhysicalErasure:
    """The purge and VACUUM of an erase stream, so that the bytes of erased rows are deleted in time."""

    def __init__(
        self, spec: StreamSpec, context: StreamContext, tables: Sequence[TableLocation], *, within_ms: int
    ) -> None:
        """See the class.

        Args:
            spec: The stream.
            context: The stream's context.
            tables: The tables from which it erases, the target first.
            within_ms: The time after an erasure within which its bytes must be deleted.
        """
        self._spec, self._context, self._within_ms = spec, context, within_ms
        self._watched = {
            table: Watched(
                context,
                spec.name,
                table,
                new=Erased(),
                recorded=lambda event: Erased.recorded(event.facts),
                # Earlier erasures are treated as if they had been made at that time.
                unknown=lambda at, at_ms: Erased(at=at, hidden_ms=at_ms),
            )
            for table in tables
        }

    def is_due(self) -> bool:
        """Returns True if a purge or VACUUM is due now; reads the logs only."""
        states = {table: watched.state() for table, watched in self._watched.items()}
        return any(self._is_purge_due(state) or self._is_vacuum_due(table, state) for table, state in states.items())

    def run(self, turn: BatchTurn) -> None:
        """Runs the purges and VACUUMs that are due.

        Raises:
            InvalidRequest: The table keeps its files longer than the bytes may exist; nothing was done.
        """
        if (fault := within_fault(self._spec, self._within_ms, self._kept_ms(self._context.target))) is not None:
            raise InvalidRequest(faults=[fault])
        for table, watched in self._watched.items():
            if not turn.enter(table):
                continue
            state = watched.state()
            if self._is_purge_due(state):
                self._purge(turn, table, state)
                state = watched.state()
            if self._is_vacuum_due(table, state):
                self._vacuum(turn, table, state)

    def _purge(self, turn: BatchTurn, table: TableLocation, state: Erased) -> None:
        context = self._context
        facts = {**replace(state, hidden_ms=None).facts(), "covers_ms": state.hidden_ms}

        def statement(token: WriteToken) -> None:
            said = noted(token, **facts)
            if VECTORS in context.log.metadata(table).features:
                relocate(context.log, statements.purge(context.session, table), said)
            else:
                statements.record(context.log, table, said)  # rows were erased by rewriting their files

        turn.write(table, step=PURGE, name=steps.PURGE, statement=statement)

    def _vacuum(self, turn: BatchTurn, table: TableLocation, state: Erased) -> None:
        context, retention_ms = self._context, self._retention_ms(table)
        is_own = retention_ms == self._kept_ms(table)
        facts = state.vacuumed(retention_ms=retention_ms, now_ms=context.clock.wall_ms()).facts()

        def statement(token: WriteToken) -> None:
            statements.vacuum(context.session, table, older_than_ms=None if is_own else retention_ms, is_checked=is_own)
            statements.record(context.log, table, noted(token, **facts))

        turn.write(table, step=VACUUM, name=steps.VACUUM, statement=statement)

    def _is_purge_due(self, state: Erased) -> bool:
        return state.hidden_ms is not None and state.is_purge_due(
            within_ms=self._within_ms,
            retention_ms=statements.whole_hours_ms(self._kept_ms(self._context.target)),
            pace_ms=self._spec.every_ms or 0,
            now_ms=self._context.clock.wall_ms(),
        )

    def _is_vacuum_due(self, table: TableLocation, state: Erased) -> bool:
        return bool(state.purged) and state.is_vacuum_due(
            retention_ms=self._retention_ms(table), now_ms=self._context.clock.wall_ms()
        )

    def _retention_ms(self, table: TableLocation) -> int:
        """Returns how long a table's files must be kept: its own retention, or the target's if that is shorter.

        Requests and dead letters are read and written in turns of the target's lock: a time that is safe for it is safe for them.
        """
        return min(self._kept_ms(table), statements.whole_hours_ms(self._kept_ms(self._context.target)))

    def _kept_ms(self, table: TableLocation) -> int:
        context = self._context
        return statements.retention_ms(context.session, context.log.metadata(table).properties)


def within_fault(spec: StreamSpec, within_ms: int, kept_ms: int) -> Fault | None:
    """Returns a fault if `physical_within` is shorter than the time that the table keeps files."""
    needed_ms = kept_ms + 2 * (spec.every_ms or 0)
    if within_ms > kept_ms and within_ms >= needed_ms:
        return None
    what = (
        f"{duration_text(within_ms)} is too short: the table keeps files that it has no more for {duration_text(kept_ms)} "
        "(delta.deletedFileRetentionDuration)"
    )
    expected = f"more than {duration_text(kept_ms)}"
    if spec.every_ms:
        what += f", and the stream runs every {duration_text(spec.every_ms)}, once to purge and once to delete"
        expected = f"{duration_text(needed_ms)} or more"
    return Fault(where=f"streams.{spec.name}.erase.physical_within", what=what, expected=expected)
