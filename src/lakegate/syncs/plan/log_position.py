"""Positions in the log of a source: their log, which of them are comparable, and which changes were delivered before.

Rules for editors: positions of two logs are never compared. A change counts as old only on evidence: its transaction, its
GTID, or a position in the log in which the last delivered change occurs again. An undecidable case is refused or waits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

Order = tuple[int, ...]
DIGESTS_MAX = 16
"""The number of last changes whose digests are kept."""
SERVERS_MAX = 16
GTID_RANGES_MAX = 32
"""The maximum for one server. If there are more, the oldest gap counts as delivered: a replica commits only slightly out of
order."""
OF_A_CLUSTER = frozenset({"mysql", "mariadb", "oracle"})
"""Connectors whose log belongs to a whole server. Other logs belong to one database."""
PLACE = (
    "lsn", "txId", "file", "pos", "row", "gtid", "server_id", "commit_lsn", "change_lsn", "event_serial_no", "scn",
    "commit_scn", "rs_id", "ssn", "db", "schema", "table", "ts_ms",
)  # fmt: skip


SHOW_ACTIONS = ("postgresql/", "sqlserver/", "oracle/", "db2/", "informix/")
"""Origins whose logs contain the effects of foreign key actions. The logs of MySQL and MariaDB do not."""


class WentBack(ValueError):
    """A change lies before the delivered changes, and was never delivered."""


def origin(source: Mapping[str, Any]) -> str:
    """Returns the log that a position belongs to. Positions of two origins cannot be compared."""
    connector = str(source.get("connector") or "")
    names = [connector, str(source.get("name") or "")]
    if connector not in OF_A_CLUSTER:
        names.append(str(source.get("db") or ""))
    return "/".join(names)


def order(source: Mapping[str, Any]) -> Order | None:
    """Returns the position of an event in its log. Positions never decrease within a log; several events may share one."""
    if source.get("commit_lsn"):  # SQL Server, Db2, Informix
        return tuple(int(str(source.get(name) or "0").replace(":", ""), 16) for name in ("commit_lsn", "change_lsn"))
    if source.get("commit_scn"):  # Oracle; transactions may share it
        return (int(source["commit_scn"]),)
    if source.get("lsn") is not None and isinstance(source.get("sequence"), str):
        # PostgreSQL: transactions overlap in the log, so a record's own LSN may decrease. The LSN of the last commit does not.
        before = source["sequence"].strip("[] ").split(",")[0].strip(' "')
        return (int(before) if before.isdigit() else 0, int(source["lsn"]))
    if source.get("file") and source.get("pos") is not None:  # MySQL, MariaDB
        number = str(source["file"]).rpartition(".")[2]
        # A row's number within an event is omitted: in a compressed transaction it decreases.
        return (int(number), int(source["pos"])) if number.isdigit() else None
    return None


def gtid(source: Mapping[str, Any]) -> tuple[str, int] | None:
    """Returns the server (MariaDB: domain and server) and the number of a transaction; None if the log has no GTIDs."""
    text = str(source.get("gtid") or "")
    for separator in ":-":
        server, found, number = text.rpartition(separator)
        if found and number.isdigit():
            return server, int(number)
    return None


def digest(value: Mapping[str, Any], source: Mapping[str, Any]) -> str:
    """Returns a short text that two events share only if they are the same event, sent twice."""
    transaction = value.get("transaction") or {}
    facts = (
        value.get("op"), value.get("before"), value.get("after"), transaction.get("id"), transaction.get("total_order"),
        [source.get(name) for name in PLACE],
    )  # fmt: skip
    return hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a change in its source."""

    origin: str
    order: Order | None
    """None if the source does not provide it, or if a snapshot read the row."""
    digest: str = ""
    gtid: tuple[str, int] | None = None
    server: int | None = None
    ts_ms: int = 0
    """When the change was made at the source; 0 if unknown."""
    tx: str | None = None
    total_order: int | None = None
    transaction: str = ""
    """The log's own number of the transaction, where it has one."""
    begins_log: bool = False
    """Whether a full snapshot read the row. The changes after it may belong to another log."""


