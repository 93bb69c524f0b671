"""Statements that rebase onto another's commit leave the result of a serial run: all pairs, on all kinds of tables.

Each pair conflicts without threads: the first statement is computed and staged, the other commits, and then the first is
rebased. LAKEGATE_WRITE_REFERENCE=1 with LAKEGATE_MATRIX=1 rewrites docs/reference/what-can-conflict-now.md.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import delta.tables as stock
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakegate
from harness.tables import (
    COLUMNS,
    FORMS,
    KINDS,
    OURS,
    VARIANTS,
    Form,
    Kind,
    Lake,
    Parts,
    Variant,
    audit,
    compare,
    files,
    has_statement,
    read,
)
from lakegate.delta.actions import FileChange
from lakegate.delta.idempotent_writes import DELTA_CONFLICTS, confs
from lakegate.ids import TableLocation
from lakegate.rows.committer import publisher
from lakegate.rows.row_reader import TableRows
from lakegate.rows.small_file_cache import Remembered
from lakegate.rows.sql import statement
from lakegate.rows.statement import BATCH_CONF, WHOLE, relocation
from tests.docs.markdown import DOCS
from tests.waiting import wait_until, waits_for

PAGE = DOCS / "reference" / "what-can-conflict-now.md"
MARK = "<!-- generated -->\n"
SHOWN = ("disjoint", "same")
"""Variants that the page shows, on the kind of table that it shows."""
PLAIN = KINDS["vectors"]


@pytest.fixture(scope="module")
def lake(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Tables and copies of them."""
    is_thorough = os.environ.get("LAKEGATE_MATRIX", "0") not in ("", "0")
    return Lake(session, publisher(session), tmp_path_factory.mktemp("lake"), is_thorough=is_thorough)


def level(lake: Lake, kind: Kind, ours: Form, earlier: Form, variant: Variant) -> int:
    """Races a pair, compares all there is to compare, and tells the level."""
    ended = lake.follow(kind, ours, variant.ours, (earlier, variant.theirs))
    published = ended.outcome
    assert not published.is_superseded
    return published.level


# --------------------------------------------------------------------------------------------------------------- the pairs


FEW = ("vectors", "no-vectors", "generated", "partitioned, feed, timestamps", "clustered, row-ids, mapping")
"""Kinds of tables that have, among them, all there is."""


MET = ("swap", "disjoint", "same", "enter", "same")


def chosen() -> Iterator[tuple[Kind, Variant, Form, Form]]:
    """Yields every pair of statements on one of these kinds, such that each kind has each statement first and second.

    The sum of the statements' indexes determines the kind; the kind and the first statement's index determine the variant. So
    the result of a first or second statement is reused for all pairs with it on that kind.
    """
    for w, earlier in enumerate(FORMS.values()):
        for o, ours in enumerate(FORMS.values()):
            i = (w + o) % len(FEW)
            kind, variant = KINDS[FEW[i]], VARIANTS[MET[(w - 2 * i) % len(MET)]]
            if not (has_statement(kind, earlier) and has_statement(kind, ours)):
                kind, variant = PLAIN, VARIANTS["disjoint"]
            yield kind, variant, earlier, ours


def test_the_chosen_pairs_cover_every_combination_of_two_properties() -> None:
    """Any two of kind, variant, first and second statement occur together, where stock Delta has the statement on such a table."""
    cases = list(chosen())
    kinds = [KINDS[name] for name in FEW]
    sides = [(kind.name, form.name) for kind in kinds for form in FORMS.values() if has_statement(kind, form)]
    assert Counter((earlier.name, ours.name) for *_, earlier, ours in cases) == Counter(product(FORMS, FORMS))
    assert {(kind.name, earlier.name) for kind, _, earlier, _ in cases} == set(sides)
    assert {(kind.name, ours.name) for kind, *_, ours in cases} == set(sides)
    assert {(kind.name, variant.name) for kind, variant, *_ in cases} == set(product(FEW, VARIANTS))
    assert {(variant.name, earlier.name) for _, variant, earlier, _ in cases} == set(product(VARIANTS, FORMS))
    assert {(variant.name, ours.name) for _, variant, _, ours in cases} == set(product(VARIANTS, FORMS))
    assert {level for case in cases if (level := level_on_the_page(*case)) is not None} == {1, 2, 3, 4}


