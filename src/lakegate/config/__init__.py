"""A pipeline as data: reads `lakegate.yml` or Python, returns frozen data or every fault at once.

Its names are imported at their first use: each command imports this package, and only a configuration needs pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakegate.config.model import CoordinatorSpec, Pipeline, TableSpec
    from lakegate.config.reading import Override, parse
    from lakegate.config.streams import (
        Append,
        Erase,
        FilesSource,
        KafkaSource,
        Maintain,
        Mutate,
        Source,
        StreamKind,
        StreamSpec,
        Transform,
        Unmatched,
    )
    from lakegate.config.syncs import (
        ChangeFilesSource,
        EnvelopeFilesSource,
        EnvelopeTopicsSource,
        PostgresSource,
        SyncSpec,
        TableSource,
    )
    from lakegate.config.value_types import Entry

__all__ = [
    "Append",
    "ChangeFilesSource",
    "CoordinatorSpec",
    "Entry",
    "EnvelopeFilesSource",
    "EnvelopeTopicsSource",
    "Erase",
    "FilesSource",
    "KafkaSource",
    "Maintain",
    "Mutate",
    "Override",
    "Pipeline",
    "PostgresSource",
    "Source",
    "StreamKind",
    "StreamSpec",
    "SyncSpec",
    "TableSource",
    "TableSpec",
    "Transform",
    "Unmatched",
    "parse",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lakegate.config' has no attribute {name!r}")
    from lakegate.config import model, reading, streams, syncs

    value = next(getattr(home, name) for home in (model, streams, syncs, reading) if hasattr(home, name))
    return globals().setdefault(name, value)  # the next use does not come here
