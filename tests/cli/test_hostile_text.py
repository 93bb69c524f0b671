"""Texts of data, of other users and of other programs reach a terminal as text, and never as commands to it."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakegate.errors import Unavailable
from lakegate.ids import Epoch, JobName
from lakegate.telemetry.events import Noticed, PersonActed
from lakegate.telemetry.ledger import LedgerSink
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.protocol.lock_record import LockRecord, Pause
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.cli.command import lakegate
from tests.conftest import ROOT
from tests.ops.lake import LOCK, Lake, after_a_run

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mEVIL\r\x9b1m\u202e"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
COMMANDS = (
    ("status",),
    ("history", "t"),
    ("timeline",),
    ("verify",),
    ("check", "--no-spark"),
    ("config", "show"),
    ("order", "show"),
    ("report", "--html", "{root}/report.html"),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A pipeline whose ledger and lock record hold what a hostile process would write there."""
    made = after_a_run(tmp_path)
    storage = tmp_path / "_lakegate"
    sink = LedgerSink(storage)
    last = read_ledger(storage)[-1]
    for number, outcome in enumerate(("failed", "lost", "gave_up"), 1):
        epoch = None if outcome == "gave_up" else (last.epoch or 0) + number
        sink.emit(replace(last, run=f"evil{number}", epoch=epoch, outcome=outcome, reason=EVIL, versions={}))
    sink.emit(
        PersonActed(action_id="e", lock=LOCK, job="In", action="pause", by=EVIL, reason=EVIL, at_ms=1, outcome="done")
    )
    store = SqliteTurnStore(storage / "turns.db")
    paused = {JobName("In"): Pause(since_ms=1, by=EVIL, reason=EVIL)}
    store.compare_and_set(LOCK, LockRecord(lock=LOCK, epoch=Epoch(9), paused=paused), 0)
    store.close()
    return made


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_no_command_prints_a_control_character_of_data(lake: Lake, form: str) -> None:
    """In lines, tables, documents and errors; what was there is seen as an escape."""
    seen = ""
    for command in COMMANDS:
        ran = lakegate(*(word.format(root=lake.root) for word in command), "--spec", lake.root, "--output", form)
        assert CONTROL.search(ran.out + ran.err) is None, command
        seen += ran.out
    assert "EVIL" in seen
    assert r"\x1b[2J" in seen or r"\u001b[2J" in seen


def test_a_terminal_gets_no_control_character_of_data(lake: Lake) -> None:
    """On a terminal the tables have colours of our own, and nothing else."""
    parent, child = pty.openpty()
    ran = subprocess.Popen(
        [sys.executable, "-m", "lakegate", "status", "--spec", str(lake.root)],
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(child)
    shown = b""
    try:
        while block := os.read(parent, 65536):
            shown += block
    except OSError:
        pass  # how Linux says that the other end has closed
    finally:
        os.close(parent)
    assert ran.wait() == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert r"\x1b[2J" in text
    assert "\x1b" not in text
    assert CONTROL.search(text) is None
    assert b"\x1b[31m" not in shown


def test_errors_and_notices_have_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    """A driver's message may repeat what it was sent."""
    from lakegate.cli.app import Output
    from lakegate.cli.progress import Printer

    assert CONTROL.search(str(Unavailable(f"x {EVIL}", reason=EVIL))) is None
    Printer(Output.TEXT).emit(Noticed(job="In", text=EVIL))
    assert CONTROL.search(capsys.readouterr().err) is None


def prints(tree: ast.AST, is_print: Callable[[ast.Call], bool]) -> list[int]:
    """The lines of a module that print a text other than a JSON document, which has no control characters."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_print(node) and "json.dumps" not in ast.unparse(node)
    ]


def test_commands_print_by_one_function() -> None:
    """A new command cannot forget it: `output.say` prints for people."""
    allowed = {"output.py", "progress.py", "app.py", "demo.py"}

    def is_print(call: ast.Call) -> bool:
        name, kept = ast.unparse(call.func), ast.unparse(call)
        return name in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write") and "nl=False" not in kept

    found = {
        path.name: lines
        for path in (ROOT / "src" / "lakegate" / "cli").glob("*.py")
        if path.name not in allowed and (lines := prints(ast.parse(path.read_text()), is_print))
    }
    assert found == {}
