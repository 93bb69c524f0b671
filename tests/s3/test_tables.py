"""Whole tables on S3: statements of two drivers on the same rows, and streams whose table, source and checkpoint lie there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.aws_server import AwsServer, InjectedFault
from lakegate.spark.source_files import far_listing
from tests.s3.drivers import Driver

pytestmark = pytest.mark.spark
ROWS = 20
LATE_MS = 20_000
STATING = f"""
table, own, statements, levels = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), []
spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", str(own))
if own == 1:
    spark.sql(f"CREATE TABLE delta.`{{table}}` (k INT, v LONG) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    frame = spark.createDataFrame([(k, 1) for k in range({ROWS})], "k INT, v LONG").coalesce(2)
    frame.write.format("delta").mode("append").save(table)
for n in range(statements):
    print("ready", flush=True)
    sys.stdin.readline()
    done = lakegate.sql(spark, f"UPDATE delta.`{{table}}` SET v = v * 2 + {{own}} WHERE k % 4 <> {{n}}")
    levels.append(done.lakegate.level)
    frame = spark.createDataFrame([(1000 * own + n, 0)], "k INT, v LONG").coalesce(1)
    frame.write.format("delta").mode("append").save(table)
print(json.dumps(levels), flush=True)
sys.stdin.readline()
commits = spark.sql(f"DESCRIBE HISTORY delta.`{{table}}`").collect()
said = [[row.version, row.operation, row.operationParameters.get("predicate"), int(row.userMetadata)] for row in commits]
rows = [[row.k, row.v] for row in spark.read.format("delta").load(table).collect()]
print(json.dumps([sorted(said), sorted(rows)]), flush=True)
"""
STREAMING = """
from lakegate.ops.inspection import verify_pipeline
storage, source = sys.argv[2], lakegate.files("s3a://lake/in", format="json", schema="id BIGINT")
made = lakegate.Pipeline("p", storage=storage)
table = made.table("people", path="s3a://lake/people", lock="L")
table.append(name="Ingestion", source=source, checkpoint="s3a://lake/checkpoints/Ingestion", max_rows_per_batch=1)
print("ready", flush=True)
for line in sys.stdin:
    (report,) = made.run(until_idle=True, spark=spark).values()
    rows = spark.read.format("delta").load("s3a://lake/people").collect()
    verified = [one.what for one in verify_pipeline(made.build(base_dir="/")).violations]
    print(json.dumps([sorted(row.id for row in rows), report.passed_over, verified]), flush=True)
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("log_store", "statements"), [("conditional", 1), pytest.param("dynamodb", 1, marks=pytest.mark.matrix)]
)
def test_statements_of_two_drivers_are_their_serial_replay(
    aws: AwsServer, tmp_path: Path, log_store: str, statements: int
) -> None:
    """Updates of the same rows that do not commute, concurrently with stock appends: the rows are those of the log's order."""
    table = f"s3a://lake/two-drivers-{log_store}"
    # The first of the two commits late, so the other always commits before it, however the machine shares its cores.
    kind = "PUT" if log_store == "conditional" else "PutItem"
    aws.fail(InjectedFault("delay", kind=kind, key=r"/0{19}2\.json", delay_ms=LATE_MS))
    drivers = [
        Driver(STATING, aws, tmp_path / f"{own}.log", table, str(own), str(statements), log_store=log_store)
        for own in (1, 2)
    ]
    try:
        for _ in range(statements):
            assert [driver.said() for driver in drivers] == ["ready", "ready"]
            for driver in drivers:
                driver.go()
        levels = [level for driver in drivers for level in json.loads(driver.said())]
        drivers[0].go()
        commits, found = json.loads(drivers[0].said())
    finally:
        for driver in drivers:
            driver.end()
    assert max(levels) > 0, "no statement was rebased: the drivers never met"
    entries = [one for one in aws.requests() if one.kind == "PutItem" and one.is_conditional]
    assert bool(entries) == (log_store == "dynamodb")
    assert [version for version, *_ in commits] == list(range(2 + 4 * statements))
    rows, updates, appends = dict.fromkeys(range(ROWS), 1), list[tuple[int, int]](), {1: 0, 2: 0}
    for _, operation, predicate, own in commits[2:]:
        if operation == "UPDATE":
            left_out = next(n for n in range(statements) if predicate.rstrip(')"]').endswith(f" {n}"))
            updates.append((own, left_out))
            rows |= {k: 2 * v + own for k, v in rows.items() if k % 4 != left_out}
        else:
            rows[1000 * own + appends[own]] = 0
            appends[own] += 1
    assert sorted(map(list, rows.items())) == found
    assert sorted(updates) == [(own, n) for own in (1, 2) for n in range(statements)]


