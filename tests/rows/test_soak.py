"""Statements on real tables, all at once, against their serial order: random ones, and the anomalies that databases know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

from harness.soak import Run, soak
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.sql import statement
from tests.conftest import data_dir

RUN = Run(kind="cdf", seed="7.cdf", threads=4, seconds=12)
LONG_RUNS = [
    # Of the drivers one is stopped for a while, and killed at the end.
    Run(kind="partitioned", seed="7.partitioned", drivers=2, threads=3, seconds=35, is_disturbed=True),
    Run(kind="plain", seed="7.plain", threads=4, seconds=120, statements_max=5),
    *(Run(kind=kind, seed=f"7.{kind}", threads=6, seconds=60) for kind in ("tracked", "mapped", "copied", "all")),
    Run(kind="cdf", seed="7.cdf", drivers=3, threads=3, seconds=90, is_disturbed=True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [RUN, *(pytest.param(run, marks=pytest.mark.matrix) for run in LONG_RUNS)],
    ids=lambda run: f"{run.kind}-{run.drivers}x{run.threads}",
)
@pytest.mark.timeout(900)
def test_every_version_is_the_serial_replay_of_the_log(session: SparkSession, tmp_path: Path, run: Run) -> None:
    """Rows, change feed and row ids of each version follow from the statements in the log's order; none of them raised."""
    report = soak(session, tmp_path / "t", run)
    print(f"{report.HEAD}\n{report}")
    assert report.commits > 0
    followed = [record for record in report.records.values() if record.version is not None and (record.level or 0) > 0]
    assert followed, "no statement was rebased: this compares only what stock Delta does alone"
    assert not report.mismatches, f"{run}\n" + "\n".join(report.mismatches)


# -------------------------------------------------------------------------------------------------------------- anomalies

Op = Sequence[Any]
"""`append`, a key, a value; or `r`, a key, and the list that was read."""
Reads = Mapping[tuple[int, int], Sequence[int]]
"""Transaction and place in it → the list that it read there."""


@dataclass(frozen=True)
class History:
    """Transactions that are said to have happened."""

    id: str
    transactions: Sequence[tuple[str, Sequence[Op]]]
    """How each ended, and what it did."""
    is_serializable: bool

    @property
    def reads(self) -> Reads:
        """Returns the values that they are said to have read."""
        ended = [(number, ops) for number, (type_, ops) in enumerate(self.transactions) if type_ == "ok"]
        return {(number, place): op[2] for number, ops in ended for place, op in enumerate(ops) if op[0] == "r"}

    def serial(self, order: Sequence[int]) -> tuple[Reads, Mapping[str, Sequence[int]]]:
        """Returns the reads of transactions that run in this order on empty lists, and the lists afterwards."""
        lists: dict[str, list[int]] = {}
        reads: dict[tuple[int, int], list[int]] = {}
        for number in order:
            for place, op in enumerate(self.transactions[number][1]):
                if op[0] == "append":
                    lists.setdefault(op[1], []).append(op[2])
                else:
                    reads[number, place] = list(lists.get(op[1], []))
        return reads, lists

    def orders(self) -> Iterator[tuple[int, ...]]:
        """All serial orders: of those that are known to have ended well, with and without those that are not."""
        ok = [number for number, (type_, _) in enumerate(self.transactions) if type_ == "ok"]
        info = [number for number, (type_, _) in enumerate(self.transactions) if type_ == "info"]
        for some in chain.from_iterable(combinations(info, count) for count in range(len(info) + 1)):
            yield from permutations([*ok, *some])


def histories() -> list[History]:
    """The labelled ones, where the data sets are."""
    file = data_dir() / "isolation_anomalies.json"
    if not file.exists():
        return []
    return [
        History(said["id"], [(each["type"], each["ops"]) for each in said["transactions"]], said["serializable"])
        for said in json.loads(file.read_text())["histories"]
    ]


class Translation(Protocol):
    """Transactions on lists as statements on a table: each is one statement that appends, and writes down what it reads."""

    columns: str

    def base(self, table: str, keys: Sequence[str]) -> str | None:
        """Returns the rows that the table needs before."""
        ...

    def text(self, table: str, number: int, ops: Sequence[Op]) -> str:
        """A transaction."""
        ...

    def found(self, session: SparkSession, table: str) -> tuple[Reads, Mapping[str, Sequence[int]]]:
        """Returns the values that were read, and the lists."""
        ...


