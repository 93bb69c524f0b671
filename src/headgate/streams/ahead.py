"""What was computed before its turn: whether it still holds when the turn has come, and how it gets into the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from headgate.core.ids import TableLocation, Version
from headgate.core.rows.actions import Body
from headgate.delta.log import NOTHING_COMES, DeltaTableLog, LogGone
from headgate.delta.publish import Staged
from headgate.ports import WriteToken
from headgate.streams.beside import beside
from headgate.streams.held import Decided
from headgate.streams.target import Met, TargetRows
from headgate.tables.running import finish, follow, foresee


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """What the rules meet in files that have come since, or will."""

    paths: frozenset[str]
    rows: pa.Table
    """As in `Met`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a batch of requests does to the target, computed on one version of it."""

    rules: pa.Table
    met: Met
    staged: Staged
    foreseen: _Foreseen | None = None

    @staticmethod
    def compute(rows: TargetRows, decided: Decided, version: Version) -> Change:
        """Meets the rows and changes them, without a commit."""
        with beside(rows.session) as begin:
            looked = begin(lambda: rows.meet(decided.rules, version))
            staged = rows.stage(decided.rules)
            met = looked.result()
        return Change(rules=decided.rules, met=met, staged=staged)

    def kept_up(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, coming: Mapping[str, Body]
    ) -> Change:
        """The same on the table as it is now: what is left for the turn is what comes after.

        Args:
            log: Of the table.
            target: The table.
            rows: Its rows.
            coming: Path → `add` of files that will be there when the turn comes.
        """
        head = log.head(target)
        came = self._came(log, target, head)
        if came is not None and (more := {path: add for path, add in coming.items() if path not in came}):
            if self.foreseen is not None and self.foreseen.paths == came | more.keys():
                return self
            with beside(rows.session) as begin:
                looked = begin(lambda: self._met_in(rows, head, came, more))
                staged = foresee(self.staged, more)
                foreseen = looked.result()
            return replace(self, staged=staged, foreseen=foreseen)
        if head == self.met.version:
            return self
        with beside(rows.session) as begin:
            looked_at = begin(lambda: self._met_at(log, target, rows, head))
            staged = follow(self.staged)
            met = looked_at.result()
        change = replace(self, met=met, staged=staged, foreseen=None)
        return change.kept_up(log, target, rows, coming) if came is None and coming else change

    def put(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, token: WriteToken) -> Met:
        """Puts it on top of what was committed meanwhile; what was met in the end."""
        head = log.head(target)
        with beside(rows.session) as begin:
            looked = begin(lambda: self._met_at(log, target, rows, head))
            version = finish(self.staged, token).version
            met = looked.result()
        before = log.head(target) if version is None else Version(version - 1)
        return met if before == head else self._met_at(log, target, rows, before)

    def _met_at(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, version: Version) -> Met:
        """What the rules meet at a later version. Of files that only came, those alone are looked at."""
        came = self._came(log, target, version)
        if came is None:
            return rows.meet(self.rules, version)
        more = self._met_in(rows, version, came, NOTHING_COMES)
        return Met(version=version, rows=pa.concat_tables([self.met.rows, more.rows.cast(self.met.rows.schema)]))

    def _met_in(
        self, rows: TargetRows, version: Version, came: frozenset[str], coming: Mapping[str, Body]
    ) -> _Foreseen:
        paths = came | coming.keys()
        if self.foreseen is not None and self.foreseen.paths == paths:
            return self.foreseen
        if not paths:
            return _Foreseen(paths, self.met.rows.slice(0, 0))
        return _Foreseen(paths, rows.meet(self.rules, version, came, coming).rows)

    def _came(self, log: DeltaTableLog, target: TableLocation, version: Version) -> frozenset[str] | None:
        """The files with new rows since the rules were met; None where others went, too, or the log does not tell."""
        try:
            commits = log.commits(target, self.met.version, version)
        except LogGone:
            return None
        came = frozenset(file.path for commit in commits for file in commit.added if file.is_data_change)
        is_gone = any(file.is_data_change for commit in commits for file in commit.removed)
        # Files that came may have been made into others already.
        is_moved = bool(came) and any(commit.removed for commit in commits)
        return None if is_gone or is_moved else came
