"""Every store keeps the contract of the port, and what is special to it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.conformance.turn_store import LOCK, Losing, TurnStoreConformance
from harness.proxy import Proxy
from lakegate.config.zookeeper import read_place
from lakegate.demo.servers import ZookeeperNode, zookeeper
from lakegate.errors import Corrupt, InvalidRequest, TurnNotGranted, Unavailable
from lakegate.ids import Epoch, JobName
from lakegate.spark.java import JavaSources
from lakegate.turns.host import start_of
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.protocol.transitions import begin_record
from lakegate.turns.stores.memory import MemoryTurnStore
from lakegate.turns.stores.sqlite import SqliteTurnStore
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore

HOLD = """
import sys
from lakegate.turns.stores.sqlite import SqliteTurnStore
session = SqliteTurnStore(sys.argv[1]).open_session(sys.argv[2], sys.argv[3])
if len(sys.argv) > 4:
    from lakegate.turns.host import start_of
    session.describe_jvm(int(sys.argv[4]), start_of(int(sys.argv[4])))
print("open", flush=True)
sys.stdin.read()
"""


class TestMemory(TurnStoreConformance):
    """The store within one process."""

    turns_each = 4

    @pytest.fixture
    def open_store(self) -> Callable[[], TurnStore]:
        store = MemoryTurnStore()
        store.close = lambda: None  # one handle for all, closed by nobody
        return lambda: store


class TestSqlite(TurnStoreConformance):
    """The store of one machine."""

    contenders, turns_each = 25, 2  # all of them look at the file when it changes: each turn costs as many looks

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], TurnStore]:
        return lambda: SqliteTurnStore(tmp_path / "a b" / "turns.db")


@pytest.fixture(scope="session")
def zookeeper_node(java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperNode]:
    """Starts one ZooKeeper server for this module; each test has a root of its own."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper"), java=java_from) as (node,):
        yield node


@pytest.mark.zookeeper
class TestZookeeper(TurnStoreConformance):
    """The store of several machines, on a server of its own."""

    contenders, turns_each = 25, 3

    @pytest.fixture
    def open_store(self, zookeeper_node: ZookeeperNode) -> Iterator[Callable[[], TurnStore]]:
        root, made = uuid.uuid4().hex, []

        def open_one(address: str = zookeeper_node.address) -> TurnStore:
            made.append(ZookeeperTurnStore(read_place(f"zookeeper://{address}/{root}/turns?session_timeout=10s")))
            return made[-1]

        yield open_one
        for store in made:
            store.close()

    @pytest.fixture
    def lose(self, open_store: Callable[..., TurnStore], zookeeper_node: ZookeeperNode):
        """The network between the store and the server loses it."""

        @contextmanager
        def losing(store: TurnStore, what: str) -> Iterator[TurnStore]:
            store.close()
            with Proxy(zookeeper_node.port) as network:
                yield CutOff(open_store(network.address), network, what)

        return losing


@pytest.mark.matrix
@pytest.mark.timeout(1800)
class TestSqliteInFull(TestSqlite):
    """Six hundred turns of fifty contenders: each change of its file wakes all of them."""

    contenders, turns_each, limit_s = 50, 12, 1500.0


@pytest.mark.matrix
class TestZookeeperInFull(TestZookeeper):
    """The same."""

    contenders, turns_each = 50, 12


class CutOff(Losing):
    """A store behind a network that swallows one request, or the reply to it, and then breaks and heals."""

    def __init__(self, inner: TurnStore, network: Proxy, what: str) -> None:
        super().__init__(inner, what)
        self._network = network

    def lost_compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self._network.be("blackhole" if self._what == "request" else "lose_replies")
        heal = threading.Timer(0.3, self._network.be, ("pass",))
        heal.start()
        reply = self._inner.compare_and_set(lock, record, version)
        heal.join()
        assert reply == "unknown", "the network was not as bad as it was to be"
        return reply


def test_a_lease_ends_without_heartbeats() -> None:
    """Not renewed for its length, a session is dead for all; renewed, it lives; once dead it cannot be revived."""
    now = [0.0]
    store = MemoryTurnStore(lease_s=10.0, monotonic_s=lambda: now[0])
    kept, left = store.open_session("L", JobName("kept")), store.open_session("L", JobName("left"))
    now[0] = 9.0
    assert kept.heartbeat()
    now[0] = 11.0
    assert store.live_sessions("L").jobs == {"kept"}
    assert not left.heartbeat()
    store.open_session("L", JobName("left"))


