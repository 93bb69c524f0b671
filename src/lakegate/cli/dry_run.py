"""lakegate run --dry-run: prints what the next run would read and write; runs nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lakegate.cli.app import Output
from lakegate.cli.output import document, say, styled
from lakegate.report import words

if TYPE_CHECKING:
    from lakegate.config import Pipeline
    from lakegate.ops.next_run import NextRun


def dry_run(pipeline: Pipeline, names: list[str], syncs: list[str], output: Output) -> None:
    """Prints the waiting work of the streams."""
    from lakegate.ops.next_run import next_runs

    found = next_runs(pipeline, names)
    if output is not Output.TEXT:
        document(output, "streams", [dataclasses.asdict(one) for one in found], pipeline=pipeline.name)
        return
    for one in found:
        styled(one.job + ("" if one.paused is None else f", {one.paused}"), "bold")
        for line in _reads(one):
            say(f"  {line}")
        *before, last = one.writes
        for place in before:
            say(f"  writes {place}")
        state = "not there yet" if one.version is None else f"now at version {one.version}"
        say(f"  writes {last} ({state})")
    if syncs:
        say(f"Not looked at: {words.listed(syncs)}. The delay of a sync: lakegate sync status")
    say("Nothing was run.")


def _reads(one: NextRun) -> list[str]:
    lines = []
    if one.begun_batch is not None:
        lines.append(f"ends batch {one.begun_batch}, which an earlier run began")
    if one.files is not None and one.size_bytes is not None:
        rows = "" if one.rows is None else f", {words.counted(one.rows, 'row')}"
        size = f", {one.size_bytes:,} bytes{rows}" if one.files else ""
        lines.append(f"reads {words.counted(one.files, 'new file')}{size}")
    if one.records is not None:
        lines.append(f"reads {words.counted(one.records, 'new record')}")
    if one.note is not None:
        lines.append(f"what it reads is unknown: {one.note}")
    if one.waiting_requests:
        lines.append(f"tests {words.counted(one.waiting_requests, 'stored request')} against new rows")
    if one.kind == "maintain":
        lines.append("maintains the files of the table, where that is due")
    return lines
