"""Two copies of a table: stock Delta changes one, quick execution the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.quick import QUICK_CONF

NOT_COMPARED = frozenset(
    {
        *("numAddedFiles", "numAddedBytes", "numAddedChangeFiles", "changeFileBytes", "numRemovedBytes"),
        *("numTargetBytesAdded", "numTargetBytesRemoved", "numTargetFilesAdded", "numTargetChangeFilesAdded"),
        *("numOutputBytes", "numFiles"),
    }
)
"""Numbers and sizes of new files: stock Delta writes a file per task."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two copies of a table: stock Delta changes one, the quick execution the other."""

    session: SparkSession
    stock: str
    quick: str

    def run(self, text: str) -> str | None:
        """Runs a statement on both; returns why the second one was left to stock Delta."""
        expected, error = self.by_stock(text)
        with confs(self.session, {QUICK_CONF: "on"}):
            if error is not None:
                with pytest.raises(type(error)) as raised:
                    lakegate.sql(self.session, text.format(t=f"delta.`{self.quick}`"))
                assert condition_of(raised.value) == condition_of(error)
                return "it fails"
            done: Any = lakegate.sql(self.session, text.format(t=f"delta.`{self.quick}`"))
        assert [tuple(row) for row in done.collect()] == [tuple(row) for row in expected], text
        why: str | None = done.lakegate.why_stock
        assert self.last(self.quick) == self.last(self.stock), text
        return why

    def by_stock(self, text: str) -> tuple[Sequence[Any], Exception | None]:
        """Runs a statement on the first copy; returns its rows, and its error if it fails."""
        try:
            return self.session.sql(text.format(t=f"delta.`{self.stock}`")).collect(), None
        except Exception as error:
            return (), error

    def last(self, path: str) -> tuple[object, ...]:
        """The last version's number, operation, parameters and metrics."""
        row = self.session.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
        parameters = {name: re.sub(r"#\d+", "#", value) for name, value in row["operationParameters"].items()}
        metrics = {
            name: value
            for name, value in row["operationMetrics"].items()
            if name not in NOT_COMPARED and not name.endswith("TimeMs")
        }
        return row["version"], row["operation"], parameters, metrics, row["isBlindAppend"], row["isolationLevel"]

    def same(self) -> None:
        """Compares the whole tables, the places of rows that were there before, the definition of new files, and the feed."""
        for what in (self.rows, self.places, self.schemas, self.feed, self.statistics):
            assert what(self.quick) == what(self.stock), what.__name__

    def rows(self, path: str) -> Sequence[str]:
        """All rows, each value as a text that tells -0.0 from 0.0."""
        return sorted(map(str, self.session.read.format("delta").load(path).collect()))

    def places(self, path: str) -> Sequence[object]:
        """Files and row numbers of the rows in files that both copies have."""
        common = {file.name for file in Path(self.stock).rglob("*.parquet")} & {
            file.name for file in Path(self.quick).rglob("*.parquet")
        }
        frame = self.session.read.format("delta").load(path)
        if "row_index" not in frame.select("_metadata.*").columns:
            return []
        found = frame.select("_metadata.file_name", "_metadata.row_index").collect()
        return sorted((name, number) for name, number in found if name in common)

    def schemas(self, path: str) -> object:
        """Columns, types and field ids of the data files and of the files of the feed."""
        files = [
            (file, str(file.relative_to(path).parts[0]) == "_change_data")
            for file in sorted(Path(path).rglob("*.parquet"))
        ]
        files = [(file, is_fed) for file, is_fed in files if "_delta_log" not in file.parts]
        return {
            (
                is_fed,
                str(pq.read_schema(file).remove_metadata()),
                str([field.metadata for field in pq.read_schema(file)]),
            )
            for file, is_fed in files
        }

    def feed(self, path: str) -> Sequence[str]:
        """The change feed from the copy on, without times."""
        log = Path(path) / "_delta_log"
        if "enableChangeDataFeed" not in "".join(file.read_text() for file in sorted(log.glob("*.json"))[:2]):
            return []
        frame = (
            self.session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(path)
        )
        return sorted(str(row) for row in frame.drop("_commit_timestamp").collect())

    def statistics(self, path: str) -> Sequence[object]:
        """Statistics of all new files together: number of rows, smallest and largest values, and numbers of NULL."""
        rows, low, high, nulls = 0, {}, {}, {}
        for file in sorted((Path(path) / "_delta_log").glob("*.json"))[2:]:
            for line in file.read_text().splitlines():
                add = json.loads(line).get("add")
                if add is None or add.get("deletionVector"):
                    continue
                stats = json.loads(add["stats"])
                rows += stats["numRecords"]
                for name, value in flat(stats["minValues"]):
                    low[name] = min(low.get(name, value), value)
                for name, value in flat(stats["maxValues"]):
                    high[name] = max(high.get(name, value), value)
                for name, value in flat(stats["nullCount"]):
                    nulls[name] = nulls.get(name, 0) + value
                assert stats.get("tightBounds", True) is True
        return [rows, low, high, nulls]


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested columns by their dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, float("inf") if value == "NaN" else value  # Spark's order


def condition_of(error: BaseException) -> object:
    """The error condition that Spark gives its errors; the first word of others."""
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or str(error).split()[0]
