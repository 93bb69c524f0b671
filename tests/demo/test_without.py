"""The jobs without turns are fair: one after another they give exactly the right table. Alone they have no fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.demo.expected import COLUMNS, compare, replay, rows_of
from lakegate.demo.generator import generate
from lakegate.demo.lake import CAREFUL, INGESTION, JOBS, MUTATION, TTL, fill, open_lake
from lakegate.demo.records import Cut
from lakegate.demo.without import Plain


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "order",
    [(INGESTION, MUTATION, TTL), pytest.param((TTL, MUTATION, INGESTION), marks=pytest.mark.matrix)],
)
def test_one_after_another_the_jobs_without_turns_are_right(
    session: SparkSession, tmp_path: Path, order: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests first or records first: the table is the replay's. What goes wrong in the demo comes from running at once."""
    inputs = generate(3, 200)
    with open_lake(tmp_path) as lake:
        fill(lake, inputs, Cut(ingest=2, mutation=2, delete=1))
        jobs = {job: Plain(job, lake, session, CAREFUL) for job in JOBS}
        for job in JOBS:
            jobs[job].prepare()
        for job in order:
            assert jobs[job].run(), capsys.readouterr().err
        final = session.read.format("delta").load(lake.table_without(CAREFUL)).select(*COLUMNS).toArrow()
    expected = replay(inputs)
    faults = compare(expected, rows_of(final), brought=inputs.engagements["engagement_id"].to_pylist())
    assert not any(faults.values()), faults
    assert len(expected) < 200  # somebody was erased
