"""No value of a record reaches the ledger or a log, whatever fails over it."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakegate as lg
from lakegate.config.build import files
from lakegate.errors import InvalidRequest, LakegateError, Unavailable, summary
from tests.conftest import ROOT

VALUE = "Canary"


def casts(batch: DataFrame) -> DataFrame:
    """Fails over the value while the batch is computed: a real failed cast."""
    return batch.selectExpr("CAST(person AS BIGINT) AS person")


def parses(batch: DataFrame) -> DataFrame:
    """Fails over the value in Spark's parser, whose message quotes it."""
    return batch.sparkSession.sql(f"SELECT 1 AS person {batch.first()[0]}")


@pytest.mark.parametrize(("transform", "said"), [(parses, "PARSE_SYNTAX_ERROR"), (casts, "cannot be computed")])
@pytest.mark.every_case
def test_a_failed_request_leaves_its_condition_and_no_value(
    session: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    transform: Callable[[DataFrame], DataFrame],
    said: str,
) -> None:
    """The ledger has our sentence and Spark's condition; logs have no more."""
    table = tmp_path / "people"
    session.createDataFrame([(1,)], "person BIGINT").write.format("delta").save(str(table))
    session.createDataFrame([(VALUE,)], "person STRING").write.parquet(str(tmp_path / "gone"))
    pipeline = lg.Pipeline("people", storage=str(tmp_path / "_lakegate"))
    people = pipeline.table("people", path=str(table))
    source = files(str(tmp_path / "gone"))
    people.erase(name="TTL", source=source, match={"person": "person"})(transform)
    with caplog.at_level(logging.DEBUG, logger="lakegate"), pytest.raises(Exception, match=rf"{VALUE}|{said}"):
        pipeline.run(until_idle=True, spark=session)
    ledger = "".join(file.read_text() for file in (tmp_path / "_lakegate" / "ledger").rglob("*.jsonl"))
    logged = "".join(one.getMessage() for one in caplog.records if one.name.startswith("lakegate"))
    assert said in ledger
    assert VALUE not in ledger + logged


def test_an_error_of_ours_is_summarized_with_its_causes_condition() -> None:
    """The text of the cause is for the caller alone."""
    error = InvalidRequest("a batch cannot be computed", reason=f"[CAST_INVALID_INPUT] The value '{VALUE}'")
    error.__cause__ = ValueError(f"[CAST_INVALID_INPUT] The value '{VALUE}' cannot be cast")
    assert summary(error) == "a batch cannot be computed [CAST_INVALID_INPUT]"
    assert VALUE in str(error)


TEXTS = ("first_line", "described", "str", "repr", "known_of")
"""Functions that return the text of an error from elsewhere."""
IN_TURNS = ("delta", "rows", "spark", "streams")


def test_no_message_of_ours_quotes_an_error_of_spark() -> None:
    """In what runs in turns the text of such an error is a fact (`reason`, `detail`), which the ledger leaves out."""
    ours = {one.__name__ for one in (LakegateError, InvalidRequest, Unavailable)} | {
        "Corrupt",
        "LostTurn",
        "UnsupportedTable",
    }
    found = []
    for file in sorted(one for name in IN_TURNS for one in (ROOT / "src" / "lakegate" / name).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours and node.args:
                calls = [
                    one
                    for one in ast.walk(node.args[0])
                    if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
                ]
                names = [one for one in ast.walk(node.args[0]) if isinstance(one, ast.FormattedValue)]
                quoted = [one for one in calls if one.func.id in TEXTS]  # type: ignore[attr-defined]
                quoted += [one for one in names if isinstance(one.value, ast.Name) and one.value.id == "error"]
                found += [f"{file.name}:{node.lineno}" for _ in quoted[:1]]
    assert found == []
