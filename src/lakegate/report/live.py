"""The live page of `lakegate status --web`: its frame, and the HTML and charts of one state, with every text escaped.

Rules for editors: nothing here reads or waits. A figure that is unknown is shown as unknown, with the reason and its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lakegate.ops.status import JobStatus, LockStatus
from lakegate.ops.stored_requests import AGES
from lakegate.redaction import printable
from lakegate.report import facts, parts, words
from lakegate.report.data import CommitRow, Outcome, TurnRow
from lakegate.report.html_file import Shown, asset, document, turns_section, unusual
from lakegate.report.parts import ReportTable

if TYPE_CHECKING:
    from lakegate.ops.inspection import DelayStatus, KeptStatus, LagStatus, SourceStatus

T = TypeVar("T")

TURNS_MAX = 200
"""More turns of a lock are not drawn; `lakegate report` draws all of them."""
ERRORS_MAX = 10
TEXT_MAX = 300
"""A longer text is cut off: one error must not fill the page."""

ADVICE = {
    Outcome.GAVE_UP: "See above who has the turn. If turns are regularly longer than the wait, raise coordinator.lock_timeout.",
    Outcome.FAILED: "The batch runs again. If it fails again, read the error in the log of the job's process.",
    Outcome.LOST: "Start the job if it is not running. Its batch runs again; nothing is lost.",
    Outcome.FENCED: "Nothing: the table refused the commit, and the batch runs again. If it recurs, find what pauses the process.",
}
"""Outcome → what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """The last answer to a question that may take seconds."""

    rows: Sequence[T] = ()
    at_ms: int | None = None
    """None: the first answer has not come yet."""
    note: str | None = None
    """Why there is no newer answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """All that the page shows at an instant."""

    pipeline: str
    at_ms: int
    locks: Sequence[LockStatus]
    turns: Mapping[str, Sequence[TurnRow]]
    """Lock → its last turns, as `last_turns`."""
    cut: Collection[str]
    """The locks that have earlier turns, too."""
    notes: Sequence[str]
    """Why a part of the state is older than `at_ms`."""
    lags: Answer[LagStatus]
    sources: Answer[SourceStatus]
    delays: Answer[DelayStatus]
    kept: Answer[KeptStatus]
    commits: Answer[CommitRow]


def page(pipeline: str) -> str:
    """Returns the frame of the page; `live.js` asks for its content again and again."""
    body = (
        '<p id="gone" role="alert" hidden></p>\n<div id="content"><p>Reading the state …</p>'
        "<noscript><p>The page updates itself with JavaScript. Without it, see: lakegate status</p></noscript></div>"
    )
    return document(
        title=f"{printable(pipeline)}: live",
        body=body,
        scripts=(asset("page.js"), asset("live.js")),
        style=asset("page.css") + asset("live.css"),
        policy="; connect-src 'self'; form-action 'none'",
    )


def last_turns(turns: Iterable[TurnRow]) -> tuple[dict[str, list[TurnRow]], set[str]]:
    """Returns lock → its last `TURNS_MAX` turns, in order; and the locks that have more."""
    locks = facts.by_lock(turns)
    cut = {lock for lock, rows in locks.items() if len(rows) > TURNS_MAX}
    return {lock: rows[-TURNS_MAX:] for lock, rows in locks.items()}, cut


def turns_drawn(state: LiveState) -> tuple[str, Shown]:
    """Returns the sections made of the ledger, and the charts and tables in them. They change only with the ledger."""
    noted = [instant for rows in state.turns.values() for instant in facts.instants(rows)]
    has_day = bool(noted) and not words.is_one_day(min(noted), max(noted))
    shown = Shown()
    section = turns_section(state.turns, shown, has_day=has_day, cut=state.cut)
    short = {lock: [_short(turn) for turn in rows] for lock, rows in state.turns.items()}
    table, number = unusual(short, ADVICE, rows_max=ERRORS_MAX, has_day=has_day, is_newest_first=True, advice=ADVICE)
    said = f"Of the turns in the timeline, {number:,} failed, gave up, were lost or fenced"
    said += f"; the last {ERRORS_MAX}:" if number > ERRORS_MAX else ":"
    errors = f"<p>{said}</p>{parts.scrolling(table, 'Errors')}" if number else "<p>None in the timeline.</p>"
    return printable(section + parts.section("errors", "Last errors", errors)), shown


def _short(turn: TurnRow) -> TurnRow:
    return replace(turn, job=_cut(turn.job), reason=None if turn.reason is None else _cut(turn.reason))


def content(state: LiveState, turns: str) -> str:
    """Returns the content of the page.

    Args:
        state: The state.
        turns: The sections of `turns_drawn`.
    """
    notes = "".join(f'<p class="bad">{_text(note)}</p>' for note in state.notes)
    now = "".join(_lock(place, lock, state.at_ms) for place, lock in enumerate(state.locks))
    head = f"""<header>
