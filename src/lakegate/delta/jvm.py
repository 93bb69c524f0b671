"""The few JVM classes of Delta that Lakegate calls through py4j, with conversions to and from Scala.

Rules for editors:
- Every Delta or Scala member that the product relies on is called here or in `log.py`, and is listed in `NEEDED`, which
  `check_jvm` looks up at the start.
- Actions are made from JSON and read as JSON: their constructors change between minor versions, the protocol does not.
- Delta takes its settings from the *thread's active session*. Call into Delta only within `Jvm.active`, directly around
  the call. PySpark changes the active session at any time, and a compare-and-swap under another session's settings is no
  compare-and-swap: Delta would silently rebase it.
"""

from __future__ import annotations

import base64
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import delta.exceptions  # noqa: F401  installs the conversion of Delta's exceptions, for calls through py4j as well
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakegate.delta.storage_errors import known_of, refusal
from lakegate.errors import InvalidRequest, MissingExtra, UnsupportedTable

DELTA = "org.apache.spark.sql.delta"
SESSION = "org.apache.spark.sql.classic.SparkSession"
TRY = "org.apache.spark.sql.catalyst.expressions.TryEval"
EXPRESSIONS = "org.apache.spark.sql.classic.ExpressionUtils$"
CACHES_CONF = "spark.lakegate.deltaCaches"
"""`on` (default) or `off`, for the whole JVM: whether classes that reach into Delta's internal parts are used."""
USER_METADATA_CONF = "spark.databricks.delta.commitInfo.userMetadata"
NEEDED: Mapping[str, tuple[str, ...]] = {
    SESSION: ("setActiveSession/1", "getActiveSession/0", "clearActiveSession/0"),
    f"{DELTA}.DeltaLog": (
        *(
            "forTable/2",
            "invalidateCache/2",
            "update/3",
            "unsafeVolatileSnapshot/0",
            "getSnapshotAt/4",
            "createDataFrame/4",
        ),
        *("checkpoint/2", "store/0", "logPath/0", "dataPath/0", "newDeltaHadoopConf/0"),
    ),
    f"{DELTA}.Snapshot": ("version/0", "metadata/0", "protocol/0", "logSegment/0", "allFiles/0", "transactions/0"),
    f"{DELTA}.DeltaConfigs$": ("TOMBSTONE_RETENTION/0", "getMilliSeconds/1"),
    f"{DELTA}.DeltaConfig": ("fromMap/1",),
    TRY: ("<init>/1",),
    EXPRESSIONS: ("column/1", "expression/1"),
    f"{DELTA}.OptimisticTransaction": ("<init>/3", "commit/3", "deltaLog/0", "txnId/0", "readWholeTable/0"),
    f"{DELTA}.DeltaOperations$Update": ("<init>/1",),
    f"{DELTA}.actions.Action$": ("fromJson/1",),
    f"{DELTA}.actions.AddFile": ("json/0", "path/0", "size/0"),
    f"{DELTA}.actions.Metadata": ("id/0",),
    f"{DELTA}.storage.LogStore": ("listFrom/2", "read/2", "write/4"),
}
"""Class → methods, each with its number of parameters."""
NEEDED_BY_CACHES: Mapping[str, tuple[str, ...]] = {
    f"{DELTA}.DeltaLog": ("snapshotLock/0", "installSnapshot/2", "readChecksum/2", "getCanonicalPathFunction/1"),
    f"{DELTA}.Snapshot": (
        *("<init>/5", "checksumOpt/0", "setTransactions/0", "_computedStateTriggered/0", "uncache/0"),
        *("stateReconstructionTriggered/0", "checkpointProvider/0"),
    ),
    f"{DELTA}.Snapshot$": ("allFilesInCrcWritePathEnabled/2",),
    f"{DELTA}.VersionChecksum": ("allFiles/0", "tableSizeBytes/0", "numFiles/0"),
    f"{DELTA}.DummySnapshot": ("<init>/2",),
    f"{DELTA}.LogSegment": ("lastCommitFileModificationTimestamp/0", "deltas/0"),
    f"{DELTA}.OptimisticTransaction": (
        *("postCommitHooks/0", "getCommitted/0", "isCheckpointNeeded/2", "incrementallyDeriveChecksum/2"),
    ),
    f"{DELTA}.actions.InMemoryLogReplay": ("<init>/2", "append/2", "allFiles/0"),
}
"""The same of Delta's internal parts, which only the caches call: without one of them the caches stay off."""
OURS = "io.github.lakegate"
OURS_NEEDED: Mapping[str, tuple[str, ...]] = {
    f"{OURS}.Attempt": ("commit/12",),
    f"{OURS}.Bulk": (
        "commits/6",
        "names/2",
        "read/2",
        "read/3",
        "readRange/4",
        "lacking/3",
        "texts/3",
        "write/4",
        "missing/3",
        "listing/2",
    ),
    f"{OURS}.DeferringTransaction": ("finish/1", "checkpoint/1"),
    f"{OURS}.Gate": (
        *("govern/1", "release/1", "grant/5", "revoke/2", "reserve/5", "unreserve/3", "take/2", "done/1"),
        *("enter/3", "leave/0", "actAs/1", "isAwaited/2", "puts/1", "strays/1", "untokened/0", "note/2"),
    ),
    f"{OURS}.caches.Caches": ("turn/1", "install/1", "newest/1", "update/1", "hold/1"),
    f"{OURS}.Parts": ("next/1",),
    f"{OURS}.quick.FewRows": ("of/4", "arrow/2"),
    f"{OURS}.quick.QuickStatement": ("of/2", "appending/3", "declined/0", "run/4", "find/1"),
    f"{OURS}.caches.ScratchLogs": ("make/4", "drop/2"),
    f"{OURS}.caches.SnapshotTransactions": ("of/1", "isLearned/0", "give/2", "numbers/1"),
}
"""The same of the package's own jar."""

