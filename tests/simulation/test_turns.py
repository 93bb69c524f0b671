"""The turn protocol explored: no run breaks an invariant, and every run can end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.jobs import Job
from harness.scenarios import QUICK, SCENARIOS
from harness.simulator import explore, main
from harness.worlds import Scenario
from lakegate.ids import JobName

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", QUICK)
def test_every_run_is_right(name: str) -> None:
    """Effects once, marked only if there, turns apart in the log, epochs rise, one live holder, order kept, no dead end."""
    scenario = BY_NAME[name]
    found = explore(scenario)
    assert found.is_expected(scenario), found


@pytest.mark.matrix
@pytest.mark.timeout(7200)
def test_the_whole_set(capsys: pytest.CaptureFixture[str]) -> None:
    """All scenarios; prints them as a table."""
    with capsys.disabled():
        print()
        assert main([]) == 0


def test_scenarios_are_named_once_and_there_are_enough() -> None:
    """No scenario hides another, and the set holds at least the 64 of the model that came before it."""
    assert len(BY_NAME) == len(SCENARIOS) >= 64
    assert set(QUICK) <= set(BY_NAME)


@pytest.mark.parametrize(
    "faults", [{"crash": 1}, {"expire": 1}, {"lost": 1}, {"fail": 1}, {"giveup": 1}, {"foreign": 1}]
)
def test_merging_steps_loses_no_verdict(faults: dict[str, int]) -> None:
    """Every effect as a step of its own reaches more states, and the same verdict."""
    job = Job(name=JobName("A"))
    coarse = Scenario(name="coarse", jobs=(job,), faults=faults)
    merged, fine = explore(coarse), explore(replace(coarse, is_fine=True))
    assert merged.violation == fine.violation == ""
    assert fine.states > merged.states


def test_exploring_is_deterministic() -> None:
    """The same scenario gives the same states and steps again."""
    first, second = explore(BY_NAME["crash"]), explore(BY_NAME["crash"])
    assert (first.states, first.transitions) == (second.states, second.transitions)


def test_a_reached_limit_is_reported() -> None:
    """A set that was not explored to its end is never reported as right."""
    found = explore(BY_NAME["crash"], states_max=100)
    assert "not finished" in found.violation
    assert not found.is_expected(BY_NAME["crash"])
