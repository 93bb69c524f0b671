"""What a search finds of a person is taken away from real tables, concurrently with stock writers, and after kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate as lg
from lakegate.config.build import files
from lakegate.delta.table_log import DeltaTableLog
from lakegate.erasure.certificate import Certificate
from lakegate.erasure.completion import Step
from lakegate.ids import TableLocation
from lakegate.ops.certify import Question, certify, person
from lakegate.ops.complete import Completion
from tests.erasure import planted
from tests.erasure.written import FIELDS, Written, people

DAYS_S = 3 * 86_400
SHORT = {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.logRetentionDuration": "interval 0 hours"}
BOB = (person("person=bob"),)


def aged(session: SparkSession, folder: Path) -> None:
    """Makes all files three days older. Delta keeps the times of commits that it has seen, so it forgets them."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (file.stat().st_mtime - DAYS_S,) * 2)
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


class Lake:
    """A table from which `bob` was erased, whose erasure was lifted then, so that nobody needs the key."""

    def __init__(self, session: SparkSession, root: Path, *ops: str, policy: str = "classic") -> None:
        self.session, self.root = session, root
        properties = {
            "delta.enableDeletionVectors": "true",
            "delta.enableChangeDataFeed": "true",
            "delta.checkpointInterval": "1000",
            "delta.checkpointPolicy": policy,
            **SHORT,
        }
        self.pipeline = lg.Pipeline("people", storage=str(root / "_lakegate"))
        table = self.pipeline.table("people", path=str(root / "people"), properties=properties)
        rows = [("1", "bob"), ("2", "cyd"), ("3", "dan")]
        session.createDataFrame(rows, "id string, person string").coalesce(1).write.parquet(str(root / "in"))
        table.append(name="Ingestion", source=files(str(root / "in")))
        table.erase(
            name="TTL",
            after="Ingestion",
            source=files(str(root / "gone" / "*"), format="parquet", schema="person STRING, op STRING"),
            match={"person": "person"},
            lift_when="op = 'lift'",
        )
        for op in ops:
            self.asks(op)

    def asks(self, op: str) -> None:
        """A request comes, and the streams run."""
        rows = self.session.createDataFrame([("bob", op)], "person string, op string")
        rows.write.parquet(str(self.root / "gone" / op))
        self.pipeline.run(until_idle=True, spark=self.session)

    @property
    def question(self) -> Question:
        return Question(table=str(self.root / "people"), persons=BOB, storage=str(self.root / "_lakegate"))

    def completion(self) -> Completion:
        spec = self.pipeline.build(base_dir=str(self.root))
        return Completion(self.question, spec, spec.tables["people"], lambda done, total: None)

    def certificate(self) -> Certificate:
        return certify(self.question)

    def ids(self) -> list[str]:
        frame = self.session.read.format("delta").load(str(self.root / "people"))
        return sorted(row.id for row in frame.collect())

    def comes(self, id_: str, name: str) -> None:
        """A record comes, and the streams run."""
        row = self.session.createDataFrame([(id_, name)], "id string, person string")
        row.write.mode("append").parquet(str(self.root / "in"))
        self.pipeline.run(until_idle=True, spark=self.session)

    def write(self, id_: str) -> None:
        """A stock writer appends a row, in a thread of its own: this one may act as a job in its turn."""
        row = self.session.createDataFrame([(id_, "eve")], "id string, person string")
        with ThreadPoolExecutor() as pool:
            pool.submit(row.write.format("delta").mode("append").save, str(self.root / "people")).result()


def test_all_that_is_found_of_a_lifted_erasure_is_gone_in_two_runs(session: SparkSession, tmp_path: Path) -> None:
    """The second a day later; a stock writer commits before each step, another's files wait for their commit: no row is lost."""
    lake = Lake(session, tmp_path, "erase", "lift")
    people_ = tmp_path / "people"
    waiting = next(people_.glob("part-*.parquet"))
    uncommitted = people_ / "part-of-a-running-write.parquet"
    uncommitted.write_bytes(waiting.read_bytes())
    done: list[tuple[str, str]] = []

    def before(step: Step) -> None:
        done.append((Path(step.table).name, step.action))
        lake.write(f"w{len(done)}")

    found = {one.place for one in lake.certificate().found}
    assert found >= {"hidden", "change data", "commit", "orphan", "requests of TTL"}
    ledger = tmp_path / "_lakegate" / "ledger" / "left.jsonl"
    ledger.write_text('{"reason": "cannot cast bob"}\n')
    (tmp_path / "_lakegate" / "report.html").write_text("<p>bob</p>")
    lake.completion().carry_out(before)
    assert ledger.read_text() == '{"reason": "cannot cast ***"}\n'
    assert [action for name, action in done if name == "people"] == ["purge", "vacuum", "checkpoint"]
    expected = sorted(["2", "3", *(f"w{number + 1}" for number in range(len(done)))])
    assert {"delete requests", "mask texts"} < {action for _, action in done}
    assert lake.ids() == expected
    assert uncommitted.exists()
    stays = lake.completion().plan()
    assert stays.steps == ()
    assert any("running write" in left.why for left in stays.left)
    assert any("checkpoint" in left.why or "versions below" in left.why for left in stays.left)

    aged(session, tmp_path)
    lake.completion().carry_out()
    certificate = lake.certificate()
    assert (certificate.verdict, certificate.found) == ("clean", ())
    assert lake.ids() == expected
    assert lake.completion().plan().steps == lake.completion().plan().left == ()


