"""Reads stored JSON: any damage raises one error, and no value has another type than promised."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, NewType, TypeVar, Union

INTEGER_MAX = 2**63
INSTANT_MAX_MS = 253_402_300_799_999
"""The end of the year 9999; later times cannot be displayed."""
_INSTANTS = ("_at_ms", "since_ms")

T = TypeVar("T")


class Damaged(ValueError):
    """the text is not what its format says"""


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parses `text` as a JSON object.

    Raises:
        Damaged: Not UTF-8, not JSON, nested too deeply, or no object.
    """
    try:
        data = json.loads(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise Damaged(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Damaged(f"not JSON at character {error.pos}") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise Damaged("not JSON") from error
    except RecursionError as error:
        raise Damaged("nested too deeply") from error
    if not isinstance(data, dict):
        raise Damaged("not a JSON object")
    return data


def format_of(data: Mapping[str, Any]) -> int:
    """Returns the version of the format, from 1.

    Raises:
        Damaged: No format is named.
    """
    number = data.get("format")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Damaged("no format is named")
    return number


def listed(value: object) -> tuple[Any, ...]:
    """Returns the items of a list.

    Raises:
        Damaged: Not a list; a text would give items, too.
    """
    if not isinstance(value, list):
        raise Damaged("not a list")
    return tuple(value)


def checked(record: T) -> T:
    """Returns `record`, a dataclass of stored values, if each field has the type that its class declares.

    Raises:
        Damaged: Names the first field of a wrong type, without its value.
    """
    kind: Any = type(record)
    for name, hint in _hints(kind).items():
        value = getattr(record, name)
        is_instant = name.endswith(_INSTANTS) and isinstance(value, int)
        if not fits(value, hint) or (is_instant and not 0 <= value <= INSTANT_MAX_MS):
            raise Damaged(f"the value of {name} cannot be one")
    return record


@cache
def _hints(kind: Hashable) -> Mapping[str, Any]:
    known: Any = kind
    hints = typing.get_type_hints(known)
    return {one.name: hints[one.name] for one in fields(known)}


def fits(value: object, hint: Any) -> bool:
    """Returns True if a stored value has the type of an annotation; whole numbers have 64 bits."""
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return isinstance(value, str) and value in of
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in of)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(of) == 2 and of[1] is ...:
            return all(fits(one, of[0]) for one in value)
        return len(value) == len(of) and all(map(fits, value, of))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, of[0]) and fits(v, of[1]) for k, v in value.items())
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -INTEGER_MAX <= value < INTEGER_MAX
    return isinstance(value, hint) and (not is_dataclass(hint) or checked(value) is value)
