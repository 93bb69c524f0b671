"""The request table of a `mutate` or `erase` stream: its layout, and the views of it that others need.

Each request is one row, partitioned by its state. `key` and `set` hold the request's values under the *table's* column
names, with the target's types. Columns after `matched_rows` are additions to the layout of docs/explanation/requests.md:
`ordinal` (position in the batch), and `effect` (where keys move: what becomes of a later row of this key; null on requests
that do not begin a path).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lakegate.delta.actions import Body
from lakegate.delta.table_log import NOTHING_COMES, DeltaTableLog, LogGone
from lakegate.ids import TableLocation, Version
from lakegate.quoting import quoted
from lakegate.streams.requests.column_names import column_name, stored_name

STATES = ("stored", "applied", "superseded", "waiting", "dead")
NOTHING = StructType([StructField("nothing", BooleanType())])
"""The type of `set` where requests set nothing: Parquet has no empty structs."""
PROPERTIES = {
    # If a table may have deletion vectors, each read makes Delta search its whole state for files with one. These tables are
    # read several times per batch, and are small.
    "delta.enableDeletionVectors": "false",
    # A batch touches only its own small files; nobody uses statistics of the values.
    "delta.dataSkippingNumIndexedCols": "1",
}


COLUMNS = "lakegate.columns"
"""Property: physical names of the target's columns whose values `key` and `set` hold, as JSON, in their order."""
TAKEN_FROM = "lakegate.taken_from"
"""Property: id of the request table from which this one was copied, because its stream has a new name."""


def layout(match: StructType, set_: StructType | None, sequence: DataType | None) -> StructType:
    """Returns the columns of a request table.

    Args:
        match: The match columns as the target has them.
        set_: The columns that requests set; None where they only delete or erase.
        sequence: Type of `sequence_by`; None without it.
    """
    match, values = _stored(match), NOTHING if set_ is None else _stored(set_)
    return StructType(
        [
            StructField("key_hash", StringType()),
            StructField("key", match),
            StructField("set", values),
            StructField("op", StringType()),
            StructField("seq", LongType() if sequence is None else sequence),
            StructField("source_position", StringType()),
            StructField("batch", LongType()),
            StructField("request_id", StringType()),
            StructField("applies_to", StringType()),
            StructField("state", StringType()),
            StructField("reason", StringType()),
            StructField("first_seen_ms", LongType()),
            StructField("tested_version", LongType()),
            StructField("matched_rows", LongType()),
            StructField("ordinal", IntegerType()),
            StructField(
                "effect",
                StructType(
                    [
                        StructField("op", StringType()),
                        StructField("set", values),
                        StructField("ends_at", StringType()),
                    ]
                ),
            ),
        ]
    )


def _stored(columns: StructType) -> StructType:
    return StructType([StructField(stored_name(field.name), field.dataType) for field in columns.fields])


def with_column_names(rows: DataFrame) -> DataFrame:
    """Renames the fields of `key`, `set` and `effect` to the target's column names where they were stored under other names."""
    wanted = {name: _shown(rows.schema[name].dataType) for name in ("key", "set", "effect") if name in rows.columns}
    other = {name: kind for name, kind in wanted.items() if kind != rows.schema[name].dataType}
    if not other:
        return rows
    return rows.select(*[F.col(name).cast(other[name]).alias(name) if name in other else name for name in rows.columns])


def _shown(kind: DataType) -> DataType:
    assert isinstance(kind, StructType)
    if "ends_at" in kind.names:  # an effect
        return StructType(
            [StructField("op", StringType()), StructField("set", _shown(kind["set"].dataType)), kind["ends_at"]]
        )
    return StructType([StructField(column_name(field.name), field.dataType) for field in kind.fields])


def ddl(layout: StructType) -> str:
    """Returns the columns as SQL, for CREATE TABLE."""
    return ", ".join(f"{quoted(field.name)} {sql_type(field.dataType)}" for field in layout.fields)


def sql_type(kind: DataType) -> str:
    """Returns a type as SQL."""
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in kind.fields)}>"
    return kind.simpleString()


