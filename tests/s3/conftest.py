"""An S3 and a DynamoDB for the tests of this folder, and a JVM with log stores and no Spark, which starts in a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from headgate.spark.jars import JarSources, fetch, own_jar
from headgate.spark.java import JavaSources, find_java
from headgate.testing.aws_server import REGION, AwsServer, aws_server

SETTINGS = {
    "fs.s3a.access.key": "test",
    "fs.s3a.secret.key": "testtest",
    "fs.s3a.endpoint.region": REGION,
    "fs.s3a.path.style.access": "true",
    # Tests make servers fail: the client gives up after a few, as it would after minutes.
    "fs.s3a.attempts.maximum": "3",
    "fs.s3a.retry.limit": "3",
    "fs.s3a.retry.interval": "50ms",
    "fs.s3a.retry.throttle.limit": "3",
    "fs.s3a.retry.throttle.interval": "50ms",
    "io.delta.storage.S3DynamoDBLogStore.ddb.region": REGION,
}


def settings_for(server: AwsServer) -> dict[str, str]:
    """Hadoop's settings with which a JVM reaches a server."""
    return {**SETTINGS, "fs.s3a.endpoint": server.endpoint, "spark.headgate.dynamodb.endpoint": server.endpoint}


@pytest.fixture(scope="session")
def aws_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    """One server for all tests, with the bucket `lake`."""
    with aws_server(tmp_path_factory.mktemp("aws")) as server:
        boto3.client("s3", **server.client_options()).create_bucket(
            Bucket="lake", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield server


@pytest.fixture
def aws(aws_running: AwsServer) -> Iterator[AwsServer]:
    """The server, without faults before and after, and with no request logged yet."""
    aws_running.heal()
    aws_running.forget_requests()
    yield aws_running
    aws_running.heal()


@pytest.fixture
def s3(aws: AwsServer) -> Any:
    """A client of its own, beside the one of the JVM."""
    return boto3.client("s3", **aws.client_options())


@pytest.fixture
def dynamodb(aws: AwsServer) -> Any:
    """The same for DynamoDB."""
    return boto3.client("dynamodb", **aws.client_options())


@pytest.fixture(scope="session")
def class_path(jars_from: JarSources) -> str:
    """What a log store needs."""
    import pyspark

    spark_jars = Path(pyspark.__file__).parent / "jars" / "*"
    return os.pathsep.join(map(str, [own_jar(), *fetch(["delta", "s3a"], sources=jars_from), spark_jars]))


@pytest.fixture(scope="session")
def java(java_from: JavaSources) -> list[str]:
    """The command of a small JVM."""
    return [str(find_java(java_from).program), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx200m"]


@pytest.fixture(scope="session")
def jvm(class_path: str, java: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A JVM of its own, which ends with the tests."""
    program, *flags = java
    with (tmp_path_factory.mktemp("jvm") / "log").open("wb") as log:
        port, process = launch_gateway(
            classpath=class_path,
            javaopts=flags,
            java_path=program,
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            return_proc=True,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def hadoop(jvm: Any, aws: AwsServer) -> Any:
    """Hadoop's settings with which that JVM reaches the server."""
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in settings_for(aws).items():
        conf.set(key, value)
    return conf
