"""The delay of a sync: by whose clocks it is measured, what is missing now, and where both are shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lakegate.config import parse
from lakegate.demo.database_servers import fresh_sqlite
from lakegate.syncs.session import Carrier, SyncSession
from lakegate.syncs.sources.debezium_envelope import RowChanged, read
from tests.cli.command import lakegate
from tests.syncs.commits import When, counted
from tests.syncs.envelopes import ended, of_tx, postgres, write
from tests.syncs.sync_of_files import execute

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY)"


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def committed(at_ms: int, lsn: int) -> dict[str, Any]:
    """An envelope of a commit at this time, which the connector read much later."""
    return {**postgres(lsn, ts_ms=at_ms), "ts_ms": now_ms()}


def begin(root: Path, more: str = "") -> Path:
    """A sync of files of envelopes to SQLite; returns the folder of the files."""
    fresh_sqlite(root).execute(TABLE)
    (root / "lakegate.yml").write_text(
        f"name: p\nsync:\n  crm:\n    from: {{files: c, format: debezium{more}}}\n    to: 'sqlite:{next(root.glob('*.db'))}'\n"
    )
    (root / "c").mkdir()
    return root / "c"


def opened(root: Path) -> SyncSession:
    """The sync."""
    pipeline = parse((root / "lakegate.yml").read_text(), origin="lakegate.yml", base_dir=str(root), environ={})
    return SyncSession(pipeline, pipeline.sync("crm"))


def test_a_delay_ends_with_the_commit_in_the_target_and_begins_with_that_at_the_source(tmp_path: Path) -> None:
    """Not with the begin of the batch, and not when the connector read the change."""
    at_ms, held_ms = now_ms() - 5_000, 100
    write(begin(tmp_path) / "1", committed(at_ms, 1), committed(at_ms, 2), committed(at_ms + 1_000, 3))
    times: list[int] = []

    def meet(number: int, when: When) -> None:
        if when == "before":
            time.sleep(held_ms / 1000)  # each commit takes so long
        else:
            times.append(now_ms())

    with opened(tmp_path) as sync:
        with counted(meet):
            passed = Carrier(sync, is_patient_from_the_start=False).carry()
            applied = next(passed)
            last_commit_ms = times[-1]
            assert list(passed) == []
        assert applied.commits == {at_ms: 2, at_ms + 1_000: 1}
        assert last_commit_ms <= applied.committed_at_ms <= now_ms()
        assert times.pop() > last_commit_ms  # the figures are recorded in a transaction of their own
        exact_ms = applied.committed_at_ms - at_ms
        found = sync.delay()
        assert found.p50_ms is not None
        assert found.p50_ms == found.p99_ms
        assert exact_ms - 1 <= found.p50_ms <= exact_ms * 1.1 + 1
        assert (found.changes, found.now_ms) == (3, 0)


def test_the_delay_now_is_the_age_of_the_oldest_missing_change(tmp_path: Path) -> None:
    """From the first change on; it grows while nobody applies it, and one of an unfinished transaction is missing, too."""
    folder = begin(tmp_path, ", transactions: ends")
    ends, at_ms = tmp_path / "ends" / "1", now_ms() - 60_000
    write(folder / "1", of_tx("7", 1, committed(at_ms, 1)), of_tx("8", 1, committed(at_ms + 30_000, 2)))
    write(ends, ended("7", t=1))

    def check(oldest_ms: int) -> None:
        begun_ms = now_ms()
        with opened(tmp_path) as sync:  # of another process
            found = sync.delay().now_ms
        assert found is not None
        assert begun_ms - oldest_ms <= found <= now_ms() - oldest_ms

    check(at_ms)
    assert lakegate("sync", "run", "--until-idle", "--spec", tmp_path).code == 0
    check(at_ms + 30_000)
    write(ends, ended("7", t=1), ended("8", t=1))
    assert lakegate("sync", "run", "--until-idle", "--spec", tmp_path).code == 0
    with opened(tmp_path) as sync:
        assert sync.delay().now_ms == 0
    (folder / "1").unlink()
    folder.rmdir()
    with opened(tmp_path) as sync:
        assert sync.delay().now_ms is None  # nobody knows


def test_the_commands_show_the_delay(tmp_path: Path) -> None:
    """The states, the comparison and the metrics; a target that is away ends no command that looks at everything."""
    folder = begin(tmp_path)
    write(folder / "1", committed(now_ms() - 5_000, 1))
    database = next(tmp_path.glob("*.db"))
    ran = lakegate("sync", "run", "--once", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    asked = {
        command: lakegate(*command.split(), "--spec", tmp_path, "--output", "json").json
        for command in ("status", "sync status", "sync verify")
    }
    figures = [found["syncs"][0]["delay"] for found in asked.values()]
    assert figures[0] == figures[1] == figures[2]
    assert (figures[0]["changes"], figures[0]["now_ms"]) == (1, 0)
    assert figures[0]["p50_ms"] >= 4_999
    for command in asked:
        assert "delay now 0 ms; p50 " in lakegate(*command.split(), "--spec", tmp_path).out
    metrics = lakegate("metrics", "--spec", tmp_path).out
    assert 'lakegate_sync_delay_now_seconds{sync="crm"} 0.0' in metrics
    assert f'lakegate_sync_delay_seconds{{quantile="0.99",sync="crm"}} {figures[0]["p99_ms"] / 1000}' in metrics

    database.unlink()
    (status,) = lakegate("status", "--spec", tmp_path, "--output", "json").json["syncs"]
    assert (status["delay"], "does not answer" in status["note"]) == (None, True)


def test_a_target_of_an_earlier_version_gets_the_table_of_delays(tmp_path: Path) -> None:
    """Until the next run its delay is unknown, and nothing is written for the question."""
    folder = begin(tmp_path)
    write(folder / "1", committed(now_ms(), 1))
    assert lakegate("sync", "run", "--once", "--spec", tmp_path).code == 0
    with opened(tmp_path) as sync:
        assert sync.delay().changes == 1
    execute(next(tmp_path.glob("*.db")), "DROP TABLE lakegate_delay")
    with opened(tmp_path) as sync:
        assert (sync.delay().changes, sync.delay().p50_ms) == (0, None)
    write(folder / "2", committed(now_ms(), 2))
    assert lakegate("sync", "run", "--once", "--spec", tmp_path).code == 0
    with opened(tmp_path) as sync:
        assert sync.delay().changes == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"ts_ms": 5, "snapshot": "false"}, 5),
        ({"snapshot": "false"}, 9),  # by the log's own clock
        ({"ts_ms": 5, "snapshot": "true"}, None),  # when the row was committed is not known
    ],
)
def test_the_time_of_a_change_is_that_of_its_commit(source: dict[str, Any], expected: int | None) -> None:
    """Not the time at which the connector read it."""
    one = postgres(1)
    del one["source"]["ts_ms"]
    found = read({**one, "ts_ms": 7, "source": {**one["source"], **source}}, recorded_at_ms=9)
    assert isinstance(found, RowChanged)
    assert found.committed_at_ms == expected
