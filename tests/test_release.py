"""`make release`: what it writes, what it refuses, and that its files depend on the commit alone."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import lakegate
from harness.release import build, prepare
from tests.conftest import ROOT
from tests.repository import committed

FILES = ("pyproject.toml", "CHANGELOG.md", "src/lakegate/__init__.py", "changes/template.md")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files that a release changes."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_first_version_gets_its_date_and_leaves_no_change_out(source: Path) -> None:
    """Its section is written by hand, so a change that is not in it yet is refused."""
    (source / "changes" / "a.added.md").write_text("A thing.\n")
    with pytest.raises(SystemExit, match=r"first: a\.added\.md"):
        prepare("0.1.0", source)
    (source / "changes" / "a.added.md").unlink()
    prepare("0.1.0", source)
    assert "## 0.1.0 (20" in (source / "CHANGELOG.md").read_text()


def test_a_later_version_takes_the_changes_into_the_changelog(source: Path) -> None:
    """And the version into both files that state it."""
    (source / "changes" / "a.fixed.md").write_text("A fault is mended.\n")
    prepare("9.8.7rc1", source)
    changelog = (source / "CHANGELOG.md").read_text()
    assert changelog.index("## 9.8.7rc1 (20") < changelog.index("A fault is mended.") < changelog.index("## 0.1.0")
    assert not list((source / "changes").glob("*.fixed.md"))
    assert 'version = "9.8.7rc1"' in (source / "pyproject.toml").read_text()
    assert '__version__ = "9.8.7rc1"' in (source / "src/lakegate/__init__.py").read_text()


@pytest.mark.slow
@pytest.mark.jdk
@pytest.mark.timeout(600)
def test_two_builds_of_a_commit_are_equal_byte_by_byte(tmp_path: Path) -> None:
    """Wheel and source archive; `build` compares them, and writes their sums."""
    committed()  # skips outside of a clone
    wheel, archive = sorted(build("HEAD", tmp_path), key=lambda path: path.suffix, reverse=True)
    assert [wheel.suffix, archive.suffix] == [".whl", ".gz"]
    assert {line.split()[1] for line in (tmp_path / "SHA256SUMS").read_text().splitlines()} == {
        wheel.name,
        archive.name,
    }
    with zipfile.ZipFile(wheel) as files:
        assert "lakegate/spark/lakegate.jar" in files.namelist()
        assert lakegate.__version__ in wheel.name
