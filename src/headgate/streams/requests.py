"""A stream of requests in a turn: store them, apply them, settle them, each once; and sweeps for what was kept.

`mutate` and `erase` differ in what a request may do, and in that an erasure also removes other requests of the person. What
follows from a set of requests is decided in `core/requests`; here it is read, carried out and written down. The driver
holds the requests of one batch and the kept ones of their keys as Arrow tables, never rows of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DoubleType, FloatType, StructType, TimestampNTZType, TimestampType

from headgate.core.ids import TableLocation, Version
from headgate.core.requests.fold import (
    Admitted,
    Meaning,
    Orderable,
    Path,
    Request,
    Settled,
    admit,
    compose,
    follow,
    last_of_key,
    settle,
)
from headgate.core.spec import Erase, Mutate, StreamSpec, TableSpec
from headgate.delta.requests import PROPERTIES, RequestTable, ddl, layout
from headgate.delta.statements import append, conflicts, create_table, tokened
from headgate.errors import Fault, InvalidRequest
from headgate.events import Noticed
from headgate.ports import WriteToken
from headgate.spark.sources import BAD
from headgate.streams.erasures import Erasures
from headgate.streams.intake import Intake, fields_of, moved_key
from headgate.streams.records import refusals, refuse_bad, transformed, write_dead_letters
from headgate.streams.steps import APPLY, SETTLE, STORE, BatchResult, BatchTurn, StreamContext
from headgate.streams.target import Met, TargetRows, lacking, locations, noted, target_schema
from headgate.streams.tested import NEVER, Progress, Tested

NOWHERE = ""
"""The key of rows of which a match column was set to NULL: no request matches them any more."""
NOBODY = Admitted(in_order=(), superseded={}, dead={})
_SEARCH_MAX = 1000
"""So far back the commit of an `apply` is looked for after a crash; it lies after the `store` of the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Requests on the driver: as decisions see them, and as rows."""

    requests: tuple[Request, ...]
    rows: pa.Table
    index: Mapping[str, int]
    """Request id → row."""

    def taken(self, ids: Sequence[str]) -> pa.Table:
        """Rows in the order of `ids`."""
        return self.rows.take(pa.array([self.index[id_] for id_ in ids], pa.int64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What stands for the keys of a batch, before it."""

    by_key: Mapping[str, str]
    """Key → id of the request that stands for it."""
    ends: Mapping[str, str]
    """Where keys move: id of the request that begins a standing path → the key at which the path ends."""


