"""Watches a store from outside, change by change, and reports afterwards which promise was broken."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from lakegate.ids import JobName, Nonce
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.protocol.transitions import first_to_go

WAIT_S = 20.0
"""A wait that only a wake-up ends: it shows a store that forgets to wake its waiters."""
GAP_S = 0.0
"""Between the read of a contender and its change: without it, changes would rarely interleave within one process."""


@dataclass
class History:
    """Every acknowledged change of every contender, by the version that it made."""

    changes: list[tuple[int, LockRecord]] = field(default_factory=list)
    slept_through: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, store: TurnStore) -> TurnStore:
        """The store, watched."""
        return cast("TurnStore", _Watched(store, self))  # the rest of a store is passed on

    def note(self, version: int, record: LockRecord) -> None:
        """Notes a change that was made."""
        with self._lock:
            self.changes.append((version, record))

    def faults(self) -> list[str]:
        """Returns the faults: two changes of one version, a gap, an overlap, a leap of the epoch, a turn out of order."""
        found = list(self.slept_through)
        made = sorted(self.changes, key=lambda change: change[0])
        asked: list[Nonce] = []  # in the order of asking; the record may keep another order
        for (version, was), (next_version, now) in pairwise(made):
            asked = [nonce for nonce in asked if was.ticket(nonce)]
            asked += [ticket.nonce for ticket in was.tickets if ticket.nonce not in asked]
            if next_version != version + 1:
                found.append(f"version {version} was followed by {next_version}")
                continue
            if now.holder is not None and now.holder != was.holder:
                found += _faults_of_grant(was, now, asked)
            elif now.epoch != was.epoch:
                found.append(f"the epoch changed without a grant, from {was.epoch} to {now.epoch}")
        return found


def _faults_of_grant(was: LockRecord, now: LockRecord, asked: list[Nonce]) -> list[str]:
    found = []
    assert now.holder is not None
    if was.holder is not None and was.holder.nonce != now.holder.nonce:
        found.append(f"{now.holder.job} got the turn of {was.holder.job}")
    if was.holder is None and now.epoch != was.epoch + 1:
        found.append(f"epoch {was.epoch} was followed by {now.epoch}")
    # A request that was granted in the same step came last: no other may have been waiting.
    if was.holder is None and (asked or [now.holder.nonce])[0] != now.holder.nonce:
        found.append(f"{now.holder.job} was served before its time")
    return found


class _Watched:
    """A store that adds its changes to a history. Its waits are long enough to show when nobody ended them."""

    def __init__(self, inner: TurnStore, history: History) -> None:
        self._inner, self._history = inner, history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        time.sleep(GAP_S)
        reply = self._inner.compare_and_set(lock, record, version)
        if reply == "done":
            self._history.note(version + 1, record)
        return reply

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        begun_s = time.monotonic()
        self._inner.wait_for_change(lock, version, WAIT_S, ticket_of)
        if time.monotonic() - begun_s < WAIT_S - 0.5:
            return
        stored = self._inner.read(lock)
        if stored.version == version or stored.record is None:
            return
        first = first_to_go(stored.record, self._inner.live_sessions(lock), now_ms=0)
        if ticket_of is None or (first is not None and first.job == ticket_of):
            self._history.slept_through.append(f"{ticket_of} was not woken when version {version} had passed")
