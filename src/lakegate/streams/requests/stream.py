"""A stream of requests in a turn: stores requests, applies them, records their outcomes, each once; and sweeps kept requests.

`mutate` and `erase` differ in the allowed operations; an erasure also removes other requests of the person. `rules` decides the
effect of a set of requests; this module reads them, executes the decision and records it. The driver holds the requests of one
batch, and the kept ones of their keys, as Arrow tables; it never holds rows of the target.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import Staged
from lakegate.rows.execution import coming
from lakegate.spark.threads import in_parallel
from lakegate.streams.bad_records import refusals, refuse_stored, transformed
from lakegate.streams.interfaces import APPLY, BatchResult, BatchTurn, StreamContext, as_job, enter_all
from lakegate.streams.requests.apply import Met, TargetRows, locations, target_schema
from lakegate.streams.requests.columns import Intake
from lakegate.streams.requests.erased_keys import Erasures, erasures_of
from lakegate.streams.requests.ingest import Storing, Taken
from lakegate.streams.requests.outcomes import Outcome, Settling
from lakegate.streams.requests.precompute import Change, Looked
from lakegate.streams.requests.resolver import Decided, Held, Kept, RequestReader, Standing, meaning_of
from lakegate.streams.requests.rules import Admitted, Path, Settled, follow, last_of_key, settle
from lakegate.streams.requests.standing import RequestTables
from lakegate.streams.requests.sweep import Sweeps
from lakegate.streams.requests.table import RequestTable
from lakegate.streams.requests.visibility import Deciding, Look
from lakegate.streams.requests.watermark import Progress, Tested, job_of

SOURCE_CONF = "spark.databricks.delta.merge.materializeSource"
"""`none`: the source of a stream's MERGE is fixed rows, or a fixed version of a table, so each read gives the same."""
_SEARCH_MAX = 1000
"""How many commits back the commit of an `apply` is searched after a crash; it is after the `store` of the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The result of a micro-batch before its turn."""

    schema: StructType
    """The target's columns."""
    own: Version
    """Version of the stream's requests before they were read."""
    look: Look
    """State of the erasures."""
    erasures: Erasures | None
    taken: Taken
    store: Staged
    decided: Decided
    change: Change | None
    """None where the change cannot be computed before the turn."""


@dataclass(slots=True, kw_only=True)
class _Ahead:
    """A micro-batch that is computed before its turn."""

    batch_id: int
    records: DataFrame
    computed: _Computed | None = None
    is_taken: bool = False
    """The turn uses the result as it is; it is not updated any more."""

    def forget(self) -> None:
        """Frees the cached data."""
        self.records.unpersist()
        if self.computed is not None:
            self.computed.taken.forget()


class KeptOfErased(Protocol):
    """Rows of another table that name erased persons."""

    def forget(self, turn: BatchTurn) -> None:
        """Deletes the rows, in a step of the turn."""
        ...