class _ByKey:
    """A row for each key: its list, and its readers."""

    columns = "k STRING, list ARRAY<INT>, seen ARRAY<STRUCT<number: INT, place: INT, list: ARRAY<INT>>>"

    def found(self, session: SparkSession, table: str) -> tuple[Reads, Mapping[str, Sequence[int]]]:
        rows = session.sql(f"SELECT * FROM {table}").collect()
        assert len({row.k for row in rows}) == len(rows), f"a key has two rows: {rows}"
        reads = {(number, place): list_ for row in rows for number, place, list_ in row.seen}
        return reads, {row.k: row.list for row in rows if row.list}


class AsUpdate(_ByKey):
    """UPDATE of the keys' rows, which are there from the start: it reads and writes each row for itself."""

    def base(self, table: str, keys: Sequence[str]) -> str | None:
        rows = ", ".join(f"('{key}', cast(array() AS ARRAY<INT>), {_seen(0, [], 'array()')})" for key in keys)
        return f"INSERT INTO {table} VALUES {rows}"

    def text(self, table: str, number: int, ops: Sequence[Op]) -> str:
        by_key = _by_key(ops)
        lists = " ".join(f"WHEN '{key}' THEN concat(list, {_appended(own)})" for key, own in by_key.items())
        seen = " ".join(f"WHEN '{key}' THEN concat(seen, {_seen(number, own)})" for key, own in by_key.items())
        keys = ", ".join(f"'{key}'" for key in by_key)
        return f"UPDATE {table} SET list = CASE k {lists} END, seen = CASE k {seen} END WHERE k IN ({keys})"


class AsMerge(_ByKey):
    """MERGE of the keys: the first that comes inserts the key."""

    def base(self, table: str, keys: Sequence[str]) -> str | None:
        return None

    def text(self, table: str, number: int, ops: Sequence[Op]) -> str:
        source = " UNION ALL ".join(
            f"SELECT '{key}' k, {_appended(own)} list, {_reads(own)} reads" for key, own in _by_key(ops).items()
        )
        seen = (
            f"transform(x.reads, r -> named_struct('number', {number}, 'place', r.place, "
            "'list', concat({before}, slice(x.list, 1, r.after))))"
        )
        return (
            f"MERGE INTO {table} t USING ({source}) x ON t.k = x.k WHEN MATCHED THEN UPDATE SET "
            f"list = concat(t.list, x.list), seen = concat(t.seen, {seen.format(before='t.list')}) WHEN NOT MATCHED THEN "
            f"INSERT (k, list, seen) VALUES (x.k, x.list, {seen.format(before='cast(array() AS ARRAY<INT>)')})"
        )


class AsInsert:
    """INSERT … SELECT: a row for each operation, which says what the table's other rows come to."""

    columns = "number INT, place INT, k STRING, rank INT, v INT, seen ARRAY<INT>"

    def base(self, table: str, keys: Sequence[str]) -> str | None:
        return None

    def text(self, table: str, number: int, ops: Sequence[Op]) -> str:
        selects = []
        for place, (kind, key, value) in enumerate(ops):
            own = [op[2] for op in ops[:place] if op[0] == "append" and op[1] == key]
            there = f"FROM {table} WHERE k = '{key}' AND v IS NOT NULL"
            if kind == "append":
                rank = f"(SELECT cast(count(*) AS INT) {there}) + {len(own)}"
                selects.append(f"SELECT {number}, {place}, '{key}', {rank}, {value}, cast(NULL AS ARRAY<INT>)")
            else:
                before = f"(SELECT transform(array_sort(collect_list(struct(rank, v))), e -> e.v) {there})"
                list_ = f"concat({before}, {_ints(own)})"
                selects.append(f"SELECT {number}, {place}, '{key}', cast(NULL AS INT), cast(NULL AS INT), {list_}")
        return f"INSERT INTO {table} " + " UNION ALL ".join(selects)

    def found(self, session: SparkSession, table: str) -> tuple[Reads, Mapping[str, Sequence[int]]]:
        lists: dict[str, list[int]] = {}
        reads = {}
        for row in session.sql(f"SELECT * FROM {table} ORDER BY rank").collect():
            if row.seen is None:
                lists.setdefault(row.k, []).append(row.v)
            else:
                reads[row.number, row.place] = row.seen
        return reads, lists


