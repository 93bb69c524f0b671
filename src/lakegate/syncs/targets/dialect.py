"""The differences between databases: names, joins in writing statements, the catalogue, and the meaning of errors.

The shared statements assume `LIMIT`, `IF EXISTS`, `ADD COLUMN` and generated columns as PostgreSQL, MariaDB and SQLite have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.targets.faults import KnownFault
from lakegate.syncs.targets.sequences import MovedSequence

ANSWERS_NULL = re.compile(r"(?i)\b(case|coalesce|concat_ws|greatest|if|ifnull|iif|is|isnull|least|nvl|nvl2)\b|<=>")
"""Finds an expression that may have a value although a column it reads is NULL."""
Named = tuple[str, str]
"""A quoted table and its alias."""


def places_of(name: str) -> tuple[tuple[str | None, str], ...]:
    """Returns the possible meanings of a table's name as (schema, table). A dot may also be part of the name."""
    schema, dot, table = name.partition(".")
    return ((schema, table), (None, name)) if dot and schema and table else ((None, name),)


def ambiguous(name: str) -> InvalidRequest:
    """Returns the error for a name that matches two tables."""
    return InvalidRequest(
        "a name with a dot matches two tables, one of them in the schema before the dot; nothing was written",
        advice="Rename one of them, or name another target under `tables`",
        table=name,
    )


class Cursor(Protocol):
    """The part of the DB-API that is used."""

    def execute(self, query: str, params: Sequence[object] = ..., /) -> object: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...
    def fetchone(self) -> Any: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """A connection, in a transaction from its first statement on."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Dialect(Protocol):
    """A kind of database."""

    errors: tuple[type[BaseException], ...]
    """Errors that the driver raises."""
    mark: str
    """The placeholder of a parameter."""
    share: str
    """Suffix of a SELECT that prevents others from changing the row until the transaction ends."""
    update: str
    """Suffix of a SELECT that also prevents others from reading the row with `share`."""
    slot_rows_max: int | None
    """The maximum number of rows in one transaction of mode `parallel`; None for no limit."""
    types: Mapping[type, str]
    """Type of a value → type of a new column for such values."""
    writers_max: int | None
    """The maximum number of transactions that may write concurrently; None for no limit."""
    ignores_case: bool
    """Whether table names that differ only in case name the same table."""
    checks_rows_one_by_one: bool
    """Whether foreign keys are checked after each row of a statement, not at its end."""

    has_network: bool
    """Whether the database is reached over a network."""

    def connect(self) -> Connection:
        """Opens a connection. Raises one of `errors`."""
        ...

    def cut(self, connection: Connection) -> None:
        """Cuts a connection that another thread waits for, so that the thread gets an error."""
        ...

    def name(self, text: str) -> str:
        """Returns a quoted identifier."""
        ...

    def begin(self, connection: Connection) -> None:
        """Begins a transaction in which all deferrable constraints are deferred."""
        ...

    def end_trial(self, connection: Connection) -> None:
        """Rolls back after the checks that a commit would make; raises the error that the commit would end with."""
        ...

    def snapshot(self, connection: Connection) -> None:
        """Begins a transaction that reads one snapshot of the target tables and writes only to temporary tables."""
        ...

    def catalogue(self, connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
        """Returns these tables, with the foreign keys from and to them. Names that do not exist are left out."""
        ...

    def control(self) -> Sequence[str]:
        """Returns the statements that create the control tables if they do not exist."""
        ...

    def stage_table(
        self, name: str, columns: Sequence[str], key: Sequence[Column], *, is_temporary: bool
    ) -> Sequence[str]:
        """Returns the statements that create a staging table, with an index for joins on its key.

        Args:
            name: Quoted name.
            columns: Definitions of the columns.
            key: The columns that identify a row.
            is_temporary: Only this connection sees the table, and the table ends with the connection.
        """
        ...

    def stage_tables(self, connection: Connection, prefix: str) -> Sequence[str]:
        """Returns the names of the staging tables that begin with `prefix`."""
        ...

    def empty(self, connection: Connection, table: str) -> None:
        """Deletes all rows of a staging table (its quoted name)."""
        ...

    def write(
        self,
        connection: Connection,
        table: str,
        columns: Sequence[str],
        types: Sequence[Column | None],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        """Writes rows to a staging table in the database's fastest way. `types`: a column, or None for a column of marks.

        Raises:
            Misfit: A value does not fit its column. `Misfit` is one of `errors`.
        """
        ...

    def value(self, column: Column, value: Any) -> object:
        """Returns a value as a statement's parameter for the column. Raises `Misfit`."""
        ...

    def analyze(self, connection: Connection, table: str, rows: int) -> None:
        """Updates the statistics of a staging table of `rows` rows, if the database needs that."""
        ...

    def delete(self, table: str, stage: str, key: Sequence[str], where: str) -> str:
        """Returns a DELETE of the rows of `table` that have the key of a staged row `s` that satisfies `where`."""
        ...

    def change(self, table: Named, other: Named, match: str, sets: Sequence[tuple[str, str]], where: str) -> str:
        """Returns an UPDATE of rows of `table` from rows of `other`. `sets`: column → expression over both aliases."""
        ...

    def same(self, left: str, right: str) -> str:
        """Returns an equality under which NULL equals NULL."""
        ...

    def parameter(self, column: Column, value: object) -> object:
        """Returns a value of an event as a parameter that can be compared with the column. Raises `Misfit`."""
        ...

    def stored_same(self, column: Column, left: str, right: str) -> str:
        """Returns an equality of stored values: NULL equals NULL, and texts are compared by their characters."""
        ...

    def one_copy(self, table: str, columns: Sequence[Column]) -> str:
        """Returns a DELETE of one row that is equal in all these columns; parameters in the order of the columns."""
        ...

    def same_row(self, columns: Sequence[Column]) -> str:
        """Returns the condition that a row is equal in all these columns; parameters in the order of the columns."""
        ...

    def insert_into(self, table: str) -> str:
        """Returns `INSERT INTO table`, with an override of the table's own ON CONFLICT clause if it has one."""
        ...

    insert_words: str
    """Words between the columns and the SELECT of an INSERT."""

    def truncate(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        """Returns the statements that empty target tables within a transaction. `tables`: children first."""
        ...

    def unused(self, column: Column) -> str | None:
        """Returns an expression over the staged row `s` whose value no row has: a number or a short text; else None."""
        ...

    def fault(self, error: BaseException) -> KnownFault:
        """Returns the meaning of an error, and the words to report it with."""
        ...

    def value_bytes_max(self, connection: Connection) -> int | None:
        """Returns the maximum size in bytes of one value in a statement; None for no limit."""
        ...

    def violated(self, error: BaseException) -> Violated:
        """Returns the facts of an error of kind VIOLATION."""
        ...

    def move_sequences(self, cursor: Any, table: str) -> Sequence[MovedSequence]:
        """Moves the sequences of a table's columns past its rows. Sequences that move by themselves are left out."""
        ...

    def is_repeated(self, error: BaseException) -> bool:
        """Returns whether a DDL statement fails because it was executed before."""
        ...