<p class="made">Lakegate, live · {words.day(state.at_ms)}, {words.clock(state.at_ms).partition(".")[0]} UTC</p>
<h1>{_text(state.pipeline)}</h1>
<p class="headline">{escape(_headline(state.locks))}</p>{notes}
</header>
<main>
"""
    sections = (
        parts.section("now", "Now", now or "<p>The pipeline has no stream and no lock.</p>"),
        turns,
        _behind(state),
        _kept(state.kept, state.at_ms),
        _statements(state.commits, state.at_ms),
    )
    return printable(f"{head}{''.join(sections)}</main>")


def _text(text: str) -> str:
    return escape(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


def _headline(locks: Sequence[LockStatus]) -> str:
    held = [f"{_cut(lock.holder.job)} has the turn on {_cut(lock.lock)}" for lock in locks if lock.holder is not None]
    waiting = sum(len(lock.queue) for lock in locks)
    late = sum(job.is_late for lock in locks for job in lock.jobs)
    said = [
        words.listed(held) if 0 < len(held) < 4 else f"{words.counted(len(held), 'turn')} in progress",
        f"{words.counted(waiting, 'job')} waiting",
        *([f"{words.counted(late, 'job')} late"] if late else []),
    ]
    return f"{'; '.join(said)}."


def _lock(place: int, lock: LockStatus, at_ms: int) -> str:
    held = lock.holder
    if held is None:
        holder = "<p>Nobody has the turn.</p>"
    else:
        batch = "a sweep" if held.batch is None else f"batch {held.batch}"
        dead = (
            ""
            if held.is_alive
            else ' <b class="bad">Its process is gone: the next job that asks closes the turn, and nothing is lost.</b>'
        )
        holder = (
            f'<p class="holder"><b>{_text(held.job)}</b> has had the turn for {words.span(max(0, at_ms - held.since_ms))} '
            f"(epoch {held.epoch}, {batch}, pid {held.pid} on {_text(held.host)}).{dead}</p>"
        )
    after = "next" if held is None else "next, if the turn ends now"
    following = "" if lock.next is None else f"<p>Comes {after}: <b>{_text(lock.next)}</b></p>"
    rows = [
        (one.job, words.span(max(0, at_ms - one.asked_at_ms)), one.reason)
        for one in sorted(lock.queue, key=lambda one: (one.job != lock.next, one.asked_at_ms))
    ]
    queue = _grid(f"queue-{place}", "Waiting jobs", ("Waits", "For", "Why"), rows) if rows else "<p>No job waits.</p>"
    doubt = "".join(
        f"<p>In doubt: {_text(token)} of epoch {epoch}; the next turn refuses what may still come of it.</p>"
        for token, epoch in lock.in_doubt
    )
    jobs = _grid(
        f"jobs-{place}",
        "Jobs",
        ("Job", "State", "Order", "Turns", "Last completed", "Due", "Lost turn"),
        [_job(job, at_ms) for job in lock.jobs],
        numeric=(3,),
    )
    return f"<h3>Lock {_text(lock.lock)}</h3>{holder}{following}{queue}{doubt}{jobs}"


def _job(job: JobStatus, at_ms: int) -> tuple[str, ...]:
    state = "running" if job.is_alive else "not running"
    if job.paused is not None:
        state = f"{_cut(job.paused)}, for {words.span(max(0, at_ms - (job.paused_since_ms or at_ms)))}"
    elif job.idle_since_ms is not None:
        state += f", idle for {words.span(max(0, at_ms - job.idle_since_ms))}"
    due = words.NOTHING
    if job.overdue_ms:
        due = f"overdue by {words.span(job.overdue_ms)}" + (", LATE" if job.is_late else "")
    elif job.every_ms is not None and job.completed_at_ms is not None and job.idle_since_ms is None:
        due = f"in {words.span(max(0, job.completed_at_ms + job.every_ms - at_ms))}"
    lost = words.NOTHING
    if job.lost is not None:
        lost = f"epoch {job.lost[0]}, " + ("sweep" if job.lost[1] is None else f"batch {job.lost[1]}")
    return (
        job.job,
        state,
        job.rule + (f", priority {job.priority}" if job.priority else ""),
        words.count(job.turns),
        _ago(job.completed_at_ms, at_ms),
        due,
        lost,
    )


def _behind(state: LiveState) -> str:
    rows: list[tuple[str, str]] = []
    for lag in state.lags.rows:
        rows += [(lag.job, f"how far it is behind is unknown: {lag.note}")] if lag.note is not None else []
        for topic in lag.topics:
            deleted = f"; {topic.deleted:,} were deleted unread" if topic.deleted else ""
            rows.append((lag.job, f"{words.counted(topic.behind, 'record')} of {topic.topic} to read{deleted}"))
    for source in state.sources.rows:
        rows += [(source.job, str(one)) for one in source.not_read]
        rows += [(source.job, f"{left.text} ({_ago(left.at_ms, state.at_ms)})") for left in source.left_out]
        rows += [(source.job, source.note)] if source.note is not None else []
    streams = _answered(
        (state.lags, state.sources),
        state.at_ms,
        _grid("sources", "Streams", ("Stream", "Not read yet"), rows)
        if rows
        else "<p>No stream is known to have left anything unread.</p>",
    )
    syncs = [
        (
            one.sync,
            *(
                ("unknown",) * 4
                if one.delay is None
                else (
                    "unknown" if one.delay.now_ms is None else words.span(one.delay.now_ms),
                    words.span(one.delay.p50_ms),
                    words.span(one.delay.p99_ms),
                    words.count(one.delay.changes),
                )
            ),
            words.count(one.dead_rows),
            one.note or words.NOTHING,
        )
        for one in state.delays.rows
    ]
    headings = ("Sync", "Delay now", "Median", "99 % within", "Changes, 15 min", "Set aside", "Note")
    table = _grid("syncs", "Syncs", headings, syncs, numeric=(1, 2, 3, 4, 5)) if syncs else "<p>No sync.</p>"
    body = f"<h3>Streams</h3>{streams}<h3>Syncs</h3>{_answered((state.delays,), state.at_ms, table)}"
    return parts.section("behind", "Lag and delay", body)


def _kept(kept: Answer[KeptStatus], at_ms: int) -> str:
    names = [*(f"Under {name}" for name, _ in AGES), "Older"]
    rows: list[tuple[str, ...]] = []
    for job in kept.rows:
        for one in job.kept:
            ages = [words.count(number) if number else words.NOTHING for number in one.ages.values()]
            rows.append((job.job, one.state, words.count(one.requests), *ages, _ago(one.oldest_ms, at_ms)))
        rows += [(job.job, job.note, *[words.NOTHING] * (len(names) + 2))] if job.note is not None else []
    headings = ("Stream", "State", "Number", *names, "The oldest")
    numeric = tuple(range(2, 3 + len(names)))
    table = (
        _grid("kept-table", "Requests and dead letters", headings, rows, numeric=numeric) if rows else "<p>None.</p>"
    )
    return parts.section("kept", "Kept requests and dead letters", _answered((kept,), at_ms, table))


def _statements(commits: Answer[CommitRow], at_ms: int) -> str:
    numbers = Counter((row.table, row.operation, row.job is not None) for row in commits.rows)
    last = {(row.table, row.operation): row.timestamp_ms for row in commits.rows}
    rows = [
        (
            table,
            operation,
            words.count(numbers[table, operation, True]),
            words.count(numbers[table, operation, False]),
            _ago(last[table, operation], at_ms),
        )
        for table, operation in sorted(last)
    ]
    headings = ("Table", "Operation", "In turns", "Outside of turns", "The last")
    table = _grid("statements-table", "Commits", headings, rows, numeric=(2, 3)) if rows else "<p>None yet.</p>"
    note = (
        "<p>The newest commits of each table. How far a statement was rebased (its level) is known only to the process that "
        "executed it: count it there with <code>lakegate.StatementMetrics</code>.</p>"
    )
    return parts.section("statements", "Commits by statement", note + _answered((commits,), at_ms, table))


def _answered(answers: Sequence[Answer[Any]], at_ms: int, body: str) -> str:
    """Returns the body with the age of the oldest answer in it, and why there is no newer one."""
    times = [answer.at_ms for answer in answers if answer.at_ms is not None]
    if len(times) < len(answers):
        return '<p class="age">Being asked …</p>'
    notes = "".join(f'<p class="bad">{_text(one.note)}</p>' for one in answers if one.note is not None)
    return f'{body}{notes}<p class="age">As of {words.span(max(0, at_ms - min(times)))} ago.</p>'


def _ago(then_ms: int | None, at_ms: int) -> str:
    return words.NOTHING if then_ms is None else f"{words.span(max(0, at_ms - then_ms))} ago"


def _grid(
    table_id: str, label: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = ()
) -> str:
    rows = [[_cut(cell) for cell in row] for row in rows]
    table = ReportTable(id=table_id, caption=label, headings=headings, rows=rows, numeric=numeric)
    return parts.scrolling(parts.grid(table), label)
