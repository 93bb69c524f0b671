"""One run of a sync in a process of its own, which may be killed before or after any step: `python -m tests.keys.applier`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from headgate.sources.files import ChangeFiles
from headgate.syncs.run import SyncSettings, run
from headgate.targets.connections import Connections
from headgate.testing.databases import Database


def main() -> None:
    """kind, dsn, folder of changes, mode, number of the transaction to die at (0: never), and when: before, after."""
    kind, dsn, folder, mode, die_at, when = sys.argv[1:]
    database = Database(kind, dsn)
    target = database.target()
    counted, lock = [0], threading.Lock()
    lend = Connections.lend

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Watched:
        """A connection that counts commits, and dies at one."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def commit(self) -> None:
            with lock:
                counted[0] += 1
                number = counted[0]
            if number == int(die_at) and when == "before":
                die()
            self._connection.commit()
            if number == int(die_at) and when == "after":
                die()

    import contextlib
    from collections.abc import Iterator

    @contextlib.contextmanager
    def watched(self: Connections) -> Iterator[Any]:
        with lend(self) as connection:
            yield Watched(connection)

    Connections.lend = watched  # type: ignore[method-assign,assignment]  # the place where each commit passes
    settings = SyncSettings(mode=mode, parallelism=3, changes_max=40)  # type: ignore[arg-type]
    list(run(ChangeFiles(files=folder), target, stream="s", settings=settings))
    target.close()
    print(counted[0], flush=True)


if __name__ == "__main__":
    main()
