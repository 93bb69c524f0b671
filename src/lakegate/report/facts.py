"""Computes facts from turns and commits: order, overlaps, waits, distributions, the summary in words."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakegate.report import words
from lakegate.report.data import CommitRow, Outcome, ReportData, TurnRow

CUT_OFF = frozenset({Outcome.LOST, Outcome.FENCED})
"""Outcomes of turns that others ended. Their holder notices later, so its own release time does not show who wrote: the table
refuses writes after the end."""

NAMED_HOLDERS_MAX = 3
"""The maximum number of named turns that a job waited for; a longer list adds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The time for which a turn held its lock, as far as it is known."""

    turn: TurnRow
    from_ms: int
    until_ms: int
    is_cut_off: bool
    """The end was not recorded by the turn: it is the next grant on the lock, or the last known instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of a set of durations in milliseconds; quantiles are durations that occurred (nearest rank)."""

    count: int
    shortest: int
    lower_quarter: int
    median: int
    upper_quarter: int
    p95: int
    longest: int


def in_order(turns: Iterable[TurnRow]) -> list[TurnRow]:
    """Returns the turns in order: by grant, and turns that were never granted by the time of giving up."""

    def came(turn: TurnRow) -> tuple[int, int, str, str]:
        at = turn.granted_at_ms if turn.granted_at_ms is not None else turn.released_at_ms
        return (turn.asked_at_ms if at is None else at, turn.epoch or 0, turn.lock, turn.job)

    return sorted(turns, key=came)


def instants(turns: Iterable[TurnRow]) -> list[int]:
    """Returns every instant in the turns, unordered."""
    noted = (
        instant
        for turn in turns
        for instant in (
            turn.asked_at_ms,
            turn.granted_at_ms,
            turn.first_write_at_ms,
            turn.commit_log_at_ms,
            turn.released_at_ms,
        )
    )
    return [instant for instant in noted if instant is not None]


def hold_ms(turn: TurnRow) -> int | None:
    """Returns how long the turn held its lock by its own times; none if others ended it, since it noticed that later."""
    return None if turn.outcome in CUT_OFF else turn.held_ms


def holds(turns: Sequence[TurnRow]) -> list[Hold]:
    """Returns the holds of one lock's turns, by their beginning; turns that were never granted have none."""
    granted = sorted(
        (turn for turn in turns if turn.granted_at_ms is not None),
        key=lambda turn: (turn.granted_at_ms, turn.epoch or 0),
    )
    last_known = max(instants(turns), default=0)
    found: list[Hold] = []
    for place, turn in enumerate(granted):
        begin = turn.granted_at_ms or 0
        following = granted[place + 1].granted_at_ms if place + 1 < len(granted) else None
        if turn.released_at_ms is not None and turn.outcome not in CUT_OFF:
            found.append(Hold(turn=turn, from_ms=begin, until_ms=max(begin, turn.released_at_ms), is_cut_off=False))
            continue
        bounds = [instant for instant in (turn.released_at_ms, following) if instant is not None]
        until = min(bounds) if bounds else last_known
        found.append(Hold(turn=turn, from_ms=begin, until_ms=max(begin, until), is_cut_off=True))
    return found


