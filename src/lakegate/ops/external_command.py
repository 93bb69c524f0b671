"""Runs an external command in a turn: another program, such as a maintenance job or a notebook run.

A launcher is started first and waits for its start signal, so that the record names its process when the turn is granted. On
this machine no other job gets the turn before the launcher is gone; if the process that asked for the turn is killed, the
launcher ends the program. The program gets no token: its writes are not fenced. It gets a pass, a file that its gate checks
at each commit to a governed table: see `ProgramPass`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import cast

from lakegate.errors import InvalidRequest, LakegateError, LostTurn
from lakegate.ids import TableLocation
from lakegate.runtime import open_store
from lakegate.settings import JobSettings
from lakegate.telemetry.events import EventSink
from lakegate.telemetry.ledger import LedgerSink
from lakegate.telemetry.tee import Tee
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import RunnerPorts
from lakegate.turns.heartbeat import SELF_FENCE
from lakegate.turns.host import MachineClock, Uuids, this_process
from lakegate.turns.ports import TableLog, TurnStore
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.protocol import Order

END_S = 10.0
"""Seconds that a program has to end on request before it is killed; fewer after its turn was lost: see `_grace_s`."""
LAUNCHER = """
import json, os, signal, subprocess, sys, threading
pipe = open(int(sys.argv[1]))
turn = pipe.readline()
if not turn:
    sys.exit(125)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: None)  # the whole group receives them; the program handles them
def end_with_parent():
    pipe.read()  # returns when the process that holds the turn is gone; then the program ends, too
    os.killpg(0, signal.SIGKILL)
try:
    program = subprocess.Popen(sys.argv[2:], env={**os.environ, **json.loads(turn)})
except OSError as error:
    print(f"lakegate: {sys.argv[2]}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
threading.Thread(target=end_with_parent, daemon=True).start()
status = program.wait()
os._exit(status if status >= 0 else 128 - status)
"""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_in_turn(job: JobSettings, command: Sequence[str], watchers: Sequence[EventSink] = ()) -> int:
    """Takes the turn, runs a command, gives the turn back.

    Args:
        job: The settings of the job: its lock and its coordinator.
        command: The program and its arguments; its environment names the turn by LAKEGATE_LOCK, LAKEGATE_JOB, LAKEGATE_EPOCH.
        watchers: Receive every event, after the ledger.

    Returns:
        The program's exit status, 128 + n if signal n ended it. Any status but 0 leaves the turn unclean: it does not count.

    Raises:
        TurnNotGranted: Not granted in time; the program was not run.
        LostTurn: The program was ended early, because another run has the turn.
    """
    if not command:
        raise InvalidRequest(
            "no command was given; nothing was done", advice="lakegate turn --lock L --job J -- COMMAND"
        )
    program = _Program(command)
    pass_ = ProgramPass(job.lock)
    coordinator: Coordinator | None = None
    store: TurnStore | None = None
    try:
        store = open_store(job.coordinator.url)
        grace_s = _grace_s(store.lease_s)
        ports = RunnerPorts(
            store=store,
            log=cast(TableLog, None),  # a turn without tables reads no log
            clock=MachineClock(),
            randomness=Uuids(),
            events=Tee([LedgerSink(job.storage), *watchers]),
            gate=pass_,
        )
        coordinator = Coordinator(
            ports,
            lock=job.lock,
            job=job.job,
            order=Order(rule=job.order, absent_after_ms=job.absent_after_ms, priority=job.priority),
            process=this_process(program.pid),
            lock_timeout_s=job.coordinator.lock_timeout_ms / 1000,
            on_lost=lambda reason: program.end(grace_s),
        )
        turn = coordinator.take(token_id=job_token(job.job), query_id=None, batch=0, tables=())
        try:
            turn.let_through(TableLocation(pass_.path))
            status = program.run(
                {
                    "LAKEGATE_LOCK": job.lock,
                    "LAKEGATE_JOB": job.job,
                    "LAKEGATE_EPOCH": str(turn.epoch),
                    "LAKEGATE_PASS": pass_.path,
                }
            )
            turn.check()
        except BaseException as error:
            program.end()
            turn.abandon(error)
            if isinstance(error, LostTurn):
                raise LostTurn(f"the turn was lost, and {command[0]} was ended in the middle of it") from error
            raise
        if status == 0:
            turn.complete()
        else:
            turn.abandon(LakegateError(f"{command[0]} ended with exit status {status}"))
        return status
    finally:
        program.end()
        if coordinator is not None:
            coordinator.close()
        if store is not None:
            store.close()
        pass_.close()


class ProgramPass:
    """The permission of a program to commit to the tables of a lock during a turn; a `WriteGate` whose only table is the program.

    A file of three lines: epoch, deadline (ns of the monotonic clock), lock. This process holds a lock on the file. The kernel
    releases it when the process ends, however it ends. So a process that the program leaves behind cannot commit after the end
    of the turn. Source: java/io/github/lakegate/ProgramPass.java.
    """

    def __init__(self, lock: str) -> None:
        self._lock = lock
        self._folder = tempfile.mkdtemp(prefix="lakegate-turn-")  # private: mode 0700
        self.path = os.path.join(self._folder, "pass")
        self._file: int | None = None

    def grant(self, table: str, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        """Lets the program commit for this time from now."""
        until_ns = time.monotonic_ns() + duration_ms * 1_000_000
        text = f"{epoch}\n{until_ns:020d}\n{self._lock}".encode()
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX)
        os.pwrite(self._file, text, 0)  # in place and with the same length: the lock is on this file
        return True

    def revoke(self, table: str, epoch: int) -> None:
        """Ends the permission."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        """Removes the file and its folder."""
        self.revoke(self.path, -1)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _grace_s(lease_s: float | None) -> float:
    """Returns the seconds that a program has to end after its turn was lost: half of what is left of the lease."""
    return END_S if lease_s is None else min(END_S, (1 - SELF_FENCE) / 2 * lease_s)


class _Program:
    """A program behind a launcher that waits for its turn, and then for the other end of the pipe to close.

    They are a process group of their own, so that the child processes of the program are ended with it. Child processes that
    are left when the program ends by itself are not ended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        waits, go = os.pipe()
        self._go: int | None = go
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(waits), *command], pass_fds=(waits,), start_new_session=True
        )
        os.close(waits)
        self._guard = threading.Lock()

    @property
    def pid(self) -> int:
        """The pid of the launcher: it lives as long as the program."""
        return self._process.pid

    def run(self, environment: Mapping[str, str]) -> int:
        """Starts the program, and waits for its end; forwards signals that this process receives."""
        assert self._go is not None, "it is let go before it is ended"
        os.write(self._go, json.dumps(environment).encode() + b"\n")
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._send_on) for number in FORWARDED} if is_main else {}
        try:
            status = self._process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return status if status >= 0 else 128 - status

    def end(self, grace_s: float = END_S) -> None:
        """Asks the program and its child processes to end, and kills them if they do not. Safe from any thread, and repeatable."""
        with self._guard:
            if self._process.poll() is None:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace_s)
                self._signal(signal.SIGKILL)  # also child processes that outlived the program
                self._process.wait()
            if self._go is not None:
                os.close(self._go)
                self._go = None

    def _send_on(self, number: int, frame: FrameType | None) -> None:
        self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
