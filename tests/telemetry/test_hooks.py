"""Hooks: which events become messages, and how they are delivered; with a real HTTP server and real commands."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegate.telemetry import hooks as module
from lakegate.telemetry.events import BatchWritten, StreamLate, SyncBehind, TurnEnded, TurnGranted, to_json
from lakegate.telemetry.hook_messages import Hook, news_of
from lakegate.telemetry.hooks import Hooks, on_event
from tests.telemetry.ended_turns import turn
from tests.telemetry.webhooks import Receiver, receiver
from tests.waiting import wait_until

AT_ONCE = (0.0, 0.0, 0.0)


def ended(outcome: str, **given: Any) -> TurnEnded:
    return replace(turn(outcome), **given)


def batch(**given: Any) -> BatchWritten:
    counts = {"rows_in": 9, "rows_written": 7, "rows_erased": 0, "dead_letters": 0, "dead_requests": 0, **given}
    return BatchWritten(lock="L", job="In", epoch=4, batch=5, is_sweep=False, **counts)


def late(*, is_late: bool) -> StreamLate:
    return StreamLate(lock="L", job="In", is_late=is_late, overdue_ms=9_000_000, every_ms=3_600_000)


def behind(*, is_behind: bool, limit_ms: int = 300_000) -> SyncBehind:
    return SyncBehind(sync="crm", is_behind=is_behind, behind_ms=400_000, limit_ms=limit_ms)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The texts of warnings, with what a formatter adds to them."""
    shown: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: shown.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    module.LOGGER.addHandler(handler)
    yield shown
    module.LOGGER.removeHandler(handler)


def webhook(to: Receiver, **given: Any) -> Hook:
    return Hook(name="ops", webhook=to.url, **given)


