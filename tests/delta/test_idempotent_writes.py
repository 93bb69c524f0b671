"""Statements that carry a token, and lost races, on real Delta tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lakegate.delta.idempotent_writes import (
    APP_ID_CONF,
    AUTO_RESET_CONF,
    NUMBER_CONF,
    append,
    conflicts,
    create_table,
    single_write,
    tokened,
)
from lakegate.delta.table_log import DeltaTableLog
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.ports import StatementConflict
from tests.delta.delta_tables import (
    COLUMNS,
    QUERY,
    commit_paths,
    commit_stock,
    foreign_commit,
    ids,
    last_add,
    make_table,
    number,
    remove_of,
    rows,
    stale_transaction,
    txn,
    write_token,
)
from tests.waiting import wait_until, waits_for


@pytest.fixture(scope="module")
def log(session: SparkSession) -> DeltaTableLog:
    """Makes one reader for all tests: each test has a table of its own."""
    return DeltaTableLog(session)


def test_the_first_append_makes_the_table_with_its_token(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """Version 0 carries the token, so that a repetition of it is known."""
    table = TableLocation(str(tmp_path / "t"))
    for _ in range(2):
        append(rows(session, 1), table, write_token(1, 0))
    reading = log.read_tokens(table)
    assert (reading.version, dict(reading.tokens)) == (0, {QUERY: number(1, 0)})
    assert ids(session, table) == [1]


def test_settings_are_as_before_after_a_tokened_block(session: SparkSession) -> None:
    """Also when the block fails, and also where the user had set something of his own."""

    def fail() -> None:
        with single_write(session, write_token(1, 0)):
            assert session.conf.get(APP_ID_CONF) == QUERY
            raise ZeroDivisionError

    session.conf.set(APP_ID_CONF, "mine")
    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert session.conf.get(APP_ID_CONF) == "mine"
        assert [session.conf.get(key, None) for key in (NUMBER_CONF, AUTO_RESET_CONF)] == [None, None]
    finally:
        session.conf.unset(APP_ID_CONF)


def test_what_a_statement_that_finds_nothing_leaves(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """A DELETE makes no commit: its step reads as not applied and runs again. UPDATE and MERGE commit their token alone."""
    table = make_table(session, tmp_path / "t")
    with tokened(session, write_token(1, 0)):
        session.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    assert log.head(table) == 0
    update = f"UPDATE delta.`{table}` SET v = 'x' WHERE id = 1"
    merge = f"MERGE INTO delta.`{table}` t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE"
    for version, statement in enumerate((update, merge), start=1):
        with tokened(session, write_token(1, version)):
            session.sql(statement)
        (commit,) = log.commits(table, Version(version - 1), log.head(table))
        assert (commit.added, commit.removed, dict(commit.tokens)) == ((), (), {QUERY: number(1, version)})


Second = Callable[[SparkSession, TableLocation], object]
SECOND_WRITES: dict[str, Second] = {
    "append": lambda session, table: rows(session, 8).write.format("delta").mode("append").save(table),
    "insert": lambda session, table: session.sql(f"INSERT INTO delta.`{table}` VALUES (8, 'x')"),
    "delete": lambda session, table: session.sql(f"DELETE FROM delta.`{table}` WHERE id = 1"),
    "merge": lambda session, table: session.sql(
        f"MERGE INTO delta.`{table}` t USING (SELECT 8L AS id, 'x' AS v) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    ),
    "save as table": lambda session, table: (
        rows(session, 8).write.format("delta").mode("append").saveAsTable("second_t")
    ),
}


@pytest.mark.parametrize("second", SECOND_WRITES)
def test_a_second_write_without_a_step_is_an_error(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, second: str
) -> None:
    """Stock Delta would skip it in silence; here it is refused before it writes, and the first one stays."""
    table = make_table(session, tmp_path / "t")
    session.sql("DROP TABLE IF EXISTS second_t")

    def user_code() -> None:
        session.sql(f"DELETE FROM delta.`{table}` WHERE id = 99")
        SECOND_WRITES["append"](session, table)
        SECOND_WRITES[second](session, table)

    with (
        pytest.raises(InvalidRequest, match=r"second write without a step.*turn\.step"),
        single_write(session, write_token(1, 0)),
    ):
        user_code()
    assert log.read_tokens(table).version == 1
    assert log.read_tokens(table).tokens == {QUERY: number(1, 0)}
    assert ids(session, table) == [8]
    assert not session.catalog.tableExists("second_t")


@pytest.mark.parametrize("kind", ["append", "prepared append", "merge"])
def test_an_entry_commit_stops_a_write_that_is_under_way(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, kind: str
) -> None:
    """The zombie began before its token was raised and commits afterwards: it gets an error, and nothing is written."""
    table = make_table(session, tmp_path / "t")
    append(rows(session, 1), table, write_token(1, 0))
    started, released = tmp_path / "started", tmp_path / "released"
    zombie = session.newSession()
    source = waits_for(rows(zombie, 1, 2), started, released)

    def write() -> None:
        if kind == "prepared append":
            log.read_tokens(table)
            log.prepare_write(table)
        if kind != "merge":
            append(source, table, write_token(1, 1))
            return
        source.createOrReplaceTempView("slow_source")
        with conflicts(), tokened(zombie, write_token(1, 1)):
            zombie.sql(
                f"MERGE INTO delta.`{table}` t USING slow_source s ON t.id = s.id "
                "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
            )

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        wait_until(lambda: started.exists() or writing.done())
        assert log.commit_entry(table, Version(1), ((QUERY, number(2, 0)),), "{}") == "done"
        released.touch()
        with pytest.raises(StatementConflict, match=r"CONCURRENT_TRANSACTION|ConcurrentTransaction"):
            writing.result()
    assert log.read_tokens(table).version == 2
    assert ids(session, table) == [1]


def lose(session: SparkSession, table: TableLocation, kind: str) -> None:
    """Commits a stock transaction after a commit that conflicts with it in the given way."""
    add = last_add(table)
    new = {**add, "path": "new.parquet"}
    with stale_transaction(session, table) as (jvm, transaction):
        if kind == "transaction":
            transaction.txnVersion(QUERY)
        elif kind != "delete_delete":
            transaction.readWholeTable()
        ours: dict[str, Any] = txn("x", 1)
        match kind:
            case "append":
                foreign_commit(table, {"add": new})
            case "delete_read":
                foreign_commit(table, remove_of(add))
            case "delete_delete":
                foreign_commit(table, remove_of(add))
                ours = remove_of(add)
            case "transaction":
                foreign_commit(table, txn(QUERY, number(2, 0)))
            case "metadata":
                first = commit_paths(table)[0].read_text().split("\n")
                metadata = next(line for line in first if line.startswith('{"metaData"'))
                changed = {"metaData": {**_body(metadata), "configuration": {"a": "b"}}}
                foreign_commit(table, changed)
            case "protocol":
                foreign_commit(table, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}})
                ours = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
        commit_stock(jvm, transaction, ours)


def _body(line: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(line)["metaData"]
    return body


@pytest.mark.parametrize("kind", ["append", "delete_read", "delete_delete", "transaction", "metadata", "protocol"])
def test_each_conflict_of_delta_is_reported_as_a_conflict(session: SparkSession, tmp_path: Path, kind: str) -> None:
    """Delta's own checker finds the conflict; the caller sees one class, with Delta's word in the message."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1).write.format("delta").mode("append").save(table)
    words = kind.title().replace("_", "")
    with pytest.raises(StatementConflict, match=rf"(?i){kind}|{words}"), conflicts():
        lose(session, table, kind)


