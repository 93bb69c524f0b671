"""How far the topics of a Kafka broker reach; asked with a client of our own, as looking must not start Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lakegate.errors import InvalidRequest, MissingExtra, Unavailable

PREFIX = "kafka."
"""Of those options of Spark's source that are the client's."""
LOGIN = re.compile(
    r"(?:Plain|Scram)LoginModule\b.*?\busername=[\"']([^\"']*)[\"'].*?\bpassword=[\"']([^\"']*)[\"']", re.DOTALL
)
JAVA_ONLY = ("ssl.truststore.location", "ssl.keystore.location")
"""Stores of certificates that only Java reads, unless they are PEM."""
_LOG = logging.getLogger("lakegate.kafka")
_LOG.addHandler(logging.NullHandler())  # what matters is in the error; the client's own lines are for those who ask


def reach(
    servers: str, options: Mapping[str, str], topics: Sequence[str], *, timeout_s: float
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Topic → partition → the first offset that is still there; and the same with the offset that the next record will get.

    Args:
        servers: As of Spark's source.
        options: Those of Spark's source; how to log in is taken from them.
        topics: One that does not exist has no partitions.
        timeout_s: For each of three questions.

    Raises:
        MissingExtra: confluent-kafka is not installed.
        InvalidRequest: the options say to log in in a way that only Java's client knows.
        Unavailable: no answer in time.
    """
    try:
        from confluent_kafka import KafkaException, TopicPartition, admin
    except ImportError as error:
        raise MissingExtra(
            "asking a Kafka broker needs confluent-kafka; nothing was asked", advice="pip install 'lakegate[kafka]'"
        ) from error
    kafka: Any = admin  # partly without types
    try:
        client = kafka.AdminClient({"bootstrap.servers": servers, **settings_of(options)}, logger=_LOG)
        known = client.list_topics(timeout=timeout_s).topics
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in (known[topic].partitions if topic in known else ())
        ]
        firsts, ends = (
            _asked(client.list_offsets(dict.fromkeys(partitions, spec), request_timeout=timeout_s), timeout_s)
            if partitions
            else {}
            for spec in (kafka.OffsetSpec.earliest(), kafka.OffsetSpec.latest())
        )
    except KafkaException as error:
        raise Unavailable(f"the Kafka broker does not answer: {error.args[0].str()}", servers=servers) from error
    except TimeoutError as error:
        raise Unavailable("the Kafka broker does not answer in time", servers=servers) from error
    return firsts, ends


def _asked(futures: Mapping[Any, Any], timeout_s: float) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for partition, future in futures.items():
        found.setdefault(partition.topic, {})[partition.partition] = future.result(timeout_s).offset
    return found


def settings_of(options: Mapping[str, str]) -> dict[str, Any]:
    """How to log in, as this client says it.

    Raises:
        InvalidRequest: only Java's client can.
    """
    given = {key.removeprefix(PREFIX): value for key, value in options.items() if key.startswith(PREFIX)}
    found: dict[str, Any] = {
        key: given[key]
        for key in ("security.protocol", "sasl.mechanism", "ssl.endpoint.identification.algorithm")
        if key in given
    }
    if "sasl.jaas.config" in given:
        login = LOGIN.search(given["sasl.jaas.config"])
        if login is None:
            raise InvalidRequest("kafka.sasl.jaas.config names a way to log in that only Spark's own client knows")
        found["sasl.username"], found["sasl.password"] = login.groups()
    if given.get("ssl.truststore.type") == "PEM" and "ssl.truststore.location" in given:
        found["ssl.ca.location"] = given.pop("ssl.truststore.location")
    for key in JAVA_ONLY:
        if key in given:
            raise InvalidRequest(f"{PREFIX}{key} names certificates that only Spark's own client reads")
    return found
