"""The S3 and DynamoDB of the tests: two writers of one key never both win, and each fault is what it says it is."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault

THREADS, KEYS = 8, 20
BUCKET, TABLE = "of-the-server-tests", "of-the-server-tests"
ONCE = Config(retries={"total_max_attempts": 1})


@pytest.fixture(scope="module", autouse=True)
def places(aws: AwsServer) -> None:
    """The bucket and the table of this module."""
    client(aws, "s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    client(aws, "dynamodb").create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture(autouse=True)
def healed(aws: AwsServer) -> None:
    """No fault and no request of an earlier test."""
    aws.heal()
    aws.forget_requests()


def client(aws: AwsServer, service: str) -> Any:
    """A client that asks once and no more."""
    options = aws.client_options()
    return boto3.client(service, config=ONCE, **options)


def put(s3: Any, key: str, body: bytes = b"ours", **more: str) -> str:
    """Makes a conditional put of S3; returns `200`, or the code of its error."""
    try:
        s3.put_object(Bucket=BUCKET, Key=key, Body=body, IfNoneMatch="*", **more)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "200"


def put_item(db: Any, key: str) -> str:
    """Makes a conditional put of DynamoDB; returns its outcome."""
    try:
        db.put_item(TableName=TABLE, Item={"id": {"S": key}}, ConditionExpression="attribute_not_exists(id)")
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "200"


def race(aws: AwsServer, service: str, one: Callable[[Any, str], str], prefix: str) -> list[Counter[str]]:
    """Counts the outcomes at each key, for threads that all put the same keys at the same time."""
    outcomes = [Counter[str]() for _ in range(KEYS)]
    gate, noting = threading.Barrier(THREADS), threading.Lock()

    def run() -> None:
        asking = client(aws, service)
        for n in range(KEYS):
            gate.wait(30)
            outcome = one(asking, f"{prefix}-{n}")
            with noting:
                outcomes[n][outcome] += 1

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_of_many_conditional_puts_of_one_key_exactly_one_wins(aws: AwsServer) -> None:
    """8 threads, 20 keys, S3 and DynamoDB: one put of each key succeeds, and all others are refused."""
    lost = THREADS - 1
    assert race(aws, "s3", put, "race") == [Counter({"200": 1, "PreconditionFailed": lost})] * KEYS
    refused = Counter({"200": 1, "ConditionalCheckFailedException": lost})
    assert race(aws, "dynamodb", put_item, "race") == [refused] * KEYS


def test_a_server_that_is_not_atomic_is_found_by_the_same_race(aws: AwsServer) -> None:
    """The race above can fail; and code that must refuse such a server needs one."""
    aws.fail(InjectedFault("race_condition", kind="PUT", times=None))
    assert any(found["200"] > 1 for found in race(aws, "s3", put, "unsafe"))
    aws.heal()
    aws.fail(InjectedFault("ignore_condition", times=None))
    assert [put(client(aws, "s3"), "unsafe-0") for _ in range(2)] == ["200", "200"]
    assert [put_item(client(aws, "dynamodb"), "unsafe-0") for _ in range(2)] == ["200", "200"]


def test_a_lost_reply_was_carried_out_and_a_lost_request_was_not(aws: AwsServer) -> None:
    """Either way the connection ends, and nothing else tells them apart."""
    s3, db = client(aws, "s3"), client(aws, "dynamodb")
    aws.fail(InjectedFault("lose_reply", kind="PUT|PutItem", key="lost", times=2))
    for call, key in (
        (lambda: put(s3, "lost-1"), f"{BUCKET}/lost-1"),
        (lambda: put_item(db, "lost-1"), f"{TABLE}/lost-1"),
    ):
        with pytest.raises(ConnectionClosedError):
            call()
        assert [(each.key, each.status, each.fault) for each in aws.requests()][-1] == (key, 200, "lose_reply")
    assert put(s3, "lost-1") == "PreconditionFailed"
    assert put_item(db, "lost-1") == "ConditionalCheckFailedException"
    aws.fail(InjectedFault("lose_request", kind="PUT|PutItem", key="lost", times=2))
    for call in (lambda: put(s3, "lost-2"), lambda: put_item(db, "lost-2")):
        with pytest.raises(ConnectionClosedError):
            call()
    assert aws.faults_left() == 0
    assert put(s3, "lost-2") == put_item(db, "lost-2") == "200"


def test_errors_are_answered_before_or_after_the_work(aws: AwsServer) -> None:
    """Only matching requests, only the given number of times, in the format of each service."""
    s3, db = client(aws, "s3"), client(aws, "dynamodb")
    aws.fail(
        InjectedFault("error_before", kind="PUT", key="e-1$", status=503, code="SlowDown"),
        InjectedFault("error_before", kind="PUT", key="e-1$", status=409, code="ConditionalRequestConflict"),
        InjectedFault("error_after", kind="PUT", key="e-1$", status=500, code="InternalError"),
        InjectedFault("error_before", kind="PutItem", status=400, code="ProvisionedThroughputExceededException"),
        InjectedFault("error_after", kind="PutItem", status=500, code="InternalServerError"),
    )
    assert put(s3, "e-2") == "200"
    assert [put(s3, "e-1") for _ in range(4)] == [
        "SlowDown",
        "ConditionalRequestConflict",
        "InternalError",
        "PreconditionFailed",
    ]
    assert [put_item(db, "e") for _ in range(3)] == [
        "ProvisionedThroughputExceededException",
        "InternalServerError",
        "ConditionalCheckFailedException",
    ]


def test_a_fault_befalls_each_nth_request(aws: AwsServer) -> None:
    """A delay may be combined with another fault."""
    db = client(aws, "dynamodb")
    aws.fail(
        InjectedFault("error_before", kind="PutItem", times=None, each=3),
        InjectedFault("delay", kind="PutItem", delay_ms=1.0),
    )
    assert [put_item(db, f"each-{n}") for n in range(7)] == ["200", "200", "SlowDown", "200", "200", "SlowDown", "200"]
    assert [each.fault for each in aws.requests()] == ["delay", "", "error_before", "", "", "error_before", ""]


def test_requests_are_recorded_by_kind_key_and_time(aws: AwsServer) -> None:
    """What a measurement counts: each request once, a delay in its time, and the bytes that were stored."""
    s3, db = client(aws, "s3"), client(aws, "dynamodb")
    aws.fail(InjectedFault("delay", kind="PUT", times=None, delay_ms=30.0))
    put(s3, "log/0.json")
    s3.head_object(Bucket=BUCKET, Key="log/0.json")
    s3.get_object(Bucket=BUCKET, Key="log/0.json")
    s3.list_objects_v2(Bucket=BUCKET, Prefix="log/")
    s3.copy_object(Bucket=BUCKET, Key="log/1.json", CopySource=f"{BUCKET}/log/0.json")
    s3.delete_object(Bucket=BUCKET, Key="log/1.json")
    put_item(db, "x")
    db.get_item(TableName=TABLE, Key={"id": {"S": "x"}})
    seen = aws.requests()
    assert [(each.kind, each.key, each.is_conditional) for each in seen] == [
        ("PUT", f"{BUCKET}/log/0.json", True),
        ("HEAD", f"{BUCKET}/log/0.json", False),
        ("GET", f"{BUCKET}/log/0.json", False),
        ("LIST", f"{BUCKET}/log/", False),
        ("COPY", f"{BUCKET}/log/1.json", False),
        ("DELETE", f"{BUCKET}/log/1.json", False),
        ("PutItem", f"{TABLE}/x", True),
        ("GetItem", f"{TABLE}/x", False),
    ]
    assert seen[0].ms >= 30
    assert seen[0].fault == "delay"
    assert seen[0].sha256 == hashlib.sha256(b"ours").hexdigest()
    assert not seen[1].fault
