"""The editors' rules of the turn protocol that the simulator rests on: locals and line are a generator's whole state."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from harness import jobs
from harness.frames import LocalStates, Records
from lakegate.effects import Steps
from lakegate.turns.protocol import protocol

Function = ast.FunctionDef
BLOCKS = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try)


def faults(source: str, *, may_catch: frozenset[str] = frozenset()) -> list[str]:
    """Yields the places in this source that hide state from the simulator: function, line and reason."""
    return [
        f"{function.name}, line {line}: {reason}"
        for function in ast.walk(ast.parse(source))
        if isinstance(function, Function)
        for line, reason in _faults_of(function, may_catch)
    ]


def _faults_of(function: Function, may_catch: frozenset[str]) -> Iterator[tuple[int, str]]:
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    effects = [node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom)]
    for effect in effects:
        statement = parents[effect]
        if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
            yield effect.lineno, "an effect is part of a larger expression"
        node: ast.AST = statement
        while node is not function:
            if isinstance(node, BLOCKS) and not (isinstance(node, ast.Try) and function.name in may_catch):
                yield effect.lineno, f"an effect inside `{type(node).__name__.lower()}`"
            node = parents[node]
    if effects:
        for node in ast.walk(function):
            if isinstance(node, Function | ast.Lambda | ast.Nonlocal | ast.Global) and node is not function:
                yield node.lineno, "a function of its own, or a name from outside, inside a generator"


@pytest.mark.parametrize(("module", "may_catch"), [(protocol, frozenset()), (jobs, frozenset({"run_job"}))])
def test_every_effect_stands_alone_and_no_loop_hides_its_place(module: ModuleType, may_catch: frozenset[str]) -> None:
    """No effect in a `for`, `with` or `try`, none inside an expression, no closure in a generator."""
    assert faults(inspect.getsource(module), may_catch=may_catch) == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f():\n    for x in xs:\n        yield x\n", "for"),
        ("def f():\n    with x:\n        a = yield from g()\n", "with"),
        ("def f():\n    try:\n        yield x\n    finally:\n        pass\n", "try"),
        ("def f():\n    a = 1 + (yield x)\n", "larger expression"),
        ("def f():\n    if (yield x):\n        pass\n", "larger expression"),
        ("def f():\n    while (yield x):\n        pass\n", "larger expression"),
        ("def f():\n    yield x\n    return lambda: 1\n", "function of its own"),
    ],
)
def test_a_breach_of_the_shape_is_found(source: str, reason: str) -> None:
    """The check above can fail."""
    (found,) = faults(source)
    assert reason in found


def test_a_local_without_content_is_refused() -> None:
    """An iterator in a local would make different states look alike; it is refused instead."""

    def start(_: object) -> Steps[None]:
        place = iter((1, 2))
        yield protocol.WallClock()
        next(place)

    states = LocalStates(start, lambda effect, key: key, Records())
    with pytest.raises(TypeError, match="iterator"):
        states.root("r")


def test_locals_that_are_not_read_any_more_do_not_tell_states_apart() -> None:
    """And those that are read do."""

    def start(_: object) -> Steps[int]:
        kept = yield protocol.WallClock()
        dead = yield protocol.WallClock()
        dead = dead > 0
        yield protocol.WallClock()
        return int(kept)

    states = LocalStates(start, lambda effect, key: key, Records())
    root = states.root("r")
    assert states.after(states.after(root, 1), 5) == states.after(states.after(root, 1), 6)
    assert states.after(states.after(root, 1), 5) != states.after(states.after(root, 2), 5)
