"""Writes events as log records of the logger `lakegate`, with their fields under `extra`, for log collectors."""

from __future__ import annotations

import dataclasses
import logging

from lakegate.telemetry.events import Event, JobIdle, Noticed, StepRepeated, TurnEnded, TurnWaits

LOGGER = logging.getLogger("lakegate")
LOGGER.addHandler(logging.NullHandler())  # without a logging configuration nothing is written
_FINE = ("completed", "replayed", "swept")


class LogSink:
    """Logs every event: problems as warnings, the rest as information."""

    def emit(self, event: Event) -> None:
        level = logging.WARNING if _is_trouble(event) else logging.INFO
        if not LOGGER.isEnabledFor(level):
            return
        fields = {key: value for key, value in dataclasses.asdict(event).items() if key != "reason" or value}
        batches = getattr(event, "batches", None)
        if batches is not None:
            fields["batch"] = batches[-1]
        fields["event"] = type(event).__name__
        LOGGER.log(level, "%s", _text(event), extra=fields)


def _is_trouble(event: Event) -> bool:
    return isinstance(event, StepRepeated | Noticed) or (isinstance(event, TurnEnded) and event.outcome not in _FINE)


def _text(event: Event) -> str:
    match event:
        case TurnWaits():
            return f"{event.job} waits: {event.reason}"
        case TurnEnded():
            reason = f": {event.reason}" if event.reason else ""
            return f"{event.job}: turn {event.epoch or ''} {event.outcome}{reason}".replace("  ", " ")
        case JobIdle():
            return f"{event.job} has nothing left to do"
        case Noticed():
            return event.text
        case _:
            name = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)
            job = getattr(event, "job", None)
            return f"{job}:{name}" if job else name.strip()
