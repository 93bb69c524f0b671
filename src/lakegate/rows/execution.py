"""Executes a statement with stock Delta, on its table or on some of the table's files, and keeps what Delta would commit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action, Body, Captured, Committed, as_add, partition_columns
from lakegate.delta.idempotent_writes import NUMBER_CONF
from lakegate.delta.table_log import CATALOG_FEATURES
from lakegate.errors import UnsupportedTable
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows import quick, shallow_clone
from lakegate.rows.concurrent_commits import ConcurrentCommits, facts_of
from lakegate.rows.conflict.read_set import Reads, Statement, classify
from lakegate.rows.driver_state import Shared
from lakegate.rows.quick_or_stock import run
from lakegate.rows.row_reader import TableRows
from lakegate.rows.statement import Dml

UNSERVED_FEATURES = CATALOG_FEATURES | {
    "adaptiveMetadata-preview",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
}
"""A commit of a table with one of these features is more than its actions in the log: for example a manifest of all its files."""
VECTORS = "delta.enableDeletionVectors"
ROW_IDS = "delta.enableRowTracking"


class Execution:
    """The executions of one statement.

    Args:
        shared: The state of the driver.
        dml: The statement.
        log: Delta's log of its table.
        statement_id: The id of the statement at the gate.
        commits: The commits that others have made since.
        token: The token that the statement's commit carries.
        number: Number of the token that the session's settings give each commit; an execution may remove it from them.
    """

    def __init__(
        self,
        shared: Shared,
        dml: Dml,
        log: Any,
        statement_id: str,
        commits: ConcurrentCommits,
        *,
        token: WriteToken | None,
        number: str | None,
    ) -> None:
        self._shared, self._dml, self._statement_id, self._commits = shared, dml, statement_id, commits
        self._token, self._number = token, number
        self._jvm, self._gate, self._log = dml.jvm, shared.gate, log
        self.returned: Any = None
        """Stock Delta's return value of the last whole execution."""
        self.why_stock: str | None = None
        """Why stock Delta ran the last whole execution; None if it was a quick one."""
        self.seconds = 0.0
        """Duration of the last execution."""
        self.computed_on: Version | None = None
        """The snapshot of the last execution whose commit was kept."""
        self._stock_id: str | None = None
        """Transaction id of that commit. Not every store recognizes its own write, so the commit may be in the log all the same."""
        self._rows: TableRows | None = None
        self._rows_read_before = 0

    @property
    def rows(self) -> TableRows:
        """The reader of the rows that matter to the statement; made at first use."""
        if self._rows is None:
            self._rows = TableRows(self._jvm, self._log, self._dml, self._shared.remembered)
        return self._rows

    @property
    def rows_read(self) -> int:
        """The number of rows that were read again to test whether they concern the statement."""
        return self._rows_read_before + (0 if self._rows is None else self._rows.rows_read)

    def run(self) -> Captured | Committed:
        """Executes the whole statement on the table as it is now; keeps its commit if another commit has the version."""
        # The cached values depend on the table's columns as of the execution before.
        self._dml.forget()
        self._rows_read_before, self._rows = self.rows_read, None
        self._set_number()
        # The stock commit would not carry the token, so it is staged.
        with self._jvm.holding(self._log), self._timed():
            done = run(self._shared, self._dml, statement_id=self._statement_id, is_staged=self._token is not None)
        ran, self.why_stock = done.ran, done.why_stock
        self.returned = ran.returned
        if isinstance(ran.commit, Committed):
            return ran.commit
        self.computed_on = ran.commit.version
        self._stock_id = ran.commit.info.get("txnId")
        return self.with_token(ran.commit)

    def run_on(self, files: Sequence[Body], version: Version) -> Captured | Committed:
        """Executes the statement on these files only, as they are at a version; keeps its commit."""
        run_on = self._dml.execute_on
        assert run_on is not None, "a statement that cannot be executed elsewhere is not divisible"
        self._shared.sweep(self._dml.table, self._log.dataPath())
        self._set_number()

        def stage(path: str) -> Captured | Committed:
            with self._timed():
                return self._gate.run(lambda: run_on(path), statement_id=self._statement_id, is_staged=True).commit

        quickly = self._run_quickly_on(files, version)
        if quickly is not None:
            return quickly
        executed = shallow_clone.staged_on(self._jvm, self._log, self._defined_as_at(version), files, stage)
        return executed if isinstance(executed, Committed) else self.with_token(executed)

    def _run_quickly_on(self, files: Sequence[Body], version: Version) -> Captured | Committed | None:
        """Executes the statement on these files without a Spark job and without a table of them; None if that is not possible."""
        newest = Version(self._log.unsafeVolatileSnapshot().version())
        if quick.why_not(self._dml) is not None or not self._commits.has_definition_of(newest, version):
            return None
        metadata = json.loads(self._log.unsafeVolatileSnapshot().metadata().json())["metaData"]
        adds = [as_add(file, partition_columns(metadata)) for file in files]
        why: str | None = None

        def execute() -> None:
            nonlocal why
            why = quick.execute(self._dml, adds, newest, later=self._shared.afterwards)

        with self._timed():
            ran = self._gate.run(execute, statement_id=self._statement_id, is_staged=True, table=self._dml.table)
        if why is not None:
            return None
        return ran.commit if isinstance(ran.commit, Committed) else self.with_token(ran.commit)

    def with_token(self, commit: Captured) -> Captured:
        """Adds the statement's token to a commit, and removes one that the session's settings have given it."""
        if self._token is None:
            return commit
        txn = Action("txn", {"appId": self._token.token_id, "version": self._token.number})
        others = (a for a in commit.actions if a.kind != "txn" or a.body["appId"] != self._token.token_id)
        info = {**commit.info, "userMetadata": self._token.user_metadata}
        return replace(commit, actions=(*others, txn), info=info)

    def describe(self) -> Statement:
        """Classifies the statement by what it reads, and computes now what a rebase needs, while nobody waits.

        Raises:
            UnsupportedTable: A feature of the table does not allow a rebase.
        """
        snapshot = self._log.unsafeVolatileSnapshot()
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        if (unserved := sorted(features & UNSERVED_FEATURES)) and not self._is_stock_there():
            earlier = self._commits.winning(self.computed_on)
            raise UnsupportedTable(
                f"{'the commit was captured' if earlier is None else 'another commit came first'}, and a feature of this table "
                "does not allow a rebase onto concurrent commits; nothing was written",
                advice="Run the statement again, or alone, or use a table without the feature",
                table=self._dml.table,
                feature=", ".join(unserved),
                **facts_of(earlier),
            )
        properties = json.loads(snapshot.metadata().json())["metaData"].get("configuration") or {}
        statement = classify(
            self._dml.facts(
                has_vectors=properties.get(VECTORS) == "true", has_row_ids=properties.get(ROW_IDS) == "true"
            )
        )
        match statement.reads:
            case Reads.KEYS:
                _ = self.rows
                if self.why_stock is not None:  # the driver has the keys of a quick MERGE
                    _ = self._dml.described_keys
            case Reads.ROWS:
                _ = self.rows, self._dml.described_condition
        return statement

    def require_files(self, commit: Captured) -> None:
        """Raises `InvalidRequest` unless the files that a commit adds still exist.

        This is checked for a staged commit, which may be made at any time later. A commit that lost and is rebased at once is
        not checked: its files are as old as the statement's duration, and stock Delta does not check them either.
        """
        exact.require_files(self._jvm, self._log, self._dml.table, commit.actions)

    def _is_stock_there(self) -> bool:
        """Returns True if the log has the commit that Delta tried to make."""
        if self.computed_on is None or self._stock_id is None:
            return False
        return self._stock_id in self._commits.changes(self.computed_on).transaction_ids

    def _defined_as_at(self, version: Version) -> Any:
        """Returns a snapshot with the table's definition at a version: the newest one, if the commits between are known."""
        newest = self._log.unsafeVolatileSnapshot()
        if self._commits.has_definition_of(Version(newest.version()), version):
            return newest
        with self._jvm.active():
            return self._log.getSnapshotAt(version, self._jvm.none, self._jvm.none, False)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds = time.monotonic() - begun

    def _set_number(self) -> None:
        if self._number is not None:
            self._dml.session.conf.set(NUMBER_CONF, self._number)
