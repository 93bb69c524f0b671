"""The store in DynamoDB keeps the contract of the port, and what is special to it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import boto3
import pytest

from harness.conformance.turn_store import LOCK, Losing, TurnStoreConformance
from harness.proxy import Proxy
from lakegate.config.dynamodb import DynamodbPlace, read_dynamodb
from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault, What
from lakegate.demo.servers import free_ports
from lakegate.errors import Corrupt, InvalidRequest, TurnNotGranted, Unavailable
from lakegate.ids import Epoch, JobName
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.protocol.transitions import begin_record
from lakegate.turns.stores.dynamodb import DynamodbTurnStore

CHANGES = "PutItem|UpdateItem|DeleteItem"


pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture
def place(aws: AwsServer) -> DynamodbPlace:
    """A table of its own, which is made by who opens it first."""
    options = f"region={REGION}&endpoint={aws.endpoint}&create=true&session_timeout=60s&call_timeout=10s"
    return read_dynamodb(f"dynamodb://turns-{uuid.uuid4().hex}?{options}")


@pytest.fixture
def handles(place: DynamodbPlace) -> Iterator[Callable[..., DynamodbTurnStore]]:
    """A factory of handles on one table, with other settings if they are given; closed at the end."""
    made: list[DynamodbTurnStore] = []

    def open_one(*, monotonic_s: Callable[[], float] = time.monotonic, **settings: Any) -> DynamodbTurnStore:
        made.append(DynamodbTurnStore(replace(place, **settings), monotonic_s=monotonic_s))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


@pytest.mark.slow
class TestDynamodb(TurnStoreConformance):
    """The whole suite, each test in a table of its own."""

    contenders, turns_each = 6, 3

    @pytest.fixture
    def open_store(self, handles: Callable[..., DynamodbTurnStore]) -> Callable[[], TurnStore]:
        return handles

    @pytest.fixture
    def lose(
        self, handles: Callable[..., DynamodbTurnStore], aws: AwsServer
    ) -> Callable[[TurnStore, str], AbstractContextManager[TurnStore]]:
        """The server loses it, as often as it is sent."""

        @contextlib.contextmanager
        def losing(store: TurnStore, what: str) -> Iterator[TurnStore]:
            yield CutOff(store, handles(call_timeout_ms=500), aws, what)

        return losing


class CutOff(Losing):
    """A store whose changes of the record are lost until it gives up."""

    def __init__(self, inner: TurnStore, impatient: TurnStore, aws: AwsServer, what: str) -> None:
        super().__init__(inner, what)
        self._impatient, self._aws = impatient, aws

    def lost_compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self._aws.fail(InjectedFault(f"lose_{self._what}", kind="PutItem", key="/locks/", times=None))
        reply = self._impatient.compare_and_set(lock, record, version)
        self._aws.heal()
        assert reply == "unknown", "the server was not as bad as it was to be"
        return reply


def test_every_reading_asks_for_what_was_written_last(
    handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """DynamoDB may answer with older data, unless a read asks for consistency."""
    store = handles()
    aws.forget_requests()
    store.read(LOCK)
    store.live_sessions(LOCK)
    store.locks()
    store.coordinator_id()
    store.wait_for_change(LOCK, 0, 0.01)
    seen = aws.requests()
    assert [each.kind for each in seen] == ["GetItem", "Query", "GetItem", "Query", "GetItem", "GetItem"]
    assert all(each.is_consistent for each in seen)


# ------------------------------------------------------------------------------------------------------ unknown outcomes


@pytest.mark.parametrize(
    "fault",
    [
        InjectedFault("lose_reply"),
        InjectedFault("lose_request"),
        InjectedFault("error_after", status=500, code="InternalServerError"),
        InjectedFault("error_before", status=503, code="ServiceUnavailable"),
        InjectedFault("error_before", status=400, code="ProvisionedThroughputExceededException", times=3),
        InjectedFault("error_before", status=400, code="ThrottlingException"),
    ],
    ids=lambda fault: f"{fault.what}-{fault.code}",
)
def test_a_change_that_met_a_fault_is_made_once_and_known_to_be_ours(
    fault: InjectedFault, handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """The store reads again, and recognizes its own change by the mark in it."""
    store = handles()
    for version in range(3):
        aws.fail(replace(fault, kind="PutItem", key="/locks/"))
        assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(version)), version) == "done"
        assert aws.faults_left() == 0
        assert store.read(LOCK).version == version + 1
    aws.fail(replace(fault, kind="PutItem|UpdateItem", key="/sessions/"))
    session = store.open_session(LOCK, JobName("job"))
    aws.fail(replace(fault, kind="UpdateItem", key="/sessions/"))
    assert session.heartbeat()
    aws.fail(replace(fault, kind="DeleteItem", key="/sessions/"))
    session.close()
    assert store.live_sessions(LOCK).ids == frozenset()


@pytest.mark.parametrize(("lost", "expected"), [("lose_reply", "unknown"), ("lose_request", "stale")])
def test_what_another_wrote_meanwhile_decides_what_is_known(
    lost: What, expected: CasReply, handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """The next version is another's: ours was never made. Two versions later it may have been: nothing is said of it."""
    one, other = handles(), handles()
    assert one.compare_and_set(LOCK, begin_record(LOCK, Epoch(0)), 0) == "done"
    repeated = InjectedFault("delay", kind="PutItem", key="/locks/", delay_ms=700.0)
    aws.fail(InjectedFault(lost, kind="PutItem", key="/locks/"))
    replies: list[CasReply] = []
    record = begin_record(LOCK, Epoch(1))
    thread = threading.Thread(target=lambda: replies.append(one.compare_and_set(LOCK, record, 1)))
    # The first delay is taken by the attempt that is lost, the second by the one that repeats it.
    aws.fail(replace(repeated, delay_ms=0.0), repeated)
    thread.start()
    until(lambda: aws.faults_left() == 0)
    seen = other.read(LOCK).version
    assert seen == (2 if lost == "lose_reply" else 1)
    assert other.compare_and_set(LOCK, begin_record(LOCK, Epoch(2)), seen) == "done"
    thread.join(20)
    assert replies == [expected]


