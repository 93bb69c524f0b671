"""A transaction that no process holds in memory: staged in parts by others, or row by row, it is as if its changes were folded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from lakegate.demo.database_servers import Database, fresh_postgres
from lakegate.errors import ConstraintViolated, InvalidRequest
from lakegate.syncs.plan.change import Batch, Change, Image
from lakegate.syncs.runner import AppliedBatch, SyncSettings, apply_one
from lakegate.syncs.targets import sql_target as sql_target
from tests.syncs.short_changes import c, changes_of
from tests.syncs.target_databases import KINDS, crash_postgres, fill, fresh, sync

T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE, b varchar(50))"
Row = tuple[Any, ...]
every = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a list. See `ManyRows`."""

    told: Sequence[Row]
    """Whether it came, then its values."""
    is_whole: bool = False
    columns: Sequence[str] = ("id", "uk", "b")
    repeated: int = 0
    """So many parts are written once more, as by a task whose answer was lost."""
    behind: dict[int, Callable[[], None]] = field(default_factory=dict)
    """The number of a part, counted from 0 as they are written one after another → what happens behind it, once."""

    @property
    def gone(self) -> int:
        return sum(not row[0] for row in self.told)

    @property
    def put(self) -> int:
        return sum(row[0] for row in self.told)

    def sample(self) -> Image | None:
        return dict(zip(self.columns, self.told[0][1:], strict=True)) if self.told else None

    def rows(self) -> Iterator[Row]:
        return iter(self.told)

    def spread(self, write: Callable[[int, int, Iterator[Sequence[object]]], str | None]) -> Sequence[str]:
        size = -(-len(self.told) // 4) or 1
        parts = [(first, min(first + size, len(self.told))) for first in range(0, len(self.told), size)]

        def written(part: tuple[int, int]) -> str | None:
            said = write(*part, iter(self.told[slice(*part)]))
            self.behind.pop(parts.index(part), lambda: None)()
            return said

        with ThreadPoolExecutor(1 if self.behind else 4) as pool:
            said = list(pool.map(written, parts))
        said += [written(part) for part in parts[: self.repeated]]
        return [one for one in said if one is not None]


def put(id: int, uk: Any, b: Any = None) -> Row:
    """Makes an inserted row."""
    return (True, id, uk, b)


def gone(id: int, uk: Any, b: Any = None) -> Row:
    """Makes a deleted row."""
    return (False, id, uk, b)


def apply(database: Database, rows: Rows, *, key: Sequence[str] = (), **settings: Any) -> AppliedBatch:
    """Applies the rows as one batch, the first of the target."""
    target = database.target(key=key)
    try:
        progress = target.open_stream("s")
        batch = Batch(changes=(Change(seq=7, tx="7", table="t", op="many", many=rows, place="p"),))
        return apply_one(batch, target, progress.last_batch + 1, SyncSettings(**settings))
    finally:
        target.close()


def found(database: Database) -> list[Row]:
    """The table's rows."""
    return sorted((row["id"], row["uk"], row["b"]) for row in database.rows("t"))


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize("how", ["here", "elsewhere"])
def test_many_rows_end_as_their_changes_would(
    kind: str, mode: Literal["atomic", "parallel"], how: str, request: pytest.FixtureRequest, monkeypatch: Any
) -> None:
    """Values rotate among remaining rows, and move from deleted to inserted rows; a part is staged twice."""
    monkeypatch.setattr(sql_target, "SPREAD_ROWS", 1 if how == "elsewhere" else 10**9)
    chance = random.Random(5)
    for _ in range(3):
        database = fresh(kind, request)
        database.execute(T)
        before = {id: (id, f"v{id}", "x") for id in range(30)}
        fill(database, "t", [dict(zip(("id", "uk", "b"), row, strict=True)) for row in before.values()])
        stay = chance.sample(range(30), 20)
        after = {id: before[id] for id in range(30) if id in stay} | {id: (id, None, "new") for id in range(30, 36)}
        changed = [*chance.sample(stay, 12), *range(30, 36)]
        values = [before[id][1] for id in range(30) if id not in stay or id in changed]
        for id, value in zip(changed, chance.sample(values, len(changed)), strict=True):
            after[id] = (id, value, "y")
        told = [gone(*row) for id, row in before.items() if after.get(id) != row]
        told += [put(*row) for id, row in after.items() if before.get(id) != row]
        chance.shuffle(told)
        done = apply(database, Rows(told, repeated=2), mode=mode, parallelism=3)
        assert found(database) == sorted(after.values())
        assert (done.changes, done.through) == (len(told), 7)
        assert database.query("SELECT position, place, last_batch FROM lakegate_stream") == [(7, "p", 1)]


@every
def test_what_a_whole_table_does_not_have_goes(kind: str, request: pytest.FixtureRequest) -> None:
    """Its values are free for rows that stay; an empty table empties the target."""
    database = fresh(kind, request)
    database.execute(T)
    fill(
        database,
        "t",
        [{"id": 1, "uk": "b", "b": None}, {"id": 2, "uk": "a", "b": None}, {"id": 8, "uk": "c", "b": None}],
    )
    apply(database, Rows([put(1, "a"), put(2, "b"), put(3, "c")], is_whole=True))
    assert found(database) == [(1, "a", None), (2, "b", None), (3, "c", None)]
    apply(database, Rows([], is_whole=True))
    assert found(database) == []


@every
def test_what_breaks_a_key_stops_and_names_the_row(kind: str, request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """Also with rows that no process holds; the target is as it was."""
    monkeypatch.setattr(sql_target, "SPREAD_ROWS", 1)
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [{"id": 1, "uk": "held", "b": None}])
    with pytest.raises(ConstraintViolated, match=r"rows=t 6 \(position 7\)"):
        apply(database, Rows([put(5, "free"), put(6, "held")]))
    assert found(database) == [(1, "held", None)]
    done = apply(database, Rows([put(5, "free"), put(6, "held")]), on_violation="quarantine")
    assert done.complete is not None
    assert [dead.row.key for dead in done.complete.dead] == [(6,)]
    assert found(database) == [(1, "held", None), (5, "free", None)]


@pytest.mark.parametrize("kind", KINDS[:2])  # SQLite takes any value in any column
def test_what_fits_no_column_is_refused(kind: str, request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """The row is unknown; the reason is reported, and nothing is written."""
    database = fresh(kind, request)
    database.execute(T)
    for spread in (1, 10**9):
        monkeypatch.setattr(sql_target, "SPREAD_ROWS", spread)
        with pytest.raises(ConstraintViolated, match=r"transaction of 2 does not fit its columns: .*table=t"):
            apply(database, Rows([put(5, "free"), put(6, "x" * 60)]))
    assert found(database) == []


@every
def test_a_row_without_its_key_is_refused_among_many(
    kind: str, request: pytest.FixtureRequest, monkeypatch: Any
) -> None:
    """Where `key` names a column that may be NULL; rows that the target has with NULL are nobody's."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [{"id": 1, "uk": None, "b": "mine"}, {"id": 2, "uk": "x", "b": "theirs"}])
    for spread in (1, 10**9):
        monkeypatch.setattr(sql_target, "SPREAD_ROWS", spread)
        with pytest.raises(InvalidRequest, match=r"a row has NULL in a column.*table=t key=uk position=7"):
            apply(database, Rows([put(5, "free"), put(6, None)], is_whole=True), key=["uk"])
    assert found(database) == [(1, None, "mine"), (2, "x", "theirs")]
    apply(database, Rows([put(5, "free")], is_whole=True), key=["uk"])
    assert [row[1] for row in found(database)] == [None, "free"]


@pytest.mark.parametrize("type", ["INTEGER", "int", "text"])
def test_a_primary_key_of_sqlite_takes_no_null(type: str, request: pytest.FixtureRequest) -> None:
    """SQLite itself does: as often as it comes, or with a number of its own in place of it."""
    database = fresh("sqlite", request)
    database.execute(T.replace("id int", f"id {type}"))
    row = {"id": None, "uk": "a", "b": None}
    with pytest.raises(InvalidRequest, match=r"a row has NULL in a column.*table=t key=id position=0"):
        sync(database, changes_of(c(0, row)))
    with pytest.raises(InvalidRequest, match=r"a row has NULL in a column.*table=t key=id position=7"):
        apply(database, Rows([(True, None, "a", None)]))
    assert found(database) == []


def test_missing_columns_and_keys_are_reported(request: pytest.FixtureRequest) -> None:
    """As of changes one by one; what the settings leave out is left out."""
    database = fresh("sqlite", request)
    database.execute(T)
    extended = Rows([(True, 1, "a", None, "0")], columns=("id", "uk", "b", "phone"))
    with pytest.raises(InvalidRequest, match="phone"):
        apply(database, extended)
    apply(database, extended, on_schema_change="ignore")
    assert found(database) == [(1, "a", None)]
    database.execute("DROP TABLE t", "CREATE TABLE t (id int, uk text, b text)")
    with pytest.raises(InvalidRequest, match="a transaction of 1 rows needs a target table with a key"):
        apply(database, Rows([put(1, "a")]))


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("part", [1, 3])
def test_parts_are_staged_again_after_the_server_crashed(
    is_whole: bool, part: int, mortal_postgres: str, monkeypatch: Any
) -> None:
    """Those that were staged before are gone, those that come after it are there: neither is taken for the whole."""
    monkeypatch.setattr(sql_target, "SPREAD_ROWS", 1)
    database = fresh_postgres(mortal_postgres)
    database.execute(T)
    fill(database, "t", [{"id": 1, "uk": "a", "b": None}, {"id": 99, "uk": "b", "b": None}])
    told = [put(id, f"v{id}") for id in range(8)]
    apply(database, Rows(told, is_whole=is_whole, behind={part: lambda: crash_postgres(database)}))
    assert found(database) == [row[1:] for row in told] + ([] if is_whole else [(99, "b", None)])


@pytest.mark.postgres
def test_numbers_that_postgres_gives_are_those_of_many_rows(request: pytest.FixtureRequest) -> None:
    """It refuses an UPDATE that names such a column, though the value stays."""
    database = fresh("postgres", request)
    database.execute(T.replace("id int", "id int GENERATED ALWAYS AS IDENTITY"))
    for b in ("x", "y"):
        apply(database, Rows([put(1, "a", b), put(5, "b", b)], is_whole=True))
    assert found(database) == [(1, "a", "y"), (5, "b", "y")]
