"""Commits the actions of a statement at exactly the table's next version: waits for other statements, and tries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action, Body
from lakegate.delta.gate import JOB_CONF
from lakegate.delta.jvm import CALL_ERRORS, JVM_ERRORS, first_line, is_caused_by
from lakegate.delta.post_commit import Work
from lakegate.errors import Unavailable
from lakegate.ids import Version
from lakegate.rows.concurrent_commits import ConcurrentCommits
from lakegate.rows.conflict.effects import PutReply
from lakegate.rows.driver_state import Shared
from lakegate.rows.statement import Dml

RESERVE_POLL_S = 0.01
LOOK_S = 0.05
"""Interval at which a statement that waits for the lock reads the commits that others have made."""
HOLD_CONF = "spark.lakegate.holdMs"
"""Session setting: minimum time for which others wait for a statement that has reserved the table."""
HOLD_MS = 30_000
HOLD_FOR_EXECUTIONS = 2
"""Others wait for this multiple of the last execution's time, if that is longer: the next execution may be slower."""


@dataclass(frozen=True, slots=True)
class Base:
    """A table as it was before a statement was executed."""

    table_id: str
    version: Version


class CommitAttempt:
    """The attempts to commit one statement, and the time that they cost.

    Args:
        shared: The state of the driver.
        dml: The statement.
        log: Delta's log of its table.
        statement_id: The id of the statement at the gate.
        base: The table before the statement was executed.
        commits: The commits that others have made since.
        takes_lock: False for a statement that is rebased without a commit.
    """

    def __init__(
        self,
        shared: Shared,
        dml: Dml,
        log: Any,
        statement_id: str,
        base: Base,
        commits: ConcurrentCommits,
        *,
        takes_lock: bool,
    ) -> None:
        self._shared, self._dml, self._statement_id, self._commits = shared, dml, statement_id, commits
        self._takes_lock = takes_lock
        self._jvm, self._log = dml.jvm, log
        self.line = shared.line(dml.table)
        self.base = base
        self.info: Body | None = None
        """`commitInfo` of the last attempt; None if the stock commit was used."""
        self.is_reserved = False
        self.waited_s = 0.0
        self.publish_s = 0.0
        self.held_s = 0.0
        self._left: list[Work] = []
        """Delta's work after its commits, to be done when nobody waits for the table any more."""
        self._is_locked = False
        self._locked_at_s = 0.0
        self._begun_at_s: float | None = None
        """When it began to read the other commits; shifted by the time that it waited."""

    @cached_property
    def job(self) -> str | None:
        """The job under which it commits; None outside of jobs."""
        job: str | None = self._dml.session.conf.get(JOB_CONF, None)
        return job

    def begin(self) -> None:
        """Starts to measure the time of publishing; continues it after a lost commit."""
        self._begun_at_s = self._begun_at_s or time.monotonic()

    def lock(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Waits until no other statement of this driver commits to the table; `meanwhile` is called repeatedly during the wait."""
        # The holder of a reservation needs no lock; the holder of the lock may be waiting at the gate for the reservation's end.
        if self._is_locked or self.is_reserved or not self._takes_lock:
            return
        begun = time.monotonic()
        while not self.line.lock.acquire(timeout=-1 if meanwhile is None else LOOK_S):
            assert meanwhile is not None, "without a timeout it is acquired"
            meanwhile()
        self._is_locked = True
        self._locked_at_s = time.monotonic()
        waited_s = self._locked_at_s - begun
        self.waited_s += waited_s
        if self._begun_at_s is not None:
            self._begun_at_s += waited_s

    def unlock(self) -> None:
        """Lets other statements commit, and does Delta's work after commits that were made."""
        # Repeated until this thread does not hold it: an interrupt may have come between acquiring the lock and recording it.
        with suppress(RuntimeError):
            while True:
                self.line.lock.release()
        if self._is_locked:
            self._is_locked = False
            self.held_s += time.monotonic() - self._locked_at_s
        if self._begun_at_s is not None:
            self.publish_s += time.monotonic() - self._begun_at_s
            self._begun_at_s = None
        while self._left:
            self._shared.afterwards(self._left.pop(0))

    def reserve(self, execution_s: float) -> None:
        """Reserves the table: commits of others wait for as long as `holdMs` says, or for twice an execution if that is longer."""
        self.unlock()
        begun = time.monotonic()
        self.is_reserved = True  # set first, so that an interrupt during the wait also ends the reservation
        hold_ms = max(self._jvm.int_conf(HOLD_CONF, HOLD_MS), int(HOLD_FOR_EXECUTIONS * execution_s * 1000))
        while not self._shared.gate.reserve(self._dml.table, self._statement_id, hold_ms, self.job):
            time.sleep(RESERVE_POLL_S)
        self.waited_s += time.monotonic() - begun

    def end(self) -> None:
        """Ends the lock and the reservation."""
        self.unlock()
        if self.is_reserved:
            with suppress(*CALL_ERRORS):  # the outcome of the statement is what matters
                self._shared.gate.unreserve(self._dml.table, self._statement_id)

    def put(
        self, version: Version, actions: Sequence[Action], info: Body, meanwhile: Callable[[], None] | None
    ) -> PutReply:
        """Commits actions at exactly a version, after a wait for the lock."""
        self.info = info
        self.lock(meanwhile)
        try:
            # Commits that were made while it waited have been read.
            is_taken = version in self._commits.known
            tried = exact.Tried("stale", "") if is_taken else self.commit(version, actions, info)
        finally:
            self.unlock()
        if tried.reply == "unknown":
            self._commits.in_doubt = version
        return PutReply(tried.reply == "done", tried.transaction_id)

    def commit(self, version: Version, actions: Sequence[Action], info: Body) -> exact.Tried:
        """Commits actions at a version; "stale" without an attempt if the table has a later version."""
        committer = exact.Committer(self._statement_id, exact.history_of(info), self.job)
        try:
            while True:
                tried = exact.commit(
                    self._shared.jvm,
                    self._log,
                    version,
                    actions,
                    table_id=self.base.table_id,
                    tags=info.get("tags"),
                    is_blind=bool(info.get("isBlindAppend")),
                    later=self._left.append,
                    committer=committer,
                )
                if isinstance(tried, exact.Tried):
                    return tried
                if not self._is_the_same(tried) or tried.version < version - 1:
                    raise self._commits.recreated()
                if tried.version != version - 1:
                    return exact.Tried("stale", "")
        except JVM_ERRORS as error:
            if is_caused_by(error, exact.PUBLISHING):
                self._shared.publishes.resolve(self._dml.table)
                return exact.Tried("stale", "")
            raise Unavailable(
                "the commit could not be made; nothing was written", table=self._dml.table, reason=first_line(error)
            ) from error

    def _is_the_same(self, found: exact.NotNext) -> bool:
        """Returns True if the statement was executed on this table, even if its definition and id are new, as after REPLACE."""
        now = Base(found.table_id, found.version)
        if now.table_id != self.base.table_id:
            try:
                with self._shared.jvm.active():
                    before: Any = self._log.getSnapshotAt(self.base.version, self._jvm.none, self._jvm.none, False)
            except JVM_ERRORS:
                return False  # another log, which does not have this version
            if str(before.metadata().id()) != self.base.table_id:
                return False
            self.base = now
        return True
