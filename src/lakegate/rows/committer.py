"""The entry to `rows/`: commits statements on Delta tables even if another commit came first.

`publish` executes a statement and commits it at once. `stage`, `follow`, `speculate` and `finish` do the same in parts, for batches
that are computed before their turn.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from lakegate.delta.actions import Action, Body, Captured
from lakegate.delta.idempotent_writes import APP_ID_CONF, NUMBER_CONF
from lakegate.delta.jvm import check_jvm, silence
from lakegate.delta.storage_errors import in_plain_words
from lakegate.delta.table_log import refuse_catalog
from lakegate.effects import Steps, drive
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows.commit_attempt import Base
from lakegate.rows.conflict.commit_protocol import RebasedAhead, Speculation, adopt, rebase_ahead, speculate
from lakegate.rows.driver_state import Shared
from lakegate.rows.quick_or_stock import run
from lakegate.rows.result import Result, reported
from lakegate.rows.statement import Dml
from lakegate.rows.transaction import Meets, Transaction, unknown

_guard = threading.Lock()
_publishers: dict[str, Publisher] = {}


def publisher(spark: SparkSession) -> Publisher:
    """Returns the publisher of a session's JVM.

    Raises:
        MissingExtra: The session was made without Delta, or without Lakegate's jar.
        UnsupportedTable: The session has a Delta for which this release was not made.
    """
    application = str(spark.sparkContext.applicationId)
    with _guard:
        if application not in _publishers:
            check_jvm(spark)
            # The log of a MERGE whose commit was kept is a fatal error there; real errors are raised anyway.
            silence(spark, "org.apache.spark.sql.delta.commands.MergeIntoCommand")
            _publishers.clear()  # a driver has one application at a time
            _publishers[application] = Publisher(spark)
        return _publishers[application]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A statement that was executed, and whose commit is not made yet."""

    dml: Dml
    statement_id: str
    commit: Captured
    base: Base
    since: Version | None = None
    """The snapshot of its first execution, if it has been rebased since."""
    level: int = 0
    """Highest level of these rebases."""
    reasons: tuple[str, ...] = ()
    """The reason of each repeated execution during a rebase."""
    passed: Mapping[Version, tuple[Action, ...]] = field(default_factory=dict)
    """The commits on which it was rebased."""
    why_stock: str | None = None
    """Why stock Delta executed it; None if the driver did without a Spark job."""
    speculation: Speculation | None = None
    """Its speculative rebase on appends that are not committed yet."""


