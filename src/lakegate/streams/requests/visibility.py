"""Decides which requests of other streams are active for the rows of a stream, now and in the turn to come.

A batch of requests is stored and applied, then its outcomes are recorded. It is active for others from the second step on. A
batch that is stored and not yet applied belongs to the job that holds the turn now. We assume that this job will apply it, and
keep a result computed on that assumption only if the log later shows exactly that batch. If the job's run has ended instead,
only a turn can detect it. The same holds for a batch that another job of this driver has written and not committed, if the turn
of that job comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lakegate.config import StreamSpec
from lakegate.delta.actions import Body
from lakegate.ids import TokenId, Version
from lakegate.rows.committer import publisher
from lakegate.spark.threads import in_parallel
from lakegate.streams.interfaces import APPLY, STORE, StreamContext
from lakegate.streams.requests.table import RequestTable
from lakegate.turns.protocol.fencing import unpack


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of requests between its first step and its last."""

    number: int
    stands: bool
    """The existing rows are changed. If not, the batch is still in its turn, or its run has ended."""
    coming: Mapping[str, Body] = field(default_factory=dict)
    """Path → `add` of its rows, if its first step is not committed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsSnapshot:
    """The state of the requests of several streams at one moment; both by the stream's name."""

    seen: Mapping[str, Version]
    """Version of each request table; -1 if there is none."""
    stored: Mapping[str, StoredBatch]
    """Streams whose last batch is stored and has no recorded outcome."""

    @property
    def unrecorded(self) -> frozenset[str]:
        """Streams whose last batch stands, or is assumed to, without a recorded outcome."""
        return frozenset(name for name, batch in self.stored.items() if batch.stands)

    @property
    def coming(self) -> dict[str, Mapping[str, Body]]:
        """Returns stream → path → `add` of requests that are assumed to stand and are not stored yet."""
        return {name: batch.coming for name, batch in self.stored.items()}


class Deciding:
    """The `mutate` and `erase` streams whose requests decide on the rows of another stream."""

    def __init__(self, context: StreamContext, streams: Sequence[StreamSpec]) -> None:
        self._context, self.streams = context, tuple(streams)
        self.names = frozenset(stream.name for stream in streams)
        self._left: Mapping[str, StoredBatch] = {}
        """Batches that were stored and not applied while no other job held the turn: their runs have ended."""

    def requests(self, stream: StreamSpec, look: RequestsSnapshot | None = None) -> RequestTable:
        """Returns the request table of one of the streams, at its head, or as of a look."""
        at = None if look is None else look.seen[stream.name]
        return RequestTable(self._context.session, self._context.log, self._context.requests_of(stream), at)

    def now(self) -> RequestsSnapshot:
        """Reads which requests stand now."""
        if not self.streams:
            return RequestsSnapshot(seen={}, stored={})
        log = self._context.log
        with in_parallel(self._context.session) as begin:
            reads = [begin(partial(log.read_tokens, self._context.requests_of(stream))) for stream in self.streams]
            applied = log.read_tokens(self._context.target).tokens
            tables = {stream.name: read.result() for stream, read in zip(self.streams, reads, strict=True)}
        found = {name: _stored(table.tokens, applied) for name, table in tables.items()}
        return RequestsSnapshot(
            seen={name: table.version for name, table in tables.items()},
            stored={name: batch for name, batch in found.items() if batch is not None},
        )

    def in_turn(self) -> RequestsSnapshot:
        """Reads which requests stand, while no other job holds the turn."""
        look = self.now()
        self._left = {name: batch for name, batch in look.stored.items() if not batch.stands}
        return look

    def ahead(self, before: Collection[str]) -> RequestsSnapshot:
        """Predicts which requests stand when the turn comes: stored ones (without those of ended runs), and announced ones.

        Args:
            before: The jobs whose turns may come before.
        """
        pending = publisher(self._context.session).pending_appends
        # Read first: a batch committed in between is in the log.
        told = {one.name: pending.of(self.requests(one).location, one.name) for one in self.streams}
        look = self.now()
        coming = {
            name: StoredBatch(one.batch, stands=True, coming=one.adds)
            for name, one in told.items()
            if one is not None and one.adds and name in before and look.seen[name] >= 0
        }
        stored = {name: replace(one, stands=self._left.get(name) != one) for name, one in look.stored.items()}
        return replace(look, stored=coming | stored)

    def is_read(self, look: RequestsSnapshot) -> bool:
        """Returns True if the request tables are unchanged since a look."""
        return all(
            self._context.log.is_unchanged(self.requests(one).location, look.seen[one.name]) for one in self.streams
        )

    def changed(self, then: RequestsSnapshot, now: RequestsSnapshot) -> list[StreamSpec]:
        """Returns the streams whose standing requests differ, or may differ, from those assumed at the first look."""
        return [stream for stream in self.streams if not self._is_same(stream, then, now)]

    def settled(self, then: RequestsSnapshot, now: RequestsSnapshot) -> frozenset[str]:
        """Returns the streams that have recorded the outcomes of their last batch between two looks."""
        return frozenset(
            one.name
            for one in self.streams
            if one.name not in now.stored
            and not self._context.log.is_unchanged(self.requests(one).location, then.seen[one.name], now.seen[one.name])
        )

    def _is_same(self, stream: StreamSpec, then: RequestsSnapshot, now: RequestsSnapshot) -> bool:
        name, table = stream.name, self.requests(stream)
        since, until, before = then.seen[name], now.seen[name], then.stored.get(name)
        if self._context.log.is_unchanged(table.location, since, until):
            return before == now.stored.get(name)
        if before is None or not before.stands or (steps := table.steps(since, until, name, before.number)) is None:
            return False
        if before.coming:
            if not steps or steps.pop(0) != ("store", frozenset(before.coming)):
                return False
            if not steps:
                return now.stored.get(name) == replace(before, coming={})
        return [step for step, _ in steps] == ["settle"]


def _stored(stored: Mapping[TokenId, int], applied: Mapping[TokenId, int]) -> StoredBatch | None:
    """Returns the batch of a request table that has no recorded outcome, by the tokens of the table and of the target."""
    found = []
    for token_id, number in stored.items():
        first, last = unpack(number), unpack(applied.get(token_id, 0))
        if first.batch >= 0 and first.step in (STORE, STORE + 1):  # one more: its columns were updated
            found.append(StoredBatch(first.batch, (last.step, last.batch) == (APPLY, first.batch)))
    # There may be several, as after the loss of a checkpoint: one that stands takes precedence.
    return max(found, key=lambda batch: (batch.stands, batch.number), default=None)
