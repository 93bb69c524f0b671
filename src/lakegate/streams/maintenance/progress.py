"""The shared parts of streams that maintain files: the known state of a table, and the execution of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from lakegate.delta.table_log import DeltaTableLog, LogGone
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import publisher
from lakegate.rows.statement import Dml
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.maintenance import statements
from lakegate.streams.maintenance.schedule import MaintenanceEvent, State, folded

S = TypeVar("S", bound=State)

PAGE, LOOK_BACK_MAX = 20, 20_000
"""Commits read at a time, backwards, doubled each time; and the most commits read in all. Reading a commit takes about a
millisecond, and it is done once per run."""


class Watched(Generic[S]):
    """The state of a table, derived from one job's commits and those after them."""

    def __init__(
        self,
        context: StreamContext,
        job: str,
        table: TableLocation,
        *,
        new: S,
        recorded: Callable[[MaintenanceEvent], S | None],
        unknown: Callable[[Version, int], S],
    ) -> None:
        """See the class.

        Args:
            context: The stream's context.
            job: The job whose commits carry the state.
            table: The table.
            new: The state of a table without commits.
            recorded: Returns the state that a commit of the job carries.
            unknown: Returns the state at a version and its time, where the log no longer has the commits before it.
        """
        self._context, self._job, self._table = context, job, table
        self._new, self._recorded, self._unknown = new, recorded, unknown
        self._known: S | None = None

    def state(self) -> S:
        """Returns the state at the head. Reads the commits since the last call."""
        head = self._context.log.head(self._table)
        if head < 0:
            return self._new
        known = None
        if self._known is not None and self._known.at <= head:  # greater: the table was created again
            known = self._gone_on(self._known, head)
        self._known = known or self._looked_up(head)
        return self._known

    def _gone_on(self, known: S, head: Version) -> S | None:
        """Returns the state at the head; None if it has to be looked up."""
        try:
            events = self._events(known.at, head)
        except LogGone:
            return None
        return None if any(self._recorded(event) is not None for event in events) else folded(known, events)

    def _looked_up(self, head: Version) -> S:
        events: list[MaintenanceEvent] = []
        upto, page = head, PAGE
        state: S | None = None
        while state is None and upto >= 0:
            after = Version(max(-1, upto - page))
            try:
                found = self._events(after, upto)
            except LogGone:
                if page > 1:
                    page = max(1, page // 4)
                    continue
                break
            events[:0] = found
            state = next((recorded for recorded in map(self._recorded, reversed(found)) if recorded is not None), None)
            upto, page = after, page * 2
            if head - upto > LOOK_BACK_MAX:
                break
        if state is not None and state.at < upto:
            # The state is older than its commit: the commits in between are read, too.
            events[:0] = self._events(state.at, upto)
        elif state is None:
            state = self._new if upto < 0 else self._unknown(upto, events[0].at_ms if events else 0)
        return folded(state, events)

    def _events(self, after: Version, upto: Version) -> list[MaintenanceEvent]:
        return [statements.event(commit, self._job) for commit in self._context.log.commits(self._table, after, upto)]


def relocate(log: DeltaTableLog, dml: Dml, token: WriteToken) -> None:
    """Executes an OPTIMIZE or REORG, rebased onto concurrent commits, and makes sure that the token is in the table."""
    ours = publisher(dml.session)
    ours.finish(ours.stage(dml), token)
    statements.record(log, dml.table, token)  # where it had nothing to do
