"""The files of a source: those that Spark sees, those that it passes over, and those that a stream has taken. Needs no Spark.

Spark's file source skips files silently: files with hidden names, and a file that was rewritten under a name it has taken. Its
log of files (`sources/0` in a checkpoint) lists the taken files, so the difference can be counted and named.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote

from lakegate.errors import Corrupt, Unavailable
from lakegate.private_files import make_folder, open_file
from lakegate.stored_json import parsed

MAGIC = re.compile(r"[\\{}\[\]*?]")
"""The characters that make a path a glob for Hadoop."""
COPYING = "._COPYING_"
SPARK_METADATA, DELTA_LOG = "_spark_metadata", "_delta_log"
HIDDEN_SHOWN_MAX = 3
LOG_VERSION = "v1"
_LOG = "sources/0"
"""Folder of Spark's log of files in a checkpoint."""
_MARKERS = re.compile(r"_SUCCESS|_started_.*|_committed_.*|_metadata|_common_metadata|\..*\.crc|\.DS_Store")
"""Files next to data that never hold records: markers of jobs that ended, checksums, footers of other files."""

Reason = Literal["rewritten", "hidden", "link", "unlogged", "unread", "waiting", "empty"]
WORDS: Mapping[Reason, tuple[str, str]] = {
    "rewritten": (
        "rewritten after the stream had read them; their new content was not read",
        "Write new records to a file with a new name",
    ),
    "hidden": (
        "hidden by their name or their folder's (_NAME, .NAME, NAME._COPYING_) and not read",
        "Rename them if they hold records",
    ),
    "link": ("links with a missing target, and not read", "Restore their targets"),
    "unlogged": (
        f"not in the log of the Spark query that writes the folder ({SPARK_METADATA}) and not read, as Spark does not read them",
        "A query that failed may have left them; move them to a folder without that log if they hold records",
    ),
    "unread": ("passed over by Spark and not read", "Give them new names, or move them out of the source"),
    "waiting": ("not read yet", "The next run of the stream reads them"),
    "empty": ("without a byte, and read as files without records", "Give a file that was filled later a new name"),
}
"""Reason → the words of the report on such files, and the advice."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file when it was looked at."""

    modified_ns: int
    size_bytes: int

    @property
    def modified_ms(self) -> int:
        """The modification time in the unit of Spark's log of files."""
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a source, by their paths."""

    base: str = ""
    """The folder that holds them, written as in their paths."""
    files: Mapping[str, FileState] = field(default_factory=dict)
    """The files that Spark sees."""
    hidden: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Links with a missing target."""
    unlogged: tuple[str, ...] = ()
    """Files that are not in the log of the Spark query that writes the folder: Spark reads only the files in that log."""
    tables: tuple[str, ...] = ()
    """Folders that are Delta tables."""

    def in_order(self) -> list[str]:
        """Returns the files that Spark sees, in the order in which it takes them."""
        return sorted(self.files, key=lambda path: (self.files[path].modified_ms, path))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """Files of a source that are not read, or not in their present state; for one reason."""

    reason: Reason
    files: tuple[str, ...]

    def __str__(self) -> str:
        words, advice = WORDS[self.reason]
        shown = ", ".join(printable(path) for path in self.files[:HIDDEN_SHOWN_MAX])
        more = len(self.files) - HIDDEN_SHOWN_MAX
        of = f"{len(self.files):,} file{'s' if len(self.files) != 1 else ''} of the source"
        return f"{of}: {words}: {shown}{f' and {more:,} more' if more > 0 else ''}. {advice}"


def printable(path: str) -> str:
    """Returns a path without characters that would move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in path)


def is_hidden(name: str) -> bool:
    """Returns True if Spark does not read a file or folder of this name."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith(COPYING)


# ------------------------------------------------------------------------------------------------------------- paths


def plain(path: str) -> str:
    """Returns a path of this machine's disk without `file:`."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def is_local(path: str) -> bool:
    """Returns True if the path is on this machine's file system."""
    return path.startswith("file:") or ("://" not in path and not path.startswith(("hdfs:", "viewfs:", "s3a:")))


