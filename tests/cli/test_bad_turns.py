"""Coordinators that cannot be used as they are named: one message, the exit status for it, and nothing was run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lakegate.config.zookeeper import read_place
from lakegate.demo.servers import free_ports, zookeeper
from lakegate.ids import Epoch
from lakegate.spark.java import JavaSources
from lakegate.turns.protocol.transitions import begin_record
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore
from lakegate.turns.stores.zookeeper_client import Secrets
from tests.cli.command import Ran, lakegate


def turn(url: str, root: Path) -> Ran:
    """`lakegate turn` with a program that would leave a file."""
    place = ("--lock", "L", "--job", "J", "--timeout", "5s", "--coordinator", url)
    return lakegate("turn", *place, "--", "touch", root / "was-run")


@pytest.mark.zookeeper
def test_an_unusable_coordinator_is_reported_and_nothing_is_run(
    java_from: JavaSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreachable, a chroot that is no path, missing permission, another user, a timeout out of bounds, a newer record.

    A chroot that is a path, and another one than the table was governed with, is refused where there is a table: see
    tests/acceptance/test_turns_on_spark.py.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEGATE_ZOOKEEPER_PASSWORD", "wrong")
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with zookeeper(tmp_path, java=java_from, more="maxSessionTimeout=20000\n") as (node,):
        closed = ZookeeperTurnStore(
            read_place(f"zookeeper://{node.address}/closed?auth=digest&user=etl"), Secrets(password="right")
        )
        newer = ZookeeperTurnStore(read_place(f"zookeeper://{node.address}/newer"))
        assert newer.compare_and_set("L", begin_record("L", Epoch(1)), 0) == "done"
        client = KazooClient(hosts=node.address)
        client.start()
        client.set("/newer/locks/L", b'{"format": 2}')
        client.stop()
        before = closed.read("L")
        for url, code, told in (
            (f"zookeeper://{nobody}/x?call_timeout=1s", 6, "does not answer"),
            (f"zookeeper://{node.address}/a//b", 2, "chroot"),
            (f"zookeeper://{node.address}/closed", 2, "does not allow this under /closed"),
            (f"zookeeper://{node.address}/closed?auth=digest&user=etl", 2, "does not allow this under /closed"),
            (f"zookeeper://{node.address}/x?session_timeout=60s", 2, "session_timeout=60s but 20s"),
            (f"zookeeper://{node.address}/newer", 2, "newer"),
        ):
            ran = turn(url, tmp_path)
            assert (ran.code, told in ran.err) == (code, True), (url, ran)
            assert "Traceback" not in ran.err
        assert not (tmp_path / "was-run").exists()
        assert closed.read("L") == before
        assert turn(f"zookeeper://{node.address}/x", tmp_path).code == 0
        assert (tmp_path / "was-run").exists()
        closed.close()
        newer.close()
    assert connections() == 0


def connections() -> int:
    """kazoo's threads of this process, which draw numbers, and keep a session at the server, as long as they live."""
    return sum("zk_loop" in thread.name for thread in threading.enumerate())


SPEC = """
name: crm
storage: ./storage
coordinator: {{url: "{url}"}}
tables: {{t: {{path: ./t}}}}
streams:
  S: {{table: t, source: {{files: ./in, format: json, schema: "a INT"}}, append: {{on_duplicate: allow}}}}
"""


@pytest.mark.zookeeper
def test_commands_that_look_and_act_give_their_connection_up(
    java_from: JavaSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status --watch` and `metrics` ask again and again, for days."""
    monkeypatch.chdir(tmp_path)
    with zookeeper(tmp_path, java=java_from) as (node,):
        (tmp_path / "lakegate.yml").write_text(SPEC.format(url=f"zookeeper://{node.address}/x"))
        (tmp_path / "in").mkdir()
        for words in (("status",), ("locks",), ("check",), ("pause", "S", "--reason", "a test")):
            ran = lakegate(*words)
            assert "Traceback" not in ran.err, ran
            assert (words, connections()) == (words, 0)
        assert "nothing was changed" in ran.err, "no job has asked for a turn yet"
