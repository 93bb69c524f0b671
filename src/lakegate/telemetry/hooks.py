"""The hooks of a run: a thread that passes messages about it to webhooks, commands and functions, outside the observed work.

A message that cannot be delivered is reported in the log and dropped: hooks never stop, slow or fail a run. No report repeats a
webhook's address or a command's words, which may hold secrets.
"""

from __future__ import annotations

import contextlib
import heapq
import http.client
import itertools
import json
import logging
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lakegate.telemetry.events import Event, to_json
from lakegate.telemetry.hook_messages import HOOK_EVENTS, Hook, HookEvent, Message, News, news_of
from lakegate.telemetry.lineage_runs import LINEAGE, OPENLINEAGE, LineageJob, LineageRuns

LOGGER = logging.getLogger("lakegate")
QUEUE_MAX = 256
"""Messages that wait; later ones are dropped."""
SENT_MAX = 10_000
"""Keys of sent messages that are remembered, so that none is sent twice."""
WEBHOOK_S, COMMAND_S, CLOSE_S = 10.0, 60.0, 5.0
RETRIES_S: Final = (1.0, 4.0, 16.0)
LATE_S = 60.0

_functions: list[Hook] = []


def on_event(function: Callable[[Message], object], events: Sequence[HookEvent] = HOOK_EVENTS) -> Callable[[], None]:
    """Registers a function for the messages of the runs of this process; returns a function that removes it.

    It is called in a background thread with the message that a webhook gets, as a dict. Its errors are logged and ignored.

    Args:
        function: Takes the message.
        events: The kinds of messages; all by default.
    """
    if unknown := set(events) - set(HOOK_EVENTS):
        raise ValueError(f"no event {min(unknown)!r}; the events are {', '.join(HOOK_EVENTS)}")
    hook = Hook(name=getattr(function, "__name__", "function"), events=tuple(events), function=function)
    _functions.append(hook)

    def remove() -> None:
        _functions[:] = [one for one in _functions if one is not hook]

    return remove


