"""The bytes of erased rows on real Delta tables: present after the erasure, removed from every file in time, and reported."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.config import Append, Erase
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.local_files import LocalLog
from lakegate.errors import InvalidRequest
from lakegate.ops.erasure import BytesLeft, bytes_left
from tests.stream_bench import DAY_MS, Bench, Crash, HandClock, mutate, stream, table

RECORD, REQUEST, ERASURE = (
    "id string, alias string",
    "alias string, person string, op string",
    "person string, op string",
)
PERSON = "person-zebra-4711"
WITHIN_MS = 30 * DAY_MS
SECOND = {"delta.deletedFileRetentionDuration": "interval 1 second"}
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    # The smallest and largest values of a column would stand in the table's log.
    "delta.dataSkippingNumIndexedCols": "0",
    **SECOND,
}


@pytest.fixture(scope="module", autouse=True)
def plain_files(session: SparkSession) -> Iterator[None]:
    """Values stand in files as they are, so that they can be looked for."""
    with confs(session, {"spark.sql.parquet.compression.codec": "uncompressed"}):
        yield


def bench(session: SparkSession, root: Path, *, is_whole: bool = True, **properties: str) -> Bench:
    """Ingestion with dead letters, mutations that wait for rows, and erasures whose bytes go within 30 days.

    Without `is_whole`, erasures from the table alone, which is faster.
    """
    streams = (
        stream("In", Append(columns={"person": "alias"}), on_bad_record="dead_letter"),
        stream("Mut", mutate(match={"alias": "alias"}, set_={"person": "person"}, applies_to="arrived")),
        stream("TTL", Erase(match={"person": "person"}, lift_when=None, physical_within_ms=WITHIN_MS), every_ms=DAY_MS),
    )
    columns = "id STRING, alias STRING, person STRING"
    spec = table(columns, properties={**PROPERTIES, **properties})
    if not is_whole:
        streams = (streams[0].model_copy(update={"on_bad_record": "fail"}), streams[2])
    return Bench(session, str(root), streams, spec, clock=HandClock(now_ms=time.time_ns() // 1_000_000))


def erased(session: SparkSession, root: Path, **properties: str) -> Bench:
    """A person in a row among others, erased."""
    b = bench(session, root, is_whole=False, **properties)
    b.run("In", [("1", "a"), ("2", PERSON), ("3", "b")], RECORD, 0)
    b.run("TTL", [(PERSON, "erase")], ERASURE, 0)
    assert b.rows("id") == [("1",), ("3",)]
    return b


def holding(folder: str) -> list[str]:
    """The files of a table, its log included, in which the person's id stands."""
    files = (file for file in Path(folder).rglob("*") if file.is_file())
    return sorted(str(file.relative_to(folder)) for file in files if PERSON.encode() in file.read_bytes())


def left(b: Bench) -> BytesLeft:
    others = [LocalLog(Path(b.root, "_lakegate", name)) for name in ("requests/Mut", "dead_letters/In")]
    found = bytes_left("TTL", LocalLog(Path(b.target)), others, within_ms=WITHIN_MS)
    assert found is not None
    return found


def after_a_second(name: str) -> None:
    """Delta's clock is the machine's: files that were replaced just now are to be a second old at a VACUUM."""
    if name == "vacuum":
        time.sleep(1.5)


