"""Acceptance cases 1 to 18: which values meet, in the target's own eyes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from lakegate.demo.database_servers import fresh_postgres
from lakegate.errors import ConstraintViolated
from tests.syncs.short_changes import c, changes_of, u
from tests.syncs.target_databases import KINDS, check_case, fill, fresh, sync

PG = [pytest.param("postgres", marks=pytest.mark.postgres)]
MY = [pytest.param("mariadb", marks=pytest.mark.mariadb)]
LITE = [pytest.param("sqlite")]
T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE)"
every = pytest.mark.parametrize("kind", KINDS)
on_postgres = pytest.mark.parametrize("kind", PG)
on_mariadb = pytest.mark.parametrize("kind", MY)
Request = pytest.FixtureRequest


def row(id: int, uk: Any) -> dict[str, Any]:
    """A row of `T`."""
    return {"id": id, "uk": uk}


def rows(*pairs: tuple[int, Any]) -> dict[str, list[dict[str, Any]]]:
    """The table `t` with these rows."""
    return {"t": [row(id, uk) for id, uk in pairs]}


@every
def test_case_01_a_swap(kind: str, request: Request) -> None:
    """With a value in between, and directly."""
    with_temporary = [u(1, row(1, "x"), uk="~"), u(1, row(2, "y"), uk="x"), u(1, row(1, "~"), uk="y")]
    directly = [u(1, row(1, "x"), uk="y"), u(1, row(2, "y"), uk="x")]
    for steps in (with_temporary, directly):
        check_case(kind, request, [T], rows((1, "x"), (2, "y")), steps, rows((1, "y"), (2, "x")))


@every
@pytest.mark.parametrize("n", [3, 10, 1000])
def test_case_02_a_rotation(kind: str, n: int, request: Request) -> None:
    """The whole ring lies in one transaction."""
    steps = [u(1, row(i, f"v{i}"), uk=f"v{(i + 1) % n}") for i in range(n)]
    before, after = rows(*((i, f"v{i}") for i in range(n))), rows(*((i, f"v{(i + 1) % n}") for i in range(n)))
    done = check_case(kind, request, [T], before, steps, after, [("parallel", 8, 10_000)])
    assert done.complete is not None
    assert (done.complete.components, done.complete.largest) == (1, n)


@every
def test_case_02_many_rotations(kind: str, request: Request) -> None:
    """A thousand rings of three are a thousand groups, and spread over all slots."""
    ring = [(i, i - i % 3 + (i + 1) % 3) for i in range(3000)]
    steps = [u(i // 3, row(i, f"v{i}"), uk=f"v{to}") for i, to in ring]
    before, after = rows(*((i, f"v{i}") for i, _ in ring)), rows(*((i, f"v{to}") for i, to in ring))
    done = check_case(kind, request, [T], before, steps, after, [("parallel", 8, 10_000)])
    assert done.complete is not None
    assert (done.complete.components, done.complete.largest) == (1000, 3)
    assert done.complete.slots == (1 if kind == "sqlite" else 8)
    assert done.complete.retried_alone == 0


@every
def test_case_03_a_chain(kind: str, request: Request) -> None:
    """Each takes what the next had, the last takes something new."""
    n = 20
    steps = [u(n - i, row(i, f"v{i}"), uk=f"v{i + 1}") for i in reversed(range(n))]
    check_case(
        kind, request, [T], rows(*((i, f"v{i}") for i in range(n))), steps,
        rows(*((i, f"v{i + 1}") for i in range(n))),
    )  # fmt: skip


@every
def test_case_04_the_articles_examples(kind: str, request: Request) -> None:
    """A value moves to another primary key while its old row takes another; and pairs of a composite key in a circle."""
    steps = [u(1, row(1, "1"), uk="2"), c(2, row(2, "1")), u(3, row(1, "2"), uk="3"), c(4, row(3, "2"))]
    check_case(kind, request, [T], rows((1, "1")), steps, rows((1, "3"), (2, "1"), (3, "2")))
    table = "CREATE TABLE t (id int PRIMARY KEY, a int, b int, UNIQUE (a, b))"
    pairs = [{"id": i, "a": i % 2, "b": i // 2} for i in range(8)]
    steps = [u(1, one, a=(one["id"] ^ 1) % 2) for one in pairs]
    check_case(
        kind, request, [table], {"t": pairs}, steps, {"t": [{**one, "a": 1 - one["a"]} for one in pairs]},
    )  # fmt: skip


@every
def test_case_05_a_circle_over_two_keys(kind: str, request: Request) -> None:
    """One releases on the first key what the other takes, and the other way round on the second."""
    table = "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b int UNIQUE)"
    one, other = {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 2, "b": 2}
    steps = [u(1, one, a=3, b=2), u(1, other, a=1, b=3)]
    final = {"t": [{"id": 1, "a": 3, "b": 2}, {"id": 2, "a": 1, "b": 3}]}
    done = check_case(kind, request, [table], {"t": [one, other]}, steps, final)
    assert done.complete is not None
    assert done.complete.edges == 2


@every
def test_case_06_composite_values_are_not_glued(kind: str, request: Request) -> None:
    """('a', 'bc') and ('ab', 'c') are two values."""
    table = "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), b varchar(9), UNIQUE (a, b))"
    one = {"id": 1, "a": "a", "b": "bc"}
    steps = [u(1, one, a="z"), c(1, {"id": 2, "a": "ab", "b": "c"})]
    final = {"t": [{"id": 1, "a": "z", "b": "bc"}, {"id": 2, "a": "ab", "b": "c"}]}
    done = check_case(kind, request, [table], {"t": [one]}, steps, final)
    assert done.complete is not None
    assert done.complete.edges == 0


@every
def test_case_07_one_value_in_different_keys(kind: str, request: Request) -> None:
    """The same text in two columns and two tables connects nothing."""
    tables = [
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(9) UNIQUE, b varchar(9) UNIQUE)",
        "CREATE TABLE o (id int PRIMARY KEY, a varchar(9) UNIQUE)",
    ]
    one = {"id": 1, "a": "same", "b": "other"}
    steps = [
        u(1, one, a="gone"), c(1, {"id": 2, "a": "new", "b": "same"}), c(1, {"id": 1, "a": "same"}, "o"),
    ]  # fmt: skip
    final = {
        "t": [{"id": 1, "a": "gone", "b": "other"}, {"id": 2, "a": "new", "b": "same"}],
        "o": [{"id": 1, "a": "same"}],
    }
    done = check_case(kind, request, tables, {"t": [one]}, steps, final)
    assert done.complete is not None
    assert done.complete.edges == 0


@every
def test_case_08_nulls(kind: str, request: Request) -> None:
    """NULLs conflict with nothing, whole or in part; a value that goes to NULL is free for another."""
    steps = [u(1, row(1, "x"), uk=None), u(1, row(2, "y"), uk="x"), u(2, row(3, None), uk="y"), c(2, row(4, None))]
    check_case(
        kind, request, [T], rows((1, "x"), (2, "y"), (3, None)), steps, rows((1, None), (2, "x"), (3, "y"), (4, None))
    )
    table = "CREATE TABLE t (id int PRIMARY KEY, a int, b int, UNIQUE (a, b))"
    half = [{"id": 1, "a": 1, "b": None}, {"id": 2, "a": 1, "b": 7}]
    steps = [c(1, {"id": 3, "a": 1, "b": None}), u(1, half[1], b=None), u(1, half[0], b=7)]
    final = {"t": [{"id": 1, "a": 1, "b": 7}, {"id": 2, "a": 1, "b": None}, {"id": 3, "a": 1, "b": None}]}
    check_case(kind, request, [table], {"t": half}, steps, final)


@on_postgres
def test_case_09_null_as_a_value(kind: str, request: Request) -> None:
    """NULLS NOT DISTINCT: NULL is handed from row to row, alone and within a composite key."""
    table = "CREATE TABLE t (id int PRIMARY KEY, uk text UNIQUE NULLS NOT DISTINCT)"
    steps = [u(1, row(1, None), uk="y"), u(1, row(2, "y"), uk=None)]
    check_case(kind, request, [table], rows((1, None), (2, "y")), steps, rows((1, "y"), (2, None)))
    table = "CREATE TABLE t (id int PRIMARY KEY, a int, b int, UNIQUE NULLS NOT DISTINCT (a, b))"
    one, other = {"id": 1, "a": 1, "b": None}, {"id": 2, "a": 1, "b": 2}
    check_case(
        kind, request, [table], {"t": [one, other]}, [u(1, one, b=2), u(1, other, b=None)],
        {"t": [{**one, "b": 2}, {**other, "b": None}]},
    )  # fmt: skip


@every
def test_case_10_a_table_with_a_nullable_key_only(kind: str, request: Request) -> None:
    """The whole row tells which one is meant."""
    steps = [("1", "t", "c", None, {"uk": None}), ("2", "t", "u", {"uk": None}, {"uk": "5"})]
    table = "CREATE TABLE t (uk varchar(9) UNIQUE)"
    final: dict[str, list[dict[str, Any]]] = {"t": [{"uk": None}, {"uk": "5"}]}
    check_case(kind, request, [table], {"t": [{"uk": None}]}, steps, final, [("atomic", 1, 1), ("atomic", 1, 100)])


FOLDED = [("Foo", "FOO"), ("Café", "cafe"), ("straße", "STRASSE")]


@on_mariadb
@pytest.mark.parametrize("collation", ["general_ci", "unicode_ci", "uca1400_ai_ci"])
def test_case_11_case_and_accents(kind: str, collation: str, request: Request) -> None:
    """A value handed over in another spelling is one value where the target says so."""
    table = f"CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) COLLATE utf8mb4_{collation} UNIQUE)"
    for old, new in [*FOLDED, ("ı", "i")]:
        steps = [u(1, row(1, old), uk="free"), c(1, row(2, new)), u(1, row(3, "other"), uk=old + "!")]
        done = check_case(
            kind, request, [table], rows((1, old), (3, "other")), steps, rows((1, "free"), (2, new), (3, old + "!")),
            [("parallel", 8, 100)],
        )  # fmt: skip
        assert done.complete is not None
        equal = {"straße": collation != "general_ci", "ı": collation == "unicode_ci"}.get(old, True)
        if old != "ı":
            assert done.complete.edges == (1 if equal else 0)


@pytest.mark.parametrize("kind", LITE)
def test_case_11_nocase(kind: str, request: Request) -> None:
    """SQLite's own: letters of ASCII only."""
    table = "CREATE TABLE t (id int PRIMARY KEY, uk text UNIQUE COLLATE NOCASE)"
    steps = [u(1, row(1, "Foo"), uk="free"), c(1, row(2, "FOO"))]
    done = check_case(kind, request, [table], rows((1, "Foo")), steps, rows((1, "free"), (2, "FOO")))
    assert done.complete is not None
    assert done.complete.edges == 1