@pytest.fixture
def hold(tmp_path: Path):
    """Starts a process that holds a session; killed at the end by its own pid."""
    started: list[subprocess.Popen[str]] = []

    def start(job: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path / "turns.db"), LOCK, job, *more]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def test_a_killed_process_is_dead_at_once_and_a_stopped_one_is_not(hold, tmp_path: Path) -> None:
    """SIGSTOP keeps the session: no other may think that the job is gone. SIGKILL frees it, however sudden."""
    store = SqliteTurnStore(tmp_path / "turns.db")
    process = hold("Ingestion")
    os.kill(process.pid, signal.SIGSTOP)
    assert store.live_sessions(LOCK).jobs == {"Ingestion"}
    with pytest.raises(TurnNotGranted, match="Ingestion"):
        store.open_session(LOCK, JobName("Ingestion"))
    process.kill()
    process.wait()
    assert store.live_sessions(LOCK).jobs == frozenset()
    store.open_session(LOCK, JobName("Ingestion")).close()


def test_a_killed_process_counts_as_alive_until_its_jvm_is_gone(hold, tmp_path: Path) -> None:
    """The kernel frees the lock of a dead Python before the JVM that commits for it has ended."""
    store = SqliteTurnStore(tmp_path / "turns.db")
    jvm = subprocess.Popen(["sleep", "600"])
    try:
        process = hold("Ingestion", str(jvm.pid))
        process.kill()
        process.wait()
        assert store.live_sessions(LOCK).jobs == {"Ingestion"}
        jvm.kill()
        jvm.wait()
        assert store.live_sessions(LOCK).jobs == frozenset()
    finally:
        jvm.kill()
        jvm.wait()


def test_a_new_run_waits_for_the_jvm_of_the_last(hold, tmp_path: Path) -> None:
    """It is let in only after that process has ended; a pid alone does not identify the process."""
    store = SqliteTurnStore(tmp_path / "turns.db")
    jvm = subprocess.Popen(["sleep", "600"])
    process = hold("Ingestion", str(jvm.pid))
    process.kill()
    process.wait()
    start = start_of(jvm.pid)
    end = threading.Timer(0.3, lambda: (jvm.kill(), jvm.wait()))
    end.start()
    session = store.open_session(LOCK, JobName("Ingestion"))
    assert start_of(jvm.pid) != start
    session.close()
    end.join()


def test_a_deleted_file_is_a_new_coordinator(tmp_path: Path) -> None:
    """A store whose file was taken away starts empty under another id; an open handle does not write to the lost file."""
    path = tmp_path / "turns.db"
    store = SqliteTurnStore(path)
    store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 0)
    before = store.coordinator_id()
    for file in tmp_path.glob("turns.db*"):
        if file.is_file():
            file.unlink()
    assert store.read(LOCK).record is None
    assert store.coordinator_id() != before
    assert SqliteTurnStore(path).coordinator_id() == store.coordinator_id()


def test_jobs_that_begin_at_once_make_one_file(tmp_path: Path) -> None:
    """A job that opens the file while another makes it waits, although SQLite itself would refuse a write-ahead log at once."""
    path = tmp_path / "turns.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    made = threading.Timer(0.3, other.execute, ("COMMIT",))
    made.start()
    store = SqliteTurnStore(path)
    made.join()
    other.close()
    assert store.read(LOCK).record is None


def test_a_newer_record_is_refused_and_a_damaged_one_named(tmp_path: Path) -> None:
    """Neither is ever overwritten by an older version."""
    path = tmp_path / "turns.db"
    store = SqliteTurnStore(path)
    store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 0)
    for text, error in ((json.dumps({"format": 2}), InvalidRequest), ("{}", Corrupt)):
        with sqlite3.connect(path) as db:
            db.execute("UPDATE locks SET record = ?", (text,))
        db.close()
        with pytest.raises(error):
            store.read(LOCK)


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    """The message names the path; the exit status is that of something that does not answer."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        SqliteTurnStore(tmp_path / "file" / "turns.db")
