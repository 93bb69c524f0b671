"""A turn in DynamoDB: its requests by kind, its time alone and handed over, and the take-over after `kill -9`.

On the server of the tests, in a process of its own, with 5 ms added to each request, about what a region's own DynamoDB takes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, write
from benchmarks.turns import handover, open_job, take_over, timed_ms
from harness.contender import store_of
from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault, aws_server

TURNS = 100
LEASE_S = 10.0
DELAY_MS = 5.0
WAIT_S = 20.0


def counted(aws: AwsServer) -> Counter[str]:
    """Counts the requests since the last call, without heartbeats, which depend on time and not on turns."""
    found = Counter(request.kind for request in aws.requests() if request.kind != "UpdateItem")
    aws.forget_requests()
    return found


def alone(aws: AwsServer, url: str) -> dict[str, Any]:
    """Measures a turn taken and given back by one job: requests for each turn, and milliseconds."""
    take, end = open_job(url, "alone")
    take()()
    counted(aws)
    ms = timed_ms(lambda: take()(), TURNS)
    requests = {kind: round(count / TURNS, 2) for kind, count in sorted(counted(aws).items())}
    end()
    return {"requests": requests, "ms": ms}


def waiting(aws: AwsServer, url: str) -> dict[str, float]:
    """Measures the requests of one job in a second while another has the turn."""
    store = store_of(url)
    free = open_job(url, "holder")[0]()
    version = store.read("L").version
    counted(aws)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < WAIT_S:
        store.wait_for_change("L", version, 1.0)
        store.read("L")
        store.live_sessions("L")
    found = {kind: round(count / WAIT_S, 2) for kind, count in sorted(counted(aws).items())}
    free()
    store.close()
    return found


def main() -> None:
    """Measures and writes the result."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest"}
    with tempfile.TemporaryDirectory() as folder, aws_server(Path(folder)) as aws:

        def url(table: str) -> str:
            options = f"region={REGION}&endpoint={aws.endpoint}&create=true&session_timeout={LEASE_S:g}s"
            return f"dynamodb://{table}?{options}"

        store_of(url("warm")).close()
        result: dict[str, Any] = {"machine": machine(), "lease_s": LEASE_S, "delay_ms": DELAY_MS}
        result["alone_without_delay"] = alone(aws, url("alone-0"))
        aws.fail(InjectedFault("delay", times=None, delay_ms=DELAY_MS))
        result["alone"] = alone(aws, url("alone"))
        result["requests_of_a_waiter_per_second"] = waiting(aws, url("waiting"))
        result["handover_ms"] = {contenders: handover(url("handover"), contenders, 40) for contenders in (2, 10)}
        result["take_over_ms"] = take_over(url("taken"), 2)
    write("turns_dynamodb", result)


if __name__ == "__main__":
    main()
