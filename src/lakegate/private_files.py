"""Files and folders that only their owner may read; the group, too, where the parent folder lets the group write."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents: mode 0700, or 2770 in a folder that a group shares.

    Raises:
        OSError: One of them cannot be made, or is a file.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.mkdir(0o700)
        if _is_shared(path.parent):
            path.chmod(0o2770)
    if not path.is_dir():
        path.mkdir()  # raises an error if a file has that name


def make_file(path: Path) -> None:
    """Makes an empty file if it is missing, with the mode of `open_file`. An existing file is not opened.

    Closing it would release every lock that this process has on it, those of SQLite among them: that damages a database.
    """
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if _is_shared(path.parent):
            os.fchmod(fd, 0o660)
        os.close(fd)


def open_file(path: Path, flags: int) -> int:
    """Opens a file, created if it is missing: mode 0600, or 0660 in a folder that a group shares. Does not follow a link.

    Returns:
        The file descriptor.
    """
    make_file(path)
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)


def write_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Writes a file whole, or not at all: a reader finds the old text or the new text. Its mode is as of `open_file`."""
    fd, own = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(own, mode | 0o060 if _is_shared(path.parent) else mode)
        os.replace(own, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(own)
        raise


def _is_shared(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWGRP)
