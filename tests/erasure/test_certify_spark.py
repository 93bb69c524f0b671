"""What Delta itself writes is searched as well: hidden rows, change data, predicates, statistics in checkpoints of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakegate as lg
from lakegate.config.build import files
from lakegate.erasure.certificate import Certificate
from lakegate.erasure.persons import Person
from lakegate.ops.certify import Question, certify, person, persons_of


def places(certificate: Certificate) -> set[tuple[str, str]]:
    return {(one.place, one.where) for one in certificate.found}


@pytest.mark.parametrize("policy", ["v2", "classic"])
def test_a_person_is_found_in_all_that_delta_writes_until_it_is_purged(
    session: SparkSession, tmp_path: Path, policy: str
) -> None:
    """With column mapping, a rename, a change feed and deletion vectors; after PURGE and VACUUM in the log alone."""
    path = str(tmp_path / "t")
    with_settings = {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
        "delta.checkpointPolicy": policy,
        "delta.checkpoint.writeStatsAsStruct": "true",
        "delta.deletedFileRetentionDuration": "interval 0 hours",
    }
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in with_settings.items())
    table = f"delta.`{path}`"
    session.sql(f"CREATE TABLE {table} (id BIGINT, person STRING) USING delta TBLPROPERTIES ({properties})")
    session.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'ada'), (2, 'bob'), (3, 'ben') AS t(id, person)"
    )
    session.sql(f"ALTER TABLE {table} RENAME COLUMN person TO human")
    session.sql(f"UPDATE {table} SET id = 4 WHERE human = 'bob'")
    session.sql(f"DELETE FROM {table} WHERE human = 'bob'")
    question = Question(table=path, persons=(person("human=bob"),))
    before = certify(question)
    assert before.not_looked_at == ()
    assert places(before) >= {
        ("hidden", "rows"),
        ("change data", "rows"),
        ("commit", "commitInfo: operationParameters.predicate"),
        ("commit", "add: statistics"),
    }
    session.sql(f"REORG TABLE {table} APPLY (PURGE)")
    delta_log = session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    delta_log.checkpoint()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM {table} RETAIN 0 HOURS")
    after = certify(question)
    assert after.not_looked_at == ()
    assert {place for place, _ in places(after)} <= {"commit", "checkpoint", "log"}

    assert certify(Question(table=path, persons=(person("human=nobody"),))).verdict == "clean"


def test_the_erasures_of_a_stream_are_certified(session: SparkSession, tmp_path: Path) -> None:
    """From its own request table; which names the person, as does the file that the erasure left; ledger and checkpoint do not."""
    rows = session.createDataFrame([("1", "ada"), ("2", "bob")], "id string, person string").coalesce(1)
    rows.write.parquet(str(tmp_path / "in"))
    session.createDataFrame([("bob",)], "person string").write.parquet(str(tmp_path / "delete"))
    pipeline = lg.Pipeline("people", storage=str(tmp_path / "_lakegate"))
    table = pipeline.table("people", path=str(tmp_path / "people"))
    table.append(name="Ingestion", source=files(str(tmp_path / "in")))
    table.erase(name="TTL", after="Ingestion", source=files(str(tmp_path / "delete")), match={"person": "person"})
    pipeline.run(until_idle=True, spark=session)
    persons = persons_of(pipeline.build(base_dir=str(tmp_path)), "TTL")
    assert persons == (Person((("person", "bob"),)),)
    question = Question(table=str(tmp_path / "people"), persons=persons, storage=str(tmp_path / "_lakegate"))
    certificate = certify(question)
    assert certificate.not_looked_at == ()
    assert {one.place for one in certificate.found if one.where == "rows"} <= {
        "hidden",
        "old version",
        "requests of TTL",
    }
    assert {"requests of TTL"} < {one.place for one in certificate.found}
    assert not any(
        "ledger" in one.place or "checkpoint" in one.place for one in certificate.found if "_lakegate" in one.path
    )
