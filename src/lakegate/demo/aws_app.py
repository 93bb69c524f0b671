"""The process of `aws_server.py`: moto's S3 and DynamoDB behind one lock, so that each request is one atomic step.

python -m lakegate.demo.aws_app PORT
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from lakegate.demo.aws_server import ADMIN, InjectedFault, Request

REQUESTS_MAX = 500_000
RACE_S = 0.02
"""The pause between the check and the write of an unsafe server."""
CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH")

Environ = dict[str, Any]
Start = Callable[[str, list[tuple[str, str]]], Any]


class Cut(Exception):
    """Ends the connection without an answer."""


@dataclass
class _Pending:
    """A fault, the number of matching requests, and the number of requests that it hit."""

    fault: InjectedFault
    met: int = 0
    befallen: int = 0

    @property
    def is_over(self) -> bool:
        return self.fault.times is not None and self.befallen >= self.fault.times

    def fits(self, kind: str, key: str) -> bool:
        return not self.is_over and bool(re.fullmatch(self.fault.kind, kind) and re.search(self.fault.key, key))


class App:
    """The two services, their faults and their log."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock, self._admin = threading.Lock(), threading.Lock()
        self._faults: list[_Pending] = []
        self._requests: deque[Request] = deque(maxlen=REQUESTS_MAX)
        self._key_names: dict[str, list[str]] = {}

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        begun_s = time.monotonic()
        path: str = environ.get("PATH_INFO", "")
        # Read before the lock is taken: a client that sends slowly must not block the others.
        is_chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "")
        stream = environ["wsgi.input"]
        body: bytes = stream.read() if is_chunked else stream.read(int(environ.get("CONTENT_LENGTH") or 0))
        if path.startswith(ADMIN):
            status, data = self._administer(environ["REQUEST_METHOD"], path.removeprefix(f"{ADMIN}/"), body)
            start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(data)))])
            return [data]
        kind, key, is_conditional = self._describe(environ, body)
        faults = self._take_faults(kind, key)
        status, headers, data = self._answer(environ, body, faults)
        with self._admin:
            self._requests.append(
                Request(
                    at_s=begun_s,
                    method=environ["REQUEST_METHOD"],
                    kind=kind,
                    key=key,
                    is_conditional=is_conditional,
                    is_consistent="HTTP_X_AMZ_TARGET" not in environ or b'"ConsistentRead": true' in body,
                    status=int(status[:3]),
                    ms=round((time.monotonic() - begun_s) * 1000, 2),
                    size_bytes=len(body),
                    sha256=hashlib.sha256(_unframed(environ, body)).hexdigest(),
                    fault=",".join(fault.what for fault in faults),
                )
            )
        found = {fault.what for fault in faults}
        if found & {"lose_request", "lose_reply"}:
            raise Cut
        if "empty_reply" in found:
            data = b""
        if environ["REQUEST_METHOD"] != "HEAD":
            headers = [header for header in headers if header[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(data))))
        if "cut_reply" in found:
            headers.append(("Connection", "close"))
            data = data[: len(data) // 2]
        start(status, headers)
        return [data]

    def _answer(
        self, environ: Environ, body: bytes, faults: list[InjectedFault]
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        for fault in faults:
            time.sleep(fault.delay_ms / 1000)
        found = {fault.what: fault for fault in faults}
        if "lose_request" in found:
            return "000 lost", [], b""
        if "error_before" in found:
            return _error(environ, found["error_before"])
        if "race_condition" in found and "HTTP_IF_NONE_MATCH" in environ:
            look = {**environ, "REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0"}
            for name in CONDITIONS:
                look.pop(name, None)
            is_free = self._carry_out(look, b"")[0].startswith("404")
            time.sleep(RACE_S)
            if is_free:
                environ.pop("HTTP_IF_NONE_MATCH")
        if "ignore_condition" in found:
            for name in CONDITIONS:
                environ.pop(name, None)
            if b"ConditionExpression" in body:
                body = _without_condition(body)
                environ["CONTENT_LENGTH"] = str(len(body))
        answer = self._carry_out(environ, body)
        return _error(environ, found["error_after"]) if "error_after" in found else answer

    def _carry_out(self, environ: Environ, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        """Runs one atomic step: the answer is complete before the next request begins."""
        answered: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], error: object = None) -> None:
            answered.append((status, headers))

        environ["wsgi.input"] = io.BytesIO(body)
        with self._lock:
            data = b"".join(self._moto(environ, start))
        return (*answered[-1], data)

    def _describe(self, environ: Environ, body: bytes) -> tuple[str, str, bool]:
        """Returns type, key, and whether the request has a condition."""
        if action := environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]:
            asked = json.loads(body or b"{}")
            table = str(asked.get("TableName", ""))
            if action == "CreateTable":
                self._key_names[table] = [each["AttributeName"] for each in asked["KeySchema"]]
            item = asked.get("Key") or asked.get("Item") or {}
            values = [next(iter(item[name].values())) for name in self._key_names.get(table, ()) if name in item]
            return action, "/".join([table, *map(str, values)]), b"ConditionExpression" in body or b"Expected" in body
        method, key = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "").lstrip("/")
        query: str = environ.get("QUERY_STRING", "")
        is_conditional = any(name in environ for name in CONDITIONS)
        if method == "GET" and ("list-type" in query or "/" not in key.rstrip("/")):
            return "LIST", "/".join([key.rstrip("/"), *parse_qs(query).get("prefix", ())]), is_conditional
        return "COPY" if "HTTP_X_AMZ_COPY_SOURCE" in environ else method, key, is_conditional

    def _take_faults(self, kind: str, key: str) -> list[InjectedFault]:
        """Returns the first matching delay, and the first other matching fault."""
        taken: list[InjectedFault] = []
        with self._admin:
            for pending in self._faults:
                fault = pending.fault
                is_delay = fault.what == "delay"
                if any((other.what == "delay") == is_delay for other in taken) or not pending.fits(kind, key):
                    continue
                pending.met += 1
                if pending.met % fault.each == 0:
                    pending.befallen += 1
                    taken.append(fault)
        return taken

    def _administer(self, method: str, what: str, body: bytes) -> tuple[str, bytes]:
        with self._admin:
            match method, what:
                case "POST", "faults":
                    self._faults += [_Pending(InjectedFault(**each)) for each in json.loads(body)]
                case "DELETE", "faults":
                    self._faults.clear()
                case "GET", "faults":
                    return "200 OK", str(sum(not pending.is_over for pending in self._faults)).encode()
                case "DELETE", "requests":
                    self._requests.clear()
                case "GET", "requests":
                    return "200 OK", json.dumps([asdict(each) for each in self._requests]).encode()
                case _:
                    return "404 Not Found", b""
        return "200 OK", b""


