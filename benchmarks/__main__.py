"""Runs all measurements, each in a process of its own: `make bench`, or `python -m benchmarks turns` for one."""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "turns",
    "turns_dynamodb",
    "microbatch",
    "streams",
    "mutations",
    "rows",
    "quick",
    "coverage",
    "sync",
    "delay",
    "feed",
    "postgres",
    "many",
    "s3",
    "flows",
    "erasure",
    "publish",
)

for name in sys.argv[1:] or ALL:
    if name not in ALL:
        sys.exit(f"there is no measurement {name!r}; there are: {', '.join(ALL)}")
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
