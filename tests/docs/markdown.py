"""Reads the project's Markdown pages: their links, headings and fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(?P<kind>[\w-]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A block of code of a page."""

    kind: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page of the project: those of docs/, and those at the root."""
    return sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])


def named(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> list[Fence]:
    """The page's blocks of code, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Fence(kind=found["kind"], text=found["text"], line=text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files of this repository that a page links to, each with the anchor within it, or an empty one."""
    prose = re.sub(r"`[^`\n]*`", "``", FENCE.sub("", page.read_text(encoding="utf-8")))
    for found in LINK.finditer(prose):
        target, _, anchor = found["target"].partition("#")
        if not re.match(r"[a-z]+:", target):
            yield (page.parent / target).resolve() if target else page, anchor


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the page's headings."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}
