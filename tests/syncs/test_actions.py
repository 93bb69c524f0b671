"""Sources that do not log what ON DELETE and ON UPDATE change: the target ends as the source, wherever batches end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.foreign_key_actions import may_act
from lakegate.syncs.plan.table_schema import ForeignKey, TableSchema
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from tests.syncs.serially import check_serially
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fresh, sync

every = pytest.mark.parametrize("kind", KINDS)
Request = pytest.FixtureRequest
FIRM_KEY = ForeignKey(table="staff", columns=("firm_id",), parent="firm", parent_columns=("id",), on_delete="CASCADE")
KEYS = {"firm": ["id"], "staff": ["id"], "badge": ["id"]}


def firm(id: int, code: Any) -> dict[str, Any]:
    """A parent."""
    return {"id": id, "code": code}


def staff(id: int, firm_id: Any, desk: Any = None) -> dict[str, Any]:
    """A child."""
    return {"id": id, "firm_id": firm_id, "desk": desk}


def badge(id: int, staff_id: Any) -> dict[str, Any]:
    """A grandchild."""
    return {"id": id, "staff_id": staff_id}


def family(kind: str, on_delete: str, on_update: str = "CASCADE") -> list[str]:
    """Three levels, with their first rows; deleting somebody deletes the badges."""
    actions = f"ON DELETE {on_delete} ON UPDATE {on_update}"
    return [
        "CREATE TABLE firm (id int PRIMARY KEY, code varchar(9) UNIQUE)",
        "CREATE TABLE staff (id int PRIMARY KEY, firm_id int DEFAULT 9, desk int UNIQUE, "
        f"FOREIGN KEY (firm_id) REFERENCES firm (id) {actions})",
        "CREATE TABLE badge (id int PRIMARY KEY, staff_id int, "
        "FOREIGN KEY (staff_id) REFERENCES staff (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO firm VALUES (1, 'aa'), (2, 'bb'), (9, 'zz')",
        "INSERT INTO staff VALUES (10, 1, 100), (11, 1, 101), (20, 2, 200)",
        "INSERT INTO badge VALUES (50, 10), (51, 11), (52, 20)",
    ]


STORIES: dict[str, list[Step]] = {
    "the key of a parent moves": [u(1, firm(1, "aa"), "firm", id=7)],
    "it moves twice, and another one takes the first key": [
        u(1, firm(1, "aa"), "firm", id=7), u(2, firm(2, "bb"), "firm", id=1), u(3, firm(7, "aa"), "firm", id=2),
    ],
    "a parent is deleted and made again": [d(1, firm(1, "aa"), "firm"), c(2, firm(1, "new"), "firm")],
    "in one transaction": [d(1, firm(1, "aa"), "firm"), c(1, firm(1, "new"), "firm")],
    "and gets new children": [
        d(1, firm(1, "aa"), "firm"), c(2, firm(1, "new"), "firm"), c(3, staff(30, 1, 300), "staff"),
        u(3, staff(20, 2, 200), "staff", firm_id=1),
    ],
    "parent and child come, and the parent goes": [
        c(1, firm(3, "cc"), "firm"), c(2, staff(30, 3, 300), "staff"), c(2, badge(53, 30), "badge"), d(3, firm(3, "cc"), "firm"),
    ],
    "a child changes, then its parent goes": [u(1, staff(10, 1, 100), "staff", desk=109), d(2, firm(1, "aa"), "firm")],
    "a child leaves in time": [u(1, staff(10, 1, 100), "staff", firm_id=2), d(2, firm(1, "aa"), "firm")],
    "a child comes too late": [u(1, staff(20, 2, 200), "staff", firm_id=1), d(2, firm(1, "aa"), "firm")],
    "the unique value of a child is free again": [
        d(1, firm(2, "bb"), "firm"), c(2, firm(2, "bb"), "firm"), u(2, firm(1, "aa"), "firm", code="dd"),
        c(3, firm(4, "aa"), "firm"),
    ],
}  # fmt: skip


@every
@pytest.mark.parametrize("on_delete", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_what_actions_do_is_followed(kind: str, on_delete: str, request: Request) -> None:
    """Through three levels, for parents that go, move and come back; `staff` and `badge` need not be in the changes."""
    if kind == "mariadb" and on_delete == "SET DEFAULT":
        pytest.skip("InnoDB has no SET DEFAULT")
    # All of them on SQLite; on the servers, whose databases are slow to make, some.
    stories = [*STORIES.values()][:: 1 if kind == "sqlite" else 3 if on_delete == "CASCADE" else 5]
    for steps in stories:
        check_serially(kind, request, family(kind, on_delete), steps, KEYS)


@pytest.mark.postgres
def test_tables_with_their_schema_in_the_name(request: Request) -> None:
    """The changes call the tables by their schema; the foreign keys of the catalogue are known by the same names."""
    database = fresh("postgres", request)
    database.execute(*family("postgres", "CASCADE"))
    ((schema,),) = database.query("SELECT current_schema()")
    steps = [
        d(1, firm(1, "aa"), f"{schema}.firm"), c(2, firm(1, "aa"), f"{schema}.firm"),
        c(3, staff(30, 1, 100), f"{schema}.staff"), d(4, firm(1, "aa"), f"{schema}.firm"),
        c(5, firm(1, "aa"), f"{schema}.firm"), c(6, staff(31, 1, 101), f"{schema}.staff"),
    ]  # fmt: skip
    sync(database, changes_of(*steps))
    assert sorted(database.query("SELECT id FROM staff")) == [(20,), (31,)]


@every
def test_a_unique_value_that_an_action_frees_is_taken(kind: str, request: Request) -> None:
    """The new row has the desk of somebody who went with a firm; the firm is there again."""
    steps = [
        d(1, firm(1, "aa"), "firm"), c(2, firm(1, "aa"), "firm"), c(3, staff(30, 1, 100), "staff"),
        c(4, badge(53, 30), "badge"), u(4, staff(20, 2, 200), "staff", desk=101),
    ]  # fmt: skip
    found = check_serially(kind, request, family(kind, "CASCADE"), steps, KEYS)
    assert len(found["staff"]) == 2


@every
def test_composite_keys_move_with_their_parents(kind: str, request: Request) -> None:
    """Each key is a part of the next one; rows that change in the same batch move, too."""
    ddl = [
        "CREATE TABLE a (x int PRIMARY KEY, v int)",
        "CREATE TABLE b (x int, y int, v int, PRIMARY KEY (x, y), "
        "FOREIGN KEY (x) REFERENCES a (x) ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE e (x int, y int, z int, v int, PRIMARY KEY (x, y, z), "
        "FOREIGN KEY (x, y) REFERENCES b (x, y) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO a VALUES (1, 0), (2, 0), (3, 0)",
        "INSERT INTO b VALUES (1, 1, 0), (1, 2, 0), (2, 1, 0), (3, 1, 0)",
        "INSERT INTO e VALUES (1, 1, 1, 0), (1, 2, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0)",
    ]
    one, two = {"x": 1, "v": 0}, {"x": 2, "v": 0}
    steps = [
        u(1, {"x": 1, "y": 1, "v": 0}, "b", v=5), u(2, one, "a", x=7), u(3, {"x": 7, "y": 1, "v": 5}, "b", v=6),
        d(4, two, "a"), u(5, {"x": 7, "v": 0}, "a", x=2), u(6, {"x": 2, "y": 1, "v": 6}, "b", v=8),
        c(7, {"x": 2, "y": 1, "z": 9, "v": 9}, "e"), u(8, {"x": 2, "y": 2, "v": 0}, "b", y=3),
        u(9, {"x": 2, "y": 3, "z": 1, "v": 0}, "e", v=4),
    ]  # fmt: skip
    check_serially(kind, request, ddl, steps, {"a": ["x"], "b": ["x", "y"], "e": ["x", "y", "z"]})


@every
def test_a_key_that_is_not_the_primary_one(kind: str, request: Request) -> None:
    """Children refer to a unique code: it changes, is exchanged by a third one, and goes; the changes show keys only."""
    ddl = [
        "CREATE TABLE firm (id int PRIMARY KEY, code varchar(9) UNIQUE)",
        "CREATE TABLE staff (id int PRIMARY KEY, code varchar(9), "
        "FOREIGN KEY (code) REFERENCES firm (code) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO firm VALUES (1, 'aa'), (2, 'bb'), (3, 'cc')",
        "INSERT INTO staff VALUES (10, 'aa'), (20, 'bb'), (30, 'cc')",
    ]

    def to(tx: int, id: int, code: str) -> Step:
        return (tx, "firm", "u", {"id": id}, {"id": id, "code": code})

    gone: list[Step] = [(4, "firm", "d", {"id": 3}, None), c(5, firm(3, "cc"), "firm")]
    steps = [to(1, 1, "xx"), to(2, 2, "aa"), to(3, 1, "bb"), *gone]
    check_serially(kind, request, ddl, steps, {"firm": ["id"], "staff": ["id"]})


@every
def test_trees_fall_and_stand_again(kind: str, request: Request) -> None:
    """A table that refers to itself, ON DELETE CASCADE: what hung below the root is gone, though the root is there again."""
    ddl = [
        "CREATE TABLE t (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES t (id) ON DELETE CASCADE)",
        "INSERT INTO t VALUES (1, NULL), (2, 1), (3, 2), (4, 3), (5, NULL)",
    ]

    def node(id: int, up: Any) -> dict[str, Any]:
        return {"id": id, "up": up}

    steps = [
        u(1, node(5, None), "t", up=4), d(2, node(1, None), "t"), c(3, node(1, None), "t"), c(4, node(5, 1), "t"),
        c(5, node(2, 5), "t"), d(6, node(5, 1), "t"), c(7, node(5, 1), "t"),
    ]  # fmt: skip
    check_serially(kind, request, ddl, steps, {"t": ["id"]})


@every
@pytest.mark.parametrize("on_delete", ["CASCADE", "SET NULL"])
def test_actions_in_the_log_are_followed_once(kind: str, on_delete: str, request: Request) -> None:
    """Changes that the source logs for its own actions are already in the target, and change nothing more."""
    if kind != "sqlite" and on_delete == "SET NULL":
        pytest.skip("the same statements as CASCADE")
    child = [staff(10, 1, 100), staff(11, 1, 101)]
    moved = [u(1, firm(1, "aa"), "firm", id=7), *(u(1, one, "staff", firm_id=7) for one in child)]
    gone: list[Step] = [d(2, firm(7, "aa"), "firm")]
    for one in child:
        there = {**one, "firm_id": 7}
        gone += [d(2, there, "staff")] if on_delete == "CASCADE" else [u(2, there, "staff", firm_id=None)]
    if on_delete == "CASCADE":
        gone += [d(2, badge(50, 10), "badge"), d(2, badge(51, 11), "badge")]
    steps = [*moved, *gone, c(3, firm(7, "new"), "firm")]
    check_serially(kind, request, family(kind, on_delete), steps, KEYS)


@every
def test_what_events_say_of_a_child_wins(kind: str, request: Request) -> None:
    """A source without the action, which checks at commits: a child that changes its parent after that is gone stays."""
    database = fresh(kind, request)
    database.execute(*family(kind, "CASCADE"))
    steps = [d(1, firm(1, "aa"), "firm"), u(1, staff(10, 1, 100), "staff", firm_id=2), d(1, staff(11, 1, 101), "staff")]
    sync(database, changes_of(*steps, d(1, badge(51, 11), "badge")))
    assert sorted(database.query("SELECT id, firm_id FROM staff")) == [(10, 2), (20, 2)]
    assert sorted(database.query("SELECT id FROM badge")) == [(50,), (52,)]


@every
@pytest.mark.parametrize("null", ["", " NOT NULL"])
def test_somebody_new_becomes_the_boss_of_somebody_who_was_there(kind: str, null: str, request: Request) -> None:
    """And rows of a tree that come and go in one batch do so in any order of their keys."""
    ddl = [
        f"CREATE TABLE t (id int PRIMARY KEY, up int{null}, name varchar(9), UNIQUE (up, name), "
        "FOREIGN KEY (up) REFERENCES t (id))",
        "INSERT INTO t VALUES (1, 1, 'a'), (5, 1, 'b'), (6, 1, 'c')",
    ]

    def node(id: int, up: int, name: str) -> dict[str, Any]:
        return {"id": id, "up": up, "name": name}

    steps = [
        c(1, node(9, 1, "d"), "t"), u(1, node(5, 1, "b"), "t", up=9), c(2, node(8, 9, "e"), "t"), c(2, node(2, 8, "f"), "t"),
        u(3, node(5, 9, "b"), "t", up=2, name="c"), u(3, node(6, 1, "c"), "t", up=9, name="b"),
        ("4", "t", "u", {"id": 1}, {"id": 1, "name": "g"}), d(5, node(6, 9, "b"), "t"),
    ]  # fmt: skip
    check_serially(kind, request, ddl, steps, {"t": ["id"]})
    gone = [
        *steps, d(6, node(5, 2, "c"), "t"), d(6, node(2, 8, "f"), "t"), d(6, node(8, 9, "e"), "t"), d(6, node(9, 1, "d"), "t"),
    ]  # fmt: skip
    check_serially(kind, request, ddl, gone, {"t": ["id"]})


@every
@pytest.mark.parametrize("names", ["customer address", "a_customer b_address"])
def test_in_a_circle_the_side_that_may_be_null_comes_first(kind: str, names: str, request: Request) -> None:
    """For any names of the tables."""
    customer, address = names.split()
    refers = f"FOREIGN KEY (default_id) REFERENCES {address} (id)"
    ddl = [
        f"CREATE TABLE {customer} (id int PRIMARY KEY, default_id int{', ' + refers if kind == 'sqlite' else ''})",
        f"CREATE TABLE {address} (id int PRIMARY KEY, customer_id int NOT NULL, "
        f"FOREIGN KEY (customer_id) REFERENCES {customer} (id))",
        *([] if kind == "sqlite" else [f"ALTER TABLE {customer} ADD {refers}"]),
    ]
    one = {"id": 1, "default_id": None}
    come = [c(1, one, customer), c(2, {"id": 10, "customer_id": 1}, address), u(3, one, customer, default_id=10)]
    go = [
        u(4, {**one, "default_id": 10}, customer, default_id=None),
        d(5, {"id": 10, "customer_id": 1}, address),
        d(6, one, customer),
    ]
    keys = {customer: ["id"], address: ["id"]}
    check_serially(kind, request, ddl, come, keys)
    check_serially(kind, request, [*ddl, f"INSERT INTO {customer} VALUES (7, NULL)"], [*come, *go], keys)


@every
def test_a_part_of_a_row_needs_no_defaults(kind: str, request: Request) -> None:
    """An update that shows the changed columns only, of a table with a NOT NULL column that has no default."""
    ddl = [
        "CREATE TABLE p (id int PRIMARY KEY, name varchar(9) NOT NULL, city varchar(9))",
        "INSERT INTO p VALUES (1, 'Ada', 'Bonn')",
    ]
    steps: list[Step] = [
        (1, "p", "u", {"id": 1}, {"id": 1, "city": "Kiel"}),
        c(2, {"id": 2, "name": "Ben", "city": None}, "p"),
    ]
    check_serially(kind, request, ddl, steps, {"p": ["id"]})


@pytest.mark.parametrize("connector", ["postgresql", "sqlserver", "oracle", "mysql", "mariadb"])
def test_a_log_that_shows_what_actions_did_is_enough(connector: str, tmp_path: Path) -> None:
    """MySQL and MariaDB do not log what their actions change; the others do, and nothing is to be added."""
    at = {
        "postgresql": {"lsn": 10},
        "sqlserver": {"commit_lsn": "00:01", "change_lsn": "00:02"},
        "oracle": {"commit_scn": "9"},
    }
    source = {"connector": connector, "name": "s", "db": "d", "table": "firm", "ts_ms": 1}
    source |= at.get(connector, {"file": "b.1", "pos": 10, "row": 0})
    (tmp_path / "1.json").write_text(
        json.dumps({"op": "d", "before": firm(1, "aa"), "after": None, "source": source}) + "\n"
    )
    logs = EnvelopeFiles(files=str(tmp_path), transactions=None)
    told = [
        change for group in DebeziumChanges(logs=logs).transactions(-1, None) for change in group if change.op == "d"
    ]
    assert [change.shows_actions for change in told] == [connector not in ("mysql", "mariadb")]


def test_an_update_that_a_delta_table_tells_as_two_rows_deletes_no_children() -> None:
    """The feed shows each UPDATE as a deleted and an inserted row; the table itself has no foreign keys."""
    parent = TableSchema(name="firm", columns=(), identity=("id",), acting=(FIRM_KEY,))
    child = TableSchema(name="staff", columns=(), identity=("id",), foreign_keys=(FIRM_KEY,))
    tables = {"firm": parent, "staff": child}
    for shows in (True, False):
        changes = [
            Change(seq=1, tx="1", table="firm", op="d", before=firm(1, "aa"), shows_actions=shows),
            Change(seq=1, tx="1", table="firm", op="c", after=firm(1, "new"), shows_actions=shows),
        ]
        assert may_act(changes, tables) is not shows
