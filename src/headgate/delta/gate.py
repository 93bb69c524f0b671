"""The gate in the JVM, seen from Python: commits that are kept back, turns of governed tables, reservations.

Every commit of a session that `headgate.session` made passes `GateLogStore`. Usually it lets it through; a statement run
here in mode "capture" leaves its commit behind if another was first, and in mode "stage" always, for others to publish.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pyspark.sql import SparkSession

from headgate.core.ids import TableLocation, Version
from headgate.core.rows.actions import parse
from headgate.core.rows.effects import Captured, Committed
from headgate.delta.jvm import JVM_ERRORS, OURS, first_line, is_caused_by
from headgate.delta.statements import confs
from headgate.errors import Corrupt, TurnNotGranted

MODE_CONF = "spark.headgate.mode"
TOKEN_CONF = "spark.headgate.token"
JOB_CONF = "spark.headgate.job"
HISTORY_CONF = "spark.headgate.history"
AUTO_COMPACT_CONF = "spark.databricks.delta.autoCompact.enabled"


class Gate:
    """The gate of one JVM. Safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        root: Any = spark._jvm
        self._gate: Any = getattr(root, f"{OURS}.Gate")

    def run(
        self, session: SparkSession, mode: Literal["capture", "stage"], work: Callable[[], object]
    ) -> Captured | Committed:
        """Runs a stock statement, and keeps its commit if another has its version, or in any case.

        Args:
            session: One that nobody else writes with meanwhile.
            mode: "capture": the commit is put if its version is free. "stage": it is never put.
            work: Makes one commit at most.

        Raises:
            TurnNotGranted: the table is governed, and it is not the turn of the session's job; nothing was written.
            Exception: whatever the statement raises by itself.
        """
        token = uuid.uuid4().hex
        with confs(session, {MODE_CONF: mode, TOKEN_CONF: token, AUTO_COMPACT_CONF: "false"}):
            try:
                work()
            except Exception as error:
                kept, _ = self._gate.take(token), self._gate.done(token)
                if kept is not None:
                    return _captured(kept)
                raise_refusal(error)
                raise
        version = int(self._gate.done(token))
        return Committed(Version(version) if version >= 0 else None)

    def govern(self, table: TableLocation) -> None:
        """From now on no commit of this JVM goes to the table without its job's turn."""
        self._gate.govern(table)

    def release(self, table: TableLocation) -> None:
        """The table is no longer governed."""
        self._gate.release(table)

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int) -> bool:
        """Gives a job the turn, or more time for it; False if a later epoch has it."""
        return bool(self._gate.grant(table, job, epoch, duration_ms))

    def revoke(self, table: TableLocation, epoch: int) -> None:
        """Ends the turn of an epoch."""
        self._gate.revoke(table, epoch)

    @contextmanager
    def reserved(self, table: TableLocation, token: str) -> Iterator[bool]:
        """Keeps other commits of this JVM away from a table; False if another has reserved it."""
        is_ours = bool(self._gate.reserve(table, token))
        try:
            yield is_ours
        finally:
            if is_ours:
                self._gate.unreserve(table, token)


def raise_refusal(error: BaseException) -> None:
    """Raise `TurnNotGranted` if an error is the gate's refusal of a commit."""
    if isinstance(error, JVM_ERRORS) and is_caused_by(error, f"{OURS}.Gate$NoTurnException"):
        raise TurnNotGranted(f"{_words(error)}; nothing was written") from error


def _words(error: BaseException) -> str:
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None:
        if thrown.getClass().getName() == f"{OURS}.Gate$NoTurnException":
            return str(thrown.getMessage()).removeprefix("headgate: ")
        thrown = thrown.getCause()
    return first_line(error)


def _captured(kept: str) -> Captured:
    version, _, text = kept.partition("\n")
    actions = parse(text)
    info = next((action.body for action in actions if action.kind == "commitInfo"), None)
    if info is None or info.get("readVersion") is None:
        raise Corrupt("a commit that was kept does not say which version it was computed on", version=version)
    return Captured(
        version=Version(int(info["readVersion"])),
        actions=tuple(action for action in actions if action.kind != "commitInfo"),
        info=info,
    )
