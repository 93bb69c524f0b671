"""A stream from a real Kafka broker: every record once, bad records distinguished, and the offset of each known."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import lakegate
from lakegate.errors import CheckpointMismatch, InvalidRequest
from lakegate.ops.inspection import sources_of

SCHEMA = "id BIGINT, person STRING"


def send(servers: str, topic: str, values: list[str | None]) -> None:
    """Sends records to one topic, and waits until the broker has them."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value=value, partition=0)  # one partition has one order
    assert producer.flush(30) == 0


def records(start: int, count: int) -> list[str | None]:
    """JSON records with rising ids."""
    return [json.dumps({"id": id_, "person": f"p{id_ % 5}"}) for id_ in range(start, start + count)]


def pipeline(root: Path, servers: str, topic: str, **keys: object) -> lakegate.Pipeline:
    """An append stream and an erase stream, each with its topic."""
    made = lakegate.Pipeline("people", storage=str(root / "_lakegate"))
    table = made.table("people", path=str(root / "table"), lock="L")
    table.append(
        name="Ingestion",
        source=lakegate.kafka(f"{topic}.records", servers=servers, schema=SCHEMA),
        max_rows_per_batch=40,
        **keys,
    )
    table.erase(
        name="TTL",
        after="Ingestion",
        source=lakegate.kafka(f"{topic}.erasures", servers=servers, schema="person STRING"),
        match={"person": "person"},
    )
    return made


def ids(spark: SparkSession, root: Path) -> list[int]:
    """The ids in the table, sorted."""
    rows = spark.read.format("delta").load(str(root / "table")).select("id").toArrow()
    return sorted(rows["id"].to_pylist())


@pytest.mark.kafka
def test_two_topics_feed_two_streams_of_one_table(spark: SparkSession, kafka_servers: str, tmp_path: Path) -> None:
    """100 records in three batches; the erased person has no row, neither before nor after; new records go on from there."""
    topic = f"t{uuid.uuid4().hex}"
    send(kafka_servers, f"{topic}.records", records(0, 100))
    send(kafka_servers, f"{topic}.erasures", [json.dumps({"person": "p3"})])
    streams = pipeline(tmp_path, kafka_servers, topic)
    reports = streams.run(until_idle=True, spark=spark)
    assert ids(spark, tmp_path) == [id_ for id_ in range(100) if id_ % 5 != 3]
    assert reports["Ingestion"].batches >= 3
    send(kafka_servers, f"{topic}.records", records(100, 10))
    streams.run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == [id_ for id_ in range(110) if id_ % 5 != 3]


@pytest.mark.slow
@pytest.mark.kafka
def test_few_records_of_many_partitions_are_one_file(spark: SparkSession, kafka_servers: str, tmp_path: Path) -> None:
    """Spark reads each partition of a topic in a task of its own, and would write a file for each of them and each batch."""
    topic = f"t{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic(f"{topic}.records", 6)])[f"{topic}.records"].result(20)
    producer = Producer({"bootstrap.servers": kafka_servers})
    made = lakegate.Pipeline("people", storage=str(tmp_path / "_lakegate"))
    source = lakegate.kafka(f"{topic}.records", servers=kafka_servers, schema=SCHEMA)
    made.table("people", path=str(tmp_path / "table"), lock="L").append(name="Ingestion", source=source)
    for batches in (1, 2):
        for partition in range(6):
            producer.produce(f"{topic}.records", value=json.dumps({"id": partition}), partition=partition)
        assert producer.flush(30) == 0
        made.run(until_idle=True, spark=spark)
        assert len(ids(spark, tmp_path)) == 6 * batches
        assert len(spark.read.format("delta").load(str(tmp_path / "table")).inputFiles()) == batches


@pytest.mark.slow
@pytest.mark.kafka
def test_a_bad_record_is_named_by_topic_partition_and_offset(
    spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    """By default it stops the stream and nothing is written; as a dead letter it is kept with its text and its place."""
    topic = f"t{uuid.uuid4().hex}"
    send(kafka_servers, f"{topic}.records", [*records(0, 2), "{not json", *records(2, 1)])
    send(kafka_servers, f"{topic}.erasures", [])
    with pytest.raises(InvalidRequest, match=rf"{topic}\.records/0/2"):
        pipeline(tmp_path, kafka_servers, topic).run("Ingestion", once=True, spark=spark)
    assert not (tmp_path / "table").exists() or ids(spark, tmp_path) == []
    pipeline(tmp_path, kafka_servers, topic, on_bad_record="dead_letter").run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == [0, 1, 2]
    letters = spark.read.format("delta").load(str(tmp_path / "_lakegate/dead_letters/Ingestion")).collect()
    assert len(letters) == 1
    assert "{not json" in str(letters[0])
    assert f"{topic}.records/0/2" in str(letters[0])


@pytest.mark.slow
@pytest.mark.kafka
def test_what_a_topic_holds_is_read_or_refused_or_named(
    spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    """What is behind a message's first value, a tombstone, other fields; a record that its producer took back was never sent."""
    topic = f"t{uuid.uuid4().hex}"
    given = [*records(0, 1), '{"id": 1}{"id": 2}', '[{"id": 3}]', None, '{"id": 4, "city": "Oslo"}']
    send(kafka_servers, f"{topic}.records", given)
    producer = Producer({"bootstrap.servers": kafka_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(f"{topic}.records", value=json.dumps({"id": 5}), partition=0)
        producer.flush(30)
        ends(30)
    streams = pipeline(tmp_path, kafka_servers, topic, on_bad_record="dead_letter")
    report = streams.run("Ingestion", once=True, spark=spark)["Ingestion"]
    assert ids(spark, tmp_path) == [0, 4, 5]
    letters = spark.read.format("delta").load(str(tmp_path / "_lakegate/dead_letters/Ingestion")).collect()
    assert sorted(row.reason for row in letters) == [
        "has more behind its first JSON value",
        "has no value",
        "is a JSON array, and not one record",
    ]
    assert [line.rpartition(": ")[2] for line in report.passed_over] == ["city"]
    (status,) = sources_of(streams.build(base_dir="/"))
    assert [one.text.rpartition(": ")[2] for one in status.left_out] == ["city"]


@pytest.mark.kafka
def test_a_recreated_topic_is_not_taken_for_the_one_that_was_read(
    spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    """It has grown past the old offsets, so Spark would go on behind them; with a new checkpoint all of it is read."""
    topic = f"t{uuid.uuid4().hex}"
    send(kafka_servers, f"{topic}.records", records(0, 3))
    streams = pipeline(tmp_path, kafka_servers, topic)
    streams.run("Ingestion", once=True, spark=spark)
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.delete_topics([f"{topic}.records"])[f"{topic}.records"].result(30)
    deadline = time.monotonic() + 30
    while f"{topic}.records" in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.2)
    admin.create_topics([NewTopic(f"{topic}.records", 1, 1)])[f"{topic}.records"].result(30)
    send(kafka_servers, f"{topic}.records", records(10, 5))
    with pytest.raises(CheckpointMismatch, match="deleted and created again"):
        streams.run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == [0, 1, 2]