@dataclass(slots=True)
class Seen:
    """The last delivered changes of one log."""

    order: Order | None = None
    tx: str | None = None
    total_order: int = 0
    ts_ms: int = 0
    digests: list[str] = field(default_factory=list)
    """The latest is last. Empty if an earlier version wrote the position."""
    servers: list[int] = field(default_factory=list)
    gtids: dict[str, list[list[int]]] = field(default_factory=dict)
    """Server → ranges of numbers (first, last), in ascending order."""
    gtid: tuple[str, int] | None = None
    in_gtid: int = 0
    """The number of delivered changes of that transaction."""
    begins_log: bool = False
    """Whether rows of a full snapshot came after the last change."""
    here: set[str] = field(default_factory=set)
    """Digests of all changes at the last position that this reader has seen."""

    def take(self, at: Position, *, digests_max: int = DIGESTS_MAX) -> None:
        """Records the change as delivered."""
        if at.order is None:
            self.begins_log |= at.begins_log and self.order is not None
            return
        was_known = bool(self.digests) or self.order is None
        if at.order != self.order:
            self.here.clear()
        self.here.add(at.digest)
        self.order, self.tx, self.total_order = at.order, at.tx, at.total_order or 0
        self.ts_ms, self.begins_log = max(self.ts_ms, at.ts_ms), False
        self.digests = [*self.digests[1 - digests_max :], at.digest]
        if at.server is not None and at.server not in self.servers and len(self.servers) < SERVERS_MAX:
            self.servers.append(at.server)
        if at.gtid is not None:
            self.in_gtid = self.in_gtid + 1 if at.gtid == self.gtid else 1
            self.gtid = at.gtid
            _add(self.gtids.setdefault(at.gtid[0], []), at.gtid[1], is_first=was_known)

    def written(self) -> dict[str, Any]:
        """Returns the JSON form, without empty fields."""
        facts = {
            "order": self.order, "tx": self.tx, "n": self.total_order, "ts_ms": self.ts_ms, "last": self.digests,
            "servers": self.servers, "gtids": self.gtids, "gtid": self.gtid, "in_gtid": self.in_gtid,
            "anew": self.begins_log,
        }  # fmt: skip
        return {name: value for name, value in facts.items() if value}

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Self:
        """Reads the JSON form of `written`."""
        order, last = facts.get("order"), facts.get("gtid")
        return cls(
            order=None if order is None else tuple(order), tx=facts.get("tx"), total_order=facts.get("n", 0),
            ts_ms=facts.get("ts_ms", 0), digests=list(facts.get("last", ())), servers=list(facts.get("servers", ())),
            gtids={name: [list(one) for one in ranges] for name, ranges in facts.get("gtids", {}).items()},
            gtid=None if last is None else (last[0], last[1]), in_gtid=facts.get("in_gtid", 0),
            begins_log=bool(facts.get("anew")),
        )  # fmt: skip


