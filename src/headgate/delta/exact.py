"""A commit at exactly the next version, or none: Delta's own transaction, whose conflict checks and repetitions are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import SparkSession

from headgate.core.ids import Version
from headgate.core.rows.actions import Action
from headgate.delta.commits import commit_info
from headgate.delta.jvm import JVM_ERRORS, Jvm, first_line
from headgate.errors import Corrupt, Unavailable

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


def commit(
    jvm: Jvm,
    log: Any,
    snapshot: Any,
    actions: Sequence[Action],
    *,
    tags: Mapping[str, str] | None = None,
    is_blind: bool = False,
    later: Callable[[Callable[[], None]], None] | None = None,
) -> Tried:
    """Commit actions as the version after a snapshot.

    Delta says the same for every way to lose, and a commit may be made though its answer is lost. So after any error the
    commit at that version is read: it is ours if it bears our transaction's id.

    Args:
        jvm: As `private` made it.
        log: Delta's log of the table.
        snapshot: What the actions were decided on.
        actions: Without `commitInfo`.
        tags: Of the commit.
        is_blind: It depends on nothing in the table.
        later: Takes what Delta does after a commit (checksum, checkpoint), to be done when nobody waits for it; None: now.

    Raises:
        Unavailable: The commit failed and that version does not exist. It may yet arrive.
        Corrupt: It landed at another version.
    """
    wanted = Version(snapshot.version() + 1)
    attempt = jvm.attempt(log, snapshot, [action.to_json() for action in actions], tags or {}, is_blind=is_blind)
    transaction_id = str(attempt.id())
    try:
        version = attempt.commit(later is not None)
    except JVM_ERRORS as error:
        return _outcome(jvm, log, wanted, transaction_id, error)
    if version != wanted:
        raise Corrupt(
            "a commit landed after one that it had not seen",
            advice="Compare the table with a copy of before: headgate history shows both commits",
            wanted=wanted,
            version=version,
        )
    if later is not None:
        later(attempt.finish)
    return Tried("done", transaction_id)


def _outcome(jvm: Jvm, log: Any, version: Version, transaction_id: str, failure: BaseException) -> Tried:
    """Whose commit stands at `version`, after an attempt at it ended in `failure`."""
    try:
        text = jvm.read_text(log, jvm.path(log.logPath(), f"{version:020d}.json"))
    except JVM_ERRORS:
        return Tried("unknown", transaction_id)
    if text is None:
        # No lost race, or somebody would have the version. It may yet arrive.
        raise Unavailable(
            "a commit failed; nothing is known to be written", version=version, reason=first_line(failure)
        ) from failure
    return Tried("done" if commit_info(text).get("txnId") == transaction_id else "stale", transaction_id)
