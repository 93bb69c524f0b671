"""The Python side of the gate in the JVM: captured commits, turns of governed tables, reservations.

Every commit of a session that `lakegate.session` made passes `GateLogStore`. The gate usually lets a commit through. The
commit of a statement that is run here is kept instead of written if another commit was first, or always (`is_staged`).
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
from lakegate.delta.commit import PUBLISHING
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
"""`pass`: commits of a session outside of turns go to governed tables, too; `refuse` by default."""
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
"""Reported by the gate instead of a commit's version: nothing was committed. Any other negative number: the write has failed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a stock statement."""

    commit: Captured | Committed
    returned: Any
    """The statement's return value; None if its commit was kept, which ends the statement."""


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
        self,
        work: Callable[[], object],
        *,
        statement_id: str,
        is_staged: bool = False,
        table: TableLocation | None = None,
    ) -> Ran:
        """Runs a stock statement in this thread; keeps its commit if another commit has its version, or if `is_staged`.

        Args:
            work: The statement. Only its first commit can be kept; later commits, as of a hook that compacts, pass.
            statement_id: A random id of the statement; one run at a time.
            is_staged: The commit is never written to the log, only kept.
            table: The table to which a kept commit must belong.

        Raises:
            InvalidRequest: The kept commit belongs to another table; nothing was written.
            CommitInDoubt: The JVM or its answer was lost.
            TurnNotGranted: The table is governed, and the session's job does not have the turn; nothing was written.
            Exception: Any error that the statement itself raises.
        """
        returned: object = None
        raised: Exception | None = None
        kept, version, is_begun = None, NOT_PUT, False
        try:
            with self._scope("stage" if is_staged else "capture", statement_id):
                is_begun = True
                try:
                    returned = work()
                except Exception as error:
                    raised = error
            if raised is not None:
                kept = self._take(statement_id, table)
            version = int(self._gate.done(statement_id))
        except CALL_ERRORS as gone:  # raised by the gate's own calls
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

    def _take(self, statement_id: str, table: TableLocation | None) -> str | None:
        return self._jvm.whole(self._gate.take(statement_id, table))

    @contextmanager
    def closed(self, refusal: str, advice: str) -> Iterator[None]:
        """Keeps back every commit of this thread, except those of code that runs in a scope of its own.

        Args:
            refusal: What to say if the code tries to commit.
            advice: What to do then.

        Raises:
            InvalidRequest: The code tried to commit; nothing was written.
        """
        statement_id = uuid.uuid4().hex
        raised: Exception | None = None
        try:
            with self._scope("stage", statement_id):
                yield
        except Exception as error:
            raised = error
        # Checked also if the code itself has caught the error that ended its commit.
        try:
            kept = self._take(statement_id, None)
        except CALL_ERRORS as gone:
            raise (raised or gone) from None
        if kept is not None:
            raise InvalidRequest(refusal, advice=advice) from raised
        if raised is not None:
            raise raised

    @contextmanager
    def _scope(self, mode: str, statement_id: str) -> Iterator[None]:
        outer = getattr(self._scopes, "now", None)
        self._scopes.now = (mode, statement_id)
        self._gate.enter(mode, statement_id, None)
        try:
            yield
        finally:
            self._scopes.now = outer
            unless_gone(lambda: self._gate.leave() if outer is None else self._gate.enter(*outer, None))

    @contextmanager
    def acting(self, job: str | None, session: SparkSession | None = None) -> Iterator[None]:
        """Commits of this thread belong to a job: they are refused on each table whose turn this JVM knows, unless the job has it.

        Args:
            job: None: no change.
            session: A session that nobody else uses: all its threads commit as the job, and still do after this block,
                because a thread that a function has left running must not commit in another job's turn.
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
        """From now on every commit of this JVM to the table needs its job's turn, not only the commits of jobs."""
        self._gate.govern(table)

    def release(self, table: TableLocation) -> None:
        """From now on the table is no longer governed."""
        self._gate.release(table)

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        """Gives a job the turn, or extends it; returns False if a later epoch has the turn.

        With `token_id`, a commit of the job that changes rows is refused unless it carries a token of this id and epoch.
        """
        return bool(self._gate.grant(table, job, epoch, duration_ms, token_id))

    def revoke(self, table: TableLocation, epoch: int) -> None:
        """Ends the turn of an epoch."""
        unless_gone(lambda: self._gate.revoke(table, epoch))

    def is_awaited(self, table: TableLocation, job: str) -> bool:
        """Returns True if a commit of the job waits for its turn."""
        return bool(self._gate.isAwaited(table, job))

    def puts(self, table: TableLocation) -> int:
        """Returns the number of commits of jobs that this JVM has written to the table."""
        return int(self._gate.puts(table))

    def note(self, folder: str) -> str | None:
        """Returns the text of the note that makes a table governed; None if there is no note.

        Raises:
            JVM_ERRORS: The note could not be looked up.
        """
        text: str | None = self._gate.note(folder, self._jvm.hadoop_conf)
        return text

    def strays(self, table: TableLocation) -> int:
        """Returns the number of commits outside of any job that this JVM has written to the table during a job's turn."""
        return int(self._gate.strays(table))

    def forget_untokened(self) -> None:
        """Discards an earlier refusal: `raise_untokened` then reports only a later one."""
        self._gate.untokened()

    def raise_untokened(self) -> None:
        """Raises `InvalidRequest` if a commit of this thread was refused because it had no token; once.

        It raises also if the code that made the commit has caught the error.
        """
        told = self._gate.untokened()
        if told is not None:
            raise _untokened(told)

    def reserve(self, table: TableLocation, statement_id: str, hold_ms: int, job: str | None = None) -> bool:
        """Keeps other commits away from a table for a limited time: those of this JVM, and of other drivers with a gate.

        The holder may reserve again. Returns False while another statement has the reservation. In the turn of its job the
        reservation is local: no other driver is asked or informed.
        """
        return bool(self._gate.reserve(table, statement_id, hold_ms, job, self._jvm.hadoop_conf))

    def unreserve(self, table: TableLocation, statement_id: str) -> None:
        """Ends a reservation."""
        self._gate.unreserve(table, statement_id, self._jvm.hadoop_conf)


