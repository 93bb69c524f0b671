"""Turns that have ended, as events of the ledger."""

from __future__ import annotations

from lakegate.telemetry.events import TurnEnded


def turn(outcome: str, *, held_ms: int = 2_000, waited_ms: int = 500) -> TurnEnded:
    """A turn of In with three batches and two commits."""
    return TurnEnded(
        lock="L",
        job="In",
        epoch=1,
        query_id=None,
        run="r",
        batches=(3, 5),
        predecessor=None,
        asked_at_ms=0,
        granted_at_ms=waited_ms,
        first_write_at_ms=None,
        commit_log_at_ms=None,
        released_at_ms=waited_ms + held_ms,
        versions={"/t": (1, 2)},
        outcome=outcome,
    )


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