class RequestStream:
    """A mutate stream: updates and deletes by request (rules M1 to M8 of requests.md in the docs); `EraseStream` adds to it."""

    def __init__(self, spec: StreamSpec, context: StreamContext) -> None:
        kind = spec.kind
        if not isinstance(kind, Mutate | Erase):
            raise TypeError(f"{spec.name} is not a stream of requests")
        self._spec, self._context = spec, context
        self._kind: Mutate | Erase = kind
        self._meaning = meaning_of(kind)
        columns = list(kind.set) if isinstance(kind, Mutate) else []
        self._requests = RequestTable(context.session, context.log, context.requests_of(spec))
        self._storing = Storing(context, spec, self._requests, self._meaning)
        self._reader = RequestReader(context, self._requests, self._meaning, columns)
        self._progress = Progress(context, spec)
        self._reads_erasures = bool(columns)
        context.session.conf.set(SOURCE_CONF, "none")
        self._deciding = Deciding(context, erasures_of(context, kind) if isinstance(kind, Mutate) else ())
        self._settling = Settling(context, self._requests)
        self._standing = RequestTables(context, spec.name)
        self._sweeps = Sweeps(
            context,
            spec,
            kind,
            self._meaning,
            self._requests,
            self._reader,
            self._progress,
            self._settling,
            self._erasures,
        )
        self._ahead: _Ahead | None = None
        self._keeping = threading.Lock()
        """Held while the result is updated after commits of others."""

    # ------------------------------------------------------------------------------------------------------- the kind

    def tables(self) -> tuple[TableLocation, ...]:
        """Returns the target, the stream's requests, those of erasures that may concern its rows, and the dead letters."""
        context = self._context
        erasures = [
            context.requests_of(stream)
            for stream in context.neighbours
            if self._reads_erasures and isinstance(stream.kind, Erase)
        ]
        letters = [context.dead_letters_of(self._spec)] if self._spec.on_bad_record == "dead_letter" else []
        return locations(context.target, self._requests.location, *erasures, *letters)

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Reads a micro-batch, decides on it and computes the change. If there is no table yet, it only reads the batch.

        Raises:
            InvalidRequest: as `run_batch`.
        """
        self._drop_ahead()
        records = transformed(self._spec, batch).persist()
        self._ahead = _Ahead(batch_id=batch_id, records=records)
        try:
            schema = target_schema(self._context)
            if schema is not None and self._requests.head() >= 0 and not self._standing.is_pending():
                self._storing.check_columns(schema)
                # The turn does not compare the columns again for a result that was computed before it.
                self._storing.refuse_other_columns(records, schema)
                self._ahead.computed = self._compute(records, schema, batch_id, before)
            if self._ahead.computed is None:
                with refusals(self._spec):
                    records.count()
        except BaseException:
            self._drop_ahead()
            raise

    def _compute(
        self, records: DataFrame, schema: StructType, batch_id: int, before: Collection[str]
    ) -> _Computed | None:
        """Computes a batch as far as possible now; None if requests of an earlier batch have no recorded outcome yet."""
        own_look = Deciding(self._context, [self._spec]).now()
        if own_look.stored:  # by the log, which in most cases avoids a Spark job
            stored = self._requests.rows(["stored"])
            if stored is None or not stored.isEmpty():
                return None
        taken = self._storing.taken_in(records, schema, uuid.uuid4().hex[:8], batch_id)
        session = self._context.session
        change = None
        try:
            with refusals(self._spec), in_parallel(session) as begin:
                found = taken.rows.toArrow()
                keys = pc.unique(found["key_hash"].drop_null()).to_pylist()
                # Write one file, as for requests from the source: Spark would write one per core, and later turns would read all.
                taken = replace(taken, rows=session.createDataFrame(found).coalesce(1))
                storing = begin(as_job(session, self._spec.name, partial(self._storing.written, taken.rows, batch_id)))
                look = self._deciding.ahead(before)
                erasures, decided = self._decided(taken.rows, keys, look)
                # Erasures added during this read mostly belong to a turn that began at the same time.
                if self._deciding.changed(look, now := self._deciding.ahead(before)):
                    look = now
                    erasures, decided = self._decided(taken.rows, keys, look, decided.kept)
                if decided.own.requests:
                    change = self._change(decided, erasures)
                store = storing.result()
        except BaseException:
            taken.forget()
            raise
        if not decided.own.requests:
            self._storing.withdraw()
            taken.forget()
            return None
        return _Computed(
            schema=schema,
            own=own_look.seen[self._spec.name],
            look=look,
            erasures=erasures,
            taken=taken,
            store=store,
            decided=decided,
            change=change,
        )

    def known(self) -> object:
        """See `StreamKind.known`."""
        erasures = [self._context.requests_of(stream) for stream in self._deciding.streams]
        tables = locations(self._context.target, self._requests.location, *erasures)
        told = [frozenset(coming(self._context.session, table)) for table in (self._context.target, *erasures)]
        return [*told, *[self._context.log.known(table) for table in tables]]

    def keep_up(self, *, before: Collection[str]) -> None:
        """Decides again if erasures have changed, and rebases the change onto commits of others and expected appends."""
        ahead = self._ahead
        if ahead is None:
            return
        with self._keeping:
            computed = ahead.computed
            if computed is None or ahead.is_taken or not self._is_own_unchanged(computed):
                return
            look = self._deciding.ahead(before)
            if not self._still_holds(computed, look):
                computed = self._redecided(computed, look)
            if computed.change is not None:
                rows = TargetRows(self._context, self._kind, computed.erasures)
                announced = partial(coming, self._context.session, self._context.target, before)
                change = computed.change.kept_up(self._context.log, self._context.target, rows, announced)
                computed = replace(computed, change=change)
            ahead.computed = computed

    def _redecided(self, computed: _Computed, look: Look) -> _Computed:
        """Decides on a batch again, with the present erasures."""
        before = computed.decided
        erasures, decided = self._decided(computed.taken.rows, before.own.keys, look, before.kept)
        change = computed.change
        if change is None or change.rules != decided.rules or (erasures and erasures.other_columns):
            change = self._change(decided, erasures)
        return replace(computed, look=look, erasures=erasures, decided=decided, change=change)

    def _decided(
        self, rows: DataFrame, keys: Sequence[str], look: Look, kept: Kept | None = None
    ) -> tuple[Erasures | None, Decided]:
        """Decides the effect of requests; `kept`: the requests kept for their keys, read with earlier erasures."""
        erasures = self._erasures(look)
        with in_parallel(self._context.session) as begin:
            reading = begin(lambda: self._kept(keys, erasures, kept))
            own = self._reader.read(rows, erasures)
            return erasures, self._reader.decide(own, reading.result())

    def _kept(self, keys: Sequence[str], erasures: Erasures | None, before: Kept | None = None) -> Kept:
        """Returns the requests kept for the keys of a batch. `before` is reused where erasures have no effect on them."""
        if before is not None and self._reader.is_kept_despite_erasures:
            return before
        last = self._progress.last()
        return self._reader.kept(keys, erasures, has_kept=last is None or last.kept > 0)

    def _change(self, decided: Decided, erasures: Erasures | None) -> Change | None:
        """Computes the change of the target; None if it cannot be computed before the turn."""
        rows = TargetRows(self._context, self._kind, erasures)
        # A row's other columns may matter, too: the decision is then made on the rows that the turn reads.
        if not decided.paths or not rows.is_decided_by_key or rows.may_break_rules:
            return None
        return Change.compute(rows, decided, self._context.log.head(self._context.target))

    def _is_own_unchanged(self, computed: _Computed, *, is_entered: bool = False) -> bool:
        log, location = self._context.log, self._requests.location
        return log.is_unchanged(location, computed.own, log.seen(location) if is_entered else None)

    def _still_holds(self, computed: _Computed, now: Look) -> bool:
        """Returns True if the present erasures lead to the same decision as before the turn."""
        erasures, then = computed.erasures, computed.look
        changed = self._deciding.changed(then, now)
        if erasures is None or not changed:
            return True
        assert isinstance(self._kind, Mutate)
        before = {stream.name: then.stored[stream.name] for stream in changed if stream.name in then.stored}
        if any(batch.coming or name in now.stored for name, batch in before.items()):
            return False  # a batch that was in progress or expected then may have been applied, or not
        since = {stream.name: then.seen[stream.name] for stream in changed}
        came = Erasures(self._context, self._kind, since=since, coming=now.coming)
        if came.is_empty:
            return True
        # Keys named by other columns, too, are looked up when rows are changed; where keys move, standing paths may end at one.
        is_simple = not erasures.other_columns and not self._meaning.moves_rows
        if not came.is_told or not is_simple:
            return False
        requests = self._context.session.createDataFrame(computed.decided.everything.rows.select(["op", "set"]))
        return came.with_doom(requests).where("is_doomed").isEmpty()

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._storing.withdraw()
            ahead.forget()

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Stores and applies one micro-batch of requests, and records the outcomes.

        Raises:
            InvalidRequest: a record does not parse or fit and `on_bad_record` is `fail`, or the table lacks a column;
                nothing was written.
        """
        try:
            return self._run_batch(turn, batch, batch_id)
        finally:
            self._drop_ahead()

    def _run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        schema = target_schema(self._context)
        self._storing.check_columns(schema)
        ahead = self._ahead if self._ahead is not None and self._ahead.batch_id == batch_id else None
        computed = (
            None if ahead is None or ahead.computed is None or ahead.computed.schema != schema else ahead.computed
        )
        records = transformed(self._spec, batch) if ahead is None else ahead.records
        if self._standing.enter(turn):
            computed = None
        if computed is None and self._storing.make_table(records, schema):
            self._standing.write_notes()
        with in_parallel(self._context.session) as begin:
            if computed is not None:
                # Changes of others since the last look are included while the batch is stored.
                begin(as_job(self._context.session, self._spec.name, partial(self.keep_up, before=())))
            enter_all(turn, self.tables(), self._context.session, self._spec.name)
            look = self._deciding.in_turn()
            is_own_unchanged = computed is not None and self._is_own_unchanged(computed, is_entered=True)
            taken = (
                self._storing.taken_in(records, schema, str(turn.epoch), batch_id)
                if computed is None
                else computed.taken
            )
            letters, is_new = self._storing.store(turn, taken, batch_id, None if computed is None else computed.store)
        if ahead is not None:
            with self._keeping:  # waits for an update that began before the turn
                ahead.is_taken = True
                computed = None if computed is None else ahead.computed
        if not is_new:
            computed = None  # an earlier run has stored the batch, with values of its own
        known = computed if is_own_unchanged else None
        change = None if computed is None else computed.change
        if known is not None and self._still_holds(known, look):
            decided, erasures = known.decided, known.erasures
        else:
            erasures = self._erasures(look)
            stored = self._requests.rows(["stored"]) if computed is None else computed.taken.rows
            own = self._reader.read(stored, erasures)
            if not own.requests:
                return BatchResult(rows_in=0, dead_letters=letters, was_applied_before=True)
            decided = self._reader.decide(
                own, self._kept(own.keys, erasures, None if known is None else known.decided.kept)
            )
            if change is not None and (change.rules != decided.rules or (erasures and erasures.other_columns)):
                change = None
            if change is None and computed is not None:
                change = self._change(decided, erasures)
        kept = self._without_refused(decided, erasures, batch_id)
        if kept is not decided:
            decided, change, known = kept, None, None
        all_stored = None if known is None else known.taken.rows
        result = self._apply_and_settle(turn, decided, erasures, batch_id, change, all_stored)
        return replace(result, dead_letters=letters)

    def _without_refused(self, decided: Decided, erasures: Erasures | None, batch_id: int) -> Decided:
        """Leaves out requests whose values the table refuses: each of them is dead, and the others take effect.

        Raises:
            InvalidRequest: a request is refused, and `on_bad_record` is `fail`; nothing was applied.
        """
        head = self._context.log.seen(self._context.target)
        if head < 0:
            return decided
        rows = TargetRows(self._context, self._kind, erasures)
        refused: dict[str, str] = {}
        # Requests of earlier batches were not tested against the present rules of the table when they came in.
        has_older = bool(decided.kept.waiting.index) or set(decided.own.rows["batch"].to_pylist()) != {batch_id}
        before = decided
        while broken := rows.broken(decided.rules, head, has_older=has_older):
            refused |= {decided.paths[key].last.id: reason for key, reason in broken.items()}
            decided = self._reader.decide(before.own, before.kept, refused)
        if refused:
            refuse_stored(self._spec, refused)
        return decided

    def evaluated(self, batch: DataFrame) -> DataFrame:
        """See `StreamKind.evaluated`."""
        return Intake(self._spec, target_schema(self._context)).prepared(transformed(self._spec, batch))

    def has_sweep_work(self) -> bool:
        """Returns True if a kept request has not been tested on all rows, or has waited too long; reads the logs only."""
        return self._sweeps.has_work_at(self._context.log.head(self._context.target))

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """Returns the target's head if every kept request was tested on it, else the version up to which they were tested."""
        head = self._context.log.head(self._context.target)
        if not self._sweeps.has_work_at(head):
            return {self._context.target: head}
        last = self._progress.last()
        return {self._context.target: last.tested if last else Version(-1)}

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """See `Sweeps.run`."""
        for table in self.tables():
            turn.enter(table)
        self._standing.enter(turn)
        return self._sweeps.run(turn, batch_id)

    def _erasures(self, look: Look | None = None) -> Erasures | None:
        if not self._reads_erasures or not isinstance(self._kind, Mutate):
            return None
        if look is None:
            return Erasures(self._context, self._kind)
        return Erasures(self._context, self._kind, unrecorded=look.unrecorded, coming=look.coming)

    # ---------------------------------------------------------------------------------------------- apply and settle

    def _apply_and_settle(
        self,
        turn: BatchTurn,
        decided: Decided,
        erasures: Erasures | None,
        batch_id: int,
        change: Change | None,
        stored: DataFrame | None,
    ) -> BatchResult:
        """Changes the existing rows, and records the outcomes of the requests.

        Args:
            turn: The turn.
            decided: The decided effect of the requests.
            erasures: Erased keys to which rows must not be moved.
            batch_id: Number of the micro-batch.
            change: The same effect, computed before the turn.
            stored: All stored requests, if they are known: the outcomes are then written in parallel with the change.
        """
        rows = TargetRows(self._context, self._kind, erasures)
        with in_parallel(self._context.session) as begin:
            kept = begin(lambda: self._kept_of_erased(decided.everything, decided.admitted))
            expecting: Future[tuple[Outcome, Staged | None]] | None = None
            looking: Future[Looked] | None = None
            if change is not None:
                looking = begin(partial(change.look, self._context.log, self._context.target, rows))
                if stored is not None:
                    expect = partial(self._expected, decided, looking, stored)
                    expecting = begin(as_job(self._context.session, self._spec.name, expect))
                else:
                    begin(self._requests.prepare)
            met = self._apply(turn, decided, rows, batch_id, change, looking)
            for one in kept.result():
                one.forget(turn)
            outcome = self._outcome(decided, met)
            expected, staged = (None, None) if expecting is None else expecting.result()
        self._settling.write(turn, decided.everything, outcome, staged if outcome == expected else None)
        return BatchResult(
            rows_in=len(decided.own.requests),
            rows_written=sum(met.counts().values()) if met else 0,
            requests_matched=sum(1 for one in outcome.settled.values() if one.matched_rows),
            requests_waiting=sum(1 for one in outcome.settled.values() if one.state == "waiting"),
        )

    def _expected(self, decided: Decided, looking: Future[Looked], stored: DataFrame) -> tuple[Outcome, Staged | None]:
        """Returns the outcome that is expected if no other commit comes first, and its prepared commit."""
        outcome = self._outcome(decided, looking.result().met)
        return outcome, self._settling.stage(decided.everything, outcome, stored)

    def _outcome(self, decided: Decided, met: Met | None) -> Outcome:
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
        return Outcome(settled=settled, replaced=replaced, effects=effects, tested=tested, version=version)

    def _apply(
        self,
        turn: BatchTurn,
        decided: Decided,
        rows: TargetRows,
        batch_id: int,
        change: Change | None,
        looking: Future[Looked] | None,
    ) -> Met | None:
        """Changes the existing rows. Returns the matched rows, on the version on which the change was computed."""
        log, target = self._context.log, self._context.target
        if log.seen(target) < 0 or not decided.paths:
            return None
        met: Met | None = None

        def statement(token: WriteToken) -> None:
            nonlocal met
            if change is not None and looking is not None:
                met = change.put(log, target, rows, token, looking)
                return
            met = rows.meet(decided.rules, log.head(target))
            if met.rows.num_rows > 0:
                rows.change(decided.rules, decided.steps, met, token)

        if not turn.write(target, step=APPLY, name="apply", statement=statement):
            since = min(decided.own.rows["tested_version"].to_pylist())
            met = rows.meet(decided.rules, self._version_before_apply(batch_id, since))
        return met

    def _version_before_apply(self, batch_id: int, since: int) -> Version:
        """Returns the version on which an earlier run of this batch computed its change."""
        log, target = self._context.log, self._context.target
        head = log.head(target)
        for commit in log.commits(target, Version(max(since, head - _SEARCH_MAX)), head):
            said: Mapping[str, Any] = commit.user_metadata or {}
            if (job_of(said), said.get("batch"), said.get("step")) == (self._spec.name, batch_id, "apply"):
                # A change computed before its turn was committed as if it had been computed on the version before.
                return Version((said.get("user") or {}).get("tested", commit.version - 1))
        return Version(since)

    def _kept_of_erased(self, held: Held, admitted: Admitted) -> Sequence[KeptOfErased]:
        """Returns other rows to delete for erased persons; none for mutations."""
        return ()

    def _effects(self, paths: Mapping[str, Path], standing: Standing) -> dict[str, Path]:
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
        standing: Standing,
        effects: Mapping[str, Path],
        met: Met | None,
    ) -> Tested:
        log, target = self._context.log, self._context.target
        # Others write no requests of this stream while it holds the turn.
        last = self._progress.last(log.seen(self._requests.location)) or self._sweeps.counted()
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
        is_behind = last.kept > 0 and head >= 0 and self._progress.unseen(last.tested, head) != frozenset()
        return Tested(
            tested=last.tested if is_behind else head,
            kept=max(0, kept),
            oldest_ms=min(oldest) if oldest else None,
            swept=last.swept,
        )
