"""The doctor's look at a table on S3: each planted fault is found, named in plain words, and mended where it can be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from lakegate.delta.storage_errors import described, refusal
from lakegate.demo.aws_server import AwsServer, InjectedFault
from lakegate.ops.finding import Finding
from lakegate.ops.s3 import examine
from lakegate.spark.log_stores import CLASSES
from tests.s3.drivers import conf_for
from tests.s3.policy import DYNAMODB_PAGE, TO_MAKE_THE_TABLE, allowed, needed
from tests.s3.stores import Store

pytestmark = [pytest.mark.spark, pytest.mark.every_case]
Look = Callable[..., list[Finding]]


@pytest.fixture
def look(jvm: Any, hadoop: Any) -> Look:
    """Returns the doctor's findings about a table, without those that are right."""

    def of(table: str, word: str = "conditional", *, is_deep: bool = False, is_mended: bool = False) -> list[Finding]:
        found = examine(jvm, hadoop, table, word, is_deep=is_deep, is_mended=is_mended, store_class=CLASSES[word])
        return [one for one in found if one.level != "ok"]

    return of


@pytest.fixture
def store(jvm: Any, hadoop: Any, s3: Any, dynamodb: Any) -> Store:
    """A table with entries and three commits."""
    made = Store("dynamodb", jvm, hadoop, s3, dynamodb)
    assert [made.write(version, f"commit {version}") for version in range(3)] == ["ok"] * 3
    return made


def test_a_sound_table_is_sound(look: Look, store: Store, s3: Any) -> None:
    """Nothing is found, and nothing is left behind."""
    assert look(store.table, "dynamodb", is_deep=True) == []
    found = s3.list_objects_v2(Bucket="lake", Prefix=f"{store.name}/_lakegate/")
    assert [one["Key"] for one in found.get("Contents", ()) if not one["Key"].endswith("/")] == []


@pytest.mark.parametrize(("what", "is_deep"), [("ignore_condition", False), ("race_condition", True)])
def test_an_unsafe_server_is_found(aws: AwsServer, look: Look, store: Store, what: Any, is_deep: bool) -> None:
    """One that ignores the condition by two writers; one that looks and writes in two steps by many."""
    aws.fail(InjectedFault(what, key="_lakegate/probe", times=None))
    (found,) = look(store.table, is_deep=is_deep)
    assert found.level == "fault"
    assert "more than one through" in found.what


def test_what_is_replaced_while_it_is_read_was_let_through(aws: AwsServer, look: Look, store: Store) -> None:
    """A writer that was refused reads what is there; S3A asks for the object that it looked at, and that is gone."""
    aws.fail(
        InjectedFault(
            "error_before", kind="GET", key="_lakegate/probe", times=None, status=412, code="PreconditionFailed"
        )
    )
    (found,) = look(store.table, is_deep=False)
    assert found.level == "fault"
    assert "more than one through" in found.what


def test_unsafe_settings_are_found(look: Look, store: Store, hadoop: Any) -> None:
    """Those with which S3A overwrites."""
    hadoop.set("fs.s3a.create.performance", "true")
    (found,) = look(store.table)
    assert "fs.s3a.create.performance" in found.what


def test_a_gap_in_the_log_is_found(look: Look, store: Store) -> None:
    """By its number."""
    store.remove(1)
    (found,) = look(store.table)
    assert "commits 1 are missing between 0 and 2" in found.what


def gone(store: Store) -> None:
    """A commit that was begun; what was put aside is gone."""
    store.begin(3, "three", has_aside=False)


def removed(store: Store) -> None:
    """A commit that is complete by its entry, and not there; what was put aside is."""
    store.remove(2)


def foreign(store: Store) -> None:
    """A commit without an entry."""
    store.put(3, "foreign")


def displaced(store: Store) -> None:
    """A commit that was begun, and another's has its version."""
    store.begin(3, "three")
    store.put(3, "foreign")


def deleted(store: Store) -> None:
    """Entries without a table."""
    for version in range(3):
        store.remove(version)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words", "after"),
    [
        (gone, "it cannot come back", [0, 1, 2]),
        (removed, "it can come back", [0, 1, 2]),
        (foreign, "made without entries", [0, 1, 2, 3]),
        (displaced, "another writer's than its entry's", [0, 1, 2, 3]),
        (deleted, "left of a table that was deleted", []),
    ],
)
def test_a_damaged_state_is_named_and_mended(
    look: Look, store: Store, damage: Callable[[Store], None], words: str, after: list[int]
) -> None:
    """A look changes nothing; mended, the table is read and written again, and what was there is not overwritten."""
    damage(store)
    for is_mended in (False, False, True):
        found = [one for one in look(store.table, "dynamodb", is_mended=is_mended) if one.level != "note"]
        assert words in found[0].what
        assert found[0].level == ("warning" if is_mended else "fault")
    assert [one for one in look(store.table, "dynamodb") if one.level != "note"] == []
    listed = store.listed()
    assert (listed if after else []) == after
    assert store.write(len(after), "next") == "ok"
    if damage in (foreign, displaced):
        assert store.content(3) == "foreign"


