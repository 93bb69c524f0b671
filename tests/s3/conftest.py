"""An S3 and a DynamoDB for the tests of this folder, and a JVM with log stores and no Spark, which starts in a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import py4j.protocol
import pytest

from harness.log_store_jvm import hadoop_conf, log_store_jvm
from lakegate.demo.aws_server import REGION, AwsServer, aws_server
from lakegate.spark.jars import JarSources
from lakegate.spark.java import JavaSources, find_java
from tests.s3.drivers import Asked


@pytest.fixture(scope="session")
def aws_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    """Starts one server for all tests, with the bucket `lake`."""
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


@pytest.fixture(scope="session")
def asked(aws_running: AwsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A Spark driver that does what tests ask of it; one for all of them, as each takes ten seconds to start."""
    driver = Asked(aws_running, tmp_path_factory.mktemp("asked") / "log")
    try:
        yield driver
    finally:
        driver.end()


@pytest.fixture
def s3(aws: AwsServer) -> Any:
    """Returns a client of its own, in addition to the JVM's."""
    return boto3.client("s3", **aws.client_options())


@pytest.fixture
def dynamodb(aws: AwsServer) -> Any:
    """The same for DynamoDB."""
    return boto3.client("dynamodb", **aws.client_options())


@pytest.fixture(scope="session")
def jvm_running(
    jars_from: JarSources, java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A JVM of its own, which ends with the tests."""
    with log_store_jvm(find_java(java_from).program, jars_from, tmp_path_factory.mktemp("jvm") / "log") as made:
        yield made


@pytest.fixture
def jvm(jvm_running: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same, whose errors are read as py4j does: a Spark session of this process would ask its own JVM about them."""
    monkeypatch.setattr("py4j.java_gateway.get_return_value", py4j.protocol.get_return_value)
    return jvm_running


@pytest.fixture
def hadoop(jvm: Any, aws: AwsServer) -> Any:
    """Hadoop's settings with which that JVM reaches the server."""
    return hadoop_conf(jvm, aws)
