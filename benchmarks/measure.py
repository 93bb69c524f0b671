"""Functions that all measurements share: the figures of a sample, the machine, and the place of the result."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from harness.machine import machine as machine

RESULTS = Path(__file__).parent / "results"


def figures(samples_ms: Sequence[float]) -> dict[str, float]:
    """Returns minimum, quartiles, 99th percentile and maximum, in milliseconds, and the number of samples."""
    # Exclusive quartiles of a few samples lie outside the samples.
    low, median, high = (
        statistics.quantiles(samples_ms, n=4, method="inclusive") if len(samples_ms) > 1 else [samples_ms[0]] * 3
    )
    p99 = sorted(samples_ms)[min(len(samples_ms) - 1, int(0.99 * len(samples_ms)))]
    shown = {"min": min(samples_ms), "q1": low, "median": median, "q3": high, "p99": p99, "max": max(samples_ms)}
    return {name: round(value, 3) for name, value in shown.items()} | {"n": len(samples_ms)}


def write(name: str, result: dict[str, Any]) -> None:
    """Writes `results/<name>.json` and prints it."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text, flush=True)


def cpu_s(spark: SparkSession) -> dict[str, float]:
    """Returns the processor time so far, in seconds, of the JVM, of its compilers (a part of that), and of this process."""
    jvm: Any = spark._jvm
    process = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}")
    threads = [_name_and_cpu_s(thread / "stat") for thread in (process / "task").iterdir()]
    compilers = sum(used_s for name, used_s in threads if name.startswith(("C1 ", "C2 ")))
    return {"jvm": _name_and_cpu_s(process / "stat")[1], "compilers": compilers, "python": time.process_time()}


def _name_and_cpu_s(stat: Path) -> tuple[str, float]:
    try:
        said = stat.read_text()
    except OSError:
        return "", 0.0  # it has ended
    used = said.rpartition(")")[2].split()
    return said.partition("(")[2].rpartition(")")[0], sum(map(int, used[11:13])) / os.sysconf("SC_CLK_TCK")
