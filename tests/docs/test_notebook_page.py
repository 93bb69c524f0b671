"""The notebook of the tutorial: its cells run in order in an empty folder, and show what it says.

`LAKEGATE_WRITE_REFERENCE=1 pytest tests/docs/test_notebook_page.py` writes the outputs again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import submit_arguments
from tests.docs.markdown import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

NOTEBOOK = DOCS / "tutorial" / "notebook.ipynb"
RUN = """
import ast, contextlib, io, json, sys

names, shown = {}, []
for text in json.load(open(sys.argv[1])):
    tree, printed, value = ast.parse(text), io.StringIO(), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    html = getattr(value, "_repr_html_", lambda: None)()
    shown.append([printed.getvalue(), None if value is None else repr(value), html])
json.dump(shown, open(sys.argv[1], "w"))
"""
"""Runs cells as a notebook does: what a cell prints, and its last expression."""


def outputs(printed: str, text: str | None, html: str | None, number: int) -> list[dict[str, Any]]:
    """Returns a cell's outputs in the notebook's format."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(True)})
    if text is not None:
        data = {"text/plain": [text]} if html is None else {"text/html": [html], "text/plain": [text]}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def test_the_cells_show_what_the_notebook_shows(tmp_path: Path) -> None:
    """But for numbers, which are times, and the folder."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    job, folder = tmp_path / "cells.json", tmp_path / "work"
    folder.mkdir()
    job.write_text(json.dumps(["".join(cell["source"]) for cell in cells]))
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": submit_arguments(is_compiled=True)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(job)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(cells) > 5
    for number, (cell, (printed, text, html)) in enumerate(zip(cells, json.loads(job.read_text()), strict=True), 1):
        here = json.loads(json.dumps(outputs(printed, text, html, number)).replace(str(folder), "/work"))
        if os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1":
            cell["outputs"], cell["execution_count"] = here, number
        assert masked(cell["outputs"]) == masked(here)
    if os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1":
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def masked(found: list[dict[str, Any]]) -> str:
    """The outputs without the numbers that differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "N", json.dumps(found))
