"""A commit on S3 by each log store: its requests, its milliseconds with 0 and 30 ms for each request, and commits per second.

    python -m benchmarks s3

The server is the one of the tests, on this machine and behind one lock: read the ratios. Log stores alone, without Spark.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from py4j.protocol import Py4JJavaError

from benchmarks.measure import figures, machine, write
from harness.log_store_jvm import hadoop_conf, log_store_jvm
from lakegate.demo.aws_server import REGION, AwsServer, InjectedFault, aws_server
from lakegate.spark.jars import jar_sources
from lakegate.spark.java import find_java, java_sources
from lakegate.spark.log_stores import CLASSES

STORES = ("single_driver", "conditional", "dynamodb")
COMMITS, WARM = 40, 10
DRIVERS = (1, 2, 3, 4)
SHARED_COMMITS = 60
"""Total of all drivers."""
ONE_WAY_DELAY_MS = 30.0


class Writer:
    """A log store of a JVM."""

    def __init__(self, jvm: Any, server: AwsServer, word: str, table: str) -> None:
        self._jvm, self._conf, self._table = jvm, hadoop_conf(jvm, server), table
        self._store = getattr(jvm, CLASSES[word])(self._conf)

    def commit(self, version: int, content: str) -> bool:
        """Commits a version; returns False if another writer has the version."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{version:020}.json")
        try:
            self._store.write(path, self._jvm.java.util.List.of(content).iterator(), False, self._conf)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "FileAlreadyExistsException":
                raise
            return False
        return True


def alone(server: AwsServer, jvm: Any, delay_ms: float) -> dict[str, Any]:
    """Returns store → cost of one commit; the stores alternate, so that the machine's load affects all alike."""
    writers = {word: Writer(jvm, server, word, f"s3a://lake/alone-{delay_ms:.0f}-{word}") for word in STORES}
    for version in range(WARM):
        for writer in writers.values():
            writer.commit(version, str(version))
    if delay_ms:
        server.fail(InjectedFault("delay", times=None, delay_ms=delay_ms))
    took: dict[str, list[float]] = {word: [] for word in STORES}
    asked: dict[str, Counter[str]] = {word: Counter() for word in STORES}
    for version in range(WARM, WARM + COMMITS):
        for word, writer in writers.items():
            server.forget_requests()
            begun = time.perf_counter()
            writer.commit(version, str(version))
            took[word].append((time.perf_counter() - begun) * 1000)
            asked[word].update(request.kind for request in server.requests())
    server.heal()
    return {
        word: {"ms": figures(took[word]), "requests": {kind: n / COMMITS for kind, n in sorted(asked[word].items())}}
        for word in STORES
    }


def warm(server: AwsServer, jvms: list[Any]) -> None:
    """Lets each JVM commit once with each store: its first request takes seconds, which are not the store's cost."""
    for number, jvm in enumerate(jvms):
        for word in STORES:
            Writer(jvm, server, word, f"s3a://lake/warm-{word}-{number}").commit(0, "warm")


def together(server: AwsServer, jvms: list[Any], word: str) -> dict[str, Any]:
    """Returns versions per second of all drivers, which all try each version; acknowledged commits; and missing ones."""
    table = f"s3a://lake/together-{word}-{len(jvms)}"
    writers = [Writer(jvm, server, word, table) for jvm in jvms]
    writers[0].commit(0, "first")
    server.forget_requests()

    def drive(number: int) -> int:
        return sum(writers[number].commit(version, f"{number}-{version}") for version in range(1, 1 + SHARED_COMMITS))

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(writers)) as pool:
        acknowledged = sum(pool.map(drive, range(len(writers))))
    elapsed_s = time.perf_counter() - begun
    lost = acknowledged - SHARED_COMMITS
    assert lost == 0 or (word == "single_driver" and lost > 0)
    asked = Counter(request.kind for request in server.requests())
    return {
        "versions_per_s": round(SHARED_COMMITS / elapsed_s, 1),
        "acknowledged": acknowledged,
        "lost": lost,
        "requests_per_version": {kind: round(n / SHARED_COMMITS, 2) for kind, n in sorted(asked.items())},
    }


def main() -> None:
    """Measures and writes `results/s3.json`."""
    result: dict[str, Any] = {"machine": machine()}
    program = find_java(java_sources(os.environ)).program
    with contextlib.ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        server = open_.enter_context(aws_server(folder))
        s3 = boto3.client("s3", **server.client_options())
        s3.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": REGION})
        jvms = [
            open_.enter_context(log_store_jvm(program, jar_sources(os.environ), folder / f"{n}.log"))
            for n in range(max(DRIVERS))
        ]
        result["alone"] = {
            f"{delay:.0f} ms a request": alone(server, jvms[0], delay) for delay in (0.0, ONE_WAY_DELAY_MS)
        }
        warm(server, jvms)
        result["together"] = {word: {str(n): together(server, jvms[:n], word) for n in DRIVERS} for word in STORES}
    write("s3", result)


if __name__ == "__main__":
    main()
