"""Common ways to carry changes to a PostgreSQL database with unique keys, as baselines for `sync.py`.

Each takes changes in source order, applies them, and counts the failures. None is part of Lakegate.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from typing import Any

import psycopg
from psycopg import errors

from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.conflict_graph import components

LANES = 8
PER_COMMIT = 50
WINDOW = 10_000
TRIES = 5
ROW_TRIES = 20
COLUMNS = ("id", "grp", "name", "uk1", "uk2")
NAMES = ", ".join(COLUMNS)
UNIQUE = (("uk1",), ("uk2", "grp"))
CONFLICTS = (errors.UniqueViolation, errors.DeadlockDetected, psycopg.errors.PipelineAborted)
Lanes = Iterable[Sequence[Change]]


def statement(change: Change) -> tuple[str, list[Any]]:
    """Returns the change as one statement, and its parameters."""
    if change.op == "d":
        assert change.before is not None
        return f"DELETE FROM {change.table} WHERE id = %s", [change.before["id"]]
    assert change.after is not None
    values = [change.after[name] for name in COLUMNS]
    if change.op == "c":
        return f"INSERT INTO {change.table} ({NAMES}) VALUES (%s, %s, %s, %s, %s)", values
    return f"UPDATE {change.table} SET grp = %s, name = %s, uk1 = %s, uk2 = %s WHERE id = %s", [*values[1:], values[0]]


def row(change: Change) -> tuple[str, int]:
    """Returns the row that the change concerns."""
    image = change.after or change.before
    assert image is not None
    return change.table, image["id"]


def connected(dsn: str) -> psycopg.Connection[Any]:
    """Opens a connection that prepares its statements."""
    connection = psycopg.connect(dsn)
    connection.prepare_threshold = 1
    return connection


def serial(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies one statement after the other, with a commit for each source transaction."""
    with connected(dsn) as connection:
        for _, group in groupby(changes, key=lambda change: change.tx):
            for change in group:
                connection.execute(*statement(change))
            connection.commit()
    return Counter()


