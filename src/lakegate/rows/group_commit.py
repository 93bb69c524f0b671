"""Group commits of one driver: one of the statements that wait for a version commits for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from lakegate.delta import commit
from lakegate.delta.actions import Action
from lakegate.effects import Effect, drive
from lakegate.errors import CommitInDoubt, LakegateError, summary
from lakegate.ids import Version
from lakegate.rows.commit_attempt import CommitAttempt
from lakegate.rows.concurrent_commits import ConcurrentCommits
from lakegate.rows.conflict.effects import GroupInDoubt, Joined, Waiting
from lakegate.rows.conflict.group_commit import Group, gather

LOGGER = logging.getLogger("lakegate")


@dataclass(eq=False)
class QueuedStatement:
    """A statement that waits for a version, and its reply."""

    attempt: CommitAttempt
    commits: ConcurrentCommits
    answer: Callable[[Effect[Any]], Any]
    """Answers the effects of its rebase."""
    waiting: Waiting
    reply: Joined | GroupInDoubt | BaseException | None = None


def lead(entries: Sequence[QueuedStatement]) -> None:
    """Commits the statements that can share the next version, and records their replies; does nothing for a single one.

    Args:
        entries: The waiting statements. The first one leads: its thread makes the commit.
    """
    leader = entries[0].attempt
    # A statement that was executed before the table was created again gets its error from its own attempt.
    entries = [entry for entry in entries if entry.attempt.base.table_id == leader.base.table_id]
    if len(entries) == 1:
        return
    waiting = [entry.waiting for entry in entries]
    commits = entries[0].commits.after(min(one.lost.version for one in waiting))
    head = max(commits, default=max(one.lost.version for one in waiting))
    group = _gathered(head, commits, entries)
    if group is None or len(group.members) < 2:
        return
    told: list[QueuedStatement] = [entries[member] for member in group.members]
    try:
        version = Version(head + 1) if group.actions else None
        tried = commit.Tried("done", "") if version is None else leader.commit(version, group.actions, group.info)
        if tried.reply == "stale":
            return
        for entry, member in zip(told, group.members.values(), strict=True):
            entry.attempt.info = member.info
            if tried.reply == "unknown":
                entry.commits.in_doubt = version
            entry.reply = Joined(version, member.level) if tried.reply == "done" else GroupInDoubt(tried.transaction_id)
    except BaseException as error:
        for entry in told:
            entry.reply = entry.reply or _for_a_member(error)
        if not isinstance(error, Exception):
            raise  # an interrupted thread ends, whether or not its statement is one of them


def _gathered(
    head: Version, commits: Mapping[Version, tuple[Action, ...]], entries: Sequence[QueuedStatement]
) -> Group | None:
    """Selects the members of a group; None if an effect of one of them fails: the member's own thread then meets the error."""
    protocol = gather(head, commits, [entry.waiting for entry in entries])
    try:
        return drive(protocol, lambda asked: entries[asked.member].answer(asked.effect))
    except Exception as error:
        LOGGER.info("waiting statements commit one by one, as one of them cannot be rebased: %s", summary(error))
        return None


def _for_a_member(error: BaseException) -> LakegateError:
    """Returns an error of the group's commit for one member: a separate object, because several threads raise it."""
    own: LakegateError
    if isinstance(error, LakegateError):
        own = copy(error)
    else:
        own = CommitInDoubt(
            "the commit that it shares with others was interrupted; it is not known whether it was made",
            advice="Look for it in the table's history before it is run again",
        )
    own.__cause__ = error
    return own
