"""S3 and DynamoDB for tests: one endpoint of 127.0.0.1, atomic, with faults on demand and a log of every request.

    with aws_server(folder) as aws:
        aws.fail(Fault("lose_reply", kind="PUT", key=r"00001\\.json$"))
        …                                   # boto3.client("s3", **aws.client_options())
        aws.requests()

The server is moto behind one lock, in a process of its own (`aws_app.py`): as shipped, moto looks and writes in two steps.
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
"""Below this path the server is asked about itself; no bucket may have the name."""

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
"""lose_request: the connection is cut, nothing was done. lose_reply: it was done, then the connection is cut. cut_reply: the
same in the middle of the answer. empty_reply: the answer has no content, as a proxy may make it. error_before,
error_after: an error is answered, and nothing, or all, was done. delay: it comes late. ignore_condition: `If-None-Match`,
`If-Match` and `ConditionExpression` count for nothing. race_condition: S3 looks and writes in two steps, as an unsafe server."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls the next requests that it fits."""

    what: What
    kind: str = ".*"
    """A pattern that the whole kind of a request fits: `PUT`, `PutItem|UpdateItem`."""
    key: str = ""
    """A pattern that is found in its key."""
    times: int | None = 1
    """How many requests; None: until `heal`."""
    each: int = 1
    """Of those that it fits, only each n-th."""
    status: int = 503
    code: str = "SlowDown"
    """Of an error: `InternalError` with 500, `ConditionalRequestConflict` with 409, `AccessDeniedException` with 400, …"""
    message: str = "injected"
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the server saw it."""

    at_s: float
    """When it was read, on the server's monotonic clock, which is the machine's."""
    method: str
    kind: str
    """Of S3: `GET`, `HEAD`, `LIST`, `PUT`, `COPY`, `DELETE`, `POST`; of DynamoDB the action: `PutItem`."""
    key: str
    """Of S3: `bucket/key`; of DynamoDB: `table/value of the key`, as far as there is one."""
    is_conditional: bool
    is_consistent: bool
    """Of a reading of DynamoDB: it asks for what was written last. S3 always answers so."""
    status: int
    """What was answered, or would have been if the reply had not been lost."""
    ms: float
    size_bytes: int
    sha256: str
    """Of the body, without its framing."""
    fault: str
    """What befell it, empty if nothing did; with a comma between several."""


class AwsServer:
    """A running server, seen from outside."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self.endpoint = f"http://127.0.0.1:{port}"

    def client_options(self) -> dict[str, Any]:
        """What `boto3.client` needs to reach it."""
        return {
            "endpoint_url": self.endpoint,
            "region_name": REGION,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "testtest",
        }

    def fail(self, *faults: Fault) -> None:
        """From now on these befall requests, after those that were given before: one delay and one other at a time."""
        self._ask("POST", "faults", json.dumps([asdict(fault) for fault in faults]).encode())

    def heal(self) -> None:
        """Takes all faults away."""
        self._ask("DELETE", "faults")

    def faults_left(self) -> int:
        """How many faults have not befallen as many requests as they are for."""
        return int(self._ask("GET", "faults"))

    def requests(self) -> list[Request]:
        """All requests since the start, or since they were forgotten, in the order in which they were answered."""
        return [Request(**each) for each in json.loads(self._ask("GET", "requests"))]

    def forget_requests(self) -> None:
        """Begins the log anew."""
        self._ask("DELETE", "requests")

    def warm_up(self) -> None:
        """Asks each service once: the first question takes it seconds, which no test should have to wait for."""
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
    """What is missing for `aws_server`, or None."""
    missing = [one for one in ("moto", "flask", "flask_cors") if importlib.util.find_spec(one) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def aws_server(directory: Path) -> Iterator[AwsServer]:
    """A server with nothing in it, which ends with the block, and its data with it.

    Args:
        directory: For what it says (`aws.log`).

    Raises:
        Unavailable: It did not start in time; the end of its log is in the message.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "lakegate.demo.aws_app", str(port)]
    with server_process(command, port=port, log=directory / "aws.log") as pid:
        server = AwsServer(port, pid)
        server.warm_up()
        yield server