def is_glob(path: str) -> bool:
    """Returns True if the path is a glob. A path that exists literally is not a glob."""
    return MAGIC.search(path) is not None and not (is_local(path) and os.path.lexists(plain(path)))


def base_of(path: str) -> str:
    """Returns the folder that holds a source's files: the source itself, or the part of it before the first wildcard."""
    whole = plain(path) if is_local(path) else path
    if not is_glob(path):
        return os.path.dirname(whole) if is_local(path) and os.path.isfile(whole) else whole
    kept = []
    for part in whole.split("/"):
        if MAGIC.search(part):
            break
        kept.append(part)
    return "/".join(kept) or "/"


def spark_path(path: str) -> str:
    """Returns the path in the form that Spark's file source needs.

    Spark treats a path with a special character as a glob, and can stream from a single file only if a glob names it.
    """
    if not is_local(path) or is_glob(path):
        return path
    whole = plain(path)
    escaped = MAGIC.sub(lambda found: "\\" + found[0], whole)
    return as_glob(whole) if escaped == whole and os.path.isfile(whole) else escaped


def as_glob(path: str) -> str:
    """Returns a glob that matches only the path of this file."""
    folder, name = os.path.split(path)
    return f"{folder.rstrip('/')}/[{name[0]}]{name[1:]}"


def globbed(pattern: str) -> list[str]:
    """Returns the matches of a Hadoop glob on the local disk: `*`, `?`, `[a-z]`, `[^a]`, `{a,b}` and `\\` before a character."""
    found: set[str] = set()
    for one in _alternatives(pattern):
        at = ["/"]
        for part in [part for part in one.split("/") if part]:
            at = [path for folder in at for path in _matching(folder, part)]
        found.update(at)
    return sorted(found)


def _matching(folder: str, part: str) -> Iterator[str]:
    if MAGIC.search(part) is None:
        if os.path.lexists(os.path.join(folder, part)):
            yield os.path.join(folder, part)
        return
    tokens = re.findall(r"\\.|\[(?:\\.|[^\]\\])+\]|.", part, flags=re.DOTALL)
    expression = "".join(_expression(token) for token in tokens)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unreadable(folder, error) from error
    for name in names:
        if re.fullmatch(expression, name, flags=re.DOTALL):
            yield os.path.join(folder, name)


def _expression(token: str) -> str:
    if token in "*?":
        return ".*" if token == "*" else "."
    if token.startswith("\\") and len(token) == 2:
        return re.escape(token[1])
    if token.startswith("[") and len(token) > 2:
        return translate(token.replace("[^", "[!").replace("\\", "")).removeprefix("(?s:").rpartition(")")[0]
    return re.escape(token)


def _alternatives(pattern: str) -> list[str]:
    """Expands `{a,b}` in a pattern to several patterns."""
    depth, start = 0, -1
    cuts: list[int] = []
    place = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 2
            continue
        if char == "{":
            if depth == 0:
                start = place
            depth += 1
        elif char == "," and depth == 1:
            cuts.append(place)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                edges = [start, *cuts, place]
                middles = [pattern[edges[i] + 1 : edges[i + 1]] for i in range(len(edges) - 1)]
                rest = pattern[place + 1 :]
                return [one for middle in middles for one in _alternatives(pattern[:start] + middle + rest)]
        place += 1
    return [pattern]


# ----------------------------------------------------------------------------------------------------------- listing


def listing(path: str) -> Listing:
    """Lists the files of a source on this machine's disk, at any depth; one pass.

    Raises:
        Unavailable: a folder cannot be read.
        Corrupt: the folder has a damaged log of the Spark query that writes it.
    """
    files: dict[str, FileState] = {}
    hidden: list[str] = []
    links: list[str] = []
    tables: list[str] = []
    roots = globbed(plain(path)) if is_glob(path) else [plain(path)]
    tables += [table for table in {_table_of(root) for root in roots} if table is not None]
    for root in roots:
        if os.path.basename(root) in (DELTA_LOG, SPARK_METADATA):  # Spark skips these, too
            continue
        if os.path.isdir(root):
            _walk(root, files, hidden, links, tables, is_below_hidden=False)
        else:
            _note(root, os.path.basename(root), files, hidden, links, is_below_hidden=False)
    sink = Path(plain(path)) / SPARK_METADATA
    unlogged = [] if is_glob(path) or not sink.is_dir() else sorted(files.keys() - _logged(sink))
    for one in unlogged:
        del files[one]
    return Listing(
        base=base_of(path),
        files=files,
        hidden=tuple(sorted(hidden)),
        links=tuple(sorted(links)),
        unlogged=tuple(unlogged),
        tables=tuple(sorted(tables)),
    )