@pytest.mark.slow
def test_a_standing_erasure_keeps_its_key_and_nothing_else(session: SparkSession, tmp_path: Path) -> None:
    """It says so; and rows of the person that come later are still kept out, without the old log."""
    lake = Lake(session, tmp_path, "erase", "again")
    steps: list[tuple[str, str]] = []
    for _ in range(2):
        lake.completion().carry_out(lambda step: steps.append((Path(step.table).name, step.action)))
        aged(session, tmp_path)
    lake.completion().carry_out()
    assert ("TTL", "delete requests") in steps  # the first one, which the second one followed
    plan = lake.completion().plan()
    assert plan.steps == ()
    assert [left.why for left in plan.left if "lift_when" in left.why]
    assert all("/requests/TTL" in left.table for left in plan.left)
    lake.comes("9", "bob")
    lake.comes("8", "eve")
    assert lake.ids() == ["2", "3", "8"]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.slow
def test_a_process_that_ends_before_any_step_leaves_the_same_rows(session: SparkSession, tmp_path: Path) -> None:
    """The next run goes on, and ends clean; with checkpoints in several files, of which the first is deleted with its parts."""
    lake = Lake(session, tmp_path, "erase", policy="v2")
    DeltaTableLog(session).checkpoint(TableLocation(str(tmp_path / "people")))
    lake.comes("7", "gus")
    lake.asks("lift")
    old = list((tmp_path / "people" / "_delta_log" / "_sidecars").glob("*.parquet"))
    assert len(old) == 1
    ids = ["2", "3", "7"]

    def before(step: Step) -> None:
        if (step.table, step.action) not in met:
            met.add((step.table, step.action))
            raise Killed

    met: set[tuple[str, str]] = set()
    ended = False
    for _ in range(20):
        try:
            lake.completion().carry_out(before)
            assert lake.ids() == ids
            if ended:
                break
            ended = True
            aged(session, tmp_path)
        except Killed:
            assert lake.ids() == ids
    assert {action for _, action in met} == {"delete requests", "purge", "vacuum", "checkpoint", "clean log"}
    assert lake.certificate().verdict == "clean"
    assert not old[0].exists()


FILE = """\
name: p
storage: ./_lakegate
tables:
  t: {path: ./t}
streams:
  In: {table: t, source: {files: ./in, schema: "id BIGINT, person STRING"}, append: {}}
"""


@pytest.mark.slow
def test_the_command_goes_on_after_a_kill(session: SparkSession, tmp_path: Path) -> None:
    """Killed between two steps, with its turn: the next run does the rest; on a table that refuses commits without a turn."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    table = Written(tmp_path / "t")
    table.define(*FIELDS, **SHORT)
    table.commit(table.add("a.parquet", people("ada", "eve"), stats={"numRecords": 2}))
    planted.orphan(table)
    planted.predicate(table)
    aged(session, tmp_path)
    adopt = [sys.executable, "-m", "lakegate", "adopt", "t"]
    subprocess.run(adopt, cwd=tmp_path, capture_output=True, timeout=300, check=True)
    command = [sys.executable, "-m", "lakegate", "erasure", "complete", "--table", "t", "--person", "person=bob"]
    with subprocess.Popen([*command, "--yes"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert any(line.startswith("write a checkpoint") for line in running.stdout)
        running.kill()
    assert not (table.root / "part-unknown.parquet").exists()
    ran = subprocess.run([*command, "--yes"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, "left for the next run" in ran.stdout, "stays" in ran.stdout) == (4, False, True)
    assert list(table.log.glob("*.checkpoint.parquet"))
    frame = session.read.format("delta").load(str(table.root))
    assert sorted(row.person for row in frame.collect()) == ["ada", "eve"]


def escaped(table: Written) -> None:
    table.file("id=a%3Ab c/ä#?.parquet", people("bob"))


PLACES: dict[Callable[[Written], None], int] = {
    planted.old_version: 1,
    planted.change_data: 1,
    planted.orphan: 1,
    planted.folder: 1,
    escaped: 1,
    planted.removed_partition_value: 2,
    planted.path_in_the_log: 2,
    planted.predicate: 2,
    planted.user_metadata: 2,
    planted.last_checkpoint: 1,
}
"""Place → runs, each three days after the one before: what is in the log goes a day after a checkpoint."""


@pytest.mark.slow
def test_each_place_is_emptied_by_itself(session: SparkSession, tmp_path: Path) -> None:
    """Found before, clean afterwards, with the same rows."""
    failed = []
    for plant, runs in PLACES.items():
        root = tmp_path / plant.__name__
        table = Written(root / "t")
        table.define(*FIELDS, **SHORT)
        table.commit(table.add("a.parquet", people("ada", "eve"), stats={"numRecords": 2}))
        plant(table)
        pipeline = lg.Pipeline("p", storage=str(root / "_lakegate"))
        target = pipeline.table("t", path=str(root / "t"))
        target.append(name="In", source=files(str(root / "in"), schema="id BIGINT, person STRING"))
        spec = pipeline.build(base_dir=str(root))
        question = Question(table=str(root / "t"), persons=BOB, storage=str(root / "_lakegate"))
        assert certify(question).verdict == "found", plant
        for _ in range(runs):
            aged(session, root)
            Completion(question, spec, spec.tables["t"], lambda done, total: None).carry_out()
        names = sorted(row.person for row in session.read.format("delta").load(str(root / "t")).collect())
        certificate = certify(question)
        if (names, certificate.verdict) != (["ada", "eve"], "clean"):
            failed.append((plant.__name__, names, [(one.place, one.where) for one in certificate.found]))
    assert failed == []
