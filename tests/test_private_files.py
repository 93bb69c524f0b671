"""Permissions of the files that the product writes: its owner may read; also a group where the folder says so."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegate.ids import JobName
from lakegate.private_files import make_folder, open_file, write_file
from lakegate.telemetry.ledger import LedgerSink
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.telemetry.ended_turns import row


def modes(folder: Path) -> dict[str, str]:
    """Path below `folder` → mode, as octal text."""
    return {p.relative_to(folder).as_posix(): f"{stat.S_IMODE(p.stat().st_mode):o}" for p in sorted(folder.rglob("*"))}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def write_all(storage: Path) -> None:
    """A turn in the ledger, a record in a store of turns, a session of a job."""
    LedgerSink(storage).emit(row(1))
    store = SqliteTurnStore(storage / "turns.db")
    store.open_session("LOCK", JobName("In"))
    write_file(storage / "report.html", "text")
    assert {path.name for path in storage.glob("turns.db*")} >= {"turns.db", "turns.db-wal", "turns.db-shm"}
    store.close()


@pytest.mark.usefixtures("umask")
def test_files_are_their_owners(tmp_path: Path) -> None:
    """0600 and 0700, whatever the umask says, and also below a folder that everybody may read."""
    tmp_path.chmod(0o755)
    write_all(tmp_path / "storage")
    assert set(modes(tmp_path).values()) == {"600", "700"}


@pytest.mark.usefixtures("umask")
def test_a_folder_that_a_group_may_write_is_shared_with_the_group(tmp_path: Path) -> None:
    """Jobs of several users share a storage: its owner made the folder for the group, and nothing is for others."""
    storage = tmp_path / "storage"
    storage.mkdir()
    storage.chmod(0o2770)
    write_all(storage)
    assert set(modes(storage).values()) == {"660", "2770"}


def test_a_file_that_is_there_keeps_its_mode_and_a_link_is_not_followed(tmp_path: Path) -> None:
    """A neighbour's link in a shared folder cannot make the product write elsewhere."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o644)
    os.close(open_file(tmp_path / "old", os.O_WRONLY))
    assert modes(tmp_path) == {"old": "644"}
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        open_file(tmp_path / "link", os.O_WRONLY)
    write_file(tmp_path / "link", "new")
    assert not (tmp_path / "target").exists()
    assert (tmp_path / "link").read_text() == "new"


def test_a_file_where_a_folder_is_expected_is_an_error(tmp_path: Path) -> None:
    """Not a loop, and not silence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "x")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


def test_a_thread_that_opens_the_store_drops_no_lock_of_another_one(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the locks of the whole process on it: SQLite then damages the database."""
    path = tmp_path / "turns.db"
    store = SqliteTurnStore(path)
    try:
        before = locks_of(path)
        assert before, "a connection in WAL mode has a lock for as long as it is open"
        thread = threading.Thread(target=store.coordinator_id)
        thread.start()
        thread.join()
        assert before <= locks_of(path)
    finally:
        store.close()


def locks_of(path: Path) -> set[str]:
    """The POSIX locks of this process on a database and its index, as the kernel shows them."""
    inodes = {str(one.stat().st_ino) for one in path.parent.glob(path.name + "*") if one.is_file()}
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return {" ".join(line[1:]) for line in lines if "POSIX" in line and line[5].rsplit(":", 1)[1] in inodes}
