"""Runs one statement until it is committed.

`conflict/commit_protocol.py` yields the next request, an `Effect`; this module carries it out with Delta and Spark, and sends the
result back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from lakegate.delta.actions import Action, Body, Captured, Changes, changes
from lakegate.delta.commit_file import commit_info
from lakegate.delta.gate import is_after_put
from lakegate.delta.jvm import CALL_ERRORS, first_line
from lakegate.effects import Effect, drive
from lakegate.errors import CommitInDoubt, LakegateError
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows.commit_attempt import Base, CommitAttempt
from lakegate.rows.concurrent_commits import ConcurrentCommits
from lakegate.rows.conflict.commit_protocol import publish
from lakegate.rows.conflict.effects import (
    Describe,
    Execute,
    ExecuteOn,
    FindEntered,
    FindMoved,
    GroupInDoubt,
    Joined,
    MeetKeys,
    Put,
    ReadChanges,
    ReadVector,
    Reserve,
    Waiting,
    WriteVectors,
)
from lakegate.rows.conflict.rebase import rebase
from lakegate.rows.conflict_details import tell_of
from lakegate.rows.driver_state import Shared
from lakegate.rows.execution import Execution
from lakegate.rows.group_commit import QueuedStatement, lead
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml

GROUP_CONF = "spark.lakegate.groupMax"
"""Session setting: number of statements that may share the table's next version."""
STOCK_GROUP_MAX, QUICK_GROUP_MAX = 1, 64
"""Its default, for statements that stock Delta executed and for quick ones, which answer the questions of their rebase at once."""
Meets = Callable[[frozenset[str]], bool | None]
"""Tests by paths whether rows of files have a key of a MERGE's source; None if the statement's maker does not know."""
LOGGER = logging.getLogger("lakegate")


def unknown(paths: frozenset[str]) -> bool | None:
    """Returns None: nothing is known of any files."""
    return None


