"""Rebases the commit of a statement that lost its optimistic commit onto the winning commits; or gives the reason why it cannot.

**Serializable in log order**: the rebased commit, made after the winning commits, must change the table as the statement
would have if it had run on the table after them. The stock commit may be kept only if this is proved:

- Rows that winning commits *added* must not concern the statement (read test); otherwise it would have matched them.
- Rows that winning commits *removed* must not be among the rows that it wrote (write test: the vectors of a file are
  disjoint). A keyed statement must not even have read them.

Rules for editors: every test errs on the side of running the statement again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroaring import BitMap64

from lakegate.delta.actions import Action, Body, Captured, Changes, FileChange, vector_of
from lakegate.effects import Steps, perform
from lakegate.errors import Corrupt
from lakegate.ids import Version
from lakegate.rows.conflict.effects import FindEntered, FindMoved, MeetKeys, Positions, ReadVector, WriteVectors
from lakegate.rows.conflict.read_set import Reads, Statement

ENTERED = "new rows match its condition"
KEYS_CAME = "new rows have keys of its source"
ROW_TRACKING = "delta.rowTracking"


@dataclass(frozen=True, slots=True)
class Again:
    """The statement has to be executed again on the current table."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partly:
    """The statement has to be executed again, on these files only; nothing is left to do on other files."""

    reason: str
    files: tuple[Body, ...]
    version: Version
    kept: tuple[Action, ...]
    """The part of the captured commit that is kept, rebased on the winning commits."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A token of the commit is already in the table, with an equal or larger number: it must not be written."""

    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The commit, rebased on the winning commits."""

    actions: tuple[Action, ...]
    level: int
    """1: the stock commit as it was. 2: with merged deletion vectors."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to do: winning commits did all of it."""
        return not any(action.kind in ("add", "remove", "txn") for action in self.actions)


def deleted_rows(actions: Sequence[Action]) -> int | None:
    """Counts the rows that are marked, or removed with their file, if no file is rewritten; None if the log lacks the number."""
    adds = {action.body["path"]: action.body for action in actions if action.kind == "add"}
    total = 0
    for action in actions:
        if action.kind != "remove":
            continue
        add = adds.pop(action.body["path"], None)
        after = _records(action.body) if add is None else _cardinality(add)
        if after is None:
            return None
        total += after - _cardinality(action.body)
    return None if adds else total


def superseded_by(lost: Captured, won: Changes) -> Superseded | None:
    """Returns the token of a commit that is in the table with an equal or larger number; None if there is none."""
    for action in lost.actions:
        if action.kind == "txn" and won.transactions.get(action.body["appId"], -1) >= int(action.body["version"]):
            return Superseded(action.body["appId"])
    return None


def rebase(statement: Statement, lost: Captured, won: Changes) -> Steps[Rebased | Partly | Again | Superseded]:
    """Rebases the commit `lost` on `won`.

    Args:
        statement: The statement's read set.
        lost: The commit that stock Delta would have made after its snapshot.
        won: The changes committed since.
    """
    if (superseded := superseded_by(lost, won)) is not None:
        return superseded
    if won.is_definition_changed:
        return Again("the table's definition was changed")
    lost = replace(lost, actions=tuple(without_row_ids(lost)))
    if any(a.kind == "domainMetadata" and a.body["domain"] in won.domains for a in lost.actions):
        return Again("the same domain's metadata were changed")
    if statement.reads is not Reads.NOTHING:
        if won.is_file_said_anew:
            return Again("statistics or row ids of files were written again")
        if (yield from _are_rows_restored(won)):
            return Again("rows were restored")  # these are in no added file
    # Its vectors can be merged with those of winning commits, unless it has copies of rows: change files, or rewritten rows.
    kinds = {a.kind for a in lost.actions if a.kind != "add" or a.body["path"] not in _bodies(lost, "remove")}
    if kinds & {"metaData", "protocol"}:
        statement = replace(statement, is_divisible=False)  # another execution would define the table again, too
    # A statement without a commit has no history: an execution on the added files produces one.
    may_mark = statement.marks_rows and not lost.is_nothing and not kinds & {"add", "cdc"}
    if statement.reads is Reads.PLACES:
        return (yield from _moved(statement, lost, won))
    entered = yield from _read_test(statement, won, may_mark=may_mark)
    if isinstance(entered, Again):
        return entered
    vectors = yield from _write_test(lost, won, {} if isinstance(entered, Came) else entered, may_mark=may_mark)
    if isinstance(vectors, Again):
        return _on_what_both_concern(vectors.reason, lost, won, entered) if statement.is_divisible else vectors
    if isinstance(entered, Came):
        if not statement.is_divisible:
            return Again(entered.reason)
        # The statement's effect on a row depends on that row alone, so its effect on other rows is kept.
        kept = yield from _rewritten(lost, won, vectors)
        return Partly(reason=entered.reason, files=entered.files, version=won.version, kept=kept)
    actions = yield from _rewritten(lost, won, vectors)
    return Rebased(actions=actions, level=2 if vectors else 1)


