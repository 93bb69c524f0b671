"""Random statements on random tables: a quick execution leaves the same table, log and change feed as stock Delta."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.quick_or_stock import OF_FILES
from tests.rows.random_statements import Case, case_of
from tests.rows.two_copies import Pair, condition_of, flat

SERVED_MIN = 0.6
"""Of the statements that stock Delta executes; with fewer, the test compares stock Delta with itself."""
SEEDS = st.integers(0, 2**64 - 1)
NUMBERS = re.compile(r"#\d+L?")
TIME = re.compile(r"([+-]?\d{4,}-\d\d-\d\d)(?:T(\d\d:\d\d:\d\d(?:\.\d+)?)(Z|[+-][\d:]+)?)?")
EVALUATION = frozenset(
    {
        *("ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW", "DIVIDE_BY_ZERO", "CAST_INVALID_INPUT", "CAST_OVERFLOW"),
        *("REMAINDER_BY_ZERO", "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION", "DATETIME_OVERFLOW"),
    }
)
"""Conditions of errors that a value raises."""
OF_COMMIT = ("operation", "isolationLevel", "isBlindAppend", "readVersion")
OF_THE_FILE = frozenset({"path", "size", "modificationTime", "stats"})


class LastCommit(NamedTuple):
    """What the last commit of a table says."""

    file: str
    info: list[object]
    parameters: dict[str, str]
    metrics: dict[str, str]
    old_files: list[str]
    new_files: list[str]


@dataclass(frozen=True, slots=True)
class Copies(Pair):
    """Compares more than `Pair`, for columns of all types."""

    columns: dict[str, str]
    common: frozenset[str]
    """Data files that both copies have."""
    is_fed: bool

    def run(self, text: str) -> str | None:
        """Runs a statement on both, as `Pair` does, and compares the logs also if it fails."""
        expected, error = self.by_stock(text)
        done: Any = None
        with confs(self.session, {QUICK_CONF: "on"}):
            try:
                done = lakegate.sql(self.session, text.format(t=f"delta.`{self.quick}`"))
            except Exception as refused:
                self.equal(text, condition_of(refused), error and condition_of(error))
        if done is not None and error is not None and text.startswith("MERGE") and condition_of(error) in EVALUATION:
            raise OnlyStockFails
        if done is not None:
            self.equal(text, [tuple(row) for row in done.collect()], expected and [tuple(row) for row in expected])
        quick, stock = self.last(self.quick), self.last(self.stock)
        if stock.metrics.get("numSourceRows") == "0":
            # Spark does not read the source where it finds while planning that the condition cannot hold.
            quick.metrics["numSourceRows"] = "0"
        self.equal(text, quick, stock)
        if done is None:
            return "it fails"
        why: str | None = done.lakegate.why_stock
        return why

    def equal(self, text: str, quick: object, stock: object) -> None:
        """Asserts that two things are equal, and says where they begin to differ."""
        if quick != stock:
            at = next((i for i, (a, b) in enumerate(zip(str(quick), str(stock), strict=False)) if a != b), 0)
            start = max(0, at - 100)
            raise AssertionError(
                f"{text}\nquick: …{str(quick)[start : at + 400]}\nstock: …{str(stock)[start : at + 400]}"
            )

    def last(self, path: str) -> LastCommit:
        """Returns the last commit's actions, without the names, sizes and times of new files."""
        file = max((Path(path) / "_delta_log").glob("*.json"))
        actions: list[dict[str, Any]] = [
            json.loads(line, parse_float=Decimal) for line in file.read_text().splitlines()
        ]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        parameters = {name: NUMBERS.sub("#", text) for name, text in info["operationParameters"].items()}
        metrics = {name: count for name, count in info["operationMetrics"].items() if not OF_FILES.search(name)}
        old, new = [], set()
        for kind, body in ((kind, body) for action in actions for kind, body in action.items()):
            body = {name: part for name, part in body.items() if part != {}}  # `tags` may be missing
            if kind in ("add", "remove") and body["path"] in self.common:
                vector = body.pop("deletionVector", None)
                statistics = json.loads(body.pop("stats", None) or "null", parse_float=Decimal)
                if kind == "remove":  # stock Delta has the statistics that it needed itself
                    statistics = statistics and statistics["numRecords"]
                body.pop("deletionTimestamp", None)
                old.append(str((kind, in_order(body), vector and vector["cardinality"], in_order(statistics))))
            elif kind == "add" and "deletionVector" not in body:
                described = {name: part for name, part in body.items() if name not in OF_THE_FILE}
                new.add(json.dumps([kind, described], sort_keys=True))
            elif kind == "cdc":
                new.add(json.dumps([kind, body.get("partitionValues"), body["dataChange"]], sort_keys=True))
            elif kind not in ("add", "remove", "commitInfo"):
                new.add(
                    json.dumps(
                        [kind, {k: v for k, v in body.items() if k != "lastUpdated"}], sort_keys=True, default=str
                    )
                )
        told = [info.get(name) for name in OF_COMMIT]
        return LastCommit(file.name, told, parameters, metrics, sorted(old), sorted(new))

    def rows(self, path: str) -> Sequence[str]:
        """Returns all rows as texts which tell -0.0 from 0.0 and the two hours of one local time apart."""
        return sorted(map(str, self._texts(self.session.read.format("delta").load(path)).collect()))

    def feed(self, path: str) -> Sequence[str]:
        """Returns the change feed from the copy on."""
        if not self.is_fed:
            return []
        first = 1 + int(max((Path(path) / "_delta_log").glob("*.copied")).stem)
        if first > int(max((Path(path) / "_delta_log").glob("*.json")).stem):
            return []
        fed = (
            self.session.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .load(path)
        )
        return sorted(map(str, self._texts(fed, "_change_type", "_commit_version").collect()))

    def statistics(self, path: str) -> Sequence[object]:
        """Returns the statistics of all new files of each version and partition together."""
        found: dict[object, dict[str, Any]] = {}
        for file in sorted((Path(path) / "_delta_log").glob("*.json")):
            for line in file.read_text().splitlines():
                add = json.loads(line).get("add")
                if add is None or add.get("deletionVector") or add["path"] in self.common:
                    continue
                statistics = json.loads(add["stats"], parse_float=Decimal)
                merged = found.setdefault((file.name, json.dumps(add["partitionValues"], sort_keys=True)), {"rows": 0})
                merged["rows"] += statistics["numRecords"]
                merged.setdefault("others", set()).update(
                    {
                        name: str(part)
                        for name, part in statistics.items()
                        if not isinstance(part, dict) and name != "numRecords"
                    }.items()
                )
                for part, join in (
                    ("minValues", min),
                    ("maxValues", max),
                    ("nullCount", lambda two: sum(x for _, x in two)),
                ):
                    for name, one in flat(statistics.get(part, {})):
                        at = f"{part}.{name}"
                        given = (0, one) if part == "nullCount" else ordered(one)
                        joined = join([given, merged[at]]) if at in merged else given
                        merged[at] = (0, joined) if isinstance(joined, int) else joined
        return sorted((str(place), str(sorted(merged.items(), key=str))) for place, merged in found.items())

    def _texts(self, frame: DataFrame, *more: str) -> DataFrame:
        texts = []
        for name, kind in self.columns.items():
            column = F.col(f"`{name}`")
            if kind == "TIMESTAMP":
                column = F.unix_micros(column)
            elif kind == "BINARY":
                column = F.hex(column)
            elif kind.startswith(("STRUCT", "ARRAY")):
                column = F.to_json(column, {"ignoreNullFields": "false"})
            texts.append(column.cast("string").alias(name))
        return frame.select(*texts, *more)


