"""Makes an existing job take turns: its own batch function, or its own code between lock and unlock.

Rules for editors: this module does not see what the user's code writes. The token is in the settings of the micro-batch's own
session, Delta refuses a second write without a step, and the fence is read again after the code has run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.config.streams import Coverage
from lakegate.delta.gate import Gate, raise_refusal
from lakegate.delta.idempotent_writes import NUMBER_CONF, single_write
from lakegate.delta.table_log import DeltaTableLog
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.ids import TableLocation, Version
from lakegate.ports import StatementConflict, WriteToken
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.thread_scope import TurnWrite, collected, entered, plain
from lakegate.spark.checkpoint import location_of
from lakegate.streams.job_cancellation import TurnJobs
from lakegate.streams.precomputed import Precomputed
from lakegate.streams.requests.standing import refuse_lost
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.protocol.fencing import job_token, unpack
from lakegate.turns.protocol.protocol import CONFLICTS_MAX
from lakegate.turns.turn import HeldTurn

BatchFunction = Callable[[DataFrame, int], object]
OnBatch = Callable[[DataFrame, int], None]
TURN_LIMIT_BATCHES = 10
"""Micro-batches per turn of a job's query."""
IMPLICIT = "write"
"""Name of the one write of a batch that is not wrapped in a step."""


