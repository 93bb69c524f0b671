"""Reads a table's log and a streaming checkpoint on this machine's disk, without Spark; never writes them.

For display only, not to decide on a write: a run reads logs through Delta's own log store (`delta/table_log.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lakegate.delta.commit_file import Commit, actions, parse_commit
from lakegate.errors import Corrupt, Unavailable
from lakegate.ids import Version
from lakegate.stored_json import parsed

LOG = "_delta_log"
COMMIT_FILE = re.compile(r"(\d{20})\.json")
NOT_THERE = (FileNotFoundError, NotADirectoryError)
CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.\d{10})?\.parquet")


def local_path(location: str) -> Path | None:
    """Returns the folder of a location on this machine's disk; None if it is on another file system."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if "://" in location or location.startswith("hdfs:") else Path(location)


def sqlite_file(url: str) -> Path | None:
    """Returns the file in which a coordinator with this URL keeps turns; None if it keeps them elsewhere."""
    scheme, _, rest = url.partition(":")
    return Path(rest.removeprefix("//") if rest.startswith("///") else rest) if scheme == "sqlite" else None


def is_taken(table: Path) -> bool:
    """Returns True if a table's folder has other content and no Delta table; a log without a commit counts as empty."""
    if not table.is_dir():
        return table.exists()
    return not LocalLog(table).exists and any(entry.name != LOG for entry in table.iterdir())


def writable(path: str | os.PathLike[str]) -> str | None:
    """Returns the reason why nothing could be created at `path`; None if it could. Leaves nothing behind."""
    folder = Path(path).absolute()
    while not folder.exists() and not folder.is_symlink():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    probe = folder / f".lakegate-probe-{os.getpid()}"
    try:
        # A folder is the first thing that a run creates. Permissions alone do not show a read-only file system.
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    return None


def can_hard_link(folder: Path) -> str | None:
    """Returns the reason why the file system at `folder` (or its nearest existing parent) has no hard links; None if it has."""
    while not folder.exists():
        folder = folder.parent
    first = folder / f".lakegate-probe-{os.getpid()}"
    second = first.with_name(first.name + ".link")
    try:
        first.touch()
        os.link(first, second)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for file in (second, first):
            file.unlink(missing_ok=True)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of the newest version."""

    path: str
    """Relative to the table, decoded; or absolute."""
    has_deleted_rows: bool
    """A deletion vector hides some of its rows."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    vector: Mapping[str, Any] | None = None
    """The descriptor of this deletion vector, as in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A table's definition, from its newest metadata."""

    schema_json: str
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    features: frozenset[str]


