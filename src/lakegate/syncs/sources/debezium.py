"""Debezium's changes from several logs (the partitions of topics, or files), in the order of their source.

With transaction metadata, whole transactions are delivered in the order of their ends; changes after the last complete
transaction are held back. Without metadata, each change is delivered by itself, except tables emptied by one statement. Changes
of one log stay in order; changes of several logs are merged by position as far as positions are comparable.

Rules for editors: only a change that is known to be old is dropped (`plan.log_position`). A log's offset advances over delivered
messages, and over messages without content after them, but never over skipped messages: after a restart they are read again,
and their transactions are recognized again. Each pass ends with the position reached and with what the pass waits for, even if
nothing was delivered: a log may drop earlier messages.
"""

from __future__ import annotations

import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lakegate.errors import Corrupt, LakegateError
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.log_position import SHOW_ACTIONS, Again, Order, Seen, WentBack, is_old
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


@dataclass(slots=True)
class _Log:
    """The reading state of one log."""

    name: str
    messages: Iterator[Message]
    offset: int
    """The offset after the last delivered message."""
    pass_: _Pass
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
        own = _of(self.own, row.at.origin)
        return (_of(self.pass_.shared, row.at.origin) if self.pass_.is_one else own), own

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
class _Pass:
    """A pass over all logs, and the state that they share."""

    logs: Logs
    routes: Routes
    all: dict[str, _Log] = field(default_factory=dict)
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

    def read(self, log: _Log, message: Message) -> debezium_envelope.Envelope:
        """Decodes a message."""
        value: Any = None
        try:
            value = None if message.value is None else record(message.value)
            key = None if message.key is None else record(message.key)
            if message.may_be_wrapped and isinstance(value, dict) and value.keys() in ({"key", "value"}, {"value"}):
                value, key = value["value"], value.get("key")
            return debezium_envelope.read(value, key, self.reading)
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

    def went_back(self, log: _Log, row: RowChanged | None, offset: int, why: str) -> Corrupt:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumChanges:
    """See `ChangeSource`. `seq` counts changes; `place` contains each log's offset."""

    logs: Logs
    tables: Mapping[str, str] = field(default_factory=dict)
    """Source table, with or without its schema → target table. Unlisted tables keep their name."""
    clock: Callable[[], float] = time.time
    reading: debezium_envelope.Reading = debezium_envelope.DEFAULT
    """The connector's settings."""
    sets_apart: bool = False
    """Whether an unreadable message is delivered as a change of the op `unread` instead of an error."""

    def setting_apart(self) -> DebeziumChanges:
        """See `SetsApart`."""
        return replace(self, sets_apart=True)

    def fingerprint(self) -> object:
        return self.logs.fingerprint()

    def close(self) -> None:
        self.logs.close()

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        at = self.logs.at()
        was = source_position.read(source_position.DEBEZIUM, after, place, at=at)
        state = dict(was.get("logs", {}))
        ends: dict[str, int] | None = None
        if until is not None:
            ends = {
                name: one[0]
                for name, one in source_position.read(source_position.DEBEZIUM, after, until, at=at)["logs"].items()
            }
        known: Mapping[str, Any] = {}
        names: Mapping[str, str] = {}
        if isinstance(self.logs, Recognizes):
            offsets = {name: one[0] for name, one in state.items()}
            known, names = self.logs.recognize(was.get("known", {}), offsets, was.get("read", ()))
            state = {name: state[old] for name, old in names.items() if old in state}
            if ends is not None:
                gone = {name: end for name, end in ends.items() if name not in names.values()}
                ends = {**gone, **{name: ends[old] for name, old in names.items() if old in ends}}
        pass_ = _Pass(
            self.logs,
            Routes(self.tables, dict(was.get("tables", {}))),
            reading=self.reading,
            sets_apart=self.sets_apart,
        )
        pass_.shared.update({origin: Seen.read(one) for origin, one in was.get("seen", {}).items()})
        pass_.unread.update({name: was["unread"][old] for name, old in names.items() if old in was.get("unread", {})})
        pass_.done.update({id: list(one) for id, one in was.get("done", {}).items()})
        for name, messages in self.logs.read({name: one[0] for name, one in state.items()}, ends):
            offset, *seen = state.get(name, [0])
            log = pass_.all[name] = _Log(name, messages, offset, pass_, _own(seen))
            if pass_.is_one and "" in log.own:
                self._adopt(pass_, log.own.pop(""))
        facts: dict[str, Any] = {**({} if at is None else {"at": at}), **({"known": known} if known else {})}
        if known and pass_.is_one:
            before = was.get("known", {})
            facts["read"] = [
                name for name, old in names.items() if old in was.get("read", ()) and known[name] == before.get(old)
            ]
        head = source_position.written(source_position.DEBEZIUM, facts)[:-1] + ","

        def here() -> str:
            return head + pass_.here() + "}"

        began, first = pass_.here(), after
        # Each group is held until the next one: at the end of a pass, its position also covers messages without content.
        held: list[Change] = []
        try:
            for rows in self._groups(pass_):
                if held:
                    yield tuple(held)
                held = []
                changes = debezium_envelope.joined(rows)
                routed = ["" if row.unread else pass_.routes.target(row.collection, row.table) for row in changes]
                text = here()
                for row, table in zip(changes, routed, strict=True):
                    after += 1
                    held.append(
                        Change(
                            seq=after, tx=_tx(row) if len(changes) > 1 else None, table=table, op=row.op,
                            before=row.before, after=row.after, is_partial=row.is_partial, is_snapshot=row.is_snapshot,
                            shows_actions=row.at.origin.startswith(SHOW_ACTIONS), unread=row.unread,
                            place=text if len(held) + 1 == len(changes) else None,
                        )
                    )  # fmt: skip
        except LakegateError:
            if held:
                yield tuple(held)
            raise
        if until is not None:
            if held:
                yield tuple(held)
            return
        waits = source_position.waits(pass_.waits_for, was, int(self.clock() * 1000))
        more: dict[str, Any] = {"waits": waits} if waits else {}
        if known and pass_.is_one:
            facts.pop("read", None)
            more["read"] = [] if waits else list(pass_.all)
        if not waits:  # skipped messages are not needed any more
            for log in pass_.all.values():
                log.moved_on()
        last = source_position.written(source_position.DEBEZIUM, facts)[:-1] + "," + pass_.here()
        last += "".join([f',"{name}":{json.dumps(fact, separators=(",", ":"))}' for name, fact in more.items()]) + "}"
        if held:
            yield (*held[:-1], replace(held[-1], place=last))
        elif waits != was.get("waits") or (first >= 0 and (pass_.here() != began or known != was.get("known", {}))):
            yield (Change(seq=first, tx=None, table="", op="mark", place=last),)

    @staticmethod
    def _adopt(pass_: _Pass, one: Seen) -> None:
        """Merges what an earlier version wrote for each file: the highest position counts for all."""
        before = pass_.shared.get("")
        if before is None or (one.order or ()) > (before.order or ()):
            one.ts_ms = max(one.ts_ms, before.ts_ms if before is not None else 0)
            pass_.shared[""] = one

    def _groups(self, pass_: _Pass) -> Iterator[Sequence[RowChanged]]:
        data = [log for name, log in pass_.all.items() if not self.logs.is_transactions(name)]
        if self.logs.transactions is None:
            yield from _merged(data)
        else:
            ends = [log for name, log in pass_.all.items() if self.logs.is_transactions(name)]
            yield from _whole(pass_, data, ends)
        for log in data:
            for again in log.again.values():
                if again.count and not again.is_known and (pass_.is_one or not again.is_over):
                    if pass_.is_one:
                        log.prove(again)
                        again.settle()
                    else:
                        where = ", ".join(f"{k}={v}" for k, v in self.logs.where(log.name, again.offset).items())
                        pass_.waits_for = pass_.waits_for or (
                            f"the last applied change to be sent again: changes after {where} appear to be sent again"
                        )


