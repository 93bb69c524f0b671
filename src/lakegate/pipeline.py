"""The streams of a pipeline in this driver, run one after another by their turns."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from typing import Literal

from pyspark.sql import SparkSession

from lakegate import settings
from lakegate.config import Pipeline as PipelineSpec
from lakegate.config import StreamSpec
from lakegate.config.build import PipelineBuilder
from lakegate.config.coordinators import coordinator_place
from lakegate.config.lineage import lineage_of
from lakegate.delta.storage_errors import refusal
from lakegate.errors import INTERRUPTED_EXIT_CODE, InvalidRequest, LakegateError, combined_exit_code, summary
from lakegate.ids import JobName
from lakegate.runtime import Site, locate, make_private, session_for
from lakegate.spark import jars
from lakegate.streams.checkpoint_owner import checkpoint_check
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.pipeline_stream import StreamWork
from lakegate.streams.requests.standing import recorded
from lakegate.streams.supervisor import RunReport, Supervisor
from lakegate.telemetry.events import EventSink, Noticed, StreamLate, TurnEnded
from lakegate.telemetry.hooks import Hooks
from lakegate.telemetry.ledger_days import merge_old_runs, read_summary
from lakegate.turns.host import MachineClock
from lakegate.turns.lateness import LateStreams
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.protocol import Order

Pace = Literal["once", "until_idle", "paced"]


class PipelineRun:
    """Streams of one pipeline in this driver: one after another by their turns, a thread for each."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        names: Sequence[str] = (),
        *,
        among: Sequence[str] = (),
        idle_run: str | None = None,
        new_checkpoints: Collection[str] = (),
        watchers: Sequence[EventSink] = (),
        hooks: Hooks | None = None,
        spark: SparkSession | None = None,
        progress: jars.Progress | None = None,
    ) -> None:
        """Prepares the run; starts no stream.

        Args:
            pipeline: The pipeline from the file or from Python.
            names: Streams to run here; all by default.
            among: Streams that must be idle before a run until idle ends; those of `names` by default.
            idle_run: The id of the run until idle of these streams. Must be the same as that of the streams in `among` that run
                elsewhere; by default a new id.
            new_checkpoints: Jobs whose checkpoint is new on purpose.
            watchers: Receive every event, after the ledger.
            hooks: Also receive every event, and the streams that are late; closed by the caller.
            spark: A session to use; created by default.
            progress: Called for each jar that is fetched.

        Raises:
            InvalidRequest: an unknown stream; or the session cannot be used.
            Unavailable: the coordinator or the storage cannot be used.
        """
        self.pipeline = pipeline
        self._specs = [_stream(pipeline, name) for name in names] or list(pipeline.streams)
        self._among = [_stream(pipeline, name) for name in among] or self._specs
        for name in new_checkpoints:
            _stream(pipeline, name)
        if spark is None:
            spark = session_for(pipeline, self._specs, progress=progress)
        make_private(pipeline.storage)
        self._hooks, self._streams = hooks, LateStreams(pipeline, [spec.name for spec in self._specs])
        watchers = watchers if hooks is None else [*watchers, hooks]
        self.site = Site.open(spark, url=pipeline.coordinator.url, storage=pipeline.storage, watchers=watchers)
        self._idle_run = idle_run or str(uuid.uuid4())
        self._errors: dict[str, BaseException] = {}
        try:
            rows = read_summary(pipeline.storage, on_damage=self.site.say).rows
            now_ms = MachineClock().wall_ms()
            with suppress(OSError, LakegateError):  # the ledger stays as it is; a damaged line was named above
                merge_old_runs(pipeline.storage, now_ms=now_ms, before_ms=now_ms - pipeline.keep_ledger_ms)
            self._targets = {spec.name: locate(spark, pipeline.table_of(spec)) for spec in (*self._specs, *self._among)}
            self._supervisors = {
                spec.name: self._supervisor(spec, rows, is_new_allowed=spec.name in new_checkpoints)
                for spec in self._specs
            }
        except BaseException:
            self.site.close()
            raise

    def _supervisor(self, spec: StreamSpec, rows: list[TurnEnded], *, is_new_allowed: bool) -> Supervisor:
        site, pipeline = self.site, self.pipeline
        lock = pipeline.lock_of(spec)
        coordinator = site.coordinator(
            lock=lock,
            job=spec.name,
            order=Order(
                rule=spec.order,
                absent_after_ms=spec.absent_after_ms,
                priority=spec.priority,
                aging_ms=spec.aging_ms,
            ),
            lock_timeout_s=pipeline.coordinator.lock_timeout_ms / 1000,
            on_lost=lambda reason: self._supervisors[spec.name].turn_lost(reason),
            known_epoch=max((row.epoch or 0 for row in rows if row.lock == lock), default=0),
        )
        context = StreamContext(
            session=site.spark.newSession(),
            log=site.log,
            storage=pipeline.storage,
            target=self._targets[spec.name],
            neighbours=tuple(one for one in pipeline.streams if one.table == spec.table),
            clock=MachineClock(),
            events=site.events,
            recorded=recorded(rows),
        )
        work = StreamWork(
            spec,
            pipeline.table_of(spec),
            context,
            coordinator_id=site.store.coordinator_id(),
            coordinator=coordinator_place(pipeline.coordinator.url),
        )
        return Supervisor(
            site.spark,
            coordinator,
            work,
            site.log,
            check_query_id=checkpoint_check(
                rows, job=spec.name, location=spec.checkpoint or "", is_new_allowed=is_new_allowed
            ),
            has_others=any(one.name != spec.name and pipeline.lock_of(one) == lock for one in self._among),
        )

    def run(self, pace: Pace) -> dict[str, RunReport]:
        """Runs the streams, once, and returns when they have ended. A stream that fails stops the others after their turn.

        Raises:
            LakegateError: the first of the streams' errors by `EXIT_CODE_PRECEDENCE`.
        """
        try:
            with nullcontext() if self._hooks is None else self._hooks.watching(self._late):
                return self._run(pace)
        finally:
            self.site.close()

    def _late(self) -> list[StreamLate]:
        return self._streams.look(self.site.store, MachineClock().wall_ms())

    def _run(self, pace: Pace) -> dict[str, RunReport]:
        if len(self._specs) == 1:
            self._run_one(self._specs[0], pace)
        else:
            threads = [
                threading.Thread(target=self._run_one, args=(spec, pace), name=f"lakegate-{spec.name}")
                for spec in self._specs
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._errors:
            codes = [exit_code_of(error) for error in self._errors.values()]
            worst = combined_exit_code(codes)
            first = next(error for error in self._errors.values() if exit_code_of(error) == worst)
            for name, error in self._errors.items():
                if error is not first:
                    self.site.events.emit(Noticed(job=name, text=summary(error)))
            raise first
        return {name: supervisor.report for name, supervisor in self._supervisors.items()}

    def stop(self) -> None:
        """Ends every stream after its current turn. Safe from a signal handler."""
        for supervisor in self._supervisors.values():
            supervisor.stop()

    def _run_one(self, spec: StreamSpec, pace: Pace) -> None:
        supervisor = self._supervisors[spec.name]
        try:
            match pace:
                case "once":
                    supervisor.run_once()
                case "until_idle":
                    supervisor.run_until(self._is_settled, on_waiting=self.site.say, idle_run=self._idle_run)
                case "paced":
                    supervisor.run_paced(spec.every_ms, on_waiting=self.site.say)
        except BaseException as error:
            self._errors[spec.name] = self.site.jvm_ended(error) or refusal(error) or error
            self.stop()
        finally:
            supervisor.close()

    def _is_settled(self) -> bool:
        heads = {table: self.site.log.head(table) for table in set(self._targets.values())}
        for lock in {self.pipeline.lock_of(spec) for spec in self._among}:
            record = self.site.store.read(lock).record
            jobs = {
                JobName(spec.name): {self._targets[spec.name]: heads[self._targets[spec.name]]}
                for spec in self._among
                if self.pipeline.lock_of(spec) == lock
            }
            if record is None:
                return False
            live = self.site.store.live_sessions(lock)  # read after the record, whose sessions were opened before
            if not transitions.is_settled(record, jobs, live, run=self._idle_run):
                return False
        return True


def exit_code_of(error: BaseException) -> int:
    """Returns the command's exit status for an error."""
    if isinstance(error, LakegateError):
        return error.exit_code
    return INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1


def _stream(pipeline: PipelineSpec, name: str) -> StreamSpec:
    try:
        return pipeline.stream(name)
    except KeyError:
        known = ", ".join(spec.name for spec in pipeline.streams)
        raise InvalidRequest(
            f"there is no stream {name!r}; nothing was run", advice=f"The streams are: {known}"
        ) from None


class Pipeline(PipelineBuilder):
    """A pipeline written in Python: the same keys as `lakegate.yml`, with the same meaning."""

    def run(
        self,
        *streams: str,
        until_idle: bool = False,
        once: bool = False,
        new_checkpoints: Collection[str] = (),
        spark: SparkSession | None = None,
    ) -> dict[str, RunReport]:
        """Runs the streams in this driver: at their pace, once, or until nothing is left to do.

        Returns:
            Stream → the report of its run.

        Raises:
            InvalidRequest: every fault of the pipeline.
            LakegateError: see its class; rows that were not written are processed again.
        """
        spec = self.build(base_dir=settings.working_directory())
        hooks = Hooks(spec.name, spec.hooks, lineage=lineage_of(spec))
        try:
            run = PipelineRun(spec, streams, new_checkpoints=new_checkpoints, hooks=hooks, spark=spark)
            return run.run("once" if once else "until_idle" if until_idle else "paced")
        finally:
            hooks.close()
