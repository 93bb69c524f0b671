"""Debezium's changes from several logs (the partitions of topics, or files), in the order of their source.

With transaction metadata, whole transactions are delivered in the order of their ends; changes after the last complete
transaction are held back. Without metadata, each change is delivered by itself, except tables emptied by one statement. Changes
of one log stay in order; changes of several logs are merged by position as far as positions are comparable.

Rules for editors: only a change that is known to be old is dropped (`plan.log_position`). Each pass ends with the position
reached and with what the pass waits for, even if nothing was delivered: a log may drop earlier messages.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakegate.errors import Corrupt, LakegateError
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.log_position import SHOW_ACTIONS, Order, Seen
from lakegate.syncs.plan.routes import Routes
from lakegate.syncs.sources import debezium_envelope
from lakegate.syncs.sources.debezium_envelope import RowChanged
from lakegate.syncs.sources.debezium_logs import (
    AHEAD_MAX,
    NEW_SNAPSHOT,
    UNREAD,
    UNREAD_MAX,
    LogReader,
    Logs,
    Notices,
    ReadPass,
    Recognizes,
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

    def has_arrived(self) -> bool | None:
        """Returns whether a message has come since the last pass; None if the logs cannot notice it by themselves."""
        return self.logs.has_arrived() if isinstance(self.logs, Notices) else None

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
        pass_ = ReadPass(
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
            log = pass_.all[name] = LogReader(name, messages, offset, pass_, _own(seen))
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
                            committed_at_ms=row.committed_at_ms, place=text if len(held) + 1 == len(changes) else None,
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
        waits = source_position.waits(pass_.waits_for, was, int(self.clock() * 1000), _oldest(pass_))
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
    def _adopt(pass_: ReadPass, one: Seen) -> None:
        """Merges what an earlier version wrote for each file: the highest position counts for all."""
        before = pass_.shared.get("")
        if before is None or (one.order or ()) > (before.order or ()):
            one.ts_ms = max(one.ts_ms, before.ts_ms if before is not None else 0)
            pass_.shared[""] = one

    def _groups(self, pass_: ReadPass) -> Iterator[Sequence[RowChanged]]:
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


def _oldest(pass_: ReadPass) -> int | None:
    """Returns the earliest commit of the changes that were read and wait to be delivered."""
    heads = (row for log in pass_.all.values() for _, row in list(log.ahead)[:1] if isinstance(row, RowChanged))
    return min((row.committed_at_ms for row in heads if row.committed_at_ms is not None), default=None)


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


def _merged(logs: Sequence[LogReader]) -> Iterator[Sequence[RowChanged]]:
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


def _whole(pass_: ReadPass, logs: Sequence[LogReader], ends: Sequence[LogReader]) -> Iterator[Sequence[RowChanged]]:
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


def _alone(logs: Sequence[LogReader]) -> Iterator[Sequence[RowChanged]]:
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


def _of_transaction(logs: Sequence[LogReader], id: str) -> list[tuple[LogReader, int, RowChanged]]:
    """Takes the known changes of a transaction off the logs; returns them with their offsets."""
    rows: list[tuple[LogReader, int, RowChanged]] = []
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


def _has_ended(logs: Sequence[LogReader], rows: Sequence[tuple[LogReader, int, RowChanged]]) -> bool:
    """Returns whether no log can have more changes of a transaction: each has later changes of its source."""
    origins = {row.at.origin for _, _, row in rows}
    return all(any(isinstance(row, RowChanged) and row.at.origin in origins for _, row in log.ahead) for log in logs)


def _unread(
    pass_: ReadPass,
    logs: Sequence[LogReader],
    rows: Sequence[tuple[LogReader, int, RowChanged]],
    missing: Mapping[str, int],
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
