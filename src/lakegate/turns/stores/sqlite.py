"""Turns on one machine: the record is a row in SQLite, and the kernel reports through `flock` which runs are alive.

A session holds an exclusive `flock` on a file of its job. The kernel frees it when the process dies, however it dies, and
keeps it while the process is stopped: there is no lease that could end under a live holder, and no clock. The kernel does
not know the JVM that commits for a Python process. Its pid and start time are in the session's file and in the record, and
the session counts as alive until that process is gone, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from lakegate.errors import Corrupt, InvalidRequest, StoreUnavailable, TurnNotGranted
from lakegate.ids import JobName, SessionId
from lakegate.private_files import make_file, make_folder, open_file
from lakegate.stored_json import Damaged, parsed
from lakegate.turns.host import boot_id, is_running, start_of
from lakegate.turns.ports import SessionState
from lakegate.turns.protocol.effects import CasReply, Stored
from lakegate.turns.protocol.lock_record import (
    LockRecord,
    Mark,
    NewerFormat,
    higher,
    mark_from_json,
    mark_to_json,
    record_from_json,
)
from lakegate.turns.protocol.transitions import Sessions

POLL_S = 0.01
BUSY_S = 10.0
"""How long a statement waits for another process's write, which takes microseconds, before the store counts as down."""

_TEXT_BYTES = 1024
"""The size limit of a session's file and of the mark's: less than a page, so that one call writes or reads it whole."""
_MARK = "last turn"
"""The file of `note_turn` next to those of the sessions: no quoted name of a job has a space."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, record TEXT NOT NULL, version INTEGER NOT NULL);
"""


_ADVICE = {
    sqlite3.SQLITE_FULL: "Free space on its disk; waiting jobs continue by themselves, jobs that ended can be started again",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable, and start again",
    sqlite3.SQLITE_CANTOPEN: "Look whether its folder can be written, and how many files the process may open (ulimit -n)",
}


class _OutcomeUnknown(StoreUnavailable):
    """the disk failed during a commit; the next read shows whether the change was made"""


