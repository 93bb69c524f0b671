"""Recognizes files by their first bytes, not by name, and so detects rotated, rewritten and truncated files."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakegate.errors import CheckpointMismatch, Unavailable
from lakegate.syncs.sources.lines import is_compressed

Mark = tuple[int, int, int, int]
"""Size in bytes, checksum of these bytes, number of lines in them, and checksum of the first line. A file that only grows
still begins with these bytes."""
UNKNOWN = 1 << 62
"""The number of lines of a compressed file, which is not unpacked to count them."""
CHUNK_BYTES = 1024 * 1024


@dataclass(slots=True)
class Pieces:
    """A cache of the marks of files. An unchanged file is not read again."""

    _marks: dict[Path, tuple[object, Mark]] = field(default_factory=dict)

    def recognize(
        self,
        paths: Iterable[Path],
        known: Mapping[str, Mark],
        is_read: Callable[[str, Mark], bool],
        is_same: Callable[[str, Mark, Mark], bool] = lambda name, was, now: False,
    ) -> tuple[dict[str, Mark], dict[str, str]]:
        """Returns the marks of files; and path → previous path, for each file that begins with the bytes of a known file.

        Args:
            paths: The existing files.
            known: Path → mark, from an earlier call.
            is_read: Whether a known file is not needed any more.
            is_same: Whether a file with a rewritten end is still the known file of its name.

        Raises:
            CheckpointMismatch: A file was removed, truncated or rewritten before it was read to its end.
        """
        marks: dict[str, Mark] = {}
        names: dict[str, str] = {}
        others: list[Path] = []
        for path in paths:
            was = known.get(str(path))
            now, begins = self._marked(path, [] if was is None else [was[0]])
            marks[str(path)] = now
            if was is not None and (begins.get(was[0]) == was[1] or is_same(str(path), was, now)):
                names[str(path)] = str(path)
            else:
                others.append(path)
        for path in others:
            _, begins = self._marked(path, [mark[0] for mark in known.values()] if known else [])
            alike = [name for name, mark in known.items() if mark[0] and begins.get(mark[0]) == mark[1]]
            if alike:  # the file was renamed, or is a copy
                names[str(path)] = max(alike, key=lambda name: (known[name][0], name not in marks))
        for name, mark in known.items():
            if name in names.values() or is_read(name, mark):
                continue
            what = "was rewritten or became shorter" if name in marks else "is gone"
            raise CheckpointMismatch(
                f"a file of changes {what} before all of it was read; nothing was written",
                advice="Bring it back as it was, under any name of the folder. What is new belongs into a new file",
                file=name,
            )
        return marks, names

    def _marked(self, path: Path, sizes: Iterable[int]) -> tuple[Mark, Mapping[int, int]]:
        """Returns the mark of a file; and size → checksum of that many first bytes, for each of `sizes`."""
        try:
            stat = path.stat()
            now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            cached = self._marks.get(path)
            wanted = sorted({size for size in sizes if size <= stat.st_size})
            if cached is not None and cached[0] == now and set(wanted) <= {cached[1][0]}:
                return cached[1], {cached[1][0]: cached[1][1]}
            begins: dict[int, int] = {}
            size = crc = lines = head = 0
            last = b"\n"
            with path.open("rb") as file:
                head = zlib.crc32(file.readline(CHUNK_BYTES))
                file.seek(0)
                while size < stat.st_size:
                    stop = next((one for one in wanted if one > size), stat.st_size)
                    data = file.read(min(CHUNK_BYTES, stop - size, stat.st_size - size))
                    if not data:
                        break
                    crc, size, lines, last = zlib.crc32(data, crc), size + len(data), lines + data.count(b"\n"), data
                    begins[size] = crc
        except OSError as error:
            raise Unavailable(f"a file of changes cannot be read: {error.strerror}", file=path) from error
        mark = size, crc, UNKNOWN if is_compressed(path) else lines + (not last.endswith(b"\n")), head
        begins[0] = 0
        self._marks[path] = now, mark
        return mark, begins
