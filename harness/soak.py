"""Random statements from many threads and drivers on one table; then a comparison of every version with their serial replay.

    python -m harness.soak --seconds 60 --threads 6 --drivers 2 --kind cdf --seed 1

Each commit names its statement, so the log alone gives their order. The seed determines statements and base rows, but not how
threads interleave.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

import lakegate
from harness import replay
from harness.replay import Append, Delete, Merge, Optimize, Row, Statement, Update
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.sql import statement as parsed

NAME_CONF = "spark.databricks.delta.commitInfo.userMetadata"
CONF = {
    "spark.master": "local[2]",
    # With one compiler the JVM's code cache is 48 MB. It is full after a minute of planning, and later code is interpreted.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=512m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
BASE_VERSION = 2
"""The version after the table, its rows, and the vectors of a first DELETE; drawn statements come later."""
JOIN_TIMEOUT_S = 300
"""Wait for a driver that was asked to end: it finishes its statements, however long concurrent commits delay them."""
STOPPED_S = 5
VECTORS = {"enableDeletionVectors": "true"}
FEED = {"enableChangeDataFeed": "true"}
TRACKED = {"enableRowTracking": "true", "enableInCommitTimestamps": "true"}
MAPPED = {"columnMapping.mode": "name"}
READ_CONFS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Each version is another query on few rows: compiling the query takes longer than reading the rows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of table."""

    properties: Mapping[str, str]
    is_partitioned: bool = False


KINDS: Mapping[str, Kind] = {
    "plain": Kind(VECTORS),
    "partitioned": Kind(VECTORS, is_partitioned=True),
    "cdf": Kind(VECTORS | FEED),
    "tracked": Kind(VECTORS | TRACKED),
    "mapped": Kind(VECTORS | MAPPED),
    "copied": Kind({"enableDeletionVectors": "false"}),
    "all": Kind(VECTORS | FEED | TRACKED | MAPPED, is_partitioned=True),
}
"""`copied`: without vectors, each change rewrites its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A statement, as its driver saw it."""

    name: str
    kind: str
    way: str
    first: int
    """Version of the table before the statement."""
    last: int | None = None
    """Version after the statement; None while it runs, and for ever if its driver was killed."""
    version: int | None = None
    """The version that was reported to it; a stock append gets none."""
    level: int | None = None
    attempts: int = 0
    lost_puts: int = 0
    reasons: tuple[str, ...] = ()
    error: str | None = None


# ------------------------------------------------------------------------------------------------------------- the table


def make_table(session: SparkSession, path: Path, kind: Kind, seed: str) -> None:
    """Makes a table with its base rows."""
    properties = ", ".join(f"'delta.{key}' = '{value}'" for key, value in kind.properties.items())
    partitioned = "PARTITIONED BY (p)" if kind.is_partitioned else ""
    session.sql(
        f"CREATE TABLE delta.`{path}` ({replay.COLUMNS}) USING delta {partitioned} TBLPROPERTIES ({properties})"
    )
    rows = session.createDataFrame(replay.base(seed), replay.COLUMNS)
    rows.repartitionByRange(4, "k").write.format("delta").mode("append").save(str(path))
    session.sql(f"DELETE FROM delta.`{path}` WHERE k % 50 = 25")


def versions(path: Path) -> list[int]:
    """Returns the versions of its commits, in order."""
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("*.json") if file.stem.isdigit())


def infos(path: Path) -> dict[int, Mapping[str, Any]]:
    """Returns version → `commitInfo` of each drawn commit."""
    found: dict[int, Mapping[str, Any]] = {}
    for version in versions(path):
        if version > BASE_VERSION:
            lines = (path / "_delta_log" / f"{version:020d}.json").read_text().split("\n")
            found[version] = next((json.loads(line)["commitInfo"] for line in lines if '"commitInfo"' in line[:14]), {})
    return found


# ------------------------------------------------------------------------------------------------------------ statements


