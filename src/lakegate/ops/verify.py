"""`lakegate verify`: checks that turns did not overlap and that every batch is in its table exactly once; from files alone.

Evidence comes from three independently written sources: the ledger (turns), the tables' logs (commits with their tokens),
and Spark's checkpoints (batches). Each is trusted only as far as the others agree. It may run while streams run: each source
is read before the source that is written earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lakegate.delta.commit_file import Commit
from lakegate.delta.local_files import LocalCheckpoint, LocalLog
from lakegate.telemetry.events import TurnEnded
from lakegate.turns.protocol.fencing import PREFIX, query_token, unpack

CUT_OFF = ("lost", "fenced")
"""Turns that others ended: their own record of the end is late, and the table refused their later writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A stream, and the table in which each of its batches leaves exactly one commit."""

    job: str
    lock: str
    table: str
    step: str
    """Name of the step that every batch has: `append`, or `store` on the request table."""
    checkpoint: LocalCheckpoint | None
    """None where it is not on this machine's disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that does not hold."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(kw_only=True)
class VerifiedTables:
    """The facts that were checked, the violations, and what could not be checked."""

    turns: int = 0
    commits: int = 0
    batches: int = 0
    violations: list[Violation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def broken(self, where: str, what: str) -> None:
        """Records a violation."""
        self.violations.append(Violation(where=where, what=what))


def verify(rows: Sequence[TurnEnded], streams: Sequence[Counted], logs: Mapping[str, LocalLog]) -> VerifiedTables:
    """Checks everything that the sources allow.

    Args:
        rows: The ledger, read before this is called.
        streams: The pipeline's streams.
        logs: Location → log, of every table that turns write to and that is on this machine's disk.

    Raises:
        Corrupt: A file breaks its format.
    """
    found = VerifiedTables()
    for lock in sorted({row.lock for row in rows}):
        _turns([row for row in rows if row.lock == lock], found)
    # Before the logs: a batch is in the commit log only after it is in its table.
    committed = {one.job: one.checkpoint.committed() for one in streams if one.checkpoint is not None}
    history: dict[str, list[Commit]] = {}
    for location, log in logs.items():
        history[location] = _log(location, log, found)
    _ledger_and_logs(rows, history, found)
    for stream in streams:
        if stream.table in history:
            _batches(stream, history[stream.table], committed.get(stream.job, []), found)
        else:
            found.unchecked.append(f"{stream.job}: {stream.table} is not on this machine's disk")
    return found


# -------------------------------------------------------------------------------------------------------------- turns


def _turns(rows: Sequence[TurnEnded], found: VerifiedTables) -> None:
    """Checks that no two turns of a lock overlap, and that epochs rise with time; by a clock that both turns used."""
    granted = sorted((row for row in rows if row.epoch is not None), key=lambda row: (row.epoch or 0, row.job))
    found.turns += len(granted)
    apart: list[str] = []
    for before, after in pairwise(granted):
        where = f"lock {after.lock}"
        if before.epoch == after.epoch:
            found.broken(where, f"epoch {after.epoch} was given to {before.job} and to {after.job}")
            continue
        begun_ms, ended_ms, next_ms = before.granted_up_ms, before.released_up_ms, after.granted_up_ms
        has_one_clock = bool(before.boot_id) and before.boot_id == after.boot_id  # not every system reports its boot
        if not has_one_clock or begun_ms is None or ended_ms is None or next_ms is None:
            if before.outcome not in CUT_OFF and (after.granted_at_ms or 0) < before.released_at_ms:
                apart.append(f"{_named(before)} and {_named(after)}")
        elif next_ms < begun_ms:
            found.broken(where, f"{_named(after)} was granted before {_named(before)}: epochs do not rise with time")
        elif before.outcome not in CUT_OFF and next_ms < ended_ms:
            found.broken(where, f"{_named(before)} and {_named(after)} overlap by {ended_ms - next_ms} ms")
    if apart:
        # Clocks of machines differ, and are set back: the epochs in the logs show whether turns kept apart.
        more = f", as do {len(apart) - 1} more pairs" if len(apart) > 1 else ""
        found.unchecked.append(
            f"lock {granted[0].lock}: {apart[0]} overlap by the times of two clocks{more}; clocks differ, so nothing follows"
        )


def _named(row: TurnEnded) -> str:
    return f"the turn of {row.job} (epoch {row.epoch})"


# --------------------------------------------------------------------------------------------------------------- logs


def _log(location: str, log: LocalLog, found: VerifiedTables) -> list[Commit]:
    """Returns the commits of one log; checks for versions without a gap, and epochs that never decrease."""
    commits = list(log.commits())
    found.commits += len(commits)
    if commits and commits[0].version > 0:
        found.unchecked.append(f"{location}: versions before {commits[0].version} were cleaned away")
    for before, after in pairwise(commits):
        if after.version != before.version + 1:
            missing = f"version {before.version + 1}"
            if after.version > before.version + 2:
                missing = f"versions {before.version + 1} to {after.version - 1}"
            found.broken(location, f"{missing} of the log missing, between {before.version} and {after.version}")
    highest: dict[str, tuple[int, Commit]] = {}
    last_lock: str | None = None
    for commit in commits:
        said = commit.user_metadata
        if said is None or not isinstance(said.get("epoch"), int):
            continue
        lock, epoch = str(said.get("lock")), int(said["epoch"])
        if lock != last_lock and lock in highest:
            # A table may be given to another lock for good; concurrent turns of two locks exclude nobody.
            found.broken(f"{location} version {commit.version}", f"written under the lock {lock} after {last_lock}")
        last_lock = lock
        top, at = highest.get(lock, (0, commit))
        if epoch < top:
            found.broken(
                f"{location} version {commit.version}",
                f"written by {said.get('job')} in epoch {epoch}, after version {at.version} of epoch {top}",
            )
        else:
            highest[lock] = (epoch, commit)
        numbers = [unpack(number).epoch for number in commit.tokens.values()]
        if any(number != epoch for number in numbers):
            found.broken(
                f"{location} version {commit.version}", f"says epoch {epoch}, and its token epoch {max(numbers)}"
            )
    return commits


def _ledger_and_logs(rows: Iterable[TurnEnded], history: Mapping[str, list[Commit]], found: VerifiedTables) -> None:
    """Checks that the commits that a turn recorded exist, and are its own."""
    turns: dict[tuple[str, int], list[TurnEnded]] = defaultdict(list)
    for row in rows:
        if row.epoch is not None:
            turns[row.lock, row.epoch].append(row)
    for location, commits in history.items():
        end = commits[-1].version if commits else -1
        for row in (row for same in turns.values() for row in same):
            for version in row.versions.get(location, ()):
                if version > end:
                    found.broken(location, f"{_named(row)} wrote version {version}, and the log ends before it")
        for commit in commits:
            said = commit.user_metadata or {}
            epoch = said.get("epoch")
            writers = {row.job for row in turns.get((str(said.get("lock")), epoch), ())} if epoch is not None else set()
            if writers and said.get("job") not in writers:
                found.broken(
                    f"{location} version {commit.version}",
                    f"written by {said.get('job')} in epoch {epoch}, which is a turn of {' and '.join(sorted(writers))}",
                )


# ------------------------------------------------------------------------------------------------------------ batches


def _batches(stream: Counted, commits: Sequence[Commit], committed: Sequence[int], found: VerifiedTables) -> None:
    """Checks that every batch of the stream is in its table exactly once, with the offsets of the checkpoint."""
    where = f"{stream.job} in {stream.table}"
    by_query: dict[str, dict[int, list[tuple[int, Any]]]] = defaultdict(lambda: defaultdict(list))
    for commit in commits:
        written = _batch_of(stream, commit)
        if written is not None:
            token_id, batch, offsets = written
            by_query[token_id][batch].append((commit.version, offsets))
    is_whole = not commits or commits[0].version == 0
    for batches in by_query.values():
        found.batches += len(batches)
        for batch, places in sorted(batches.items()):
            if len(places) > 1:
                versions = " and ".join(str(version) for version, _ in places)
                found.broken(where, f"batch {batch} is there {len(places)} times, in versions {versions}")
        first = 0 if is_whole else min(batches)
        if missing := sorted(set(range(first, max(batches) + 1)) - set(batches)):
            found.broken(where, f"{_listed(missing)} missing, though batch {max(batches)} is there")
    checkpoint = stream.checkpoint
    query_id = None if checkpoint is None else checkpoint.query_id()
    if checkpoint is None or query_id is None:
        if by_query:
            found.unchecked.append(
                f"{stream.job}: its checkpoint is not here, so its batches were not compared with it"
            )
        return
    there = by_query.get(query_token(query_id), {})
    _against_checkpoint(where, checkpoint, there, committed, found, is_whole=is_whole)


def _against_checkpoint(
    where: str,
    checkpoint: LocalCheckpoint,
    there: Mapping[int, Sequence[tuple[int, Any]]],
    committed: Sequence[int],
    found: VerifiedTables,
    *,
    is_whole: bool,
) -> None:
    reach = 0 if is_whole else min(there, default=None)
    cleaned = [batch for batch in committed if reach is None or batch < reach]
    if cleaned:
        found.unchecked.append(f"{where}: {_listed(cleaned)}: the log no longer reaches back to them")
    top = max(there, default=-1)
    # Batches below the highest one are reported already, as missing between others.
    if lacking := [batch for batch in committed if batch not in cleaned and batch > top]:
        found.broken(where, f"{_listed(lacking)} in the checkpoint's commit log, and not in the table")
    planned = checkpoint.planned()
    if top > max(planned, default=-1):
        found.broken(
            where,
            f"the table holds batch {top}, and the checkpoint ends with {max(planned, default=None)}: it went back",
        )
    unknown: list[int] = []
    for batch, places in sorted(there.items()):
        sha256 = checkpoint.offsets_sha256(batch)
        for version, offsets in places:
            if sha256 is None or offsets is None:
                unknown.append(batch)
            elif offsets != sha256:
                found.broken(
                    where,
                    f"batch {batch} (version {version}) was written from other offsets than the checkpoint has for it",
                )
    unknown = [batch for batch in unknown if batch <= max(planned, default=-1)]
    if unknown:
        found.unchecked.append(f"{where}: offsets of {_listed(unknown)}: Spark has cleaned them away")


def _batch_of(stream: Counted, commit: Commit) -> tuple[str, int, Any] | None:
    """Returns token id, number and digest of the offsets of the batch that a commit wrote, if it is the stream's counted step."""
    said = commit.user_metadata
    if said is None or said.get("job") != stream.job or said.get("step") != stream.step:
        return None
    for token_id, number in commit.tokens.items():
        if not token_id.startswith((f"{PREFIX}lock/", f"{PREFIX}job/")) and unpack(number).batch == said.get("batch"):
            return token_id, unpack(number).batch, said.get("offsets")
    return None


def _listed(batches: Sequence[int]) -> str:
    if len(batches) == 1:
        return f"batch {batches[0]}"
    if list(batches) == list(range(batches[0], batches[-1] + 1)):
        return f"batches {batches[0]} to {batches[-1]}"
    return f"batches {', '.join(map(str, batches))}"