def far_listing(text: str) -> Listing:
    """Parses the output of `Bulk.listing` for a source on another file system. A log of a Spark query in the folder is not read."""
    whole, *lines = text.split("\n")[:-1]
    root = ""
    files: dict[str, FileState] = {}
    hidden: set[str] = set()
    tables: set[str] = set()
    for line in lines:
        modified_ms, size, uri = line.split(" ", 2)
        path, size_bytes = of_uri(uri), int(size)
        if size_bytes == -1:
            root = path.rstrip("/") + "/"
            continue
        if size_bytes == -2:
            tables.add(path)
            continue
        *folders, name = path.removeprefix(root).split("/")
        if SPARK_METADATA in folders:
            continue
        above = folders[: folders.index(DELTA_LOG)] if DELTA_LOG in folders else folders
        is_below_hidden = any(map(is_hidden, above))
        if DELTA_LOG in folders:
            tables |= set() if is_below_hidden else {(root + "/".join(above)).rstrip("/")}
        elif not is_below_hidden and not is_hidden(name):
            files[path] = FileState(int(modified_ms) * 1_000_000, size_bytes)
        elif not _MARKERS.fullmatch(name) and size_bytes:
            hidden.add(path)
    return Listing(base=base_of(of_uri(whole)), files=files, hidden=tuple(sorted(hidden)), tables=tuple(sorted(tables)))


def _table_of(path: str) -> str | None:
    """Returns the Delta table that a file, or a folder of one of its partitions, belongs to."""
    folder = os.path.dirname(path.rstrip("/"))
    while "=" in os.path.basename(folder):
        folder = os.path.dirname(folder)
    return folder if os.path.isdir(os.path.join(folder, DELTA_LOG)) else None


def _logged(folder: Path) -> set[str]:
    """Returns the files in the log of a Spark query."""
    names = [name for name in os.listdir(folder) if re.fullmatch(r"\d+([.]compact)?", name)]
    since = max((int(name[: -len(".compact")]) for name in names if name.endswith(".compact")), default=-1)
    newer = [name for name in names if name.isdecimal() and int(name) > since]
    found: set[str] = set()
    for name in [f"{since}.compact", *newer] if since >= 0 else newer:
        try:
            found |= {of_uri(str(entry["path"])) for entry in _entries((folder / name).read_bytes())}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"the log of the Spark query that writes the source ({SPARK_METADATA}) is damaged; nothing was read",
                advice="Restore it from a copy. To read every file of the folder without it, name the files by a glob",
                path=str(folder / name),
            ) from error
    return found


def _entries(log: bytes) -> list[Any]:
    """Parses a log of files, line by line.

    Raises:
        ValueError: the bytes are no log of files.
    """
    lines = log.decode().split("\n")
    if lines[0] != LOG_VERSION:
        raise ValueError(f"its first line is not {LOG_VERSION}")
    return [parsed(line) for line in lines[1:] if line]


def _walk(
    folder: str,
    files: dict[str, FileState],
    hidden: list[str],
    links: list[str],
    tables: list[str],
    *,
    is_below_hidden: bool,
) -> None:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        if is_below_hidden:
            return
        raise _unreadable(folder, error) from error
    for entry in entries:
        if not entry.is_dir():
            _note(entry.path, entry.name, files, hidden, links, is_below_hidden=is_below_hidden)
        elif entry.name == DELTA_LOG:
            tables += [] if is_below_hidden else [folder]
        elif entry.name != SPARK_METADATA:
            is_below = is_below_hidden or is_hidden(entry.name)
            _walk(entry.path, files, hidden, links, tables, is_below_hidden=is_below)


def _note(
    path: str, name: str, files: dict[str, FileState], hidden: list[str], links: list[str], *, is_below_hidden: bool
) -> None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            links.append(path)
        return
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        return
    if not is_below_hidden and not is_hidden(name):
        files[path] = FileState(found.st_mtime_ns, found.st_size)
    elif not _MARKERS.fullmatch(name) and found.st_size:
        hidden.append(path)


