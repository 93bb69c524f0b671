"""The loop around a stream: runs its query on the available data in a turn, sweeps, announces that it is idle, waits.

The query runs with `trigger(availableNow=True)`. Its first micro-batch takes the turn, so a source without data takes none.
The turn is completed only when the function has returned, Spark's commit log is written, *and* the query has terminated. After
any other end one of its transactions may still be running, and its id becomes doubtful.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lakegate.delta.gate import Gate, refused
from lakegate.delta.jvm import silence
from lakegate.delta.storage_errors import in_plain_words, refusal
from lakegate.errors import CheckpointMismatch, LakegateError, LostTurn, StoreUnavailable, TurnNotGranted, Unavailable
from lakegate.ids import TableLocation, TokenId
from lakegate.notebook import Shown
from lakegate.spark.checkpoint import Checkpoint
from lakegate.spark.source_faults import source_trouble
from lakegate.streams.job_cancellation import TurnJobs
from lakegate.streams.refresh import keeping_up
from lakegate.streams.work import Work
from lakegate.telemetry.log_format import working
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.ports import TableLog
from lakegate.turns.protocol.fencing import job_token, query_token, sweep_token, unpack
from lakegate.turns.protocol.lock_record import Pause
from lakegate.turns.protocol.protocol import CheckpointView
from lakegate.turns.protocol.transitions import is_said
from lakegate.turns.turn import HeldTurn

LOOK_AGAIN_S, LOOK_AGAIN_MAX_S = 1.0, 10.0
"""Seconds until an empty source is read again; doubled each time nothing came, up to the second number."""
LOSSES_MAX = 3
"""How many consecutive turns may be lost, with the batch run again in the next turn, before the job ends."""


STORE_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)
"""Pauses before an unavailable store of turns is asked again; after the last one the job ends."""

NO_CHECKPOINT = CheckpointView(last_committed=-1, is_batch_open=False)


class _TurnLimit(Exception):
    """The turn has done its share of a backlog: this batch is planned, and written in the next turn."""


@dataclass(kw_only=True)
class RunReport(Shown):
    """Totals of one job's runs. Counts, and milliseconds."""

    job: str
    turns: int = 0
    batches: int = 0
    rows: int = 0
    waited_ms: int = 0
    gave_up: int = 0
    sweeps: int = 0
    versions: dict[str, list[int]] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)
    """Expectation → records that do not meet it."""
    passed_over: tuple[str, ...] = ()
    """Parts of the source that were not read at the last look: a sentence per reason, with the number of files and some names."""

    def add(self, turn: HeldTurn) -> None:
        """Adds a turn that has ended to the totals."""
        self.turns += 1
        self.waited_ms += turn.waited_ms
        for table, versions in turn.versions.items():
            self.versions.setdefault(table, []).extend(versions)
        for name, count in turn.unmet.items():
            self.unmet[name] = self.unmet.get(name, 0) + count


