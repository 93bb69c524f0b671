"""Commits statements on Delta tables even if another commit came first."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakegate.delta.actions import Action, Body, Captured
from lakegate.delta.idempotent_writes import APP_ID_CONF, NUMBER_CONF
from lakegate.delta.table_log import refuse_catalog
from lakegate.effects import Protocol, drive
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows.conflict.commit_protocol import Followed, Speculation, come, follow, speculate
from lakegate.rows.driver_state import Shared
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml
from lakegate.rows.transaction import Base, Meets, Run, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A statement that was executed, and whose commit is not made yet."""

    dml: Dml
    token: str
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
    speculation: Speculation | None = None
    """Its speculative rebase on appends that are not committed yet."""


class Publisher(Shared):
    """Executes and commits the statements of one driver. Safe to use from several threads."""

    def publish(self, dml: Dml, stamp: WriteToken | None = None) -> Result:
        """Executes a statement and commits it.

        Args:
            dml: The statement.
            stamp: The token that its commit carries; the caller ensures that the statement itself makes Delta check whether the
                table already has the token. Delta's work after the commit, such as a checkpoint, is then done in the background.

        Raises:
            Unavailable: A commit failed, and the log does not have it.
            UnsupportedTable: It lost its optimistic commit on a table with a feature that does not allow a rebase; or a catalog
                makes the table's commits.
            Exception: Any error that the statement itself raises.
        """
        app_id = dml.session.conf.get(APP_ID_CONF, None)
        number = None if app_id is None else dml.session.conf.get(NUMBER_CONF, None)
        result = Run(self, dml, uuid.uuid4().hex, self.base(dml), stamp=stamp, number=number).to_end(None)
        if app_id is None or number is None or result.version is not None:
            return result
        # If Delta skips a statement, this looks the same as a statement that had nothing to do.
        stored = dml.jvm.transactions(dml.jvm.snapshot(dml.jvm.delta_log(dml.table)))
        return replace(result, is_superseded=result.is_superseded or stored.get(app_id, -1) >= int(number))

    def stage(self, dml: Dml) -> Staged:
        """Executes a statement without committing it; `finish` commits it, at any time later.

        Raises:
            UnsupportedTable: A catalog makes the table's commits.
            Exception: Any error that the statement itself raises.
        """
        token, base = uuid.uuid4().hex, self.base(dml)
        ran = self.gate.run(dml.execute, token=token, is_staged=True, table=dml.table)
        # If it found nothing to do, no commit names its snapshot: it was this version, or a later one.
        nothing = Captured(version=base.version, actions=(), info={}, is_nothing=True)
        commit = ran.commit if isinstance(ran.commit, Captured) else nothing
        return Staged(dml=dml, token=token, commit=commit, base=base)

    def follow(self, staged: Staged, meets: Meets = unknown) -> Staged:
        """Rebases a staged statement on the commits made since, so that `finish` has less to do; commits nothing.

        It never waits for another statement. Returns `staged` unchanged if it needs no rebase, or if only `finish` can decide.
        """
        return self._followed(staged, follow(staged.commit, staged.speculation), meets)

    def speculate(self, staged: Staged, coming: Mapping[str, Body], meets: Meets) -> Staged:
        """Rebases a staged statement speculatively on these files: `follow` and `finish` use the result if they are committed.

        Args:
            staged: As `stage` or `follow` returned it.
            coming: Path → `add`, as `coming` returns them.
            meets: Known answers about keys.
        """
        run = Run(self, staged.dml, staged.token, staged.base, is_ahead=True, meets=meets)
        return replace(staged, speculation=drive(speculate(staged.commit, coming, staged.speculation), run.answer))

    def _followed(self, staged: Staged, protocol: Protocol[Followed | None], meets: Meets) -> Staged:
        run = Run(self, staged.dml, staged.token, staged.base, is_ahead=True, meets=meets)
        followed = drive(protocol, run.answer)
        if followed is None:
            return staged
        return replace(
            staged,
            commit=followed.commit,
            since=staged.commit.version if staged.since is None else staged.since,
            level=max(staged.level, followed.level),
            reasons=staged.reasons if followed.reason is None else (*staged.reasons, followed.reason),
            passed={**staged.passed, **run.known},
            speculation=None,
        )

    def finish(self, staged: Staged, stamp: WriteToken | None = None, meets: Meets = unknown) -> Result:
        """Commits a staged statement, rebased on the commits made since.

        Args:
            staged: As `stage` or `follow` returned it; once.
            stamp: The token for its commit; nothing is written if the table has an equal or later one.
            meets: Known answers about keys.
        """
        if staged.speculation is not None:
            staged = self._followed(staged, come(staged.commit, staged.speculation), meets)
        known = dict(staged.passed)
        run = Run(self, staged.dml, staged.token, staged.base, stamp=stamp, known=known, meets=meets)
        run.require_files(staged.commit)
        result = run.to_end(run.stamped(staged.commit), staged.since)
        reasons = (*staged.reasons, *result.reasons)
        return replace(result, level=max(staged.level, result.level), attempts=len(reasons) + 1, reasons=reasons)

    def base(self, dml: Dml) -> Base:
        """Returns the statement's table as this JVM knows it.

        Raises:
            UnsupportedTable: A catalog makes the table's commits, which do not go through the gate.
        """
        snapshot = self.jvm.delta_log(dml.table).unsafeVolatileSnapshot()
        refuse_catalog(dml.table, [json.loads(snapshot.protocol().json())["protocol"]])
        return Base(str(snapshot.metadata().id()), Version(snapshot.version()))
