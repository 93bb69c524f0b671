"""Rules special to ZooKeeper: ensembles, sessions, permissions, and errors when it cannot be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from harness.conformance.turn_store import LOCK, TurnStoreConformance, contender, take
from harness.proxy import Proxy
from lakegate.config.zookeeper import read_place
from lakegate.demo.servers import ZookeeperNode, free_ports, zookeeper
from lakegate.errors import Corrupt, InvalidRequest, TurnNotGranted, Unavailable
from lakegate.ids import Epoch, JobName
from lakegate.spark.java import JavaSources, find_java
from lakegate.turns.ports import SessionState, TurnStore
from lakegate.turns.protocol.transitions import begin_record
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore
from lakegate.turns.stores.zookeeper_client import Secrets

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def node(java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperNode]:
    """Starts one server."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper"), java=java_from) as (node,):
        yield node


@pytest.fixture(scope="module")
def ensemble(java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ZookeeperNode]]:
    """Three servers."""
    with zookeeper(tmp_path_factory.mktemp("ensemble"), java=java_from, nodes=3) as nodes:
        yield nodes


@pytest.fixture
def url(node: ZookeeperNode) -> str:
    """A root of its own on the one server."""
    return f"zookeeper://{node.address}/{uuid.uuid4().hex}?session_timeout=4s&call_timeout=5s"


@pytest.mark.slow
class TestEnsemble(TurnStoreConformance):
    """Three servers, and each handle on another of them."""

    contenders, turns_each = 12, 3

    @pytest.fixture
    def open_store(self, ensemble: list[ZookeeperNode]) -> Iterator[Callable[[], TurnStore]]:
        root, made = uuid.uuid4().hex, []

        def open_one() -> TurnStore:
            nearest = ensemble[len(made) % len(ensemble)].address
            made.append(ZookeeperTurnStore(read_place(f"zookeeper://{nearest}/{root}?session_timeout=10s")))
            return made[-1]

        yield open_one
        for store in made:
            store.close()


@pytest.mark.matrix
def test_a_server_that_lags_behind_the_others_shows_nothing_old(java_from: JavaSources, tmp_path: Path) -> None:
    """A client of a follower reads each change that a client of the leader has seen, even before it reaches the follower."""
    with ExitStack() as ways:

        def through(port: int) -> int:
            way = ways.enter_context(Proxy(port, delay_s=0.1))
            way.be("delay")
            return way.port

        with zookeeper(tmp_path, java=java_from, nodes=3, through=through) as nodes:
            (leader,) = [node for node in nodes if node.mode() == "leader"]
            follower = next(node for node in nodes if node.mode() == "follower")
            near, far = (ZookeeperTurnStore(read_place(f"zookeeper://{node.address}/x")) for node in (leader, follower))
            for n in range(5):
                version = near.read(LOCK).version
                assert near.compare_and_set(LOCK, begin_record(LOCK, Epoch(n)), version) == "done"
                assert far.read(LOCK).version > version
                session = near.open_session(LOCK, JobName(f"job-{n}"))
                assert session.id in far.live_sessions(LOCK).ids
                session.close()
            assert far.locks() == (LOCK,)
            near.close()
            far.close()