@pytest.mark.parametrize("what", ["cut_reply", "empty_reply", "lose_reply"])
def test_an_answer_without_its_end_is_none(
    what: What, handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """The store asks again: a truncated answer must not mean that no run is alive."""
    store = handles()
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(0)), 0) == "done"
    session = store.open_session(LOCK, JobName("job"))
    aws.fail(InjectedFault(what, kind="Query"))
    assert store.live_sessions(LOCK).ids == {session.id}
    aws.fail(InjectedFault(what, kind="GetItem", key="/locks/"))
    assert store.read(LOCK).version == 1
    aws.fail(InjectedFault(what, kind="PutItem", key="/locks/"))
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), 1) == "done"
    assert store.read(LOCK).version == 2
    assert aws.faults_left() == 0


# ---------------------------------------------------------------------------------------------------------- who is alive


def test_a_run_is_dead_when_a_whole_lease_of_the_readers_clock_showed_no_heartbeat(
    handles: Callable[..., DynamodbTurnStore],
) -> None:
    """Not before, and not by a first look; then for everybody, for good, and it hears so itself."""
    now = [1000.0]
    reader, other = handles(monotonic_s=lambda: now[0]), handles()
    kept, left = (other.open_session(LOCK, JobName(name)) for name in ("kept", "left"))
    now[0] = 1_000_000.0
    assert reader.live_sessions(LOCK).jobs == {"kept", "left"}
    now[0] += 59.0
    assert kept.heartbeat()
    assert reader.live_sessions(LOCK).jobs == {"kept", "left"}
    now[0] += 1.5
    assert reader.live_sessions(LOCK).jobs == {"kept"}
    assert other.live_sessions(LOCK).jobs == {"kept"}
    assert not left.heartbeat()
    again = other.open_session(LOCK, JobName("left"))
    assert not left.heartbeat(), "the item of another run was taken for its own"
    left.close()
    assert again.heartbeat()
    assert other.live_sessions(LOCK).jobs == {"kept", "left"}
    now[0] += 59.0
    assert reader.live_sessions(LOCK).ids == {again.id}, "kept was silent for a lease, again was never seen before"


