"""Reads the offsets of a Kafka broker's topics with a separate client, because an inspection must not start Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lakegate.errors import InvalidRequest, MissingExtra, Unavailable

PREFIX = "kafka."
"""Prefix of those options of Spark's source that are passed to the client."""
LOGIN = re.compile(
    r"(?:Plain|Scram)LoginModule\b.*?\busername=[\"']([^\"']*)[\"'].*?\bpassword=[\"']([^\"']*)[\"']", re.DOTALL
)
JAVA_ONLY = ("ssl.truststore.location", "ssl.keystore.location")
"""Certificate stores that only Java reads, unless they are PEM."""
_LOG = logging.getLogger("lakegate.kafka")
_LOG.addHandler(logging.NullHandler())  # errors contain what matters; the client's log lines are opt-in


def reach(
    servers: str, options: Mapping[str, str], topics: Sequence[str], *, timeout_s: float
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Returns topic → partition → first available offset; and the same with the offset of the next record.

    Args:
        servers: As in Spark's source.
        options: The options of Spark's source; the login is taken from them.
        topics: The topics; a topic that does not exist has no partitions.
        timeout_s: For each of three requests.

    Raises:
        MissingExtra: confluent-kafka is not installed.
        InvalidRequest: the options require a login that only Java's client supports.
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
    """Returns the login settings for this client.

    Raises:
        InvalidRequest: only Java's client supports the login.
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
