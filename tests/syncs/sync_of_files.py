"""A sync of files to a SQLite target with any tables: its file, lines of changes, and the commands about it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.cli.command import Ran
from tests.cli.command import lakegate as command

FIRM = "CREATE TABLE firm (id INTEGER PRIMARY KEY, name TEXT)"
STAFF = "CREATE TABLE staff (id INTEGER PRIMARY KEY, firm_id INT REFERENCES firm (id) ON DELETE {} ON UPDATE CASCADE, n TEXT)"


def begin(root: Path, *ddl: str, source: str = 'files: "c/*.jsonl"', more: str = "") -> None:
    """A sync of files to a SQLite target with these tables."""
    execute(root / "t.db", *ddl)
    (root / "c").mkdir()
    (root / "lakegate.yml").write_text(
        f'name: p\nsync:\n  s:\n    from: {{{source}}}\n    to: "sqlite:{root}/t.db"\n{more}'
    )


def execute(path: Path, *statements: str) -> list[Any]:
    """Statements in a SQLite file; the rows of the last."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        return [database.execute(one).fetchall() for one in statements][-1]
    finally:
        database.close()


def bring(root: Path, name: str, *lines: dict[str, Any]) -> None:
    """A file of lines."""
    (root / "c" / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))


def line(seq: int, tx: int, table: str, op: str, before: Any, after: Any) -> dict[str, Any]:
    """A change."""
    return {"seq": seq, "tx": str(tx), "table": table, "op": op, "before": before, "after": after}


def sync(root: Path, *arguments: str) -> Ran:
    """`lakegate sync ARGUMENTS`."""
    return command("sync", *arguments, "--spec", root)


def found(ran: Ran) -> dict[str, Any]:
    """The tables of a comparison by name."""
    return {one["table"]: one for one in ran.json["syncs"][0]["tables"]}
