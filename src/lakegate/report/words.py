"""Formats numbers, spans and instants for people; always UTC, so that a report reads the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

NOTHING = "–"
"""The text for a missing value."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count(number: int | None) -> str:
    """`12,345`, or a dash."""
    return NOTHING if number is None else f"{number:,}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 turn`, `3 turns`, `no turns`."""
    many = plural or f"{noun}s"
    return f"no {many}" if number == 0 else f"{number:,} {noun if number == 1 else many}"


def span(milliseconds: float | None) -> str:
    """`820 ms`, `4.1 s`, `3 min 52 s`, `2 h 5 min`, `3 d 4 h`: never more than two units."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1000:.1f} s"
    seconds = round(milliseconds / 1000)
    for unit, size, smaller, smaller_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            return f"{whole} {unit} {rest // smaller_size} {smaller}" if rest >= smaller_size else f"{whole} {unit}"
    return f"{seconds} s"


def day(at_ms: int) -> str:
    """`20 November 2026`."""
    moment = _moment(at_ms)
    return f"{moment.day} {moment:%B %Y}"


def clock(at_ms: int | None, *, has_day: bool = False) -> str:
    """`14:02:11.123`, with `2026-11-20` before it if it `has_day`."""
    if at_ms is None:
        return NOTHING
    moment = _moment(at_ms)
    time = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
    return f"{moment:%Y-%m-%d} {time}" if has_day else time


def minute(at_ms: int) -> str:
    """`14:02`."""
    return f"{_moment(at_ms):%H:%M}"


def period(first_ms: int, last_ms: int) -> str:
    """`20 November 2026, 14:00 to 14:04 UTC`, with both days if they differ."""
    if is_one_day(first_ms, last_ms):
        return f"{day(first_ms)}, {minute(first_ms)} to {minute(last_ms)} UTC"
    return f"{day(first_ms)}, {minute(first_ms)}, to {day(last_ms)}, {minute(last_ms)} UTC"


def is_one_day(first_ms: int, last_ms: int) -> bool:
    """Returns True if both instants are on the same day."""
    return _moment(first_ms).date() == _moment(last_ms).date()


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else "none"


def between(first: int, last: int) -> str:
    """`5–9`, or `5` if both are the same."""
    return str(first) if first == last else f"{first}–{last}"


def runs(numbers: Iterable[int]) -> str:
    """Ascending whole numbers, with neighbours joined: `3, 5–9`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] + 1 == number:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(between(first, last) for first, last in spans) or NOTHING


def _moment(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)
