"""The how-to pages on jobs that are written already: their Python is run, and their settings are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate import api
from lakegate.delta.gate import JOB_CONF, OUTSIDE_CONF, WAIT_CONF
from lakegate.delta.idempotent_writes import confs
from lakegate.settings import resolve_job
from lakegate.telemetry.ledger_days import read_ledger
from tests.docs.markdown import DOCS, fences


def run(page: str, session: SparkSession, root: Path) -> None:
    """Its blocks in order, with a folder of their own for /lake."""
    session.range(3).selectExpr("id", "'p' AS person").write.parquet(str(root / "in"))
    names: dict[str, object] = {}
    for fence in fences(DOCS / "how-to" / page):
        if fence.kind == "python":
            text = fence.text.replace("/lake", str(root))
            exec(compile("\n" * fence.line + text, page, "exec"), names)


def test_a_query_is_kept_on(spark: SparkSession, tmp_path: Path) -> None:
    """One batch, one turn."""
    run("keep-a-query-on.md", spark, tmp_path)
    assert spark.read.format("delta").load(str(tmp_path / "engagement")).count() == 3
    assert [row.outcome for row in read_ledger(tmp_path / "_lakegate")] == ["completed"]


@pytest.mark.slow
def test_a_stock_sink_takes_turns_by_configuration(spark: SparkSession, tmp_path: Path) -> None:
    """With the settings that the page gives to spark-submit."""
    page = "take-turns-by-configuration.md"
    console = next(fence.text for fence in fences(DOCS / "how-to" / page) if "spark-submit" in fence.text)
    settings = {
        key: value.replace("/lake", str(tmp_path)) for key, value in re.findall(r"--conf (\S+?)=(\S+)", console)
    }
    assert resolve_job(settings, environ={}).coordinator.url.startswith("zookeeper://")
    settings["spark.job.coordinator.url"] = f"sqlite:{tmp_path}/turns.db"
    spark.createDataFrame([(1,)], "id INT")  # so that this session is the active one, as the only one of a program is
    with confs(spark, {**settings, OUTSIDE_CONF: "refuse"}):
        try:
            run(page, spark, tmp_path)
        finally:
            api._STOCK.pop(str(spark.sparkContext.applicationId)).stop()
            for setting in (JOB_CONF, WAIT_CONF):  # the session is the job's until it ends; here others go on with it
                spark.conf.unset(setting)
    assert spark.read.format("delta").load(str(tmp_path / "engagement")).count() == 3
    assert [(row.job, row.outcome) for row in read_ledger(tmp_path / "_lakegate")] == [("Ingestion", "completed")]
