"""The report as one HTML file: everything is inlined, and its content policy forbids network access."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from types import MappingProxyType

from lakegate.report import charts, comparison, facts, parts, words
from lakegate.report.charts import Chart, Json
from lakegate.report.data import CommitRow, Outcome, ReportData, TurnRow
from lakegate.report.parts import ReportTable

UNUSUAL_ROWS_MAX = 200
"""More turns are not listed singly; the table of turns has them all."""

WHAT_TO_DO = '<th scope="col">What to do</th>'
OUTCOME_MEANINGS = {
    Outcome.COMPLETED: "the work was done and the turn given back",
    Outcome.REPLAYED: "an earlier turn had already written the batch; it was not written twice",
    Outcome.SWEPT: "no new batch; kept requests were tested against the newest version",
    Outcome.GAVE_UP: "the turn was not granted in time; nothing was written",
    Outcome.FAILED: "the work raised an error; the batch runs again",
    Outcome.LOST: "the turn ended before the work did; the batch runs again",
    Outcome.FENCED: "a later turn had begun; the table refused the commit",
}
"""The text where the ledger has no reason."""

TURN_HEADINGS = (
    "Job",
    "Epoch",
    "Outcome",
    "Batches",
    "Steps",
    "Rows added",
    "Rows removed",
    "Commits",
    "Asked",
    "Waited",
    "While the lock was held by",
    "Predecessor",
    "Granted",
    "First write",
    "Commit log",
    "Released",
    "Held",
    "Reason",
)
COMMIT_HEADINGS = ("Version", "Time", "Job", "Operation", "Rows added", "Rows removed", "Epoch", "Batch", "Step")
SPREAD_HEADINGS = (
    "Job",
    "Turns",
    "Median wait",
    "95 % waited up to",
    "Longest wait",
    "Median hold",
    "95 % held at most",
    "Longest hold",
)


@dataclass(slots=True)
class Shown:
    """The charts and tables of the page, collected while its sections are written."""

    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, ReportTable] = field(default_factory=dict)

    def add(self, chart: Chart, *tables: ReportTable) -> None:
        """Adds a chart to the page, with the rows of its tables."""
        self.charts.append(chart)
        self.tables.update((table.id, table) for table in tables)

    def as_json(self) -> Json:
        """The data for `page.js`."""
        return {
            "charts": [chart.as_json() for chart in self.charts],
            "tables": [table.as_json() for table in self.tables.values()],
        }


def render(data: ReportData) -> str:
    """Returns the whole report as the text of an HTML file.

    Every text of `data` is escaped; the file opens from a disk, without a server and without a network.
    """
    known = [*facts.instants(data.turns), *(commit.timestamp_ms for commit in data.commits)]
    has_day = bool(known) and not words.is_one_day(min(known), max(known))
    locks, tables = facts.by_lock(data.turns), facts.by_table(data.commits)
    colours = charts.job_colours(facts.jobs(data))
    shown = Shown()
    sections = (
        _comparison(data, colours, tables),
        turns_section(locks, shown, has_day=has_day, tables=tables, in_words=data if data.comparison else None),
        _unusual(locks, has_day=has_day),
        _commits(tables, colours, shown, has_day=has_day),
        _durations(locks, shown),
    )
    return _page(data, "\n".join(section for section in sections if section), shown)


def _page(data: ReportData, body: str, shown: Shown) -> str:
    made = f"{words.day(data.made_at_ms)} at {words.minute(data.made_at_ms)} UTC on {escape(data.machine)}"
    return document(
        title=f"{data.pipeline}: turns and commits",
        body=f"""<header>
