"""Publishes statements on several tables together (`publish`), and pins versions that belong together (`snapshot`)."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action
from lakegate.delta.jvm import CALL_ERRORS, Jvm
from lakegate.delta.open_publishes import APP_ID, DECIDED, OPERATION, Participant, as_stored
from lakegate.delta.publish_protocol import (
    DropIntent,
    Follow,
    Intent,
    Outcome,
    PutData,
    PutIntent,
    PutMarker,
    ReadIntent,
    WriteNote,
)
from lakegate.delta.publish_protocol import (
    publish as steps,
)
from lakegate.delta.storage_errors import in_plain_words
from lakegate.effects import Effect
from lakegate.errors import CommitInDoubt, Fenced, InvalidRequest, Unavailable, summary
from lakegate.ids import TableLocation, Version
from lakegate.notebook import Shown
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.conflict.rebase import without_row_ids
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml, location_of
from lakegate.rows.thread_scope import TurnWrite, entered, plain, scope
from lakegate.turns.host import boot_id, start_of
from lakegate.turns.protocol.fencing import unpack

ATTEMPTS_MAX = 20
"""Attempts of a publish whose statements other commits keep overtaking."""
RESERVED_FROM = 2
"""From this attempt on the tables are reserved while statements are executed again."""
HOLD_MS = 30_000


class Snapshot(Shown):
    """Versions of several tables that belong together: each publish is in all of them, or in none."""

    def __init__(self, spark: SparkSession, versions: Mapping[str, int]) -> None:
        self._spark = spark
        self.versions = dict(versions)
        """Table → version. The keys are the tables as they were given."""

    def read(self, table: str) -> DataFrame:
        """Reads a table at its version.

        Args:
            table: As it was given to `lakegate.snapshot` or `lakegate.publish`.

        Returns:
            Its rows.

        Raises:
            InvalidRequest: The table is not in the snapshot.
        """
        if table not in self.versions:
            raise InvalidRequest(
                "the table is not in this snapshot; nothing was read", table=table, tables=sorted(self.versions)
            )
        reader = self._spark.read.format("delta").option("versionAsOf", self.versions[table])
        return reader.load(table) if _is_path(table) else reader.table(table)

    def __repr__(self) -> str:
        return f"Snapshot({self.versions})"

    def _shown(self) -> Mapping[str, object]:
        return {"versions": self.versions}


@in_plain_words()
def snapshot(spark: SparkSession, tables: Sequence[str]) -> Snapshot:
    """Returns the newest versions of several tables that belong together.

    Finishes a publish whose driver has died, as far as it is decided.

    Args:
        spark: A session that `lakegate.session` made.
        tables: Paths or names of Delta tables.

    Returns:
        Their versions, and a way to read them.

    Raises:
        InvalidRequest: There is no table, or one stands there twice.
        Unavailable: Storage does not answer.

    Example:
        ```python
        now = lakegate.snapshot(spark, ["/lake/orders", "/lake/lines"])
        now.read("/lake/orders").join(now.read("/lake/lines"), "order_id")
        ```
    """
    located = _located(spark, tables)
    pins = publisher(spark).publishes.pin(sorted(located.values()))
    return Snapshot(spark, {name: pins[location] for name, location in located.items()})


class Publish:
    """The statements of one publish. Made by `lakegate.publish`."""

    def __init__(self, spark: SparkSession, located: Mapping[str, TableLocation], turn: TurnWrite | None) -> None:
        self._spark, self._located, self._turn = spark, located, turn
        self._ours = publisher(spark)
        self._staged: dict[TableLocation, Staged] = {}
        self._tables: list[TableLocation] = []
        self._markers: dict[TableLocation, Version] = {}
        self._made: dict[TableLocation, Version] = {}
        self._is_reserved = False
        self._token = f"publish:{uuid.uuid4().hex}"
        """Under which its markers pass the gate, and the tables are reserved."""
        self._id = ""
        self.versions: Mapping[str, int] = {}
        """Table → version of its commit, once the publish is made; tables without a statement are left out."""

    @property
    def snapshot(self) -> Snapshot:
        """The tables as of this publish."""
        return Snapshot(self._spark, self.versions)

    # --------------------------------------------------------------------------------------------------- statements

    def take(self, dml: Dml) -> Result:
        """Executes a statement without committing it. The publish commits it.

        Raises:
            InvalidRequest: The table does not take part, or has its statement.
        """
        table = _canonical(dml.jvm, dml.table)
        if table not in self._located.values():
            raise InvalidRequest(
                "a statement on a table that the publish does not name; nothing was written",
                advice="Name each table: lakegate.publish(spark, [orders, lines])",
                table=table,
            )
        if table in self._staged:
            raise InvalidRequest(
                "a publish has one statement for each table, as a second one would not see what the first one did; nothing "
                "was written",
                advice="Make it one MERGE",
                table=table,
            )
        is_done = False
        if self._turn is not None:
            if plain(table) not in self._turn.since:
                raise InvalidRequest(
                    "the publish changes a table that this job does not name, so it cannot be fenced; nothing was written",
                    advice="Name it: JobCoordinator(…, tables=[…])",
                    table=table,
                )
            is_done = plain(table) in self._turn.applied
        if not is_done:
            self._staged[table] = self._executed(dml)
        return Result(version=None, is_superseded=is_done, level=0, attempts=1, lost_puts=0, reasons=())

    def _executed(self, dml: Dml) -> Staged:
        dml.forget()
        if self._turn is not None:
            self._turn.renew()
        return self._ours.stage(dml)

    def make(self) -> None:
        """Commits the statements together.

        Raises:
            Unavailable: Others kept overtaking it, or storage does not answer; nothing was published.
            CommitInDoubt: It is decided, or may be; the next process that uses one of its tables finishes it.
        """
        tables = sorted(self._staged)
        try:
            for attempt in range(ATTEMPTS_MAX):
                outcome = self._attempted(str(uuid.uuid4()), tables) if tables else "published"
                if outcome == "published":
                    return self._report(tables)
                if outcome == "fenced":
                    assert self._turn is not None, "only turns are fenced"
                    raise Fenced(table=", ".join(tables), epoch=unpack(self._turn.token.number).epoch)
                self._execute_again(is_reserved=attempt >= RESERVED_FROM)
        finally:
            for staged in self._staged.values() if self._is_reserved else ():
                with suppress(*CALL_ERRORS):
                    self._ours.gate.unreserve(staged.dml.table, self._token)
        raise Unavailable("other writers kept overtaking the publish; nothing was published", attempts=ATTEMPTS_MAX)

    def _attempted(self, publish_id: str, tables: list[TableLocation]) -> Outcome:
        self._id, self._tables, self._markers, self._made = publish_id, tables, {}, {}
        try:
            outcome: Outcome = self._ours.publishes.drive(steps(publish_id, tables), self._answer)
        except BaseException as error:
            if self._is_aborted():
                raise
            raise CommitInDoubt(
                "the publish is decided, or may be; the next process that uses one of its tables finishes it",
                advice="Look at the tables with lakegate.snapshot before the work is done again",
                publish=publish_id,
                reason=summary(error),
            ) from error
        return outcome

    def _is_aborted(self) -> bool:
        """Aborts the attempt unless it is decided; returns True if it is aborted then."""
        try:
            if self._markers:  # an intent was written, or a request to write it is still under way
                self._put_intent(())
                intent = self._own_intent()
                if intent is None or not intent.is_aborted:
                    return False
            for table in self._tables:
                self._ours.publishes.drop(table, "publish", f"{self._id}.note")
        except Exception:
            return False
        return True

    def _report(self, tables: Sequence[TableLocation]) -> None:
        log = self._ours.publishes
        versions = {table: self._made.get(table) or log.version_of(table, self._markers[table]) for table in tables}
        self.versions = {name: versions[table] for name, table in self._located.items() if table in versions}
        for table, staged in self._staged.items():
            result = Result(
                version=versions.get(table),
                is_superseded=False,
                level=staged.level,
                attempts=len(staged.reasons) + 1,
                lost_puts=0,
                reasons=staged.reasons,
                why_stock=staged.why_stock,
            )
            self._ours.reported(staged.dml, result)

    def _execute_again(self, *, is_reserved: bool) -> None:
        """Executes the statements again that cannot follow the commits made since."""
        for table, staged in self._staged.items():
            followed = self._ours.follow(staged)
            if followed.commit.version < self._ours.publishes.log.head(table):
                if is_reserved:
                    self._is_reserved = True
                    self._ours.gate.reserve(staged.dml.table, self._token, HOLD_MS)
                followed = self._executed(staged.dml)
            self._staged[table] = followed

    # ------------------------------------------------------------------------------------------------------- effects

    def _answer(self, effect: Effect[Any]) -> Any:
        """Answers the effects of this publish; those of ending others as any process does."""
        match effect:
            case WriteNote(table=table):
                return self._write_note(table)
            case Follow(table=table, version=version):
                return self._followed(table, version)
            case PutMarker(table=table, version=version):
                return self._put_marker(table, version)
            case PutIntent(publish_id=self._id, markers=markers):
                self._markers = dict(markers)
                participants = [self._participant(table) for table in self._markers]
                for one in participants:
                    self._ours.publishes.require_files(one)
                return self._put_intent(participants)
            case ReadIntent(publish_id=self._id):
                return self._own_intent()
            case PutData(publish_id=self._id, table=table, version=version):
                return self._put_data(table, version)
            case DropIntent(publish_id=self._id):
                return self._ours.publishes.drop(self._first, "intents", f"{self._id}.json")
        return self._ours.publishes.answer(effect)

    @property
    def _first(self) -> TableLocation:
        return self._tables[0]

    def _write_note(self, table: TableLocation) -> None:
        note = {
            "publish": self._id,
            "tables": self._tables,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "pid_start": start_of(os.getpid()),
        }
        self._ours.publishes.put(table, "publish", f"{self._id}.note", note)

    def _followed(self, table: TableLocation, version: Version) -> str:
        if self._turn is not None:
            _, number = self._ours.publishes.log.number_of(table, self._turn.token.token_id)
            if number is not None and number >= self._turn.token.number:
                return "fenced"
        if self._staged[table].commit.version < version:
            self._staged[table] = self._ours.follow(self._staged[table])
        return "followed" if self._staged[table].commit.version >= version else "behind"

    def _put_marker(self, table: TableLocation, version: Version) -> bool:
        info = {"operation": OPERATION, "operationParameters": {"publish": self._id}}
        txn = Action("txn", {"appId": APP_ID, "version": 2 * version})
        marker = replace(self._participant(table), actions=(txn,), info=info)
        tried = self._ours.publishes.commit(self._token, version, marker)
        return isinstance(tried, exact.Tried) and tried.reply == "done"

    def _participant(self, table: TableLocation) -> Participant:
        staged = self._staged[table]
        marker = self._markers.get(table, Version(-1))
        txns = [Action("txn", {"appId": APP_ID, "version": 2 * marker + 1})]
        actions = without_row_ids(staged.commit)
        info = staged.commit.info or {"operation": staged.dml.operation.value}
        if self._turn is not None:
            token = self._turn.token
            actions = [a for a in actions if a.kind != "txn" or a.body["appId"] != token.token_id]
            txns.append(Action("txn", {"appId": token.token_id, "version": token.number}))
            info = {**info, "userMetadata": token.user_metadata}
        return Participant(
            table=table,
            table_id=staged.base.table_id,
            marker=marker,
            base=staged.commit.version,
            actions=(*actions, *txns),
            info=info,
        )

    def _put_intent(self, participants: Sequence[Participant]) -> bool:
        content = {"participants": [as_stored(one) for one in participants]}
        return self._ours.publishes.put(self._first, "intents", f"{self._id}.json", content)

    def _own_intent(self) -> Intent | None:
        return self._ours.publishes.intent(self._first, self._id)

    def _put_data(self, table: TableLocation, version: Version) -> None:
        """Commits, after a rebase on the commits of writers without a gate that came since the marker."""
        if version - 1 > self._markers[table]:
            staged = self._ours.follow(self._staged[table])
            if staged.commit.version < version - 1:
                staged = self._executed(staged.dml)
            self._staged[table] = staged
        tried = self._ours.publishes.commit(DECIDED + self._id, version, self._participant(table))
        if isinstance(tried, exact.Tried) and tried.reply == "done":
            self._made[table] = version


@contextmanager
def publish(spark: SparkSession, tables: Sequence[str]) -> Iterator[Publish]:
    """Makes the statements of the block visible together or not at all: at most one for each table.

    Statements of `lakegate.DeltaTable` and `lakegate.sql` in the block are executed and not committed. The end of the block
    commits them. If another commit came first, a statement is rebased on it or executed again, as a single statement would be. An
    error in the block ends the publish, and nothing is published. If the driver dies, the next process that uses one of the tables
    finishes the publish if it is decided, and ends it if not.

    Args:
        spark: A session that `lakegate.session` made.
        tables: Paths or names of the Delta tables.

    Returns:
        The publish; `versions` after the block.

    Raises:
        InvalidRequest: A table is missing or stands there twice; or the block writes in another way than by such a statement.
        TurnNotGranted: A table takes turns, and the job does not have its turn; nothing was published.
        Unavailable: Others kept overtaking it, or storage does not answer; nothing was published.
        CommitInDoubt: It is decided, or may be; the next process that uses one of its tables finishes it.

    Example:
        ```python
        with lakegate.publish(spark, ["/lake/orders", "/lake/lines"]) as done:
            lakegate.sql(spark, "INSERT INTO delta.`/lake/orders` SELECT * FROM {new}", new=orders)
            lakegate.sql(spark, "INSERT INTO delta.`/lake/lines` SELECT * FROM {new}", new=lines)
        done.versions
        ```
    """
    turn = scope()
    if turn is not None and not isinstance(turn, TurnWrite):
        raise InvalidRequest(
            "a publish within another one, or in a batch with coverage `publish`; nothing was written",
            advice="Make one publish, or leave the coverage `exclusive`",
        )
    if turn is not None:
        turn.begin()
    made = Publish(spark, _located(spark, tables), turn)
    refusal = (
        "something else than a statement of lakegate.DeltaTable or lakegate.sql wanted to commit in a publish; nothing was "
        "written"
    )
    with entered(made), publisher(spark).gate.closed(refusal, "Write with those, once for each table"):
        yield made
    _make(made)
    if turn is not None:
        turn.end()


@in_plain_words()
def _make(made: Publish) -> None:
    made.make()


def _located(spark: SparkSession, tables: Sequence[str]) -> dict[str, TableLocation]:
    """Returns each table's location as Delta has it. Raises: as `snapshot`."""
    jvm = Jvm(spark)
    found: dict[str, TableLocation] = {}
    for table in tables:
        location = TableLocation(table) if _is_path(table) else location_of(DeltaTable.forName(spark, table)._jdt)
        log = jvm.delta_log(location)
        if log.unsafeVolatileSnapshot().version() < 0 and jvm.snapshot(log).version() < 0:
            raise InvalidRequest("there is no Delta table here; nothing was done", table=table)
        found[table] = _canonical(jvm, location)
    if not found or len(set(found.values())) < len(tables):
        raise InvalidRequest("name one or more tables, each once; nothing was done", tables=", ".join(tables))
    return found


def _is_path(table: str) -> bool:
    return "/" in table and not table.startswith("delta.`")


def _canonical(jvm: Jvm, table: TableLocation) -> TableLocation:
    return TableLocation(str(jvm.delta_log(table).dataPath().toString()))
