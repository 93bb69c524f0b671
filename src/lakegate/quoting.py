"""Names and texts as Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Returns a name as an SQL identifier, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"


def quoted_literal(text: str) -> str:
    """Returns a text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
