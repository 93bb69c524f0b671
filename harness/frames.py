"""Identity of the states of a running protocol: the positions of its generators, and the locals that they will still read.

A generator cannot be copied. So every local state is identified by one list of answers that leads to it, and the successor
for each answer is cached. Exploring then means dictionary look-ups; code runs only for states that are new.

Rules for editors: two states that are taken for one would hide runs. So a local of an unknown type is refused here, and for a
function that catches exceptions all locals count, which separates states too finely but never wrongly merges them.
tests/simulation/test_protocol_shape.py keeps true that locals and line are the whole state.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import CodeType
from typing import Any, cast

from lakegate.effects import Effect
from lakegate.errors import LostTurn
from lakegate.turns.protocol.lock_record import LockRecord

Running = Generator[Effect[Any], Any, Any]


class Raised:
    """Replaces an answer: the effect failed, and the protocol gets `LostTurn`."""


RAISED = Raised()

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_FAST = re.compile(r"(LOAD|STORE|DELETE)_FAST")


@cache
def locals_read_after(code: CodeType) -> Mapping[int, frozenset[str]]:
    """Maps the byte offset of an instruction to the locals that may be read after it before they are written.

    For code that catches exceptions these are all locals, everywhere: an exception may lead anywhere.
    """
    instructions = list(dis.get_instructions(code))
    everything = frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    if any(instruction.opname == "PUSH_EXC_INFO" for instruction in instructions):
        return {instruction.offset: everything for instruction in instructions}
    captured = frozenset((*code.co_cellvars, *code.co_freevars))
    place = {instruction.offset: i for i, instruction in enumerate(instructions)}
    before: list[frozenset[str]] = [frozenset()] * (len(instructions) + 1)
    after: list[frozenset[str]] = [frozenset()] * len(instructions)
    is_stable = False
    while not is_stable:
        is_stable = True
        for i in range(len(instructions) - 1, -1, -1):
            name, value = instructions[i].opname, instructions[i].argval
            alive: frozenset[str] = captured
            if name not in _ENDS and name not in _JUMPS:
                alive |= before[i + 1]
            if instructions[i].opcode in dis.hasjrel or instructions[i].opcode in dis.hasjabs:
                alive |= before[place[value]]
            after[i] = alive
            verbs = _FAST.findall(name)
            names = value if isinstance(value, tuple) else (value,) * len(verbs)
            for verb, local in reversed(list(zip(verbs, names, strict=False))):
                alive = alive | {local} if verb == "LOAD" else alive - {local}
            if alive != before[i]:
                before[i], is_stable = alive, False
    return {instruction.offset: after[i] for i, instruction in enumerate(instructions)}


class Records:
    """Lock records by number, 0 for none; equal records have one number, which stands for the store's version too.

    So a record that comes back as it was counts as unchanged. That allows more runs than a store with counted versions,
    never fewer.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._records: list[LockRecord | None] = [None]
        self._frozen: dict[int, tuple[object, Hashable]] = {}
        """Identity → the object too, so that no other object gets the same identity."""

    def __getitem__(self, number: int) -> LockRecord | None:
        return self._records[number]

    def number(self, record: LockRecord) -> int:
        """Returns the number of this content."""
        key = tuple(self.freeze(getattr(record, name)) for name in _names(LockRecord))
        if key not in self._numbers:
            self._numbers[key] = len(self._records)
            self._records.append(record)
        return self._numbers[key]

    def freeze(self, value: Any) -> Hashable:
        """Returns a hashable value, equal for equal content; a lock record becomes its number.

        Raises:
            TypeError: the content of the value cannot be read, such as that of an iterator.
        """
        try:
            hash(value)
        except TypeError:
            pass
        else:
            if value is not None and cast(Any, type(value)).__hash__ is object.__hash__:
                raise TypeError(f"a local of type {type(value).__name__} has no content that tells it from another")
            return cast(Hashable, value)
        known = self._frozen.get(id(value))
        if known is None:
            known = self._frozen[id(value)] = (value, self._freeze(value))
        return known[1]

    def _freeze(self, value: Any) -> Hashable:
        if isinstance(value, LockRecord):
            return ("record", self.number(value))
        if isinstance(value, Mapping):
            return ("mapping", frozenset((key, self.freeze(item)) for key, item in value.items()))
        if isinstance(value, tuple | list):
            return tuple(self.freeze(item) for item in value)
        if is_dataclass(value):
            return (type(value), *(self.freeze(getattr(value, name)) for name in _names(cast(Hashable, type(value)))))
        raise TypeError(f"a local of type {type(value).__name__} has no content that tells it from another")


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A local state of a process."""

    effect: Effect[Any] | None
    """The next effect; None where the process has ended."""
    result: Any
    functions: frozenset[str]
    """Names of the functions on its stack."""


@dataclass(frozen=True, slots=True)
class _Origin:
    root: Hashable
    parent: int | None
    answer: Hashable


class LocalStates:
    """Every local state reached so far, by number."""

    def __init__(
        self, start: Callable[[Any], Running], answer: Callable[[Effect[Any], Any], Any], records: Records
    ) -> None:
        """Takes `start`, which makes the generator of a root, and `answer`, which turns an effect and a hashable answer into the
        value that is sent to the generator."""
        self._start, self._answer, self._records = start, answer, records
        self._numbers: dict[Hashable, int] = {}
        self._locals: list[Local] = []
        self._origins: list[_Origin] = []
        self._next: dict[tuple[int, Hashable], int] = {}
        self._roots: dict[Hashable, int] = {}
        self._running: dict[int, Running] = {}

    def __getitem__(self, number: int) -> Local:
        return self._locals[number]

    def __len__(self) -> int:
        return len(self._locals)

    def root(self, root: Hashable) -> int:
        """Returns the state of a process that has just started."""
        if root not in self._roots:
            generator = self._start(root)
            self._roots[root] = self._number(_Origin(root, None, None), generator, next(generator), None)
        return self._roots[root]

    def after(self, number: int, answer: Hashable) -> int:
        """Returns the state that an answer leads to."""
        known = self._next.get((number, answer))
        if known is not None:
            return known
        generator = self._running.pop(number, None) or self._replay(number)
        effect, result = self._send(generator, number, answer)
        origin = _Origin(self._origins[number].root, number, answer)
        reached = self._number(origin, generator, effect, result)
        self._next[number, answer] = reached
        return reached

    def _send(self, generator: Running, number: int, answer: Hashable) -> tuple[Effect[Any] | None, Any]:
        asked = self._locals[number].effect
        assert asked is not None, "an answer for a process that has ended"
        try:
            if answer is RAISED:
                return generator.throw(LostTurn()), None
            return generator.send(self._answer(asked, answer)), None
        except StopIteration as end:
            return None, end.value
        except LostTurn:
            return None, "died"

    def _replay(self, number: int) -> Running:
        way = []
        while (parent := self._origins[number].parent) is not None:
            way.append((parent, self._origins[number].answer))
            number = parent
        generator = self._start(self._origins[number].root)
        next(generator)
        for at, answer in reversed(way):
            self._send(generator, at, answer)
        return generator

    def _number(self, origin: _Origin, generator: Running, effect: Effect[Any] | None, result: Any) -> int:
        frames: list[Hashable] = []
        functions: list[str] = []
        inner: Any = generator
        while effect is not None and inner is not None:
            frame = inner.gi_frame
            kept = locals_read_after(frame.f_code)[frame.f_lasti]
            frames.append((frame.f_code, frame.f_lasti, self._freeze_locals(frame.f_locals, kept)))
            functions.append(frame.f_code.co_name)
            inner = inner.gi_yieldfrom
        # The effect was already yielded, so it does not count as a local that this frame will still read.
        key = (origin.root, tuple(frames), self._records.freeze(effect), self._records.freeze(result))
        if key not in self._numbers:
            self._numbers[key] = len(self._locals)
            self._locals.append(Local(effect=effect, result=result, functions=frozenset(functions)))
            self._origins.append(origin)
        number = self._numbers[key]
        if effect is not None:
            self._running[number] = generator
        return number

    def _freeze_locals(self, values: Mapping[str, Any], kept: frozenset[str]) -> Hashable:
        return frozenset((name, self._records.freeze(value)) for name, value in values.items() if name in kept)