PART = "\x02"
"""Encloses the number under which the rest of a packed answer is fetched, or 0 if there is no rest."""
RETENTION = "delta.setTransactionRetentionDuration"
JVM_ERRORS = (Py4JError, PySparkException)
"""Errors of a call into the JVM: converted by PySpark and Delta, or py4j's own."""
CALL_ERRORS = (*JVM_ERRORS, OSError)
"""The same and, if the JVM has ended, Python's own error that py4j meets when it connects again."""


def unless_gone(set_right: Callable[[], object]) -> None:
    """Restores something at the end of a block, unless the JVM has ended: then the error that ended the block is raised.

    Args:
        set_right: May be called twice. If the JVM ends during the call, rather than before it, the call fails like any other.
    """
    try:
        set_right()
    except ConnectionRefusedError:
        return
    except (Py4JError, ConnectionError):
        time.sleep(0.1)  # the kernel closes the JVM's connections one after another
        with suppress(ConnectionRefusedError):
            set_right()


def check_jvm(spark: SparkSession) -> None:
    """Checks that the session has Delta, and that this Delta has all members that Lakegate calls. Opens no table, runs no job.

    Raises:
        MissingExtra: The session was made without Delta, or without Lakegate's jar.
        UnsupportedTable: It has another Delta than this release was made for.
        InvalidRequest: The setting of the caches is neither `on` nor `off`.
    """
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    find_class = jvm.java.lang.Class.forName
    other_jar = "without Lakegate's jar, or with that of another version"
    for name, made in ((f"{DELTA}.DeltaLog", "without Delta"), (f"{OURS}.Bulk", other_jar)):
        try:
            find_class(name, False, loader)
        except JVM_ERRORS as error:
            raise _made(made) from error
    ours = Statics(jvm.io.github.lakegate.Bulk)

    def lacking_of(needed: Mapping[str, tuple[str, ...]]) -> list[str]:
        lacking = []
        for name, methods in needed.items():
            try:
                # One call a class, where py4j takes several a method; and a short answer: one of more than 8 KiB takes 40 ms.
                lacking += [f"{name}.{method}" for method in ours.lacking(name, "\n".join(methods), loader).split()]
            except JVM_ERRORS:
                lacking.append(name)
        return lacking

    lacking = lacking_of({**NEEDED, **OURS_NEEDED})
    if any(name.startswith(OURS) for name in lacking):
        raise _made(other_jar, lacking=", ".join(lacking))
    if lacking:
        raise UnsupportedTable(
            "this version of Delta lacks what Lakegate calls; nothing was done",
            advice="Use the version of Delta that belongs to this release: lakegate jars path",
            lacking=", ".join(lacking),
        )
    is_on = _are_caches_wanted(spark)
    if is_on and (lacking := lacking_of(NEEDED_BY_CACHES)):
        said = "this version of Delta lacks what Lakegate's caches call; they are off, and commits take longer: %s"
        logging.getLogger("lakegate").warning(said, ", ".join(lacking))
        is_on = False
    jvm.io.github.lakegate.caches.Caches.turn(is_on)


