"""A query that keeps running. Each micro-batch takes a turn, and gives it back when Spark's commit log contains the batch.

Rules for editors: the batch function runs in Spark's thread, everything else in the watching thread. `_guard` keeps them apart,
because a coordinator is not thread-safe. The commit log is polled: events of Spark's listeners come late, or not at all. When
the query ends, the turn ends only after Spark's thread has ended, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.delta.gate import Gate, refused
from lakegate.delta.jvm import JVM_ERRORS, first_line
from lakegate.delta.storage_errors import refusal
from lakegate.errors import InvalidRequest, LakegateError, LostTurn, TurnNotGranted, Unavailable
from lakegate.spark.checkpoint import Checkpoint, location_of, option_of
from lakegate.spark.source_faults import source_trouble
from lakegate.streams.job import Job
from lakegate.streams.refresh import keeping_up
from lakegate.streams.supervisor import RunReport, failed, leave_failures_to_us
from lakegate.telemetry.log_format import working
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.protocol.fencing import query_token
from lakegate.turns.turn import HeldTurn

LOOK_S, LOOK_MAX_S = 0.005, 0.2
"""Seconds until the commit log is read again after a batch, doubled each time; and the longest pause."""
IDLE_LOOK_S = 1.0
"""How often a query that waits for data announces the versions up to which it has nothing left to do."""
CANCEL_AGAIN_S = 1
WAITING = ("Waiting for next trigger", "Waiting for data to arrive")
"""Spark's messages for a query between two triggers. Before the first trigger the message says that the query initializes."""


