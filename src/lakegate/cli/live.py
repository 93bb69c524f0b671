"""Serves the live page of `lakegate status --web`: one reader of the pipeline's state for all viewers, who can only read.

The browser sends GET requests with the token in their path. The token is compared in constant time. A request by a DNS name
that is not this machine's is refused, so that a foreign page cannot rebind its own name to this server (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import lakegate.runtime  # noqa: F401 - takes seconds, which would count as the time of the first reading
from lakegate.cli.output import say
from lakegate.cli.report import commit_row
from lakegate.config import Pipeline
from lakegate.delta.local_files import sqlite_file
from lakegate.errors import LakegateError, MissingExtra, Unavailable
from lakegate.ops import inspection
from lakegate.ops.status import LockStatus
from lakegate.report import live
from lakegate.report.data import CommitRow, TurnRow
from lakegate.report.live import Answer, LiveState

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from lakegate.turns.ports import TurnStore

T = TypeVar("T")

PACE_S = 1.0
ANSWER_PACE_S = 10.0
"""Sources, targets and tables are asked less often: an answer may take seconds."""
SHARE_MAX = 0.25
"""The largest part of the time that one reader may spend reading."""
COMMITS_MAX = 100
"""Commits of each table that are read."""
CONNECTIONS_MAX = 100
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page has the rest
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def pause_s(took_s: float, pace_s: float) -> float:
    """Returns the time until the next reading."""
    return max(pace_s, took_s / SHARE_MAX)


class Question(Generic[T]):
    """Asks in a thread of its own, and returns the last answer at once. Asks only while there are viewers."""

    def __init__(self, ask: Callable[[], Sequence[T]]) -> None:
        self._ask = ask
        self._guard = threading.Lock()
        self._answer: Answer[T] = Answer()
        self._due_s = 0.0

    def latest(self) -> Answer[T]:
        """Returns the last answer, and asks again if it is old."""
        with self._guard:
            if time.monotonic() >= self._due_s:
                self._due_s = float("inf")
                threading.Thread(target=self._run, daemon=True, name="lakegate-question").start()
            return self._answer

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            answer = Answer(rows=tuple(self._ask()), at_ms=_now_ms())
        except Exception as error:  # whatever a driver raises: the page shows it and goes on
            said = str(error) if isinstance(error, LakegateError) else f"{type(error).__name__} while it was read"
            answer = replace(self._answer, at_ms=self._answer.at_ms or _now_ms(), note=said)
        with self._guard:
            self._answer = answer
            self._due_s = time.monotonic() + pause_s(time.monotonic() - began_s, ANSWER_PACE_S)


class Reader:
    """Reads the state at most once a second, for all viewers; used by one thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._opened = contextlib.ExitStack()
        self._store: TurnStore | None = None
        self._locks: list[LockStatus] = []
        self._sizes: object = None
        self._turns, self._cut = live.last_turns(())
        self._drawn: tuple[str, str, str] | None = None
        self._lags = Question(lambda: inspection.lags_of(pipeline))
        self._sources = Question(lambda: inspection.sources_of(pipeline))
        self._delays = Question(lambda: inspection.delays_of(pipeline))
        self._kept = Question(lambda: [*inspection.kept_of(pipeline), *inspection.letters_of(pipeline)])
        self._commits = Question(self._read_commits)
        self._due_s = 0.0
        self._answers = (b"", b"")

    def answer(self, charts: str) -> bytes:
        """Returns the state as JSON: `html`, the name of the charts, and `charts` unless the viewer has those of that name."""
        began_s = time.monotonic()
        if began_s >= self._due_s:
            self._answers = self._read()
            self._due_s = time.monotonic() + pause_s(time.monotonic() - began_s, PACE_S)
        bare, whole = self._answers
        return bare if self._drawn is not None and charts == self._drawn[1] else whole

    def close(self) -> None:
        """Closes the store of turns."""
        self._store = None
        self._opened.close()

    def _read(self) -> tuple[bytes, bytes]:
        notes = []
        try:
            self._locks = self._read_locks()
        except LakegateError as error:
            self.close()
            notes.append(f"The turns cannot be read: {error}")
        try:
            self._read_turns()
        except LakegateError as error:
            notes.append(f"The ledger cannot be read: {error}")
        state = LiveState(
            pipeline=self._pipeline.name,
            at_ms=_now_ms(),
            locks=self._locks,
            turns=self._turns,
            cut=self._cut,
            notes=notes,
            lags=self._lags.latest(),
            sources=self._sources.latest(),
            delays=self._delays.latest(),
            kept=self._kept.latest(),
            commits=self._commits.latest(),
        )
        if self._drawn is None:
            section, shown = live.turns_drawn(state)
            self._drawn = section, secrets.token_hex(8), json.dumps(shown.as_json(), separators=(",", ":"))
        section, name, charts = self._drawn
        bare = json.dumps({"name": name, "html": live.content(state, section)})
        return bare.encode(), f'{bare[:-1]},"charts":{charts}}}'.encode()

    def _read_locks(self) -> list[LockStatus]:
        url = self._pipeline.coordinator.url
        file = sqlite_file(url)
        if file is not None and not file.exists():
            self.close()  # an open store would create it again
        elif self._store is None:
            self._store = self._opened.enter_context(inspection.existing_store(url))
        return inspection.locks_in(self._store, self._pipeline)

    def _read_turns(self) -> None:
        sizes = inspection.ledger_sizes(self._pipeline)
        if sizes is None or sizes != self._sizes:
            rows = inspection.last_turns_of(self._pipeline, live.TURNS_MAX + 1)
            self._turns, self._cut = live.last_turns(map(TurnRow.from_event, rows))
            self._sizes, self._drawn = sizes, None

    def _read_commits(self) -> list[CommitRow]:
        commits = inspection.last_commits_of(self._pipeline, COMMITS_MAX)
        return [commit_row(table, commit) for table, commit in commits]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def is_known(host: str, address: str) -> bool:
    """Returns True if the header `Host` is an IP address, or a name of this machine: no page can rebind those.

    Args:
        host: The header, with or without a port.
        address: The address that the server listens on.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name in {"localhost", address.lower(), socket.gethostname().lower()}


def application(pipeline: Pipeline, *, address: str, token: str) -> Starlette:
    """Returns the application: the page at `/TOKEN/`, and its content at `/TOKEN/state`. An empty token is no part of the path."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    one = ThreadPoolExecutor(1, "lakegate-reader")
    reader = Reader(pipeline)
    page = live.page(pipeline.name)
    prefix = f"{token}/" if token else ""

    async def answer(request: Request) -> Response:
        path = request.path_params["path"]
        given, place = path[: len(prefix)], path[len(prefix) :]
        if not is_known(request.headers.get("host", ""), address):
            return PlainTextResponse("This name is not the server's.\n", 421, headers=HEADERS)
        if secrets.compare_digest(given.encode(), prefix.encode()):
            if not place:
                return HTMLResponse(page, headers=HEADERS)
            if place == "state":
                charts = request.query_params.get("charts", "")
                state = await asyncio.get_running_loop().run_in_executor(one, reader.answer, charts)
                return Response(state, media_type="application/json", headers=HEADERS)
        return PlainTextResponse("There is nothing at this address.\n", 404, headers=HEADERS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        yield
        one.submit(reader.close)
        one.shutdown()

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])], lifespan=lifespan)


def serve(pipeline: Pipeline, *, address: str, port: int, has_token: bool) -> None:
    """Serves the page until Ctrl-C, and prints its address.

    Args:
        pipeline: The file.
        address: The host name or IP address to listen on.
        port: 0: a free one.
        has_token: The page's address has a random part.

    Raises:
        MissingExtra: starlette or uvicorn is not installed.
        Unavailable: The port is taken, or the address is not this machine's.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtra(
            "the page needs starlette and uvicorn; nothing was served", advice="pip install 'lakegate[web]'"
        ) from error
    token = secrets.token_urlsafe(24) if has_token else ""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((address, port), family=family)
    except OSError as error:
        raise Unavailable(
            f"the page cannot be served at {address}:{port}: {(error.strerror or str(error)).partition(' (')[0]}",
            advice="Leave --port out to take a free one",
        ) from error
    config = uvicorn.Config(
        application(pipeline, address=address, token=token),
        log_level="error",
        access_log=False,  # it would have the token
        server_header=False,
        ws="none",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    host = f"[{address}]" if family == socket.AF_INET6 else address
    with listening:
        say(f"http://{host}:{listening.getsockname()[1]}/{token}{'/' if token else ''}")
        uvicorn.Server(config).run(sockets=[listening])
