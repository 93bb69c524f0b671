"""Computes from a table's commits when its files are due to be compacted, rewritten and deleted.

A stream's own commits carry its state as facts, so only the last of them and the commits after it are read.
Rules for editors: no clock, no files, no log; commits come in as data, and times as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

from lakegate.ids import Version

OPTIMIZE, PURGE, VACUUM = "optimize", "purge", "vacuum"
"""Names of steps."""
ERASING = ("apply", "forget")
"""Steps in which an erase stream removes rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceEvent:
    """A commit, as one stream sees it."""

    version: Version
    at_ms: int
    step: str | None
    """The stream's own step; None for a commit of others."""
    facts: Mapping[str, Any]
    """The facts in the stream's own commit; empty for a commit of others."""
    changes_data: bool
    """Rows were added, changed or removed; False where files were only rewritten."""
    removes_files: bool


class State(Protocol):
    """The known state of a table at a version."""

    @property
    def at(self) -> Version:
        """The last version whose commit is included."""

    def after(self, event: MaintenanceEvent) -> Self:
        """Returns the state after the next commit."""

    def facts(self) -> Mapping[str, Any]:
        """Returns the state as the facts that a commit carries."""

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> Self | None:
        """Returns the state that a commit carries; None if it carries none."""


S = TypeVar("S", bound=State)


def folded(state: S, events: Iterable[MaintenanceEvent]) -> S:
    """Returns the state after commits, in order; skips those that are included already."""
    for event in events:
        if event.version > state.at:
            state = state.after(event)
    return state


# ------------------------------------------------------------------------------------------------------- maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """The progress of a stream that maintains a table's files."""

    at: Version = Version(-1)
    changed: Version = Version(-1)
    """Version of the last commit that changed data."""
    removed_ms: int | None = None
    """Time of the last commit that removed files from the table."""
    optimized: Version = Version(-1)
    """The version whose files are compacted."""
    vacuumed: Version = Version(-1)
    vacuumed_ms: int | None = None

    def after(self, event: MaintenanceEvent) -> Maintained:
        """See `State`."""
        return replace(
            self,
            at=event.version,
            changed=event.version if event.changes_data else self.changed,
            removed_ms=event.at_ms if event.removes_files else self.removed_ms,
        )

    def facts(self) -> Mapping[str, Any]:
        """See `State`."""
        names = ("at", "changed", "removed_ms", "optimized", "vacuumed", "vacuumed_ms")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> Maintained | None:
        """See `State`."""
        if "optimized" not in facts:
            return None
        return cls(
            at=Version(facts["at"]),
            changed=Version(facts["changed"]),
            removed_ms=facts["removed_ms"],
            optimized=Version(facts["optimized"]),
            vacuumed=Version(facts["vacuumed"]),
            vacuumed_ms=facts["vacuumed_ms"],
        )

    def is_optimize_due(self) -> bool:
        """Returns True if data has changed since the last OPTIMIZE."""
        return self.changed > self.optimized

    def is_vacuum_due(self, *, retention_ms: int, now_ms: int) -> bool:
        """Returns True if data has changed since the last VACUUM, or files that were too young then are old enough now."""
        if self.changed > self.vacuumed:
            return True
        if self.removed_ms is None or self.vacuumed_ms is None:
            return False
        return self.vacuumed_ms < self.removed_ms + retention_ms < now_ms


# ----------------------------------------------------------------------------------------------------------- erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """A purge: files without the erased rows have replaced the files with them, which still exist in storage."""

    at_ms: int
    since_ms: int
    """The time of the oldest erasure whose bytes are in these files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The remaining bytes of rows that a stream has erased from a table."""

    at: Version = Version(-1)
    hidden_ms: int | None = None
    """The time of the oldest erasure since the last purge: its rows may be in files of the table."""
    purged: tuple[Purged, ...] = ()
    """Purges that no VACUUM has followed, the oldest first."""

    def after(self, event: MaintenanceEvent) -> Erased:
        """See `State`."""
        hidden_ms, purged = self.hidden_ms, self.purged
        if event.step == PURGE and (since_ms := event.facts.get("covers_ms")) is not None:
            purged = (*purged, Purged(at_ms=event.at_ms, since_ms=since_ms))
        elif event.step in ERASING and event.removes_files and hidden_ms is None:
            hidden_ms = event.at_ms
        return Erased(at=event.version, hidden_ms=hidden_ms, purged=purged)

    def facts(self) -> Mapping[str, Any]:
        """See `State`."""
        purged = [[one.at_ms, one.since_ms] for one in self.purged]
        return {"at": self.at, "hidden_ms": self.hidden_ms, "purged": purged}

    @classmethod
    def recorded(cls, facts: Mapping[str, Any]) -> Erased | None:
        """See `State`."""
        if "hidden_ms" not in facts:
            return None
        purged = tuple(Purged(at_ms=at_ms, since_ms=since_ms) for at_ms, since_ms in facts["purged"])
        return cls(at=Version(facts["at"]), hidden_ms=facts["hidden_ms"], purged=purged)

    @property
    def since_ms(self) -> int | None:
        """Returns the time of the oldest erasure whose bytes may still exist; None if no bytes exist."""
        known = [*(one.since_ms for one in self.purged), *([] if self.hidden_ms is None else [self.hidden_ms])]
        return min(known, default=None)

    def is_purge_due(self, *, within_ms: int, retention_ms: int, pace_ms: int, now_ms: int) -> bool:
        """Returns True if files must be rewritten now, so that the old files can be deleted in time.

        Args:
            within_ms: The time after an erasure within which its bytes must be deleted.
            retention_ms: How long files are kept after the table has removed them.
            pace_ms: The longest delay of the stream's turn; counted for the purge and for the VACUUM.
            now_ms: The wall clock.
        """
        return self.hidden_ms is not None and now_ms >= self.hidden_ms + max(0, within_ms - retention_ms - 2 * pace_ms)

    def is_vacuum_due(self, *, retention_ms: int, now_ms: int) -> bool:
        """Returns True if purged files are old enough to be deleted."""
        return any(one.at_ms + retention_ms < now_ms for one in self.purged)

    def vacuumed(self, *, retention_ms: int, now_ms: int) -> Erased:
        """Returns the state after a VACUUM that began at `now_ms`."""
        return replace(self, purged=tuple(one for one in self.purged if one.at_ms + retention_ms >= now_ms))