class SqliteSession:
    """A run of a job: an open file with an `flock`."""

    def __init__(self, path: Path, fd: int, session_id: SessionId) -> None:
        self._path, self._fd, self._id = path, fd, session_id
        self._facts: dict[str, object] = {
            "session": session_id,
            "pid": os.getpid(),
            "pid_start": start_of(os.getpid()),
            "boot_id": boot_id(),
            "jvm_pid": None,
            "jvm_start": None,
        }
        self._write()

    @property
    def id(self) -> SessionId:
        return self._id

    def describe_jvm(self, pid: int, start: int) -> None:
        self._facts |= {"jvm_pid": pid, "jvm_start": start}
        with _usable(self._path):
            self._write()

    def heartbeat(self) -> bool:
        # Alive while it exists: the kernel holds the lock as long as this process exists. Gone only if the file was deleted.
        try:
            return self._fd >= 0 and os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Does nothing: there is no connection."""

    def close(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)  # a clean end leaves no JVM to wait for
            os.close(self._fd)
            self._fd = -1

    def _write(self) -> None:
        data = json.dumps(self._facts).encode()
        # One write call of less than a page: a reader sees the old text or the new one, or fails to parse and reads again.
        os.pwrite(self._fd, data.ljust(_TEXT_BYTES), 0)


class SqliteTurnStore:
    """A `TurnStore` in one SQLite file, for the jobs of one machine.

    Raises:
        Unavailable: the file or its folder cannot be written.
        InvalidRequest: the folder is on a network file system, where `flock` cannot be trusted.
    """

    lease_s: float | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._sessions_dir = self._path.with_name(self._path.name + ".sessions")
        self._local = threading.local()
        self._open_sessions: list[SqliteSession] = []
        try:
            make_folder(self._sessions_dir)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot make the coordinator's folder {self._sessions_dir}: {error.strerror}"
            ) from error
        kind = _network_file_system(self._path.parent)
        if kind is not None:
            raise InvalidRequest(
                f"{self._path} is on a network file system ({kind}), where file locks are not reliable",
                advice="Use a path on a local disk, or a coordinator that serves several machines",
            )
        self.coordinator_id()

    def coordinator_id(self) -> str:
        with self._transaction() as db:
            return str(db.execute("SELECT value FROM meta WHERE key = 'coordinator_id'").fetchone()[0])

    def open_session(self, lock: str, job: JobName) -> SqliteSession:
        folder = self._sessions_dir / quote(lock, safe="")
        path = folder / quote(job, safe="")
        with _usable(path):
            make_folder(folder)
            fd = open_file(path, os.O_RDWR)
        deadline_s = time.monotonic() + 0.5
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A process that checks for live runs holds a shared lock for microseconds; only a lock that stays belongs to a
                # run.
                if time.monotonic() > deadline_s:
                    facts = _facts(path)
                    os.close(fd)
                    raise TurnNotGranted(
                        f"another run of {job} is alive; this one did nothing",
                        advice="Stop that run first, or give this job another name",
                        pid=facts.get("pid"),
                        lock=lock,
                    ) from None
                time.sleep(POLL_S)
        self._wait_for_jvm(path, job, fd)
        try:
            with _usable(path):
                session = SqliteSession(path, fd, SessionId(f"{job}@{uuid.uuid4()}"))
        except StoreUnavailable:
            os.close(fd)
            raise
        self._open_sessions.append(session)
        return session

    def _wait_for_jvm(self, path: Path, job: JobName, fd: int) -> None:
        """Waits for the JVM of the previous run, which died; the JVM may still be committing. It ends by itself within seconds."""
        deadline_s = time.monotonic() + 60.0
        while _has_jvm(_facts(path)):
            if time.monotonic() > deadline_s:
                facts = _facts(path)
                os.close(fd)
                raise TurnNotGranted(
                    f"the JVM of an earlier run of {job} is still running; this one did nothing",
                    advice="End that process, then start the job again",
                    jvm_pid=facts.get("jvm_pid"),
                )
            time.sleep(POLL_S)

    def read(self, lock: str) -> Stored:
        with self._transaction() as db:
            row = db.execute("SELECT record, version FROM locks WHERE name = ?", (lock,)).fetchone()
        if row is None:
            return Stored(None, 0)
        return Stored(self._parse(lock, row[0]), int(row[1]))

    def _parse(self, lock: str, text: str) -> LockRecord:
        try:
            return record_from_json(text)
        except NewerFormat as error:
            raise InvalidRequest(
                f"{error}; nothing was changed", advice="Install a newer lakegate", lock=lock
            ) from error
        except ValueError as error:
            raise Corrupt(f"{error}", path=self._path, lock=lock) from error

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        try:
            with self._transaction("IMMEDIATE") as db:
                if version == 0:
                    done = db.execute("INSERT OR IGNORE INTO locks VALUES (?, ?, 1)", (lock, record.to_json())).rowcount
                else:
                    done = db.execute(
                        "UPDATE locks SET record = ?, version = version + 1 WHERE name = ? AND version = ?",
                        (record.to_json(), lock, version),
                    ).rowcount
        except _OutcomeUnknown:
            return "unknown"
        return "done" if done else "stale"

    def live_sessions(self, lock: str) -> Sessions:
        ids, jobs = [], []
        folder = self._sessions_dir / quote(lock, safe="")
        for path in _files(folder):
            is_locked = _is_locked(path)
            facts = _facts(path)
            if "session" in facts and (is_locked or _has_jvm(facts)):
                ids.append(SessionId(str(facts["session"])))
                jobs.append(JobName(unquote(path.name)))
        mark = self._mark(lock, _text(folder / _MARK))
        return Sessions(ids=frozenset(ids), jobs=frozenset(jobs), mark=mark)

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        path = self._sessions_dir / quote(lock, safe="") / _MARK
        with _usable(path):
            make_folder(path.parent)
            # Not forced to the disk: after a power cut no process is left that could share an epoch.
            fd = open_file(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # held for microseconds
                stands = higher(self._mark(lock, os.pread(fd, _TEXT_BYTES, 0).decode(errors="replace")), mark)
                if stands == mark:
                    os.pwrite(fd, mark_to_json(mark).encode().ljust(_TEXT_BYTES), 0)
            finally:
                os.close(fd)
        return stands

    def _mark(self, lock: str, text: str) -> Mark | None:
        try:
            return mark_from_json(text)
        except ValueError as error:
            path = self._sessions_dir / quote(lock, safe="") / _MARK
            raise Corrupt(f"the note of the last turn is damaged: {error}", path=path, lock=lock) from error

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
            with self._transaction() as db:
                row = db.execute("SELECT version FROM locks WHERE name = ?", (lock,)).fetchone()
            if (0 if row is None else row[0]) != version:
                return

    def locks(self) -> tuple[str, ...]:
        with self._transaction() as db:
            return tuple(str(row[0]) for row in db.execute("SELECT name FROM locks ORDER BY name"))

    def close(self) -> None:
        for session in self._open_sessions:
            session.close()
        db = getattr(self._local, "db", None)
        if db is not None:
            db.close()
            self._local.db = None

    @contextlib.contextmanager
    def _transaction(self, mode: str = "DEFERRED") -> Iterator[sqlite3.Connection]:
        """Runs a transaction on this thread's connection; commits at the end, rolls back on an exception.

        Raises:
            StoreUnavailable: The file cannot be used, and nothing was changed.
            _OutcomeUnknown: The commit was requested, and failed with an unknown outcome.
        """
        is_committing = False
        try:
            db = self._connection()
            db.execute(f"BEGIN {mode}")
            try:
                yield db
            except BaseException:
                if db.in_transaction:  # a full disk has rolled it back already
                    db.execute("ROLLBACK")
                raise
            is_committing = True
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._forget_connection()  # its open transaction is rolled back
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = _OutcomeUnknown if is_committing and code == sqlite3.SQLITE_IOERR else StoreUnavailable
            raise kind(
                f"the coordinator's file cannot be used, and nothing was changed: {error}",
                advice=_ADVICE.get(code),
                path=self._path,
            ) from error

    def _forget_connection(self) -> None:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _connection(self) -> sqlite3.Connection:
        """Returns this thread's connection to the file that the path names *now*: a deleted file must not stay in use unnoticed."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._path).st_ino == self._local.inode:
                    return db
            db.close()
            self._local.db = None
        make_file(self._path)  # SQLite would create it readable for everybody
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        self._local.db, self._local.inode = db, os.stat(self._path).st_ino
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        _write_ahead(db)
        db.execute("PRAGMA synchronous = FULL")  # an epoch that was granted must survive a power cut
        db.executescript(_SCHEMA)
        db.execute("INSERT OR IGNORE INTO meta VALUES ('coordinator_id', ?)", (str(uuid.uuid4()),))


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switches the file to a write-ahead log, which is permanent."""
    deadline_s = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # While another job creates the file, SQLite refuses this at once, whatever the connection's timeout.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(POLL_S)
        else:
            return


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raises an error for a file that cannot be used, as on a full disk: an unreadable session has not necessarily ended.

    Raises:
        StoreUnavailable: The file cannot be used.
        FileNotFoundError, BlockingIOError: Passed on unchanged.
    """
    try:
        yield
    except (FileNotFoundError, BlockingIOError):
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"a file of the coordinator cannot be used, and nothing was changed: {error.strerror}", path=path
        ) from error


