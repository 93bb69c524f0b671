"""Debezium's envelopes in Kafka: each partition of the topics is a log. No offset is committed to a consumer group.

Only the target stores the position of a sync; the brokers are only read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakegate.errors import CheckpointMismatch, Corrupt, InvalidRequest, LakegateError, MissingExtra, Unavailable
from lakegate.syncs.sources.debezium_logs import NEW_SNAPSHOT, Message

if TYPE_CHECKING:
    from confluent_kafka import Consumer

LEADER_POLL_S = 0.1
HELD_MAX = 20_000
"""The maximum number of held messages of a partition that wait for other partitions; then its fetching is paused."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""The same in bytes; also the maximum size of one fetch."""


class EnvelopeTopics:
    """See `Logs`. Names are `TOPIC/PARTITION`."""

    is_one = False

    def __init__(
        self, *, topics: Sequence[str], servers: str, transactions: str | None, options: Mapping[str, str], group: str,
        answer_s: float = 20.0,
    ) -> None:  # fmt: skip
        """Opens no connection yet. `answer_s`: see `lakegate.syncs.adapters.open_source`.

        Raises:
            MissingExtra: The client is not installed.
        """
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra(
                "changes from Kafka need a client that is not installed; nothing was done",
                advice="pip install 'lakegate[kafka]'",
            ) from error
        self._kafka: Any = confluent_kafka
        self._topics, self.transactions, self._options = tuple(topics), transactions, options
        self._answer_s = answer_s
        self._settings = {
            **options,
            "bootstrap.servers": servers,
            "group.id": group,  # required by the client; nothing is ever committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._consumer: Consumer | None = None
        self._asker: Consumer | None = None
        """A second connection: a broker answers nothing on one where it holds back an answer until there is a new message."""
        self._admin: Any = None
        self._reading: _Reading | None = None
        """The last pass: the next one goes on with what the client has received since."""

    def fingerprint(self) -> object:
        return tuple((name, end) for name, (_, _, _, end) in self._partitions().items())

    def has_arrived(self) -> bool:
        """Returns whether a message has come since the last pass. The client's own thread waits for it."""
        try:
            return self._reading is not None and self._reading.has_more()
        except LakegateError:
            self._give_up()
            raise

    def at(self) -> str | None:
        """Returns the cluster's id, because its servers may be renamed."""
        try:
            cluster: str | None = self._asking().list_topics(self._topics[0], timeout=self._answer_s).cluster_id
        except self._kafka.KafkaException as error:
            raise self._silent(error) from error
        return cluster

    def recognize(
        self, known: Mapping[str, Any], starts: Mapping[str, int], read: Collection[str]
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        ids = self._ids()
        for topic, id in ids.items():
            if known.get(topic, id) != id:
                raise CheckpointMismatch(
                    "the topic was deleted and made again: its offsets mean other messages; nothing was written",
                    advice=NEW_SNAPSHOT,
                    topic=topic,
                )
        return ids, {name: name for name in starts}

    def read(
        self, starts: Mapping[str, int], ends: Mapping[str, int] | None
    ) -> Sequence[tuple[str, Iterator[Message]]]:
        wanted: dict[str, tuple[str, int, int, int]] = {}
        for name, (topic, partition, low, high) in self._partitions().items():
            start = starts.get(name, low)
            if name not in starts and low > 0 and any(one.rpartition("/")[0] == topic for one in starts):
                start = 0  # an added partition: its deleted messages were never read
            end = high if ends is None else ends.get(name, start)
            if start < low or start > high:
                raise CheckpointMismatch(
                    "the topic no longer has the messages that come next: they were deleted before they were read, or the "
                    "topic was recreated; nothing was written",
                    advice=NEW_SNAPSHOT,
                    topic=topic, partition=partition, next=start, first=low, end=high,
                )  # fmt: skip
            wanted[name] = (topic, partition, start, end)
        lost = sorted(starts.keys() - wanted.keys())
        if lost:
            raise CheckpointMismatch(
                "a partition that was read before is gone; nothing was written",
                advice=f"Name the same topics as before. {NEW_SNAPSHOT}",
                partition=lost[0],
            )
        if self._reading is None or not self._reading.goes_on(wanted):
            self._give_up()
            self._reading = _Reading(self._kafka, self._receiving(), wanted, self._answer_s)
        return [(name, self._reading.messages(name)) for name in wanted]

    def is_transactions(self, name: str) -> bool:
        return name.rpartition("/")[0] == self.transactions

    def has(self, collection: str) -> bool:
        return any(topic == collection or topic.endswith(f".{collection}") for topic in self._topics)

    def where(self, name: str, offset: int) -> Mapping[str, Any]:
        topic, _, partition = name.rpartition("/")
        return {"topic": topic, "partition": int(partition), "offset": offset}

    def close(self) -> None:
        for one in (self._consumer, self._asker):
            if one is not None:
                one.close()
        self._consumer, self._asker, self._reading = None, None, None

    def _give_up(self) -> None:
        if self._reading is not None:
            self._reading.end()
            self._reading = None

    def _asking(self) -> Any:
        if self._asker is None:
            self._asker = self._made()
        return self._asker

    def _receiving(self) -> Any:
        if self._consumer is None:
            self._consumer = self._made()
        return self._consumer

    def _made(self) -> Any:
        try:
            # Errors of a broker are returned by later calls, so the client need not print them.
            return self._kafka.Consumer({**self._settings, "error_cb": lambda error: None, "log_level": 0})
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"the Kafka client does not take its options; nothing was done: {error}",
                advice="They are librdkafka's, such as security.protocol and sasl.username",
            ) from error

    def _partitions(self) -> dict[str, tuple[str, int, int, int]]:
        """Returns name → topic, partition, first offset and end offset."""
        consumer = self._asking()
        found = {}
        try:
            for topic in dict.fromkeys([*self._topics, *([self.transactions] if self.transactions else [])]):
                about = consumer.list_topics(topic, timeout=self._answer_s).topics[topic]
                if about.error is not None or not about.partitions:
                    raise Unavailable(f"there is no such topic: {about.error or 'it has no partition'}", topic=topic)
                for partition in sorted(about.partitions):
                    low, high = self._offsets(consumer, self._kafka.TopicPartition(topic, partition))
                    found[f"{topic}/{partition}"] = (topic, partition, low, high)
        except self._kafka.KafkaException as error:
            raise self._silent(error) from error
        return found

    def _offsets(self, consumer: Any, partition: Any) -> tuple[int, int]:
        """Returns first and end offset; waits while the partition gets a leader, as that of a new topic does."""
        errors, until_s = self._kafka.KafkaError, time.monotonic() + self._answer_s
        while True:
            try:
                low, high = consumer.get_watermark_offsets(partition, timeout=self._answer_s)
                return low, high
            except self._kafka.KafkaException as error:
                has_leader = error.args[0].code() not in (errors.NOT_LEADER_FOR_PARTITION, errors.LEADER_NOT_AVAILABLE)
                if has_leader or time.monotonic() >= until_s:
                    raise
                time.sleep(LEADER_POLL_S)

    def _ids(self) -> dict[str, str]:
        """Returns topic → id that differs for a recreated topic; empty if the broker does not provide ids."""
        from confluent_kafka.admin import AdminClient

        names = [*self._topics, *([self.transactions] if self.transactions else [])]
        kafka = self._kafka
        try:
            if self._admin is None:
                own: dict[str, Any] = {**self._options, "bootstrap.servers": self._settings["bootstrap.servers"]}
                own |= {"error_cb": lambda error: None, "log_level": 0}
                self._admin = AdminClient(own)
            asked = self._admin.describe_topics(
                kafka.TopicCollection(list(dict.fromkeys(names))), request_timeout=self._answer_s
            )
            found = {topic: one.result(self._answer_s).topic_id for topic, one in asked.items()}
        except (kafka.KafkaException, AttributeError, ValueError, TimeoutError):
            return {}  # an old broker; a missing topic is reported elsewhere
        return {
            topic: f"{id.get_most_significant_bits():x}.{id.get_least_significant_bits():x}"
            for topic, id in found.items()
        }

    def _silent(self, error: Any) -> Unavailable:
        return Unavailable(f"Kafka does not answer: {error.args[0].str()}", servers=self._settings["bootstrap.servers"])


class _Reading:
    """Passes over the partitions, each up to ends that are fixed when the pass begins.

    The client goes on receiving between two passes: to assign the partitions again would cost a fetch, and up to half a second.
    """

    def __init__(
        self, kafka: Any, consumer: Any, wanted: Mapping[str, tuple[str, int, int, int]], answer_s: float
    ) -> None:
        self._kafka, self._consumer, self._answer_s = kafka, consumer, answer_s
        self._at = {name: (topic, partition) for name, (topic, partition, _, _) in wanted.items()}
        self._starts = {name: start for name, (_, _, start, _) in wanted.items()}
        self._ends = {name: end for name, (_, _, _, end) in wanted.items()}
        self._next = dict(self._starts)
        self._given = dict(self._starts)
        """Partition → the offset after the last message that was yielded."""
        self._held: dict[str, deque[Message]] = {name: deque() for name in wanted}
        self._held_bytes = dict.fromkeys(wanted, 0)
        self._largest = HELD_BYTES_MAX // 100
        """The largest recent message in bytes; at first an estimate."""
        self._paused: set[str] = set()
        consumer.assign([kafka.TopicPartition(*self._at[name], start) for name, start in self._starts.items()])

    def goes_on(self, wanted: Mapping[str, tuple[str, int, int, int]]) -> bool:
        """Begins the next pass; returns False if it cannot: it begins before this one's end, or has other partitions."""
        starts = {name: start for name, (_, _, start, _) in wanted.items()}
        if starts.keys() != self._given.keys() or any(starts[name] < given for name, given in self._given.items()):
            return False
        self._starts, self._given = starts, dict(starts)
        self._ends = {name: end for name, (_, _, _, end) in wanted.items()}
        for name, held in self._held.items():
            while held and held[0].offset < starts[name]:
                self._held_bytes[name] -= _size(held.popleft())
        return True

    def end(self) -> None:
        """Resumes paused partitions: they would stay paused when they are assigned again."""
        if self._paused:
            self._consumer.resume([self._kafka.TopicPartition(*self._at[name]) for name in self._paused])

    def has_more(self) -> bool:
        """Returns whether there are messages for the next pass."""
        if not any(self._held.values()):
            self._consume(0)
        return any(self._held.values())

    def messages(self, name: str) -> Iterator[Message]:
        """Yields the messages of one partition. Messages of other partitions are held meanwhile.

        An offset without a message (deleted, or a marker) is yielded as an empty message.
        """
        held, last = self._held[name], self._starts[name] - 1
        if last >= 0:
            yield Message(last, None, None)
        while True:
            while held and held[0].offset < self._ends[name]:
                message = held.popleft()
                last, self._given[name] = message.offset, message.offset + 1
                self._held_bytes[name] -= _size(message)
                yield message
            if name in self._paused and not held:
                self._paused.discard(name)
                self._consumer.resume([self._kafka.TopicPartition(*self._at[name])])
            if self._next[name] >= self._ends[name]:
                if last < self._ends[name] - 1:
                    yield Message(self._ends[name] - 1, None, None)
                return
            self._fetch(name)

    def _fetch(self, name: str) -> None:
        deadline = time.monotonic() + self._answer_s
        while not self._held[name] and self._next[name] < self._ends[name]:
            if not self._consume(1.0) and time.monotonic() > deadline:
                topic, partition = self._at[name]
                raise Unavailable(
                    "Kafka does not send what it has", topic=topic, partition=partition, offset=self._next[name]
                )

    def _consume(self, timeout_s: float) -> bool:
        """Takes the messages that have come, at most some; waits only for the first. Returns whether there was any."""
        found = self._consumer.consume(1, timeout=timeout_s)
        if not found:
            return False
        found += self._consumer.consume(max(1, min(5_000, HELD_BYTES_MAX // self._largest)), timeout=0)
        self._largest = max([1_000, *(len(message) for message in found)])
        for message in found:
            self._take(message)
        return True

    def _take(self, message: Any) -> None:
        name = f"{message.topic()}/{message.partition()}"
        error = message.error()
        if error is not None:
            if error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._next[name] = max(self._next[name], message.offset())  # the last one may be a marker
                return
            kind = Corrupt if error.code() == self._kafka.KafkaError.OFFSET_OUT_OF_RANGE else Unavailable
            raise kind(f"Kafka: {error.str()}", topic=message.topic(), partition=message.partition())
        self._next[name] = message.offset() + 1
        if message.offset() < self._starts[name]:
            return
        kind, at_ms = message.timestamp()
        recorded = None if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE else at_ms
        self._held[name].append(Message(message.offset(), message.value(), message.key(), recorded_at_ms=recorded))
        self._held_bytes[name] += _size(self._held[name][-1])
        is_full = len(self._held[name]) >= HELD_MAX or self._held_bytes[name] >= HELD_BYTES_MAX
        if is_full and name not in self._paused:
            self._paused.add(name)
            self._consumer.pause([self._kafka.TopicPartition(*self._at[name])])


def _size(message: Message) -> int:
    return (len(message.value) if isinstance(message.value, bytes) else 0) + len(message.key or b"")