class LocalLog:
    """The log of one Delta table on this machine's disk."""

    def __init__(self, table: Path) -> None:
        self.table = table

    @property
    def exists(self) -> bool:
        """True if there is a Delta table."""
        return bool(self.versions()) or bool(self._checkpoints())

    def versions(self) -> list[int]:
        """Returns the versions whose commit file exists, ascending."""
        return sorted(int(name[1]) for file in self._files() if (name := COMMIT_FILE.fullmatch(file)))

    def text(self, version: int) -> str | None:
        """Returns the text of a commit file; None if it does not exist."""
        try:
            return (self.table / LOG / f"{version:020d}.json").read_text(encoding="utf-8")
        except NOT_THERE:
            return None
        except OSError as error:
            raise Unavailable(f"the table's log cannot be read: {error.strerror}", table=self.table) from error

    def commits(self, after: int = -1) -> Iterator[Commit]:
        """Yields the parsed commits of the log after a version, oldest first.

        Raises:
            Corrupt: A commit file cannot be parsed.
        """
        for version in [one for one in self.versions() if one > after]:
            text = self.text(version)
            if text is not None:
                yield self._parsed(version, text)

    def _parsed(self, version: int, text: str) -> Commit:
        try:
            return parse_commit(Version(version), text)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"a commit file cannot be read ({type(error).__name__})", path=self.table / LOG / f"{version:020d}.json"
            ) from error

    def live_files(self) -> dict[str, LiveFile]:
        """Returns the data files of the newest version, by path.

        Raises:
            Unavailable: The log was cleaned up, and its checkpoint is of a kind that this module does not read.
        """
        live: dict[str, LiveFile] = {}
        for body in self._state():
            match body:
                case {"add": {"path": path}}:
                    add, name = body["add"], unquote(path)
                    vector = add.get("deletionVector") or None
                    live[name] = LiveFile(
                        path=name,
                        has_deleted_rows=vector is not None,
                        partition=dict(add.get("partitionValues") or ()),
                        vector=vector,
                    )
                case {"remove": {"path": path}}:
                    # A commit that only gives a file a deletion vector removes and adds one path, in either order.
                    live.pop(unquote(path), None)
        return live

    def definition(self) -> Definition | None:
        """Returns the table's definition; None if there is no table.

        Raises:
            Unavailable: As `live_files`.
        """
        metadata: dict[str, Any] | None = None
        protocol: dict[str, Any] = {}
        for body in self._state():
            metadata = body.get("metaData") or metadata
            protocol = body.get("protocol") or protocol
        if metadata is None:
            return None
        return Definition(
            schema_json=metadata["schemaString"],
            partition_columns=tuple(metadata.get("partitionColumns") or ()),
            properties=dict(metadata.get("configuration") or {}),
            features=frozenset((*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ()))),
        )

    def _state(self) -> Iterator[dict[str, Any]]:
        """Yields the actions of the newest state: first those of the newest checkpoint, if needed, then of the commits after it."""
        versions = self.versions()
        first = versions[0] if versions else None
        start = 0
        if first != 0:
            usable = [version for version in self._checkpoints() if first is None or version >= first - 1]
            if not usable:
                if not versions and not self._files():
                    return
                raise Unavailable("the log was cleaned up, and its checkpoint is not of a kind that is read here")
            yield from self._checkpoint(max(usable))
            start = max(usable) + 1
        for version in versions:
            text = self.text(version) if version >= start else None
            if text is not None:
                yield from _of_commit(text)

    def _checkpoint(self, version: int) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as parquet

        for name in self._checkpoints()[version]:
            file = parquet.ParquetFile(self.table / LOG / name)
            wanted = [
                column for column in ("add", "remove", "metaData", "protocol") if column in file.schema_arrow.names
            ]
            if "sidecar" in file.schema_arrow.names:
                raise Unavailable("the log was cleaned up, and its checkpoint is not of a kind that is read here")
            for batch in file.iter_batches(columns=wanted):
                for row in batch.to_pylist():
                    yield {kind: _plain(body) for kind, body in row.items() if body is not None}

    def _checkpoints(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for file in self._files():
            if name := CHECKPOINT_FILE.fullmatch(file):
                found.setdefault(int(name[1]), []).append(file)
        return found

    def _files(self) -> list[str]:
        try:
            return os.listdir(self.table / LOG)
        except NOT_THERE:
            return []
        except OSError as error:
            raise Unavailable(f"the table's log cannot be read: {error.strerror}", table=self.table) from error


def _of_commit(text: str) -> Iterator[dict[str, Any]]:
    # Removals first: a file that a commit both removes and adds is live.
    for kind in ("protocol", "metaData", "remove", "add"):
        for body in actions(text, kind):
            yield {kind: body}


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Converts an action of a Parquet checkpoint to its JSON form: maps come as lists of pairs."""
    pairs = body.get("configuration")
    return {**body, "configuration": dict(pairs)} if isinstance(pairs, list) else body


class LocalCheckpoint:
    """A streaming checkpoint on this machine's disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def query_id(self) -> str | None:
        """Returns the id of the checkpoint's query; None if no query has used it yet.

        Raises:
            Corrupt: There are batches without the file that names their query, or this file cannot be read.
        """
        try:
            return str(parsed((self.path / "metadata").read_bytes())["id"])
        except NOT_THERE:
            if self.planned() or self.committed():
                raise Corrupt(
                    "the checkpoint has batches and no file `metadata`",
                    advice="Restore the checkpoint, or start a new one with --new-checkpoint JOB (its rows come again)",
                    path=self.path,
                ) from None
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt("the checkpoint's file `metadata` cannot be read", path=self.path) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def planned(self) -> list[int]:
        """Returns the batches whose offsets exist, ascending. Spark keeps about the last hundred."""
        return self._batches("offsets")

    def committed(self) -> list[int]:
        """Returns the batches in the commit log, ascending. Spark keeps about the last hundred."""
        return self._batches("commits")

    def offsets_sha256(self, batch: int) -> str | None:
        """Returns the SHA-256 of the bytes of `offsets/<batch>`, hex; None if Spark has removed the file."""
        try:
            return hashlib.sha256((self.path / "offsets" / str(batch)).read_bytes()).hexdigest()
        except NOT_THERE:
            return None
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def kafka_offsets(self) -> dict[str, dict[int, int]]:
        """Returns topic → partition → next offset to read, as of the last batch in the commit log; empty before the first.

        Raises:
            Corrupt: The offsets are not offsets of Kafka.
        """
        committed = self.committed()
        if not committed:
            return {}
        try:
            text = (self.path / "offsets" / str(committed[-1])).read_bytes()
            # One line for the version, one for the batch, one per source: a stream has one source.
            said = parsed(text.splitlines()[2])
            return {
                str(topic): {int(number): int(offset) for number, offset in partitions.items()}
                for topic, partitions in said.items()
            }
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise Corrupt("the checkpoint's offsets are not offsets of Kafka", path=self.path) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def _batches(self, folder: str) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self.path / folder) if name.isdecimal())
        except NOT_THERE:
            return []
        except OSError as error:
            raise _unreadable(self.path, error) from error


def _unreadable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"the checkpoint cannot be read: {error.strerror}", path=path)
