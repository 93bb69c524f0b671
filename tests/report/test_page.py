"""The page in a browser: what is drawn, said and reachable; opened from the disk, with the network watched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lakegate.report import facts
from lakegate.report.data import CommitRow, Outcome, ReportData
from lakegate.report.html_file import render
from tests.report.browser import chromium
from tests.report.sample import LOCK, TABLE, sample

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api")

DATA = sample(3)
TURNS = facts.in_order(DATA.turns)


@dataclass
class Opened:
    """A page, and everything that it asked for or complained about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def option(self, chart: str, part: str) -> Any:
        """A part of what ECharts draws at this moment: `xAxis`, `yAxis`, `dataZoom`, `series`."""
        script = "([id, part]) => echarts.getInstanceByDom(document.getElementById(id)).getOption()[part]"
        return self.page.evaluate(script, [chart, part])

    def items(self, chart: str, series: str) -> list[list[Any]]:
        """The items of a series, as ECharts has them."""
        found: list[list[Any]] = next(each for each in self.option(chart, "series") if each["id"] == series)["data"]
        return found

    def drawn(self, chart: str, series: str) -> int:
        """Counts the items of a series that have a shape on the canvas."""
        script = """([id, name]) => {
            const chart = echarts.getInstanceByDom(document.getElementById(id));
            const data = chart.getModel().getSeries().find((each) => each.id === name).getData();
            let drawn = 0;
            data.eachItemGraphicEl(() => { drawn += 1; });
            return drawn;
        }"""
        number: int = self.page.evaluate(script, [chart, series])
        return number

    def seen(self, chart: str) -> tuple[float, float]:
        """The part of the axis in view, in percent."""
        zoom = self.option(chart, "dataZoom")[0]
        return (zoom["start"], zoom["end"])

    def tooltip(self, chart: str) -> str:
        """The text of the tooltip that is shown."""
        card = self.page.locator(f"#{chart} .card")
        card.wait_for(state="visible", timeout=10_000)
        text: str = card.inner_text()
        return text

    def point(self, chart: str, series: int, value: list[float]) -> tuple[float, float]:
        """Returns where on the page a pair of values lies."""
        script = """([id, seriesIndex, value]) => {
            const element = document.getElementById(id);
            element.scrollIntoView({ block: 'center' });
            const [x, y] = echarts.getInstanceByDom(element).convertToPixel({ seriesIndex }, value);
            const box = element.getBoundingClientRect();
            return [box.x + x, box.y + y];
        }"""
        x, y = self.page.evaluate(script, [chart, series, value])
        return (x, y)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Starts one Chromium for the module."""
    with chromium() as started:
        yield started


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens a report from the disk; at the end no page may have complained or asked for anything else."""
    opened: list[tuple[Opened, str]] = []

    def open_it(data: ReportData, *, width: int = 1280, theme: str = "light") -> Opened:
        path = tmp_path / f"report-{len(opened)}.html"
        path.write_text(render(data), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        opened.append((found, path.as_uri()))
        return found

    yield open_it
    for page, address in opened:
        page.page.context.close()
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith("data:")] == [address]


def test_every_turn_commit_and_duration_is_drawn(open_report: Callable[..., Opened]) -> None:
    """At this size no item is left out for want of room."""
    report = open_report(DATA)
    assert len(report.items("timeline-0", "turns")) == report.drawn("timeline-0", "turns") == len(TURNS)
    granted = [turn for turn in TURNS if turn.granted_at_ms is not None]
    assert len(report.items("timeline-0", "held")) == report.drawn("timeline-0", "held") == len(granted)
    assert len(report.items("commits-0", "commits")) == report.drawn("commits-0", "commits") == len(DATA.commits)
    assert len(report.items("waited-0", "dots")) == len(TURNS)
    assert report.drawn("held-0", "boxes") == 3


def test_pointing_at_a_turn_tells_who_waited_for_whom_and_why(open_report: Callable[..., Opened]) -> None:
    """The tooltip has what the ledger has."""
    report = open_report(DATA)
    row = next(place for place, turn in enumerate(TURNS) if turn.outcome is Outcome.REPLAYED)
    lane, _, granted, end, *_ = report.items("timeline-0", "turns")[row]
    report.page.mouse.move(*report.point("timeline-0", 0, [(granted + end) / 2, lane]))
    text = report.tooltip("timeline-0")
    turn = TURNS[row]
    assert text.startswith(f"{turn.job}: replayed")
    for name, value in (
        ("Epoch", str(turn.epoch)),
        ("Waited", None),
        ("While the lock was held by", "TTL 2"),
        ("Predecessor", turn.predecessor),
        ("Reason", turn.reason),
    ):
        assert name in text
        assert (value or "") in text


