"""Turns and batches as runs of OpenLineage: one run for each, named datasets, and no delay of the observed work."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegate.config.lineage import lineage_of, of_database, of_path, of_topics
from lakegate.config.model import Pipeline
from lakegate.config.reading import parse
from lakegate.errors import InvalidRequest
from lakegate.telemetry.events import BatchWritten, TurnGranted
from lakegate.telemetry.hooks import Hooks
from tests.telemetry.ended_turns import turn
from tests.telemetry.webhooks import receiver

FILE = """\
name: p
storage: /lake/_lakegate
lineage: openlineage
tables: {t: {path: /lake/t, lock: L}}
streams:
  In:
    table: t
    source: {kafka: "a,b", servers: "h1:9092,h2:9092", schema: "id STRING"}
    append: {}
  Tidy: {table: t, maintain: {optimize: true}}
sync:
  crm: {from: t, to: "postgresql://user:secret@db/crm", table: people}
"""
GRANTED = TurnGranted(lock="L", job="In", epoch=1, predecessor=None, waited_ms=3)


def pipeline(text: str = FILE) -> Pipeline:
    return parse(text, origin="lakegate.yml", base_dir="/base", environ={}, overrides=())


def written(rows: int, batch: int) -> BatchWritten:
    counts = {"rows_in": None, "rows_written": rows, "rows_erased": 0, "dead_letters": 0, "dead_requests": 0}
    return BatchWritten(lock="L", job="In", epoch=1, batch=batch, is_sweep=False, **counts)


def hooks() -> Hooks:
    return Hooks("p", [], lineage=lineage_of(pipeline()))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the client writes its events."""
    file = tmp_path / "events.jsonl"
    for key, value in {"TYPE": "file", "LOG_FILE_PATH": str(file), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{key}", value)
    return file


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_turn_is_a_run_with_its_datasets_and_rows(file: Path) -> None:
    """START when it is granted, then its end; the rows of its batches; the names of OpenLineage's conventions."""
    with closing(hooks()) as to:
        for event in (GRANTED, written(3, 4), written(4, 5), turn("completed")):
            to.emit(event)
    start, end = events(file)
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("p@/lake/_lakegate", "In")
    read = [("kafka://h1:9092", "a"), ("kafka://h1:9092", "b")]
    assert [(one["namespace"], one["name"]) for one in start["inputs"]] == read
    (out,) = end["outputs"]
    assert (out["namespace"], out["name"], out["outputFacets"]["outputStatistics"]["rowCount"]) == (
        "file",
        "/lake/t",
        7,
    )
    assert end["eventTime"].startswith("1970-01-01T00:00:02.5")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("failed", "FAIL"), ("fenced", "FAIL"), ("lost", "ABORT"), ("replayed", "COMPLETE"), ("swept", "COMPLETE")],
)
def test_each_end_of_a_turn_has_its_state(file: Path, outcome: str, state: str) -> None:
    """With the reason of the ledger, which holds no value; a turn that was not granted is no run."""
    with closing(hooks()) as to:
        to.emit(replace(turn(outcome), reason="why"))
        to.emit(replace(turn("gave_up"), epoch=None))
        to.emit(replace(turn("completed"), job="adhoc"))
    (end,) = events(file)
    assert (end["eventType"], end["run"]["facets"]["errorMessage"]["message"]) == (state, "why")


def test_a_run_that_is_reported_twice_is_one_run(file: Path) -> None:
    """By one process it is sent once; by several, as for a lost turn, under one id. Another turn is another run."""
    for job in ("Other", "Another"):
        with closing(hooks()) as to:
            to.emit(replace(turn("lost"), closed_by=job))
            to.emit(turn("lost"))
            to.emit(replace(turn("lost"), epoch=2))
    ids = [event["run"]["runId"] for event in events(file)]
    assert (len(ids), len(set(ids))) == (4, 2)


def test_a_batch_of_a_sync_is_a_run(file: Path) -> None:
    """From the table to the database, without its user and password."""
    applied = {"event": "BatchApplied", "sync": "crm", "batch": 2, "changes": 4, "rows": 3, "position": 7}
    with closing(hooks()) as to:
        to.feed(applied)
        to.feed(applied)
    start, end = events(file)
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert [(one["namespace"], one["name"]) for one in end["inputs"]] == [("file", "/lake/t")]
    assert [(one["namespace"], one["name"]) for one in end["outputs"]] == [("postgres://db:5432", "crm.public.people")]
    assert "secret" not in file.read_text()


def test_names_are_those_of_the_client() -> None:
    """For each kind of dataset that its naming rules know."""
    from openlineage.client.naming import dataset as naming

    ((topic,),) = (tuple(of_topics("h:9093", ("t",))),)
    pairs = [
        (of_path("/lake/t"), naming.LocalFileSystem("/lake/t")),
        (of_path("file:///lake/t"), naming.LocalFileSystem("/lake/t")),
        (of_path("/in/*.json"), naming.LocalFileSystem("/in")),
        (of_path("s3a://bucket/a/t"), naming.S3("bucket", "a/t")),
        (topic, naming.Kafka("h", "9093", "t")),
        (
            of_database("postgresql://u:p%40@h:5433/d?sslmode=require", "s.t"),
            naming.Postgres("h", "5433", "d", "s", "t"),
        ),
        (of_database("postgres://h/d", "t"), naming.Postgres("h", "5432", "d", "public", "t")),
        (of_database("mariadb://u@h/d", "t"), naming.MySQL("h", "3306", "d", "t")),
    ]
    for ours, theirs in pairs:
        assert (ours.namespace, ours.name) == (theirs.get_namespace(), theirs.get_name())


@pytest.mark.parametrize("server", ["slow", "broken", "away"])
def test_a_server_in_trouble_delays_nobody(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is taken at once whatever the server does; what is not delivered is reported, and the run ends in time."""
    told: list[str] = []
    with receiver(lambda n: 500) as to:
        monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9" if server == "away" else to.url)
        if server == "slow":
            to.answers.clear()
        lineage = Hooks("p", [], lineage=lineage_of(pipeline()), report=told.append)
        begun_s = time.monotonic()
        for epoch in range(300):
            lineage.emit(replace(GRANTED, epoch=epoch))
        assert time.monotonic() - begun_s < 2
        lineage.close()
        assert time.monotonic() - begun_s < 9
        to.answers.set()
    undelivered = "was not given a message" if server == "broken" else "not known to be delivered"
    assert any(undelivered in text for text in told), told
    assert any("were dropped" in text for text in told)


def test_settings_that_the_client_refuses_stop_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their place, and without a value of them."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "secret")
    with pytest.raises(InvalidRequest, match=r"refuses its settings.*openlineage\.yml") as refused:
        hooks()
    assert "secret" not in str(refused.value)


def test_without_the_key_nothing_is_reported(file: Path) -> None:
    """And the client is not loaded."""
    assert lineage_of(pipeline(FILE.replace("lineage: openlineage\n", ""))) is None
    assert not file.exists()
