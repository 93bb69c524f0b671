"""The history of a table as its log has it: live files, files of older versions, and which version can still be read.

Rules for editors: pure. The log is fed file by file; nothing is decided before all of it is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakegate.erasure.columns import decoded

LOG = "_delta_log"
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.(parquet|json)")
DAY_MS = 86_400_000
RETENTION = {"delta.deletedFileRetentionDuration": 7 * DAY_MS, "delta.logRetentionDuration": 30 * DAY_MS}
RUNNING_MS = DAY_MS
"""No write is taken to run for longer: what it has written, and the commits that it must meet, are left for so long."""
_UNITS = {"week": 7 * DAY_MS, "day": DAY_MS, "hour": 3_600_000, "minute": 60_000, "second": 1000, "millisecond": 1}


def retention_ms(properties: Mapping[str, str], name: str) -> int:
    """Returns a retention time of a table in milliseconds, Delta's default if it is not set or not readable."""
    parts = re.findall(r"(\d+)\s+([a-z]+?)s?\b", properties.get(name, "").lower())
    known = [int(number) * _UNITS[unit] for number, unit in parts if unit in _UNITS]
    return sum(known) if known else RETENTION[name]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a listing."""

    path: str
    size: int
    mtime_ms: int


@dataclass(slots=True)
class Seen:
    """A data file that the log names."""

    partition: Mapping[str, str | None]
    is_live: bool = False
    vector: Mapping[str, Any] | None = None
    removed_at_ms: int | None = None
    removed_in: int | None = None
    """The last version that removed it."""


@dataclass(slots=True)
class History:
    """The state of a table by its log: checkpoints are fed first, then commits in order."""

    commits: list[int] = field(default_factory=list)
    """Versions whose commit file exists, ascending."""
    checkpoints: list[int] = field(default_factory=list)
    files: dict[str, Seen] = field(default_factory=dict)
    """By path, decoded, relative to the table unless it is absolute."""
    change_files: set[str] = field(default_factory=set)
    sidecars: dict[str, int] = field(default_factory=dict)
    """Name → the newest checkpoint that needs it."""
    schemas: set[str] = field(default_factory=set)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> int:
        """The newest version; -1 without a table."""
        return max([*self.commits, *self.checkpoints], default=-1)

    @property
    def base(self) -> int | None:
        """The checkpoint on which the newest state rests; None if all commits exist."""
        return None if self.commits[:1] == [0] else max(self.checkpoints, default=None)

    def feed(self, action: Mapping[str, Any], version: int | None) -> None:
        """Takes in an action: of a commit's version; None for one of the newest checkpoint."""
        match action:
            case {"add": {"path": path} as add}:
                seen = self._seen(path, add)
                seen.is_live, seen.vector = True, add.get("deletionVector") or None
            case {"remove": {"path": path} as remove}:
                seen = self._seen(path, remove)
                if version is None or seen.removed_in is None or version > seen.removed_in:
                    seen.removed_at_ms, seen.removed_in = remove.get("deletionTimestamp"), version
                seen.is_live = False
            case {"cdc": {"path": path}}:
                self.change_files.add(decoded(path))
            case {"metaData": {"schemaString": schema} as metadata}:
                self.schemas.add(schema)
                pairs = metadata.get("configuration") or {}
                self.properties = dict(pairs)

    def place(self, name: str) -> str:
        """Returns the kind of a file's place: in the log, or by what the log says of it."""
        if name.startswith(f"{LOG}/"):
            file = name.removeprefix(f"{LOG}/")
            if COMMIT.fullmatch(file):
                return "commit"
            return "checkpoint" if CHECKPOINT.fullmatch(file) or file.startswith("_sidecars/") else "log"
        if name.startswith("_change_data/") or name in self.change_files:
            return "change data"
        if (seen := self.files.get(name)) is not None:
            return "live" if seen.is_live else "old version"
        return "orphan" if name.endswith(".parquet") else "other file"

    def deletable_ms(self, name: str, entry: Entry, kept_ms: int) -> int:
        """Returns when a data file that no live version needs may be deleted, if removed files are kept for that long.

        A file that no version names may be one that a running write has not committed yet.
        """
        seen = self.files.get(name)
        if seen is not None:
            return (seen.removed_at_ms or entry.mtime_ms) + kept_ms
        return entry.mtime_ms + (kept_ms if name in self.change_files else max(kept_ms, RUNNING_MS))

    def _seen(self, path: str, body: Mapping[str, Any]) -> Seen:
        seen = self.files.setdefault(decoded(path), Seen(partition={}))
        if body.get("partitionValues"):
            seen.partition = dict(body["partitionValues"])
        return seen

    def earliest_version(self, existing: Collection[str]) -> int | None:
        """Returns the earliest version of which log and files are there; None if no version can be read.

        Args:
            existing: Paths of the data files that exist.
        """
        first = self.head
        if first < 0:
            return None
        while first - 1 in self.commits:
            first -= 1
        if first > 0:
            usable = [version for version in self.checkpoints if version >= first - 1]
            if not usable:
                return None
            first = min(usable)
        for path, seen in self.files.items():
            if path in existing or ":" in path.split("/")[0]:
                continue
            if seen.is_live:
                return None
            if seen.removed_in is not None:
                first = max(first, seen.removed_in)
        return first
