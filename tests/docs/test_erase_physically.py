"""The commands of the page on physical erasure do what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.command import lakegate
from tests.docs.markdown import DOCS, fences
from tests.erasure.written import made


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a table without the person."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "lake" / "people")
    page = fences(DOCS / "how-to" / "erase-physically.md")
    typed = [part for one in page if one.kind == "console" for part in one.text.split("$ lakegate ")[1:]]
    ran = [lakegate(*shlex.split(command)) for command in typed]
    assert [one.code for one in ran] == [0] * 2
    assert "holds; its verdict is clean" in ran[-1].out
