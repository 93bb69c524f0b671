"""Texts of names that others rely on. They change on purpose, in the commit that says so.

After such a change, `LAKEGATE_WRITE_FROZEN=1` before the test's command writes the text again.
"""

from __future__ import annotations

import os
from pathlib import Path


def assert_frozen(name: str, text: str) -> None:
    """Compares a text with the file of this name in this folder."""
    file = Path(__file__).parent / name
    if os.environ.get("LAKEGATE_WRITE_FROZEN") == "1":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
