"""The recorded scenarios end in the target as they ended at the source, however they are cut, applied and delivered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.changes import changed_columns_only, key_only, random_cuts, scenarios
from tests.conftest import data_dir
from tests.syncs.target_databases import KINDS, begin, expected, fresh, lacks, state, sync

PATH = data_dir() / "cdc" / "scenarios.json"
SCENARIOS = {one.id: one for one in scenarios(PATH)} if PATH.is_file() else {}
KEYS = {"no-pk-unique-not-null": {"t": ("code",)}, "pk-composite-part": {"t": ("org", "eng")}}
WAYS = [
    # mode, parallelism, changes per batch, variant: together each value of each of them at least twice
    ("atomic", 1, 10_000, "whole"),
    ("atomic", 2, 1, "key_only"),
    ("atomic", 8, 3, "changed"),
    ("parallel", 1, 3, "key_only"),
    ("parallel", 2, 10_000, "changed"),
    ("parallel", 8, 1, "whole"),
    ("parallel", 8, 10_000, "key_only"),
]
LONG_BATCHES = 20
MORE_WAYS = [
    (mode, parallelism, changes_max, variant)
    for mode in ("atomic", "parallel")
    for parallelism in (1, 2, 8)
    for changes_max in (1, 2, 7, 10_000)
    for variant in ("whole", "key_only", "changed")
]
pytestmark = pytest.mark.data


def check(kind: str, name: str, way: tuple[str, int, int, str], request: pytest.FixtureRequest, plan: str) -> None:
    """Checks one scenario in one way."""
    if name in lacks(kind):
        pytest.skip(f"{kind} has no such table")
    scenario = SCENARIOS[name]
    database = fresh(kind, request)
    mode, parallelism, changes_max, variant = way
    if name.startswith("mix") and changes_max < LONG_BATCHES:
        changes_max *= LONG_BATCHES  # three hundred changes
    changes = begin(database, scenario)
    keys = KEYS.get(name, dict.fromkeys(scenario.tables, ("id",)))
    if variant == "key_only":
        changes = key_only(changes, keys)
    elif variant == "changed":
        changes = changed_columns_only(changes, keys)
    how = {"mode": mode, "parallelism": parallelism, "changes_max": changes_max, "plan": plan}
    for done in sync(database, changes, **how):
        # A complete plan needs no second try: a second try would hide a missing edge.
        assert done.complete is None or done.complete.retried_alone == 0
    assert state(database, scenario.tables) == expected(scenario)
    # The whole delivered again changes nothing.
    assert sync(database, changes, **how) == []
    assert state(database, scenario.tables) == expected(scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_as_at_the_source(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    """Modes, parallelism, batch sizes and what the images say, pairwise."""
    # A table that is made takes MariaDB as long as a batch: a few ways there, and all of them with the long tests.
    for way in WAYS[2::2] if kind == "mariadb" else WAYS:
        check(kind, name, way, request, "staged")


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("plan", ["staged", "conflict_queue"])
def test_a_scenario_ends_as_at_the_source_in_every_way(
    kind: str, name: str, plan: str, request: pytest.FixtureRequest
) -> None:
    """The same, all combinations."""
    for way in MORE_WAYS:
        check(kind, name, way, request, plan)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mix-1", "mix-2", "churn-alternating-owners", "uk-shift-up-50", "pk-composite-part"])
def test_the_conflict_queue_ends_the_same(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    """The published model as plan: all rows that share a value in one slot of their table."""
    for way in (("parallel", 8, 40, "whole"), ("parallel", 2, 10_000, "key_only"), ("atomic", 1, 7, "whole")):
        check(kind, name, way, request, "conflict_queue")


@pytest.mark.parametrize(
    "kind", [KINDS[0], pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.matrix]), KINDS[2]]
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_random_cuts_and_repeated_delivery_change_nothing(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    """What was delivered grows piece by piece, everything before is delivered again with it, and modes alternate."""
    if name in lacks(kind):
        pytest.skip(f"{kind} has no such table")
    scenario, chance = SCENARIOS[name], random.Random(name)
    database = fresh(kind, request)
    changes = begin(database, scenario)
    delivered = []
    for piece in random_cuts(changes, chance, pieces_max=12):
        delivered.extend(piece)
        sync(
            database, delivered, mode=chance.choice(["atomic", "parallel"]), parallelism=chance.choice([1, 2, 8]),
            changes_max=chance.choice([1, 5, 1000]),
        )  # fmt: skip
    assert state(database, scenario.tables) == expected(scenario)


def test_the_scenarios_are_all_there(cdc_data: Path) -> None:
    """Thirty-three; a scenario that is lost would be missed by nobody."""
    assert len(scenarios(cdc_data / "scenarios.json")) == 33
