"""Order rules: for which jobs a job waits, why it waits, and what is wrong with a set of rules.

Rules for editors: a rule is data; `waits_for` is the only place that decides; every refusal carries its reason in words,
because `lakegate status` prints it. Source: docs/explanation/turns.md, "Order".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, assert_never


@dataclass(frozen=True, slots=True)
class NoRule:
    """First come, first served."""


@dataclass(frozen=True, slots=True)
class After:
    """Granted when the named jobs completed a turn since my last turn, or are idle, or have been absent for long."""

    jobs: tuple[str, ...]
    mode: Literal["any", "all"] = "all"


@dataclass(frozen=True, slots=True)
class Strict:
    """Granted when the last completed turn on the lock belongs to one of the named jobs; an empty history satisfies it.

    A turn that a person took by a command (`ADHOC`) is ignored, unless a rule names that job, or that job has a rule.
    """

    jobs: tuple[str, ...]


OrderRule = NoRule | After | Strict

ADHOC = "adhoc"
"""The job of turns that a person takes by a command (`lakegate requests`): no order rule of the streams applies to them."""

AGING_MS = 300_000
"""Five minutes of waiting raise the priority by one, unless a job sets another value: no job starves by default."""

CYCLES_MAX = 20
"""The maximum number of cycles that lint names: jobs that all wait for each other have too many to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The facts about a job that a rule may use."""

    done: int
    """Epoch of its last completed turn, 0 if none."""
    idle_since_ms: int | None
    completed_at_ms: int | None
    is_live: bool
    is_closed: bool
    """The job holds no turn, and its last turn was not lost."""
    is_paused: bool = False
    """A person has paused the job: it counts as absent at once, and takes no turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding of `order lint`."""

    severity: Literal["error", "warning"]
    job: str
    text: str


def predecessors(rule: OrderRule) -> tuple[str, ...]:
    """Returns the jobs that a rule names, in the order written."""
    match rule:
        case NoRule():
            return ()
        case After(jobs=jobs) | Strict(jobs=jobs):
            return jobs
        case _:
            assert_never(rule)


def waits_for(
    rule: OrderRule, job: str, views: Mapping[str, JobView], *, now_ms: int, absent_after_ms: int | None
) -> str | None:
    """Returns in words why `job` may not have the next turn; None if it may.

    Args:
        rule: The order rule of the job.
        job: The name of the job.
        views: The known facts of every job of the lock; a job that was never seen is missing.
        now_ms: Wall clock; used only for `absent`, on which no safety rests.
        absent_after_ms: How long a predecessor without a live run blocks the order; None for ever.
    """
    mine = views[job].done if job in views else 0
    match rule:
        case NoRule():
            return None
        case Strict(jobs=jobs):
            # Otherwise a ring of jobs would deadlock after such a turn: none of their rules names it.
            counts = {name for name in views if name != ADHOC or ADHOC in (job, *jobs)}
            last_done, last = max(((views[name].done, name) for name in counts), default=(0, ""))
            if last_done == 0 or last in jobs:
                return None
            paused = [name for name in jobs if name in views and views[name].is_paused]
            also = f"; {' and '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused" if paused else ""
            return f"waits for {' or '.join(jobs)}: the last completed turn was of {last} (epoch {last_done}){also}"
        case After(jobs=jobs, mode=mode):
            reasons = [
                _not_yet(name, views.get(name), mine, now_ms=now_ms, absent_after_ms=absent_after_ms) for name in jobs
            ]
            open_reasons = [reason for reason in reasons if reason is not None]
            if not open_reasons or (mode == "any" and len(open_reasons) < len(reasons)):
                return None
            return "waits for " + (" or " if mode == "any" else " and ").join(open_reasons)
        case _:
            assert_never(rule)


def _not_yet(name: str, view: JobView | None, mine: int, *, now_ms: int, absent_after_ms: int | None) -> str | None:
    """Returns why the predecessor `name` does not let this job go; None if it does."""
    if view is None:
        return f"{name}: never seen on this lock"
    if view.done > mine or view.idle_since_ms is not None:
        return None
    since = f"no turn since epoch {mine}" if mine else "no turn yet"
    if view.is_paused:
        # A paused job counts as absent at once; as with an absent job, its unfinished batch still blocks the order.
        return None if view.is_closed else f"{name}: {since}; it is paused, and its last turn was not finished"
    if view.is_live:
        return f"{name}: {since}"
    if not view.is_closed:
        return f"{name}: {since}, and its last turn was not finished"
    if absent_after_ms is not None and view.completed_at_ms is not None:
        if now_ms - view.completed_at_ms > absent_after_ms:
            return None
    return f"{name}: {since}, and it is not running"


class Claim(Protocol):
    """The urgency of a ticket."""

    @property
    def priority(self) -> int: ...

    @property
    def aging_ms(self) -> int | None: ...

    @property
    def asked_at_ms(self) -> int: ...


C = TypeVar("C", bound=Claim)


def ranked(claims: Sequence[C], at_ms: int) -> list[tuple[float, C]]:
    """Returns each claim with its rank (priority + waited / aging) at an instant, in serving order; ties keep their order.

    Args:
        claims: In the order in which they were requested.
        at_ms: An instant that the record names, not a clock reading: with different instants two processes could each let the
            other go first.
    """
    found, asked_ms = [], 0
    for claim in claims:
        # A later claim has not waited longer, whatever the clock of its machine shows: equal ranks keep the order of asking.
        asked_ms = max(asked_ms, claim.asked_at_ms)
        waited_ms = max(0, at_ms - asked_ms)
        found.append((claim.priority + (waited_ms / claim.aging_ms if claim.aging_ms else 0.0), claim))
    return sorted(found, key=lambda one: -one[0])


def rule_to_json(rule: OrderRule, absent_after_ms: int | None) -> dict[str, Any] | None:
    """Returns the rule in the form that the lock record stores; the same shape as in `lakegate.yml`."""
    match rule:
        case NoRule():
            return None
        case After(jobs=jobs, mode=mode):
            return {"after": {mode: list(jobs)}, "absent_after_ms": absent_after_ms}
        case Strict(jobs=jobs):
            return {"strict": list(jobs)}
        case _:
            assert_never(rule)


def rule_from_json(data: Mapping[str, Any] | None) -> tuple[OrderRule, int | None]:
    """Returns the rule and its `absent_after_ms` from the lock record.

    Raises:
        ValueError: not a rule of this format.
    """
    match data:
        case None:
            return NoRule(), None
        case {"after": {"any": [*jobs]}}:
            return After(tuple(jobs), "any"), data.get("absent_after_ms")
        case {"after": {"all": [*jobs]}}:
            return After(tuple(jobs), "all"), data.get("absent_after_ms")
        case {"strict": [*jobs]}:
            return Strict(tuple(jobs)), None
        case _:
            raise ValueError("not an order rule")


def describe(rule: OrderRule) -> str:
    """Returns the rule in the words of `lakegate.yml`."""
    match rule:
        case NoRule():
            return "first come, first served"
        case After(jobs=[job]):
            return f"after {job}"
        case After(jobs=jobs, mode=mode):
            return f"after {mode} of {', '.join(jobs)}"
        case Strict(jobs=jobs):
            return f"strict after {' or '.join(jobs)}"
        case _:
            assert_never(rule)


def lint(rules: Mapping[str, OrderRule], every_ms: Mapping[str, int | None]) -> list[Finding]:
    """Returns errors and costly settings in the rules of one lock: unknown names, cycles, the pace that `strict` forces.

    Args:
        rules: Job → its rule, for all jobs of the lock.
        every_ms: Job → its own pace; None for a job that runs on demand.
    """
    findings = []
    for job, rule in rules.items():
        for name in predecessors(rule):
            if name == job:
                findings.append(Finding(severity="error", job=job, text=f"{job} waits for itself"))
            elif name not in rules:
                findings.append(
                    Finding(
                        severity="error", job=job, text=f"{job} waits for {name}, and no job of this lock has that name"
                    )
                )
    # An `any` rule over several jobs is satisfied by the job outside the cycle, so only unavoidable waits count.
    needs = {
        job: tuple(name for name in predecessors(rule) if name in rules and name != job)
        for job, rule in rules.items()
        if isinstance(rule, After) and (rule.mode == "all" or len(rule.jobs) == 1)
    }
    for cycle in _cycles(needs):
        text = f"{' waits for '.join([*cycle, cycle[0]])}: on an empty history nobody can begin"
        findings.append(Finding(severity="error", job=cycle[0], text=text))
    findings += _strict_pace(rules, every_ms)
    return findings


def _cycles(needs: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Returns the cycles of the relation, each once and beginning with its smallest name; at most `CYCLES_MAX`."""
    found: set[tuple[str, ...]] = set()
    clear: set[str] = set()

    def walk(path: tuple[str, ...]) -> bool:
        """Returns True if no cycle can be reached; a job found clear once is clear on every path."""
        is_clear = True
        for name in needs.get(path[-1], ()):
            if len(found) >= CYCLES_MAX:
                return False
            if name in path:
                cycle = path[path.index(name) :]
                first = cycle.index(min(cycle))
                found.add(cycle[first:] + cycle[:first])
                is_clear = False
            elif name not in clear:
                is_clear = walk((*path, name)) and is_clear
        if is_clear:
            clear.add(path[-1])
        return is_clear

    for job in needs:
        if job not in clear:
            walk((job,))
    return sorted(found)


def _strict_pace(rules: Mapping[str, OrderRule], every_ms: Mapping[str, int | None]) -> list[Finding]:
    findings = []
    for job, rule in rules.items():
        if not isinstance(rule, Strict):
            continue
        named = [name for name in rule.jobs if name in rules]
        paces = [pace for name in named if (pace := every_ms.get(name)) is not None]
        mine = every_ms.get(job)
        if mine is not None and paces and min(paces) > mine:
            text = (
                f"{job} runs at the pace of {' or '.join(named)} ({min(paces) // 1000} s), not every {mine // 1000} s"
            )
            findings.append(Finding(severity="warning", job=job, text=text))
        others = sorted(set(rules) - set(rule.jobs) - {job})
        if others:
            text = f"{job} can be starved: each turn of {', '.join(others)} that comes last closes the door again; prefer after"
            findings.append(Finding(severity="warning", job=job, text=text))
    return findings
