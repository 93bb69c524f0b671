"""Explores the turn protocol: every run of the real generators in a small world, with every fault at every place.

The search is breadth first, so the trace of a violation is a shortest one. From every state reached there must be a way to
the end once faults stop.

    python -m harness.simulator            every scenario, as a table
    python -m harness.simulator NAME ...   some, with traces
"""

from __future__ import annotations

import fnmatch
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.processes import Label, Processes
from harness.transitions import after as transitions_from
from harness.worlds import Scenario, State, Violation, completed_by
from lakegate.turns.protocol.lock_record import LockRecord

STATES_MAX = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of exploring a scenario."""

    violation: str
    """Empty if every run is right."""
    trace: tuple[str, ...]
    """A shortest way to the violation."""
    states: int
    transitions: int
    cpu_s: float

    def is_expected(self, scenario: Scenario) -> bool:
        """Returns whether this is the result that the scenario is made to show."""
        return scenario.expects in self.violation if scenario.expects else not self.violation


@contextmanager
def planted(module: Any, name: str, value: Any) -> Iterator[None]:
    """Plants a bug for the time of a block: replaces an attribute of a module."""
    real = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, real)


def explore(scenario: Scenario, *, states_max: int = STATES_MAX) -> Outcome:
    """Visits every state that the scenario can reach, until the first violation."""
    # Exploring keeps all its objects, and garbage collection over millions of tuples takes half the time.
    gc.disable()
    try:
        return _explore(scenario, states_max)
    finally:
        gc.enable()


def _explore(scenario: Scenario, states_max: int) -> Outcome:
    began_at_s = time.process_time()
    world = Processes(scenario)
    first = world.first()
    numbers: dict[State, int] = {first: 0}
    states: list[State] = [first]
    origins: list[tuple[int, Label]] = [(-1, ("", ""))]
    before: list[list[int]] = [[]]
    """State → the states that lead to it without a fault."""
    ends: list[int] = []
    transitions = 0

    def outcome(violation: str, at: int, *last: Label) -> Outcome:
        labels = list(last)[::-1]
        while at > 0:
            at, label = origins[at]
            labels.append(label)
        trace = tuple(_words(world, label) for label in reversed(labels)) if violation else ()
        return Outcome(
            violation=violation,
            trace=trace,
            states=len(states),
            transitions=transitions,
            cpu_s=time.process_time() - began_at_s,
        )

    at = 0
    while at < len(states):
        state = states[at]
        if world.is_end(state):
            ends.append(at)
        if world.is_halted(state):
            at += 1
            continue
        has_next = False
        try:
            world.check(state)
            for label, reached, is_fault in transitions_from(world, state):
                transitions += 1
                number = numbers.get(reached)
                if number is None:
                    number = numbers[reached] = len(states)
                    states.append(reached)
                    origins.append((at, label))
                    before.append([])
                if not is_fault and number != at:
                    before[number].append(at)
                    has_next = True
        except Violation as violation:
            return outcome(str(violation), at, world.doing)
        if not has_next and not world.is_end(state):
            return outcome("deadlock: nobody can go on, work is left", at)
        if len(states) > states_max:
            return outcome(f"not finished within {states_max} states", at)
        at += 1
    stuck = _cannot_end(before, ends)
    return outcome("", 0) if stuck is None else outcome("livelock: no way to finish", stuck)


def _cannot_end(before: list[list[int]], ends: list[int]) -> int | None:
    """Returns the first state from which no end can be reached without further faults."""
    can_end = bytearray(len(before))
    todo = list(ends)
    for number in todo:
        can_end[number] = 1
    while todo:
        for number in before[todo.pop()]:
            if not can_end[number]:
                can_end[number] = 1
                todo.append(number)
    stuck = can_end.find(0)
    return None if stuck < 0 else stuck


def _words(world: Processes, label: Label) -> str:
    who, what = label
    if not isinstance(what, str):
        before, after = world.records[what[0]], world.records[what[1]]
        assert after is not None
        what = _change(before, after)
    return f"{who}: {what}"


def _change(before: LockRecord | None, after: LockRecord) -> str:
    """Describes the change that a move made to the record."""
    if before is None:
        return f"creates the record, epoch {after.epoch}"
    if after.holder is not None and not before.is_held_by(after.holder.nonce):
        return f"is granted epoch {after.epoch}"
    if (completed := completed_by(before, after)) is not None:
        return f"completes the turn of {completed}"
    if before.paused != after.paused:
        return "pauses or resumes"
    if before.holder is not None and after.holder is None:
        return f"closes the turn of {before.holder.job} as lost"
    if before.tickets != after.tickets:
        return "asks" if len(after.tickets) >= len(before.tickets) else "takes its ticket back"
    if before.holder != after.holder:
        return "adds a table to its turn"
    if before.in_doubt != after.in_doubt or before.tables != after.tables:
        return "confirms the fence"
    jobs = [name for name, state in after.jobs.items() if before.job(name) != state]
    is_idle = any(after.job(name).idle_since_ms is not None for name in jobs)
    return f"notes {', '.join(jobs)} {'idle' if is_idle else 'done'}"


def main(arguments: list[str]) -> int:
    """Explores the named scenarios, or all; returns 0 if each has its expected result."""
    from harness.scenarios import SCENARIOS

    patterns = arguments or ["*"]
    is_wrong = False
    began_at_s = time.process_time()
    print(f"{'':11}{'scenario':28}{'states':>10}{'steps':>11}{'s':>7}  verdict")
    for scenario in SCENARIOS:
        if not any(fnmatch.fnmatch(scenario.name, pattern) for pattern in patterns):
            continue
        found = explore(scenario)
        is_right = found.is_expected(scenario)
        is_wrong |= not is_right
        verdict = f"{found.violation} (trace of {len(found.trace)})" if found.violation else "no violation"
        line = f"{scenario.name:28}{found.states:>10,}{found.transitions:>11,}{found.cpu_s:>7.1f}  {verdict}"
        print(f"{'' if is_right else 'UNEXPECTED':11}{line}", flush=True)
        if not is_right or (arguments and found.violation):
            print(*(f"{n:>14} {words}" for n, words in enumerate(found.trace, 1)), sep="\n", flush=True)
    print(f"{time.process_time() - began_at_s:.0f} s in all")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
