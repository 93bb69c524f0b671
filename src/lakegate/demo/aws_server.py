"""S3 and DynamoDB for tests: one endpoint of 127.0.0.1, atomic, with faults on demand and a log of every request.

    with aws_server(folder) as aws:
        aws.fail(Fault("lose_reply", kind="PUT", key=r"00001\\.json$"))
        …                                   # boto3.client("s3", **aws.client_options())
        aws.requests()

The server is moto behind one lock, in a process of its own (`aws_app.py`): by itself, moto checks and writes in two steps.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lakegate.demo.servers import free_ports, server_process

REGION = "eu-central-1"
ADMIN = "/_lakegate"
"""The path of administrative requests; no bucket may have the name."""

What = Literal[
    "lose_request",
    "lose_reply",
    "cut_reply",
    "empty_reply",
    "error_before",
    "error_after",
    "delay",
    "ignore_condition",
    "race_condition",
]
"""lose_request: the connection is cut before the request is executed. lose_reply: it is cut after the execution. cut_reply: it
is cut in the middle of the answer. empty_reply: the answer has no content, as from a proxy. error_before, error_after: an
error is answered without, or after, the execution. delay: the answer is late. ignore_condition: `If-None-Match`, `If-Match`
and `ConditionExpression` are ignored. race_condition: S3 checks and writes in two steps, as an unsafe server."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault of the next matching requests."""

    what: What
    kind: str = ".*"
    """A pattern for the whole type of a request: `PUT`, `PutItem|UpdateItem`."""
    key: str = ""
    """A pattern to search in its key."""
    times: int | None = 1
    """Maximum number of requests; None: until `heal`."""
    each: int = 1
    """Hits only each n-th matching request."""
    status: int = 503
    code: str = "SlowDown"
    """For an error: `InternalError` with 500, `ConditionalRequestConflict` with 409, `AccessDeniedException` with 400, …"""
    message: str = "injected"
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the server saw it."""

    at_s: float
    """When it was read, on the machine's monotonic clock."""
    method: str
    kind: str
    """For S3: `GET`, `HEAD`, `LIST`, `PUT`, `COPY`, `DELETE`, `POST`; for DynamoDB the action: `PutItem`."""
    key: str
    """For S3: `bucket/key`; for DynamoDB: `table/value of the key`, if there is one."""
    is_conditional: bool
    is_consistent: bool
    """For a read of DynamoDB: it requires strong consistency. S3 always answers so."""
    status: int
    """The status of the answer, even if the reply was lost."""
    ms: float
    size_bytes: int
    sha256: str
    """The size of the body, without its framing."""
    fault: str
    """The faults that hit the request, joined by commas; empty if none did."""


class AwsServer:
    """A client of a running server."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self.endpoint = f"http://127.0.0.1:{port}"

    def client_options(self) -> dict[str, Any]:
        """Returns the arguments with which `boto3.client` reaches the server."""
        return {
            "endpoint_url": self.endpoint,
            "region_name": REGION,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "testtest",
        }

    def fail(self, *faults: InjectedFault) -> None:
        """Adds faults for later requests, after earlier faults: one delay and one other fault at a time."""
        self._ask("POST", "faults", json.dumps([asdict(fault) for fault in faults]).encode())

    def heal(self) -> None:
        """Removes all faults."""
        self._ask("DELETE", "faults")

    def faults_left(self) -> int:
        """Returns the number of faults that have not hit all their requests yet."""
        return int(self._ask("GET", "faults"))

    def requests(self) -> list[Request]:
        """Returns all requests since the start or the last `forget_requests`, in the order of their answers."""
        return [Request(**each) for each in json.loads(self._ask("GET", "requests"))]

    def forget_requests(self) -> None:
        """Empties the log."""
        self._ask("DELETE", "requests")

    def warm_up(self) -> None:
        """Sends one request to each service: the first takes seconds, for which no test should wait."""
        headers = {"X-Amz-Target": "DynamoDB_20120810.ListTables", "Content-Type": "application/x-amz-json-1.0"}
        for asked in (
            urllib.request.Request(self.endpoint),
            urllib.request.Request(self.endpoint, data=b"{}", headers=headers, method="POST"),
        ):
            urllib.request.urlopen(asked, timeout=60).close()
        self.forget_requests()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        asked = urllib.request.Request(f"{self.endpoint}{ADMIN}/{path}", data=body, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return bytes(answer.read())


def lacks_aws() -> str | None:
    """Returns the missing requirement of `aws_server`, or None."""
    missing = [one for one in ("moto", "flask", "flask_cors") if importlib.util.find_spec(one) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def aws_server(directory: Path) -> Iterator[AwsServer]:
    """Runs an empty server, which ends with the block, together with its data.

    Args:
        directory: For its log (`aws.log`).

    Raises:
        Unavailable: It did not start in time; the message contains the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "lakegate.demo.aws_app", str(port)]
    with server_process(command, port=port, log=directory / "aws.log") as pid:
        server = AwsServer(port, pid)
        server.warm_up()
        yield server
