"""The fencing token that every commit carries: packing, reading, and the numbers that an entry commit must raise.

Rules for editors: a stored number is never compared as one integer. The epoch alone decides *fenced*, at any epoch the
low bits alone decide *applied*. Source: docs/explanation/turns.md, "Fencing", rules 1 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakegate.ids import Epoch, TokenId

PREFIX = "lakegate/"
EPOCH_BITS, BATCH_BITS, STEP_BITS = 28, 28, 7
EPOCH_MAX = (1 << EPOCH_BITS) - 1
BATCH_MAX = (1 << BATCH_BITS) - 2  # stored as batch + 1; 0 means that no batch is in the table
STEP_MAX = (1 << STEP_BITS) - 1

JUMP = 1024
"""A newly created record starts this far above its tables: the epochs of holders that left no trace are lower."""
UNTRACED_MAX = JUMP // 2
"""A holder this far above the table's highest epoch leaves a trace, so that the untraced gap stays below `JUMP`."""


def query_token(query_id: str) -> TokenId:
    """Returns the token id for the micro-batches of a streaming checkpoint; `query_id` is the id in its `metadata` file."""
    return TokenId(f"{PREFIX}{query_id}")


def sweep_token(query_id: str) -> TokenId:
    """Returns the token id for turns without source data, for a job that has a streaming checkpoint."""
    return TokenId(f"{PREFIX}{query_id}/sweep")


def job_token(job: str) -> TokenId:
    """Returns the token id for a job that has no streaming query."""
    return TokenId(f"{PREFIX}job/{job}")


def lock_token(lock: str) -> TokenId:
    """Returns the token id that carries only the lock's epoch."""
    return TokenId(f"{PREFIX}lock/{lock}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Token:
    """An unpacked `txn.version`. `batch` is -1 where the table holds no batch of this id."""

    epoch: Epoch
    batch: int
    step: int = 0

    def pack(self) -> int:
        """Returns the 63-bit number that Delta stores.

        Raises:
            ValueError: a field does not fit its bits.
        """
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"epoch {self.epoch} does not fit {EPOCH_BITS} bits")
        if not -1 <= self.batch <= BATCH_MAX:
            raise ValueError(f"batch {self.batch} does not fit {BATCH_BITS} bits")
        if not 0 <= self.step <= STEP_MAX:
            raise ValueError(f"more than {STEP_MAX + 1} writes to one table in a batch: step {self.step}")
        return (self.epoch << (BATCH_BITS + STEP_BITS)) | ((self.batch + 1) << STEP_BITS) | self.step


def unpack(number: int) -> Token:
    """Returns the fields of a stored `txn.version`."""
    low = number & ((1 << (BATCH_BITS + STEP_BITS)) - 1)
    return Token(epoch=Epoch(number >> (BATCH_BITS + STEP_BITS)), batch=(low >> STEP_BITS) - 1, step=low & STEP_MAX)


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The table does not hold the effect of this token."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The table holds the effect already; writing again would duplicate it."""


@dataclass(frozen=True, slots=True)
class FencedBy:
    """A turn with a higher epoch has begun on the table: the holder of this token must not write."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Behind:
    """The table holds a later batch: the checkpoint went back, or another run of the job finished this batch."""

    stored_batch: int


TokenReading = NotApplied | Applied | FencedBy | Behind


def read_token(stored: int | None, mine: Token) -> TokenReading:
    """Compares the table's stored number for my id with my write.

    The same function is used before a write, after it, and at a rebase. A zombie (epoch 41, batch 501) against a fence
    (42, 500) must not read *applied*, and a replay (epoch 43) of a batch applied in epoch 41 must.
    """
    if stored is None:
        return NotApplied()
    theirs = unpack(stored)
    if theirs.epoch > mine.epoch:
        return FencedBy(theirs.epoch)
    if theirs.batch > mine.batch:
        return Behind(theirs.batch)
    if (theirs.batch, theirs.step) >= (mine.batch, mine.step):
        return Applied()
    return NotApplied()


def highest_epoch(tokens: Mapping[TokenId, int]) -> Epoch:
    """Returns the highest epoch that a table has seen, 0 if none."""
    return max((unpack(number).epoch for number in tokens.values()), default=Epoch(0))


def plan_entry(
    tokens: Mapping[TokenId, int],
    *,
    lock: str,
    epoch: Epoch,
    mine: TokenId,
    in_doubt: frozenset[TokenId],
    is_known: bool,
    raises_own: bool,
    is_written: bool,
) -> dict[TokenId, int] | FencedBy:
    """Plans the entry commit of a turn on one table. Returns id → number; empty if nothing is to be raised.

    Args:
        tokens: The table's `lakegate/` ids with their stored numbers, at the version that the entry commit follows.
        lock: The lock's name.
        epoch: My turn's epoch.
        mine: The token id with which this turn writes.
        in_doubt: Ids that a dead or unclean turn may still write with on this table.
        is_known: The lock record lists the table; if not, every id in the table is in doubt.
        raises_own: The own id is raised in any case, so that stock Delta skips a statement that an earlier turn has applied.
        is_written: This turn has committed to this table already, so my epoch in the table is my own.

    Returns:
        The numbers, each with the low bits as stored (clearing them would apply a batch twice), or `FencedBy` if a later
        turn, or another holder of the same number, has written to the table.
    """
    for number in tokens.values():
        theirs = unpack(number).epoch
        if theirs > epoch or (theirs == epoch and not is_written):
            return FencedBy(theirs)
    raised = set(in_doubt)
    if not is_known:
        raised |= {*tokens, lock_token(lock)}
    is_far_above = epoch - highest_epoch(tokens) >= UNTRACED_MAX
    if raises_own or mine not in tokens or (is_far_above and not is_written):
        raised.add(mine)
    return {token_id: _with_epoch(tokens.get(token_id), epoch) for token_id in sorted(raised)}


def _with_epoch(stored: int | None, epoch: Epoch) -> int:
    low = Token(epoch=Epoch(0), batch=-1) if stored is None else unpack(stored)
    return Token(epoch=epoch, batch=low.batch, step=low.step).pack()
