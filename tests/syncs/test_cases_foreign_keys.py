"""Acceptance cases 29 to 32: parents and children, trees and circles, in any spread over slots."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import pytest

from harness.changes import Changes
from lakegate.syncs.effect_runner import AnyEffect
from lakegate.syncs.plan.apply_protocol import Apply
from lakegate.syncs.runner import SyncSettings, run
from tests.syncs.short_changes import c, changes_of, d, u
from tests.syncs.target_databases import KINDS, check_case, fill, fresh, sync

every = pytest.mark.parametrize("kind", KINDS)
Request = pytest.FixtureRequest
Row = dict[str, Any]


def row(id: int, uk: Any) -> Row:
    """A row of the parent table."""
    return {"id": id, "uk": uk}


def family(action: str = "", *, nullable: bool = True, unique: str = "UNIQUE") -> list[str]:
    """A parent table with a unique key, and a child table."""
    null = "" if nullable else " NOT NULL"
    return [
        f"CREATE TABLE p (id int PRIMARY KEY, uk varchar(50){null} {unique})",
        f"CREATE TABLE c (id int PRIMARY KEY, pid int, FOREIGN KEY (pid) REFERENCES p (id) {action})",
    ]


def child(id: int, pid: Any) -> Row:
    """A row of the child table."""
    return {"id": id, "pid": pid}


ACTIONS = ["", "ON DELETE CASCADE", "ON DELETE SET NULL", "ON DELETE RESTRICT"]


@every
@pytest.mark.parametrize("action", ACTIONS)
def test_case_29_parents_and_children(kind: str, action: str, request: Request) -> None:
    """New families, children that move away from a parent that goes, families that go: in any spread over slots."""
    before = {
        "p": [row(i, f"p{i}") for i in range(1, 9)],
        "c": [child(i, i) for i in range(1, 9)],
    }
    steps = [
        c(1, row(20, "p1"), "p"), u(1, child(1, 1), "c", pid=20), d(1, row(1, "p1"), "p"),
        c(2, row(21, "new"), "p"), c(2, child(30, 21), "c"),
        d(3, child(2, 2), "c"), d(3, row(2, "p2"), "p"),
        u(4, child(3, 3), "c", pid=4), d(4, row(3, "p3"), "p"), u(4, row(5, "p5"), "p", uk="p3"),
    ]  # fmt: skip
    final = {
        "p": [row(20, "p1"), row(21, "new"), row(4, "p4"), row(5, "p3"), *(row(i, f"p{i}") for i in (6, 7, 8))],
        "c": [child(1, 20), child(30, 21), child(3, 4), *(child(i, i) for i in (4, 5, 6, 7, 8))],
    }
    ways = (
        [("atomic", 1, 100), ("parallel", 8, 100)]
        if action
        else [("atomic", 1, 3), ("parallel", 2, 100), ("parallel", 8, 1)]
    )
    check_case(kind, request, family(action), before, steps, final, ways)


def tree(id: int, up: Any) -> Row:
    """A row of a tree."""
    return {"id": id, "up": up}


@every
def test_case_30_trees_and_circles(kind: str, request: Request) -> None:
    """A tree is planted from leaf to root, re-rooted, and felled; two tables refer to each other."""
    table = "CREATE TABLE t (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES t (id))"
    planted = [c(1, tree(i, i // 2 if i > 1 else None)) for i in reversed(range(1, 16))]
    grown = {"t": [tree(i, i // 2 if i > 1 else None) for i in range(1, 16)]}
    check_case(kind, request, [table], {}, planted, grown, [("atomic", 1, 100), ("parallel", 4, 100)])
    rerooted = [u(1, tree(1, None), up=15), u(1, tree(15, 7), up=None), u(1, tree(3, 1), up=2)]
    final = {"t": [*grown["t"][3:14], tree(2, 1), tree(3, 2), tree(1, 15), tree(15, None)]}
    first = [tree(i, None) for i in range(1, 16)]
    lift = [u(0, one, up=grown["t"][i]["up"]) for i, one in enumerate(first)]
    check_case(
        kind, request, [table], {"t": first}, [*lift, *rerooted], final, [("atomic", 1, 1000), ("parallel", 4, 15)]
    )
    felled = [d(2, one) for one in grown["t"]]
    check_case(
        kind, request, [table], {"t": first}, [*lift, *felled], {"t": []}, [("atomic", 1, 1), ("parallel", 4, 15)]
    )
    circle = [
        "CREATE TABLE a (id int PRIMARY KEY, other int)",
        "CREATE TABLE b (id int PRIMARY KEY, other int, FOREIGN KEY (other) REFERENCES a (id))",
    ]
    if kind == "sqlite":
        circle[0] = "CREATE TABLE a (id int PRIMARY KEY, other int REFERENCES b (id))"
    else:
        circle.append("ALTER TABLE a ADD FOREIGN KEY (other) REFERENCES b (id)")

    def one(id: int, other: Any) -> Row:
        return {"id": id, "other": other}

    steps = [
        c(1, one(1, None), "a"), c(1, one(1, 1), "b"), u(1, one(1, None), "a", other=1),
        c(2, one(2, None), "b"), c(2, one(2, 2), "a"), u(2, one(2, None), "b", other=2),
    ]  # fmt: skip
    both = [one(1, 1), one(2, 2)]
    check_case(kind, request, circle, {}, steps, {"a": both, "b": both})
    gone = [u(3, one(1, 1), "a", other=None), d(3, one(1, 1), "b"), d(3, one(1, None), "a")]
    check_case(
        kind,
        request,
        circle,
        {},
        [*steps, *gone],
        {"a": [one(2, 2)], "b": [one(2, 2)]},
        [("atomic", 1, 6), ("parallel", 2, 6)],
    )


@every
@pytest.mark.parametrize("nullable", [True, False])
def test_case_31_a_swap_among_parents(kind: str, nullable: bool, request: Request) -> None:
    """Parents are never deleted for a moment: their children stay, under CASCADE, too."""
    before = {"p": [row(1, "x"), row(2, "y"), row(3, "z")], "c": [child(1, 1), child(2, 2), child(3, 3)]}
    steps = [u(1, row(1, "x"), "p", uk="y"), u(1, row(2, "y"), "p", uk="x"), d(2, child(3, 3), "c"), d(2, row(3, "z"), "p"),
             c(2, row(4, "z"), "p")]  # fmt: skip
    final = {"p": [row(1, "y"), row(2, "x"), row(4, "z")], "c": [child(1, 1), child(2, 2)]}
    check_case(kind, request, family("ON DELETE CASCADE", nullable=nullable), before, steps, final)


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_swap_in_a_table_that_has_got_children_meanwhile(
    kind: str, mode: Literal["atomic", "parallel"], request: Request
) -> None:
    """A foreign key that is made while a sync runs is seen before a row is deleted to be inserted again."""
    database = fresh(kind, request)
    database.execute(family()[0])
    fill(database, "p", [row(1, "x"), row(2, "y")])
    began = itertools.count()

    def seen(effect: AnyEffect) -> None:
        if isinstance(effect, Apply) and next(began) == 0:
            database.execute(family("ON DELETE CASCADE")[1])
            fill(database, "c", [child(1, 1), child(2, 2)])

    steps = [u(1, row(1, "x"), "p", uk="y"), u(1, row(2, "y"), "p", uk="x")]
    target, settings = database.target(), SyncSettings(mode=mode, parallelism=2)
    for _ in run(Changes(changes_of(*steps)), target, stream="s", settings=settings, seen=seen):
        pass
    target.close()
    assert sorted(database.query("SELECT id, uk FROM p")) == [(1, "y"), (2, "x")]
    assert sorted(database.query("SELECT id, pid FROM c")) == [(1, 1), (2, 2)]


LIVE = {
    "a generated column": [
        "live int GENERATED ALWAYS AS (CASE WHEN gone IS NULL THEN 1 END) STORED, UNIQUE (email, live)"
    ],
    "a generated text": ["since varchar(50) GENERATED ALWAYS AS (coalesce(gone, '-')) STORED, UNIQUE (email, since)"],
    "an expression": ["UNIQUE (id)", "CREATE UNIQUE INDEX k ON p (email, coalesce(gone, '-'))"],
    "expressions only": ["UNIQUE (id)", "CREATE UNIQUE INDEX k ON p (lower(email), coalesce(gone, '-'))"],
    "a parent, too": [
        "up int NOT NULL DEFAULT 1, FOREIGN KEY (up) REFERENCES p(id)",
        "CREATE UNIQUE INDEX k ON p (up, email, coalesce(gone, '-'))",
    ],
}


@every
@pytest.mark.parametrize("key", LIVE)
def test_a_swap_among_parents_that_are_not_deleted_softly(kind: str, key: str, request: Request) -> None:
    """A column that says NULL already frees nothing: another part of the key takes a value that nobody has."""
    if kind == "mariadb" and len(LIVE[key]) > 1:
        pytest.skip("MariaDB has no keys of expressions")
    rest, *indexes = LIVE[key]
    table = f"CREATE TABLE p (id int PRIMARY KEY, email varchar(50) NOT NULL, gone varchar(50), {rest})"
    database = fresh(kind, request)
    database.execute(
        table,
        *indexes,
        "CREATE TABLE c (id int PRIMARY KEY, pid int, FOREIGN KEY (pid) REFERENCES p(id) ON DELETE CASCADE)",
    )
    fill(database, "p", [{"id": 1, "email": "x", "gone": None}, {"id": 2, "email": "y", "gone": None}])
    fill(database, "p", [{"id": 3, "email": "x", "gone": "once"}])
    fill(database, "c", [child(1, 1), child(2, 2)])
    steps = [
        ("1", "p", "u", {"id": id}, {"id": id, "email": email, "gone": None}) for id, email in ((1, "y"), (2, "x"))
    ]
    sync(database, changes_of(*steps))
    assert sorted(database.query("SELECT id, email, gone FROM p")) == [(1, "y", None), (2, "x", None), (3, "x", "once")]
    assert sorted(database.query("SELECT id FROM c")) == [(1,), (2,)]


@every
def test_case_32_cascades_in_the_stream_or_not(kind: str, request: Request) -> None:
    """Some sources log what a cascade deletes, some do not: the end is the same."""
    before = {"p": [row(1, "x"), row(2, "y")], "c": [child(1, 1), child(2, 2)]}
    final = {"p": [row(2, "y"), row(3, "x")], "c": [child(2, 2), child(5, 3)]}
    told = [d(1, child(1, 1), "c"), d(1, row(1, "x"), "p")]
    after = [c(2, row(3, "x"), "p"), c(2, child(5, 3), "c")]
    for steps in ([*told, *after], [told[1], told[0], *after], [told[1], *after]):
        check_case(kind, request, family("ON DELETE CASCADE"), before, steps, final)


@pytest.mark.mariadb
def test_parents_and_children_in_another_database(request: Request) -> None:
    """Children there are not lost with a parent that lets go of a value; a parent there is found."""
    database, other = fresh("mariadb", request), fresh("mariadb", request)
    ((here,),) = database.query("SELECT database()")
    database.execute(family()[0])
    fill(database, "p", [row(1, "x"), row(2, "y")])
    other.execute(family("ON DELETE CASCADE")[1].replace("REFERENCES p", f"REFERENCES {here}.p"))
    fill(other, "c", [child(1, 1), child(2, 2)])
    sync(database, changes_of(u(1, row(1, "x"), "p", uk="y"), u(1, row(2, "y"), "p", uk="x")))
    assert sorted(database.query("SELECT id, uk FROM p")) == [(1, "y"), (2, "x")]
    assert sorted(other.query("SELECT id, pid FROM c")) == [(1, 1), (2, 2)]
    sync(other, changes_of(c(1, child(3, 2), "c"), u(2, child(1, 1), "c", pid=2)))
    assert sorted(other.query("SELECT id, pid FROM c")) == [(1, 2), (2, 2), (3, 2)]
