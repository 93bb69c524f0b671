"""The comparison of an experiment's runs: its lines in numbers, its sentence, and the picture of all runs on one time axis.

Rules for editors:
- Terminal and page show the same lines with the same words: both take them from `lines` and `sentence`.
- The lines of rows add up: from the expected rows, over what is missing and what is too much, to the rows in the table.
- The picture is HTML and CSS: a bar is a link, and it works without a script and at every width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lakegate.report import parts, words
from lakegate.report.data import ComparedRun, Comparison, Ended, Fault, FaultKind, Write

ADDED = (FaultKind.DOUBLED, FaultKind.ERASED, FaultKind.UNKNOWN)
"""Kinds of rows that a table has and should not have."""
NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four"}
BADGE_PERCENT = 6.5
"""The width of a badge on the time axis of a phone."""
TICKS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
TICKS_MAX = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the comparison: a label, and one text for each run."""

    label: str
    values: tuple[str, ...]
    kind: str = ""
    """`fault`: rows that differ; `sum`: a sum of the lines above; `verdict`: the last line."""


def lines(comparison: Comparison) -> list[Line]:
    """Returns the lines of the comparison, for the terminal and for the page."""
    runs = comparison.runs

    def line(label: str, values: Iterator[int], kind: str = "") -> Line:
        return Line(label=label, values=tuple(words.count(value) for value in values), kind=kind)

    found = [
        line("micro-batches written", (run.batches for run in runs)),
        line("jobs killed with kill -9", (run.killed for run in runs)),
        line("writes that overlapped", (run.overlaps for run in runs)),
        line("conflicts, repeated", (sum(run.conflicts.values()) for run in runs)),
        line("rows expected", (run.expected_rows for run in runs), "sum"),
        line("− missing", (run.rows(FaultKind.MISSING) for run in runs), "fault"),
    ]
    for kind in ADDED:
        if kind is not FaultKind.UNKNOWN or any(run.rows(kind) for run in runs):
            found.append(line(f"+ {kind.value}", (run.rows(kind) for run in runs), "fault"))
    found += [
        line("= rows in the table", (run.final_rows for run in runs), "sum"),
        line("of them with a wrong value", (run.rows(FaultKind.WRONG) for run in runs), "fault"),
        line("rows that differ in all", (run.differing_rows for run in runs), "sum"),
        Line(
            label="the table is",
            values=tuple("wrong" if run.differing_rows else "right" for run in runs),
            kind="verdict",
        ),
    ]
    return found


def sentence(comparison: Comparison) -> str:
    """Says in one sentence what the runs showed."""
    jobs = len({write.job for run in comparison.runs for write in run.writes})
    number = NUMBERS.get(jobs, str(jobs))
    killed = ", one killed in the middle" if any(run.killed for run in comparison.runs) else ""
    said = "; ".join(f"{run.name}: {_verdict(run)}" for run in comparison.runs)
    return f"{number} jobs on one table{killed} – {said}."


def _verdict(run: ComparedRun) -> str:
    if run.differing_rows:
        return words.counted(run.differing_rows, "row differs", "rows differ")
    return "the table is exactly the expected one"


def opening(comparison: Comparison, *, colours: Mapping[str, str], places: Mapping[str, int]) -> str:
    """Returns the table and the picture.

    Args:
        comparison: The runs.
        colours: Job → its colour.
        places: Table → the place that `anchor` takes.
    """
    return (
        f'<div class="opening"><div>{_table(comparison)}{_legend()}</div>{_picture(comparison, colours, places)}</div>'
    )


def anchor(place: int, version: int) -> str:
    """Returns the anchor of a commit: of a version of the table at this place of the section on commits."""
    return f"commit-{place}-{version}"


def _table(comparison: Comparison) -> str:
    head = "".join(f'<th scope="col" class="number">{escape(run.name)}</th>' for run in comparison.runs)
    body = "".join(_row(line, comparison.runs) for line in lines(comparison))
    table = f'<table id="comparison-table"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    return parts.scrolling(table, "The runs compared")