LEVEL_MAX = {"DELETE": 3, "UPDATE": 3, "MERGE, update": 3, "MERGE, delete": 3, "INSERT": 1}
"""On every kind of table: what each row says alone is executed again on the files concerned, not on the table."""


def level_on_the_page(kind: Kind, variant: Variant, earlier: Form, ours: Form) -> int | None:
    """Returns the level that the page shows for the pair, if it does."""
    if kind is not PLAIN or variant.name not in SHOWN:
        return None
    return int(said()[ours.name, earlier.name][SHOWN.index(variant.name)])


def size_of(winner: Form, ours: Form) -> pytest.MarkDecorator:
    """`make test-all` runs each statement against itself; `make matrix` the other pairs."""
    if ours.name != winner.name:
        return pytest.mark.matrix
    return pytest.mark.every_case if ours.name == "UPDATE" else pytest.mark.slow


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kind", "variant", "earlier", "ours"),
    [pytest.param(*case, id=" | ".join(part.name for part in case), marks=size_of(*case[2:])) for case in chosen()],
)
def test_a_pair_is_serial(lake: Lake, kind: Kind, variant: Variant, earlier: Form, ours: Form) -> None:
    """The table, its log, its change feed and its row ids are those of the winning statement first and the other after it."""
    found = level(lake, kind, ours, earlier, variant)
    assert 1 <= found <= LEVEL_MAX.get(ours.name, 4)
    assert level_on_the_page(kind, variant, earlier, ours) in (None, found)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("earlier", FORMS.values(), ids=lambda form: form.name)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_pair_is_serial(lake: Lake, kind: Kind, variant: Variant, earlier: Form) -> None:
    """The whole."""
    for ours in FORMS.values():
        if has_statement(kind, earlier) and has_statement(kind, ours):
            level(lake, kind, ours, earlier, variant)


# ---------------------------------------------------------------------------------------------------------------- the page


