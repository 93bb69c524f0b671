"""Jobs in processes of their own on one lock of a real store, to be killed, stopped and cut off; and what must hold after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from harness import contender
from harness.proxy import Proxy

LOCK = "L"


class Contender:
    """A job in a process of its own; what it says is kept."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        command = [sys.executable, "-m", "harness.contender", *arguments]
        self._errors = log.open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self.said: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.said.append(line.rstrip("\n"))
                self._more.notify_all()

    def waits_for(self, text: str, *, count: int = 1, timeout_s: float = 40.0) -> str:
        """The line that is the n-th to begin with `text`."""
        with self._more:
            found = self._more.wait_for(lambda: len(self.lines(text)) >= count, timeout_s)
        assert found, f"no {text!r} in {self.said}"
        return self.lines(text)[count - 1]

    def lines(self, text: str) -> list[str]:
        return [line for line in self.said if line.startswith(text)]

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class World:
    """Jobs on one lock of one store, and the journal that they all write."""

    def __init__(self, url: Callable[[Proxy | None], str], folder: Path, *, lease_s: float) -> None:
        self.url = url
        """Of the store, directly or through a network that can break."""
        self._folder, self._lease_s = folder, lease_s
        self.journal = folder / "journal"
        self.started: list[Contender] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self.started:
            each.end()

    def start(
        self, job: str, *, turns: int, lines: int = 3, pause_s: float = 0.02, network: Proxy | None = None
    ) -> Contender:
        arguments = [self.url(network), LOCK, job, str(self.journal), str(turns), str(lines), str(pause_s)]
        self.started.append(Contender(arguments, self._folder / f"{job}.log"))
        return self.started[-1]

    def check(self) -> None:
        """The promises that hold whatever happened."""
        assert contender.faults(self.journal) == []
        assert contender.read(self.journal), "nothing was written at all"

    def check_no_ghost(self) -> None:
        """A newcomer is served, and afterwards neither a turn nor a ticket nor a session of the others is left."""
        for each in self.started:
            each.end()
        store = contender.store_of(self.url(None))
        newcomer = contender.coordinator(store, LOCK, "newcomer", timeout_s=4 * self._lease_s)
        contender.take(newcomer).complete()
        newcomer.close()
        deadline_s = time.monotonic() + 2 * self._lease_s
        while store.live_sessions(LOCK).ids and time.monotonic() < deadline_s:
            time.sleep(0.05)
        record = store.read(LOCK).record
        assert store.live_sessions(LOCK).ids == frozenset()
        assert record is not None
        assert record.holder is None
        assert [ticket for ticket in record.tickets if ticket.job == "newcomer"] == []
        store.close()