MESSAGES = {
    "lost": (turn("lost"), "In lost turn 1"),
    "failed": (turn("failed"), "turn 1 of In failed"),
    "fenced": (turn("fenced"), "turn 1 of In fenced"),
    "late": (late(is_late=True), "In is late: its turn is overdue by 2 hours"),
    "dead_letters": (batch(dead_letters=3), "lakegate dead-letters list In"),
    "dead_requests": (batch(dead_requests=3), "lakegate requests list In --state dead"),
    "unmet": (batch(unmet={"positive": 2, "known": 1}), "in batch 5 of In records do not meet positive (2), known (1)"),
    "erased": (batch(rows_erased=7), "In deleted 7 rows in batch 5"),
    "sync_behind": (behind(is_behind=True), "crm is 6 minutes behind its source"),
    "of a sync": (
        {"event": "BatchApplied", "sync": "crm", "batch": 2, "changes": 4, "dead": 1},
        "crm quarantined 1 row of",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.every_case
def test_an_event_becomes_a_message_with_a_sentence(name: str) -> None:
    """The sentence says what happened, and ends with the command to type."""
    event, text = MESSAGES[name]
    data = event if isinstance(event, dict) else to_json(event)
    (news,) = news_of(data, pipeline="p", now_ms=1)
    assert news.message is not None
    kind = {"fenced": "failed", "dead_requests": "dead_letters", "of a sync": "dead_letters"}.get(name, name)
    assert (news.message["event"], news.message["pipeline"], news.message["format"]) == (kind, "p", 1)
    assert text in news.message["text"]
    assert "lakegate " in news.message["text"].rpartition(": ")[2]
    assert list(news.message) == ["format", "event", "pipeline", "job", "lock", "at_ms", "text", "details"]


def test_what_is_as_it_should_be_is_no_message() -> None:
    """A completed turn, a granted one, a batch whose rows are all written."""
    granted = TurnGranted(lock="L", job="In", epoch=5, predecessor=None, waited_ms=3)
    for event in (turn("completed"), turn("gave_up"), granted, batch()):
        assert news_of(to_json(event), pipeline="p", now_ms=1) == []


def test_a_lost_turn_is_sent_once_by_whomever_it_is_reported() -> None:
    """The run that closes a dead turn reports it, and so does the run that comes to life again."""
    with receiver() as to:
        with closing(Hooks("p", [webhook(to)])) as hooks:
            hooks.emit(ended("lost", closed_by="Out"))
            hooks.feed(json.loads(json.dumps(to_json(turn("lost")))))
            hooks.emit(batch(dead_letters=1))
            hooks.emit(batch(dead_letters=1))
        assert [message["event"] for message in to.messages] == ["lost", "dead_letters"]
        assert to.messages[0]["details"]["closed_by"] == "Out"


def test_a_state_is_news_again_after_it_was_over() -> None:
    """Late, still late, in time, late: two messages; each limit of a sync's delay by itself."""
    with receiver() as to:
        patient = Hook(name="patient", webhook=to.url, behind_after_ms=600_000)
        with closing(Hooks("p", [webhook(to), patient])) as hooks:
            for is_so in (False, True, True, False, True):
                hooks.emit(late(is_late=is_so))
                hooks.emit(behind(is_behind=is_so))
            hooks.emit(behind(is_behind=True, limit_ms=600_000))
        found = sorted((message["event"], message["details"].get("limit_ms", 0)) for message in to.messages)
        assert found == [*[("late", 0)] * 4, *[("sync_behind", 300_000)] * 2, ("sync_behind", 600_000)]


def test_a_hook_gets_the_events_that_it_names() -> None:
    """Nothing else is sent to it."""
    with receiver() as to:
        with closing(Hooks("p", [webhook(to, events=("erased",))])) as hooks:
            hooks.emit(turn("lost"))
            hooks.emit(batch(rows_erased=1, dead_letters=1))
        assert [message["event"] for message in to.messages] == ["erased"]


def test_an_event_does_not_wait_for_a_webhook() -> None:
    """`emit` has returned before the server has answered; another hook gets the message although the first one hangs once."""
    with receiver() as to, receiver() as other:
        to.answers.clear()
        both = [webhook(to), Hook(name="page", webhook=other.url)]
        with closing(Hooks("p", both, webhook_s=0.5, retries_s=(0.1,))) as hooks:
            hooks.emit(turn("lost"))
            to.wait_for(1)
            other.wait_for(1)
            to.answers.set()
            assert len(to.wait_for(2)) == 2


@pytest.mark.parametrize(
    ("answers", "attempts"), [((500, 429, 200), 3), ((500,) * 9, 4), ((404,), 1), ((302,), 1), ((204,), 1)], ids=str
)
@pytest.mark.every_case
def test_an_attempt_is_repeated_if_it_may_succeed(answers: tuple[int, ...], attempts: int, logged: list[str]) -> None:
    """Three times at most; a refusal and a redirect are final. What is given up is one warning, without the address."""
    with receiver(lambda n: answers[n - 1]) as to:
        reports: list[str] = []
        with closing(Hooks("p", [webhook(to)], retries_s=AT_ONCE, report=reports.append)) as hooks:
            hooks.emit(turn("failed"))
        assert to.paths == ["/s3cr3t"] * attempts
        assert reports == logged
        if answers[-1] < 300:
            assert logged == []
        else:
            (warning,) = logged
            assert f"in {attempts} attempt" in warning
            assert f"HTTP status {answers[-1]}" in warning
            assert "s3cr3t" not in warning


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/s3cr3t", "http://nowhere.invalid/s3cr3t", "http://[s3cr3t/", "http://h:s3cr3t/"]
)
@pytest.mark.every_case
def test_a_webhook_that_is_not_there_is_one_warning_without_its_address(url: str, logged: list[str]) -> None:
    """Whatever the library's error repeats of it."""
    with closing(Hooks("p", [Hook(name="ops", webhook=url)], retries_s=AT_ONCE)) as hooks:
        hooks.emit(turn("lost"))
    (warning,) = logged
    assert "the hook ops was not given a message (lost, In)" in warning
    assert "s3cr3t" not in warning


def test_messages_that_the_queue_cannot_take_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    """In one warning; those in the queue are delivered."""
    monkeypatch.setattr(module, "QUEUE_MAX", 3)
    with receiver() as to:
        to.answers.clear()
        with closing(Hooks("p", [webhook(to)])) as hooks:
            hooks.emit(ended("lost", epoch=1))
            to.wait_for(1)
            for epoch in range(2, 9):
                hooks.emit(ended("lost", epoch=epoch))
            to.answers.set()
        assert [message["details"]["epoch"] for message in to.messages] == [1, 2, 3]
    assert logged == ["5 messages of hooks were dropped, because 3 others wait"]


def test_the_end_does_not_wait_for_a_webhook_that_hangs(monkeypatch: pytest.MonkeyPatch, logged: list[str]) -> None:
    """It names the number of messages whose delivery is unknown."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    with receiver() as to:
        to.answers.clear()
        hooks = Hooks("p", [webhook(to)])
        hooks.emit(ended("lost", epoch=1))
        hooks.emit(ended("lost", epoch=2))
        to.wait_for(1)
        hooks.close()
        assert len(to.messages) == 1
        assert logged == ["2 messages of hooks are not known to be delivered, because the run ended"]


def test_a_command_reads_the_message_on_its_standard_input(tmp_path: Path, logged: list[str]) -> None:
    """Its words are passed as they are, without a shell; its output does not mix with the events on standard output."""
    script = "import sys; print('noise'); open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    command = (sys.executable, "-c", script, str(tmp_path / "got"), "$HOME; -v")
    with closing(Hooks("p", [Hook(name="page", command=command)])) as hooks:
        hooks.emit(turn("lost"))
    message, end = json.JSONDecoder().raw_decode((tmp_path / "got").read_text())
    assert (message["event"], (tmp_path / "got").read_text()[end:]) == ("lost", "$HOME; -v")
    assert logged == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)  # s3cr3t"), "exit status 3"),
        (("/no/such/s3cr3t",), "cannot be started: No such file or directory"),
        ((sys.executable, "-c", "import time; time.sleep(99)  # s3cr3t"), "took more than 1 s"),
    ],
    ids=["fails", "is not there", "hangs"],
)
@pytest.mark.every_case
def test_a_command_that_fails_is_one_warning(
    command: tuple[str, ...], reason: str, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not repeated: it may have done a part of its work."""
    monkeypatch.setattr(module, "COMMAND_S", 1.0)
    with closing(Hooks("p", [Hook(name="page", command=command)])) as hooks:
        hooks.emit(turn("lost"))
    (warning,) = logged
    assert reason in warning
    assert "s3cr3t" not in warning


def test_a_function_is_called_until_it_is_removed(logged: list[str]) -> None:
    """In the background thread; its error is one warning, without the text of the error."""
    threads: list[str] = []

    def fails(message: dict[str, Any]) -> None:
        threads.append(threading.current_thread().name)
        raise ValueError("s3cr3t")

    remove = on_event(fails, events=["lost"])
    try:
        with closing(Hooks("p", [])) as hooks:
            hooks.emit(turn("failed"))
            hooks.emit(turn("lost"))
            wait_until(lambda: bool(threads))
            remove()
            hooks.emit(ended("lost", epoch=2))
    finally:
        remove()
    assert threads == ["lakegate-hooks"]
    (warning,) = logged
    assert "ValueError" in warning
    assert "s3cr3t" not in warning
    with pytest.raises(ValueError, match="no event 'nope'"):
        on_event(fails, events=["nope"])  # type: ignore[list-item]


def test_late_streams_are_looked_for_only_if_somebody_wants_them() -> None:
    """And a coordinator that does not answer is not an error of the hook."""
    looks: list[int] = []

    def look() -> list[StreamLate]:
        looks.append(1)
        if len(looks) == 1:
            raise OSError("away")
        return [late(is_late=True)]

    with receiver() as to:
        with closing(Hooks("p", [webhook(to, events=("lost",))])) as hooks, hooks.watching(look, every_s=0):
            pass
        assert looks == []
        with closing(Hooks("p", [webhook(to)])) as hooks, hooks.watching(look, every_s=0.01):
            (message,) = to.wait_for(1)
        assert message["event"] == "late"