@dataclass(slots=True)
class Pending:
    """A computed statement that is published after the next statement of its thread."""

    record: dict[str, Any]
    staged: Staged


class Worker:
    """A thread of a driver, with a session of its own.

    Args:
        session: Made for this thread alone.
        path: The table.
        seed: The seed of the run.
        place: Driver and thread.
        note: Takes each record, when its statement begins and when it has ended.
    """

    def __init__(
        self, session: SparkSession, path: Path, seed: str, place: str, note: Callable[[Record], None]
    ) -> None:
        self.session, self.path, self.seed, self.place, self.note = session, path, seed, place, note
        self.table = f"delta.`{path}`"
        self.pending: Pending | None = None

    def work(self, is_over: Callable[[], bool], statements_max: int) -> None:
        """Executes statements, one after the other."""
        for number in range(statements_max):
            if is_over():
                break
            self.one(f"{self.place}.{number}")
        self.finish_pending()

    def one(self, name: str) -> None:
        """Executes the statement with this name, then publishes the statement that was staged before."""
        drawn, chance = replay.draw(self.seed, name)
        way = way_of(drawn, chance)
        record: dict[str, Any] = {
            "name": name,
            "kind": type(drawn).__name__.lower(),
            "way": way,
            "first": versions(self.path)[-1],
        }
        self.note(Record(**record))
        before, self.pending = self.pending, None
        self.session.conf.set(NAME_CONF, name)
        try:
            if way == "staged":
                dml = parsed(self.session, drawn.sql(self.table))
                assert dml is not None, "every kind of statement that is drawn is one that is published"
                self.pending = Pending(record, publisher(self.session).stage(dml))
            else:
                self._ended(record, self._run(drawn, way))
        except Exception as error:
            self._ended(record, None, error)
        self._finish(before)

    def finish_pending(self) -> None:
        """Publishes the statement that was staged last."""
        before, self.pending = self.pending, None
        self._finish(before)

    def _finish(self, before: Pending | None) -> None:
        if before is None:
            return
        self.session.conf.set(NAME_CONF, before.record["name"])  # it may be re-executed
        try:
            published = publisher(self.session).finish(before.staged)
            said = (published.version, published.level, published.attempts, published.lost_puts, published.reasons)
            self._ended(before.record, said)
        except Exception as error:
            self._ended(before.record, None, error)

    def _run(self, drawn: Statement, way: str) -> tuple[Any, ...] | None:
        if way == "stock":
            assert isinstance(drawn, Append)
            frame = self.session.createDataFrame(list(drawn.rows), replay.COLUMNS).coalesce(1)
            frame.write.format("delta").mode("append").save(str(self.path))
            return None
        result = self._call(drawn) if way == "table" else lakegate.sql(self.session, drawn.sql(self.table))
        result = getattr(result, "lakegate", result)
        return (result.version, result.level, result.attempts, result.lost_puts, result.reasons)

    def _call(self, drawn: Statement) -> Any:
        """Executes it by the methods of `DeltaTable`."""
        table = lakegate.DeltaTable.forPath(self.session, str(self.path))
        match drawn:
            case Delete():
                return (table.alias(drawn.alias) if drawn.alias else table).delete(drawn.where.text(drawn.alias))
            case Update():
                named = table.alias(drawn.alias) if drawn.alias else table
                return named.update(drawn.where.text(drawn.alias), drawn.set.values(drawn.alias))
            case Optimize():
                return (
                    table.optimize().executeZOrderBy("k") if drawn.is_zordered else table.optimize().executeCompaction()
                )
            case Merge():
                source = self.session.createDataFrame(list(drawn.source), replay.SOURCE_COLUMNS).alias("x")
                merge = table.alias("t").merge(source, drawn.on_text()).whenMatchedDelete("x.o = 1")
                matched = None if drawn.matched is None else drawn.matched.text("t")
                merge = merge.whenMatchedUpdate(matched, replay.MERGED.values("t"))
                if drawn.inserts:
                    merge = merge.whenNotMatchedInsert(values=replay.INSERTED)
                if drawn.by_source is not None and drawn.is_deleting:
                    merge = merge.whenNotMatchedBySourceDelete(drawn.by_source.text("t"))
                elif drawn.by_source is not None:
                    orphaned: Any = replay.ORPHANED.values("t")
                    merge = merge.whenNotMatchedBySourceUpdate(drawn.by_source.text("t"), orphaned)
                return merge.execute()
        raise AssertionError(f"has no method: {drawn}")

    def _ended(self, record: dict[str, Any], said: tuple[Any, ...] | None, error: Exception | None = None) -> None:
        ended = {**record, "last": versions(self.path)[-1]}
        if said is not None:
            ended |= dict(zip(("version", "level", "attempts", "lost_puts", "reasons"), said, strict=True))
        if error is not None:
            ended["error"] = f"{type(error).__name__}: {str(error)[:600]}"
        self.note(Record(**ended))


