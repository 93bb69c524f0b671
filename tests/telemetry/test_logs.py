"""Log lines: one JSON object each, with the turn that they are about."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from lakegate import settings
from lakegate.errors import InvalidRequest
from lakegate.telemetry.events import Event, Noticed, TurnGranted, TurnWaits
from lakegate.telemetry.log_format import JsonFormatter, working
from lakegate.telemetry.log_sink import LogSink
from tests.telemetry.ended_turns import turn


@pytest.fixture
def lines() -> Iterator[Any]:
    """Returns the logged lines as data."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_line_within_a_turn_names_job_epoch_and_batch(lines: Any) -> None:
    """Also one of the user's own code; not one of another thread, nor one that comes later."""
    mine = logging.getLogger("my.code")
    with working(lock="L", job="In", epoch=4, batch=7):
        mine.warning("rows: %s", 3, extra={"file": "a.json"})
        other = threading.Thread(target=mine.info, args=("elsewhere",))
        other.start()
        other.join()
    mine.info("later")
    first, elsewhere, later = lines()
    assert list(first)[:8] == ["time", "level", "logger", "message", "lock", "job", "epoch", "batch"]
    assert (first["message"], first["level"], first["file"]) == ("rows: 3", "warning", "a.json")
    assert (first["lock"], first["job"], first["epoch"], first["batch"]) == ("L", "In", 4, 7)
    assert (elsewhere["job"], later["job"], later["epoch"]) == (None, None, None)


def test_an_exception_stays_on_its_line(lines: Any) -> None:
    """With its traceback as text, and what is no JSON as text."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("failed", extra={"thing": {1, 2}})
    (line,) = lines()
    assert "ValueError: two\nlines" in line["exception"]
    assert line["thing"] == "{1, 2}"


def test_events_are_log_records_with_their_fields(lines: Any) -> None:
    """Trouble is a warning; the batch is the last one of the turn."""
    sink = LogSink()
    sink.emit(TurnWaits(lock="L", job="In", reason="Out asked earlier"))
    sink.emit(TurnGranted(lock="L", job="In", epoch=5, predecessor=None, waited_ms=3))
    sink.emit(turn("completed"))
    sink.emit(turn("lost"))
    sink.emit(Noticed(job=None, text="look"))
    found = lines()
    assert [(line["event"], line["level"]) for line in found] == [
        ("TurnWaits", "info"),
        ("TurnGranted", "info"),
        ("TurnEnded", "info"),
        ("TurnEnded", "warning"),
        ("Noticed", "warning"),
    ]
    assert [line["message"] for line in found][:3] == [
        "In waits: Out asked earlier",
        "In: turn granted",
        "In: turn 1 completed",
    ]
    assert (found[2]["batch"], found[1]["epoch"], found[1]["waited_ms"]) == (5, 5, 3)


def test_without_configured_logging_nothing_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """A warning of an event does not reach standard error by itself."""
    LogSink().emit(Noticed(job=None, text="look"))
    assert capfd.readouterr().err == ""


def test_the_setting_is_off_or_json() -> None:
    """Anything else is refused, with what was meant."""
    assert [settings.log_format({}), settings.log_format({"LAKEGATE_LOG": "json"})] == ["off", "json"]
    with pytest.raises(InvalidRequest, match=r"did you mean \"json\"") as refused:
        settings.log_format({"LAKEGATE_LOG": "jsn"})
    assert refused.value.exit_code == 2


def test_no_field_of_an_event_hides_one_of_a_log_record() -> None:
    """`logging` refuses such an `extra`, which would end the work that is watched."""
    fields = {one.name for event in get_args(Event) for one in dataclasses.fields(event)} | {"event"}
    assert fields & (set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}) == set()
