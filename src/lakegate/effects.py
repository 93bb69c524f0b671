"""Protocols as generators: they yield effects, receive the answers, and perform no I/O themselves."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Effect(Generic[R]):
    """A request to the outside; `R` is the type of its answer."""

    __slots__ = ()


Protocol = Generator[Effect[Any], Any, R]
"""A piece of a protocol: yields effects, returns an `R`."""


def perform(effect: Effect[R]) -> Protocol[R]:
    """Yields one effect and returns its answer; `reply = yield from perform(...)` is the only way to yield an effect."""
    reply: R = yield effect
    return reply
