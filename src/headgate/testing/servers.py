"""Real servers for tests and the demo: on free ports of 127.0.0.1, logging to files, ended by their process id."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from headgate.errors import Unavailable
from headgate.spark.jars import JarSources, Progress, fetch
from headgate.spark.java import JavaSources, find_java

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
"""After this a server is killed; the data of a test is thrown away anyway."""
LOG_TAIL_BYTES = 2000

BROKER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=2
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.bytes=16777216
log.cleaner.enable=false
"""


@contextlib.contextmanager
def kafka_broker(
    directory: Path, *, jars: JarSources, java: JavaSources, progress: Progress | None = None
) -> Iterator[str]:
    """The bootstrap servers (`127.0.0.1:port`) of one Kafka broker, which ends with the block.

    Args:
        directory: For its settings, data and logs (`broker.log`); the data of an earlier broker there is kept.
        jars: Where the broker's jars (set `broker`, 45 MB) come from.
        java: Where Java may be.
        progress: Told about each jar that is fetched.

    Raises:
        Unavailable: It did not start in time; the end of its log is in the message.
    """
    class_path = os.pathsep.join(map(str, fetch(["broker"], sources=jars, progress=progress)))
    port, controller_port = free_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "broker.properties"
    settings.write_text(
        BROKER_PROPERTIES.format(port=port, controller_port=controller_port, data=directory / "data"), encoding="utf-8"
    )
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = [str(find_java(java).program), *flags, "-cp", class_path]
    log = directory / "broker.log"
    if not (directory / "data" / "meta.properties").exists():
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        with log.open("ab") as output:
            subprocess.run([*command, *formatting], stdout=output, stderr=subprocess.STDOUT, check=True)
    with _process([*command, "kafka.Kafka", str(settings)], log=log) as process:
        _wait_for_port(port, process, log)
        yield f"127.0.0.1:{port}"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now; all held until the last is found, so that no two are the same."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _process(command: list[str], *, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        # A session of its own: Ctrl-C on the terminal is for the tests, which end the server themselves.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
    raise Unavailable(f"a server for tests did not start; the end of {log}:\n{tail}", port=port)