def _unreadable(path: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"the source cannot be read: {error.strerror}; nothing was read",
        advice="Give the user of this process the right to read it",
        path=printable(path),
    )


# ------------------------------------------------------------------------------------------------------------- taken


class Stored(Protocol):
    """The files of a checkpoint, on any file system."""

    @property
    def location(self) -> str: ...

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder of the checkpoint; empty if there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a file of the checkpoint; None if there is no such file."""


class _OnDisk:
    """A checkpoint on this machine's disk."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)

    def names(self, folder: str) -> list[str]:
        path = f"{self.location}/{folder}"
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(path, error) from error

    def read(self, name: str) -> bytes | None:
        path = f"{self.location}/{name}"
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error


class TakenFiles:
    """The files that a stream has planned or read, by Spark's log in its checkpoint; only new parts of the log are read."""

    def __init__(self, checkpoint: Path | Stored) -> None:
        self._stored = _OnDisk(checkpoint) if isinstance(checkpoint, Path) else checkpoint
        self._sizes_file = checkpoint / "lakegate" / "sizes.jsonl" if isinstance(checkpoint, Path) else None
        self.files: dict[str, int] = {}
        """Path → modification time in ms, as Spark saw it."""
        self.sizes: dict[str, int] = {}
        """Path → bytes when its batch began; for files taken since Lakegate records sizes. Spark does not record them."""
        self._read: set[int] = set()
        self._batches: dict[int, list[str]] = {}

    def refresh(self) -> TakenFiles:
        """Reads the entries added since the last call.

        Raises:
            Corrupt: the file is no log of files.
        """
        names = self._stored.names(_LOG)
        if not self._read:
            self._read_sizes()
        compacts = [int(name[: -len(".compact")]) for name in names if re.fullmatch(r"\d+\.compact", name)]
        since = max(compacts, default=-1)
        if since >= 0 and since not in self._read:
            self._take(f"{since}.compact")
            self._read.update(range(since + 1))
        for batch in sorted(int(name) for name in names if name.isdecimal()):
            if batch > since and batch not in self._read:
                self._take(str(batch))
                self._read.add(batch)
        return self

    def refuse_lost(self) -> None:
        """Checks that the log reaches the newest offsets: otherwise Spark would record new files, but read none of them.

        Raises:
            Corrupt: a part of the log is missing; nothing was read.
        """
        newest = max((int(name) for name in self._stored.names("offsets") if name.isdecimal()), default=None)
        last = None if newest is None else self._offset(newest)
        if last is not None and last >= 0 and last not in self._read:
            raise Corrupt(
                "the checkpoint's log of files ends before its offsets: a part of it is gone; nothing was read and nothing was "
                "written",
                advice="Restore the checkpoint from a copy, or start a new one with --new-checkpoint JOB (its rows come again)",
                path=f"{self._stored.location}/{_LOG}",
            )

    def note_sizes(self, sizes: Mapping[str, int]) -> None:
        """Records the sizes of a batch's files before the batch is written; only in a checkpoint on this machine's disk.

        Raises:
            Unavailable: the sizes cannot be written.
        """
        new = {path: size for path, size in sizes.items() if self.sizes.get(path) != size}
        if not new or self._sizes_file is None:
            return
        try:
            make_folder(self._sizes_file.parent)
            fd = open_file(self._sizes_file, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, (json.dumps(new, separators=(",", ":")) + "\n").encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(
                f"the checkpoint cannot be written: {error.strerror}; nothing was written", path=str(self._sizes_file)
            ) from error
        self.sizes.update(new)

    def _read_sizes(self) -> None:
        if self._sizes_file is None:
            return
        try:
            lines = self._sizes_file.read_bytes().split(b"\n")
        except OSError:  # an older checkpoint, or a copy without the file: only times are compared
            return
        for line in lines:
            try:
                self.sizes.update({path: size for path, size in parsed(line).items() if isinstance(size, int)})
            except ValueError:  # empty, or cut off by a crash
                continue

    def of_batch(self, batch: int) -> list[str]:
        """Returns the files of a batch of the query, by its offsets; empty where Spark has deleted these."""
        last, before = self._offset(batch), self._offset(batch - 1) if batch else -1
        if last is None:
            return []
        first = last if before is None else before + 1
        return [path for one in range(first, last + 1) for path in self._batches.get(one, ())]

    def _offset(self, batch: int) -> int | None:
        data = self._stored.read(f"offsets/{batch}")
        try:
            return None if data is None else int(parsed(data.splitlines()[2])["logOffset"])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def newest(self, count: int) -> list[str]:
        """Returns the files that were taken last, the newest first."""
        return [path for batch in sorted(self._batches)[-count:] for path in self._batches[batch]][: -count - 1 : -1]

    def _take(self, name: str) -> None:
        data = self._stored.read(f"{_LOG}/{name}")
        if data is None:
            return  # compacted meanwhile
        batches: dict[int, list[str]] = {}
        try:
            for entry in _entries(data):
                file, batch = of_uri(str(entry["path"])), int(entry["batchId"])
                self.files[file] = int(entry["timestamp"])
                batches.setdefault(batch, []).append(file)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "the checkpoint's log of files is damaged; nothing was read and nothing was written",
                advice="Restore the checkpoint from a copy, or start a new one with --new-checkpoint JOB (its rows come again)",
                path=f"{self._stored.location}/{_LOG}/{name}",
            ) from error
        self._batches.update(batches)  # a compacted file has all entries of each batch


