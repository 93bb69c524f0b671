"""A stream from a real Kafka broker: every record once, bad ones told apart, and the place of each known."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import headgate
from headgate.errors import InvalidRequest

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


def pipeline(root: Path, servers: str, topic: str, **keys: object) -> headgate.Pipeline:
    """An append stream and an erase stream, each with its topic."""
    made = headgate.Pipeline("people", storage=str(root / "_headgate"))
    table = made.table("people", path=str(root / "table"), lock="L")
    table.append(
        name="Ingestion",
        source=headgate.kafka(f"{topic}.records", servers=servers, schema=SCHEMA),
        max_rows_per_batch=40,
        **keys,
    )
    table.erase(
        name="TTL",
        after="Ingestion",
        source=headgate.kafka(f"{topic}.erasures", servers=servers, schema="person STRING"),
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
    letters = spark.read.format("delta").load(str(tmp_path / "_headgate/dead_letters/Ingestion")).collect()
    assert len(letters) == 1
    assert "{not json" in str(letters[0])
    assert f"{topic}.records/0/2" in str(letters[0])