def is_after_put(error: BaseException) -> bool:
    """Returns True if a statement raised this error in `Gate.run` although it had been, or may have been, committed."""
    return any(note.startswith((COMMITTED, PUT_FAILED)) for note in getattr(error, "__notes__", ()))


def raise_refusal(error: BaseException) -> None:
    """Raises the Lakegate error for the gate's refusal of a commit; returns if `error` is not such a refusal.

    Raises:
        TurnNotGranted: The job does not have the turn.
        InvalidRequest: The job has the turn, and the commit does not carry its token.
        Unavailable: The gate could not find out whether the table takes turns; or a publish of several tables is open there.
    """
    if not isinstance(error, JVM_ERRORS):
        return
    if is_caused_by(error, NO_TURN):
        raise TurnNotGranted(f"{_words(error, NO_TURN)}; nothing was written", advice=TAKE_A_TURN) from error
    if is_caused_by(error, NO_TOKEN):
        raise _untokened(_words(error, NO_TOKEN)) from error
    if is_caused_by(error, PUBLISHING):
        raise Unavailable(
            f"{_words(error, PUBLISHING)}; nothing was written",
            advice="Run the statement again: a statement of lakegate.DeltaTable or lakegate.sql ends the publish of a dead driver",
        ) from error
    if is_caused_by(error, NOTE):
        raise Unavailable(
            _words(error, NOTE), advice="Look at that note; a table is written only if it can be read"
        ) from error


def refused(error: BaseException) -> LakegateError | None:
    """Returns the Lakegate error for the gate's refusal of a commit; None if `error` is not such a refusal."""
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
        raise Corrupt("a captured commit does not name the version on which it was computed", version=version)
    return Captured(
        version=Version(int(info["readVersion"])),
        actions=tuple(action for action in actions if action.kind != "commitInfo"),
        info=info,
    )