def _of(seen: dict[str, Seen], origin: str) -> Seen:
    """Returns what was delivered of an origin's log."""
    found = seen.get(origin)
    if found is None:
        # An earlier version did not write the origin of a position: it belongs to the first origin seen.
        found = seen[origin] = seen.pop("") if "" in seen else Seen()
    return found


def _own(seen: Sequence[Any]) -> dict[str, Seen]:
    """Reads one log's part of a position."""
    if not seen:
        return {}
    if isinstance(seen[0], dict):
        return {origin: Seen.read(one) for origin, one in seen[0].items()}
    if seen[0] is None:
        return {}
    order, tx, total_order, ts_ms = seen  # the format of earlier versions
    return {"": Seen(order=tuple(order), tx=tx, total_order=total_order, ts_ms=ts_ms)}


def _tx(row: RowChanged) -> str:
    """Returns the transaction of a change that belongs to a group."""
    return row.tx or f"{row.at.origin} {row.at.transaction or row.order}"


def _merged(logs: Sequence[_Log]) -> Iterator[Sequence[RowChanged]]:
    """Yields changes one by one; first those without a position, log by log.

    Positions of one origin are in order. Between origins, the time decides.
    """
    without: list[int] = []
    heaps: dict[str, list[tuple[Order, int, int]]] = {}

    def push(number: int) -> None:
        row = logs[number].row()
        if row is None:
            return
        if row.order is None:
            heapq.heappush(without, number)
        else:
            # After a fail-over, positions come from another server.
            whose = row.at.origin if row.at.gtid is None else f"{row.at.origin} {row.at.gtid[0]}"
            heapq.heappush(heaps.setdefault(whose, []), (row.order, number, row.at.ts_ms))

    def popped(number: int, order: Order | None, like: RowChanged | None = None) -> RowChanged | None:
        # If another piece of the log delivered the pushed change, it is old by now, and this is the next one.
        row = logs[number].row()
        if row is None or row.order != order:
            return None
        if like is not None and (row.op != "t" or row.at.transaction != like.at.transaction):
            return None
        logs[number].pop()
        return row

    for number in range(len(logs)):
        push(number)
    while without or any(heaps.values()):
        if without:
            number = heapq.heappop(without)
            row = popped(number, None)
            if row is not None:
                yield (row,)
            push(number)
            continue
        heap = min((one for one in heaps.values() if one), key=lambda one: one[0][2])
        order, number, _ = heapq.heappop(heap)
        row = popped(number, order)
        rows = [] if row is None else [row]
        while row is not None and row.op == "t":
            # TRUNCATE of several tables is one record of the log, and only the whole record satisfies foreign keys.
            push(number)
            if not heap or heap[0][0] != order:
                break
            _, number, _ = heapq.heappop(heap)
            row = popped(number, order, rows[0])
            if row is not None:
                rows.append(row)
        if rows:
            yield rows
        if row is None or row.op != "t":
            push(number)


