"""A commit at exactly the next version, or none: Delta's own transaction, whose conflict checks and repetitions are off."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pyspark.sql import SparkSession

from lakegate.delta.actions import Action
from lakegate.delta.commit_file import commit_info
from lakegate.delta.jvm import CALL_ERRORS, OURS, Jvm, first_line, is_caused_by, is_lost
from lakegate.delta.post_commit import Work
from lakegate.errors import Corrupt, Unavailable
from lakegate.ids import Version

PRIVATE_CONFS = {
    # One attempt at exactly the next version: a commit that lost is refused, not moved to a later version.
    "spark.databricks.delta.maxCommitAttempts": "0",
    # A hook of our commit must not commit on its own.
    "spark.databricks.delta.autoCompact.enabled": "false",
    # Operations that we name ourselves have no metrics of Spark to show.
    "spark.databricks.delta.history.metricsEnabled": "false",
}
"""Settings of the session that an exact commit is made in; nothing else is written there."""


def private(spark: SparkSession) -> Jvm:
    """A new session that exact commits are made in."""
    session = spark.newSession()
    for key, value in PRIVATE_CONFS.items():
        session.conf.set(key, value)
    return Jvm(session)


@dataclass(frozen=True, slots=True)
class Tried:
    """How an exact commit ended, and the id by which it is known in the log."""

    reply: Literal["done", "stale", "unknown"]
    transaction_id: str


@dataclass(frozen=True, slots=True)
class NotNext:
    """Nothing was tried: the commit is not the next one of the table."""

    version: Version
    """The newest one; -1 where there is no table."""
    table_id: str


@dataclass(frozen=True, slots=True)
class Committer:
    """In whose name a commit passes the gate."""

    token: str
    """Of the statement."""
    history: str
    """JSON of what its `commitInfo` says in the place of the commit's own."""
    job: str | None
    """None: as before."""


def commit(
    jvm: Jvm,
    log: Any,
    version: Version,
    actions: Sequence[Action],
    *,
    table_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    is_blind: bool = False,
    later: Callable[[Work], None] | None = None,
    committer: Committer | None = None,
) -> Tried | NotNext:
    """Commit actions at a version, if it is the table's next one.

    Delta says the same for every way to lose, and a commit may be made though its answer is lost. So after any error the
    commit at that version is read: it is ours if it bears our transaction's id.

    Args:
        jvm: As `private` made it.
        log: Delta's log of the table.
        version: They were decided on the one before it.
        actions: Without `commitInfo`.
        table_id: Of the table that they were decided on; None: whichever is there.
        tags: Of the commit.
        is_blind: It depends on nothing in the table.
        later: Takes what Delta does after a commit (checksum, checkpoint), to be done when nobody waits for it; None: now.
        committer: Whoever this thread commits as anyway by default.

    Raises:
        JVM_ERRORS: The newest version could not be read; nothing was tried.
        Unavailable: Delta says that the commit failed, and that version does not exist. It may yet arrive.
        Corrupt: It landed at another version.
    """
    transaction_id = str(uuid.uuid4())
    try:
        landed, other = jvm.commit(
            log,
            version,
            table_id,
            [action.to_json() for action in actions],
            tags or {},
            is_blind=is_blind,
            transaction_id=transaction_id,
            has_later=later is not None,
            named=(None, None, None) if committer is None else (committer.token, committer.history, committer.job),
        )
    except CALL_ERRORS as error:
        tried = _outcome(jvm, log, version, transaction_id, error)
        if tried is None:
            raise
        landed, other = version, None
        if tried.reply != "done":
            return tried
    if other is not None:
        # Py4J sends a call again whose answer was lost: the second one finds the commit of the first.
        tried = _outcome(jvm, log, version, transaction_id) if landed >= version else None
        if tried is None or tried.reply == "stale":
            return NotNext(Version(landed), other)
        if tried.reply == "unknown":
            return tried
        landed = version
    if landed != version:
        raise Corrupt(
            "a commit landed after one that it had not seen",
            advice="Compare the table with a copy of before: lakegate history shows both commits",
            wanted=version,
            version=landed,
        )
    if later is not None:
        # Who begins now needs the checksum, which does not wait for a checkpoint.
        later(lambda: partial(jvm.checkpoint, transaction_id) if jvm.after_commit(transaction_id) else None)
    return Tried("done", transaction_id)


def _outcome(
    jvm: Jvm, log: Any, version: Version, transaction_id: str, failure: BaseException | None = None
) -> Tried | None:
    """Whose commit stands at `version`, after an attempt at it ended in `failure`; None if nothing was tried."""
    if failure is not None and is_caused_by(failure, f"{OURS}.Attempt$NotBegun"):
        return None
    try:
        text = jvm.read_text(log, jvm.path(log.logPath(), f"{version:020d}.json"))
    except CALL_ERRORS:
        return Tried("unknown", transaction_id)
    if text is None:
        if failure is None:
            return None
        if is_lost(failure):
            return Tried("unknown", transaction_id)  # the put may be under way
        # No lost race, or somebody would have the version. It may yet arrive.
        raise Unavailable(
            "a commit failed; nothing is known to be written", version=version, reason=first_line(failure)
        ) from failure
    return Tried("done" if commit_info(text).get("txnId") == transaction_id else "stale", transaction_id)