class RunningQuery:
    """A coordinated query that keeps running; returned by `lakegate.start`. It ends like any Spark query, and by `stop`."""

    def __init__(
        self,
        spark: SparkSession,
        coordinator: Coordinator,
        job: Job,
        *,
        check_query_id: Callable[[str | None], None],
        on_end: Callable[[], None],
    ) -> None:
        """See the class.

        Args:
            spark: The session that reads the checkpoints.
            coordinator: This run's side of the lock.
            job: The job whose function the query calls.
            check_query_id: Refuses a checkpoint that cannot be this job's, by raising.
            on_end: Called once, when the query and its last turn have ended.
        """
        self._spark, self._coordinator, self._job = spark, coordinator, job
        self._check_query_id, self._on_end = check_query_id, on_end
        self._gate = Gate(spark)
        self.report = RunReport(job=coordinator.job)
        self._guard = threading.Lock()
        self._turn: HeldTurn | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self._query_id: str | None = None
        self._checkpoint: Checkpoint | None = None
        self._query: StreamingQuery | None = None
        self._has_news, self._ended = threading.Event(), threading.Event()

    # ------------------------------------------------------------------------------------------- the user's side

    @property
    def query(self) -> StreamingQuery:
        """Spark's own handle."""
        assert self._query is not None, "it was started"
        return self._query

    @property
    def isActive(self) -> bool:
        """Returns True while the query, or its last turn, is running."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Stops the query, even within a batch, which is then repeated at the next start. Returns when its turn is given back."""
        self.query.stop()
        self._ended.wait()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Returns True when the query has ended and its turn is given back; False after `timeout` seconds.

        Raises:
            TurnNotGranted: a batch was not given the turn in time; it was not written.
            LostTurn: the turn ended before a batch did; the batch is repeated at the next start.
            LakegateError: see its class.
        """
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    # -------------------------------------------------------------------------------------------------- the query

    def start(self, writer: DataStreamWriter) -> None:
        """Starts the query.

        Raises:
            InvalidRequest: the query has no checkpoint, or an option that hides when a batch is done.
            CheckpointMismatch: the checkpoint cannot be this job's.
            TurnNotGranted: another run of the job is alive.
        """
        location = location_of(writer)
        if (option_of(writer, "asyncProgressTrackingEnabled") or "").lower() == "true":
            raise InvalidRequest(
                "with asyncProgressTrackingEnabled the commit log does not show which batches are done, so Lakegate cannot know "
                "when a turn may end; the query was not started",
                advice="Leave the option out",
            )
        self._checkpoint = Checkpoint(self._spark, location)
        self._query_id = self._checkpoint.query_id()
        self._check_query_id(self._query_id)
        view = self._checkpoint.look()
        self._coordinator.begin(view)
        leave_failures_to_us(self._spark)
        with self._guard:  # a batch may start before this thread has its query
            self._job.attach(self.on_batch)
            try:
                self._query = writer.start()
            except BaseException:
                self._job.attach(None)
                self._coordinator.close()
                raise
        threading.Thread(target=self._watch, name=f"lakegate-{self._coordinator.job}", daemon=True).start()

    def turn_lost(self, reason: str) -> None:
        """Stops the query if it holds a turn, because its lease has ended. Between two turns nothing is lost."""
        if self._turn is not None and self._query is not None:
            self._error = self._error or LostTurn(f"the turn was lost: {reason}; nothing more was written")
            self._query.stop()

    def on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Runs a batch as the sink function of the query. To give a batch up it must raise: Spark takes a normal return as done."""
        with self._guard, self._gate.acting(self._coordinator.job, batch.sparkSession):
            try:
                self._on_batch(batch, batch_id)
            except BaseException as error:
                if self.query.isActive or isinstance(error, LostTurn):
                    self._error = self._error or source_trouble(error) or refusal(error) or refused(error) or error
                else:
                    self._is_stopped = True  # the stop has interrupted the wait, or the work, of this batch
                raise
        self._has_news.set()

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        if self._error is not None:
            raise self._error
        checkpoint = self._checkpoint
        assert checkpoint is not None, "the query was started here"
        self._end_turn()  # Spark starts a batch only after the previous one is in its commit log
        if self._query_id is None:
            self._query_id = checkpoint.query_id()
        assert self._query_id is not None, "a query that runs a batch has written its metadata"
        if self._job.is_computed_ahead:
            self._coordinator.find_work()
        self._job.stage(batch, batch_id)
        job, gate, coordinator = self._job, self._gate, self._coordinator
        with keeping_up(job, gate, coordinator.job, batch.sparkSession, coordinator.before) as has_come:
            turn = self._turn = self._take(self._query_id, batch_id)
            has_come()
            turn.next_batch(batch_id, checkpoint.offsets_sha256(batch_id))
            with working(lock=self._coordinator.lock, job=self._coordinator.job, epoch=turn.epoch, batch=batch_id):
                self._job.run_batch(turn, batch, batch_id)
            turn.check()
        self.report.batches += 1

    def _take(self, query_id: str, batch_id: int) -> HeldTurn:
        """Takes the turn. A job that a person has paused waits until it is resumed."""
        while True:
            self._wait_while_paused()
            try:
                return self._coordinator.take(
                    token_id=query_token(query_id), query_id=query_id, batch=batch_id, tables=self._job.tables
                )
            except TurnNotGranted:
                self.report.gave_up += 1
                if not self._is_paused():
                    raise

    def _wait_while_paused(self) -> None:
        while self._is_paused():
            if not self.query.isActive:
                raise TurnNotGranted(f"{self._coordinator.job} was stopped while it was paused; nothing was written")
            time.sleep(IDLE_LOOK_S)

    def _is_paused(self) -> bool:
        record = self._coordinator.record()
        return record is not None and self._coordinator.job in record.paused

    def _end_turn(self) -> None:
        """Gives the turn back after a batch that is in the commit log."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.commit_log_written()
            turn.complete()
            self.report.add(turn)

    # ---------------------------------------------------------------------------------------- the watching thread

    def _watch(self) -> None:
        query, pause_s, idle_look_s = self.query, LOOK_MAX_S, 0.0
        try:
            while query.isActive:
                if self._guard.acquire(blocking=False):  # else a batch is running
                    try:
                        if self._turn is not None:
                            if self._is_in_commit_log(self._turn.batch):
                                self._end_turn()
                        elif time.monotonic() >= idle_look_s and is_waiting(query):
                            idle_look_s = time.monotonic() + IDLE_LOOK_S
                            with contextlib.suppress(Unavailable):  # announced at the next look
                                self._coordinator.announce_idle(self._job.heads())
                    finally:
                        self._guard.release()
                if self._has_news.wait(pause_s):
                    self._has_news.clear()
                    pause_s = LOOK_S
                else:
                    pause_s = min(2 * pause_s, LOOK_MAX_S)
        except BaseException as error:
            self._error = self._error or error
            with contextlib.suppress(*JVM_ERRORS):
                query.stop()
        finally:
            try:
                self._close(query)
            except BaseException as error:
                self._error = self._error or error
            self._ended.set()

    def _close(self, query: StreamingQuery) -> None:
        try:
            while True:
                self._coordinator.cancel()  # repeated: the batch may be about to request its turn
                if query.awaitTermination(CANCEL_AGAIN_S):
                    break
        except StreamingQueryException as error:
            if not self._is_stopped:
                self._error = self._error or failed(error)
        except JVM_ERRORS as error:
            self._error = self._error or Unavailable(
                "Spark has ended; the next run finds what its batch wrote", detail=first_line(error)
            )
        with self._guard:
            turn = self._turn
            try:
                if turn is not None and self._is_in_commit_log(turn.batch):
                    self._end_turn()
                elif turn is not None:
                    self._turn = None
                    turn.abandon(
                        self._error or LakegateError("the query was stopped before its commit log was written")
                    )
                    self.report.add(turn)
            finally:
                self._job.attach(None)
                self._coordinator.close()
                self._on_end()

    def _is_in_commit_log(self, batch_id: int) -> bool:
        assert self._checkpoint is not None
        return self._checkpoint.is_committed(batch_id)


def is_waiting(query: StreamingQuery) -> bool:
    """Returns True if the last trigger of a query found no data, and no trigger is active."""
    status = query.status
    return not status["isDataAvailable"] and not status["isTriggerActive"] and status["message"] in WAITING
