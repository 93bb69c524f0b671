"""A publish over two tables, compared with the two statements alone; and the wait of a reader that pins both.

`python -m benchmarks.publish` measures all; `python -m benchmarks.publish s3` one part. The first rounds are those of a driver that
has just begun.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from pyspark.sql import SparkSession

import lakegate
from benchmarks.measure import figures, machine, write
from benchmarks.quick import ONE_WAY_DELAY_MS, driver
from benchmarks.rows import table
from harness.log_store_jvm import settings_for
from lakegate.demo.aws_server import REGION, InjectedFault, aws_server

FIRST, WARM_UP, MEASURED, S3_MEASURED = 3, 8, 20, 7
PUBLISHES_A_MINUTE, READ_FOR_S = 100, 60
STATEMENTS: dict[str, tuple[str, str]] = {
    "few rows": ("UPDATE {t} SET v = v + 1 WHERE k IN (5, 500)", "INSERT INTO {t} VALUES ({n}, 1, 'new')"),
    "many rows": (
        "UPDATE {t} SET v = v + 1 WHERE k % 3 = 0",
        "INSERT INTO {t} SELECT k + {n}, v, w FROM {s} WHERE k < 5000",
    ),
}
"""Of each size: on the first table, and on the second one."""


def main() -> None:
    """Measures and writes the results."""
    for part in sys.argv[1:] or PARTS:
        write(f"publish_{part}", {"machine": machine(), **PARTS[part]()})


def ways(spark: SparkSession, tables: tuple[str, str], texts: tuple[str, str]) -> dict[str, Callable[[int], None]]:
    """Returns the two ways to run both statements."""

    def both(number: int) -> None:
        for name, text in zip(tables, texts, strict=True):
            lakegate.sql(spark, text.format(t=f"delta.`{name}`", n=1_000_000 + number, s=f"delta.`{tables[0]}`"))

    def together(number: int) -> None:
        with lakegate.publish(spark, tables):
            both(number)

    return {"alone": both, "publish": together}


def local() -> dict[str, Any]:
    """Measures both ways in turn, each on tables of its own."""
    found: dict[str, Any] = {}
    for size, texts in STATEMENTS.items():
        with driver() as (spark, folder):
            run = {}
            for way in ("alone", "publish"):
                tables = (table(spark, folder, f"{way}-1"), table(spark, folder, f"{way}-2"))
                run[way] = ways(spark, tables, texts)[way]
            took: dict[str, list[float]] = {way: [] for way in run}
            for number in range(WARM_UP + MEASURED):
                for way, work in run.items():
                    begun = time.perf_counter()
                    work(number)
                    took[way].append((time.perf_counter() - begun) * 1000)
            found[size] = {
                way: {"first_ms": figures(each[:FIRST]), "warm_ms": figures(each[WARM_UP:])}
                for way, each in took.items()
            }
            print(size, found[size], flush=True)
    return found


def reader() -> dict[str, Any]:
    """Measures `snapshot` of two tables, alone and while 100 publishes a minute are made."""
    with driver() as (spark, folder):
        tables = (table(spark, folder, "1"), table(spark, folder, "2"))
        publish = ways(spark, tables, STATEMENTS["few rows"])["publish"]
        for number in range(WARM_UP):
            publish(number)
            lakegate.snapshot(spark, tables)
        alone = [_pinned_ms(spark, tables) for _ in range(100)]
        ended, made = threading.Event(), []

        def publishing() -> None:
            while not ended.is_set():
                begun = time.perf_counter()
                publish(1000 + len(made))
                made.append(1)
                ended.wait(max(0.0, 60 / PUBLISHES_A_MINUTE - (time.perf_counter() - begun)))

        thread = threading.Thread(target=publishing)
        thread.start()
        meanwhile, until_s = [], time.monotonic() + READ_FOR_S
        while time.monotonic() < until_s:
            meanwhile.append(_pinned_ms(spark, tables))
            time.sleep(0.05)
        ended.set()
        thread.join()
        return {"alone_ms": figures(alone), "meanwhile_ms": figures(meanwhile), "publishes": len(made)}


def _pinned_ms(spark: SparkSession, tables: tuple[str, str]) -> float:
    begun = time.perf_counter()
    lakegate.snapshot(spark, tables)
    return (time.perf_counter() - begun) * 1000


def s3() -> dict[str, Any]:
    """Measures both ways on S3, with 30 ms for each request: requests and milliseconds. The server is that of the tests."""
    with contextlib.ExitStack() as open_:
        server = open_.enter_context(aws_server(Path(open_.enter_context(tempfile.TemporaryDirectory()))))
        boto3.client("s3", **server.client_options()).create_bucket(
            Bucket="lake", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        conf = {f"spark.hadoop.{key}": value for key, value in settings_for(server).items()}
        spark, _ = open_.enter_context(driver(s3=True, conf=conf))
        run, took, asked = {}, {}, {}
        for way in ("alone", "publish"):
            tables = (f"s3a://lake/{way}-1", f"s3a://lake/{way}-2")
            for name in tables:
                spark.range(0, 10_000, 1, 4).selectExpr("id AS k", "id % 10 AS v", "'w' AS w").write.format(
                    "delta"
                ).save(name)
            run[way], took[way], asked[way] = ways(spark, tables, STATEMENTS["few rows"])[way], [], Counter[str]()
        server.fail(InjectedFault("delay", times=None, delay_ms=ONE_WAY_DELAY_MS))
        for number in range(FIRST + S3_MEASURED):
            for way, work in run.items():
                server.forget_requests()
                begun = time.perf_counter()
                work(number)
                if number >= FIRST:
                    took[way].append((time.perf_counter() - begun) * 1000)
                    asked[way].update(request.kind for request in server.requests())
        server.heal()
        return {
            way: {
                "ms": figures(took[way]),
                "requests": {kind: round(n / S3_MEASURED, 1) for kind, n in sorted(asked[way].items())},
            }
            for way in run
        }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"local": local, "reader": reader, "s3": s3}

if __name__ == "__main__":
    main()
