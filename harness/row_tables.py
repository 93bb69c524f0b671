"""The explored tables: logs of real actions whose `add` also holds the file's rows, and stock Delta's results on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from pyroaring import BitMap64

from harness.row_statements import Change, Row
from lakegate.delta.actions import Action, Captured
from lakegate.delta.actions import parse as parse_text
from lakegate.delta.deletion_vectors import read, write_inline
from lakegate.ids import Version

Log = tuple[str, ...]
"""The commits' texts."""


class Wrong(Exception):
    """A rule is broken."""


@lru_cache(1 << 16)
def parse(text: str) -> tuple[Action, ...]:
    """Returns the actions of a commit; cached, as many logs share commits."""
    return parse_text(text)


@cache
def files_of(log: Log) -> Mapping[str, Mapping[str, Any]]:
    """Returns the table's files by the protocol's rule: path and vector together identify a file."""
    live: dict[tuple[str, str], Mapping[str, Any]] = {}
    for text in log:
        commit = parse(text)
        for action in commit:
            if action.kind == "remove":
                if live.pop(key_of(action.body), None) is None:
                    raise Wrong("a commit removes what is not in the table")
        for action in commit:
            if action.kind == "add":
                live[key_of(action.body)] = action.body
    if len({path for path, _ in live}) != len(live):
        raise Wrong("a file is in the table twice")
    return {path: body for (path, _), body in live.items()}


@cache
def rows_of(log: Log) -> Counter[Row]:
    """Returns the table's rows."""
    return Counter(row for body in files_of(log).values() for row in rows_in(body))


def live_of(body: Mapping[str, Any]) -> list[tuple[int, Row]]:
    """Returns row index and row of each row that no vector marks."""
    marked = marked_of(body)
    return [(at, (row[0], row[1])) for at, row in enumerate(body.get("rows", ())) if at not in marked]


def rows_in(body: Mapping[str, Any]) -> list[Row]:
    """Returns the rows of a file that no vector marks."""
    return [row for _, row in live_of(body)]


def marked_of(body: Mapping[str, Any]) -> BitMap64:
    """Returns the row indexes that its vector marks."""
    descriptor = body.get("deletionVector")
    return read(descriptor) if descriptor else BitMap64()


def key_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the identity of a file of a table: path and vector."""
    return body["path"], json.dumps(body.get("deletionVector"))


def add_of(log: Log, removed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the `add` that a `remove` undoes."""
    for text in log:
        for action in parse(text):
            if action.kind == "add" and key_of(action.body) == key_of(removed):
                return action.body
    raise Wrong("a removed file was never added")


def file_of(path: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Makes the body of an `add`."""
    stats = json.dumps({"numRecords": len(rows)})
    return {"path": path, "dataChange": True, "stats": stats, "rows": [list(row) for row in rows]}


def text_of(writer: int, id_: str, actions: Sequence[Action]) -> str:
    """Makes the text of a writer's commit."""
    info = Action("commitInfo", {"txnId": id_, "writer": writer})
    return "\n".join(action.to_json() for action in (info, *actions))


def writer_of(text: str) -> int:
    """Returns the writer of the commit."""
    return int(parse(text)[0].body["writer"])


def computed(
    change: Change,
    name: str,
    files: Mapping[str, Mapping[str, Any]],
    version: Version,
    *,
    is_marking: bool,
    has_feed: bool,
) -> Captured:
    """Returns the commit that stock Delta computes for a statement on these files.

    Args:
        change: The statement.
        name: Name of the files that the statement writes.
        files: Path → body of the `add`.
        version: The version that the statement is computed on.
        is_marking: Whether rows are marked in vectors; otherwise files are rewritten.
        has_feed: Whether its changes are written into the change feed.
    """
    images: list[Row] = []
    gone: list[Row] = []
    copied: list[Row] = []
    out: list[Action] = []
    if change.moves_all and len(files) < 2 and all("deletionVector" not in body for body in files.values()):
        return Captured(version=version, actions=(), info={})
    concerned = sum(change.concerns(row) for body in files.values() for _, row in live_of(body))
    for body in files.values():
        if change.unmarks is not None:
            back = BitMap64(at for at in marked_of(body) if tuple(body["rows"][at]) == change.unmarks)
            if back and not out:
                out.append(Action("remove", {key: body[key] for key in ("path", "stats", "deletionVector")}))
                out.append(
                    Action("add", {**body, "deletionVector": write_inline(marked_of(body) - BitMap64([back.min()]))})
                )
            continue
        live = live_of(body)
        hit = [at for at, row in live if change.concerns(row) or change.moves_all]
        if not hit:
            continue
        rows = dict(live)
        gone += [rows[at] for at in hit]
        images += [
            then
            for at in hit
            if (then := rows[at] if change.moves_all else change.image(rows[at], concerned)) is not None
        ]
        out.append(Action("remove", {key: body[key] for key in ("path", "stats", "deletionVector") if key in body}))
        if len(hit) == len(live):
            continue
        if is_marking:
            marked = marked_of(body) | BitMap64(hit)
            out.append(Action("add", {**body, "deletionVector": write_inline(marked)}))
        else:
            copied += [row for at, row in live if at not in hit]
    if change.unmarks is not None:
        return Captured(version=version, actions=tuple(out), info={})
    images += change.adds(sorted(row for body in files.values() for _, row in live_of(body)))
    if has_feed and gone and not change.moves_all:
        out.append(Action("cdc", {"path": f"{name}c", "dataChange": False, "gone": gone, "came": list(images)}))
    if images or copied:
        out.append(Action("add", file_of(name, [*images, *copied])))
    return Captured(version=version, actions=tuple(out), info={})


def moved_to(log: Log, lost: Sequence[Any], copies: Sequence[Mapping[str, Any]]) -> dict[str, BitMap64] | None:
    """Returns the positions of the lost rows in the copies."""
    gone: Counter[Row] = Counter()
    for change in lost:
        gone.update(rows_in(add_of(log, change.before)))
        gone.subtract(rows_in(change.after) if change.after else [])
    found: dict[str, BitMap64] = {}
    for body in copies:
        for at, row in live_of(body):
            if gone[row] > 0:
                gone[row] -= 1
                found.setdefault(body["path"], BitMap64()).add(at)
    return found if not +gone else None


def is_in_the_feed(actions: Sequence[Action], before: Counter[Row], after: Counter[Row]) -> bool:
    """Returns whether a commit's change files, if it has any, list all its changes: readers of such a commit read nothing else."""
    described = [action.body for action in actions if action.kind == "cdc"]
    if not described:
        return True
    shown = Counter(before)
    for body in described:
        shown.subtract((row[0], row[1]) for row in body["gone"])
        shown.update((row[0], row[1]) for row in body["came"])
    return {row: number for row, number in shown.items() if number} == dict(+after)
