"""This machine's clock, chance and processes, as the ports want them."""

from __future__ import annotations

import os
import socket
import time
import uuid

from lakegate.coordinator.driver import Process
from lakegate.stores.processes import boot_id, is_running, start_of


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
    """This process, and the JVM that commits for it."""
    return Process(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid=os.getpid(),
        pid_start=start_of(os.getpid()),
        jvm_pid=jvm_pid,
        jvm_start=None if jvm_pid is None else start_of(jvm_pid),
        is_running=is_running,
    )
