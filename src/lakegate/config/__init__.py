"""A pipeline as data: reads `lakegate.yml` or Python, returns frozen data or every fault at once."""

from __future__ import annotations

from lakegate.config.model import (
    Append,
    ChangeFilesSource,
    CoordinatorSpec,
    Entry,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Erase,
    FilesSource,
    KafkaSource,
    Maintain,
    Mutate,
    Pipeline,
    Source,
    StreamKind,
    StreamSpec,
    SyncSpec,
    TableSource,
    TableSpec,
    Transform,
    Unmatched,
)
from lakegate.config.parse import Override, parse

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
