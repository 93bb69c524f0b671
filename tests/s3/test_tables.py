"""Whole tables on S3: statements of two drivers on the same rows, and streams whose table, source and checkpoint lie there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.aws_server import AwsServer
from headgate.testing.log_store_jvm import settings_for
from tests.conftest import FAST_CONF

pytestmark = pytest.mark.spark
STATEMENTS = 2
ROWS = 20
STATING = f"""
table, own, statements = "s3a://lake/two-drivers", int(sys.argv[2]), {STATEMENTS}
if own == 1:
    spark.sql(f"CREATE TABLE delta.`{{table}}` (k INT, v LONG) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    frame = spark.createDataFrame([(k, 1) for k in range({ROWS})], "k INT, v LONG").coalesce(2)
    frame.write.format("delta").mode("append").save(table)
print("ready", flush=True)
sys.stdin.readline()
for n in range(statements):
    headgate.sql(spark, f"UPDATE delta.`{{table}}` SET v = v * 2 + {{own}} WHERE k % 4 <> {{n}}")
    frame = spark.createDataFrame([(1000 * own + n, 0)], "k INT, v LONG").coalesce(1)
    frame.write.format("delta").mode("append").save(table)
print("end", flush=True)
sys.stdin.readline()
commits = spark.sql(f"DESCRIBE HISTORY delta.`{{table}}`").collect()
print(json.dumps([[row.version, row.operation, row.operationParameters.get("predicate")] for row in commits]), flush=True)
at = lambda version: spark.read.format("delta").option("versionAsOf", version).load(table).collect()
print(json.dumps([[[row.k, row.v] for row in at(version)] for version in range(2 + 4 * statements)]), flush=True)
"""
STREAMING = """
storage, source = sys.argv[2], headgate.files("s3a://lake/in", format="json", schema="id BIGINT")
made = headgate.Pipeline("p", storage=storage)
table = made.table("people", path="s3a://lake/people", lock="L")
table.append(name="Ingestion", source=source, checkpoint="s3a://lake/checkpoints/Ingestion", max_rows_per_batch=1)
print("ready", flush=True)
for line in sys.stdin:
    made.run(until_idle=True, spark=spark)
    rows = spark.read.format("delta").load("s3a://lake/people").collect()
    print(json.dumps(sorted(row.id for row in rows)), flush=True)
"""


class Driver:
    """A Spark driver that runs one of these programs on the server."""

    def __init__(self, program: str, aws: AwsServer, log: Path, *arguments: str) -> None:
        conf = {**FAST_CONF, **{f"spark.hadoop.{key}": value for key, value in settings_for(aws).items()}}
        start = "import json, sys\nimport headgate\n"
        start += 'spark = headgate.session("driver", s3=True, conf=json.loads(sys.argv[1]))\n'
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", start + program, json.dumps(conf), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def go(self) -> None:
        """Lets it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def said(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        assert line, self._log.read_text()[-3000:]
        return line

    def end(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.communicate()


def test_statements_of_two_drivers_are_their_serial_replay(aws: AwsServer, tmp_path: Path) -> None:
    """Updates that do not commute, of the same rows, beside stock appends: the rows are those of the log's order."""
    drivers = [Driver(STATING, aws, tmp_path / f"{own}.log", str(own)) for own in (1, 2)]
    try:
        assert [driver.said() for driver in drivers] == ["ready", "ready"]
        for driver in drivers:
            driver.go()
        assert [driver.said() for driver in drivers] == ["end", "end"]
        drivers[0].go()
        commits, versions = sorted(json.loads(drivers[0].said())), json.loads(drivers[0].said())
    finally:
        for driver in drivers:
            driver.end()
    assert [version for version, _, _ in commits] == list(range(2 + 4 * STATEMENTS))
    rows = dict.fromkeys(range(ROWS), 1)
    assert dict(versions[1]) == rows
    done: list[tuple[int, int]] = []
    for version, operation, predicate in commits[2:]:
        found = dict(versions[version])
        if operation == "UPDATE":
            left_out = next(n for n in range(STATEMENTS) if predicate.rstrip(')"]').endswith(f" {n}"))
            before = {k: v for k, v in rows.items() if k % 4 != left_out}
            own = found[1 if left_out != 1 else 2] - 2 * before[1 if left_out != 1 else 2]
            done.append((own, left_out))
            rows |= {k: 2 * v + own for k, v in before.items()}
        else:
            (added,) = found.keys() - rows.keys()
            rows[added] = 0
        assert found == rows, f"version {version}"
    assert sorted(done) == [(own, n) for own in (1, 2) for n in range(STATEMENTS)]


def test_streams_whose_table_source_and_checkpoint_lie_on_s3(aws: AwsServer, s3: Any, tmp_path: Path) -> None:
    """Each record once, over a kill -9; batches are planned by conditional puts; the note beside the table names the store."""
    for n in range(2):
        s3.put_object(Bucket="lake", Key=f"in/{n}.json", Body=f'{{"id": {n}}}\n'.encode())
    first = Driver(STREAMING, aws, tmp_path / "first.log", str(tmp_path / "_headgate"))
    try:
        assert first.said() == "ready"
        first.go()
        assert json.loads(first.said()) == [0, 1]
    finally:
        first.end()
    s3.put_object(Bucket="lake", Key="in/2.json", Body=b'{"id": 2}\n')
    second = Driver(STREAMING, aws, tmp_path / "second.log", str(tmp_path / "_headgate"))
    try:
        assert second.said() == "ready"
        second.go()
        assert json.loads(second.said()) == [0, 1, 2]
    finally:
        second.end()
    note = json.loads(s3.get_object(Bucket="lake", Key="people/_headgate/table.json")["Body"].read())
    assert (note["lock"], note["log_store"]) == ("L", "conditional")
    puts = [one for one in aws.requests() if one.kind == "PUT" and "checkpoints/Ingestion/offsets/" in one.key]
    planned = [one for one in puts if one.key[-1].isdigit()]
    assert len(planned) == 2
    assert all(one.is_conditional for one in planned)
