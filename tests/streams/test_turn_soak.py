"""The soak of turns, short: what `make soak` runs for ten minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(1500)
def test_drivers_under_faults_write_everything_once_and_in_turn(tmp_path: Path) -> None:
    """A silent network, a Python and a JVM stopped, a driver killed, and further faults within half a minute.

    Then no turns overlap, each range is there once, the table is right. The seed draws these four first.
    """
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "harness.turn_soak", "--seconds", "30", "--faults", "4", "--seed", "491"]
    ran = subprocess.run([*command, "--result", str(result)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads(result.read_text())
    assert {"blackhole", "stop python", "kill", "stop jvm"} <= set(found["faults"])
    assert found["turns"] > 0
    assert found["rows"] > 0