<p class="made">Lakegate report, made {made}</p>
<h1>{escape(data.pipeline)}</h1>
{_opening_words(data)}
</header>
<main>
<noscript><p>The charts, and the tables of single turns and commits, need JavaScript.</p></noscript>
{body}
</main>
<script type="application/json" id="report-data">{_script_data(shown.as_json())}</script>""",
        scripts=(asset("page.js"),),
        style=asset("page.css"),
    )


def document(*, title: str, body: str, scripts: Sequence[str], style: str, policy: str = "") -> str:
    """Returns a whole page that loads nothing: ECharts and the scripts are inlined, and the content policy names their hashes.

    Args:
        title: Text.
        body: HTML.
        scripts: JavaScript, executed in this order after ECharts.
        style: CSS.
        policy: Directives to add to the content policy.
    """
    inlined = (asset("vendor/echarts/echarts.min.js"), *scripts)
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in inlined)
    base = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    elements = "\n".join(f"<script>{text}</script>" for text in inlined)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{base}{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Lakegate">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
<p id="spoken" class="unseen" aria-live="polite"></p>
{elements}
</body>
</html>
"""


def _opening_words(data: ReportData) -> str:
    """Returns what the runs of an experiment showed, or else the turns in words."""
    if data.comparison:
        return f'<p class="headline">{escape(comparison.sentence(data.comparison))}</p>'
    return _turns_in_words(data, "headline")


def _turns_in_words(data: ReportData, kind: str) -> str:
    summary = f'<p class="summary">{escape(" ".join(facts.summary(data)))}</p>'
    return f'<p class="{kind}">{escape(facts.headline(data))}</p>\n{summary}'


def _comparison(data: ReportData, colours: Mapping[str, str], tables: Mapping[str, Sequence[CommitRow]]) -> str:
    if data.comparison is None:
        return ""
    places = {name: place for place, name in enumerate(tables)}
    opening = comparison.opening(data.comparison, colours=colours, places=places)
    about = "".join(f"<dt>{escape(run.name)}</dt><dd>{escape(run.about)}</dd>" for run in data.comparison.runs)
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.comparison.notes)
    return parts.section("comparison", "With turns, and without", f'{opening}\n<dl class="about">{about}</dl>{notes}')


def turns_section(
    locks: Mapping[str, Sequence[TurnRow]],
    shown: Shown,
    *,
    has_day: bool,
    cut: Collection[str] = (),
    tables: Mapping[str, Sequence[CommitRow]] = MappingProxyType({}),
    in_words: ReportData | None = None,
) -> str:
    """Returns the timeline of each lock, with its table.

    Args:
        locks: Lock → its turns, as `facts.by_lock`.
        shown: Takes the charts and tables.
        has_day: Times are shown with their day.
        cut: The locks that have earlier turns, too.
        tables: Table → the commits to which the turns lead.
        in_words: Describes the turns before the charts; None: that stands elsewhere.
    """
    if not locks:
        return parts.section("turns", "Turns", "<p>The ledger has no turn yet.</p>")
    written = _written(tables)
    blocks = [] if in_words is None else [_turns_in_words(in_words, "said")]
    blocks.append(_outcome_legend(locks))
    for place, (lock, turns) in enumerate(locks.items()):
        number = f"The last {len(turns):,} turns" if lock in cut else f"All {words.counted(len(turns), 'turn')}"
        table = _turn_table(f"turn-table-{place}", lock, turns, number, written, has_day=has_day)
        chart = charts.timeline(f"timeline-{place}", lock, turns, table_id=table.id)
        shown.add(chart, table)
        blocks += [f"<h3>Lock {escape(lock)}</h3>", parts.figure(chart), parts.folded(table)]
    return parts.section("turns", "Turns", "\n".join(blocks))


def _written(
    tables: Mapping[str, Sequence[CommitRow]],
) -> dict[tuple[str | None, int | None], list[tuple[str, CommitRow]]]:
    """Returns job and epoch → the commits of the turn with their anchors; first those of a batch, which a link is to show."""
    found: dict[tuple[str | None, int | None], list[tuple[str, CommitRow]]] = {}
    for place, commits in enumerate(tables.values()):
        for commit in commits:
            found.setdefault((commit.job, commit.epoch), []).append((comparison.anchor(place, commit.version), commit))
    return {turn: sorted(own, key=lambda item: item[1].batch is None) for turn, own in found.items()}