def _are_caches_wanted(spark: SparkSession) -> bool:
    word = spark.sparkContext.getConf().get(CACHES_CONF, "on")
    if word not in ("on", "off"):
        raise InvalidRequest(f"{CACHES_CONF} is on or off, not {word!r}; nothing was done")
    return word == "on"


def _made(how: str, **facts: str) -> MissingExtra:
    return MissingExtra(
        f"this Spark session was made {how}; nothing was done",
        advice="Start it with lakegate.session(…), or with the jars of: lakegate jars path",
        **facts,
    )


class Statics:
    """The static methods of a Java class, cached: py4j looks each one up in the JVM every time it is named."""

    def __init__(self, java_class: Any) -> None:
        self._class = java_class

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._class, name)
        setattr(self, name, found)
        return found


@dataclass(frozen=True, slots=True)
class _Handles:
    """Cached classes and objects of one JVM: each lookup of a dotted name costs several searches."""

    none: Any
    converters: Any
    sessions: Any
    logs: Any
    path: Any
    bulk: Any
    transactions: Any
    actions: Any
    attempt: Any
    caches: Any
    deferring: Any
    parts: Any
    scratch: Any


@lru_cache(1)
def _handles(root: Any) -> _Handles:
    return _Handles(
        none=scala_object(root, "scala.None$"),
        converters=Statics(root.scala.jdk.javaapi.CollectionConverters),
        sessions=Statics(getattr(root, SESSION)),
        logs=Statics(getattr(root, f"{DELTA}.DeltaLog")),
        path=root.org.apache.hadoop.fs.Path,
        bulk=Statics(root.io.github.lakegate.Bulk),
        transactions=Statics(root.io.github.lakegate.caches.SnapshotTransactions),
        actions=scala_object(root, f"{DELTA}.actions.Action$"),
        attempt=Statics(root.io.github.lakegate.Attempt),
        caches=Statics(root.io.github.lakegate.caches.Caches),
        deferring=Statics(root.io.github.lakegate.DeferringTransaction),
        parts=Statics(root.io.github.lakegate.Parts),
        scratch=Statics(root.io.github.lakegate.caches.ScratchLogs),
    )


class Listed(NamedTuple):
    """A commit in the listing of a log."""

    modified_at_ms: int
    text: str
    """The requested actions of the commit."""
    is_whole: bool
    """These are all actions of the commit."""


