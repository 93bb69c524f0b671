"""How-to pages on Delta's own features used together with statements that rebase: every block of Python is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.markdown import DOCS, fences

PAGES = (
    *("go-back-in-time", "read-the-history", "stream-from-the-table", "evolve-the-schema", "vacuum-safely"),
    *("write-once", "keep-checkpoints", "keep-a-table-small", "erase-physically", "write-rows-by-key"),
)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_says_is_so(
    page: str, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks in order, in an empty folder, with a session of their own."""
    monkeypatch.chdir(tmp_path)
    # Relative paths of SQL belong to the JVM's folder, not to this process's.
    names = {"spark": session.newSession()}
    for fence in fences(DOCS / "how-to" / f"{page}.md"):
        if fence.kind == "python":
            text = fence.text.replace('"lake/', f'"{tmp_path}/lake/').replace("`lake/", f"`{tmp_path}/lake/")
            exec(compile("\n" * fence.line + text, f"{page}.md", "exec"), names)
