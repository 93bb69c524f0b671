"""What git tracks of this repository, and what its lock names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


def committed() -> list[Path]:
    """Every file that git tracks here."""
    answer = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode != 0:
        pytest.skip("not a git clone")
    return [ROOT / name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]


SEVERAL = ("numpy", "pymdown-extensions")
"""Locked in several versions, for different Pythons."""


def locked_versions() -> dict[str, str]:
    """Name → version of requirements.lock; of two for different Pythons, the last."""
    lock = (ROOT / "requirements.lock").read_text()
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", lock, flags=re.MULTILINE))
