"""A table's log: reads tokens fresh, raises them by compare-and-set, parses commits, reads data at a version.

Rules for editors:
- Tokens come from a state in memory. It is brought up to date by reading the commits after it, in milliseconds. Delta's own
  `snapshot.transactions` runs a Spark job over the table's whole state for every new version, half a second and more. We
  use it once per table, and again when the state in memory no longer connects to the log. Stock writes use it, too:
  `prepare_write` gives Delta's snapshot the answer beforehand.
- The state connects as long as its last commit file exists with the same modification time. Otherwise the log was cleaned
  up, or the table was dropped and created again.
- Files are listed and read only through Delta's own log store: some stores finish a commit while listing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action, Body
from lakegate.delta.commit_file import (
    Commit,
    actions,
    commit_info,
    commit_tokens,
    commit_transactions,
    lakegate_metadata,
    parse_commit,
    tokens_among,
)
from lakegate.delta.jvm import JVM_ERRORS, USER_METADATA_CONF, Jvm, Listed, first_line
from lakegate.delta.post_commit import Afterwards
from lakegate.errors import InvalidRequest, LakegateError, Unavailable, UnsupportedTable
from lakegate.ids import TableLocation, TokenId, Version
from lakegate.turns.protocol.effects import CasReply, StepMark, TableTokens
from lakegate.turns.protocol.fencing import Token, unpack

CATALOG_FEATURES = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})
"""With one of these, a catalog decides which commits count, and the log's folder may lack them."""
READ_ATTEMPTS_MAX = 10
"""How often a read starts over because the log was cleaned up, or the table replaced, during the read."""
WHOLE_LOG_MAX = 20
"""Up to this version a log is read from its first commit on, if it is still complete."""
RECENT_MAX = 100
"""At most this many commits are read to find files by path; beyond that, the table's whole state."""
NOTHING_COMES: Mapping[str, Body] = {}
KEPT_MAX = 50
"""This many of the newest commits are cached, unless they are long: a turn reads the same commits several times."""


class LogGone(LakegateError):
    """the table's log no longer reaches back that far; nothing was read"""

    exit_code = 6
    default_advice = "Keep the log for longer (delta.logRetentionDuration), or run the jobs of this table more often"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata:
    """A table's definition at its head."""

    version: Version
    id: str
    schema: StructType
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    features: frozenset[str]
    """Table features of its protocol; empty for a table with an older, numbered protocol."""


@dataclass(frozen=True, slots=True)
class _State:
    """The transaction ids as of one commit file, including those of other applications."""

    version: Version
    modified_at_ms: int
    transactions: Mapping[str, int]
    texts: Mapping[Version, str] = field(default_factory=dict)
    """Texts of the newest commits. A commit never changes: the texts are valid as long as the state connects."""

    def then(self, version: Version, listed: Listed) -> _State:
        """Returns the state after the next commit."""
        texts = {**self.texts, version: listed.text} if listed.is_whole else dict(self.texts)
        texts.pop(Version(version - KEPT_MAX), None)
        return _State(version, listed.modified_at_ms, {**self.transactions, **commit_transactions(listed.text)}, texts)


