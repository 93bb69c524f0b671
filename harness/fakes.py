"""Small fakes of the ports, for tests; each keeps the port's contract."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from lakegate.ids import TableLocation, TokenId, Version
from lakegate.telemetry.events import Event
from lakegate.turns.protocol.effects import CasReply, StepMark, TableTokens
from lakegate.turns.protocol.fencing import Token, unpack


@dataclass
class FakeClock:
    """A clock that moves only in `advance`."""

    now_s: float = 1_000.0

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now_s += seconds


@dataclass
class CountingIds:
    """Ids that are never drawn twice, and the same in every run."""

    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def uuid(self) -> str:
        return f"id-{next(self._numbers)}"


@dataclass
class Recorder:
    """Keeps every event."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCommit:
    """A commit of a fake table: the ids it sets, and the mark of its step, if it has data."""

    tokens: dict[TokenId, int]
    mark: StepMark | None = None


@dataclass
class FakeTableLog:
    """Tables as lists of commits, in memory. `put` does what a statement of a job does, by stock Delta's rules alone."""

    tables: dict[TableLocation, list[FakeCommit]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_tokens(self, table: TableLocation) -> TableTokens:
        with self._lock:
            commits = self.tables.get(table, [])
            tokens: dict[TokenId, int] = {}
            for commit in commits:
                tokens |= commit.tokens
            return TableTokens(Version(len(commits) - 1), tokens)

    def prepare_write(self, table: TableLocation) -> None:
        """Does nothing: a look at the log is cheap here."""

    def commit_entry(
        self, table: TableLocation, after: Version, raised: tuple[tuple[TokenId, int], ...], user_metadata: str
    ) -> CasReply:
        with self._lock:
            commits = self.tables.setdefault(table, [])
            if len(commits) - 1 != after:
                return "stale"
            commits.append(FakeCommit(tokens=dict(raised)))
            return "done"

    def find_mark(self, table: TableLocation, token_id: TokenId, token: Token) -> StepMark | None:
        for commit in reversed(self.tables.get(table, [])):
            number = commit.tokens.get(token_id)
            if number is not None and commit.mark is not None:
                found = unpack(number)
                if (found.batch, found.step) == (token.batch, token.step):
                    return commit.mark
        return None

    def put(self, table: TableLocation, token_id: TokenId, number: int, mark: StepMark) -> bool:
        """Appends a data commit; False where Delta skips silently, because the stored number is equal or larger."""
        if self.read_tokens(table).tokens.get(token_id, -1) >= number:
            return False
        with self._lock:
            self.tables.setdefault(table, []).append(FakeCommit(tokens={token_id: number}, mark=mark))
        return True


@dataclass
class FakeGate:
    """A gate that keeps the holder of each table's turn; it stores deadlines and never acts on them."""

    open: dict[TableLocation, tuple[str, int, int]] = field(default_factory=dict)
    """Table → job, epoch, milliseconds given last."""
    calls: list[tuple[str, TableLocation, int]] = field(default_factory=list)
    _latest: dict[TableLocation, int] = field(default_factory=dict)

    def grant(self, table: TableLocation, job: str, epoch: int, duration_ms: int, token_id: str | None = None) -> bool:
        self.calls.append(("grant", table, duration_ms))
        if epoch < self._latest.get(table, 0):
            return False
        self._latest[table] = epoch
        self.open[table] = (job, epoch, duration_ms)
        return True

    def revoke(self, table: TableLocation, epoch: int) -> None:
        self.calls.append(("revoke", table, epoch))
        if table in self.open and self.open[table][1] == epoch:
            del self.open[table]
