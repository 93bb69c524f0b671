"""Statements of several writers on one Delta table: their cost compared with stock delta-spark, and their throughput.

`python -m benchmarks.rows` measures all; `python -m benchmarks.rows uncontended` one part.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable as StockTable
from pyspark.sql import SparkSession

import lakegate
from benchmarks.measure import cpu_s, figures, machine, write
from lakegate.rows.committer import publisher
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.sql import statement
from lakegate.rows.transaction import GROUP_CONF

PAIRS, WARM_UP = 30, 6
WARM_UP_S, APPENDS_S, ROUNDS = 600, 30, 5
STATEMENTS, STATEMENTS_WARMING = 96, 24
"""Statements in each cell. A statement takes longer the more statements its table has had, as updated rows lie in files of their
own: with an equal time the faster way would have the slower table.
"""
WRITERS = ((2, 4), (4, 4), (8, 4), (8, 1))
"""Number of writers, and in how many of the four files each statement's rows are."""
ROWS, FILES, TOUCHED = 200_000, 4, 20
CONF = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:ReservedCodeCacheSize=400m",
}
"""Of a driver that fits the machine."""
CONFLICTS = ("ConcurrentAppend", "ConcurrentDelete", "CONCURRENT_APPEND", "CONCURRENT_DELETE")


def main() -> None:
    """Measures and writes the result."""
    wanted = sys.argv[1:] or ["uncontended", "writers", "lock", "appender", "growth"]
    spark = lakegate.session("bench", conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a checkpoint may still be written
        for part in wanted:
            write(f"rows_{part}", {"machine": machine(), **PARTS[part](spark, Path(folder))})


def table(
    spark: SparkSession, folder: Path, name: str, *, rows: int = ROWS, files: int = FILES, has_vectors: bool = True
) -> str:
    """Makes a table of k, v and w in files of equal size, each with its share of k."""
    path = str(folder / name)
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT, v BIGINT, w STRING) USING delta "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(has_vectors).lower()}')"
    )
    frame = spark.range(0, rows, 1, files).selectExpr("id AS k", "id % 10 AS v", "concat('name-', id) AS w")
    frame.write.format("delta").mode("append").save(path)
    return path


