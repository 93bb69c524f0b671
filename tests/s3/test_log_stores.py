"""The log stores of S3 one request at a time: answers that are lost, states that a crash leaves, writers that do not belong."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from lakegate.demo.aws_server import AwsServer, InjectedFault
from lakegate.spark.log_stores import GATE
from tests.s3.stores import ENTRIES, Store

pytestmark = [pytest.mark.spark, pytest.mark.every_case]
COMMIT = r"_delta_log/\d{20}\.json$"
MakeStore = Callable[[str], Store]


@pytest.fixture
def make(jvm: Any, hadoop: Any, s3: Any, dynamodb: Any) -> MakeStore:
    """Makes a log store of a kind on a new table."""
    return lambda word: Store(word, jvm, hadoop, s3, dynamodb)


FAULTS = {
    "lost answer": InjectedFault("lose_reply", kind="PUT", key=COMMIT),
    "lost request": InjectedFault("lose_request", kind="PUT", key=COMMIT),
    "500 after it was done": InjectedFault("error_after", kind="PUT", key=COMMIT, status=500, code="InternalError"),
    "503": InjectedFault("error_before", kind="PUT", key=COMMIT),
    "409": InjectedFault(
        "error_before", kind="PUT", key=COMMIT, status=409, code="ConditionalRequestConflict", times=2
    ),
}
ENTRY_FAULTS = {
    "lost answer of the entry": InjectedFault("lose_reply", kind="PutItem"),
    "throttled entry": InjectedFault(
        "error_before", kind="PutItem", status=400, code="ProvisionedThroughputExceededException", times=2
    ),
}


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        *(pytest.param("conditional", fault, id=f"conditional, {name}") for name, fault in FAULTS.items()),
        *(pytest.param("dynamodb", fault, id=f"dynamodb, {name}") for name, fault in (FAULTS | ENTRY_FAULTS).items()),
    ],
)
def test_a_commit_is_made_once_whatever_befalls_its_request(
    aws: AwsServer, make: MakeStore, word: str, fault: InjectedFault
) -> None:
    """The client repeats it, or the store does; "taken" by one's own commit is no loss; the next writer is refused."""
    store = make(word)
    assert store.write(0, "zero") == "ok"
    aws.fail(fault)
    assert store.write(1, "ours") == "ok"
    assert aws.faults_left() == 0
    assert store.write(1, "another's").startswith("FileAlreadyExistsException")
    assert store.listed() == [0, 1]
    assert store.content(1) == "ours"


@pytest.mark.parametrize("word", ["conditional", "dynamodb"])
def test_a_commit_that_does_not_fit_on_the_disk_is_not_put_in_part(make: MakeStore, jvm: Any, word: str) -> None:
    """The client gathers what it puts in a file, and closing would put what there is of it: a version that nobody can read."""
    store = make(word)
    assert store.write(0, "zero") == "ok"
    process = int(jvm.java.lang.ProcessHandle.current().pid())
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        answer = store.write(1, "x" * 300_000)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
    assert answer.startswith("IOException")
    assert store.content(1) is None
    assert store.write(1, "ours") == "ok"
    assert store.content(1) == "ours"


def test_a_commit_of_a_plain_writer_is_kept(aws: AwsServer, make: MakeStore) -> None:
    """A plain writer took the version: its commit is not overwritten, and Delta gets the error that the version is taken."""
    store = make("conditional")
    assert store.write(0, "zero") == "ok"
    store.put(1, "foreign")
    assert store.write(1, "ours").startswith("FileAlreadyExistsException")
    assert store.content(1) == "foreign"


