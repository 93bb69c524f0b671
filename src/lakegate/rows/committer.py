"""Statements on Delta tables that succeed though another commit came first."""

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
from lakegate.rows.conflict.commit_protocol import Followed, Foreseen, come, follow, foresee
from lakegate.rows.driver_state import Shared
from lakegate.rows.statement import Dml
from lakegate.rows.transaction import Base, Meets, Outcome, Run, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A statement that was computed, and whose commit nobody has put yet."""

    dml: Dml
    token: str
    commit: Captured
    base: Base
    since: Version | None = None
    """The snapshot that it was first computed on, if it has followed others since."""
    level: int = 0
    """At which it followed them."""
    reasons: tuple[str, ...] = ()
    """Why it was executed again for that, each time."""
    passed: Mapping[Version, tuple[Action, ...]] = field(default_factory=dict)
    """The commits that it has followed."""
    foreseen: Foreseen | None = None
    """What it will be when appends have come that are not put yet."""


class Publisher(Shared):
    """Executes statements of one driver and gets their commits into their tables. Safe to use from several threads."""

    def publish(self, dml: Dml, stamp: WriteToken | None = None) -> Outcome:
        """Execute a statement.

        Args:
            dml: The statement.
            stamp: The token that its commit carries; who gives it sees to it that the statement itself asks Delta whether the
                table has it already. What Delta does after the commit, as a checkpoint, is then waited for by nobody.

        Raises:
            Unavailable: A commit failed and could not be seen in the log.
            UnsupportedTable: It lost a race on a table whose feature allows no other commit in its place; or, in any case, a
                catalog makes the table's commits.
            Exception: What the statement raises by itself.
        """
        app_id = dml.session.conf.get(APP_ID_CONF, None)
        number = None if app_id is None else dml.session.conf.get(NUMBER_CONF, None)
        outcome = Run(self, dml, uuid.uuid4().hex, self.base(dml), stamp=stamp, number=number).to_end(None)
        if app_id is None or number is None or outcome.published.version is not None:
            return outcome
        # Delta leaves a statement out as silently as it does nothing where there is nothing to do.
        stored = dml.jvm.transactions(dml.jvm.snapshot(dml.jvm.delta_log(dml.table)))
        is_superseded = outcome.published.is_superseded or stored.get(app_id, -1) >= int(number)
        return replace(outcome, published=replace(outcome.published, is_superseded=is_superseded))

    def stage(self, dml: Dml) -> Staged:
        """Execute a statement without putting its commit; `finish` does it, at any time later.

        Raises:
            UnsupportedTable: A catalog makes the table's commits.
            Exception: What the statement raises by itself.
        """
        token, base = uuid.uuid4().hex, self.base(dml)
        ran = self.gate.run(dml.execute, token=token, is_staged=True, table=dml.table)
        # Where it found nothing to do, no commit says on which version: on this one, or on a later one.
        nothing = Captured(version=base.version, actions=(), info={}, is_nothing=True)
        commit = ran.commit if isinstance(ran.commit, Captured) else nothing
        return Staged(dml=dml, token=token, commit=commit, base=base)

    def follow(self, staged: Staged, meets: Meets = unknown) -> Staged:
        """What was staged, on top of what was committed meanwhile, so that `finish` has less to do; nothing is put.

        Nobody waits for it. As it was where there is nothing to follow, or where only `finish` can tell what becomes of it.
        """
        return self._followed(staged, follow(staged.commit, staged.foreseen), meets)

    def foresee(self, staged: Staged, coming: Mapping[str, Body], meets: Meets) -> Staged:
        """What was staged, with what it will be when these files have come, too: `follow` and `finish` use it if they do.

        Args:
            staged: As `stage` or `follow` returned it.
            coming: Path → `add`, as `coming` tells them.
            meets: What is known.
        """
        run = Run(self, staged.dml, staged.token, staged.base, is_ahead=True, meets=meets)
        return replace(staged, foreseen=drive(foresee(staged.commit, coming, staged.foreseen), run.answer))

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
            foreseen=None,
        )

    def finish(self, staged: Staged, stamp: WriteToken | None = None, meets: Meets = unknown) -> Outcome:
        """Put what was staged, on top of what was committed meanwhile.

        Args:
            staged: As `stage` or `follow` returned it; once.
            stamp: The token that its commit shall carry; nothing is written where the table has an equal or later one.
            meets: What is known.
        """
        if staged.foreseen is not None:
            staged = self._followed(staged, come(staged.commit, staged.foreseen), meets)
        known = dict(staged.passed)
        run = Run(self, staged.dml, staged.token, staged.base, stamp=stamp, known=known, meets=meets)
        run.require_files(staged.commit)
        outcome = run.to_end(run.stamped(staged.commit), staged.since)
        published = outcome.published
        reasons = (*staged.reasons, *published.reasons)
        level = max(staged.level, published.level)
        return replace(outcome, published=replace(published, level=level, executions=len(reasons) + 1, reasons=reasons))

    def base(self, dml: Dml) -> Base:
        """Its table as this JVM knows it.

        Raises:
            UnsupportedTable: A catalog makes its commits, which do not go through the gate.
        """
        snapshot = self.jvm.delta_log(dml.table).unsafeVolatileSnapshot()
        refuse_catalog(dml.table, [json.loads(snapshot.protocol().json())["protocol"]])
        return Base(str(snapshot.metadata().id()), Version(snapshot.version()))
