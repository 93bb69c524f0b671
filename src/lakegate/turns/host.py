"""The clock, the random ids and the processes of this machine, as the ports require them."""

from __future__ import annotations

import errno
import functools
import os
import socket
import subprocess
import time
import uuid
from pathlib import Path

from lakegate.errors import StoreUnavailable
from lakegate.turns.effect_runner import Process


class MachineClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        # CLOCK_BOOTTIME goes on while the machine sleeps; a lease at a server does, too.
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Uuids:
    """Random UUIDs."""

    def uuid(self) -> str:
        return str(uuid.uuid4())


def this_process(jvm_pid: int | None) -> Process:
    """Returns this process, and the JVM that commits for it."""
    return Process(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        pid_start=start_of(os.getpid()),
        jvm_pid=jvm_pid,
        jvm_start=None if jvm_pid is None else start_of(jvm_pid),
        is_running=is_running,
    )


@functools.cache
def boot_id() -> str:
    """Identifies this run of the operating system; empty where the system does not report it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_of(pid: int) -> int:
    """Returns the start time of the process, in a unit for comparison on this machine only; 0 if it is gone or a zombie.

    A zombie has ended: it only waits for its parent to collect its exit code.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0 if Path("/proc/self").exists() else _start_by_ps(pid)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # such an error says nothing about that process
            raise StoreUnavailable(
                f"it cannot be seen whether a process still runs: {error.strerror}", pid=pid
            ) from error
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _start_by_ps(pid: int) -> int:
    """Returns the same without /proc (macOS): the start time as `ps` prints it, as a number."""
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not shown or shown.startswith("Z"):
        return 0
    return int.from_bytes(shown.split(maxsplit=1)[1].encode()[-8:], "big")


def is_running(pid: int, start: int) -> bool:
    """Returns True if exactly this process is still running."""
    return start != 0 and start_of(pid) == start
