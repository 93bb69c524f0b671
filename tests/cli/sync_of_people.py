"""A sync of files to a table of people in SQLite: its file, changes that are right and wrong, and the commands about it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.cli.command import Ran, lakegate

SETTINGS = "on_violation: stop"
PEOPLE = "CREATE TABLE people (id int PRIMARY KEY, email varchar(50) NOT NULL UNIQUE)"
ROWS = "INSERT INTO people VALUES (1, 'a'), (2, 'b'), (3, 'c')"


def person(id: int, email: str) -> dict[str, Any]:
    """A row."""
    return {"id": id, "email": email}


def change(seq: int, tx: str, op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    """A line of a file of changes."""
    return {"seq": seq, "tx": tx, "table": "people", "op": op, "before": before, "after": after, **more}


SWAP = [change(0, "1", "u", person(1, "a"), person(1, "b")), change(1, "1", "u", person(2, "b"), person(2, "a"))]
CLASH = [change(2, "2", "c", None, person(4, "c")), change(3, "2", "c", None, person(5, "e"))]


def pipeline(root: Path, dsn: str = "sqlite:crm.db", settings: str = SETTINGS) -> Path:
    """The file in its folder, and the target that is in the folder if it is."""
    (root / "lakegate.yml").write_text(
        f'name: p\nsync:\n  crm:\n    from: {{files: "changes/*.jsonl"}}\n    to: "{dsn}"\n    {settings}\n'
    )
    (root / "changes").mkdir()
    if dsn == "sqlite:crm.db":
        execute(root, PEOPLE, ROWS)
    return root


def bring(root: Path, name: str, changes: list[dict[str, Any]]) -> None:
    """A file of changes, whole at once."""
    (root / "changes" / f".{name}").write_text("".join(json.dumps(one) + "\n" for one in changes))
    (root / "changes" / f".{name}").rename(root / "changes" / f"{name}.jsonl")


def execute(root: Path, *statements: str) -> list[Any]:
    """Statements in the SQLite target; the rows of the last."""
    database = sqlite3.connect(root / "crm.db", isolation_level=None)
    try:
        return [database.execute(one).fetchall() for one in statements][-1]
    finally:
        database.close()


def people(root: Path) -> list[tuple[int, str]]:
    """The table."""
    return execute(root, "SELECT id, email FROM people ORDER BY id")


def sync(root: Path, *arguments: str) -> Ran:
    """`lakegate sync ARGUMENTS` on the file."""
    return lakegate("sync", *arguments, "--spec", root)


def letters(root: Path, *arguments: str) -> Ran:
    """`lakegate dead-letters list crm ARGUMENTS` on the file."""
    return lakegate("dead-letters", "list", "crm", *arguments, "--spec", root)