def said() -> dict[tuple[str, str], list[str]]:
    """Reads the levels on the page: by statement and winning statement, those of the variants shown."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").split(MARK)[1].split("\n") if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    winners = table[0][1:]
    return {
        (row[0], earlier): cell.split(" · ")
        for row in table[2:]
        for earlier, cell in zip(winners, row[1:], strict=True)
    }


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_the_page_says_at_which_level_each_pair_ends(lake: Lake) -> None:
    """Generated below its mark, and never edited there."""
    lines = [f"| | {' | '.join(FORMS)} |", "|---" * (len(FORMS) + 1) + "|"]
    for ours in FORMS.values():
        cells = [
            " · ".join(str(level(lake, PLAIN, ours, earlier, VARIANTS[name])) for name in SHOWN)
            for earlier in FORMS.values()
        ]
        lines.append(f"| {ours.name} | {' | '.join(cells)} |")
    text = PAGE.read_text(encoding="utf-8")
    expected = text.split(MARK)[0] + MARK + "\n" + "\n".join(lines) + "\n"
    if os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1":
        PAGE.write_text(expected, encoding="utf-8")
        text = expected
    assert text == expected


# ---------------------------------------------------------------------------------------------- several winning commits

EVERY = Parts((0, 1, 2, 3, 4), 8, (101,), 1)
CHAINS: dict[str, tuple[str, str, list[tuple[str, Parts]]]] = {
    "rows enter, are moved, and moved again": (
        "vectors",
        "DELETE",
        [("OPTIMIZE", EVERY), ("UPDATE", VARIANTS["enter"].theirs), ("OPTIMIZE ZORDER BY", EVERY)],
    ),
    "rows that it updates are deleted in part, the rest moved, and some come": (
        "feed",
        "UPDATE",
        [("DELETE", VARIANTS["same"].theirs), ("OPTIMIZE", EVERY), ("MERGE, insert", VARIANTS["enter"].theirs)],
    ),
    "rows leave its condition and come back": (
        "row-ids",
        "MERGE, update",
        [("UPDATE", Parts((1,), 8, (), 1)), ("UPDATE", Parts((8,), 1, (), 1)), ("INSERT", VARIANTS["enter"].theirs)],
    ),
    "rows are moved by one, and deleted by others before and after": (
        "vectors",
        "OPTIMIZE",
        [("DELETE", Parts((0,), 8, (), 1)), ("UPDATE", Parts((1,), 0, (), 1)), ("DELETE", Parts((0, 3), 8, (), 1))],
    ),
    "three deletions follow each other in one file": (
        "no-vectors",
        "DELETE",
        [
            ("DELETE", Parts((2,), 8, (), 1)),
            ("DELETE", Parts((3,), 8, (), 1)),
            ("MERGE, delete", Parts((1,), 8, (), 1)),
        ],
    ),
    "three deletions follow each other in one vector": (
        "vectors",
        "UPDATE",
        [
            ("DELETE", Parts((2,), 8, (), 1)),
            ("DELETE", Parts((3,), 8, (), 1)),
            ("MERGE, delete", Parts((4,), 8, (), 1)),
        ],
    ),
    "the same keys are inserted, and deleted again in part": (
        "partitioned",
        "MERGE, insert",
        [("MERGE, insert", VARIANTS["same"].theirs), ("DELETE", Parts((8,), 8, (), 1)), ("INSERT", OURS)],
    ),
    "a matched row that it did not write is moved, and its new file is removed as a whole": (
        "partitioned",
        "MERGE, insert",
        [("OPTIMIZE", EVERY), ("DELETE", EVERY)],
    ),
    "two relocations, one after the other": (
        "mapping",
        "OPTIMIZE ZORDER BY",
        [("DELETE", Parts((0,), 8, (), 1)), ("OPTIMIZE", EVERY), ("UPDATE", Parts((1,), 0, (), 1))],
    ),
}


LONG_CHAINS = tuple(CHAINS)[::2]
"""Those that only the long tests follow."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] if name in LONG_CHAINS else []) for name in CHAINS]
)
def test_a_statement_rebases_onto_a_chain_of_commits(lake: Lake, name: str) -> None:
    """The other statements commit one after the other; the first statement is rebased onto all of them."""
    kind, ours, winners = CHAINS[name]
    lake.follow(KINDS[kind], FORMS[ours], OURS, *((FORMS[form], parts) for form, parts in winners))


# ------------------------------------------------------------------------------------------- what no single pair shows


@pytest.mark.slow
def test_a_statement_that_reads_its_own_table_sees_what_was_committed_meanwhile(lake: Lake) -> None:
    """Two that each take one row away as long as seven are left: the second one finds six (write skew)."""
    path = lake.copy(PLAIN, lake.first(PLAIN).path)
    assert sum(row.v == 0 for row in read(path).values()) == 7
    going = (
        "MERGE INTO delta.`{t}` t USING (SELECT {id}L AS id FROM delta.`{t}` WHERE v = 0 HAVING count(*) >= 7) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 9"
    )
    both = [lake.stage(going.format(t=path, id=id_)) for id_ in (10, 15)]
    ends = [lake.finish(one) for one in both]
    assert [row.id for row in read(path).values() if row.v == 9] == [10]
    assert [(end.level, end.version is None) for end in ends] == [(1, False), (4, True)]


def small_table(session: SparkSession, path: Path, rows: str) -> str:
    """Makes a table with deletion vectors and one file; returns its name in SQL."""
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    session.sql(f"CREATE TABLE delta.`{path}` (id INT, v INT) USING delta {properties}")
    session.sql(f"SELECT * FROM VALUES {rows} AS s(id, v)").coalesce(1).write.format("delta").mode("append").save(
        str(path)
    )
    return f"delta.`{path}`"


def test_conditions_that_exchange_places_do_not_exchange_values(
    lake: Lake, session: SparkSession, tmp_path: Path
) -> None:
    """They change different rows of one file, and each brings what the other is about (docs/explanation/isolation.md)."""
    t = small_table(session, tmp_path / "t", "(1, 0), (2, 1)")
    both = [lake.stage(f"UPDATE {t} SET v = {to} WHERE v = {1 - to}") for to in (1, 0)]
    assert [lake.finish(one).level for one in both] == [1, 3]
    assert sorted(map(tuple, session.table(t).collect())) == [(1, 0), (2, 0)]


