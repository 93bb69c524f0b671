"""Processes that are killed and stopped, a server that stands still, networks that break: real ones, on one DynamoDB.

After each fault: no two turns overlap, epochs rise, and nothing is left that holds the others up.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import contender
from harness.proxy import Proxy
from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault
from lakegate.errors import LakegateError, TurnNotGranted
from tests.turns.contenders import LOCK, World

LEASE_S = 4.0
DAY_S = 86_400


@pytest.fixture
def network(aws: AwsServer) -> Iterator[Proxy]:
    """The way of one contender to the server."""
    with Proxy(aws.port) as proxy:
        yield proxy


@pytest.fixture
def world(aws: AwsServer, tmp_path: Path, aws_credentials: None) -> Iterator[World]:
    """A table of its own."""
    table = f"turns-{uuid.uuid4().hex}"

    def url(network: Proxy | None) -> str:
        endpoint = aws.endpoint if network is None else f"http://{network.address}"
        return f"dynamodb://{table}?region={REGION}&endpoint={endpoint}&create=true&session_timeout=4s&call_timeout=3s"

    with World(url, tmp_path, lease_s=LEASE_S) as made:
        yield made
    os.kill(aws.pid, signal.SIGCONT)  # a test that failed may have left it standing


@pytest.mark.slow
def test_a_killed_holder_is_followed_after_its_lease_whatever_the_clocks_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower whose clock is a day ahead does not take the turn of the living; one a day behind gets that of the dead."""
    holder = world.start("holder", turns=1, lines=1000)
    holder.waits_for("wrote 2")
    real = time.time, time.time_ns
    store = contender.store_of(world.url(None))
    run = contender.coordinator(store, LOCK, "follower", timeout_s=1.25 * LEASE_S)
    monkeypatch.setattr(time, "time", lambda: real[0]() + DAY_S)
    monkeypatch.setattr(time, "time_ns", lambda: real[1]() + DAY_S * 10**9)
    with pytest.raises(TurnNotGranted, match="holder has the turn"):
        contender.take(run)
    monkeypatch.setattr(time, "time", lambda: real[0]() - DAY_S)
    monkeypatch.setattr(time, "time_ns", lambda: real[1]() - DAY_S * 10**9)
    holder.send(signal.SIGKILL)
    killed_s = time.monotonic()
    run = contender.coordinator(store, LOCK, "follower 2", timeout_s=5 * LEASE_S)
    turn = contender.take(run)
    # The last heartbeat was sent up to a fifth of a lease before the end.
    assert time.monotonic() - killed_s > 0.7 * LEASE_S
    assert turn.epoch > contender.read(world.journal)[-1].epoch
    turn.complete()
    run.close()
    store.close()
    world.check()


@pytest.mark.matrix
def test_a_holder_that_was_stopped_past_its_lease_writes_nothing_when_it_goes_on(world: World) -> None:
    """Its first look at the clock says so; it is granted a later turn afterwards."""
    holder = world.start("holder", turns=1, lines=1000, pause_s=0.1)
    holder.waits_for("wrote 2")
    follower = world.start("follower", turns=2)
    follower.waits_for("open")
    # Between two lines: stopped between its look at the clock and the line that follows, it would write that line.
    holder.waits_for("wrote", count=len(holder.lines("wrote")) + 1)
    holder.send(signal.SIGSTOP)
    follower.waits_for("done")
    before = contender.read(world.journal)
    holder.send(signal.SIGCONT)
    assert "LostTurn" in holder.waits_for("failed")
    holder.waits_for("granted", count=2)
    after = contender.read(world.journal)[len(before) :]
    assert all(line.epoch > before[-1].epoch for line in after if line.job == "holder")
    world.check()


def test_a_holder_whose_network_is_cut_fences_itself_before_anybody_follows(world: World, network: Proxy) -> None:
    """It gets no error: the packets vanish. Writing pauses, then the turn is given up at 0.8 of the lease."""
    holder = world.start("holder", turns=1, lines=10_000, network=network)
    holder.waits_for("wrote 2")
    follower = world.start("follower", turns=2)
    follower.waits_for("open")
    cut_s = time.monotonic()
    network.be("blackhole")
    lost_s = float(holder.waits_for("lost at").split()[2].rstrip(":"))
    assert lost_s - cut_s < LEASE_S
    follower.waits_for("done")
    assert lost_s < next(line for line in contender.read(world.journal) if line.job == "follower").at_s
    network.be("pass")
    holder.waits_for("granted", count=2)
    world.check()


@pytest.mark.matrix
def test_a_server_that_stands_still_costs_a_pause_or_a_turn_and_nothing_else(world: World, aws: AwsServer) -> None:
    """Within the lease the turn goes on; past it, it is given up in time. What was under way then is carried out late."""
    jobs = [world.start(f"job-{n}", turns=1000) for n in range(3)]

    def all_get_turns() -> None:
        for job in jobs:
            job.waits_for("completed", count=len(job.lines("completed")) + 2)

    all_get_turns()
    os.kill(aws.pid, signal.SIGSTOP)
    time.sleep(0.3 * LEASE_S)
    os.kill(aws.pid, signal.SIGCONT)
    all_get_turns()
    assert not [job.lines("lost") for job in jobs if job.lines("lost")]
    os.kill(aws.pid, signal.SIGSTOP)
    time.sleep(LEASE_S)  # any holder has given its turn up by now
    wrote = len(contender.read(world.journal))
    time.sleep(0.5 * LEASE_S)
    assert len(contender.read(world.journal)) == wrote, "somebody got a turn from a server that stands still"
    os.kill(aws.pid, signal.SIGCONT)
    all_get_turns()
    world.check()


@pytest.mark.matrix
def test_turns_go_on_while_answers_are_lost_and_requests_are_throttled(world: World, aws: AwsServer) -> None:
    """Each seventh change loses its answer, each eleventh request is throttled, and more: no turn is given twice."""
    faults = [
        InjectedFault("lose_reply", kind="PutItem|UpdateItem|DeleteItem", each=7, times=None),
        InjectedFault("lose_request", each=13, times=None),
        InjectedFault("error_before", each=11, times=None, status=400, code="ProvisionedThroughputExceededException"),
        InjectedFault("error_after", kind="PutItem", each=5, times=None, status=500, code="InternalServerError"),
        InjectedFault("error_before", each=17, times=None, status=503, code="ServiceUnavailable"),
    ]
    aws.fail(*faults)
    aws.forget_requests()
    jobs = [world.start(f"job-{n}", turns=5) for n in range(3)]
    for job in jobs:
        job.waits_for("done", timeout_s=90)
    met = {request.fault for request in aws.requests()}
    assert met >= {fault.what for fault in faults}
    world.check()
    assert len({line.epoch for line in contender.read(world.journal)}) >= 15
    aws.heal()
    world.check_no_ghost()


@pytest.mark.matrix
def test_giving_up_while_the_network_breaks_leaves_no_ghost(world: World, network: Proxy) -> None:
    """The one that gave up lives on, and its network comes back: its ticket must not."""
    holder = world.start("holder", turns=1, lines=60, pause_s=0.05)
    holder.waits_for("wrote 0")
    store = contender.store_of(world.url(network))
    giving_up = contender.coordinator(store, LOCK, "giving up", timeout_s=1.0)
    giving_up.open()
    network.be("lose_replies")
    with pytest.raises(LakegateError):  # TurnNotGranted, LostTurn or Unavailable: by what came first
        contender.take(giving_up)
    network.be("pass")
    behind = world.start("behind", turns=1)
    behind.waits_for("done")
    giving_up.close()
    store.close()
    world.check()