@on_mariadb
def test_case_12_blanks_at_the_end_on_mariadb(kind: str, request: Request) -> None:
    """PAD SPACE takes them as equal, NO PAD does not, CHAR has none."""
    steps = [u(1, row(1, "a"), uk="b"), c(1, row(2, "a "))]
    for type_, kept, edges in [
        ("varchar(9) COLLATE utf8mb4_general_ci", "a ", 1),
        ("varchar(9) COLLATE utf8mb4_nopad_bin", "a ", 0),
        ("char(9) COLLATE utf8mb4_general_ci", "a", 1),
    ]:
        table = f"CREATE TABLE t (id int PRIMARY KEY, uk {type_} UNIQUE)"
        done = check_case(kind, request, [table], rows((1, "a")), steps, rows((1, "b"), (2, kept)))
        assert done.complete is not None
        assert done.complete.edges == edges


@on_postgres
def test_case_12_blanks_at_the_end_on_postgres(kind: str, request: Request) -> None:
    """bpchar takes them as equal, text does not."""
    steps = [u(1, row(1, "a"), uk="b"), c(1, row(2, "a "))]
    for type_, kept, edges in [("char(3)", "a  ", 1), ("text", "a ", 0)]:
        table = f"CREATE TABLE t (id int PRIMARY KEY, uk {type_} UNIQUE)"
        free = "b  " if edges else "b"
        done = check_case(kind, request, [table], rows((1, "a")), steps, rows((1, free), (2, kept)))
        assert done.complete is not None
        assert done.complete.edges == edges