def test_a_statement_sees_a_row_that_another_has_copied(lake: Lake, session: SparkSession, tmp_path: Path) -> None:
    """Three statements without an order under WriteSerializable; here the last one deletes the row and its copy."""
    t = small_table(session, tmp_path / "t", "(1, 0), (2, 1)")
    last = lake.stage(f"DELETE FROM {t} WHERE v = 1")
    session.sql(f"INSERT INTO {t} VALUES (3, 1)")
    session.sql(f"INSERT INTO {t} SELECT id + 10, v FROM {t} WHERE v = 1")
    assert session.table(t).count() == 5
    lake.finish(last)
    assert list(map(tuple, session.table(t).collect())) == [(1, 0)]


def test_stock_delta_refuses_another_isolation_level(session: SparkSession, tmp_path: Path) -> None:
    """As the page on isolation says of open-source Delta."""
    t = small_table(session, tmp_path / "t", "(1, 0)")
    with pytest.raises(Exception, match="must be Serializable"):
        session.sql(f"ALTER TABLE {t} SET TBLPROPERTIES ('delta.isolationLevel' = 'WriteSerializable')")


def test_a_merge_that_assigns_what_its_table_says_sees_what_was_committed_meanwhile(lake: Lake) -> None:
    """Its keys are as they were; what a sub-query says of the other rows is not."""
    path = lake.copy(PLAIN, lake.first(PLAIN).path)
    staged = lake.stage(
        f"MERGE INTO delta.`{path}` t USING (SELECT 10L AS id) s ON t.id = s.id "
        f"WHEN MATCHED THEN UPDATE SET n = (SELECT max(n) FROM delta.`{path}`) + 1"
    )
    lake.run(f"UPDATE delta.`{path}` SET n = 70 WHERE id = 30")
    assert lake.finish(staged).level == 4
    assert [row.n for row in read(path).values() if row.id == 10] == [71]


def test_a_row_that_was_matched_and_not_written_counts_when_it_is_deleted(lake: Lake) -> None:
    """MERGE left a matched row unchanged; the winning commit deletes the row; so the key is inserted."""
    path = lake.copy(PLAIN, lake.first(PLAIN).path)
    staged = lake.stage(
        f"MERGE INTO delta.`{path}` t USING (SELECT id FROM range(10, 12)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 11 THEN UPDATE SET n = 50 "
        f"WHEN NOT MATCHED THEN INSERT ({COLUMNS}) VALUES (s.id, 60, 1, 60, NULL)"
    )
    lake.run(f"DELETE FROM delta.`{path}` WHERE id = 10")
    lake.finish(staged)
    assert sorted(row.n for row in read(path).values() if row.id in (10, 11)) == [50, 60]


def test_a_file_whose_partition_is_null_is_read_again_as_it_was(
    lake: Lake, session: SparkSession, tmp_path: Path
) -> None:
    """The statement is re-executed on its removed files, and removals do not say which partition values are null."""
    path = tmp_path / "t"
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    session.sql(f"CREATE TABLE delta.`{path}` (id INT, p INT) USING delta PARTITIONED BY (p) {properties}")
    session.sql(f"INSERT INTO delta.`{path}` VALUES (1, NULL), (2, NULL), (3, 1), (4, 1)")
    staged = lake.stage(f"UPDATE delta.`{path}` SET id = id * 10 WHERE id > 1")
    lake.run(f"DELETE FROM delta.`{path}` WHERE id = 3")
    assert lake.finish(staged).level == 3
    found = session.read.format("delta").load(str(path)).collect()
    assert Counter(map(tuple, found)) == Counter([(1, None), (20, None), (40, 1)])


