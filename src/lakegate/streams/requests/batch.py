"""The steps of a batch of requests, once it is stored: decides, changes the rows of the target, and records the outcomes.

This is the plain path. `precompute.py` uses the same steps for a batch that was computed before its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.spark.threads import in_parallel
from lakegate.streams.bad_records import refuse_stored
from lakegate.streams.interfaces import APPLY, BatchResult, BatchTurn
from lakegate.streams.requests.apply import Met, TargetRows
from lakegate.streams.requests.erased_keys import Erasures
from lakegate.streams.requests.outcomes import RequestOutcomes
from lakegate.streams.requests.parts import Parts
from lakegate.streams.requests.resolver import Decided, Held, StandingRequests
from lakegate.streams.requests.rules import Admitted, Path, Settled, follow, last_of_key, settle
from lakegate.streams.requests.sweep import Sweeps
from lakegate.streams.requests.visibility import RequestsSnapshot
from lakegate.streams.requests.watermark import Tested, job_of

_SEARCH_MAX = 1000
"""How many commits back the commit of an `apply` is searched after a crash; it is after the `store` of the same batch."""


class KeptOfErased(Protocol):
    """Rows of another table that name erased persons."""

    def forget(self, turn: BatchTurn) -> None:
        """Deletes the rows, in a step of the turn."""
        ...


class StoredBatches:
    """The stored batches of one stream.

    Args:
        parts: The parts of the stream.
        sweeps: Its sweeps, which count the kept requests.
        kept_of_erased: Returns other rows to delete for erased persons.
    """

    def __init__(
        self,
        parts: Parts,
        sweeps: Sweeps,
        kept_of_erased: Callable[[Held, Admitted], Sequence[KeptOfErased]],
    ) -> None:
        self._parts, self._context, self._meaning = parts, parts.context, parts.meaning
        self._sweeps, self.kept_of_erased = sweeps, kept_of_erased

    def run(self, turn: BatchTurn, batch_id: int, look: RequestsSnapshot) -> BatchResult:
        """Decides on the stored requests, applies them and records their outcomes.

        Args:
            turn: The turn.
            batch_id: Number of the micro-batch.
            look: State of the erasures in the turn.
        """
        parts = self._parts
        erasures = parts.erasures(look)
        own = parts.reader.read(parts.requests.rows(["stored"]), erasures)
        if not own.requests:
            return BatchResult(rows_in=0, was_applied_before=True)
        decided = parts.reader.decide(own, parts.kept(own.keys, erasures))
        decided = self.without_refused(decided, erasures, batch_id)
        return self.apply_and_settle(turn, decided, erasures, batch_id)

    def apply_and_settle(
        self, turn: BatchTurn, decided: Decided, erasures: Erasures | None, batch_id: int
    ) -> BatchResult:
        """Changes the existing rows, and records the outcomes of the requests."""
        rows = TargetRows(self._context, self._parts.kind, erasures)

        def change(token: WriteToken) -> Met:
            met = rows.meet(decided.rules, self._context.log.head(self._context.target))
            if met.rows.num_rows > 0:
                rows.change(decided.rules, decided.steps, met, token)
            return met

        with in_parallel(self._context.session) as begin:
            kept = begin(lambda: self.kept_of_erased(decided.everything, decided.admitted))
            met = self.apply(turn, decided, rows, batch_id, change)
            for one in kept.result():
                one.forget(turn)
        outcome = self.outcome(decided, met)
        self._parts.settling.write(turn, decided.everything, outcome)
        return result_of(decided, outcome, met)

    def without_refused(self, decided: Decided, erasures: Erasures | None, batch_id: int) -> Decided:
        """Leaves out requests whose values the table refuses: each of them is dead, and the others take effect.

        Raises:
            InvalidRequest: a request is refused, and `on_bad_record` is `fail`; nothing was applied.
        """
        head = self._context.log.seen(self._context.target)
        if head < 0:
            return decided
        rows = TargetRows(self._context, self._parts.kind, erasures)
        refused: dict[str, str] = {}
        # Requests of earlier batches were not tested against the present rules of the table when they came in.
        has_older = bool(decided.kept.waiting.index) or set(decided.own.rows["batch"].to_pylist()) != {batch_id}
        before = decided
        while broken := rows.broken(decided.rules, head, has_older=has_older):
            refused |= {decided.paths[key].last.id: reason for key, reason in broken.items()}
            decided = self._parts.reader.decide(before.own, before.kept, refused)
        if refused:
            refuse_stored(self._parts.spec, refused)
        return decided

    def apply(
        self, turn: BatchTurn, decided: Decided, rows: TargetRows, batch_id: int, change: Callable[[WriteToken], Met]
    ) -> Met | None:
        """Changes the existing rows in one step. Returns the matched rows, on the version on which the change was computed.

        Args:
            turn: The turn.
            decided: The effect of the requests; None is returned if it concerns no rows, or if there is no table.
            rows: The target's rows.
            batch_id: Number of the micro-batch.
            change: Commits the change with a token, and returns the rows that matched.
        """
        target, met = self._context.target, None
        if self._context.log.seen(target) < 0 or not decided.paths:
            return None

        def statement(token: WriteToken) -> None:
            nonlocal met
            met = change(token)

        if not turn.write(target, step=APPLY, name="apply", statement=statement):
            # An earlier run of this batch has changed the rows: those that matched then.
            since = min(decided.own.rows["tested_version"].to_pylist())
            met = rows.meet(decided.rules, self._version_before_apply(batch_id, since))
        return met

    def _version_before_apply(self, batch_id: int, since: int) -> Version:
        """Returns the version on which an earlier run of this batch computed its change."""
        log, target, job = self._context.log, self._context.target, self._parts.spec.name
        head = log.head(target)
        for commit in log.commits(target, Version(max(since, head - _SEARCH_MAX)), head):
            said: Mapping[str, Any] = commit.user_metadata or {}
            if (job_of(said), said.get("batch"), said.get("step")) == (job, batch_id, "apply"):
                # A change computed before its turn was committed as if it had been computed on the version before.
                return Version((said.get("user") or {}).get("tested", commit.version - 1))
        return Version(since)

    def outcome(self, decided: Decided, met: Met | None) -> RequestOutcomes:
        """Computes the outcome of the requests that matched these rows."""
        admitted, paths = decided.admitted, decided.paths
        waiting, standing = decided.kept.waiting, decided.kept.standing
        counts = met.counts() if met else {}
        settled = settle(admitted, meaning=self._meaning, waiting=waiting.requests, paths=paths, matched=counts)
        effects = self._effects(paths, standing)
        replaced: dict[str, Settled] = {}
        if self._meaning.is_standing and not self._meaning.moves_rows:
            for key, newest in last_of_key(admitted.in_order).items():
                if (before := standing.by_key.get(key)) is not None:
                    replaced[before] = Settled(state="superseded", reason=f"followed by {newest.id}")
        tested = self._tested_after(decided.own, waiting, settled, standing, effects, met)
        version = met.version if met else tested.tested
        return RequestOutcomes(settled=settled, replaced=replaced, effects=effects, tested=tested, version=version)

    def _effects(self, paths: Mapping[str, Path], standing: StandingRequests) -> dict[str, Path]:
        """Returns request id → the path that later rows of its key follow from now on."""
        if not (self._meaning.moves_rows and self._meaning.is_standing):
            return {}
        begun = {path.first.id: path for key, path in paths.items() if key not in standing.by_key}
        return begun | follow(standing.ends, paths)

    def _tested_after(
        self,
        held: Held,
        waiting: Held,
        settled: Mapping[str, Settled],
        standing: StandingRequests,
        effects: Mapping[str, Path],
        met: Met | None,
    ) -> Tested:
        log, target, progress = self._context.log, self._context.target, self._parts.progress
        # Others write no requests of this stream while it holds the turn.
        last = progress.last(log.seen(self._parts.requests.location)) or self._sweeps.counted()
        first_seen = dict(zip(held.rows["request_id"].to_pylist(), held.rows["first_seen_ms"].to_pylist(), strict=True))
        now_waiting = [id_ for id_, outcome in settled.items() if outcome.state == "waiting"]
        if not self._meaning.is_standing:
            kept = last.kept + len(now_waiting) - len(waiting.requests)
        elif self._meaning.moves_rows:
            kept = last.kept + sum(1 for id_ in effects if id_ in held.index)
        else:
            stands = {held.requests[held.index[id_]].key for id_, o in settled.items() if o.state == "applied"}
            kept = last.kept + len(stands - set(standing.by_key))
        oldest = [first_seen[id_] for id_ in now_waiting if id_ in first_seen]
        if last.oldest_ms is not None:
            oldest.append(last.oldest_ms)
        head = met.version if met else log.head(target)
        is_behind = last.kept > 0 and head >= 0 and progress.unseen(last.tested, head) != frozenset()
        return Tested(
            tested=last.tested if is_behind else head,
            kept=max(0, kept),
            oldest_ms=min(oldest) if oldest else None,
            swept=last.swept,
        )


def result_of(decided: Decided, outcome: RequestOutcomes, met: Met | None) -> BatchResult:
    """Returns the counts of a batch that was applied."""
    return BatchResult(
        rows_in=len(decided.own.requests),
        rows_written=sum(met.counts().values()) if met else 0,
        requests_matched=sum(1 for one in outcome.settled.values() if one.matched_rows),
        requests_waiting=sum(1 for one in outcome.settled.values() if one.state == "waiting"),
        requests_dead=sum(1 for one in outcome.settled.values() if one.state == "dead"),
    )