class RequestStream:
    """One `mutate` or `erase` stream."""

    def __init__(self, spec: StreamSpec, table_spec: TableSpec, context: StreamContext) -> None:
        kind = spec.kind
        if not isinstance(kind, Mutate | Erase):
            raise TypeError(f"{spec.name} is not a stream of requests")
        self._spec, self._table, self._context = spec, table_spec, context
        self._kind: Mutate | Erase = kind
        is_mutate = isinstance(kind, Mutate)
        self._meaning = Meaning(
            is_standing=not isinstance(kind, Mutate) or kind.applies_to == "arrived_and_later",
            moves_rows=isinstance(kind, Mutate) and kind.moves_rows,
            has_sequence=isinstance(kind, Mutate) and kind.sequence_by is not None,
        )
        self._set = list(kind.set) if isinstance(kind, Mutate) else []
        self._requests = RequestTable(context.session, context.log, context.requests_of(spec))
        self._progress = Progress(context, spec)
        self._reads_erasures = is_mutate and bool(self._set)
        self._read_before: tuple[int, DataFrame] | None = None

    # ------------------------------------------------------------------------------------------------------- the kind

    def tables(self) -> tuple[TableLocation, ...]:
        """The target, the stream's requests, those of erasures that its rows may meet, and the dead letters."""
        context = self._context
        erasures = [
            context.requests_of(stream)
            for stream in context.neighbours
            if self._reads_erasures and isinstance(stream.kind, Erase)
        ]
        letters = [context.dead_letters_of(self._spec)] if self._spec.on_bad_record == "dead_letter" else []
        return locations(context.target, self._requests.location, *erasures, *letters)

    def stage(self, batch: DataFrame, batch_id: int) -> None:
        """Reads a micro-batch; what becomes of it depends on rows and requests as they are in its turn."""
        self._drop_read()
        frame = transformed(self._spec, batch).persist()
        frame.count()
        self._read_before = (batch_id, frame)

    def _drop_read(self) -> None:
        if self._read_before is not None:
            self._read_before[1].unpersist()
        self._read_before = None

    def run_batch(self, turn: BatchTurn, batch: DataFrame, batch_id: int) -> BatchResult:
        """Stores, applies and settles one micro-batch of requests.

        Raises:
            InvalidRequest: a record does not parse or fit and `on_bad_record` is `fail`, or the table lacks a column;
                nothing was written.
        """
        schema = target_schema(self._context)
        self._check_columns(schema)
        is_read = self._read_before is not None and self._read_before[0] == batch_id
        records = self._read_before[1] if self._read_before is not None and is_read else transformed(self._spec, batch)
        prepared = Intake(self._spec, schema).prepared(records)
        self._make_table(prepared)
        for table in self.tables():
            turn.enter(table)
        letters = self._store(turn, Intake(self._spec, schema), prepared, batch_id)
        self._drop_read()
        erasures = self._erasures()
        held = self._read(self._requests.rows(["stored"]), erasures)
        if not held.requests:
            return BatchResult(rows_in=0, dead_letters=letters, was_applied_before=True)
        result = self._apply_and_settle(turn, held, erasures, batch_id)
        return replace(result, dead_letters=letters)

    def has_sweep_work(self) -> bool:
        """Whether something kept has not met all rows, or has waited for too long; from the logs alone."""
        return self._has_work_at(self._context.log.head(self._context.target))

    def idle_at(self) -> Mapping[TableLocation, Version]:
        """The target's head if nothing kept is left to test against it, else how far tests have come."""
        head = self._context.log.head(self._context.target)
        if not self._has_work_at(head):
            return {self._context.target: head}
        last = self._progress.last()
        return {self._context.target: last.tested if last else Version(-1)}

    def run_sweep(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Tests what is kept against the rows that came since, and ends what has waited for too long."""
        for table in self.tables():
            turn.enter(table)
        if self._requests.head() < 0:
            return BatchResult()
        last = self._progress.last() or NEVER
        head = self._context.log.head(self._context.target)
        paths = self._progress.unseen(last.tested, head) if head >= 0 else frozenset()
        if paths is None:
            text = "the log no longer tells which files are new, so the whole table is tested"
            self._context.events.emit(Noticed(job=self._spec.name, text=text))
        if self._meaning.is_standing:
            return self._sweep_standing(turn, head, paths, batch_id)
        return self._sweep_waiting(turn, head, paths, batch_id)

    # ---------------------------------------------------------------------------------------------------------- store

    def _check_columns(self, schema: StructType | None) -> None:
        if schema is None:
            return
        kind = "mutate" if isinstance(self._kind, Mutate) else "erase"
        faults = [
            Fault(where=f"streams.{self._spec.name}.{kind}.{key}.{name}", what="the table has no such column")
            for key, names in (("match", list(self._kind.match)), ("set", self._set))
            for name in lacking(schema, names)
        ]
        if faults:
            raise InvalidRequest(faults=faults, advice="Name a column of the table")

    def _make_table(self, prepared: DataFrame) -> None:
        values = prepared.schema["set"].dataType if self._set else None
        sequence = prepared.schema["seq"].dataType if self._meaning.has_sequence else None
        match = prepared.schema["key"].dataType
        assert isinstance(match, StructType)
        assert values is None or isinstance(values, StructType)
        wanted = layout(match, values, sequence)
        location = self._requests.location
        if self._requests.head() < 0:
            create_table(self._context.session, location, ddl(wanted), ["state"], properties=PROPERTIES)
            return
        there = self._context.log.metadata(location).schema
        changed = [
            name for name in ("key", "set", "seq") if not _same_type(there[name].dataType, wanted[name].dataType)
        ]
        if changed:
            raise InvalidRequest(
                f"the requests of {self._spec.name} were stored for other columns or types than they have now "
                f"({', '.join(changed)}); nothing was written",
                advice="Take the old `match`, `set` and `sequence_by` back, or give the stream a new name",
                table=location,
            )

    def _store(self, turn: BatchTurn, intake: Intake, prepared: DataFrame, batch_id: int) -> int:
        """Writes the batch's requests down; how many records became dead letters."""
        letters = 0
        is_strict = self._spec.on_bad_record == "fail"
        good = refuse_bad(prepared) if is_strict else prepared.persist()
        try:
            if not is_strict:
                bad = good.where(F.col(BAD).isNotNull())
                letters = write_dead_letters(turn, self._context, self._spec, bad, batch_id)
                good = good.where(F.col(BAD).isNull())
            location, log = self._requests.location, self._context.log
            rows = intake.stored(
                good,
                log.metadata(location).schema,
                epoch=turn.epoch,
                batch_id=batch_id,
                now_ms=self._context.clock.wall_ms(),
                head=log.head(self._context.target),
            )
            with refusals(self._spec):
                turn.write(location, step=STORE, name="store", statement=lambda token: append(rows, location, token))
        finally:
            if not is_strict:
                good.unpersist()
        return letters

    # ----------------------------------------------------------------------------------------------------------- read

    def _erasures(self) -> Erasures | None:
        return Erasures(self._context, self._kind) if self._reads_erasures and isinstance(self._kind, Mutate) else None

    def _read(self, rows: DataFrame | None, erasures: Erasures | None) -> Held:
        """Requests in order, on the driver."""
        if rows is None:
            return Held(requests=(), rows=pa.table({}), index={})
        if erasures is not None:
            rows = erasures.with_doom(rows)
        else:
            rows = rows.withColumn("is_doomed", F.lit(False))
        moves_to: Column = F.lit(None).cast("string")
        if self._meaning.moves_rows:
            schema = rows.schema
            moves_to = moved_key(fields_of(schema["key"].dataType, "key"), fields_of(schema["set"].dataType, "set"))
        names = ["request_id", "key_hash", "key", "set", "op", "is_doomed", "first_seen_ms", "tested_version", "state"]
        order = ["first_seen_ms", "batch", "ordinal"]
        sequence = _orderable(rows.schema["seq"].dataType).alias("seq")
        found = rows.select(*names, "batch", "ordinal", sequence, moves_to.alias("moves_to")).toArrow()
        found = found.sort_by([(name, "ascending") for name in order])
        ids = found["request_id"].to_pylist()
        requests = tuple(
            Request(id=id_, key=key, op=op, sequence=seq, moves_to=self._end(op, to), is_doomed=doomed)
            for id_, key, op, seq, to, doomed in zip(
                ids,
                *(found[name].to_pylist() for name in ("key_hash", "op", "seq", "moves_to", "is_doomed")),
                strict=True,
            )
        )
        return Held(requests=requests, rows=found, index={id_: i for i, id_ in enumerate(ids)})

    def _end(self, op: str, moves_to: str | None) -> str | None:
        if not self._meaning.moves_rows or op != "update":
            return None
        return NOWHERE if moves_to is None else moves_to

    def _of_keys(self, rows: DataFrame, keys: Sequence[str], name: str = "key_hash") -> DataFrame:
        wanted = self._context.session.createDataFrame(pa.table({name: pa.array(keys, pa.string())}))
        column = rows[name] if "." not in name else F.col(name)
        return rows.join(F.broadcast(wanted.toDF("_hg_key")), column == F.col("_hg_key"), "left_semi")

    def _highest(self, keys: Sequence[str]) -> dict[str, Orderable]:
        """Key → highest sequence of earlier batches. Those that were superseded came after a higher one."""
        rows = self._requests.rows(["applied", "waiting", "dead"])
        if rows is None or not self._meaning.has_sequence:
            return {}
        sequence = _orderable(rows.schema["seq"].dataType)
        rows = self._of_keys(rows, keys).groupBy("key_hash").agg(F.max(sequence).alias("seq"))
        return {row["key_hash"]: row["seq"] for row in rows.collect() if row["seq"] is not None}

    def _waiting(self, keys: Sequence[str], erasures: Erasures | None) -> Held:
        """The requests of these keys that wait: they take part again, before the batch."""
        rows = self._requests.rows(["waiting"])
        # Where keys move, a row that the stream moved itself is not new to what waits: retries belong to sweeps.
        if rows is None or self._meaning.is_standing or self._meaning.moves_rows:
            return self._read(None, None)
        return self._read(self._of_keys(rows, keys), erasures)

    def _standing(self, keys: Sequence[str], erasures: Erasures | None) -> _Standing:
        rows = self._requests.rows(["applied"])
        if rows is None or not self._meaning.is_standing:
            return _Standing(by_key={}, ends={})
        if not self._meaning.moves_rows:
            of_keys = self._of_keys(rows, keys).select("key_hash", "request_id").toArrow()
            return _Standing(by_key=_pairs(of_keys, "key_hash", "request_id"), ends={})
        paths = rows.where(F.col("effect").isNotNull())
        begun = self._of_keys(paths, keys).select("key_hash", "request_id").toArrow()
        ends = paths.select(
            "request_id",
            F.col("effect.op").alias("op"),
            F.col("effect.set").alias("set"),
            F.col("effect.ends_at").alias("end"),
        )
        ends = self._of_keys(ends.where(F.col("op") == "update"), keys, "end")
        if erasures is not None:
            ends = erasures.with_doom(ends).where(~F.col("is_doomed"))
        return _Standing(
            by_key=_pairs(begun, "key_hash", "request_id"),
            ends=_pairs(ends.select("request_id", "end").toArrow(), "request_id", "end"),
        )

    # ---------------------------------------------------------------------------------------------- apply and settle

    def _apply_and_settle(self, turn: BatchTurn, held: Held, erasures: Erasures | None, batch_id: int) -> BatchResult:
        keys = sorted({request.key for request in held.requests if request.key is not None})
        last = self._progress.last()
        if last is not None and last.kept == 0:
            waiting, standing = self._read(None, None), _Standing(by_key={}, ends={})
        else:
            waiting, standing = self._waiting(keys, erasures), self._standing(keys, erasures)
        admitted = admit(held.requests, self._highest(keys), has_sequence=self._meaning.has_sequence)
        everything = _together(waiting, held)
        paths = compose([*waiting.requests, *admitted.in_order])
        since = min(held.rows["tested_version"].to_pylist())
        met = self._apply(turn, everything, paths, erasures, batch_id, since)
        self._forget(turn, everything, admitted)
        counts = met.counts() if met else {}
        settled = settle(admitted, meaning=self._meaning, waiting=waiting.requests, paths=paths, matched=counts)
        effects = self._effects(paths, standing)
        replaced: dict[str, Settled] = {}
        if self._meaning.is_standing and not self._meaning.moves_rows:
            for key, newest in last_of_key(admitted.in_order).items():
                if (before := standing.by_key.get(key)) is not None:
                    replaced[before] = Settled(state="superseded", reason=f"followed by {newest.id}")
        tested = self._tested_after(held, waiting, settled, standing, effects, met)
        self._settle(turn, everything, settled, replaced, effects, tested, met)
        return BatchResult(
            rows_in=len(held.requests),
            rows_written=sum(counts.values()),
            requests_matched=sum(1 for outcome in settled.values() if outcome.matched_rows),
            requests_waiting=sum(1 for outcome in settled.values() if outcome.state == "waiting"),
        )

    def _apply(
        self,
        turn: BatchTurn,
        held: Held,
        paths: Mapping[str, Path],
        erasures: Erasures | None,
        batch_id: int,
        since: int,
    ) -> Met | None:
        """Changes the rows that are there; what was met, on the version that the change was computed on."""
        log, target = self._context.log, self._context.target
        if log.head(target) < 0 or not paths:
            return None
        rows = TargetRows(self._context, self._kind, erasures)
        rules, steps = self._rules(held, paths), _steps(held, paths)
        met: Met | None = None

        def statement(token: WriteToken) -> None:
            nonlocal met
            met = rows.meet(rules, log.head(target))
            if met.rows.num_rows > 0:
                rows.change(rules, steps, met, token)

        if not turn.write(target, step=APPLY, name="apply", statement=statement):
            met = rows.meet(rules, self._version_before_apply(batch_id, since))
        return met

    def _rules(self, held: Held, paths: Mapping[str, Path]) -> pa.Table:
        """`key_hash`, `key`, `op`, `set` of what happens in the end to the rows of each key, where anything does."""
        keys = [key for key, path in paths.items() if path.last.deletes or (path.last.op == "update" and self._set)]
        ops = ["delete" if paths[key].last.deletes else "update" for key in keys]
        return pa.table(
            {
                "key_hash": pa.array(keys, pa.string()),
                "key": held.taken([paths[key].first.id for key in keys])["key"],
                "op": pa.array(ops, pa.string()),
                "set": held.taken([paths[key].last.id for key in keys])["set"],
            }
        )

    def _version_before_apply(self, batch_id: int, since: int) -> Version:
        """The version on which an earlier run of this batch computed its change."""
        log, target = self._context.log, self._context.target
        head = log.head(target)
        for commit in log.commits(target, Version(max(since, head - _SEARCH_MAX)), head):
            said: Mapping[str, Any] = commit.user_metadata or {}
            if (said.get("job"), said.get("batch"), said.get("step")) == (self._spec.name, batch_id, "apply"):
                return Version(said["user"]["tested"])
        return Version(since)

    def _forget(self, turn: BatchTurn, held: Held, admitted: Admitted) -> None:
        """What else goes with an erased person; nothing for mutations."""

    def _effects(self, paths: Mapping[str, Path], standing: _Standing) -> dict[str, Path]:
        """Request id → the path that late rows of its key follow from now on."""
        if not (self._meaning.moves_rows and self._meaning.is_standing):
            return {}
        begun = {path.first.id: path for key, path in paths.items() if key not in standing.by_key}
        return begun | follow(standing.ends, paths)

    def _tested_after(
        self,
        held: Held,
        waiting: Held,
        settled: Mapping[str, Settled],
        standing: _Standing,
        effects: Mapping[str, Path],
        met: Met | None,
    ) -> Tested:
        log, target = self._context.log, self._context.target
        last = self._progress.last() or self._counted()
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

    def _settle(
        self,
        turn: BatchTurn,
        held: Held,
        settled: Mapping[str, Settled],
        replaced: Mapping[str, Settled],
        effects: Mapping[str, Path],
        tested: Tested,
        met: Met | None,
    ) -> None:
        """Writes down what became of the requests, in one commit that also says how far the stream has been tested."""
        version = met.version if met else tested.tested
        outcomes = {**settled, **replaced}
        ids = list(dict.fromkeys([*outcomes, *effects]))
        changes = pa.table(
            {
                "request_id": pa.array(ids, pa.string()),
                "state": pa.array([outcomes[i].state if i in outcomes else None for i in ids], pa.string()),
                "reason": pa.array([outcomes[i].reason if i in outcomes else None for i in ids], pa.string()),
                "matched_rows": pa.array([settled[i].matched_rows if i in settled else None for i in ids], pa.int64()),
            }
        )
        session, location = self._context.session, self._requests.location
        # States that these requests can be in now: the rest of the table is not looked at.
        of_held = held.rows["state"].to_pylist() if held.requests else []
        states = sorted({*of_held, *(["applied"] if replaced or effects else [])})

        def statement(token: WriteToken) -> None:
            token = noted(token, **tested.facts())
            if not ids:
                empty = self._requests.rows(["stored"])
                assert empty is not None
                append(empty.limit(0), location, token)
                return
            source = session.createDataFrame(changes)
            values = {
                "state": "coalesce(s.state, t.state)",
                "reason": "CASE WHEN s.state IS NULL THEN t.reason ELSE s.reason END",
                "matched_rows": "coalesce(s.matched_rows, t.matched_rows)",
                "tested_version": f"{version}",
            }
            if effects:
                source = source.join(self._effect_rows(held, effects), "request_id", "left")
                values["effect"] = "coalesce(s.effect, t.effect)"
            listed = ", ".join(f"'{state}'" for state in states)
            table = DeltaTable.forPath(session, location).alias("t")
            condition = f"t.request_id = s.request_id AND t.state IN ({listed})"
            with tokened(session, token), conflicts():
                merge: Any = table.merge(source.alias("s"), condition).whenMatchedUpdate(set=values)  # type: ignore[arg-type]
                merge.execute()

        turn.write(location, step=SETTLE, name="settle", statement=statement)

    def _effect_rows(self, held: Held, effects: Mapping[str, Path]) -> DataFrame:
        """`request_id` and `effect`."""
        lasts = [path.last for path in effects.values()]
        ends = [None if last.op == "delete" else last.moves_to for last in lasts]
        rows = held.taken([last.id for last in lasts]).select(["op", "set"])
        rows = rows.append_column("request_id", pa.array(list(effects), pa.string()))
        rows = rows.append_column("ends_at", pa.array(ends, pa.string()))
        frame = self._context.session.createDataFrame(rows)
        return frame.select("request_id", F.struct("op", "set", "ends_at").alias("effect"))

    # ---------------------------------------------------------------------------------------------------------- sweep

    def _counted(self) -> Tested:
        """The same from the rows, when the log does not tell any more."""
        kept = self._kept_rows()
        if kept is None:
            return NEVER
        row = kept.agg(F.count("*").alias("n"), F.min("first_seen_ms").alias("oldest")).collect()[0]
        oldest = None if self._meaning.is_standing else row["oldest"]
        return Tested(tested=Version(-1), kept=row["n"], oldest_ms=oldest)

    def _kept_rows(self) -> DataFrame | None:
        rows = self._requests.rows(["applied" if self._meaning.is_standing else "waiting"])
        if rows is not None and self._meaning.is_standing:
            rows = rows.where(F.col("applies_to") == "arrived_and_later")
            if self._meaning.moves_rows:
                rows = rows.where(F.col("effect").isNotNull())
        return rows

    def _retry_for_ms(self) -> int:
        return self._kind.unmatched.retry_for_ms if isinstance(self._kind, Mutate) else 0

    def _has_work_at(self, head: Version) -> bool:
        if self._requests.head() < 0:
            return False
        last = self._progress.last()
        if last is None:
            return True
        if last.kept == 0:
            return False
        now_ms = self._context.clock.wall_ms()
        if not self._meaning.is_standing and (last.oldest_ms or now_ms) + self._retry_for_ms() <= now_ms:
            return True
        return head >= 0 and self._progress.unseen(last.tested, head) != frozenset()

    def _sweep_standing(
        self, turn: BatchTurn, head: Version, paths: frozenset[str] | None, batch_id: int
    ) -> BatchResult:
        """Has rows that others wrote follow what stands."""
        context, target = self._context, self._context.target
        kind, now_ms = self._kind, self._context.clock.wall_ms()
        erasures = self._erasures()
        rows = TargetRows(context, kind, erasures)
        changed = 0
        if head >= 0 and (paths is None or paths):
            stand_for_ms = kind.stand_for_ms if isinstance(kind, Mutate) else None
            standing = self._requests.standing(
                moves_rows=self._meaning.moves_rows, stand_for_ms=stand_for_ms, now_ms=now_ms
            )
            assert standing is not None
            if erasures is not None:
                standing = erasures.with_doom(standing)
                standing = standing.withColumn("op", F.when(F.col("is_doomed"), F.lit("delete")).otherwise(F.col("op")))
            rules = rows.out_of_line(standing, head, paths)
            if rules.num_rows > 0 and self._meaning.moves_rows and paths is None:
                text = "rows that others wrote were not moved: the log no longer tells them from rows moved before"
                context.events.emit(Noticed(job=self._spec.name, text=text))
            elif rules.num_rows > 0 and self._meaning.moves_rows:
                changed = rules.num_rows
                turn.write(
                    target,
                    step=APPLY,
                    name="apply",
                    statement=lambda token: rows.change_rows(rules, head, paths, token),
                )
            elif rules.num_rows > 0:
                met = rows.meet(rules, head, paths)
                changed = sum(met.counts().values())
                turn.write(
                    target, step=APPLY, name="apply", statement=lambda token: rows.change(rules, rules, met, token)
                )
        counted = self._counted()
        self._settle(turn, self._read(None, None), {}, {}, {}, replace(counted, tested=head, swept=batch_id), None)
        return BatchResult(rows_written=changed)

    def _sweep_waiting(
        self, turn: BatchTurn, head: Version, paths: frozenset[str] | None, batch_id: int
    ) -> BatchResult:
        """Retries what waits on rows that came since; ends what has waited for too long."""
        context, target = self._context, self._context.target
        last = self._progress.last() or NEVER
        applied_at = self._progress.unsettled_sweep(last, head)
        if applied_at is not None:
            head, paths = applied_at, self._progress.unseen(last.tested, applied_at)
        erasures = self._erasures()
        held = self._read(self._requests.rows(["waiting"]), erasures)
        by_key = compose(held.requests)
        rows = TargetRows(context, self._kind, erasures)
        met: Met | None = None
        if head >= 0 and by_key and (paths is None or paths):
            rules, steps = self._rules(held, by_key), _steps(held, by_key)
            met = rows.meet(rules, head, paths)
            found, version, files = met, head, paths

            def statement(token: WriteToken) -> None:
                token = noted(token, sweep=True)
                if self._meaning.moves_rows:
                    rows.change_rows(rules, version, files, token)
                else:
                    rows.change(rules, steps, found, token)

            if met.rows.num_rows > 0 and applied_at is None:
                turn.write(target, step=APPLY, name="apply", statement=statement)
        settled = settle(
            NOBODY,
            meaning=self._meaning,
            waiting=held.requests,
            paths=by_key,
            matched=met.counts() if met else {},
        )
        now_ms, retry_for_ms = context.clock.wall_ms(), self._retry_for_ms()
        first_seen = held.rows["first_seen_ms"].to_pylist() if held.requests else []
        left: list[int] = []
        for request, seen_ms in zip(held.requests, first_seen, strict=True):
            if settled[request.id].state != "waiting":
                continue
            if seen_ms + retry_for_ms <= now_ms:
                settled[request.id] = Settled(state="dead", reason=f"no row has matched within {_days(retry_for_ms)}")
            else:
                left.append(seen_ms)
        changes = {id_: outcome for id_, outcome in settled.items() if outcome.state != "waiting"}
        tested = Tested(tested=head, kept=len(left), oldest_ms=min(left) if left else None, swept=batch_id)
        self._settle(turn, held if changes else self._read(None, None), changes, {}, {}, tested, met)
        return BatchResult(
            rows_written=sum(met.counts().values()) if met else 0,
            requests_matched=sum(1 for outcome in settled.values() if outcome.matched_rows),
            requests_waiting=len(left),
        )


def _steps(held: Held, paths: Mapping[str, Path]) -> pa.Table:
    """`key_hash`, `key`, `set` of every update on the way of each key."""
    pairs = [
        (key, path.first.id, request.id)
        for key, path in paths.items()
        for request in path.requests()
        if request.op == "update"
    ]
    return pa.table(
        {
            "key_hash": pa.array([key for key, _, _ in pairs], pa.string()),
            "key": held.taken([first for _, first, _ in pairs])["key"],
            "set": held.taken([id_ for _, _, id_ in pairs])["set"],
        }
    )


def _together(first: Held, second: Held) -> Held:
    if not first.requests:
        return second
    rows = pa.concat_tables([first.rows, second.rows.cast(first.rows.schema)])
    ids = rows["request_id"].to_pylist()
    return Held(requests=(*first.requests, *second.requests), rows=rows, index={id_: i for i, id_ in enumerate(ids)})


def _days(duration_ms: int) -> str:
    return f"{duration_ms // 86_400_000}d" if duration_ms % 86_400_000 == 0 else f"{duration_ms // 1000}s"


def _pairs(rows: pa.Table, key: str, value: str) -> dict[str, str]:
    return dict(zip(rows[key].to_pylist(), rows[value].to_pylist(), strict=True))


def _orderable(kind: DataType) -> Column:
    """`seq` as a value that Python orders as Spark does."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(F.col("seq").cast("timestamp"))
    if isinstance(kind, DateType):
        return F.unix_date("seq")
    if isinstance(kind, DoubleType | FloatType):
        return F.when(~F.isnan("seq"), F.col("seq"))
    return F.col("seq")


def _same_type(one: DataType, other: DataType) -> bool:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return [(f.name.lower(), f.dataType) for f in one.fields] == [
            (f.name.lower(), f.dataType) for f in other.fields
        ]
    return one == other
