"""A sink that passes every event to several sinks."""

from __future__ import annotations

from collections.abc import Sequence

from lakegate.telemetry.events import Event, EventSink


class Tee:
    """Passes each event to every sink, in the order given."""

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink.emit(event)