def keys_of(number: int, files: int = FILES) -> str:
    """Returns keys of rows that no other number has, spread over `files` files."""
    size, share = ROWS // FILES, TOUCHED // files
    place = number // (FILES // files) * 97 % (size - share)
    first = number % (FILES // files) * files
    return ", ".join(str(file * size + place + row) for file in range(first, first + files) for row in range(share))


def dml(
    kind: type[StockTable], spark: SparkSession, path: str, number: int, operation: str, files: int = FILES
) -> Callable[[], object]:
    """Makes a statement on rows of its own, in `files` of the files."""
    keys = keys_of(number, files)
    target = kind.forPath(spark, path).alias("t")
    said: Callable[[str], object] = spark.sql if kind is StockTable else partial(lakegate.sql, spark)
    match operation:
        case "UPDATE, SQL":
            return lambda: said(f"UPDATE delta.`{path}` SET v = {number} WHERE k IN ({keys})")
        case "INSERT, SQL":
            return lambda: said(f"INSERT INTO delta.`{path}` VALUES ({ROWS + number}, 0, 'new')")
        case "DELETE":
            return lambda: target.delete(f"k IN ({keys})")
        case "UPDATE":
            return lambda: target.update(f"k IN ({keys})", {"v": f"{number}"})
        case "MERGE":
            rows = [(int(key), number) for key in keys.split(", ")]

            def merge() -> object:
                source = spark.createDataFrame(rows, "k BIGINT, v BIGINT").alias("s")
                return target.merge(source, "t.k = s.k").whenMatchedUpdate(set={"v": "s.v"}).execute()

            return merge
        case _:
            return lambda: target.optimize().executeCompaction()


# ------------------------------------------------------------------------------------------------------ uncontended


def uncontended(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Measures each statement alone, with its Spark jobs: 30 interleaved pairs on two tables of the same content."""
    result: dict[str, Any] = {}
    spark.conf.set(QUICK_CONF, "off")
    for operation in ("DELETE", "UPDATE", "MERGE", "OPTIMIZE", "UPDATE, SQL", "INSERT, SQL"):
        sides = {
            "stock": (StockTable, table(spark, folder, f"{operation[:6]}-{len(result)}-stock"), []),
            "ours": (lakegate.DeltaTable, table(spark, folder, f"{operation[:6]}-{len(result)}-ours"), []),
        }
        for number in range(PAIRS + WARM_UP):
            order = list(sides.values())
            for kind, path, samples in order if number % 2 else reversed(order):
                if operation == "OPTIMIZE":
                    dml(StockTable, spark, path, number, "UPDATE")()  # something to compact
                work = dml(kind, spark, path, number, operation)
                begun = time.perf_counter()
                work()
                if number >= WARM_UP:
                    samples.append((time.perf_counter() - begun) * 1000)
        stock, ours = sides["stock"][2], sides["ours"][2]
        ratios = [one / other for one, other in zip(ours, stock, strict=True)]
        result[operation] = {
            "stock_ms": figures(stock),
            "ours_ms": figures(ours),
            "ratio_of_medians": round(statistics.median(ours) / statistics.median(stock), 3),
            "median_of_pair_ratios": round(statistics.median(ratios), 3),
        }
    return result


# ---------------------------------------------------------------------------------------------------------- writers


def writers(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Measures 2, 4 and 8 threads, each with statements on rows of its own in the same files."""
    result: dict[str, Any] = {}
    _warm_up(spark, folder)
    for number, files in WRITERS:
        for way in WAYS:
            found = cell(spark, folder, number, way, files)
            result[f"{number} writers, rows in {files} of {FILES} files, {way}"] = found
    return result


WAYS = (
    "stock with retry",
    "stock under one lock",
    "lakegate",
    "lakegate, groups",
)


@cache
def _warm_up(spark: SparkSession, folder: Path) -> None:
    """Warms the JVM up with each way in turn, once for all parts.

    A driver that has run for days has compiled its code. A driver that has just started compiles on the cores that are measured:
    after four minutes compiling still took a quarter of the processor time of stock under one lock, and a sixth of ours.
    """
    begun = time.perf_counter()
    for number in itertools.takewhile(lambda _: time.perf_counter() - begun < WARM_UP_S, itertools.count()):
        place = folder / f"warm-up-{number}"
        place.mkdir()
        cell(spark, place, 8, WAYS[number % len(WAYS)], FILES, STATEMENTS_WARMING)


def cell(
    spark: SparkSession, folder: Path, threads: int, way: str, files: int, statements: int = STATEMENTS
) -> dict[str, Any]:
    path = table(spark, folder, f"{threads}-{files}-{way.replace(' ', '-')}")
    lock, guard = threading.Lock(), threading.Lock()
    count: Counter[str] = Counter()
    times: list[float] = []
    publishes: list[float] = []
    held: list[float] = []
    levels: Counter[int] = Counter()
    spent_ms = {"line": 0.0, "publish": 0.0}
    numbers = iter(range(statements + 1))
    kind = lakegate.DeltaTable if way.startswith("lakegate") else StockTable
    session = spark.newSession()
    session.conf.set(GROUP_CONF, "64" if "groups" in way else "1")
    session.conf.set(QUICK_CONF, "on" if "quick" in way else "off")
    dml(kind, session, path, next(numbers), "UPDATE", files)()

    def following() -> int | None:
        with guard:
            return next(numbers, None)

    def write_on() -> None:
        for number in iter(following, None):
            work = dml(kind, session, path, number, ("DELETE", "UPDATE", "MERGE")[number % 3], files)
            begun = time.perf_counter()
            while True:
                count["executions"] += 1
                try:
                    if way == "stock under one lock":
                        with lock:
                            done = work()
                    else:
                        done = work()
                except Exception as error:
                    if not any(name in str(error) for name in CONFLICTS):
                        count["errors"] += 1
                        break
                    count["conflicts"] += 1
                    continue
                done = getattr(done, "lakegate", done)
                if isinstance(done, lakegate.rows.result.Result):
                    levels[done.level] += 1
                    spent_ms["line"] += done.waited_ms
                    spent_ms["publish"] += done.publish_ms
                    if done.level > 0:
                        publishes.append(done.publish_ms)
                        held.append(done.held_ms)
                    count["executions"] += done.attempts - 1
                count["commits"] += 1
                times.append(time.perf_counter() - begun)
                break

    bytes_before, cpu_before, begun = _bytes(path), cpu_s(spark), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(write_on) for _ in range(threads)]:
            done.result()
    took, cpu = time.perf_counter() - begun, cpu_s(spark)
    found = {
        "commits_per_minute": round(count["commits"] * 60 / took, 1),
        "executions_per_commit": round(count["executions"] / max(1, count["commits"]), 2),
        "cpu_s_per_commit": {what: round((cpu[what] - cpu_before[what]) / max(1, count["commits"]), 2) for what in cpu},
        "conflicts": count["conflicts"],
        "errors": count["errors"],
        "statement_ms": figures([one * 1000 for one in times]) if times else {},
        "bytes_per_committed_row": (_bytes(path) - bytes_before) // max(1, count["commits"] * TOUCHED),
    }
    if levels:
        whole_ms = sum(times) * 1000
        shares = {what: round(each / whole_ms, 3) for what, each in spent_ms.items()}
        # The rest is stock Delta's: planning, Spark's jobs, writing Parquet and vectors, its attempt to commit.
        found["time_goes_to"] = {"stock execution": round(1 - sum(shares.values()), 3), **shares}
        found["levels"] = {str(level): levels[level] for level in sorted(levels)}
    if publishes:
        found |= {"publish_ms": figures(publishes), "held_ms": figures(held)}
    print(threads, files, way, found, flush=True)
    return found


def _bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def lock(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Compares 8 writers with stock under one lock, in interleaved rounds: a single cell differs by a tenth from the next."""
    _warm_up(spark, folder)
    cells: dict[str, list[dict[str, Any]]] = {
        way: [] for way in ("stock under one lock", "lakegate", "lakegate, groups")
    }
    for number in range(ROUNDS):
        for way, found in cells.items():
            place = folder / f"round-{number}"
            place.mkdir(exist_ok=True)
            found.append(cell(spark, place, 8, way, FILES))
    minutes = {way: [each["commits_per_minute"] for each in found] for way, found in cells.items()}
    stock = minutes.pop("stock under one lock")
    ratios = {
        way: [round(one / other, 2) for one, other in zip(each, stock, strict=True)] for way, each in minutes.items()
    }
    return {
        "commits_per_minute": {"stock under one lock": stock, **minutes},
        "publish_ms_median": {way: [each["publish_ms"]["median"] for each in cells[way]] for way in minutes},
        "held_ms_median": {way: [each["held_ms"]["median"] for each in cells[way]] for way in minutes},
        "times_stock_under_one_lock": ratios,
        "median_of_the_ratios": {way: round(statistics.median(each), 2) for way, each in ratios.items()},
    }


# --------------------------------------------------------------------------------------------------------- appender


def appender(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Measures an UPDATE (or MERGE) stream with one concurrent stock append a second, all or none of whose rows it concerns."""
    result: dict[str, Any] = {}
    _warm_up(spark, folder)
    for operation in ("UPDATE", "MERGE"):
        for share in (0, 100):
            path = table(spark, folder, f"appender-{operation}-{share}", rows=50_000)
            stop, appends = threading.Event(), []

            def append(path: str = path, share: int = share, stop: Any = stop, appends: Any = appends) -> None:
                session = spark.newSession()
                while not stop.wait(1.0):
                    begun = time.perf_counter()
                    session.sql(f"INSERT INTO delta.`{path}` VALUES ({-1 if share else 10**9}, -1, 'new')")
                    appends.append((time.perf_counter() - begun) * 1000)

            thread = threading.Thread(target=append)
            thread.start()
            times, publishes, levels, most = list[float](), list[float](), Counter[int](), 0
            deadline = time.perf_counter() + APPENDS_S
            while time.perf_counter() < deadline:
                begun = time.perf_counter()
                if operation == "UPDATE":
                    done: Any = lakegate.DeltaTable.forPath(spark, path).update("k < 10", {"v": "v + 1"})
                else:
                    target = lakegate.DeltaTable.forPath(spark, path).alias("t")
                    source = spark.sql("SELECT explode(sequence(-1, 9)) AS k").alias("s")
                    merge: Any = target.merge(source, "t.k = s.k").whenMatchedUpdate(set={"v": "t.v + 1"})
                    done = merge.execute().lakegate
                times.append((time.perf_counter() - begun) * 1000)
                levels[done.level] += 1
                if done.level > 0:  # otherwise stock Delta's own commit was put
                    publishes.append(done.publish_ms)
                most = max(most, done.attempts)
            stop.set()
            thread.join()
            result[f"{operation}, {share} % of the appends concern it"] = {
                "statements": len(times),
                "levels": {str(level): levels[level] for level in sorted(levels)},
                "executions_most": most,
                "statement_ms": figures(times),
                "publish_ms": figures(publishes) if publishes else {},
                "append_ms": figures(appends),
            }
            print(operation, share, result[f"{operation}, {share} % of the appends concern it"], flush=True)
    return result


# ----------------------------------------------------------------------------------------------------------- growth


def growth(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Measures publishing a staged DELETE, by the number of files of the table and of winning commits."""
    result: dict[str, Any] = {}
    for files in (100, 1_000, 10_000):
        path = table(spark, folder, f"growth-{files}", rows=files * 10, files=files)
        ours, last = publisher(spark), itertools.count(files * 10 - 1, -1)  # each row is deleted once
        for others in (1, 10, 100):
            samples = []
            for _ in range(3):
                staged = ours.stage(statement(spark, f"DELETE FROM delta.`{path}` WHERE k = {next(last)}"))
                for number in range(others):
                    spark.sql(f"INSERT INTO delta.`{path}` VALUES ({-number - 1}, 0, 'w')")
                begun = time.perf_counter()
                ours.finish(staged)
                samples.append((time.perf_counter() - begun) * 1000)
            result[f"{files} files, {others} winning commits"] = {"publish_ms": figures(samples)}
            print(files, others, figures(samples), flush=True)
    return result


PARTS: dict[str, Callable[[SparkSession, Path], dict[str, Any]]] = {
    "uncontended": uncontended,
    "writers": writers,
    "lock": lock,
    "appender": appender,
    "growth": growth,
}

if __name__ == "__main__":
    main()
