"""Parses one commit file of a Delta log from its text; opens no file.

Source: Delta protocol, "Actions"; each line of a commit file is one action, an object with one key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakegate.delta.actions import Body, parse
from lakegate.ids import TokenId, Version
from lakegate.turns.protocol.fencing import PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A data file that a commit added to the table; also among the removed files if only its deletion vector changed."""

    path: str
    """As in the log: URL-encoded, relative to the table unless it is absolute."""
    is_data_change: bool
    """False if rows were only moved, as by OPTIMIZE."""
    records: int | None
    """Rows in the file, including rows that are marked as deleted; None if the log has no statistics."""
    deleted_records: int
    """Rows that the file's deletion vector marks."""
    size_bytes: int
    partition: Mapping[str, str | None]
    """Partition column, by its physical name → value, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFile:
    """A data file that a commit removed from the table; also among the added files if only its deletion vector changed."""

    path: str
    is_data_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The changes that one commit made, and their metadata."""

    version: Version
    timestamp_ms: int
    """In-commit timestamp, else the writer's clock; 0 if the commit has neither."""
    operation: str
    metrics: Mapping[str, str]
    tokens: Mapping[TokenId, int]
    """The `lakegate/` ids that it set."""
    user_metadata: Mapping[str, Any] | None
    """Parsed `userMetadata` if it is Lakegate's, else None."""
    added: tuple[AddedFile, ...]
    removed: tuple[RemovedFile, ...]
    is_metadata_change: bool
    """Schema, partitioning or properties were set."""
    has_change_files: bool
    """The commit has files of the change data feed, which list the changed rows."""
    changed_bytes: int
    """Total size of these files, or else of the data files that were added or removed."""

    @property
    def is_lakegate(self) -> bool:
        """True if a turn made this commit."""
        return self.user_metadata is not None


def parse_commit(version: Version, text: str) -> Commit:
    """Reads everything that Lakegate wants to know of a commit.

    Raises:
        Corrupt: A line is no action.
    """
    bodies: dict[str, list[Body]] = {}
    for action in parse(text):
        bodies.setdefault(action.kind, []).append(action.body)
    info = next(iter(bodies.get("commitInfo", ())), {})
    added, removed, changed = (bodies.get(kind, []) for kind in ("add", "remove", "cdc"))
    return Commit(
        version=version,
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        operation=str(info.get("operation", "")),
        metrics={str(name): str(value) for name, value in (info.get("operationMetrics") or {}).items()},
        tokens=tokens_among({txn["appId"]: int(txn["version"]) for txn in bodies.get("txn", ())}),
        user_metadata=lakegate_metadata(info),
        added=tuple(_added(add) for add in added),
        removed=tuple(
            RemovedFile(path=remove["path"], is_data_change=remove.get("dataChange", True)) for remove in removed
        ),
        is_metadata_change="metaData" in bodies,
        has_change_files="cdc" in bodies,
        changed_bytes=_bytes(changed) or _bytes(file for file in added + removed if file.get("dataChange", True)),
    )


def _bytes(files: Iterable[Body]) -> int:
    return sum(int(file.get("size") or 0) for file in files)


def actions(text: str, kind: str) -> Iterator[Body]:
    """Yields the bodies of the actions of one kind, in order."""
    return (action.body for action in parse(text, (kind,)))


def commit_info(text: str) -> dict[str, Any]:
    """Returns the commit's provenance; empty if the writer recorded none."""
    return dict(next(actions(text, "commitInfo"), {}))


def commit_tokens(text: str) -> dict[TokenId, int]:
    """Returns the `lakegate/` ids that a commit set, with their numbers."""
    return tokens_among(commit_transactions(text))


def commit_transactions(text: str) -> dict[str, int]:
    """Returns all transaction ids that a commit set, including those of other applications, with their numbers."""
    return {txn["appId"]: int(txn["version"]) for txn in actions(text, "txn")}


def tokens_among(transactions: Mapping[str, int]) -> dict[TokenId, int]:
    """Selects the transaction ids that are Lakegate's."""
    return {TokenId(app_id): number for app_id, number in transactions.items() if app_id.startswith(PREFIX)}


def lakegate_metadata(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parses the `userMetadata` of a commit; None if it is not Lakegate's."""
    said = info.get("userMetadata")
    if not isinstance(said, str) or '"lakegate"' not in said:
        return None
    try:
        parsed = json.loads(said)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "lakegate" in parsed else None


def _added(add: Mapping[str, Any]) -> AddedFile:
    statistics = json.loads(add.get("stats") or "{}")
    return AddedFile(
        path=add["path"],
        is_data_change=add.get("dataChange", True),
        records=statistics.get("numRecords"),
        deleted_records=(add.get("deletionVector") or {}).get("cardinality", 0),
        size_bytes=add.get("size", 0),
        partition=add.get("partitionValues") or {},
    )