class Publisher(Shared):
    """Executes and commits the statements of one driver. Safe to use from several threads."""

    @in_plain_words()
    def publish(self, dml: Dml, token: WriteToken | None = None) -> Result:
        """Executes a statement and commits it.

        Args:
            dml: The statement.
            token: The token that its commit carries; the caller ensures that the statement itself makes Delta check whether the
                table already has the token. Delta's work after the commit, such as a checkpoint, is then done in the background.

        Raises:
            Unavailable: A commit failed, and the log does not have it.
            UnsupportedTable: It lost its optimistic commit on a table with a feature that does not allow a rebase; or a catalog
                makes the table's commits.
            Exception: Any error that the statement itself raises.
        """
        app_id = dml.session.conf.get(APP_ID_CONF, None)
        number = None if app_id is None else dml.session.conf.get(NUMBER_CONF, None)
        transaction = Transaction(self, dml, uuid.uuid4().hex, self.base(dml), token=token, number=number)
        result = transaction.to_end(None)
        if app_id is not None and number is not None and result.version is None:
            # If Delta skips a statement, this looks the same as a statement that had nothing to do.
            stored = dml.jvm.transactions(dml.jvm.snapshot(dml.jvm.delta_log(dml.table)))
            result = replace(result, is_superseded=result.is_superseded or stored.get(app_id, -1) >= int(number))
        return self.reported(dml, result)

    def stage(self, dml: Dml) -> Staged:
        """Executes a statement without committing it; `finish` commits it, at any time later.

        Raises:
            UnsupportedTable: A catalog makes the table's commits.
            Exception: Any error that the statement itself raises.
        """
        statement_id, base = uuid.uuid4().hex, self.base(dml)
        done = run(self, dml, statement_id=statement_id, is_staged=True)
        # If it found nothing to do, no commit names its snapshot: it was this version, or a later one.
        nothing = Captured(version=base.version, actions=(), info={}, is_nothing=True)
        kept = done.ran.commit
        commit = kept if isinstance(kept, Captured) else nothing
        return Staged(dml=dml, statement_id=statement_id, commit=commit, base=base, why_stock=done.why_stock)

    def follow(self, staged: Staged, meets: Meets = unknown) -> Staged:
        """Rebases a staged statement on the commits made since, so that `finish` has less to do; commits nothing.

        It never waits for another statement. Returns `staged` unchanged if it needs no rebase, or if only `finish` can decide.
        """
        return self._rebased(staged, rebase_ahead(staged.commit, staged.speculation), meets)

    def speculate(self, staged: Staged, coming: Mapping[str, Body], meets: Meets) -> Staged:
        """Rebases a staged statement speculatively on these files: `follow` and `finish` use the result if they are committed.

        Args:
            staged: As `stage` or `follow` returned it.
            coming: Path → `add`, as `PendingAppends.adds` returns them.
            meets: Known answers about keys.
        """
        transaction = Transaction(self, staged.dml, staged.statement_id, staged.base, takes_lock=False, meets=meets)
        protocol = speculate(staged.commit, coming, staged.speculation)
        return replace(staged, speculation=drive(protocol, transaction.answer))

    def _rebased(self, staged: Staged, protocol: Steps[RebasedAhead | None], meets: Meets) -> Staged:
        transaction = Transaction(self, staged.dml, staged.statement_id, staged.base, takes_lock=False, meets=meets)
        rebased = drive(protocol, transaction.answer)
        if rebased is None:
            return staged
        return replace(
            staged,
            commit=rebased.commit,
            since=staged.commit.version if staged.since is None else staged.since,
            level=max(staged.level, rebased.level),
            reasons=staged.reasons if rebased.reason is None else (*staged.reasons, rebased.reason),
            passed={**staged.passed, **transaction.commits.known},
            speculation=None,
        )

    @in_plain_words()
    def finish(self, staged: Staged, token: WriteToken | None = None, meets: Meets = unknown) -> Result:
        """Commits a staged statement, rebased on the commits made since.

        Args:
            staged: As `stage` or `follow` returned it; once.
            token: The token for its commit; nothing is written if the table has an equal or later one.
            meets: Known answers about keys.
        """
        return self.reported(staged.dml, self.put(staged, token, meets))

    def put(self, staged: Staged, token: WriteToken | None = None, meets: Meets = unknown) -> Result:
        """Commits a staged statement as `finish` does; the caller reports the result, and translates errors of storage."""
        if staged.speculation is not None:
            staged = self._rebased(staged, adopt(staged.commit, staged.speculation), meets)
        transaction = Transaction(
            self, staged.dml, staged.statement_id, staged.base, token=token, known=staged.passed, meets=meets
        )
        transaction.execution.why_stock = staged.why_stock
        transaction.execution.require_files(staged.commit)
        result = transaction.to_end(transaction.execution.with_token(staged.commit), staged.since)
        reasons = (*staged.reasons, *result.reasons)
        return replace(result, level=max(staged.level, result.level), attempts=len(reasons) + 1, reasons=reasons)

    def reported(self, dml: Dml, result: Result) -> Result:
        """Passes a statement's result to the callbacks of `lakegate.on_statement`, and returns it."""
        return reported(result, dml.table, dml.operation.value)

    def base(self, dml: Dml) -> Base:
        """Returns the statement's table as this JVM knows it.

        Raises:
            UnsupportedTable: A catalog makes the table's commits, which do not go through the gate.
        """
        snapshot = self.jvm.delta_log(dml.table).unsafeVolatileSnapshot()
        refuse_catalog(dml.table, [json.loads(snapshot.protocol().json())["protocol"]])
        return Base(str(snapshot.metadata().id()), Version(snapshot.version()))