def test_bytes_are_gone_from_every_file_in_time(session: SparkSession, tmp_path: Path) -> None:
    """Not before it is due; then, concurrently with another writer, from data, change feed, requests and dead letters."""
    b = bench(session, tmp_path)
    b.run("In", [("1", "a"), ("2", PERSON), ("3", "b"), ("!", f'{{"person":"{PERSON}"')], RECORD, 0)
    b.run("Mut", [("late", "Q", "set"), ("nobody", PERSON, "set")], REQUEST, 0)
    for name in ("requests/Mut", "dead_letters/In"):
        said = ", ".join(f"'{key}' = '{value}'" for key, value in SECOND.items())
        session.sql(f"ALTER TABLE delta.`{tmp_path}/_lakegate/{name}` SET TBLPROPERTIES ({said})")
    b.run("TTL", [(PERSON, "erase")], ERASURE, 0)
    assert b.rows("id") == [("1",), ("3",)]
    tables = [b.target, f"{tmp_path}/_lakegate/requests/Mut", f"{tmp_path}/_lakegate/dead_letters/In"]
    assert [bool(holding(folder)) for folder in tables] == [True, True, True]
    assert any(name.startswith("_change_data/") for name in holding(b.target))
    before = left(b)
    assert before.with_deletion_vectors == 1
    assert before.change_data == 1
    assert before.in_requests >= 2
    assert before.with_deletion_vectors_bytes > 0
    assert before.until_ms == (before.since_ms or 0) + WITHIN_MS
    assert not b.stream("TTL").has_sweep_work()

    b.clock.now_ms += 27 * DAY_MS  # 30 days, less an hour that files are kept, less a turn for each of both
    assert not b.stream("TTL").has_sweep_work()
    b.clock.now_ms += 2 * DAY_MS
    assert b.stream("TTL").has_sweep_work()
    rows = session.createDataFrame([("9", "c", "c")], "id string, alias string, person string")
    rows.write.format("delta").mode("append").save(b.target)
    b.sweep("TTL", 0, before=after_a_second)
    assert [holding(folder) for folder in tables] == [[], [], []]
    assert b.rows("id") == [("1",), ("3",), ("9",)]
    after = left(b)
    assert (after.files, after.since_ms, after.until_ms) == (0, None, None)
    assert not b.stream("TTL").has_sweep_work()
    assert b.stream("TTL").idle_at() == {b.target: b.log.head(b.target)}
    # What still waits in the request table, which was rewritten and vacuumed, meets its row when that comes.
    b.run("In", [("4", "late")], RECORD, 1)
    b.sweep("Mut", 0)
    assert ("4", "Q") in b.rows("id", "person")


@pytest.mark.matrix
def test_a_crash_between_purge_and_vacuum_repeats_the_vacuum(session: SparkSession, tmp_path: Path) -> None:
    """The purge tells that it was done, and since when its files wait; the next turn goes on from there."""
    b = erased(session, tmp_path)
    b.clock.now_ms += WITHIN_MS
    with pytest.raises(Crash):
        b.sweep("TTL", 0, crash_before=frozenset({"vacuum"}))
    assert left(b).with_deletion_vectors == 0
    assert left(b).removed >= 1
    assert left(b).until_ms is not None
    turn = b.turn("TTL", 1, is_sweep=True, before=after_a_second)
    b.stream("TTL").run_sweep(turn, 1)
    assert turn.written == ["vacuum"]
    assert holding(b.target) == []
    assert left(b).files == 0


@pytest.mark.matrix
def test_without_deletion_vectors_old_files_are_deleted_all_the_same(session: SparkSession, tmp_path: Path) -> None:
    """The erasure itself has rewritten them; nothing is left to purge."""
    b = erased(session, tmp_path, **{"delta.enableDeletionVectors": "false"})
    assert holding(b.target)
    b.clock.now_ms += WITHIN_MS
    b.sweep("TTL", 0, before=after_a_second)
    assert holding(b.target) == []
    assert "REORG" not in [commit.operation for commit in LocalLog(Path(b.target)).commits()]


@pytest.mark.slow
def test_a_time_that_the_table_does_not_allow_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """The table keeps files for longer than the bytes may be there: said before anything is done."""
    b = erased(session, tmp_path, **{"delta.deletedFileRetentionDuration": "interval 29 days"})
    b.clock.now_ms += WITHIN_MS
    version = b.log.head(b.target)
    with pytest.raises(InvalidRequest, match=r"30d is too short: the table keeps .* for 29d .* every 1d"):
        b.sweep("TTL", 0)
    assert b.log.head(b.target) == version
