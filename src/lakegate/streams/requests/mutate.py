"""A mutate stream: changes existing rows and, where its requests stand, later rows."""

from __future__ import annotations

from lakegate.config import Mutate, StreamSpec
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.stream import RequestStream


class MutateStream(RequestStream):
    """Updates and deletes by request (rules M1 to M8 of docs/explanation/requests.md)."""

    def __init__(self, spec: StreamSpec, context: StreamContext) -> None:
        if not isinstance(spec.kind, Mutate):
            raise TypeError(f"{spec.name} is not a mutate stream")
        super().__init__(spec, context)
