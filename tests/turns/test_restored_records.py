"""An older copy of a lock's record is put back while a process has its turn: no epoch is given twice, on every store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.contender import coordinator, faults, read, store_of, take
from lakegate.config.zookeeper import read_place
from lakegate.demo.aws_server import REGION, AwsServer
from lakegate.demo.servers import zookeeper
from lakegate.errors import Corrupt
from lakegate.spark.java import JavaSources
from lakegate.turns.stores.zookeeper import ZookeeperTurnStore

LOCK = "L"
Restore = Callable[[], Callable[[], None]]
"""Takes a copy of the record; what it returns puts the copy back."""


def copy_of_file(path: Path) -> Callable[[], None]:
    """A copy of the file, as a backup program makes one while nobody writes."""
    for name in ("turns.db", "turns.db-wal"):
        if (path / name).exists():
            shutil.copy(path / name, path / f"backup of {name}")

    def restore() -> None:
        # What belongs to the newer file would be applied to the older one.
        for name in ("turns.db-wal", "turns.db-shm"):
            (path / name).unlink(missing_ok=True)
        for name in ("turns.db-wal", "turns.db"):
            if (path / f"backup of {name}").exists():
                (path / f"backup of {name}").rename(path / name)

    return restore


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper), "dynamodb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Restore]]:
    """URL of a coordinator, and how a copy of its record is taken and put back."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'turns.db'}", lambda: copy_of_file(tmp_path)
    elif request.param == "zookeeper":
        java: JavaSources = request.getfixturevalue("java_from")
        with zookeeper(tmp_path / "zookeeper", java=java) as (node,):
            url = f"zookeeper://{node.address}/turns?session_timeout=10s"
            store = ZookeeperTurnStore(read_place(url))
            path = f"/turns/locks/{LOCK}"

            def copy_of_node() -> Callable[[], None]:
                data = store._connection._client.get(path)[0]
                return lambda: store._connection._client.set(path, data)

            yield url, copy_of_node
            store.close()
    else:
        request.getfixturevalue("aws_credentials")
        aws: AwsServer = request.getfixturevalue("aws")
        name = f"turns-{uuid.uuid4().hex}"
        options = f"region={REGION}&endpoint={aws.endpoint}&create=true&session_timeout=60s&call_timeout=10s"
        url = f"dynamodb://{name}?{options}"
        client = store_of(url)._table._client  # type: ignore[attr-defined]

        def copy_of_item() -> Callable[[], None]:
            key = {"part": {"S": "locks"}, "name": {"S": LOCK}}
            item = client.get_item(TableName=name, Key=key, ConsistentRead=True)["Item"]
            return lambda: client.put_item(TableName=name, Item=item)

        yield url, copy_of_item


def test_a_record_that_is_restored_while_a_process_has_its_turn_gives_no_epoch_twice(
    place: tuple[str, Restore], tmp_path: Path
) -> None:
    """The next turn lies above the one that the copy does not know, whose process writes nothing more once it has begun."""
    url, take_copy = place
    journal = tmp_path / "journal"
    store = store_of(url)
    first = coordinator(store, LOCK, "first", timeout_s=60)
    take(first).complete()
    restore = take_copy()
    arguments = [url, LOCK, "holder", str(journal), "1", "1000", "0.05", "60"]
    # One line of the child for each thing that happens to it; it has its turn when it writes.
    child = subprocess.Popen([sys.executable, "-m", "harness.contender", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        granted = next(int(line.split()[1]) for line in child.stdout if line.startswith("granted"))
        wait_until(lambda: len(read(journal)) >= 3)
        restore()
        turn = take(first)
        assert turn.epoch > granted
        time.sleep(1.2)  # a holder on a store of several machines asks once in a second
        began_s = time.monotonic()
        wait_until(lambda: any(line.startswith(f"failed {granted}") for line in child.stdout or ()))
        time.sleep(0.3)
        late = [line for line in read(journal) if line.epoch == granted and line.at_s > began_s]
        assert late == []
        turn.complete()
        # It asks again, and gets a turn above that.
        following = next(int(line.split()[1]) for line in child.stdout if line.startswith("granted"))
        assert following > turn.epoch
        wait_until(lambda: any(line.epoch == following for line in read(journal)))
        assert faults(journal) == []
    finally:
        child.kill()
        child.communicate()
        first.close()
        store.close()


def test_a_mark_that_is_damaged_is_named(tmp_path: Path) -> None:
    """With its path; nothing is granted past it."""
    run = coordinator(store_of(f"sqlite:{tmp_path / 'turns.db'}"), LOCK, "first", timeout_s=5)
    take(run).complete()
    mark = next((tmp_path / "turns.db.sessions").rglob("last turn"))
    assert json.loads(mark.read_text())["epoch"] == 1024
    for damaged in (b"{", b"[1]", b'{"epoch": "5", "nonce": 5}', os.urandom(40)):
        mark.write_bytes(damaged)
        with pytest.raises(Corrupt, match="last turn"):
            take(run)
    mark.unlink()
    assert take(run).epoch == 1025
    run.close()


def test_a_ledger_that_knows_a_later_turn_counts(tmp_path: Path) -> None:
    """Where the note was restored together with the record, or lost with it, the next turn is above the ledger's last."""
    store = store_of(f"sqlite:{tmp_path / 'turns.db'}")
    run = coordinator(store, LOCK, "first", timeout_s=5)
    take(run).complete()
    run._known_epoch = 4000
    assert take(run).epoch == 4000 + 1024
    run.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Returns once it is so."""
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s, "it never was so"
        time.sleep(0.02)
