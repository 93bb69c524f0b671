"""Logs of Debezium's messages, and the state of reading them: what each log has delivered, and what is known to be old.

Rules for editors: a log's offset advances over delivered messages, and over messages without content after them, but never
over skipped messages: after a restart they are read again, and their transactions are recognized again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lakegate.errors import Corrupt
from lakegate.syncs.plan.log_position import Again, Seen, WentBack, is_old
from lakegate.syncs.plan.routes import Routes
from lakegate.syncs.sources import debezium_envelope
from lakegate.syncs.sources.debezium_envelope import RowChanged, TransactionEnded
from lakegate.syncs.sources.lines import TooLong, record, unread

NEW_SNAPSHOT = (
    "Let Debezium send a new snapshot to other topics or files (another topic.prefix), empty the target's tables, and give "
    "the sync another name"
)
DONE_MAX = 64
"""The number of last transactions that are kept by name."""
AHEAD_MAX = 100_000
"""The maximum number of changes of a log that are searched for a transaction that is not at its head."""
OWN_MAX = 2
"""The number of last changes of a piece of a log whose digests are kept."""


UNREAD = "unread "
"""Prefix for the number of a change that its transaction was delivered without, because its message was unreadable."""
UNREAD_MAX = 100
"""The maximum number of such changes: a transaction that lacks more is not delivered."""


class Message(NamedTuple):
    """A message of a log."""

    offset: int
    """From 0, increasing; there may be gaps."""
    value: bytes | TooLong | None
    key: bytes | None
    may_be_wrapped: bool = False
    """`value` may be `{"key": …, "value": …}`."""
    recorded_at_ms: int | None = None
    """The time that the log gives the message."""


class Logs(Protocol):
    """Logs that only grow at the end."""

    @property
    def transactions(self) -> str | None:
        """The name of the logs with transaction metadata; None if there are none."""
        ...

    @property
    def is_one(self) -> bool:
        """Returns whether they are pieces of one log. Then two pieces may contain the same change."""
        ...

    def fingerprint(self) -> object:
        """Returns a value that changes when a log grows; cheap to compute."""
        ...

    def at(self) -> str | None:
        """Returns the address of the logs, which distinguishes them from others of the same names, if there is one."""
        ...

    def read(
        self, starts: Mapping[str, int], ends: Mapping[str, int] | None
    ) -> Sequence[tuple[str, Iterator[Message]]]:
        """Returns each log's name and messages, as far as they exist now.

        Args:
            starts: Name → first offset; other logs are read from their beginning.
            ends: Name → offset to stop before; other logs are not read. None: read everything.

        Raises:
            CheckpointMismatch: A log no longer has its first offset.
            Unavailable: The logs do not answer.
        """
        ...

    def is_transactions(self, name: str) -> bool:
        """Returns whether this log contains transaction metadata."""
        ...

    def has(self, collection: str) -> bool:
        """Returns whether the logs are expected to contain changes of this table."""
        ...

    def where(self, name: str, offset: int) -> Mapping[str, Any]:
        """Returns the location of a message, for an error."""
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


@runtime_checkable
class Recognizes(Protocol):
    """Logs that can detect a replaced log of the same name: a recreated topic, a rotated or rewritten file."""

    def recognize(
        self, known: Mapping[str, Any], starts: Mapping[str, int], read: Collection[str]
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Returns the facts that identify the logs at the next pass; and name → previous name, of each log read before.

        Args:
            known: The facts that this method returned before; empty at the beginning, or after an upgrade.
            starts: Name → offset of the logs that were read before.
            read: The logs that are not needed any more.

        Raises:
            CheckpointMismatch: A log was replaced, or was removed before it was read to its end.
        """
        ...


@runtime_checkable
class Notices(Protocol):
    """Logs that notice a new message by themselves."""

    def has_arrived(self) -> bool:
        """Returns whether a message has come since the last pass, without asking anybody."""
        ...