class Transaction:
    """Commits one statement: holds its executions, the commits of others, and the attempts to commit.

    Args:
        shared: The state of the driver.
        dml: The statement.
        statement_id: The id of the statement at the gate.
        base: The table before the statement was executed.
        token: The token that its commit carries.
        number: Number of the token that the session's settings give each commit.
        takes_lock: False for a statement that is rebased before its turn, without a commit.
        meets: Known answers about keys.
        known: Commits that were read before.
    """

    def __init__(
        self,
        shared: Shared,
        dml: Dml,
        statement_id: str,
        base: Base,
        *,
        token: WriteToken | None = None,
        number: str | None = None,
        takes_lock: bool = True,
        meets: Meets = unknown,
        known: Mapping[Version, tuple[Action, ...]] | None = None,
    ) -> None:
        self._dml, self._meets = dml, meets
        log = dml.jvm.delta_log(dml.table)
        self.commits = ConcurrentCommits(dml.jvm, log, dml.table, known or {})
        self.execution = Execution(shared, dml, log, statement_id, self.commits, token=token, number=number)
        self.attempt = CommitAttempt(shared, dml, log, statement_id, base, self.commits, takes_lock=takes_lock)
        self._executions_reserved = 0
        self._waiting: Waiting | None = None
        """The commit that it is waiting to make."""
        self._looked_at = 0
        """Number of commits at the last look."""

    def to_end(self, staged: Captured | None, since: Version | None = None) -> Result:
        """Executes the statement, or takes the staged one, and publishes it."""
        self.execution.computed_on = None if staged is None else staged.version
        try:
            published = drive(publish(staged, since), self.answer)
        except Exception as error:
            if self.commits.in_doubt is not None:
                facts = error.facts if isinstance(error, LakegateError) else {"reason": first_line(error)}
                raise CommitInDoubt(
                    "the answer to a commit was lost, and it could not be found out whether it was made",
                    advice="Look for it in the table's history before the statement is run again",
                    **{"table": self._dml.table, **facts, "version": self.commits.in_doubt},
                ) from error
            if not isinstance(error, LakegateError) and not is_after_put(error):
                tell_of(error, self.commits.winning(self.execution.computed_on))
            raise
        finally:
            self.attempt.end()
        return Result(
            version=published.version,
            is_superseded=published.is_superseded,
            level=published.level,
            attempts=published.attempts,
            lost_puts=published.lost_puts,
            reasons=published.reasons,
            rows_read=self.execution.rows_read,
            waited_ms=int(self.attempt.waited_s * 1000),
            publish_ms=round(self.attempt.publish_s * 1000, 1),
            held_ms=round(self.attempt.held_s * 1000, 1),
            why_stock=self.execution.why_stock,
            returned=self.execution.returned,
            _info=_reader_of_info(self._dml, published.version, self.attempt.info),
        )

    @cached_property
    def group_max(self) -> int:
        """The number of statements that may share a version."""
        is_quick = self.execution.why_stock is None
        return self._dml.jvm.int_conf(GROUP_CONF, QUICK_GROUP_MAX if is_quick else STOCK_GROUP_MAX)

    def answer(self, effect: Effect[Any]) -> Any:
        """Answers an effect of the protocol, or of a rebase."""
        match effect:
            case Execute():
                self._warn_if_outrun()
                self.attempt.unlock()
                return self.execution.run()
            case Describe():
                statement = self.execution.describe()
                # Values that the rebase and the commit need are computed now, while nobody waits.
                _ = self.attempt.job, self.group_max, self._dml.jvm.hadoop_conf
                return statement
            case ReadChanges(after=after, waiting=waiting):
                return self._read_changes(after, waiting)
            case FindEntered(files=files):
                return self.execution.rows.entered(files)
            case MeetKeys(came=came, lost_rows=gone):
                is_met = None if gone else self._meets(frozenset(change.path for change in came))
                return self.execution.rows.meet_keys(came, gone) if is_met is None else is_met
            case FindMoved(lost_rows=gone, copies=copies):
                return self.execution.rows.moved(gone, copies)
            case ReadVector(descriptor=descriptor):
                return self.execution.rows.read_vector(descriptor)
            case WriteVectors(vectors=vectors):
                return self.execution.rows.write_vectors(vectors)
            case ExecuteOn(files=files, version=version):
                self._warn_if_outrun()
                self.attempt.unlock()
                return self.execution.run_on(files, version)
            case Put(version=version, actions=actions, info=info):
                waiting = self._waiting
                look = None if waiting is None else lambda: self._look_ahead(waiting)
                return self.attempt.put(version, actions, info, look)
            case Reserve():
                return self.attempt.reserve(self.execution.seconds)
        raise AssertionError(f"not answered: {effect}")

    def _warn_if_outrun(self) -> None:
        """Logs that an execution with the table reserved was overtaken, for example by a writer without a gate."""
        self._executions_reserved += self.attempt.is_reserved
        if self._executions_reserved > 1:
            earlier = self.commits.winning(self.execution.computed_on)
            LOGGER.warning(
                "executing %s on %s again (attempt %d under the table's reservation): version %s (%s) was committed by a writer "
                "that ignores the reservation; retrying",
                self._dml.operation.value,
                self._dml.table,
                self._executions_reserved,
                "?" if earlier is None else earlier.version,
                "?" if earlier is None else earlier.operation,
            )

    def _read_changes(self, after: Version, waiting: Waiting | None) -> Changes | Joined | GroupInDoubt:
        attempt = self.attempt
        attempt.begin()
        self._waiting = waiting
        if waiting is None:
            # Repeated after a lost commit: no other statement of this driver may be first again. Or in a turn, where none is.
            attempt.lock()
            return self.commits.changes(after)
        if self.group_max <= 1 or attempt.is_reserved or waiting.lost.info.get("userMetadata") is not None:
            return self.commits.changes(after)
        entry = QueuedStatement(attempt, self.commits, self.answer, waiting)
        attempt.line.enter(entry)
        try:
            attempt.lock()
            if entry.reply is None:
                lead(attempt.line.first(entry, self.group_max))
        finally:
            attempt.line.leave(entry)
        if isinstance(entry.reply, BaseException):
            raise entry.reply
        if entry.reply is not None:
            attempt.unlock()
            return entry.reply
        return self.commits.changes(after)

    def _look_ahead(self, waiting: Waiting) -> None:
        """Answers the rebase's effects for new commits while another statement commits: the answers are cached.

        An effect that cannot be answered now is yielded again after the lock is taken.
        """
        try:
            commits = self.commits.after(waiting.lost.version)
            if len(commits) == self._looked_at:
                return
            self._looked_at = len(commits)
            protocol = rebase(waiting.statement, waiting.lost, changes(waiting.lost.version, list(commits.values())))
            effect = protocol.send(None)
            while isinstance(effect, FindEntered | MeetKeys | ReadVector):
                effect = protocol.send(self.answer(effect))
        except (StopIteration, LakegateError, *CALL_ERRORS):
            return


def _reader_of_info(dml: Dml, version: Version | None, info: Body | None) -> Callable[[], Body]:
    """Returns a function that reads a commit's `commitInfo` from the log, unless it is known."""

    def read() -> Body:
        if version is None or info is not None:
            return info or {}
        log = dml.jvm.delta_log(dml.table)
        return commit_info(dml.jvm.read_text(log, dml.jvm.path(log.logPath(), f"{version:020d}.json")) or "")

    return read
