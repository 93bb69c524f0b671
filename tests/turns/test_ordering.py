"""Order rules: who is let in, with what reason to wait, and what lint says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.turns.protocol.ordering import (
    After,
    JobView,
    NoRule,
    OrderRule,
    Strict,
    describe,
    lint,
    predecessors,
    rule_from_json,
    rule_to_json,
    waits_for,
)

RULES: st.SearchStrategy[OrderRule] = st.one_of(
    st.just(NoRule()),
    st.builds(After, st.lists(st.text(min_size=1), min_size=1).map(tuple), st.sampled_from(["any", "all"])),
    st.builds(Strict, st.lists(st.text(min_size=1), min_size=1).map(tuple)),
)


def view(
    done: int = 0, *, idle: bool = False, live: bool = True, closed: bool = True, completed: int | None = 0
) -> JobView:
    return JobView(
        done=done, idle_since_ms=0 if idle else None, completed_at_ms=completed, is_live=live, is_closed=closed
    )


def reason(rule: OrderRule, absent_after_ms: int | None = None, now_ms: int = 0, **views: JobView) -> str | None:
    return waits_for(rule, "me", views, now_ms=now_ms, absent_after_ms=absent_after_ms)


def test_no_rule_never_waits() -> None:
    """First come, first served."""
    assert reason(NoRule(), x=view(5)) is None


def test_after_waits_for_a_turn_since_mine_or_for_idle() -> None:
    """One turn of the predecessor lets in once; idle lets in as often as wanted."""
    assert reason(After(("x",)), x=view(2), me=view(1)) is None
    assert reason(After(("x",)), x=view(1), me=view(2)) == "waits for x: no turn since epoch 2"
    assert reason(After(("x",)), x=view(0), me=view(0)) == "waits for x: no turn yet"
    assert reason(After(("x",)), x=view(1, idle=True), me=view(2)) is None
    assert reason(After(("x",))) == "waits for x: x: never seen on this lock".replace("x: x", "x")


def test_after_any_and_all() -> None:
    """As the words say; the reason names each that is missing."""
    views = {"x": view(3), "y": view(1), "me": view(2)}
    assert reason(After(("x", "y"), "any"), **views) is None
    assert reason(After(("x", "y"), "all"), **views) == "waits for y: no turn since epoch 2"
    assert reason(After(("y", "z"), "any"), **views) == (
        "waits for y: no turn since epoch 2 or z: never seen on this lock"
    )


def test_absent_lets_in_only_over_a_finished_turn() -> None:
    """Not over a run that lives, nor over a lost turn, nor too early, nor where nothing is said about absence."""
    gone = view(1, live=False, completed=0)
    assert reason(After(("x",)), 10, 11, x=gone, me=view(2)) is None
    assert reason(After(("x",)), 10, 10, x=gone, me=view(2)) is not None
    assert reason(After(("x",)), None, 99, x=gone, me=view(2)) is not None
    assert reason(After(("x",)), 10, 99, x=view(1), me=view(2)) is not None
    lost = reason(After(("x",)), 10, 99, x=view(1, live=False, closed=False), me=view(2))
    assert lost is not None
    assert "not finished" in lost


def test_strict_looks_at_the_last_completed_turn_only() -> None:
    """An empty history satisfies it."""
    assert reason(Strict(("x",)), x=view(0)) is None
    assert reason(Strict(("x",)), x=view(3), y=view(2)) is None
    assert reason(Strict(("x", "y")), x=view(1), y=view(2)) is None
    assert reason(Strict(("x",)), x=view(3), y=view(4)) == ("waits for x: the last completed turn was of y (epoch 4)")


def test_strict_leaves_out_the_turns_that_a_person_takes_by_a_command() -> None:
    """Of the job `adhoc`, which is in no order; unless somebody has put it into one."""
    assert reason(Strict(("x",)), x=view(3), adhoc=view(4)) is None
    assert reason(Strict(("x",)), adhoc=view(4)) is None
    assert reason(Strict(("x",)), x=view(3), y=view(4), adhoc=view(5)) == (
        "waits for x: the last completed turn was of y (epoch 4)"
    )
    assert reason(Strict(("x", "adhoc")), x=view(3), y=view(4), adhoc=view(5)) is None
    ring = {"adhoc": view(4), "x": view(3)}
    assert waits_for(Strict(("x",)), "adhoc", ring, now_ms=0, absent_after_ms=None) is not None
    assert waits_for(Strict(("adhoc",)), "x", ring, now_ms=0, absent_after_ms=None) is None


@given(RULES, st.none() | st.integers(0))
def test_a_rule_comes_back_from_the_record_as_it_was(rule: OrderRule, absent_after_ms: int | None) -> None:
    """`absent_after` belongs to `after` only."""
    kept, kept_absent = rule_from_json(rule_to_json(rule, absent_after_ms))
    assert kept == rule
    assert kept_absent == (absent_after_ms if isinstance(rule, After) else None)
    assert describe(rule)


@pytest.mark.parametrize("data", [{}, {"after": "x"}, {"strict": "x"}, {"after": {"some": ["x"]}}])
def test_what_is_not_a_rule_is_refused(data: dict[str, object]) -> None:
    """Never read as no rule."""
    with pytest.raises(ValueError, match="not an order rule"):
        rule_from_json(data)


def said(rules: dict[str, OrderRule], **every_ms: int) -> list[tuple[str, str, str]]:
    return [(found.severity, found.job, found.text) for found in lint(rules, every_ms)]


def test_lint_finds_unknown_names_and_itself() -> None:
    """A job that waits for a name without a job on this lock would wait for ever."""
    assert "no job of this lock" in said({"a": After(("b",))})[0][2]
    assert "waits for itself" in said({"a": After(("a",))})[0][2]
    assert said({"a": NoRule(), "b": After(("a",))}) == []


def test_lint_finds_cycles_that_cannot_begin() -> None:
    """Of `after`; a ring of `strict` begins by itself, and `any` may go round the cycle."""
    found = said({"a": After(("b",)), "b": After(("a",))})
    assert [severity for severity, _, _ in found] == ["error"]
    assert "a waits for b waits for a" in found[0][2]
    assert said({"a": Strict(("b",)), "b": Strict(("a",))}) == []
    assert said({"a": After(("b", "c"), "any"), "b": After(("a",)), "c": NoRule()}) == []


def test_lint_tells_the_pace_that_strict_forces() -> None:
    """It also names the job that a third job can starve."""
    found = said({"a": NoRule(), "b": Strict(("a",)), "c": NoRule()}, a=86_400_000, b=3_600_000, c=1)
    assert ("warning", "b", "b runs at the pace of a (86400 s), not every 3600 s") in found
    assert any(severity == "warning" and "starved" in text for severity, _, text in found)


@given(RULES)
def test_predecessors_are_the_names_of_a_rule(rule: OrderRule) -> None:
    """In the order written."""
    assert predecessors(rule) == (() if isinstance(rule, NoRule) else rule.jobs)
