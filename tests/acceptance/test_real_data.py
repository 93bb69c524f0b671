"""The main job on real records: three streams end in the data sets' own answers, however they are cut, mixed and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakegate.streams.pipeline_stream import StreamWork
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.ledger_days import read_ledger
from tests.acceptance.engagement import (
    STREAMS,
    Source,
    check_every_version,
    content,
    digest,
    drop,
    pipeline,
    write_spec,
)

PREFIX = 5_000


@pytest.mark.matrix
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("rlists", {"ingest": 4, "mutation": 2, "delete": 1}),
        ("kafka", {"ingest": 3, "delete": 1}),
        ("mep", {"ingest": 2}),
        pytest.param("sympy", {"ingest": 6, "mutation": 4, "delete": 2}, marks=pytest.mark.matrix),
        pytest.param("git", {"ingest": 10, "mutation": 4, "delete": 2}, marks=pytest.mark.matrix),
    ],
)
def test_whole_sources_end_in_the_answers_of_the_data_set(
    spark: SparkSession, engagement_data: Path, tmp_path: Path, name: str, counts: dict[str, int]
) -> None:
    """All streams at once, in turns: every row and every person as the data set says, or a plain replay of it."""
    source = Source(engagement_data, name)
    expected = json.loads((engagement_data / "expected.json").read_text()).get(name)
    source.write(tmp_path / "in", counts)
    pipeline(tmp_path, tuple(counts)).run(until_idle=True, spark=spark)
    rows = content(spark, tmp_path)
    if expected is None:
        assert sorted(rows) == sorted(source.answer().items())
    else:
        assert len(rows) == expected["final_rows"]
        assert digest(rows) == expected["final_sha256"]


@pytest.mark.matrix
@pytest.mark.data
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.matrix), pytest.param(3, marks=pytest.mark.matrix)]
)
def test_micro_batches_in_any_interleaving_give_the_same_table(
    spark: SparkSession, engagement_data: Path, tmp_path: Path, seed: int
) -> None:
    """Each stream's files come in order, the streams mixed at random; no version has an id twice or an erased person."""
    source = Source(engagement_data, "rlists", PREFIX)
    parts = {kind: source.parts(kind, count) for kind, count in (("ingest", 3), ("mutation", 2), ("delete", 1))}
    order = [kind for kind, cut in parts.items() for _ in cut]
    random.Random(seed).shuffle(order)
    # The first file of every folder is there from the start: without one there is no schema to read.
    taken = dict.fromkeys(parts, 0)
    for kind in parts:
        (tmp_path / "in" / kind).mkdir(parents=True)
    streams = pipeline(tmp_path, is_ordered=False)
    for kind in order:
        drop(tmp_path / "in", kind, taken[kind], parts[kind][taken[kind]])
        taken[kind] += 1
        streams.run(STREAMS[kind], once=True, spark=spark)
    present = tuple(kind for kind in parts if taken[kind])
    assert present == tuple(parts)
    streams.run(until_idle=True, spark=spark)
    assert dict(content(spark, tmp_path)) == source.answer(), f"seed {seed}, order {order}"
    check_every_version(spark, tmp_path)


