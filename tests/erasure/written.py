"""Delta tables written by hand: any byte can be where a test wants it, without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FIELDS = (("id", "long", {}), ("person", "string", {}))


def schema(*fields: tuple[str, Any, dict[str, str]]) -> str:
    """A `schemaString`."""
    return json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": metadata} for name, kind, metadata in fields
            ],
        }
    )


@dataclass
class Written:
    """A table in a folder."""

    root: Path
    version: int = -1

    @property
    def log(self) -> Path:
        return self.root / "_delta_log"

    def commit(self, *actions: dict[str, Any], info: dict[str, Any] | None = None) -> None:
        """Writes the next version."""
        self.log.mkdir(parents=True, exist_ok=True)
        self.version += 1
        said = {"commitInfo": {"operation": "WRITE", "timestamp": 1, **(info or {})}}
        lines = "\n".join(json.dumps(action) for action in (said, *actions))
        (self.log / f"{self.version:020d}.json").write_text(lines + "\n")

    def define(
        self, *fields: tuple[str, Any, dict[str, str]], partition_by: tuple[str, ...] = (), **properties: str
    ) -> None:
        """Writes a version with a definition."""
        definition = {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema(*fields),
            "partitionColumns": list(partition_by),
            "configuration": properties,
        }
        self.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": definition})

    def file(self, name: str, rows: pa.Table, **options: Any) -> Path:
        """Writes a Parquet file that no version names."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, **options)
        return path

    def add(self, name: str, rows: pa.Table, *, stats: Any = None, **more: Any) -> dict[str, Any]:
        """Writes a Parquet file; returns the action that adds it."""
        size = self.file(name, rows).stat().st_size
        body = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True, **more}
        return {"add": body if stats is None else {**body, "stats": json.dumps(stats)}}


def people(*names: str | None) -> pa.Table:
    """Rows of `FIELDS`."""
    return pa.table({"id": pa.array(range(len(names)), pa.int64()), "person": pa.array(names, pa.string())})


def made(root: Path) -> Written:
    """A table with one file of two persons, `ada` and `eve`."""
    table = Written(root)
    table.define(*FIELDS)
    table.commit(table.add("a.parquet", people("ada", "eve"), stats={"numRecords": 2}))
    return table
