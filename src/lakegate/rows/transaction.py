"""One statement on its way into a table: answers what `core/rows` asks."""

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
from lakegate.rows.conflict.commit_protocol import Published, publish
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
from lakegate.rows.conflict_details import Winner, first_of, tell_of, winner_of
from lakegate.rows.driver_state import Shared
from lakegate.rows.group_commit import lead
from lakegate.rows.row_reader import TableRows
from lakegate.rows.statement import Dml

UNSERVED_FEATURES = CATALOG_FEATURES | {
    "adaptiveMetadata-preview",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
}
"""A commit of a table with these is more than its actions in the log: as that of a manifest of all its files."""
RESERVE_POLL_S = 0.01
LOOK_S = 0.05
"""So often who waits for the line looks at what others have committed meanwhile."""
LOGGER = logging.getLogger("lakegate")
HOLD_CONF = "spark.lakegate.holdMs"
"""Of the session: so long, at least, others wait for a statement that has reserved the table."""
HOLD_MS = 30_000
HOLD_FOR_EXECUTIONS = 2
"""Others wait for so many times what the last execution took, if that is longer: the next one may be slower."""
GROUP_CONF = "spark.lakegate.groupMax"
"""Of the session: so many statements that wait for a table's next version may share it. 1, unless it is set."""
T = TypeVar("T")
Meets = Callable[[frozenset[str]], bool | None]
"""Whether rows of files have a key of a MERGE's source, by the files' paths; None where who made the statement does not know."""
HISTORY = ("operation", "operationParameters", "operationMetrics", "userMetadata")
"""What a commit that follows winners takes over from the statement's own `commitInfo`."""
VECTORS = "delta.enableDeletionVectors"
ROW_IDS = "delta.enableRowTracking"


def unknown(paths: frozenset[str]) -> bool | None:
    """Nothing is known of any files."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a statement got into the table, and what it did there."""

    published: Published
    returned: Any
    """What stock Delta returned, if its own commit was put."""
    info: Body | None
    """`commitInfo` of the commit that was published in its place."""
    rows_read: int
    """Rows that were read again to see whether they concern it."""
    waited_ms: int
    """For others of this driver that published to the table, or anybody who had reserved it."""
    publish_ms: float
    """From reading what others committed to the end of the put, without `waited_ms`."""
    held_ms: float
    """So long of it others of this driver waited for the statement."""


@dataclass(frozen=True, slots=True)
class Base:
    """A table as it was before a statement was executed."""

    table_id: str
    version: Version


