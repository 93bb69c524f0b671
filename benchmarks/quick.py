"""Statements of few rows without a Spark job, compared with stock delta-spark; and the keyed writer.

`python -m benchmarks.quick` measures all; `python -m benchmarks.quick statements` one part. The first five statements of a part are
those of a driver that has just begun, if the part runs alone.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from delta.tables import DeltaTable as StockTable
from pyspark.sql import SparkSession

import lakegate
from benchmarks.measure import figures, machine, write
from benchmarks.rows import CONF, FILES, ROWS, cell, dml, table
from harness.log_store_jvm import settings_for
from lakegate.demo.aws_server import REGION, InjectedFault, aws_server
from lakegate.rows.quick import QUICK_CONF

FIRST, WARM_UP, MEASURED = 5, 12, 30
GROWTH_WARM_UP, GROWTH_MEASURED = 3, 7
ROWS_WRITTEN, WRITER_ROUNDS = 40_000, 2
WRITERS_ROUNDS = 3
ONE_WAY_DELAY_MS = 30.0
OPERATIONS = ("DELETE", "UPDATE", "MERGE", "MERGE, Arrow", "INSERT, SQL")
Row = dict[str, Any]
Way = tuple[type[StockTable], str]
WAYS: Mapping[str, Way] = {
    "stock": (StockTable, "off"),
    "lakegate, quick": (lakegate.DeltaTable, "on"),
}


def main() -> None:
    """Measures and writes the results."""
    for part in sys.argv[1:] or PARTS:
        write(f"quick_{part}", {"machine": machine(), **PARTS[part]()})


@contextlib.contextmanager
def driver(**options: Any) -> Any:
    """Starts a driver, and a folder for its tables."""
    conf = {**CONF, **options.pop("conf", {})}
    spark = lakegate.session("bench", conf=conf, **options)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a checkpoint may still be written
        yield spark, Path(folder)
    spark.stop()


def timed(spark: SparkSession, way: Way, work: Callable[[], object]) -> tuple[float, Any]:
    """Runs a statement; returns its milliseconds, and why stock Delta executed it, if Lakegate was to."""
    spark.conf.set(QUICK_CONF, way[1])
    begun = time.perf_counter()
    done = work()
    took_ms = (time.perf_counter() - begun) * 1000
    return took_ms, getattr(getattr(done, "lakegate", done), "why_stock", None)


# ------------------------------------------------------------------------------------------------------- statements


def statements() -> dict[str, Any]:
    """Measures statements of 20 rows by stock Delta, and by Lakegate without and with quick execution, in turn."""
    ways: dict[str, Way] = {**WAYS, "lakegate": (lakegate.DeltaTable, "off")}
    found: dict[str, Any] = {}
    with driver() as (spark, folder):
        for operation in OPERATIONS:
            tables = {name: table(spark, folder, f"{operation}-{name}") for name in ways}
            took: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(FIRST + WARM_UP + MEASURED):
                order = list(ways.items())
                for name, way in order if number % 2 else reversed(order):
                    work = statement(spark, way[0], tables[name], number, operation)
                    took_ms, why = timed(spark, way, work)
                    assert way[1] == "off" or why is None, why
                    took[name].append(took_ms)
            for phase, part in (("first five", slice(FIRST)), ("warm", slice(-MEASURED, None))):
                stock = statistics.median(took["stock"][part])
                found[f"{operation}, {phase}"] = {
                    name: {**figures(each[part]), "times_stock": round(statistics.median(each[part]) / stock, 3)}
                    for name, each in took.items()
                }
                print(operation, phase, found[f"{operation}, {phase}"], flush=True)
    return found


def statement(
    spark: SparkSession, kind: type[StockTable], path: str, number: int, operation: str
) -> Callable[[], object]:
    """Makes a statement on 20 rows of its own; `MERGE, Arrow` has an Arrow table as its source, `MERGE` a list of rows."""
    if operation != "MERGE, Arrow":
        return dml(kind, spark, path, number, operation)
    rows = [{"k": number * 20 + row, "v": number} for row in range(20)]

    def merge() -> object:
        source = spark.createDataFrame(pa.Table.from_pylist(rows)).alias("s")
        return (
            kind.forPath(spark, path)
            .alias("t")
            .merge(source, "t.k = s.k")
            .whenMatchedUpdate(set={"v": "s.v"})
            .execute()
        )

    return merge


# ---------------------------------------------------------------------------------------------------------- writers


def writers() -> dict[str, Any]:
    """Measures 8 writers of rows of their own in the same files, in rounds after one that warms up: with and without groups."""
    ways = {"stock under one lock": 24, "lakegate, quick": 192, "lakegate, quick, groups": 192}
    cells: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with driver() as (spark, folder):
        for number in range(WRITERS_ROUNDS + 1):
            place = folder / str(number)
            place.mkdir()
            for way, statements_of in ways.items():
                cells[way].append(cell(spark, place, 8, way, FILES, statements_of))
    minutes = {way: [each["commits_per_minute"] for each in found[1:]] for way, found in cells.items()}
    stock = minutes["stock under one lock"]
    ratios = {
        way: [round(one / other, 1) for one, other in zip(each, stock, strict=True)] for way, each in minutes.items()
    }
    return {
        "statements_per_minute": minutes,
        "times_stock": ratios,
        "cells": {way: found[1:] for way, found in cells.items()},
    }


# ----------------------------------------------------------------------------------------------------------- growth


def growth() -> dict[str, Any]:
    """Measures UPDATE by the number of files of the table, of its rows, and of the keys."""
    found: dict[str, Any] = {}
    with driver() as (spark, folder):
        for files in (100, 10_000, 100_000):
            before = _heap_mib(spark)
            grown = _grown(
                spark, lambda name, files=files: _of_files(spark, folder, f"{name}-{files}", files), 20, ROWS
            )
            found[f"{files} files, 200,000 rows in 4 of them, 20 keys"] = {
                **grown,
                "heap_mib": _heap_mib(spark) - before,
            }
        for rows, files in ((200_000, 4), (2_000_000, 4), (20_000_000, 40)):
            made = partial(_of_rows, spark, folder, rows=rows, files=files)
            found[f"{rows:,} rows in {files} files, 20 keys"] = _grown(spark, made, 20, rows)
        for keys in (1, 100, 10_000):
            made = partial(_of_rows, spark, folder, rows=ROWS, files=FILES)
            found[f"{ROWS:,} rows in {FILES} files, {keys:,} keys"] = _grown(spark, made, keys, ROWS)
    return found


def _grown(spark: SparkSession, made: Callable[[str], str], keys: int, rows: int) -> dict[str, Any]:
    """Measures UPDATE of keys that are spread over all rows, by both ways in turn on a table each."""
    tables = {name: made(f"{name}-{keys}-{rows}") for name in WAYS}
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    reasons: Counter[str] = Counter()
    for number in range(GROWTH_WARM_UP + GROWTH_MEASURED):
        wanted = ", ".join(str((place * rows // keys + number * 7) % rows) for place in range(keys))
        for name, way in WAYS.items():
            target: Any = way[0].forPath(spark, tables[name])
            work = partial(target.update, f"k IN ({wanted})", {"v": str(number)})
            took_ms, why = timed(spark, way, work)
            if number < GROWTH_WARM_UP:
                continue
            took[name].append(took_ms)
            if why is not None:
                reasons[why] += 1
    medians = {name: statistics.median(each) for name, each in took.items()}
    found: dict[str, Any] = {name: figures(each) for name, each in took.items()}
    found |= {"times_stock": round(medians["lakegate, quick"] / medians["stock"], 3), "why_stock": dict(reasons)}
    print(keys, rows, found, flush=True)
    return found


def _of_rows(spark: SparkSession, folder: Path, name: str, *, rows: int, files: int) -> str:
    return table(spark, folder, f"{name}-{files}", rows=rows, files=files)


def _of_files(spark: SparkSession, folder: Path, name: str, files: int) -> str:
    """Makes the usual table, and commits other files whose statistics rule them out: no statement reads them."""
    path = table(spark, folder, name)
    log = Path(path) / "_delta_log"
    version = max(int(file.stem) for file in log.glob("*.json")) + 1
    with (log / f"{version:020}.json").open("w") as commit:
        for number in range(1, files - FILES + 1):
            key = -number
            bounds = {"k": key, "v": key, "w": f"name-{key}"}
            stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(bounds, 0)}
            add = {
                "path": f"part-{number:08}.snappy.parquet",
                "partitionValues": {},
                "size": 1_000,
                "modificationTime": 1,
                "dataChange": True,
                "stats": json.dumps(stats),
            }
            commit.write(json.dumps({"add": add}) + "\n")
    return path


def _heap_mib(spark: SparkSession) -> int:
    """Returns the memory of the JVM that is in use, in MiB."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory()) >> 20