def without_row_ids(lost: Captured) -> list[Action]:
    """Removes row ids from the actions: the transaction that commits assigns them again."""
    taken, kept = _bodies(lost, "remove"), []
    for action in lost.actions:
        if action.kind == "domainMetadata" and action.body["domain"] == ROW_TRACKING:
            continue
        if action.kind == "add" and action.body["path"] not in taken:
            action = Action("add", _without(action.body, "baseRowId", "defaultRowCommitVersion"))
        kept.append(action)
    return kept


def _are_rows_restored(won: Changes) -> Steps[bool]:
    """Returns True if a vector marks fewer rows than before, as after RESTORE."""
    for change in won.lost_rows:
        if change.before is not None and change.after is not None:
            before = yield from _positions(change.before)
            after = yield from _positions(change.after)
            if before - after:
                return True
    return False


@dataclass(frozen=True, slots=True)
class Came:
    """Files with new rows that concern a statement."""

    reason: str
    files: tuple[Body, ...]


def _read_test(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Mapping[str, BitMap64] | Came | Again]:
    """Tests whether the statement's read set is unchanged; if not, returns rows that a DELETE marks as well, or their files."""
    came, gone = won.came, won.lost_rows
    if not came and not gone:
        return {}
    match statement.reads:
        case Reads.NOTHING:
            return {}
        case Reads.TABLE:
            return Again("it reads the table, which was changed")
        case Reads.KEYS:
            unseen = () if statement.writes_all_matched or statement.is_divisible else gone
            is_met = bool(came or unseen) and (yield from perform(MeetKeys(came, unseen)))
            if is_met and statement.is_divisible:
                return Came(KEYS_CAME, tuple(_live(won, change.path) for change in came))
            if is_met:
                return Again("rows with keys of its source were changed")
            if not statement.has_condition:
                return {}
        case Reads.ROWS | Reads.PLACES:
            pass
    if not came:
        return {}
    entered: Mapping[str, Positions] = yield from perform(FindEntered(came))
    known = {
        path: rows for path, rows in entered.items() if rows is not None and _records(_live(won, path)) is not None
    }
    if not entered or (may_mark and len(known) == len(entered)):
        return known
    if statement.reads is Reads.KEYS:
        return Again(ENTERED)
    return Came(ENTERED, tuple(_live(won, path) for path in entered))


def _on_what_both_concern(reason: str, lost: Captured, won: Changes, entered: Mapping[str, BitMap64] | Came) -> Partly:
    """Returns the files that the statement wrote to, as they are now, and added files with rows that concern it.

    An execution on the whole table would read all of them.
    """
    files = []
    for path, removed in _bodies(lost, "remove").items():
        change = won.files.get(path)
        live = removed if change is None else change.after
        if live is not None:
            files.append(live)
    came = entered.files if isinstance(entered, Came) else [_live(won, path) for path in entered]
    files += [file for file in came if file["path"] not in _bodies(lost, "remove")]
    return Partly(reason=reason, files=tuple(files), version=won.version, kept=())