def test_a_heartbeat_between_the_look_and_the_burial_keeps_the_run_alive(
    handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """The write depends on the heartbeat that the reader saw."""
    now = [0.0]
    reader, other = handles(monotonic_s=lambda: now[0]), handles()
    session = other.open_session(LOCK, JobName("slow"))
    reader.live_sessions(LOCK)
    now[0] = 61.0
    aws.fail(InjectedFault("delay", kind="DeleteItem", delay_ms=700.0))
    alive: list[frozenset[JobName]] = []
    thread = threading.Thread(target=lambda: alive.append(reader.live_sessions(LOCK).jobs))
    thread.start()
    until(lambda: aws.faults_left() == 0)
    assert session.heartbeat()
    thread.join(20)
    assert alive == [{"slow"}]
    assert session.heartbeat()


def test_the_lease_is_that_of_the_run_and_not_of_the_reader(handles: Callable[..., DynamodbTurnStore]) -> None:
    """A reader with a shorter one must not count a run as dead that trusts in a longer one."""
    now = [0.0]
    hasty, other = handles(session_timeout_ms=1000, monotonic_s=lambda: now[0]), handles()
    session = other.open_session(LOCK, JobName("job"))
    for now[0] in (0.0, 30.0, 59.0):
        assert hasty.live_sessions(LOCK).ids == {session.id}
    now[0] = 61.0
    assert hasty.live_sessions(LOCK).ids == frozenset()


def test_a_reader_without_write_permission_marks_no_run_as_dead(
    handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """It still learns which runs are alive."""
    now = [0.0]
    reader, other = handles(monotonic_s=lambda: now[0]), handles()
    other.open_session(LOCK, JobName("job"))
    reader.live_sessions(LOCK)
    now[0] = 61.0
    denied = InjectedFault("error_before", kind=CHANGES, times=None, status=400, code="AccessDeniedException")
    aws.fail(denied)
    assert reader.live_sessions(LOCK).jobs == {"job"}
    aws.heal()
    assert reader.live_sessions(LOCK).jobs == frozenset()


@pytest.mark.slow
def test_a_second_run_waits_for_a_heartbeat_or_for_the_lease(
    handles: Callable[..., DynamodbTurnStore], place: DynamodbPlace
) -> None:
    """It is refused as soon as the first is heard, and takes the place of one that was killed a lease after it began to look."""
    store = handles(session_timeout_ms=2000)
    code = (
        "import sys, time; from lakegate.config.dynamodb import read_dynamodb\n"
        "from lakegate.turns.stores.dynamodb import DynamodbTurnStore\n"
        "session = DynamodbTurnStore(read_dynamodb(sys.argv[1])).open_session(sys.argv[2], 'job')\n"
        "print('open', flush=True)\n"
        "while session.heartbeat(): time.sleep(0.3)\n"
    )
    url = f"dynamodb://{place.table}?region={REGION}&endpoint={place.endpoint}&session_timeout=2s"
    process = subprocess.Popen([sys.executable, "-c", code, url, LOCK], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(TurnNotGranted, match=f"another run of job is alive.*pid={process.pid}"):
            store.open_session(LOCK, JobName("job"))
    finally:
        process.kill()
        process.communicate()
    begun_s = time.monotonic()
    session = store.open_session(LOCK, JobName("job"))
    assert time.monotonic() - begun_s >= 2.0
    assert session.heartbeat()


# ------------------------------------------------------------------------------------------------------- what is refused


def test_a_table_that_is_missing_is_made_only_where_that_is_asked_for(
    handles: Callable[..., DynamodbTurnStore],
) -> None:
    """By several at once, too; the data of another table, or of another region, are another coordinator."""
    for region in (REGION, "eu-west-1"):
        with pytest.raises(InvalidRequest, match=r"the table does not exist.*create=true"):
            handles(create=False, region=region)
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(handles().coordinator_id())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ids == [handles(create=False).coordinator_id()] * 4


def test_a_deleted_table_is_reported_and_a_new_one_is_a_new_coordinator(
    handles: Callable[..., DynamodbTurnStore], place: DynamodbPlace, aws: AwsServer
) -> None:
    """A change is refused, and not unknown."""
    store = handles()
    before = store.coordinator_id()
    assert store.compare_and_set(LOCK, begin_record(LOCK, Epoch(5)), 0) == "done"
    session = store.open_session(LOCK, JobName("job"))
    client = boto3.client("dynamodb", **aws.client_options())
    client.delete_table(TableName=place.table)
    for call in (lambda: store.read(LOCK), lambda: store.compare_and_set(LOCK, begin_record(LOCK, Epoch(6)), 1)):
        with pytest.raises(InvalidRequest, match="the table does not exist"):
            call()
    with pytest.raises(Unavailable, match="the table does not exist"):
        session.heartbeat()
    assert handles().coordinator_id() != before
    assert store.read(LOCK).record is None
    assert not session.heartbeat()
    client.close()


def test_a_newer_record_is_refused_and_a_damaged_one_named(
    handles: Callable[..., DynamodbTurnStore], place: DynamodbPlace, aws: AwsServer
) -> None:
    """Neither is ever overwritten by an older version; nor is an item of a run that cannot be read passed over."""
    store = handles()
    store.compare_and_set("L", begin_record("L", Epoch(5)), 0)
    client = boto3.client("dynamodb", **aws.client_options())
    for text, error in (('{"format": 2}', InvalidRequest), ("{}", Corrupt)):
        item = {"part": {"S": "locks"}, "name": {"S": "L"}, "record": {"S": text}, "version": {"N": "1"}}
        client.put_item(TableName=place.table, Item=item)
        with pytest.raises(error):
            store.read("L")
    client.put_item(TableName=place.table, Item={"part": {"S": "sessions/L"}, "name": {"S": "job"}})
    with pytest.raises(Corrupt, match="item of a run"):
        store.live_sessions("L")
    client.close()


def test_names_of_any_letters_are_locks(handles: Callable[..., DynamodbTurnStore]) -> None:
    """Dots, slashes, letters of any alphabet; none is taken for a part of the table."""
    store = handles()
    names = (".", "a", "a/b", "b", "locks", "meta", "ü %2F")
    for name in names:
        assert store.compare_and_set(name, begin_record(name, Epoch(1)), 0) == "done"
        session = store.open_session(name, JobName(f"{name}/b"))
        assert store.live_sessions(name).ids == {session.id}
    assert store.locks() == names


SKEW = "Signature expired: 20260101T000000Z is now earlier than 20260101T003000Z"
DENIED = "User: arn:aws:iam::1:user/x is not authorized to perform: dynamodb:UpdateItem on resource: t"


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("AccessDeniedException", DENIED, r"does not allow dynamodb:UpdateItem .*the actions that"),
        ("ExpiredTokenException", "The security token included in the request is expired", "credentials have expired"),
        ("InvalidSignatureException", SKEW, "clock is wrong.*Set the clock"),
        ("InvalidSignatureException", "The request signature we calculated does not match", "does not know these"),
        ("UnrecognizedClientException", "The security token included in the request is invalid", "does not know these"),
        (
            "ValidationException",
            "One or more parameter values were invalid",
            "refused the request .ValidationException",
        ),
    ],
)
def test_what_a_person_must_mend_is_said_at_once(
    code: str, message: str, expected: str, handles: Callable[..., DynamodbTurnStore], aws: AwsServer
) -> None:
    """Which action is missing, whose clock is wrong; nothing is repeated, nothing was done."""
    store = handles()
    session = store.open_session(LOCK, JobName("job"))
    aws.forget_requests()
    aws.fail(InjectedFault("error_before", times=None, status=400, code=code, message=message))
    calls: list[Callable[[], object]] = [
        lambda: handles(),
        lambda: store.read(LOCK),
        lambda: store.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), 0),
        lambda: store.live_sessions(LOCK),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match=expected):
            call()
    with pytest.raises(Unavailable, match=expected):  # it may be mended before the lease is over
        session.heartbeat()
    assert len(aws.requests()) == len(calls) + 1
    aws.heal()
    assert session.heartbeat()