COARSE = {
    "postgres": "CREATE TABLE t (id int PRIMARY KEY, uk char(5) UNIQUE)",
    "mariadb": "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) COLLATE utf8mb4_general_ci UNIQUE)",
    "sqlite": "CREATE TABLE t (id int PRIMARY KEY, uk text UNIQUE COLLATE NOCASE)",
}


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_case_13_two_values_that_are_one_to_the_target(kind: str, mode: str, request: Request) -> None:
    """A true violation: `stop` names both rows and changes nothing, `quarantine` sets both apart and goes on."""
    other = "a " if kind == "postgres" else "A"
    changes = changes_of(c(1, row(1, "a")), c(1, row(2, other)), c(1, row(3, "other")))
    database = fresh(kind, request)
    database.execute(COARSE[kind])
    with pytest.raises(ConstraintViolated) as stopped:
        sync(database, changes, mode=mode, parallelism=3)
    assert stopped.value.facts["holder"] in ("1", "2")
    assert {"1": "t 2", "2": "t 1"}[stopped.value.facts["holder"]] in str(stopped.value)
    assert database.query("SELECT last_batch FROM lakegate_stream") == [(0,)]
    if mode == "atomic" or kind == "sqlite":
        assert database.rows("t") == []
    (done,) = sync(database, changes, mode=mode, parallelism=3, on_violation="quarantine")
    assert done.complete is not None
    apart = {dead.row.key for dead in done.complete.dead}
    if mode == "atomic" or kind == "sqlite":
        assert apart == {(1,), (2,)}
    # In parallel, the slot that comes first has the value: then only the other row is quarantined.
    assert apart in ({(1,), (2,)}, {(1,)}, {(2,)})
    there = [(id, uk.strip()) for id, uk in ((1, "a"), (2, other), (3, "other")) if (id,) not in apart]
    assert sorted((one["id"], one["uk"].strip()) for one in database.rows("t")) == there
    dead = database.query("SELECT table_name, row_key, reason FROM lakegate_dead ORDER BY row_key")
    assert [one[:2] for one in dead] == [("t", f"[{id}]") for (id,) in sorted(apart)]
    assert all("belongs to the row" in one[2] for one in dead)


