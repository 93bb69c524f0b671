"""The page of `lakegate status --web` in a browser: what it shows, how it updates, and that nothing in the data can act."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegate.report.data import Outcome, TurnRow
from tests.cli.live_pipeline import TOKEN, LivePipeline, served
from tests.report.browser import chromium
from tests.report.sample import LOCK, sample

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

WAIT_MS_MAX = 30_000
OPTION = "([id, part]) => echarts.getInstanceByDom(document.getElementById(id)).getOption()[part]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Starts one Chromium for the module."""
    with chromium() as started:
        yield started


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[LivePipeline]:
    """A pipeline in progress."""
    made = LivePipeline(tmp_path)
    yield made
    made.close()


@pytest.fixture
def viewed(browser: Any, pipeline: LivePipeline) -> Iterator[Callable[..., Any]]:
    """Opens the page while it is served; at the end no page may have complained or asked for anything but the state."""
    complaints: list[str] = []
    asked: set[str] = set()
    contexts = []
    with served(pipeline.root) as port:
        address = f"http://127.0.0.1:{port}/{TOKEN}/"

        def view(*, width: int = 1280, theme: str = "light") -> Any:
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme=theme, reduced_motion="reduce"
            )
            contexts.append(context)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: asked.add(request.url.partition("?")[0]))
            page.goto(address)
            page.locator("#timeline-0 canvas").first.wait_for(timeout=WAIT_MS_MAX)
            expect(page.locator("#content")).not_to_contain_text("Being asked", timeout=WAIT_MS_MAX)
            return page

        yield view
        for context in contexts:
            context.close()
    assert complaints == []
    assert {url for url in asked if not url.startswith("data:")} <= {address, f"{address}state"}


def a_turn(epoch: int, **changed: Any) -> TurnRow:
    """A turn after those of the sample."""
    at_ms = max(row.released_at_ms or 0 for row in sample(3, turns=60).turns) + 1_000 * epoch
    row = TurnRow(
        lock=LOCK,
        job="Ingestion",
        run="new",
        epoch=epoch,
        asked_at_ms=at_ms,
        granted_at_ms=at_ms + 100,
        released_at_ms=at_ms + 900,
        outcome=Outcome.COMPLETED,
    )
    return replace(row, **changed)


def test_the_page_has_every_section_and_says_who_has_the_turn(viewed: Callable[..., Any]) -> None:
    """In the order of a look from above: now, the past, errors, lag, requests, commits."""
    page = viewed()
    assert page.locator("h2").all_inner_texts() == [
        "Now",
        "Turns",
        "Last errors",
        "Lag and delay",
        "Kept requests and dead letters",
        "Commits by statement",
    ]
    assert page.locator(".headline").inner_text() == f"Ingestion has the turn on {LOCK}; 1 job waiting; 1 job late."
    assert page.locator("#queue-0 tbody td").all_inner_texts()[0] == "Mutation"
    assert page.evaluate(OPTION, ["timeline-0", "yAxis"])[0]["data"][0] == "lock held"
    assert page.title() == "crm: live"


def test_the_page_updates_itself(viewed: Callable[..., Any], pipeline: LivePipeline) -> None:
    """A new holder and a new turn appear; what the reader has focused, opened and zoomed stays."""
    page = viewed()
    page.locator("details[data-table=turn-table-0] summary").click()
    expect(page.locator("#turn-table-0 tbody tr")).to_have_count(60)
    page.locator('.tools[data-chart="timeline-0"]').get_by_role("button", name="Zoom in").click()
    page.locator("#timeline-0").focus()
    page.keyboard.press("ArrowRight")
    spoken = page.locator("#spoken").text_content()
    window = page.evaluate(OPTION, ["timeline-0", "dataZoom"])[0]
    pipeline.hold("Mutation", epoch=1101, waiting="Ingestion")
    pipeline.end(a_turn(1100, outcome=Outcome.FAILED, reason="the disk is full"))
    expect(page.locator(".holder")).to_contain_text("Mutation has had the turn", timeout=WAIT_MS_MAX)
    expect(page.locator("#turn-table-0 tbody tr")).to_have_count(61, timeout=WAIT_MS_MAX)
    expect(page.locator("#unusual-table")).to_contain_text("the disk is full")
    assert page.evaluate("document.activeElement.id") == "timeline-0"
    now = page.evaluate(OPTION, ["timeline-0", "dataZoom"])[0]
    assert abs(now["startValue"] - window["startValue"]) < 2_000
    page.keyboard.press("ArrowLeft")
    assert (
        page.locator("#spoken").text_content() == spoken
    )  # the first turn is still the picked one, and has none before it


