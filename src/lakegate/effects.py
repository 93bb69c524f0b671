"""Protocols as generators: they yield effects, receive the answers, and perform no I/O themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Effect(Generic[R]):
    """A request to the outside; `R` is the type of its answer."""

    __slots__ = ()


Steps = Generator[Effect[Any], Any, R]
"""A piece of a protocol: yields effects, returns an `R`."""


def perform(effect: Effect[R]) -> Steps[R]:
    """Yields one effect and returns its answer; `reply = yield from perform(...)` is the only way to yield an effect."""
    reply: R = yield effect
    return reply


def drive(protocol: Steps[R], answer: Callable[[Any], object]) -> R:
    """Runs a protocol to its end and returns its result.

    Args:
        protocol: Not begun.
        answer: Gives the answer to each effect; what it raises ends the protocol's run.
    """
    reply: object = None
    while True:
        try:
            effect = protocol.send(reply)
        except StopIteration as end:
            result: R = end.value
            return result
        reply = answer(effect)
