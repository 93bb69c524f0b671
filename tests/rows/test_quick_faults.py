"""Damaged files, refused statements, killed processes: a quick execution says what stock Delta says, and does nothing by halves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.quick import QUICK_CONF
from tests.rows.two_copies import condition_of
from tests.waiting import wait_until

VECTORS = "'delta.enableDeletionVectors' = 'true'"
ROWS = 1_000
AFTERWARDS = "UPDATE {t} SET v = -1 WHERE id = 900"
"""Of the second file, which no fault touches."""


def commits(table: Path) -> list[Path]:
    """Returns the commits of a table's log."""
    return sorted((table / "_delta_log").glob("*.json"))


def files(table: Path) -> list[Path]:
    """Returns a table's two data files: that with id 0 first."""
    adds = [json.loads(line).get("add") for line in commits(table)[1].read_text().splitlines()]
    first = {json.loads(add["stats"])["minValues"]["id"]: table / add["path"] for add in adds if add is not None}
    return [first[low] for low in sorted(first)]


def made(session: SparkSession, table: Path) -> Path:
    """Makes a table of two files with 500 rows each; `z` is 0 in row 7."""
    session.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, v INT, z INT, s STRING) USING delta TBLPROPERTIES ({VECTORS})"
    )
    session.sql(
        f"INSERT INTO delta.`{table}` SELECT id, CAST(id AS INT), IF(id = 7, 0, 1), concat('s', id) FROM range(0, {ROWS}, 1, 2)"
    )
    return table


