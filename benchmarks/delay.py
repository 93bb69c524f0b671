"""The delay of a sync to PostgreSQL under load: from the commit at the source until a reader of the target sees the change.

python -m benchmarks.delay [SECONDS]

The greatest rate is measured first, on changes that are all there. Then changes come to a topic of Kafka at half of it for a
minute. A reader of the target looks every few milliseconds, independently of what `lakegate sync status` says, which is recorded
next to it. At the end the whole table is compared.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

import lakegate
from benchmarks.measure import machine, write
from lakegate.demo.database_servers import Database, fresh_postgres, postgres_server

SECONDS = 60
BACKLOG = 60_000
PARTS = 4
"""The number of partitions of the topic."""
LOOK_S = 0.005
WARM_S = 5.0
END_S = 120.0
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, part int NOT NULL, n bigint NOT NULL, email text NOT NULL UNIQUE)"
INDEX = "CREATE INDEX ON t (part, n)"
Row = tuple[int, int, int, str]


def main() -> None:
    """Measures and writes the result."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    result: dict[str, Any] = {"machine": machine(), "seconds": seconds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with postgres_server(folder / "server") as server:
            result["kafka"] = from_kafka(folder / "kafka", server, seconds)
    write("delay", result)


# ------------------------------------------------------------------------------------------------------- changes


def changes(count: int) -> tuple[list[tuple[int, str]], set[Row]]:
    """Returns partition and envelope of each change, where `@` stands for its time; and the rows after all of them."""
    chance = random.Random(7)
    rows: dict[int, Row] = {}
    live: list[list[int]] = [[] for _ in range(PARTS)]
    said = []
    for n in range(count):
        part, kind = n % PARTS, chance.random()
        some = live[part]
        if kind < 0.6 or len(some) < 10 or n >= count - PARTS:  # the last ones can be seen
            op, before, after = "c", None, (n, part, n, f"m{n}")
            some.append(n)
        elif kind < 0.9:
            op, before = "u", rows[some[chance.randrange(len(some))]]
            after = (before[0], part, n, f"x{n}")
        else:
            op, before, after = "d", rows.pop(some.pop(chance.randrange(len(some)))), None
        if after is not None:
            rows[after[0]] = after
        source = {
            "connector": "postgresql", "name": "shop", "db": "d", "schema": "s", "table": "t", "txId": n, "lsn": n + 1,
            "sequence": f'["{n}","{n + 1}"]', "snapshot": "false", "ts_ms": "@",
        }  # fmt: skip
        one = {"op": op, "before": _image(before), "after": _image(after), "source": source}
        said.append((part, json.dumps(one, separators=(",", ":")).replace('"@"', "@")))
    return said, set(rows.values())


def _image(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(("id", "part", "n", "email"), row, strict=True))