def of_uri(uri: str) -> str:
    """Returns the path of a `file:` URI as Spark writes it; decodes any other URI."""
    return unquote(plain(uri))


# -------------------------------------------------------------------------------------------------------- comparison


def _is_same_time(path: str, one_ms: int, other_ms: int) -> bool:
    # Some S3 servers return seconds for one object and milliseconds in a list.
    if path.startswith("s3a:") and not (one_ms % 1000 and other_ms % 1000):
        return one_ms // 1000 == other_ms // 1000
    return one_ms == other_ms


def moved(there: Listing, taken: TakenFiles) -> tuple[str, str] | None:
    """Returns a taken file and its new path if it was moved within the source: Spark would read it again. Else None."""
    waiting = [path for path in there.files if path not in taken.files]
    if not waiting:
        return None
    gone = {(os.path.basename(path), at): path for path, at in taken.files.items() if path not in there.files}
    for path in waiting:
        state = there.files[path]
        before = gone.get((os.path.basename(path), state.modified_ms))
        if before is not None and taken.sizes.get(before, state.size_bytes) == state.size_bytes:
            return before, path
    return None


def _on_disk(paths: Sequence[str]) -> Sequence[str]:
    return [path for path in paths if os.path.exists(path)]


def passed_over(
    there: Listing,
    taken: TakenFiles | None,
    *,
    is_drained: bool,
    still_there: Callable[[Sequence[str]], Sequence[str]] = _on_disk,
) -> list[PassedOver]:
    """Returns the files of a source that are not read, or not read in their present state.

    Args:
        there: The source's files.
        taken: The files that the stream has taken, read after `there`; None if they are unknown.
        is_drained: The stream has read all that Spark gave it since `there`: a file that was not taken was passed over.
        still_there: Returns those of some files that still exist.
    """
    rewritten, unread = [], []
    if taken is not None:
        for path, state in there.files.items():
            at_ms = taken.files.get(path)
            if at_ms is None:
                unread.append(path)
            elif (
                not _is_same_time(path, at_ms, state.modified_ms)
                or taken.sizes.get(path, state.size_bytes) != state.size_bytes
            ):
                rewritten.append(path)
    unread = list(still_there(unread)) if unread else []
    empty = [path for path, state in there.files.items() if state.size_bytes == 0]
    found: list[tuple[Reason, Sequence[str]]] = [
        ("rewritten", rewritten),
        ("unread" if is_drained else "waiting", unread),
    ]
    unlogged = [path for path in there.unlogged if taken is None or path not in taken.files]
    found += [("unlogged", unlogged), ("hidden", there.hidden), ("link", there.links), ("empty", empty)]
    return [PassedOver(reason=reason, files=tuple(sorted(files))) for reason, files in found if files]
