"""What Delta itself writes is searched as well: hidden rows, change data, predicates, statistics in checkpoints of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.erasure.certificate import Certificate
from lakegate.ops.certify import Question, certify, person


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
