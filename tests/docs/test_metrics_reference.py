"""docs/reference/metrics.md is made from the table of metrics and from the shipped alert rules.

After a change of either: `LAKEGATE_WRITE_REFERENCE=1 pytest tests/docs/test_metrics_reference.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import yaml

from lakegate.cli.metrics import ALERTS, shipped
from lakegate.report.metrics import METRICS, Metric
from lakegate.report.statements import STATEMENT_METRICS
from tests.docs.markdown import DOCS

PAGE = DOCS / "reference" / "metrics.md"


def metrics(of: Iterable[Metric]) -> str:
    """The table of names."""
    rows = [
        f"| `{metric.series[0] if metric.kind != 'histogram' else metric.name}` | {metric.kind} "
        f"| {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in of
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def alerts() -> str:
    """The table of alert rules."""
    rules = [rule for group in yaml.safe_load(shipped(ALERTS))["groups"] for rule in group["rules"]]
    rows = []
    for rule in rules:
        expression, lasting = rule["expr"].replace("|", "\\|"), rule.get("for", "at once")
        said = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", rule["annotations"]["summary"])
        row = (rule["alert"], rule["labels"]["severity"], lasting, said, rule["annotations"]["action"])
        rows.append(f"| `{row[0]}` | {row[1]} | {row[2]} | {row[3]} | {row[4]} | `{expression}` |")
    return "\n".join(
        ["| alert | severity | for | what happened | what to do | when |", "|---|---|---|---|---|---|", *rows]
    )


def test_the_page_is_what_the_code_has() -> None:
    """Generated between its marks, and never edited there."""
    text = PAGE.read_text(encoding="utf-8")
    expected = text
    for name, table in (
        ("metrics", metrics(METRICS)),
        ("statements", metrics(STATEMENT_METRICS)),
        ("alerts", alerts()),
    ):
        before, rest = expected.split(f"<!-- {name} -->\n")
        expected = f"{before}<!-- {name} -->\n{table}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    if os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1":
        PAGE.write_text(expected, encoding="utf-8")
        text = expected
    assert text == expected