def wanted(hooks: Iterable[Hook], event: HookEvent) -> list[Hook]:
    """Returns the hooks, and the registered functions, that want an event."""
    return [hook for hook in (*hooks, *_functions) if event in hook.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reason why a message was not delivered."""

    text: str
    may_pass: bool
    """A later attempt may succeed."""


@dataclass(order=True, slots=True)
class _Delivery:
    """A message for a hook, and when it is due on the monotonic clock."""

    due_s: float
    number: int
    hook: Hook = field(compare=False)
    message: Message = field(compare=False)
    attempts: int = field(default=0, compare=False)


class NewsOf(Protocol):
    """Makes the messages of an event; see `hook_messages.news_of`."""

    def __call__(self, data: Mapping[str, Any], *, pipeline: str, now_ms: int) -> list[News]: ...


class Hooks:
    """An `EventSink` that passes messages about events to hooks. `emit` neither blocks nor raises."""

    def __init__(
        self,
        pipeline: str,
        hooks: Sequence[Hook],
        *,
        report: Callable[[str], None] = lambda text: None,
        webhook_s: float = WEBHOOK_S,
        retries_s: Sequence[float] = RETRIES_S,
        lineage: Mapping[str, LineageJob] | None = None,
        news: NewsOf = news_of,
    ) -> None:
        """Starts nothing before the first message.

        Args:
            pipeline: The name of the pipeline.
            hooks: Its hooks; those of `on_event` are added.
            report: Also receives the warnings of the log.
            webhook_s: The longest wait for the answer of a webhook.
            retries_s: The waits before further attempts at a webhook.
            lineage: Stream or sync → its job of OpenLineage, to which runs are reported; None: they are not.
            news: Makes the messages of an event.

        Raises:
            MissingExtra: OpenLineage's client is not installed.
        """
        self._pipeline, self._hooks, self._report = pipeline, tuple(hooks), report
        self._webhook_s, self._retries_s = webhook_s, tuple(retries_s)
        self._news, self._lineage = news, None if lineage is None else _lineage(pipeline, lineage, report)
        self._changed = threading.Condition()
        self._queue: list[_Delivery] = []
        self._numbers = itertools.count()
        self._sent: dict[tuple[object, ...], None] = {}
        self._in_hand = self._dropped = 0
        self._closes_s: float | None = None
        self._thread: threading.Thread | None = None

    def emit(self, event: Event) -> None:
        self.feed(to_json(event))

    def feed(self, data: Mapping[str, Any]) -> None:
        """Takes an event as JSON data, as a child process prints it."""
        try:
            for news in self._news(data, pipeline=self._pipeline, now_ms=time.time_ns() // 1_000_000):
                with self._changed:
                    if news.message is None:
                        self._sent.pop(news.key, None)
                    elif news.key not in self._sent:
                        self._sent[news.key] = None
                        if len(self._sent) > SENT_MAX:
                            del self._sent[next(iter(self._sent))]
                        self._put(news.message)
        except Exception:
            LOGGER.warning("no message was made of an event", exc_info=True)
        if self._lineage is not None:
            self._lineage.feed(data)

    def _put(self, message: Message) -> None:
        for hook in (*self._hooks, *_functions):
            if not hook.wants(message) or self._closes_s is not None:
                continue
            if len(self._queue) + self._in_hand >= QUEUE_MAX:
                self._dropped += 1
                continue
            heapq.heappush(self._queue, _Delivery(time.monotonic(), next(self._numbers), hook, message))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lakegate-hooks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @contextlib.contextmanager
    def watching(self, look: Callable[[], Iterable[Event]], *, every_s: float = LATE_S) -> Iterator[None]:
        """Calls `look` every minute within the block, and takes the events that it returns; its errors count as no event."""
        if not wanted(self._hooks, "late"):
            yield
            return
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(every_s):
                try:
                    for event in look():
                        self.emit(event)
                except Exception:  # the coordinator is away: the streams report that
                    LOGGER.debug("it is unknown which streams are late", exc_info=True)

        thread = threading.Thread(target=watch, name="lakegate-late", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(CLOSE_S)

    def close(self) -> None:
        """Waits for deliveries, at most 5 seconds; reports how many messages are not known to be delivered."""
        both = [self] if self._lineage is None else [self, self._lineage]
        for one in both:
            one._begin_to_close()
        for one in both:
            one._end()

    def _begin_to_close(self) -> None:
        with self._changed:
            self._closes_s = time.monotonic() + CLOSE_S
            self._changed.notify_all()

    def _end(self) -> None:
        assert self._closes_s is not None, "it closes"
        if self._thread is not None:
            self._thread.join(max(0.0, self._closes_s - time.monotonic()))
        with self._changed:
            left = len(self._queue) + self._in_hand
        if left:
            self._warn(f"{left} messages of hooks are not known to be delivered, because the run ended")
        self._report_dropped()

    def _run(self) -> None:
        while (delivery := self._next()) is not None:
            trouble = send(delivery.hook, delivery.message, webhook_s=self._webhook_s)
            delivery.attempts += 1
            with self._changed:
                self._in_hand = 0
                is_retried = trouble is not None and trouble.may_pass and delivery.attempts <= len(self._retries_s)
                if is_retried:
                    # Others go first in the meantime: an address that is away does not delay a pager.
                    delivery.due_s = time.monotonic() + self._retries_s[delivery.attempts - 1]
                    heapq.heappush(self._queue, delivery)
            if trouble is not None and not is_retried:
                event, job = delivery.message["event"], delivery.message["job"]
                tries = f"{delivery.attempts} attempt{'s' if delivery.attempts > 1 else ''}"
                self._warn(
                    f"the hook {delivery.hook.name} was not given a message ({event}, {job}) in {tries}: {trouble.text}"
                )
            self._report_dropped()

    def _next(self) -> _Delivery | None:
        """Waits for the next due delivery; returns None at the end."""
        with self._changed:
            while True:
                wait_s = self._queue[0].due_s - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    self._in_hand = 1
                    return heapq.heappop(self._queue)
                if self._closes_s is not None and (not self._queue or self._queue[0].due_s > self._closes_s):
                    return None
                self._changed.wait(wait_s)

    def _report_dropped(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._warn(f"{dropped} messages of hooks were dropped, because {QUEUE_MAX} others wait")

    def _warn(self, text: str) -> None:
        LOGGER.warning("%s", text)
        with contextlib.suppress(Exception):  # the reader of the output has gone
            self._report(text)


def _lineage(pipeline: str, jobs: Mapping[str, LineageJob], report: Callable[[str], None]) -> Hooks:
    """Returns the receiver for OpenLineage, with a queue and a thread of its own: its server must not delay hooks."""
    from lakegate.telemetry.open_lineage import emitter

    hook = Hook(name=OPENLINEAGE, events=(LINEAGE,), function=emitter())
    return Hooks(pipeline, [hook], report=report, news=LineageRuns(jobs).news_of)


def send(hook: Hook, message: Message, *, webhook_s: float = WEBHOOK_S) -> Trouble | None:
    """Delivers a message to a hook, in one attempt; returns None if it was accepted."""
    try:
        if hook.function is not None:
            hook.function(message)
        elif hook.webhook is not None:
            return _post(hook.webhook, _body(message), webhook_s)
        else:
            return _call(hook.command, _body(message))
    except Exception as error:
        # Only the type: the text may repeat an address, or a value of the user's code.
        return Trouble(text=type(error).__name__, may_pass=False)
    return None


def _body(message: Message) -> bytes:
    return json.dumps(message).encode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: what was sent is for the configured address alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, body: bytes, timeout_s: float) -> Trouble | None:
    headers = {"Content-Type": "application/json", "User-Agent": "lakegate"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return Trouble(text=f"HTTP status {error.code}", may_pass=error.code >= 500 or error.code in (408, 429))
    except urllib.error.URLError as error:
        reason = error.reason
        text = (isinstance(reason, OSError) and reason.strerror) or type(reason).__name__
        return Trouble(text=text, may_pass=True)
    except (OSError, http.client.HTTPException) as error:
        return Trouble(text=type(error).__name__, may_pass=not isinstance(error, http.client.InvalidURL))


def _call(command: Sequence[str], body: bytes) -> Trouble | None:
    """Runs a command with the message on its standard input; a command that takes too long is killed with its children."""
    try:
        # A session of its own: Ctrl-C in the terminal does not end it.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        return Trouble(text=f"the command cannot be started: {error.strerror}", may_pass=False)
    with process:
        try:
            process.communicate(body, COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Trouble(text=f"the command took more than {COMMAND_S:.0f} s and was killed", may_pass=False)
    code = process.returncode
    return None if code == 0 else Trouble(text=f"the command ended with exit status {code}", may_pass=False)
