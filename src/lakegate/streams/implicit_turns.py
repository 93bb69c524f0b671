"""Stock writers of a session that take turns by configuration alone; their code does not change.

Their commits wait at the gate of this JVM. A thread of this module sees a waiting commit, takes the job's turn for it, and gives
the turn back when the commit is in the table. So statements are computed concurrently, and only the commit is in the turn. That
is right for appends, which Delta can commit after any other commit. Delta refuses a statement that has read the table if others
changed what it read. Exactly once is provided by the stock sink: Delta knows query and batch by the `txn` of its commit.
"""

from __future__ import annotations

import atexit
import threading
import time

from pyspark.sql import SparkSession

from lakegate.delta.gate import JOB_CONF, WAIT_CONF, Gate
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import LakegateError, LostTurn
from lakegate.ids import TableLocation
from lakegate.streams.job import Job
from lakegate.streams.running_query import IDLE_LOOK_S, is_waiting
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.protocol import CheckpointView

LOOK_S = 0.05
"""How often waiting commits are looked for."""
PUT_S = 60.0
"""How long a turn waits for its commit: Delta checks the commits of others, and retries, meanwhile."""
RETRY_S = 1.0
NOTHING_OPEN = CheckpointView(last_committed=-1, is_batch_open=True)
"""Checkpoints of stock queries are not read: the next turn finds out whether a lost turn had finished."""


class StockTurns:
    """Takes turns for the commits of one session's stock writers. Ends with the session."""

    def __init__(self, spark: SparkSession, coordinator: Coordinator, job: Job) -> None:
        """See the class.

        Args:
            spark: The session; its commits after `start` belong to the job.
            coordinator: This run's side of the lock.
            job: The job; it names the tables.
        """
        self._spark, self._coordinator, self._job = spark, coordinator, job
        self._gate = Gate(spark)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lakegate-{coordinator.job}", daemon=True)

    def start(self, wait_ms: int) -> None:
        """Makes the session's commits wait for their turn, for `wait_ms` at most.

        Raises:
            TurnNotGranted: another run of the job is alive.
        """
        self._coordinator.begin(NOTHING_OPEN)
        for table in self._job.tables:
            self._gate.grant(
                table, self._coordinator.job, 0, 0
            )  # with a past turn at the gate, commits wait for the next one
        self._spark.conf.set(JOB_CONF, self._coordinator.job)
        self._spark.conf.set(WAIT_CONF, str(wait_ms))
        atexit.register(self.stop)  # a program may end right after its last commit, and its turn must be given back
        self._thread.start()

    def stop(self) -> None:
        """Ends the turns, after the current one."""
        atexit.unregister(self.stop)
        self._stop.set()
        self._coordinator.cancel()
        self._thread.join()

    def _run(self) -> None:
        idle_look_s, has_failed = 0.0, False
        try:
            while not self._stop.wait(LOOK_S):
                try:
                    if has_failed:
                        # A turn could not be given back: others on this machine wait for it as long as its JVM lives.
                        self._coordinator.begin(NOTHING_OPEN)
                        has_failed = False
                    awaited = next((table for table in self._job.tables if self._is_awaited(table)), None)
                    if awaited is not None:
                        with self._gate.acting(self._coordinator.job):  # the entry commit belongs to the job, too
                            self._turn(awaited)
                    elif time.monotonic() >= idle_look_s and self._is_idle():
                        idle_look_s = time.monotonic() + IDLE_LOOK_S
                        self._coordinator.announce_idle(self._job.heads())
                except LakegateError:
                    # The ledger has recorded the error. The commit keeps waiting, and is refused when its time is over.
                    has_failed = True
                    self._stop.wait(RETRY_S)
        except JVM_ERRORS:
            pass  # the session has ended
        finally:
            self._coordinator.close()

    def _turn(self, table: TableLocation) -> None:
        before = self._gate.puts(table)
        turn = self._coordinator.take(
            token_id=job_token(self._coordinator.job), query_id=None, batch=0, tables=self._job.tables
        )
        try:
            turn.needs_tokens = False  # stock writers know no tokens: the stock sink writes exactly once
            turn.next_batch(0, None)
            turn.enter(table)  # opens the gate, before its own commit
            awaited = before + len(turn.versions.get(table, ())) + 1
            deadline_s = time.monotonic() + PUT_S
            while (
                self._gate.puts(table) < awaited and time.monotonic() < deadline_s and not self._stop.wait(LOOK_S / 5)
            ):
                turn.check()
        except BaseException as error:
            turn.abandon(error)
            if not isinstance(error, LostTurn):
                raise
            return
        turn.complete()

    def _is_awaited(self, table: TableLocation) -> bool:
        return self._gate.is_awaited(table, self._coordinator.job)

    def _is_idle(self) -> bool:
        """Returns True if the session has streams and each of them waits for data."""
        queries = self._spark.streams.active
        return bool(queries) and all(is_waiting(query) for query in queries)