def _row(line: Line, runs: Sequence[ComparedRun]) -> str:
    cells = ""
    for value, run in zip(line.values, runs, strict=True):
        kind = ""
        if line.kind == "verdict":
            kind = " bad" if run.differing_rows else " good"
        elif line.kind == "fault" and value != "0":
            kind = " bad"
        cells += f'<td class="number{kind}">{escape(value)}</td>'
    return f'<tr class="{line.kind}"><th scope="row">{escape(line.label)}</th>{cells}</tr>'


def _legend() -> str:
    return parts.legend(
        [
            '<i class="swatch bar"></i> a job writes',
            '<i class="swatch waits"></i> waits for its turn',
            '<i class="swatch bar conflict"></i> conflict, repeated',
            '<i class="swatch bar killed"></i> killed with kill -9',
            '<i class="swatch at-once"></i> two write at once',
            '<b class="badge">1</b> brought rows that differ',
        ]
    )


def _picture(comparison: Comparison, colours: Mapping[str, str], places: Mapping[str, int]) -> str:
    begins = [min((_begin(write) for write in run.writes), default=0) for run in comparison.runs]
    ends = [max((write.until_ms for write in run.writes), default=0) for run in comparison.runs]
    span_ms = max(1, *(end - begin for begin, end in zip(begins, ends, strict=True)))
    jobs = list(dict.fromkeys(write.job for run in comparison.runs for write in run.writes))
    blocks = [
        _run(run, _Axis(begin, span_ms), jobs, colours, places.get(run.table))
        for run, begin in zip(comparison.runs, begins, strict=True)
    ]
    return f'<figure class="runs">{"".join(blocks)}{_scale(span_ms)}</figure>'


@dataclass(frozen=True, slots=True)
class _Axis:
    """The time axis of one run, which begins with its first write."""

    begin_ms: int
    span_ms: int

    def percent(self, at_ms: int) -> float:
        return 100 * (at_ms - self.begin_ms) / self.span_ms

    def style(self, from_ms: int, until_ms: int) -> str:
        return f"left:{self.percent(from_ms):.2f}%;width:{100 * (until_ms - from_ms) / self.span_ms:.2f}%"

    def seconds(self, at_ms: int) -> str:
        return f"{(at_ms - self.begin_ms) / 1000:.1f} s"


def _begin(write: Write) -> int:
    return write.from_ms if write.waited_since_ms is None else write.waited_since_ms


def _run(run: ComparedRun, axis: _Axis, jobs: Sequence[str], colours: Mapping[str, str], place: int | None) -> str:
    lanes = "".join(
        _lane(job, "".join(_bar(write, axis, colours, place) for write in run.writes if write.job == job))
        for job in jobs
    )
    at_once = "".join(f'<i class="at-once" style="{axis.style(*span)}"></i>' for span in overlapping(run.writes))
    if at_once:
        lanes += f'<div class="lane thin"><span class="who">at once</span><div class="track">{at_once}</div></div>'
    brought = _by_version(run.faults)
    marked = [faults for faults in brought if faults[0].at_ms is not None]
    lefts = spread([axis.percent(faults[0].at_ms or 0) for faults in marked])
    badges = "".join(
        f'<a class="badge" style="left:{left:.2f}%"{_href(place, faults[0].version)}>{number}</a>'
        for number, (faults, left) in enumerate(zip(marked, lefts, strict=True), start=1)
    )
    if badges:
        lanes += f'<div class="lane"><span class="who"></span><div class="track clear">{badges}</div></div>'
    listed = "".join(_item(faults, axis, place, number) for number, faults in enumerate(marked, start=1))
    listed += "".join(_item(faults, axis, place, None) for faults in brought if faults not in marked)
    kind = "bad" if run.differing_rows else "good"
    verdict = f'<span class="{kind}">{escape(_verdict(run))}</span>'
    about = f'<h3 title="{escape(run.about)}">{escape(run.name)}: {verdict}</h3>'
    return f'<div class="run">{about}{lanes}{f"<ul>{listed}</ul>" if listed else ""}</div>'


