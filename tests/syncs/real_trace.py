"""The trace of ten years of real changes to one table, as the data sets have it."""

from __future__ import annotations

from pathlib import Path

from lakegate.syncs.sources.files import ChangeFiles
from tests.conftest import data_dir

PATH = data_dir() / "engagement" / "changes" / "pyvideo.parquet"


def source(path: Path = PATH) -> ChangeFiles:
    """The trace."""
    return ChangeFiles(files=str(path), table="video", transaction="tx_seq")
