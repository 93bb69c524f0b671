"""The JVM ends in the middle of a commit: nobody says that nothing was written, and nobody writes twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakegate.ids import TableLocation
from tests.delta.delta_tables import commit_paths

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLED = """
import os, signal, sys
from dataclasses import replace
import lakegate
from lakegate.delta.jvm import CALL_ERRORS, Jvm
from lakegate.errors import CommitInDoubt, LakegateError
from lakegate.rows.committer import publisher
from lakegate.rows.sql import statement

table, when = sys.argv[1:]
spark = lakegate.session("killed", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
spark.range(10).write.format("delta").save(table)
insert = f"INSERT INTO delta.`{table}` VALUES (77)"
jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
commit, sql = Jvm.commit, spark.sql

def kill():
    os.kill(jvm, signal.SIGKILL)
    # Its parent is the script that has started it.
    while "java" in open(f"/proc/{jvm}/comm").read() and ") Z" not in open(f"/proc/{jvm}/stat").read():
        pass

def put_and_killed(*given, **more):
    if when != "before the put":
        commit(*given, **more)
    kill()
    return commit(*given, **more)  # as py4j does whose connection ended

def executed_and_killed():
    result = sql(insert)
    kill()
    return result if "returned" in when else sql(insert)

try:
    dml = statement(spark, insert)
    if when.startswith("stock"):
        publisher(spark).publish(replace(dml, execute=executed_and_killed))
    elif when == "while it is staged":
        publisher(spark).stage(replace(dml, execute=lambda: (kill(), sql(insert))))
    else:
        staged = publisher(spark).stage(dml)
        Jvm.commit = put_and_killed
        publisher(spark).finish(staged)
except CommitInDoubt as error:
    print("in doubt:", error)
except LakegateError as error:
    print("error:", error)
except CALL_ERRORS as error:
    print("raised:", type(error).__name__, *getattr(error, "__notes__", ()))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("when", "expected", "commits"),
    [
        ("after the put", "in doubt: ", 2),
        ("before the put", "in doubt: ", 1),
        ("stock's commit was made", "in doubt: ", 2),
        ("stock's statement has returned", "in doubt: ", 2),
        ("while it is staged", "raised: ", 1),
    ],
)
def test_a_jvm_that_dies_leaves_a_doubt_where_there_is_one(
    tmp_path: Path, when: str, expected: str, commits: int
) -> None:
    """`kill -9` of the JVM; perhaps only its answer is lost. A staged commit is never put, and leaves no doubt."""
    table = tmp_path / "t"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(table), when], capture_output=True, text=True, timeout=180, check=False
    )
    assert expected in run.stdout, (run.stdout, run.stderr[-2000:])
    assert re.search("nothing .*written", run.stdout) is None
    assert len(commit_paths(TableLocation(str(table)))) == commits
