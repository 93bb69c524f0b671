"""Decides how a `lakegate` statement in user code is committed.

Without a scope it is committed at once; in a turn with the turn's token (`TurnWrite`); in a function whose batch is computed before
its turn it is computed now and committed later (`Collector`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import SparkSession

from lakegate.delta.idempotent_writes import APP_ID_CONF, NUMBER_CONF, second_write
from lakegate.delta.storage_errors import in_plain_words
from lakegate.errors import InvalidRequest
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import Publisher, Staged, publisher
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml

_scopes = threading.local()


class Scope(Protocol):
    """Takes the statements of a thread."""

    def take(self, dml: Dml) -> Result | None:
        """Returns the result of a statement; None if the statement is executed and committed as without a scope."""


@contextmanager
def entered(taker: Scope) -> Iterator[None]:
    """Gives the statements that this thread makes in the block to a scope, in any session; the innermost scope counts."""
    before = getattr(_scopes, "now", None)
    _scopes.now = taker
    try:
        yield
    finally:
        _scopes.now = before


def scope() -> Scope | None:
    """Returns the scope of this thread's statements; None if they are committed at once."""
    found: Scope | None = getattr(_scopes, "now", None)
    return found


@in_plain_words()
def run(dml: Dml) -> Result:
    """Executes a statement and commits it, or lets the thread's scope take it."""
    taker = scope()
    result = None if taker is None else taker.take(dml)
    return publisher(dml.session).publish(dml) if result is None else result


class Collector:
    """Takes the one statement of a function: it is executed and not committed."""

    def __init__(self, ours: Publisher) -> None:
        self._publisher = ours
        self.staged: Staged | None = None

    def take(self, dml: Dml) -> Result:
        """Executes the statement without committing it.

        Raises:
            InvalidRequest: The function has already made a statement; nothing was written.
        """
        if self.staged is not None:
            raise InvalidRequest(
                "with coverage `publish` a batch is one statement, as a second one would not see what the first one did; "
                "nothing was written",
                advice="Make it one MERGE, or leave the coverage `exclusive`",
            )
        self.staged = self._publisher.stage(dml)
        return Result(version=None, is_superseded=False, level=0, attempts=1, lost_puts=0, reasons=())


@contextmanager
def collected(spark: SparkSession) -> Iterator[Collector]:
    """Collects the statement that this thread executes in the block, without committing it; any other commit is refused."""
    ours = publisher(spark)
    collector = Collector(ours)
    refusal = (
        "with coverage `publish` a batch is computed outside of the turn, and something else than one statement of "
        "lakegate.DeltaTable or lakegate.sql wanted to commit; nothing was written"
    )
    advice = "Write with those, once in a batch, or leave the coverage `exclusive`"
    with entered(collector), ours.gate.closed(refusal, advice):
        yield collector


def staged_statement(spark: SparkSession, execute: Callable[[], object]) -> Staged:
    """Executes a call that makes one statement of ours, without committing it."""
    with collected(spark) as collector:
        execute()
    assert collector.staged is not None, "the collector takes the executed statement"
    return collector.staged


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWrite:
    """The one write that user code may make in its turn, or in a step of it, before the next step."""

    session: SparkSession
    """Its settings carry the token for stock writes."""
    token: WriteToken
    since: Mapping[str, Version]
    """Table → version at which its tokens were read; the tables that the turn fences."""
    applied: frozenset[str]
    """Those of them that already have the write."""

    def take(self, dml: Dml) -> Result | None:
        """Executes and commits the write, with the token.

        Returns None for a table that the turn does not fence, and in a session that carries the token itself.

        Raises:
            InvalidRequest: The write was made before; this is a second one.
        """
        table = plain(dml.table)
        if table not in self.since or dml.session.conf.get(APP_ID_CONF, None) == self.token.token_id:
            return None
        self.begin()
        ours = publisher(dml.session)
        if table in self.applied:
            result = Result(version=None, is_superseded=True, level=0, attempts=0, lost_puts=0, reasons=())
        else:
            result = ours.put(replace(ours.stage(dml), since=self.since[table]), self.token)
        if result.version is not None or result.is_superseded:
            self.end()  # before the report: a callback may make a statement
        return ours.reported(dml, result)

    def begin(self) -> None:
        """Raises `InvalidRequest` if the write was made before. As Delta does: a write removes its number from the settings."""
        if self.session.conf.get(NUMBER_CONF, None) != str(self.token.number):
            raise second_write()

    def renew(self) -> None:
        """Gives the number to the settings again: each stock execution of a publish takes it from them."""
        self.session.conf.set(NUMBER_CONF, str(self.token.number))

    def end(self) -> None:
        """Records that the write was made."""
        self.session.conf.unset(NUMBER_CONF)


def plain(location: str) -> str:
    """Returns a table's location as a key: a path of local disk has one form, however it is written."""
    return location.removeprefix("file:").replace("//", "/").rstrip("/")
