"""A Spark session on S3: commits that the gate refuses, sessions that are refused, and messages about S3's refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.aws_server import AwsServer, InjectedFault
from lakegate.spark.log_stores import CHECKPOINTS_KEY, CLASSES, VACUUM_KEY
from tests.s3.drivers import Asked
from tests.s3.policy import S3_PAGE, allowed, needed

pytestmark = pytest.mark.spark
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def keys(s3: Any, table: str, folder: str = "") -> set[str]:
    """Returns the keys of the bucket below a table."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=f"{table}/{folder}")
    return {found["Key"] for page in pages for found in page.get("Contents", ())}


@pytest.mark.matrix
def test_a_governed_table_takes_commits_in_turns_alone_and_vacuum_is_one(aws: AwsServer, s3: Any, asked: Asked) -> None:
    """Outside of its turn nothing is committed and no file deleted; in its turn all of it is done; and the policy allows it."""
    asked.ask("make", "s3a://lake/governed")
    before = keys(s3, "governed")
    refused = asked.ask("outside_of_its_turn", "s3a://lake/governed")
    assert set(refused) == {"append", "delete", "optimize", "vacuum"}
    for name, words in refused.items():
        assert "was refused: Ingestion has the turn" in words, name
    after = keys(s3, "governed")
    assert before <= after, "a file was deleted"
    assert {key for key in after - before if "/_delta_log/" in key} == set()

    done = asked.ask("in_its_turn", "s3a://lake/governed")
    assert done == ["WRITE"] * 4 + ["DELETE", "OPTIMIZE", "VACUUM START", "VACUUM END"]
    gone = before - keys(s3, "governed")
    assert gone, "VACUUM deleted no file, so nothing was proved"
    assert all(key.endswith(".parquet") for key in gone)
    assert needed(aws.requests()) == allowed(S3_PAGE)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.every_case
def test_a_publish_of_several_tables_is_made_and_finished(s3: Any, asked: Asked, dies: bool) -> None:
    """Also if its publisher dies after the decision; no file of it is left."""
    one, other = f"s3a://lake/published-{dies}-1", f"s3a://lake/published-{dies}-2"
    for table in (one, other):
        asked.ask("make", table)
    made, now, rows = asked.ask("publish", one, other, dies)
    assert now == {one: 4, other: 4}
    assert made == ({} if dies else now)
    assert rows == {one: 21, other: 21}
    assert [key for key in keys(s3, f"published-{dies}-2", "_lakegate") if key.endswith(".note")] == []


def test_a_session_that_would_commit_or_plan_in_another_way_is_refused(asked: Asked) -> None:
    """Another store of commits, another way to write checkpoints, a VACUUM that is no commit: each with one clear word."""
    assert asked.ask("session_with", "auto", {}) == "fit"
    other = asked.ask("session_with", "dynamodb", {})
    assert "another store of commits for S3; nothing was changed" in other
    assert f"log_store={CLASSES['conditional']} wanted={CLASSES['dynamodb']}" in other
    assert "can plan the same batch differently" in asked.ask("session_with", "auto", {CHECKPOINTS_KEY: SPARKS_OWN})
    assert "a VACUUM on S3 is no commit" in asked.ask("session_with", "auto", {VACUUM_KEY: "false"})
    assert asked.ask("own_settings", {}) == ["fit", "fit"]
    for said in asked.ask("own_settings", {CHECKPOINTS_KEY: SPARKS_OWN}):
        assert "can plan the same batch differently" in said
        assert f"found={SPARKS_OWN}" in said
    assert "a VACUUM on S3 is no commit" in asked.ask("own_settings", {VACUUM_KEY: "false"})[0]


@pytest.mark.matrix
def test_a_statement_says_what_s3_refused(aws: AwsServer, asked: Asked) -> None:
    """Not in the words of its client: what is wrong, and the exit status of what does not answer; also of an executor's write."""
    code, words = asked.ask("statement", "INSERT INTO delta.`s3a://no-such-bucket/t` VALUES (1)")
    assert (code, "S3 refused a request: the bucket does not exist" in words) == (6, True), words
    asked.ask("make", "s3a://lake/refusing")
    expired = {"status": 400, "code": "ExpiredToken", "message": "The provided token has expired."}
    denied = {"status": 403, "code": "AccessDenied", "message": "Access Denied"}
    commit = r"_delta_log/\d{20}\.json$"
    for fault, expected in (
        (InjectedFault("error_before", key="refusing", times=None, **expired), "the credentials have expired"),
        (
            InjectedFault("error_before", kind="PUT", key=commit, times=None, **denied),
            "permission is missing: s3:PutObject",
        ),
        (
            InjectedFault("error_before", kind="PUT", key="/part-", times=None, **denied),
            "permission is missing: s3:PutObject",
        ),
    ):
        aws.fail(fault)
        code, words = asked.ask("statement", "DELETE FROM delta.`s3a://lake/refusing` WHERE id = 3")
        aws.heal()
        assert (code, expected in words) == (6, True), words
    assert asked.ask("statement", "DELETE FROM delta.`s3a://lake/refusing` WHERE id = 3")[0] == 0


@pytest.mark.matrix
def test_a_run_says_what_s3_refused(aws: AwsServer, asked: Asked, tmp_path: Path) -> None:
    """`lakegate run` ends with 6 and a line; its table's bucket is not there, and then its checkpoint's."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1}\n')
    source = {"files": str(tmp_path / "in"), "format": "json", "schema": "id BIGINT"}
    local = str(tmp_path / "checkpoint")
    for table, checkpoint in (("s3a://no-such-bucket/t", local), ("s3a://lake/run", "s3a://no-such-bucket/c")):
        stream = {"table": "t", "source": source, "checkpoint": checkpoint, "append": {"on_duplicate": "allow"}}
        spec = tmp_path / "lakegate.yml"
        text = {"storage": str(tmp_path / "storage"), "tables": {"t": {"path": table}}, "streams": {"S": stream}}
        spec.write_text(json.dumps({"name": "p", **text}))
        code, errors = asked.ask("command", "run", "--once", "--spec", str(spec))
        assert (code, "the bucket does not exist" in errors) == (6, True), errors
        assert "Traceback" not in errors
