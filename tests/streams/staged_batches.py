"""Batches of streams that are computed before their turn, as the tests of coverage `publish` make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.delta.delta_tables import commit_paths
from tests.stream_bench import Bench
from tests.streams.three_streams import RECORD, REQUEST, records, requests

ERASURE = "person string, op string"
OTHERS = ("Mut", "TTL")
"""Whose turns come before."""


def files_of(b: Bench) -> set[str]:
    """Data files on disk, also those that no commit names."""
    return {path.name for path in Path(b.target).rglob("*.parquet") if "_delta_log" not in path.parts}


def staged(b: Bench, batch: int, *rows: str) -> Callable[[], object]:
    """A batch of In that is computed now, and put when it is called."""
    kind, frame = b.stream("In"), b.batch(records(*rows), RECORD, batch)
    kind.stage(frame, batch, before=())
    return lambda: kind.run_batch(b.turn("In", batch), frame, batch)


def ahead(b: Bench, name: str, batch: int, *said: str, keeps_up: bool = False) -> Callable[..., Any]:
    """A batch of Mut or TTL that is computed now, and put when it is called; it may follow others just before."""
    rows, schema = (requests(*said), REQUEST) if name == "Mut" else ([(one, "erase") for one in said], ERASURE)
    kind, frame = b.stream(name), b.batch(rows, schema, batch)
    kind.stage(frame, batch, before=())

    def put(**more: Any) -> object:
        if keeps_up:
            kind.keep_up(before=())
        return kind.run_batch(b.turn(name, batch, **more), frame, batch)

    return put


def last_lines(b: Bench) -> list[str]:
    """Returns the lines of the last commit of the target."""
    return commit_paths(b.target)[-1].read_text().splitlines()


def noting(done: list[str], real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that says each time that it is called."""

    def noted(*given: Any) -> Any:
        done.append(real.__name__)
        return real(*given)

    return noted
