"""A granted turn, from entering its first table to its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeVar, assert_never

from lakegate.effects import Steps
from lakegate.errors import CheckpointMismatch, Fenced, LakegateError, LostTurn, Unavailable, summary
from lakegate.ids import TableLocation, Version
from lakegate.ports import StatementConflict, WriteToken
from lakegate.telemetry.events import Noticed, Outcome, StepRepeated, StepWritten, TurnEnded
from lakegate.turns.effect_runner import EffectRunner, user_metadata
from lakegate.turns.protocol import protocol
from lakegate.turns.protocol.effects import RunStatement, StepMark
from lakegate.turns.protocol.fencing import Behind, FencedBy, NotApplied, Token, unpack
from lakegate.turns.protocol.lock_record import Mark
from lakegate.turns.protocol.protocol import Granted, GrantedTurn

R = TypeVar("R")
Statement = Callable[[WriteToken], None]
WITHOUT_LEASE_MS = 31_536_000_000
"""A year: with a store without leases a turn ends when it is given back, or when its process ends and the gate with it."""


class HeldTurn:
    """A granted turn: enters tables, writes steps, and then ends by `complete` or `abandon`."""

    def __init__(
        self,
        driver: EffectRunner,
        turn: GrantedTurn,
        granted: Granted,
        *,
        row: TurnEnded,
        is_sweep: bool,
        end_session: Callable[[], None],
        left_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._driver, self._turn, self._granted = driver, turn, granted
        self._row, self._is_sweep, self._end_session = row, is_sweep, end_session
        self._left_s = left_s
        self._gated: set[TableLocation] = set()
        self._gate_lock = threading.Lock()
        self._entered: set[TableLocation] = set()
        self._written: set[TableLocation] = set()
        self._versions: dict[str, list[int]] = {}
        self._batches: list[int] = []
        self._unmet: dict[str, int] = {}
        self._first_write_at_ms: int | None = None
        self._commit_log_at_ms: int | None = None
        self._is_replayed = False
        self._batch = -1
        self._offsets_sha256: str | None = None
        self._is_over = False
        self.acts_as: str = turn.job
        """The job name under which this process commits in the turn, for the gate."""
        self.needs_tokens = True
        """True if the gate refuses commits of this turn that change rows and carry no token of the turn."""

    @property
    def lock(self) -> str:
        """The name of the lock."""
        return self._driver.lock

    @property
    def job(self) -> str:
        """The job that holds the turn."""
        return self._turn.job

    @property
    def epoch(self) -> int:
        """The fencing token of this turn."""
        return self._turn.epoch

    @property
    def is_over(self) -> bool:
        """True if the turn was completed or abandoned. A lost turn is not over before that."""
        return self._is_over

    @property
    def predecessor(self) -> str | None:
        """The job whose turn was completed last before this turn; None on an empty history."""
        return self._granted.predecessor

    @property
    def waited_ms(self) -> int:
        """The milliseconds that the job waited for the turn."""
        return max(0, self._granted.since_ms - self._row.asked_at_ms)

    @property
    def versions(self) -> dict[str, tuple[int, ...]]:
        """Table → versions that this turn committed, in order; tables by their names, as several are entered at once."""
        return {table: tuple(versions) for table, versions in sorted(self._versions.items())}

    @property
    def unmet(self) -> Mapping[str, int]:
        """Expectation → records of this turn's batches that do not meet it."""
        return self._unmet

    def add_unmet(self, unmet: Mapping[str, int]) -> None:
        """Counts the records of a batch that do not meet an expectation; call it once for each batch, when it is written."""
        for name, count in unmet.items():
            self._unmet[name] = self._unmet.get(name, 0) + count

    @property
    def batch(self) -> int:
        """The micro-batch that is being written, -1 before the first."""
        return self._batch

    @property
    def batches_done(self) -> int:
        """The number of micro-batches that this turn has begun."""
        return len(self._batches)

    def check(self) -> None:
        """Raises `LostTurn` if this turn may have ended."""
        if self._is_over:
            raise LostTurn("this turn is over; nothing more was written")
        self._driver.check()
        self._driver.check_noted(Mark(self._turn.epoch, self._turn.nonce))

    def next_batch(self, batch: int, offsets_sha256: str | None) -> None:
        """Starts micro-batch `batch`: the following steps belong to it.

        Args:
            batch: Its number in the checkpoint.
            offsets_sha256: SHA-256 of the bytes of `offsets/<batch>`, hex; None without a checkpoint.
        """
        self.check()
        self._batch, self._offsets_sha256 = batch, offsets_sha256
        self._batches.append(batch)

    def enter(self, table: TableLocation, *, raises_own: bool = False) -> bool:
        """Makes `table` refuse every earlier turn, before the first read or write of it in this turn. Idempotent; several
        threads may enter different tables.

        Args:
            table: The path of the table.
            raises_own: The own id is raised in any case, see `plan_entry`.

        Returns:
            False if there is no such table: create it, empty, and then enter it. A first write that creates the table could
            not be fenced.

        Raises:
            Fenced: a later turn has entered the table.
            LostTurn: the record no longer names this turn.
        """
        if table in self._entered:
            return True
        self.check()
        self.let_through(table)
        entered = self._driver.run(
            protocol.enter_table(self._turn, table, is_written=table in self._written, raises_own=raises_own)
        )
        match entered:
            case protocol.Entered(version=version):
                if version is not None:
                    self._committed(table, version)
                self._entered.add(table)
                return True
            case protocol.NoTable():
                return False
            case FencedBy(epoch=epoch):
                raise Fenced(table=table, epoch=self.epoch, later_epoch=epoch)
            case protocol.NotHolder():
                raise LostTurn("the coordinator gave the turn to another run; nothing more was written", table=table)
            case _:
                assert_never(entered)

    @property
    def _gated_id(self) -> str | None:
        return self._turn.token_id if self.needs_tokens else None

    def let_through(self, table: TableLocation) -> None:
        """Opens the gate of this process for the table; heartbeats keep it open, the end of the turn closes it.

        Raises:
            Fenced: a later turn has entered the table.
        """
        gate, left_s = self._driver.ports.gate, self._left_s()
        if gate is None:
            return
        duration_ms = WITHOUT_LEASE_MS if left_s is None else max(0, int(left_s * 1000))
        with self._gate_lock:
            if not gate.grant(table, self.acts_as, self.epoch, duration_ms, self._gated_id):
                raise Fenced(table=table, epoch=self.epoch)
            self._gated.add(table)

    def extend(self, left_s: float) -> None:
        """Keeps the gate open for this many seconds from now, if the turn is not over. Safe from any thread."""
        gate = self._driver.ports.gate
        with self._gate_lock:
            for table in self._gated if gate is not None else ():
                assert gate is not None
                gate.grant(table, self.acts_as, self.epoch, max(0, int(left_s * 1000)), self._gated_id)

    def shut(self) -> None:
        """Closes the gate: this process commits nothing more in this turn. Safe from any thread."""
        gate = self._driver.ports.gate
        with self._gate_lock:
            for table in self._gated if gate is not None else ():
                assert gate is not None
                gate.revoke(table, self._turn.epoch)
            self._gated.clear()  # so that a concurrent heartbeat does not reopen it

    def write(self, table: TableLocation, *, step: int, name: str, statement: Statement) -> bool:
        """Runs `statement` once under the token of this step; returns False if an earlier run had applied the step.

        Args:
            table: Already entered.
            step: Number of this write within the batch, 0 to 127, rising.
            name: The name of the step; must be the same whenever the batch is repeated.
            statement: Makes at most one commit on `table`, with the given token. Raises `StatementConflict` on a conflict with a
                writer that takes no turns: the statement is then retried, up to 20 times, starting with a fresh read of the token.

        Raises:
            Fenced: a later turn has begun; the batch is not done.
            CheckpointMismatch: the table holds other work under this token, or a later batch.
            Unavailable: the conflicts did not end.
        """
        self.check()
        token = self._token(step)
        token.pack()  # refuse a number that does not fit before anything is written
        result = self._driver.run(
            protocol.write_step(table, self._turn.token_id, token, self._mark(name)),
            lambda effect: self._execute(effect, statement),
        )
        match result:
            case protocol.Written():
                self._note_written(table, token, name)
                return True
            case protocol.AlreadyApplied():
                self._is_replayed = True
                self._emit_step(table, name, None, is_applied_before=True)
                return False
            case _:
                raise self._refusal(table, name, result)

    def begin_step(self, table: TableLocation, *, step: int, name: str) -> bool:
        """Begins a step whose commit the caller makes itself, under `token`. Returns False if `table` holds the step already.

        In that case the stored number is raised to this turn's, so that stock Delta skips the statement, too.

        Raises:
            Fenced, CheckpointMismatch: As `write`.
        """
        self.check()
        token = self._token(step)
        result = self._driver.run(protocol.look(table, self._turn.token_id, token, self._mark(name)))
        if isinstance(result, NotApplied):
            self._driver.ports.log.prepare_write(table)
            return False
        if not isinstance(result, protocol.AlreadyApplied):
            raise self._refusal(table, name, result)
        self._is_replayed = True
        if self._driver.seen[table].tokens.get(self._turn.token_id, 0) < token.pack():
            self._entered.discard(table)
            self.enter(table, raises_own=True)
        return True

    def end_step(self, table: TableLocation, *, step: int, name: str) -> None:
        """Ends a step whose commit the caller made itself: the write counts only if no later turn had begun.

        Raises:
            Fenced: Delta may have skipped the write silently; the batch is not done.
        """
        fence = self._driver.run(protocol.check_fence(table, self._turn.token_id, self._turn.epoch))
        if fence is not None:
            raise self._refusal(table, name, fence)
        self._note_written(table, self._token(step), name)

    def seen(self, table: TableLocation) -> Version:
        """Returns the table version at which this turn last read the tokens."""
        return self._driver.seen[table].version

    def amend(self, table: TableLocation, *, name: str, statement: Statement) -> None:
        """Runs `statement`, which changes how a table stores its rows, under a step number above those in the table.

        Raises:
            Fenced: a later turn has begun.
            StatementConflict: a writer that takes no turns committed first; nothing was written.
        """
        self.check()
        stored = self._driver.ports.log.read_tokens(table).tokens.get(self._turn.token_id)
        before = Token(epoch=self._turn.epoch, batch=-1) if stored is None else unpack(stored)
        if before.epoch > self.epoch:
            raise Fenced(table=table, epoch=self.epoch, later_epoch=before.epoch)
        token = Token(epoch=self._turn.epoch, batch=before.batch, step=before.step + 1)
        said = user_metadata(self._turn.lock, self._turn.job, self.epoch, before.batch, name, None)
        statement(WriteToken(token_id=self._turn.token_id, number=token.pack(), user_metadata=said))
        fence = self._driver.run(protocol.check_fence(table, self._turn.token_id, self._turn.epoch))
        if fence is not None:
            raise self._refusal(table, name, fence)
        self._note_written(table, token, name)

    def token(self, step: int, name: str) -> WriteToken:
        """Returns the token that a statement of this step puts into its commit."""
        return WriteToken(
            token_id=self._turn.token_id,
            number=self._token(step).pack(),
            user_metadata=user_metadata(
                self._turn.lock, self._turn.job, self.epoch, self._batch, name, self._offsets_sha256
            ),
        )

    def _token(self, step: int) -> Token:
        return Token(epoch=self._turn.epoch, batch=self._batch, step=step)

    def _mark(self, name: str) -> StepMark:
        return StepMark(name=name, offsets_sha256=self._offsets_sha256)

    def _refusal(
        self,
        table: TableLocation,
        name: str,
        result: protocol.OtherWork | protocol.Conflicted | FencedBy | Behind,
    ) -> LakegateError:
        """Returns the error for a step that could not be written."""
        match result:
            case FencedBy(epoch=epoch):
                return Fenced(table=table, epoch=self.epoch, later_epoch=epoch)
            case protocol.OtherWork(found=found):
                same = "the same" if found.offsets_sha256 == self._offsets_sha256 else "other"
                return CheckpointMismatch(
                    f"batch {self._batch} of {self._turn.job} was written to {table} before, as step {found.name!r} with "
                    f"{same} offsets, and comes now as step {name!r}; nothing was skipped and nothing was written"
                )
            case Behind(stored_batch=stored):
                return CheckpointMismatch(
                    f"{table} holds batch {stored} of {self._turn.job}, and its checkpoint is at batch {self._batch}: the "
                    "checkpoint went back; nothing was skipped and nothing was written"
                )
            case protocol.Conflicted(attempts=attempts):
                return Unavailable(
                    f"{table} was changed {attempts} times by writers that take no turns while {self._turn.job} tried to "
                    f"write step {name!r}; nothing was written",
                    advice="Let those writers take turns on this lock, or stop them, and run the job again",
                )
            case _:
                assert_never(result)

    def _note_written(self, table: TableLocation, token: Token, name: str) -> None:
        """Records, after a fresh read, which version the step committed; none if it had nothing to write."""
        after = self._driver.seen[table]
        version = after.version if after.tokens.get(self._turn.token_id) == token.pack() else None
        if version is not None:
            self._committed(table, version)
        self._emit_step(table, name, version, is_applied_before=False)

    def _execute(self, effect: RunStatement, statement: Statement) -> Literal["done", "conflict"]:
        self.check()
        if self._first_write_at_ms is None:
            self._first_write_at_ms = self._driver.ports.clock.wall_ms()
        self._driver.ports.log.prepare_write(effect.table)
        try:
            statement(self.token(effect.token.step, effect.mark.name))
        except StatementConflict as conflict:
            self.note_conflict(effect.table, effect.mark.name, str(conflict))
            return "conflict"
        self._written.add(effect.table)
        return "done"

    def note_conflict(self, table: str, name: str, conflict: str) -> None:
        """Logs that a step conflicted with a writer that takes no turns, and is retried."""
        self._driver.ports.events.emit(
            StepRepeated(lock=self._turn.lock, job=self._turn.job, table=table, step=name, conflict=conflict)
        )

    def note_stray(self, table: TableLocation) -> None:
        """Logs that this driver committed to the table during the turn from a thread of no job."""
        text = (
            f"a thread of no job of this driver committed to {table} in the turn of {self._turn.job}; if the job's function "
            "started that thread, the commit is not exactly once: write there with batch.sparkSession"
        )
        self._driver.ports.events.emit(Noticed(job=self._turn.job, text=text))

    def _committed(self, table: TableLocation, version: int) -> None:
        self._written.add(table)
        versions = self._versions.setdefault(table, [])
        if version not in versions:
            versions.append(version)

    def _emit_step(self, table: TableLocation, name: str, version: int | None, *, is_applied_before: bool) -> None:
        self._driver.ports.events.emit(
            StepWritten(
                lock=self._turn.lock,
                job=self._turn.job,
                epoch=self.epoch,
                batch=self._batch,
                step=name,
                table=table,
                version=version,
                is_applied_before=is_applied_before,
            )
        )

    def commit_log_written(self) -> None:
        """Records when the query ended with its commit log written."""
        self._commit_log_at_ms = self._driver.ports.clock.wall_ms()

    def complete(self) -> None:
        """Gives the turn back after a clean end. Call only when the query has terminated with its commit log written.

        Raises:
            LostTurn: another process had closed the turn; the writes are kept, and the next run finds them.
            LakegateError: the record could not be changed. The writes are kept; the run ends, so that other jobs go on.
        """
        if self._is_over:
            return
        self._is_over = True
        self.shut()
        row = self._released()
        is_mine = self._give_back(protocol.complete(self._turn))
        outcome: Outcome = "swept" if self._is_sweep else "replayed" if self._is_replayed else "completed"
        self._end(row, outcome if is_mine else "lost", None)
        if not is_mine:
            raise LostTurn("the turn was closed by another run before it was completed; what was written stands")

    def abandon(self, error: BaseException | None) -> None:
        """Gives the turn back after any other end: one of its transactions may still run, so its id is marked in doubt."""
        if self._is_over:
            return
        self._is_over = True
        self.shut()
        row, was_mine = self._released(), True
        with contextlib.suppress(LakegateError):  # the error that ended the turn is the one to report
            was_mine = self._give_back(protocol.close_unclean(self._turn))
        is_lost = isinstance(error, LostTurn) or not was_mine
        outcome: Outcome = "fenced" if isinstance(error, Fenced) else "lost" if is_lost else "failed"
        # Ctrl-C carries no message.
        self._end(row, outcome, None if error is None else summary(error))

    def _give_back(self, steps: Steps[R]) -> R:
        """Runs the last piece of the protocol. If its outcome stays unknown, the session ends and any run closes the turn.

        No process returns to an ended turn: if the record still named this live session, other jobs, and this job's own next
        turn, would wait for it without end.
        """
        try:
            return self._driver.run(steps)
        except BaseException:
            self._end_session()
            raise

    def _released(self) -> TurnEnded:
        """Returns the ledger row with the release time. Taken before the release: afterwards the next turn may have begun."""
        clock = self._driver.ports.clock
        return replace(self._row, released_at_ms=clock.wall_ms(), released_up_ms=int(clock.monotonic_s() * 1000))

    def _end(self, row: TurnEnded, outcome: Outcome, reason: str | None) -> None:
        row = replace(
            row,
            outcome=outcome,
            reason=reason,
            batches=(self._batches[0], self._batches[-1]) if self._batches and not self._is_sweep else None,
            first_write_at_ms=self._first_write_at_ms,
            commit_log_at_ms=self._commit_log_at_ms,
            versions=self.versions,
            unmet=self._unmet,
        )
        self._driver.ports.events.emit(row)
