"""The how-to page on several machines: its Python runs against a real server, its URLs can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakegate.config.zookeeper import read_place
from lakegate.demo.servers import zookeeper
from lakegate.spark.java import JavaSources
from tests.docs.markdown import DOCS, fences

PAGES = [DOCS / "how-to" / "coordinate-several-machines.md", DOCS / "reference" / "zookeeper.md"]


@pytest.mark.zookeeper
def test_what_the_page_says_is_so(java_from: JavaSources, tmp_path: Path) -> None:
    """Its blocks in order, with an address of a server that was just started."""
    with zookeeper(tmp_path, java=java_from) as (node,):
        names: dict[str, object] = {"url": f"zookeeper://{node.address}/lake"}
        ran = 0
        for fence in fences(PAGES[0]):
            if fence.kind == "python":
                exec(compile("\n" * fence.line + fence.text, PAGES[0].name, "exec"), names)
                ran += 1
        assert ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_url_of_the_page_can_be_read(page: Path) -> None:
    """With all of its options."""
    urls = re.findall(r"zookeeper://[^\s'\"`]+", page.read_text(encoding="utf-8"))
    assert [read_place(url) for url in urls if url != "zookeeper://"]
