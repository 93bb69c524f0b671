"""Runs a sync in a process of its own, which may be killed before or after any step: `python -m tests.syncs.applier`."""

from __future__ import annotations

import os
import signal
import sys

from lakegate.demo.database_servers import Database
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources.files import ChangeFiles
from tests.syncs.commits import When, counted


def main() -> None:
    """kind, dsn, folder of changes, mode, number of the transaction to die at (0: never), and when: before, after."""
    kind, dsn, folder, mode, die_at, when = sys.argv[1:]

    def on_commit(number: int, now: When) -> None:
        if (number, now) == (int(die_at), when):
            os.kill(os.getpid(), signal.SIGKILL)

    with counted(on_commit) as count:
        target = Database(kind, dsn).target()
        settings = SyncSettings(mode=mode, parallelism=3, changes_max=40)
        list(run(ChangeFiles(files=folder), target, stream="s", settings=settings))
        target.close()
        print(count(), flush=True)


if __name__ == "__main__":
    main()
