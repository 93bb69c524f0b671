"""Three topics, three streams, one table: as in the article, on a real broker; and what brokers do to those who read slowly."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import SparkSession

import lakegate
from harness import contender
from lakegate.demo.servers import KAFKA_PASSWORD, KAFKA_USER, free_ports
from lakegate.errors import InvalidRequest, LakegateError, TurnNotGranted
from lakegate.ops.inspection import lags_of
from lakegate.ops.kafka_lag import TopicLag
from lakegate.runtime import open_store
from lakegate.syncs.sources.kafka import settings_of
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.coordinator import Coordinator
from tests.cli.command import lakegate as run_lakegate

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SPEC = """
name: engagement
storage: {root}/_lakegate
tables: {{engagement: {{path: "{root}/table", lock: L}}}}
streams:
  Ingestion:
    table: engagement
    source: {{kafka: {topic}, servers: "{servers}", schema: "id BIGINT, person STRING"}}
    append: {{}}
"""
KINDS = ("records", "mutations", "erasures")


class Broker:
    """Topics of one test."""

    def __init__(self, servers: str) -> None:
        self.servers, self.prefix = servers, f"t{uuid.uuid4().hex}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        for future in self.admin.create_topics([NewTopic(self.topic(kind), 1, 1) for kind in KINDS]).values():
            future.result(30)

    def topic(self, kind: str) -> str:
        return f"{self.prefix}.{kind}"

    def send(self, kind: str, *values: dict[str, object], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(self.topic(kind), value=json.dumps(value), partition=partition)
        assert producer.flush(30) == 0

    def records(self, start: int, count: int, *, partition: int = 0) -> None:
        self.send(
            "records",
            *({"id": id_, "person": f"p{id_ // 10}"} for id_ in range(start, start + count)),
            partition=partition,
        )


def pipeline(
    broker: Broker, root: Path, *, servers: str | None = None, options: dict[str, str] | None = None
) -> lakegate.Pipeline:
    """Each stream with its topic."""

    def source(kind: str, schema: str) -> object:
        return lakegate.kafka(
            broker.topic(kind), servers=servers or broker.servers, schema=schema, options=options or {}
        )

    made = lakegate.Pipeline("engagement", storage=str(root / "_lakegate"), coordinator={"lock_timeout": "2s"})
    table = made.table("engagement", path=str(root / "table"), lock="L")
    table.append(name="Ingestion", source=source("records", "id BIGINT, person STRING"), max_rows_per_batch=40)
    table.mutate(
        name="Mutation",
        after="Ingestion",
        source=source("mutations", "old STRING, new STRING"),
        match={"person": "old"},
        set={"person": "new"},
        applies_to="arrived_and_later",
    )
    table.erase(
        name="TTL",
        after="Mutation",
        source=source("erasures", "person STRING"),
        match={"person": "person"},
    )
    return made


def people(spark: SparkSession, root: Path) -> dict[int, str]:
    """Id → person, of each row; no id twice."""
    rows = spark.read.format("delta").load(str(root / "table")).select("id", "person").collect()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["person"] for row in rows}


@pytest.mark.matrix
def test_three_topics_at_their_own_pace_with_a_give_up_and_a_new_partition(
    spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    """A stream that gives up goes on from its checkpoint; a partition that is added in the middle is read from its beginning."""
    broker = Broker(kafka_servers)
    streams = pipeline(broker, tmp_path)
    broker.records(0, 100)
    broker.send("mutations", {"old": "p1", "new": "q1"})
    broker.send("erasures", {"person": "p2"})
    streams.run(until_idle=True, spark=spark)
    expected = {id_: "q1" if id_ // 10 == 1 else f"p{id_ // 10}" for id_ in range(100) if id_ // 10 != 2}
    assert people(spark, tmp_path) == expected

    broker.records(100, 20)
    store = open_store(f"sqlite:{tmp_path / '_lakegate/turns.db'}")
    holder: Coordinator = contender.coordinator(store, "L", "Somebody", timeout_s=30)
    turn = contender.take(holder)
    with pytest.raises(TurnNotGranted, match="Somebody has the turn"):
        streams.run("Ingestion", once=True, spark=spark)
    turn.complete()
    holder.close()
    assert people(spark, tmp_path) == expected
    broker.admin.create_partitions([NewPartitions(broker.topic("records"), 3)])[broker.topic("records")].result(30)
    broker.records(120, 20, partition=2)
    broker.send("mutations", {"old": "p12", "new": "q12"})
    streams.run(until_idle=True, spark=spark)
    more = {id_: "q12" if id_ // 10 == 12 else f"p{id_ // 10}" for id_ in range(100, 140)}
    assert people(spark, tmp_path) == expected | more
    outcomes = [row.outcome for row in read_ledger(tmp_path / "_lakegate", "L") if row.job == "Ingestion"]
    assert "gave_up" in outcomes
    assert [topic for lag in lags_of(streams.build(base_dir="/")) for topic in lag.topics] == [
        TopicLag(topic=broker.topic(kind), partitions=3 if kind == "records" else 1, behind=0, deleted=0)
        for kind in KINDS
    ]


@pytest.mark.matrix
def test_records_deleted_unread_by_retention_stop_the_stream_until_the_loss_is_accepted(
    spark: SparkSession, kafka_servers: str, tmp_path: Path
) -> None:
    """`status` counts them before; nothing is written; `failOnDataLoss: "false"` takes what is left."""
    broker = Broker(kafka_servers)
    streams = pipeline(broker, tmp_path)
    broker.records(0, 10)
    streams.run("Ingestion", once=True, spark=spark)
    broker.records(10, 20)
    gone = TopicPartition(broker.topic("records"), 0, 15)
    broker.admin.delete_records([gone])[gone].result(30)
    (lag,) = lags_of(streams.build(base_dir="/"))[0].topics
    assert (lag.behind, lag.deleted) == (15, 5)
    topic = broker.topic("records")
    (tmp_path / "lakegate.yml").write_text(SPEC.format(root=tmp_path, topic=topic, servers=broker.servers))
    shown = run_lakegate("status", "--spec", tmp_path / "lakegate.yml")
    assert (shown.code, shown.err) == (0, "")
    assert f"Ingestion: 15 records of {topic} to read (1 partition); 5 were deleted unread\n" in shown.out
    told = run_lakegate("status", "--spec", tmp_path / "lakegate.yml", "--output", "json").json["lags"]
    topics = [{"topic": topic, "partitions": 1, "behind": 15, "deleted": 5}]
    assert told == [{"job": "Ingestion", "topics": topics, "note": None}]
    with pytest.raises(InvalidRequest, match="Kafka has deleted records"):
        streams.run("Ingestion", once=True, spark=spark)
    assert sorted(people(spark, tmp_path)) == list(range(10))
    pipeline(broker, tmp_path, options={"failOnDataLoss": "false"}).run("Ingestion", once=True, spark=spark)
    assert sorted(people(spark, tmp_path)) == [*range(10), *range(15, 30)]
    lost = f"Kafka had deleted 5 records of {topic}/0 unread (offsets 10 to 14), and failOnDataLoss is false: they are not read"
    shown = run_lakegate("status", "--spec", tmp_path / "lakegate.yml")
    assert f"Ingestion: {lost}" in shown.out
    assert f"not checked: Ingestion: {lost}" in run_lakegate("verify", "--spec", tmp_path / "lakegate.yml").out


def login(password: str) -> dict[str, str]:
    """Options of Spark's source."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{module} required username="{KAFKA_USER}" password="{password}";',
    }


