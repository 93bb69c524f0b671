"""Group commit: statements that wait to follow the same winners go into one version, one after the other.

Each is rebased on the winners and on those of the group before it. What the group writes is the *difference* of the table's
files before and after it, never its members' actions in a row: a file that one adds and the next marks rows in is added once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakegate.delta.actions import Action, Body, changes
from lakegate.effects import Effect, Protocol, perform
from lakegate.ids import Version
from lakegate.rows.conflict.commit_protocol import info_of
from lakegate.rows.conflict.effects import Waiting
from lakegate.rows.conflict.rebase import Rebased, rebase

FILE_KINDS = ("add", "remove", "cdc")
ALONE = ("metaData", "protocol", "txn", "domainMetadata")
"""A commit with one of these keeps a version of its own: what it says must not be mixed with another's."""


@dataclass(frozen=True, slots=True)
class Of(Effect[Any]):
    """A question of one member; its answer is that of the question."""

    member: int
    effect: Effect[Any]


@dataclass(frozen=True, slots=True)
class Member:
    """How one of them follows the winners, and its own history."""

    level: int
    info: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Those that go into the next version together, in their order."""

    members: Mapping[int, Member]
    """By their place in what was given."""
    actions: tuple[Action, ...]
    info: Body


def gather(head: Version, commits: Mapping[Version, tuple[Action, ...]], waiting: Sequence[Waiting]) -> Protocol[Group]:
    """Who can go into the version after `head`; the others are left as they are.

    Args:
        head: The table's version.
        commits: From the first one after any member's snapshot up to `head`.
        waiting: In the order in which they shall follow each other.
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
    """One commit after `head` that does what these do one after the other."""
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
    """What must be alike in a version; None for a commit without files.

    A version with change files shows nothing but them in the change feed, and all files of a version share `dataChange`.
    """
    files = [action for action in actions if action.kind in FILE_KINDS]
    if not files:
        return None
    is_change = any(action.body.get("dataChange", True) for action in files if action.kind != "cdc")
    return any(action.kind == "cdc" for action in files), is_change


def _info(infos: Sequence[Body]) -> Body:
    """History of a group: what each of its members is."""
    if len(infos) < 2:
        return infos[0] if infos else {}
    operations = [str(info.get("operation", "")) for info in infos]
    return {
        "operation": operations[0] if len(set(operations)) == 1 else "GROUP",
        "operationParameters": {"members": str(len(infos)), "operations": ", ".join(operations)},
        "operationMetrics": _summed([info.get("operationMetrics") or {} for info in infos]),
        "isBlindAppend": all(info.get("isBlindAppend", False) for info in infos),
        # What is said of the version has to hold for all of it, as that row ids were kept.
        "tags": dict(set.intersection(*(set((info.get("tags") or {}).items()) for info in infos))),
    }


def _summed(metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = dict.fromkeys(name for each in metrics for name in each)
    return {name: str(sum(int(each.get(name, 0)) for each in metrics)) for name in names}


def _of(member: int, protocol: Protocol[Any]) -> Protocol[Any]:
    """A member's protocol, its questions marked as its own."""
    answer: Any = None
    try:
        while True:
            effect = protocol.send(answer)
            answer = yield from perform(Of(member, effect))
    except StopIteration as end:
        return end.value
