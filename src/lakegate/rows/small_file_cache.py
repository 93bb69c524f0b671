"""Small files below a table, read once for all statements of a driver."""

from __future__ import annotations

import threading
from typing import Any

from lakegate.delta.jvm import Jvm

REMEMBERED_BYTES_MAX = 2**24


class Remembered:
    """Files of data or vectors that were read or written last, by their URI: none of that name ever has another content.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._bytes = 0

    def get(self, uri: str) -> bytes | None:
        """One that is remembered."""
        with self._guard:
            return self._files.get(uri)

    def keep(self, uri: str, content: bytes) -> None:
        """Remember one, and forget the oldest where they are too many."""
        with self._guard:
            self._bytes += len(content) - len(self._files.pop(uri, b""))
            self._files[uri] = content
            while self._bytes > REMEMBERED_BYTES_MAX:
                self._bytes -= len(self._files.pop(next(iter(self._files))))


class TableFiles:
    """Those of one table.

    Args:
        jvm: Of the statement's session.
        root: The table's folder, a Hadoop `Path`.
        remembered: Those of the driver.
    """

    def __init__(self, jvm: Jvm, root: Any, remembered: Remembered) -> None:
        self._jvm, self._root, self._remembered = jvm, root, remembered
        self.prefix = plain(str(root.toUri())).rstrip("/") + "/"
        """What the URI of each file below the folder begins with."""

    def read(self, name: str, *, is_below: bool) -> bytes | None:
        """The content of a file; None where there is none.

        Args:
            name: Its path below the folder, not encoded, or its whole URI.
            is_below: Which of both.
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
        """A part of a file, which is not remembered."""
        path = self._jvm.path(self._root, name) if is_below else self._jvm.absolute(name)
        return self._jvm.read_range(path, offset, length)

    def write(self, name: str, content: bytes) -> None:
        """A new file below the folder."""
        self._jvm.write_below(self._root, name, content)
        self._remembered.keep(self.prefix + name, content)

    def uri(self, name: str, *, is_below: bool) -> str:
        """Of a file, as text."""
        return self.prefix + name if is_below else name


def plain(uri: str) -> str:
    """A URI of local disk with one slash, as Delta writes it."""
    return "file:/" + uri[len("file:///") :] if uri.startswith("file:///") else uri