def test_case_14_equality_of_types_and_collations(full_postgres: str) -> None:
    """citext and a nondeterministic collation fold, a deterministic one keeps composed and decomposed letters apart."""
    collation = "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
    for ddl, old, new, edges in [
        (["CREATE EXTENSION citext", "CREATE TABLE t (id int PRIMARY KEY, uk citext UNIQUE)"], "Foo", "FOO", 1),
        ([collation, "CREATE TABLE t (id int PRIMARY KEY, uk text COLLATE folded UNIQUE)"], "Café", "cafe", 1),
        ([collation, "CREATE TABLE t (id int PRIMARY KEY, uk text)",
          "CREATE UNIQUE INDEX ON t (uk COLLATE folded)"], "Café", "CAFE", 1),
        ([T], "caf\u00e9", "cafe\u0301", 0),
    ]:  # fmt: skip
        database = fresh_postgres(full_postgres)
        database.execute(*ddl)
        fill(database, "t", [row(1, old)])
        (done,) = sync(database, changes_of(u(1, row(1, old), uk="free"), c(1, row(2, new))), mode="parallel")
        assert done.complete is not None
        assert done.complete.edges == edges
        assert sorted((one["id"], one["uk"]) for one in database.rows("t")) == [(1, "free"), (2, new)]
        database.execute("DROP EXTENSION IF EXISTS citext CASCADE")


