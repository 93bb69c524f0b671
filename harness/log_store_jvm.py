"""A JVM with log stores and without Spark, which starts in a second: for tests and measurements of commits on S3."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lakegate.demo.aws_server import REGION, AwsServer
from lakegate.spark.jars import JarSources, fetch, own_jar

FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m")
SETTINGS = {
    "fs.s3a.access.key": "test",
    "fs.s3a.secret.key": "testtest",
    "fs.s3a.endpoint.region": REGION,
    "fs.s3a.path.style.access": "true",
    # Tests make servers fail: the client gives up after a few attempts instead of after minutes.
    "fs.s3a.attempts.maximum": "3",
    "fs.s3a.retry.limit": "3",
    "fs.s3a.retry.interval": "50ms",
    "fs.s3a.retry.throttle.limit": "3",
    "fs.s3a.retry.throttle.interval": "50ms",
    "io.delta.storage.S3DynamoDBLogStore.ddb.region": REGION,
}


def settings_for(server: AwsServer) -> dict[str, str]:
    """Hadoop's settings with which a JVM reaches a server."""
    return {**SETTINGS, "fs.s3a.endpoint": server.endpoint, "spark.lakegate.dynamodb.endpoint": server.endpoint}


def class_path(jars: JarSources) -> str:
    """Returns the class path that a log store needs."""
    import pyspark

    spark_jars = Path(pyspark.__file__).parent / "jars" / "*"
    return os.pathsep.join(map(str, [own_jar(), *fetch(["delta", "s3a"], sources=jars), spark_jars]))


@contextlib.contextmanager
def log_store_jvm(program: Path, jars: JarSources, log: Path) -> Iterator[Any]:
    """Yields py4j's view of a JVM that ends with the block; its output goes to `log`."""
    with log.open("wb") as said:
        port, process = launch_gateway(
            classpath=class_path(jars),
            javaopts=list(FLAGS),
            java_path=str(program),
            die_on_exit=True,
            redirect_stdout=said,
            redirect_stderr=said,
            return_proc=True,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def hadoop_conf(jvm: Any, server: AwsServer) -> Any:
    """Hadoop's settings with which that JVM reaches a server."""
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in settings_for(server).items():
        conf.set(key, value)
    return conf
