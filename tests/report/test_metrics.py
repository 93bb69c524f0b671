"""The metrics: names and labels as declared, values as the record and the ledger say; and what is shipped uses only these."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lakegate.cli.metrics import ALERTS, DASHBOARD, shipped
from lakegate.ops.status import HolderStatus, JobStatus, LockStatus, WaitingStatus
from lakegate.ops.stored_requests import StateCount
from lakegate.report.metrics import METRICS, MetricsInput, families
from lakegate.report.statements import STATEMENT_METRICS, StatementMetrics
from lakegate.syncs.plan.delay import SyncDelay
from lakegate.telemetry.events import PersonActed, StatementPublished
from lakegate.telemetry.turn_totals import add_turns
from tests.cli.command import lakegate
from tests.ops.lake import FILE, healthy
from tests.telemetry.ended_turns import turn

JOB = JobStatus(
    job="In",
    rule="",
    is_alive=True,
    turns=2,
    last_epoch=2,
    completed_at_ms=5_000,
    idle_since_ms=None,
    idle_at={},
    lost=None,
    in_doubt=0,
    every_ms=3_600_000,
    overdue_ms=1_500,
)
LOCK = LockStatus(
    lock="L",
    epoch=3,
    holder=HolderStatus(job="In", epoch=3, since_ms=7_000, host="h", pid=1, batch=0, is_alive=True),
    queue=(WaitingStatus(job="Out", asked_at_ms=9_000, reason=""),),
    jobs=(JOB, replace(JOB, job="Out", every_ms=None, paused="paused by me: x", lost=(1, None), is_late=True)),
    in_doubt=(("lakegate/q", 1),),
)


ACT = PersonActed(
    action_id="a", lock="L", job="In", action="break", by="me", reason="x", at_ms=1, outcome="done"
)  # fmt: skip
FACTS = MetricsInput(
    pipeline="p",
    version="1",
    now_ms=10_000,
    locks=[LOCK],
    turns=add_turns(
        {},
        [
            replace(turn("completed"), unmet={"positive": 2}),
            replace(turn("completed", held_ms=70_000), unmet={"positive": 1, "known": 4}),
            turn("failed"),
        ],
    ),
    actions=[ACT, replace(ACT, outcome="not_done")],
    kept=[
        (
            "Out",
            [
                StateCount(
                    state="dead", requests=2, oldest_ms=4_000, ages={"1h": 2, "1d": 0, "7d": 0, "30d": 0, "older": 0}
                )
            ],
        )
    ],
    delays=[("crm", SyncDelay(p50_ms=210, p99_ms=900, changes=7, now_ms=0))],
)


def exposed(facts: MetricsInput = FACTS) -> str:
    class Collector:
        def collect(self) -> Iterator[Any]:
            yield from families(facts)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(name: str, **labels: str) -> float:
    (found,) = [one.value for one in samples(exposed()) if one.name == name and one.labels == labels]
    return float(found)


def test_every_declared_metric_is_exposed_with_its_labels_and_no_other() -> None:
    """The table is the whole truth: what is documented can be asked for."""
    found = {(one.name, frozenset(one.labels) - {"le"}) for one in samples(exposed())}
    assert found == {(name, frozenset(metric.labels)) for metric in METRICS for name in metric.series}
    assert all(metric.name.startswith("lakegate_") and metric.help.endswith(".") for metric in METRICS)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("lakegate_lock_held_seconds", {"lock": "L", "job": "In"}, 3.0),
        ("lakegate_lock_waiting", {"lock": "L"}, 1),
        ("lakegate_job_waiting_seconds", {"lock": "L", "job": "Out"}, 1.0),
        ("lakegate_job_waiting_seconds", {"lock": "L", "job": "In"}, 0),
        ("lakegate_job_paused", {"lock": "L", "job": "Out"}, 1),
        ("lakegate_job_late", {"lock": "L", "job": "In"}, 0),
        ("lakegate_job_overdue_seconds", {"lock": "L", "job": "In"}, 1.5),
        ("lakegate_job_last_completed_timestamp_seconds", {"lock": "L", "job": "In"}, 5.0),
        ("lakegate_turns_total", {"lock": "L", "job": "In", "outcome": "completed"}, 2),
        ("lakegate_batches_total", {"lock": "L", "job": "In"}, 9),
        ("lakegate_commits_total", {"lock": "L", "job": "In"}, 6),
        ("lakegate_unmet_expectations_total", {"lock": "L", "job": "In", "expectation": "positive"}, 3),
        ("lakegate_turn_held_seconds_bucket", {"lock": "L", "job": "In", "le": "5.0"}, 2),
        ("lakegate_turn_held_seconds_bucket", {"lock": "L", "job": "In", "le": "+Inf"}, 3),
        ("lakegate_turn_held_seconds_sum", {"lock": "L", "job": "In"}, 74.0),
        ("lakegate_turn_waited_seconds_count", {"lock": "L", "job": "In"}, 3),
        ("lakegate_actions_total", {"lock": "L", "action": "break"}, 1),
        ("lakegate_requests_kept", {"job": "Out", "state": "dead", "age": "1h"}, 2),
        ("lakegate_requests_oldest_timestamp_seconds", {"job": "Out", "state": "dead"}, 4.0),
        ("lakegate_sync_delay_seconds", {"sync": "crm", "quantile": "0.5"}, 0.21),
        ("lakegate_sync_delay_seconds", {"sync": "crm", "quantile": "0.99"}, 0.9),
        ("lakegate_sync_delay_now_seconds", {"sync": "crm"}, 0),
    ],
)
def test_a_metric_says_what_the_record_and_the_ledger_say(name: str, labels: dict[str, str], expected: float) -> None:
    """In seconds; an act that was not done does not count."""
    assert value(name, **labels) == expected


def test_statements_of_a_process_are_counted() -> None:
    """By table, operation and level; what following others took is summed, in seconds where it is time."""
    counts = StatementMetrics()
    registry = CollectorRegistry(auto_describe=True)
    registry.register(counts)
    first = StatementPublished(
        table="/t",
        operation="UPDATE",
        version=3,
        is_superseded=False,
        level=3,
        attempts=2,
        lost_puts=1,
        reasons=("rows came",),
        rows_read=40,
        waited_ms=1_250,
        publish_ms=250.4,
        held_ms=100.2,
    )
    for event in (
        first,
        replace(first, rows_read=2, publish_ms=500.0),
        replace(first, version=None, is_superseded=True, level=0, attempts=1, lost_puts=0, reasons=()),
    ):
        counts(event)
    counts(replace(first, table="/other", operation="DELETE", version=None, level=2))
    found = samples(generate_latest(registry).decode())
    labels = {"table": "/t", "operation": "UPDATE"}
    assert {
        (one.name, one.labels.get("level") or one.labels.get("reason")): one.value
        for one in found
        if labels.items() <= one.labels.items()
    } == {
        ("lakegate_statements_total", "0"): 1,
        ("lakegate_statements_total", "3"): 2,
        ("lakegate_statement_attempts_total", None): 5,
        ("lakegate_statement_repeats_total", "rows came"): 2,
        ("lakegate_statements_superseded_total", None): 1,
        ("lakegate_statement_lost_puts_total", None): 2,
        ("lakegate_statement_rows_read_total", None): 82,
        ("lakegate_statement_waited_seconds_total", None): 3.75,
        ("lakegate_statement_publish_seconds_total", None): 1.0,
        ("lakegate_statement_held_seconds_total", None): 0.3,
    }
    names = {(one.name, frozenset(one.labels)) for one in found}
    assert names == {(name, frozenset(metric.labels)) for metric in STATEMENT_METRICS for name in metric.series}
    assert {metric.name for metric in STATEMENT_METRICS}.isdisjoint(metric.name for metric in METRICS)


KNOWN = {name for metric in METRICS for name in metric.series}
LABELS = {name: {*metric.labels, "le"} for metric in METRICS for name in metric.series}


def used(expression: str) -> set[str]:
    """Names of series in an expression of PromQL, each followed by its labels' matchers."""
    return set(re.findall(r"\blakegate_\w+", expression))


