"""Sums over turns, for metrics: a row is added once, and sums of parts of the ledger add up to the sums of the whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from lakegate.stored_json import Damaged, listed
from lakegate.telemetry.events import TurnEnded

BUCKETS_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the histograms."""


@dataclass(slots=True)
class Spans:
    """Times as a histogram with the bounds `BUCKETS_S`, and one count above them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Spans up to a bound and over the one before."""
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Adds one span."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spans:
        """Reads what `asdict` returned."""
        return cls([int(count) for count in listed(data["counts"])], float(data["sum_s"]))


@dataclass(slots=True)
class JobTotals:
    """The sums of one job."""

    outcomes: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    commits: int = 0
    unmet: dict[str, int] = field(default_factory=dict)
    held: Spans = field(default_factory=Spans)
    waited: Spans = field(default_factory=Spans)

    def add(self, row: TurnEnded) -> None:
        """Adds a turn. How long a turn was held that others closed, and waited for, is unknown."""
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
        self.batches += 0 if row.batches is None else row.batches[1] - row.batches[0] + 1
        self.commits += sum(map(len, row.versions.values()))
        for name, count in row.unmet.items():
            self.unmet[name] = self.unmet.get(name, 0) + count
        if row.granted_at_ms is not None and row.closed_by is None:
            self.held.add(max(0, row.released_at_ms - row.granted_at_ms) / 1000)
            self.waited.add(max(0, row.granted_at_ms - row.asked_at_ms) / 1000)


Totals = dict[tuple[str, str], JobTotals]
"""(lock, job) → its sums."""


def add_turns(totals: Totals, rows: Iterable[TurnEnded]) -> Totals:
    """Adds turns to the sums, and returns the sums."""
    for row in rows:
        totals.setdefault((row.lock, row.job), JobTotals()).add(row)
    return totals


def to_json(totals: Totals) -> dict[str, Any]:
    """Returns the sums of one or several locks, to be stored."""
    of_jobs = [{"lock": lock, "job": job, **asdict(sums)} for (lock, job), sums in sorted(totals.items())]
    return {"bounds_s": list(BUCKETS_S), "jobs": of_jobs}


def from_json(data: Mapping[str, Any]) -> Totals:
    """Reads what `to_json` returned.

    Raises:
        Damaged: The data are of another form, or have other bounds.
    """
    try:
        if listed(data["bounds_s"]) != BUCKETS_S:
            raise Damaged("the sums have other bounds")
        return {
            (one["lock"], one["job"]): JobTotals(
                outcomes={str(name): int(count) for name, count in one["outcomes"].items()},
                batches=int(one["batches"]),
                commits=int(one["commits"]),
                unmet={str(name): int(count) for name, count in one.get("unmet", {}).items()},
                held=Spans.from_json(one["held"]),
                waited=Spans.from_json(one["waited"]),
            )
            for one in listed(data["jobs"])
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"not the sums of turns: {error}") from error
