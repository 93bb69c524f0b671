"""Tables whose definition or files are unusual: identity columns, shallow clones, and features that are not served."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import IdentityGenerator
from pyspark.sql import Row, SparkSession

import lakegate
from harness.tables import audit
from lakegate.delta.actions import Captured, Committed, parse
from lakegate.delta.gate import Gate, Ran
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import Jvm, scala_object
from lakegate.errors import UnsupportedTable
from lakegate.ids import TableLocation
from lakegate.rows import optimize_builder
from lakegate.rows.committer import publisher
from lakegate.rows.execution import UNSERVED_FEATURES
from lakegate.rows.result import Result
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml
from tests.delta.delta_tables import commit_paths, foreign_commit, ids, make_table, rows
from tests.waiting import wait_until


def follow(session: SparkSession, ours: str, earlier: str) -> Result:
    """Commits a statement after another one that committed since the first was computed; returns its outcome."""
    dml = statement(session, ours)
    assert dml is not None
    staged = publisher(session).stage(dml)
    lakegate.sql(session, earlier)
    return publisher(session).finish(staged)


@pytest.mark.slow
def test_an_optimize_that_lost_its_version_returns_what_stock_does(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same columns, and the same numbers where the history has them: who reads `metrics.filesAdded.totalSize` still can."""
    results: list[tuple[str, Row]] = []
    for is_lost in (False, True):
        path = tmp_path / str(is_lost)
        table = make_table(session, path, enableDeletionVectors="true")
        for id_ in range(4):
            rows(session, id_).write.format("delta").mode("append").save(table)

        def run_last(dml: Dml, table: TableLocation = table) -> Result:
            staged = publisher(session).stage(dml)
            rows(session, 9).write.format("delta").mode("append").save(table)
            return publisher(session).finish(staged)

        with monkeypatch.context() as patched:
            if is_lost:
                patched.setattr(optimize_builder, "run", run_last)
            frame = lakegate.DeltaTable.forPath(session, table).optimize().executeCompaction()
        assert frame.lakegate.level == int(is_lost)
        (row,) = frame.collect()
        results.append((frame.schema.simpleString(), row))
    (schema, stock), (lost_schema, lost) = results
    assert lost_schema == schema
    numbers = ("numFilesAdded", "numFilesRemoved")
    assert [lost.metrics[name] for name in numbers] == [stock.metrics[name] for name in numbers] == [1, 4]
    actions = [
        json.loads(line) for line in commit_paths(TableLocation(str(tmp_path / "True")))[-1].read_text().splitlines()
    ]
    (size,) = [action["add"]["size"] for action in actions if "add" in action]
    taken = sum(action["remove"]["size"] for action in actions if "remove" in action)
    assert lost.metrics.filesAdded.asDict() == {
        "min": size,
        "max": size,
        "avg": None,
        "totalFiles": 1,
        "totalSize": size,
    }
    assert (lost.metrics.filesRemoved.totalFiles, lost.metrics.filesRemoved.totalSize) == (4, taken)
    assert set(lost.asDict(recursive=True)["metrics"]) == set(stock.asDict(recursive=True)["metrics"])


