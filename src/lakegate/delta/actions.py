"""Actions of Delta commits, and the changes that a sequence of commits made to a table's files.

An action is kept as the log has it, including the fields that this version does not know. The changes of winning commits
are computed from these commits alone: the table's whole state is never needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakegate.delta.deletion_vectors import identity
from lakegate.errors import Corrupt
from lakegate.ids import Version
from lakegate.stored_json import Damaged, parsed

Body = Mapping[str, Any]
ONLY_OF_REMOVE = ("deletionTimestamp", "extendedFileMetadata")
PHYSICAL_NAME = "delta.columnMapping.physicalName"
KIND_WIDTH = 24
"""An action's kind is the first key of its line."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action: one line of a commit."""

    kind: str
    """`add`, `remove`, `cdc`, `txn`, `metaData`, `protocol`, `domainMetadata`, `commitInfo`, or what a later protocol has."""
    body: Body

    def to_json(self) -> str:
        """Returns the line."""
        return json.dumps({self.kind: self.body}, separators=(",", ":"), ensure_ascii=False)


def parse(text: str, kinds: Iterable[str] = ()) -> tuple[Action, ...]:
    """Reads a commit file: its actions in order. A line of a later protocol may hold several.

    Args:
        text: The whole file.
        kinds: Only actions of these; lines of other kinds, which may be long, are not parsed. Of all kinds by default.

    Raises:
        Corrupt: A line has no action.
    """
    found, wanted = [], {f'"{kind}"' for kind in kinds}
    # Not splitlines(): strings in JSON may hold other line separators of Unicode.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (wanted and not any(quoted in line[:KIND_WIDTH] for quoted in wanted)):
            continue
        try:
            data = parsed(line)
        except Damaged as damage:
            raise Corrupt(f"a line of a commit is {damage}; nothing was written", line=number) from damage
        known = [Action(kind, body) for kind, body in data.items() if isinstance(body, dict)]
        if not known:
            raise Corrupt("a line of a commit is no action; nothing was written", line=number)
        found += known
    return tuple(action for action in found if not wanted or f'"{action.kind}"' in wanted)


@dataclass(frozen=True, slots=True)
class FileChange:
    """The net effect of commits on one data file, from the version before them to the last of them."""

    path: str
    before: Body | None
    """The first `remove` of the file; it names the vector that the file had before. None if the table did not have the file."""
    after: Body | None
    """The last `add` of the file; None if the file is no longer in the table."""

    @property
    def is_rewritten(self) -> bool:
        """True if the file was added or removed, or has another vector: its live rows may differ."""
        if self.before is None or self.after is None:
            return True
        return vector_of(self.before) != vector_of(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The net effect of the commits from one version to another."""

    version: Version
    """The last of them."""
    files: Mapping[str, FileChange]
    transactions: Mapping[str, int] = field(default_factory=dict)
    domains: frozenset[str] = frozenset()
    """Domains whose metadata were set."""
    is_definition_changed: bool = False
    """Metadata or protocol were set."""
    is_file_said_anew: bool = False
    """Existing files were added again without a `remove`, for example to give them row ids or statistics. They are listed as
    added files, and a later removal of them may not be listed."""
    transaction_ids: Mapping[str, Version] = field(default_factory=dict)
    """`commitInfo.txnId` → version."""

    @property
    def came(self) -> tuple[FileChange, ...]:
        """The files that the table has gained."""
        return tuple(change for change in self.files.values() if change.before is None and change.after is not None)

    @property
    def lost_rows(self) -> tuple[FileChange, ...]:
        """The earlier files that were removed, or that have another vector."""
        return tuple(change for change in self.files.values() if change.before is not None and change.is_rewritten)


def changes(after: Version, commits: Sequence[Iterable[Action]]) -> Changes:
    """Combines the commits `after` + 1, `after` + 2, …; removing a file that is already removed changes nothing."""
    before: dict[str, Body | None] = {}
    now: dict[str, Body | None] = {}
    transactions: dict[str, int] = {}
    domains: set[str] = set()
    transaction_ids: dict[str, Version] = {}
    is_definition_changed = is_file_said_anew = False
    for place, commit in enumerate(commits, start=1):
        version = Version(after + place)
        removed: dict[str, Body] = {}
        added: dict[str, Body] = {}
        for action in commit:
            match action.kind:
                case "remove":
                    removed[action.body["path"]] = action.body
                case "add":
                    added[action.body["path"]] = action.body
                case "txn":
                    transactions[action.body["appId"]] = int(action.body["version"])
                case "domainMetadata":
                    domains.add(action.body["domain"])
                case "metaData" | "protocol":
                    is_definition_changed = True
                case "commitInfo":
                    if (id_ := action.body.get("txnId")) is not None:
                        transaction_ids[id_] = version
        # A commit that moves rows removes their old files too.
        is_file_said_anew |= not removed and any(body.get("dataChange") is False for body in added.values())
        # The order of actions within a commit has no meaning: a file's new vector may come before the removal of its old one.
        for path, body in removed.items():
            before.setdefault(path, body)
            now[path] = None
        for path, body in added.items():
            before.setdefault(path, None)
            now[path] = body
    files = {
        path: FileChange(path, was, now[path])
        for path, was in before.items()
        if was is not None or now[path] is not None
    }
    return Changes(
        version=Version(after + len(commits)),
        files=files,
        transactions=transactions,
        domains=frozenset(domains),
        is_definition_changed=is_definition_changed,
        is_file_said_anew=is_file_said_anew,
        transaction_ids=transaction_ids,
    )


def as_add(file: Body, partition_columns: Iterable[str]) -> dict[str, Any]:
    """Returns the `add` of a file, made from an `add` or from a `remove` with `extendedFileMetadata`.

    Args:
        file: The `add` or `remove`.
        partition_columns: The table's partition columns, by their physical names. Delta omits null values from a `remove`,
            and refuses an `add` without them.
    """
    said = {key: value for key, value in file.items() if value is not None and key not in ONLY_OF_REMOVE}
    return {
        "size": 0,
        "modificationTime": file.get("deletionTimestamp", 0),
        **said,
        "partitionValues": {**dict.fromkeys(partition_columns), **said.get("partitionValues", {})},
        "dataChange": True,
    }


def partition_columns(metadata: Body) -> tuple[str, ...]:
    """Returns the physical names of a table's partition columns: the names that actions use."""
    fields = json.loads(metadata["schemaString"])["fields"]
    physical = {each["name"]: (each.get("metadata") or {}).get(PHYSICAL_NAME, each["name"]) for each in fields}
    return tuple(physical[name] for name in metadata.get("partitionColumns") or ())


def vector_of(file: Body) -> str | None:
    """Returns the unique id of a file's deletion vector; None if the file has none."""
    return identity(file.get("deletionVector"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A commit that stock Delta computed and that the gate did not write to the log."""

    version: Version
    """The statement's snapshot."""
    actions: tuple[Action, ...]
    """Without `commitInfo`."""
    info: Body
    """Its `commitInfo`: operation, parameters, metrics, user metadata."""
    is_nothing: bool = False
    """The statement found nothing to do, at its snapshot or a later one, and made no commit: none is made just for its token."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The stock commit succeeded; `version` is None if the statement had nothing to commit."""

    version: Version | None