@dataclass(slots=True)
class Again:
    """Consecutive changes that appear to be sent again."""

    offset: int = -1
    """The offset of the first one."""
    count: int = 0
    in_gtid: int = 0
    """How many of them, counted from the last, belong to the last delivered transaction."""
    met: set[str] = field(default_factory=set)
    """The digests of these changes."""
    is_known: bool = False
    """Whether one of them is known to be sent again. Then all are, because a source repeats its log in order."""
    is_over: bool = True
    """Whether the last delivered change was seen again."""
    digests: dict[str, int] = field(default_factory=dict)
    """Digest → offset, for changes that are not yet known to be sent again."""

    def add(self, offset: int, at: Position, seen: Seen, *, is_known: bool, is_last: bool) -> None:
        """Adds a change."""
        if self.is_over:
            self.offset, self.count, self.in_gtid, self.is_known = offset, 0, 0, False
            self.digests.clear()
            self.met.clear()
        if at.gtid is None or at.gtid != seen.gtid or at.digest in self.met:  # the source goes back once more
            self.in_gtid = 0
            self.met.clear()
        if at.gtid is not None and at.gtid == seen.gtid:
            self.in_gtid += 1
            self.met.add(at.digest)
        if is_last:
            self.in_gtid = 0
            self.met.clear()
        self.count, self.is_over = self.count + 1, is_last
        self.is_known |= is_known
        if self.is_known:
            self.digests.clear()
        else:
            self.digests.setdefault(at.digest, offset)

    def settle(self) -> None:
        """Records that all of them were delivered before."""
        self.is_known = self.is_over = True
        self.digests.clear()


def is_old(at: Position, seen: Seen, again: Again, own: Seen) -> tuple[bool, bool]:
    """Returns whether a change was delivered before, and whether there is evidence for this besides its position.

    Args:
        at: The position of the change.
        seen: The delivered changes of its log.
        again: The preceding changes of the same piece that appear to be old.
        own: The delivered changes of this piece of the log; `seen` if there is only one piece.

    Raises:
        WentBack: The change lies before the delivered changes, and cannot have been delivered.
    """
    if at.order is None or seen.order is None:
        return False, False
    is_met = at.digest in seen.digests or at.digest in own.digests or at.digest in seen.here
    if at.gtid is not None and own is not seen and _has(seen.gtids.get(at.gtid[0], ()), at.gtid[1]):
        # Other changes of the transaction may be in other pieces: their delivery is no evidence for this one.
        is_next = at.gtid == seen.gtid and at.order >= seen.order and again.is_over
        return is_met or not is_next, is_met
    if at.gtid is not None and at.gtid == seen.gtid:
        if is_met:
            return True, True
        if at.order < seen.order or at.order[0] != seen.order[0] or not again.is_over:
            # The transaction is sent again from its beginning, perhaps by another server with other positions.
            is_again = again.in_gtid < seen.in_gtid or at.digest in again.met
            return is_again, is_again
        return False, False
    if at.gtid is not None and seen.gtids:
        return (True, True) if _has(seen.gtids.get(at.gtid[0], ()), at.gtid[1]) else (False, True)
    if at.order > seen.order:
        return False, False
    if at.order == seen.order:
        if (
            at.total_order is not None and at.tx == seen.tx and own is seen
        ):  # otherwise, adjacent changes may be in other pieces
            return at.total_order <= seen.total_order, True
        return is_met or not again.is_over, is_met
    if not is_met:
        if seen.begins_log:
            raise WentBack("positions after a new snapshot are lower")
        if at.ts_ms > seen.ts_ms:
            raise WentBack("it is younger than changes with higher positions")
        if at.server is not None and seen.servers and len(seen.servers) < SERVERS_MAX and at.server not in seen.servers:
            raise WentBack(f"it comes from a server that was not seen before ({at.server})")
    return True, is_met or not seen.digests


def _has(ranges: Sequence[Sequence[int]], number: int) -> bool:
    return any(first <= number <= last for first, last in ranges)


def _add(ranges: list[list[int]], number: int, *, is_first: bool) -> None:
    """Adds a number. `is_first`: nothing below the first number of a server was delivered."""
    if _has(ranges, number):
        return
    ranges.append([number if is_first or ranges else 0, number])
    ranges.sort()
    joined = [ranges[0]]
    for first, last in ranges[1:]:
        if first <= joined[-1][1] + 1:
            joined[-1][1] = max(last, joined[-1][1])
        else:
            joined.append([first, last])
    while len(joined) > GTID_RANGES_MAX:
        joined[0:2] = [[joined[0][0], joined[1][1]]]
    ranges[:] = joined