def _outcome_legend(locks: Mapping[str, Sequence[TurnRow]]) -> str:
    entries = [
        '<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true"><rect class="wait" y="4" width="14" height="6"/>'
        '<rect x="14" width="16" height="14" rx="1"/></svg> waited, then held the lock'
    ]
    for outcome, number in facts.outcomes(turn for turns in locks.values() for turn in turns).items():
        mark = charts.OUTCOME_MARKS[outcome]
        name = f"<b>{mark}</b> {outcome.words}" if mark else outcome.words
        entries.append(f"{parts.chip(charts.OUTCOME_COLOURS[outcome])} {name} <span>{words.count(number)}</span>")
    held = [facts.holds(turns) for turns in locks.values()]
    if any(hold.is_cut_off for lock in held for hold in lock):
        entries.append('<i class="chip cut"></i> ended by others, not by the job')
    if any(facts.overlapping(lock) for lock in held):
        entries.append(f"{parts.chip('var(--bad)')} <b>overlapped</b>, in the lane of the lock")
    return parts.legend(entries)


def _turn_table(
    table_id: str,
    lock: str,
    turns: Sequence[TurnRow],
    number: str,
    written: Mapping[tuple[str | None, int | None], Sequence[tuple[str, CommitRow]]],
    *,
    has_day: bool,
) -> ReportTable:
    held = facts.holds(turns)
    own = [[] if turn.epoch is None else written.get((turn.job, turn.epoch), []) for turn in turns]
    return ReportTable(
        id=table_id,
        caption=f"{number} on {lock}, as they came. Times are UTC. "
        "The epoch numbers the turns of a lock, from 1024 on: lower numbers are for holders of a lock record that was lost.",
        headings=TURN_HEADINGS,
        rows=[
            (
                turn.job,
                words.NOTHING if turn.epoch is None else str(turn.epoch),
                turn.outcome.words,
                words.between(*turn.batches) if turn.batches else words.NOTHING,
                ", ".join(
                    dict.fromkeys(commit.step for _, commit in commits if commit.step and commit.batch is not None)
                )
                or words.NOTHING,
                _sum(commit.rows_added for _, commit in commits),
                _sum(commit.rows_removed for _, commit in commits),
                _commits_in_words(turn, [commit for _, commit in commits]),
                words.clock(turn.asked_at_ms, has_day=has_day),
                words.span(turn.waited_ms),
                facts.named(facts.waited_for(turn, held)),
                turn.predecessor or words.NOTHING,
                words.clock(turn.granted_at_ms, has_day=has_day),
                _since_grant(turn, turn.first_write_at_ms),
                _since_grant(turn, turn.commit_log_at_ms),
                words.clock(turn.released_at_ms, has_day=has_day),
                words.span(facts.hold_ms(turn)),
                turn.remark or words.NOTHING,
            )
            for turn, commits in zip(turns, own, strict=True)
        ],
        title="{0}: {2}",
        numeric=(1, 5, 6, 9, 13, 14, 16),
        links=[commits[0][0] if commits else None for commits in own],
        link_column=TURN_HEADINGS.index("Commits"),
    )


def _sum(rows: Iterable[int | None]) -> str:
    known = [number for number in rows if number is not None]
    return words.count(sum(known)) if known else words.NOTHING


def _since_grant(turn: TurnRow, at_ms: int | None) -> str:
    if at_ms is None or turn.granted_at_ms is None:
        return words.NOTHING
    return f"+ {words.span(max(0, at_ms - turn.granted_at_ms))}"


def _commits_in_words(turn: TurnRow, commits: Sequence[CommitRow]) -> str:
    """Returns the versions that the turn committed, by the log if the ledger does not say: its run may have been killed."""
    versions: dict[str, Sequence[int]] = {
        table.rstrip("/").rsplit("/", 1)[-1]: own for table, own in turn.versions.items()
    }
    if not versions:
        tables = dict.fromkeys(commit.table for commit in commits)
        versions = {table: sorted(one.version for one in commits if one.table == table) for table in tables}
    return "; ".join(f"{table} {words.runs(own)}" for table, own in versions.items()) or words.NOTHING


