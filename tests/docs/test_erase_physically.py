"""The commands of the page on physical erasure do what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.command import lakegate
from tests.docs.markdown import DOCS, fences
from tests.erasure.written import made

FILE = """\
name: people
storage: ./lake/_lakegate
tables:
  people: {path: ./lake/people}
streams:
  TTL:
    table: people
    source: {files: ./lake/delete, format: parquet, schema: "person STRING"}
    erase: {match: {person: person}}
"""


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a table without the person."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "lake" / "people")
    Path("lakegate.yml").write_text(FILE)
    page = fences(DOCS / "how-to" / "erase-physically.md")
    typed = [part for one in page if one.kind == "console" for part in one.text.split("$ lakegate ")[1:]]
    ran = [lakegate(*shlex.split(command)) for command in typed]
    assert [one.code for one in ran] == [0] * 4
    assert "holds; its verdict is clean" in ran[1].out
    assert "nothing is left to take away" in ran[2].out
