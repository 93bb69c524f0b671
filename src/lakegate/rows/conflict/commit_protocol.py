"""Commits a statement even if it has lost its optimistic commit.

Stock Delta executes the statement and tries to commit. If another commit was first, ours is rebased on the winning commits
and made at the next version. If the rebase cannot be proved right, the statement is executed again on the current table;
after two such losses, with the table reserved for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakegate.delta.actions import Body, Captured, Changes, Committed, FileChange
from lakegate.effects import Steps, perform
from lakegate.ids import Version
from lakegate.rows.conflict.effects import (
    Describe,
    Execute,
    ExecuteOn,
    GroupInDoubt,
    Joined,
    Put,
    ReadChanges,
    Reserve,
    Waiting,
)
from lakegate.rows.conflict.read_set import Reads, Statement
from lakegate.rows.conflict.rebase import Again, Partly, Rebased, Superseded, deleted_rows, rebase, superseded_by

LOSSES_FREE = 2
"""Number of losses after which a statement is executed again, whole or in part, with the table reserved for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The outcome of committing a statement."""

    version: Version | None
    """Version of its commit; None if it had nothing to change."""
    level: int
    """0: the stock commit. 1: the same, later. 2: with merged deletion vectors. 3: executed again on some files.
    4: executed again on the table. 5: executed again with the table reserved."""
    attempts: int
    """Executions on the whole table, and on some files."""
    lost_puts: int
    """Further commits of ours that lost, too, or whose answer was lost."""
    reasons: tuple[str, ...]
    """The reason of each repeated execution."""
    is_superseded: bool
    """Its token is in the table with an equal or larger number: nothing was written."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """The outcome of a captured commit."""

    end: Version | Partly | Again | Superseded | None
    level: int
    lost_puts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebasedAhead:
    """A staged commit that was rebased on later commits, and is not committed yet."""

    commit: Captured
    level: int
    reason: str | None
    """The reason why it was executed again on some files; None if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A staged commit that was rebased speculatively on files that are not committed yet."""

    files: Mapping[str, FileChange]
    """The net changes of the table's files once these files are committed."""
    rebased: RebasedAhead

    def has_come(self, won: Changes) -> bool:
        """True if exactly the expected files were committed since, and otherwise only tokens."""
        is_more = won.is_definition_changed or won.is_file_said_anew or bool(won.domains)
        return not is_more and _said(won.files) == _said(self.files)


def _said(files: Mapping[str, FileChange]) -> dict[str, tuple[Body | None, Body | None]]:
    """Returns changes by path without empty fields: a writer that commits another's `add` may write a missing field as empty."""
    return {path: (_without_nothing(change.before), _without_nothing(change.after)) for path, change in files.items()}


def _without_nothing(file: Body | None) -> Body | None:
    return None if file is None else {name: value for name, value in file.items() if value is not None and value != {}}


def rebase_ahead(staged: Captured, speculation: Speculation | None = None) -> Steps[RebasedAhead | None]:
    """Rebases a staged commit on what is committed now, without committing it: `publish` then has less to do.

    Returns None if no commit was made since, or if only `publish` can decide what happens to the commit.
    """
    won = yield from perform(ReadChanges(staged.version))
    assert isinstance(won, Changes), "only a waiting statement gets another answer"
    if speculation is not None and speculation.has_come(won):
        return _at(won.version, speculation.rebased)
    if won.version == staged.version:
        return None
    return (yield from _rebased_once(staged, won))


def speculate(staged: Captured, coming: Mapping[str, Body], before: Speculation | None) -> Steps[Speculation | None]:
    """Rebases a staged commit as if these files were committed next; returns `before` if it is still valid.

    Args:
        staged: The staged commit.
        coming: Path → `add` of files that are written, and whose commits are not made yet.
        before: The earlier speculative rebase of the same commit.
    """
    won = yield from perform(ReadChanges(staged.version))
    assert isinstance(won, Changes), "only a waiting statement gets another answer"
    files = {**won.files, **{path: FileChange(path, None, add) for path, add in coming.items()}}
    if before is not None and before.files == files:
        return before
    followed = yield from _rebased_once(staged, replace(won, files=files))
    return None if followed is None else Speculation(files=files, rebased=followed)


def adopt(staged: Captured, speculation: Speculation) -> Steps[RebasedAhead | None]:
    """Returns the speculative rebase if exactly the expected files were committed; else None."""
    won = yield from perform(ReadChanges(staged.version))
    assert isinstance(won, Changes), "only a waiting statement gets another answer"
    return _at(won.version, speculation.rebased) if speculation.has_come(won) else None


def _at(version: Version, followed: RebasedAhead) -> RebasedAhead:
    return replace(followed, commit=replace(followed.commit, version=version))


def _rebased_once(staged: Captured, won: Changes) -> Steps[RebasedAhead | None]:
    statement = yield from perform(Describe())
    rebased = yield from rebase(statement, staged, won)
    if isinstance(rebased, Partly):
        return RebasedAhead(commit=(yield from _on_part(staged, rebased)), level=3, reason=rebased.reason)
    if not isinstance(rebased, Rebased):
        return None
    info = info_of(statement, staged.info, rebased)
    commit = replace(staged, version=won.version, actions=rebased.actions, info=info)
    return RebasedAhead(commit=commit, level=rebased.level, reason=None)


