"""The page as text: complete, self-contained, and safe whatever the names are."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from lakegate.report import charts
from lakegate.report.data import CommitRow, Outcome, ReportData, TurnRow
from lakegate.report.html_file import render
from tests.report.sample import sample

EVIL = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&amp;\u2028"""


class Page(HTMLParser):
    """The elements and the texts of a page, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def report_data(html: str) -> dict[str, Any]:
    """The JSON that the page draws from."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', html, re.DOTALL)
    assert found
    assert not set("<>&") & set(found[1])
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_names_and_reasons_cannot_become_markup() -> None:
    """Every text that a user chooses, in every place where it is shown."""
    plain = Page(render(sample(3)))
    data = sample(3, pipeline=EVIL, jobs=(EVIL, "B" + EVIL, "C"), lock=EVIL, table=EVIL, reason=EVIL)
    foreign = CommitRow(table=EVIL, version=10_000, timestamp_ms=data.made_at_ms, operation=EVIL, step=EVIL)
    html = render(replace(data, machine=EVIL, commits=(*data.commits, foreign)))
    page = Page(html)
    assert page.count("script") == plain.count("script") == 3
    assert page.count("img") == 0
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert report_data(html)["tables"][0]["rows"][0][0] in (EVIL, "B" + EVIL, "C")


def test_the_page_asks_for_nothing() -> None:
    """No address of another host in anything that loads; the content policy forbids the rest."""
    html = render(sample(3))
    page = Page(html)
    loading = [
        value
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data") and tag != "a"
    ]
    assert loading == ["data:,"]
    assert "default-src 'none'" in html
    assert "@import" not in html
    assert "url(" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)


def test_the_content_policy_admits_exactly_the_scripts_of_the_page() -> None:
    """A hash that does not fit leaves a page without charts; a loose policy lets anything in."""
    html = render(sample(3))
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    policy = re.search(r"script-src ([^;]*);", html)
    assert policy
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy[1].split() == [f"'sha256-{each}'" for each in hashes]
    whole = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert whole
    assert [part.strip() for part in whole[1].split(";") if "script-src" not in part] == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
    ]


def test_the_page_has_every_turn_and_every_commit() -> None:
    """The tables behind the charts leave nothing out."""
    data = sample(3, turns=700)
    tables = {table["id"]: table for table in report_data(render(data))["tables"]}
    assert len(tables["turn-table-0"]["rows"]) == 700
    assert len(tables["commit-table-0"]["rows"]) == len(data.commits)
    for table in tables.values():
        assert {len(row) for row in table["rows"]} == {len(table["headings"])}


def test_the_list_of_unusual_turns_is_bounded_and_says_so() -> None:
    """The latest are kept."""
    html = render(sample(3, turns=600, unusual_share=0.9))
    unusual = html.split('<section id="unusual"')[1].split("</section>")[0]
    assert unusual.count("<tr>") == 1 + 200
    assert re.search(r"The last 200 of \d+;", unusual)


def test_an_unusual_turn_without_a_reason_is_explained_by_its_outcome() -> None:
    """A row with an empty reason helps nobody."""
    turn = TurnRow(lock="L", job="A", asked_at_ms=0, released_at_ms=5, outcome=Outcome.GAVE_UP)
    html = render(ReportData(pipeline="p", made_at_ms=9, machine="m", turns=(turn,)))
    assert "the turn was not granted in time; nothing was written" in html


def test_an_empty_report_is_a_page() -> None:
    """Before the first turn the page says that there are no turns to draw."""
    html = render(ReportData(pipeline="p", made_at_ms=0, machine="m", turns=()))
    assert "No turn has been taken yet." in html
    assert "<noscript>" in html
    assert report_data(html) == {"charts": [], "tables": []}


def test_two_locks_and_two_tables_have_charts_of_their_own() -> None:
    """Lanes of different locks have nothing to do with one another."""
    one, other = sample(1, turns=20), sample(2, turns=20, lock="OTHER", table="other", jobs=("X", "Y"))
    data = replace(one, turns=(*one.turns, *other.turns), commits=(*one.commits, *other.commits))
    drawn = [chart["id"] for chart in report_data(render(data))["charts"]]
    assert drawn == [
        "timeline-0",
        "timeline-1",
        "commits-0",
        "commits-1",
        "waited-0",
        "held-0",
        "waited-1",
        "held-1",
    ]