@pytest.mark.slow
def test_an_optimize_is_one_commit_though_it_was_to_be_several(lake: Lake, session: SparkSession) -> None:
    """In batches it would lose to itself: the second one would be kept, and those after it would not be made."""
    kind = KINDS["partitioned"]
    path = lake.copy(kind, lake.first(kind).path)
    lake.run(f"UPDATE delta.`{path}` SET p = id % 5")
    lake.run(f"UPDATE delta.`{path}` SET n = 2 WHERE id < 15")
    rows = read(path)
    with confs(session, {BATCH_CONF: "1"}):
        lake.run(f"OPTIMIZE delta.`{path}`")
        assert session.conf.get(BATCH_CONF) == "1"
    compare(read(path), rows)
    assert Counter(file["partitionValues"]["p"] for file in files(path)) == dict.fromkeys("01234", 1)


def test_an_optimize_that_ends_first_does_not_divide_another_of_its_session(session: SparkSession) -> None:
    """Settings are the session's, of all its threads: they are as before when the last one has ended."""
    seen: list[str | None] = []
    has_begun, may_end = threading.Event(), threading.Event()

    def one() -> None:
        has_begun.set()
        assert may_end.wait(30)

    def another() -> None:
        may_end.set()
        first.join()
        seen.append(session.conf.get(BATCH_CONF, None))

    first = threading.Thread(target=relocation(session, TableLocation("one"), one).execute)
    first.start()
    assert has_begun.wait(30)
    relocation(session, TableLocation("another"), another).execute()
    assert (seen, session.conf.get(BATCH_CONF, None)) == ([WHOLE], None)


@pytest.mark.slow
def test_an_optimize_of_a_clustered_table_leaves_out_rows_that_were_deleted(lake: Lake) -> None:
    """Equal rows are one another's where they have no ids: what it copied is marked, and it is not executed again."""
    kind, delete = KINDS["clustered"], FORMS["DELETE"]
    assert not kind.tracks_rows
    ended = lake.follow(kind, FORMS["OPTIMIZE"], OURS, (delete, VARIANTS["disjoint"].theirs))
    assert (ended.outcome.level, ended.outcome.attempts) == (2, 1)


@pytest.mark.slow
def test_concurrently_added_rows_are_found_whatever_the_statistics_of_their_files(
    session: SparkSession, tmp_path: Path
) -> None:
    """Statistics rule files out, and rows are looked for in the others: what is found is what the condition holds for.

    There are strings longer than the bounds that are kept, NaN, NULL, both zeros, files without statistics, and bounds of rows
    that a vector marks.
    """
    table = odd_table(session, tmp_path / "t")
    here = F.concat_ws(":", F.col("_metadata.file_path"), F.col("_metadata.row_index").cast("string"))
    frame = session.read.format("delta").load(str(table))
    says = [F.expr(condition).alias(f"c{place}") for place, condition in enumerate(CONDITIONS)]
    seen = frame.select(here.alias("row"), *says).collect()
    came = tuple(FileChange(file["path"], None, file) for file in files(table))
    wrong = {}
    for place, condition in enumerate(CONDITIONS):
        dml = statement(session, f"DELETE FROM delta.`{table}` WHERE {condition}")
        assert dml is not None
        entered = TableRows(dml.jvm, dml.jvm.delta_log(dml.table), dml, Remembered()).entered(came)
        found = {f"{Path(path).name}:{row}" for path, rows in entered.items() for row in rows or ()}
        should = {row.row.rsplit("/", 1)[1] for row in seen if row[f"c{place}"] is True}
        if found != should:
            wrong[condition] = found, should
    assert not wrong


LONG = "a" * 40
CONDITIONS = (
    *(
        "k = 3",
        "k < 2",
        "3 >= k",
        "k IN (4, NULL)",
        "k <=> NULL",
        "k IS NULL",
        "NOT (k = 1)",
        "k % 2 = 1",
        "k = 2.0",
        "k < '2'",
    ),
    *(
        f"`a b` = '{LONG}z'",
        f"`a b` > '{LONG}b'",
        "`a b` < 'a'",
        f"`a b` IN ('{LONG}', 'é')",
        "`a b` > 'z'",
        "`a b` = ''",
    ),
    *("d > 5", "d = double('NaN')", "d < 0", "d = 0.0", "d >= double('infinity')", "NOT (d < 5)", "d IS NULL"),
    *("i = 7", "i > 100", "i = 7L", "k = i", "dt = DATE '2020-01-02'", "dt < '2020-01-02'", "dt > DATE '2021-01-01'"),
    *(
        "ts = TIMESTAMP '2020-01-01 00:00:00.000001'",
        "ts > TIMESTAMP '2020-01-01 00:00:00'",
        "c = 1.10",
        "c > 99",
        "b",
        "NOT b",
    ),
    *(
        "k = 3 OR d > 5",
        "k = 3 AND d > 5",
        "k > 1 AND `a b` = 'é' AND i < 9",
        "coalesce(k, 3) = 3",
        "k BETWEEN 2 AND 3",
    ),
)