@on_mariadb
def test_case_15_prefix_keys(kind: str, request: Request) -> None:
    """What is the same in its first characters is the same, of several columns, too."""
    table = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50), w varchar(50), UNIQUE (uk(3), w(2)))"

    def wide(id: int, uk: str, w: str) -> dict[str, Any]:
        return {"id": id, "uk": uk, "w": w}

    for old, new in [("abcdef", "abcxyz"), ("äöüß", "äöü?")]:
        steps = [u(1, wide(1, old, "pq1"), uk="zzz"), c(1, wide(2, new, "pq2"))]
        final = {"t": [wide(1, "zzz", "pq1"), wide(2, new, "pq2")]}
        done = check_case(kind, request, [table], {"t": [wide(1, old, "pq1")]}, steps, final)
        assert done.complete is not None
        assert done.complete.edges == 1


GENERATED = {
    "postgres": [
        "CREATE TABLE t (id int PRIMARY KEY, uk text, g text GENERATED ALWAYS AS (lower(uk)) STORED UNIQUE)",
        "CREATE TABLE t (id int PRIMARY KEY, uk text); CREATE UNIQUE INDEX ON t (lower(uk))",
    ],
    "mariadb": [
        "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) COLLATE utf8mb4_bin, "
        f"g varchar(50) COLLATE utf8mb4_bin AS (lower(uk)) {stored} UNIQUE)"
        for stored in ("STORED", "VIRTUAL")
    ],
    "sqlite": [
        "CREATE TABLE t (id int PRIMARY KEY, uk text, g text GENERATED ALWAYS AS (lower(uk)) STORED UNIQUE)",
        "CREATE TABLE t (id int PRIMARY KEY, uk text, g text AS (lower(uk)) VIRTUAL); CREATE UNIQUE INDEX k ON t (g)",
        "CREATE TABLE t (id int PRIMARY KEY, uk text); CREATE UNIQUE INDEX k ON t (lower(uk) COLLATE BINARY DESC)",
    ],
}


@every
def test_case_16_generated_columns_and_expressions(kind: str, request: Request) -> None:
    """Only the column that the key is made from is in the events; a change that does not show even that keeps it."""
    for ddl in GENERATED[kind]:
        database = fresh(kind, request)
        database.execute(*ddl.split("; "))
        fill(database, "t", [row(1, "Ann"), row(2, "Bob")])
        steps = [u(1, row(1, "Ann"), uk="x"), ("1", "t", "u", {"id": 2}, {"id": 2, "uk": "ANN"}), c(1, row(3, "bob"))]
        (done,) = sync(database, changes_of(*steps), mode="parallel", parallelism=8)
        assert done.complete is not None
        assert done.complete.edges == 2
        found = sorted((one["id"], one["uk"], one.get("g", one["uk"].lower())) for one in database.rows("t"))
        assert found == [(1, "x", "x"), (2, "ANN", "ann"), (3, "bob", "bob")]


@pytest.mark.parametrize("kind", [*PG, *LITE])
def test_case_17_partial_keys(kind: str, request: Request) -> None:
    """A soft delete frees the value; rows outside the predicate conflict with nothing."""
    ddl = [
        "CREATE TABLE t (id int PRIMARY KEY, uk text, deleted int)",
        "CREATE UNIQUE INDEX k ON t (uk) WHERE deleted = 0",
    ]

    def soft(id: int, uk: str, deleted: int) -> dict[str, Any]:
        return {"id": id, "uk": uk, "deleted": deleted}

    before = [soft(1, "a", 0), soft(2, "a", 1), soft(3, "a", 1)]
    steps = [u(1, before[0], deleted=1), u(1, before[1], deleted=0), c(1, soft(4, "a", 1))]
    final = {"t": [soft(1, "a", 1), soft(2, "a", 0), soft(3, "a", 1), soft(4, "a", 1)]}
    done = check_case(kind, request, ddl, {"t": before}, steps, final)
    assert done.complete is not None
    assert done.complete.edges == 1


