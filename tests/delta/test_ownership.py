"""The note that makes a table governed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.config.coordinators import coordinator_place
from lakegate.delta.ownership import GovernedTable, adopt, compare, read_governed, release, write_governed
from lakegate.errors import Corrupt, InvalidRequest, UnsupportedTable
from lakegate.ids import TableLocation
from tests.delta.delta_tables import commit_paths, ids, make_table, rows


def note_path(table: TableLocation) -> Path:
    return Path(table, "_lakegate", "table.json")


def test_a_table_is_adopted_and_released_without_a_commit(session: SparkSession, tmp_path: Path) -> None:
    """Only the note comes and goes; adopting twice keeps the first note."""
    table = make_table(session, tmp_path / "a table")
    assert read_governed(session, table) is None
    made = adopt(session, table, "L", "c", "link", created_at_ms=1)
    assert adopt(session, table, "L", "c", "link", created_at_ms=2) == made
    assert read_governed(session, table) == made
    assert json.loads(note_path(table).read_text()) == {
        "format": 1,
        "lock": "L",
        "coordinator_id": "c",
        "log_store": "link",
        "log_store_args": {},
        "created_at_ms": 1,
    }
    assert release(session, table)
    assert not release(session, table)
    assert read_governed(session, table) is None
    assert not note_path(table).parent.exists()
    assert len(commit_paths(table)) == 1


def test_what_is_no_table_is_not_adopted(session: SparkSession, tmp_path: Path) -> None:
    """Nothing is made at a path without a table."""
    path = tmp_path / "absent"
    assert read_governed(session, TableLocation(str(path))) is None
    with pytest.raises(InvalidRequest, match="no Delta table"):
        adopt(session, TableLocation(str(path)), "L", "c", "link")
    assert not path.exists()


def test_of_several_adopters_one_wins(session: SparkSession, tmp_path: Path) -> None:
    """All read the same note afterwards, and those with another lock are refused."""
    table = make_table(session, tmp_path / "t")

    def write(lock: str) -> GovernedTable:
        note = GovernedTable(lock=lock, coordinator_id="c", log_store="link", created_at_ms=1)
        return write_governed(session, table, note)

    with ThreadPoolExecutor(4) as pool:
        found = {note.lock for note in pool.map(write, "ABCD")}
    assert len(found) == 1
    with pytest.raises(InvalidRequest, match="another lock"):
        adopt(session, table, "E", "c", "link")


def test_another_lock_or_store_is_refused_and_another_coordinator_is_reported() -> None:
    """Writers that would not see each other do not start; a lost turn store is survived, and said."""
    table = TableLocation("/t")
    found = GovernedTable(
        lock="L", coordinator_id="c", log_store="dynamodb", log_store_args={"region": "r1"}, created_at_ms=1
    )
    assert compare(table, found, "L", "c", "dynamodb", log_store_args={"region": "r1"}) is None
    told = compare(table, found, "L", "d", "dynamodb", log_store_args={"region": "r1"})
    assert told is not None
    assert "lost or exchanged" in told
    with pytest.raises(InvalidRequest, match="another lock"):
        compare(table, found, "M", "c", "dynamodb", log_store_args={"region": "r1"})
    for store, args in (("dynamodb", {"region": "r2"}), ("link", {})):
        with pytest.raises(InvalidRequest, match="another store of commits"):
            compare(table, found, "L", "c", store, log_store_args=args)


def test_a_coordinator_at_another_place_is_refused_and_a_lost_one_is_reported() -> None:
    """Two that live do not see each other's turns; one whose data are new is where it was."""
    table, place = TableLocation("/t"), coordinator_place("zookeeper://a:2181,b/lake?session_timeout=30s")
    found = GovernedTable(lock="L", coordinator_id="c", coordinator=place, log_store="link", created_at_ms=1)
    for url in ("zookeeper://b:2181,c:2181/lake", "zookeeper://a/lake/?call_timeout=5s", "memory:"):
        told = compare(table, found, "L", "d", "link", coordinator=coordinator_place(url))
        assert told is not None
        assert "lost or exchanged" in told
    others = (
        "zookeeper://a:2181/Lake",
        "zookeeper://a:2181",
        "zookeeper://x/lake",
        "sqlite:/lake",
        "dynamodb://lake?region=eu-west-1",
    )
    for url in others:
        for coordinator_id in ("d", None):
            with pytest.raises(InvalidRequest, match="at another coordinator; nothing was written"):
                compare(table, found, "L", coordinator_id, "link", coordinator=coordinator_place(url))
        # The same data by another way, as through a proxy; and a note of a version that did not say the place.
        assert compare(table, found, "L", "c", "link", coordinator=coordinator_place(url)) is None
        assert compare(table, replace(found, coordinator=None), "L", "d", "link", coordinator=coordinator_place(url))


def test_notes_of_other_versions_are_respected(session: SparkSession, tmp_path: Path) -> None:
    """Unknown keys are kept, a newer format is refused, and what cannot be read is said to be corrupt."""
    table = make_table(session, tmp_path / "t")
    path = note_path(table)
    path.parent.mkdir()
    known = {"format": 1, "lock": "L", "coordinator_id": "c", "log_store": "link", "created_at_ms": 1}
    path.write_text(json.dumps({**known, "colour": "blue"}))
    note = read_governed(session, table)
    assert note is not None
    assert dict(note.others) == {"colour": "blue"}
    path.unlink()
    write_governed(session, table, note)
    assert json.loads(path.read_text())["colour"] == "blue"
    for text, error in ((json.dumps({**known, "format": 2}), InvalidRequest), ("{", Corrupt), ("[]", Corrupt)):
        path.write_text(text)
        path.with_name(".table.json.crc").unlink(missing_ok=True)
        with pytest.raises(error):
            read_governed(session, table)


def test_a_table_that_forgets_tokens_is_not_adopted(session: SparkSession, tmp_path: Path) -> None:
    """Delta drops tokens after `delta.setTransactionRetentionDuration`; a late writer would then be let in."""
    table = make_table(session, tmp_path / "t", setTransactionRetentionDuration="interval 30 days")
    with pytest.raises(UnsupportedTable, match="setTransactionRetentionDuration"):
        adopt(session, table, "L", "c", "link")
    assert not note_path(table).exists()


def test_delta_ignores_the_note(session: SparkSession, tmp_path: Path) -> None:
    """It survives VACUUM of everything, and neither reads nor writes of the table see it."""
    table = make_table(session, tmp_path / "t")
    rows(session, 1, 2).write.format("delta").mode("append").save(table)
    note = adopt(session, table, "L", "c", "link")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    stray = Path(table, "stray.parquet")
    stray.touch()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert not stray.exists()
    assert read_governed(session, table) == note
    assert ids(session, table) == [2]
