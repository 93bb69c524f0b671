"""Databases that are kept in step: the composition root of `headgate sync`. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from headgate.core.keys.apply import DeadLetter
from headgate.core.spec import Pipeline, SyncSpec
from headgate.errors import InvalidRequest
from headgate.sources.files import ChangeFiles
from headgate.sync.explain import NextBatch, explain
from headgate.sync.run import AppliedBatch, SyncSettings, carry

if TYPE_CHECKING:
    from headgate.targets.target import SqlTarget


def open_target(dsn: str) -> SqlTarget:
    """The target database that a DSN names: `postgresql://…`, `mysql://…`, `sqlite:PATH` or `sqlite:///PATH`.

    Nothing is connected yet.

    Raises:
        InvalidRequest: No target of this version has such a DSN.
        MissingExtra: Its driver is not installed.
    """
    from headgate.targets.target import SqlTarget

    match dsn.partition(":")[0]:
        case "postgresql" | "postgres":
            from headgate.targets.postgres import PostgresDialect

            return SqlTarget(PostgresDialect(dsn))
        case "mysql" | "mariadb":
            from headgate.targets.mariadb import MariadbDialect

            return SqlTarget(MariadbDialect(dsn))
        case "sqlite":
            from headgate.targets.sqlite import SqliteDialect

            return SqlTarget(SqliteDialect(dsn))
        case scheme:
            raise InvalidRequest(
                "this kind of target database is not in this version; nothing was done",
                advice="Use postgresql://, mysql:// or sqlite:PATH",
                scheme=scheme,  # never the DSN: it may hold a password
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a database is."""

    sync: str
    stream: str
    """Its name in the control tables."""
    position: int | None
    """The place in the source up to which the target has everything; None: nothing yet."""
    last_batch: int
    epoch: int
    """Of the last writer; 0: none yet."""
    pending: int | None
    """The place where a batch ends that was begun and is not complete."""
    dead_rows: int


def syncs_of(pipeline: Pipeline, name: str | None = None) -> tuple[SyncSpec, ...]:
    """The syncs of the file, or the one of that name.

    Raises:
        InvalidRequest: There is none.
    """
    if not pipeline.syncs:
        raise InvalidRequest(
            "the file keeps no database in step; nothing was done", advice="Add a section sync: to headgate.yml"
        )
    if name is None:
        return pipeline.syncs
    try:
        return (pipeline.sync(name),)
    except KeyError:
        known = ", ".join(sync.name for sync in pipeline.syncs)
        raise InvalidRequest(f"there is no sync {name!r}; nothing was done", advice=f"The syncs are: {known}") from None


class Keeper:
    """One sync of a pipeline: its source, its target, and how changes get from one to the other."""

    def __init__(self, pipeline: Pipeline, spec: SyncSpec) -> None:
        """Nothing is opened yet."""
        self.name = spec.name
        # With the pipeline's name: two files may have a sync of one name, and one database.
        self.stream = f"{pipeline.name}/{spec.name}"
        self._source = ChangeFiles(
            files=spec.source.path,
            format=spec.source.format,
            table=spec.table,
            tables=spec.tables,
            transaction=spec.source.transaction,
        )
        self._target = open_target(spec.to)
        self._settings = SyncSettings(
            mode=spec.mode, plan=spec.plan, parallelism=spec.parallelism, on_violation=spec.on_violation
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the connections."""
        self._target.close()

    def plan(self) -> NextBatch | None:
        """The batch that would be applied now. Nothing is written.

        Raises:
            HeadgateError: See `explain`.
        """
        return explain(self._source, self._target, stream=self.stream, settings=self._settings)

    def files(self) -> object:
        """Changes when the files of changes do.

        Raises:
            Unavailable: There is none.
        """
        return self._source.fingerprint()

    def standing(self) -> Standing:
        """How far the target is. Nothing is written.

        Raises:
            Unavailable: The target does not answer.
        """
        progress = self._target.progress(self.stream)
        has_begun = progress is not None and progress.last_batch > 0
        return Standing(
            sync=self.name,
            stream=self.stream,
            position=progress.position if progress is not None and has_begun else None,
            last_batch=0 if progress is None else progress.last_batch,
            epoch=0 if progress is None else progress.epoch,
            pending=None if progress is None else progress.pending,
            dead_rows=self._target.dead_count(self.stream),
        )

    def dead_letters(self, rows_max: int) -> tuple[DeadLetter, ...]:
        """Rows that are set apart, the latest first.

        Raises:
            Unavailable: The target does not answer.
        """
        return self._target.dead_letters(self.stream, rows_max=rows_max)

    def passes(self) -> Iterator[Iterator[AppliedBatch]]:
        """Takes the stream over; each pass then applies what the source has by that time. There is always a next pass.

        Raises:
            HeadgateError: See `run`; within a pass, too.
        """
        self.files()  # without a source nobody is taken over from
        progress = self._target.open_stream(self.stream)
        seen: object = None

        def one() -> Iterator[AppliedBatch]:
            nonlocal progress
            for applied in carry(self._source, self._target, progress, self._settings):
                progress = replace(progress, last_batch=applied.batch, position=applied.through, pending=None)
                yield applied

        while True:
            now = self.files()
            yield one() if now != seen else iter(())
            seen = now