def way_of(drawn: Statement, chance: Random) -> str:
    """Draws how a statement is executed: staged and published later, as SQL, by methods, or as stock Delta's append."""
    ways = ["staged", "sql"]
    if isinstance(drawn, Append):
        ways += ["stock", "stock"]
    if isinstance(drawn, Delete | Update | Merge | Optimize):
        ways.append("table")
    return chance.choice(ways)


# --------------------------------------------------------------------------------------------------------------- drivers


class Notes:
    """The records of one driver, kept in a file that survives it."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file.open("a", buffering=1), threading.Lock()

    def __call__(self, record: Record) -> None:
        with self._lock:
            self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        """Closes the file: no record comes afterwards."""
        self._file.close()


def notes_file(path: Path, driver: int) -> Path:
    """Returns the path of a driver's records."""
    return path.with_name(f"{path.name}.notes{driver}.jsonl")


def read_notes(files: Iterable[Path]) -> dict[str, Record]:
    """Returns name → the last record that its driver wrote of it."""
    found = {}
    for file in files:
        for line in file.read_text().split("\n"):
            if line.endswith("}"):
                said = json.loads(line)
                found[said["name"]] = Record(**{**said, "reasons": tuple(said["reasons"])})
    return found


def drive(
    session: SparkSession, path: Path, seed: str, driver: int, *, threads: int, seconds: float, statements_max: int
) -> None:
    """Runs one driver's part: its threads execute statements for some time, or a given number each."""
    notes = Notes(notes_file(path, driver))
    until = time.monotonic() + seconds

    def work(thread: int) -> None:
        worker = Worker(session.newSession(), path, seed, f"{driver}.{thread}", notes)
        worker.work(lambda: time.monotonic() > until, statements_max)

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work, thread) for thread in range(threads)]:
            each.result()
    notes.close()


