"""Turns on several machines: the record is a node changed by its version, and each run has a ZooKeeper session of its own.

A run's node is ephemeral and carries the job's name, so a second run of the job cannot create it. The session belongs to the
run alone. So whatever is interrupted (a create without an answer, a wait, the process) leaves behind only a session that
nobody pings: it ends by itself, and everything of the run with it. kazoo's lock is not used: see
docs/decisions/0008-turns-in-zookeeper.md.

    <root>/coordinator_id             a UUID, created with the root
    <root>/locks/<lock>               the record as JSON; its version is the node's, plus one
    <root>/sessions/<lock>            the turn that began last, as JSON, so that a restored older record is detected
    <root>/sessions/<lock>/<job>      ephemeral: which run, which process
    <root>/signals/<lock>/<job>       empty; changed together with a record that lets the job's ticket in
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from lakegate.config.zookeeper import ZookeeperPlace
from lakegate.errors import Corrupt, InvalidRequest, TurnNotGranted, Unavailable
from lakegate.ids import JobName, SessionId
from lakegate.stored_json import Damaged, parsed
from lakegate.turns.host import boot_id, is_running, start_of
from lakegate.turns.ports import SessionState
from lakegate.turns.protocol.effects import CasReply, Stored
from lakegate.turns.protocol.lock_record import (
    LockRecord,
    Mark,
    NewerFormat,
    Ticket,
    higher,
    mark_from_json,
    mark_to_json,
    record_from_json,
)
from lakegate.turns.protocol.transitions import Sessions, first_to_go
from lakegate.turns.stores.zookeeper_client import Connection, NoAnswer, Secrets, zk

RECORD_BYTES_MAX: Final = 900_000
"""A server accepts a megabyte (`jute.maxbuffer`), and drops the connection on more: the record would never be written."""
PATIENCE: Final = 1.5
"""Number of leases for which a run waits for the end of an earlier run that may be dead; servers end sessions at a tick."""
POLL_S: Final = 0.05

_OPEN_HERE: Final[set[SessionId]] = set()
"""The runs of this process: a run that was ended while no server answered still has its node, but is not alive."""


class ZookeeperSession:
    """A run of a job: a ZooKeeper session with one ephemeral node."""

    def __init__(self, place: ZookeeperPlace, secrets: Secrets, session_id: SessionId, path: str) -> None:
        self._id, self._path = session_id, path
        self._listener: Callable[[SessionState], None] | None = None
        self._state: SessionState = "connected"
        self._is_closed = False
        self.connection = Connection(place, secrets, on_state=self._on_state)
        _OPEN_HERE.add(session_id)
        # A later answer is as useless as none, and the next heartbeat should not wait for it.
        self._answer_s = (self.connection.lease_s or 0.0) / 5

    @property
    def id(self) -> SessionId:
        return self._id

    def describe_jvm(self, pid: int, start: int) -> None:
        """Does nothing: the session outlives a killed process by its lease, and so its JVM; the record names the JVM."""

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        self._listener = listener
        if self._state != "connected":
            listener(self._state)

    def heartbeat(self) -> bool:
        deadline_s = time.monotonic() + self._answer_s
        if self._is_closed:
            return False
        try:
            # Two requests on one connection, answered in order. The first is a write, so a majority of the servers has to agree:
            # a server that is cut off from the others would still answer the second.
            stat = self.connection.ask(self._ask_both, deadline_s)
        except NoAnswer as error:
            if self.connection.is_lost:
                return False
            raise self.connection.unavailable() from error
        is_ours = stat is not None and stat.ephemeralOwner == self.connection.session_id
        return is_ours and not self.connection.is_lost

    def _ask_both(self, client: Any) -> Any:
        agreed = client.transaction()
        agreed.check(self._path, 0)
        return _Both(agreed.commit_async(), client.exists_async(self._path))

    def close(self) -> None:
        self._is_closed = True
        _OPEN_HERE.discard(self._id)
        self.connection.close()

    def _on_state(self, state: SessionState) -> None:
        # kazoo would continue with another session; this run's session is over for good.
        self._state = "lost" if self._state == "lost" else state
        if self._state == "lost":
            _OPEN_HERE.discard(self._id)
        if self._listener is not None and not self._is_closed:  # a session that we close ourselves is not lost
            self._listener(self._state)


@dataclass(frozen=True, slots=True)
class _Both:
    """Two requests sent in sequence; returns the answer to the second once the first is answered."""

    first: Any
    second: Any

    def get(self, timeout: float) -> Any:
        deadline_s = time.monotonic() + timeout
        self.first.get(timeout=timeout)
        return self.second.get(timeout=max(0.0, deadline_s - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _AllOrNone:
    """The answer to a transaction; raises the error of the operation that made it fail."""

    inner: Any

    def get(self, timeout: float) -> None:
        for result in self.inner.get(timeout=timeout):
            if isinstance(result, Exception) and not isinstance(result, zk.RolledBackError | zk.RuntimeInconsistency):
                raise result


class _WakeUp:
    """Counts the reported changes of a node. One object for each node, so that a watch set twice is one watch."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def count(self) -> int:
        with self._changed:
            return self._count

    def on_event(self, event: object) -> None:
        """Counts a change of the node, or the loss of the connection that would report it."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, count: int, deadline_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count != count, max(0.0, deadline_s - time.monotonic()))


class ZookeeperTurnStore:
    """A `TurnStore` in ZooKeeper.

    Raises:
        Unavailable: no server answers.
        InvalidRequest: the server refuses the user.
    """

    def __init__(self, place: ZookeeperPlace, secrets: Secrets | None = None) -> None:
        self._place, self._secrets = place, secrets or Secrets()
        self._connection = Connection(place, self._secrets)
        self._wake_ups: dict[str, _WakeUp] = {}
        self._alive: dict[str, tuple[int, Sessions]] = {}
        self._open_sessions: list[ZookeeperSession] = []
        try:
            self.coordinator_id()
        except BaseException:
            self._connection.close()
            raise

    @property
    def lease_s(self) -> float | None:
        return self._connection.lease_s

    def coordinator_id(self) -> str:
        path, deadline_s = f"{self._place.root}/coordinator_id", self._deadline()
        while True:
            try:
                return str(self._fresh(path, _get(path), deadline_s)[0].decode())
            except zk.NoNodeError:
                self._make(path, str(uuid.uuid4()).encode(), deadline_s)

    def open_session(self, lock: str, job: JobName) -> ZookeeperSession:
        session_id = SessionId(f"{job}@{uuid.uuid4()}")
        session = ZookeeperSession(self._place, self._secrets, session_id, f"{self._sessions_path(lock)}/{_quote(job)}")
        try:
            self._claim(session, lock, job)
        except BaseException:
            session.close()  # also ends a node whose creation was not confirmed
            raise
        for lost in [each for each in self._open_sessions if each.connection.is_lost]:
            self._open_sessions.remove(lost)
            lost.close()  # otherwise kazoo keeps a session without an owner for ever
        self._open_sessions.append(session)
        return session

    def _claim(self, session: ZookeeperSession, lock: str, job: JobName) -> None:
        """Creates the session's node, unless another run has it."""
        path, connection = f"{self._sessions_path(lock)}/{_quote(job)}", session.connection
        facts = {
            "session": session.id,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "pid_start": start_of(os.getpid()),
        }
        data = json.dumps(facts).encode()
        deadline_s = self._deadline()
        patience_s = time.monotonic() + PATIENCE * (connection.lease_s or 0.0)
        while True:
            if connection.is_lost:
                raise connection.unavailable()
            try:
                connection.ask(
                    lambda client: client.create_async(path, data, acl=connection.acl, ephemeral=True), deadline_s
                )
                return
            except NoAnswer as error:
                # Created or not: the next attempt finds it under our own session, or creates it.
                if time.monotonic() >= deadline_s:
                    raise connection.unavailable() from error
            except zk.NoNodeError:
                self._make(self._sessions_path(lock), b"", deadline_s)
            except zk.NodeExistsError:
                found = self._found(connection, path)
                if found is not None and found[1] == connection.session_id:
                    return
                if found is not None and (_runs_here(found[0]) or time.monotonic() > patience_s):
                    raise TurnNotGranted(
                        f"another run of {job} is alive; this one did nothing",
                        advice="Stop that run first, or give this job another name",
                        host=found[0].get("host"),
                        pid=found[0].get("pid"),
                        lock=lock,
                    ) from None
                # The run may have been killed, and its session not have ended yet.
                time.sleep(POLL_S)
                deadline_s = self._deadline()

    def _found(self, connection: Connection, path: str) -> tuple[dict[str, object], int] | None:
        """Returns the node's content, and the ZooKeeper session that owns the node; None if the node is gone."""
        try:
            data, stat = connection.insist(_get(path), self._deadline())
        except zk.NoNodeError:
            return None
        return _facts(data), stat.ephemeralOwner

    def read(self, lock: str) -> Stored:
        path = self._lock_path(lock)
        try:
            data, stat = self._fresh(path, _get(path), self._deadline())
        except zk.NoNodeError:
            return Stored(None, 0)
        try:
            return Stored(record_from_json(data), stat.version + 1)
        except NewerFormat as error:
            raise InvalidRequest(
                f"{error}; nothing was changed", advice="Install a newer lakegate", lock=lock
            ) from error
        except ValueError as error:
            raise Corrupt(f"{error}", path=path, lock=lock) from error

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        path, data, deadline_s = self._lock_path(lock), record.to_json().encode(), self._deadline()
        if len(data) > RECORD_BYTES_MAX:
            raise InvalidRequest(
                "the lock's record is too large for ZooKeeper; nothing was changed", lock=lock, size_bytes=len(data)
            )
        try:
            if version:
                self._put(lock, record, data, version, deadline_s)
                return "done"
            while True:
                try:
                    self._connection.ask(self._create(path, data), deadline_s)
                    return "done"
                except zk.NoNodeError:
                    self._make(f"{self._place.root}/locks", b"", deadline_s)
        except (zk.BadVersionError, zk.NodeExistsError, zk.NoNodeError):
            return "stale"
        except (NoAnswer, Unavailable):
            return "unknown"

    def _put(self, lock: str, record: LockRecord, data: bytes, version: int, deadline_s: float) -> None:
        """Changes the record, and in the same transaction the signal of the ticket that it lets in: other waiters keep sleeping."""
        path, first = self._lock_path(lock), self._first_to_go(lock, record)
        signal = None if first is None else self._signal_path(lock, first.job)
        if signal is not None and first is not None and first.session not in {each.id for each in self._open_sessions}:

            def send(client: Any) -> Any:
                change = client.transaction()
                change.set_data(path, data, version=version - 1)
                change.set_data(signal, b"")
                return _AllOrNone(change.commit_async())

            try:
                self._connection.ask(send, deadline_s)
                return
            except zk.NoNodeError:
                pass  # no signal yet: its job does not wait for it, and reads the record before it waits
        self._connection.ask(lambda client: client.set_async(path, data, version=version - 1), deadline_s)
        if signal in self._wake_ups:
            self._wake_ups[signal].on_event(None)

    def _first_to_go(self, lock: str, record: LockRecord) -> Ticket | None:
        if record.holder is not None or not record.tickets:
            return None
        known = self._alive.get(lock)
        # A run that has ended since still counts as alive here; then no waiter is woken, and the waiters find out by themselves.
        if known is None or any(ticket.session not in known[1].ids for ticket in record.tickets):
            return first_to_go(record, self.live_sessions(lock), _now_ms())
        return first_to_go(record, known[1], _now_ms())

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        path, deadline_s = self._sessions_path(lock), self._deadline()
        while True:
            try:
                text, stat = self._fresh(path, _get(path), deadline_s)
                stands = higher(_mark(text, path), mark)
                if stands == mark:
                    self._connection.ask(_set(path, mark_to_json(mark).encode(), stat.version), deadline_s)
                return stands
            except zk.NoNodeError:
                self._make(path, b"", deadline_s)
            except zk.BadVersionError:
                continue  # another mark was stored in the meantime
            except NoAnswer as error:
                # Stored or not: it is read again.
                if time.monotonic() >= deadline_s:
                    raise self._connection.unavailable() from error
                time.sleep(0.01)

    def live_sessions(self, lock: str) -> Sessions:
        path, deadline_s = self._sessions_path(lock), self._deadline()
        try:
            text, stat = self._fresh(path, _get(path), deadline_s)
        except zk.NoNodeError:
            return Sessions(ids=frozenset(), jobs=frozenset())
        mark = _mark(text, path)
        # Waiters ask at every change of the record, but runs change seldom: the parent's version shows whether any did.
        known = self._alive.get(lock)
        if known is not None and known[0] == stat.pzxid:
            return replace(known[1], mark=mark)
        names, stat = self._connection.insist(
            lambda client: client.get_children_async(path, include_data=True), deadline_s
        )
        ids, jobs = [], []
        for name in names:
            try:
                data, _ = self._connection.insist(_get(f"{path}/{name}"), deadline_s)
            except zk.NoNodeError:
                continue
            ids.append(SessionId(str(_facts(data).get("session"))))
            jobs.append(JobName(unquote(name)))
        alive = Sessions(ids=frozenset(ids), jobs=frozenset(jobs), mark=mark)
        # A run that began after the names were read changed the parent again, and is found by the next call.
        self._alive[lock] = stat.pzxid, alive
        return alive

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        deadline_s, path = time.monotonic() + timeout_s, self._lock_path(lock)
        watched = path if ticket_of is None else self._signal_path(lock, ticket_of)
        wake_up = self._wake_ups.get(watched)
        try:
            if wake_up is None:
                if ticket_of is not None:
                    self._make(watched, b"", deadline_s)
                wake_up = self._wake_ups.setdefault(watched, _WakeUp())
            count = wake_up.count()  # before the watch is set, so that no later event is missed

            def send(client: Any) -> Any:
                # In this order: a change after the version was read finds the watch set.
                return _Both(client.exists_async(watched, watch=wake_up.on_event), client.exists_async(path))

            stat = self._connection.insist(send, deadline_s)
        except Unavailable:
            return  # timeout; the next read finds out whether the store is down
        if (0 if stat is None else stat.version + 1) == version:
            wake_up.wait(count, deadline_s)

    def locks(self) -> tuple[str, ...]:
        path = f"{self._place.root}/locks"
        try:
            names = self._fresh(path, lambda client: client.get_children_async(path), self._deadline())
        except zk.NoNodeError:
            return ()
        return tuple(sorted(unquote(name) for name in names))

    def close(self) -> None:
        for session in self._open_sessions:
            session.close()
        self._connection.close()

    def _fresh(self, path: str, send: Callable[[Any], Any], deadline_s: float) -> Any:
        """Reads at least everything that was acknowledged before the call: a server may lag behind the others."""
        return self._connection.insist(lambda client: _Both(client.sync_async(path), send(client)), deadline_s)

    def _make(self, path: str, data: bytes, deadline_s: float) -> None:
        """Creates a persistent node and its missing parents."""
        names = path.split("/")[1:]
        for depth in range(1, len(names) + 1):
            each, content = "/" + "/".join(names[:depth]), data if depth == len(names) else b""
            try:
                self._connection.insist(self._create(each, content), deadline_s)
            except (zk.NodeExistsError, zk.NoNodeError):
                continue  # there, or removed in the meantime: the caller finds out and retries

    def _create(self, path: str, data: bytes) -> Callable[[Any], Any]:
        return lambda client: client.create_async(path, data, acl=self._connection.acl)

    def _deadline(self) -> float:
        return time.monotonic() + self._place.call_timeout_ms / 1000

    def _lock_path(self, lock: str) -> str:
        return f"{self._place.root}/locks/{_quote(lock)}"

    def _signal_path(self, lock: str, job: JobName) -> str:
        return f"{self._place.root}/signals/{_quote(lock)}/{_quote(job)}"

    def _sessions_path(self, lock: str) -> str:
        return f"{self._place.root}/sessions/{_quote(lock)}"


def _quote(name: str) -> str:
    """Returns a name as the name of a node: `.` and `..` are not allowed."""
    return quote(name, safe="").replace(".", "%2E")


def _get(path: str) -> Callable[[Any], Any]:
    return lambda client: client.get_async(path)


def _set(path: str, data: bytes, version: int) -> Callable[[Any], Any]:
    return lambda client: client.set_async(path, data, version=version)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _mark(data: bytes, path: str) -> Mark | None:
    try:
        return mark_from_json(data.decode())
    except ValueError as error:
        raise Corrupt(f"the note of the last turn is damaged: {error}", path=path) from error


def _facts(data: bytes) -> dict[str, object]:
    try:
        return parsed(data or b"{}")
    except Damaged:
        return {}


def _runs_here(facts: dict[str, object]) -> bool:
    """Returns True if the run is seen alive on this machine, by its process; False proves nothing."""
    pid, start = facts.get("pid"), facts.get("pid_start")
    is_here = (facts.get("host"), facts.get("boot_id")) == (socket.gethostname(), boot_id())
    if not (is_here and isinstance(pid, int) and isinstance(start, int) and is_running(pid, start)):
        return False
    return pid != os.getpid() or facts.get("session") in _OPEN_HERE