def test_pointing_at_the_waiting_part_of_a_turn_tells_the_same(open_report: Callable[..., Opened]) -> None:
    """The light part belongs to the turn."""
    report = open_report(DATA)
    row = max(range(len(TURNS)), key=lambda place: TURNS[place].waited_ms or 0)
    lane, asked, granted, *_ = report.items("timeline-0", "turns")[row]
    report.page.mouse.move(*report.point("timeline-0", 0, [(asked + granted) / 2, lane]))
    assert f"Epoch\n{TURNS[row].epoch}\n" in report.tooltip("timeline-0")


def test_pointing_at_a_commit_tells_its_job_and_rows(open_report: Callable[..., Opened]) -> None:
    """Also where the bar is low: the whole column answers."""
    data = replace(DATA, commits=DATA.commits[:12])
    report = open_report(data)
    place = next(place for place, commit in enumerate(data.commits) if commit.rows_added)
    commit = data.commits[place]
    report.page.mouse.move(*report.point("commits-0", 0, [place, 1]))
    text = report.tooltip("commits-0")
    assert text.startswith(f"Version {commit.version}: {commit.operation}")
    assert f"Job\n{commit.job}" in text
    assert f"Rows added\n{commit.rows_added:,}" in text


def test_the_arrow_keys_go_from_turn_to_turn_and_say_where_they_are(open_report: Callable[..., Opened]) -> None:
    """Without a mouse everything in the chart can be reached."""
    report = open_report(DATA)
    report.page.locator("#timeline-0").focus()
    spoken = report.page.locator("#spoken")
    for row, key in (
        (0, "ArrowRight"),
        (1, "ArrowRight"),
        (2, "ArrowRight"),
        (1, "ArrowLeft"),
        (40, "End"),
        (0, "Home"),
    ):
        report.page.keyboard.press(key)
        assert spoken.text_content() == f"{TURNS[row].job}: {TURNS[row].outcome.words}"
        assert f"\n{words_of_epoch(row)}" in report.tooltip("timeline-0")


def words_of_epoch(row: int) -> str:
    """The epoch as the tooltip shows it, if the turn has one."""
    epoch = TURNS[row].epoch
    return "" if epoch is None else f"{epoch}\n"


def test_the_chart_moves_and_zooms_by_buttons_and_keys(open_report: Callable[..., Opened]) -> None:
    """In, later, earlier, out, all; the view never leaves the data."""
    report = open_report(DATA)
    tools = report.page.locator('.tools[data-chart="timeline-0"]')

    def press(name: str) -> tuple[float, float]:
        tools.get_by_role("button", name=name).click()
        return report.seen("timeline-0")

    assert press("Zoom in") == (25, 75)
    assert press("Later") == (50, 100)
    assert press("Later") == (50, 100)
    assert press("Zoom in") == (62.5, 87.5)
    assert press("Earlier") == (50, 75)
    assert press("Zoom out") == (37.5, 87.5)
    assert press("Show all") == (0, 100)
    report.page.locator("#timeline-0").focus()
    report.page.keyboard.press("+")
    assert report.seen("timeline-0") == (25, 75)
    report.page.keyboard.press("0")
    assert report.seen("timeline-0") == (0, 100)


def test_a_wheel_without_ctrl_scrolls_the_page_and_with_ctrl_zooms(open_report: Callable[..., Opened]) -> None:
    """A chart that swallows the wheel traps the reader."""
    report = open_report(DATA)
    lane, asked, *_ = report.items("timeline-0", "turns")[20]
    report.page.mouse.move(*report.point("timeline-0", 0, [asked, lane]))
    before = report.page.evaluate("scrollY")
    report.page.mouse.wheel(0, 100)
    report.page.wait_for_function("before => scrollY > before", arg=before)
    assert report.seen("timeline-0") == (0, 100)
    report.page.mouse.move(*report.point("timeline-0", 0, [asked, lane]))
    report.page.keyboard.down("Control")
    report.page.mouse.wheel(0, -100)
    report.page.keyboard.up("Control")
    report.page.wait_for_function(
        "() => { const { start, end } = echarts.getInstanceByDom(document.getElementById('timeline-0'))"
        ".getOption().dataZoom[0]; return end - start < 100; }"
    )