@dataclass(slots=True)
class LogReader:
    """The reading state of one log."""

    name: str
    messages: Iterator[Message]
    offset: int
    """The offset after the last delivered message."""
    pass_: ReadPass
    own: dict[str, Seen] = field(default_factory=dict)
    """Origin → its changes that were delivered from this log."""
    again: dict[str, Again] = field(default_factory=dict)
    ahead: deque[tuple[int, RowChanged | TransactionEnded]] = field(default_factory=deque)
    """Changes that were read but not delivered."""
    old: dict[str, dict[int, str]] = field(default_factory=dict)
    """Transaction → its changes that were delivered before: number within the transaction → collection."""
    next: int = 0
    """The offset after the last message that was read."""
    text: str = ""
    """The cached text of this log's part of a position."""
    is_behind: bool = False
    """Whether messages were skipped since the last delivered message."""

    def seen(self, row: RowChanged) -> tuple[Seen, Seen]:
        """Returns what was delivered of the row's log, and of this piece of it."""
        own = delivered_of(self.own, row.at.origin)
        return (delivered_of(self.pass_.shared, row.at.origin) if self.pass_.is_one else own), own

    def row(self) -> RowChanged | None:
        """Returns the next change that was not delivered before; None if there is none yet."""
        while self.ahead or self._fill():
            row = self.ahead[0][1]
            if isinstance(row, RowChanged):
                if not self.drops(row, self.ahead[0][0]):
                    return row
            self.ahead.popleft()
        return None

    def end(self) -> TransactionEnded | None:
        """Returns the next end of a transaction; None if there is none yet."""
        while self.ahead or self._fill():
            end = self.ahead[0][1]
            if isinstance(end, TransactionEnded):
                return end
            raise Corrupt(
                "the log of transactions holds a change of a row; nothing more was written",
                advice="Name Debezium's topic of transaction metadata under `transactions`, and no topic of a table",
                **self.pass_.logs.where(self.name, self.ahead[0][0]),
            )
        return None

    def pop(self) -> None:
        """Marks the change at the head as delivered."""
        offset, head = self.ahead.popleft()
        if isinstance(head, RowChanged):
            self.take(head)
        self.moved(offset)

    def take(self, row: RowChanged) -> None:
        """Counts a change as delivered."""
        seen, own = self.seen(row)
        seen.take(row.at)
        if row.at == debezium_envelope.NOWHERE and self.pass_.logs.transactions is not None:
            self.pass_.unread[self.name] = self.pass_.unread.get(self.name, 0) + 1
        if own is not seen and row.order is not None:
            own.digests = [*own.digests[1 - OWN_MAX :], row.at.digest]
        if row.at.origin in self.again:
            self.again[row.at.origin].in_gtid = 0
            self.again[row.at.origin].met.clear()

    def moved(self, offset: int) -> None:
        """Moves the offset after a delivered message and everything before it."""
        # Earlier messages that still wait are read again after a restart, and so is this one.
        self.offset, self.text = min([offset + 1, *(one for one, _ in list(self.ahead)[:1])]), ""
        self.is_behind = any(one.digests for one in self.again.values())

    def finds(self, tx: str) -> str | None:
        """Searches further changes of the transaction: `old` or `new`; None if none is known."""
        n = 0
        while n < AHEAD_MAX and self.reads(n):
            offset, row = self.ahead[n]
            if isinstance(row, RowChanged) and self.drops(row, offset):
                del self.ahead[n]
                if row.tx == tx:
                    return "old"
                continue
            if isinstance(row, RowChanged) and row.tx == tx:
                return "new"
            n += 1
        return None

    def moved_on(self) -> None:
        """Moves the offset to the end of what was read, if all of it is delivered."""
        is_settled = all(one.is_over for one in self.again.values())  # otherwise it is unknown how many were seen again
        if self.next > self.offset and not self.ahead and is_settled:
            self.offset, self.text, self.is_behind = self.next, "", False

    def reads(self, n: int) -> bool:
        """Returns whether there are more than `n` undelivered changes."""
        return n < len(self.ahead) or self._fill()

    def _fill(self) -> bool:
        """Reads on to the next message with content."""
        for message in self.messages:
            read = self.pass_.read(self, message)
            self.next = message.offset + 1
            if read is not None:
                self.ahead.append((message.offset, read))
                return True
            if not self.is_behind and not self.ahead:
                self.offset, self.text = message.offset + 1, ""
        return False

    def drops(self, row: RowChanged, offset: int) -> bool:
        """Returns whether a change was delivered before and is skipped. It is read again if nothing is delivered after it."""
        (seen, own), pass_, at = self.seen(row), self.pass_, row.at
        again = self.again.get(at.origin)
        if again is None:
            again = self.again[at.origin] = Again()
        try:
            is_again, is_known = is_old(at, seen, again, own)
        except WentBack as error:
            raise pass_.went_back(self, row, offset, str(error)) from error
        left_out = pass_.done.get(at.tx) if at.tx is not None else None
        if left_out is not None:
            if row.collection in left_out or f"{UNREAD}{at.total_order}" in left_out:
                raise pass_.went_back(self, row, offset, "its transaction was applied without it")
            is_again = is_known = True
        if is_again:
            is_last = any(one.digests and one.digests[-1] == at.digest for one in (seen, own))
            again.add(offset, at, seen, is_known=is_known, is_last=is_last)
            if at.tx is not None and pass_.logs.transactions is not None:
                self.old.setdefault(at.tx, {})[at.total_order or 0] = row.collection
            self.is_behind = True
            return True
        # A change that was read before the repeated ones, and waits, is no evidence about them.
        if at.order is not None and offset > again.offset and (is_known or not again.is_over or again.digests):
            if not is_known:
                self.prove(again, row)
            again.settle()
        return False

    def prove(self, again: Again, row: RowChanged | None = None) -> None:
        """Checks that the changes that appear old were delivered.

        Raises:
            Corrupt: A change was not delivered.
        """
        if again.is_known or not again.count:
            return
        if self.pass_.is_one:
            self.pass_.look_up(again.digests)
        if again.digests:
            offset = min(again.digests.values())
            raise self.pass_.went_back(self, row, offset, "none of the delivered changes was sent with them")

    def note(self) -> str:
        """Returns this log's part of a position."""
        if not self.text:
            own = {} if self.pass_.is_one else {origin: one.written() for origin, one in self.own.items()}
            state = [self.offset, own] if any(own.values()) else [self.offset]
            self.text = f"{json.dumps(self.name)}:{json.dumps(state, separators=(',', ':'))}"
        return self.text