@pytest.mark.matrix
@pytest.mark.data
def test_batches_computed_concurrently_give_the_same_table(
    spark: SparkSession, engagement_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coverage `publish`, several batches for each stream: a batch computed before its turn meets concurrent commits.

    Each batch was worked on before it had the turn, some while another had it; and the turns go in the stated order.
    """
    source = Source(engagement_data, "rlists", PREFIX)
    source.write(tmp_path / "in", {"ingest": 3, "mutation": 2, "delete": 1})
    real, worked = StreamWork.stage, list[tuple[str, int, float, float]]()

    def stage(self: StreamWork, batch: DataFrame, batch_id: int, **more: Any) -> None:
        begun_s = time.time()
        real(self, batch, batch_id, **more)
        if self.is_computed_ahead:
            worked.append((self._spec.name, batch_id, begun_s * 1000, time.time() * 1000))

    monkeypatch.setattr(StreamWork, "stage", stage)
    pipeline(tmp_path, ahead=True).run(until_idle=True, spark=spark)
    assert dict(content(spark, tmp_path)) == source.answer()
    check_every_version(spark, tmp_path)
    turns = sorted(read_ledger(tmp_path / "_lakegate", "L"), key=lambda turn: turn.granted_at_ms or 0)
    turns = [turn for turn in turns if turn.batches is not None]
    assert [turn.job for turn in turns] == ["Ingestion", "Mutation", "TTL", "Ingestion", "Mutation", "Ingestion"]
    ended = {(job, batch): end_ms for job, batch, _, end_ms in worked}
    for turn in turns:
        assert turn.batches is not None
        assert turn.granted_at_ms is not None
        assert ended[turn.job, turn.batches[0]] <= turn.granted_at_ms + 1
        if turn.job == "Mutation" and turn.batches[0] > 0:  # the first one came before there was a table
            files = written_by(turn, "requests/Mutation")
            assert files
            assert min(files) < turn.granted_at_ms, "its requests were written before it"
    assert any(
        turn.job != job and begun_ms < turn.released_at_ms and end_ms > (turn.granted_at_ms or 0)
        for turn in turns
        for job, _, begun_ms, end_ms in worked
    ), "no job worked during another's turn"


def written_by(turn: TurnEnded, table: str) -> list[int]:
    """Returns when the files were written (ms) that the turn added to a table, named by the end of the table's path."""
    found = []
    for path, versions in turn.versions.items():
        for version in versions if path.endswith(table) else ():
            lines = Path(path, "_delta_log", f"{version:020}.json").read_text().splitlines()
            found += [json.loads(line)["add"]["modificationTime"] for line in lines if line.startswith('{"add"')]
    return found


@pytest.mark.matrix
@pytest.mark.data
def test_requests_that_come_before_their_rows_give_the_same_table(
    spark: SparkSession, engagement_data: Path, tmp_path: Path
) -> None:
    """Mutations and erasures first, on a table that is empty; the rows follow them when they come."""
    source = Source(engagement_data, "rlists", PREFIX)
    source.write(tmp_path / "in", {"ingest": 2, "mutation": 1, "delete": 1})
    streams = pipeline(tmp_path, is_ordered=False)
    streams.run("Mutation", once=True, spark=spark)
    streams.run("TTL", once=True, spark=spark)
    streams.run("Ingestion", once=True, spark=spark)
    streams.run(until_idle=True, spark=spark)
    assert dict(content(spark, tmp_path)) == source.answer()


@pytest.mark.slow
@pytest.mark.data
def test_records_that_come_again_in_other_files_are_kept_once(
    spark: SparkSession, engagement_data: Path, tmp_path: Path
) -> None:
    """`on_duplicate: keep_first`: the same records, cut otherwise, in files of other names, change nothing."""
    source = Source(engagement_data, "rlists", 2_000)
    source.write(tmp_path / "in", {"ingest": 2})
    streams = pipeline(tmp_path, ("ingest",), key=["engagement_id"], on_duplicate="keep_first")
    streams.run(once=True, spark=spark)
    before = content(spark, tmp_path)
    for number, part in enumerate(source.parts("ingest", 3)):
        drop(tmp_path / "in", "ingest", 100 + number, part)
    streams.run(once=True, spark=spark)
    assert content(spark, tmp_path) == before
    assert len(before) == 2_000


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [1, 4])
def test_a_job_killed_at_any_point_loses_and_doubles_nothing(
    spark: SparkSession, engagement_data: Path, tmp_path: Path, kills: int
) -> None:
    """kill -9 of the process of all three streams after a random event, once or several times; then a run to the end."""
    source = Source(engagement_data, "rlists", PREFIX)
    source.write(tmp_path / "in", {"ingest": 4, "mutation": 2, "delete": 1})
    write_spec(tmp_path)
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(kills):
        run_and_kill(tmp_path, after_events=chance.randint(1, 16))
    code, output = run_and_kill(tmp_path, after_events=None)
    assert code == 0, f"seed {seed}: {output}"
    assert dict(content(spark, tmp_path)) == source.answer(), f"seed {seed}"
    check_every_version(spark, tmp_path)


def run_and_kill(root: Path, *, after_events: int | None) -> tuple[int, str]:
    """Runs all streams in one process until idle; kills it after so many events, its JVM ends by itself."""
    command = [sys.executable, "-m", "lakegate", "run", "--until-idle", "--together", "--output", "jsonl"]
    lines: list[str] = []
    with (
        (root / "stderr.txt").open("a") as stderr,
        subprocess.Popen(
            [*command, "--spec", str(root / "lakegate.yml")], stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if '"event"' in line:
                lines.append(line)
                if after_events is not None and len(lines) >= after_events:
                    os.kill(process.pid, signal.SIGKILL)
                    break
    return process.returncode, "".join(lines[-20:]) + (root / "stderr.txt").read_text()[-3000:]