def _by_key(ops: Sequence[Op]) -> Mapping[str, Sequence[tuple[int, Op]]]:
    """Key → its operations, with their places."""
    found: dict[str, list[tuple[int, Op]]] = {}
    for place, op in enumerate(ops):
        found.setdefault(op[1], []).append((place, op))
    return found


def _ints(values: Sequence[int]) -> str:
    return f"cast(array({', '.join(map(str, values))}) AS ARRAY<INT>)"


def _appended(own: Sequence[tuple[int, Op]]) -> str:
    return _ints([op[2] for _, op in own if op[0] == "append"])


def _placed(own: Sequence[tuple[int, Op]]) -> list[tuple[int, int]]:
    """Place of each read, and how many of its transaction's appends it follows."""
    return [
        (place, sum(other[0] == "append" for _, other in own[:at]))
        for at, (place, op) in enumerate(own)
        if op[0] == "r"
    ]


def _reads(own: Sequence[tuple[int, Op]]) -> str:
    structs = ", ".join(f"named_struct('place', {place}, 'after', {after})" for place, after in _placed(own))
    return f"cast(array({structs}) AS ARRAY<STRUCT<place: INT, after: INT>>)"


def _seen(number: int, own: Sequence[tuple[int, Op]], before: str = "list") -> str:
    structs = ", ".join(
        f"named_struct('number', {number}, 'place', {place}, 'list', concat({before}, slice({_appended(own)}, 1, {after})))"
        for place, after in _placed(own)
    )
    return f"cast(array({structs}) AS ARRAY<STRUCT<number: INT, place: INT, list: ARRAY<INT>>>)"


HISTORIES = histories()
ANOMALIES = [history for history in HISTORIES if not history.is_serializable]
TRANSLATIONS: Sequence[Translation] = (AsMerge(), AsUpdate(), AsInsert())


def is_short(history: History, translation: Translation) -> bool:
    """Returns whether the short tests include it: each anomaly in one translation, each translation of every third anomaly."""
    return translation is TRANSLATIONS[ANOMALIES.index(history) % len(TRANSLATIONS)]


@pytest.mark.data
def test_the_labels_are_what_the_serial_orders_say() -> None:
    """A history is labelled serializable just if some serial order has its reads."""
    assert HISTORIES
    for history in HISTORIES:
        is_some = any(history.serial(order)[0].items() >= history.reads.items() for order in history.orders())
        assert is_some == history.is_serializable, history.id


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("history", "translation"),
    [
        pytest.param(
            history,
            translation,
            id=f"{history.id}-{type(translation).__name__}",
            marks=[] if is_short(history, translation) else pytest.mark.matrix,
        )
        for history in ANOMALIES
        for translation in TRANSLATIONS
    ],
)
def test_an_anomaly_cannot_be_produced(
    session: SparkSession, tmp_path: Path, history: History, translation: Translation
) -> None:
    """All transactions are computed on the same version, then published: what comes out is the serial order of the log."""
    path = tmp_path / "t"
    table = f"delta.`{path}`"
    session.sql(
        f"CREATE TABLE {table} ({translation.columns}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    keys = sorted({op[1] for _, ops in history.transactions for op in ops})
    if (base := translation.base(table, keys)) is not None:
        session.sql(base)
    staged: list[Staged] = []
    for number, (_, ops) in enumerate(history.transactions):
        dml = statement(session, translation.text(table, number, ops))
        assert dml is not None
        staged.append(publisher(session).stage(dml))
    order = [number for number, (type_, _) in enumerate(history.transactions) if type_ != "fail"]
    at = [publisher(session).finish(staged[number]).version for number in order]
    assert None not in at
    assert at == sorted(at, key=lambda version: version or 0)
    reads, lists = translation.found(session, table)
    assert (reads, lists) == history.serial(order)
    assert reads != history.reads, "the anomaly has happened"
