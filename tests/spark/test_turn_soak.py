"""The soak of turns, short: what `make soak` runs for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.turn_soak import soak


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(1500)
def test_drivers_under_faults_write_everything_once_and_in_turn(tmp_path: Path) -> None:
    """A minute of faults: a network that is silent, a Python and a JVM stopped, a driver killed, and what else there is time for.

    Then no turns overlap, each range is there once, the table is right. The seed draws these four first.
    """
    told: list[str] = []
    found = soak(tmp_path / "lake", seconds=60, faults_min=4, seed=491, show=told.append)
    assert found.wrong == [], told
    assert {"blackhole", "stop python", "kill", "stop jvm"} <= set(found.faults)
    assert found.turns > 0
    assert found.rows > 0
