"""The experiment of `examples/engagement-kafka`: three topics, one table, ZooKeeper; with a coordinator, and without one."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENT = Path(__file__).parents[2] / "examples" / "engagement-kafka" / "experiment.py"


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    """The program, as a module."""
    spec = spec_from_file_location("engagement_kafka", EXPERIMENT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_with_a_coordinator_nothing_overlaps_and_without_one_writers_conflict(tmp_path: Path) -> None:
    """0 overlaps, 0 conflicts, the order kept, the table right; the same streams without turns meet conflicts."""
    command = [sys.executable, str(EXPERIMENT), str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("\n{") :])
    ours, bare = found["runs"]
    assert found["wrong"] == []
    assert (ours["overlaps"], ours["conflicts"], ours["faults"]) == (0, {}, [])
    assert ours["final_rows"] == ours["expected_rows"] > 0
    assert bare["overlaps"] > 0
    assert sum(bare["conflicts"].values()) > 0, (
        "without a coordinator nobody met a conflict: the experiment shows nothing"
    )
    page = Path(found["report"]).read_text(encoding="utf-8")
    for shown in ("ENGAGEMENT_HVS_DATA", "ERASURE_AUDIT", "without, careful", "With turns, and without"):
        assert shown in page


def test_a_turn_out_of_order_is_found(experiment: ModuleType) -> None:
    """Mutation twice with none of Ingestion between, while Ingestion had more; at the end of its topic it may."""
    out_of_order = experiment.out_of_order
    assert out_of_order(["Ingestion", "Mutation", "TTL", "Ingestion", "Mutation", "Mutation", "TTL"]) == []
    assert len(out_of_order(["Ingestion", "Mutation", "Mutation", "Ingestion"])) == 1
    assert len(out_of_order(["Mutation", "Ingestion"])) == 1
