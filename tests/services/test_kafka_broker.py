"""The broker for tests and the demo starts whatever its cluster's id is, and says why where it does not."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from lakegate.demo import servers
from lakegate.demo.servers import kafka_broker
from lakegate.errors import Unavailable
from lakegate.spark.jars import JarSources
from lakegate.spark.java import JavaSources


@pytest.mark.slow
@pytest.mark.kafka
def test_an_id_that_looks_like_an_option(
    jars_from: JarSources, java_from: JavaSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in 64 ids begins with a hyphen."""
    monkeypatch.setattr(servers.uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" * 16))
    with kafka_broker(tmp_path, jars=jars_from, java=java_from) as address:
        about = AdminClient({"bootstrap.servers": address}).list_topics(timeout=30)
    assert about.cluster_id == "-Pj4-Pj4-Pj4-Pj4-Pj4-A"


@pytest.mark.kafka
def test_a_folder_that_cannot_be_formatted(jars_from: JarSources, java_from: JavaSources, tmp_path: Path) -> None:
    """What the broker's own tool says of it is in the message."""
    (tmp_path / "data").write_text("of somebody else")
    refused = kafka_broker(tmp_path, jars=jars_from, java=java_from)
    with pytest.raises(Unavailable, match="No available log directories"), refused:
        pass
