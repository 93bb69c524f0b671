"""Writes the pages of the documentation's site: those of docs/, those of the repository's root, and the names of the Python API.

`python -m harness.site FOLDER`, then `zensical build -f FOLDER/mkdocs.yml`. Links between the pages are those that work in the
repository; a link to another file becomes text. The order of the pages is that of docs/index.md.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import lakegate

ROOT = Path(__file__).resolve().parents[1]
PAGES: Mapping[str, str] = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "benchmarks/README.md": "project/measurements.md",
}
"""File of the repository → page of the site."""
OVERVIEW, NAMES = "reference/python-api.md", "reference/python-names.md"
LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def write(site: Path) -> None:
    """Writes the configuration, and all pages into an empty folder, with the pictures of docs/."""
    folder = site / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    pages = {f"docs/{file.relative_to(folder)}": str(file.relative_to(folder)) for file in folder.rglob("*.md")} | dict(
        PAGES
    )
    for source, page in pages.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (folder / page).parent.mkdir(exist_ok=True)
        (folder / page).write_text(LINK.sub(partial(rewritten, source=source, pages=pages), text), encoding="utf-8")
    (folder / NAMES).write_text(names_page(), encoding="utf-8")
    settings = (ROOT / "harness" / "site.yml").read_text(encoding="utf-8")
    settings = settings.replace("../src", str(ROOT / "src"))
    order = json.dumps(navigation(folder))  # JSON is YAML
    (site / "mkdocs.yml").write_text(f"{settings}nav: {order}\n", encoding="utf-8")


def navigation(folder: Path) -> list[object]:
    """Returns the sections of the index, each with its pages in their order; a page is listed once, by its own title."""
    listed: list[object] = ["index.md"]
    seen = {"index.md"}
    for section in (folder / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        found: list[object] = []
        for page in (link[2] for link in LINK.finditer(text)):
            if page.endswith(".md") and page not in seen:
                seen.add(page)
                found += [page, NAMES] if page == OVERVIEW else [page]
        listed.append({title: found})
    return listed


def rewritten(link: re.Match[str], source: str, pages: Mapping[str, str]) -> str:
    """Returns a link of a file as a link between pages; its text if it leads to no page."""
    text, target, anchor = link[1], link[2], link[3] or ""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if found in pages:
        return f"[{text}]({posixpath.relpath(pages[found], posixpath.dirname(pages[source]) or '.')}{anchor})"
    return link[0] if found.startswith("docs/") and (ROOT / found).is_file() else text


def names_page() -> str:
    """Returns the page of the public names, which their docstrings describe."""
    homes = sorted(
        (name, home.replace(":", ".") if ":" in home else f"{home}.{name}") for name, home in lakegate._HOMES.items()
    )
    return (
        "# Python names\n\n[An overview](python-api.md) comes first.\n\n"
        + "\n\n".join(f"::: {home}" for _, home in homes)
        + "\n"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