# ---------------------------------------------------------------------------------------------------- identity columns


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("generated", "number"),
    [
        ("generatedAlwaysAs", 4),
        pytest.param("generatedAlwaysAs", 7, marks=pytest.mark.matrix),
        pytest.param("generatedByDefaultAs", 7, marks=pytest.mark.matrix),
    ],
)
def test_numbers_of_an_identity_column_are_given_once(
    session: SparkSession, tmp_path: Path, generated: str, number: int
) -> None:
    """Each INSERT changes the table's definition, where the highest number stands: what follows one is executed again.

    Whatever follows whatever, rows keep their numbers, and new ones get numbers of their own.
    """
    path = tmp_path / "t"
    builder = lakegate.DeltaTable.create(session).location(str(path)).addColumn("v", "BIGINT")
    identity: dict[str, Any] = {generated: IdentityGenerator()}
    builder.addColumn("n", "BIGINT", **identity).property("delta.enableDeletionVectors", "true").execute()
    t = f"delta.`{path}`"
    session.sql(f"INSERT INTO {t} (v) SELECT /*+ COALESCE(1) */ id FROM range(6)")
    merge = f"MERGE INTO {t} t USING (SELECT 50L AS v) s ON t.v = s.v WHEN NOT MATCHED THEN INSERT (v) VALUES (s.v)"
    before = numbers(session, t)
    races = (
        (f"INSERT INTO {t} (v) VALUES (10)", f"INSERT INTO {t} (v) VALUES (11)", 4, [], [10, 11], 2),
        (f"INSERT INTO {t} (v) VALUES (20)", f"DELETE FROM {t} WHERE v = 0", 1, [0], [20], 1),
        (f"UPDATE {t} SET v = v + 100 WHERE v IN (4, 5)", f"DELETE FROM {t} WHERE v = 5", 3, [4, 5], [104], 0),
        (merge, merge, 4, [], [50], 1),
        (f"UPDATE {t} SET v = 41 WHERE v = 1", f"INSERT INTO {t} (v) VALUES (1)", 4, [1], [41, 41], 1),
        (f"DELETE FROM {t} WHERE v = 2", f"UPDATE {t} SET v = 2 WHERE v = 3", 2, [2, 3], [], 0),
        (f"INSERT INTO {t} (v) VALUES (60)", f"OPTIMIZE {t}", 1, [], [60], 1),
    )
    for ours, earlier, level, gone, came, new in races[:number]:
        assert follow(session, ours, earlier).level == level, ours
        now = numbers(session, t)
        values = Counter(v for v, _ in now)
        values.subtract(v for v, _ in before)
        assert {v: change for v, change in values.items() if change} == {**dict.fromkeys(gone, -1), **Counter(came)}, (
            ours
        )
        given = [n for _, n in now]
        assert len(set(given)) == len(given), f"a number is given twice: {now}"
        assert len([n for n in given if n > max(last for _, last in before)]) == new, (ours, before, now)
        before = now
    audit(path)


def numbers(session: SparkSession, t: str) -> list[tuple[int, int]]:
    """The rows, by their numbers."""
    return [(row.v, row.n) for row in session.sql(f"SELECT v, n FROM {t} ORDER BY n").collect()]


# ---------------------------------------------------------------------------------------- files that are said once more


@pytest.mark.parametrize(
    ("ours", "left"),
    [
        ("DELETE FROM T WHERE id = 3", [6, 7]),
        ("UPDATE T SET id = id + 10 WHERE id IN (3, 7)", [6, 17]),
        ("OPTIMIZE T", [6, 7]),
    ],
)
@pytest.mark.parametrize("vectors", ["true", "false"])
def test_files_that_were_added_again_may_be_removed_later(
    session: SparkSession, tmp_path: Path, ours: str, left: list[int], vectors: str
) -> None:
    """Enabling row tracking or computing statistics commits additions of existing files.

    One of these files is then removed, and a statement that had rewritten it must not bring its rows back.
    """
    table = make_table(session, tmp_path / "t", enableDeletionVectors=vectors)
    for numbers_ in (range(6), range(6, 8)):
        rows(session, *numbers_).write.format("delta").mode("append").save(table)
    dml = statement(session, f"{ours} ".replace(" T ", f" delta.`{table}` ", 1))
    assert dml is not None
    staged = publisher(session).stage(dml)
    adds = [
        json.loads(line)["add"]
        for path in commit_paths(table)
        for line in path.read_text().splitlines()
        if '"add"' in line[:8]
    ]
    foreign_commit(table, *({"add": {**add, "dataChange": False}} for add in adds))
    session.sql(f"DELETE FROM delta.`{table}` WHERE id < 6")
    assert publisher(session).finish(staged).level == 4
    assert ids(session, table) == left


def test_an_insert_of_its_own_table_s_changes_sees_those_that_came(session: SparkSession, tmp_path: Path) -> None:
    """It reads the table, though not its files."""
    table = make_table(session, tmp_path / "t", enableChangeDataFeed="true")
    rows(session, 1).write.format("delta").mode("append").save(table)
    own = session.newSession()
    session.sql(f"CREATE TABLE changes_of_its_own USING delta LOCATION '{table}'")
    try:
        insert = f"INSERT INTO delta.`{table}` SELECT id + 100, v FROM table_changes('changes_of_its_own', 1)"
        outcome = follow(own, insert, f"INSERT INTO delta.`{table}` VALUES (2, 'a')")
    finally:
        session.sql("DROP TABLE changes_of_its_own")
    assert outcome.level == 4
    assert ids(session, table) == [1, 2, 101, 102]


