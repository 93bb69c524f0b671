"""The commands on what real streams left: three kinds of streams, run by the command, on a real table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.command import Ran, lakegate, state_of
from tests.frozen import assert_frozen
from tests.frozen.on_disk import shape

pytestmark = pytest.mark.slow

FILE = """\
name: p
storage: ./_lakegate
coordinator: {lock_timeout: 10m}  # so that nobody starts its query again only because the machine is slow
tables:
  t:
    path: ./table
    lock: L
    columns: "id STRING NOT NULL, person STRING"
    properties: {delta.enableDeletionVectors: "true", delta.enableChangeDataFeed: "true"}
streams:
  In:
    table: t
    source: {files: ./in, format: json, schema: "id STRING, person STRING"}
    append: {key: [id], on_duplicate: keep_first}
  Change:
    table: t
    after: In
    source: {files: ./change, format: json, schema: "id STRING, person STRING"}
    mutate: {match: {id: id}, set: {person: person}, applies_to: arrived}
  Gone:
    table: t
    after: Change
    source: {files: ./gone, format: json, schema: "person STRING"}
    erase: {match: {person: person}}
"""
JOBS = ("In", "Change", "Gone")


def put(folder: Path, *records: dict[str, str | None]) -> None:
    folder.mkdir()
    (folder / "0.json").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that has run until nothing was left to do."""
    made = tmp_path_factory.mktemp("pipeline")
    hook = f"{{command: [sh, -c, 'cat >>{made}/messages; echo >>{made}/messages']}}"
    (made / "lakegate.yml").write_text(f"{FILE}on_event: {{page: {hook}}}\n")
    put(made / "in", *({"id": f"i{n}", "person": f"p{n % 5}"} for n in range(20)))
    put(made / "change", {"id": "i1", "person": "p9"}, {"id": None, "person": "p8"})
    put(made / "gone", {"person": "p2"})
    assert lakegate("check", "--spec", made).code == 0
    ran = lakegate("run", "--until-idle", "--together", "--spec", made)
    assert ran.code == 0, ran.err
    return made


def of(root: Path, *arguments: str) -> Ran:
    ran = lakegate(*arguments, "--spec", root, "--output", "json")
    assert ran.code == 0, ran.out + ran.err
    return ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The state that a pipeline has left, and the output of the commands about it."""

    root: Path
    head: int
    shape: str
    """Of what is on disk."""
    verified: Any
    status: Any
    turns: Any
    is_unchanged: bool
    """By looking."""


@pytest.fixture(scope="module")
def left(root: Path) -> Left:
    """Looked at before any test changes it, in whatever order they come."""
    before = state_of(root)
    verified, status, history = (of(root, *command).json for command in (("verify",), ("status",), ("history", "t")))
    return Left(
        root=root,
        shape=shape(root, ("_lakegate", "table")),
        head=max(int(file.stem) for file in (root / "table" / "_delta_log").glob("*.json")),
        verified=verified,
        status=status,
        turns=history["turns"],
        is_unchanged=state_of(root) == before,
    )


@pytest.mark.timeout(1200)
def test_the_names_on_disk_are_as_they_were(left: Left) -> None:
    """Files, keys, columns, tokens and steps: data of a user outlive the version that wrote them."""
    assert_frozen("on_disk.txt", left.shape)


@pytest.mark.timeout(1200)
def test_verify_and_status_after_a_run_find_nothing_broken(left: Left) -> None:
    """`verify` finds nothing broken, each job is idle at the head, and looking changes nothing."""
    assert left.verified["counts"]["batches"] == 3
    assert (left.verified["violations"], left.verified["unchecked"]) == ([], [])
    (lock,) = left.status["locks"]
    assert {job["job"]: max(job["idle_at"].values()) for job in lock["jobs"]} == dict.fromkeys(JOBS, left.head)
    assert (lock["holder"], lock["queue"]) == (None, [])
    remains = left.status["erasures"][0]["left"]
    assert remains["files"] >= remains["with_deletion_vectors"] + remains["change_data"] >= 2
    assert remains["version"] <= left.head
    assert {turn["job"] for turn in left.turns if turn["outcome"] == "completed"} == set(JOBS)
    assert left.is_unchanged


@pytest.mark.timeout(1200)
def test_the_dead_request_and_the_erasure_are_passed_to_the_hook(left: Left) -> None:
    """Once each, with counts and without values."""
    text = (left.root / "messages").read_text()
    messages = [json.loads(line) for line in text.splitlines()]
    found = [
        (one["event"], one["job"], one["details"].get("rows_erased", one["details"].get("dead_requests")))
        for one in messages
    ]
    assert found == [("dead_letters", "Change", 1), ("erased", "Gone", 4)]
    assert [value for value in ("p8", "p2") if value in text] == []


@pytest.mark.timeout(1200)
def test_a_dead_request_is_listed_without_its_values_replayed_and_dropped_in_turns(left: Left) -> None:
    """A request without a key is dead. It may be given another chance or be taken out; each takes a turn of its own."""
    root = left.root
    listed = of(root, "requests", "list", "Change", "--state", "dead")
    (dead,) = listed.json["requests"]
    assert "p8" not in listed.out
    before = state_of(root / "_lakegate" / "requests")
    absent = lakegate("requests", "drop", "Change", "nobody", "--reason", "typed wrong", "--spec", root)
    assert (absent.code, "not dead or stored requests of Change: nobody" in absent.err) == (2, True)
    never = lakegate("requests", "replay", "Gone", "x", "--spec", root)
    assert never.code == 2
    assert state_of(root / "_lakegate" / "requests") == before
    dropped = of(root, "requests", "drop", "Change", dead["request_id"], "--reason", "no key").json
    assert dropped == {"format": 1, "stream": "Change", "dropped": 1}
    assert of(root, "requests", "list", "Change", "--state", "dead").json["requests"] == []
    jobs = {job["job"]: job for job in of(root, "status").json["locks"][0]["jobs"]}
    assert (jobs["adhoc"]["turns"], jobs["adhoc"]["lost"]) == (1, None)
    assert of(root, "verify").json["violations"] == []


@pytest.mark.timeout(1200)
def test_an_operator_accepts_the_loss_of_missing_requests(left: Left, tmp_path: Path) -> None:
    """Until then `check` and `run` refuse, and name the command; a name of no stream changes nothing."""
    root, requests = left.root, left.root / "_lakegate/requests/Gone"
    away = requests.rename(tmp_path / "Gone")
    try:
        for command in ("check", "run"):
            refused = lakegate(command, *(["--until-idle", "--together"] if command == "run" else []), "--spec", root)
            assert refused.code == 2, refused.out
            assert "the request table of Gone is gone" in refused.err + refused.out
            assert "lakegate requests accept-loss Gone --reason" in refused.err + refused.out
        before = state_of(root / "table")
        nobody = lakegate("requests", "accept-loss", "Nobody", "--reason", "a slip", "--spec", root)
        assert (nobody.code, "no active requests of a stream 'Nobody' exist" in nobody.err) == (2, True)
        assert state_of(root / "table") == before
        said = of(root, "requests", "accept-loss", "Gone", "--reason", "as agreed").json
        assert said == {"format": 1, "stream": "Gone", "table": str(root / "table")}
        assert "as agreed" in (root / "table/_lakegate/standing/Gone.json").read_text()
        assert lakegate("check", "--spec", root).code == 0
    finally:
        away.rename(requests)
