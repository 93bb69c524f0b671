"""Debezium's changes from several logs (a topic's partitions, or files), in the order of their source.

With transaction metadata, transactions come whole, in the order of their ends: what lies behind the last complete one is
held back. Without, each change stands alone: changes of one log stay in order, those of several are merged by their place
in the source as far as they are known.

Rules for editors: only what can be told to be old is dropped, and only by its place in the source. A log's offset moves
with what is delivered and over messages that say nothing behind it, never with what is skipped: old messages are met again
after a restart, and the transactions that they belong to are recognized again. A pass ends with the place that it came to,
though nothing was delivered: a log may drop what lies before it.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from headgate.core.keys import envelope, numbers, places
from headgate.core.keys.change import Change
from headgate.core.keys.envelope import NotAnEnvelope, Order, RowChanged, TransactionEnded
from headgate.errors import Corrupt, HeadgateError

ANEW = "Let Debezium send a new snapshot, empty the target's tables, and give the sync another name"


class Message(NamedTuple):
    """One message of a log."""

    offset: int
    """From 0, rising; there may be gaps."""
    value: bytes | None
    key: bytes | None


class Logs(Protocol):
    """Logs that grow at their ends."""

    @property
    def transactions(self) -> str | None:
        """The name of those that hold transaction metadata; None: there is none."""
        ...

    @property
    def is_one(self) -> bool:
        """Whether they are pieces of one log: the same change may be in two of them."""
        ...

    def fingerprint(self) -> object:
        """Changes when a log grows: cheap to ask for."""
        ...

    def at(self) -> str | None:
        """Where they are, as far as that tells them from others of the same names."""
        ...

    def read(
        self, starts: Mapping[str, int], ends: Mapping[str, int] | None
    ) -> Sequence[tuple[str, Iterator[Message]]]:
        """Each log's name and messages, as far as they are known now.

        Args:
            starts: Name → the offset to begin with; others from their beginning.
            ends: Name → the offset to end before; others not at all. None: what there is.

        Raises:
            CheckpointMismatch: A log does not reach back to where it was to begin.
            Unavailable: They do not answer.
        """
        ...

    def is_transactions(self, name: str) -> bool:
        """Whether this log holds transaction metadata."""
        ...

    def has(self, collection: str) -> bool:
        """Whether changes of this table are expected in them."""
        ...

    def where(self, name: str, offset: int) -> Mapping[str, Any]:
        """The place of a message, for an error."""
        ...

    def close(self) -> None:
        """Gives up connections."""
        ...


@dataclass(slots=True)
class _Seen:
    """The last change that was delivered: what lies before it is delivered already."""

    order: Order | None = None
    tx: str | None = None
    total_order: int = 0
    ts_ms: int = 0

    def is_old(self, row: RowChanged) -> bool:
        """Whether it was delivered before.

        Raises:
            ValueError: Its place lies before what was delivered, and yet it is younger.
        """
        if row.order is None or self.order is None or row.order > self.order:
            return False
        if row.order == self.order:
            return row.total_order is not None and row.tx == self.tx and row.total_order <= self.total_order
        if row.ts_ms > self.ts_ms:
            raise ValueError
        return True

    def take(self, row: RowChanged) -> None:
        """It is delivered."""
        if row.order is not None:
            self.order, self.tx, self.total_order = row.order, row.tx, row.total_order or 0
            self.ts_ms = max(self.ts_ms, row.ts_ms)


@dataclass(slots=True)
class _Log:
    name: str
    messages: Iterator[Message]
    offset: int
    """Behind the last message that was delivered."""
    seen: _Seen
    head: RowChanged | TransactionEnded | None = None
    head_offset: int = -1
    old: dict[str, set[int]] = field(default_factory=dict)
    """Transaction → places within it of changes that were delivered before."""
    text: str = ""
    """Of its part of a place."""
    is_behind: bool = False
    """Something was skipped since the last message that was delivered."""

    def pop(self, *, is_seen: bool = True) -> None:
        """The head is taken; what lies before it counts as delivered, unless that is noted later."""
        if is_seen and isinstance(self.head, RowChanged):
            self.seen.take(self.head)
        self.offset, self.head, self.is_behind = self.head_offset + 1, None, False
        self.note()

    def pass_over(self, offset: int) -> None:
        """A message said nothing."""
        if not self.is_behind:
            self.offset = offset + 1
            self.note()

    def skip(self, row: RowChanged) -> None:
        """The head was delivered before. The offset stays: it is met again if nothing else is delivered behind it."""
        self.old.setdefault(row.tx or "", set()).add(row.total_order or 0)
        self.head, self.is_behind = None, True

    def note(self) -> None:
        """Its part of a place."""
        seen = self.seen
        state = [self.offset, seen.order, seen.tx, seen.total_order, seen.ts_ms]
        self.text = f"{json.dumps(self.name)}:{json.dumps(state, separators=(',', ':'))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumChanges:
    """See `ChangeSource`. `seq` counts changes; the place says each log's offset."""

    logs: Logs
    tables: Mapping[str, str] = field(default_factory=dict)
    """Source table, with or without its schema → target table; others keep their name."""

    def fingerprint(self) -> object:
        return self.logs.fingerprint()

    def close(self) -> None:
        self.logs.close()

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        at = self.logs.at()
        state = places.read(places.DEBEZIUM, after, place, at=at).get("logs", {})
        end = None if until is None else places.read(places.DEBEZIUM, after, until, at=at).get("logs", {})
        shared = _Seen()
        logs: dict[str, _Log] = {}
        starts = {name: one[0] for name, one in state.items()}
        ends = None if end is None else {name: one[0] for name, one in end.items()}
        for name, messages in self.logs.read(starts, ends):
            offset, *seen = state.get(name, [0])
            log = _Log(name, messages, offset, shared if self.logs.is_one else _Seen())
            if seen and seen[0] is not None:
                last = _Seen(tuple(seen[0]), *seen[1:])
                if log.seen.order is None or (last.order or ()) > log.seen.order:
                    log.seen.order, log.seen.tx, log.seen.total_order = last.order, last.tx, last.total_order
                log.seen.ts_ms = max(log.seen.ts_ms, last.ts_ms)
            logs[name] = log
        for log in logs.values():
            log.note()
        data = [log for name, log in logs.items() if not self.logs.is_transactions(name)]
        if self.logs.transactions is None:
            groups = self._merged(data)
        else:
            groups = self._whole(data, [log for name, log in logs.items() if self.logs.is_transactions(name)])
        head = places.written(places.DEBEZIUM, {} if at is None else {"at": at})[:-1] + ',"logs":{'

        def here() -> str:
            return head + ",".join([log.text for log in logs.values()]) + "}}"

        began, known = here(), after
        # A group waits for the next: at the end of a pass, its place is behind the messages that say nothing, too.
        held: list[Change] = []
        try:
            for rows in groups:
                if held:
                    yield tuple(held)
                held = []
                text, rows = here(), envelope.joined(rows)
                for row in rows:
                    after += 1
                    held.append(
                        Change(
                            seq=after, tx=row.tx if len(rows) > 1 else None, table=self._table(row), op=row.op,
                            before=row.before, after=row.after, is_partial=row.is_partial,
                            place=text if len(held) + 1 == len(rows) else None,
                        )
                    )  # fmt: skip
        except HeadgateError:
            if held:
                yield tuple(held)
            raise
        if held:
            yield (*held[:-1], replace(held[-1], place=here()))
        elif until is None and known >= 0 and here() != began:
            yield (Change(seq=known, tx=None, table="", op="mark", place=here()),)

    def _table(self, row: RowChanged) -> str:
        return self.tables.get(row.collection) or self.tables.get(row.table) or row.table

    def _merged(self, logs: Sequence[_Log]) -> Iterator[Sequence[RowChanged]]:
        """Change by change; first what has no place, log by log."""
        heap: list[tuple[bool, Order, int]] = []

        def push(number: int) -> None:
            head = self._row(logs[number])
            if head is not None:
                heapq.heappush(heap, (head.order is not None, head.order or (), number))

        for number in range(len(logs)):
            push(number)
        while heap:
            _, order, number = heapq.heappop(heap)
            row = self._row(logs[number])
            # If another piece of the log had what was pushed, it is old by now, and this is the next.
            if row is not None and (row.order or ()) == order:
                logs[number].pop()
                yield (row,)
            push(number)

    def _whole(self, logs: Sequence[_Log], ends: Sequence[_Log]) -> Iterator[Sequence[RowChanged]]:
        """Transactions in the order of their ends, as far as they are complete."""
        while True:
            for log in logs:
                while (row := self._row(log)) is not None and row.tx is None:
                    log.pop(is_seen=not self.logs.is_one)  # another piece may have what lies before it
                    yield (row,)
            last = next((log for log in ends if self._head(log) is not None), None)
            if last is None or not isinstance(last.head, TransactionEnded):
                return
            end, wanted = last.head, sum(n for name, n in last.head.counts.items() if self.logs.has(name))
            places_before = [log.text for log in logs]
            rows, is_all_known = self._of_transaction(logs, end.id)
            known = {row.total_order for _, row in rows if row.tx is not None}
            known.update(*(log.old.get(end.id, ()) for log in logs))
            if len(known) < wanted and not is_all_known:
                for log, text in zip(logs, places_before, strict=True):
                    log.text = text  # its rows are not delivered
                return
            if len(known) != wanted:
                raise Corrupt(
                    "a transaction does not have as many changes as its end says; nothing of it was written",
                    advice=f"The topics of its tables must be named PREFIX.SCHEMA.TABLE, and hold all its changes. {ANEW}",
                    transaction=end.id, expected=wanted, found=len(known), **self.logs.where(last.name, last.head_offset),
                )  # fmt: skip
            last.pop()
            if rows:
                yield [row for _, row in sorted(rows, key=lambda one: one[0])]
            else:  # its end was sent again, too; what was met again on the way to it has served
                for log in logs:
                    log.old.pop(end.id, None)

    def _of_transaction(self, logs: Sequence[_Log], id: str) -> tuple[list[tuple[int, RowChanged]], bool]:
        """Its changes, with what they are sorted by; and whether no log can have more of them."""
        rows: list[tuple[int, RowChanged]] = []
        taken: list[tuple[_Log, RowChanged]] = []
        seen: set[int] = set()
        is_all_known = True
        for log in logs:
            place = 0
            while (row := self._row(log)) is not None and row.tx in (id, None):
                if row.total_order in seen:
                    log.skip(row)
                    continue
                log.pop(is_seen=False)
                taken.append((log, row))
                place = row.total_order or place  # one that stands alone stays behind its neighbour
                rows.append((place, row))
                if row.total_order is not None:
                    seen.add(place)
            is_all_known &= row is not None
        # Not before all are found: in pieces of one log, what comes later in a piece may lie before what was taken.
        for log, row in sorted(taken, key=lambda one: (one[1].order or (), one[1].total_order or 0)):
            log.seen.take(row)
            log.note()
        return rows, is_all_known

    def _row(self, log: _Log) -> RowChanged | None:
        """The next change of a log of changes."""
        while isinstance(head := self._head(log), TransactionEnded):
            log.head = None
        return head

    def _head(self, log: _Log) -> RowChanged | TransactionEnded | None:
        """The next of what a log says that was not delivered before; None: no more is known."""
        while True:
            while log.head is None:
                message = next(log.messages, None)
                if message is None:
                    return None
                log.head, log.head_offset = self._read(log, message), message.offset
                if log.head is None:
                    log.pass_over(message.offset)
            if not isinstance(log.head, RowChanged) or not self._is_old(log, log.head):
                return log.head
            log.skip(log.head)

    def _is_old(self, log: _Log, row: RowChanged) -> bool:
        try:
            return log.seen.is_old(row)
        except ValueError as error:
            raise Corrupt(
                "the source's positions went back: its log was begun anew; nothing more was written",
                advice=ANEW,
                table=row.collection, last=log.seen.order, now=row.order, **self.logs.where(log.name, log.head_offset),
            ) from error  # fmt: skip

    def _read(self, log: _Log, message: Message) -> envelope.Envelope:
        try:
            value, key = (None if one is None else numbers.loads(one) for one in (message.value, message.key))
            return envelope.read(value, key)
        except ValueError as error:  # of which NotAnEnvelope, and what is not JSON or not UTF-8
            what = str(error) if isinstance(error, NotAnEnvelope) else f"it is not JSON ({error})"
            raise Corrupt(
                f"not a Debezium envelope: {what}; nothing of it was written",
                **self.logs.where(log.name, message.offset),
            ) from error
