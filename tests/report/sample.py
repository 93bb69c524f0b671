"""Made-up report data from a seed: jobs that queue for one lock, write, and sometimes fail."""

from __future__ import annotations

from random import Random

from lakegate.report.data import (
    CommitRow,
    ComparedRun,
    Comparison,
    Ended,
    Fault,
    FaultKind,
    Outcome,
    ReportData,
    TurnRow,
    Write,
)

BEGIN_MS = 1_795_183_200_000
"""20 November 2026, 14:00 UTC."""

JOBS = ("Ingestion", "Mutation", "TTL")
TABLE = "engagement"
LOCK = "ENGAGEMENT_HVS_DATA"

REASONS = {
    Outcome.REPLAYED: "batch 4 was already in the table at version 9; written by epoch 6",
    Outcome.SWEPT: "3 kept requests tested against version 31",
    Outcome.GAVE_UP: "waits for Mutation: no turn since epoch 12; lock_timeout=5s",
    Outcome.FAILED: "a foreign OPTIMIZE won 20 times in a row",
    Outcome.LOST: "killed with signal 9; closed by Ingestion",
    Outcome.FENCED: "epoch 18 had begun when the commit of epoch 17 was tried",
}


def sample(
    seed: int = 1,
    *,
    turns: int = 41,
    pace_ms: int = 5_000,
    unusual_share: float = 0.15,
    pipeline: str = "engagement",
    jobs: tuple[str, ...] = JOBS,
    lock: str = LOCK,
    table: str = TABLE,
    reason: str | None = None,
    is_compared: bool = True,
) -> ReportData:
    """A history of `turns` turns on one lock, none of which overlap.

    Args:
        seed: Which history.
        turns: How many turns.
        pace_ms: Mean time that a turn holds the lock.
        unusual_share: How many of the turns do not simply complete.
        pipeline: Name of the pipeline.
        jobs: Names of the jobs, at least one; the first only adds rows.
        lock: Name of the lock.
        table: Name of the table.
        reason: The reason of every unusual turn, in place of one that suits.
        is_compared: Whether there is a comparison.
    """
    random = Random(seed)
    asked = {job: BEGIN_MS + random.randint(0, pace_ms // 4) for job in jobs}
    batches = dict.fromkeys(jobs, 0)
    rows: list[TurnRow] = []
    commits = [CommitRow(table=table, version=0, timestamp_ms=BEGIN_MS, job=jobs[0], epoch=1, operation="CREATE TABLE")]
    free_at, epoch, previous = BEGIN_MS + 200, 0, None
    while len(rows) < turns:
        job = min(jobs, key=lambda name: asked[name])
        ask = asked[job]
        outcome = random.choice(list(REASONS)) if random.random() < unusual_share else Outcome.COMPLETED
        why = (reason or REASONS[outcome]) if outcome in REASONS else None
        if outcome is Outcome.GAVE_UP:
            until = max(ask, free_at - random.randint(1, pace_ms))
            rows.append(
                TurnRow(
                    lock=lock,
                    job=job,
                    run=f"run-{job}",
                    asked_at_ms=ask,
                    released_at_ms=until,
                    outcome=outcome,
                    reason=why,
                )
            )
            asked[job] = until + random.randint(pace_ms, 2 * pace_ms)
            continue
        granted = max(ask, free_at) + random.randint(1, 12)
        held = max(40, round(random.lognormvariate(0, 0.6) * pace_ms))
        released = granted + held
        epoch += 1
        last = batches[job] + (random.randint(0, 2) if outcome is Outcome.COMPLETED else 0)
        writes = outcome in (Outcome.COMPLETED, Outcome.FAILED)
        versions: list[int] = []
        if writes:
            if random.random() < 0.3:
                versions.append(len(commits))
                commits.append(
                    CommitRow(
                        table=table,
                        version=len(commits),
                        timestamp_ms=granted + held // 6,
                        job=job,
                        epoch=epoch,
                        operation="LAKEGATE ENTRY",
                    )
                )
            for batch in range(batches[job], last + 1):
                added, removed = _effect(random, jobs.index(job))
                versions.append(len(commits))
                commits.append(
                    CommitRow(
                        table=table,
                        version=len(commits),
                        timestamp_ms=granted + held // 3 + batch - batches[job],
                        job=job,
                        epoch=epoch,
                        batch=batch,
                        step=("append", "mutate", "erase")[min(2, jobs.index(job))],
                        operation=("WRITE", "MERGE", "DELETE")[min(2, jobs.index(job))],
                        rows_added=added,
                        rows_removed=removed,
                    )
                )
        rows.append(
            TurnRow(
                lock=lock,
                job=job,
                epoch=epoch,
                query_id=f"query-{job}",
                run=f"run-{job}",
                batches=None if outcome is Outcome.SWEPT else (batches[job], last),
                predecessor=previous,
                asked_at_ms=ask,
                granted_at_ms=granted,
                first_write_at_ms=granted + held // 6 if writes else None,
                commit_log_at_ms=released - held // 20 if outcome is Outcome.COMPLETED else None,
                # Who is killed notes nothing; whose turn was taken over notes it late.
                released_at_ms={Outcome.LOST: None, Outcome.FENCED: released + pace_ms}.get(outcome, released),
                versions={table: tuple(versions)} if versions else {},
                outcome=outcome,
                reason=why,
            )
        )
        if random.random() < 0.04:
            commits.append(CommitRow(table=table, version=len(commits), timestamp_ms=released, operation="OPTIMIZE"))
        batches[job] = last + 1
        previous, free_at = job, released + random.randint(1, 8)
        asked[job] = released + random.randint(pace_ms // 2, 2 * pace_ms)
    return ReportData(
        pipeline=pipeline,
        made_at_ms=free_at + 60_000,
        machine="build-7, Linux 6.1, 2 cores, 24 GB",
        turns=tuple(rows),
        commits=tuple(commits),
        comparison=COMPARISON if is_compared else None,
    )


COMPARISON = Comparison(
    runs=(
        ComparedRun(
            name="with turns",
            about="In the stated order.",
            table=TABLE,
            batches=36,
            overlaps=0,
            killed=1,
            expected_rows=5_812,
            final_rows=5_812,
            writes=(
                Write(
                    job="Ingestion",
                    batch="0",
                    waited_since_ms=BEGIN_MS,
                    from_ms=BEGIN_MS + 2_000,
                    until_ms=BEGIN_MS + 9_000,
                    ended=Ended.WRITTEN,
                    versions=(1, 2),
                ),
                Write(
                    job="Mutation",
                    batch="0",
                    waited_since_ms=BEGIN_MS,
                    from_ms=BEGIN_MS + 9_000,
                    until_ms=BEGIN_MS + 40_000,
                    ended=Ended.SKIPPED,
                ),
            ),
        ),
        ComparedRun(
            name="without, careful",
            about="Each when it is ready.",
            table="engagement without, careful",
            batches=31,
            conflicts={"ConcurrentAppendException": 9, "ConcurrentDeleteReadException": 5},
            overlaps=22,
            killed=1,
            expected_rows=5_812,
            final_rows=5_797,
            faults=(
                Fault(kind=FaultKind.MISSING, rows=37),
                Fault(kind=FaultKind.DOUBLED, rows=15, version=1, job="Ingestion", at_ms=BEGIN_MS + 3_000),
                Fault(kind=FaultKind.ERASED, rows=4, version=1, job="Ingestion", at_ms=BEGIN_MS + 3_000),
                Fault(kind=FaultKind.UNKNOWN, rows=3, version=2, job="Mutation", at_ms=BEGIN_MS + 3_100),
                Fault(kind=FaultKind.WRONG, rows=8, version=2, job="Mutation", at_ms=BEGIN_MS + 3_100),
            ),
            writes=(
                Write(job="Ingestion", batch="0", from_ms=BEGIN_MS, until_ms=BEGIN_MS + 3_050, ended=Ended.KILLED),
                Write(
                    job="Mutation",
                    batch="0",
                    from_ms=BEGIN_MS + 1_000,
                    until_ms=BEGIN_MS + 3_000,
                    ended=Ended.CONFLICT,
                    error="ConcurrentAppendException",
                ),
            ),
        ),
    ),
)
"""One run that is right, and one with every kind of fault."""


def _effect(random: Random, place: int) -> tuple[int | None, int | None]:
    """Rows added and removed by a commit of a job: the first appends, the second changes, the others erase."""
    if place == 0:
        return random.randint(80, 900), 0
    if place == 1:
        changed = random.randint(1, 260)
        return changed, changed
    return 0, random.randint(1, 60)
