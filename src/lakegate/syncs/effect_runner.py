"""Answers the effects of the apply protocol with a real target; slots run concurrently."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, assert_never

from lakegate.effects import Steps, drive
from lakegate.syncs.plan.apply_protocol import Apply, Assign, Begin, Finish, LookUp, SlotOutcome, Stage
from lakegate.syncs.ports import TargetDatabase

R = TypeVar("R")
AnyEffect = Stage | LookUp | Assign | Begin | Apply | Finish
Seen = Callable[[AnyEffect], None]
"""Called before each effect."""


def run_protocol(
    protocol: Steps[R], target: TargetDatabase, *, parallelism: int, seen: Seen = lambda effect: None
) -> R:
    """Runs the protocol to its end.

    Args:
        protocol: The protocol of one batch.
        target: The target with its stream open.
        parallelism: The number of slots that are applied concurrently.
        seen: Called before each effect.
    """

    def answer(effect: AnyEffect) -> object:
        seen(effect)
        return answered(effect, target, parallelism)

    return drive(protocol, answer)


def answered(effect: AnyEffect, target: TargetDatabase, parallelism: int) -> object:
    """Returns the target's answer to one effect."""
    match effect:
        case Stage():
            return target.stage(effect.net, effect.slots)
        case LookUp():
            return target.look(effect.net, duplicates=effect.duplicates)
        case Assign():
            target.assign(effect.assignment)
        case Begin():
            target.begin(effect.net)
        case Apply():
            return _apply(effect, target, parallelism)
        case Finish():
            target.finish(effect.net, effect.slots, effect.dead)
        case _:
            assert_never(effect)
    return None


def _apply(effect: Apply, target: TargetDatabase, parallelism: int) -> tuple[SlotOutcome, ...]:
    def one(slot: int) -> SlotOutcome:
        return target.apply(effect.net, slot, finish=effect.finish, dead=effect.dead, is_trial=effect.is_trial)

    if len(effect.slots) == 1:
        return (one(effect.slots[0]),)
    # The first error ends the batch, but only after all running slots have ended.
    with ThreadPoolExecutor(max_workers=parallelism, thread_name_prefix="lakegate-slot") as pool:
        return tuple(pool.map(one, effect.slots))