def odd_table(session: SparkSession, path: Path) -> Path:
    """Files whose statistics are of every kind."""
    columns = "k BIGINT, `a b` STRING, d DOUBLE, i SMALLINT, dt DATE, ts TIMESTAMP, c DECIMAL(10, 2), b BOOLEAN"
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
    session.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta TBLPROPERTIES ({properties})")
    day, at = "DATE '2020-01-02'", "TIMESTAMP '2020-01-01 00:00:00.000001'"
    plain = [f"({i}, 'é', {i}.0, {i}S, {day}, {at}, 1.10, {str(i % 2 == 0).lower()})" for i in range(1, 5)]
    nulls = f"({', '.join(['NULL'] * 8)})"
    contents = [
        [*plain, nulls],
        [f"(3, '{LONG}{end}', -0.0, 7S, {day}, {at}, 1.10, true)" for end in ("", "b", "z")],
        [f"(9, '', {d}, 101S, DATE '2022-01-01', {at}, 100.0, false)" for d in ("double('NaN')", "-1.0", "0.0")],
        [nulls, nulls],
        [f"(2, 'zz', double('infinity'), 8S, NULL, {at}, NULL, NULL)"],
        [f"({i}, 'x', 50.0, 7S, {day}, {at}, 2.0, true)" for i in (1, 200)],
    ]
    for place, rows in enumerate(contents):
        collects = {"spark.databricks.delta.stats.collect": str(place not in (3, 4)).lower()}
        with confs(session, collects):
            session.sql(f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)}")
    session.sql(f"DELETE FROM delta.`{path}` WHERE k = 200")
    return path


# -------------------------------------------------------------------------------------------------- what stock Delta does


@pytest.mark.slow
@pytest.mark.parametrize("rival", ["DELETE", "UPDATE", "INSERT", "OPTIMIZE"])
def test_the_stock_statement_fails_where_ours_does_not(
    lake: Lake, session: SparkSession, tmp_path: Path, rival: str
) -> None:
    """One race, by stock Delta's class and by ours: a MERGE whose source is slow, and a statement about other rows."""
    first, parts = lake.first(PLAIN), VARIANTS["disjoint"].theirs
    serial = FORMS[rival].serial(parts, first.rows)

    path = lake.copy(PLAIN, first.path)
    table = stock.DeltaTable.forPath(session, str(path))
    assert isinstance(raced(session, table, path, rival, tmp_path), DELTA_CONFLICTS)
    compare(read(path), serial)

    path = lake.copy(PLAIN, first.path)
    table = lakegate.DeltaTable.forPath(session, str(path))
    assert raced(session, table, path, rival, tmp_path) is None
    compare(read(path), {id_: row._replace(n=row.n + 100) if row.id == 11 else row for id_, row in serial.items()})
    audit(path)


def raced(session: SparkSession, table: Any, path: Path, rival: str, folder: Path) -> BaseException | None:
    """Runs a MERGE that adds 100 to the row 11 while a stock statement commits; returns its outcome."""
    started, released = folder / f"{path.name} started", folder / f"{path.name} released"
    slow = waits_for(session.createDataFrame([(11,)], "id BIGINT").coalesce(1), started, released)
    merge = table.alias("t").merge(slow.alias("s"), "t.id = s.id").whenMatchedUpdate(set={"n": "t.n + 100"})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(merge.execute)
        wait_until(lambda: started.exists() or running.done())
        session.sql(FORMS[rival].text(VARIANTS["disjoint"].theirs, PLAIN, path))
        released.touch()
        return running.exception()