class Turn:
    """A turn, as user code sees it."""

    def __init__(self, held: HeldTurn, session: SparkSession, tables: Sequence[TableLocation]) -> None:
        self._held, self._session, self._tables = held, session, tuple(tables)
        self._steps = 0

    @property
    def lock(self) -> str:
        """The name of the lock."""
        return self._held.lock

    @property
    def name(self) -> str:
        """The name of the job that has the turn."""
        return self._held.job

    @property
    def epoch(self) -> int:
        """Number of this turn on its lock; the fencing token of its commits."""
        return self._held.epoch

    @property
    def predecessor(self) -> str | None:
        """The job whose turn was completed last before this one; None on an empty history."""
        return self._held.predecessor

    def check(self) -> None:
        """Raises if the turn may have ended. Cheap; for long loops between two writes.

        Raises:
            LostTurn: nothing more must be written.
        """
        self._held.check()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Wraps one of several writes of a batch. The same steps must come in the same order whenever a batch is repeated.

        Raises:
            Fenced: a later turn has begun; the batch is not done.
            CheckpointMismatch: the table holds another step, or other offsets, under this number.
        """
        self._steps += 1
        try:
            with self._writing(self._steps, name):
                yield
        finally:
            # Without a number Delta refuses a write. With the number of the whole batch Delta would skip the write silently,
            # because the step that has just been written has a higher number.
            self._session.conf.unset(NUMBER_CONF)

    def run(self, function: BatchFunction, batch: DataFrame, batch_id: int) -> None:
        """Runs a batch function with the turn's token; runs it again when a writer that takes no turns commits first."""
        for _ in range(CONFLICTS_MAX):
            self._steps = 0
            try:
                with self._writing(0, IMPLICIT):
                    function(batch, batch_id)
                return
            except StatementConflict as conflict:
                self._held.note_conflict(", ".join(self._tables), IMPLICIT, str(conflict))
        raise Unavailable(
            f"the tables were changed {CONFLICTS_MAX} times by writers that take no turns while the batch was written; what is "
            "not in the table was not written",
            advice="Let those writers take turns on this lock, or stop them, and run the job again",
        )

    def put(self, staged: Staged) -> None:
        """Commits the one statement of a batch that was computed before the turn.

        Raises:
            InvalidRequest: it changes a table that this job does not name; nothing was written.
        """
        table = self._held_name(staged.dml.table)
        held = self._held

        def statement(token: WriteToken) -> None:
            publisher(self._session).finish(staged, token)

        held.write(table, step=0, name=IMPLICIT, statement=statement)

    def _held_name(self, location: str) -> TableLocation:
        """Returns the table's location as this job spells it."""
        wanted = plain(location)
        for table in self._tables:
            if plain(table) == wanted:
                return table
        raise InvalidRequest(
            "the batch changes a table that this job does not name, so it cannot be fenced; nothing was written",
            advice="Name it: JobCoordinator(…, tables=[…])",
            table=location,
        )

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Wraps the turn's writes that are in no step of their own."""
        with self._writing(0, IMPLICIT):
            yield

    @contextmanager
    def _writing(self, step: int, name: str) -> Iterator[None]:
        applied = frozenset(
            plain(table) for table in self._tables if self._held.begin_step(table, step=step, name=name)
        )
        token, gate = self._held.token(step, name), Gate(self._session)
        since = {plain(table): self._held.seen(table) for table in self._tables}
        strays = {table: gate.strays(table) for table in self._tables}
        gate.forget_untokened()
        write = TurnWrite(session=self._session, token=token, since=since, applied=applied)
        try:
            with single_write(self._session, token), entered(write):
                yield
        except Exception as error:
            raise_refusal(error)
            raise
        gate.raise_untokened()  # also if the code has caught the refusal
        for table in self._tables:
            self._held.end_step(table, step=step, name=name)
            if gate.strays(table) > strays[table]:
                self._held.note_stray(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The result of the user's function for a batch, before its turn."""

    statement: Staged | None
    seen: Mapping[TableLocation, Version]
    """Versions of the job's tables before the function ran."""


class Job:
    """A job's handle on its turns; `lakegate.JobCoordinator` is made of it.

    Within a function wrapped by `coordinated` and run by `supervise` the turn is the micro-batch's: `turn()`, `lock()` and
    `register()` show it, and `unlock()` leaves it to the supervisor, which gives it back when Spark's commit log is written.
    Elsewhere they take and give back a turn of their own.
    """

    def __init__(
        self,
        spark: SparkSession,
        coordinator: Coordinator,
        log: DeltaTableLog,
        *,
        tables: Sequence[TableLocation],
    ) -> None:
        self._spark, self._coordinator, self._log = spark, coordinator, log
        self._tables = tuple(tables)
        self._batch_turn: Turn | None = None
        self._own_turn: Turn | None = None
        self._own_jobs: TurnJobs | None = None
        self._own_ends: ExitStack | None = None
        self._on_batch: OnBatch | None = None
        self._function: Coordinated | None = None
        self._ahead: Precomputed[_Computed] = Precomputed()
        self._is_looked_at = False

    @property
    def tables(self) -> tuple[TableLocation, ...]:
        """The tables that this job writes to."""
        return self._tables

    @property
    def name(self) -> str:
        """The job's name, unique on its lock."""
        return self._coordinator.job

    # ----------------------------------------------------------------------------------------- turns of its own

    @contextmanager
    def turn(self, batch_id: int | None = None, *, timeout: float | None = None) -> Iterator[Turn]:
        """Takes a turn around a block of code. The turn is completed at the block's end, or closed as unclean if the block raises.

        Args:
            batch_id: Number of the work, ascending. If a number is repeated, the steps that were written under it are skipped,
                by their tokens. None: one more than the last.
            timeout: Seconds to wait; the job's `lock.timeout` if None.

        Raises:
            TurnNotGranted: not in time; nothing was done.
            LostTurn: the turn was lost, and the Spark jobs that this thread had started in it were cancelled; what was written
                before stands.
        """
        if self._batch_turn is not None:
            yield self._batch_turn
            return
        if self._own_turn is not None:
            raise InvalidRequest("this job holds a turn already; a second one was not asked for")
        self.need_tables()
        token_id = job_token(self.name)
        held = self._coordinator.take(
            token_id=token_id, query_id=None, batch=batch_id, tables=self._tables, timeout_s=timeout
        )
        jobs = self._own_jobs = TurnJobs(self._spark)
        try:
            # The entry notices a loss before this line, because it checks that the turn is still held.
            with Gate(self._spark).acting(self.name), jobs.running():
                self._enter(held)
                number = self._next_batch(token_id) if batch_id is None else batch_id
                held.next_batch(number, None)
                self._own_turn = Turn(held, self._spark, self._tables)
                with self._own_turn.whole():
                    yield self._own_turn
        except BaseException as error:
            held.abandon(error)
            raise
        finally:
            self._own_turn = self._own_jobs = None
        held.complete()

    def turn_lost(self, reason: str) -> None:
        """Cancels the Spark jobs of a turn that this job took itself. Safe from any thread."""
        jobs = self._own_jobs
        if jobs is not None:
            jobs.cancel(reason)

    def lock(self, timeout: float | None = None) -> Turn:
        """Takes the turn and keeps it until `unlock`. Within a coordinated function: the micro-batch's turn.

        Raises:
            TurnNotGranted: not within `timeout` seconds; nothing was done. In a streaming query let it pass: a function that
                returns has, for Spark, processed its batch.
        """
        ends = ExitStack()
        turn = ends.enter_context(self.turn(timeout=timeout))
        if self._batch_turn is None:
            self._own_ends = ends
        return turn

    def register(self) -> str | None:
        """Returns the predecessor: the job whose turn was completed last. The turn was registered by the step that granted it."""
        turn = self._batch_turn or self._own_turn
        if turn is None:
            raise InvalidRequest("this job holds no turn", advice="Call lock() first")
        return turn.predecessor

    def unlock(self) -> bool:
        """Gives back the turn that `lock` took; returns whether this job held a turn.

        Within a coordinated function it leaves the turn to the supervisor, see the class.

        Raises:
            LostTurn: the turn was lost since; what was written before stands.
        """
        if self._batch_turn is not None:
            return True
        ends, self._own_ends = self._own_ends, None
        if ends is None:
            return False
        ends.close()
        return True

    def close(self) -> None:
        """Ends this run of the job."""
        self._coordinator.close()

    def _enter(self, held: HeldTurn) -> None:
        if not self._is_looked_at:
            for table in self._tables:
                refuse_lost(self._spark, self._log, table)
            self._is_looked_at = True
        for table in self._tables:
            if not held.enter(table):
                raise InvalidRequest(
                    f"{table} does not exist, and a first write that makes it could not be fenced; nothing was done",
                    advice="Make it first, empty: CREATE TABLE delta.`PATH` (…) USING delta",
                )

    def heads(self) -> Mapping[TableLocation, Version]:
        """Returns the current versions of the tables."""
        return {table: self._log.head(table) for table in self._tables}

    def need_tables(self) -> None:
        if not self._tables:
            raise InvalidRequest(
                f"{self.name} does not say which tables it writes to, so they cannot be fenced; nothing was done",
                advice='Name them: JobCoordinator(…, tables=["/lake/engagement"]), or job.coordinator.tables=/lake/engagement',
            )

    def _next_batch(self, token_id: str) -> int:
        stored = [self._log.read_tokens(table).tokens for table in self._tables]
        return (
            max((unpack(number).batch for ids in stored for one, number in ids.items() if one == token_id), default=-1)
            + 1
        )

    # -------------------------------------------------------------------------------------------- as a query

    def on_batch(self, function: Coordinated, batch: DataFrame, batch_id: int) -> None:
        """Handles the call of a coordinated function by Spark.

        Raises:
            InvalidRequest: the query is run neither by `supervise` nor by `start`.
        """
        if self._on_batch is None:
            raise InvalidRequest(
                f"the query of {self.name} takes turns only when lakegate.start(writer, job) or "
                "lakegate.supervise(make_query, job) runs it; nothing was written",
                advice="Replace writer.start() with lakegate.start(writer, job)",
            )
        self._function = function
        self._on_batch(batch, batch_id)

    @property
    def is_computed_ahead(self) -> bool:
        """Returns True if the turn covers the commit only."""
        return self._function is not None and self._function.coverage == "publish"

    def stage(self, batch: DataFrame, batch_id: int) -> None:
        """Runs the user's function before the turn, if the turn covers the commit only: computes its statement without a commit.

        Raises:
            InvalidRequest: the function wants to commit something else; nothing was written.
        """
        self._ahead.drop()
        if self.is_computed_ahead:
            self._ahead.hold(batch_id, self._compute(batch, batch_id))

    def _compute(self, batch: DataFrame, batch_id: int) -> _Computed:
        assert self._function is not None
        seen = self.heads()
        with collected(batch.sparkSession) as collector:
            self._function.function(batch, batch_id)
        return _Computed(statement=collector.staged, seen=seen)

    def run_batch(self, held: HeldTurn, batch: DataFrame, batch_id: int) -> None:
        """Runs the user's function on one micro-batch in the turn, or commits the statement that it computed before the turn."""
        assert self._function is not None
        computed: _Computed | None = None
        try:
            if self.is_computed_ahead:
                computed = self._ahead.take(batch_id)
                if computed is None or not self._holds(computed):
                    computed = self._compute(batch, batch_id)
            self._enter(held)
            self._batch_turn = Turn(held, batch.sparkSession, self._tables)
            if computed is None:
                self._batch_turn.run(self._function.function, batch, batch_id)
            elif computed.statement is not None:
                self._batch_turn.put(computed.statement)
        finally:
            self._batch_turn = None
            self._ahead.drop()

    def known(self) -> Version | None:
        """Returns the version of the computed statement's table, as far as this driver knows."""
        computed = self._ahead.now()
        if computed is None or computed.statement is None:
            return None
        return publisher(self._spark).base(computed.statement.dml).version

    def keep_up(self, *, before: Collection[str]) -> None:
        """Rebases the computed statement onto the commits that others have made to its table since."""
        self._ahead.update(self._followed)

    def _followed(self, computed: _Computed) -> _Computed:
        if computed.statement is None:
            return computed
        return replace(computed, statement=publisher(self._spark).follow(computed.statement))

    def _holds(self, computed: _Computed) -> bool:
        """Returns True if the tables that a batch read are unchanged, apart from its statement's own table."""
        own = None if computed.statement is None else plain(computed.statement.dml.table)
        read = [(table, since) for table, since in computed.seen.items() if plain(table) != own]
        return all(self._log.is_unchanged(table, since) for table, since in read)

    def attach(self, on_batch: OnBatch | None) -> None:
        """Sets the function that receives the query's batches while it runs; None: batches are refused."""
        self._on_batch = on_batch


class Coordinated:
    """A batch function that takes its turn: `lakegate.coordinated(function, job)` returns one for `foreachBatch`."""

    def __init__(self, function: BatchFunction, job: Job, *, coverage: Coverage = "exclusive") -> None:
        self.function, self.coverage, self._job = function, coverage, job

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self._job.on_batch(self, batch, batch_id)


class QueryWork:
    """The work of a query that the user creates: `Work` around `make_query`."""

    def __init__(self, make_query: Callable[[], DataStreamWriter], job: Job) -> None:
        self._make_query, self._job = make_query, job
        self._writer: DataStreamWriter | None = None
        job.need_tables()

    @property
    def checkpoint(self) -> str:
        if self._writer is None:
            self._writer = self._make_query()
        return location_of(self._writer)

    @property
    def turn_limit_batches(self) -> int:
        return 1 if self.is_computed_ahead else TURN_LIMIT_BATCHES

    @property
    def is_computed_ahead(self) -> bool:
        return self._job.is_computed_ahead

    def tables(self) -> tuple[TableLocation, ...]:
        return self._job.tables

    def prepare(self) -> None:
        """Does nothing: the user's code creates its tables."""

    def query(self, on_batch: OnBatch) -> DataStreamWriter:
        writer, self._writer = self._writer or self._make_query(), None
        self._job.attach(on_batch)
        return writer

    def stage(self, batch: DataFrame, batch_id: int, *, before: Collection[str]) -> None:
        self._job.stage(batch, batch_id)

    def known(self) -> object:
        return self._job.known()

    def keep_up(self, *, before: Collection[str]) -> None:
        self._job.keep_up(before=before)

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        self._job.run_batch(turn, batch, batch_id)
        return 0

    def drained(self) -> tuple[str, ...]:
        """Returns nothing: Lakegate does not know what the user's query reads."""
        return ()

    def has_sweep_work(self) -> bool:
        return False

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        """Is never called: there is no sweep work."""

    def idle_at(self) -> Mapping[TableLocation, Version]:
        return self._job.heads()
