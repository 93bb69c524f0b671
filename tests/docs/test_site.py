"""The documentation as a site: every page, no broken link, nothing from other servers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lakegate
from harness import site
from tests.conftest import ROOT


@pytest.mark.slow
def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    """A link or an anchor that leads nowhere fails the build; each public name is described."""
    site.write(tmp_path)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "-f", str(tmp_path / "mkdocs.yml")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    html = tmp_path / "html"
    pages = [*(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")), *site.PAGES.values()]
    assert [page for page in pages if not (html / page).with_suffix(".html").is_file()] == []
    names = (html / site.NAMES).with_suffix(".html").read_text()
    assert [name for name in lakegate._HOMES if f">{name}<" not in names and f".{name}" not in names] == []
    loaded = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?(https?:[^\"'> ]+)")
    assert [found for page in html.rglob("*.html") for found in loaded.findall(page.read_text())] == []
    assert "ConcurrentAppendException" in (html / "search.json").read_text()


def test_links_of_the_repository_lead_to_pages_and_others_become_text() -> None:
    """A page outside of docs/ is part of the site; a source file is not."""
    pages = {"docs/how-to/a.md": "how-to/a.md", "docs/b.md": "b.md", "README.md": "project/readme.md"}

    def said(text: str, source: str) -> str:
        return site.LINK.sub(lambda link: site.rewritten(link, source, pages), text)

    assert said("see [B](../b.md#part) and [it](../../README.md)", "docs/how-to/a.md") == (
        "see [B](../b.md#part) and [it](../project/readme.md)"
    )
    assert said("[A](docs/how-to/a.md), [code](src/lakegate/ids.py)", "README.md") == "[A](../how-to/a.md), code"
    assert said("[web](https://delta.io) [here](#below)", "README.md") == "[web](https://delta.io) [here](#below)"


def test_every_page_but_a_decision_is_listed_in_the_index(tmp_path: Path) -> None:
    """The index gives the order of the site."""
    site.write(tmp_path)
    listed = str(site.navigation(tmp_path / "pages"))
    pages = [page.relative_to(tmp_path / "pages") for page in (tmp_path / "pages").rglob("*.md")]
    assert [str(page) for page in pages if page.parts[0] != "decisions" and f"'{page}'" not in listed] == []
