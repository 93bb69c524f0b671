"""Blocks of code of the other pages, which are parts of something larger: they can be read as what they are."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping

import pytest
import yaml

from lakegate.config.reading import parse
from tests.docs.markdown import Fence, fences, named, pages

FENCES = [(named(page), fence) for page in pages() for fence in fences(page)]


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    """Makes one test for each block of these kinds."""
    found = [pytest.param(fence, id=f"{page}:{fence.line}") for page, fence in FENCES if fence.kind in kinds]
    assert found, kinds
    return pytest.mark.parametrize("fence", found)


@of_kind("python")
def test_python_is_python(fence: Fence) -> None:
    """A reader can paste it."""
    ast.parse(fence.text)


@of_kind("json")
def test_json_is_json(fence: Fence) -> None:
    """One document, or one line."""
    json.loads(fence.text)


@of_kind("yaml")
def test_a_part_of_a_pipeline_makes_a_pipeline_without_a_fault(fence: Fence) -> None:
    """With a name, and with the table and the streams that the part mentions, every key of it is right."""
    part = yaml.safe_load(fence.text)
    assert isinstance(part, Mapping)
    whole = {"name": "page", **part}
    if not {"streams", "sync"} & part.keys():
        whole["streams"] = {"Upkeep": {"table": "t", "maintain": {"optimize": True}}}
    tables = {stream["table"]: {"path": f"./{stream['table']}"} for stream in whole.get("streams", {}).values()}
    whole = {"tables": tables, **whole}
    pipeline = parse(json.dumps(whole), origin="page", base_dir="/base", environ={"OPS_URL": "https://host/path"})
    assert pipeline.streams or pipeline.syncs


def test_every_block_says_what_it_is() -> None:
    """A block without a kind is coloured, and checked, as nothing."""
    known = {"python", "console", "yaml", "json", "text", "ini", "sql"}
    assert [f"{page}:{fence.line}" for page, fence in FENCES if fence.kind not in known] == []


def test_no_page_says_what_readers_need_not_know() -> None:
    """Pages speak of the project: no host of a package index, no address of a machine."""
    assert [
        named(page)
        for page in pages()
        if re.search(r"https?://(?!semver\.org|127\.0\.0\.1:)", page.read_text(encoding="utf-8"))
    ] == []