class Jvm:
    """Handles and conversions for one Spark session. Cheap to make; safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.root: Any = spark._jvm
        self.jsession: Any = spark._jsparkSession
        handles = _handles(self.root)
        self.none: Any = handles.none
        self._converters: Any = handles.converters
        self._sessions: Any = handles.sessions
        self._logs: Any = handles.logs
        self._path: Any = handles.path
        self._bulk: Any = handles.bulk
        self._transactions: Any = handles.transactions
        self._actions: Any = handles.actions
        self._attempt: Any = handles.attempt
        self._deferring: Any = handles.deferring
        self._caches: Any = handles.caches
        self._parts: Any = handles.parts
        self._scratch: Any = handles.scratch

    @cached_property
    def quick(self) -> Any:
        """The class that executes statements without a Spark job; loaded at first use, because it needs much of Spark and Delta."""
        return Statics(getattr(self.root, f"{OURS}.quick.QuickStatement"))

    @cached_property
    def feed(self) -> Any:
        """The class that reads the rows of small commits."""
        return Statics(getattr(self.root, f"{OURS}.quick.FeedRows"))

    @cached_property
    def few(self) -> Any:
        """The class that reads few rows of tables."""
        return Statics(getattr(self.root, f"{OURS}.quick.FewRows"))

    @cached_property
    def hadoop_conf(self) -> Any:
        """File system settings of the session, as of the first use of this property."""
        return self.jsession.sessionState().newHadoopConf()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this session the thread's active one for a call into Delta; restores the previous one afterwards."""
        before = self._sessions.getActiveSession()
        self._sessions.setActiveSession(self.jsession)
        try:
            yield
        finally:
            if before.isDefined():
                self._sessions.setActiveSession(before.get())
            else:
                self._sessions.clearActiveSession()

    def int_conf(self, key: str, default: int) -> int:
        """Reads a numeric setting of the session.

        Raises:
            InvalidRequest: The setting is not a number.
        """
        said = self.spark.conf.get(key, None)
        try:
            return default if said is None else int(said)
        except ValueError as error:
            raise InvalidRequest(f"the setting {key} is not a number: {said!r}; nothing was written") from error

    def delta_log(self, table: str) -> Any:
        """Returns Delta's `DeltaLog` of a path, the same for all sessions of the JVM; version -1 if there is no table."""
        with self.active():
            return self._logs.forTable(self.jsession, table)

    @contextmanager
    def holding(self, log: Any) -> Iterator[None]:
        """Makes Delta keep the newest snapshot's state cached for a statement on it, though others commit meanwhile."""
        held = self._caches.hold(log)
        try:
            yield
        finally:
            with suppress(*CALL_ERRORS):  # the outcome of the statement is what matters
                if held is not None:
                    held.release()
                # That of the statement's own commit, if Delta has made it.
                self._caches.newest(log)

    def trust_checksum(self, table: str) -> None:
        """Makes Delta take a table's size, and the files of a small one, from its checksum."""
        self._caches.install(self.delta_log(table))

    def snapshot(self, log: Any) -> Any:
        """Returns a fresh `Snapshot`: the log is listed again."""
        with self.active():
            return self._caches.update(log)

    def transactions(self, snapshot: Any) -> dict[str, int]:
        """Returns the snapshot's transaction ids with their numbers; a Spark job, unless `give_transactions` passed them in."""
        with self.active():
            return self.from_map(self._transactions.of(snapshot))

    def give_transactions(self, log: Any, snapshot: Any, transactions: Mapping[str, int]) -> None:
        """Passes the transaction ids to a snapshot, which then needs no job for them; does nothing if Delta expires ids."""
        if snapshot.metadata().configuration().contains(RETENTION):
            return
        if not self._transactions.isLearned():
            # The ids of a table that does not exist are computed without a job.
            self.transactions(getattr(self.root, f"{DELTA}.DummySnapshot")(log.logPath(), log))
        numbers = self._transactions.numbers({app_id: str(number) for app_id, number in transactions.items()})
        self._transactions.give(snapshot, self.root.org.apache.spark.api.python.PythonUtils.toScalaMap(numbers))

    def whole(self, answer: str | None) -> str | None:
        """Unpacks an answer that may be compressed and split into parts; see `Parts.java`."""
        if answer is None or not answer.startswith(PART):
            return answer
        number, packed = answer[1:].split(PART)
        while number != "0":
            number, part = self._parts.next(int(number))[1:].split(PART)
            packed += part
        return zlib.decompress(base64.b64decode(packed)).decode()

    def commits_from(
        self, store: Any, log_path: Any, version: int, known: int, known_at_ms: int
    ) -> dict[int, Listed] | None:
        """Returns the commits from a version on, with actions only after `known`; of a long commit, only `txn` and `protocol`.

        Empty if there is no log; None if a commit was cleaned up between being listed and being read.

        Args:
            store: Delta's log store of the table.
            log_path: Path of the table's log.
            version: The first version to return.
            known: The last version that is already known.
            known_at_ms: Modification time of the file of `known`; -1 if no version is known.
        """
        text = self.whole(self._bulk.commits(store, log_path, version, known, known_at_ms, self.hadoop_conf))
        if text is None:
            return None
        found: dict[int, Listed] = {}
        for part in text.split("\x01")[1:]:
            head, _, lines = part.partition("\n")
            number, modified_at_ms, is_whole = map(int, head.split(" "))
            found[number] = Listed(modified_at_ms, lines, bool(is_whole))
        return found

    def texts_after(self, log: Any, version: int) -> dict[int, str] | None:
        """Returns the whole commits after a version; for the version itself, if its commit is there, an empty text.

        None if a commit was cleaned up between being listed and being read.
        """
        text = self.whole(self._bulk.texts(log, version, self.hadoop_conf))
        if text is None:
            return None
        found = {}
        for part in text.split("\x01")[1:]:
            number, _, lines = part.partition("\n")
            found[int(number)] = lines
        return found

    def retention_ms(self, properties: Mapping[str, str]) -> int:
        """Returns the time for which a table with these properties keeps removed files."""
        configs = scala_object(self.root, f"{DELTA}.DeltaConfigs$")
        with self.active():
            return int(configs.getMilliSeconds(configs.TOMBSTONE_RETENTION().fromMap(self.to_map(properties))))

    def read_bytes(self, path: Any) -> bytes | None:
        """Returns a file's content; None if there is no such file."""
        content = self._bulk.read(path, self.hadoop_conf)
        return None if content is None else bytes(content)

    def read_below(self, folder: Any, name: str) -> bytes | None:
        """Returns the content of a file below a folder; one call less than with a `Path` made here."""
        content = self._bulk.read(folder, name, self.hadoop_conf)
        return None if content is None else bytes(content)

    def read_range(self, path: Any, offset: int, length: int) -> bytes:
        """Reads a part of a file."""
        return bytes(self._bulk.readRange(path, self.hadoop_conf, offset, length))

    def write_below(self, folder: Any, name: str, content: bytes) -> None:
        """Writes a new file below a folder."""
        self._bulk.write(folder, name, self.hadoop_conf, content)

    def names(self, disk: Any, folder: Any) -> list[str]:
        """Returns the names in a folder."""
        return str(self._bulk.names(disk, folder)).splitlines()

    def missing(self, root: Any, paths: Sequence[str]) -> str | None:
        """Returns the first of these files of a table that does not exist; paths as in the log, below `root`."""
        names = dict.fromkeys(unquote(path) for path in paths if ":" not in path)
        missing: str | None = self._bulk.missing(root.getFileSystem(self.hadoop_conf), root, "\n".join(names))
        return missing

    def make_scratch(self, log_path: Any, commit: str, checksum: str) -> None:
        """Writes the log of a temporary table for one statement: its only commit, and the checksum of this commit."""
        self._scratch.make(log_path, commit, checksum, self.hadoop_conf)

    def drop_scratch(self, log_path: Any) -> None:
        """Removes the log of such a table."""
        self._scratch.drop(log_path, self.hadoop_conf)

    def forget(self, folder: Any) -> None:
        """Makes Delta forget the table of a folder."""
        self._logs.invalidateCache(self.jsession, folder)

    def read_text(self, log: Any, path: Any) -> str | None:
        """Reads a small file with the table's own log store; None if it does not exist."""
        try:
            lines = log.store().read(path, self.hadoop_conf)
        except JVM_ERRORS as error:
            if is_missing_file(error):
                return None
            raise
        return str(lines.mkString("\n"))

    def put_text_if_absent(self, log: Any, path: Any, text: str) -> bool:
        """Writes a one-line file, whole or not at all, as the table's log store writes a commit; False if the file exists."""
        conf = self.hadoop_conf
        path.getFileSystem(conf).mkdirs(path.getParent())
        try:
            log.store().write(path, self.to_seq([text]).iterator(), False, conf)
        except JVM_ERRORS as error:
            if is_caused_by(error, "java.nio.file.FileAlreadyExistsException"):
                return False
            raise
        return True

    def path(self, folder: Any, name: str) -> Any:
        """Returns a Hadoop `Path` below another one (or below the path that a text names)."""
        return self._path(folder, name)

    def absolute(self, uri: str) -> Any:
        """Returns the Hadoop `Path` of a whole URI."""
        return self._path(self.root.java.net.URI(uri))

    def to_seq(self, values: Iterable[Any]) -> Any:
        """Converts to an immutable Scala `Seq`."""
        array = self.root.java.util.ArrayList()
        for value in values:
            array.add(value)
        return self._converters.asScala(array).toSeq()

    def to_map(self, values: Mapping[str, str]) -> Any:
        """Converts to an immutable Scala `Map`."""
        return self.root.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(values))

    def from_map(self, values: Any) -> dict[str, Any]:
        """Converts a Scala `Map` to a dict."""
        return dict(self._converters.asJava(values))

    def from_seq(self, values: Any) -> list[Any]:
        """Converts a Scala `Seq` to a list."""
        found = self._converters.asJava(values)
        # Not by iteration: its end is an exception of the JVM, which takes longer to convert than everything else.
        return [found.get(place) for place in range(found.size())]

    def action(self, action: Mapping[str, Any]) -> Any:
        """Converts the JSON form of an action, e.g. `{"txn": {…}}`, to Delta's `Action`."""
        return self._actions.fromJson(json.dumps(action, separators=(",", ":")))

    def commit(
        self,
        log: Any,
        version: int,
        table_id: str | None,
        lines: Sequence[str],
        tags: Mapping[str, str],
        *,
        is_blind: bool,
        transaction_id: str,
        has_later: bool,
        named: tuple[str | None, str | None, str | None],
    ) -> tuple[int, str | None]:
        """Commits actions, given as lines of the log; returns the version where the commit landed, and None; see `Attempt.java`.

        If `version` is not the table's next one, or the table is another one, nothing is tried: then the newest version is
        returned, and the table's id.

        Args:
            log: Delta's log of the table.
            version: Of the commit.
            table_id: Id of the table; None: any table.
            lines: The actions.
            tags: Of the commit.
            is_blind: The actions depend on nothing in the table.
            transaction_id: Identifies the commit in the log.
            has_later: The caller calls `after_commit` when the commit has landed.
            named: Token of the committing statement, its history, and its job.
        """
        # Passing a map takes calls of its own, and most commits have no tags.
        answer = self._attempt.commit(
            *(self.jsession, log, version, table_id, "\n".join(lines), dict(tags) or None, is_blind),
            *(transaction_id, has_later, *named),
        )
        found, _, other = str(answer).partition(" ")
        return int(found), other or None

    def after_commit(self, transaction_id: str) -> bool:
        """Does Delta's work after a commit, except the checkpoint; returns True if a checkpoint is due."""
        return bool(self._deferring.finish(transaction_id))

    def checkpoint(self, transaction_id: str) -> None:
        """Writes the checkpoint that is due since a commit."""
        self._deferring.checkpoint(transaction_id)

    def char_as_string(self, schema: Any) -> str:
        """Returns the JSON of a JVM `StructType`, with CHAR and VARCHAR as the STRING that Delta stores for them."""
        util = self.root.org.apache.spark.sql.catalyst.util.CharVarcharUtils
        return str(util.replaceCharVarcharWithStringInSchema(schema).json())

    def frame(self, dataset: Any) -> DataFrame:
        """Wraps a JVM `Dataset` as a DataFrame."""
        return DataFrame(dataset, self.spark)