# ------------------------------------------------------------------------------------------------------ shallow clones

RACES = {
    "vectors of both": ("DELETE FROM {t} WHERE id = 3", "DELETE FROM {t} WHERE id = 4", 2, {3: None, 4: None}),
    "the same row": (
        "UPDATE {t} SET v = v * 2 WHERE id IN (3, 4)",
        "UPDATE {t} SET v = v + 1 WHERE id = 3",
        3,
        {3: 8, 4: 8},
    ),
    "a file of the original is gone": (
        "DELETE FROM {t} WHERE id IN (3, 12)",
        "UPDATE {t} SET v = 9 WHERE id < 8",
        2,
        {id_: None if id_ == 3 else 9 for id_ in (0, 2, 3, 4, 5, 6, 7)} | {12: None},
    ),
    "rows were moved": ("UPDATE {t} SET v = 7 WHERE id IN (3, 12)", "OPTIMIZE {t}", 3, {3: 7, 12: 7}),
    "rows that are moved are gone": ("OPTIMIZE {t}", "DELETE FROM {t} WHERE id IN (3, 12)", 2, {3: None, 12: None}),
    "a matched row is gone": (
        "MERGE INTO {t} t USING (SELECT id, 5L AS v FROM range(3, 5)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *",
        "DELETE FROM {t} WHERE id = 3",
        4,
        {3: 5, 4: 5},
    ),
}
"""What follows, what wins, the level, and what becomes of rows; None: they are gone."""
SHORT = ("vectors of both", "the same row")


@pytest.mark.slow
def test_a_column_may_have_the_name_of_sparks_own_metadata(session: SparkSession, tmp_path: Path) -> None:
    """As where files were ingested with theirs: what it says is not where a row stands in this table.

    Without vectors: with them, no stock statement changes such a table.
    """
    session.range(3).write.parquet(str(tmp_path / "in"))
    path = tmp_path / "t"
    with confs(session, {"spark.databricks.delta.properties.defaults.enableDeletionVectors": "false"}):
        rows = session.read.parquet(str(tmp_path / "in")).select("id", "_metadata")
        rows.coalesce(1).write.format("delta").save(str(path))
    made = f"delta.`{path}`"
    more = f"INSERT INTO {made} SELECT id + 10, _metadata FROM {made}"
    assert follow(session, f"DELETE FROM {made} WHERE id % 10 = 1", more).level > 1
    merge = f"MERGE INTO {made} t USING (SELECT 12L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET id = 22"
    assert follow(session, merge, f"DELETE FROM {made} WHERE id = 10").level == 3
    assert sorted(row.id for row in session.sql(f"SELECT id FROM {made}").collect()) == [0, 2, 22]


