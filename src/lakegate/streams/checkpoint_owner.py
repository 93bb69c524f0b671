"""Checks the owner of a checkpoint: a job continues only from the checkpoint that the ledger records for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakegate.errors import CheckpointMismatch
from lakegate.telemetry.events import TurnEnded


def checkpoint_check(
    rows: Iterable[TurnEnded], *, job: str, location: str, is_new_allowed: bool
) -> Callable[[str | None], None]:
    """Makes a check of the query id in a job's checkpoint, to be called before each run.

    Args:
        rows: The ledger.
        job: The job about to run.
        location: Its checkpoint, for the message.
        is_new_allowed: The user has asked for a new checkpoint; the source's rows are read again.

    Returns:
        A function of the query id (None: no query has used the checkpoint yet) that raises `CheckpointMismatch` for a
        checkpoint of another job, and for an unknown one where the job is known.
    """
    owners: dict[str, str] = {
        row.query_id: row.job for row in rows if row.query_id is not None and row.epoch is not None
    }
    known = {query_id for query_id, owner in owners.items() if owner == job}

    def check(query_id: str | None) -> None:
        if query_id is not None and owners.get(query_id, job) != job:
            raise CheckpointMismatch(
                f"the checkpoint of {job} belongs to the job {owners[query_id]}; nothing was run",
                advice=f"Give {job} a checkpoint of its own",
                checkpoint=location,
            )
        if query_id in known:
            return
        if known and not is_new_allowed:
            what = "is gone" if query_id is None else "is another one than before"
            raise CheckpointMismatch(
                f"the checkpoint of {job} {what}, though the ledger shows turns of this job; nothing was run",
                advice=f"Restore it, or start again with --new-checkpoint {job}: then its source is read again from its beginning",
                checkpoint=location,
            )
        if query_id is not None:
            known.add(query_id)

    return check
