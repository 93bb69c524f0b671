"""Each promise names the tests that fail when it is broken, and these tests are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.conftest import ROOT
from tests.docs.markdown import DOCS, named, pages

NAMED = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(\w+)(?:::(\w+))?(?:\[[^`]*\])?`")


def defined_in(path: str) -> set[tuple[str, ...]]:
    """The functions and classes of a test module, with the methods of each class."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found: set[tuple[str, ...]] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add((node.name,))
        if isinstance(node, ast.ClassDef):
            found |= {(node.name, one.name) for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_every_test_that_a_page_names_is_there() -> None:
    """A test that was renamed or removed takes its promise with it, or the page is corrected."""
    missing = []
    for page in pages():
        for path, *names in NAMED.findall(page.read_text(encoding="utf-8")):
            wanted = tuple(name for name in names if name)
            if not (ROOT / path).is_file() or wanted not in defined_in(path):
                missing.append(f"{named(page)}: {path}::{'::'.join(wanted)}")
    assert missing == []


PROMISES = re.split(r"^## ", (DOCS / "guarantees.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("promise", [one for one in PROMISES if one[0].isdigit()], ids=lambda one: one.splitlines()[0])
def test_every_promise_names_a_test_and_its_limits(promise: str) -> None:
    """A promise without a test that can fail, or without its limits, is not on the page."""
    assert NAMED.search(promise)
    assert "**Limits.**" in promise


def is_in_make_test(path: str, name: str) -> bool:
    """Whether a test, or the first of its cases, carries neither of the marks of the larger sizes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)]
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    own = [mark for node in found for mark in node.decorator_list if not isinstance(mark, ast.Call)]
    return bool(found) and not {"slow", "matrix"} & {
        word for mark in marks + own for word in re.findall(r"\w+", ast.unparse(mark))
    }


@pytest.mark.parametrize("promise", [one for one in PROMISES if one[0].isdigit()], ids=lambda one: one.splitlines()[0])
def test_every_promise_is_tested_by_make_test(promise: str) -> None:
    """What a newcomer runs meets each promise once."""
    assert [
        path for path, *names in NAMED.findall(promise) if is_in_make_test(path, [name for name in names if name][-1])
    ]


def test_every_decision_names_the_test_that_keeps_it() -> None:
    """A decision that nothing keeps is a wish."""
    for page in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        files = re.findall(r"tests/[\w/]+\.py", page.read_text(encoding="utf-8"))
        assert files, named(page)
        assert [file for file in files if not (ROOT / file).is_file()] == []
