"""A receiver of webhooks: an HTTP server on a free port of 127.0.0.1, which gives the answers that a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import WAIT_S_MAX


@dataclass
class Receiver:
    """The messages that came, in order; `answer(n)` is the status of the n-th request."""

    answer: Callable[[int], int] = lambda n: 200
    answers: threading.Event = field(default_factory=threading.Event)
    """Cleared: a request hangs."""
    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, body: bytes) -> int:
        """Notes a request, and returns its answer once it is allowed."""
        with self._came:
            self.messages.append(json.loads(body or b"{}"))
            self.paths.append(path)
            count = len(self.messages)
            self._came.notify_all()
        assert self.answers.wait(WAIT_S_MAX)
        return self.answer(count)

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Returns the messages once there are so many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.messages) >= count, WAIT_S_MAX), self.messages
            return list(self.messages)


@contextlib.contextmanager
def receiver(answer: Callable[[int], int] = lambda n: 200) -> Iterator[Receiver]:
    """Runs a receiver within the block; at its end no request hangs."""
    made = Receiver(answer)
    made.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = made.take(self.path, self.rfile.read(int(self.headers["Content-Length"] or 0)))
            with contextlib.suppress(OSError):  # the sender has given up
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}/s3cr3t"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            made.answers.set()
            server.shutdown()
            thread.join()
