"""Every command and snippet of the README and of the tutorial works as written, in order, in an empty folder.

How a page is read: ```python is a script, ```console has a command after each `$`, ```yaml with a first line `# NAME` is a
file of that name. `make`, `pip` and `apt-get` lines are checked, not run: what they do takes minutes, and the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import boto3
import pytest

from lakegate.demo.aws_server import aws_server
from tests.conftest import ROOT, submit_arguments
from tests.docs.markdown import Fence, fences, named

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-pipeline.md"
WHICH_PART = ROOT / "docs" / "which-part.md"
SHOWN = {
    "Streams in an order": ["reads 1 new file", "Mutation", "each exactly once"],
    "Updates that do not fail": ["Result(version=4", "8 rows updated"],
    "A database that follows": ["crm: 1 batch, 2 changes, 2 rows applied"],
    "Tables on S3": ["5 rows"],
}
"""Part of the page → what its commands print."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PACKAGES = re.findall(r"^packages=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
TIMEOUT_S = 900


def is_checked_only(command: str) -> bool:
    """Returns whether a command is not run here; checks that it could be run."""
    program, *words = command.split()
    if program == "make":
        assert words, command
        assert set(words) <= TARGETS, command
        return True
    if program == "apt-get":
        assert command == f"apt-get install --yes --no-install-recommends {PACKAGES[0]}"
        return True
    return program in ("pip", "cd", "export", "git")


def commands(fence: Fence) -> list[str]:
    """Returns the text after each `$`; the other lines are output."""
    return [line.removeprefix("$ ") for line in fence.text.splitlines() if line.startswith("$ ")]


def environment(**more: str) -> dict[str, str]:
    """That of this process, without settings of Lakegate that a reader would not have, but where jars come from."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LAKEGATE_JOB_COORDINATOR_")}
    kept.pop("LAKEGATE_SPEC", None)
    return {**kept, "PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": submit_arguments(is_compiled=True), **more}


def run(arguments: list[str], folder: Path, where: str, settings: Mapping[str, str]) -> str:
    """Runs a program of a page to its end; what it printed."""
    answer = subprocess.run(
        arguments,
        cwd=folder,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 0, (
        f"{where}: exit {answer.returncode}\n{answer.stdout[-3000:]}\n{answer.stderr[-6000:]}"
    )
    return answer.stdout


def follow(page: Path, folder: Path, part: str = "", **settings: str) -> list[str]:
    """Does what the page, or a part of it, says, block by block; what was printed."""
    printed = []
    for fence in (one for one in fences(page) if one.text in part or not part):
        where = f"{named(page)}:{fence.line}"
        if fence.kind == "python":
            printed.append(run([sys.executable, "-c", fence.text], folder, where, settings))
        elif fence.kind == "yaml":
            first, _, _ = fence.text.partition("\n")
            assert re.fullmatch(r"# [\w.-]+", first), f"{where}: the first line does not name the file"
            (folder / first.removeprefix("# ")).write_text(fence.text, encoding="utf-8")
        elif fence.kind == "console":
            for command in (one for one in commands(fence) if not is_checked_only(one)):
                script = 'lakegate() { "$PYTHON" -m lakegate "$@"; }\n' + command
                printed.append(run(["bash", "-euo", "pipefail", "-c", script], folder, f"{where} {command}", settings))
        else:
            assert fence.kind == "text", f"{where}: a block of this kind is not followed"
    return printed


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_readme_can_be_followed(tmp_path: Path) -> None:
    """From an empty folder, what it says can be typed, and the pipeline that it makes is verified."""
    printed = follow(README, tmp_path)
    assert any("RunReport(job='Web', turns=1, batches=1" in text for text in printed)
    assert (tmp_path / "crm" / "engagement" / "_delta_log").is_dir()


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    """It comes to the table that it shows."""
    printed = follow(TUTORIAL, tmp_path)
    shown = [fence.text for fence in fences(TUTORIAL) if fence.kind == "text"]
    assert shown[-1].strip() in "".join(printed)
    assert (tmp_path / "report.html").is_file()


PARTS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", WHICH_PART.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)


@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.every_case
@pytest.mark.parametrize("title", list(PARTS))
def test_the_path_of_each_part_can_be_followed(title: str, tmp_path: Path) -> None:
    """Each begins in an empty folder, and comes to what the page says of it."""
    if title != "Tables on S3":
        printed = "".join(follow(WHICH_PART, tmp_path, PARTS[title]))
    else:
        with aws_server(tmp_path / "aws") as server:
            options = server.client_options()
            where = {"LocationConstraint": options["region_name"]}
            boto3.client("s3", **options).create_bucket(Bucket="lake", CreateBucketConfiguration=where)
            keys = {"AWS_ACCESS_KEY_ID": "aws_access_key_id", "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key"}
            login = {name: options[option] for name, option in keys.items()}
            settings = {"LAKE": "s3a://lake/numbers", "S3_ENDPOINT": options["endpoint_url"], **login}
            printed = "".join(follow(WHICH_PART, tmp_path, PARTS[title], **settings))
    assert all(text in printed for text in SHOWN[title]), printed


def test_what_is_said_of_the_tests_is_what_runs_them() -> None:
    """The README has the test command and the one apt line of `.ci/run`."""
    said = [command for fence in fences(README) if fence.kind == "console" for command in commands(fence)]
    assert [one for one in said if is_checked_only(one)] == [
        "make demo",
        "make test",
        f"apt-get install --yes --no-install-recommends {PACKAGES[0]}",
    ]
    assert "make --no-print-directory test" in (ROOT / ".ci" / "run").read_text()


def test_the_size_that_is_said_is_that_of_the_makefile() -> None:
    """The README and the Makefile state the same size of the demo's download."""
    said = re.search(r"about \d+ MB to download; [\d.]+ GB on disk", README.read_text(encoding="utf-8"))
    assert said is not None
    assert said[0] in (ROOT / "Makefile").read_text()
