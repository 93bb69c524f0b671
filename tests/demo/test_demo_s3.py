"""The demo with its tables on S3: turns of three drivers there, and the same jobs without turns on Delta's own store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_three_jobs_take_turns_on_a_table_on_s3(tmp_path: Path) -> None:
    """One of them is killed, and the table is right.

    What the jobs without turns come to is luck: nothing makes two of so few writes meet. That commits are lost in Delta's own
    store where they do meet is shown in `tests/s3/test_many_drivers.py`.
    """
    command = [sys.executable, "-m", "lakegate", "demo", "--s3", "--tiny", "--seed", "3", "--output", "jsonl"]
    done = subprocess.run([*command, "--dir", str(tmp_path / "lake")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    ours, *without = report["runs"]
    assert ours["is_right"]
    assert ours["final_rows"] == ours["expected_rows"] > 0
    assert (ours["conflicts"], ours["overlaps"], ours["killed"]) == ({}, 0, 1)
    assert report["database"]["differences"] == 0
    assert not list((tmp_path / "lake").rglob("engagement"))  # the tables are elsewhere
    assert [run["expected_rows"] for run in without] == [ours["expected_rows"]] * 2
