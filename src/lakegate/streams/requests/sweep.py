"""Sweeps: test a stream's kept requests against new matching rows, without data of the source."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakegate.config import Mutate
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.streams.bad_records import refuse_stored
from lakegate.streams.interfaces import APPLY, BatchResult, BatchTurn, noted
from lakegate.streams.requests.apply import Met, TargetRows
from lakegate.streams.requests.outcomes import RequestOutcomes
from lakegate.streams.requests.parts import Parts
from lakegate.streams.requests.resolver import NOBODY, Held, steps_of
from lakegate.streams.requests.rules import Admitted, Path, Settled, compose, settle
from lakegate.streams.requests.watermark import NEVER, Tested
from lakegate.telemetry.events import Noticed

NOTHING_ADMITTED = Admitted(in_order=(), superseded={}, dead={})


class Sweeps:
    """The sweeps of one stream: what is kept, whether it is due, and how it is tested."""

    def __init__(self, parts: Parts) -> None:
        self._context, self._spec, self._kind, self._meaning = parts.context, parts.spec, parts.kind, parts.meaning
        self._requests, self._reader, self._progress = parts.requests, parts.reader, parts.progress
        self._settling, self._erasures = parts.settling, parts.erasures

    def run(self, turn: BatchTurn, batch_id: int) -> BatchResult:
        """Tests the kept requests, and ends those that waited too long; in a turn that has entered the stream's tables."""
        if self._requests.head() < 0:
            return BatchResult()
        last = self._progress.last() or NEVER
        head = self._context.log.head(self._context.target)
        # An interrupted sweep is completed as of the version that it read: rows that it has moved are not new.
        applied_at = self._progress.unrecorded_sweep(last, head) if head >= 0 else None
        head = head if applied_at is None else applied_at
        paths = self._progress.unseen(last.tested, head) if head >= 0 else frozenset()
        if paths is None:
            text = "the log no longer shows which files are new, so the whole table is tested"
            self._context.events.emit(Noticed(job=self._spec.name, text=text))
        if self._meaning.is_standing:
            return self._sweep_standing(turn, head, paths, batch_id, is_applied=applied_at is not None)
        return self._sweep_waiting(turn, head, paths, batch_id, is_applied=applied_at is not None)

    def counted(self) -> Tested:
        """Counts the kept requests from their rows: used when the log no longer contains the last count."""
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

    def has_work_at(self, head: Version) -> bool:
        """Returns True if a kept request has not been tested on all rows of this version of the target, or has waited too long."""
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
        self, turn: BatchTurn, head: Version, paths: frozenset[str] | None, batch_id: int, *, is_applied: bool
    ) -> BatchResult:
        """Applies the standing requests to rows that others wrote."""
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
                text = (
                    "rows that others wrote were not moved: the log no longer distinguishes them from rows moved before"
                )
                context.events.emit(Noticed(job=self._spec.name, text=text))
            elif rules.num_rows > 0 and self._meaning.moves_rows:
                rules = self._kept_rules(rows, rules, head, paths)
                changed = rules.num_rows
                if not is_applied:
                    turn.write(
                        target,
                        step=APPLY,
                        name="apply",
                        statement=lambda token: rows.change_rows(rules, head, paths, noted(token, sweep=True)),
                    )
            elif rules.num_rows > 0:
                rules = self._kept_rules(rows, rules, head, paths)
                met = rows.meet(rules, head, paths)
                changed = sum(met.counts().values())
                turn.write(
                    target, step=APPLY, name="apply", statement=lambda token: rows.change(rules, rules, met, token)
                )
        tested = replace(self.counted(), tested=head, swept=batch_id)
        self._settling.write(turn, NOBODY, RequestOutcomes(settled={}, tested=tested, version=head))
        return BatchResult(rows_written=changed)

    def _kept_rules(self, rows: TargetRows, rules: pa.Table, head: Version, paths: frozenset[str] | None) -> pa.Table:
        """Leaves out rules that would break a rule of the table on rows of others: these rows stay, and the event is reported."""
        broken = rows.broken(rules, head, paths, has_older=True)
        if not broken:
            return rules
        reason = next(iter(broken.values()))
        text = f"rows of {len(broken)} keys stay as others wrote them: their standing request {reason}"
        self._context.events.emit(Noticed(job=self._spec.name, text=text))
        return rules.filter(pc.invert(pc.is_in(rules["key_hash"], value_set=pa.array(list(broken), pa.string()))))

    def _composed(
        self, held: Held, rows: TargetRows, head: Version, paths: frozenset[str] | None
    ) -> tuple[dict[str, Path], dict[str, str]]:
        """Composes the waiting requests without those that the table refuses; also returns these, with the reason.

        Raises:
            InvalidRequest: a request is refused, and `on_bad_record` is `fail`; nothing was applied.
        """
        refused: dict[str, str] = {}
        while True:
            by_key = compose([request for request in held.requests if request.id not in refused])
            if head < 0 or not by_key or (paths is not None and not paths):
                break
            broken = rows.broken(self._reader.rules(held, by_key), head, paths, has_older=True)
            if not broken:
                break
            refused |= {by_key[key].last.id: reason for key, reason in broken.items()}
        if refused:
            refuse_stored(self._spec, refused)
        return by_key, refused

    def _sweep_waiting(
        self, turn: BatchTurn, head: Version, paths: frozenset[str] | None, batch_id: int, *, is_applied: bool
    ) -> BatchResult:
        """Retries waiting requests on new matching rows; ends those that waited too long."""
        context, target = self._context, self._context.target
        erasures = self._erasures()
        held = self._reader.read(self._requests.rows(["waiting"]), erasures)
        rows = TargetRows(context, self._kind, erasures)
        by_key, refused = self._composed(held, rows, head, paths)
        met: Met | None = None
        if head >= 0 and by_key and (paths is None or paths):
            rules, steps = self._reader.rules(held, by_key), steps_of(held, by_key)
            met = rows.meet(rules, head, paths)
            found, version, files = met, head, paths

            def statement(token: WriteToken) -> None:
                token = noted(token, sweep=True)
                if self._meaning.moves_rows:
                    rows.change_rows(rules, version, files, token)
                else:
                    rows.change(rules, steps, found, token)

            if met.rows.num_rows > 0 and not is_applied:
                turn.write(target, step=APPLY, name="apply", statement=statement)
        settled = settle(
            replace(NOTHING_ADMITTED, dead=refused),
            meaning=self._meaning,
            waiting=[request for request in held.requests if request.id not in refused],
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
        outcome = RequestOutcomes(settled=changes, tested=tested, version=met.version if met else head)
        self._settling.write(turn, held if changes else NOBODY, outcome)
        return BatchResult(
            rows_written=sum(met.counts().values()) if met else 0,
            requests_matched=sum(1 for outcome in settled.values() if outcome.matched_rows),
            requests_waiting=len(left),
            requests_dead=sum(1 for outcome in settled.values() if outcome.state == "dead"),
        )


def _days(duration_ms: int) -> str:
    return f"{duration_ms // 86_400_000}d" if duration_ms % 86_400_000 == 0 else f"{duration_ms // 1000}s"
