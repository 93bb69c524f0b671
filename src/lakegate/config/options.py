"""Reads the options of coordinator URLs, `?option=value&option=value`, with one message for each fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from lakegate.config.value_types import duration_ms
from lakegate.config.yaml_nodes import suggestion

Word = TypeVar("Word", bound=str)

SECRETS: Final = ("password", "key_password", "access_key", "secret_key", "token")
"""Secrets that a user may try to write there; never repeated in a message."""


class BadPlace(ValueError):
    """The URL cannot be read; the text states the fault and repeats no value that may be a secret."""


def options_of(query: str | None, known: tuple[str, ...]) -> Mapping[str, str]:
    """Returns the options after the question mark, by name.

    Raises:
        BadPlace: an option is unknown, is a secret, has no value, or is given twice.
    """
    options: dict[str, str] = {}
    for pair in query.split("&") if query is not None else ():
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise BadPlace("options that are not name=value&name=value")
        if name in SECRETS:
            raise BadPlace("a password or key: it is taken from an environment variable, never from here")
        if name not in known:
            raise BadPlace(f"an option that is not known{suggestion(name, known)}; there are {', '.join(known)}")
        if name in options:
            raise BadPlace(f"the option {name} twice")
        options[name] = value
    return options


def duration(options: Mapping[str, str], name: str, default_ms: int) -> int:
    """Milliseconds."""
    if name not in options:
        return default_ms
    value_ms = duration_ms(options[name])
    if value_ms is None or not 100 <= value_ms <= 3_600_000:
        raise BadPlace(f"{name} that is not a duration from 100ms to 1h")
    return value_ms


def choice(options: Mapping[str, str], name: str, choices: tuple[Word, ...], default: Word) -> Word:
    """Reads an option whose value is one of the given words."""
    given = options.get(name, default)
    for word in choices:
        if word == given:
            return word
    raise BadPlace(f"{name} that is not {' or '.join(choices)}")
