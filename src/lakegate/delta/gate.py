"""The gate in the JVM, seen from Python: commits that are kept back, turns of governed tables, reservations.

Every commit of a session that `lakegate.session` made passes `GateLogStore`. Usually it lets it through; a statement run
here leaves its commit behind if another was first, or in any case, for others to publish.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.clientserver import ClientServer
from pyspark.sql import SparkSession

from lakegate.delta.actions import Captured, Committed, parse
from lakegate.delta.jvm import (
    CALL_ERRORS,
    JVM_ERRORS,
    OURS,
    Jvm,
    Statics,
    first_line,
    is_caused_by,
    is_lost,
    unless_gone,
)
from lakegate.delta.storage_errors import texts_of
from lakegate.errors import CommitInDoubt, Corrupt, InvalidRequest, LakegateError, TurnNotGranted, Unavailable
from lakegate.ids import TableLocation, Version

JOB_CONF = "spark.lakegate.job"
WAIT_CONF = "spark.lakegate.waitMs"
OUTSIDE_CONF = "spark.lakegate.outside"
"""`pass`: what a session commits outside of turns goes to governed tables, too; `refuse` by default."""
TAKE_A_TURN = (
    "Write in a turn: lakegate.start, lakegate.supervise, JobCoordinator(…).turn(), or the command lakegate turn. See who has "
    f"it with: lakegate status. A session that is to write without turns says so: {OUTSIDE_CONF}=pass"
)
WITH_THE_TOKEN = (
    "Write with the session of the batch (batch.sparkSession; in a turn of your own, the session of the JobCoordinator), or with "
    "lakegate.DeltaTable or lakegate.sql, which give their commit the token in any session"
)
NO_TURN, NO_TOKEN, NOTE = (f"{OURS}.Gate${name}Exception" for name in ("NoTurn", "NoToken", "Note"))
COMMITTED = "lakegate: the statement was committed as version"
PUT_FAILED = "lakegate: its commit failed, and may yet arrive"
NOT_PUT = -1
"""In the place of the version that the gate tells of a commit; another negative number: the put has failed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a stock statement ended."""

    commit: Captured | Committed
    returned: Any
    """What it returned; None if its commit was kept, which ends it."""


class Gate:
    """The gate of one JVM. Safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        if not isinstance(spark.sparkContext._gateway, ClientServer):
            raise InvalidRequest(
                "Lakegate needs one JVM thread for each Python thread, and PYSPARK_PIN_THREAD=false is set; nothing was done",
                advice="Leave PYSPARK_PIN_THREAD out: it is true by default",
            )
        root: Any = spark._jvm
        self._gate: Any = Statics(getattr(root, f"{OURS}.Gate"))
        self._jvm = Jvm(spark)
        self._scopes = threading.local()

    def run(
        self, work: Callable[[], object], *, token: str, is_staged: bool = False, table: TableLocation | None = None
    ) -> Ran:
        """Runs a stock statement in this thread, and keeps its commit if another has its version, or in any case.

        Args:
            work: The statement. Its first commit is meant; those after it, as of a hook that compacts, pass.
            token: Of the statement; one run at a time.
            is_staged: The commit is never put, only kept.
            table: The one that a commit which is kept must be of.

        Raises:
            InvalidRequest: It is another table's; nothing was written.
            CommitInDoubt: The JVM or its answer was lost.
            TurnNotGranted: the table is governed, and it is not the turn of the session's job; nothing was written.
            Exception: whatever the statement raises by itself.
        """
        returned: object = None
        raised: Exception | None = None
        kept, version, is_begun = None, NOT_PUT, False
        try:
            with self._scope("stage" if is_staged else "capture", token):
                is_begun = True
                try:
                    returned = work()
                except Exception as error:
                    raised = error
            if raised is not None:
                kept = self._take(token, table)
            version = int(self._gate.done(token))
        except CALL_ERRORS as gone:  # of the gate's own calls
            if not is_begun or is_staged:
                raise (raised or gone) from None
            raise _in_doubt(table, raised or gone) from (raised or gone)
        if kept is not None:
            return Ran(_captured(kept, table), None)
        if raised is None:
            return Ran(Committed(Version(version) if version >= 0 else None), returned)
        raise_refusal(raised)
        if version >= 0:
            raised.add_note(f"{COMMITTED} {version}; what failed came after it")
        elif is_lost(raised) and not is_staged:
            raise _in_doubt(table, raised) from raised
        elif version != NOT_PUT and not any("nothing was written" in text for text in texts_of(raised)):
            raised.add_note(f"{PUT_FAILED}: look for it in the table's history before the statement is run again")
        raise raised

    def _take(self, token: str, table: TableLocation | None) -> str | None:
        return self._jvm.whole(self._gate.take(token, table))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keeps back whatever this thread commits, but for what runs in a scope of its own.

        Raises:
            InvalidRequest: Something was committed; nothing was written.
        """
        token = uuid.uuid4().hex
        raised: Exception | None = None
        try:
            with self._scope("stage", token):
                yield
        except Exception as error:
            raised = error
        # Also where the code itself has caught what ended its commit.
        try:
            kept = self._take(token, None)
        except CALL_ERRORS as gone:
            raise (raised or gone) from None
        if kept is not None:
            raise InvalidRequest(
                "with coverage `publish` a batch is computed outside of the turn, and something else than one statement of "
                "lakegate.DeltaTable or lakegate.sql wanted to commit; nothing was written",
                advice="Write with those, once in a batch, or leave the coverage `exclusive`",
            ) from raised
        if raised is not None:
            raise raised

    @contextmanager
    def _scope(self, mode: str, token: str) -> Iterator[None]:
        outer = getattr(self._scopes, "now", None)
        self._scopes.now = (mode, token)
        self._gate.enter(mode, token, None)
        try:
            yield
        finally:
            self._scopes.now = outer
            unless_gone(lambda: self._gate.leave() if outer is None else self._gate.enter(*outer, None))

    @contextmanager
    def acting(self, job: str | None, session: SparkSession | None = None) -> Iterator[None]:
        """What this thread commits is a job's: refused on every table whose turn this JVM was told of, and is not the job's.

        Args:
            job: None: as before.
            session: One that nobody else uses: all its threads commit as the job, and go on to when this one does not,
                because what a function has left running there must not commit in another's turn.
        """
        if job is None:
            yield
            return
        if session is not None:
            session.conf.set(JOB_CONF, job)
        before = self._gate.actAs(job)
        try:
            yield
        finally:
            unless_gone(lambda: self._gate.actAs(before))

    def govern(self, table: TableLocation) -> None:
        """From now on no commit of this JVM goes to the table without its job's turn, not only those of jobs."""
        self._gate.govern(table)

    def release(self, table: TableLocation) -> None:
        """The table is no longer governed."""
        self._gate.release(table)

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        """Gives a job the turn, or more time for it; False if a later epoch has it.

        With `token_id`, a commit of the job that changes rows is refused unless it carries a token of this id and epoch.
        """
        return bool(self._gate.grant(table, job, epoch, duration_ms, token_id))

    def revoke(self, table: TableLocation, epoch: int) -> None:
        """Ends the turn of an epoch."""
        unless_gone(lambda: self._gate.revoke(table, epoch))

    def is_awaited(self, table: TableLocation, job: str) -> bool:
        """Whether a commit of the job waits for its turn."""
        return bool(self._gate.isAwaited(table, job))

    def puts(self, table: TableLocation) -> int:
        """How many commits of jobs this JVM has put to the table."""
        return int(self._gate.puts(table))

    def note(self, folder: str) -> str | None:
        """The note that makes a table governed, as text; None where there is none.

        Raises:
            JVM_ERRORS: it cannot be told whether there is one.
        """
        text: str | None = self._gate.note(folder, self._jvm.hadoop_conf)
        return text

    def strays(self, table: TableLocation) -> int:
        """How many commits of no job this JVM has put to the table while a job had its turn."""
        return int(self._gate.strays(table))

    def forget_untokened(self) -> None:
        """Forget a refusal that was not asked for: `raise_untokened` tells a later one only."""
        self._gate.untokened()

    def raise_untokened(self) -> None:
        """Raise `InvalidRequest` if a commit of this thread was refused because it had no token; once.

        Also where the code that made the commit has caught the error.
        """
        told = self._gate.untokened()
        if told is not None:
            raise _untokened(told)

    def reserve(self, table: TableLocation, token: str, hold_ms: int, job: str | None = None) -> bool:
        """Keeps commits of others away from a table, for so long at most: of this JVM, and of drivers that pass a gate.

        Who has it may take it anew. False while another has it. In the turn of its job no other driver is asked or told.
        """
        return bool(self._gate.reserve(table, token, hold_ms, job, self._jvm.hadoop_conf))

    def unreserve(self, table: TableLocation, token: str) -> None:
        """Ends a reservation."""
        self._gate.unreserve(table, token, self._jvm.hadoop_conf)