def test_an_unusual_turn_is_shown_in_the_timeline_on_request(open_report: Callable[..., Opened]) -> None:
    """From the list to the picture with one button."""
    report = open_report(DATA)
    button = report.page.locator("#unusual-table button").last
    row = int(button.get_attribute("data-row"))
    button.click()
    start, end = report.seen("timeline-0")
    assert end - start < 50
    assert report.tooltip("timeline-0").startswith(f"{TURNS[row].job}: {TURNS[row].outcome.words}")


def test_the_tables_open_with_every_row(open_report: Callable[..., Opened]) -> None:
    """By the keyboard, and with all columns."""
    report = open_report(DATA)
    summary = report.page.locator("details[data-table=turn-table-0] summary")
    summary.focus()
    report.page.keyboard.press("Enter")
    rows = report.page.locator("#turn-table-0 tbody tr")
    rows.first.wait_for(state="visible")
    assert rows.count() == len(TURNS)
    assert rows.nth(4).locator("td").first.inner_text() == TURNS[4].job
    assert report.page.locator("#comparison-table .verdict td").all_inner_texts() == ["right", "wrong"]
    unusual = [turn for turn in TURNS if turn.outcome is not Outcome.COMPLETED]
    assert report.page.locator("#unusual-table tbody tr").count() == len(unusual)


def test_a_bar_leads_to_its_commits(open_report: Callable[..., Opened]) -> None:
    """From the picture of the comparison by a link, from the chart of turns by a click: the table opens at that row."""
    report = open_report(DATA)
    report.page.locator('.opening a.bar[href="#commit-0-1"]').click()
    aimed = report.page.locator("tr.aimed")
    assert aimed.get_attribute("id") == "commit-0-1"
    playwright.expect(aimed).to_be_in_viewport()
    row = next(place for place, turn in enumerate(TURNS) if turn.versions and turn.versions[TABLE][-1] > 20)
    lane, _, granted, end, *_ = report.items("timeline-0", "turns")[row]
    report.page.mouse.click(*report.point("timeline-0", 0, [(granted + end) / 2, lane]))
    report.page.wait_for_function("before => document.querySelector('tr.aimed').id !== before", arg="commit-0-1")
    assert int(aimed.get_attribute("id").removeprefix("commit-0-")) in TURNS[row].versions[TABLE]
    playwright.expect(aimed).to_be_in_viewport()


def test_the_comparison_is_seen_without_scrolling(open_report: Callable[..., Opened]) -> None:
    """Table and picture end above the fold of a laptop; on a phone both are as wide as the screen."""
    report = open_report(DATA)
    bottom = "document.querySelector('.opening').getBoundingClientRect().bottom"
    assert report.page.evaluate(bottom) <= 800
    assert report.page.locator("#comparison-table").bounding_box()["width"] < 500
    report.page.set_viewport_size({"width": 390, "height": 844})
    for part in ("#comparison-table", ".runs"):
        box = report.page.locator(part).bounding_box()
        assert box["x"] + box["width"] <= 390


def test_names_that_look_like_markup_are_shown_as_they_are(open_report: Callable[..., Opened]) -> None:
    """In tables and in tooltips, which are made in the browser."""
    evil = "</script><img src=x onerror=alert(1)>"
    report = open_report(sample(3, pipeline=evil, jobs=(evil, "B"), lock=evil, table=evil, reason=evil))
    assert report.page.locator("h1").inner_text() == evil
    report.page.locator("details[data-table=turn-table-0] summary").click()
    report.page.locator("details[data-table=commit-table-0] summary").click()
    report.page.locator("#timeline-0").focus()
    for _ in range(6):
        report.page.keyboard.press("ArrowRight")
        assert report.tooltip("timeline-0").startswith((evil, "B: "))
    assert report.page.locator("img").count() == 0


@pytest.mark.slow
def test_ten_thousand_turns_can_be_used(open_report: Callable[..., Opened]) -> None:
    """All are there; at full width those that would cover one another are left out, and zooming in brings them back."""
    report = open_report(replace(sample(9, turns=10_000, unusual_share=0.03, is_compared=False), commits=()))
    items = report.items("timeline-0", "turns")
    assert len(items) == 10_000
    assert report.drawn("timeline-0", "turns") < 5_000
    zoom = "echarts.getInstanceByDom(document.getElementById('timeline-0')).dispatchAction"
    report.page.evaluate(f"{zoom}({{ type: 'dataZoom', dataZoomIndex: 0, start: 50, end: 50.2 }}, {{ flush: true }})")
    window = report.option("timeline-0", "dataZoom")[0]
    begin, end = window["startValue"], window["endValue"]
    inside = [item for item in items if item[3] >= begin and item[1] <= end]
    assert 5 < len(inside) == report.drawn("timeline-0", "turns")
    report.page.locator("details[data-table=turn-table-0] summary").click()
    pages = report.page.locator("details[data-table=turn-table-0] .pages")
    playwright.expect(pages).to_have_text(
        re.compile("rows 1 to 500 of 10000$")
    )  # drawn when the browser tells that it was opened
    pages.get_by_role("button", name="Rows after").click()
    playwright.expect(pages).to_have_text(re.compile("rows 501 to 1000 of 10000$"))
    assert report.page.locator("#turn-table-0 tbody tr").count() == 500


