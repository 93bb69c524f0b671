"""Expectations of a pipeline's streams: checked, counted where turns are shown, and letters of every kind of stream sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.command import lakegate

FILE = """\
name: p
storage: ./_lakegate
lineage: openlineage
coordinator: {lock_timeout: 10m}
tables:
  t: {path: ./table, lock: L, columns: "id STRING, v INT"}
streams:
  In:
    table: t
    source: {files: ./in, format: json, schema: "id STRING, v INT"}
    expect:
      positive: {where: "v > 0", otherwise: dead_letter}
      named: {where: "id IS NOT NULL", otherwise: drop}
    append: {}
  Change:
    table: t
    after: In
    source: {files: ./change, format: json, schema: "id STRING, v INT"}
    expect: {small: {where: "v < 100", otherwise: dead_letter}}
    mutate: {match: {id: id}, set: {v: v}, applies_to: arrived}
  Forget:
    table: t
    after: Change
    source: {files: ./forget, format: json, schema: "id STRING, why STRING"}
    expect: {asked: {where: "why = 'asked'", otherwise: dead_letter}}
    erase: {match: {id: id}}
"""


def put(folder: Path, *lines: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "0.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def rows(session: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.read.format("delta").load(str(root / "table")).collect())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_counts_of_expectations_are_shown_and_what_was_set_aside_is_sent_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the run, the history, the metrics, and the runs of OpenLineage with their rows.

    What still does not meet its expectation comes back once.
    """
    file, runs = tmp_path / "lakegate.yml", tmp_path / "runs.jsonl"
    for key, value in {"TYPE": "file", "LOG_FILE_PATH": str(runs), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{key}", value)
    file.write_text(FILE.replace("v > 0", "v > rand()").replace("v < 100", "w < 100"))
    put(tmp_path / "in", {"id": "a", "v": 1}, {"id": "b", "v": -7654321}, {"v": 3}, {"id": "c", "v": 4}, {"id": "d"})
    put(tmp_path / "change", {"id": "a", "v": 7654321}, {"id": "c", "v": 5})
    put(tmp_path / "forget", {"id": "a", "why": "7654321"})
    checked = lakegate("check", "--spec", tmp_path)
    assert (checked.code, "it is not deterministic" in checked.out) == (2, True), checked.out
    assert "streams.Change.expect.small.where" in checked.out
    file.write_text(FILE)
    assert lakegate("check", "--spec", tmp_path).code == 0

    ran = lakegate("run", "--until-idle", "--together", "--spec", tmp_path, "--output", "json")
    assert ran.code == 0, ran.err
    unmet = {report["job"]: report["unmet"] for report in ran.json["streams"]}
    assert unmet == {"In": {"positive": 2, "named": 1}, "Change": {"small": 1}, "Forget": {"asked": 1}}
    assert rows(session, tmp_path) == [("a", 1), ("c", 5)]
    told = [json.loads(line) for line in runs.read_text().splitlines()]
    begun = {one["run"]["runId"] for one in told if one["eventType"] == "START"}
    assert {one["run"]["runId"] for one in told if one["eventType"] == "COMPLETE"} == begun
    ended = [one for one in told if one["eventType"] == "COMPLETE" and one["job"]["name"] == "In"]
    assert [one["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for one in ended] == [2]
    assert (told[0]["inputs"][0]["name"], told[0]["outputs"][0]["name"]) == (
        str(tmp_path / "in"),
        str(tmp_path / "table"),
    )
    history = lakegate("history", "t", "--spec", tmp_path)
    assert "not met: positive (2), named (1)" in history.out
    metrics = lakegate("metrics", "--spec", tmp_path)
    assert 'lakegate_unmet_expectations_total{expectation="positive",job="In",lock="L"} 2.0' in metrics.out
    listed = lakegate("dead-letters", "list", "--spec", tmp_path, "--output", "json")
    ledger = "".join(path.read_text() for path in (tmp_path / "_lakegate" / "ledger").rglob("*.jsonl"))
    shown = (ran.out, ran.err, history.out, metrics.out, listed.out, ledger, runs.read_text())
    assert "7654321" not in "".join(shown)

    def letters() -> list[tuple[str, str, str]]:
        found = lakegate("dead-letters", "list", "--spec", tmp_path, "--output", "json").json["dead_letters"]
        return sorted((row["name"], row["reason"], row["id"]) for row in found)

    before = letters()
    reasons = [("Change", "does not meet small"), ("Forget", "does not meet asked")]
    reasons += [("In", "does not meet positive")] * 2
    assert [one[:2] for one in before] == reasons
    for name in ("In", "Change", "Forget"):
        of_stream = [id_ for stream, _, id_ in before if stream == name]
        sent = lakegate("dead-letters", "retry", name, *of_stream, "--spec", tmp_path)
        count = len(of_stream)
        assert (sent.code, f"{count} of {count} were refused again" in sent.err) == (2, True), sent.err
    again = letters()
    assert [one[:2] for one in again] == reasons
    assert {one[2] for one in before}.isdisjoint(one[2] for one in again)
    assert rows(session, tmp_path) == [("a", 1), ("c", 5)]

    ids = {name: id_ for name, _, id_ in again}
    for name, corrected in {"In": "v=9", "Change": "v=7", "Forget": "why=asked"}.items():
        sent = lakegate("dead-letters", "retry", name, ids[name], "--set", corrected, "--spec", tmp_path)
        assert sent.code == 0, sent.err
    assert len(rows(session, tmp_path)) == 2
    assert ("c", 5) in rows(session, tmp_path)
    assert lakegate("verify", "--spec", tmp_path).code == 0
