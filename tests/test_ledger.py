"""The ledger's files: what is on disk when a line could not be written whole."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from headgate.errors import Unavailable
from headgate.events import TurnEnded
from headgate.sinks.ledger import LedgerSink, read_ledger


def row(epoch: int) -> TurnEnded:
    """A turn of one run."""
    return TurnEnded(
        lock="L",
        job="A",
        epoch=epoch,
        query_id="q",
        run="r",
        batches=(epoch, epoch),
        predecessor=None,
        asked_at_ms=epoch,
        granted_at_ms=epoch,
        first_write_at_ms=None,
        commit_log_at_ms=None,
        released_at_ms=epoch + 1,
        outcome="completed",
    )


def test_a_line_for_which_the_disk_has_no_room_is_refused_and_spoils_no_other(tmp_path: Path) -> None:
    """Half of it is not left for the next one to be written behind."""
    ledger = LedgerSink(tmp_path)
    ledger.emit(row(1))
    [file] = tmp_path.glob("ledger/L/*.jsonl")
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(Unavailable, match="the ledger cannot be written"):
            ledger.emit(row(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before
    ledger.emit(row(3))
    assert [one.epoch for one in read_ledger(tmp_path)] == [1, 3]