@pytest.fixture(scope="module")
def original(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of eight rows, one with a vector that lies in a file."""
    path = tmp_path_factory.mktemp("clones") / "original one"
    make_table(session, path, "id BIGINT, v BIGINT", enableDeletionVectors="true")
    for low in (0, 8):
        frame = session.range(low, low + 8).selectExpr("id", "id AS v").coalesce(1)
        frame.write.format("delta").mode("append").save(str(path))
    session.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    return path


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.matrix) for name in RACES]
)
def test_a_statement_on_a_shallow_clone_is_rebased_as_on_any_table(
    session: SparkSession, original: Path, tmp_path: Path, name: str
) -> None:
    """Its files and vectors are those of another table, named absolutely; that table stays as it is."""
    ours, earlier, level, becomes = RACES[name]
    files = {file: file.read_bytes() for file in original.rglob("*") if file.is_file()}
    clone = f"delta.`{tmp_path / 'clone'}`"
    made = lakegate.DeltaTable.forPath(session, str(original)).clone(str(tmp_path / "clone"), isShallow=True)
    assert isinstance(made, lakegate.DeltaTable)
    ended = follow(session, ours.format(t=clone), earlier.format(t=clone))
    assert ended.level == level
    after = {id_: becomes.get(id_, id_) for id_ in range(16) if id_ != 1}
    assert rows_of(session, clone) == Counter({(id_, v): 1 for id_, v in after.items() if v is not None})
    audit(tmp_path / "clone")
    assert {file: file.read_bytes() for file in original.rglob("*") if file.is_file()} == files


@pytest.mark.slow
@pytest.mark.parametrize("how", ["clone", "cloneAtVersion", "cloneAtTimestamp"])
def test_what_a_clone_gives_is_a_table_to_work_on(session: SparkSession, tmp_path: Path, how: str) -> None:
    """Stock gives a bare object of the JVM there, which Python cannot use."""
    path, to = str(tmp_path / "t"), str(tmp_path / "clone")
    session.range(3).coalesce(1).write.format("delta").save(path)
    table = lakegate.DeltaTable.forPath(session, path)
    made_at = str(table.history().first()["timestamp"])
    at: dict[str, tuple[object, ...]] = {"clone": (), "cloneAtVersion": (0,), "cloneAtTimestamp": (made_at,)}
    made = getattr(table, how)(*at[how], to, isShallow=True)
    assert isinstance(made, lakegate.DeltaTable)
    made.delete("id = 1")
    assert sorted(row.id for row in made.toDF().collect()) == [0, 2]
    assert table.toDF().count() == 3


def rows_of(session: SparkSession, t: str) -> Counter[tuple[int, int]]:
    return Counter((row.id, row.v) for row in session.sql(f"SELECT * FROM {t}").collect())


# ---------------------------------------------------------------------------------------------------------- features

FOLLOWED_ON = {
    *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults"),
    *("changeDataFeed", "columnMapping", "deletionVectors", "rowTracking", "domainMetadata", "clustering"),
    *("inCommitTimestamp", "v2Checkpoint", "checkpointProtection", "vacuumProtocolCheck"),
    "materializePartitionColumns",
    *("timestampNtz", "typeWidening", "typeWidening-preview"),
}
"""Commits are made to follow others on such tables: they are what their actions in the log say."""
VALUES_NOT_COMPARED = {
    *("variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
    *("geospatial", "geospatial-dev"),
}
"""The same, but that an OPTIMIZE is executed again where rows that it moved were changed: values are not found by value."""
REDEFINED_BY_WRITES = {"identityColumns"}
"""An INSERT changes the table's definition: what follows one is executed again."""


def test_every_feature_of_delta_has_been_decided_on(session: SparkSession) -> None:
    """A feature that comes with another Delta is served when somebody has looked at what it makes of a commit."""
    features = scala_object(Jvm(session).root, "org.apache.spark.sql.delta.TableFeature$").allSupportedFeaturesMap()
    known = {str(feature.name()) for feature in Jvm(session).from_seq(features.values().toSeq())}
    assert len(known) > 30
    decided = [FOLLOWED_ON, VALUES_NOT_COMPARED, REDEFINED_BY_WRITES, UNSERVED_FEATURES]
    assert Counter(name for names in decided for name in names & known) == Counter(known)
    # The name that the catalog's feature had before; Delta opens no table that has a feature which it does not know.
    assert set().union(*decided) - known == {"catalogOwned-preview"}


@pytest.mark.parametrize(
    "number", [pytest.param(1, marks=pytest.mark.matrix), 2, pytest.param(3, marks=pytest.mark.matrix)]
)
def test_iceberg_compatibility_is_refused_where_it_loses(session: SparkSession, tmp_path: Path, number: int) -> None:
    """Alone such a table is written by stock Delta as always; behind another commit nothing is written."""
    t = f"delta.`{tmp_path / 't'}`"
    properties = f"'delta.enableIcebergCompatV{number}' = 'true', 'delta.columnMapping.mode' = 'name'"
    session.sql(f"CREATE TABLE {t} (id BIGINT, v BIGINT) USING delta TBLPROPERTIES ({properties})")
    assert lakegate.sql(session, f"INSERT INTO {t} VALUES (1, 1), (2, 2)").lakegate.level == 0
    with pytest.raises(UnsupportedTable, match=f"another commit came first.*feature=icebergCompatV{number} ") as raised:
        follow(session, f"DELETE FROM {t} WHERE id = 1", f"INSERT INTO {t} VALUES (3, 3)")
    assert raised.value.facts["winner_version"] == 2
    assert rows_of(session, t) == Counter([(1, 1), (2, 2), (3, 3)])


def test_a_put_that_its_store_took_for_another_writers_is_recognized(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store sends a put again whose answer was lost, it meets its own: it is not said that nothing was written."""
    t = f"delta.`{tmp_path / 't'}`"
    properties = "'delta.enableIcebergCompatV2' = 'true', 'delta.columnMapping.mode' = 'name'"
    session.sql(f"CREATE TABLE {t} (id BIGINT, v BIGINT) USING delta TBLPROPERTIES ({properties})")
    passed = Gate.run

    def taken_for_anothers(gate: Gate, work: Callable[[], object], **how: Any) -> Ran:
        commit = passed(gate, work, **how).commit
        assert isinstance(commit, Committed)
        text = (tmp_path / "t" / "_delta_log" / f"{commit.version:020d}.json").read_text()
        kept = next(action.body for action in parse(text) if action.kind == "commitInfo")
        actions = tuple(action for action in parse(text) if action.kind != "commitInfo")
        return Ran(Captured(version=kept["readVersion"], actions=actions, info=kept), None)

    monkeypatch.setattr(Gate, "run", taken_for_anothers)
    done = lakegate.sql(session, f"INSERT INTO {t} VALUES (1, 1)").lakegate
    assert (done.version, done.attempts) == (1, 1)
    assert rows_of(session, t) == Counter([(1, 1)])


CATALOG = "coordinatedCommits-preview"
"""The one of those features that this Delta sets on a table at a path."""


@pytest.mark.parametrize("way", ["publish", "stage"])
def test_a_table_whose_commits_a_catalog_makes_is_refused_before_anything_is_executed(
    session: SparkSession, tmp_path: Path, way: str
) -> None:
    """They go another way than through the gate. The feature is named."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", **{f"feature.{CATALOG}": "supported"})
    dml = statement(session, f"INSERT INTO delta.`{table}` VALUES (2, 2)")
    assert dml is not None
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsupportedTable, match=f"a catalog decides.*nothing was written.*feature={CATALOG}"):
        getattr(publisher(session), way)(dml)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_statement_does_not_rebase_onto_a_commit_that_gave_the_table_to_a_catalog(
    session: SparkSession, tmp_path: Path
) -> None:
    """Nor is it executed again: this JVM has not read the table since."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT")
    dml = statement(session, f"INSERT INTO delta.`{table}` VALUES (2, 2)")
    assert dml is not None
    staged = publisher(session).stage(dml)
    foreign_commit(table, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [CATALOG]}})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnsupportedTable, match=f"a catalog decides.*nothing was written.*feature={CATALOG}"):
        publisher(session).finish(staged)
    assert sorted(tmp_path.rglob("*")) == before


def test_manifests_for_other_engines_name_the_files_after_our_commits(session: SparkSession, tmp_path: Path) -> None:
    """After a statement in the driver, a rebased one, and a publish: `_symlink_format_manifest` is what Delta keeps it to be."""
    table = str(tmp_path / "t")
    session.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, p INT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.compatibility.symlinkFormatManifest.enabled' = 'true')"
    )
    session.range(20).selectExpr("id", "CAST(id % 2 AS INT) AS p").write.format("delta").mode("append").save(table)

    def are_equal() -> bool:
        manifests = Path(table, "_symlink_format_manifest").rglob("manifest")
        listed = {Path(line).name for manifest in manifests for line in manifest.read_text().split()}
        return listed == {Path(name).name for name in session.read.format("delta").load(table).inputFiles()}

    assert lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id = 3").lakegate.why_stock is None
    assert are_equal()
    assert (
        follow(
            session, f"DELETE FROM delta.`{table}` WHERE id = 4", f"INSERT INTO delta.`{table}` VALUES (100, 1)"
        ).level
        == 1
    )
    assert are_equal()
    with lakegate.publish(session, [table]):
        lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id = 5")
    wait_until(are_equal)


def test_a_table_that_compacts_itself_does_so_after_our_statements(session: SparkSession, tmp_path: Path) -> None:
    """Its properties `autoCompact` and `optimizeWrite`; and a time of the past reads the version of that time."""
    table = str(tmp_path / "t")
    session.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true', 'delta.autoOptimize.optimizeWrite' = 'true')"
    )
    with confs(session, {"spark.databricks.delta.autoCompact.minNumFiles": "4"}):
        for number in range(6):
            lakegate.sql(session, f"INSERT INTO delta.`{table}` SELECT id + {10 * number} FROM range(10)")
    history = session.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    assert "OPTIMIZE" in [row.operation for row in history]
    (second,) = (row.timestamp for row in history if row.version == 2)
    then = session.read.format("delta").option("timestampAsOf", str(second)).load(table)
    assert sorted(row.id for row in then.collect()) == list(range(20))
    assert session.read.format("delta").load(table).count() == 60
