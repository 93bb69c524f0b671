"""Errors of the machine are reported in plain words, for any writer and for any exception that wraps the error."""

from __future__ import annotations

import errno
import os

import pytest

from lakegate.delta.storage_errors import refusal
from lakegate.errors import StoreUnavailable

WRAPPED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(WRAPPED), "a disk is full"),
        (
            RuntimeError("java.io.FileNotFoundException: /tmp/blockmgr/0e (Too many open files)"),
            "no more files can be opened",
        ),
        (
            RuntimeError("java.nio.file.FileSystemException: /lake/t/x.parquet: Read-only file system"),
            "can only be read",
        ),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/lake/x"), "a disk is full"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/lake/x"), "no more files can be opened"),
    ],
    ids=["Spark", "temporary files", "table", "Python", "descriptors"],
)
def test_an_error_of_the_machine_is_reported_in_one_line(error: BaseException, words: str) -> None:
    """With what to do, exit code 6, and no stack; also where it is the cause of another error."""
    around = RuntimeError("the batch failed")
    around.__cause__ = error
    for each in (error, around):
        told = refusal(each)
        assert told is not None
        assert words in str(told)
        assert "was not written" in str(told)
        assert len(str(told).splitlines()) == 1
        assert "\tat " not in str(told)
        assert told.exit_code == 6
        assert told.advice


def test_other_errors_are_not_reported_as_errors_of_the_machine() -> None:
    """Nor is one that is in our words already."""
    assert refusal(ValueError("the column has no space left")) is None
    assert refusal(StoreUnavailable("No space left on device")) is None
