"""A statement that lost the race for its version succeeds all the same.

Stock Delta executes it and tries to commit. If another was first, the commit is rebased on what won and put at the next
version; where that cannot be proved right, the statement is executed again, on the table as it is; and after it has lost
twice in this way, with the table reserved for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.core.effects import Protocol, perform
from headgate.core.ids import Version
from headgate.core.rows.effects import Captured, Committed, Execute, Put, ReadChanges, Reserve
from headgate.core.rows.rebase import Again, Statement, Superseded, rebase

EXECUTIONS_FREE = 2
"""So often a statement is executed beside others; after that the table is reserved for it."""
STOCK, EXECUTED_AGAIN, RESERVED = 0, 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How a statement got into the table."""

    version: Version | None
    """Of its commit; None where it had nothing to change."""
    level: int
    """0: the stock commit. 1: the same, later. 2: with vectors of both. 4: executed again. 5: with the table reserved."""
    executions: int
    lost_puts: int
    """Commits of ours that lost the race, too, or whose answer was lost."""
    reasons: tuple[str, ...]
    """Why it was executed again, each time."""
    is_superseded: bool
    """Its token is in the table with an equal or larger number: nothing was written."""


@dataclass(frozen=True, slots=True)
class _Followed:
    """How a captured commit ended."""

    end: Version | Again | Superseded | None
    level: int
    lost_puts: int


def publish(statement: Statement) -> Protocol[Published]:
    """Executes a statement and gets its commit into the table."""
    executions = lost_puts = 0
    reasons: list[str] = []
    while True:
        if executions == EXECUTIONS_FREE:
            yield from perform(Reserve())
        executions += 1
        executed = yield from perform(Execute())
        if isinstance(executed, Committed):
            followed = _Followed(executed.version, STOCK, 0)
        else:
            followed = yield from _follow(statement, executed)
        lost_puts += followed.lost_puts
        end = followed.end
        if isinstance(end, Again):
            reasons.append(end.reason)
            continue
        at_least = STOCK if executions == 1 else EXECUTED_AGAIN if executions <= EXECUTIONS_FREE else RESERVED
        return Published(
            version=None if isinstance(end, Superseded) else end,
            level=max(followed.level, at_least),
            executions=executions,
            lost_puts=lost_puts,
            reasons=tuple(reasons),
            is_superseded=isinstance(end, Superseded),
        )


def _follow(statement: Statement, lost: Captured) -> Protocol[_Followed]:
    """Puts a captured commit behind those that won, as often as others are first again."""
    tried: set[str] = set()
    while True:
        won = yield from perform(ReadChanges(lost.version))
        # A put whose answer was lost may have arrived, or arrive yet. As long as its version is free, the same version is
        # tried again, so that one of both counts at most; once it is another's, the late one cannot count any more.
        own = min((version for id_, version in won.transaction_ids.items() if id_ in tried), default=None)
        if own is not None:
            return _Followed(own, 1, len(tried))
        rebased = yield from rebase(statement, lost, won)
        if isinstance(rebased, Again | Superseded):
            return _Followed(rebased, 0, len(tried))
        if rebased.is_empty:
            return _Followed(None, rebased.level, len(tried))
        version = Version(won.version + 1)
        reply = yield from perform(Put(version, rebased.actions, lost.info))
        if reply.is_done:
            return _Followed(version, rebased.level, len(tried))
        tried.add(reply.transaction_id)
