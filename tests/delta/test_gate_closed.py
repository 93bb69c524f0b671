"""The gate fails closed: a note that cannot be read is not no note, and a program's pass ends with its turn."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.gate import OUTSIDE_CONF, Gate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.delta.ownership import adopt, read_governed
from lakegate.errors import Unavailable
from lakegate.ops.external_command import ProgramPass
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.delta.delta_tables import ids, make_table, rows

LIMIT_S = 300


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """The process can open no file in the block."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_note_that_cannot_be_read_is_not_no_note(session: SparkSession, tmp_path: Path) -> None:
    """A folder of its name, links to nothing, a file in the way, text that is no note, no descriptor: each commit is refused."""
    table = make_table(session, tmp_path / "t")
    folder, note = Path(table, "_lakegate"), Path(table, "_lakegate/table.json")
    gate = Gate(session)
    assert gate.note(table) is None

    def link_of_folder() -> None:
        folder.rmdir()
        folder.symlink_to(tmp_path / "gone")

    def file_for_folder() -> None:
        folder.rmdir()
        folder.write_text("")

    ways: dict[str, Callable[[], object]] = {
        "a folder": note.mkdir,
        "a link to nothing": lambda: note.symlink_to(tmp_path / "gone"),
        "a link to itself": lambda: note.symlink_to(note),
        "a folder that is a link to nothing": link_of_folder,
        "a file in the place of the folder": file_for_folder,
        "no JSON": lambda: note.write_text("{"),
        "nothing": lambda: note.write_text(""),
        "no lock": lambda: note.write_text("[]"),
    }
    one, name = rows(session, 1), f"delta.`{table}`"
    with confs(session, {OUTSIDE_CONF: "refuse"}):
        for what, make in ways.items():
            folder.mkdir(exist_ok=True)
            make()
            with pytest.raises(JVM_ERRORS, match="nothing was written"):
                one.write.format("delta").mode("append").save(table)
            with pytest.raises(Unavailable, match="nothing was written"):
                lakegate.sql(session, f"INSERT INTO {name} VALUES (1, 'a')")
            if what in ("a folder", "a folder that is a link to nothing"):
                with pytest.raises(Unavailable):
                    read_governed(session, table)
            if folder.is_symlink() or folder.is_file():
                folder.unlink()
            else:
                shutil.rmtree(folder)
        one.write.format("delta").mode("append").save(table)
    assert ids(session, table) == [1]


@pytest.mark.slow
def test_too_many_open_files_do_not_open_the_gate(session: SparkSession, tmp_path: Path) -> None:
    """The note cannot be looked at just then, so it is not known that there is none."""
    table = make_table(session, tmp_path / "t")
    gate = Gate(session)
    assert gate.note(table) is None
    root: Any = session._jvm
    with (
        no_descriptor_left(int(root.java.lang.ProcessHandle.current().pid())),
        pytest.raises(JVM_ERRORS, match="cannot be read, so nothing was written"),
    ):
        gate.note(table)
    assert gate.note(table) is None


CHILD = """
import sys, time
from pathlib import Path
import lakegate

table, root = sys.argv[1], Path(sys.argv[2])
spark = lakegate.session("left over", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
for number in range(1, 4):
    while not (root / f"go{number}").exists():
        time.sleep(0.05)
    try:
        rows = spark.createDataFrame([(number, "x")], "id BIGINT, v STRING")
        rows.coalesce(1).write.format("delta").mode("append").save(table)
        said = "written"
    except Exception as error:
        said = f"{error}"
    (root / f"part{number}").write_text(said)
    (root / f"part{number}").rename(root / f"said{number}")
"""


