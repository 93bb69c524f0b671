"""A change that was computed before the job holds its turn. Validates it against commits made since, and commits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pyarrow as pa

from lakegate.delta.actions import Body
from lakegate.delta.table_log import NOTHING_COMES, DeltaTableLog, LogGone
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import Staged
from lakegate.rows.execution import finish, follow, speculate
from lakegate.rows.transaction import Meets
from lakegate.spark.threads import in_parallel
from lakegate.streams.requests.apply import Met, TargetRows
from lakegate.streams.requests.resolver import Decided


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speculation:
    """The rows that match the rules in files that were added, or will be."""

    paths: frozenset[str]
    rows: pa.Table
    """As in `Met`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The rows that match the rules at a later version."""

    met: Met
    more: _Speculation | None
    """The rows in the files added since; None where the whole table was read."""

    def meets(self, paths: frozenset[str]) -> bool | None:
        """Returns whether rows of these files have a rule's key; None if the added files are others."""
        return None if self.more is None or self.more.paths != paths else self.more.rows.num_rows > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The effect of a batch of requests on the target, computed on one version."""

    rules: pa.Table
    met: Met
    staged: Staged
    speculation: _Speculation | None = None

    @staticmethod
    def compute(rows: TargetRows, decided: Decided, version: Version) -> Change:
        """Counts the matching rows and prepares their change, without a commit."""
        with in_parallel(rows.session) as begin:
            met = begin(lambda: rows.meet(decided.rules, version))
            staged = rows.stage(decided.rules)
            return Change(rules=decided.rules, met=met.result(), staged=staged)

    def kept_up(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, coming: Callable[[], Mapping[str, Body]]
    ) -> Change:
        """Updates the change to the table's present version, so that only later commits are left for the turn.

        Args:
            log: The table's log.
            target: The table.
            rows: Its rows.
            coming: Returns path → `add` of files that will be in the table when the turn comes.
        """
        if self._came(log, target, log.head(target)) is not None:
            return self._speculation(log, target, rows, coming)
        return self._followed(log, target, rows)._speculation(log, target, rows, coming)

    def _speculation(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, coming: Callable[[], Mapping[str, Body]]
    ) -> Change:
        """Rebases the change speculatively onto files that will be added; if there are none, onto the commits made."""
        announced, head = coming(), log.head(target)  # in this order: a file committed in between is in the log
        came = self._came(log, target, head)
        if came is None:
            return self  # others have removed files meanwhile; the next call is soon
        more = {path: add for path, add in announced.items() if path not in came}
        if not more:
            return self if head == self.met.version else self._followed(log, target, rows)
        if self.speculation is not None and self.speculation.paths == came | more.keys():
            return self
        speculation = self._met_in(rows, head, came, more)
        meets = Looked(met=self.met, more=speculation).meets
        return replace(self, staged=speculate(self.staged, more, meets), speculation=speculation)

    def _followed(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows) -> Change:
        """Rebases the change onto the commits made."""
        came = self._came(log, target, log.head(target))
        with in_parallel(rows.session) as begin:
            looking = begin(lambda: self.look(log, target, rows))
            staged = follow(self.staged, self._meets(came, looking))
            met = looking.result().met
        return replace(self, met=met, staged=staged, speculation=None)

    def look(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows) -> Looked:
        """Counts the matching rows in the table's present version. If files were only added, only those are read."""
        return self._look_at(log, target, rows, log.head(target))

    def put(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, token: WriteToken, looking: Future[Looked]
    ) -> Met:
        """Commits the change, rebased onto the commits made meanwhile. Returns the rows that matched in the end.

        Args:
            log: The table's log.
            target: The table.
            rows: Its rows.
            token: Goes into the commit.
            looking: The result of `look` in the turn.
        """
        came = self._came(log, target, log.seen(target))
        version = finish(self.staged, token, self._meets(came, looking)).version
        before = log.head(target) if version is None else Version(version - 1)
        met = looking.result().met
        return met if before == met.version else self._look_at(log, target, rows, before).met

    @staticmethod
    def _meets(came: frozenset[str] | None, looking: Future[Looked]) -> Meets:
        """Returns a function that answers for the added files; for other files it returns None without waiting."""
        return lambda paths: looking.result().meets(paths) if paths == came else None

    def _look_at(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, version: Version) -> Looked:
        came = self._came(log, target, version)
        if came is None:
            return Looked(met=rows.meet(self.rules, version), more=None)
        more = self._met_in(rows, version, came, NOTHING_COMES)
        both = pa.concat_tables([self.met.rows, more.rows.cast(self.met.rows.schema)])
        return Looked(met=Met(version=version, rows=both), more=more)

    def _met_in(
        self, rows: TargetRows, version: Version, came: frozenset[str], coming: Mapping[str, Body]
    ) -> _Speculation:
        paths = came | coming.keys()
        if self.speculation is not None and self.speculation.paths == paths:
            return self.speculation
        none = self.met.rows.slice(0, 0)
        return _Speculation(paths=paths, rows=rows.meet(self.rules, version, came, coming).rows if paths else none)

    def _came(self, log: DeltaTableLog, target: TableLocation, version: Version) -> frozenset[str] | None:
        """Returns the files added since the rules were matched; None if files were removed, too, or the log lacks commits."""
        try:
            commits = log.commits(target, self.met.version, version)
        except LogGone:
            return None
        came = frozenset(file.path for commit in commits for file in commit.added if file.is_data_change)
        is_gone = any(file.is_data_change for commit in commits for file in commit.removed)
        # Added files may have been rewritten to other files already.
        is_moved = bool(came) and any(commit.removed for commit in commits)
        return None if is_gone or is_moved else came
