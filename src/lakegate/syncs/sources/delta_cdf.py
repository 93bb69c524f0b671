"""A Delta table as a source of changes: its commits are the transactions, and a version is a position.

Rules for editors: the feed has whole rows, without the link between old and new row. So a commit's deleted rows are delivered
first, then its inserted rows. Data that can no longer be read is an error with advice how to begin again, never a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.delta.change_feed import changed_rows
from lakegate.delta.commit_file import Commit
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.delta.table_log import DeltaTableLog, LogGone
from lakegate.errors import CheckpointMismatch, InvalidRequest, LakegateError, Unavailable
from lakegate.ids import TableLocation, Version
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.sources.delta_rows import COME, ManyFrameRows, read_rows

LOAD_ROWS = 10_000
"""The maximum number of snapshot rows in one group; several groups make a batch."""
MANY_ROWS, MANY_BYTES = 100_000, 16 << 20
"""A commit with more rows, or with larger files, is not read row by row: one row takes about 1 KiB of memory."""
RESYNC = "Make the target equal to the table again with: lakegate sync resync"
GONE = (
    "FILE_NOT_EXIST", "FILE_NOT_FOUND", "FileNotFound", "VERSION_NOT_FOUND", "VersionNotFound", "VERSIONS_NOT_CONTIGUOUS",
    "does not exist", "CANNOT_RECONSTRUCT", "INCOMPATIBLE_DATA_SCHEMA", "INCOMPATIBLE_SCHEMA_CHANGE",
    "BEYOND_DELETED_FILE_RETENTION",
)  # fmt: skip
"""Parts of Spark's messages when needed files, commits or a definition no longer exist, or possibly do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeed:
    """See `ChangeSource`. `seq` is the version of the commit."""

    spark: SparkSession
    location: TableLocation
    table: str
    """The target table."""
    start: Literal["snapshot", "latest"] | int
    """Where to begin: with all rows, after the newest version, or at a version."""

    _log: DeltaTableLog = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log", DeltaTableLog(self.spark))

    def fingerprint(self) -> object:
        """Changes with each commit."""
        return self._log.head(self.location)

    def close(self) -> None:
        """Does nothing: the session belongs to its owner."""

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        # An initial load continues with the version that it began with.
        begun = until if after < 0 and place is None else place
        facts = source_position.read(source_position.DELTA, after, begun)
        log = self._log
        if not facts and log.head(self.location) < 0:
            return  # a stream of the same configuration file may be about to create the table
        now = log.metadata(self.location)
        known = facts.get("table", now.id)
        if known != now.id or after > now.version:
            raise CheckpointMismatch(
                "the table is not the one that the target has: it was recreated; nothing was written",
                advice=RESYNC,
                table=self.location, position=after, newest=now.version,
            )  # fmt: skip
        here, last = source_position.written(source_position.DELTA, {"table": now.id}), int(now.version)
        if after < 0 and "loading" not in facts and self.start != "snapshot":
            # Recorded immediately: without a change, a later run must not begin at a later version.
            after = last if self.start == "latest" else self.start - 1
            yield (self._mark(after, here),)
        elif after < 0:
            if begun is not None and "loading" not in facts:
                raise CheckpointMismatch(
                    "an earlier version of Lakegate began the initial load and did not record the table's version; "
                    "nothing was written",
                    advice=RESYNC,
                    table=self.location,
                )
            after = facts.get("loading", last)
            yield from self._load(after, now.id)
        yield from self._commits(after, last, here)

    def snapshot(self) -> Change:
        """Returns all current rows as one change that replaces the target's rows."""
        now = self._log.metadata(self.location)
        version, here = int(now.version), source_position.written(source_position.DELTA, {"table": now.id})
        return self._many(self._snapshot(version).withColumn(COME, F.lit(True)), version, here, is_whole=True)

    @property
    def target_tables(self) -> tuple[str, ...]:
        """See `lakegate.syncs.verify.KnowsItsRows`."""
        return (self.table,)

    def rows_at(self, position: int) -> Iterator[tuple[str, Image]]:
        """Yields all rows of a version. See `lakegate.syncs.verify.KnowsItsRows`."""
        if position < 0:
            raise InvalidRequest(
                "the initial load of the table is not complete; nothing was compared",
                advice="First run: lakegate sync run",
                table=self.location,
            )
        for row in self._rows(position):
            yield self.table, row

    def _load(self, version: int, id: str) -> Iterator[tuple[Change, ...]]:
        """Yields a snapshot in groups. Only the last group moves the position to the snapshot's version."""
        loading = source_position.written(source_position.DELTA, {"table": id, "loading": version})
        held: list[Change] = []
        for row in self._rows(version):
            if len(held) == LOAD_ROWS:
                yield _placed(held, loading)
                held = []
            held.append(self._row("c", row, -1))
        yield (*held, self._mark(version, loading))

    def _commits(self, after: int, last: int, here: str) -> Iterator[tuple[Change, ...]]:
        """Yields the changes commit by commit. The rows of a large commit stay in Spark."""
        try:
            commits = self.commits(after, last)
        except LogGone:
            commits = []  # reading the feed reports the missing files
        times = {int(one.version): one.timestamp_ms for one in commits if one.timestamp_ms}
        for version in [int(one.version) for one in commits if _is_large(one)]:
            yield from self._one_by_one(after, version - 1, here, times)
            many = self._many(self._feed(version, version).drop("_commit_version"), version, here, is_whole=False)
            yield (replace(many, committed_at_ms=times.get(version)),)
            after = version
        yield from self._one_by_one(after, last, here, times)

    def commits(self, after: int, upto: int | None = None) -> list[Commit]:
        """Returns the commits after a position, up to another one or the newest.

        Raises:
            LogGone: The first of them is no longer in the table's log.
            Unavailable: The log could not be read.
        """
        last = self._log.head(self.location) if upto is None else Version(upto)
        return self._log.commits(self.location, Version(after), last)

    def _one_by_one(self, after: int, last: int, here: str, times: Mapping[int, int]) -> Iterator[tuple[Change, ...]]:
        if last <= after:
            return
        held: list[Change] = []
        for row in self._changed(after + 1, last):
            version, has_come = row.pop("_commit_version"), row.pop(COME)
            if held and held[-1].seq != version:
                yield _placed(held, here)
                held = []
            held.append(self._row("c" if has_come else "d", row, version, times.get(version)))
        if held:
            yield _placed(held, here)
        if not held or held[-1].seq < last:
            yield (self._mark(last, here),)  # commits without rows: the feed need not retain them

    def _rows(self, version: int) -> Iterator[dict[str, Any]]:
        def rows() -> Iterator[dict[str, Any]]:
            yield from read_rows(self._snapshot(version), ())

        return self._images(rows, version, version)

    def _changed(self, first: int, last: int) -> Iterator[dict[str, Any]]:
        def rows() -> Iterator[dict[str, Any]]:
            order = ("_commit_version", COME)
            small = changed_rows(self.spark, self._log, self.location, Version(first - 1), Version(last), order)
            frame = self._feed(first, last) if small is None else small
            yield from read_rows(frame, order, is_local=small is not None)

        return self._images(rows, first, last)

    def _snapshot(self, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.location)

    def _feed(self, first: int, last: int) -> DataFrame:
        """Returns deleted and inserted rows, with the version of their commit and whether they were inserted."""
        feed = self.spark.read.format("delta").option("readChangeFeed", "true")
        frame = feed.option("startingVersion", first).option("endingVersion", last).load(self.location)
        come = F.col("_change_type").isin("insert", "update_postimage")
        return frame.withColumn(COME, come).drop("_change_type", "_commit_timestamp")

    def _many(self, frame: DataFrame, version: int, here: str, *, is_whole: bool) -> Change:
        try:
            many = ManyFrameRows.of(frame, is_whole=is_whole)
        except (PySparkException, *JVM_ERRORS) as error:
            raise self._error(str(error), version, version) from error
        return Change(
            seq=version, tx=str(version), table=self.table, op="many", many=many, shows_actions=True, place=here
        )

    def _images(self, rows: Callable[[], Iterator[dict[str, Any]]], first: int, last: int) -> Iterator[dict[str, Any]]:
        """Yields the rows; raises Spark's errors as Lakegate's errors."""
        try:
            yield from rows()
        except (PySparkException, *JVM_ERRORS) as error:
            raise self._error(str(error), first, last) from error

    def _error(self, said: str, first: int, last: int) -> LakegateError:
        if "MISSING_CHANGE_DATA" in said or "change data was not recorded" in said:
            return InvalidRequest(
                "the table does not record its changes for all required versions; nothing more was written",
                advice=f"Turn it on: ALTER TABLE delta.`{self.location}` SET TBLPROPERTIES "
                f"('delta.enableChangeDataFeed' = 'true'). {RESYNC}",
                table=self.location, first=first, last=last,
            )  # fmt: skip
        if any(word in said for word in GONE):
            return CheckpointMismatch(
                "required versions of the table can no longer be read (vacuumed, cleaned up, older than the "
                "table keeps removed files, or of another definition); nothing more was written",
                advice=RESYNC,
                table=self.location, first=first, last=last,
            )  # fmt: skip
        return Unavailable(f"the table cannot be read: {said.strip().splitlines()[0]}", table=self.location)

    def _row(self, op: Literal["c", "d"], row: Any, seq: int, committed_at_ms: int | None = None) -> Change:
        before, after = (row, None) if op == "d" else (None, row)
        return Change(
            seq=seq, tx=str(seq), table=self.table, op=op, before=before, after=after, shows_actions=True,
            committed_at_ms=committed_at_ms,
        )  # fmt: skip

    def _mark(self, seq: int, place: str) -> Change:
        return Change(seq=seq, tx=None, table=self.table, op="mark", place=place)


def _placed(changes: Sequence[Change], place: str) -> tuple[Change, ...]:
    return (*changes[:-1], replace(changes[-1], place=place))


def _is_large(commit: Commit) -> bool:
    records = 0 if commit.has_change_files else sum(one.records or 0 for one in commit.added if one.is_data_change)
    return records > MANY_ROWS or commit.changed_bytes > MANY_BYTES
