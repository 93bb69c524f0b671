"""Facts on which the figures of a measurement depend: the commit, and the machine that it ran on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import Any


def machine() -> dict[str, Any]:
    """Returns the facts as results show them."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
    }
