"""A cache of small files below a table, shared by all statements of a driver."""

from __future__ import annotations

import threading
from typing import Any

from lakegate.delta.jvm import Jvm

REMEMBERED_BYTES_MAX = 2**24


class Remembered:
    """Data and vector files that were read or written last, by their URI; the content of a name never changes.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._bytes = 0

    def get(self, uri: str) -> bytes | None:
        """Returns a cached file; None if it is not cached."""
        with self._guard:
            return self._files.get(uri)

    def keep(self, uri: str, content: bytes) -> None:
        """Caches a file, and evicts the oldest files if the cache is too large."""
        with self._guard:
            self._bytes += len(content) - len(self._files.pop(uri, b""))
            self._files[uri] = content
            while self._bytes > REMEMBERED_BYTES_MAX:
                self._bytes -= len(self._files.pop(next(iter(self._files))))


class TableFiles:
    """Files of one table, through the cache.

    Args:
        jvm: Of the statement's session.
        root: The table's folder, a Hadoop `Path`.
        remembered: The driver's cache.
    """

    def __init__(self, jvm: Jvm, root: Any, remembered: Remembered) -> None:
        self._jvm, self._root, self._remembered = jvm, root, remembered
        self.prefix = plain(str(root.toUri())).rstrip("/") + "/"
        """The common prefix of the URIs of files below the folder."""

    def read(self, name: str, *, is_below: bool) -> bytes | None:
        """Returns the content of a file; None if it does not exist.

        Args:
            name: Its path below the folder, not encoded, or its whole URI.
            is_below: True for a path below the folder.
        """
        uri = self.uri(name, is_below=is_below)
        content = self._remembered.get(uri)
        if content is None:
            jvm, root = self._jvm, self._root
            content = jvm.read_below(root, name) if is_below else jvm.read_bytes(jvm.absolute(name))
            if content is not None:
                self._remembered.keep(uri, content)
        return content

    def read_range(self, name: str, offset: int, length: int, *, is_below: bool) -> bytes:
        """Reads a part of a file, without the cache."""
        path = self._jvm.path(self._root, name) if is_below else self._jvm.absolute(name)
        return self._jvm.read_range(path, offset, length)

    def write(self, name: str, content: bytes) -> None:
        """Writes a new file below the folder."""
        self._jvm.write_below(self._root, name, content)
        self._remembered.keep(self.prefix + name, content)

    def uri(self, name: str, *, is_below: bool) -> str:
        """Returns a file's URI as text."""
        return self.prefix + name if is_below else name


def plain(uri: str) -> str:
    """Writes a URI of local disk with one slash, as Delta does."""
    return "file:/" + uri[len("file:///") :] if uri.startswith("file:///") else uri
