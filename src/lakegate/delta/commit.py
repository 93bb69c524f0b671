"""Commits at exactly the next version, or not at all: by Delta's own transaction, with its conflict checks and retries off."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from pyspark.sql import SparkSession

from lakegate.delta.actions import Action, Body, vector_of
from lakegate.delta.commit_file import commit_info
from lakegate.delta.deletion_vectors import identity, location
from lakegate.delta.jvm import CALL_ERRORS, OURS, Jvm, first_line, is_caused_by, is_lost
from lakegate.delta.post_commit import Work
from lakegate.errors import Corrupt, InvalidRequest, Unavailable
from lakegate.ids import TableLocation, Version

PUBLISHING = f"{OURS}.Gate$PublishException"
"""The gate's refusal while a publish of several tables is open; nothing was written."""
PRIVATE_CONFS = {
    # One attempt at exactly the next version: a commit that lost is refused, not rebased to a later version.
    "spark.databricks.delta.maxCommitAttempts": "0",
    # A hook of our commit must not make a commit of its own.
    "spark.databricks.delta.autoCompact.enabled": "false",
    # Spark has no metrics for operations that we name ourselves.
    "spark.databricks.delta.history.metricsEnabled": "false",
}
"""Settings of the session in which exact commits are made; the session writes nothing else."""


def private(spark: SparkSession) -> Jvm:
    """Returns a new session for exact commits."""
    session = spark.newSession()
    for key, value in PRIVATE_CONFS.items():
        session.conf.set(key, value)
    return Jvm(session)


HISTORY = ("operation", "operationParameters", "operationMetrics", "userMetadata")
"""Fields that a commit takes over from the `commitInfo` of its statement."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of an exact commit, and the id that identifies it in the log."""

    reply: Literal["done", "stale", "unknown"]
    transaction_id: str


@dataclass(frozen=True, slots=True)
class NotNext:
    """No attempt was made: the commit would not be the table's next version."""

    version: Version
    """The table's newest version; -1 if there is no table."""
    table_id: str


@dataclass(frozen=True, slots=True)
class Committer:
    """The identity under which a commit passes the gate."""

    statement_id: str
    """The id of the statement at the gate."""
    history: str
    """JSON that replaces the commit's own entries in its `commitInfo`."""
    job: str | None
    """None: the thread's current job."""


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
    """Commits actions at a version, if it is the table's next one.

    Delta raises the same error for every lost commit, and a commit may succeed although its answer is lost. So after any
    error the commit at that version is read: it is ours if it has our transaction id.

    Args:
        jvm: As `private` made it.
        log: Delta's log of the table.
        version: The version to commit; the actions were computed on the version before it.
        actions: Without `commitInfo`.
        table_id: Id of the table for which the actions were computed; None: any table.
        tags: Tags of the commit.
        is_blind: The actions depend on nothing in the table.
        later: Takes Delta's work after a commit (checksum, checkpoint) and does it when nobody waits; None: do it now.
        committer: The identity to commit under; default: this thread's.

    Raises:
        JVM_ERRORS: The newest version could not be read; nothing was tried.
        Unavailable: Delta reports that the commit failed, and that version does not exist. The commit may still arrive.
        Corrupt: The commit landed at another version.
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
            named=(None, None, None)
            if committer is None
            else (committer.statement_id, committer.history, committer.job),
        )
    except CALL_ERRORS as error:
        tried = _outcome(jvm, log, version, transaction_id, error)
        if tried is None:
            raise
        landed, other = version, None
        if tried.reply != "done":
            return tried
    if other is not None:
        # Py4J repeats a call whose answer was lost: the second call finds the commit of the first.
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
        later(left_by(jvm, transaction_id))
    return Tried("done", transaction_id)


def require_files(jvm: Jvm, log: Any, table: TableLocation, actions: Sequence[Action]) -> None:
    """Checks that the files that a commit brings to the table still exist: VACUUM may remove files that no commit names.

    Args:
        jvm: Of any session.
        log: Delta's log of the table.
        table: The table.
        actions: Of a commit that is not made yet.

    Raises:
        InvalidRequest: A file is gone.
    """
    taken = {action.body["path"]: vector_of(action.body) for action in actions if action.kind == "remove"}
    brought = [a.body["path"] for a in actions if a.kind in ("add", "cdc") and a.body["path"] not in taken]
    vectors = [
        vector
        for action in actions
        if action.kind == "add" and (vector := action.body.get("deletionVector")) is not None
        # A vector that the file had before belongs to the table, and is no more at risk than its other files.
        if identity(vector) != taken.get(action.body["path"])
    ]
    named = [(vector["storageType"], where) for vector in vectors if (where := location(vector)) is not None]
    # Paths in the log are encoded; paths of vectors below the table are not.
    brought += [quote(where) for kind, where in named if kind == "u"]
    absolute = [where for kind, where in named if kind == "p"]
    missing = jvm.missing(log.dataPath(), brought)
    missing = missing or next((at for at in absolute if jvm.read_bytes(jvm.absolute(at)) is None), None)
    if missing is not None:
        raise InvalidRequest(
            "a file that the statement had written is gone, as after VACUUM; nothing was committed",
            advice="Run the statement again; let VACUUM keep files for longer than statements take",
            table=table,
            file=missing,
        )


def history_of(info: Body) -> str:
    """Returns the history that a commit takes over from the `commitInfo` of its statement, for `Committer`."""
    return json.dumps({name: info[name] for name in HISTORY if info.get(name) is not None})


def left_by(jvm: Jvm, transaction_id: str) -> Work:
    """Returns Delta's work after a commit, which may be done in any thread; nothing if the transaction committed nothing."""
    # The next statement needs the checksum, so the checksum does not wait for a checkpoint.
    return lambda: partial(jvm.checkpoint, transaction_id) if jvm.after_commit(transaction_id) else None


def _outcome(
    jvm: Jvm, log: Any, version: Version, transaction_id: str, failure: BaseException | None = None
) -> Tried | None:
    """Returns whether the commit at `version` is ours, after an attempt ended in `failure`; None if no attempt was made."""
    if failure is not None and any(is_caused_by(failure, name) for name in (f"{OURS}.Attempt$NotBegun", PUBLISHING)):
        return None
    try:
        text = jvm.read_text(log, jvm.path(log.logPath(), f"{version:020d}.json"))
    except CALL_ERRORS:
        return Tried("unknown", transaction_id)
    if text is None:
        if failure is None:
            return None
        if is_lost(failure):
            return Tried("unknown", transaction_id)  # the write may be under way
        # This was not a conflict: then another commit would have the version. Our commit may still arrive.
        raise Unavailable(
            "a commit failed; nothing is known to be written", version=version, reason=first_line(failure)
        ) from failure
    return Tried("done" if commit_info(text).get("txnId") == transaction_id else "stale", transaction_id)