@pytest.mark.slow
def test_a_left_over_child_cannot_write_when_its_turn_is_over(session: SparkSession, tmp_path: Path) -> None:
    """It has escaped from the program's process group: it writes in the turn, and is refused behind it, also in another's turn."""
    table = make_table(session, tmp_path / "t")
    store = SqliteTurnStore(str(tmp_path / "turns.db"))
    adopt(session, table, "L", store.coordinator_id(), "link")
    store.close()
    (tmp_path / "child.py").write_text(CHILD)
    child = f"setsid {sys.executable} child.py {table} {tmp_path} > child.log 2>&1 & echo $! > pid"

    def turn(command: str) -> subprocess.Popen[bytes]:
        place = ("--coordinator", f"sqlite:{tmp_path}/turns.db")
        words = [
            sys.executable,
            "-m",
            "lakegate",
            "turn",
            "--lock",
            "L",
            "--job",
            "J",
            *place,
            "--",
            "sh",
            "-c",
            command,
        ]
        return subprocess.Popen(words, cwd=tmp_path)

    def said(number: int) -> str:
        (tmp_path / f"go{number}").touch()
        deadline_s = time.monotonic() + LIMIT_S
        while not (tmp_path / f"said{number}").exists():
            assert time.monotonic() < deadline_s, (tmp_path / "child.log").read_text()[-2000:]
            time.sleep(0.05)
        return (tmp_path / f"said{number}").read_text()

    first = turn(f"{child}; while [ ! -e end ]; do sleep 0.1; done")
    try:
        assert said(1) == "written"
        (tmp_path / "end").touch()
        assert first.wait(LIMIT_S) == 0
        assert "that this program was given is over" in said(2)
        second = turn("touch second; sleep 300")
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while not (tmp_path / "second").exists():
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            assert "is over" in said(3), "the turn of another program is not its own"
        finally:
            second.send_signal(signal.SIGTERM)
            second.wait(LIMIT_S)
    finally:
        first.kill()
        first.wait()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert ids(session, table) == [1]


JAVA = """
package io.github.lakegate;
public final class Asked {
  public static void main(String[] words) throws Exception {
    System.out.println(ProgramPass.isFor(words[0]) + ProgramPass.told());
  }
}
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac")
def test_a_pass_is_of_a_live_turn_and_its_epoch(tmp_path: Path) -> None:
    """As the gate of another process reads it: held, renewed, run out, of another epoch or lock, ended, its holder killed."""
    from lakegate.spark.jars import own_jar

    (tmp_path / "Asked.java").write_text(JAVA)
    jar = str(own_jar())
    subprocess.run(["javac", "-cp", jar, "-d", str(tmp_path), str(tmp_path / "Asked.java")], check=True)

    def asked(file: str, *, epoch: str = "7", lock: str = "L m", of: str = "L m") -> str:
        said = {"LAKEGATE_LOCK": lock, "LAKEGATE_EPOCH": epoch, "LAKEGATE_PASS": file}
        run = subprocess.run(
            ["java", "-Xshare:auto", "-cp", f"{jar}:{tmp_path}", "io.github.lakegate.Asked", of],
            env={"PATH": os.environ["PATH"], **{name: value for name, value in said.items() if value}},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout.strip()

    held = ProgramPass("L m")
    assert held.grant("", "J", 7, 600_000)
    assert asked(held.path) == "true"
    assert asked(held.path, of="M").startswith("false")
    assert "is another one now" in asked(held.path, epoch="6")
    assert "has no pass" in asked("")
    held.grant("", "J", 7, -1)
    assert "has run out" in asked(held.path)
    held.grant("", "J", 7, 600_000)
    assert asked(held.path) == "true", "more time was given"
    held.close()
    assert "is over" in asked(held.path)

    holder = (
        "import json, sys, time; from lakegate.ops.external_command import ProgramPass; p = ProgramPass('L m'); "
        "p.grant('', 'J', 7, 600_000); print(json.dumps(p.path), flush=True); time.sleep(300)"
    )
    killed = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    path = json.loads(killed.stdout.readline())
    try:
        assert asked(path) == "true"
    finally:
        killed.kill()
        killed.wait()
        killed.stdout.close()
    assert "has lost its holder" in asked(path)
    assert asked("/dev/null").startswith("false")
    shutil.rmtree(Path(path).parent)
