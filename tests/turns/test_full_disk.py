"""The store of one machine on a full or read-only disk, or without file descriptors: a bounded wait, and one clear error."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.contender import coordinator, take
from harness.disks import SmallDisk, small_disk
from lakegate.errors import StoreUnavailable
from lakegate.ids import JobName
from lakegate.turns import effect_runner
from lakegate.turns.host import is_running, start_of
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.stores.memory import MemoryTurnStore
from lakegate.turns.stores.sqlite import SqliteTurnStore

LOCK = "L"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds in place of ten."""
    monkeypatch.setattr(effect_runner, "PATIENCE_S", 2.0)


@pytest.mark.usefixtures("impatient")
def test_a_turn_that_cannot_be_written_ends_in_time_and_goes_on_when_there_is_room(disk: SmallDisk) -> None:
    """Asking and giving back, each with one line that says so, and almost no work; a disk that gets room in time is no error."""
    store = SqliteTurnStore(disk.folder / "turns.db")
    first, second = coordinator(store, LOCK, "first", timeout_s=60), coordinator(store, LOCK, "second", timeout_s=60)
    first.open()
    second.open()
    take(first).complete()
    disk.fill()
    with bounded(5.0), pytest.raises(StoreUnavailable) as asked:
        take(first)
    assert len(str(asked.value).splitlines()) == 1
    assert "turns.db" in str(asked.value)
    disk.make_room()
    held = take(first)
    disk.fill()
    with bounded(5.0), pytest.raises(StoreUnavailable):
        held.complete()
    disk.make_room()
    following = take(second)  # the run of the turn that could not be given back counts as ended
    assert following.epoch == held.epoch + 1
    disk.fill()
    threading.Timer(0.7, disk.make_room).start()
    following.complete()
    assert take(first).epoch == following.epoch + 1
    store.close()


@pytest.mark.usefixtures("impatient")
def test_a_change_whose_outcome_is_never_known_is_not_asked_about_for_ever() -> None:
    """With pauses in between; a run that is to end waits for less."""
    store = Silent()
    run = coordinator(store, LOCK, "first", timeout_s=60)
    with bounded(5.0), pytest.raises(StoreUnavailable, match="could not be found out"):
        take(run)
    assert store.calls < 20
    store.calls = 0
    threading.Timer(0.2, run.cancel).start()
    with bounded(1.9), pytest.raises(StoreUnavailable):
        take(run)


@pytest.mark.slow
def test_a_program_ends_when_its_turn_cannot_be_written_and_heeds_a_signal(disk: SmallDisk) -> None:
    """With exit status 6 and one line, or at once on a signal."""
    store = SqliteTurnStore(disk.folder / "turns.db")
    take(coordinator(store, LOCK, "first", timeout_s=60)).complete()
    store.close()
    command = [sys.executable, "-m", "lakegate", "turn", "--lock", LOCK, "--job", "program"]
    command += ["--coordinator", f"sqlite:{disk.folder}/turns.db", "--", "true"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=disk.folder.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    disk.fill()
    ending, stopped = start(), start()
    time.sleep(3.0)
    stopped.send_signal(signal.SIGTERM)
    _, said = ending.communicate(timeout=60)
    assert (ending.returncode, said.count("\n")) == (6, 1), said
    assert "turns.db" in said
    stopped.communicate(timeout=10)
    disk.make_room()
    again = start()
    again.communicate(timeout=60)
    assert again.returncode == 0


def test_a_read_only_file_is_reported_as_read_only() -> None:
    """Nothing is granted, and no job retries for ever."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        SqliteTurnStore(folder / "turns.db").close()
        session = SqliteTurnStore(folder / "turns.db").open_session(LOCK, JobName("other"))
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        folder.chmod(0o755)
        with as_nobody(folder), bounded(5.0), pytest.raises(StoreUnavailable) as refused:
            SqliteTurnStore(folder / "turns.db").open_session(LOCK, JobName("first"))
        assert len(str(refused.value).splitlines()) == 1
        session.close()


def test_without_file_descriptors_nobody_counts_as_dead(tmp_path: Path) -> None:
    """The live runs cannot be read then, and the error says so: otherwise a current turn would be closed."""
    store = SqliteTurnStore(tmp_path / "turns.db")
    held = take(coordinator(store, LOCK, "first", timeout_s=60))
    looks: list[Callable[[], object]] = [
        lambda: store.live_sessions(LOCK),
        lambda: is_running(os.getpid(), started),
        lambda: store.open_session(LOCK, JobName("second")),
        lambda: SqliteTurnStore(tmp_path / "turns.db"),
    ]
    started = start_of(os.getpid())
    for look in looks:
        with no_descriptors(), pytest.raises(StoreUnavailable):
            look()
    assert len(store.live_sessions(LOCK).ids) == 1
    held.complete()
    store.close()


class Silent(MemoryTurnStore):
    """A store that never tells what became of a change, and makes none."""

    calls = 0

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self.calls += 1
        return "unknown"


@contextlib.contextmanager
def bounded(limit_s: float) -> Iterator[None]:
    """Fails if the block takes longer, or works for more than a part of that time."""
    began_s, worked_s = time.monotonic(), time.thread_time()
    yield
    assert time.monotonic() - began_s < limit_s
    assert time.thread_time() - worked_s < 0.5


@contextlib.contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Removes the right to write there: runs as another user if this is root, to whom permissions do not apply."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Lets this process open no more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
