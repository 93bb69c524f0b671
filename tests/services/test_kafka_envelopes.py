"""Debezium's envelopes from a real broker: partitions, transactions that lie across them, and what cannot be read."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from harness.changes import scenarios
from lakegate.config import parse
from lakegate.demo.database_servers import fresh_sqlite
from lakegate.errors import CheckpointMismatch, Corrupt, Unavailable
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.session import Carrier, SyncSession
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_kafka import EnvelopeTopics
from tests.cli.command import lakegate
from tests.syncs.envelopes import envelopes
from tests.syncs.target_databases import begin, expected, state

pytestmark = pytest.mark.slow

PARTITIONS = 3


def make(servers: str, *topics: str) -> AdminClient:
    """Topics with several partitions, but for that of transactions."""
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [NewTopic(one, 1 if one.endswith("transaction") else PARTITIONS) for one in topics]
    for made in admin.create_topics(wanted).values():
        made.result(20)
    return admin


def send(servers: str, topic: str, messages: list[Any]) -> None:
    """Messages to the partitions of their keys."""
    producer = Producer({"bootstrap.servers": servers})
    for one in messages:
        image = one.get("after") or one.get("before") if one else None
        place = hash(str(image.get("id"))) % PARTITIONS if image else 0
        producer.produce(topic, key=json.dumps(image), value=None if one is None else json.dumps(one), partition=place)
    assert producer.flush(30) == 0


def reader(servers: str, prefix: str, *, transactions: bool = True) -> DebeziumChanges:
    """The source."""
    logs = EnvelopeTopics(
        topics=[f"{prefix}.s.t"], servers=servers, transactions=f"{prefix}.transaction" if transactions else None,
        options={}, group=prefix,
    )  # fmt: skip
    return DebeziumChanges(logs=logs)


@pytest.mark.kafka
def test_a_recorded_history_ends_as_at_the_source(kafka_servers: str, cdc_data: Path, tmp_path: Path) -> None:
    """Its rows in three partitions, its transactions whole, killed and gone on; the file's command does the same."""
    prefix = f"p{uuid.uuid4().hex}"
    scenario = next(one for one in scenarios(cdc_data / "scenarios.json") if one.id == "mix-2")
    database = fresh_sqlite(tmp_path)
    begin(database, scenario)
    make(kafka_servers, f"{prefix}.s.t", f"{prefix}.transaction")
    target = database.target()
    keys = {name: table.identity for name, table in target.tables(scenario.tables).items()}
    data, ends = envelopes(scenario, keys, "none")
    send(kafka_servers, f"{prefix}.s.t", [None, *data[:100], *data[80:200]])
    producer = Producer({"bootstrap.servers": kafka_servers})
    for end in ends:
        producer.produce(f"{prefix}.transaction", value=json.dumps(end))
    assert producer.flush(30) == 0
    source = reader(kafka_servers, prefix)
    assert source.fingerprint() == source.fingerprint()
    going = run(source, target, stream="p/crm", settings=SyncSettings(changes_max=20))
    first = next(going)
    going.close()  # as if it had been killed: batches that were read and not applied are read again
    more = list(run(source, target, stream="p/crm", settings=SyncSettings(changes_max=20)))
    assert more[-1].through < 200
    assert more[0].batch == first.batch + 1
    send(kafka_servers, f"{prefix}.s.t", data[200:])
    source.close()
    target.close()
    (tmp_path / "lakegate.yml").write_text(
        f"name: p\nsync:\n  crm:\n    from: {{kafka: {prefix}.s.t, servers: '{kafka_servers}', "
        f"transactions: {prefix}.transaction}}\n    to: 'sqlite:{next(tmp_path.glob('*.db'))}'\n"
    )
    ran = lakegate("sync", "run", "--once", "--spec", tmp_path, "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.json["syncs"][0]["position"] == len(data) - 1
    assert state(database, list(scenario.final)) == expected(scenario)


@pytest.mark.kafka
def test_retention_loses_nothing_that_was_read(kafka_servers: str) -> None:
    """The topic's last message is a tombstone, and another partition is empty from the beginning: both begin later on."""
    prefix = f"p{uuid.uuid4().hex}"
    topic = f"{prefix}.s.t"
    admin = make(kafka_servers, topic)
    row = {"source": {"table": "t", "schema": "s"}}
    values = [{**row, "op": "c", "after": {"id": 1}}, {**row, "op": "d", "before": {"id": 1}}, None]
    producer = Producer({"bootstrap.servers": kafka_servers})
    for partition in (0, 1):
        for value in values:
            producer.produce(topic, value=None if value is None else json.dumps(value), partition=partition)
    assert producer.flush(30) == 0
    source = reader(kafka_servers, prefix, transactions=False)
    for partition in (0, 1):
        for deleted in admin.delete_records([TopicPartition(topic, partition, 3)]).values():
            deleted.result(20)
        if partition == 0:
            last = list(source.transactions(-1))[-1][-1]
            assert last.op == "d"
    assert list(source.transactions(last.seq, last.place)) == []
    source.close()


@pytest.mark.kafka
def test_an_idle_sync_takes_a_message_as_it_comes(kafka_servers: str, tmp_path: Path) -> None:
    """The client notices it between two passes. Nothing is noticed twice."""
    prefix = f"p{uuid.uuid4().hex}"
    make(kafka_servers, f"{prefix}.s.t")
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    text = (
        f"name: p\nsync:\n  crm:\n    from: {{kafka: {prefix}.s.t, servers: '{kafka_servers}', format: debezium}}\n"
        f"    to: 'sqlite:{next(tmp_path.glob('*.db'))}'\n"
    )
    pipeline = parse(text, origin="lakegate.yml", base_dir=str(tmp_path), environ={})
    delays_ms = []
    with SyncSession(pipeline, pipeline.sync("crm")) as sync:
        carrier = Carrier(sync, is_patient_from_the_start=True)
        assert list(carrier.carry()) == []
        for n in range(3):
            assert not carrier.has_news()
            with SyncSession(pipeline, pipeline.sync("crm")) as other:
                assert other.delay().now_ms == 0
            send(
                kafka_servers,
                f"{prefix}.s.t",
                [{"op": "c", "after": {"id": n}, "source": {"table": "t", "schema": "s"}}],
            )
            with SyncSession(pipeline, pipeline.sync("crm")) as other:
                now_ms = other.delay().now_ms  # by the broker's clock: the message says nothing
                assert now_ms is not None
                assert now_ms > 0
            until_s = time.monotonic() + 30
            while not carrier.has_news():
                assert time.monotonic() < until_s
                time.sleep(0.01)
            (applied,) = carrier.carry()
            ((at_ms, count),) = applied.commits.items()
            assert count == 1
            delays_ms.append(applied.committed_at_ms - at_ms)
        assert sync.delay().changes == 3
    assert all(0 < one < 60_000 for one in delays_ms)
    assert database.query("SELECT count(*) FROM t") == [(3,)]


@pytest.mark.kafka
def test_a_pass_waits_for_no_second_message(kafka_servers: str) -> None:
    """A call that does takes at least a second, each time."""
    prefix, after, place, took_s = f"p{uuid.uuid4().hex}", -1, None, []
    make(kafka_servers, f"{prefix}.s.t")
    source = reader(kafka_servers, prefix, transactions=False)
    for n in range(5):
        send(kafka_servers, f"{prefix}.s.t", [{"op": "c", "after": {"id": n}, "source": {"table": "t", "schema": "s"}}])
        begun_s = time.monotonic()
        ((change,),) = source.transactions(after, place)
        took_s.append(time.monotonic() - begun_s)
        assert change.after == {"id": n}
        after, place = change.seq, change.place
    source.close()
    assert min(took_s) < 0.9, took_s


@pytest.mark.kafka
def test_messages_that_arrive_while_others_are_read_come_once(
    kafka_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within passes and between them, also those of full partitions; some passes are given up, and begin again where they were."""
    monkeypatch.setattr("lakegate.syncs.sources.debezium_kafka.HELD_MAX", 50)
    prefix, count, chance = f"p{uuid.uuid4().hex}", 6_000, random.Random(5)
    topic = f"{prefix}.s.t"
    make(kafka_servers, topic)
    row = {"op": "c", "source": {"table": "t", "schema": "s"}}

    def write() -> None:
        producer = Producer({"bootstrap.servers": kafka_servers, "linger.ms": 0})
        for n in range(count):
            producer.produce(topic, value=json.dumps({**row, "after": {"id": n}}), partition=n % PARTITIONS)
            if n % 20 == 0:
                producer.flush(30)
        assert producer.flush(30) == 0

    source = reader(kafka_servers, prefix, transactions=False)
    came, after, place = [], -1, None
    until_s = time.monotonic() + 60
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while len(came) < count:
        assert time.monotonic() < until_s, sorted(set(range(count)) - set(came))
        ends_after = chance.choice([3, 40, 400, 2_000])
        for n, group in enumerate(source.transactions(after, place)):
            came += [change.after["id"] for change in group if change.after is not None]
            after, place = group[-1].seq, group[-1].place
            if n == ends_after:
                break
    writer.join()
    assert sorted(came) == list(range(count))
    for partition in range(PARTITIONS):
        mine = [n for n in came if n % PARTITIONS == partition]
        assert mine == sorted(mine)
    source.close()


@pytest.mark.matrix
@pytest.mark.kafka
def test_what_cannot_be_read_is_named(kafka_servers: str, tmp_path: Path) -> None:
    """A bad message by topic, partition and offset; messages that were deleted before they were read; no broker."""
    prefix = f"p{uuid.uuid4().hex}"
    topic = f"{prefix}.s.t"
    admin = make(kafka_servers, topic)
    row = {"op": "c", "after": {"id": 1}, "source": {"table": "t", "schema": "s"}}
    producer = Producer({"bootstrap.servers": kafka_servers})
    for value in (json.dumps(row), json.dumps(row), "{not json"):
        producer.produce(topic, value=value, partition=1)
    assert producer.flush(30) == 0
    source = reader(kafka_servers, prefix, transactions=False)
    going = source.transactions(-1)
    ((first,), (_,)) = next(going), next(going)
    with pytest.raises(Corrupt, match=rf"it is not JSON.*topic={topic} partition=1 offset=2"):
        next(going)

    elsewhere = json.dumps({**json.loads(first.place), "at": "another-cluster"})
    with pytest.raises(CheckpointMismatch, match="it is of debezium at another-cluster"):
        next(source.transactions(first.seq, elsewhere))

    for deleted in admin.delete_records([TopicPartition(topic, 1, 2)]).values():
        deleted.result(20)
    with pytest.raises(
        CheckpointMismatch, match=rf"deleted before they were read.*topic={topic} partition=1 next=1 first=2"
    ):
        next(source.transactions(first.seq, first.place))
    source.close()
    absent, silent = reader(kafka_servers, "absent", transactions=False), reader("127.0.0.1:1", "x")
    for wrong, says in ((absent, "no such topic"), (silent, "does not answer")):
        with pytest.raises(Unavailable, match=says):
            wrong.fingerprint()
        wrong.close()


@pytest.mark.matrix
@pytest.mark.kafka
def test_a_recreated_topic_or_a_trimmed_partition_is_reported(kafka_servers: str) -> None:
    """Its offsets mean other messages, though there are as many; of a partition that was added, what it lost was never read."""
    prefix = f"p{uuid.uuid4().hex}"
    topic = f"{prefix}.s.t"
    admin = make(kafka_servers, topic)
    row = {"op": "c", "source": {"table": "t", "schema": "s"}}
    send(kafka_servers, topic, [{**row, "after": {"id": n}} for n in range(20)])
    source = reader(kafka_servers, prefix, transactions=False)
    last = list(source.transactions(-1))[-1][-1]
    assert last.seq == 19
    for made in admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]).values():
        made.result(20)
    producer = Producer({"bootstrap.servers": kafka_servers})
    for n in (100, 101):
        producer.produce(topic, value=json.dumps({**row, "after": {"id": n}}), partition=PARTITIONS)
    assert producer.flush(30) == 0
    assert len(list(source.transactions(last.seq, last.place))) == 2
    for deleted in admin.delete_records([TopicPartition(topic, PARTITIONS, 1)]).values():
        deleted.result(20)
    with pytest.raises(
        CheckpointMismatch, match=f"deleted before they were read.*partition={PARTITIONS} next=0 first=1"
    ):
        list(source.transactions(last.seq, last.place))
    for gone in admin.delete_topics([topic]).values():
        gone.result(20)
    time.sleep(1)
    make(kafka_servers, topic)
    send(kafka_servers, topic, [{**row, "after": {"id": n}} for n in range(200, 240)])
    with pytest.raises(CheckpointMismatch, match=f"deleted and made again.*topic={topic}"):
        list(source.transactions(last.seq, last.place))
    source.close()
