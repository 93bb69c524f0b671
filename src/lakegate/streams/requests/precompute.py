"""Batches of requests that are computed before their turn: decided, written to files, and committed by the turn.

The result is updated after commits of others while the job waits. The turn tests it against the commits made since.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lakegate.config import Mutate
from lakegate.delta.actions import Body
from lakegate.delta.table_log import NOTHING_COMES, DeltaTableLog, LogGone
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.transaction import Meets
from lakegate.spark.threads import in_parallel
from lakegate.streams.bad_records import refusals, transformed
from lakegate.streams.interfaces import BatchResult, BatchTurn, as_job, enter_all
from lakegate.streams.precomputed import Precomputed
from lakegate.streams.requests.apply import Met, TargetRows, locations, target_schema
from lakegate.streams.requests.batch import StoredBatches, result_of
from lakegate.streams.requests.erased_keys import Erasures
from lakegate.streams.requests.ingest import IngestedBatch
from lakegate.streams.requests.outcomes import RequestOutcomes
from lakegate.streams.requests.parts import Parts
from lakegate.streams.requests.resolver import Decided, KeptRequests
from lakegate.streams.requests.visibility import Deciding, RequestsSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speculation:
    """The rows that match the rules in files that were added, or will be."""

    paths: frozenset[str]
    rows: pa.Table
    """As in `Met`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRows:
    """The rows that match the rules at a later version."""

    met: Met
    more: _Speculation | None
    """The rows in the files added since; None where the whole table was read."""

    def meets(self, paths: frozenset[str]) -> bool | None:
        """Returns whether rows of these files have a rule's key; None if the added files are others."""
        return None if self.more is None or self.more.paths != paths else self.more.rows.num_rows > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecomputedChange:
    """The effect of a batch of requests on the target, computed on one version."""

    rules: pa.Table
    met: Met
    staged: Staged
    speculation: _Speculation | None = None

    @staticmethod
    def compute(rows: TargetRows, decided: Decided, version: Version) -> PrecomputedChange:
        """Counts the matching rows and prepares their change, without a commit."""
        with in_parallel(rows.session) as begin:
            met = begin(lambda: rows.meet(decided.rules, version))
            staged = rows.stage(decided.rules)
            return PrecomputedChange(rules=decided.rules, met=met.result(), staged=staged)

    def kept_up(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, coming: Callable[[], Mapping[str, Body]]
    ) -> PrecomputedChange:
        """Updates the change to the table's present version, so that only later commits are left for the turn.

        Args:
            log: The table's log.
            target: The table.
            rows: Its rows.
            coming: Returns path → `add` of files that will be in the table when the turn comes.
        """
        if self._came(log, target, log.head(target)) is not None:
            return self._rebased_on_expected(log, target, rows, coming)
        return self._followed(log, target, rows)._rebased_on_expected(log, target, rows, coming)

    def _rebased_on_expected(
        self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, coming: Callable[[], Mapping[str, Body]]
    ) -> PrecomputedChange:
        """Rebases the change speculatively onto files that will be added; if there are none, onto the commits made."""
        announced, head = coming(), log.head(target)  # in this order: a file committed in between is in the log
        came = self._came(log, target, head)
        if came is None:
            return self  # others have removed files meanwhile; the next call is soon
        more = {path: add for path, add in announced.items() if path not in came}
        if not more:
            return self if head == self.met.version else self._followed(log, target, rows)
        if self.speculation is not None and self.speculation.paths == came | more.keys():
            return self
        speculation = self._met_in(rows, head, came, more)
        meets = MatchedRows(met=self.met, more=speculation).meets
        return replace(
            self, staged=publisher(rows.session).speculate(self.staged, more, meets), speculation=speculation
        )

    def _followed(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows) -> PrecomputedChange:
        """Rebases the change onto the commits made."""
        came = self._came(log, target, log.head(target))
        with in_parallel(rows.session) as begin:
            counting = begin(lambda: self.count_matches(log, target, rows))
            staged = publisher(rows.session).follow(self.staged, self._meets(came, counting))
            met = counting.result().met
        return replace(self, met=met, staged=staged, speculation=None)

    def count_matches(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows) -> MatchedRows:
        """Counts the matching rows in the table's present version. If files were only added, only those are read."""
        return self._matches_at(log, target, rows, log.head(target))

    def put(
        self,
        log: DeltaTableLog,
        target: TableLocation,
        rows: TargetRows,
        token: WriteToken,
        counting: Future[MatchedRows],
    ) -> Met:
        """Commits the change, rebased onto the commits made meanwhile. Returns the rows that matched in the end.

        Args:
            log: The table's log.
            target: The table.
            rows: Its rows.
            token: Goes into the commit.
            counting: The result of `count_matches` in the turn.
        """
        came = self._came(log, target, log.seen(target))
        version = publisher(rows.session).finish(self.staged, token, self._meets(came, counting)).version
        before = log.head(target) if version is None else Version(version - 1)
        met = counting.result().met
        return met if before == met.version else self._matches_at(log, target, rows, before).met

    @staticmethod
    def _meets(came: frozenset[str] | None, counting: Future[MatchedRows]) -> Meets:
        """Returns a function that answers for the added files; for other files it returns None without waiting."""
        return lambda paths: counting.result().meets(paths) if paths == came else None

    def _matches_at(self, log: DeltaTableLog, target: TableLocation, rows: TargetRows, version: Version) -> MatchedRows:
        came = self._came(log, target, version)
        if came is None:
            return MatchedRows(met=rows.meet(self.rules, version), more=None)
        more = self._met_in(rows, version, came, NOTHING_COMES)
        both = pa.concat_tables([self.met.rows, more.rows.cast(self.met.rows.schema)])
        return MatchedRows(met=Met(version=version, rows=both), more=more)

    def _met_in(
        self, rows: TargetRows, version: Version, came: frozenset[str], coming: Mapping[str, Body]
    ) -> _Speculation:
        paths = came | coming.keys()
        if self.speculation is not None and self.speculation.paths == paths:
            return self.speculation
        none = self.met.rows.slice(0, 0)
        return _Speculation(paths=paths, rows=rows.meet(self.rules, version, came, coming).rows if paths else none)

    def _came(self, log: DeltaTableLog, target: TableLocation, version: Version) -> frozenset[str] | None:
        """Returns the files added since the rules were matched; None if files were removed, too, or the log lacks commits."""
        try:
            commits = log.commits(target, self.met.version, version)
        except LogGone:
            return None
        came = frozenset(file.path for commit in commits for file in commit.added if file.is_data_change)
        is_gone = any(file.is_data_change for commit in commits for file in commit.removed)
        # Added files may have been rewritten to other files already.
        is_moved = bool(came) and any(commit.removed for commit in commits)
        return None if is_gone or is_moved else came


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The result of a micro-batch before its turn."""

    schema: StructType
    """The target's columns."""
    own: Version
    """Version of the stream's requests before they were read."""
    look: RequestsSnapshot
    """State of the erasures."""
    erasures: Erasures | None
    taken: IngestedBatch
    store: Staged
    decided: Decided
    change: PrecomputedChange | None
    """None where the change cannot be computed before the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadBatch:
    """A micro-batch that is read before its turn."""

    records: DataFrame
    computed: _Computed | None = None
    """None where requests of an earlier batch have no recorded outcome yet, or where there is no table."""


class PrecomputedBatches:
    """Computes the batches of one stream before their turns, one at a time.

    Args:
        parts: The parts of the stream.
        stored: The steps that every batch takes.
    """

    def __init__(self, parts: Parts, stored: StoredBatches) -> None:
        self._parts, self._stored = parts, stored
        self._context, self._requests = parts.context, parts.requests
        self._ahead: Precomputed[_ReadBatch] = Precomputed(self._forget)

    # ------------------------------------------------------------------------------------------------ before the turn

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        """Reads a micro-batch, decides on it and computes the change. If there is no table yet, it only reads the batch.

        Raises:
            InvalidRequest: as `RequestStream.run_batch`.
        """
        self._ahead.drop()
        parts = self._parts
        records = transformed(parts.spec, batch).persist()
        self._ahead.hold(batch_id, _ReadBatch(records=records))
        try:
            computed: _Computed | None = None
            schema = target_schema(self._context)
            if schema is not None and self._requests.head() >= 0 and not parts.standing.is_pending():
                parts.storing.check_columns(schema)
                prepared = parts.storing.prepared(records, schema)
                # The turn does not compare the columns again for a result that was computed before it.
                parts.storing.refuse_other_columns(prepared)
                computed = self._compute(prepared, schema, batch_id, before)
            if computed is None:
                with refusals(parts.spec):
                    records.count()
            self._ahead.update(lambda ahead: replace(ahead, computed=computed))
        except BaseException:
            self.drop()
            raise

    def _compute(
        self, prepared: DataFrame, schema: StructType, batch_id: int, before: Collection[str]
    ) -> _Computed | None:
        """Computes a batch as far as possible now; None if requests of an earlier batch have no recorded outcome yet."""
        parts, session = self._parts, self._context.session
        own_look = Deciding(self._context, [parts.spec]).now()
        if own_look.stored:  # by the log, which in most cases avoids a Spark job
            stored = self._requests.rows(["stored"])
            if stored is None or not stored.isEmpty():
                return None
        taken = parts.storing.taken_in(prepared, uuid.uuid4().hex[:8], batch_id)
        change = None
        try:
            with refusals(parts.spec, taken.parted.whole), in_parallel(session) as begin:
                found = taken.rows.toArrow()
                keys = pc.unique(found["key_hash"].drop_null()).to_pylist()
                # Write one file, as for requests from the source: Spark would write one per core, and later turns would read all.
                taken = replace(taken, rows=session.createDataFrame(found).coalesce(1))
                storing = begin(as_job(session, parts.spec.name, partial(parts.storing.written, taken.rows, batch_id)))
                look = parts.deciding.ahead(before)
                erasures, decided = self._decided(taken.rows, keys, look)
                # Erasures added during this read mostly belong to a turn that began at the same time.
                if parts.deciding.changed(look, now := parts.deciding.ahead(before)):
                    look = now
                    erasures, decided = self._decided(taken.rows, keys, look, decided.kept)
                if decided.own.requests:
                    change = self._change(decided, erasures)
                store = storing.result()
        except BaseException:
            taken.forget()
            raise
        if not decided.own.requests:
            parts.storing.withdraw()
            taken.forget()
            return None
        return _Computed(
            schema=schema,
            own=own_look.seen[parts.spec.name],
            look=look,
            erasures=erasures,
            taken=taken,
            store=store,
            decided=decided,
            change=change,
        )

    def known(self) -> object:
        """See `StreamKind.known`."""
        erasures = [self._context.requests_of(stream) for stream in self._parts.deciding.streams]
        tables = locations(self._context.target, self._requests.location, *erasures)
        pending = publisher(self._context.session).pending_appends
        told = [frozenset(pending.adds(table)) for table in (self._context.target, *erasures)]
        return [*told, *[self._context.log.known(table) for table in tables]]

    def keep_up(self, *, before: Collection[str]) -> None:
        """Decides again if erasures have changed, and rebases the change onto commits of others and expected appends."""
        self._ahead.update(partial(self._kept_up, before=before))

    def _kept_up(self, ahead: _ReadBatch, *, before: Collection[str]) -> _ReadBatch:
        computed = ahead.computed
        if computed is None or not self._is_own_unchanged(computed):
            return ahead
        look = self._parts.deciding.ahead(before)
        if not self._still_holds(computed, look):
            computed = self._redecided(computed, look)
        if computed.change is not None:
            rows = TargetRows(self._context, self._parts.kind, computed.erasures)
            pending = publisher(self._context.session).pending_appends
            announced = partial(pending.adds, self._context.target, before)
            change = computed.change.kept_up(self._context.log, self._context.target, rows, announced)
            computed = replace(computed, change=change)
        return replace(ahead, computed=computed)

    def _redecided(self, computed: _Computed, look: RequestsSnapshot) -> _Computed:
        """Decides on a batch again, with the present erasures."""
        before = computed.decided
        erasures, decided = self._decided(computed.taken.rows, before.own.keys, look, before.kept)
        change = _still_right(computed.change, decided, erasures) or self._change(decided, erasures)
        return replace(computed, look=look, erasures=erasures, decided=decided, change=change)

    def _decided(
        self, rows: DataFrame, keys: Sequence[str], look: RequestsSnapshot, kept: KeptRequests | None = None
    ) -> tuple[Erasures | None, Decided]:
        """Decides the effect of requests; `kept`: the requests kept for their keys, read with earlier erasures."""
        parts = self._parts
        erasures = parts.erasures(look)
        with in_parallel(self._context.session) as begin:
            reading = begin(lambda: parts.kept(keys, erasures, kept))
            own = parts.reader.read(rows, erasures)
            return erasures, parts.reader.decide(own, reading.result())

    def _change(self, decided: Decided, erasures: Erasures | None) -> PrecomputedChange | None:
        """Computes the change of the target; None if it cannot be computed before the turn."""
        rows = TargetRows(self._context, self._parts.kind, erasures)
        # A row's other columns may matter, too: the decision is then made on the rows that the turn reads.
        if not decided.paths or not rows.is_decided_by_key or rows.may_break_rules:
            return None
        return PrecomputedChange.compute(rows, decided, self._context.log.head(self._context.target))

    def _is_own_unchanged(self, computed: _Computed, *, is_entered: bool = False) -> bool:
        log, location = self._context.log, self._requests.location
        return log.is_unchanged(location, computed.own, log.seen(location) if is_entered else None)

    def _still_holds(self, computed: _Computed, now: RequestsSnapshot) -> bool:
        """Returns True if the present erasures lead to the same decision as before the turn."""
        parts, erasures, then = self._parts, computed.erasures, computed.look
        changed = parts.deciding.changed(then, now)
        if erasures is None or not changed:
            return True
        assert isinstance(parts.kind, Mutate)
        before = {stream.name: then.stored[stream.name] for stream in changed if stream.name in then.stored}
        if any(batch.coming or name in now.stored for name, batch in before.items()):
            return False  # a batch that was in progress or expected then may have been applied, or not
        since = {stream.name: then.seen[stream.name] for stream in changed}
        came = Erasures(self._context, parts.kind, since=since, coming=now.coming)
        if came.is_empty:
            return True
        # Keys named by other columns, too, are looked up when rows are changed; where keys move, standing paths may end at one.
        is_simple = not erasures.other_columns and not parts.meaning.moves_rows
        if not came.is_told or not is_simple:
            return False
        requests = self._context.session.createDataFrame(computed.decided.everything.rows.select(["op", "set"]))
        return came.with_doom(requests).where("is_doomed").isEmpty()

    def drop(self) -> None:
        """Gives the batch up, or ends it after its turn."""
        self._ahead.drop()

    def _forget(self, ahead: _ReadBatch) -> None:
        self._parts.storing.withdraw()
        ahead.records.unpersist()
        if ahead.computed is not None:
            ahead.computed.taken.forget()

    # -------------------------------------------------------------------------------------------------- in the turn

    def records(self, batch_id: int) -> DataFrame | None:
        """Returns the records of a batch that was read before its turn; None if it was not."""
        ahead = self._ahead.of(batch_id)
        return None if ahead is None else ahead.records

    def end_updates(self, batch_id: int) -> None:
        """Waits for an update of a batch's result, and ends updates: the batch is computed in its turn."""
        self._ahead.take(batch_id)

    def is_computed(self, batch_id: int, schema: StructType | None) -> bool:
        """Returns True if a batch is computed for a target with these columns."""
        ahead = self._ahead.of(batch_id)
        return ahead is not None and ahead.computed is not None and ahead.computed.schema == schema

    def run(self, turn: BatchTurn, tables: Sequence[TableLocation], batch_id: int) -> BatchResult:
        """Commits a batch that `is_computed`: stores it, tests its result against the commits made since, applies and records it.

        Args:
            turn: The turn.
            tables: The tables to enter.
            batch_id: Number of the micro-batch.
        """
        parts, session = self._parts, self._context.session
        ahead = self._ahead.of(batch_id)
        assert ahead is not None
        assert ahead.computed is not None
        with in_parallel(session) as begin:
            # Changes of others since the last look are included while the batch is stored.
            begin(as_job(session, parts.spec.name, partial(self.keep_up, before=())))
            enter_all(turn, tables, session, parts.spec.name)
            look = parts.deciding.in_turn()
            is_own_unchanged = self._is_own_unchanged(ahead.computed, is_entered=True)
            bad, is_new = parts.storing.store(turn, ahead.computed.taken, batch_id, ahead.computed.store)
        ahead = self._ahead.take(batch_id)
        assert ahead is not None
        assert ahead.computed is not None
        computed = ahead.computed
        if not is_new:  # an earlier run has stored the batch, with values of its own
            return self._stored.run(turn, batch_id, look).with_bad(bad)
        decided, erasures, change = computed.decided, computed.erasures, computed.change
        if not is_own_unchanged or not self._still_holds(computed, look):
            erasures = parts.erasures(look)
            own = parts.reader.read(computed.taken.rows, erasures)
            if not own.requests:
                return BatchResult(rows_in=0).with_bad(bad)  # bad records alone
            kept = parts.kept(own.keys, erasures, computed.decided.kept if is_own_unchanged else None)
            decided = parts.reader.decide(own, kept)
            change = _still_right(change, decided, erasures) or self._change(decided, erasures)
        accepted = self._stored.without_refused(decided, erasures, batch_id)
        if change is None or accepted is not decided:
            result = self._stored.apply_and_settle(turn, accepted, erasures, batch_id)
        else:
            stored = computed.taken.rows if is_own_unchanged else None
            result = self._put_and_settle(turn, decided, erasures, batch_id, change, stored)
        return result.with_bad(bad)

    def _put_and_settle(
        self,
        turn: BatchTurn,
        decided: Decided,
        erasures: Erasures | None,
        batch_id: int,
        change: PrecomputedChange,
        stored: DataFrame | None,
    ) -> BatchResult:
        """Commits the change of the existing rows, and records the outcomes of the requests.

        Args:
            turn: The turn.
            decided: The decided effect of the requests.
            erasures: Erased keys to which rows must not be moved.
            batch_id: Number of the micro-batch.
            change: The same effect, computed before the turn.
            stored: All stored requests, if they are known: the outcomes are then written in parallel with the change.
        """
        parts, session, log, target = self._parts, self._context.session, self._context.log, self._context.target
        rows = TargetRows(self._context, parts.kind, erasures)
        with in_parallel(session) as begin:
            kept = begin(lambda: self._stored.kept_of_erased(decided.everything, decided.admitted))
            counting = begin(partial(change.count_matches, log, target, rows))
            expecting: Future[tuple[RequestOutcomes, Staged | None]] | None = None
            if stored is not None:
                expect = partial(self._expected, decided, counting, stored)
                expecting = begin(as_job(session, parts.spec.name, expect))
            else:
                begin(self._requests.prepare)
            put = partial(change.put, log, target, rows, counting=counting)
            met = self._stored.apply(turn, decided, rows, batch_id, put)
            for one in kept.result():
                one.forget(turn)
            outcome = self._stored.outcome(decided, met)
            expected, staged = (None, None) if expecting is None else expecting.result()
        parts.settling.write(turn, decided.everything, outcome, staged if outcome == expected else None)
        return result_of(decided, outcome, met)

    def _expected(
        self, decided: Decided, counting: Future[MatchedRows], stored: DataFrame
    ) -> tuple[RequestOutcomes, Staged | None]:
        """Returns the outcome that is expected if no other commit comes first, and its prepared commit."""
        outcome = self._stored.outcome(decided, counting.result().met)
        return outcome, self._parts.settling.stage(decided.everything, outcome, stored)


def _still_right(
    change: PrecomputedChange | None, decided: Decided, erasures: Erasures | None
) -> PrecomputedChange | None:
    """Returns a change if it is also the effect of a new decision; else None."""
    if change is None or change.rules != decided.rules or (erasures and erasures.other_columns):
        return None
    return change