def test_the_keyboard_reaches_everything_and_shows_where_it_is(viewed: Callable[..., Any]) -> None:
    """Tables, the timeline, its buttons, its table, then "Show", in the order of the page."""
    page = viewed()
    seen: list[str] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    names = [
        "Waiting jobs",
        "Jobs",
        "Timeline of 60",
        "← Earlier",
        "Later →",
        "Zoom in",
        "Zoom out",
        "Show all",
        "All 60 turns",
    ]
    assert all(found.startswith(name) for found, name in zip(seen, names, strict=False)), seen
    assert "Errors" in seen
    page.locator("#timeline-0").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("End")
    assert page.evaluate(OPTION, ["timeline-0", "dataZoom"])[0]["end"] > 99
    page.keyboard.press("Home")
    assert page.evaluate(OPTION, ["timeline-0", "dataZoom"])[0]["start"] < 1
    page.locator("#unusual-table button").first.click()
    assert page.evaluate("document.activeElement.id") == "timeline-0"


def test_a_phone_has_no_sideways_scroll_and_nothing_moves(viewed: Callable[..., Any]) -> None:
    """Wide tables scroll within their own frame; there is no animation to switch off."""
    page = viewed(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.getAnimations().length") == 0


def test_a_dark_screen_gets_dark_colours(viewed: Callable[..., Any]) -> None:
    """Of the page and of the chart."""
    page = viewed(theme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 25, 29)"
    assert page.evaluate(OPTION, ["timeline-0", "yAxis"])[0]["axisLabel"]["color"] == "#e6eaec"


def test_hostile_texts_do_nothing_and_fit(viewed: Callable[..., Any], pipeline: LivePipeline) -> None:
    """As text in tables, in the headline and in tooltips; at the width of a phone, too."""
    evil = "</script><img src=x onerror=alert(1)><b id=now style=position:fixed>\"'\u202e" + "x" * 3_000
    pipeline.hold(evil, epoch=1101, waiting=evil, paused=evil)
    for epoch in range(1102, 1106):
        pipeline.end(a_turn(epoch, job=evil, run=f"r{epoch}", outcome=Outcome.FAILED, reason=evil, predecessor=evil))
    for width in (1280, 390):
        page = viewed(width=width)
        page.locator("details[data-table=turn-table-0] summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#timeline-0").focus()
        page.keyboard.press("End")
        card = page.locator("#timeline-0 .card")
        card.wait_for(timeout=WAIT_MS_MAX)
        assert "<img src=x" in card.inner_text()
        assert "\u202e" not in page.locator("body").inner_text()
        assert page.locator("img, #content b#now, #content script").count() == 0
        assert page.locator("#content").bounding_box()["height"] < 12_000
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_viewer_whose_server_has_gone_says_so(browser: Any, pipeline: LivePipeline) -> None:
    """With the time of what is shown; and it says when its address is not valid any more."""
    context = browser.new_context()
    page = context.new_page()
    with served(pipeline.root) as port:
        page.goto(f"http://127.0.0.1:{port}/{TOKEN}/")
        page.locator("#timeline-0 canvas").first.wait_for(timeout=WAIT_MS_MAX)
        expect(page.locator("#gone")).to_be_hidden()
    expect(page.get_by_role("alert")).to_contain_text("does not answer", timeout=WAIT_MS_MAX)
    assert page.locator(".holder").inner_text().startswith("Ingestion has had the turn")
    context.close()