class RequestTable:
    """A request table, read at its head, or at the version that is given."""

    def __init__(
        self, session: SparkSession, log: DeltaTableLog, location: TableLocation, at: Version | None = None
    ) -> None:
        self._session, self._log, self.location, self._at = session, log, location, at

    def head(self) -> Version:
        """Returns the version that is read: the newest if none is given; -1 if the table does not exist yet."""
        return self._log.head(self.location) if self._at is None else self._at

    def rows(self, states: Sequence[str], coming: Mapping[str, Body] = NOTHING_COMES) -> DataFrame | None:
        """Returns the requests in these states; None if the table does not exist yet.

        Args:
            states: Some of `STATES`.
            coming: Path → `add` of files that are read together with the table's, and are not committed yet.
        """
        version = self.head()
        if version < 0:
            return None
        frame = self.raw()
        if coming:
            frame = frame.union(self._log.read_at(self._session, self.location, version, (), coming))
        return with_column_names(frame.where(F.col("state").isin(list(states))))

    def raw(self) -> DataFrame:
        """Returns all rows as they are stored; the table must exist."""
        return self._log.read_at(self._session, self.location, self.head())

    def may_gain(self, states: Sequence[str], since: Version, head: Version) -> bool:
        """Returns True if requests may have come into these states after `since` and up to `head`, by the log; no Spark job."""
        try:
            commits = self._log.commits(self.location, since, head)
        except LogGone:
            return True
        return any(file.partition.get("state") in states for commit in commits for file in commit.added)

    def steps(self, since: Version, until: Version, job: str, batch: int) -> list[tuple[str, frozenset[str]]] | None:
        """Returns the steps of one batch between two versions, each with the paths it added, by the log; no Spark job.

        None if anything else was changed, or the log lacks commits.
        """
        try:
            commits = self._log.commits(self.location, since, until)
        except LogGone:
            return None
        changes = [commit for commit in commits if commit.added or commit.removed or commit.is_metadata_change]
        said = [commit.user_metadata or {} for commit in changes]
        if any((one.get("job"), one.get("batch")) != (job, batch) for one in said):
            return None
        return [
            (str(one.get("step")), frozenset(file.path for file in commit.added))
            for one, commit in zip(said, changes, strict=True)
        ]

    def prepare(self) -> None:
        """Makes Delta read the table's log, in a job that the next statement on the table would otherwise wait for."""
        rows = self.rows(["stored"])
        assert rows is not None
        rows.inputFiles()

    def keys_since(self, version: Version, coming: Mapping[str, Body] = NOTHING_COMES) -> DataFrame | None:
        """Returns the keys of all requests that batches and sweeps have written or changed after this version, as columns.

        There may be more keys. None if others have written, or the log lacks commits. `coming`: as for `rows`.
        """
        head = self.head()
        paths: set[str] = set()
        try:
            for commit in self._log.commits(self.location, version, head):
                is_ours = (commit.user_metadata or {}).get("step") in ("store", "settle")
                if commit.is_metadata_change or ((commit.added or commit.removed) and not is_ours):
                    return None
                paths -= {file.path for file in commit.removed}
                paths |= {file.path for file in commit.added}
        except LogGone:
            return None
        rows = with_column_names(self._log.read_at(self._session, self.location, head, paths, coming))
        return rows.where(F.col("key_hash").isNotNull()).select("key.*").distinct()

    def standing(self, *, moves_rows: bool, stand_for_ms: int | None, now_ms: int) -> DataFrame | None:
        """Returns the rules for later rows: `key_hash`, `key`, `op`, `set`; one row per key. None if there is no table.

        Args:
            moves_rows: Requests move rows to other keys, so a path of requests applies to a row.
            stand_for_ms: How long a request stands.
            now_ms: The wall clock.
        """
        rows = self.rows(["applied"])
        if rows is None:
            return None
        rows = rows.where(F.col("applies_to") == "arrived_and_later")
        if stand_for_ms is not None:
            rows = rows.where(F.col("first_seen_ms") + F.lit(stand_for_ms) > F.lit(now_ms))
        if moves_rows:
            rows = rows.where(F.col("effect").isNotNull())
            return rows.select("key_hash", "key", F.col("effect.op").alias("op"), F.col("effect.set").alias("set"))
        return rows.select("key_hash", "key", "op", "set")

    def erased(self, *, is_unrecorded: bool, coming: Mapping[str, Body] = NOTHING_COMES) -> DataFrame | None:
        """Returns the keys whose erasure stands, as columns; None if there is no table.

        Args:
            is_unrecorded: Stored requests have been applied, so they stand, too.
            coming: As for `rows`.
        """
        rows = self.rows(["applied", "stored"] if is_unrecorded else ["applied"], coming)
        if rows is None:
            return None
        if is_unrecorded:
            place = F.struct(F.col("state") == "stored", "first_seen_ms", "batch", "ordinal")
            last = F.max_by(F.struct("key", "op"), place).alias("last")
            rows = rows.where(F.col("key_hash").isNotNull()).groupBy("key_hash").agg(last).select("last.*")
        return rows.where(F.col("op") == "erase").select("key.*")
