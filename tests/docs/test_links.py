"""Every page can be found, and every link leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, anchors, links, named, pages


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    """A page that was renamed, or a heading that was reworded, leaves no dead link."""
    dead = [
        f"{target}#{anchor}" if anchor else str(target)
        for target, anchor in links(page)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert dead == []


def test_every_page_is_reached_from_the_index() -> None:
    """A reader who follows links from docs/index.md comes to each page of docs/."""
    reached: set[Path] = set()
    todo = [(DOCS / "index.md").resolve()]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        todo += [target for target, _ in links(page)]
    assert sorted(named(page) for page in DOCS.rglob("*.md") if page.resolve() not in reached) == []
