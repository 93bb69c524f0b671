"""Runs one statement until it is committed: answers the effects of `rows/conflict`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action, Body, Captured, Changes, Committed, changes, parse, vector_of
from lakegate.delta.commit_file import commit_info
from lakegate.delta.deletion_vectors import identity, location
from lakegate.delta.gate import JOB_CONF, is_after_put
from lakegate.delta.idempotent_writes import NUMBER_CONF
from lakegate.delta.jvm import CALL_ERRORS, JVM_ERRORS, first_line
from lakegate.delta.post_commit import Work
from lakegate.delta.table_log import CATALOG_FEATURES, LogGone, refuse_catalog
from lakegate.effects import Effect, drive
from lakegate.errors import CommitInDoubt, InvalidRequest, LakegateError, Unavailable, UnsupportedTable
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows import shallow_clone
from lakegate.rows.commit_queue import Entry
from lakegate.rows.conflict.commit_protocol import publish
from lakegate.rows.conflict.effects import (
    Describe,
    Execute,
    ExecuteOn,
    FindEntered,
    FindMoved,
    InDoubt,
    Joined,
    MeetKeys,
    Put,
    PutReply,
    ReadChanges,
    ReadVector,
    Reserve,
    Waiting,
    WriteVectors,
)
from lakegate.rows.conflict.read_set import Reads, Statement, classify
from lakegate.rows.conflict.rebase import rebase
from lakegate.rows.conflict_details import WinningCommit, first_of, tell_of, winning_commit_of
from lakegate.rows.driver_state import Shared
from lakegate.rows.group_commit import lead
from lakegate.rows.result import Result
from lakegate.rows.row_reader import TableRows
from lakegate.rows.statement import Dml

UNSERVED_FEATURES = CATALOG_FEATURES | {
    "adaptiveMetadata-preview",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
}
"""A commit of a table with one of these features is more than its actions in the log: for example a manifest of all its files."""
RESERVE_POLL_S = 0.01
LOOK_S = 0.05
"""Interval at which a statement that waits for the lock reads the commits that others have made."""
LOGGER = logging.getLogger("lakegate")
HOLD_CONF = "spark.lakegate.holdMs"
"""Session setting: minimum time for which others wait for a statement that has reserved the table."""
HOLD_MS = 30_000
HOLD_FOR_EXECUTIONS = 2
"""Others wait for this multiple of the last execution's time, if that is longer: the next execution may be slower."""
GROUP_CONF = "spark.lakegate.groupMax"
"""Session setting: number of statements that may share the table's next version. Default 1."""
T = TypeVar("T")
Meets = Callable[[frozenset[str]], bool | None]
"""Tests by paths whether rows of files have a key of a MERGE's source; None if the statement's maker does not know."""
HISTORY = ("operation", "operationParameters", "operationMetrics", "userMetadata")
"""Fields that a rebased commit takes over from the statement's own `commitInfo`."""
VECTORS = "delta.enableDeletionVectors"
ROW_IDS = "delta.enableRowTracking"


def unknown(paths: frozenset[str]) -> bool | None:
    """Returns None: nothing is known of any files."""
    return None


@dataclass(frozen=True, slots=True)
class Base:
    """A table as it was before a statement was executed."""

    table_id: str
    version: Version