def is_after_put(error: BaseException) -> bool:
    """Whether a statement that `Gate.run` ran raised it though it had been committed, or may have been."""
    return any(note.startswith((COMMITTED, PUT_FAILED)) for note in getattr(error, "__notes__", ()))


def raise_refusal(error: BaseException) -> None:
    """Raise the error that the gate's refusal of a commit means, if this is one.

    Raises:
        TurnNotGranted: it is not the job's turn.
        InvalidRequest: it is, and the commit does not carry its token.
        Unavailable: it could not be found out whether the table takes turns.
    """
    if not isinstance(error, JVM_ERRORS):
        return
    if is_caused_by(error, NO_TURN):
        raise TurnNotGranted(f"{_words(error, NO_TURN)}; nothing was written", advice=TAKE_A_TURN) from error
    if is_caused_by(error, NO_TOKEN):
        raise _untokened(_words(error, NO_TOKEN)) from error
    if is_caused_by(error, NOTE):
        raise Unavailable(
            _words(error, NOTE), advice="Look at that note; a table is written only if it can be read"
        ) from error


def refused(error: BaseException) -> LakegateError | None:
    """The error that the gate's refusal of a commit means; None if this is another one."""
    try:
        raise_refusal(error)
    except LakegateError as meant:
        return meant
    return None