def test_a_conflict_is_known_in_any_wrapping(session: SparkSession, tmp_path: Path) -> None:
    """Raised inside the `foreachBatch` of another query, and as the cause of a user's own error."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1).write.format("delta").mode("append").save(table)

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        lose(session, table, "delete_read")

    source = tmp_path / "in"
    rows(session, 1).write.parquet(str(source))
    stream = session.readStream.schema(COLUMNS).parquet(str(source)).writeStream.foreachBatch(write_batch)
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(StatementConflict, match=r"DELETE_READ|DeleteRead"), conflicts():
        query.awaitTermination()

    def user_code() -> None:
        try:
            lose(session, table, "transaction")
        except Exception as error:
            raise RuntimeError("my own words") from error

    with pytest.raises(StatementConflict), conflicts():
        user_code()
    with pytest.raises(RuntimeError, match="no race"), conflicts():
        raise RuntimeError("no race: [DELTA_CONCURRENT_APPEND] is only quoted")


def test_a_table_is_made_once_and_taken_if_it_agrees(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """Many creators at once: one version, no error. Other columns or partitions are an error, and change nothing."""
    table = TableLocation(str(tmp_path / "t"))
    columns = (
        "id BIGINT NOT NULL COMMENT 'it''s', d STRUCT<a: INT>, v VARCHAR(9), g BIGINT GENERATED ALWAYS AS (id * 2)"
    )
    properties = {"delta.enableDeletionVectors": "true", "quoted": 'it\'s \\ "x"'}

    def create() -> None:
        create_table(session, table, columns, partition_by=["v"], properties=properties)

    with ThreadPoolExecutor(2) as pool:
        for made in [pool.submit(create) for _ in range(2)]:
            made.result()
    metadata = log.metadata(table)
    assert (metadata.version, metadata.partition_columns) == (0, ("v",))
    assert metadata.properties["quoted"] == properties["quoted"]
    for other, partition_by in ((columns, []), (columns.replace(" NOT NULL", ""), ["v"]), ("id BIGINT", [])):
        with pytest.raises(InvalidRequest, match="other columns or partitions"):
            create_table(session, table, other, partition_by=partition_by)
    with pytest.raises(InvalidRequest, match="cannot be parsed"):
        create_table(session, table, "id BIGINT NOT")
    assert log.head(table) == 0


def test_a_clustered_table_can_be_made(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """`cluster_by` gives liquid clustering."""
    table = TableLocation(str(tmp_path / "t"))
    create_table(session, table, COLUMNS, cluster_by=["id"])
    assert "clustering" in log.metadata(table).features


def test_an_append_is_delta_s_own(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """Generated columns, constraints, schema checks and merging, the skip, and the commit are those of the stock writer."""
    table = make_table(session, tmp_path / "t", "id BIGINT, g BIGINT GENERATED ALWAYS AS (id * 2), p STRING")
    session.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT small CHECK (id < 100)")
    one = session.range(1, 2).selectExpr("id", "'x' AS p").coalesce(1)
    for _ in range(2):
        append(one, table, write_token(1, 0))
    append(one, table, write_token(0, 9))
    assert log.head(table) == 2
    for wrong in (
        one.selectExpr("id + 100 AS id", "p"),
        one.selectExpr("'x' AS id", "p"),
        one.selectExpr("*", "1 AS new"),
    ):
        with pytest.raises((AnalysisException, Py4JJavaError)):
            append(wrong, table, write_token(1, 1))
    append(one.selectExpr("*", "1 AS new"), table, write_token(1, 1), options={"mergeSchema": "true"})
    found = session.read.format("delta").load(table).collect()
    assert sorted(tuple(row) for row in found if row.new) == [(1, 2, "x", 1)]
    assert len(found) == 2
    info = json.loads(commit_paths(table)[2].read_text().split("\n")[0])["commitInfo"]
    assert (info["operation"], info["isBlindAppend"], info["readVersion"]) == ("WRITE", True, 1)
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": "[]"}
    assert info["operationMetrics"]["numOutputRows"] == "1"


@pytest.mark.slow
def test_an_append_of_rows_chosen_by_reading_the_table_sees_other_writers(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """Rows that were chosen because the table lacks them are not written if another writer has added them since."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1).write.format("delta").mode("append").save(table)
    started, released = tmp_path / "started", tmp_path / "released"
    present = session.read.format("delta").load(table).select("id")
    lacking = waits_for(rows(session, 1, 2), started, released).join(present, "id", "leftanti")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(append, lacking, table, write_token(1, 0))
        wait_until(lambda: started.exists() or writing.done())
        foreign_commit(table, {"add": {**last_add(table), "path": "other.parquet"}})
        released.touch()
        with pytest.raises(StatementConflict, match=r"CONCURRENT_APPEND|ConcurrentAppend"):
            writing.result()
    assert log.head(table) == 2
