"""Killed at any moment, a sync from PostgreSQL goes on when it is run again: no row is lost or doubled."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegate.demo.database_servers import Database, fresh_postgres, postgres_server
from lakegate.errors import CheckpointMismatch, InvalidRequest
from tests.syncs.postgres_source import applied, confirmed, same, session_of, slot_of, source_of, written

pytestmark = pytest.mark.postgres
TABLE = "CREATE TABLE t (id int PRIMARY KEY, k int UNIQUE, note text)"
DIES = """
import os, signal, sys
from dataclasses import replace
from lakegate.config import parse
from lakegate.syncs.session import SyncSession

pipeline = parse(open(sys.argv[1]).read(), origin="lakegate.yml", base_dir="/", environ={})
session = SyncSession(pipeline, pipeline.sync("crm"))
session._settings = replace(session._settings, changes_max=100)
left = int(sys.argv[2])
for batches in session.passes():
    for applied in batches:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def source(postgres: str) -> Iterator[Database]:
    """A source with a table of three batches."""
    with source_of(postgres) as database:
        database.execute(TABLE, "INSERT INTO t SELECT g, g, 'n' FROM generate_series(1, 25000) g")
        yield database


def killed_after(batches: int, source: Database, target: Database, folder: Path) -> None:
    """Runs the sync in a process that ends itself by SIGKILL after some batches: committed, and not confirmed to the slot."""
    path = folder / "lakegate.yml"
    path.write_text(written(source, target, ["t"]))
    ran = subprocess.run(
        [sys.executable, "-c", DIES, str(path), str(batches)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_killed_in_the_snapshot(mode: str, source: Database, postgres: str, tmp_path: Path) -> None:
    """The rows that the source has deleted since are not left over, and none is there twice."""
    target = fresh_postgres(postgres)
    target.execute(TABLE)
    killed_after(2, source, target, tmp_path)
    assert 0 < len(target.rows("t")) < 25_000
    source.execute("DELETE FROM t WHERE id < 50", "UPDATE t SET k = k + 1000000 WHERE id < 100")
    with session_of(source, target, ["t"], f"    mode: {mode}\n") as session:
        applied(session)
        source.execute("DELETE FROM t WHERE id = 1000")
        applied(session)
    assert same(source, target, "t")


def test_killed_between_the_targets_commit_and_the_slot(source: Database, postgres: str, tmp_path: Path) -> None:
    """The changes are sent again and dropped: an insert without a key would show it."""
    target = fresh_postgres(postgres)
    target.execute(TABLE.replace("PRIMARY KEY", "").replace("UNIQUE", ""))
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with session_of(source, target, ["t"]) as session:
        applied(session)
    for n in range(300):
        source.execute(f"INSERT INTO t VALUES ({100_000 + n}, {100_000 + n}, 'x')")
    killed_after(2, source, target, tmp_path)
    ((position,),) = target.query("SELECT position FROM lakegate_stream")
    assert confirmed(source) < position
    with session_of(source, target, ["t"]) as session:
        assert 100 <= sum(one.changes for one in applied(session)) < 300  # a batch takes what has arrived, 100 at most
    assert same(source, target, "t")


# ------------------------------------------------------------------------------------------------ servers of their own


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user may enter."""
    with tempfile.TemporaryDirectory(prefix="lakegate-postgres-") as name:
        yield Path(name)


def filled(server: str) -> tuple[Database, Database]:
    """A source with some rows and a target."""
    source, target = fresh_postgres(server), fresh_postgres(server)
    source.execute(TABLE, "INSERT INTO t SELECT g, g, 'n' FROM generate_series(1, 10) g")
    target.execute(TABLE)
    return source, target


def test_a_server_without_logical_decoding_is_refused(folder: Path) -> None:
    """With the statement that turns it on."""
    with postgres_server(folder / "d", settings=["wal_level=replica"]) as server:
        source, target = filled(server)
        with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="too little") as refused:
            applied(session)
        assert "ALTER SYSTEM SET wal_level" in str(refused.value)


def test_logins_that_may_not_read_are_refused(folder: Path) -> None:
    """Each message says what to grant."""
    with postgres_server(folder / "d") as server:
        source, target = filled(server)
        schema = source.dsn.rpartition("%3D")[2]
        source.execute("CREATE ROLE reader LOGIN", f"GRANT USAGE ON SCHEMA {schema} TO reader")
        dsn = source.dsn.replace("postgres@", "reader@")
        for grant, message, advice in (
            ("SELECT 1", "may not read the source's log", "REPLICATION"),
            ("ALTER ROLE reader REPLICATION", "may not create the publication", "CREATE PUBLICATION"),
            (f"CREATE PUBLICATION {slot_of(source)} FOR TABLE t", "may not read from the source", "GRANT SELECT"),
            ("GRANT SELECT ON t TO reader", "", ""),
        ):
            source.execute(grant)
            with session_of(source, target, ["t"], dsn=dsn) as session:
                if message:
                    with pytest.raises(InvalidRequest, match=message) as refused:
                        applied(session)
                    assert advice in str(refused.value)
                else:
                    applied(session)
        assert same(source, target, "t")


def test_a_slot_that_lost_its_log_is_reported_and_a_resync_goes_on(folder: Path) -> None:
    """The server may remove what the slot still needs."""
    sizes = ["wal_level=logical", "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB"]
    with postgres_server(folder / "d", settings=sizes) as server:
        source, target = filled(server)
        with session_of(source, target, ["t"]) as session:
            applied(session)
        source.execute("DELETE FROM t WHERE id = 1")
        for _ in range(4):
            source.execute(
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        with session_of(source, target, ["t"]) as session, pytest.raises(CheckpointMismatch, match="lost a part"):
            applied(session)
        with session_of(source, target, ["t"]) as session:
            session.resync()
        assert same(source, target, "t")


def test_a_server_that_lacks_what_the_target_has_is_refused(folder: Path, postgres: str) -> None:
    """After a fail-over to a server that goes on from an earlier position; one that has everything is read on."""
    target = fresh_postgres(postgres)
    target.execute(TABLE)
    with postgres_server(folder / "d") as server:
        source = fresh_postgres(server)
        source.execute(TABLE, "INSERT INTO t SELECT g, g, 'n' FROM generate_series(1, 10) g")
        with session_of(source, target, ["t"]) as session:
            applied(session)
    promote(folder)
    with postgres_server(folder / "d"):
        source.execute("DELETE FROM t WHERE id = 1")
        with session_of(source, target, ["t"]) as session:
            applied(session)
        assert same(source, target, "t")
        (place,) = target.query("SELECT place FROM lakegate_stream")[0]
        assert '"timeline":2' in place
        (end,) = source.query("SELECT pg_current_wal_lsn() - '0/0'")[0]
        # As if the target had what this server's first history lacks.
        target.execute(
            f"UPDATE lakegate_stream SET position = {int(end) - 1}, place = replace(place, '\"timeline\":2', '\"timeline\":1')"
        )
        for before, after in ((1, 1), (1, 3)):  # and as if it had them from a later history
            target.execute(
                f"UPDATE lakegate_stream SET place = replace(place, '\"timeline\":{before}', '\"timeline\":{after}')"
            )
            with session_of(source, target, ["t"]) as session, pytest.raises(CheckpointMismatch, match="not have"):
                applied(session)


def promote(folder: Path) -> None:
    """Lets the server begin another history when it starts, as a standby does that is promoted."""
    data = folder / "d" / "data"
    (data / "recovery.signal").touch()
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write("restore_command = 'false'\n")
