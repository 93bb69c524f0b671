"""A statement that is executed again on some files leaves no scratch log behind, nor does one whose process was killed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate.delta.jvm import Jvm
from headgate.delta.overlay import ABANDONED_AFTER_S
from headgate.delta.publish import Outcome
from headgate.tables.running import publisher
from headgate.tables.sql import statement
from tests.spark.delta_tables import make_table, rows


def scratch_log(folder: Path, *, age_s: float) -> Path:
    """What a process leaves that was killed so long ago; a folder's time is that of its last file."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}\n")
    (folder / "part-0.parquet").touch()
    then_s = time.time() - age_s
    os.utime(log, (then_s, then_s))
    return log


def test_scratch_logs_of_killed_processes_are_removed_and_no_others(session: SparkSession, tmp_path: Path) -> None:
    """The next statement that needs one looks for those of a day ago; what they wrote is left to VACUUM.

    Its own is gone when it ends, and neither Delta nor the gate remembers it: a driver that runs for weeks would keep them all.
    """
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(5)).write.format("delta").mode("append").save(table)
    abandoned = scratch_log(tmp_path / "t" / "hg0123456789ab", age_s=ABANDONED_AFTER_S + 3600)
    of_another = scratch_log(tmp_path / "t" / "hgba9876543210", age_s=3600)
    no_scratch = scratch_log(tmp_path / "t" / "hg-archive", age_s=ABANDONED_AFTER_S + 3600)
    jvm, used = Jvm(session), dict[str, Any]()

    def noted(path: str) -> object:
        used[path] = jvm.delta_log(path)
        return run_on(path)

    dml = statement(session, f"UPDATE delta.`{table}` SET v = concat(v, 'b') WHERE id IN (3, 4)")
    assert dml is not None
    run_on = dml.execute_on
    assert run_on is not None
    staged = publisher(session).stage(replace(dml, execute_on=noted))
    session.sql(f"UPDATE delta.`{table}` SET v = concat(v, 'c') WHERE id = 3")
    outcome: Outcome = publisher(session).finish(staged)
    assert outcome.published.level == 3
    found = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert found == {0: "a", 1: "a", 2: "a", 3: "acb", 4: "ab"}
    assert [log.exists() for log in (abandoned, of_another, no_scratch)] == [False, True, True]
    assert (abandoned.parent / "part-0.parquet").exists()
    ((path, log),) = used.items()
    assert not (Path(path.removeprefix("file:")) / "_delta_log").exists()
    assert not jvm.delta_log(path).equals(log)
    loader = jvm.root.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    gates = jvm.root.java.lang.Class.forName("io.github.headgate.Gate", False, loader).getDeclaredField("TABLES")
    gates.setAccessible(True)
    known = [str(gate) for gate in gates.get(None).keySet()]
    assert any(table in gate for gate in known)
    assert not any(Path(path).name in gate for gate in known)


def test_vectors_below_folders_of_random_names_are_found(session: SparkSession, tmp_path: Path) -> None:
    """`delta.randomizeFilePrefixes` has Delta put vectors into folders, below that of the scratch log, too."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true", randomizeFilePrefixes="true")
    rows(session, *range(6)).write.format("delta").mode("append").save(table)
    dml = statement(session, f"UPDATE delta.`{table}` SET v = concat(v, '!') WHERE id >= 3")
    assert dml is not None
    staged = publisher(session).stage(dml)
    rows(session, 7, 8, 1).write.format("delta").mode("append").save(table)
    assert publisher(session).finish(staged).published.level == 3
    found = {row.id: row.v for row in session.read.format("delta").load(table).where("id > 2").collect()}
    assert found == dict.fromkeys([3, 4, 5, 7, 8], "a!")