def _unusual(locks: Mapping[str, Sequence[TurnRow]], *, has_day: bool) -> str:
    if not locks:
        return ""
    found, number = unusual(locks, set(Outcome) - {Outcome.COMPLETED}, rows_max=UNUSUAL_ROWS_MAX, has_day=has_day)
    if not number:
        return parts.section("unusual", "Unusual turns", "<p>None: every turn completed.</p>")
    note = f"<p>The last {UNUSUAL_ROWS_MAX:,} of {number:,}; the table of turns has them all.</p>"
    body = parts.scrolling(found, "Unusual turns")
    return parts.section("unusual", "Unusual turns", body if number <= UNUSUAL_ROWS_MAX else note + body)


def unusual(
    locks: Mapping[str, Sequence[TurnRow]],
    outcomes: Collection[Outcome],
    *,
    rows_max: int,
    has_day: bool,
    is_newest_first: bool = False,
    advice: Mapping[Outcome, str] = MappingProxyType({}),
) -> tuple[str, int]:
    """Returns the table of the last turns with one of these outcomes, by time over all locks, and the number of all such turns.

    Args:
        locks: Lock → its turns, as in the charts of `turns_section`.
        outcomes: The outcomes that are listed.
        rows_max: The maximum number of rows.
        has_day: Times are shown with their day.
        is_newest_first: The order of the rows.
        advice: Outcome → what to do; without it the column is left out.
    """
    found = [
        (place, row, turn)
        for place, turns in enumerate(locks.values())
        for row, turn in enumerate(turns)
        if turn.outcome in outcomes
    ]
    found.sort(key=lambda item: item[2].asked_at_ms if item[2].granted_at_ms is None else item[2].granted_at_ms)
    head = (
        '<th scope="col">Time, UTC</th><th scope="col">Job</th><th scope="col" class="number">Epoch</th>'
        f'<th scope="col">Outcome</th><th scope="col">Reason</th>{WHAT_TO_DO if advice else ""}<td></td>'
    )
    shown = found[-rows_max:][:: -1 if is_newest_first else 1]
    rows = "".join(_unusual_row(place, row, turn, has_day=has_day, advice=advice) for place, row, turn in shown)
    return f'<table id="unusual-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>', len(found)


def _unusual_row(place: int, row: int, turn: TurnRow, *, has_day: bool, advice: Mapping[Outcome, str]) -> str:
    at_ms = turn.asked_at_ms if turn.granted_at_ms is None else turn.granted_at_ms
    label = escape(f"Show {turn.job}, {turn.outcome.words}, in the timeline")
    target = f'data-chart="timeline-{place}" data-row="{row}"'
    cells = (
        f"<td>{words.clock(at_ms, has_day=has_day)}</td>",
        f"<td>{escape(turn.job)}</td>",
        f'<td class="number">{words.NOTHING if turn.epoch is None else turn.epoch}</td>',
        f'<td class="outcome">{parts.chip(charts.OUTCOME_COLOURS[turn.outcome])} {turn.outcome.words}</td>',
        f'<td class="reason">{escape(turn.reason or OUTCOME_MEANINGS[turn.outcome])}</td>',
        f'<td class="reason">{escape(advice[turn.outcome])}</td>' if advice else "",
        f'<td><button type="button" {target} aria-label="{label}">Show</button></td>',
    )
    return f"<tr>{''.join(cells)}</tr>"


def _commits(
    tables: Mapping[str, Sequence[CommitRow]], colours: Mapping[str, str], shown: Shown, *, has_day: bool
) -> str:
    if not tables:
        return ""
    written = {commit.job for commits in tables.values() for commit in commits}
    entries = [f"{parts.chip(colour)} {escape(job)}" for job, colour in colours.items() if job in written]
    if None in written:
        entries.append(f"{parts.chip(charts.OTHER_WRITER_COLOUR)} outside Lakegate")
    if any(commit.is_without_rows for commits in tables.values() for commit in commits):
        entries.append('<i class="dot"></i> no row counts: entry commits, OPTIMIZE and the like')
    blocks = [parts.legend(entries)]
    for place, (name, commits) in enumerate(tables.items()):
        table = _commit_table(place, name, commits, has_day=has_day)
        chart = charts.commits(f"commits-{place}", name, commits, colours=colours, table_id=table.id)
        shown.add(chart, table)
        blocks += [f"<h3>Table {escape(name)}</h3>", parts.figure(chart), parts.folded(table)]
    return parts.section("commits", "Commits", "\n".join(blocks))