@dataclass(slots=True)
class ReadPass:
    """A pass over all logs, and the state that they share."""

    logs: Logs
    routes: Routes
    all: dict[str, LogReader] = field(default_factory=dict)
    shared: dict[str, Seen] = field(default_factory=dict)
    """For logs that are pieces of one: origin → what was delivered."""
    done: dict[str, list[str]] = field(default_factory=dict)
    """The last delivered transactions → collections whose changes were missing."""
    waits_for: str | None = None
    reading: debezium_envelope.Reading = debezium_envelope.DEFAULT
    sets_apart: bool = False
    """Whether an unreadable message is delivered as a change instead of an error."""
    unread: dict[str, int] = field(default_factory=dict)
    """Log → number of delivered unreadable messages without a transaction that are not yet assigned to one."""

    @property
    def is_one(self) -> bool:
        """Returns whether the logs are pieces of one."""
        return self.logs.is_one

    def finish(self, id: str, left_out: Sequence[str]) -> None:
        """Records a transaction as delivered."""
        self.done[id] = list(left_out)
        while len(self.done) > DONE_MAX:
            del self.done[next(iter(self.done))]

    def here(self) -> str:
        """Returns the position of all logs: the text of a position without its beginning."""
        parts = ['"logs":{' + ",".join([log.note() for log in self.all.values()]) + "}"]
        more: dict[str, Any] = {
            "seen": {origin: one.written() for origin, one in self.shared.items()},
            "done": self.done,
            "tables": self.routes.met,
            "unread": {name: n for name, n in self.unread.items() if n},
        }
        parts += [f'"{name}":{json.dumps(value, separators=(",", ":"))}' for name, value in more.items() if value]
        return ",".join(parts)

    def read(self, log: LogReader, message: Message) -> debezium_envelope.Envelope:
        """Decodes a message."""
        value: Any = None
        try:
            value = None if message.value is None else record(message.value)
            key = None if message.key is None else record(message.key)
            if message.may_be_wrapped and isinstance(value, dict) and value.keys() in ({"key", "value"}, {"value"}):
                value, key = value["value"], value.get("key")
            return debezium_envelope.read(value, key, self.reading, recorded_at_ms=message.recorded_at_ms)
        except ValueError as error:  # includes NotAnEnvelope
            where = self.logs.where(log.name, message.offset)
            reason = f"not a Debezium envelope: {error}; nothing of it was written"
            if not self.sets_apart or self.logs.is_transactions(log.name):  # without its end nothing completes
                raise Corrupt(reason, **where) from error
            return debezium_envelope.damaged(value, unread(message.value, reason, where))

    def look_up(self, digests: dict[str, int]) -> None:
        """Removes from `digests` the changes that were delivered from any log."""
        ends = {name: log.offset for name, log in self.all.items() if not self.logs.is_transactions(name)}
        for name, messages in self.logs.read({}, ends):
            if name in ends:
                for message in messages:
                    if not digests:
                        return
                    read = self.read(self.all[name], message)
                    if isinstance(read, RowChanged):
                        digests.pop(read.at.digest, None)

    def went_back(self, log: LogReader, row: RowChanged | None, offset: int, why: str) -> Corrupt:
        """Returns the error for a change before the delivered position that was never delivered."""
        facts: dict[str, Any] = {}
        if row is not None:
            facts = {"table": row.collection, "last": log.seen(row)[0].order, "now": row.order}
        return Corrupt(
            f"the source's positions went back to changes that were never applied ({why}): its log was recreated, it failed "
            "over to a server that had other changes, or a file came late; nothing more was written",
            advice=f"If a file came late, take it out of the folder. Otherwise: {NEW_SNAPSHOT}",
            **facts,
            **self.logs.where(log.name, offset),
        )


def delivered_of(seen: dict[str, Seen], origin: str) -> Seen:
    """Returns what was delivered of an origin's log."""
    found = seen.get(origin)
    if found is None:
        # An earlier version did not write the origin of a position: it belongs to the first origin seen.
        found = seen[origin] = seen.pop("") if "" in seen else Seen()
    return found
