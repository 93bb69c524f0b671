"""What was computed before its turn: whether it still holds when the turn has come, and how it gets into the table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from headgate.core.ids import TableLocation, Version
from headgate.delta.log import DeltaTableLog, LogGone
from headgate.delta.publish import Staged
from headgate.ports import WriteToken
from headgate.streams.beside import beside
from headgate.streams.held import Decided
from headgate.streams.target import Met, TargetRows
from headgate.tables.running import finish, follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a batch of requests does to the target, computed on one version of it."""

    rules: pa.Table
    met: Met
    staged: Staged | None
    """None where no row was met."""

    @staticmethod
    def compute(rows: TargetRows, decided: Decided, version: Version) -> Change:
        """Meets the rows and changes them, without a commit."""
        with beside(rows.session) as begin:
            looked = begin(lambda: rows.meet(decided.rules, version))
            staged = rows.stage(decided.rules)
            met = looked.result()
        return Change(rules=decided.rules, met=met, staged=staged if met.rows.num_rows > 0 else None)

    def kept_up(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows) -> Change:
        """The same on the table as it is now: what is left for the turn is what comes after."""
        head = log.head(target)
        if head == self.met.version:
            return self
        with beside(rows.session) as begin:
            looked = begin(lambda: self._met_at(log, target, rows, head))
            staged = None if self.staged is None else follow(self.staged)
            met = looked.result()
        if staged is None and met.rows.num_rows > 0:
            staged = rows.stage(self.rules)
        return replace(self, met=met, staged=staged)

    def put(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, token: WriteToken) -> Met | None:
        """Puts it on top of what was committed meanwhile; what was met in the end.

        None where it met nothing before and may meet something now: it has to be computed anew. Nothing was written then.
        """
        head = log.head(target)
        if self.staged is None:
            met = self._met_at(log, target, rows, head)
            return met if met.rows.num_rows == 0 else None
        with beside(rows.session) as begin:
            looked = begin(lambda: self._met_at(log, target, rows, head))
            version = finish(self.staged, token).version
            met = looked.result()
        before = log.head(target) if version is None else Version(version - 1)
        return met if before == head else self._met_at(log, target, rows, before)

    def _met_at(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, version: Version) -> Met:
        """What the rules meet at a later version. Of files that only came, those alone are looked at."""
        try:
            commits = log.commits(target, self.met.version, version)
        except LogGone:
            return rows.meet(self.rules, version)
        came = [file.path for commit in commits for file in commit.added if file.is_data_change]
        if any(file.is_data_change for commit in commits for file in commit.removed):
            return rows.meet(self.rules, version)
        if not came:
            return replace(self.met, version=version)
        if any(commit.removed for commit in commits):
            return rows.meet(self.rules, version)  # files that came may have been made into others already
        more = rows.meet(self.rules, version, came)
        return Met(version=version, rows=pa.concat_tables([self.met.rows, more.rows.cast(self.met.rows.schema)]))
