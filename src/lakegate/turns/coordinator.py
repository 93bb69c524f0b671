"""The job's side of the coordinator: registers the run, asks for turns, announces that the job is idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from lakegate.errors import LostTurn, TurnNotGranted
from lakegate.ids import Epoch, JobName, Nonce, TableLocation, TokenId, Version
from lakegate.telemetry.events import JobIdle, Noticed, TurnEnded, TurnGranted
from lakegate.turns.effect_runner import EffectRunner, Process, RunnerPorts
from lakegate.turns.heartbeat import Heartbeat
from lakegate.turns.ports import StoreSession
from lakegate.turns.protocol import protocol, transitions
from lakegate.turns.protocol.effects import Attempt
from lakegate.turns.protocol.lock_record import Holder, LockRecord
from lakegate.turns.protocol.protocol import CheckpointView, Granted, GrantedTurn, NotGranted, Order, SessionLost
from lakegate.turns.protocol.transitions import Sessions
from lakegate.turns.turn import HeldTurn

CLOCKS_APART_MS = 60_000
"""From this clock difference on, a warning is logged that two machines disagree about the time."""


class Coordinator:
    """A run of a job on a lock. Not thread-safe, except `cancel`.

    `known_epoch`: the highest epoch of the lock that is known from another source, such as the ledger.
    """

    def __init__(
        self,
        ports: RunnerPorts,
        *,
        lock: str,
        job: str,
        order: Order,
        process: Process,
        lock_timeout_s: float,
        on_lost: Callable[[str], None] = lambda reason: None,
        known_epoch: int = 0,
    ) -> None:
        self.lock, self.job, self.order = lock, JobName(job), order
        self.run = ports.randomness.uuid()
        """Names this run in the record and in the ledger."""
        self._ports, self._process, self._lock_timeout_s = ports, process, lock_timeout_s
        self._driver = EffectRunner(ports, lock=lock, job=self.job, process=process, check=self.check)
        self._on_lost, self._known_epoch = on_lost, known_epoch
        self._session: StoreSession | None = None
        self._heartbeat: Heartbeat | None = None
        self._turn: HeldTurn | None = None
        self._version_seen = 0
        self._has_told_clocks = False

    # ------------------------------------------------------------------------------------------- life of a run

    def open(self) -> None:
        """Registers this run as alive if it is not; registers it again if its session was lost while it had no turn.

        Raises:
            TurnNotGranted: another run of the job is alive.
        """
        if self._heartbeat is not None and self._heartbeat.is_lost() and (self._turn is None or self._turn.is_over):
            self.close()  # the session was lost between two turns: nothing else was lost
        if self._session is not None:
            return
        self._session = self._ports.store.open_session(self.lock, self.job)
        if self._process.jvm_pid is not None and self._process.jvm_start is not None:
            self._session.describe_jvm(self._process.jvm_pid, self._process.jvm_start)
        self._heartbeat = Heartbeat(
            self._session,
            lease_s=self._ports.store.lease_s,
            clock=self._ports.clock,
            on_lost=self._lost,
            on_alive=self._extend,
        )
        self._heartbeat.start()

    def _extend(self, left_s: float) -> None:
        turn = self._turn
        if turn is not None:
            turn.extend(left_s)

    def _lost(self, reason: str) -> None:
        turn = self._turn
        if turn is not None:
            turn.shut()
        self._on_lost(reason)

    def close(self) -> None:
        """Ends the run; a turn that is still held is closed as unclean."""
        if self._turn is not None:
            self._turn.shut()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._session is not None:
            self._session.close()
        self._session = self._heartbeat = None

    def cancel(self) -> None:
        """Ends a wait for the turn at its next wake-up, as if its timeout had passed. Safe from any thread."""
        self._driver.cancel()

    def begin(self, checkpoint: CheckpointView) -> LockRecord | None:
        """Cleans up after an earlier run of this job. Returns the record afterwards, None if there is none yet."""
        self.open()
        assert self._session is not None
        return self._driver.run(protocol.begin(self.job, checkpoint, self._session.id))

    def record(self) -> LockRecord | None:
        """Returns the current record of the lock."""
        return self._ports.store.read(self.lock).record

    def wait_for_change(self, timeout_s: float) -> None:
        """Returns soon after the record differs from the one at the last call, and after `timeout_s` at the latest."""
        self._ports.store.wait_for_change(self.lock, self._version_seen, max(0.0, timeout_s))
        self._version_seen = self._ports.store.read(self.lock).version

    def live(self) -> Sessions:
        """Returns the sessions that are alive on this lock now."""
        return self._ports.store.live_sessions(self.lock)

    def announce_idle(self, idle_at: Mapping[TableLocation, Version], *, run: str | None = None) -> None:
        """Records that the job has nothing left to do up to these table versions; `run` names its run until idle, if any."""
        self.open()
        assert self._session is not None
        record = self.record()
        was_idle = record is not None and record.job(self.job).idle_since_ms is not None
        said = self._driver.run(protocol.announce_idle(self.lock, self.job, self._session.id, self.order, idle_at, run))
        # Not recorded: another run of the job may be at work. A later version is written to the record, but not logged again.
        if said and not was_idle:
            shown = {str(table): int(version) for table, version in idle_at.items()}
            self._ports.events.emit(JobIdle(lock=self.lock, job=self.job, idle_at=shown))

    def find_work(self) -> None:
        """Withdraws the idle note before work is precomputed ahead of a turn: successors then wait for this job.

        Changes nothing if the session is lost; `take` reports the loss.
        """
        self.open()
        assert self._session is not None
        self._driver.run(protocol.find_work(self.job, self._session.id))

    def before(self) -> frozenset[JobName]:
        """Returns the jobs whose turns may come first: the holder, and waiting jobs unless this job precedes them."""
        record, now_ms = self.record(), self._ports.clock.wall_ms()
        if record is None:
            return frozenset()
        ended = record if record.holder is None else transitions.complete(record, now_ms=now_ms)
        first = transitions.first_to_go(ended, self.live(), now_ms)
        is_next = first is not None and first.job == self.job
        waiting = () if is_next else tuple(ticket.job for ticket in record.tickets)
        holding = () if record.holder is None else (record.holder.job,)
        return frozenset({*holding, *waiting} - {self.job})

    def leave(self, run: str) -> None:
        """Records that this job has left the run until idle, so that the other jobs do not wait for it.

        Raises:
            LostTurn: the store no longer counts this run as alive, and nothing was recorded.
        """
        self.open()
        assert self._session is not None
        if not self._driver.run(protocol.leave(self.job, self._session.id, run)):
            raise LostTurn(
                f"the coordinator no longer counts this run of {self.job} as alive, and the others wait for it"
            )

    # ----------------------------------------------------------------------------------------------- the turn

    def take(
        self,
        *,
        token_id: TokenId,
        query_id: str | None,
        batch: int | None,
        tables: tuple[TableLocation, ...],
        timeout_s: float | None = None,
    ) -> HeldTurn:
        """Returns the turn once it is granted.

        Args:
            token_id: The token id that the turn's commits will carry.
            query_id: The streaming checkpoint's id, None for a job without one.
            batch: The micro-batch for which the turn is taken; None without source data.
            tables: The tables that the turn will write to, as far as known.
            timeout_s: One deadline for the whole call; the job's `lock_timeout` if None.

        Raises:
            TurnNotGranted: not granted in time. The ticket is taken back.
            LostTurn: the store no longer counts this run as alive.
        """
        self.open()
        self.check()
        nonce = Nonce(self._ports.randomness.uuid())
        known = Epoch(max(self._known_epoch, 0 if self._turn is None else self._turn.epoch))
        attempt = Attempt(nonce=nonce, holder=self._holder(nonce, token_id, batch, tables), known_epoch=known)
        timeout_s = self._lock_timeout_s if timeout_s is None else timeout_s
        self._driver.limit(timeout_s)
        row = TurnEnded(
            lock=self.lock,
            job=self.job,
            epoch=None,
            query_id=query_id,
            run=self.run,
            batches=None,
            predecessor=None,
            asked_at_ms=self._ports.clock.wall_ms(),
            granted_at_ms=None,
            first_write_at_ms=None,
            commit_log_at_ms=None,
            released_at_ms=0,
            outcome="gave_up",
            boot_id=self._process.boot_id,
        )
        try:
            taken = self._driver.run(protocol.take_turn(self.lock, attempt, self.order))
        except BaseException:
            # The request must not stay as a ticket that blocks the others: the tickets of a dead session do not count.
            self.close()
            raise
        match taken:
            case Granted():
                waited_ms = max(0, taken.since_ms - row.asked_at_ms)
                if taken.behind_ms > CLOCKS_APART_MS and not self._has_told_clocks:
                    self._has_told_clocks = True
                    text = (
                        f"the clock of {self._process.host} is {taken.behind_ms / 60_000:.0f} minutes behind another's on the "
                        f"lock {self.lock}: turns and tables stay right, but absences and priorities are counted by clocks"
                    )
                    self._ports.events.emit(Noticed(job=self.job, text=text))
                self._ports.events.emit(
                    TurnGranted(
                        lock=self.lock,
                        job=self.job,
                        epoch=taken.epoch,
                        predecessor=taken.predecessor,
                        waited_ms=waited_ms,
                    )
                )
                turn = GrantedTurn(lock=self.lock, job=self.job, nonce=nonce, epoch=taken.epoch, token_id=token_id)
                granted_row = replace(
                    row,
                    epoch=taken.epoch,
                    predecessor=taken.predecessor,
                    granted_at_ms=taken.since_ms,
                    granted_up_ms=self._driver.looked_up_ms,
                )
                self._turn = HeldTurn(
                    self._driver,
                    turn,
                    taken,
                    row=granted_row,
                    is_sweep=batch is None,
                    end_session=self.close,
                    left_s=self._left_s,
                )
                return self._turn
            case NotGranted():
                reason = f"{taken.reason} (waited {timeout_s:g} s)"
                self._ports.events.emit(replace(row, released_at_ms=self._ports.clock.wall_ms(), reason=reason))
                held = taken.holder
                raise TurnNotGranted(
                    f"{self.job} was not given the turn on {self.lock} within {timeout_s:g} s, and nothing was written: "
                    f"{taken.reason}",
                    holder=held and held.job,
                    since_ms=held and held.since_ms,
                )
            case SessionLost():
                self.close()
                raise LostTurn(f"the coordinator no longer counts this run of {self.job} as alive; nothing was written")
            case _:
                assert_never(taken)

    def _holder(self, nonce: Nonce, token_id: TokenId, batch: int | None, tables: tuple[TableLocation, ...]) -> Holder:
        assert self._session is not None
        return Holder(
            nonce=nonce,
            session=self._session.id,
            job=self.job,
            run=self.run,
            host=self._process.host,
            boot_id=self._process.boot_id,
            pid=self._process.pid,
            pid_start=self._process.pid_start,
            jvm_pid=self._process.jvm_pid,
            jvm_start=self._process.jvm_start,
            token_ids=(token_id,),
            batch=batch,
            tables=tuple(sorted(tables)),
            since_ms=0,
        )

    def _left_s(self) -> float | None:
        return None if self._heartbeat is None else self._heartbeat.left_s()

    def check(self) -> None:
        """Returns when writing is allowed; waits while the store is unreachable.

        Raises:
            LostTurn: this run may have lost its lease.
        """
        if self._heartbeat is None:
            raise LostTurn("this run has ended; nothing more was written")
        self._heartbeat.check()