@pytest.mark.slow
def test_turns_go_on_when_the_leader_of_three_is_killed(java_from: JavaSources, tmp_path: Path) -> None:
    """No turn is given twice and none is lost: the two remaining servers agree on the holder."""
    with zookeeper(tmp_path, java=java_from, nodes=3) as nodes:
        hosts = ",".join(node.address for node in nodes)
        url = f"zookeeper://{hosts}/turns?session_timeout=10s&call_timeout=20s"
        epochs: list[int] = []
        faults: list[str] = []
        killed = threading.Event()

        def run(job: str) -> None:
            try:
                store = ZookeeperTurnStore(read_place(url))
                run = contender(store, job)
                for _ in range(8):
                    turn = take(run)
                    epochs.append(turn.epoch)
                    if len(epochs) >= 8:
                        killed.wait(30)
                    turn.complete()
                run.close()
                store.close()
            except Exception as error:
                faults.append(repr(error))

        threads = [threading.Thread(target=run, args=(f"job-{n}",), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + 30
        while len(epochs) < 8 and not faults and time.monotonic() < deadline_s:
            time.sleep(0.01)
        (leader,) = [node for node in nodes if node.mode() == "leader"]
        os.kill(leader.pid, signal.SIGKILL)
        killed.set()
        for thread in threads:
            thread.join(60)
        assert not faults
        assert epochs == list(range(epochs[0], epochs[0] + 32))


def test_the_lease_is_what_the_server_gives_and_not_what_was_asked_for(java_from: JavaSources, tmp_path: Path) -> None:
    """A server bounds it: a holder that assumed a longer lease would continue after another job had got the turn.

    Where it was asked for in so many words, it is refused instead; the default takes what there is.
    """
    with zookeeper(tmp_path, java=java_from, more="minSessionTimeout=3000\nmaxSessionTimeout=5000\n") as (node,):
        for said, given_s in (("?session_timeout=4s", 4.0), ("", 5.0)):
            store = ZookeeperTurnStore(read_place(f"zookeeper://{node.address}/x{said}"))
            assert store.lease_s == pytest.approx(given_s, abs=0.01)
            store.close()
        for asked, told in (("1s", "=1s but 3s"), ("60s", "=60s but 5s")):
            with pytest.raises(InvalidRequest, match=told):
                ZookeeperTurnStore(read_place(f"zookeeper://{node.address}/x?session_timeout={asked}"))


def test_a_process_that_is_killed_is_dead_after_its_lease(url: str) -> None:
    """Until then its job is refused on another machine; afterwards it is admitted without an operator."""
    code = (
        "import sys; from lakegate.config.zookeeper import read_place\n"
        "from lakegate.turns.stores.zookeeper import ZookeeperTurnStore\n"
        "session = ZookeeperTurnStore(read_place(sys.argv[1])).open_session(sys.argv[2], 'job')\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url, LOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "open\n"
    store = ZookeeperTurnStore(read_place(url))
    with pytest.raises(TurnNotGranted, match="another run of job is alive"):
        store.open_session(LOCK, JobName("job"))
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert store.live_sessions(LOCK).jobs == {"job"}
    begun_s = time.monotonic()
    store.open_session(LOCK, JobName("job"))
    assert 1.0 < time.monotonic() - begun_s < 8.0
    store.close()


def test_a_run_learns_at_once_of_a_lost_connection_and_of_the_end_of_its_session(url: str, node: ZookeeperNode) -> None:
    """Suspended when it breaks, connected when it is back in time, lost when it comes back too late; then for good."""
    with Proxy(node.port) as network:
        store = ZookeeperTurnStore(replace(read_place(url), hosts=(network.address,), session_timeout_ms=1500))
        session = store.open_session(LOCK, JobName("job"))
        states: list[SessionState] = []
        heard = threading.Condition()

        def listen(state: SessionState) -> None:
            with heard:
                states.append(state)
                heard.notify_all()

        def waits_for(*expected: SessionState) -> None:
            with heard:
                assert heard.wait_for(lambda: states == list(expected), 20), states

        session.watch(listen)
        assert session.heartbeat()
        network.be("refuse")
        waits_for("suspended")
        with pytest.raises(Unavailable):
            session.heartbeat()
        network.be("pass")
        waits_for("suspended", "connected")
        assert session.heartbeat()
        network.be("refuse")
        time.sleep(4)
        network.be("pass")
        waits_for("suspended", "connected", "suspended", "lost")
        assert not session.heartbeat()
        again = store.open_session(LOCK, JobName("job"))
        assert again.heartbeat()
        assert not session.heartbeat(), "the node of another run was taken for its own"
        store.close()
        still = [thread.name for thread in threading.enumerate() if "zk_loop" in thread.name]
        assert not still, "a session that was lost goes on asking for another"


def test_data_that_were_wiped_are_a_new_coordinator(url: str, node: ZookeeperNode) -> None:
    """A store whose nodes were taken away starts empty under another id, without being opened again."""
    store = ZookeeperTurnStore(read_place(url))
    before = store.coordinator_id()
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 0) == "done"
    client = KazooClient(hosts=node.address)
    client.start()
    client.delete(read_place(url).root, recursive=True)
    assert store.read(LOCK).record is None
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 1) == "stale"
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 0) == "done"
    assert store.coordinator_id() != before
    store.close()
    client.stop()
    client.close()


def test_a_newer_record_is_refused_and_a_damaged_one_named(url: str, node: ZookeeperNode) -> None:
    """Neither is ever overwritten by an older version."""
    store = ZookeeperTurnStore(read_place(url))
    store.compare_and_set("L", begin_record("L", Epoch(5)), 0)
    client = KazooClient(hosts=node.address)
    client.start()
    for text, error in ((b'{"format": 2}', InvalidRequest), (b"{}", Corrupt)):
        client.set(f"{read_place(url).root}/locks/L", text)
        with pytest.raises(error):
            store.read("L")
    store.close()
    client.stop()
    client.close()


def test_names_that_are_no_names_of_nodes_are_locks_all_the_same(url: str) -> None:
    """Dots, slashes, letters of any alphabet."""
    store = ZookeeperTurnStore(read_place(url))
    names = (".", "..", "a/b", "ü %2F", "zookeeper")
    for name in names:
        assert store.compare_and_set(name, begin_record(name, Epoch(1)), 0) == "done"
        store.open_session(name, JobName(name)).close()
    assert store.locks() == tuple(sorted(names))
    store.close()


def test_an_absent_server_is_reported_within_the_time_of_a_call() -> None:
    """Which server, and that nothing was done."""
    (port,) = free_ports(1)
    begun_s = time.monotonic()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        ZookeeperTurnStore(read_place(f"zookeeper://127.0.0.1:{port}/x?call_timeout=1s"))
    assert time.monotonic() - begun_s < 15