def rewritten(session: SparkSession, table: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Returns a copy whose log describes the files of the INSERT in another way, as another writer would do."""
    copy = table.with_name("rewritten")
    shutil.copytree(table, copy)  # of which nothing is cached
    path = commits(copy)[1]
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            change(action["add"])
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for checksum in (path.with_suffix(".crc"), path.with_name(f".{path.name}.crc")):
        checksum.unlink(missing_ok=True)
    # A commit of stock Delta writes a new one, without which the quick execution does not trust the list of files.
    session.sql(f"INSERT INTO delta.`{copy}` VALUES (5000, 1, 1, 's')")
    return copy


def written(path: Path, data: bytes) -> None:
    """Writes a file without the checksum that the local file system keeps next to it."""
    path.write_bytes(data)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def outcome(run: Callable[[], object]) -> tuple[str, object, BaseException | None]:
    """Returns how a statement ended: the class and the condition of its error."""
    try:
        run()
    except Exception as error:
        return type(error).__name__, condition_of(error), error
    return "done", None, None


def both(session: SparkSession, table: Path, text: str) -> tuple[str, str | None]:
    """Runs a statement on the table, and by stock Delta on a copy; returns its outcome, and why it was not served.

    Asserts that both end equally, that an error leaves the log alone, and that the next statement works.
    """
    # The caches of both engines know nothing of the copies, as in a process that has just started.
    quick, stock = table.with_name("quick"), table.with_name("stock")
    for copy in (quick, stock):
        shutil.copytree(table, copy)
    expected = outcome(lambda: session.sql(text.format(t=f"delta.`{stock}`")).collect())
    log = {path.name: path.read_bytes() for path in commits(quick)}
    found: list[Any] = []
    with confs(session, {QUICK_CONF: "on"}):
        said = outcome(lambda: found.append(lakegate.sql(session, text.format(t=f"delta.`{quick}`"))))
        assert said[:2] == expected[:2], (str(said[2])[:500], str(expected[2])[:500])
        if said[0] != "done":
            assert {path.name: path.read_bytes() for path in commits(quick)} == log
        after = lakegate.sql(session, AFTERWARDS.format(t=f"delta.`{quick}`"))
        assert after.lakegate.version == len(log) + (said[0] == "done")
    session.sql(AFTERWARDS.format(t=f"delta.`{stock}`"))
    if said[0] == "done":
        one, other = (session.read.format("delta").load(str(copy)).orderBy("id").collect() for copy in (quick, stock))
        assert one == other
    return said[0], found[0].lakegate.why_stock if found else None


def truncated(table: Path) -> None:
    """A data file ends too early."""
    path = files(table)[0]
    written(path, path.read_bytes()[: path.stat().st_size // 2])


def flipped(table: Path) -> None:
    """The bytes of a data file's pages were changed; its footer is whole."""
    path = files(table)[0]
    data = bytearray(path.read_bytes())
    for at in range(4, 1500):
        data[at] ^= 0xFF
    written(path, bytes(data))


def removed(table: Path) -> None:
    """A data file was removed behind Delta's back."""
    files(table)[0].unlink()


@pytest.mark.every_case
@pytest.mark.parametrize("damage", [truncated, flipped, removed])
def test_a_damaged_data_file_is_reported_as_by_stock_delta(
    session: SparkSession, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The error is the same, and a statement on other files works."""
    table = made(session, tmp_path / "t")
    damage(table)
    assert both(session, table, "UPDATE {t} SET v = 0 WHERE id = 5")[0] != "done"


@pytest.mark.every_case
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_damaged_deletion_vector_is_reported_as_by_stock_delta(
    session: SparkSession, tmp_path: Path, is_missing: bool
) -> None:
    """No row that was deleted comes back."""
    table = made(session, tmp_path / "t")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id % 3 = 0 AND id < 400")
    (vector,) = table.glob("**/deletion_vector*.bin")
    data = bytearray(vector.read_bytes())
    vector.unlink()
    if not is_missing:
        data[20:] = bytes(255 - byte for byte in data[20:])
        written(vector, bytes(data))
    assert both(session, table, "UPDATE {t} SET v = 0 WHERE id IN (3, 5)")[0] != "done"


def test_a_file_without_statistics_is_served_by_stock_delta(session: SparkSession, tmp_path: Path) -> None:
    """Its number of rows is unknown; nothing is skipped."""
    table = made(session, tmp_path / "t")
    table = rewritten(session, table, lambda add: add.pop("stats"))
    said, why = both(session, table, "DELETE FROM {t} WHERE id = 5")
    assert said == "done"
    assert why == "a file has no statistics"


@pytest.mark.every_case
@pytest.mark.parametrize(
    "bound", ['"five"', *(pytest.param(one, marks=pytest.mark.matrix) for one in ("[1]", "null", "1.5", "{}", "true"))]
)
def test_statistics_of_another_type_hide_no_row(session: SparkSession, tmp_path: Path, bound: str) -> None:
    """They are those of another writer: a bound that cannot be compared rules out no file."""
    table = made(session, tmp_path / "t")

    def spoil(add: dict[str, Any]) -> None:
        statistics = json.loads(add["stats"])
        statistics["minValues"]["id"] = statistics["maxValues"]["id"] = json.loads(bound)
        add["stats"] = json.dumps(statistics)

    assert both(session, rewritten(session, table, spoil), "DELETE FROM {t} WHERE id = 5 AND v < 1000") == (
        "done",
        None,
    )


FAILS = {
    "two source rows for one row": "MERGE INTO {t} t USING (SELECT * FROM VALUES (5, 1), (5, 2) AS s(id, v)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v",
    "a column that does not exist": "DELETE FROM {t} WHERE nothing = 1",
    "a condition that is no condition": "DELETE FROM {t} WHERE id + 1",
    "an aggregate in a condition": "UPDATE {t} SET v = 1 WHERE max(id) = 5",
    "a division by zero in a condition": "DELETE FROM {t} WHERE v / z > 1000",
    "a division by zero in a value": "UPDATE {t} SET v = v / z WHERE id IN (6, 7)",
    "a cast in a condition": "DELETE FROM {t} WHERE CAST(s AS INT) = 5",
    "a cast in a value": "UPDATE {t} SET v = CAST(s AS INT) WHERE id = 5",
    "a value that is too large": "UPDATE {t} SET v = 3000000000 WHERE id = 5",
    "a division by zero in a source": "MERGE INTO {t} t USING (SELECT 1 DIV 0 AS id) s ON t.id = s.id "
    "WHEN MATCHED THEN DELETE",
    "a division by zero in a clause": "MERGE INTO {t} t USING (SELECT 7 AS id) s ON t.id = s.id "
    "WHEN MATCHED AND v / z > 1 THEN DELETE",
    "a cast in an INSERT": "INSERT INTO {t} SELECT 2000, CAST('x' AS INT), 1, 's'",
}

FAILS_FIRST = (
    "two source rows for one row",
    "a division by zero in a condition",
    "a cast in a value",
    "a cast in an INSERT",
)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "what", [what if what in FAILS_FIRST else pytest.param(what, marks=pytest.mark.matrix) for what in FAILS]
)
def test_a_statement_that_fails_fails_as_by_stock_delta(session: SparkSession, tmp_path: Path, what: str) -> None:
    """With the same error; nothing is committed."""
    assert both(session, made(session, tmp_path / "t"), FAILS[what])[0] != "done"


LOOP = """
import sys
import lakegate

table, seed = sys.argv[1], int(sys.argv[2])
spark = lakegate.session("killed", conf={"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.lakegate.quick": "on"})
from tests.rows.test_quick_faults import step
number = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0][0] - 1
while True:
    number += 1
    done = lakegate.sql(spark, step(seed, number).format(t=f"delta.`{table}`")).lakegate
    assert done.version == number + 1
    print(number, done.why_stock or "served", flush=True)
"""


def step(seed: int, number: int) -> str:
    """Returns the statement of a number, which always changes rows."""
    chance = Random(seed * 1_000_003 + number)
    low = chance.randrange(0, ROWS, 20)
    mark = f"({-number}, {number}, {number})"
    if chance.random() < 0.5:
        return f"UPDATE {{t}} SET v = v + {number}, number = {number} WHERE id >= {low} AND id < {low + 30} OR id = 0"
    rows = ", ".join(f"({low + at}, {chance.randint(0, 99)}, {number})" for at in range(0, 40, 3))
    return (
        f"MERGE INTO {{t}} t USING (SELECT * FROM VALUES {mark}, {rows} AS s(id, v, number)) s ON t.id = s.id "
        "WHEN MATCHED AND s.v < 10 THEN DELETE WHEN MATCHED THEN UPDATE SET v = t.v + s.v, number = s.number "
        "WHEN NOT MATCHED THEN INSERT (id, v, number) VALUES (s.id, s.v, s.number)"
    )


def killed_rounds(session: SparkSession, folder: Path, rounds: int, seed: int) -> int:
    """Kills a writer in each round, and compares the table with a serial replay by stock Delta; returns the number of commits."""
    table, replay = folder / "t", folder / "replay"
    for path in (table, replay):
        session.sql(
            f"CREATE TABLE delta.`{path}` (id BIGINT, v BIGINT, number BIGINT) USING delta "
            f"TBLPROPERTIES ({VECTORS}, 'delta.enableChangeDataFeed' = 'true')"
        )
        session.sql(f"INSERT INTO delta.`{path}` SELECT id, id, 0 FROM range(0, {ROWS}, 1, 2)")
    chance, replayed = Random(seed), 0
    for turn in range(rounds):
        told = folder / f"told{turn}"
        with told.open("w") as output, (folder / f"errors{turn}").open("w") as errors:
            child = subprocess.Popen(
                [sys.executable, "-c", LOOP, str(table), str(seed)],
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            try:
                wait_until(lambda told=told, child=child: "served" in told.read_text() or child.poll() is not None)
                time.sleep(chance.uniform(0.0, 1.5))
            finally:
                os.killpg(child.pid, signal.SIGKILL)  # Python and its JVM, in the same moment
                child.wait()
        assert "served" in told.read_text(), (folder / f"errors{turn}").read_text()[-2000:]
        # What the log has is what happened: the numbers of its commits are those of the statements, without a gap.
        last = int(commits(table)[-1].stem) - 1
        acknowledged = [int(line.split()[0]) for line in told.read_text().splitlines() if line.count(" ")]
        assert max(acknowledged) <= last <= max(acknowledged) + 1
        assert [int(path.stem) for path in commits(table)] == [*range(last + 2)]
        for number in range(replayed + 1, last + 1):
            session.sql(step(seed, number).format(t=f"delta.`{replay}`"))
        replayed = last
        one, other = (
            sorted(tuple(row) for row in session.read.format("delta").load(str(path)).collect())
            for path in (table, replay)
        )
        assert one == other
        fed = [
            sorted(
                tuple(row)
                for row in session.read.format("delta")
                .options(readChangeFeed="true", startingVersion=2)
                .load(str(path))
                .drop("_commit_timestamp")
                .collect()
            )
            for path in (table, replay)
        ]
        assert fed[0] == fed[1]
    return replayed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_writer_leaves_whole_statements(session: SparkSession, tmp_path: Path) -> None:
    """`kill -9` at random times: the table is a serial replay of the statements in its log, and the next process goes on."""
    assert killed_rounds(session, tmp_path, rounds=2, seed=1) > 2


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_a_writer_that_is_killed_many_times_leaves_whole_statements(session: SparkSession, tmp_path: Path) -> None:
    """The same, often, at times of its own in each run."""
    assert killed_rounds(session, tmp_path, rounds=20, seed=int(time.time())) > 20
