"""The tables that notebooks show."""

from __future__ import annotations

import lakegate
from lakegate.rows.explain import Explanation
from lakegate.rows.result import Result
from lakegate.streams.supervisor import RunReport
from lakegate.syncs.api import SyncReport


def test_results_are_tables_in_notebooks_and_their_values_are_escaped() -> None:
    """A name or a reason may hold markup."""
    result = Result(
        version=7, is_superseded=False, level=2, attempts=1, lost_puts=3, reasons=("<b>files</b> came",),
        _info=lambda: {"operationMetrics": {"numDeletedRows": "4"}},
    )  # fmt: skip
    said = result._repr_html_()
    assert '<th style="text-align:left">lost puts</th><td style="text-align:left">3</td>' in said
    assert "&lt;b&gt;files&lt;/b&gt; came" in said
    assert 'numDeletedRows</th><td style="text-align:left">4' in said
    assert "info" not in said
    assert 'is superseded</th><td style="text-align:left">no' in said

    explanation = Explanation(
        table="t", operation="DELETE", reads="rows", condition=None, keys=(), obstacles=("x", "y"), why_stock=None,
        outcomes={"an append": "goes on"},
    )  # fmt: skip
    said = explanation._repr_html_()
    assert 'condition</th><td style="text-align:left">&ndash;' in said
    assert "x<br>y" in said
    assert '<th style="text-align:left">an append</th>' in said

    said = RunReport(job="In", versions={"/my_t/_x": [1, 2]})._repr_html_()
    assert "<b>RunReport</b><table>" in said
    assert ">/my_t/_x</th>" in said
    assert 'passed over</th><td style="text-align:left">&ndash;' in said
    assert 'unmet</th><td style="text-align:left">&ndash;' in said
    assert "<b>SyncReport</b><table>" in SyncReport(sync="crm")._repr_html_()


def test_a_pipeline_says_its_tables_and_streams() -> None:
    """In a terminal and in a notebook."""
    pipeline = lakegate.Pipeline("p")
    pipeline.table("t", path="./t").append(name="In", source=lakegate.files_json("./in", schema="a INT"))
    assert repr(pipeline) == "<Pipeline p: tables t; streams In>"
    assert '<th style="text-align:left">streams</th><td style="text-align:left">In</td>' in pipeline._repr_html_()
