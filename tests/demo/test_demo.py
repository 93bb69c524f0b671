"""The demo from end to end, very small: three JVMs, one kill, two tables, a report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lakegate import settings
from lakegate.demo.lake import INGESTION, Lake
from lakegate.ops import inspection

pytestmark = pytest.mark.slow


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_table_with_turns_is_right_though_a_job_was_killed(tmp_path: Path) -> None:
    """Exit 0; the killed job was started again and its turn never completed, no epoch came twice; the report is there."""
    command = [sys.executable, "-m", "lakegate", "demo", "--tiny", "--seed", "11"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "lake"), "--output", "jsonl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    report = events[-1]
    lake = Lake(tmp_path / "lake")
    page = lake.report.read_text(encoding="utf-8")
    assert report["report"] == str(lake.report)
    assert "With the coordinator, and without" in page

    ours = report["with_turns"]
    assert ours["is_right"]
    assert ours["difference"]["final_rows"] == ours["difference"]["expected_rows"] > 0
    carried = report["database"]
    assert (carried["rows"], carried["differences"]) == (ours["difference"]["final_rows"], 0)
    assert carried["changes"] > carried["rows"]  # rows that changed, and rows that went
    assert (ours["column"]["conflicts"], ours["column"]["overlaps"], ours["column"]["killed"]) == ({}, 0, 1)
    assert ours["column"]["batches"] == 3 + 2 + 1  # every file was one batch, and none was written as two

    notices = [event["text"] for event in events if event["event"] == "Noticed" and event["job"] == INGESTION]
    assert any("killed with -9" in text for text in notices)
    assert any("ended by SIGKILL; started again" in text for text in notices)
    turns = inspection.turns_of(settings.load_pipeline(str(lake.spec), environ={}))
    granted = [event["epoch"] for event in events if event["event"] == "TurnGranted"]
    completed = [turn.epoch for turn in turns if turn.epoch is not None]
    assert len(set(granted)) == len(granted)
    assert len(set(granted) - set(completed)) == 1  # the turn in which the job was killed
    assert report["without_turns"]["column"]["jobs"] == 3