@pytest.mark.parametrize("what", ["ignore_condition"])
def test_a_server_that_does_not_refuse_is_refused_before_the_first_commit(
    aws: AwsServer, make: MakeStore, s3: Any, what: Any
) -> None:
    """An unsafe server is recognized by its own answers, once for each bucket and JVM, and no commit is put there."""
    s3.create_bucket(Bucket="unsafe", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    store = make("conditional")
    store.table = "s3a://unsafe/t"
    aws.fail(InjectedFault(what, key="^unsafe/", times=None))
    assert "does not refuse a second writer" in store.write(0, "zero")
    assert s3.list_objects_v2(Bucket="unsafe", Prefix="t/_delta_log/0").get("KeyCount") == 0


def test_a_table_has_one_address(make: MakeStore) -> None:
    """Under another scheme the same table would have other entries and other turns; the gate refuses it."""
    store = make(GATE)
    assert store.write(0, "zero") == "ok"
    store.table = store.table.replace("s3a:", "s3:")
    assert "as s3a://; nothing was done" in store.write(1, "one")


# ------------------------------------------------------------------------------------------------- entries in DynamoDB


DENIED = {"status": 403, "code": "AccessDenied"}
"""After such an answer a driver asks no more, as if it had died."""


STATES: dict[str, tuple[Callable[[Store, AwsServer], None], bool]] = {
    "aside": (
        lambda store, aws: _dies(store, aws, InjectedFault("error_before", "PutItem", "00001.json", 1, **DENIED)),
        False,
    ),
    "entered": (lambda store, aws: _dies(store, aws, InjectedFault("error_before", "PUT", COMMIT, 1, **DENIED)), True),
    "placed": (lambda store, aws: _dies(store, aws, InjectedFault("error_after", "PUT", COMMIT, 1, **DENIED)), True),
    "entered by hand": (lambda store, aws: store.begin(1, "one"), True),
    "placed by hand": (lambda store, aws: (store.begin(1, "one"), store.put(1, "one"))[0], True),
}
"""What a driver leaves that dies after each of its steps, and whether its commit is made."""


def _dies(store: Store, aws: AwsServer, fault: InjectedFault) -> None:
    aws.fail(fault)
    store.write(1, "one")
    assert aws.faults_left() == 0


@pytest.mark.parametrize("who", ["reader", "writer"])
@pytest.mark.parametrize("state", STATES)
def test_the_next_reader_completes_the_commit_of_a_dead_driver(
    aws: AwsServer, make: MakeStore, state: str, who: str
) -> None:
    """The commit is in the table if its entry is, whole and once; the next version follows it."""
    store = make("dynamodb")
    assert store.write(0, "zero") == "ok"
    leave, is_made = STATES[state]
    leave(store, aws)
    if who == "reader":
        assert store.listed() == ([0, 1] if is_made else [0])
    assert store.write(2 if is_made else 1, "next") == "ok"
    assert store.listed() == ([0, 1, 2] if is_made else [0, 1])
    assert store.content(1) == ("one" if is_made else "next")
    assert [store.is_complete(version) for version in store.listed()] == [True] * (3 if is_made else 2)


def test_what_cannot_be_mended_is_an_error_and_never_no_table(make: MakeStore) -> None:
    """Where Delta's store answers "no table", or refuses a writer without end, ours says what is wrong, and writes nothing."""
    store = make("dynamodb")
    assert store.write(0, "zero") == "ok"
    store.begin(1, "one", has_aside=False)
    for answer in (store.listed(), store.write(2, "two")):
        assert "what it wrote aside (.tmp/" in answer, "aside is gone"
        assert "FileNotFound" not in answer

    store = make("dynamodb")
    assert (store.write(0, "zero"), store.write(1, "one")) == ("ok", "ok")
    store.remove(1)
    for answer in (store.listed(), store.write(1, "again")):
        assert "is complete by its entry, and is not there" in answer


def test_entries_of_a_deleted_table_are_reported(make: MakeStore) -> None:
    """A new table under the old name would be refused its versions one day; it is refused the first."""
    store = make("dynamodb")
    assert (store.write(0, "zero"), store.write(1, "one")) == ("ok", "ok")
    for version in (0, 1):
        store.remove(version)
    assert "entries of a table that was deleted are left" in store.write(0, "new")
    assert store.content(0) is None


def test_a_writer_without_entries_is_detected(make: MakeStore) -> None:
    """Its commit is not overwritten, the next is not acknowledged, and no entry is left for it."""
    store = make("dynamodb")
    assert store.write(0, "zero") == "ok"
    store.put(1, "foreign")
    assert store.write(1, "ours").startswith("FileAlreadyExistsException")
    assert "was written without an entry" in store.write(2, "ours")
    assert (store.content(1), store.content(2), store.entry(2)) == ("foreign", None, None)


def test_a_writer_without_entries_that_took_a_version_under_way_is_detected(make: MakeStore) -> None:
    """The driver that completes a commit finds another one there: readers and writers get an error, and neither is overwritten."""
    store = make("dynamodb")
    assert store.write(0, "zero") == "ok"
    store.begin(1, "ours")
    store.put(1, "foreign")
    for answer in (store.listed(), store.write(2, "two")):
        assert "was written without an entry" in answer
    assert (store.content(1), store.content(2), store.is_complete(1)) == ("foreign", None, False)


def test_entries_are_as_deltas_own_store_writes_them(make: MakeStore, dynamodb: Any) -> None:
    """Attributes, key and kinds of value; the table that was missing has 5 and 5 units and forgets by expireTime."""
    store = make("dynamodb")
    assert store.write(0, "zero") == "ok"
    entry = store.entry(0)
    assert entry is not None
    assert {name: next(iter(value)) for name, value in entry.items()} == {
        "tablePath": "S",
        "fileName": "S",
        "tempPath": "S",
        "complete": "S",
        "expireTime": "N",
    }
    assert entry["tablePath"]["S"] == store.table
    assert entry["tempPath"]["S"].startswith(".tmp/00000000000000000000.json.")
    made = dynamodb.describe_table(TableName=ENTRIES)["Table"]
    assert {one["AttributeName"]: one["KeyType"] for one in made["KeySchema"]} == {
        "tablePath": "HASH",
        "fileName": "RANGE",
    }
    units = made["ProvisionedThroughput"]
    assert (units["ReadCapacityUnits"], units["WriteCapacityUnits"]) == (5, 5)
    forgets = dynamodb.describe_time_to_live(TableName=ENTRIES)["TimeToLiveDescription"]
    assert (forgets["TimeToLiveStatus"], forgets["AttributeName"]) == ("ENABLED", "expireTime")


def test_another_table_of_entries_for_the_same_log_is_found_out(
    make: MakeStore, jvm: Any, hadoop: Any, s3: Any, dynamodb: Any
) -> None:
    """A driver with a wrong table, or region: nothing is overwritten, and the next driver with the right table gets an error."""
    right = make("dynamodb")
    elsewhere = jvm.org.apache.hadoop.conf.Configuration(hadoop)
    elsewhere.set("io.delta.storage.S3DynamoDBLogStore.ddb.tableName", "other_log")
    wrong = Store("dynamodb", jvm, elsewhere, s3, dynamodb)
    wrong.name, wrong.table = right.name, right.table
    assert (right.write(0, "zero"), right.write(1, "one")) == ("ok", "ok")
    assert wrong.write(1, "another's").startswith("FileAlreadyExistsException")
    assert wrong.write(2, "two") == "ok"  # it cannot know: its table of entries is new
    assert "with another log store, table or region" in right.write(3, "three")
    assert [right.content(version) for version in range(4)] == ["zero", "one", "two", None]


@pytest.mark.parametrize("entries", [1_000, pytest.param(100_000, marks=pytest.mark.matrix)])
def test_entries_may_be_kept_for_ever(
    jvm: Any, hadoop: Any, s3: Any, dynamodb: Any, aws: AwsServer, entries: int
) -> None:
    """After so many of them a commit asks for one entry, and a commit without an entry is found however old the last entry is."""
    settings = jvm.org.apache.hadoop.conf.Configuration(hadoop)
    settings.set("io.delta.storage.S3DynamoDBLogStore.ddb.tableName", "kept_log")
    settings.set("io.delta.storage.S3DynamoDBLogStore.ddb.ttl", "never")
    store = Store("dynamodb", jvm, settings, s3, dynamodb)
    assert store.write(0, "zero") == "ok"
    key = {"tablePath": {"S": store.table}, "fileName": {"S": f"{0:020}.json"}}
    (first,) = (dynamodb.get_item(TableName="kept_log", Key=key)["Item"],)
    assert "expireTime" not in first
    names = [f"{version:020}.json" for version in range(1, entries + 1)]
    for start in range(0, len(names), 25):
        puts = [{"PutRequest": {"Item": {**first, "fileName": {"S": name}}}} for name in names[start : start + 25]]
        dynamodb.batch_write_item(RequestItems={"kept_log": puts})
    store.put(entries, "the last one")
    aws.forget_requests()
    assert store.write(entries + 1, "next") == "ok"
    assert sum(request.kind == "Query" for request in aws.requests()) <= 1
    assert len(aws.requests()) < 10
    store.put(entries + 2, "without an entry")
    assert "with another log store, table or region" in store.write(entries + 3, "three")


def test_a_table_of_entries_is_made_on_demand_where_that_is_said(
    make: MakeStore, jvm: Any, hadoop: Any, s3: Any, dynamodb: Any
) -> None:
    """Without units that are paid for by the hour."""
    settings = jvm.org.apache.hadoop.conf.Configuration(hadoop)
    settings.set("io.delta.storage.S3DynamoDBLogStore.ddb.tableName", "on_demand_log")
    settings.set("spark.lakegate.dynamodb.onDemand", "true")
    assert Store("dynamodb", jvm, settings, s3, dynamodb).write(0, "zero") == "ok"
    made = dynamodb.describe_table(TableName="on_demand_log")["Table"]
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_a_checkpoint_is_not_begun_where_two_runs_could_plan_one_batch(
    aws: AwsServer, jvm: Any, hadoop: Any, s3: Any
) -> None:
    """The server of a checkpoint is asked, too, before the first file; one that refuses nobody gets none."""
    location = {"LocationConstraint": "eu-central-1"}
    for bucket in ("checkpoints", "unsafe-checkpoints"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration=location)
    aws.fail(InjectedFault("ignore_condition", key="^unsafe-checkpoints/", times=None))

    def planned(bucket: str, by: bytes) -> str:
        path = jvm.org.apache.hadoop.fs.Path(f"s3a://{bucket}/c/offsets/0")
        file = jvm.io.github.lakegate.S3CheckpointFileManager(path.getParent(), hadoop).createAtomic(path, False)
        file.write(by)
        try:
            file.close()
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage())
        return "ok"

    assert planned("checkpoints", b"one") == "ok"
    assert "another run of this query wrote it" in planned("checkpoints", b"other")
    assert "does not refuse a second writer" in planned("unsafe-checkpoints", b"one")
    left = s3.list_objects_v2(Bucket="unsafe-checkpoints").get("Contents", ())
    assert [one["Key"] for one in left if not one["Key"].endswith("/")] == []  # but for a folder's mark


def test_a_commit_costs_as_few_requests_as_are_promised(aws: AwsServer, make: MakeStore) -> None:
    """One put; with entries three requests to each of S3 and DynamoDB. Delta's own stores need 5 and 13."""
    kinds: dict[str, list[str]] = {}
    for word in ("conditional", "dynamodb", "single_driver"):
        store = make(word)
        assert (store.write(0, "zero"), store.write(1, "one")) == ("ok", "ok")
        aws.forget_requests()
        assert store.write(2, "two") == "ok"
        kinds[word] = sorted(request.kind for request in aws.requests())
    assert kinds["conditional"] == ["PUT"]
    assert kinds["dynamodb"] == ["GetItem", "HEAD", "PUT", "PUT", "PutItem", "PutItem"]
    assert len(kinds["single_driver"]) == 5
