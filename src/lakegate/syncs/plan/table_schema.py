"""The definition of a target table, as far as applying changes needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.change import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column."""

    name: str
    type: str
    """The type as the target writes it in a definition, with its collation."""
    kind: str = ""
    """The bare name of its type, in lower case."""
    is_nullable: bool = True
    generated: str | None = None
    """The expression of a generated column, as the target writes it in a definition."""
    is_renewed: bool = False
    """Whether an UPDATE that does not set the column sets it to the current time."""
    is_numbered: bool = False
    """GENERATED ALWAYS AS IDENTITY: an INSERT may set the value, an UPDATE may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A constraint or index that allows at most one row for each value."""

    name: str
    parts: tuple[str, ...]
    """Expressions over the row, in the target's SQL; for a column its quoted name."""
    columns: frozenset[str]
    """The columns that the value depends on, also through expressions, generated columns and the predicate."""
    predicate: str | None = None
    """The condition for rows in the index."""
    nulls_equal: bool = False
    """NULLS NOT DISTINCT."""
    is_deferrable: bool = False
    is_primary: bool = False
    operators: tuple[str, ...] | None = None
    """For an exclusion constraint: the operator of each part, instead of `=`."""
    park: str | None = None
    """A column that frees the value when set to NULL; None if there is none."""
    park_last: str | None = None
    """A column that may free the value when set to NULL. A part reads the column but may be non-NULL even then."""
    plain: frozenset[str] = frozenset()
    """The columns that are parts themselves, not only read by a part."""