def test_each_turn_can_be_picked_where_thousands_lie_upon_one_another(open_report: Callable[..., Opened]) -> None:
    """The item that the reader stands on is drawn whatever lies there; and in a part of the axis as in the whole."""
    data = replace(sample(9, turns=5_000, jobs=("A",), unusual_share=0, is_compared=False), commits=())
    turns = facts.in_order(data.turns)
    report = open_report(data)
    assert report.drawn("timeline-0", "turns") < 1_500
    report.page.locator("#timeline-0").focus()
    for row in range(4):
        report.page.keyboard.press("ArrowRight")
        assert f"\n{turns[row].epoch}\n" in report.tooltip("timeline-0")
    report.page.keyboard.press("End")
    report.page.keyboard.press("+")
    for row in (4998, 4997):
        report.page.keyboard.press("ArrowLeft")
        assert f"\n{turns[row].epoch}\n" in report.tooltip("timeline-0")


def test_the_charts_follow_the_theme(open_report: Callable[..., Opened]) -> None:
    """A change of the system's theme changes the colours of what is drawn, and keeps the place."""
    report = open_report(DATA)
    report.page.locator('.tools[data-chart="timeline-0"]').get_by_role("button", name="Zoom in").click()
    light = report.option("timeline-0", "yAxis")[0]["axisLabel"]["color"]
    report.page.emulate_media(color_scheme="dark")
    report.page.wait_for_function(
        "() => echarts.getInstanceByDom(document.getElementById('timeline-0'))"
        ".getOption().yAxis[0].axisLabel.color !== '#1b2329'"
    )
    dark = report.option("timeline-0", "yAxis")[0]["axisLabel"]["color"]
    assert (light, dark) == ("#1b2329", "#e6eaec")
    assert report.seen("timeline-0") == (25, 75)


def test_a_narrow_screen_has_no_sideways_scroll(open_report: Callable[..., Opened]) -> None:
    """Charts shrink; long tables scroll within their own frame."""
    report = open_report(DATA, width=390)
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 390
    report.page.set_viewport_size({"width": 1000, "height": 900})
    report.page.wait_for_function(
        "() => echarts.getInstanceByDom(document.getElementById('timeline-0')).getWidth() > 800"
    )


def test_paper_gets_light_colours_and_a_width_that_fits(open_report: Callable[..., Opened]) -> None:
    """Also from a dark screen; afterwards the screen is as before."""
    report = open_report(DATA, theme="dark")
    width = "echarts.getInstanceByDom(document.getElementById('timeline-0')).getWidth()"
    before = report.page.evaluate(width)
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert report.page.evaluate(width) == 660
    assert report.option("timeline-0", "yAxis")[0]["axisLabel"]["color"] == "#1b2329"
    report.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert report.page.evaluate(width) == before
    assert report.option("timeline-0", "yAxis")[0]["axisLabel"]["color"] == "#e6eaec"
    assert report.page.pdf().startswith(b"%PDF")


def test_a_report_with_one_commit_and_no_turn_is_drawn(open_report: Callable[..., Opened]) -> None:
    """A table that was adopted and not yet written to."""
    commit = CommitRow(table=TABLE, version=0, timestamp_ms=0, operation="CREATE TABLE")
    report = open_report(ReportData(pipeline="p", made_at_ms=0, machine="m", turns=(), commits=(commit,)))
    assert report.drawn("commits-0", "commits") == 1


def test_a_single_instantaneous_turn_is_drawn(open_report: Callable[..., Opened]) -> None:
    """Asked, granted and released in one millisecond: an axis without length must not break the page."""
    turn = replace(TURNS[1], asked_at_ms=5, granted_at_ms=5, first_write_at_ms=5, commit_log_at_ms=5, released_at_ms=5)
    report = open_report(ReportData(pipeline="p", made_at_ms=0, machine="m", turns=(turn,)))
    assert report.drawn("timeline-0", "turns") == 1
    assert LOCK in report.page.locator("h3").first.inner_text()
