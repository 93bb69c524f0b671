"""The wheel: its files; a session where it is installed with nothing but what it asks for; and its demo from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import lakegate
from lakegate import settings
from lakegate.cli.progress import line_of
from lakegate.demo.lake import INGESTION, JOBS, Lake
from lakegate.ops import inspection
from lakegate.report.comparison import sentence
from lakegate.report.data import COMPARISON, Comparison
from lakegate.spark.jars import OWN_JAR
from tests.conftest import ROOT, UV
from tests.repository import SEVERAL, committed, locked_versions

pytestmark = [pytest.mark.slow, pytest.mark.wheel, pytest.mark.jdk, pytest.mark.spark, pytest.mark.timeout(1800)]

WHEEL_BYTES_MAX = 1_500_000
"""A third of it draws the report."""
IN_THE_WHEEL = """
import sys
import lakegate
spark = lakegate.session("wheel", conf={"spark.master": "local[1]", "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.databricks.delta.snapshotPartitions": "1"})
spark.range(3).write.format("delta").save(sys.argv[1])
print("rows", spark.read.format("delta").load(sys.argv[1]).count(), lakegate.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Returns what a program prints."""
    answer = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A virtual environment with the wheel and what it asks for, in the locked versions."""
    folder, constraints = wheel.parent / "venv", wheel.parent / "constraints.txt"
    versions = {name: version for name, version in locked_versions().items() if name not in SEVERAL}
    constraints.write_text("\n".join(f"{name}=={version}" for name, version in versions.items()))
    run(UV, "venv", "--python", sys.executable, folder, cwd=wheel.parent)
    run(
        UV,
        "pip",
        "install",
        "--python",
        folder / "bin" / "python",
        "--constraint",
        constraints,
        wheel,
        cwd=wheel.parent,
    )
    return folder


@pytest.fixture(scope="module")
def with_demo(wheel: Path) -> Path:
    """An environment with the wheel alone; its dependencies are those of the tests, for which there is an archive of classes."""
    folder = wheel.parent / "with demo"
    run(UV, "venv", "--python", sys.executable, folder, cwd=wheel.parent)
    run(UV, "pip", "install", "--python", folder / "bin" / "python", "--no-deps", wheel, cwd=wheel.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def test_the_wheel_holds_the_product_and_no_more(wheel: Path) -> None:
    """The committed files below `src` and the jar; the rig of the tests is not among them."""
    product = {path.relative_to(ROOT / "src").as_posix() for path in committed() if path.is_relative_to(ROOT / "src")}
    with zipfile.ZipFile(wheel) as files:
        packed = {name for name in files.namelist() if ".dist-info/" not in name}
    assert packed == product | {OWN_JAR.relative_to(ROOT / "src").as_posix()}
    assert wheel.stat().st_size < WHEEL_BYTES_MAX


def test_the_wheel_works_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    """It reports its version and its jars, and writes a Delta table through `lakegate.session`."""
    command, python = installed / "bin" / "lakegate", installed / "bin" / "python"
    assert run(command, "--version", cwd=tmp_path) == f"lakegate {lakegate.__version__}\n"
    own, *others = run(command, "jars", "path", cwd=tmp_path).strip().split(",")
    assert own.startswith(str(installed))
    assert len(others) == 8
    (tmp_path / "use.py").write_text(IN_THE_WHEEL)
    printed = run(python, tmp_path / "use.py", tmp_path / "table", cwd=tmp_path)
    assert printed.startswith("rows 3 ")
    assert str(installed) in printed


def test_the_table_with_turns_is_right_though_a_job_was_killed(with_demo: Path, tmp_path: Path) -> None:
    """Exit 0; the killed job was started again and its turn never completed, no epoch came twice; the report is there."""
    command = [str(with_demo / "bin" / "lakegate"), "demo", "--tiny", "--seed", "11"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "lake"), "--output", "jsonl"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # not the folder of the source
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    report = events[-1]
    for event in events[:-1]:
        line_of(event)  # what a terminal shows of each
    lake = Lake(tmp_path / "lake")
    page = lake.report.read_text(encoding="utf-8")
    assert report["report"] == str(lake.report)
    ours, careful, naive = report["runs"]
    assert ours["is_right"]
    assert ours["final_rows"] == ours["expected_rows"] > 0
    carried = report["database"]
    assert (carried["rows"], carried["differences"]) == (ours["final_rows"], 0)
    assert carried["changes"] > carried["rows"]  # rows that changed, and rows that went
    assert (ours["conflicts"], ours["overlaps"], ours["killed"]) == ({}, 0, 1)
    assert ours["batches"] == 3 + 2 + 1  # every file was one batch, and none was written as two

    # The kill doubles the batch of a naive append, and not that of a careful one.
    doubled = [{fault["kind"]: fault["rows"] for fault in run["faults"]}.get("doubled") for run in (careful, naive)]
    assert doubled[0] is None
    assert 0 < doubled[1] <= 50  # a file
    for run in (careful, naive):
        assert (run["batches"], run["killed"], run["expected_rows"]) == (6, 1, ours["expected_rows"])
        assert all(fault["job"] and fault["version"] for fault in run["faults"])
        assert {write["job"] for write in run["writes"]} == set(JOBS)
        appends = [write for write in run["writes"] if write["job"] == INGESTION and write["versions"]]
        assert len(appends) == 3 + (run is naive)  # a repeated append of a careful job commits nothing
    comparison = Comparison.from_json((lake.root / COMPARISON).read_text(encoding="utf-8"))
    assert sentence(comparison) in page

    notices = [event["text"] for event in events if event["event"] == "Noticed" and event["job"] == INGESTION]
    assert any("killed with -9" in text for text in notices)
    assert any("ended by SIGKILL; started again" in text for text in notices)
    turns = list(inspection.turns_of(settings.load_pipeline(str(lake.spec), environ={})))[::-1]  # by time
    granted = [event["epoch"] for event in events if event["event"] == "TurnGranted"]
    known = [turn.epoch for turn in turns if turn.epoch is not None]
    assert len(set(granted)) == len(granted)
    assert set(granted) == set(known)
    (killed,) = [turn for turn in turns if turn.outcome == "lost"]  # reported by the run that closed it
    assert (killed.job, killed.closed_by is not None) == (INGESTION, True)
    listed = [(write["job"], write["batch"]) for write in ours["writes"] if write["ended"] == "written"]
    assert listed == [
        (turn.job, str(turn.batches[0])) for turn in turns if turn.outcome == "completed" and turn.batches
    ]