Action = Literal["CASCADE", "SET NULL", "SET DEFAULT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key: rows of `table` refer to rows of `parent`."""

    table: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    is_deferrable: bool = False
    on_delete: Action | None = None
    """The effect on rows of `table` when their parent is deleted; None if the database refuses, or checks later."""
    on_update: Action | None = None
    """The same for a parent whose `parent_columns` change."""
    delete_columns: tuple[str, ...] | None = None
    """The columns that ON DELETE SET NULL and SET DEFAULT write; None: all of `columns`."""
    defaults: tuple[tuple[str, object], ...] = ()
    """Column and value that SET DEFAULT writes; a column that is not listed gets NULL."""

    def sets(self, parent: tuple[object, ...] | None) -> dict[str, object] | None:
        """Returns the values that an action writes into a row of `table`; None if it deletes the row.

        Args:
            parent: The new values of `parent_columns`; None if the parent is deleted.
        """
        action = self.on_delete if parent is None else self.on_update
        if action == "CASCADE":
            return None if parent is None else dict(zip(self.columns, parent, strict=True))
        columns = (self.delete_columns if parent is None else None) or self.columns
        defaults = dict(self.defaults) if action == "SET DEFAULT" else {}
        return {column: defaults.get(column) for column in columns}


def action(text: str) -> Action | None:
    """Returns the action for a catalogue's `text`, in any case; None for RESTRICT and NO ACTION."""
    known: tuple[Action, ...] = ("CASCADE", "SET NULL", "SET DEFAULT")
    return next((one for one in known if one == text.upper()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """A table of the target."""

    name: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    """The columns that identify a row: those that the sync names, else the primary key, else a unique key without NULLs; empty
    if there is none."""
    unique_keys: tuple[UniqueKey, ...] = ()
    """All unique keys, including the primary key."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """Foreign keys of this table, to other tables or to itself."""
    is_referenced: bool = False
    """Whether any foreign key refers to this table. Its rows are then never deleted and inserted again."""
    acting: tuple[ForeignKey, ...] = ()
    """The foreign keys of any table that refer to this table and have an action."""
    sql_name: str = ""
    """The table in the target's SQL, quoted, with its schema where it has one."""

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns that are written: all but generated ones."""
        return tuple(column for column in self.columns if column.generated is None)

    @property
    def nullable_key(self) -> tuple[str, ...]:
        """Columns of the identity that may be NULL. A row with NULL there cannot be identified and must not be written."""
        nullable = {column.name for column in self.columns if column.is_nullable}
        return tuple(name for name in self.identity if name in nullable)

    def key_of(self, image: Image | None) -> tuple[object, ...] | None:
        """Returns the row's key, or None if the image lacks a column of it."""
        if image is None:
            return None
        try:
            return tuple([image[name] for name in self.identity])
        except KeyError:
            return None


def keyed(table: TableSchema, key: tuple[str, ...]) -> TableSchema:
    """Returns the table with these columns as its identity; unchanged if there are none.

    Raises:
        InvalidRequest: The table lacks one of the columns.
    """
    if not key:
        return table
    missing = set(key) - {column.name for column in table.stored}
    if missing:
        raise InvalidRequest(
            "the target table does not have a column of `key`; nothing was written",
            table=table.name, missing=",".join(sorted(missing)),
        )  # fmt: skip
    # A primary key of other columns is treated as one more unique key in which rows may conflict.
    keys = tuple(replace(one, is_primary=one.is_primary and one.columns == set(key)) for one in table.unique_keys)
    return replace(table, identity=key, unique_keys=keys)


def openable(table: TableSchema, key: ForeignKey) -> tuple[str, ...]:
    """Returns the columns of a foreign key that may be temporarily NULL, so that the row refers to nothing."""
    nullable = {column.name for column in table.stored if column.is_nullable} - set(table.identity)
    return tuple(column for column in key.columns if column in nullable)


def parents_first(tables: Iterable[TableSchema]) -> tuple[TableSchema, ...]:
    """Returns the tables so that referenced tables come first.

    In a cycle, foreign keys that may be NULL or are checked at commit are ignored. If the cycle remains, all keys in the
    cycle are ignored, and the order is by name.
    """
    known = {table.name: table for table in sorted(tables, key=lambda table: table.name)}
    keys = [
        key
        for table in known.values()
        for key in table.foreign_keys
        if key.parent in known and key.parent != table.name
    ]
    wanted: dict[str, set[str]] = {name: set() for name in known}
    for key in keys:
        wanted[key.table].add(key.parent)
    circles = {name: reachable(name, wanted) for name in known}
    strict: dict[str, set[str]] = {name: set() for name in known}
    loose: dict[str, set[str]] = {name: set() for name in known}
    for key in keys:
        is_inside = key.table in circles[key.parent]
        if not is_inside:
            loose[key.table].add(key.parent)
        if not is_inside or not (key.is_deferrable or openable(known[key.table], key)):
            strict[key.table].add(key.parent)
    try:
        order = tuple(TopologicalSorter(strict).static_order())
    except CycleError:
        order = tuple(TopologicalSorter(loose).static_order())
    return tuple(known[name] for name in order)


def reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Returns every node that a path of at least one step reaches."""
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(graph.get(node, ()))
    return found


def circular(table: TableSchema, tables: Mapping[str, TableSchema]) -> tuple[ForeignKey, ...]:
    """Returns the foreign keys of `table` that lead back to it, directly or through other tables."""
    graph = {name: {key.parent for key in each.foreign_keys} for name, each in tables.items()}
    return tuple(
        key for key in table.foreign_keys if key.parent == table.name or table.name in reachable(key.parent, graph)
    )


def refuse_columns(schema: TableSchema, image: Image, seq: int) -> None:
    """Checks that every column of the image is a column of the table.

    Raises:
        InvalidRequest: A column is not.
    """
    known = {column.name for column in schema.columns}
    for name in image:
        if name not in known:
            raise InvalidRequest(
                "a change has a column that the target table does not have; nothing was written",
                advice="Add the column to the target, or leave it out at the source",
                table=schema.name,
                column=name,
                key=", ".join(map(str, schema.key_of(image) or ())) or None,
                position=seq,
            )