def _moved(statement: Statement, lost: Captured, won: Changes) -> Steps[Rebased | Again]:
    """Rebases an OPTIMIZE: copies of rows that winning commits removed get a vector; added files do not concern it."""
    taken, copies = _bodies(lost, "remove"), _bodies(lost, "add")
    changed = tuple(change for change in won.lost_rows if change.path in taken)
    if any(path in taken for path in copies):
        return Again("it changes a file instead of copying it")
    if not changed:
        return Rebased(actions=lost.actions, level=1)
    if not statement.marks_rows:
        return Again("rows that it copied were changed")
    places = yield from perform(FindMoved(changed, tuple(copies.values())))
    if places is None or any(_records(copies[path]) is None for path in places):
        return Again("rows that it copied were changed")
    marked = [path for path, rows in places.items() if len(rows) < (_records(copies[path]) or 0)]
    written = yield from perform(WriteVectors(tuple(places[path] for path in marked)))
    descriptors = dict(zip(marked, written, strict=True))
    out: list[Action] = []
    for action in lost.actions:
        path = action.body.get("path", "")
        if action.kind == "remove" and path in won.files:
            live = won.files[path].after
            if live is None:
                continue
            body = _without(action.body, "deletionVector")
            out.append(
                Action(
                    "remove", body if vector_of(live) is None else {**body, "deletionVector": live["deletionVector"]}
                )
            )
        elif action.kind == "add" and path in places:
            if path in descriptors:
                stats = _wide(action.body.get("stats"))
                out.append(Action("add", {**action.body, "deletionVector": descriptors[path], "stats": stats}))
        else:
            out.append(action)
    return Rebased(actions=tuple(out), level=2)


def _write_test(
    lost: Captured, won: Changes, entered: Mapping[str, BitMap64], *, may_mark: bool
) -> Steps[dict[str, BitMap64 | None] | Again]:
    """Returns the merged vector of each file that both changed; None: the statement no longer changes the file."""
    taken = _bodies(lost, "remove")
    kept = {path: body for path, body in _bodies(lost, "add").items() if path in taken}
    vectors: dict[str, BitMap64 | None] = {}
    for path, rows in entered.items():
        after = won.files[path].after
        assert after is not None, "rows enter by files that are in the table"
        there = yield from _positions(after)
        vectors[path] = there | rows
    for path, removed in taken.items():
        change = won.files.get(path)
        if change is None:
            continue
        if change.before is not None and vector_of(change.before) != vector_of(removed):
            raise Corrupt(
                "a captured commit names another vector than its snapshot has; nothing was written", path=path
            )
        if change.after is None:
            if not may_mark:
                return Again("a file that it changes was replaced")
            vectors[path] = None  # its rows are removed, or in added files, which the read test has covered
            continue
        own = yield from _own(kept.get(path))
        if vector_of(change.after) == vector_of(removed):
            vectors.setdefault(path, _EVERY_ROW if own is None else own)  # no other rows: statistics, or row ids
            continue
        base = yield from _positions(removed)
        winners = yield from _positions(change.after)
        if own is None:
            # The statement removed every live row of the file.
            if not may_mark:
                return Again("rows that it changed were changed")
            vectors[path] = _EVERY_ROW
        elif may_mark:
            vectors[path] = None if own <= winners else winners | own
        elif (own & winners) - base:
            return Again("rows that it changed were changed")
        else:
            vectors[path] = winners | own
    return vectors


