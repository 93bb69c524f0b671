"""Changes to a PostgreSQL database with unique keys: strategies side by side, on a local socket and 1 ms away.

Wrong rows, which differ from a serial run of the changes, are reported first. Four tables, 70/10/10/10, 15,000 rows each, a primary
key and two unique keys. A share of the changes hands unique values from row to row (moves, swaps, chains, deleted and taken).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import strategies
from benchmarks.measure import machine, write
from harness.changes import Changes
from harness.proxy import Proxy
from lakegate.demo.database_servers import fresh_postgres, postgres_server
from lakegate.syncs.adapters import open_target
from lakegate.syncs.plan.apply_protocol import Mode
from lakegate.syncs.plan.change import Change
from lakegate.syncs.runner import SyncSettings, carry, run

TABLES = ("t0", "t1", "t2", "t3")
WEIGHTS = (70, 10, 10, 10)
ROWS = 15_000
SHARES = (0.0, 0.001, 0.01, 0.10)
CHANGES = 60_000
FEW = {False: 8_000, True: 1_000}
"""Changes for strategies that make a round trip for each change: on the socket, and where a round trip takes a millisecond."""
ROUNDS = 3
DELAY_S = 0.0005
"""Delay in each direction."""
FRESH_S = 15.0
Values = dict[str, Any]
Final = dict[tuple[str, int], Values]


@dataclass(slots=True)
class Source:
    """A source database that records its own changes."""

    chance: random.Random
    rows: dict[str, dict[int, Values]] = field(default_factory=lambda: {table: {} for table in TABLES})
    changes: list[Change] = field(default_factory=list)
    fresh: int = 1_000_000
    tx: int = 0

    def new(self, table: str, **values: Any) -> Values:
        """Makes a row with new unique values."""
        self.fresh += 1
        n = self.fresh
        return {"id": n, "grp": n % 4, "name": f"customer name number {n:08}", "uk1": n, "uk2": f"u{n:08}", **values}

    def say(self, op: Any, table: str, before: Values | None, after: Values | None) -> None:
        """Records one change."""
        if before is not None:
            del self.rows[table][before["id"]]
        if after is not None:
            self.rows[table][after["id"]] = after
        self.changes.append(
            Change(seq=len(self.changes), tx=str(self.tx), table=table, op=op, before=before, after=after)
        )

    def plain(self, table: str, live: list[int]) -> None:
        """Makes an update, an insert or a delete."""
        kind = self.chance.random()
        if kind < 0.2:
            row = self.new(table)
            live.append(row["id"])
            self.say("c", table, None, row)
        elif kind < 0.4:
            self.say("d", table, self._taken(table, live), None)
        else:
            # One update in ten is of one of a hundred rows.
            hot = live[: min(100, len(live))] if self.chance.random() < 0.1 else live
            old = self.rows[table][self.chance.choice(hot)]
            self.fresh += 1
            self.say("u", table, old, {**old, "name": f"customer name number {self.fresh:08}"})

    def hand_over(self, table: str, live: list[int]) -> None:
        """Moves a value of a unique key from row to row, in two or three changes."""
        a, b = (self.rows[table][one] for one in self.chance.sample(live, 2))
        names = self.chance.choice(strategies.UNIQUE)
        held, other = {name: a[name] for name in names}, {name: b[name] for name in names}
        free = {name: self.new(table)[name] for name in names}
        kind = self.chance.choice(("move", "swap", "taken"))
        if kind == "taken":
            row = self.new(table, **held)
            live.remove(a["id"])
            live.append(row["id"])
            self.say("d", table, a, None)
            self.say("c", table, None, row)
            return
        self.say("u", table, a, {**a, **free})
        self.say("u", table, b, {**b, **held})
        if kind == "swap":
            self.say("u", table, {**a, **free}, {**a, **other})

    def _taken(self, table: str, live: list[int]) -> Values:
        place = self.chance.randrange(len(live))
        live[place], live[-1] = live[-1], live[place]
        return self.rows[table][live.pop()]


def generated(share: float, count: int) -> tuple[dict[str, list[Values]], list[Change]]:
    """Returns the first rows by table, and at least `count` changes, of which `share` hand values over."""
    source = Source(random.Random(7))
    for table in TABLES:
        for _ in range(ROWS):
            row = source.new(table)
            source.rows[table][row["id"]] = row
    first = {table: list(rows.values()) for table, rows in source.rows.items()}
    live = {table: list(rows) for table, rows in source.rows.items()}
    while len(source.changes) < count:
        source.tx += 1
        (table,) = source.chance.choices(TABLES, WEIGHTS)
        for _ in range(source.chance.randrange(1, 6)):
            if source.chance.random() < share / 2.4:  # changes of one hand-over
                source.hand_over(table, live[table])
            else:
                source.plain(table, live[table])
    return first, source.changes


def ends(first: dict[str, list[Values]], changes: Sequence[Change]) -> Final:
    """Returns the rows after a serial run."""
    rows = {(table, row["id"]): row for table, some in first.items() for row in some}
    for change in changes:
        if change.before is not None:
            del rows[change.table, change.before["id"]]
        if change.after is not None:
            rows[change.table, change.after["id"]] = change.after
    return rows


def prepared(server: str, first: dict[str, list[Values]]) -> str:
    """Makes a fresh schema with the first rows and returns its DSN."""
    database = fresh_postgres(server)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for table, rows in first.items():
            connection.execute(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, grp int NOT NULL, name text, uk1 bigint NOT NULL UNIQUE, "
                "uk2 text NOT NULL, UNIQUE (uk2, grp))"
            )
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(list(row.values()))
        connection.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
        connection.execute("CHECKPOINT")
    return database.dsn


def wrong_rows(dsn: str, final: Final) -> int:
    """Counts rows of the target that differ from a serial run, are missing, or are too many."""
    found: Final = {}
    with psycopg.connect(dsn) as connection:
        for table in TABLES:
            for values in connection.execute(f"SELECT {strategies.NAMES} FROM {table}"):
                found[table, values[0]] = dict(zip(strategies.COLUMNS, values, strict=True))
    return sum(final.get(key) != found.get(key) for key in final.keys() | found.keys())


def ours(mode: Mode) -> Callable[[str, Sequence[Change]], Counter[str]]:
    """Returns a function that applies changes as `lakegate sync run` does."""

    def apply(dsn: str, changes: Sequence[Change]) -> Counter[str]:
        with contextlib.closing(open_target(dsn)) as target:
            settings = SyncSettings(mode=mode, parallelism=strategies.LANES)
            done = [one.complete for one in run(Changes(changes), target, stream="bench", settings=settings)]
        return Counter({"slots tried again": sum(one.retried_alone for one in done if one)})

    return apply


ROW_BY_ROW = {
    "serial": strategies.serial,
    "serial, executemany": strategies.executemany,
    "by table": strategies.by_table,
    "by key, with retries": strategies.by_key,
    "the article's queue": strategies.queue,
    "components, row by row": strategies.by_component,
}
IN_BULK = {
    "ON CONFLICT by key": strategies.bulk_upsert,
    "ours, atomic": ours("atomic"),
    "ours, parallel": ours("parallel"),
}


def compared(server: str, through: str | None, share: float) -> dict[str, Any]:
    """Compares all strategies at one share of hand-overs, rounds interleaved; each round begins with the same rows."""
    first, changes = generated(share, CHANGES)
    spent: dict[str, list[float]] = {name: [] for name in (*ROW_BY_ROW, *IN_BULK)}
    wrong: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {name: Counter() for name in spent}
    for _ in range(ROUNDS):
        for name, apply in (*ROW_BY_ROW.items(), *IN_BULK.items()):
            some = changes[: FEW[through is not None]] if name in ROW_BY_ROW else changes
            dsn = prepared(server, first)
            away = dsn.replace(server, through) if through else dsn
            begun = time.perf_counter()
            counts[name] += apply(away, some)
            spent[name].append(len(some) / (time.perf_counter() - begun))
            wrong[name] = max(wrong[name], wrong_rows(dsn, ends(first, some)))
    return {
        name: {
            "wrong_rows_most": wrong[name],
            "rows_s": round(statistics.median(rates)),
            "least": round(min(rates)),
            "most": round(max(rates)),
            **{kind: round(count / ROUNDS, 1) for kind, count in sorted(counts[name].items()) if count},
        }
        for name, rates in spent.items()
    }


class Live:
    """A source in which changes appear with time."""

    def __init__(self, changes: Sequence[Change], rate: float) -> None:
        self._groups = list(Changes(changes).transactions(-1))
        self._rate, self._next, self.begun = rate, 0, time.perf_counter()

    def appeared_at(self, seq: int) -> float:
        """Returns when a change was committed at the source."""
        return self.begun + seq / self._rate

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        """See `ChangeSource`; called in order."""
        while (
            self._next < len(self._groups) and self.appeared_at(self._groups[self._next][-1].seq) <= time.perf_counter()
        ):
            self._next += 1
            yield self._groups[self._next - 1]


def freshness(server: str, rate: float) -> dict[str, Any]:
    """Measures the time from the commit at the source until the change is visible in the target, at an offered rate."""
    first, changes = generated(0.01, int(rate * FRESH_S))
    dsn = prepared(server, first)
    lags: list[float] = []
    seen, batches = -1, 0
    with contextlib.closing(open_target(dsn)) as target:
        progress = target.open_stream("bench")
        source = Live(changes, rate)
        while seen < changes[-1].seq:
            for applied in carry(source, target, progress, SyncSettings()):
                now = time.perf_counter()
                lags += [now - source.appeared_at(seq) for seq in range(seen + 1, applied.through + 1)]
                seen, batches = applied.through, batches + 1
                progress = replace(progress, last_batch=applied.batch, position=applied.through)
            time.sleep(0.005)
    found = statistics.quantiles(lags, n=100)
    return {
        "offered_rows_s": round(rate),
        "seconds": FRESH_S,
        "batches": batches,
        "wrong_rows": wrong_rows(dsn, ends(first, changes)),
        "p50_ms": round(found[49] * 1000),
        "p99_ms": round(found[98] * 1000),
    }


def _relay(socket: str, delay_s: float, told: Connection) -> None:
    with Proxy(Path(socket), delay_s=delay_s) as proxy:
        proxy.be("delay")
        told.send(proxy.port)
        told.recv()


@contextlib.contextmanager
def far_away(directory: Path) -> Iterator[str]:
    """Yields the DSN of the same server, half a millisecond away in each direction; a process of its own delays the data."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_relay, args=(str(directory / ".s.PGSQL.5432"), DELAY_S, there), daemon=True
    )
    process.start()
    try:
        yield f"postgresql://postgres@127.0.0.1:{here.recv()}/postgres?sslmode=disable"
    finally:
        here.send("end")
        process.join()


def main() -> None:
    """Measures and writes the result."""
    result: dict[str, Any] = {
        "machine": machine(),
        "changes": CHANGES,
        "changes_row_by_row": FEW,
        "rounds": ROUNDS,
        "lanes": strategies.LANES,
    }
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        directory = Path(name) / "server"
        server = stack.enter_context(postgres_server(directory))
        far = stack.enter_context(far_away(directory))
        warm, few = generated(0.1, 500)
        ours("parallel")(prepared(server, warm), few)
        for away, through in (("local socket", None), ("1 ms round trip", far)):
            for share in SHARES:
                result[f"{away}, {share:.1%} hand-overs"] = one = compared(server, through, share)
                print(
                    away,
                    share,
                    {name: (facts["rows_s"], facts["wrong_rows_most"]) for name, facts in one.items()},
                    file=sys.stderr,
                )
        most = result[f"local socket, {0.01:.1%} hand-overs"]["ours, atomic"]["rows_s"]
        result["freshness, atomic"] = freshness(server, most / 2)
    result["most_memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    write("sync", result)


if __name__ == "__main__":
    main()
