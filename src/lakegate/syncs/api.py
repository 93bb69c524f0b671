"""Keeps databases in step: `lakegate.sync`. Uses Spark only where a table is the source."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from lakegate.config import (
    Pipeline,
    SyncSpec,
)
from lakegate.config.reading import validate
from lakegate.config.yaml_nodes import Faults, from_values
from lakegate.errors import InvalidRequest
from lakegate.notebook import Shown
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.delay import SyncDelay
from lakegate.syncs.runner import AppliedBatch
from lakegate.syncs.session import WAIT_S, Carrier, SyncSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True, kw_only=True)
class SyncReport(Shown):
    """The result of a run."""

    sync: str
    batches: int = 0
    changes: int = 0
    rows: int = 0
    set_apart: int = 0
    position: int | None = None
    """None if nothing was applied."""
    waits_for: str | None = None
    """What the source must send before more can be applied, as of the last batch."""
    delay: SyncDelay | None = None
    """From the commit at the source to the commit in the target, as of the end of the run; None if the run ended by an error."""

    def add(self, applied: AppliedBatch) -> None:
        """Adds an applied batch."""
        complete = applied.complete
        rows, dead = (0, 0) if complete is None else (complete.rows, len(complete.dead))
        self.batches, self.changes = self.batches + 1, self.changes + applied.changes
        self.rows, self.set_apart, self.position = self.rows + rows - dead, self.set_apart + dead, applied.through
        self.waits_for = (source_position.waiting(applied.place) or (None, 0))[0]


class SyncKeys(TypedDict, total=False):
    """Keys of a sync, as in the configuration file."""

    start: str | Mapping[str, int]
    table: str
    tables: Mapping[str, str]
    key: str | Sequence[str]
    plan: str
    mode: str
    parallelism: int
    on_violation: str
    on_schema_change: str
    ddl: str
    foreign_key_actions: str
    patience: str
    poll: str
    source_dsn: str


def sync(
    source: str | Mapping[str, object],
    *,
    to: str,
    name: str,
    pipeline: str = "python",
    once: bool = False,
    spark: SparkSession | None = None,
    **keys: Unpack[SyncKeys],
) -> SyncReport:
    """Keeps a database in step: applies the source's changes until nothing is left to apply.

    The position is stored in a row of the target under `PIPELINE/NAME`: another call continues there.

    Args:
        source: A Delta table, by its path or its name in the catalog; or the keys of `from:`, as `{"files": "changes/*.jsonl"}`.
        to: The target database: `postgresql://…`, `mysql://…` or `sqlite:PATH`.
        name: The sync's name.
        pipeline: The pipeline's name.
        once: Apply only the changes that the source has now.
        spark: For a source that is a table; by default the active session, or a new one.
        **keys: As in the configuration file.

    Raises:
        InvalidRequest: The arguments are invalid; lists every fault.
        ConstraintViolated: A row breaks a constraint of the target; its position stays at the last complete batch.
        Fenced: A later writer has begun.
        Unavailable: The source or the target does not answer.
    """
    given: dict[str, object] = {"from": source, "to": to, **keys}
    tables: dict[str, object] = {}
    if isinstance(source, str):
        table = keys.get("table") or source.rstrip("/").replace(".", "/").rpartition("/")[2]
        tables[table] = {"path" if "/" in source else "name": source}
        given["from"] = table
    faults = Faults()
    tree = from_values({"name": pipeline, "tables": tables, "sync": {name: given}}, key="", faults=faults)
    spec = validate(tree, base_dir=str(Path.cwd()), faults=faults, transforms={})
    report = SyncReport(sync=name)
    with SyncSession(spec, spec.sync(name), spark=spark) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        while True:
            changed = 0
            for applied in carrier.carry():
                report.add(applied)
                changed += 1
            if carrier.is_waiting:
                time.sleep(WAIT_S)
            elif once or not changed:
                report.delay = session.delay()
                return report


def syncs_of(pipeline: Pipeline, name: str | None = None) -> tuple[SyncSpec, ...]:
    """Returns the syncs of the file, or the one with this name.

    Raises:
        InvalidRequest: There is no such sync.
    """
    if not pipeline.syncs:
        raise InvalidRequest(
            "lakegate.yml has no section `sync`; nothing was done", advice="Add a section sync: to lakegate.yml"
        )
    if name is None:
        return pipeline.syncs
    try:
        return (pipeline.sync(name),)
    except KeyError:
        known = ", ".join(sync.name for sync in pipeline.syncs)
        raise InvalidRequest(f"there is no sync {name!r}; nothing was done", advice=f"The syncs are: {known}") from None
