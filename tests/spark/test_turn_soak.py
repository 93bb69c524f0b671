"""The soak of turns, short: what `make soak` runs for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.turn_soak import soak


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.matrix
@pytest.mark.timeout(1500)
def test_drivers_under_faults_write_everything_once_and_in_turn(tmp_path: Path) -> None:
    """The JVM stopped, a driver killed; then no turns overlap, each range is there once, the table is right."""
    told: list[str] = []
    found = soak(tmp_path / "lake", seconds=0, faults_min=2, seed=264, show=told.append)
    assert found.wrong == [], told
    assert {"stop jvm", "kill"} == set(found.faults)
    assert found.turns > 0
    assert found.rows > 0