@pytest.mark.slow
def test_a_call_has_one_deadline_whatever_it_does(url: str, node: ZookeeperNode) -> None:
    """A network that swallows everything costs the time of one call, not of each attempt."""
    with Proxy(node.port) as network:
        place = replace(read_place(url), hosts=(network.address,), call_timeout_ms=1000)
        store = ZookeeperTurnStore(place)
        record = begin_record(LOCK, Epoch(1))
        assert store.compare_and_set(LOCK, record, 0) == "done"
        network.be("blackhole")
        calls: list[Callable[[], object]] = [
            lambda: store.read(LOCK),
            lambda: store.live_sessions(LOCK),
            store.locks,
            store.coordinator_id,
            lambda: store.open_session(LOCK, JobName("job")),
        ]
        for call in calls:
            begun_s = time.monotonic()
            with pytest.raises(Unavailable):
                call()
            assert time.monotonic() - begun_s < 5
        begun_s = time.monotonic()
        assert store.compare_and_set(LOCK, record, 1) == "unknown"
        store.wait_for_change(LOCK, 1, 0.5)
        assert time.monotonic() - begun_s < 5
        network.be("pass")
        store.close()


# ----------------------------------------------------------------------------------------------- who may, and by what way


def test_nodes_of_one_user_are_closed_to_others(node: ZookeeperNode) -> None:
    """With `auth=digest` what is made belongs to the user; a wrong password may neither read nor write."""
    root = uuid.uuid4().hex
    url = f"zookeeper://{node.address}/{root}?auth=digest&user=etl"
    owner = ZookeeperTurnStore(read_place(url), Secrets(password="right"))
    assert owner.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), 0) == "done"
    for other in (f"{url}", f"zookeeper://{node.address}/{root}"):
        with pytest.raises(InvalidRequest, match="does not allow"):
            ZookeeperTurnStore(read_place(other), Secrets(password="wrong"))
    assert owner.read(LOCK).version == 1
    owner.close()


def test_sasl_lets_the_right_user_in(java_from: JavaSources, tmp_path: Path) -> None:
    """And tells the wrong one apart from a server that does not answer."""
    jaas = tmp_path / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Server {{ {module} required user_etl="right"; }};\n')
    more = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
    # A server in FIPS mode, the default since 3.9, has no DIGEST-MD5.
    flags = ["-Dzookeeper.fips-mode=false", f"-Djava.security.auth.login.config={jaas}"]
    with zookeeper(tmp_path, java=java_from, more=more, flags=flags) as (node,):
        place = read_place(f"zookeeper://{node.address}/x?auth=sasl&user=etl&call_timeout=5s")
        store = ZookeeperTurnStore(place, Secrets(password="right"))
        assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), 0) == "done"
        session = store.open_session(LOCK, JobName("job"))
        assert session.heartbeat()
        with pytest.raises(InvalidRequest, match="refused this user"):
            ZookeeperTurnStore(place, Secrets(password="wrong"))
        with pytest.raises(InvalidRequest, match="does not allow"):
            ZookeeperTurnStore(read_place(f"zookeeper://{node.address}/x"))
        store.close()


@pytest.mark.slow
def test_tls_accepts_only_a_server_with_a_valid_certificate(java_from: JavaSources, tmp_path: Path) -> None:
    """Its certificate must be of the given authority, and for its name."""
    keytool = find_java(java_from).home / "bin" / "keytool"

    def certificate(name: str, subject: str) -> tuple[Path, Path]:
        store, pem = tmp_path / f"{name}.p12", tmp_path / f"{name}.pem"
        common = ["-keystore", str(store), "-storepass", "secret", "-alias", "server"]
        options = ["-keyalg", "RSA", "-dname", f"CN={name}", "-ext", f"SAN={subject}", "-validity", "10"]
        subprocess.run(
            [keytool, "-genkeypair", *options, "-storetype", "PKCS12", *common], check=True, capture_output=True
        )
        subprocess.run([keytool, "-exportcert", "-rfc", "-file", str(pem), *common], check=True, capture_output=True)
        return store, pem

    ours, authority = certificate("ours", "IP:127.0.0.1")
    _, stranger = certificate("stranger", "IP:127.0.0.1")
    elsewhere, of_elsewhere = certificate("elsewhere", "IP:127.0.0.2")
    for key_store, ca, is_right in ((ours, authority, True), (ours, stranger, False), (elsewhere, of_elsewhere, False)):
        (port,) = free_ports(1)
        more = (
            f"secureClientPort={port}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={key_store}\nssl.keyStore.password=secret\nssl.clientAuth=none\n"
        )
        with zookeeper(tmp_path / uuid.uuid4().hex, java=java_from, more=more):
            place = read_place(f"zookeeper://127.0.0.1:{port}/x?tls=true&ca={ca}&call_timeout=5s")
            if is_right:
                store = ZookeeperTurnStore(place)
                assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), 0) == "done"
                store.close()
            else:
                with pytest.raises(Unavailable, match="certificate"):
                    ZookeeperTurnStore(replace(place, call_timeout_ms=2000))


def test_without_the_driver_the_extra_is_named() -> None:
    """The error names the `pip install` command, without a traceback."""
    code = (
        "import sys; sys.modules['kazoo'] = None\n"
        "from lakegate.errors import MissingExtra\n"
        "try: import lakegate.turns.stores.zookeeper\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'lakegate[zookeeper]'" in said