@dataclass
class Run:
    """The execution of one statement, until it is committed."""

    shared: Shared
    dml: Dml
    token: str
    base: Base
    stamp: WriteToken | None = None
    number: str | None = None
    """Number of the token that the session's settings give each commit; an execution may remove it from them."""
    is_ahead: bool = False
    """It commits nothing, so that it takes no lock."""
    meets: Meets = unknown
    returned: Any = None
    info: Body | None = None
    waited_s: float = 0.0
    publish_s: float = 0.0
    held_s: float = 0.0
    rows_read: int = 0
    is_reserved: bool = False
    _executions_reserved: int = 0
    _execution_s: float = 0.0
    """Duration of the last execution."""
    _computed_on: Version | None = None
    """The snapshot of the last execution whose commit was kept."""
    _stock_id: str | None = None
    """Transaction id of that commit. Not every store recognizes its own write, so the commit may be in the log all the same."""
    in_doubt: Version | None = None
    """A commit of ours may have arrived at this version, or may still arrive: the log does not show one yet."""
    _left: list[Work] = field(default_factory=list)
    """Delta's work after its commits, to be done when nobody waits for the table any more."""
    _is_locked: bool = False
    _locked_at_s: float = 0.0
    _begun_at_s: float | None = None
    """When it began to read the other commits; shifted by the time that it waited."""
    _waiting: Waiting | None = None
    """The commit that it is waiting to make."""
    known: dict[Version, tuple[Action, ...]] = field(default_factory=dict)
    """Commits that were read."""
    _looked_at: int = 0
    """Number of commits at the last look."""
    _rows: TableRows | None = field(default=None)

    def __post_init__(self) -> None:
        self.jvm = self.dml.jvm
        self.gate = self.shared.gate
        self.line = self.shared.line(self.dml.table)
        self.log = self.jvm.delta_log(self.dml.table)

    def to_end(self, staged: Captured | None, since: Version | None = None) -> Result:
        """Executes the statement, or takes the staged one, and publishes it."""
        self._computed_on = None if staged is None else staged.version
        try:
            published = drive(publish(staged, since), self.answer)
        except Exception as error:
            if self.in_doubt is not None:
                facts = error.facts if isinstance(error, LakegateError) else {"reason": first_line(error)}
                raise CommitInDoubt(
                    "the answer to a commit was lost, and it could not be found out whether it was made",
                    advice="Look for it in the table's history before the statement is run again",
                    **{"table": self.dml.table, **facts, "version": self.in_doubt},
                ) from error
            if not isinstance(error, LakegateError) and not is_after_put(error):
                tell_of(error, self._winning_commit())
            raise
        finally:
            self._unlock()
            if self.is_reserved:
                with suppress(*CALL_ERRORS):  # the outcome of the statement is what matters
                    self.gate.unreserve(self.dml.table, self.token)
        return Result(
            version=published.version,
            is_superseded=published.is_superseded,
            level=published.level,
            attempts=published.executions,
            lost_puts=published.lost_puts,
            reasons=published.reasons,
            rows_read=self.rows_read + (0 if self._rows is None else self._rows.rows_read),
            waited_ms=int(self.waited_s * 1000),
            publish_ms=round(self.publish_s * 1000, 1),
            held_ms=round(self.held_s * 1000, 1),
            returned=self.returned,
            _info=_reader_of_info(self.dml, published.version, self.info),
        )

    def stamped(self, commit: Captured) -> Captured:
        """Adds the statement's token to a commit, and removes one that the session's settings have given it."""
        if self.stamp is None:
            return commit
        txn = Action("txn", {"appId": self.stamp.token_id, "version": self.stamp.number})
        others = (a for a in commit.actions if a.kind != "txn" or a.body["appId"] != self.stamp.token_id)
        info = {**commit.info, "userMetadata": self.stamp.user_metadata}
        return replace(commit, actions=(*others, txn), info=info)

    def require_files(self, commit: Captured) -> None:
        """Raises unless the files that a commit adds still exist: VACUUM may remove files that no commit refers to.

        This is checked for a staged commit, which may be made at any time later. A commit that lost and is rebased at once is
        not checked: its files are as old as the statement's duration, and stock Delta does not check them either.
        """
        taken = {action.body["path"]: vector_of(action.body) for action in commit.actions if action.kind == "remove"}
        brought = [a.body["path"] for a in commit.actions if a.kind in ("add", "cdc") and a.body["path"] not in taken]
        vectors = [
            vector
            for action in commit.actions
            if action.kind == "add" and (vector := action.body.get("deletionVector")) is not None
            # A vector that the file had before belongs to the table, and is no more at risk than its other files.
            if identity(vector) != taken.get(action.body["path"])
        ]
        named = [(vector["storageType"], where) for vector in vectors if (where := location(vector)) is not None]
        # Paths in the log are encoded; paths of vectors below the table are not.
        brought += [quote(where) for kind, where in named if kind == "u"]
        missing = self.jvm.missing(self.log.dataPath(), brought)
        absolute = [where for kind, where in named if kind == "p"]
        if missing is None:
            missing = next((at for at in absolute if self.jvm.read_bytes(self.jvm.absolute(at)) is None), None)
        if missing is not None:
            raise InvalidRequest(
                "a file that the statement had written is gone, as after VACUUM; nothing was committed",
                advice="Run the statement again; let VACUUM keep files for longer than statements take",
                table=self.dml.table,
                file=missing,
            )

    @cached_property
    def job(self) -> str | None:
        """The job under which it commits; None outside of jobs."""
        job: str | None = self.dml.session.conf.get(JOB_CONF, None)
        return job

    @cached_property
    def group_max(self) -> int:
        """The number of statements that may share a version."""
        return self.jvm.int_conf(GROUP_CONF, 1)

    @property
    def rows(self) -> TableRows:
        """Made at first use."""
        if self._rows is None:
            self._rows = TableRows(self.jvm, self.log, self.dml, self.shared.remembered)
        return self._rows

    def answer(self, effect: Effect[Any]) -> Any:
        """Answers an effect of the protocol, or of a rebase."""
        match effect:
            case Execute():
                self._warn_if_outrun()
                return self._execute()
            case Describe():
                return self._describe()
            case ReadChanges(after=after, waiting=waiting):
                return self._read_changes(after, waiting)
            case FindEntered(files=files):
                return self.rows.entered(files)
            case MeetKeys(came=came, lost_rows=gone):
                is_met = None if gone else self.meets(frozenset(change.path for change in came))
                return self.rows.meet_keys(came, gone) if is_met is None else is_met
            case FindMoved(lost_rows=gone, copies=copies):
                return self.rows.moved(gone, copies)
            case ReadVector(descriptor=descriptor):
                return self.rows.read_vector(descriptor)
            case WriteVectors(vectors=vectors):
                return self.rows.write_vectors(vectors)
            case ExecuteOn(files=files, version=version):
                self._warn_if_outrun()
                return self._execute_on(files, version)
            case Put(version=version, actions=actions, info=info):
                return self._put(version, actions, info)
            case Reserve():
                return self._reserve()
        raise AssertionError(f"not answered: {effect}")

    def _warn_if_outrun(self) -> None:
        """Logs that an execution with the table reserved was overtaken, for example by a writer without a gate."""
        self._executions_reserved += self.is_reserved
        if self._executions_reserved > 1:
            earlier = self._winning_commit()
            LOGGER.warning(
                "executing %s on %s again (attempt %d under the table's reservation): version %s (%s) was committed by a writer "
                "that ignores the reservation; retrying",
                self.dml.operation.value,
                self.dml.table,
                self._executions_reserved,
                "?" if earlier is None else earlier.version,
                "?" if earlier is None else earlier.operation,
            )

    def _execute(self) -> Captured | Committed:
        self._unlock()
        # The cached values depend on the table's columns as of the execution before.
        self.dml.forget()
        if self._rows is not None:
            self.rows_read, self._rows = self.rows_read + self._rows.rows_read, None
        self._set_number()
        # The stock commit would not carry the stamp, so it is staged.
        with self.jvm.holding(self.log), self._timed():
            ran = self.gate.run(
                self.dml.execute, token=self.token, is_staged=self.stamp is not None, table=self.dml.table
            )
        self.returned = ran.returned
        if isinstance(ran.commit, Committed):
            return ran.commit
        self._computed_on = ran.commit.version
        self._stock_id = ran.commit.info.get("txnId")
        return self.stamped(ran.commit)

    def _execute_on(self, files: Sequence[Body], version: Version) -> Captured | Committed:
        self._unlock()
        run_on = self.dml.execute_on
        assert run_on is not None, "a statement that cannot be executed elsewhere is not divisible"
        self.shared.sweep(self.dml.table, self.log.dataPath())
        self._set_number()

        def stage(path: str) -> Captured | Committed:
            with self._timed():
                return self.gate.run(lambda: run_on(path), token=self.token, is_staged=True).commit

        executed = shallow_clone.staged_on(self.jvm, self.log, self._defined_as_at(version), files, stage)
        return executed if isinstance(executed, Committed) else self.stamped(executed)

    def _defined_as_at(self, version: Version) -> Any:
        """Returns a snapshot with the table's definition at a version: the newest one, if the commits between are known."""
        newest = self.log.unsafeVolatileSnapshot()
        first, last = sorted((int(newest.version()), int(version)))
        between = [self.known.get(Version(number)) for number in range(first + 1, last + 1)]
        if all(each is not None and not any(a.kind in ("metaData", "protocol") for a in each) for each in between):
            return newest
        with self.jvm.active():
            return self.log.getSnapshotAt(version, self.jvm.none, self.jvm.none, False)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._execution_s = time.monotonic() - begun

    def _set_number(self) -> None:
        if self.number is not None:
            self.dml.session.conf.set(NUMBER_CONF, self.number)

    def _describe(self) -> Statement:
        snapshot = self.log.unsafeVolatileSnapshot()
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        if (unserved := sorted(features & UNSERVED_FEATURES)) and not self._is_stock_there():
            earlier = self._winning_commit()
            raise UnsupportedTable(
                f"{'the commit was captured' if earlier is None else 'another commit came first'}, and a feature of this table "
                "does not allow a rebase onto concurrent commits; nothing was written",
                advice="Run the statement again, or alone, or use a table without the feature",
                table=self.dml.table,
                feature=", ".join(unserved),
                **_facts(earlier),
            )
        properties = json.loads(snapshot.metadata().json())["metaData"].get("configuration") or {}
        statement = classify(
            self.dml.facts(has_vectors=properties.get(VECTORS) == "true", has_row_ids=properties.get(ROW_IDS) == "true")
        )
        # Values that the rebase and the commit need are computed now, while nobody waits.
        _ = self.job, self.group_max, self.jvm.hadoop_conf
        match statement.reads:
            case Reads.KEYS:
                _ = self.rows, self.dml.described_keys
            case Reads.ROWS:
                _ = self.rows, self.dml.described_condition
        return statement

    def _read_changes(self, after: Version, waiting: Waiting | None) -> Changes | Joined | InDoubt:
        self._begun_at_s = self._begun_at_s or time.monotonic()
        self._waiting = waiting
        if waiting is None:
            # Repeated after a lost commit: no other statement of this driver may be first again. Or in a turn, where none is.
            self._lock()
            return changes(after, list(self.commits(after).values()))
        if self.group_max <= 1 or self.is_reserved or waiting.lost.info.get("userMetadata") is not None:
            return changes(after, list(self.commits(after).values()))
        entry = Entry(self, waiting)
        self.line.enter(entry)
        try:
            self._lock()
            if entry.reply is None:
                lead(self.line.first(entry, self.group_max))
        finally:
            self.line.leave(entry)
        if isinstance(entry.reply, BaseException):
            raise entry.reply
        if entry.reply is not None:
            self._unlock()
            return entry.reply
        return changes(after, list(self.commits(after).values()))

    def commits(self, after: Version) -> dict[Version, tuple[Action, ...]]:
        """Returns the commits after a version, up to the head; reads only commits that are not known yet."""
        last = after
        while last + 1 in self.known:
            last = Version(last + 1)
        try:
            texts = self.jvm.texts_after(self.log, last)
        except CALL_ERRORS as error:
            raise Unavailable(
                "the table's log could not be read; nothing is known to be written",
                table=self.dml.table,
                reason=first_line(error),
            ) from error
        if texts == {} and last >= 0:
            raise self._is_recreated()  # the log has fewer versions: our commit would follow a gap
        if texts is not None:
            texts.pop(last, None)
        first = last + 1
        if texts is None or list(texts) != list(range(first, first + len(texts))):
            raise LogGone(
                "the log was cleaned up beyond the version that the statement was computed on; nothing was written",
                table=self.dml.table,
                version=first,
                **_facts(first_of({Version(number): parse(text) for number, text in list((texts or {}).items())[-1:]})),
            )
        new = {Version(number): parse(text) for number, text in texts.items()}
        refuse_catalog(self.dml.table, (a.body for each in new.values() for a in each if a.kind == "protocol"))
        self.known |= new
        if self.in_doubt in self.known:
            self.in_doubt = None
        return {version: self.known[version] for version in sorted(self.known) if version > after}

    def _is_stock_there(self) -> bool:
        if self._computed_on is None or self._stock_id is None:
            return False
        commits = self.commits(self._computed_on)
        return self._stock_id in changes(self._computed_on, list(commits.values())).transaction_ids

    def _winning_commit(self) -> WinningCommit | None:
        """Returns the winning commit, as far as the log shows it: for the error when something else has failed."""
        if self._computed_on is None:
            return None
        with suppress(LakegateError, *CALL_ERRORS):
            self.commits(self._computed_on)
        return first_of({version: actions for version, actions in self.known.items() if version > self._computed_on})

    def _maker(self) -> WinningCommit | None:
        """Returns the commit that created the current table."""
        text = self.jvm.read_text(self.log, self.jvm.path(self.log.logPath(), f"{0:020d}.json"))
        return None if text is None else winning_commit_of(commit_info(text), 0)

    def _is_recreated(self) -> InvalidRequest:
        return InvalidRequest(
            "the table was dropped, or created again, while the statement ran; nothing was written",
            advice="Run the statement again",
            table=self.dml.table,
            **_facts(self._maker()),
        )

    def _put(self, version: Version, actions: Sequence[Action], info: Body) -> PutReply:
        self.info = info
        self._lock(self._waiting)
        try:
            # Commits that were made while it waited have been read.
            tried = exact.Tried("stale", "") if version in self.known else self.commit(version, actions, info)
        finally:
            self._unlock()
        if tried.reply == "unknown":
            self.in_doubt = version
        return PutReply(tried.reply == "done", tried.transaction_id)

    def commit(self, version: Version, actions: Sequence[Action], info: Body) -> exact.Tried:
        """Commits actions at a version; "stale" without an attempt if the table has a later version."""
        said = {name: info[name] for name in HISTORY if info.get(name) is not None}
        committer = exact.Committer(self.token, json.dumps(said), self.job)
        try:
            while True:
                tried = exact.commit(
                    self.shared.jvm,
                    self.log,
                    version,
                    actions,
                    table_id=self.base.table_id,
                    tags=info.get("tags"),
                    is_blind=bool(info.get("isBlindAppend")),
                    later=self._left.append,
                    committer=committer,
                )
                if isinstance(tried, exact.Tried):
                    return tried
                if not self._is_the_same(tried) or tried.version < version - 1:
                    raise self._is_recreated()
                if tried.version != version - 1:
                    return exact.Tried("stale", "")
        except JVM_ERRORS as error:
            raise Unavailable(
                "the commit could not be made; nothing was written", table=self.dml.table, reason=first_line(error)
            ) from error

    def _is_the_same(self, found: exact.NotNext) -> bool:
        """Returns True if the statement was executed on this table, even if its definition and id are new, as after REPLACE."""
        now = Base(found.table_id, found.version)
        if now.table_id != self.base.table_id:
            try:
                with self.shared.jvm.active():
                    before = self.log.getSnapshotAt(self.base.version, self.jvm.none, self.jvm.none, False)
            except JVM_ERRORS:
                return False  # another log, which does not have this version
            if str(before.metadata().id()) != self.base.table_id:
                return False
            self.base = now
        return True

    def _reserve(self) -> None:
        self._unlock()
        begun = time.monotonic()
        self.is_reserved = True  # set first, so that an interrupt during the wait also ends the reservation
        hold_ms = max(self.jvm.int_conf(HOLD_CONF, HOLD_MS), int(HOLD_FOR_EXECUTIONS * self._execution_s * 1000))
        while not self.gate.reserve(self.dml.table, self.token, hold_ms, self.job):
            time.sleep(RESERVE_POLL_S)
        self.waited_s += time.monotonic() - begun

    def _lock(self, waiting: Waiting | None = None) -> None:
        # The holder of a reservation needs no lock; the holder of the lock may be waiting at the gate for the reservation's end.
        if not self._is_locked and not self.is_reserved and not self.is_ahead:
            begun = time.monotonic()
            while not self.line.lock.acquire(timeout=-1 if waiting is None else LOOK_S):
                assert waiting is not None, "without a timeout it is acquired"
                self._look_ahead(waiting)
            self._is_locked = True
            self._locked_at_s = time.monotonic()
            waited_s = self._locked_at_s - begun
            self.waited_s += waited_s
            if self._begun_at_s is not None:
                self._begun_at_s += waited_s

    def _look_ahead(self, waiting: Waiting) -> None:
        """Answers the rebase's effects for new commits while another statement commits: the answers are cached.

        An effect that cannot be answered now is yielded again after the lock is taken.
        """
        try:
            commits = self.commits(waiting.lost.version)
            if len(commits) == self._looked_at:
                return
            self._looked_at = len(commits)
            protocol = rebase(waiting.statement, waiting.lost, changes(waiting.lost.version, list(commits.values())))
            effect = protocol.send(None)
            while isinstance(effect, FindEntered | MeetKeys | ReadVector):
                effect = protocol.send(self.answer(effect))
        except (StopIteration, LakegateError, *CALL_ERRORS):
            return

    def _unlock(self) -> None:
        # Repeated until this thread does not hold it: an interrupt may have come between acquiring the lock and recording it.
        with suppress(RuntimeError):
            while True:
                self.line.lock.release()
        if self._is_locked:
            self._is_locked = False
            self.held_s += time.monotonic() - self._locked_at_s
        if self._begun_at_s is not None:
            self.publish_s += time.monotonic() - self._begun_at_s
            self._begun_at_s = None
        while self._left:
            self.shared.afterwards(self._left.pop(0))


def _facts(earlier: WinningCommit | None) -> dict[str, Any]:
    return {} if earlier is None else earlier.facts()


def _reader_of_info(dml: Dml, version: Version | None, info: Body | None) -> Callable[[], Body]:
    """Returns a function that reads a commit's `commitInfo` from the log, unless it is known."""

    def read() -> Body:
        if version is None or info is not None:
            return info or {}
        log = dml.jvm.delta_log(dml.table)
        return commit_info(dml.jvm.read_text(log, dml.jvm.path(log.logPath(), f"{version:020d}.json")) or "")

    return read
