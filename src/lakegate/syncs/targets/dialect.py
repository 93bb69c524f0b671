"""What differs between the databases: names, joins in writing statements, the catalogue, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.targets.faults import Told
from lakegate.syncs.targets.sequences import MovedSequence

ANSWERS_NULL = re.compile(r"(?i)\b(case|coalesce|concat_ws|greatest|if|ifnull|iif|is|isnull|least|nvl|nvl2)\b|<=>")
"""In an expression: it may have a value though what it reads is NULL."""
Named = tuple[str, str]
"""A quoted table and its alias."""


def places_of(name: str) -> tuple[tuple[str | None, str], ...]:
    """What a table's name may mean: schema and table. A dot may be a part of the name, too."""
    schema, dot, table = name.partition(".")
    return ((schema, table), (None, name)) if dot and schema and table else ((None, name),)


def ambiguous(name: str) -> InvalidRequest:
    """The error of a name that two tables have."""
    return InvalidRequest(
        "a name with a dot is that of two tables, one of them in the schema in front of the dot; nothing was written",
        advice="Rename one of them, or name another target under `tables`",
        table=name,
    )


class Cursor(Protocol):
    """As much of the DB-API as is used."""

    def execute(self, query: str, params: Sequence[object] = ..., /) -> object: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...
    def fetchone(self) -> Any: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """One connection, in a transaction from its first statement on."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Dialect(Protocol):
    """One kind of database."""

    errors: tuple[type[BaseException], ...]
    """What the driver raises."""
    mark: str
    """Stands for a parameter."""
    share: str
    """Ends a SELECT that keeps others from changing the row until the transaction ends."""
    update: str
    """Ends a SELECT that keeps others from reading it with `share`, too."""
    slot_rows_max: int | None
    """How many rows a transaction of mode `parallel` takes at most."""
    types: Mapping[type, str]
    """A value's type → the type of a column that is made for such values."""
    writers_max: int | None
    """How many transactions may write side by side."""
    ignores_case: bool
    """Whether two names of tables that differ in upper and lower case are one."""
    checks_rows_one_by_one: bool
    """Whether foreign keys are checked at each row of a statement, and not at its end."""

    has_network: bool
    """Whether the database is at the other end of a network."""

    def connect(self) -> Connection:
        """A new connection. Raises one of `errors`."""
        ...

    def cut(self, connection: Connection) -> None:
        """Ends a connection that another thread waits for: it gets an error."""
        ...

    def name(self, text: str) -> str:
        """A quoted identifier."""
        ...

    def begin(self, connection: Connection) -> None:
        """Begins a transaction in which constraints that may be deferred are."""
        ...

    def end_trial(self, connection: Connection) -> None:
        """Rolls a transaction back, after what a commit of it would check: an error is the one that it would end with."""
        ...

    def snapshot(self, connection: Connection) -> None:
        """Begins a transaction that sees one state of the target tables to its end, and writes to temporary tables only."""
        ...

    def catalogue(self, connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
        """These tables and those that their foreign keys lead to or come from; names that do not exist are left out."""
        ...

    def control(self) -> Sequence[str]:
        """Statements that make the control tables if they are not there."""
        ...

    def stage_table(
        self, name: str, columns: Sequence[str], key: Sequence[Column], *, is_temporary: bool
    ) -> Sequence[str]:
        """The statements that make a staging table, with what its key's joins need.

        Args:
            name: Quoted.
            columns: Their definitions.
            key: Those that tell rows apart.
            is_temporary: It is seen by this connection alone, and ends with it.
        """
        ...

    def stage_tables(self, connection: Connection, prefix: str) -> Sequence[str]:
        """Names of the staging tables that begin with `prefix`."""
        ...

    def empty(self, connection: Connection, table: str) -> None:
        """Takes all rows out of a staging table (its quoted name)."""
        ...

    def write(
        self,
        connection: Connection,
        table: str,
        columns: Sequence[str],
        types: Sequence[Column | None],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        """Writes rows to a staging table as fast as the database takes them; `types` of the columns that are not marks.

        Raises:
            Misfit: A value does not fit its column; it is one of `errors`.
        """
        ...

    def value(self, column: Column, value: Any) -> object:
        """A value as a statement's parameter for the column. Raises `Misfit`."""
        ...

    def analyze(self, connection: Connection, table: str, rows: int) -> None:
        """Tells the database how many rows a staging table has, if it does not know."""
        ...

    def delete(self, table: str, stage: str, key: Sequence[str], where: str) -> str:
        """DELETE of rows of `table` that have the key of a staged row `s` that satisfies `where`."""
        ...

    def change(self, table: Named, other: Named, match: str, sets: Sequence[tuple[str, str]], where: str) -> str:
        """UPDATE of rows of `table` from rows of `other`: column → expression over both aliases."""
        ...

    def same(self, left: str, right: str) -> str:
        """Equality under which NULL equals NULL."""
        ...

    def parameter(self, column: Column, value: object) -> object:
        """A value of an event, so that the column compares itself with it as with one of its own. Raises `Misfit`."""
        ...

    def stored_same(self, column: Column, left: str, right: str) -> str:
        """Whether two values of a column are the same as stored: NULL is like NULL, and texts are by their characters."""
        ...

    def one_copy(self, table: str, columns: Sequence[Column]) -> str:
        """DELETE of one row that is the same in all these columns, by parameters in their order."""
        ...

    def same_row(self, columns: Sequence[Column]) -> str:
        """The condition that a row is the same in all these columns, by parameters in their order."""
        ...

    def insert_into(self, table: str) -> str:
        """`INSERT INTO table`, with what keeps a clause of the table from passing a conflict over."""
        ...

    insert_words: str
    """Stand between the columns and the SELECT of an INSERT."""

    def truncate(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        """Statements that empty target tables within a transaction; children come first."""
        ...

    def unused(self, column: Column) -> str | None:
        """An expression over the staged row `s` whose value no row has: a whole number, or a short text; None for others."""
        ...

    def fault(self, error: BaseException) -> Told:
        """What an error means, and what it is told as."""
        ...

    def value_bytes_max(self, connection: Connection) -> int | None:
        """How many bytes one value of a statement may have at most; None: as many as one likes."""
        ...

    def violated(self, error: BaseException) -> Violated:
        """What an error of kind VIOLATION says."""
        ...

    def move_sequences(self, cursor: Any, table: str) -> Sequence[MovedSequence]:
        """Moves the sequences behind a table's columns past its rows; those that move by themselves are left out."""
        ...

    def is_repeated(self, error: BaseException) -> bool:
        """Whether a statement that changes a definition fails because it was executed before."""
        ...
