"""Takes away what a search for erased persons finds and stock commands leave: plans it, then does it in a turn of the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, assert_never, cast

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakegate.config import Pipeline, TableSource, TableSpec
from lakegate.delta.gate import Gate
from lakegate.delta.idempotent_writes import conflicts, tokened
from lakegate.delta.table_log import DeltaTableLog
from lakegate.erasure.completion import ENDED, ORDER, Action, Left, Plan, Step, TableState, planned
from lakegate.erasure.folder import FolderSearch, Progress, read_log
from lakegate.erasure.history import LOG, RETENTION, History, retention_ms
from lakegate.erasure.persons import Person, Persons
from lakegate.erasure.storage import Place
from lakegate.ids import TableLocation
from lakegate.ops.certify import Question, searched
from lakegate.ops.table_admin import adhoc_turn, last_batch
from lakegate.ports import WriteToken
from lakegate.quoting import quoted, quoted_literal
from lakegate.runtime import Site, locate, session_for
from lakegate.streams.interfaces import FORGET, PURGE, VACUUM
from lakegate.streams.maintenance import schedule, statements
from lakegate.streams.maintenance.progress import relocate
from lakegate.streams.requests.column_names import stored_name
from lakegate.syncs.session import SyncSession
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.ordering import ADHOC
from lakegate.turns.turn import HeldTurn

CHECKPOINT = VACUUM + 1
"""Step numbers rise in the order of a plan."""
LIVE = "rows of the newest version: an erasure by an erase stream, or DELETE, removes them; then complete again"
IN_FORCE = "the request decides about late rows, and needs its key: of an erasure until lift_when ends it"
LETTER = "the dead letter names the person: lakegate dead-letters drop, or retry"
STORED = "it is no text of lakegate's, and no command replaces it"
TEXTS = (".jsonl", ".json", ".html", ".log", ".txt")
OF_OTHERS = "it belongs to a stream of another lock, or to none of the file: complete for the table of that stream"
NOT_OURS = ("checkpoints/", "certificates/", "requests/", "dead_letters/")
"""Folders whose texts stay: a query finds its place by its checkpoint, a certificate is known by its hash; and tables."""

T = TypeVar("T")


class Completion:
    """A search, and what is to be done about its findings."""

    def __init__(self, question: Question, pipeline: Pipeline, table: TableSpec, progress: Progress) -> None:
        """Searches.

        Raises:
            InvalidRequest, Unavailable: As of `certify`.
        """
        self._question, self._pipeline, self._spec, self._progress = question, pipeline, table, progress
        self._table, *others = searched(question, progress)
        self._storage = others[0] if others else None
        self._read_from = _read_from(pipeline, table)

    @property
    def is_live(self) -> bool:
        """True if the newest version of the table has rows of a person."""
        return any(one.place == "live" and one.where == "rows" for found in self._table.found.values() for one in found)

    def plan(self) -> Plan:
        """Returns what is to be done, and what stays; paths are without values of persons."""
        plan = self._plan()
        shown = self._table.persons.masked
        return Plan(
            steps=tuple(replace(one, files=tuple(map(shown, one.files))) for one in plan.steps),
            left=tuple(replace(one, files=tuple(map(shown, one.files))) for one in plan.left),
        )

    def _plan(self) -> Plan:
        states = self._states()
        if self.is_live:  # what remains of a person who is there is of no interest
            files = [
                name
                for name, found in self._table.found.items()
                if any((one.place, one.where) == ("live", "rows") for one in found)
            ]
            return Plan(steps=(), left=(states[0].left(files, LIVE),))
        plans = [*map(planned, states), self._elsewhere()]
        steps = [step for plan in plans for step in plan.steps]
        return Plan(
            steps=tuple(sorted(steps, key=lambda one: ORDER.index(one.action))),
            left=tuple(left for plan in plans for left in plan.left),
        )

    def _states(self) -> list[TableState]:
        """Returns the table, and the tables in the storage that name a person."""
        table, storage = self._table, self._storage
        own = "" if storage is None else f"{storage.place.root}/".removeprefix(f"{table.place.root}/")
        is_inside = storage is not None and not own.startswith("/")
        files_ms, log_ms = table.kept_ms("deletedFileRetentionDuration"), table.kept_ms("logRetentionDuration")
        states = [
            TableState(
                location=self._question.table,
                history=table.history,
                entries=table.seen_entries,
                named=frozenset(one for one in table.found if not (is_inside and one.startswith(own))),
                unread=frozenset(table.not_looked_at),
                now_ms=table.now_ms,
                files_kept_ms=files_ms,
                log_kept_ms=log_ms,
                live=LIVE,
                read_from=self._read_from,
            )
        ]
        # Requests and dead letters are read and written in turns of the table's lock: what is safe for it is safe for them.
        limits = statements.whole_hours_ms(files_ms), log_ms
        return states + [self._stored(storage, root, limits) for root in self._roots() if storage is not None]

    def _roots(self) -> list[str]:
        """Returns the folders of tables in the storage that name a person, and that are written in turns of the table's lock."""
        if self._storage is None:
            return []
        streams = self._pipeline.streams_of_lock(self._spec.lock)
        ours = {f"{kind}/{stream.name}" for kind in ("requests", "dead_letters") for stream in streams}
        roots = {name.partition(f"/{LOG}/")[0] for name in self._storage.seen_entries if f"/{LOG}/" in name} & ours
        return sorted(root for root in roots if any(name.startswith(f"{root}/") for name in self._storage.found))

    def _stored(self, storage: FolderSearch, root: str, limits: tuple[int, int]) -> TableState:
        own = f"{root}/"
        history, _ = read_log(Place(f"{storage.place.location}/{root}", {}))
        times = _retention(history)
        is_requests = root.startswith("requests/")
        return TableState(
            location=f"{self._pipeline.storage}/{root}",
            history=history,
            entries=_below(storage.seen_entries, own),
            named=frozenset(_below(storage.found, own)),
            unread=frozenset(_below(storage.not_looked_at, own)),
            now_ms=self._table.now_ms,
            files_kept_ms=min(times[0], limits[0]),
            log_kept_ms=min(times[1], limits[1]),
            live=IN_FORCE if is_requests else LETTER,
            is_requests=is_requests,
        )

    def _elsewhere(self) -> Plan:
        """Returns the plan for files of the storage that belong to no table: ledger, reports, logs, checkpoints of queries."""
        storage = self._storage
        if storage is None:
            return Plan(steps=(), left=())
        roots = tuple(f"{root}/" for root in self._roots())
        files = sorted(name for name in storage.found if not name.startswith(roots))
        texts = [name for name in files if name.endswith(TEXTS) and not name.startswith(NOT_OURS)]
        tables = tuple(name for name in files if name.startswith(("requests/", "dead_letters/")))
        others = tuple(name for name in files if name not in (*texts, *tables))
        size = sum(storage.seen_entries[name].size for name in texts)
        step = Step(table=self._pipeline.storage, action="mask texts", files=tuple(texts), size_bytes=size)
        left = [
            Left(table=self._pipeline.storage, files=names, why=why, at_ms=None)
            for names, why in ((tables, OF_OTHERS), (others, STORED))
            if names
        ]
        return Plan(steps=(step,) if texts else (), left=tuple(left))

    # ------------------------------------------------------------------------------------------------------ carry out

    def carry_out(self, before: Callable[[Step], None] = lambda step: None) -> None:
        """Does the steps of the plan, in a turn; after each it plans again. After a kill, call it again.

        Args:
            before: Called before each step.

        Raises:
            TurnNotGranted: Not granted in time; nothing was changed.
        """
        if not self._plan().steps:
            return
        pipeline = self._pipeline
        spark = session_for(pipeline)
        session, token_id = spark.newSession(), job_token("adhoc/erasure")
        tables = (locate(spark, self._spec), *(TableLocation(one.location) for one in self._states()[1:]))
        with (
            contextlib.closing(Site.open(session, url=pipeline.coordinator.url, storage=pipeline.storage)) as site,
            Gate(session).acting(ADHOC, session),  # a table that takes turns refuses commits of nobody
            adhoc_turn(site, pipeline, self._spec.lock, token_id, tables) as turn,
        ):
            for table in tables:
                turn.enter(table)
            turn.next_batch(last_batch(site, token_id, tables) + 1, None)
            self._again()
            settings = self._question.settings
            doing = _Doing(session=session, log=site.log, turn=turn, persons=self._table.persons, settings=settings)
            done: set[tuple[str, Action]] = set()
            while step := next((one for one in self._plan().steps if (one.table, one.action) not in done), None):
                before(step)
                doing.do(step, {one.location: one for one in self._states()})
                done.add((step.table, step.action))
                self._again()

    def _again(self) -> None:
        self._table.again(self._progress)
        if self._storage is not None:
            self._storage.run(self._progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doing:
    """Does steps in a turn that has entered their tables. Each may be done again."""

    session: SparkSession
    log: DeltaTableLog
    turn: HeldTurn
    persons: Persons
    settings: Mapping[str, str]
    """Settings of Spark, for the table's store."""

    def do(self, step: Step, states: Mapping[str, TableState]) -> None:
        """Does one step; states by their table."""
        session, log, table = self.session, self.log, TableLocation(step.table)

        def write(number: int, name: str, statement: Callable[[WriteToken], None]) -> None:
            self.turn.write(table, step=number, name=name, statement=statement)

        match step.action:
            case "delete requests":
                write(FORGET, "forget", lambda token: self._delete_requests(table, token))
            case "purge":
                write(PURGE, schedule.PURGE, lambda token: relocate(log, statements.purge(session, table), token))
            case "vacuum":
                write(VACUUM, schedule.VACUUM, lambda token: self._vacuum(step, states[step.table], token))
            case "checkpoint":
                write(CHECKPOINT, "checkpoint", lambda token: self._checkpoint(table, token))
            case "clean log":
                place = Place(step.table, self.settings)
                for name in step.files:
                    self.turn.check()
                    with contextlib.suppress(FileNotFoundError):
                        place.files.delete_file(states[step.table].entries[name].path)
            case "mask texts":
                self._mask(step)
            case _:
                assert_never(step.action)

    def _mask(self, step: Step) -> None:
        """Writes stars over values, in place: a file keeps its size, so a process that appends to it is not disturbed."""
        for name in step.files:
            with contextlib.suppress(FileNotFoundError, UnicodeDecodeError), Path(step.table, name).open("r+b") as file:
                before = file.read()
                after = self.persons.without(before.decode()).encode()
                if after != before:
                    file.seek(0)
                    file.write(after)

    def _vacuum(self, step: Step, state: TableState, token: WriteToken) -> None:
        place = Place(step.table, self.settings)
        table, root = TableLocation(step.table), place.location if place.is_s3 else f"file:{place.root}"
        files = [(f"{root}/{name}", state.entries[name].size, state.entries[name].mtime_ms) for name in step.files]
        is_own = state.files_kept_ms == _retention(state.history)[0]
        older_than_ms = None if is_own else state.files_kept_ms
        statements.vacuum(self.session, table, older_than_ms=older_than_ms, is_checked=is_own, files=files)
        statements.record(self.log, table, token)

    def _checkpoint(self, table: TableLocation, token: WriteToken) -> None:
        statements.record(
            self.log, table, token
        )  # the version of the checkpoint: it changes nothing, so it names nobody
        self.log.checkpoint(table)

    def _delete_requests(self, table: TableLocation, token: WriteToken) -> None:
        schema = self.log.metadata(table).schema
        of_person = [
            said
            for one in self.persons.all
            for part in ("key", "set")
            if (said := _is_person(one, part, cast(StructType, schema[part].dataType))) is not None
        ]
        decides_nothing = f"(state = '{ENDED}' OR (state = 'applied' AND op = 'lift'))"
        with tokened(self.session, token), conflicts():
            DeltaTable.forPath(self.session, table).delete(
                f"{decides_nothing} AND ({' OR '.join(of_person) or 'false'})"
            )
        statements.record(self.log, table, token)  # where there were none


def _is_person(person: Person, part: str, columns: StructType) -> str | None:
    """Returns an SQL condition on requests: their key, or what they set, is the person's; None if it has not all columns."""
    fields = {field.name.lower(): field for field in columns.fields}
    said = []
    for name, text in person.values:
        field = fields.get(stored_name(name).lower())
        if field is None:
            return None
        value = f"try_cast({quoted_literal(text)} AS {field.dataType.simpleString()})"
        said.append(f"{part}.{quoted(field.name)} = {value}")
    return f"({' AND '.join(said)})"


def _read_from(pipeline: Pipeline, table: TableSpec) -> int | None:
    """Returns the first version of the table whose commit a sync of the file still has to read; None if there is no such sync.

    Raises:
        Unavailable: A target does not answer.
    """
    found: list[int] = []
    for spec in pipeline.syncs:
        if isinstance(spec.source, TableSource) and spec.source.table == table.name:
            with SyncSession(pipeline, spec) as session:
                now = session.standing()
            if now.position is not None:
                found.append(now.position + 1)
            elif now.last_batch or isinstance(spec.source.start, int):
                found.append(spec.source.start if isinstance(spec.source.start, int) else 0)
    return min(found, default=None)


def _below(names: Mapping[str, T], folder: str) -> dict[str, T]:
    """Returns what is below a folder, by paths from there on."""
    return {name.removeprefix(folder): one for name, one in names.items() if name.startswith(folder)}


def _retention(history: History) -> tuple[int, int]:
    """Returns for how long a table keeps removed files, and its log."""
    files, log = RETENTION
    return retention_ms(history.properties, files), retention_ms(history.properties, log)