def _rewritten(lost: Captured, won: Changes, vectors: Mapping[str, BitMap64 | None]) -> Steps[tuple[Action, ...]]:
    """Returns the captured actions with these vectors; each removal names the file's current vector."""
    whole = {
        path
        for path, vector in vectors.items()
        if vector is not None and (vector is _EVERY_ROW or len(vector) == _records(_live(won, path)))
    }
    marked = [path for path, vector in vectors.items() if vector is not None and path not in whole]
    written = yield from perform(
        WriteVectors(tuple(vector for path in marked if (vector := vectors[path]) is not None))
    )
    descriptors = dict(zip(marked, written, strict=True))
    out: list[Action] = []
    for action in lost.actions:
        path = action.body.get("path", "")
        if action.kind in ("add", "remove") and path in vectors:
            continue  # made below, from the winning commit's action
        out.append(action)
    own_adds = _bodies(lost, "add")
    for path, vector in vectors.items():
        if vector is None:
            continue
        live = _live(won, path)
        at_ms = _deletion_time(lost, path, live)
        out.append(Action("remove", _removal(live, at_ms)))
        if path in descriptors:
            stats = own_adds.get(path, live).get("stats", live.get("stats"))
            out.append(
                Action("add", {**live, "dataChange": True, "deletionVector": descriptors[path], "stats": _wide(stats)})
            )
    return tuple(out)


_EVERY_ROW = BitMap64()
"""A vector that marks all rows, whose number need not be known; compared by identity."""


def _positions(file: Body) -> Steps[BitMap64]:
    descriptor = file.get("deletionVector")
    if descriptor is None:
        return BitMap64()
    positions = yield from perform(ReadVector(descriptor))
    return positions


def _own(kept: Body | None) -> Steps[BitMap64 | None]:
    """Returns the vector that the statement gave a file; None if it removed the whole file."""
    if kept is None:
        return None
    positions = yield from _positions(kept)
    return positions


def _bodies(lost: Captured, kind: str) -> dict[str, Body]:
    return {action.body["path"]: action.body for action in lost.actions if action.kind == kind}


def _live(won: Changes, path: str) -> Body:
    change: FileChange = won.files[path]
    assert change.after is not None, "only files that are in the table get a vector"
    return change.after


def _records(file: Body) -> int | None:
    """Returns the rows in a file, including marked ones; None if the log lacks the number."""
    stats = file.get("stats")
    number = json.loads(stats).get("numRecords") if isinstance(stats, str) else None
    return int(number) if number is not None else None


def _cardinality(file: Body) -> int:
    """Returns the number of rows that a file's vector marks."""
    return int((file.get("deletionVector") or {}).get("cardinality", 0))


def _wide(stats: str | None) -> str | None:
    """Marks the statistics of a file with a vector as wide: their bounds may come from marked rows.

    Numbers with a point keep their digits: a decimal that became a double may no longer be a bound.
    """
    if stats is None:
        return None
    digits = "digits"
    while digits in stats:
        digits += "_"
    statistics = json.loads(stats, parse_float=lambda number: f"{digits}{number}")
    text = json.dumps({**statistics, "tightBounds": False}, separators=(",", ":"))
    return re.sub(f'"{digits}([^"]*)"', r"\1", text)


def _deletion_time(lost: Captured, path: str, live: Body) -> int:
    own = _bodies(lost, "remove").get(path)
    if own is not None and own.get("deletionTimestamp") is not None:
        return int(own["deletionTimestamp"])
    return int(lost.info.get("timestamp") or live.get("modificationTime") or 0)


def _removal(live: Body, at_ms: int) -> dict[str, Any]:
    """Returns the `remove` of a file as it is in the table."""
    kept = ("partitionValues", "size", "stats", "tags", "deletionVector", "baseRowId", "defaultRowCommitVersion")
    said = {name: live[name] for name in kept if live.get(name) is not None}
    return {"path": live["path"], "deletionTimestamp": at_ms, "dataChange": True, "extendedFileMetadata": True, **said}


def _without(body: Body, *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
