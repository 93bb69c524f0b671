"""Processes that are killed and stopped, servers that restart, networks that break: real ones, on one ZooKeeper.

After each fault: no two turns overlap, epochs rise, and nothing is left that holds the others up.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import contender
from harness.proxy import Proxy
from lakegate.config.zookeeper import read_place
from lakegate.demo.servers import ZookeeperNode, zookeeper
from lakegate.errors import LostTurn, Unavailable
from lakegate.spark.java import JavaSources
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore
from tests.turns.contenders import LOCK, World

pytestmark = pytest.mark.zookeeper

LEASE_S = 4.0


@pytest.fixture(scope="module")
def node(java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperNode]:
    """The server of this module."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper"), java=java_from) as (node,):
        yield node


@pytest.fixture
def network(node: ZookeeperNode) -> Iterator[Proxy]:
    """The way of one contender to the server."""
    with Proxy(node.port, delay_s=0.1) as proxy:
        yield proxy


@pytest.fixture
def world(node: ZookeeperNode, tmp_path: Path) -> Iterator[World]:
    """A root of its own, and the processes that were started, ended by their own ids."""
    if not node.mode():  # a test that failed may have left it dead
        node.start()
        node.wait()
    root = uuid.uuid4().hex

    def url(network: Proxy | None) -> str:
        address = node.address if network is None else network.address
        return f"zookeeper://{address}/{root}?session_timeout=4s&call_timeout=8s"

    with World(url, tmp_path, lease_s=LEASE_S) as made:
        yield made


@pytest.mark.slow
def test_a_holder_that_is_killed_is_followed_after_its_lease(world: World) -> None:
    """Not before: a killed holder looks like a slow one."""
    holder = world.start("holder", turns=1, lines=1000)
    holder.waits_for("wrote 2")
    follower = world.start("follower", turns=3)
    time.sleep(0.5)
    killed_s = time.monotonic()
    holder.send(signal.SIGKILL)
    follower.waits_for("done")
    first = next(line for line in contender.read(world.journal) if line.job == "follower")
    assert 0.5 * LEASE_S < first.at_s - killed_s < 3 * LEASE_S
    world.check()
    world.check_no_ghost()


@pytest.mark.slow
def test_a_holder_that_was_stopped_past_its_lease_writes_nothing_when_it_goes_on(world: World) -> None:
    """Its first look at the clock says so; it is granted a later turn afterwards."""
    holder = world.start("holder", turns=1, lines=40, pause_s=0.1)
    holder.waits_for("wrote 2")
    follower = world.start("follower", turns=2)
    time.sleep(0.5)
    # Between two lines: stopped between its look at the clock and the line that follows, it would write that line.
    holder.waits_for("wrote", count=len(holder.lines("wrote")) + 1)
    holder.send(signal.SIGSTOP)
    follower.waits_for("done")
    before = len(contender.read(world.journal))
    holder.send(signal.SIGCONT)
    holder.waits_for("failed")
    assert "LostTurn" in holder.lines("failed")[0]
    holder.waits_for("granted", count=2)
    after = contender.read(world.journal)[before:]
    assert all(line.epoch > 1026 for line in after if line.job == "holder")
    world.check()
    world.check_no_ghost()


def test_a_holder_whose_network_is_cut_fences_itself_before_anybody_follows(world: World, network: Proxy) -> None:
    """It gets no error: the packets vanish. Writing pauses, then the turn is given up at 0.8 of the lease."""
    holder = world.start("holder", turns=1, lines=10_000, network=network)
    holder.waits_for("wrote 2")
    follower = world.start("follower", turns=2)
    time.sleep(0.5)
    cut_s = time.monotonic()
    network.be("blackhole")
    lost_s = float(holder.waits_for("lost at").split()[2].rstrip(":"))
    assert lost_s - cut_s < LEASE_S
    follower.waits_for("done")
    first = next(line for line in contender.read(world.journal) if line.job == "follower")
    assert lost_s < first.at_s
    network.be("pass")
    holder.waits_for("granted", count=2)
    world.check()
    world.check_no_ghost()


@pytest.mark.slow
def test_a_short_cut_of_the_network_costs_a_pause_and_no_turn(world: World, network: Proxy) -> None:
    """While the connection is known to be gone nothing is written; the same turn goes on afterwards."""
    holder = world.start("holder", turns=1, lines=60, pause_s=0.03, network=network)
    holder.waits_for("wrote 5")
    network.be("refuse")
    time.sleep(0.2)
    said = len(holder.lines("wrote"))
    time.sleep(0.8)
    assert len(holder.lines("wrote")) <= said + 1, "it went on writing"
    network.be("pass")
    holder.waits_for("done")
    assert len(holder.lines("granted")) == 1
    assert not holder.lines("lost")
    world.check()
    world.check_no_ghost()