class DeltaTableLog:
    """Port `TableLog` for Delta tables, and further information from their logs. Safe to use from several threads.

    It has sessions of its own; the settings of those for commits make a commit a compare-and-set. The caller's session, and
    the active session of the caller's thread, stay unchanged.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = Jvm(spark.newSession())
        # For the entry commits of each table: a commit's user metadata is a setting of its session.
        self._writers: dict[TableLocation, tuple[Jvm, threading.Lock]] = {}
        self._states: dict[TableLocation, _State] = {}
        # The log store of each table that was read, and the path of its log.
        self._places: dict[TableLocation, tuple[Any, Any]] = {}
        self._guard = threading.Lock()
        self._afterwards = Afterwards()

    # ------------------------------------------------------------------------------------------------------- tokens

    def read_tokens(self, table: TableLocation) -> TableTokens:
        """Reads the `lakegate/` ids at the table's head; version -1 and no ids if there is no table.

        Raises:
            Unavailable: The log could not be read.
            UnsupportedTable: A catalog makes the table's commits.
        """
        try:
            state = self._read_on(table)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        return (
            TableTokens(Version(-1), {})
            if state is None
            else TableTokens(state.version, tokens_among(state.transactions))
        )

    def number_of(self, table: TableLocation, app_id: str) -> tuple[Version, int | None]:
        """Returns the newest version, and the last number of a transaction id in the table. Raises: as `read_tokens`."""
        try:
            state = self._read_on(table)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        return (Version(-1), None) if state is None else (state.version, state.transactions.get(app_id))

    def text(self, table: TableLocation, version: Version) -> str | None:
        """Returns the text of a commit; None if the log no longer has it."""
        try:
            return self._read(self._jvm.delta_log(table), version)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error

    def prepare_write(self, table: TableLocation) -> None:
        """Saves Delta the Spark job that looks up the token of the next write.

        Passes the last ids read to Delta's current snapshot of the table, if both are of the same commit. If another writer
        commits in between, Delta takes a new snapshot and looks the token up itself.

        Raises:
            Unavailable: The log could not be read.
        """
        state = self._states.get(table)
        if state is None:
            return
        try:
            log = self._jvm.delta_log(table)
            snapshot = log.unsafeVolatileSnapshot()
            if snapshot.version() != state.version:
                snapshot = self._jvm.snapshot(log)
            modified_at_ms = snapshot.logSegment().lastCommitFileModificationTimestamp()
            if (snapshot.version(), modified_at_ms) == (state.version, state.modified_at_ms):
                self._jvm.give_transactions(log, snapshot, state.transactions)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error

    def known(self, table: TableLocation) -> Version:
        """Returns the newest version of a table that this JVM knows; no request to storage."""
        return Version(self._jvm.delta_log(table).unsafeVolatileSnapshot().version())

    def head(self, table: TableLocation) -> Version:
        """Returns the table's newest version, as fresh as `read_tokens`; -1 if there is no table."""
        return self.read_tokens(table).version

    def seen(self, table: TableLocation) -> Version:
        """Returns the newest version that this object has read; -1 if none. No request to storage.

        This is enough in a turn that has entered the table, for data that only turns change.
        """
        state = self._states.get(table)
        return Version(-1) if state is None else state.version

    def commit_entry(
        self, table: TableLocation, after: Version, raised: tuple[tuple[TokenId, int], ...], user_metadata: str
    ) -> CasReply:
        """Commits these numbers and nothing else, at exactly version `after` + 1.

        Raises:
            Unavailable: The commit failed and that version does not exist; or the table could not be read beforehand.
        """
        try:
            log = self._jvm.delta_log(table)
            snapshot = self._jvm.snapshot(log)
            if snapshot.version() != after:
                return "stale"
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        txns = [Action("txn", {"appId": token_id, "version": number}) for token_id, number in raised]
        with self._guard:
            if table not in self._writers:
                self._writers[table] = exact.private(self._jvm.spark), threading.Lock()
            jvm, lock = self._writers[table]
        with lock:
            jvm.spark.conf.set(USER_METADATA_CONF, user_metadata)
            return self._commit(jvm, table, log, Version(after + 1), txns)

    def _commit(self, jvm: Jvm, table: TableLocation, log: Any, version: Version, txns: Sequence[Action]) -> CasReply:
        try:
            # A checkpoint takes seconds, and no turn needs it.
            tried = exact.commit(jvm, log, version, txns, later=self._afterwards)
            return "stale" if isinstance(tried, exact.NotNext) else tried.reply
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        except Unavailable as error:
            raise Unavailable(
                "an entry commit failed; the batch was not begun",
                table=table,
                version=version,
                reason=error.facts.get("reason"),
            ) from error

    def checkpoint(self, table: TableLocation) -> None:
        """Writes a checkpoint of the newest version.

        Raises:
            Unavailable: It could not be written.
        """
        try:
            log = self._jvm.delta_log(table)
            snapshot = self._jvm.snapshot(log)
            with self._jvm.active():
                log.checkpoint(snapshot, self._jvm.none)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error

    def find_mark(self, table: TableLocation, token_id: TokenId, token: Token) -> StepMark | None:
        """Finds the step mark of the commit with this id, batch and step, at any epoch, backwards from the head.

        An entry commit keeps batch and step when it raises an epoch, but names no batch in `userMetadata`: it is skipped.
        Returns None if the log no longer reaches back to the step, or if its `userMetadata` is not Lakegate's.

        Raises:
            Unavailable: The log could not be read.
        """
        version, wanted = self.head(table), (token.batch, token.step)
        try:
            log = self._jvm.delta_log(table)
            while version >= 0 and (text := self._read(log, version)) is not None:
                number = commit_tokens(text).get(token_id)
                stored = (-1, 0) if number is None else (unpack(number).batch, unpack(number).step)
                if number is not None and stored < wanted:
                    return None
                said = lakegate_metadata(commit_info(text)) if stored == wanted else None
                if said is not None and said.get("batch") == token.batch:
                    return StepMark(name=str(said.get("step")), offsets_sha256=said.get("offsets"))
                version = Version(version - 1)
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        return None

    def _read_on(self, table: TableLocation) -> _State | None:
        """Returns the tokens at the head: the state in memory, brought up to date. None if there is no table."""
        for _ in range(READ_ATTEMPTS_MAX):
            state = self._states.get(table) or self._load(table)
            if state is None:
                return None
            tail = self._jvm.commits_from(*self._places[table], state.version, state.version, state.modified_at_ms)
            if tail is None:
                continue
            before = tail.pop(state.version, None)
            if before is None or before.modified_at_ms != state.modified_at_ms:
                self._states.pop(table, None)
                continue
            while (following := Version(state.version + 1)) in tail:
                listed = tail[following]
                refuse_catalog(table, actions(listed.text, "protocol"))
                state = state.then(following, listed)
            self._states[table] = state
            return state
        raise Unavailable("the table's log changes faster than it can be read; nothing was written", table=table)

    def _load(self, table: TableLocation) -> _State | None:
        """Reads the tokens of a short log from all its commits, else from Delta's reconstruction, which runs a Spark job."""
        log = self._jvm.delta_log(table)
        self._places[table] = (log.store(), log.logPath())
        snapshot = self._jvm.snapshot(log)
        if snapshot.version() < 0:
            return None
        refuse_catalog(table, actions(snapshot.protocol().json(), "protocol"))
        version = Version(snapshot.version())
        modified_at_ms = snapshot.logSegment().lastCommitFileModificationTimestamp()
        transactions: dict[str, int] | None = None
        texts: dict[Version, str] = {}
        if version <= WHOLE_LOG_MAX:
            commits = self._jvm.commits_from(*self._places[table], 0, -1, -1) or {}
            last = commits.get(version)
            if last is not None and last.modified_at_ms == modified_at_ms and set(range(version)) <= commits.keys():
                whole_log = (commits[number] for number in range(version + 1))
                transactions = {app_id: n for one in whole_log for app_id, n in commit_transactions(one.text).items()}
                texts = {Version(number): one.text for number, one in commits.items() if one.is_whole}
        if transactions is None:
            transactions = self._jvm.transactions(snapshot)
        return _State(version, modified_at_ms, transactions, texts)

    # ------------------------------------------------------------------------------------------------ commits and data

    def commits(self, table: TableLocation, after: Version, upto: Version) -> list[Commit]:
        """Returns the parsed commits `after` + 1 … `upto`, in order; no Spark job.

        Raises:
            LogGone: The log was cleaned up beyond `after` + 1.
            Unavailable: The log could not be read.
        """
        return [parse_commit(version, text) for version, text in self.texts(table, after, upto)]

    def texts(self, table: TableLocation, after: Version, upto: Version) -> list[tuple[Version, str]]:
        """Returns the texts of the commits `after` + 1 … `upto`, in order; no Spark job.

        Raises:
            LogGone, Unavailable: See `commits`.
        """
        found = []
        try:
            log = self._jvm.delta_log(table)
            for number in range(after + 1, upto + 1):
                text = self._text(table, log, Version(number))
                if text is None:
                    raise LogGone(table=table, version=number)
                found.append((Version(number), text))
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        return found

    def is_unchanged(self, table: TableLocation, since: Version, until: Version | None = None) -> bool:
        """Returns True if no rows and no definition of a table have changed between a version and another one (default: the
        newest); entries of turns do not count."""
        try:
            commits = self.commits(table, since, self.head(table) if until is None else until)
        except LogGone:
            return False
        return not any(commit.added or commit.removed or commit.is_metadata_change for commit in commits)

    def read_at(
        self,
        session: SparkSession,
        table: TableLocation,
        version: Version,
        paths: Collection[str] | None = None,
        coming: Mapping[str, Body] = NOTHING_COMES,
    ) -> DataFrame:
        """Returns the table's rows at `version`, in `session`; with `paths`, only the rows in these files.

        Args:
            session: The session in which the rows are used.
            table: The table.
            version: The frame stays pinned to this version, whatever is committed later.
            paths: As in `AddedFile.path`; each must be live at `version`. Deletion vectors are applied.
            coming: Path → `add` of further files to read that are not committed yet.

        Raises:
            InvalidRequest: A path is not live at this version.
            Unavailable: The log could not be read.
        """
        jvm = Jvm(session)
        try:
            log = jvm.delta_log(table)
            with jvm.active():
                snapshot = log.getSnapshotAt(version, jvm.none, jvm.none, False)
                if paths is None:
                    # Not with `versionAsOf`: Delta refuses versions older than the retention of files, even if they exist.
                    known = jvm.root.scala.Option.apply(snapshot)
                    relation = log.createRelation(jvm.to_seq(()), known, jvm.none, True)
                    return jvm.frame(jvm.jsession.baseRelationToDataFrame(relation))
            recent = self._recently_added(table, log, version, paths)
            adds = self._live(snapshot, paths) if recent is None else recent
            absent = sorted(set(paths) - {add["path"] for add in adds})
            if absent:
                raise InvalidRequest(
                    "files were asked for that the table does not have; nothing was read",
                    table=table,
                    version=version,
                    path=absent[0],
                )
            with jvm.active():
                files = jvm.to_seq(jvm.action({"add": add}) for add in (*adds, *coming.values()))
                return jvm.frame(log.createDataFrame(snapshot, files, False, jvm.none))
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error

    def metadata(self, table: TableLocation, since: Version | None = None) -> TableMetadata:
        """Returns the table's definition at its head; with `since`, at any version from `since` on, without a request if known.

        Raises:
            InvalidRequest: There is no table.
            Unavailable: The log could not be read.
        """
        try:
            log = self._jvm.delta_log(table)
            snapshot = log.unsafeVolatileSnapshot()
            if since is None or snapshot.version() < since:
                snapshot = self._jvm.snapshot(log)
            version = Version(snapshot.version())
            if version < 0:
                raise InvalidRequest("there is no Delta table here; nothing was read", table=table)
            with self._jvm.active():
                definition = json.loads(snapshot.metadata().json())["metaData"]
                protocol = json.loads(snapshot.protocol().json())["protocol"]
        except JVM_ERRORS as error:
            raise _unreadable(table, error) from error
        return TableMetadata(
            version=version,
            id=definition["id"],
            schema=StructType.fromJson(json.loads(definition["schemaString"])),
            partition_columns=tuple(definition.get("partitionColumns", ())),
            properties=definition.get("configuration", {}),
            features=_features(protocol),
        )

    def _recently_added(
        self, table: TableLocation, log: Any, version: Version, paths: Collection[str]
    ) -> list[Body] | None:
        """The newest `add` action of each path from the commits up to `version`; None if one is not among the last."""
        wanted: set[str] = set(paths)
        found: list[Body] = []
        for number in range(version, max(-1, version - RECENT_MAX), -1):
            if not wanted:
                break
            text = self._text(table, log, Version(number))
            if text is None:
                return None
            removed = {remove["path"] for remove in actions(text, "remove")}
            for add in actions(text, "add"):
                if add["path"] in wanted:
                    wanted.discard(add["path"])
                    found.append(add)
            if wanted & removed:
                return None
        return None if wanted else found

    def _live(self, snapshot: Any, paths: Collection[str]) -> list[Body]:
        """The `add` actions of those paths that are live in the snapshot; a Spark job over the table's state."""
        with self._jvm.active():
            files = self._jvm.frame(snapshot.allFiles().toDF())
            wanted = self._jvm.spark.createDataFrame([(path,) for path in paths], "path string")
            rows = files.join(wanted, "path", "leftsemi").toJSON().collect()
        return [json.loads(row) for row in rows]

    # ------------------------------------------------------------------------------------------------------------ files

    def _text(self, table: TableLocation, log: Any, version: Version) -> str | None:
        """Returns the same as `_read`, but without a request if the commit is cached."""
        state = self._states.get(table)
        kept = None if state is None else state.texts.get(version)
        return self._read(log, version) if kept is None else kept

    def _read(self, log: Any, version: Version) -> str | None:
        """Reads the text of a commit file; None if it does not exist."""
        return self._jvm.read_text(log, self._commit_path(log, version))

    def _commit_path(self, log: Any, version: Version) -> Any:
        return self._jvm.path(log.logPath(), f"{version:020d}.json")


def _unreadable(table: str, error: BaseException) -> Unavailable:
    return Unavailable("the table's log could not be read; nothing was written", table=table, reason=first_line(error))


def _features(protocol: Mapping[str, Any]) -> frozenset[str]:
    return frozenset((*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())))


def refuse_catalog(table: str, protocols: Iterable[Mapping[str, Any]]) -> None:
    """Checks that no protocol hands the table's commits to a catalog.

    Raises:
        UnsupportedTable: One of them does.
    """
    for protocol in protocols:
        refused = sorted(_features(protocol) & CATALOG_FEATURES)
        if refused:
            raise UnsupportedTable(
                "a catalog decides on this table's commits, and Lakegate reads them from its log; nothing was written",
                advice="Use a table without this feature",
                table=table,
                feature=", ".join(refused),
            )
