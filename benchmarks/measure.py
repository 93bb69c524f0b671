"""What every measurement shares: the figures of a sample, the machine it ran on, and where the result is written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def figures(samples_ms: Sequence[float]) -> dict[str, float]:
    """Minimum, quartiles, 99th percentile and maximum, in milliseconds, and how many samples."""
    low, median, high = statistics.quantiles(samples_ms, n=4) if len(samples_ms) > 1 else [samples_ms[0]] * 3
    p99 = sorted(samples_ms)[min(len(samples_ms) - 1, int(0.99 * len(samples_ms)))]
    shown = {"min": min(samples_ms), "q1": low, "median": median, "q3": high, "p99": p99, "max": max(samples_ms)}
    return {name: round(value, 3) for name, value in shown.items()} | {"n": len(samples_ms)}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
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


def write(name: str, result: dict[str, Any]) -> None:
    """Writes `results/<name>.json` and prints it."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text, flush=True)