@pytest.mark.slow
def test_streams_whose_table_source_and_checkpoint_lie_on_s3(aws: AwsServer, s3: Any, tmp_path: Path) -> None:
    """Each record once, over a kill -9; batches are planned by conditional puts; the note next to the table names the store.

    Files of the source that are not read, or not as they are now, are named.
    """
    for n, name in enumerate(["0", "a b%20c%", "_hidden"]):
        s3.put_object(Bucket="lake", Key=f"in/{name}.json", Body=f'{{"id": {n}}}\n'.encode())
    s3.put_object(Bucket="lake", Key="in/zero.json", Body=b"")
    first = Driver(STREAMING, aws, tmp_path / "first.log", str(tmp_path / "_lakegate"))
    try:
        assert first.said() == "ready"
        first.go()
        rows, (hidden, empty), verified = json.loads(first.said())
        assert (rows, verified) == ([0, 1], [])
        assert "1 file of the source: hidden" in hidden
        assert "s3a://lake/in/_hidden.json" in hidden
        assert "s3a://lake/in/zero.json" in empty
    finally:
        first.end()
    for name in ("2", "0"):
        s3.put_object(Bucket="lake", Key=f"in/{name}.json", Body=b'{"id": 2}\n')
    second = Driver(STREAMING, aws, tmp_path / "second.log", str(tmp_path / "_lakegate"))
    try:
        assert second.said() == "ready"
        second.go()
        rows, (rewritten, *_), verified = json.loads(second.said())
        assert rows == [0, 1, 2]
        assert "1 file of the source: rewritten" in rewritten
        assert "s3a://lake/in/0.json" in rewritten
        assert verified == [rewritten]
    finally:
        second.end()
    note = json.loads(s3.get_object(Bucket="lake", Key="people/_lakegate/table.json")["Body"].read())
    assert (note["lock"], note["log_store"]) == ("L", "conditional")
    puts = [one for one in aws.requests() if one.kind == "PUT" and "checkpoints/Ingestion/offsets/" in one.key]
    planned = [one for one in puts if one.key[-1].isdigit()]
    assert len(planned) == 2
    assert all(one.is_conditional for one in planned)


@pytest.mark.slow
def test_a_source_is_listed_without_permission_to_list_its_parent(
    aws: AwsServer, s3: Any, jvm: Any, hadoop: Any
) -> None:
    """Rights that are given by prefix: whether the folder above is a Delta table is then not known."""
    s3.put_object(Bucket="lake", Key="closed/in/a.json", Body=b"{}")
    s3.put_object(Bucket="lake", Key="closed/_delta_log/0", Body=b"")
    source, bulk = "s3a://lake/closed/in", jvm.io.github.lakegate.Bulk
    assert far_listing(bulk.listing(source, hadoop)).tables == ("s3a://lake/closed",)
    aws.fail(
        InjectedFault(
            "error_before", key="_delta_log", times=None, status=403, code="AccessDenied", message="Access Denied"
        )
    )
    found = far_listing(bulk.listing(source, hadoop))
    assert (list(found.files), found.tables) == ([f"{source}/a.json"], ())