# --------------------------------------------------------------------------------------------------------------- s3


def s3() -> dict[str, Any]:
    """Measures statements on S3, with 30 ms for each request: requests and milliseconds. The server is that of the tests."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as open_:
        place = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        server = open_.enter_context(aws_server(place))
        client = boto3.client("s3", **server.client_options())
        client.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": REGION})
        conf = {f"spark.hadoop.{key}": value for key, value in settings_for(server).items()}
        spark, _ = open_.enter_context(driver(s3=True, conf=conf))
        for operation in ("DELETE", "UPDATE", "MERGE, Arrow", "INSERT, SQL"):
            tables = {name: _on_s3(spark, f"{operation[:6]}-{name}".replace(", ", "-")) for name in WAYS}
            took: dict[str, list[float]] = {name: [] for name in WAYS}
            asked: dict[str, Counter[str]] = {name: Counter() for name in WAYS}
            server.fail(InjectedFault("delay", times=None, delay_ms=ONE_WAY_DELAY_MS))
            for number in range(GROWTH_WARM_UP + GROWTH_MEASURED):
                for name, way in WAYS.items():
                    work = statement(spark, way[0], tables[name], number, operation)
                    server.forget_requests()
                    took_ms, why = timed(spark, way, work)
                    assert way[1] == "off" or why is None, why
                    if number >= GROWTH_WARM_UP:
                        took[name].append(took_ms)
                        asked[name].update(request.kind for request in server.requests())
            server.heal()
            found[operation] = {
                name: {
                    "ms": figures(took[name]),
                    "requests": {kind: round(n / GROWTH_MEASURED, 1) for kind, n in sorted(asked[name].items())},
                }
                for name in WAYS
            }
            print(operation, found[operation], flush=True)
    return found


def _on_s3(spark: SparkSession, name: str) -> str:
    path = f"s3a://lake/{name}"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT, v BIGINT, w STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    frame = spark.range(0, ROWS, 1, FILES).selectExpr("id AS k", "id % 10 AS v", "concat('name-', id) AS w")
    frame.write.format("delta").mode("append").save(path)
    return path


# ----------------------------------------------------------------------------------------------------------- writer


def writer() -> dict[str, Any]:
    """Measures single rows by their key: `lakegate.writer` with 1 and 8 threads, and MERGE by batches of the same size.

    Nine of ten rows are in the table. The batches are as large as the flushes of the writer were on average.
    """
    with driver() as (spark, folder):
        return _written(spark, folder)


def _written(spark: SparkSession, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ways: dict[str, Callable[[str, int, int], int]] = {
        "lakegate.writer, 1 thread": lambda path, seed, size: _by_writer(spark, path, 1, seed),
        "lakegate.writer, 8 threads": lambda path, seed, size: _by_writer(spark, path, 8, seed),
        "stock MERGE by batches": lambda path, seed, size: _by_batches(
            partial(_merged_by_stock, spark, path), seed, size
        ),
    }
    if find_spec("deltalake") is not None:
        ways["deltalake merge by batches"] = lambda path, seed, size: _by_batches(
            partial(_merged_by_delta_rs, path), seed, size
        )
    size = ROWS_WRITTEN // 10
    for number in range(WRITER_ROUNDS + 1):  # the first round warms the JVM up
        for way, write_rows in ways.items():
            name = f"writer-{number}-{way.replace(' ', '-')}"
            path = table(spark, folder, name, has_vectors=not way.startswith("deltalake"))  # delta-rs writes none
            begun = time.perf_counter()
            commits = write_rows(path, number, size)
            took = time.perf_counter() - begun
            if way.endswith("8 threads"):
                size = ROWS_WRITTEN // commits
            of_way = found.setdefault(way, {"rows_per_s": [], "rows_per_commit": []})
            if number:
                of_way["rows_per_s"].append(round(ROWS_WRITTEN / took))
                of_way["rows_per_commit"].append(ROWS_WRITTEN // commits)
            print(number, way, round(ROWS_WRITTEN / took), "rows/s in", commits, "commits", flush=True)
    for each in found.values():
        each["median_rows_per_s"] = statistics.median(each["rows_per_s"])
    return found


def _rows_to_write(seed: int) -> list[Row]:
    keys = random.Random(seed).sample(range(ROWS * 10 // 9), ROWS_WRITTEN)
    return [{"k": key, "v": seed, "w": f"new-{key}"} for key in keys]


def _by_writer(spark: SparkSession, path: str, threads: int, seed: int) -> int:
    """Gives each row by its own call; returns the number of commits."""
    rows = _rows_to_write(seed)
    with lakegate.writer(spark, path, key="k") as w, ThreadPoolExecutor(threads) as pool:
        given = pool.map(lambda first: [w.upsert(row) for row in rows[first::threads]], range(threads))
        done = [each for part in given for each in part]
    return len({each.result().version for each in done})


def _by_batches(merged: Callable[[list[Row]], object], seed: int, size: int) -> int:
    rows = _rows_to_write(seed)
    batches = [rows[first : first + size] for first in range(0, len(rows), size)]
    for batch in batches:
        merged(batch)
    return len(batches)


def _merged_by_stock(spark: SparkSession, path: str, batch: list[Row]) -> None:
    source = spark.createDataFrame(pa.Table.from_pylist(batch)).alias("s")
    merge: Any = StockTable.forPath(spark, path).alias("t").merge(source, "t.k = s.k")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _merged_by_delta_rs(path: str, batch: list[Row]) -> None:
    opened = import_module("deltalake").DeltaTable(path)
    merge = opened.merge(source=pa.Table.from_pylist(batch), predicate="t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "statements": statements,
    "writers": writers,
    "growth": growth,
    "s3": s3,
    "writer": writer,
}

if __name__ == "__main__":
    main()