def _error(environ: Environ, fault: InjectedFault) -> tuple[str, list[tuple[str, str]], bytes]:
    status = f"{fault.status} {fault.code}"
    if "HTTP_X_AMZ_TARGET" in environ:
        reported = {"__type": f"com.amazonaws.dynamodb.v20120810#{fault.code}", "message": fault.message}
        return status, [("Content-Type", "application/x-amz-json-1.0")], json.dumps(reported).encode()
    text = f'<?xml version="1.0"?><Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>'
    return status, [("Content-Type", "application/xml")], text.encode()


def _without_condition(body: bytes) -> bytes:
    """Returns the body without its condition, and without names and values that only the condition used."""
    asked = json.loads(body)
    asked.pop("ConditionExpression", None)
    used = asked.get("UpdateExpression", "")
    for part in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
        kept = {name: value for name, value in asked.pop(part, {}).items() if re.search(rf"{re.escape(name)}\b", used)}
        if kept:
            asked[part] = kept
    return json.dumps(asked).encode()


def _unframed(environ: Environ, body: bytes) -> bytes:
    """Returns the stored content: without the chunks, signatures and trailers that a client may add around it."""
    if "HTTP_X_AMZ_DECODED_CONTENT_LENGTH" not in environ:
        return body
    found, rest = b"", body
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        size = int(head.partition(b";")[0] or b"0", 16)
        if size == 0:
            break
        found, rest = found + rest[:size], rest[size + 2 :]
    return found


class Handler(WSGIRequestHandler):
    """Keeps connections, answers at once, logs nothing, and can end a connection without an answer."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run_wsgi(self) -> None:
        try:
            super().run_wsgi()
        except Cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Logs nothing: the log of requests is available on demand."""


def main(port: int) -> None:
    """Serves until it is ended."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", port, App(), threaded=True, request_handler=Handler, passthrough_errors=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