def expressions() -> dict[str, str]:
    rules = yaml.safe_load(shipped(ALERTS))
    found = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    for panel in json.loads(shipped(DASHBOARD))["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found


@pytest.mark.parametrize("name", expressions())
def test_what_is_shipped_uses_only_metrics_and_labels_that_there_are(name: str) -> None:
    """A rule on a metric that does not exist never fires, and nobody notices."""
    expression = expressions()[name]
    assert used(expression)
    assert used(expression) - KNOWN == set()
    for series, matchers in re.findall(r"(lakegate_\w+)\{(.*?)\}", expression):
        assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= LABELS[series]
    by = {label for labels in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression) for label in labels.split(", ")}
    assert all(by <= LABELS[series] for series in used(expression))
    assert expression.count("(") == expression.count(")")


def test_the_check_of_what_is_shipped_can_fail() -> None:
    """A name that is nobody's is seen."""
    assert used("sum(lakegate_turns{x=1}) > 1") - KNOWN == {"lakegate_turns"}


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    """Each has a severity, a summary and an action; labels in them are labels of its metrics."""
    for group in yaml.safe_load(shipped(ALERTS))["groups"]:
        for rule in group["rules"]:
            assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
            assert set(rule["annotations"]) == {"summary", "action"}
            said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            first = re.findall(r"lakegate_\w+", rule["expr"])[0]  # its labels are those of the alert
            assert said <= LABELS[first], rule["alert"]


def test_the_dashboard_is_whole() -> None:
    """Panels do not overlap, ids are unique, the variables that are used are there."""
    board = json.loads(shipped(DASHBOARD))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    variables = {one["name"] for one in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(board["panels"]))) <= variables


def test_the_command_prints_writes_and_serves_the_same_metrics(tmp_path: Path) -> None:
    """As text, as a file for the node exporter, and over HTTP."""
    import subprocess
    import sys

    healthy(tmp_path).write_ledger()
    (tmp_path / "lakegate.yml").write_text(FILE)
    ran = lakegate("metrics", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    assert 'lakegate_turns_total{job="In",lock="L",outcome="completed"} 3.0' in ran.out
    file = tmp_path / "lakegate.prom"
    assert lakegate("metrics", "--textfile", file, "--spec", tmp_path).code == 0
    assert samples(file.read_text()) == samples(ran.out)
    assert lakegate("metrics", "--textfile", tmp_path / "no" / "x.prom", "--spec", tmp_path).code == 6
    assert lakegate("metrics", "--serve", "1234", "--alerts", "--spec", tmp_path).code == 2
    assert json.loads(lakegate("metrics", "--dashboard").out)["title"] == "Lakegate"
    port = _free_port()
    command = [sys.executable, "-m", "lakegate", "metrics", "--serve", str(port), "--spec", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().strip()
        with urllib.request.urlopen(url, timeout=30) as answer:
            served = answer.read().decode()
        process.terminate()
    assert samples(served) == samples(ran.out)


def _free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