@dataclass
class Run:
    """One statement."""

    shared: Shared
    dml: Dml
    token: str
    base: Base
    stamp: WriteToken | None = None
    number: str | None = None
    """Of the token that the session's settings give each commit; an execution may take it out of them."""
    is_ahead: bool = False
    """Nothing is put, so that nobody has to wait."""
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
    """So long the last one took."""
    _computed_on: Version | None = None
    """The snapshot of the last execution whose commit was kept."""
    _stock_id: str | None = None
    """Of that commit: not every store knows its own put when it meets it, and the commit may be in the log all the same."""
    in_doubt: Version | None = None
    """A put of it may have arrived at this version, or arrive yet: no commit is known to be there."""
    _left: list[Work] = field(default_factory=list)
    """What Delta does after its commits: when nobody waits for the table any more."""
    _is_locked: bool = False
    _locked_at_s: float = 0.0
    _begun_at_s: float | None = None
    """When it began to read what others committed; later by what it has waited."""
    _waiting: Waiting | None = None
    """What it has got to put."""
    known: dict[Version, tuple[Action, ...]] = field(default_factory=dict)
    """Commits that were read."""
    _looked_at: int = 0
    """Commits that were there at the last look."""
    _rows: TableRows | None = field(default=None)

    def __post_init__(self) -> None:
        self.jvm = self.dml.jvm
        self.gate = self.shared.gate
        self.line = self.shared.line(self.dml.table)
        self.log = self.jvm.delta_log(self.dml.table)

    def to_end(self, staged: Captured | None, since: Version | None = None) -> Outcome:
        """Drive the protocol."""
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
                tell_of(error, self._winner())
            raise
        finally:
            self._unlock()
            if self.is_reserved:
                with suppress(*CALL_ERRORS):  # how the statement ended is what matters
                    self.gate.unreserve(self.dml.table, self.token)
        return Outcome(
            published=published,
            returned=self.returned,
            info=self.info,
            rows_read=self.rows_read + (0 if self._rows is None else self._rows.rows_read),
            waited_ms=int(self.waited_s * 1000),
            publish_ms=round(self.publish_s * 1000, 1),
            held_ms=round(self.held_s * 1000, 1),
        )

    def stamped(self, commit: Captured) -> Captured:
        """A commit with the statement's token, and none that the session's settings have given it."""
        if self.stamp is None:
            return commit
        txn = Action("txn", {"appId": self.stamp.token_id, "version": self.stamp.number})
        others = (a for a in commit.actions if a.kind != "txn" or a.body["appId"] != self.stamp.token_id)
        info = {**commit.info, "userMetadata": self.stamp.user_metadata}
        return replace(commit, actions=(*others, txn), info=info)

    def require_files(self, commit: Captured) -> None:
        """Raise unless the files that a commit brings are still there: VACUUM may take what no commit names.

        Asked of what was staged, which may be put at any time later. What lost its race and follows at once is put without:
        its files are as old as the statement is long, which stock Delta does not ask of them either.
        """
        taken = {action.body["path"]: vector_of(action.body) for action in commit.actions if action.kind == "remove"}
        brought = [a.body["path"] for a in commit.actions if a.kind in ("add", "cdc") and a.body["path"] not in taken]
        vectors = [
            vector
            for action in commit.actions
            if action.kind == "add" and (vector := action.body.get("deletionVector")) is not None
            # One that the file had before is the table's, and no more at risk than its other files.
            if identity(vector) != taken.get(action.body["path"])
        ]
        named = [(vector["storageType"], where) for vector in vectors if (where := location(vector)) is not None]
        # Paths in the log are encoded, those of vectors below the table are not.
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
        """As which it commits."""
        job: str | None = self.dml.session.conf.get(JOB_CONF, None)
        return job

    @cached_property
    def group_max(self) -> int:
        """So many may share a version with it."""
        return self.jvm.int_conf(GROUP_CONF, 1)

    @property
    def rows(self) -> TableRows:
        """Made when it is asked for."""
        if self._rows is None:
            self._rows = TableRows(self.jvm, self.log, self.dml, self.shared.remembered)
        return self._rows

    def answer(self, effect: Effect[Any]) -> Any:
        """What the protocol, or a rebase, asks."""
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
        """Says that an execution with the table reserved was overtaken: as by a writer that does not pass a gate."""
        self._executions_reserved += self.is_reserved
        if self._executions_reserved > 1:
            winner = self._winner()
            LOGGER.warning(
                "executing %s on %s again (attempt %d under the table's reservation): version %s (%s) was committed by a writer "
                "that ignores the reservation; retrying",
                self.dml.operation.value,
                self.dml.table,
                self._executions_reserved,
                "?" if winner is None else winner.version,
                "?" if winner is None else winner.operation,
            )

    def _execute(self) -> Captured | Committed:
        self._unlock()
        # What was found out of the table's columns belongs to the execution before.
        self.dml.forget()
        if self._rows is not None:
            self.rows_read, self._rows = self.rows_read + self._rows.rows_read, None
        self._set_number()
        # The stock commit would not carry the stamp.
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
        """A snapshot with the definition that the table has at a version: the newest one, where the commits between are known."""
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
            winner = self._winner()
            raise UnsupportedTable(
                f"{'the commit was captured' if winner is None else 'another commit came first'}, and a feature of this table "
                "does not allow a rebase onto concurrent commits; nothing was written",
                advice="Run the statement again, or alone, or use a table without the feature",
                table=self.dml.table,
                feature=", ".join(unserved),
                **_facts(winner),
            )
        properties = json.loads(snapshot.metadata().json())["metaData"].get("configuration") or {}
        statement = classify(
            self.dml.facts(has_vectors=properties.get(VECTORS) == "true", has_row_ids=properties.get(ROW_IDS) == "true")
        )
        # What will be asked of others' commits, and for the put, is found out now, while nobody waits.
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
            # Asked anew, after a put that lost: no other one of this driver shall come first again. Or in a turn, where none does.
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
        """Those after a version, up to the head; what was read before is not read again."""
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
            raise self._made_anew()  # with fewer versions: ours would stand behind a gap
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

    def _winner(self) -> Winner | None:
        """Who came first, as far as the log tells: it is asked where something else has failed."""
        if self._computed_on is None:
            return None
        with suppress(LakegateError, *CALL_ERRORS):
            self.commits(self._computed_on)
        return first_of({version: actions for version, actions in self.known.items() if version > self._computed_on})

    def _maker(self) -> Winner | None:
        """Who made the table that is there now."""
        text = self.jvm.read_text(self.log, self.jvm.path(self.log.logPath(), f"{0:020d}.json"))
        return None if text is None else winner_of(commit_info(text), 0)

    def _made_anew(self) -> InvalidRequest:
        return InvalidRequest(
            "the table was dropped, or made anew, while the statement ran; nothing was written",
            advice="Run the statement again",
            table=self.dml.table,
            **_facts(self._maker()),
        )

    def _put(self, version: Version, actions: Sequence[Action], info: Body) -> PutReply:
        self.info = info
        self._lock(self._waiting)
        try:
            # What came while it waited was looked at.
            tried = exact.Tried("stale", "") if version in self.known else self.commit(version, actions, info)
        finally:
            self._unlock()
        if tried.reply == "unknown":
            self.in_doubt = version
        return PutReply(tried.reply == "done", tried.transaction_id)

    def commit(self, version: Version, actions: Sequence[Action], info: Body) -> exact.Tried:
        """The put of actions at a version; "stale" without a try if the table has gone on."""
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
                    raise self._made_anew()
                if tried.version != version - 1:
                    return exact.Tried("stale", "")
        except JVM_ERRORS as error:
            raise Unavailable(
                "the commit could not be made; nothing was written", table=self.dml.table, reason=first_line(error)
            ) from error

    def _is_the_same(self, found: exact.NotNext) -> bool:
        """Whether it is the table that the statement was executed on, be it with another definition and id, as after REPLACE."""
        now = Base(found.table_id, found.version)
        if now.table_id != self.base.table_id:
            try:
                with self.shared.jvm.active():
                    before = self.log.getSnapshotAt(self.base.version, self.jvm.none, self.jvm.none, False)
            except JVM_ERRORS:
                return False  # another log, that has no such version
            if str(before.metadata().id()) != self.base.table_id:
                return False
            self.base = now
        return True

    def _reserve(self) -> None:
        self._unlock()
        begun = time.monotonic()
        self.is_reserved = True  # to be ended also by who is interrupted while it waits
        hold_ms = max(self.jvm.int_conf(HOLD_CONF, HOLD_MS), int(HOLD_FOR_EXECUTIONS * self._execution_s * 1000))
        while not self.gate.reserve(self.dml.table, self.token, hold_ms, self.job):
            time.sleep(RESERVE_POLL_S)
        self.waited_s += time.monotonic() - begun

    def _lock(self, waiting: Waiting | None = None) -> None:
        # Who has reserved the table needs no lock, and one who has it may be waiting at the gate for the reservation's end.
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
        """Has answered, while another puts, what will be asked of those that have committed: answers are remembered.

        What cannot be answered now is asked again in the line.
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
        # Until this thread has it no more: an interrupt may have come before it was noted that it has.
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


def _facts(winner: Winner | None) -> dict[str, Any]:
    return {} if winner is None else winner.facts()
