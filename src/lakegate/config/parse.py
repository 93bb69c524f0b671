"""Parses the text of `lakegate.yml` into a `Pipeline`, or reports all its faults at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakegate.config import keys
from lakegate.config.loader import assemble
from lakegate.config.model import Pipeline, Transform
from lakegate.config.validation import check
from lakegate.config.value_types import Reader
from lakegate.config.yaml_nodes import Faults, Mark, Node, Scalar, from_yaml, replaced
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
        faults.add(Mark(where=f"{origin}:1", line=1), "", "the file is empty", "at least name: and streams:")
    if tree is None:
        raise InvalidRequest(faults=faults.in_order())
    for override in overrides:
        tree = _overridden(tree, override)
    return validate(tree, base_dir=base_dir, faults=faults)


def validate(
    tree: Node, *, base_dir: str, faults: Faults, transforms: Mapping[str, Transform] | None = None
) -> Pipeline:
    """Returns the pipeline of a tree, from a file or from Python; both take this path.

    Args:
        tree: The document.
        base_dir: Absolute folder to which relative paths refer.
        faults: Faults that are known already.
        transforms: User code by the name of its stream.

    Raises:
        InvalidRequest: lists every fault.
    """
    reader = Reader(base_dir=base_dir, faults=faults)
    file = keys.FILE_SECTION.read(tree, "", reader)
    notes = () if file is None else check(file, faults)
    if file is None or faults.found:
        raise InvalidRequest(faults=faults.in_order())
    return assemble(file, reader, notes=notes, transforms=transforms or {})


def _overridden(tree: Node, override: Override) -> Node:
    node = Scalar(text=override.value, mark=Mark(where=override.origin))
    return replaced(tree, override.path, node)