BAD = {
    "the bucket does not exist": ("s3a://no-such-bucket/t", None),
    "permission is missing: s3:GetObject or s3:ListBucket": (
        None,
        InjectedFault("error_before", times=None, status=403, code="AccessDenied", message="Access Denied"),
    ),
    "the clocks of this machine": (
        None,
        InjectedFault("error_before", times=None, status=403, code="RequestTimeTooSkewed", message="too large"),
    ),
    "the credentials have expired": (
        None,
        InjectedFault("error_before", times=None, status=400, code="ExpiredToken", message="has expired"),
    ),
    "the bucket is in another region": (
        None,
        InjectedFault(
            "error_before",
            times=None,
            status=400,
            code="AuthorizationHeaderMalformed",
            message="The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'us-west-2'",
        ),
    ),
    "the server does not know them": (
        None,
        InjectedFault("error_before", times=None, status=403, code="InvalidAccessKeyId", message="no"),
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_a_refusal_of_the_server_is_reported_in_plain_words(
    aws: AwsServer, look: Look, store: Store, words: str
) -> None:
    """One fault with the reason; S3's answers go through its client, whose wording they take on."""
    location, fault = BAD[words]
    if fault is not None:
        aws.fail(fault)
    found = [one for one in look(location or store.table) if one.level == "fault"]
    assert len(found) == 1
    assert words in found[0].what
    assert found[0].exit_code == 6


OPERATIONS: dict[str, tuple[str, Callable[[Any, Any, Any], object]]] = {
    "PUT": (
        "s3:PutObject",
        lambda jvm, files, path: jvm.io.github.lakegate.ConditionalPutLogStore.put(files, path, b"1"),
    ),
    "GET": ("s3:GetObject", lambda jvm, files, path: jvm.io.github.lakegate.Bulk.read(path, files.getConf())),
    "HEAD": ("s3:GetObject or s3:ListBucket", lambda jvm, files, path: files.getFileStatus(path)),
    "LIST": ("s3:ListBucket", lambda jvm, files, path: files.listStatus(path.getParent())),
    "POST": ("s3:DeleteObject", lambda jvm, files, path: files.delete(path.getParent(), True)),
}
"""Kind of a request → the action that a policy calls it, and something that asks it."""


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_missing_permission_of_s3_is_named_by_its_action(
    aws: AwsServer, jvm: Any, hadoop: Any, store: Store, kind: str
) -> None:
    """By what its client was about, as the answer itself does not tell."""
    action, ask = OPERATIONS[kind]
    path = jvm.org.apache.hadoop.fs.Path(f"s3a://lake/{store.key(0)}")
    files = path.getFileSystem(hadoop)
    aws.fail(InjectedFault("error_before", kind, times=None, status=403, code="AccessDenied", message="Access Denied"))
    with pytest.raises(Py4JJavaError) as denied:
        ask(jvm, files, path)
    found = refusal(denied.value)
    assert found is not None
    assert f"S3 refused a request: permission is missing: {action} (" in found.message


def test_another_error_that_names_a_place_on_s3_is_no_refusal(jvm: Any, hadoop: Any, store: Store) -> None:
    """A file that is not there; a number in a name that looks like a status."""
    path = jvm.org.apache.hadoop.fs.Path(f"s3a://lake/{store.name}/open-403-list.parquet")
    with pytest.raises(Py4JJavaError) as missing:
        path.getFileSystem(hadoop).open(path)
    assert refusal(missing.value) is None


@pytest.mark.slow
def test_the_command_looks_at_a_table_and_mends_it(aws: AwsServer, store: Store, tmp_path: Path) -> None:
    """Store, checks and exit status of `lakegate doctor`; a damaged state is named, then mended; and the policy allows it."""
    store.begin(3, "three", has_aside=False)
    spec = tmp_path / "lakegate.yml"
    tables, conf = {"t": {"path": store.table}}, conf_for(aws)
    source = {"files": "in", "format": "json", "schema": "a INT"}
    stream = {"table": "t", "source": source, "append": {"on_duplicate": "allow"}}
    said = {
        "name": "p",
        "storage": "s",
        "log_store": "dynamodb",
        "spark": conf,
        "tables": tables,
        "streams": {"S": stream},
    }
    spec.write_text(json.dumps(said))

    def doctor(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        command = [sys.executable, "-m", "lakegate", "doctor", "--table", store.table, "--spec", str(spec), *arguments]
        ran = subprocess.run([*command, "--output", "json"], capture_output=True, text=True, timeout=300)
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)["findings"]

    code, found = doctor("--deep")
    words = [f"{one['level']}: {one['what']}" for one in found]
    assert code == 4
    assert words[:3] == [
        "ok: no setting of S3A disables conditions",
        "ok: of 8 writers of each of 20 keys, the server lets one through",
        "ok: commits 0 to 2 without a gap",
    ]
    assert words[3].startswith("fault: commit 00000000000000000003.json has an incomplete entry")
    assert {one["where"] for one in found} == {store.table}
    assert store.entry(3) is not None, "a look changes nothing"

    code, found = doctor("--repair")
    assert (code, found[-1]["level"], found[-1]["advice"]) == (0, "warning", "Mended")
    assert store.entry(3) is None
    assert store.write(3, "next") == "ok"
    asked = {action for action in needed(aws.requests()) if action.startswith("dynamodb:")}
    assert asked - TO_MAKE_THE_TABLE == allowed(DYNAMODB_PAGE)


def test_a_missing_permission_of_dynamodb_is_named_by_its_action(
    aws: AwsServer, make_denied: Callable[[], str]
) -> None:
    """The action is what a person adds to the policy."""
    assert described(make_denied()).startswith("permission is missing: dynamodb:PutItem")


@pytest.fixture
def make_denied(aws: AwsServer, store: Store) -> Callable[[], str]:
    """A commit whose entry is refused for want of a permission."""

    def denied() -> str:
        message = "User: x is not authorized to perform: dynamodb:PutItem on resource: y"
        aws.fail(
            InjectedFault(
                "error_before", "PutItem", times=None, status=400, code="AccessDeniedException", message=message
            )
        )
        return store.write(3, "three")

    return denied