def _untokened(words: str) -> InvalidRequest:
    return InvalidRequest(f"{words.removeprefix('lakegate: ')}; nothing of it was written", advice=WITH_THE_TOKEN)


def _words(error: BaseException, kind: str) -> str:
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None:
        if thrown.getClass().getName() == kind:
            return str(thrown.getMessage()).removeprefix("lakegate: ")
        thrown = thrown.getCause()
    return first_line(error)


def _in_doubt(table: TableLocation | None, error: BaseException) -> CommitInDoubt:
    return CommitInDoubt(
        "the JVM's answer was lost while the statement ran; it is not known whether it was committed",
        advice="Look for it in the table's history before it is run again",
        table=table,
        reason=first_line(error),
    )


def _captured(kept: str, table: TableLocation | None) -> Captured:
    version, _, text = kept.partition("\n")
    if not version:
        raise InvalidRequest(
            "the table's name was given to another table while the statement ran; nothing was written",
            advice="Run the statement again",
            table=table,
            found=text,
        )
    actions = parse(text)
    info = next((action.body for action in actions if action.kind == "commitInfo"), None)
    if info is None or info.get("readVersion") is None:
        raise Corrupt("a commit that was kept does not say which version it was computed on", version=version)
    return Captured(
        version=Version(int(info["readVersion"])),
        actions=tuple(action for action in actions if action.kind != "commitInfo"),
        info=info,
    )