class Driver:
    """Another process that writes to the table, and its JVM."""

    def __init__(
        self, path: Path, seed: str, driver: int, *, threads: int, seconds: float, statements_max: int
    ) -> None:
        self.log = path.with_name(f"{path.name}.driver{driver}.log")
        said = {"join": path, "driver": driver, "seed": seed, "threads": threads}
        said |= {"seconds": seconds, "statements": statements_max}
        options = [part for key, value in said.items() for part in (f"--{key}", str(value))]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.soak", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a group of its own: signals reach its JVM, too
            )
        self.is_killed = False

    def wait_ready(self) -> None:
        """Waits until it could start at once."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        raise AssertionError(f"a driver has ended before it began: {self.log.read_text()[-2000:]}")

    def go(self) -> None:
        """Starts its time."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def send(self, sent: signal.Signals) -> None:
        """Sends a signal to the process and its JVM."""
        if self.process.poll() is None:
            self.is_killed = self.is_killed or sent is signal.SIGKILL
            os.killpg(self.process.pid, sent)

    def end(self) -> None:
        """Waits until its statements are finished."""
        code = self.process.wait(JOIN_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        assert code == 0 or self.is_killed, f"a driver failed: {self.log.read_text()[-2000:]}"

    def close(self) -> None:
        """Kills all that is left of it."""
        self.send(signal.SIGKILL)
        self.end()


def disturb(drivers: Sequence[Driver], seconds: float) -> None:
    """Stops one driver for a while in the middle of the run; later kills one with its JVM."""
    time.sleep(seconds / 4)
    drivers[0].send(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    drivers[0].send(signal.SIGCONT)
    time.sleep(max(0.0, seconds / 2 - STOPPED_S))
    drivers[-1].send(signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The settings of a soak."""

    kind: str
    seed: str
    threads: int = 4
    """Threads of each driver."""
    drivers: int = 1
    seconds: float = 60
    statements_max: int = 1_000_000
    """Statements of each thread at most."""
    is_disturbed: bool = False
    """Whether one driver is stopped for some seconds, and one is killed."""


def soak(session: SparkSession, path: Path, run: Run) -> Report:
    """Makes a table at `path`, runs all drivers on it, and compares."""
    make_table(session, path, KINDS[run.kind], run.seed)
    share: dict[str, Any] = {"threads": run.threads, "seconds": run.seconds, "statements_max": run.statements_max}
    others = [Driver(path, run.seed, number, **share) for number in range(1, run.drivers)]
    try:
        for each in others:
            each.wait_ready()
        for each in others:
            each.go()
        with ThreadPoolExecutor(1) as pool:
            trouble = pool.submit(disturb, others, run.seconds) if run.is_disturbed else None
            drive(session, path, run.seed, 0, **share)
            if trouble is not None:
                trouble.result()
        for each in others:
            each.end()
    finally:
        for each in others:
            each.close()
    records = read_notes(notes_file(path, number) for number in range(run.drivers))
    killed = {str(number) for number, each in enumerate(others, start=1) if each.is_killed}
    return Report(run, records, len(infos(path)), tuple(mismatches(session, path, run, records, killed)))


# ------------------------------------------------------------------------------------------------------------ the oracle


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a soak."""

    run: Run
    records: Mapping[str, Record]
    commits: int
    mismatches: tuple[str, ...]

    HEAD = "kind         drivers threads  statements  commits  no effect  again  lost puts  mismatches  by level"

    def __str__(self) -> str:
        records = self.records.values()
        levels = Counter(r.level for r in records if r.level is not None and r.version is not None)
        said = " ".join(f"{level}:{number}" for level, number in sorted(levels.items()))
        idle = sum(r.last is not None and r.version is None and r.way != "stock" and r.error is None for r in records)
        again, lost = sum(max(0, r.attempts - 1) for r in records), sum(r.lost_puts for r in records)
        return (
            f"{self.run.kind:12} {self.run.drivers:7} {self.run.threads:7} {len(records):11} {self.commits:8} {idle:10} "
            f"{again:6} {lost:10} {len(self.mismatches):11}  {said}"
        )


def mismatches(
    session: SparkSession, path: Path, run: Run, records: Mapping[str, Record], killed: Collection[str]
) -> Iterable[str]:
    """Yields, in words, where the table differs from what its log says. After a difference it continues from the table's rows."""
    kind, said = KINDS[run.kind], infos(path)
    top = max(said, default=BASE_VERSION)
    yield from (f"{r.name} ({r.kind}, {r.way}) raised {r.error}" for r in records.values() if r.error is not None)
    is_tracked = "enableRowTracking" in kind.properties
    session = session.newSession()
    for key, value in READ_CONFS.items():
        session.conf.set(key, value)
    with ThreadPoolExecutor(2) as pool:
        every = range(BASE_VERSION, top + 1)
        tables = dict(
            zip(every, pool.map(lambda v: _table(session, path, v, is_tracked=is_tracked), every), strict=True)
        )
    yield from _named(said, records, killed)
    used_ids = set(tables[BASE_VERSION].ids)
    for version, info in said.items():
        name = str(info.get("userMetadata"))
        if name not in records:
            yield f"version {version} is of nobody: {name}"
            continue
        record, drawn = records[name], replay.draw(run.seed, name)[0]
        before, now = tables[version - 1], tables[version]
        what = (
            f"version {version}, {record.kind} {name} ({record.way}, level {record.level}, {'; '.join(record.reasons)})"
        )
        after = drawn.after(before.rows)
        wrong = _difference(Counter(now.rows), Counter(after.rows))
        if is_tracked and not wrong:
            wrong = _wrong_ids(before, after, now, version, used_ids)
        if wrong:
            yield f"{what}: {wrong}; {drawn.sql('t')}"
        used_ids |= set(now.ids)
    for record in records.values():
        yield from _idle(run, record, tables)
    if "enableChangeDataFeed" in kind.properties and said:
        yield from _feed(session, path, tables)
    if is_tracked:
        stamps = [info["inCommitTimestamp"] for info in said.values()]
        if any(one >= other for one, other in pairwise(stamps)):
            yield "in-commit timestamps do not rise"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a version; for a table that tracks rows, also their ids and the versions that wrote them."""

    rows: list[Row]
    ids: list[int]
    written: list[int]


def _table(session: SparkSession, path: Path, version: int, *, is_tracked: bool) -> Table:
    frame = session.read.format("delta").option("versionAsOf", version).load(str(path))
    columns = ("_metadata.row_id", "_metadata.row_commit_version") if is_tracked else ()
    found = frame.select(*Row._fields, *columns).collect()
    width = len(Row._fields)
    rows = [Row(*each[:width]) for each in found]
    return Table(rows, [each[width] for each in found if is_tracked], [each[width + 1] for each in found if is_tracked])


def _named(
    said: Mapping[int, Mapping[str, Any]], records: Mapping[str, Record], killed: Collection[str]
) -> Iterable[str]:
    """Compares the results that were reported to statements with the log."""
    found: dict[str, list[int]] = {}
    for version, info in said.items():
        found.setdefault(str(info.get("userMetadata")), []).append(version)
    for record in records.values():
        there = found.get(record.name, [])
        if len(there) > 1 and record.kind != "optimize":
            yield f"{record.name} ({record.kind}, {record.way}) is in the log more than once: {there}"
        if record.last is None:
            if record.name.split(".")[0] not in killed:
                yield f"{record.name} ({record.kind}, {record.way}) has not ended"
        elif record.error is None and record.way == "stock":
            if not there:
                yield f"{record.name} (stock append) is not in the log"
        elif record.error is None and (there or record.version is not None) and record.version not in there:
            yield f"{record.name} ({record.kind}, {record.way}) got version {record.version}, the log says {there}"


def _difference(now: Counter[Row], wanted: Counter[Row]) -> str:
    missing, more = list((wanted - now).elements()), list((now - wanted).elements())
    if not missing and not more:
        return ""
    return f"{len(missing)} rows are missing, as {missing[:3]}; {len(more)} are too many, as {more[:3]}"


def _wrong_ids(before: Table, after: replay.After, now: Table, version: int, used: Collection[int]) -> str:
    """Checks that an unchanged row keeps its id and the version that wrote it, and that new rows have new ids."""
    if len(set(now.ids)) < len(now.ids):
        return "row ids are not distinct"
    wanted = {
        id_: (row, wrote if row is old else version)
        for id_, old, row, wrote in zip(before.ids, before.rows, after.becomes, before.written, strict=True)
        if row is not None
    }
    there = {id_: (row, wrote) for id_, row, wrote in zip(now.ids, now.rows, now.written, strict=True)}
    if lost := wanted.keys() - there.keys():
        return f"{len(lost)} rows that stayed have other ids, as {wanted[min(lost)]}"
    if old_ids := (there.keys() - wanted.keys()) & set(used):
        return f"{len(old_ids)} new rows have ids of others, as {there[min(old_ids)]}"
    if other := {id_ for id_ in wanted if there[id_] != wanted[id_]}:
        example = min(other)
        return f"{len(other)} ids name other rows, as {example}: {there[example]} for {wanted[example]}"
    return ""


def _idle(run: Run, record: Record, tables: Mapping[int, Table]) -> Iterable[str]:
    """Checks that a statement without a commit had nothing to change at some version while it ran."""
    if record.last is None or record.version is not None or record.way == "stock" or record.error is not None:
        return
    drawn = replay.draw(run.seed, record.name)[0]
    for version in range(max(record.first, BASE_VERSION), record.last + 1):
        rows = tables[version].rows
        if Counter(drawn.after(rows).rows) == Counter(rows):
            return
    yield f"{record.name} ({record.kind}, {record.way}) committed nothing, and had something to do: {drawn.sql('t')}"


def _feed(session: SparkSession, path: Path, tables: Mapping[int, Table]) -> Iterable[str]:
    """Checks that the change feed of each version is the difference of two versions."""
    sign = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    feeds: dict[int, Counter[Row]] = {version: Counter() for version in tables}
    frame = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", BASE_VERSION + 1)
    for *row, change, version in (
        frame.load(str(path)).select(*Row._fields, "_change_type", "_commit_version").collect()
    ):
        feeds[version][Row(*row)] += sign[change]
    for version in tables:
        if version > BASE_VERSION:
            wanted = Counter(tables[version].rows)
            wanted.subtract(tables[version - 1].rows)
            wrong = {row: (feeds[version][row], wanted[row]) for row in wanted | feeds[version]}
            wrong = {row: numbers for row, numbers in wrong.items() if numbers[0] != numbers[1]}
            if wrong:
                yield f"version {version}: {len(wrong)} rows of the change feed differ, as {list(wrong.items())[:3]}"


# --------------------------------------------------------------------------------------------------------------- by hand


def main() -> int:
    """Runs by hand; returns 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m harness.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=4, help="of each driver")
    parser.add_argument("--drivers", type=int, default=1)
    parser.add_argument("--kind", default="plain", help=f"{', '.join(KINDS)}; several with commas, or every")
    parser.add_argument("--seed", default=None)
    parser.add_argument("--statements", type=int, default=1_000_000, help="of each thread at most")
    parser.add_argument("--disturbed", action="store_true", help="stop one of the drivers for a while, and kill one")
    parser.add_argument("--join", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.disturbed and said.drivers < 2:
        parser.error("--disturbed needs --drivers 2 or more")
    seed = said.seed or str(time.time_ns() % 100_000)  # a driver that joins gets the seed of its table's run
    session = lakegate.session("soak", conf=CONF)
    session.sparkContext.setLogLevel("OFF")  # Spark logs statements that lost to a concurrent commit as errors
    share = {"threads": said.threads, "seconds": said.seconds, "statements_max": said.statements}
    if said.join is not None:
        session.range(10).count()
        print("ready", flush=True)
        if sys.stdin.readline().strip() == "go":
            drive(session, said.join, seed, said.driver, **share)
        return 0
    print(f"seed {seed}\n{Report.HEAD}", flush=True)
    found = 0
    for kind in KINDS if said.kind == "every" else said.kind.split(","):
        run = Run(kind=kind, seed=f"{seed}.{kind}", drivers=said.drivers, is_disturbed=said.disturbed, **share)
        path = Path(tempfile.mkdtemp(prefix="lakegate-soak-"), kind)
        report = soak(session, path, run)
        print(report, flush=True)
        for line in report.mismatches:
            print(f"  {line}\n  table: {path}", flush=True)
        found += len(report.mismatches)
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
