"""Text of `lakegate.yml` → `Pipeline`, or every fault of it at once."""

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
    """A value from elsewhere that goes before the file's."""

    path: tuple[str, ...]
    """`("coordinator", "url")`."""
    value: str
    origin: str
    """`environment LAKEGATE_…`, `command line`."""


def parse(
    text: str, *, origin: str, base_dir: str, environ: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Pipeline:
    """The pipeline that `text` describes.

    Args:
        text: The whole file.
        origin: Its name, as messages shall say it.
        base_dir: Absolute folder that relative paths are relative to.
        environ: What `${NAME}` is expanded from.
        overrides: Values that go before the file's; the last one of a path counts.

    Raises:
        InvalidRequest: every fault of the text, each with its line; secrets and expanded values are not repeated.
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
    """The pipeline of a tree, from a file or from Python: the one way in.

    Args:
        tree: The document.
        base_dir: Absolute folder that relative paths are relative to.
        faults: What is known to be wrong already.
        transforms: User code by the name of its stream.

    Raises:
        InvalidRequest: with every fault.
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