@pytest.mark.matrix
def test_a_slow_network_makes_turns_slow_and_loses_none(world: World, network: Proxy) -> None:
    """0.1 s in each direction, at each of the questions that a turn asks."""
    network.be("delay")
    slow = world.start("slow", turns=2, network=network)
    fast = world.start("fast", turns=5)
    slow.waits_for("done")
    fast.waits_for("done")
    assert not slow.lines("lost")
    world.check()
    world.check_no_ghost()


@pytest.mark.matrix
def test_waiters_outlive_a_restart_of_the_server(world: World, node: ZookeeperNode) -> None:
    """Killed and started again within the lease: the holder keeps its turn and the others their places."""
    jobs = [world.start(f"job-{n}", turns=15, pause_s=0.05) for n in range(3)]
    for job in jobs:
        job.waits_for("granted")
    node.kill()
    time.sleep(0.3)
    node.start()
    node.wait()
    for job in jobs:
        job.waits_for("done")
    world.check()
    epochs = sorted({line.epoch for line in contender.read(world.journal)})
    assert len(epochs) >= 45
    world.check_no_ghost()


@pytest.mark.matrix
def test_turns_go_on_after_the_server_was_away_for_longer_than_a_lease(world: World, node: ZookeeperNode) -> None:
    """The holder gives its current turn up in time; an absent server grants none."""
    holder = world.start("holder", turns=1, lines=200, pause_s=0.05)
    holder.waits_for("wrote 2")
    waiting = world.start("waiting", turns=1)
    waiting.waits_for("open")
    node.kill()
    holder.waits_for("failed")
    waiting.waits_for("not granted")
    node.start()
    node.wait()
    holder.waits_for("done", timeout_s=90)
    waiting.waits_for("done", timeout_s=90)
    world.check()
    world.check_no_ghost()


@pytest.mark.slow
def test_a_session_that_expires_while_waiting_leaves_no_contender(world: World, network: Proxy) -> None:
    """Its ticket counts for nothing, so those behind it are served; it asks again itself when it is back."""
    holder = world.start("holder", turns=1, lines=200, pause_s=0.05)
    holder.waits_for("wrote 0")
    cut = world.start("cut", turns=1, network=network)
    cut.waits_for("open")
    time.sleep(0.5)
    network.be("blackhole")
    behind = world.start("behind", turns=1)
    behind.waits_for("done")
    assert not cut.lines("granted")
    network.be("pass")
    cut.waits_for("done")
    world.check()
    world.check_no_ghost()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "what", ["blackhole", *(pytest.param(what, marks=pytest.mark.matrix) for what in ("lose_replies", "refuse"))]
)
def test_giving_up_while_the_network_breaks_leaves_no_ghost(
    world: World, node: ZookeeperNode, network: Proxy, what: str
) -> None:
    """The one that gave up lives on, and its connection comes back: its ticket must not."""
    # For long: if the turn ended before the connection is back, the one behind would rightly get it, late as it is.
    holder = world.start("holder", turns=1, lines=200, pause_s=0.05)
    holder.waits_for("wrote 0")
    store = ZookeeperTurnStore(read_place(world.url(network)))
    giving_up = contender.coordinator(store, LOCK, "giving up", timeout_s=1.0)
    timer = threading.Timer(0.9, network.be, (what,))
    timer.start()
    heal = threading.Timer(2.5, network.be, ("pass",))
    heal.start()
    with pytest.raises(Exception):  # noqa: B017  # TurnNotGranted, LostTurn or Unavailable: by what came first
        contender.take(giving_up)
    timer.join()
    heal.join()
    behind = world.start("behind", turns=1)
    behind.waits_for("done", timeout_s=30)
    giving_up.close()
    store.close()
    world.check()
    world.check_no_ghost()


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_s", [0.0, 0.04, *(pytest.param(at_s, marks=pytest.mark.matrix) for at_s in (0.01, 0.02, 0.08, 0.16))]
)
def test_a_run_that_is_cut_off_while_it_registers_leaves_nothing(
    world: World, node: ZookeeperNode, network: Proxy, at_s: float
) -> None:
    """Between the making of its node and the answer, or anywhere near: the job can be started again at once or soon."""
    store = ZookeeperTurnStore(read_place(world.url(network)))
    timer = threading.Timer(at_s, network.be, ("lose_replies",))
    timer.start()
    heal = threading.Timer(at_s + 1.0, network.be, ("pass",))
    heal.start()
    run = contender.coordinator(store, LOCK, "job", timeout_s=20.0)
    registers(run.open)
    heal.join()
    timer.join()
    run.close()
    elsewhere = ZookeeperTurnStore(read_place(world.url(None)))
    again = contender.coordinator(elsewhere, LOCK, "job", timeout_s=20.0)
    contender.take(again).complete()
    again.close()
    assert elsewhere.live_sessions(LOCK).ids == frozenset()
    elsewhere.close()
    store.close()


def registers(open_run: Callable[[], None]) -> None:
    """Registers a run; the network may make it fail, but it may not hang."""
    begun_s = time.monotonic()
    with contextlib.suppress(Unavailable, LostTurn):
        open_run()
    assert time.monotonic() - begun_s < 20
