"""Any valid history, with any images, cut anywhere, applied in any order and crashing anywhere, ends as its serial run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.memory_target import MemoryTarget, Storage, Violation
from lakegate.syncs.effect_runner import answered
from lakegate.syncs.plan.apply_protocol import Apply, Assign, Complete, apply_batch
from lakegate.syncs.plan.change import Change, batches, transactions
from lakegate.syncs.plan.conflict_graph import Assignment, Edge, Found, Tie, assign, components, conflict_queue, spread
from lakegate.syncs.plan.net_changes import Net, fold
from lakegate.syncs.plan.net_changes_fast import fold_plain, net_effect
from tests.syncs.unique_key_histories import T, as_sent, serial

CRASHES_MAX = 4


class Crash(Exception):
    """The process is gone."""


Alter = Callable[[Any, Any, random.Random], Any]
"""(effect, its answer or None before it is asked, chance) → what goes on instead."""


def carry_over(
    changes: Sequence[Change], chance: random.Random, *, crash: bool = True, alter: Alter | None = None,
    folded: Callable[[Any, Any], Net] = net_effect, whole: bool = True,
) -> Storage:  # fmt: skip
    """Applies the changes in random batches, modes and orders, with crashes; returns what is stored."""
    storage = Storage({"t": T})
    for attempt in range(CRASHES_MAX + 1):
        target = MemoryTarget(storage)
        progress = target.open_stream("s")
        groups = transactions([change for change in changes if change.seq > progress.position])
        if not whole:
            groups = ((change,) for group in groups for change in group)
        try:
            for batch in batches(groups, changes_max=chance.choice([1, 3, 9, 100]), through=progress.pending):
                net = folded(batch.changes, {"t": T})
                protocol = apply_batch(
                    net, mode=chance.choice(["atomic", "parallel"]), slots=chance.choice([1, 2, 3, 8]),
                    on_violation="stop",
                    queues=conflict_queue(batch.changes, net, {"t": T}) if chance.random() < 0.2 else None,
                )  # fmt: skip
                end = _drive(protocol, target, chance, crash=crash and attempt < CRASHES_MAX, alter=alter)
                if not isinstance(end, Complete) or end.retried_alone:
                    raise Violation(f"a row was in another's way: {end}")
            return storage
        except Crash:
            continue
    raise AssertionError("it never came to an end")


def _drive(protocol: Any, target: MemoryTarget, chance: random.Random, *, crash: bool, alter: Alter | None) -> Any:
    answer = None
    while True:
        try:
            effect = protocol.send(answer)
        except StopIteration as end:
            return end.value
        if alter is not None:
            effect = alter(effect, None, chance) or effect
        if crash and chance.random() < 0.03:
            raise Crash
        if isinstance(effect, Apply) and len(effect.slots) > 1:
            outcomes = {}
            for slot in chance.sample(effect.slots, len(effect.slots)):
                if crash and chance.random() < 0.03:
                    raise Crash
                outcomes[slot] = target.apply(effect.net, slot)
            answer = tuple(outcomes[slot] for slot in effect.slots)
        else:
            answer = answered(effect, target, 1)
            if crash and chance.random() < 0.03:
                raise Crash  # done, but nobody heard of it
        if alter is not None and answer is not None:
            answer = alter(effect, answer, chance)


@settings(max_examples=400)
@given(st.integers(0, 1 << 32), st.booleans(), st.sampled_from(["whole", "key", "changed"]))
def test_any_history_ends_as_its_serial_run(seed: int, is_deferred: bool, how: str) -> None:
    """With each constraint checked at each row: no violation on the way, and the same rows in the end."""
    chance = random.Random(seed)
    history = serial(chance, is_deferred=is_deferred and how != "key")
    storage = carry_over(as_sent(history.changes, how), chance)
    assert storage.rows.get("t", {}) == history.final


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.booleans(), st.sampled_from(["whole", "key", "changed"]))
def test_the_fast_fold_says_what_the_fold_says(seed: int, is_deferred: bool, how: str) -> None:
    """Or says that it cannot: of each batch of a history that has been swapped about within its transactions, too."""
    chance = random.Random(seed)
    changes = as_sent(serial(chance, is_deferred=is_deferred).changes, how)
    if is_deferred:  # a deferred key: a row may come under a key before the one that has it leaves
        groups = [chance.sample(group, len(group)) for group in transactions(changes)]
        changes = [replace(one, seq=seq) for seq, one in enumerate(one for group in groups for one in group)]
    for batch in batches(transactions(changes), changes_max=chance.choice([1, 3, 100])):
        found = fold_plain(batch.changes, {"t": T})
        assert found is None or found == fold(batch.changes, {"t": T})


def test_plain_changes_take_the_fast_fold() -> None:
    """Whole rows under keys that stay; the same with a move, a key that is no number or text, or less of a row do not."""
    row = {"id": 1, "a": 1, "b": None, "c": None, "v": 0}

    def is_plain(*said: tuple[Any, Any, Any]) -> bool:
        steps = [Change(seq=n, tx="x", table="t", op=op, before=b, after=a) for n, (op, b, a) in enumerate(said)]
        return fold_plain(steps, {"t": T}) is not None

    assert is_plain(("c", None, row), ("u", row, {**row, "a": 2}), ("u", {"id": 1}, row), ("d", {"id": 1}, None))
    assert not is_plain(("u", row, {**row, "id": 2}))
    assert not is_plain(("c", None, {**row, "id": True}))
    assert not is_plain(("u", row, {"id": 1, "a": 2}))
    assert not is_plain(("c", None, row), ("d", {**row, "a": 9}, None))  # another row had the key until the end


def _no_letting_go(effect: Any, answer: Any, chance: random.Random) -> Any:
    return Assign(replace(effect.assignment, vacate={})) if isinstance(effect, Assign) and answer is None else answer


def _an_edge_is_missed(effect: Any, answer: Any, chance: random.Random) -> Any:
    return replace(answer, edges=answer.edges[1:]) if isinstance(answer, Found) else answer


def _components_are_torn(effect: Any, answer: Any, chance: random.Random) -> Any:
    if isinstance(effect, Assign) and answer is None and effect.assignment.components:
        slots = effect.assignment.slots
        return Assign(replace(effect.assignment, slot_of={n: n % slots for n in effect.assignment.slot_of}))
    return answer


def _first_image_wins(changes: Any, tables: Any) -> Net:
    net = fold(changes, tables)
    first: dict[Any, Any] = {}
    for change in changes:
        if change.after is not None:
            first.setdefault((change.after["id"],), change.after)
    return replace(
        net, rows=tuple(one._replace(image=first.get(one.key, one.image)) if one.image else one for one in net.rows)
    )


def _gone_rows_are_forgotten(changes: Any, tables: Any) -> Net:
    net = fold(changes, tables)
    kept = [one for one in net.rows if one.image is not None]
    return replace(net, rows=tuple(one._replace(n=n) for n, one in enumerate(kept)))


BUGS: dict[str, dict[str, Any]] = {
    "nobody lets go": {"alter": _no_letting_go},
    "an edge is missed": {"alter": _an_edge_is_missed},
    "components are torn": {"alter": _components_are_torn},
    "the first image wins": {"folded": _first_image_wins},
    "rows that are gone are forgotten": {"folded": _gone_rows_are_forgotten},
    "batches end inside transactions": {"whole": False},
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """A check that cannot fail is none: with each of these bugs some history of three hundred ends wrong or is refused."""
    for seed in range(300):
        chance = random.Random(seed)
        history = serial(chance, is_deferred=True)
        try:
            storage = carry_over(history.changes, chance, crash=False, **BUGS[bug])
        except Violation:
            return
        if storage.rows.get("t", {}) != history.final:
            return
    pytest.fail(f"not found: {bug}")


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=40)


@given(PAIRS)
def test_components_are_the_connected_rows(pairs: list[tuple[int, int]]) -> None:
    """Against the plainest way to say it."""
    groups: list[set[int]] = []
    for pair in pairs:
        joined = set(pair).union(*(group for group in groups if group & set(pair)))
        groups = [group for group in groups if not group & joined] + [joined]
    found = components(pairs)
    assert sorted(map(sorted, groups)) == sorted(map(list, found))
    assert [len(group) for group in found] == sorted((len(group) for group in found), reverse=True)


@given(PAIRS, st.integers(1, 9))
def test_slots_keep_components_whole_and_are_level(pairs: list[tuple[int, int]], slots: int) -> None:
    """No slot has more than its even share and one component beyond it; nobody is left out."""
    groups = components(pairs)
    slot_of = spread(groups, rows=41, slots=slots)
    load = [0] * slots
    for n in range(41):
        load[slot_of.get(n, n % slots)] += 1
    assert all(len({slot_of[n] for n in group}) == 1 for group in groups)
    largest = max((len(group) for group in groups), default=1)
    assert max(load) <= -(-41 // slots) + largest


@given(PAIRS)
def test_both_ends_of_an_edge_share_a_slot_and_the_releaser_lets_go(pairs: list[tuple[int, int]]) -> None:
    """And of a tie, too; nobody else lets go of anything."""
    edges = tuple(Edge(a, b, a % 3) for a, b in pairs[::2] if a != b)
    ties = tuple(Tie(a, b) for a, b in pairs[1::2] if a != b)
    plan = assign(Found(edges=edges, ties=ties), rows=41, slots=4)
    assert isinstance(plan, Assignment)
    assert all(plan.slot_of[edge.releaser] == plan.slot_of[edge.acquirer] for edge in edges)
    assert all(plan.slot_of[tie.child] == plan.slot_of[tie.parent] for tie in ties)
    assert all(plan.vacate[edge.releaser] >> edge.key & 1 for edge in edges)
    assert plan.vacate.keys() == {edge.releaser for edge in edges}