@on_postgres
def test_case_18_ranges_that_must_not_overlap(kind: str, request: Request) -> None:
    """An exclusion constraint, and a key WITHOUT OVERLAPS: ranges grow and shrink into each other's place."""
    for constraint in ("EXCLUDE USING gist (k WITH =, v WITH &&)", "UNIQUE (k, v WITHOUT OVERLAPS)"):
        one, other = {"id": 1, "k": "[1,2)", "v": "[0,10)"}, {"id": 2, "k": "[1,2)", "v": "[10,20)"}
        for mode in ("atomic", "parallel"):
            database = fresh(kind, request)
            database.execute(f"CREATE TABLE t (id int PRIMARY KEY, k int4range, v int4range, {constraint})")
            fill(database, "t", [one, other, {"id": 3, "k": "[2,3)", "v": "[0,99)"}])
            steps = [u(1, one, v="[12,20)"), u(1, other, v="[0,12)")]
            (done,) = sync(database, changes_of(*steps), mode=mode, parallelism=2)
            assert done.complete is not None
            assert done.complete.edges == 2
            found = database.query("SELECT id, v::text FROM t ORDER BY id")
            assert found == [(1, "[12,20)"), (2, "[0,12)"), (3, "[0,99)")]


@on_mariadb
def test_zero_in_a_numbered_column_is_zero(kind: str, request: Request) -> None:
    """MariaDB would use the next number instead, and another one with each change."""
    table = "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, uk varchar(50) UNIQUE)"
    steps = [c(1, row(0, "x")), c(2, row(7, "y")), u(3, row(0, "x"), uk="z")]
    check_case(kind, request, [table], {"t": []}, steps, rows((0, "z"), (7, "y")))


SINCE = datetime(2024, 5, 6, 7, 8, 9)
STAMPED = "at timestamp NOT NULL DEFAULT current_timestamp ON UPDATE current_timestamp"


@on_mariadb
def test_a_column_that_updates_renew_has_the_value_of_the_source(kind: str, request: Request) -> None:
    """Also in rows that are written twice: where foreign keys lead in a circle, and where a value is let go of for a moment."""
    tree = f"CREATE TABLE t (id int PRIMARY KEY, up int, {STAMPED}, FOREIGN KEY (up) REFERENCES t(id))"

    def node(id: int, up: int | None, day: int = 0) -> dict[str, Any]:
        return {"id": id, "up": up, "at": SINCE + timedelta(day)}

    steps = [c(1, node(2, 3)), c(1, node(3, None)), u(1, node(1, None), up=3, at=SINCE + timedelta(1))]
    final = {"t": [node(1, 3, 1), node(2, 3), node(3, None)]}
    check_case(kind, request, [tree], {"t": [node(1, None)]}, steps, final)

    tables = [
        f"CREATE TABLE t (id int PRIMARY KEY, own int, uk varchar(50), {STAMPED}, UNIQUE (own, uk))",
        "CREATE TABLE c (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES t(id) ON DELETE CASCADE)",
    ]

    def held(id: int, uk: str) -> dict[str, Any]:
        return {**row(id, uk), "at": SINCE}

    # The source does not say the column that is NULL for a moment, so that only the second UPDATE sets it.
    before = {"t": [{**held(1, "x"), "own": 5}, {**held(2, "y"), "own": 5}], "c": [{"id": 1, "up": 1}]}
    after = {"t": [{**held(1, "y"), "own": 5}, {**held(2, "x"), "own": 5}], "c": before["c"]}
    check_case(kind, request, tables, before, [u(1, held(1, "x"), uk="y"), u(1, held(2, "y"), uk="x")], after)


@on_mariadb
def test_a_time_that_is_null_stays_null(kind: str, request: Request) -> None:
    """Also on a server that by default makes a table's first `timestamp` column NOT NULL and updates it with each change."""
    table = "CREATE TABLE t (id int PRIMARY KEY, at timestamp NULL, uk varchar(50) UNIQUE)"
    server = fresh(kind, request)
    server.execute("SET GLOBAL explicit_defaults_for_timestamp = OFF")
    try:
        before = [{**row(1, "x"), "at": None}, {**row(2, "y"), "at": SINCE}]
        steps = [u(1, before[0], uk="y"), u(1, before[1], uk="x"), c(1, {**row(3, "z"), "at": None})]
        after = [{**row(1, "y"), "at": None}, {**row(2, "x"), "at": SINCE}, {**row(3, "z"), "at": None}]
        check_case(kind, request, [table], {"t": before}, steps, {"t": after})
    finally:
        server.execute("SET GLOBAL explicit_defaults_for_timestamp = ON")
