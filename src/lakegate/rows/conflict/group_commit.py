"""Group commit: statements that wait to be rebased on the same winning commits share one version.

Each is rebased on the winning commits and on the group members before it. The group's commit is the *difference* of the
table's files before and after it, not its members' actions in sequence. So a file that one member adds, and in which the
next marks rows, is added once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakegate.delta.actions import Action, Body, changes
from lakegate.effects import Effect, Steps, perform
from lakegate.ids import Version
from lakegate.rows.conflict.commit_protocol import info_of
from lakegate.rows.conflict.effects import Waiting
from lakegate.rows.conflict.rebase import Rebased, rebase

FILE_KINDS = ("add", "remove", "cdc")
ALONE = ("metaData", "protocol", "txn", "domainMetadata")
"""A commit with one of these actions gets a version of its own: the action must not be mixed with another commit's."""


@dataclass(frozen=True, slots=True)
class Of(Effect[Any]):
    """An effect of one member; its answer is the answer of the inner effect."""

    member: int
    effect: Effect[Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A member's rebase level and its own history."""

    level: int
    info: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The members that share the next version, in their order."""

    members: Mapping[int, Member]
    """Members by their index in the input."""
    actions: tuple[Action, ...]
    info: Body


def gather(head: Version, commits: Mapping[Version, tuple[Action, ...]], waiting: Sequence[Waiting]) -> Steps[Group]:
    """Selects the statements that can share the version after `head`; the others stay as they are.

    Args:
        head: The table's version.
        commits: From the first one after any member's snapshot up to `head`.
        waiting: Waiting statements, in the order of their rebase.
    """
    parts: list[tuple[Action, ...]] = []
    members: dict[int, Member] = {}
    kind: tuple[bool, bool] | None = None
    for place, one in enumerate(waiting):
        seen = [commits[Version(version)] for version in range(one.lost.version + 1, head + 1)]
        won = changes(one.lost.version, [*seen, *parts])
        outcome = yield from _of(place, rebase(one.statement, one.lost, won))
        if not isinstance(outcome, Rebased) or any(action.kind in ALONE for action in outcome.actions):
            continue
        own = _kind(outcome.actions)
        if own is not None and kind is not None and own != kind:
            continue
        kind = own or kind
        parts.append(outcome.actions)
        members[place] = Member(outcome.level, info_of(one.statement, one.lost.info, outcome))
    return Group(
        members=members, actions=combined(head, parts), info=_info([member.info for member in members.values()])
    )


def combined(head: Version, parts: Sequence[tuple[Action, ...]]) -> tuple[Action, ...]:
    """Combines commits that follow each other after `head` into one commit with the same effect."""
    if len(parts) == 1:
        return parts[0]
    out = [action for part in parts for action in part if action.kind not in ("add", "remove")]
    removals = {action.body["path"]: action for part in reversed(parts) for action in part if action.kind == "remove"}
    for path, change in changes(head, parts).files.items():
        if change.before is not None:
            out.append(removals[path])
        if change.after is not None:
            out.append(Action("add", change.after))
    return tuple(out)


def _kind(actions: Sequence[Action]) -> tuple[bool, bool] | None:
    """Returns the properties that all members of a version share; None for a commit without files.

    If a version has change files, its change feed shows nothing else; and all files of a version share `dataChange`.
    """
    files = [action for action in actions if action.kind in FILE_KINDS]
    if not files:
        return None
    is_change = any(action.body.get("dataChange", True) for action in files if action.kind != "cdc")
    return any(action.kind == "cdc" for action in files), is_change


def _info(infos: Sequence[Body]) -> Body:
    """Combines the histories of the members."""
    if len(infos) < 2:
        return infos[0] if infos else {}
    operations = [str(info.get("operation", "")) for info in infos]
    return {
        "operation": operations[0] if len(set(operations)) == 1 else "GROUP",
        "operationParameters": {
            "members": str(len(infos)),
            "operations": ", ".join(operations),
            "statements": json.dumps([_statement(info) for info in infos], ensure_ascii=False),
        },
        "operationMetrics": _summed([info.get("operationMetrics") or {} for info in infos]),
        "isBlindAppend": all(info.get("isBlindAppend", False) for info in infos),
        # A tag of the version has to be true for all of it, for example that row ids were kept.
        "tags": dict(set.intersection(*(set((info.get("tags") or {}).items()) for info in infos))),
    }


def _statement(info: Body) -> dict[str, Any]:
    """Returns what the history says of one member: its operation, parameters that are not empty, and metrics of rows and files."""
    parameters = {
        name: said for name, said in (info.get("operationParameters") or {}).items() if said not in ("", "[]")
    }
    metrics = {
        name: value
        for name, value in (info.get("operationMetrics") or {}).items()
        if str(value) != "0" and not name.endswith("TimeMs")
    }
    return {"operation": info.get("operation"), **parameters, "metrics": metrics}


def _summed(metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = dict.fromkeys(name for each in metrics for name in each)
    return {name: str(sum(int(each.get(name, 0)) for each in metrics)) for name in names}


def _of(member: int, protocol: Steps[Any]) -> Steps[Any]:
    """Wraps the effects of a member's protocol in `Of`."""
    answer: Any = None
    try:
        while True:
            effect = protocol.send(answer)
            answer = yield from perform(Of(member, effect))
    except StopIteration as end:
        return end.value
