"""Real servers for tests and the demo: on free ports of 127.0.0.1, logging to files, ended by their process id."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from lakegate.errors import Unavailable
from lakegate.spark.jars import JarSources, Progress, fetch
from lakegate.spark.java import JavaSources, find_java

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
"""Seconds after which a server is killed; test data need no clean shutdown."""
LOG_TAIL_BYTES = 2000

KAFKA_USER, KAFKA_PASSWORD = "etl", "of-the-tests"
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


ZOOKEEPER_PROPERTIES = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime={tick_ms}
initLimit=50
syncLimit=25
maxSessionTimeout={longest_ms}
maxClientCnxns=0
admin.enableServer=false
forceSync=no
"""


@contextlib.contextmanager
def kafka_broker(
    directory: Path,
    *,
    jars: JarSources,
    java: JavaSources,
    progress: Progress | None = None,
    sasl_port: int | None = None,
) -> Iterator[str]:
    """Yields the bootstrap servers (`127.0.0.1:port`) of one Kafka broker, which ends with the block.

    Args:
        directory: For its settings, data and logs (`broker.log`); the data of an earlier broker there is kept.
        jars: The sources of the broker's jars (set `broker`, 45 MB).
        java: The possible locations of Java.
        progress: Called for each jar that is fetched.
        sasl_port: A second port, which requires a login as `KAFKA_USER` with `KAFKA_PASSWORD` by SASL/PLAIN.

    Raises:
        Unavailable: It did not start in time; the message contains the end of its log.
    """
    class_path = os.pathsep.join(map(str, fetch(["broker"], sources=jars, progress=progress)))
    port, controller_port = free_ports(2)
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "broker.properties"
    places = {"port": port, "controller_port": controller_port, "data": directory / "data"}
    text = BROKER_PROPERTIES if sasl_port is None else with_sasl(BROKER_PROPERTIES, sasl_port)
    settings.write_text(text.format(**places), encoding="utf-8")
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = [str(find_java(java).program), *flags, "-cp", class_path]
    log = directory / "broker.log"
    if not (directory / "data" / "meta.properties").exists():
        # One argument: an id may begin with a hyphen.
        cluster = f"--cluster-id={base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}"
        formatting = ["kafka.tools.StorageTool", "format", cluster, "--config", str(settings)]
        with log.open("ab") as output:
            formatted = subprocess.run([*command, *formatting], stdout=output, stderr=subprocess.STDOUT, check=False)
        if formatted.returncode != 0:
            raise _not_started(port, log)
    with server_process([*command, "kafka.Kafka", str(settings)], port=port, log=log):
        yield f"127.0.0.1:{port}"


def with_sasl(properties: str, port: int) -> str:
    """Returns a broker's settings with a second port, which requires a login."""
    place = f"SASL_PLAINTEXT://127.0.0.1:{port}"
    for key in ("listeners", "advertised.listeners"):
        properties = properties.replace(f"\n{key}=", f"\n{key}={place},")
    properties = properties.replace("protocol.map=", "protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,")
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{KAFKA_USER}="{KAFKA_PASSWORD}";'
    door = "listener.name.sasl_plaintext."
    return (
        f"{properties}inter.broker.listener.name=PLAINTEXT\n{door}sasl.enabled.mechanisms=PLAIN\n"
        f"{door}plain.sasl.jaas.config={login}\n"
    )


@contextlib.contextmanager
def zookeeper(
    directory: Path,
    *,
    java: JavaSources,
    nodes: int = 1,
    tick_ms: int = 200,
    more: str = "",
    flags: Sequence[str] = (),
    through: Callable[[int], int] = lambda port: port,
) -> Iterator[list[ZookeeperNode]]:
    """Yields an ensemble of ZooKeeper servers from PySpark's own jars; each can be stopped and restarted.

    Args:
        directory: For the settings, data and logs of each server.
        java: The possible locations of Java.
        nodes: One, or three and more for an ensemble.
        tick_ms: The time unit of the servers; sessions last from 2 to 20,000 ticks.
        more: Further settings, line by line.
        flags: Further flags of its JVM.
        through: Port of a member → the port through which the other members reach it.
    """
    program = str(find_java(java).program)
    ports = free_ports(3 * nodes)
    clients, quorum = ports[:nodes], ports[nodes:]
    seen_by_others = [through(quorum[2 * n]) for n in range(nodes)]
    made = []
    for n, port in enumerate(clients):
        folder = directory / f"zookeeper-{n + 1}"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(f"{n + 1}\n")
        settings = folder / "zoo.cfg"
        text = ZOOKEEPER_PROPERTIES.format(
            data=folder / "data", port=port, tick_ms=tick_ms, longest_ms=tick_ms * 20_000
        )
        members = [
            f"server.{m + 1}=127.0.0.1:{quorum[2 * m] if m == n else seen_by_others[m]}:{quorum[2 * m + 1]}\n"
            for m in range(nodes)
        ]
        settings.write_text(text + ("".join(members) if nodes > 1 else "") + more, encoding="utf-8")
        made.append(ZookeeperNode(program, settings, port, folder / "zookeeper.log", flags, is_member=nodes > 1))
    try:
        for node in made:
            node.start()
        for node in made:
            node.wait()
        yield made
    finally:
        for node in made:
            node.kill()


class ZookeeperNode:
    """A ZooKeeper server: a process that is ended by its own id and can be restarted on its data."""

    def __init__(
        self, program: str, settings: Path, port: int, log: Path, more: Sequence[str], *, is_member: bool
    ) -> None:
        self.port, self.address = port, f"127.0.0.1:{port}"
        self._log = log
        main = "quorum.QuorumPeerMain" if is_member else "ZooKeeperServerMain"
        flags = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.4lw.commands.whitelist=*"]
        self._command = [
            program,
            *flags,
            *more,
            "-cp",
            _zookeeper_jars(),
            f"org.apache.zookeeper.server.{main}",
            str(settings),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process; returns at once."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        """Returns when it serves clients.

        Raises:
            Unavailable: The server did not start in time; the message contains the end of its log.
        """
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.mode():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise _not_started(self.port, self._log)
            time.sleep(0.05)

    def mode(self) -> str:
        """Returns `standalone`, `leader` or `follower`; empty while the server serves no clients."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as asked:
                asked.sendall(b"srvr")
                answer = b"".join(iter(lambda: asked.recv(4096), b"")).decode("utf-8", "replace")
        except OSError:
            return ""
        return next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def kill(self) -> None:
        """Kills the process, as if its machine failed."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)
            self._process.kill()
            self._process.wait()


def _zookeeper_jars() -> str:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    jars = Path(found.origin).parent / "jars"
    wanted = ("zookeeper", "netty", "slf4j-api", "metrics-core", "snappy", "commons-", "jline", "log4j", "jackson-")
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(wanted))


def free_ports(count: int) -> list[int]:
    """Returns unused ports of 127.0.0.1; all are held until the last is found, so that they differ."""
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


@contextlib.contextmanager
def server_process(command: list[str], *, port: int, log: Path) -> Iterator[int]:
    """Yields the pid of a server that serves the port from the beginning of the block, and ends with it.

    Raises:
        Unavailable: It did not start in time; the message contains the end of its log.
    """
    with _process(command, log=log) as process:
        _wait_for_port(port, process, log)
        yield process.pid


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise _not_started(port, log)


def _not_started(port: int, log: Path) -> Unavailable:
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
    return Unavailable(f"a server for tests did not start; the end of {log}:\n{tail}", port=port)
