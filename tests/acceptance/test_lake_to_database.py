"""From the streams to the database: three jobs write the lake, and a sync keeps PostgreSQL equal to it while they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as compute
import pytest

from lakegate.demo.database_servers import fresh_postgres
from tests.acceptance.engagement import Source, write_spec

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "lakegate"]


def lakegate(root: Path, *arguments: str, until: int | None = None) -> tuple[int, str]:
    """Runs a command in its own process; kills it with -9 once it has reported `until` batches in the target."""
    seen = 0
    with (
        (root / f"{arguments[0]}.err").open("a") as errors,
        subprocess.Popen(
            [*COMMAND, *arguments, "--spec", str(root / "lakegate.yml"), "--output", "jsonl"],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            seen += '"BatchApplied"' in line
            if seen == until:
                os.kill(process.pid, signal.SIGKILL)
                break
    return process.returncode, (root / f"{arguments[0]}.err").read_text()[-3000:]


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_database_follows_the_lake_through_kills(engagement_data: Path, tmp_path: Path, postgres: str) -> None:
    """The sync runs concurrently with the streams, both are killed; in the end every row is as plain Python computes it."""
    source = Source(engagement_data, "rlists", rows_max=1500)
    aliases = source.tables["ingest"]["alias_id"]
    mutations = source.tables["mutation"]
    source.tables["mutation"] = mutations.filter(compute.is_in(mutations["alias_id"], aliases.combine_chunks())).slice(
        0, 60
    )
    source.write(tmp_path / "in", {"ingest": 2, "mutation": 2, "delete": 1})
    database = fresh_postgres(postgres)
    write_spec(tmp_path)
    spec = tmp_path / "lakegate.yml"
    text = spec.read_text().replace(
        'delta.enableDeletionVectors: "true"', 'delta.enableDeletionVectors: "true", delta.enableChangeDataFeed: "true"'
    )
    columns = "engagement_id text PRIMARY KEY, alias_id text, person_id text"
    database.execute(f"CREATE TABLE engagement ({columns})")
    more = f'sync:\n  crm: {{from: engagement, to: "{database.dsn}", on_schema_change: ignore}}\n'
    spec.write_text(text + more)
    streams = subprocess.Popen(
        [*COMMAND, "run", "Ingestion", "Mutation", "TTL", "--until-idle", "--together", "--spec", str(spec)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        code, told = lakegate(tmp_path, "sync", "run", "crm", until=1)
        assert code == -signal.SIGKILL, told
        streams.kill()
        _, said = streams.communicate(timeout=400)
        assert streams.returncode == -signal.SIGKILL, said[-3000:]
    finally:
        if streams.poll() is None:
            streams.kill()
            streams.wait()
    # The file as a whole: the streams do what is left, and the sync behind them follows.
    ran = subprocess.run(
        [*COMMAND, "run", "--until-idle", "--together", "--spec", str(spec), "--output", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    (report,) = json.loads(ran.stdout.splitlines()[-1])["syncs"]
    assert report["sync"] == "crm"
    found = dict(database.query("SELECT engagement_id, person_id FROM engagement"))
    assert found == source.answer()
    compared = subprocess.run(
        [*COMMAND, "sync", "verify", "crm", "--spec", str(spec)], capture_output=True, text=True, check=False
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr[-3000:]
    ((epoch, place),) = database.query("SELECT epoch, place FROM lakegate_stream")
    assert epoch == 2
    assert json.loads(place)["source"] == "delta"