def _whole(pass_: _Pass, logs: Sequence[_Log], ends: Sequence[_Log]) -> Iterator[Sequence[RowChanged]]:
    """Yields complete transactions in the order of their ends."""
    while True:
        yield from _alone(logs)
        last = next((log for log in ends if log.end() is not None), None)
        if last is None:
            row = next((row for log in logs if (row := log.row()) is not None), None)
            if row is not None:
                pass_.waits_for = (
                    f"the end of transaction {row.tx}" if row.tx else "transactions that were begun before"
                )
            return
        end = last.end()
        assert end is not None
        if end.id in pass_.done:  # the source sent it again
            last.pop()
            continue
        rows = _of_transaction(logs, end.id)
        found = {row.total_order or 0: row.collection for _, _, row in rows if row.tx is not None}
        for log in logs:
            found.update(log.old.get(end.id, {}))
        counts = dict.fromkeys([*end.counts, *found.values()], 0)
        for collection in found.values():
            counts[collection] += 1
        left_out = [name for name, n in counts.items() if not n and not pass_.logs.has(name)]
        missing = {name: end.counts.get(name, 0) - n for name, n in counts.items() if name not in left_out}
        missing = {name: n for name, n in missing.items() if n}
        if missing and not rows and any(log.finds(end.id) == "old" for log in logs):
            missing = {}  # delivered already, and sent again after a part of a later transaction
        may_be, wanted = _unread(pass_, logs, rows, missing), sum(missing.values())
        lacks = [n for n in range(1, sum(end.counts.values()) + 1) if n not in found] if may_be else []
        if may_be is not None and 0 < wanted <= sum(may_be.values()) and len(lacks) <= UNREAD_MAX:
            left_out += [f"{UNREAD}{n}" for n in lacks]
            for name, n in may_be.items():
                pass_.unread[name] = pass_.unread.get(name, 0) - min(n, wanted)
                wanted -= min(n, wanted)
            missing = {}
        if any(n < 0 for n in missing.values()) or (missing and _has_ended(logs, rows)):
            raise Corrupt(
                "a transaction does not have as many changes as its end says; nothing of it was written",
                advice=f"The topics of its tables must be named PREFIX.SCHEMA.TABLE, and hold all its changes. {NEW_SNAPSHOT}",
                transaction=end.id, expected=sum(n for name, n in end.counts.items() if name not in left_out),
                found=len(found), tables=", ".join(missing), **pass_.logs.where(last.name, last.ahead[0][0]),
            )  # fmt: skip
        if missing:
            what = ", ".join(f"{n} of {name}" for name, n in missing.items())
            pass_.waits_for = f"changes of transaction {end.id}: {what}"
            return
        # Only after all changes are found: in pieces of one log, a later message may have an earlier position.
        for log, _, row in sorted(rows, key=lambda one: (one[2].order or (), one[2].total_order or 0)):
            log.take(row)
        for log, offset, _ in rows:
            log.moved(offset)
        last.pop()
        pass_.finish(end.id, left_out)
        for log in logs:
            log.old.pop(end.id, None)  # repeated changes of this transaction are not needed any more
        if rows:
            yield _in_order([row for _, _, row in rows])