def overlapping(held: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """Returns pairs of holds that overlapped; an end in the millisecond in which the next begins is no overlap.

    A hold that was cut off ends at the next grant, and so never overlaps the next hold: the table refused its later writes. It
    may overlap an earlier hold that had not ended. Holds of two machines are never a pair: their clocks differ.
    """
    return [(first, then) for first, then in _overlapping_as_noted(held) if _did_overlap(first.turn, then.turn)]


def is_untold(held: Sequence[Hold]) -> bool:
    """Returns True if two holds overlap by the times of two clocks, which prove nothing."""
    return any(_had_two_clocks(first.turn, then.turn) for first, then in _overlapping_as_noted(held))


def _had_two_clocks(one: TurnRow, other: TurnRow) -> bool:
    return bool(one.boot_id and other.boot_id and one.boot_id != other.boot_id)


def _did_overlap(one: TurnRow, other: TurnRow) -> bool:
    """Compares by their common monotonic clock; if one names no machine, by the time of day, which overlaps already."""
    if _had_two_clocks(one, other):
        return False
    if not one.boot_id or not other.boot_id:
        return True
    if one.granted_up_ms is None or one.released_up_ms is None:
        return True
    if other.granted_up_ms is None or other.released_up_ms is None:
        return True
    return one.granted_up_ms < other.released_up_ms and other.granted_up_ms < one.released_up_ms


def _overlapping_as_noted(held: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    pairs: list[tuple[Hold, Hold]] = []
    going_on: list[tuple[int, int, Hold]] = []
    for place, hold in enumerate(held):
        while going_on and going_on[0][0] <= hold.from_ms:
            heapq.heappop(going_on)
        pairs.extend((other, hold) for _, _, other in going_on)
        heapq.heappush(going_on, (hold.until_ms, place, hold))
    return pairs


def waited_for(turn: TurnRow, held: Sequence[Hold]) -> list[TurnRow]:
    """Returns the turns that held the lock while `turn` waited, oldest first.

    Args:
        turn: A turn of the lock.
        held: All holds of the lock, by their beginning.
    """
    until = turn.released_at_ms if turn.granted_at_ms is None else turn.granted_at_ms
    if until is None:
        return []
    found: list[TurnRow] = []
    place = bisect_left(held, until, key=lambda hold: hold.from_ms)
    # Turns do not overlap, so the first turn found that ended before the question ends the search.
    while place > 0 and held[place - 1].until_ms > turn.asked_at_ms:
        place -= 1
        if held[place].turn is not turn:
            found.append(held[place].turn)
    return found[::-1]


def named(holders: Sequence[TurnRow]) -> str:
    """Returns `Ingestion 16, TTL 17` (job and epoch), at most three turns."""
    names = [f"{turn.job} {turn.epoch}" if turn.epoch is not None else turn.job for turn in holders]
    if len(names) > NAMED_HOLDERS_MAX:
        names = [*names[:NAMED_HOLDERS_MAX], f"{len(names) - NAMED_HOLDERS_MAX} more"]
    return ", ".join(names) or words.NOTHING


def spread(durations: Iterable[int | None]) -> Spread | None:
    """Returns the distribution of the known durations, or none if there is none."""
    known = sorted(duration for duration in durations if duration is not None)
    if not known:
        return None

    def at(percent: int) -> int:
        return known[max(0, -(-percent * len(known) // 100) - 1)]

    return Spread(
        count=len(known),
        shortest=known[0],
        lower_quarter=at(25),
        median=at(50),
        upper_quarter=at(75),
        p95=at(95),
        longest=known[-1],
    )


def by_lock(turns: Iterable[TurnRow]) -> dict[str, list[TurnRow]]:
    """Returns lock → its turns, in order; locks by name."""
    found: dict[str, list[TurnRow]] = {}
    for turn in in_order(turns):
        found.setdefault(turn.lock, []).append(turn)
    return dict(sorted(found.items()))


def by_table(commits: Iterable[CommitRow]) -> dict[str, list[CommitRow]]:
    """Returns table → its commits by version; tables by name."""
    found: dict[str, list[CommitRow]] = {}
    for commit in sorted(commits, key=lambda commit: (commit.table, commit.version)):
        found.setdefault(commit.table, []).append(commit)
    return found


def jobs(data: ReportData) -> list[str]:
    """Returns the jobs in the order of their first appearance, turns before commits."""
    names = [turn.job for turn in in_order(data.turns)]
    names += [commit.job for commit in sorted(data.commits, key=lambda commit: commit.timestamp_ms) if commit.job]
    return list(dict.fromkeys(names))


def outcomes(turns: Iterable[TurnRow]) -> dict[Outcome, int]:
    """Returns the number of turns for each outcome; outcomes that did not occur are left out."""
    counts = Counter(turn.outcome for turn in turns)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def headline(data: ReportData) -> str:
    """Returns the headline: how many turns, and whether two overlapped."""
    if not data.turns:
        return "No turn has been taken yet."
    names = list(dict.fromkeys(turn.job for turn in data.turns))
    took = f"{words.counted(len(names), 'job')} took {words.counted(len(data.turns), 'turn')}"
    noted = instants(data.turns)
    held = [holds(turns) for turns in by_lock(data.turns).values()]
    pairs = sum(map(len, map(overlapping, held)))
    verdict = f"{words.counted(pairs, 'pair')} of them overlapped" if pairs else "no two overlapped"
    if not pairs and any(map(is_untold, held)):
        verdict = "no two on one machine overlapped (of turns on two, their clocks prove nothing)"
    said = [f"{took} in {words.span(max(noted) - min(noted))}"]
    if len(data.turns) > 1:
        said.append(verdict)
    return f"{'; '.join(said)}."


def summary(data: ReportData) -> list[str]:
    """Returns the sentences under the headline: period, outcomes, durations and rows written."""
    sentences: list[str] = []
    if data.turns:
        sentences.append(f"{words.period(min(instants(data.turns)), max(instants(data.turns)))}.")
        sentences.append(_outcomes_in_words(data.turns))
        sentences.extend(_spreads_in_words(data.turns))
    sentences.append(_commits_in_words(data.commits))
    return sentences


def _outcomes_in_words(turns: Sequence[TurnRow]) -> str:
    counts = outcomes(turns)
    completed = counts.pop(Outcome.COMPLETED, 0)
    if not counts:
        return "Every turn completed." if len(turns) > 1 else "It completed."
    rest = words.listed([f"{number:,} {outcome.words}" for outcome, number in counts.items()])
    return f"{completed:,} completed, {rest}."


def _spreads_in_words(turns: Sequence[TurnRow]) -> list[str]:
    waits, held = spread(turn.waited_ms for turn in turns), spread(hold_ms(turn) for turn in turns)
    found: list[str] = []
    if waits:
        found.append(
            f"Half of the turns waited {words.span(waits.median)} or less, the longest {words.span(waits.longest)}."
        )
    if held:
        found.append(
            f"Half held the lock for {words.span(held.median)} or less, the longest for {words.span(held.longest)}."
        )
    return found


def _commits_in_words(commits: Sequence[CommitRow]) -> str:
    if not commits:
        return "No commit is known."
    tables = len({commit.table for commit in commits})
    added = sum(commit.rows_added or 0 for commit in commits)
    removed = sum(commit.rows_removed or 0 for commit in commits)
    foreign = sum(commit.job is None for commit in commits)
    by_others = f"; {words.counted(foreign, 'version')} came from writers outside Lakegate" if foreign else ""
    return (
        f"{words.counted(len(commits), 'version')} of {words.counted(tables, 'table')} "
        f"added {words.counted(added, 'row')} and removed {words.counted(removed, 'row')}{by_others}."
    )
