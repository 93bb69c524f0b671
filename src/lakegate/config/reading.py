"""Parses the text of `lakegate.yml` into a `Pipeline`, or reports all its faults at once."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakegate.config.model import Pipeline
from lakegate.config.sections import Written, overridden
from lakegate.config.streams import StreamSpec, Transform
from lakegate.config.validation import check
from lakegate.config.value_types import Reader
from lakegate.config.yaml_nodes import Entries, Faults, Mark, Node, Scalar, from_yaml
from lakegate.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value from another source that overrides the file's."""

    path: tuple[str, ...]
    """`("coordinator", "url")`."""
    value: str
    origin: str
    """`environment LAKEGATE_…`, `command line`."""


def parse(
    text: str, *, origin: str, base_dir: str, environ: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Pipeline:
    """Returns the pipeline that `text` describes.

    Args:
        text: The whole file.
        origin: The name of the file in messages.
        base_dir: Absolute folder to which relative paths refer.
        environ: The variables for `${NAME}`.
        overrides: Values that override the file's; the last one of a path counts.

    Raises:
        InvalidRequest: lists every fault of the text with its line; secrets and expanded values are not repeated.
    """
    faults = Faults()
    tree = from_yaml(text, origin=origin, environ=environ, faults=faults)
    if tree is None and not faults.found:
        faults.add(Mark(where=f"{origin}:1", line=1), "the file is empty", "at least name: and streams:")
    if tree is None:
        raise InvalidRequest(faults=faults.in_order())
    return validate(tree, base_dir=base_dir, faults=faults, overrides=overrides)


def validate(
    tree: Node,
    *,
    base_dir: str,
    faults: Faults,
    transforms: Mapping[str, Transform] | None = None,
    overrides: Sequence[Override] = (),
) -> Pipeline:
    """Returns the pipeline of a tree, from a file or from Python; both take this path.

    Args:
        tree: The document.
        base_dir: Absolute folder to which relative paths refer.
        faults: Faults that are known already.
        transforms: User code by the name of its stream.
        overrides: As of `parse`.

    Raises:
        InvalidRequest: lists every fault.
    """
    for override in overrides:
        mark = Mark(where=override.origin, key=".".join(override.path))
        tree = overridden(Pipeline, tree, override.path, Scalar(text=override.value, mark=mark))
    reader = Reader(base_dir=base_dir, faults=faults)
    pipeline: Pipeline | None = Pipeline.model_validate(tree, context=reader)
    if pipeline is not None and isinstance(tree, Entries):
        check(pipeline, Written(tree, reader))
    faults.found.extend(reader.contradictions.found)
    if pipeline is None or faults.found:
        raise InvalidRequest(faults=faults.in_order())
    return _complete(pipeline, reader, transforms or {})


def _complete(pipeline: Pipeline, reader: Reader, transforms: Mapping[str, Transform]) -> Pipeline:
    """Returns the pipeline with the places that follow from its storage, its user code, and what was found on the way."""

    def place(given: str | None, key: str, default: str) -> str:
        if not given:
            reader.record_default(key, default)
        return given or default

    storage = place(pipeline.storage, "storage", posixpath.join(reader.base_dir, "_lakegate"))
    url = place(pipeline.coordinator.url, "coordinator.url", f"sqlite:{posixpath.join(storage, 'turns.db')}")

    def complete(name: str, stream: StreamSpec) -> StreamSpec:
        checkpoint = stream.checkpoint
        if stream.source is not None:
            own = posixpath.join(storage, "checkpoints", name)
            checkpoint = place(checkpoint, f"streams.{name}.checkpoint", own)
        return stream.model_copy(update={"checkpoint": checkpoint, "transform": transforms.get(name)})

    return pipeline.model_copy(
        update={
            "storage": storage,
            "coordinator": pipeline.coordinator.model_copy(update={"url": url}),
            "streams_by_name": {name: complete(name, stream) for name, stream in pipeline.streams_by_name.items()},
            "notes": tuple(reader.notes),
            "entries": tuple(reader.entries),
        }
    )