def test_a_table_of_something_else_is_refused(
    handles: Callable[..., DynamodbTurnStore], place: DynamodbPlace, aws: AwsServer
) -> None:
    """Such as the one that Delta keeps its commits in; nothing is written to it."""
    client = boto3.client("dynamodb", **aws.client_options())
    names = ("tablePath", "fileName")
    client.create_table(
        TableName=place.table,
        KeySchema=[{"AttributeName": names[0], "KeyType": "HASH"}, {"AttributeName": names[1], "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(InvalidRequest, match="belongs to something else"):
        handles()
    assert client.scan(TableName=place.table)["Count"] == 0
    client.close()


def test_without_credentials_it_is_said_where_they_may_be(
    handles: Callable[..., DynamodbTurnStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(InvalidRequest, match=r"no AWS credentials.*AWS_PROFILE"):
        handles()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidRequest, match=r"no AWS credentials.*nobody"):
        handles()


def test_a_record_that_is_too_large_is_refused(handles: Callable[..., DynamodbTurnStore]) -> None:
    """Before it is sent; what is there stays."""
    store = handles()
    record = replace(begin_record(LOCK, Epoch(1)), extra={"x": "ü" * 200_000})
    with pytest.raises(InvalidRequest, match="too large"):
        store.compare_and_set(LOCK, record, 0)
    assert store.read(LOCK).record is None


# -------------------------------------------------------------------------------------------------------------- its time


def test_an_absent_server_is_reported_within_the_time_of_a_call(handles: Callable[..., DynamodbTurnStore]) -> None:
    """Which table, and that it did not answer."""
    (port,) = free_ports(1)
    begun_s = time.monotonic()
    with pytest.raises(Unavailable, match=r"did not answer in time.*table=turns-"):
        handles(endpoint=f"http://127.0.0.1:{port}", call_timeout_ms=1000)
    assert time.monotonic() - begun_s < 10


@pytest.mark.slow
def test_a_call_has_one_deadline_whatever_it_does(handles: Callable[..., DynamodbTurnStore], aws: AwsServer) -> None:
    """A network that swallows everything costs the time of one call, not of each attempt."""
    record = begin_record(LOCK, Epoch(1))
    assert handles().compare_and_set(LOCK, record, 0) == "done"
    with Proxy(aws.port) as network:
        store = handles(endpoint=f"http://{network.address}", call_timeout_ms=1500)
        network.be("blackhole")
        calls: list[Callable[[], object]] = [
            lambda: store.read(LOCK),
            lambda: store.live_sessions(LOCK),
            lambda: store.open_session(LOCK, JobName("other")),
            lambda: store.wait_for_change(LOCK, 1, 0.5),
        ]
        for call in calls:
            begun_s = time.monotonic()
            with contextlib.suppress(Unavailable):
                call()
            assert 0.3 < time.monotonic() - begun_s < 6
        assert store.compare_and_set(LOCK, record, 1) == "unknown"
        network.be("pass")


def test_without_the_driver_the_extra_is_named() -> None:
    """The error names the `pip install` command, without a traceback."""
    code = (
        "import sys; sys.modules['botocore'] = None\n"
        "from lakegate.errors import MissingExtra\n"
        "try: import lakegate.turns.stores.dynamodb\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'lakegate[aws]'" in said


def until(is_so: Callable[[], bool]) -> None:
    """Returns when it is so."""
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