@pytest.mark.matrix
def test_a_broker_with_authentication_accepts_valid_credentials(
    spark: SparkSession, kafka_servers: str, kafka_sasl_port: int, tmp_path: Path
) -> None:
    """SASL options reach Spark's source as they are, and `status` logs in with them; with another password nothing is read."""
    broker, servers = Broker(kafka_servers), f"127.0.0.1:{kafka_sasl_port}"
    broker.records(0, 10)
    with pytest.raises(LakegateError, match=r"(?i)authentication failed") as refused:
        pipeline(broker, tmp_path, servers=servers, options=login("wrong")).run("Ingestion", once=True, spark=spark)
    assert refused.value.exit_code == 6
    streams = pipeline(broker, tmp_path, servers=servers, options=login(KAFKA_PASSWORD))
    assert [topic.behind for topic in lags_of(streams.build(base_dir="/"))[0].topics] == [10]
    streams.run("Ingestion", once=True, spark=spark)
    assert sorted(people(spark, tmp_path)) == list(range(10))


@pytest.mark.matrix
def test_without_a_broker_the_lag_is_unknown(tmp_path: Path) -> None:
    """It is said why; what Java alone can do is said, too."""
    broker = Broker.__new__(Broker)
    broker.servers, broker.prefix = f"127.0.0.1:{free_ports(1)[0]}", "t"
    lags = lags_of(pipeline(broker, tmp_path).build(base_dir="/"))
    assert [lag.job for lag in lags] == ["Ingestion", "Mutation", "TTL"]
    assert all(lag.topics == () and "does not answer" in (lag.note or "") for lag in lags)
    with pytest.raises(InvalidRequest, match="only Spark's own client"):
        settings_of({"kafka.ssl.truststore.location": "/certificates.jks"})