def scala_object(root: Any, name: str) -> Any:
    """Returns the singleton of a Scala object; `name` ends in `$`."""
    return getattr(getattr(root, name), "MODULE$")


def attempt(column: Any) -> Any:
    """Returns a JVM column that has the value of another one, or NULL for rows for which evaluating that one raises."""
    context: Any = SparkContext._active_spark_context
    expressions = scala_object(context._jvm, EXPRESSIONS)
    return expressions.column(getattr(context._jvm, TRY)(expressions.expression(column)))


def is_lost(error: BaseException) -> bool:
    """Returns True if the error means that the JVM or the connection ended: the call may have been done, or be under way.

    Py4J repeats a call whose connection was closed before the answer, and then has no answer for it: this is a plain
    `Py4JError` without a trace. A call that could not be made has a trace.
    """
    if isinstance(error, Py4JNetworkError | OSError):
        return True
    return type(error) is Py4JError and "Trace:" not in str(error)


def is_caused_by(error: BaseException, class_name: str) -> bool:
    """Returns True if a JVM exception, or one of its causes, is of exactly this class; False if the JVM has ended."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        while thrown is not None:
            if thrown.getClass().getName() == class_name:
                return True
            thrown = thrown.getCause()
    except CALL_ERRORS:
        return False
    return False


def first_line(error: BaseException) -> str:
    """Returns an error's message without the JVM's stack; for a refusal by S3 or DynamoDB, in plain words."""
    refused = refusal(error)
    if refused is not None:
        return refused.message
    try:
        text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    except CALL_ERRORS:
        text = known_of(error)
    return next(iter(text.strip().splitlines()), type(error).__name__)


def silence(spark: SparkSession, logger: str) -> None:
    """Stops Spark's logging under a name: Lakegate reports these events itself, or they are no errors."""
    levels: Any = getattr(spark._jvm, "org.apache.logging.log4j")
    levels.core.config.Configurator.setLevel(logger, levels.Level.OFF)


def is_missing_file(error: BaseException) -> bool:
    """Returns True if the JVM reported that a file or folder does not exist."""
    return isinstance(error, Py4JJavaError | PySparkException) and (
        is_caused_by(error, "java.io.FileNotFoundException") or is_caused_by(error, "java.nio.file.NoSuchFileException")
    )
