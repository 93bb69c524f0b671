"""A small disk that a test can fill and free again."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class SmallDisk:
    """A folder with little space. Where nothing can be mounted, this process and its children have a file size limit instead."""

    folder: Path
    is_mounted: bool
    _limit: tuple[int, int] | None = None

    def fill(self) -> None:
        """Fills the disk completely."""
        if not self.is_mounted:
            self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._limit[1]))
            return
        with contextlib.suppress(OSError), (self.folder / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)

    def make_room(self) -> None:
        """Frees the space; idempotent."""
        if self._limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)
            self._limit = None
        (self.folder / "ballast").unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "2m") -> Iterator[SmallDisk]:
    """Makes `folder` and yields a disk of this size there."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    disk = SmallDisk(folder=folder, is_mounted=is_mounted)
    try:
        yield disk
    finally:
        disk.make_room()
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