def in_order(value: object) -> object:
    """Returns a part of a JSON text with sorted keys, and numbers of one form."""
    if isinstance(value, dict):
        return sorted((name, in_order(part)) for name, part in value.items())
    return value.normalize() if isinstance(value, Decimal) else value


def ordered(value: object) -> tuple[object, ...]:
    """Returns a value of the statistics so that Python orders it as Spark does."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return (1, {"NaN": 2, "Infinity": 1, "-Infinity": -1}[value])
    if isinstance(value, str) and (time := TIME.fullmatch(value)) is not None:
        year, month, day = re.fullmatch(r"([+-]?\d+)-(\d\d)-(\d\d)", time[1]).groups()  # type: ignore[union-attr]
        return (2, int(year), int(month), int(day), time[2] or "", time[3] or "")
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return (1, 0, (Decimal(value) + 0).normalize())  # 0.0 and -0.0 are one bound
    return (3, str(value))


class OnlyStockFails(Exception):
    """Stock Delta evaluates the condition of a MERGE also in files whose keys cannot match; there a value made it fail."""


class Tally:
    """Counts why statements were left to stock Delta."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def check(self) -> None:
        """Asserts that a good share was served."""
        served, failed = self.reasons["served"], self.reasons["it fails"]
        assert served >= SERVED_MIN * (self.reasons.total() - failed), self.reasons.most_common()


