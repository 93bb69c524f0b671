"""The command, run in this process: what it printed, and its exit status."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakegate.cli.app import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Returns its output as one document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Returns its output as a document per line."""
        return [json.loads(line) for line in self.out.splitlines()]


def lakegate(*arguments: str | Path) -> Ran:
    """Runs `lakegate ARGUMENTS`, as the installed script would."""
    out, err = io.StringIO(), io.StringIO()
    argv, handlers = sys.argv, {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = ["lakegate", *map(str, arguments)]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ran(code=code if isinstance(code, int) else int(code is not None), out=out.getvalue(), err=err.getvalue())


def state_of(*folders: Path) -> dict[str, str]:
    """Returns path → digest of every file, which a failed command must not change.

    SQLite's own side files are left out: any reader may make or remove them.
    """
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }
