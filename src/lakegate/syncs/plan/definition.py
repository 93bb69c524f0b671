"""The DDL statements that a source of changes may have executed in the target: a fixed list and nothing else.

Rules for editors: a statement is allowed because every token is known, never because no bad token was found. No statement
of the list calls a function, reads a table or names a second one, except the parent of a foreign key, which must be one of
the sync's tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from lakegate.errors import InvalidRequest

STATEMENTS = (
    "CREATE TABLE t (columns, keys)",
    "ALTER TABLE t ADD | DROP | RENAME | ALTER | MODIFY | CHANGE COLUMN",
    "ALTER TABLE t ADD | DROP CONSTRAINT, PRIMARY KEY, UNIQUE, INDEX, FOREIGN KEY",
    "CREATE [UNIQUE] INDEX i ON t (columns)",
    "DROP INDEX i [ON t]",
)
"""The list, in words for messages."""
_TOKEN = re.compile(
    r"""\s+|(?P<text>'(?:[^'\\]|'')*')|(?P<quoted>"(?:[^"\\]|"")+"|`(?:[^`\\]|``)+`)|(?P<word>[^\W\d]\w*)"""
    r"""|(?P<number>-?\d+(?:\.\d+)?)|(?P<mark>[(),.])"""
)
_OWN = "lakegate_"
_SYSTEM = frozenset({"pg_catalog", "information_schema", "mysql", "performance_schema", "sys", "pg_toast"})
_NO_COLUMNS = frozenset(
    {"like", "check", "exclude", "constraint", "period", "fulltext", "spatial", "partition", "system"}
)
"""Words that begin another clause where a column may stand."""
_TYPE_WORDS = frozenset({"precision", "varying", "with", "without", "time", "zone", "unsigned", "zerofill", "binary"})


class _RefusedError(Exception):
    """The statement is not on the list. The text of the error names what is not known."""


def is_reserved(table: str) -> bool:
    """Returns whether a table belongs to Lakegate or to the database. A change of a source must not target such a table."""
    parts = [part.strip('"`[] ').casefold() for part in table.split(".")]
    return parts[-1].startswith((_OWN, "sqlite_")) or any(part in _SYSTEM for part in parts[:-1])


def refuse_reserved(table: str, seq: int | None = None) -> None:
    """Checks that a source's changes may have this target table.

    Raises:
        InvalidRequest: It is one of Lakegate's control tables, or one of the database's own tables.
    """
    if is_reserved(table):
        raise InvalidRequest(
            "a change is for a table of Lakegate's own, or of the database's own; nothing was written",
            advice="Such a table is never a target. See who writes to the source",
            table=table,
            position=seq,
        )


def require_allowed(
    sql: str, table: str, *, tables: Collection[str], own_indexes: Collection[str], seq: int | None = None
) -> None:
    """Checks that a statement is on the list and affects only the table that the change names.

    Args:
        sql: The statement.
        table: The target table that the change names.
        tables: The sync's tables, to which a foreign key may refer. Empty for `table` alone.
        own_indexes: Names of the table's unique keys, which `DROP INDEX` without a table may drop.
        seq: The position of the change, for the error.

    Raises:
        InvalidRequest: The statement is not allowed.
    """
    refuse_reserved(table, seq)
    try:
        _Statement(sql, table, {*tables, table}, own_indexes).check()
    except _RefusedError as error:
        raise InvalidRequest(
            f"a statement of the source is not on the list of those that may be executed: {error}; nothing was written",
            advice="Allowed are: "
            + "; ".join(STATEMENTS)
            + ". Execute others in the target yourself, and take them out",
            table=table,
            position=seq,
        ) from None


class _Statement:
    """A statement, read token by token."""

    def __init__(self, sql: str, table: str, tables: Collection[str], own_indexes: Collection[str]) -> None:
        self._tokens = _tokens(sql)
        self._at = 0
        self._table = table
        self._tables = tables
        self._own_indexes = {one.casefold() for one in own_indexes}

    def check(self) -> None:
        """Raises `_RefusedError` unless the whole statement is known."""
        if self._words("create", "table"):
            self._words("if", "not", "exists")
            self._own_table()
            self._list(self._column_or_key)
        elif self._words("create", "unique", "index") or self._words("create", "index"):
            self._words("if", "not", "exists")
            self._name("an index")
            self._required("on")
            self._own_table()
            self._columns()
        elif self._words("alter", "table"):
            self._own_table()
            self._action()
            while self._mark(","):
                self._action()
        elif self._words("drop", "index"):
            self._words("if", "exists")
            name = self._name("an index")
            if self._words("on"):
                self._own_table()
            elif name.casefold() not in self._own_indexes:
                raise _RefusedError(f"DROP INDEX of {name}, which is no key of the table")
        else:
            raise _RefusedError(f"it begins with {self._shown()}")
        if self._at < len(self._tokens):
            raise _RefusedError(f"{self._shown()} is not known there")

    def _action(self) -> None:
        if self._words("add"):
            if not self._key():
                self._words("column")
                self._words("if", "not", "exists")
                self._column()
        elif self._words("drop"):
            if self._words("primary", "key"):
                return
            _ = (
                self._words("constraint") or self._words("foreign", "key") or self._words("index") or self._words("key")
                or self._words("column")
            )  # fmt: skip
            self._words("if", "exists")
            self._name("a column or key")
        elif self._words("rename"):
            if self._peek() == "to":
                raise _RefusedError("a table that gets another name")
            _ = self._words("column") or self._words("index")
            self._name("a column")
            self._required("to")
            self._name("a column")
        elif self._words("modify"):
            self._words("column")
            self._column()
        elif self._words("change"):
            self._words("column")
            self._name("a column")
            self._column()
        elif self._words("alter"):
            self._words("column")
            self._name("a column")
            if self._words("set", "data", "type") or self._words("type"):
                self._type()
            elif self._words("set", "default"):
                self._value()
            elif not (
                self._words("drop", "default")
                or self._words("set", "not", "null")
                or self._words("drop", "not", "null")
            ):
                raise _RefusedError(f"{self._shown()} is not known there")
        else:
            raise _RefusedError(f"{self._shown()} is not known there")

    def _column_or_key(self) -> None:
        if not self._key():
            self._column()

    def _key(self) -> bool:
        """Reads a table constraint; returns False if there is none."""
        if self._words("constraint"):
            self._name("a constraint")
            if self._peek() not in ("primary", "unique", "foreign"):
                raise _RefusedError(f"a constraint that begins with {self._shown()}")
        if self._words("primary", "key"):
            self._columns()
        elif self._words("unique"):
            _ = self._words("index") or self._words("key")
            if not self._is_mark("("):
                self._name("a key")
            self._columns()
        elif self._words("foreign", "key"):
            self._columns()
            self._references()
        elif self._peek() in ("index", "key") and self._is_name(1) and self._is_mark("(", 2):
            self._at += 2
            self._columns()
        else:
            return False
        return True

    def _column(self) -> None:
        if self._peek() in _NO_COLUMNS:
            raise _RefusedError(f"{self._shown()} is not known there")
        self._name("a column")
        self._type()
        while self._at < len(self._tokens) and not self._is_mark(",") and not self._is_mark(")"):
            if self._words("default"):
                self._value()
            elif self._peek() == "references":
                self._references()
            elif self._words("after") or self._words("collate") or self._words("character", "set"):
                self._name("a name")
            elif not (
                self._words("not", "null") or self._words("null") or self._words("primary", "key")
                or self._words("unique") or self._words("first") or self._words("auto_increment")
            ):  # fmt: skip
                raise _RefusedError(f"{self._shown()} is not known there")

    def _references(self) -> None:
        self._required("references")
        self._own_table(self._tables)
        self._columns()
        while self._words("on"):
            if not (self._words("delete") or self._words("update")):
                raise _RefusedError(f"{self._shown()} is not known there")
            if not (
                self._words("cascade") or self._words("restrict") or self._words("no", "action")
                or self._words("set", "null") or self._words("set", "default")
            ):  # fmt: skip
                raise _RefusedError(f"{self._shown()} is not known there")
        if self._words("deferrable"):
            _ = self._words("initially", "deferred") or self._words("initially", "immediate")

    def _type(self) -> None:
        if not self._is_word():
            raise _RefusedError(f"{self._shown()} is no type")
        self._at += 1
        while True:
            if self._mark("("):
                while not self._mark(")"):
                    kind, text = self._token()
                    if kind not in ("number", "text") and (kind, text) != ("mark", ","):
                        raise _RefusedError(f"{self._shown()} is not known there")
                    self._at += 1
            elif self._is_word() and self._peek() in _TYPE_WORDS:
                self._at += 1
            else:
                return

    def _value(self) -> None:
        kind, text = self._token()
        if kind in ("number", "text"):
            self._at += 1
        elif not (kind == "word" and text in ("null", "true", "false", "current_timestamp") and self._words(text)):
            raise _RefusedError(f"a default that is no plain value: {self._shown()}")

    def _columns(self) -> None:
        def column() -> None:
            self._name("a column")
            _ = self._words("asc") or self._words("desc")

        self._list(column)

    def _list(self, one: Callable[[], None]) -> None:
        if not self._mark("("):
            raise _RefusedError(f"{self._shown()} is not known there")
        one()
        while self._mark(","):
            one()
        if not self._mark(")"):
            raise _RefusedError(f"{self._shown()} is not known there")

    def _own_table(self, tables: Collection[str] | None = None) -> None:
        is_exact = self._token()[0] == "quoted"
        name = self._name("a table")
        if self._mark("."):
            name += "." + self._name("a table")
        known = {self._table} if tables is None else tables
        if is_reserved(name) or not (name in known or (not is_exact and name in {one.casefold() for one in known})):
            raise _RefusedError(f"it is for the table {name}, and the change for {self._table}")

    def _name(self, what: str) -> str:
        if not self._is_name(0):
            raise _RefusedError(f"{self._shown()} is not the name of {what}")
        _, text = self._token()
        self._at += 1
        return text

    def _required(self, word: str) -> None:
        if not self._words(word):
            raise _RefusedError(f"{self._shown()} is not known there")

    def _words(self, *words: str) -> bool:
        """Consumes these words if they come next; returns whether they did."""
        if self._tokens[self._at : self._at + len(words)] != [("word", word) for word in words]:
            return False
        self._at += len(words)
        return True

    def _mark(self, text: str) -> bool:
        if not self._is_mark(text):
            return False
        self._at += 1
        return True

    def _is_mark(self, text: str, ahead: int = 0) -> bool:
        return self._tokens[self._at + ahead : self._at + ahead + 1] == [("mark", text)]

    def _is_name(self, ahead: int) -> bool:
        return [kind for kind, _ in self._tokens[self._at + ahead : self._at + ahead + 1]] in (["word"], ["quoted"])

    def _is_word(self) -> bool:
        return self._token()[0] == "word"

    def _peek(self) -> str:
        kind, text = self._token()
        return text if kind == "word" else ""

    def _token(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "its end")

    def _shown(self) -> str:
        return self._token()[1]


def _tokens(sql: str) -> list[tuple[str, str]]:
    """Returns (kind, text) of each token: words in lower case, quoted names unchanged without their quotes."""
    text, at = sql.strip(), 0
    if text.endswith(";"):
        text = text[:-1]
    found: list[tuple[str, str]] = []
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _RefusedError(f"{text[at]!r} is not known there")
        at = match.end()
        kind = match.lastgroup
        if kind == "quoted":
            mark = match[0][0]
            found.append((kind, match[0][1:-1].replace(mark * 2, mark)))
        elif kind is not None:
            found.append((kind, match[0].casefold() if kind == "word" else match[0]))
    return found