def compare(
    session: SparkSession, folder: Path, case: Case, tally: Tally, more: Iterable[tuple[str, str]] = ()
) -> None:
    """Runs a case on two copies, and compares them after each statement and at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    stock, quick = folder / "stock", folder / "quick"
    with confs(
        session,
        {"spark.sql.session.timeZone": case.zone, "spark.sql.ansi.enabled": str(case.is_ansi).lower(), **dict(more)},
    ):
        session.sql(f"CREATE TABLE delta.`{stock}` {case.ddl}")
        session.sql(f"INSERT INTO delta.`{stock}` {case.rows}")
        for text in case.before:
            try:
                session.sql(text.format(t=f"delta.`{stock}`"))
            except Exception:  # a value cannot be cast, or a row violates the constraint
                continue
        last = max((stock / "_delta_log").glob("*.json"))
        last.with_suffix(".copied").touch()
        shutil.copytree(stock, quick)
        common = frozenset(
            json.loads(line)["add"]["path"]
            for file in (stock / "_delta_log").glob("*.json")
            for line in file.read_text().splitlines()
            if "add" in json.loads(line)
        )
        copies = Copies(session, str(stock), str(quick), case.columns, common, "enableChangeDataFeed" in case.ddl)
        for text in case.statements:
            try:
                why = copies.run(text)
            except OnlyStockFails:  # from here on the tables may differ
                tally.reasons["it fails"] += 1
                return
            tally.reasons["served" if why is None else why] += 1
        for what in (copies.rows, copies.places, copies.schemas, copies.feed, copies.statistics):
            copies.equal(what.__name__, what(copies.quick), what(copies.stock))


FOUND = {
    "a decimal in the statistics keeps its digits": Case(
        "(i INT, d2 DECIMAL(18,4)) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "SELECT * FROM VALUES (1, 99999999999999.1234), (2, 99999999999999.1233), (3, 0)",
        (),
        ("DELETE FROM {t} WHERE i = 2",),
        "UTC",
        True,
        {"i": "INT", "d2": "DECIMAL(18,4)"},
    ),
    "a row that is gone fails no condition": Case(
        "(i INT, s STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "SELECT /*+ REPARTITION(1) */ * FROM VALUES (0, 'zero'), (1, 'one'), (2, 'two')",
        ("DELETE FROM {t} WHERE i = 0",),
        ("UPDATE {t} SET s = 'half' WHERE 1 / i = 0.5",),
        "UTC",
        True,
        {"i": "INT", "s": "STRING"},
    ),
    "a column has another name in the files": Case(
        "(i INT, s STRING) USING delta PARTITIONED BY (s) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')",
        "SELECT id, IF(id < 5, 'a', 'b') FROM range(0, 10, 1, 1)",
        (),
        ("DELETE FROM {t} WHERE s = 'a' AND i < 3", "UPDATE {t} SET i = 10 WHERE s <=> 'b' AND i = 9"),
        "UTC",
        True,
        {"i": "INT", "s": "STRING"},
    ),
    "a condition that cannot hold": Case(
        "(i INT, s STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "SELECT /*+ REPARTITION(1) */ * FROM VALUES (0, 'zero'), (1, 'one')",
        (),
        (
            "MERGE INTO {t} t USING (SELECT * FROM VALUES (0, 'a'), (1, 'b') AS v(i, s)) s ON t.i = s.i AND t.i = 1 "
            "AND CAST(t.i AS STRING) = '6' WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
        ),
        "UTC",
        True,
        {"i": "INT", "s": "STRING"},
    ),
}
"""What random statements have found."""


@pytest.mark.every_case
@pytest.mark.parametrize("name", FOUND)
def test_what_random_statements_found_stays_right(session: SparkSession, tmp_path: Path, name: str) -> None:
    """Every statement is served, and does what stock Delta does."""
    tally = Tally()
    compare(session, tmp_path / "t", FOUND[name], tally)
    assert tally.reasons.keys() == {"served"}


def test_keys_without_an_equal_do_what_stock_delta_does(session: SparkSession, tmp_path: Path) -> None:
    """NaN is equal to itself and -0.0 to 0.0; NULL matches nothing, and its row is inserted."""
    case = Case(
        "(i INT, db DOUBLE, s STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true')",
        "SELECT /*+ REPARTITION(1) */ * FROM VALUES (1, 0.0D, 'zero'), (2, -0.0D, 'minus'), (3, double('NaN'), 'nan'), "
        "(4, NULL, 'null'), (NULL, 1.5D, 'one')",
        (),
        (
            "MERGE INTO {t} t USING (SELECT * FROM VALUES (-0.0D), (double('NaN')), (CAST(NULL AS DOUBLE)) AS v(db)) s "
            "ON t.db = s.db WHEN MATCHED THEN UPDATE SET s = 'matched' WHEN NOT MATCHED THEN INSERT (db, s) VALUES (s.db, 'new')",
            "MERGE INTO {t} t USING (SELECT * FROM VALUES (NULL, 'a'), (2, 'b'), (7, 'c') AS v(i, s)) s "
            "ON t.i = s.i WHEN MATCHED THEN UPDATE SET s = s.s WHEN NOT MATCHED THEN INSERT (i, s) VALUES (s.i, s.s)",
        ),
        "UTC",
        True,
        {"i": "INT", "db": "DOUBLE", "s": "STRING"},
    )
    tally = Tally()
    compare(session, tmp_path / "t", case, tally)
    assert tally.reasons["served"] >= 1


def test_random_statements_do_what_stock_delta_does(session: SparkSession, tmp_path: Path) -> None:
    """The same few tables and statements in each run."""
    tally = Tally()

    @settings(derandomize=True, max_examples=2, database=None, phases=[Phase.generate])
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        compare(session, tmp_path / "t", case_of(seed, statements=5), tally)

    run()
    tally.check()


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.every_case
@pytest.mark.parametrize("compiled", ["interpreted", "compiled"])
def test_many_random_statements_do_what_stock_delta_does(
    session: SparkSession, tmp_path: Path, compiled: str, request: pytest.FixtureRequest
) -> None:
    """Other ones in each run, with and without the code that Spark generates for stock Delta; `--hypothesis-seed` repeats a run."""
    tally = Tally()
    more = [
        ("spark.sql.codegen.wholeStage", "true" if compiled == "compiled" else "false"),
        ("spark.sql.codegen.factoryMode", "FALLBACK" if compiled == "compiled" else "NO_CODEGEN"),
    ]

    @settings(
        max_examples=60,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        compare(session, tmp_path / "t", case_of(seed, statements=12), tally, more)

    run()
    tally.check()
    print(tally.reasons.most_common())