def _alone(logs: Sequence[_Log]) -> Iterator[Sequence[RowChanged]]:
    """Yields changes without a transaction at the heads, unless an earlier change of their log has a transaction."""
    while True:
        heads = []
        for log in logs:
            while (row := log.row()) is not None and row.tx is None and row.order is None:
                log.pop()
                yield (row,)
            if row is not None:
                heads.append((row, log))
        free = [(row, log) for row, log in heads if row.tx is None]
        if not free:
            return
        row, log = min(free, key=lambda one: (one[0].at.origin, one[0].order or ()))
        for other, _ in heads:
            if other.tx and other.at.origin == row.at.origin and (other.order or ()) < (row.order or ()):
                return
        log.pop()
        yield (row,)


def _of_transaction(logs: Sequence[_Log], id: str) -> list[tuple[_Log, int, RowChanged]]:
    """Takes the known changes of a transaction off the logs; returns them with their offsets."""
    rows: list[tuple[_Log, int, RowChanged]] = []
    seen: set[int] = set()
    origins: set[str] = set()
    for log in logs:
        n = 0
        while n < AHEAD_MAX and log.reads(n):
            offset, row = log.ahead[n]
            if not isinstance(row, RowChanged) or log.drops(row, offset):
                del log.ahead[n]
            elif row.tx == id or (row.tx is None and n == 0):
                del log.ahead[n]
                log.is_behind = True  # until the change is delivered
                if row.total_order is None or row.total_order not in seen:
                    rows.append((log, offset, row))
                if row.total_order is not None:
                    seen.add(row.total_order)
                    origins.add(row.at.origin)
            elif row.at.origin in origins:
                break  # a source sends one transaction after another; other sources' changes lie between
            else:
                n += 1
    return rows


def _has_ended(logs: Sequence[_Log], rows: Sequence[tuple[_Log, int, RowChanged]]) -> bool:
    """Returns whether no log can have more changes of a transaction: each has later changes of its source."""
    origins = {row.at.origin for _, _, row in rows}
    return all(any(isinstance(row, RowChanged) and row.at.origin in origins for _, row in log.ahead) for log in logs)


def _unread(
    pass_: _Pass, logs: Sequence[_Log], rows: Sequence[tuple[_Log, int, RowChanged]], missing: Mapping[str, int]
) -> Mapping[str, int] | None:
    """Returns log → number of its unreadable messages that may be the missing changes of a transaction.

    None if some log may still have those changes: that is so until it has a change of a later transaction.
    """
    found = {log.name: pass_.unread.get(log.name, 0) for log in logs}
    for log, _, row in rows:
        found[log.name] += row.at == debezium_envelope.NOWHERE
    if not any(found.values()) or any(n < 0 for n in missing.values()):
        return None
    named = [log for log in logs if any(log.name.rpartition("/")[0].endswith(f".{name}") for name in missing)]
    wanted = named or list(logs)
    later = [any(isinstance(row, RowChanged) and row.tx is not None for _, row in log.ahead) for log in wanted]
    if not (any(later) if pass_.is_one else all(later)):
        return None
    return {log.name: found[log.name] for log in wanted}


def _in_order(rows: Sequence[RowChanged]) -> list[RowChanged]:
    """Sorts the changes of a transaction. A change without a number stays after its predecessor."""
    placed, place = [], 0
    for row in rows:
        place = row.total_order or place
        placed.append((place, row))
    return [row for _, row in sorted(placed, key=lambda one: one[0])]
