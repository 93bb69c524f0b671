"""The how-to "Watch it and act": each command is run in order on one lock, and prints what the page shows."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakegate.telemetry.log_format import JsonFormatter
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.cli.command import lakegate
from tests.docs.markdown import DOCS, fences
from tests.ops.lake import FILE, LOCK, dead_holder, healthy

PAGE = DOCS / "how-to" / "watch-it-and-act.md"
CODES = {"status --fail-if-late": 3}


def typed() -> Iterator[tuple[str, list[str]]]:
    """Every command of the page, with the lines shown below it."""
    for fence in fences(PAGE):
        for part in fence.text.split("$ lakegate ")[1:] if fence.kind == "console" else ():
            command, *shown = part.splitlines()
            yield command, shown


def test_what_the_page_shows_is_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`…` stands for what changes from run to run."""
    lake = healthy(tmp_path)
    lake.write_ledger()
    (tmp_path / "lakegate.yml").write_text(FILE)
    store = SqliteTurnStore(lake.storage / "turns.db")
    store.compare_and_set(LOCK, dead_holder(tmp_path), 0)
    monkeypatch.chdir(tmp_path)
    seen = 0
    for command, shown in typed():
        ran = lakegate(*shlex.split(command))
        assert ran.code == CODES.get(command, 0), (command, ran.err)
        for line in shown:
            pattern = ".*".join(re.escape(part).replace(r"\ \ ", r"\s+") for part in line.split("…"))
            assert re.search(pattern, ran.out), (command, line, ran.out)
        seen += 1
    assert seen == 10
    store.close()


def test_the_pages_python_does_what_it_says() -> None:
    """Its Python runs; the root logger is put back, and the function is removed."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for fence in fences(PAGE):
            if fence.kind == "python":
                names: dict[str, Callable[[], None]] = {}
                exec(compile(fence.text, PAGE.name, "exec"), names)
                names.get("remove", lambda: None)()
        assert any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