def _lane(name: str, bars: str) -> str:
    return f'<div class="lane"><span class="who">{escape(name)}</span><div class="track">{bars}</div></div>'


def _bar(write: Write, axis: _Axis, colours: Mapping[str, str], place: int | None) -> str:
    kind = {Ended.CONFLICT: " conflict", Ended.FAILED: " conflict", Ended.KILLED: " killed"}.get(write.ended, "")
    style = f"{axis.style(write.from_ms, write.until_ms)};--job:{colours.get(write.job, 'var(--job-other)')}"
    versions = f", version {words.runs(write.versions)}" if write.versions else ", no commit"
    error = f" ({write.error})" if write.error else ""
    said = (
        f"{write.job}, batch {write.batch}, {axis.seconds(write.from_ms)} to {axis.seconds(write.until_ms)}: "
        f"{write.ended.value}{error}{versions}"
    )
    waits = ""
    if write.waited_since_ms is not None:
        own = f"{axis.style(write.waited_since_ms, write.from_ms)};--job:{colours.get(write.job, 'var(--job-other)')}"
        waits = f'<i class="waits" style="{own}"></i>'
    target = _href(place, write.versions[0] if write.versions else None)
    text = escape(said)
    return f'{waits}<a class="bar{kind}" style="{style}" title="{text}" aria-label="{text}"{target}></a>'


def _href(place: int | None, version: int | None) -> str:
    return "" if place is None or version is None else f' href="#{anchor(place, version)}"'


def _by_version(faults: Sequence[Fault]) -> list[list[Fault]]:
    found: dict[int | None, list[Fault]] = {}
    for fault in sorted(faults, key=lambda fault: (fault.at_ms is None, fault.at_ms or 0, fault.kind)):
        found.setdefault(fault.version, []).append(fault)
    return list(found.values())


def _item(faults: Sequence[Fault], axis: _Axis, place: int | None, number: int | None) -> str:
    first = faults[0]
    rows = words.listed([f"{words.counted(fault.rows, 'row')} {fault.kind.value}" for fault in faults])
    if number is None or first.at_ms is None:
        return f"<li>no commit of the log shows {escape(rows)}</li>"
    by = f"{first.job} at {axis.seconds(first.at_ms)}" if first.job else f"at {axis.seconds(first.at_ms)}"
    return f'<li><b class="badge">{number}</b> <a{_href(place, first.version)}>{escape(by)}</a>: {escape(rows)}</li>'


def overlapping(writes: Sequence[Write]) -> list[tuple[int, int]]:
    """Returns the spans in which two or more writes went on, by their beginning, as milliseconds since 1970."""
    edges = sorted([(write.from_ms, 1) for write in writes] + [(write.until_ms, -1) for write in writes])
    found: list[tuple[int, int]] = []
    count, since = 0, 0
    for at_ms, step in edges:
        if count < 2 <= count + step:
            since = at_ms
        elif count + step < 2 <= count:
            found.append((since, at_ms))
        count += step
    return found


def spread(percents: Sequence[float]) -> list[float]:
    """Returns ascending places moved apart by at least the width of a badge, as near as possible to where they were."""
    found: list[float] = []
    for percent in percents:
        found.append(max(percent, found[-1] + BADGE_PERCENT) if found else percent)
    limit = 100.0
    for place in reversed(range(len(found))):
        found[place] = min(found[place], limit)
        limit = found[place] - BADGE_PERCENT
    return found


def _scale(span_ms: int) -> str:
    seconds = span_ms / 1000
    step = next((step for step in TICKS_S if seconds / step <= TICKS_MAX), TICKS_S[-1])
    ticks = "".join(
        f'<span style="left:{100 * at * 1000 / span_ms:.2f}%">{at} s</span>' for at in range(0, int(seconds) + 1, step)
    )
    return f'<div class="lane scale"><span class="who"></span><div class="track clear">{ticks}</div></div>'