def _commit_table(place: int, name: str, commits: Sequence[CommitRow], *, has_day: bool) -> ReportTable:
    return ReportTable(
        id=f"commit-table-{place}",
        caption=f"All {words.counted(len(commits), 'known version')} of {name}. Times are UTC.",
        headings=COMMIT_HEADINGS,
        rows=[
            (
                str(commit.version),
                words.clock(commit.timestamp_ms, has_day=has_day),
                commit.job or "outside Lakegate",
                commit.operation,
                words.count(commit.rows_added),
                words.count(commit.rows_removed),
                words.NOTHING if commit.epoch is None else str(commit.epoch),
                words.NOTHING if commit.batch is None else str(commit.batch),
                commit.step or words.NOTHING,
            )
            for commit in commits
        ],
        title="Version {0}: {3}",
        numeric=(0, 4, 5, 6, 7),
        anchors=[comparison.anchor(place, commit.version) for commit in commits],
    )


def _durations(locks: Mapping[str, Sequence[TurnRow]], shown: Shown) -> str:
    blocks = [
        "<p>A dot is a turn. The box holds the middle half of a job's turns; the line in it is the median, "
        "and the short line to the right of it the 95th percentile.</p>"
    ]
    for place, (lock, turns) in enumerate(locks.items()):
        table = _spread_table(f"spread-table-{place}", lock, turns)
        waits = [(turn.job, row, turn.waited_ms) for row, turn in enumerate(turns)]
        held = [(turn.job, row, facts.hold_ms(turn)) for row, turn in enumerate(turns)]
        figures: list[str] = []
        for chart_id, name, durations in (
            (f"waited-{place}", "time waited", waits),
            (f"held-{place}", "time held", held),
        ):
            lanes: dict[str, list[tuple[int, int]]] = {job: [] for job, _, _ in durations}
            for job, row, duration in durations:
                if duration is not None:
                    lanes[job].append((row, duration))
            if any(lanes.values()):
                own = charts.durations(chart_id, name, lanes, table_id=f"turn-table-{place}", spread_table_id=table.id)
                shown.add(own, table)
                figures.append(parts.figure(own))
        if figures:
            numbers = parts.scrolling(parts.grid(table), table.caption)
            blocks.append(f'<h3>Lock {escape(lock)}</h3><div class="pair">{"".join(figures)}</div>{numbers}')
    return parts.section("durations", "Waits and holds", "\n".join(blocks)) if len(blocks) > 1 else ""


def _spread_table(table_id: str, lock: str, turns: Sequence[TurnRow]) -> ReportTable:
    rows = []
    for job in dict.fromkeys(turn.job for turn in turns):
        own = [turn for turn in turns if turn.job == job]
        cells = [job, words.count(len(own))]
        for spread in (facts.spread(turn.waited_ms for turn in own), facts.spread(facts.hold_ms(turn) for turn in own)):
            quantiles = (spread.median, spread.p95, spread.longest) if spread else (None, None, None)
            cells += [words.span(quantile) for quantile in quantiles]
        rows.append(cells)
    return ReportTable(
        id=table_id,
        caption=f"Waits and holds on {lock}",
        headings=SPREAD_HEADINGS,
        rows=rows,
        numeric=tuple(range(1, len(SPREAD_HEADINGS))),
    )


def _script_data(value: Json) -> str:
    # Inside <script> a browser ends the element at "</script", even in JSON, so no "<" may occur.
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def asset(name: str) -> str:
    """Returns a file of this package as text."""
    # A browser hashes a script with plain line feeds, whatever line ends a checkout has.
    return files("lakegate.report").joinpath(name).read_bytes().decode().replace("\r\n", "\n")