def publish(staged: Captured | None = None, since: Version | None = None) -> Steps[Published]:
    """Executes a statement and commits it.

    Args:
        staged: The result of an earlier execution that was not committed.
        since: The snapshot of that execution, if `staged` has been rebased since.
    """
    statement: Statement | None = None
    reasons: list[str] = []
    level = lost_puts = 0
    lost: Captured | Committed | None = staged
    is_reserved = False
    while True:
        executed = lost
        if executed is None:
            executed = yield from perform(Execute())
            statement = None  # winning commits may have changed the table's definition
        if isinstance(executed, Committed):
            followed = _Tried(executed.version, 0, 0)
        else:
            since = executed.version if since is None else since
            statement = statement or (yield from perform(Describe()))
            followed = yield from _rebase_and_commit(statement, executed, since)
        lost_puts += followed.lost_puts
        level, end = max(level, followed.level), followed.end
        if not isinstance(end, Again | Partly):
            return Published(
                version=None if isinstance(end, Superseded) else end,
                level=level,
                attempts=len(reasons) + 1,
                lost_puts=lost_puts,
                reasons=tuple(reasons),
                is_superseded=isinstance(end, Superseded),
            )
        if len(reasons) >= LOSSES_FREE - 1:
            yield from perform(Reserve())  # each time: it may have expired, or another statement may have it now
            was_reserved, is_reserved = is_reserved, True
            if not was_reserved and isinstance(end, Partly):
                # Others may have committed before the reservation: the files to execute on are determined again.
                lost = executed if isinstance(executed, Captured) else None
                continue
        reasons.append(end.reason)
        level = 5 if is_reserved else max(level, 3 if isinstance(end, Partly) else 4)
        lost = (
            (yield from _on_part(executed, end)) if isinstance(executed, Captured) and isinstance(end, Partly) else None
        )


def _on_part(before: Captured, part: Partly) -> Steps[Captured]:
    """Executes a statement again on some files; returns one commit of the result and of the part that is kept."""
    executed = yield from perform(ExecuteOn(part.files, part.version))
    if isinstance(executed, Committed):
        return replace(before, version=part.version, actions=part.kept)
    said_before = {action.kind for action in part.kept}
    new = tuple(a for a in executed.actions if a.kind in ("add", "remove", "cdc") or a.kind not in said_before)
    info = dict(executed.info)
    if part.kept:
        metrics = [before.info.get("operationMetrics") or {}, executed.info.get("operationMetrics") or {}]
        names = dict.fromkeys([*metrics[0], *metrics[1]])
        info["operationMetrics"] = {name: str(sum(int(each.get(name, 0)) for each in metrics)) for name in names}
    return Captured(version=part.version, actions=(*part.kept, *new), info=info)


def info_of(statement: Statement, info: Body, rebased: Rebased) -> Body:
    """Returns the statement's history; a rebased DELETE may have deleted other rows than its execution found."""
    is_recounted = statement.reads is Reads.ROWS and statement.marks_rows and rebased.level == 2
    rows = deleted_rows(rebased.actions) if is_recounted else None
    if rows is None:
        return info
    return {**info, "operationMetrics": {**(info.get("operationMetrics") or {}), "numDeletedRows": str(rows)}}


def _rebase_and_commit(statement: Statement, lost: Captured, since: Version) -> Steps[_Tried]:
    """Rebases a captured commit on the winning commits and commits it; repeats this as often as others are first again.

    Args:
        statement: The statement's read set.
        lost: Its commit.
        since: The snapshot of its first execution.
    """
    if since < lost.version and any(action.kind == "txn" for action in lost.actions):
        # An execution does not look for the commit's token, and its snapshot may have a later token.
        passed = yield from perform(ReadChanges(since))
        assert isinstance(passed, Changes), "only a waiting statement gets another answer"
        if (superseded := superseded_by(lost, passed)) is not None:
            return _Tried(superseded, 0, 0)
    tried: set[str] = set()
    while True:
        won = yield from perform(ReadChanges(lost.version, None if tried else Waiting(statement, lost)))
        if isinstance(won, Joined):
            return _Tried(won.version, won.level, 0)
        if isinstance(won, GroupInDoubt):
            tried.add(won.transaction_id)
            continue
        # A commit whose answer was lost may have arrived, or may still arrive. As long as its version is free, we try the same
        # version again, so that at most one of both counts. Once another commit has the version, the late one cannot count.
        # The same holds for the stock commit: not every store recognizes its own write.
        ours = {*tried, lost.info.get("txnId")}
        own = min((version for id_, version in won.transaction_ids.items() if id_ in ours), default=None)
        if own is not None:
            return _Tried(own, 1 if tried else 0, len(tried))
        rebased = yield from rebase(statement, lost, won)
        if isinstance(rebased, Again | Partly | Superseded):
            return _Tried(rebased, 0, len(tried))
        if rebased.is_empty or lost.is_nothing:
            return _Tried(None, rebased.level, len(tried))
        version = Version(won.version + 1)
        reply = yield from perform(Put(version, rebased.actions, info_of(statement, lost.info, rebased)))
        if reply.is_done:
            return _Tried(version, rebased.level, len(tried))
        tried.add(reply.transaction_id)
