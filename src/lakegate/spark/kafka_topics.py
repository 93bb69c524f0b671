"""Asks a Kafka broker about a stream's topics, with the client of Spark's source: their ids, and their first offsets.

A topic that was deleted and created again has the same name, but its offsets mean other records; its id differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession

from lakegate.config import KafkaSource
from lakegate.errors import CheckpointMismatch
from lakegate.spark.checkpoint import Checkpoint

ANSWER_S = 10
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that a broker without topic ids returns."""
STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")


class Topics:
    """The topics of one stream."""

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        self._jvm: Any = spark._jvm
        self._source = source
        self._client: Any = None

    def look(self, checkpoint: Checkpoint) -> list[str]:
        """Returns what is not read of the topics: a sentence for each partition, or for the stream's starting position.

        Records the topics' ids in the checkpoint. Spark reports a broker that does not answer.

        Raises:
            CheckpointMismatch: a topic is not the one whose offsets the checkpoint has; nothing was read.
        """
        try:
            return self._look(checkpoint)
        finally:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _look(self, checkpoint: Checkpoint) -> list[str]:
        for topic, topic_id in self._ids().items():
            name = f"lakegate/topics/{quote(topic, safe='')}"
            known = checkpoint.note(name)
            if known is None:
                checkpoint.write_note(name, topic_id)
            elif known != topic_id:
                raise CheckpointMismatch(
                    "the topic is not the one that was read before: it was deleted and created again, or it is another cluster's; "
                    "nothing was read",
                    advice="Read the whole new topic with --new-checkpoint JOB, or restore the old `servers`",
                    topic=topic,
                )
        options = {name.lower(): value for name, value in self._source.options.items()}
        said = []
        if not checkpoint.has_begun():
            start = next((options[name] for name in STARTS if name in options), "earliest")
            if start != "earliest":
                said.append(f"the stream begins at {start}, and does not read the records before it")
        elif options.get("failondataloss", "true").lower() == "false":
            for topic, partitions in checkpoint.kafka_offsets().items():
                for partition, first in self._firsts(topic, partitions).items():
                    if (gone := first - partitions[partition]) > 0:
                        said.append(
                            f"Kafka had deleted {gone:,} records of {topic}/{partition} unread (offsets {partitions[partition]} to "
                            f"{first - 1}), and failOnDataLoss is false: they are not read"
                        )
        return said

    def _ids(self) -> dict[str, str]:
        names = self._jvm.java.util.ArrayList()
        for topic in self._source.topics:
            names.add(topic)
        found = {}
        for topic, future in self._asked(lambda client: client.describeTopics(names).topicNameValues().items(), ()):
            described = self._asked(lambda _, future=future: future.get(ANSWER_S, self._seconds), None)
            topic_id = None if described is None else str(described.topicId().toString())
            if topic_id not in (None, NO_ID):
                found[str(topic)] = str(topic_id)
        return found

    def _firsts(self, topic: str, partitions: Mapping[int, int]) -> dict[int, int]:
        """Returns partition → the first offset that still exists."""
        admin, common = self._jvm.org.apache.kafka.clients.admin, self._jvm.org.apache.kafka.common
        asked = {partition: common.TopicPartition(topic, partition) for partition in partitions}
        wanted = self._jvm.java.util.HashMap()
        for partition in asked.values():
            wanted.put(partition, admin.OffsetSpec.earliest())
        answers = self._asked(lambda client: client.listOffsets(wanted).all().get(ANSWER_S, self._seconds), None)
        if answers is None:
            return {}
        return {partition: int(answers.get(place).offset()) for partition, place in asked.items()}

    @property
    def _seconds(self) -> Any:
        return self._jvm.java.util.concurrent.TimeUnit.SECONDS

    def _asked(self, question: Any, otherwise: Any) -> Any:
        try:
            if self._client is None:
                settings = self._jvm.java.util.Properties()
                for name, value in self._source.options.items():
                    if name.lower().startswith("kafka."):
                        settings.put(name[len("kafka.") :], value)
                settings.put("bootstrap.servers", self._source.servers)
                settings.put("default.api.timeout.ms", str(ANSWER_S * 1000))
                settings.put("request.timeout.ms", str(ANSWER_S * 1000))
                self._client = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
            return question(self._client)
        except Exception:  # no answer, or a wrong login: Spark's source meets the same error and reports it
            return otherwise