class Supervisor:
    """Runs one job: one checkpoint, one order rule, one turn at a time."""

    def __init__(
        self,
        spark: SparkSession,
        coordinator: Coordinator,
        work: Work,
        log: TableLog,
        *,
        check_query_id: Callable[[str | None], None] = lambda query_id: None,
        store_pauses_s: Sequence[float] = STORE_PAUSES_S,
        has_others: bool = False,
    ) -> None:
        """See the class.

        Args:
            spark: The session that the query runs on.
            coordinator: This run's side of the lock.
            work: The work that is done in a turn.
            log: Reads the tokens of tables.
            check_query_id: Refuses a checkpoint that cannot be this job's, by raising.
            store_pauses_s: The pauses before an unavailable store of turns is asked again.
            has_others: Other jobs of the lock are in the same run. The process that started the run restarts a job that was killed,
                or ends them all.
        """
        self._spark, self._coordinator, self._work, self._log = spark, coordinator, work, log
        self._gate = Gate(spark)
        leave_failures_to_us(spark)
        self._check_query_id = check_query_id
        self.report = RunReport(job=coordinator.job)
        self._turn: HeldTurn | None = None
        self._error: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._sweep_jobs: TurnJobs | None = None
        self._query_id: str | None = None
        self._checkpoint: Checkpoint | None = None
        self._stop = threading.Event()
        self._store_pauses_s, self._store_tries = tuple(store_pauses_s), 0
        self._losses, self._has_others = 0, has_others
        self._told_pause: Pause | None = None
        self._idle_run: str | None = None

    # ---------------------------------------------------------------------------------------------------- control

    def stop(self) -> None:
        """Ends the loop after the current turn; a wait for a turn ends at once. Safe from any thread or signal."""
        self._stop.set()
        self._coordinator.cancel()

    def turn_lost(self, reason: str) -> None:
        """Stops the query, or cancels the jobs of a sweep: the lease has ended, and nothing more may be written."""
        jobs, query = self._sweep_jobs, self._query
        if jobs is not None:
            jobs.cancel(reason)
        if query is not None:
            self._error = self._error or LostTurn(f"the turn was lost: {reason}; nothing more was written")
            query.stop()

    def close(self) -> None:
        """Ends this run of the job."""
        self._coordinator.close()

    @property
    def is_stopping(self) -> bool:
        """Returns True if `stop` was called."""
        return self._stop.is_set()

    # ------------------------------------------------------------------------------------------------------- runs

    @in_plain_words()
    def run_once(self) -> bool:
        """Runs one turn on the available data, then a sweep if one is due; announces when nothing is left.

        Returns:
            True if more data is known to be waiting: the turn had reached its limit.

        Raises:
            TurnNotGranted: not granted in time, or the job is paused; nothing was written, and the same batch is repeated.
            LakegateError: see its class; the turn is closed, and the same batch is repeated.
        """
        pause = self._pause()
        if pause is not None:
            raise self._paused(pause)
        has_more = self._drain()
        if has_more or self.is_stopping:
            return has_more
        if self._work.has_sweep_work():
            self._sweep()
        self._announce_idle()
        return False

    def run_paced(self, every_ms: int | None, *, on_waiting: Callable[[LakegateError], None]) -> None:
        """Runs at the job's pace until it is stopped. Retries when a turn is not granted, or the store of turns is unavailable.

        Raises:
            StoreUnavailable: the store of turns stayed unavailable.
        """
        self._outlasting(lambda: self._run_paced(every_ms, on_waiting), on_waiting)

    def _run_paced(self, every_ms: int | None, on_waiting: Callable[[LakegateError], None]) -> None:
        self._coordinator.open()
        while not self.is_stopping:
            if self._is_paused(on_waiting):
                self._stop.wait(LOOK_AGAIN_S)
                continue
            started_s = time.monotonic()
            pause_s = LOOK_AGAIN_S if every_ms is None else every_ms / 1000
            if not self._run_patiently(on_waiting):
                self._stop.wait(max(0.0, started_s + pause_s - time.monotonic()))

    def run_until(
        self,
        is_finished: Callable[[], bool],
        *,
        on_waiting: Callable[[LakegateError], None],
        idle_run: str | None = None,
    ) -> None:
        """Runs repeatedly until `is_finished`; reads the source less often while no data comes.

        Args:
            is_finished: Called after each look.
            on_waiting: Receives the reason for each further wait.
            idle_run: Names a run whose jobs end when all of them are idle: the job announces there when it is idle or ends.

        Raises:
            TurnNotGranted: another run of the job is alive; or no other job is alive or expected, so waiting longer cannot help.
            StoreUnavailable: the store of turns stayed unavailable.
        """
        self._idle_run = idle_run
        self._outlasting(lambda: self._run_until(is_finished, on_waiting), on_waiting)
        if idle_run is not None:  # also after a stop: the others must not wait for more announcements
            self._outlasting(lambda: self._coordinator.leave(idle_run), on_waiting)

    def _outlasting(self, loop: Callable[[], None], on_waiting: Callable[[LakegateError], None]) -> None:
        """Runs a loop, and starts it again while the store of turns is unavailable, for a limited time."""
        while True:
            try:
                return loop()
            except StoreUnavailable as error:
                # The record may still name our turn and our session: only another run of the job closes them.
                self._coordinator.close()
                if self.is_stopping or self._store_tries >= len(self._store_pauses_s):
                    raise StoreUnavailable(
                        f"{error.message}; asked {self._store_tries + 1} times, and {self._coordinator.job} has ended",
                        advice=error.advice
                        or "Start it again when the store of turns is back; nothing is lost or doubled",
                    ) from error
                on_waiting(error)
                self._stop.wait(self._store_pauses_s[self._store_tries])
                self._store_tries += 1

    def _run_until(self, is_finished: Callable[[], bool], on_waiting: Callable[[LakegateError], None]) -> None:
        self._coordinator.open()
        pause_s = LOOK_AGAIN_S
        while not self.is_stopping:
            if self._is_paused(on_waiting):
                if is_finished():
                    return
                self._stop.wait(LOOK_AGAIN_S)
                continue
            turns_before = self.report.turns
            has_more = self._run_patiently(on_waiting)
            if is_finished():
                return
            is_busy = has_more or self.report.turns != turns_before
            pause_s = LOOK_AGAIN_S if is_busy else min(pause_s * 2, LOOK_AGAIN_MAX_S)
            deadline_s = time.monotonic() + pause_s
            while not has_more and time.monotonic() < deadline_s and not self.is_stopping:
                # Reading the source starts a query; reading the record costs nothing, so turns of others are noticed at once.
                # This loop follows only a run that found the source empty: otherwise there is work left.
                self._coordinator.wait_for_change(min(LOOK_AGAIN_S, deadline_s - time.monotonic()))
                if self._pause() is not None or self._work.has_sweep_work():
                    break
                self._announce_idle()
                if is_finished():
                    return

    def _run_patiently(self, on_waiting: Callable[[LakegateError], None]) -> bool:
        """Does one run. A turn that is lost or not granted is retried. Returns True if more data is known to be waiting."""
        try:
            has_more = self.run_once()
        except TurnNotGranted:
            self.report.gave_up += 1
            if self.is_stopping or self._pause() is not None:
                return False
            if not self._has_others and self._coordinator.live().jobs <= {self._coordinator.job}:
                raise
            return True  # the coordinator has reported it
        except LostTurn as lost:
            self._losses += 1
            if self.is_stopping or self._losses > LOSSES_MAX:
                raise
            on_waiting(lost)
            return True
        self._losses = self._store_tries = 0
        return has_more

    # ------------------------------------------------------------------------------------------------------ pause

    def _pause(self) -> Pause | None:
        """Returns the pause if a person has paused this job: it then requests nothing and reads no source."""
        record = self._coordinator.record()
        return None if record is None else record.paused.get(self._coordinator.job)

    def _is_paused(self, on_waiting: Callable[[LakegateError], None]) -> bool:
        """Returns True if the job is paused now; reports each pause once."""
        pause = self._pause()
        if pause is not None and pause != self._told_pause:
            on_waiting(self._paused(pause))
        self._told_pause = pause
        return pause is not None

    def _paused(self, pause: Pause) -> TurnNotGranted:
        job = self._coordinator.job
        return TurnNotGranted(
            f"{job} is {pause}; it takes no turn, and nothing was written",
            advice=f"Resume it with: lakegate resume {job}",
        )

    # ------------------------------------------------------------------------------------------------------ query

    def _drain(self) -> bool:
        """Runs the query on the available data. Returns True if it stopped at the turn's limit and more is waiting."""
        location = self._work.checkpoint
        if location is None:
            self._coordinator.begin(NO_CHECKPOINT)
            self._work.prepare()
            return False
        if self._checkpoint is None or self._checkpoint.location != location:
            self._checkpoint = Checkpoint(self._spark, location)
        checkpoint = self._checkpoint
        self._query_id = checkpoint.query_id()
        self._check_query_id(self._query_id)
        view = checkpoint.look()
        self._coordinator.begin(view)
        self._work.prepare()
        self._turn = self._error = None
        query: StreamingQuery | None = None
        failure: BaseException | None = None
        try:
            query = self._query = self._work.query(self.on_batch).trigger(availableNow=True).start()
            query.awaitTermination()
            failure = self._seen_error()
        except StreamingQueryException as error:
            failure = self._seen_error() or failed(error)
        except BaseException as error:
            # Interrupted, or not started: make sure that nothing of the query is running before the turn is given back.
            if query is not None:
                query.stop()
            self._close_turn(error)
            raise
        finally:
            self._query = None
        if failure is None or isinstance(failure, _TurnLimit):
            self._close_turn(None)
            if failure is None:
                self.report.passed_over = self._work.drained()
            return failure is not None
        self._close_turn(failure)
        raise failure

    def _seen_error(self) -> BaseException | None:
        """Returns the error that our function raised in the thread that called it; the query shows it only as text."""
        return self._error

    def _close_turn(self, failure: BaseException | None) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if failure is None:
            turn.commit_log_written()
            turn.complete()
        else:
            turn.abandon(failure)
        self.report.add(turn)

    def on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Runs a batch as the sink function of the query. To give a batch up it must raise: Spark takes a normal return as done."""
        with self._gate.acting(self._coordinator.job, batch.sparkSession):
            self._on_batch(batch, batch_id)

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            if self._error is not None:
                raise self._error
            checkpoint = self._checkpoint
            assert checkpoint is not None, "the query was started here"
            if self._query_id is None:
                self._query_id = checkpoint.query_id()
            assert self._query_id is not None, "a query that runs a batch has written its metadata"
            if self._turn is not None and self._turn.batches_done >= self._work.turn_limit_batches:
                raise _TurnLimit
            with ExitStack() as keeping:
                if self._turn is None:
                    if self.is_stopping:
                        raise _TurnLimit
                    if self._work.is_computed_ahead:
                        self._coordinator.find_work()
                        self._work.stage(batch, batch_id, before=self._coordinator.before())
                    has_come = keeping.enter_context(
                        keeping_up(
                            self._work,
                            self._gate,
                            self._coordinator.job,
                            batch.sparkSession,
                            self._coordinator.before,
                        )
                    )
                    self._turn = self._coordinator.take(
                        token_id=query_token(self._query_id),
                        query_id=self._query_id,
                        batch=batch_id,
                        tables=self._work.tables(),
                    )
                    has_come()
                turn = self._turn
                turn.next_batch(batch_id, checkpoint.offsets_sha256(batch_id))
                with working(lock=self._coordinator.lock, job=self._coordinator.job, epoch=turn.epoch, batch=batch_id):
                    rows = self._work.run_batch(turn, batch, batch_id)
                turn.check()
            self.report.batches += 1
            self.report.rows += rows
        except BaseException as error:
            # A lost turn stops the query; the error that our function then gets within its work is not the cause.
            self._error = self._error or source_trouble(error) or refusal(error) or refused(error) or error
            raise

    # ------------------------------------------------------------------------------------------------ sweep, idle

    def _sweep(self) -> None:
        location, query_id = self._work.checkpoint, self._query_id
        if location is None:
            token_id = job_token(self._coordinator.job)
        else:
            query_id = query_id or Checkpoint(self._spark, location).query_id()
            if query_id is None:
                return
            token_id = sweep_token(query_id)
        tables = self._work.tables()
        with self._gate.acting(self._coordinator.job):
            self._sweep_in_turn(token_id, query_id, tables)

    def _sweep_in_turn(self, token_id: TokenId, query_id: str | None, tables: tuple[TableLocation, ...]) -> None:
        turn = self._coordinator.take(token_id=token_id, query_id=query_id, batch=None, tables=tables)
        jobs = self._sweep_jobs = TurnJobs(self._spark)
        try:
            turn.check()  # a loss before the line above has cancelled nothing
            with jobs.running():
                for table in tables:
                    turn.enter(table)
                stored = [self._log.read_tokens(table).tokens.get(token_id) for table in tables]
                batch = max((unpack(number).batch for number in stored if number is not None), default=-1) + 1
                turn.next_batch(batch, None)
                with working(lock=self._coordinator.lock, job=self._coordinator.job, epoch=turn.epoch, batch=None):
                    self._work.run_sweep(turn, batch)
            turn.check()
        except BaseException as error:
            turn.abandon(error)
            self.report.add(turn)
            raise
        finally:
            self._sweep_jobs = None
        turn.complete()
        self.report.add(turn)
        self.report.sweeps += 1

    def _announce_idle(self) -> None:
        idle_at = self._work.idle_at()
        record = self._coordinator.record()
        if record is None or not is_said(record, self._coordinator.job, idle_at, self._idle_run):
            self._coordinator.announce_idle(idle_at, run=self._idle_run)


def leave_failures_to_us(spark: SparkSession) -> None:
    """Silences Spark's log of a failed query: a stack trace of a hundred lines, even where giving up is planned."""
    silence(spark, "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution")


def failed(error: StreamingQueryException) -> BaseException:
    """Converts the failure of a query outside of our function to an error with Spark's own reason."""
    text = str(error)
    if "Concurrent" in text and "update to the log" in text:
        return CheckpointMismatch("another run uses the same checkpoint; this one stopped")
    known = source_trouble(error) or refusal(error)
    if known is not None:
        return known
    first: Any = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return Unavailable("the query ended with an error, and its batch was not written", detail=first)