def _files(folder: Path) -> list[Path]:
    """Returns the files of a folder; none where there is no folder."""
    try:
        with _usable(folder):
            return [folder / name for name in os.listdir(folder)]
    except FileNotFoundError:
        return []


def _text(path: Path) -> str:
    """Returns the content of a file; empty if there is no file."""
    try:
        with _usable(path):
            return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _facts(path: Path) -> dict[str, object]:
    """Returns the content of a session's file; empty if there is no file, or no content yet."""
    try:
        with _usable(path):
            return parsed(path.read_bytes().strip() or b"{}")
    except (FileNotFoundError, Damaged):
        return {}


def _has_jvm(facts: dict[str, object]) -> bool:
    """Returns True if the JVM that commits for the session still runs: same boot, same pid, same start time."""
    pid, start = facts.get("jvm_pid"), facts.get("jvm_start")
    return (
        isinstance(pid, int) and isinstance(start, int) and facts.get("boot_id") == boot_id() and is_running(pid, start)
    )


def _is_locked(path: Path) -> bool:
    """Returns True if a process holds the exclusive lock. Asks with a shared lock, so that askers do not see each other."""
    try:
        with _usable(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def _network_file_system(folder: Path) -> str | None:
    """Returns the kind of network file system that the folder is on; None for a local or unknown one."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return None
    real = folder.resolve()
    best, kind = "", ""
    for line in mounts:
        _, point, fs, *_ = line.split()
        point = point.replace("\\040", " ")
        if len(point) > len(best) and (real == Path(point) or Path(point) in real.parents):
            best, kind = point, fs
    return kind if kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "glusterfs", "ceph")) else None
