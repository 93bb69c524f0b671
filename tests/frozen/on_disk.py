"""The shape of what a pipeline leaves on disk: names of files, keys of JSON, columns, properties, tokens and steps; no values."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from lakegate.turns.protocol.fencing import unpack

_CHANGING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "ID"),
    (re.compile(r"\b\d+(?=\b|_)"), "N"),
)
_OTHERS = re.compile(r"\.parquet$|\.crc$|\.bin$|/_last_checkpoint$|/(offsets|commits|sources)/|/metadata$|-wal$|-shm$")
"""Files of Delta, Spark and SQLite."""


def shape(root: Path, folders: Iterable[str]) -> str:
    """A line for each name, in the order of the alphabet."""
    lines: set[str] = set()
    for file in sorted(path for folder in folders for path in (root / folder).rglob("*") if path.is_file()):
        place = _constant(file.relative_to(root).as_posix())
        if _OTHERS.search(f"/{place}"):
            continue
        if file.parent.name == "_delta_log":
            lines |= {f"{_constant(file.parents[1].relative_to(root).as_posix())}/ {line}" for line in _commit(file)}
            continue
        lines.add(place)
        lines |= {f"{place}: {line}" for line in _content(file, root)}
    return "".join(f"{line}\n" for line in sorted(lines))


def _content(file: Path, root: Path) -> Iterator[str]:
    if file.suffix in (".json", ".jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield from _keys(json.loads(line), root)
    if file.suffix == ".db":
        with closing(sqlite3.connect(file)) as database:
            yield from (
                " ".join(sql.split())
                for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            )
            for (record,) in database.execute("SELECT record FROM locks"):
                yield from _keys(json.loads(record), root)


def _commit(file: Path) -> Iterator[str]:
    for action in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        if "metaData" in action:
            for column in json.loads(action["metaData"]["schemaString"])["fields"]:
                yield f"column {column['name']} {json.dumps(column['type'])}"
            yield f"partitioned by {action['metaData']['partitionColumns']}"
            yield from (f"property {name} = {value}" for name, value in action["metaData"]["configuration"].items())
        if "txn" in action:
            yield f"token {_constant(action['txn']['appId'])}, step {unpack(action['txn']['version']).step}"
        if noted := action.get("commitInfo", {}).get("userMetadata"):
            said = json.loads(noted)
            yield f"step {said['step']}"
            yield from (f"userMetadata {key}" for key in said)


def _keys(value: Any, root: Path, at: str = "") -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _keys(inner, root, f"{at}.{_constant(key.replace(str(root), 'ROOT'))}".lstrip("."))
        case list() if value:
            for inner in value:
                yield from _keys(inner, root, f"{at}[]")
        case _:
            yield at


def _constant(name: str) -> str:
    """A name without what differs from run to run."""
    for pattern, word in _CHANGING:
        name = pattern.sub(word, name)
    return name