def executemany(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies runs of one statement in order by `executemany`, all in a pipeline, with a commit every thousand changes."""
    with connected(dsn) as connection:
        for begin in range(0, len(changes), 1000):
            with connection.pipeline(), connection.cursor() as cursor:
                runs = groupby(map(statement, changes[begin : begin + 1000]), key=lambda one: one[0])
                for sql, group in runs:
                    cursor.executemany(sql, [values for _, values in group])
            connection.commit()
    return Counter()


def by_table(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies the changes of each table in a lane of its own."""
    lanes: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        lanes[change.table].append(change)
    return _side_by_side(dsn, lanes.values())


def by_key(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies changes in lanes by hash of the primary key, with retries."""
    return _side_by_side(dsn, _by_key(changes))


def queue(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies changes as the article does: rows that share a unique value go through a queue for each table, other rows by hash."""
    found: Counter[str] = Counter()
    for begin in range(0, len(changes), WINDOW):
        window = changes[begin : begin + WINDOW]
        sharing = {one for holders in _holders(window) if len(holders) > 1 for one in holders}
        lanes = _by_key([change for change in window if row(change) not in sharing])
        queues: dict[str, list[Change]] = defaultdict(list)
        for change in window:
            if row(change) in sharing:
                queues[change.table].append(change)
        for queued in sorted(queues.values(), key=len, reverse=True):
            min(lanes, key=len).extend(queued)
        found += _side_by_side(dsn, lanes)
    return found


def by_component(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies changes row by row, with rows that are connected by unique values in one lane."""
    found: Counter[str] = Counter()
    for begin in range(0, len(changes), WINDOW):
        window = changes[begin : begin + WINDOW]
        number = {one: n for n, one in enumerate(dict.fromkeys(map(row, window)))}
        pairs = [(number[a], number[b]) for holders in _holders(window) for a, b in pairwise(holders)]
        lane_of: dict[int, int] = {}
        load = [0] * LANES
        for group in components(pairs):
            least = load.index(min(load))
            load[least] += len(group)
            lane_of.update(dict.fromkeys(group, least))
        lanes: list[list[Change]] = [[] for _ in range(LANES)]
        for change in window:
            n = number[row(change)]
            lanes[lane_of.get(n, n % LANES)].append(change)
        found += _side_by_side(dsn, lanes)
    return found


def bulk_upsert(dsn: str, changes: Sequence[Change]) -> Counter[str]:
    """Applies each row's last image, partitioned by primary key: `ON CONFLICT` in bulk, then deletes; gives up after retries."""
    found: Counter[str] = Counter()
    lock = threading.Lock()

    def part(connection: psycopg.Connection[Any], last: list[Change]) -> None:
        for attempt in range(TRIES):
            try:
                with connection.cursor() as cursor:
                    for (table, is_gone), group in groupby(
                        sorted(last, key=lambda one: (one.table, one.op == "d")),
                        key=lambda one: (one.table, one.op == "d"),
                    ):
                        rows = list(group)
                        if is_gone:
                            cursor.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", ([row(one)[1] for one in rows],))
                            continue
                        columns = [[(one.after or {})[name] for one in rows] for name in COLUMNS]
                        cursor.execute(
                            f"INSERT INTO {table} ({NAMES}) SELECT * FROM "
                            "unnest(%s::bigint[], %s::int[], %s::text[], %s::bigint[], %s::text[]) ON CONFLICT (id) "
                            "DO UPDATE SET grp = excluded.grp, name = excluded.name, uk1 = excluded.uk1, uk2 = excluded.uk2",
                            columns,
                        )
                connection.commit()
                return
            except CONFLICTS as error:
                connection.rollback()
                with lock:
                    found[_kind(error)] += 1
                    found["retries"] += 1
                time.sleep(0.005 * random.random() * 2**attempt)
        with lock:
            found["changes given up"] += len(last)

    with _Pool(dsn) as pool:
        for begin in range(0, len(changes), WINDOW):
            last = {row(change): change for change in changes[begin : begin + WINDOW]}
            pool.each(part, _by_key(list(last.values())))
    return found


def _kind(error: Exception) -> str:
    return "deadlocks" if isinstance(error, errors.DeadlockDetected) else "violations"


def _by_key(changes: Sequence[Change]) -> list[list[Change]]:
    lanes: list[list[Change]] = [[] for _ in range(LANES)]
    for change in changes:
        lanes[hash(row(change)) % LANES].append(change)
    return lanes


def _holders(window: Sequence[Change]) -> list[list[tuple[str, int]]]:
    """Returns for each unique value the rows that have it, before or after."""
    found: dict[Any, dict[tuple[str, int], None]] = defaultdict(dict)
    for change in window:
        for image in (change.before, change.after):
            if image is not None:
                for key in UNIQUE:
                    found[(change.table, *((name, image[name]) for name in key))][row(change)] = None
    return [list(holders) for holders in found.values()]


class _Pool:
    """A connection and a thread for each lane."""

    def __init__(self, dsn: str) -> None:
        self._connections = [connected(dsn) for _ in range(LANES)]
        self._threads = ThreadPoolExecutor(LANES)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def each(self, work: Callable[[psycopg.Connection[Any], list[Change]], None], lanes: Lanes) -> None:
        """Waits until all are done."""
        lists = [list(lane) for lane in lanes if lane]
        list(self._threads.map(work, self._connections, lists))


def _side_by_side(dsn: str, lanes: Lanes) -> Counter[str]:
    """Runs each lane in its own order; retries a refused transaction as a whole, then row by row, then sets its rows aside."""
    found: Counter[str] = Counter()
    lock = threading.Lock()

    def tried(connection: psycopg.Connection[Any], some: Sequence[Change], tries: int) -> bool:
        for attempt in range(tries):
            try:
                for change in some:
                    connection.execute(*statement(change))
                connection.commit()
                return True
            except CONFLICTS as error:
                connection.rollback()
                with lock:
                    found[_kind(error)] += 1
                    found["retries"] += 1
                time.sleep(0.002 * random.random() * (attempt + 1))
        return False

    def lane(connection: psycopg.Connection[Any], changes: list[Change]) -> None:
        for begin in range(0, len(changes), PER_COMMIT):
            some = changes[begin : begin + PER_COMMIT]
            if not tried(connection, some, TRIES):
                for change in some:
                    if not tried(connection, [change], ROW_TRIES):
                        with lock:
                            found["changes given up"] += 1

    with _Pool(dsn) as pool:
        pool.each(lane, lanes)
    return found