def test_the_same_data_gives_the_same_page() -> None:
    """Whatever the order in which it was read."""
    data = sample(3)
    shuffled = replace(data, turns=tuple(reversed(data.turns)), commits=tuple(reversed(data.commits)))
    assert render(data) == render(shuffled)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_that_is_named_has_a_value_in_both_themes(theme: str) -> None:
    """A name without a value is drawn black, on dark paper invisible."""
    style = files("lakegate.report").joinpath("page.css").read_text()
    script = files("lakegate.report").joinpath("page.js").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    block = light if theme == "light" else dark.split("* { box-sizing")[0]
    defined = set(re.findall(r"(--[a-z0-9-]+):", block))
    named = set(re.findall(r"var\((--[a-z0-9-]+)\)", style + script + render(sample(3))))
    named |= {colour[4:-1] for colour in (*charts.OUTCOME_COLOURS.values(), *charts.JOB_COLOURS)}
    assert named - {"--name"} <= defined


def test_the_library_is_the_one_that_its_readme_describes() -> None:
    """Version and sum are what a reader checks a vendored file by."""
    folder = files("lakegate.report").joinpath("vendor/echarts")
    library = folder.joinpath("echarts.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() in folder.joinpath("README.md").read_text()
    assert b"</script" not in library
    assert b"<!--" not in library
    for licence in ("LICENSE", "LICENSE-d3", "LICENSE-zrender", "NOTICE"):
        assert folder.joinpath(licence).is_file()


def test_notes_on_the_runs_stand_under_their_comparison() -> None:
    """Each is a paragraph, as text; without notes there is none."""
    data = sample(3)
    assert data.comparison is not None
    html = render(replace(data, comparison=replace(data.comparison, notes=("Both were killed.", EVIL))))
    assert "<p>Both were killed.</p>" in html
    assert (Page(html).count("img"), Page(html).count("p")) == (0, Page(render(data)).count("p") + 2)


def test_a_comparison_opens_the_page() -> None:
    """Its sentence is the headline, and its section the first; the turns follow with their own words."""
    html = render(sample(3))
    assert re.findall(r'<section id="(\w+)"', html)[:2] == ["comparison", "turns"]
    assert '<p class="headline">Two jobs on one table' in html
    assert '<p class="said">3 jobs took 41 turns' in html
    assert re.findall(r'<section id="(\w+)"', render(sample(3, is_compared=False)))[0] == "turns"


def test_each_turn_has_its_steps_rows_and_commits_and_leads_to_them() -> None:
    """As the log has them; a turn that was killed before it could report its versions, too."""
    data = sample(3)
    data = replace(data, commits=data.commits[1:])  # without the creation of the table
    tables = {table["id"]: table for table in report_data(render(data))["tables"]}
    turns, commits = tables["turn-table-0"], tables["commit-table-0"]
    assert len(set(commits["anchors"])) == len(commits["rows"])
    anchored = dict(zip(commits["anchors"], commits["rows"], strict=True))
    written = [(row, link) for row, link in zip(turns["rows"], turns["links"], strict=True) if link]
    assert len(written) == sum(bool(turn.versions) for turn in data.turns)
    for row, link in written:
        cells = dict(zip(turns["headings"], row, strict=True))
        commit = dict(zip(commits["headings"], anchored[link], strict=True))
        assert (cells["Job"], cells["Epoch"]) == (commit["Job"], commit["Epoch"])
        assert (cells["Steps"], commit["Batch"] != "–") == (commit["Step"], True)
        own = [one for one in data.commits if (one.job, str(one.epoch)) == (cells["Job"], cells["Epoch"])]
        assert cells["Rows added"] == f"{sum(one.rows_added or 0 for one in own):,}"
        assert cells["Commits"].startswith(f"{own[0].table} {own[0].version}")
    silent = replace(data, turns=tuple(replace(turn, versions={}) for turn in data.turns))
    assert report_data(render(silent))["tables"][0]["rows"] == turns["rows"]
