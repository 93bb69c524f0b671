"""Real engagement records as the sources of a pipeline: cut into files, with the true answer by plain Python."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql import SparkSession

import lakegate

ORDER = {"ingest": "arrival_seq", "mutation": "seq", "delete": "request_time"}
STREAMS = {"ingest": "Ingestion", "mutation": "Mutation", "delete": "TTL"}
Answer = dict[str, str]
"""engagement_id → person_id."""


@dataclass
class Source:
    """The records of a source, in order; only the first `rows_max` of the ingest, if it is set."""

    data: Path
    name: str
    rows_max: int | None = None
    tables: dict[str, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, order in ORDER.items():
            file = self.data / kind / f"{self.name}.parquet"
            if file.exists():
                rows = parquet.read_table(file).sort_by(order)
                self.tables[kind] = rows.slice(0, self.rows_max) if kind == "ingest" else rows

    def answer(self) -> Answer:
        """Returns the rows that the table must hold in the end, for any order in which the streams ran."""
        person: dict[str, str] = {}
        if "mutation" in self.tables:
            for row in self.tables["mutation"].to_pylist():
                person[row["alias_id"]] = row["new_person_id"]
        erased = set(self.tables["delete"]["person_id"].to_pylist()) if "delete" in self.tables else set()
        ingest = self.tables["ingest"]
        pairs = zip(ingest["engagement_id"].to_pylist(), ingest["alias_id"].to_pylist(), strict=True)
        found = {id_: person.get(alias, alias) for id_, alias in pairs}
        return {id_: who for id_, who in found.items() if who not in erased}

    def parts(self, kind: str, count: int) -> list[pa.Table]:
        """The records of one stream in `count` parts, in order."""
        rows = self.tables[kind]
        size = -(-rows.num_rows // count)
        return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]

    def write(self, folder: Path, counts: dict[str, int]) -> None:
        """Writes every stream's parts as files below `folder`."""
        for kind, count in counts.items():
            for number, part in enumerate(self.parts(kind, count)):
                drop(folder, kind, number, part)


def drop(folder: Path, kind: str, number: int, rows: pa.Table) -> None:
    """Puts one file into a stream's folder; whole, at once."""
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    hidden = place / f".{number:04}.tmp"
    parquet.write_table(rows, hidden)
    hidden.rename(place / f"{number:04}.parquet")
    time.sleep(0.003)  # Spark takes files in the order of their times, of which it sees milliseconds


def pipeline(
    root: Path, kinds: tuple[str, ...] = ("ingest", "mutation", "delete"), *, is_ordered: bool = True, **keys: object
) -> lakegate.Pipeline:
    """The three streams over `root/in`, into `root/table`; `ahead`: each file is a batch, computed before its turn."""
    made = lakegate.Pipeline("engagement", storage=str(root / "_lakegate"))
    table = made.table(
        "engagement", path=str(root / "table"), lock="L", properties={"delta.enableDeletionVectors": "true"}
    )
    append_keys: dict[str, Any] = {key: keys[key] for key in ("key", "on_duplicate", "turn_limit") if key in keys}
    ahead: dict[str, Any] = {}
    if keys.get("ahead"):
        ahead = {"coverage": "publish", "turn_limit": {"batches": 1}}
        append_keys |= ahead
        keys, ahead["max_rows_per_batch"] = {**keys, "max_rows_per_batch": 1}, 1
    table.append(
        name="Ingestion",
        source=lakegate.files(str(root / "in/ingest")),
        columns={"person_id": "alias_id"},
        max_rows_per_batch=int(str(keys.get("max_rows_per_batch", 1_000_000))),
        **append_keys,
    )
    if "mutation" in kinds:
        table.mutate(
            name="Mutation",
            after="Ingestion" if is_ordered else None,
            source=lakegate.files(str(root / "in/mutation")),
            match={"alias_id": "alias_id"},
            set={"person_id": "new_person_id"},
            sequence_by="seq",
            applies_to="arrived_and_later",
            **ahead,
        )
    if "delete" in kinds:
        table.erase(
            name="TTL",
            after=("Mutation" if "mutation" in kinds else "Ingestion") if is_ordered else None,
            source=lakegate.files(str(root / "in/delete")),
            match={"person_id": "person_id"},
            **ahead,
        )
    return made


def content(spark: SparkSession, root: Path, version: int | None = None) -> list[tuple[str, str]]:
    """The table's rows (engagement_id, person_id), sorted."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    rows = reader.load(str(root / "table")).select("engagement_id", "person_id").toArrow()
    return sorted(zip(rows["engagement_id"].to_pylist(), rows["person_id"].to_pylist(), strict=True))


def digest(rows: list[tuple[str, str]]) -> str:
    """The data set's digest of a table's content."""
    return hashlib.sha256("\n".join(f"{id_}|{who}" for id_, who in rows).encode()).hexdigest()


def check_every_version(spark: SparkSession, root: Path) -> None:
    """At every version: each id once, and nobody who was erased at or before it has a row."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{root / 'table'}`").select("version", "userMetadata").collect()
    erased: set[str] = set()
    for row in sorted(history, key=lambda row: int(row["version"])):
        said = row["userMetadata"] or ""
        rows = content(spark, root, int(row["version"]))
        ids = [id_ for id_, _ in rows]
        assert len(ids) == len(set(ids)), f"an id twice at version {row['version']}"
        if '"job":"TTL"' in said and '"step":"apply"' in said:
            erased |= _gone(spark, root, int(row["version"]))
        assert not erased & {who for _, who in rows}, f"an erased person at version {row['version']}"


def _gone(spark: SparkSession, root: Path, version: int) -> set[str]:
    """The people whose rows an erasure removed."""
    before, after = content(spark, root, version - 1), content(spark, root, version)
    return {who for _, who in set(before) - set(after)}


def write_spec(root: Path) -> None:
    """A `lakegate.yml` with the three streams of `pipeline`, one file a batch."""
    (root / "lakegate.yml").write_text(
        """
name: engagement
storage: ./_lakegate
spark:
  spark.master: "local[2]"
  spark.ui.enabled: "false"
  spark.sql.shuffle.partitions: "2"
  spark.databricks.delta.snapshotPartitions: "2"
tables:
  engagement: {path: ./table, lock: L, properties: {delta.enableDeletionVectors: "true"}}
streams:
  Ingestion:
    table: engagement
    source: {files: ./in/ingest}
    max_rows_per_batch: 1
    append: {columns: {person_id: alias_id}}
  Mutation:
    table: engagement
    after: Ingestion
    source: {files: ./in/mutation}
    max_rows_per_batch: 1
    mutate:
      match: {alias_id: alias_id}
      set: {person_id: new_person_id}
      sequence_by: seq
      applies_to: arrived_and_later
  TTL:
    table: engagement
    after: Mutation
    source: {files: ./in/delete}
    erase: {match: {person_id: person_id}}
"""
    )
