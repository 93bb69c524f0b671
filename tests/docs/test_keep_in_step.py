"""The how-to "Keep a database in step": its file, its changes and its commands, in order, end as the page shows."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import lakegate
from tests.docs.markdown import DOCS, fences

PAGE = DOCS / "how-to" / "keep-a-database-in-step.md"


def test_what_the_page_shows_is_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap is in the target at the end."""
    blocks = fences(PAGE)
    (part,) = (fence.text for fence in blocks if fence.kind == "yaml")
    (tmp_path / "lakegate.yml").write_text(f"name: page\n{part}")
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "1.jsonl").write_text("".join(fence.text for fence in blocks if fence.kind == "json"))
    database = sqlite3.connect(tmp_path / "crm.db", isolation_level=None)
    database.execute("CREATE TABLE people (id integer PRIMARY KEY, email text NOT NULL UNIQUE)")
    database.execute("INSERT INTO people VALUES (1, 'a@x'), (2, 'b@x')")
    monkeypatch.chdir(tmp_path)
    seen = 0
    for fence in blocks:
        for typed in fence.text.split("$ lakegate ")[1:] if fence.kind == "console" else ():
            command, *shown = typed.splitlines()
            ran = lakegate(*shlex.split(command))
            assert (ran.code, ran.out.splitlines()) == (0, shown), command
            seen += 1
    assert seen == 6
    rows = database.execute("SELECT id, email FROM people ORDER BY id").fetchall()
    database.close()
    assert rows == [(1, "b@x"), (2, "a@x")]