def send(servers: str, topic: str, said: Sequence[tuple[int, str]], rate: float, times: Any) -> None:
    """Sends the changes to a topic at a rate (0: at once), each with its time, which it notes."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000})
    begun = time.time()
    for n, (part, text) in enumerate(said):
        while rate and (early := begun + n / rate - time.time()) > 0:
            producer.poll(0)
            time.sleep(min(early, 0.005))
        now = time.time()
        times[n] = now
        producer.produce(topic, text.replace("@", str(int(now * 1000))).encode(), partition=part)
    producer.flush(60)


# ------------------------------------------------------------------------------------------------------- the reader


def watch(dsn: str, times: Any, parts: int) -> Iterator[float]:
    """Yields the delay of each change as soon as a reader sees it, in seconds."""
    seen, count = [-1] * parts, len(times)
    last = [max(n for n in range(count) if n % parts == part) for part in range(parts)]
    deadline = time.monotonic() + SECONDS + END_S
    sql = f"SELECT part, (SELECT max(n) FROM t WHERE t.part = parts.part) FROM generate_series(0, {parts - 1}) parts (part)"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while seen != last:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the target has changes up to {seen} of {last}")
            found = connection.execute(sql).fetchall()
            now = time.time()
            for part, n in found:
                while n is not None and seen[part] < n:
                    seen[part] = part if seen[part] < 0 else seen[part] + parts
                    yield now - times[seen[part]]
            time.sleep(LOOK_S)


def figures(delays_s: Sequence[float]) -> dict[str, float]:
    """Returns median, 99th percentile and maximum in milliseconds."""
    found = sorted(delays_s)
    at = {"p50_ms": found[len(found) // 2], "p99_ms": found[int(len(found) * 0.99)], "max_ms": found[-1]}
    return {name: round(value * 1000) for name, value in at.items()} | {"changes": len(found)}


@contextlib.contextmanager
def running(root: Path) -> Iterator[None]:
    """Runs `lakegate sync run` on the file of the folder."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (root / "run.log").open("wb") as log:
        command = [sys.executable, "-m", "lakegate", "sync", "run", "--spec", str(root)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        try:
            yield
            process.terminate()
            if process.wait(60):
                raise RuntimeError((root / "run.log").read_text()[-2000:])
        finally:
            process.kill()
            process.wait()


def said_by_status(root: Path) -> dict[str, Any]:
    """Returns what `lakegate sync status` says of the delay."""
    command = [sys.executable, "-m", "lakegate", "sync", "status", "--output", "json", "--spec", str(root)]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found: dict[str, Any] = json.loads(said)["syncs"][0].get("delay", {})
    return found


def under_load(root: Path, dsn: str, parts: int, count: int, begin: Callable[[Any], Any]) -> dict[str, Any]:
    """Measures delays while another process makes changes."""
    times = multiprocessing.Array("d", count, lock=False)
    with running(root):
        writer = begin(times)
        delays = list(watch(dsn, times, parts))
        writer.join()
        said = said_by_status(root)
    return {**figures(delays), "status": said}


def wrong_rows(dsn: str, rows: set[Row]) -> int:
    """Counts rows of the target that are not the source's, or are missing."""
    with psycopg.connect(dsn) as connection:
        found = set(connection.execute("SELECT id, part, n, email FROM t").fetchall())
    return len(found ^ rows)


# ------------------------------------------------------------------------------------------------------- from Kafka


def from_kafka(folder: Path, server: str, seconds: int) -> dict[str, Any]:
    """Measures a topic of four partitions."""
    from lakegate.demo.servers import kafka_broker
    from lakegate.spark.jars import jar_sources
    from lakegate.spark.java import java_sources

    with kafka_broker(folder / "broker", jars=jar_sources(os.environ), java=java_sources(os.environ)) as servers:
        first = kafka_sync(folder / "first", server, servers)
        said, _ = changes(BACKLOG)
        send(servers, "first", said, 0, [0.0] * BACKLOG)
        begun = time.perf_counter()
        report = lakegate.sync(
            {"kafka": ["first"], "servers": servers, "format": "debezium"}, to=first.dsn, name="x", pipeline="first"
        )
        assert report.changes == BACKLOG, report
        most = BACKLOG / (time.perf_counter() - begun)
        rate = most / 2
        said, rows = changes(int(rate * seconds))
        second = kafka_sync(folder / "second", server, servers)

        def begin(times: Any) -> Any:
            time.sleep(WARM_S)
            process = multiprocessing.get_context("fork").Process(
                target=send, args=(servers, "second", said, rate, times)
            )
            process.start()
            return process

        found = under_load(folder / "second", second.dsn, PARTS, len(said), begin)
        return {"most_changes_s": round(most), "offered_changes_s": round(rate), **found} | {
            "wrong_rows": wrong_rows(second.dsn, rows)
        }


def kafka_sync(root: Path, server: str, servers: str) -> Database:
    """Makes a topic of the folder's name, a target, and the file of a sync."""
    from confluent_kafka.admin import AdminClient, NewTopic

    root.mkdir(parents=True)
    database = fresh_postgres(server)
    database.execute(TABLE, INDEX)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(root.name, PARTS, 1)])[root.name].result()
    source = f'{{kafka: [{root.name}], servers: "{servers}", format: debezium}}'
    (root / "lakegate.yml").write_text(f"name: p\nsync:\n  x:\n    from: {source}\n    to: '{database.dsn}'\n")
    return database


if __name__ == "__main__":
    main()
