"""Random histories of one table with two unique keys, made in memory, and their images as sources cut them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.memory_target import Storage, Violation, table
from lakegate.syncs.plan.change import Change

T = table("t", ["id"], [["a"], ["b", "c"]], ["v"])
IDS, VALUES = range(6), [None, 0, 1, 2, 3]


@dataclass(frozen=True, slots=True)
class History:
    """Changes, and the rows at their end."""

    changes: tuple[Change, ...]
    final: dict[Any, Any]


def serial(chance: random.Random, *, is_deferred: bool) -> History:
    """A history that is valid at the ends of its transactions (deferred), or at every change."""
    rows: dict[int, dict[str, Any]] = {}
    changes: list[Change] = []
    for tx in range(chance.randrange(1, 14)):
        trial, said = dict(rows), []
        for _ in range(chance.randrange(1, 5)):
            before_step = dict(trial)
            change = _step(chance, trial, str(tx), len(changes) + len(said))
            if change is None or not (is_deferred or _is_valid(trial)):
                trial = before_step
            else:
                said.append(change)
        if _is_valid(trial):
            rows = trial
            changes += [replace(one, seq=len(changes) + place) for place, one in enumerate(said)]
    return History(tuple(changes), {(key,): row for key, row in rows.items()})


def _step(chance: random.Random, rows: dict[int, dict[str, Any]], tx: str, seq: int) -> Change | None:
    draw = {"a": chance.choice(VALUES), "b": chance.choice(VALUES), "c": chance.choice(VALUES), "v": seq}
    free = [id for id in IDS if id not in rows]
    what = chance.choice(["c", "d", "u", "u", "u", "move"])
    if what == "c" and free:
        row = {"id": chance.choice(free), **draw}
        rows[row["id"]] = row
        return Change(seq=seq, tx=tx, table="t", op="c", after=row)
    if not rows or what == "c":
        return None
    old = rows.pop(chance.choice(sorted(rows)))
    if what == "d":
        return Change(seq=seq, tx=tx, table="t", op="d", before=old)
    keep = chance.sample(["a", "b", "c"], chance.randrange(3))
    new = {**old, **draw, **{name: old[name] for name in keep}}
    if what == "move" and free:
        new["id"] = chance.choice(free)
    rows[new["id"]] = new
    return Change(seq=seq, tx=tx, table="t", op="u", before=old, after=new)


def _is_valid(rows: dict[int, dict[str, Any]]) -> bool:
    storage = Storage({"t": T})
    try:
        for row in rows.values():
            storage.insert("t", row)
    except Violation:
        return False
    return True


def as_sent(changes: Sequence[Change], how: str) -> list[Change]:
    """Cuts the changes' images."""

    def say(change: Change) -> Change:
        if how == "key" and change.before is not None:
            return replace(change, before={"id": change.before["id"]})
        if how == "changed" and change.op == "u" and change.before and change.after:
            old = change.before
            return replace(change, after={k: v for k, v in change.after.items() if k == "id" or old[k] != v})
        return change

    return [say(change) for change in changes]
