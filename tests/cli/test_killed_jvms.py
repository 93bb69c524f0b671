"""The JVM of a driver is killed, as the out-of-memory killer does: its streams are started again, and the others go on."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest

from lakegate.cli.processes import JVM_ENDED, RESTARTS_MAX, Processes
from lakegate.cli.run import _is_not_of_py4j
from lakegate.errors import combined_exit_code
from tests.conftest import FAST_CONF

pytestmark = pytest.mark.slow

FILE = """\
name: p
storage: ./_lakegate
tables:
  t:
    path: ./table
    lock: L
    columns: "id STRING NOT NULL"
streams:
  One:
    table: t
    source: {files: ./one, format: json, schema: "id STRING"}
    append: {key: [id], on_duplicate: keep_first}
  Two:
    table: t
    source: {files: ./two, format: json, schema: "id STRING"}
    append: {key: [id], on_duplicate: keep_first}
"""


LIMIT_S = 240


class Run:
    """`lakegate run`, at its pace, as a process; its events as they come."""

    def __init__(self, root: Path, *options: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._errors = root / f"errors{'-'.join(options)}"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lakegate", "run", "--output", "jsonl", *options],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def errors(self) -> str:
        return self._errors.read_text()

    def texts(self) -> list[str]:
        return [event.get("text", "") for event in self.events if event["event"] == "Noticed"]

    def completed(self, job: str) -> int:
        turns = [one for one in self.events if one["event"] == "TurnEnded" and one["job"] == job]
        return sum(1 for one in turns if one["outcome"] in ("completed", "replayed"))

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline_s, (self.events, self.errors()[-4000:])
            assert self.process.poll() is None, (self.events, self.errors()[-4000:])
            time.sleep(0.1)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()


def jvms_below(pid: int) -> list[int]:
    """The JVMs of this process and of those that it has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in (int(one) for one in task.read_text().split()):
            name = Path(f"/proc/{child}/comm").read_text().strip()
            found += [child] if name == "java" else []
            found += jvms_below(child)
    return found


def put(root: Path, stream: str, number: int) -> None:
    (root / stream.lower()).mkdir(exist_ok=True)
    (root / stream.lower() / f"{number}.json").write_text(json.dumps({"id": f"{stream}-{number}"}) + "\n")


def rows(spark: Any, root: Path) -> list[str]:
    return sorted(row.id for row in spark.read.format("delta").load(str(root / "table")).collect())


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "together", [pytest.param(False, marks=pytest.mark.matrix), True], ids=["processes", "together"]
)
def test_a_stream_whose_jvm_was_killed_is_started_again(spark: Any, tmp_path: Path, together: bool) -> None:
    """With one line, and what came meanwhile is written once; streams of other JVMs go on."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    for stream in ("One", "Two"):
        put(tmp_path, stream, 0)
    run = Run(tmp_path, *(["--together"] if together else []))
    try:
        run.wait(lambda: run.completed("One") > 0 and run.completed("Two") > 0)
        victim = jvms_below(run.process.pid)[0]
        for stream in ("One", "Two"):
            put(tmp_path, stream, 1)
        os.kill(victim, signal.SIGKILL)
        run.wait(lambda: any("JVM ended" in text for text in run.texts()))
        run.wait(lambda: run.completed("One") > 1 and run.completed("Two") > 1)
    finally:
        code = run.stop()
    assert code == 0, run.errors()
    assert rows(spark, tmp_path) == ["One-0", "One-1", "Two-0", "Two-1"]
    told = [text for text in run.texts() if "started again" in text]
    assert len(told) == 1, run.texts()
    assert re.search(r"JVM ended.*started again \(1 of 5\)", told[0])
    assert "Exception while sending command" not in run.errors()


WRAPPED = """\
import os, signal, sys
import lakegate as lg
from lakegate.errors import LakegateError

spark = lg.session("wrapped", conf=CONF)
table = "./table"
if not os.path.exists(table):
    spark.sql(f"CREATE TABLE delta.`{os.path.abspath(table)}` (id STRING) USING delta")
job = lg.JobCoordinator(spark, name="W", lock="L", storage="./_lakegate", tables=[table])


def write(batch, batch_id):
    batch.write.format("delta").mode("append").save(table)
    if sys.argv[1] == "killed":
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)


def query():
    source = spark.readStream.schema("id STRING").json("./in")
    return source.writeStream.foreachBatch(lg.coordinated(write, job)).option("checkpointLocation", "./checkpoint")


try:
    lg.supervise(query, job, until_idle=True)
except LakegateError as error:
    print(type(error).__name__)
    raise SystemExit(error.exit_code)
"""


@pytest.mark.matrix
@pytest.mark.spark
def test_a_wrapped_job_whose_jvm_was_killed_says_so_and_writes_its_batch_once(spark: Any, tmp_path: Path) -> None:
    """The JVM ends after the commit of a batch, before Spark notes that the batch is done."""
    (tmp_path / "job.py").write_text(WRAPPED.replace("CONF", repr(FAST_CONF)))
    put(tmp_path, "In", 0)
    for how, said, code in (("killed", "JvmEnded\n", 6), ("goes on", "", 0)):
        done = subprocess.run(
            [sys.executable, "job.py", how], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, done.stdout) == (code, said), done.stderr[-4000:]
        assert rows(spark, tmp_path) == ["In-0"]


def test_what_py4j_logs_of_a_connection_that_broke_is_left_out() -> None:
    """It logs its stack under no name; what others log so is shown."""
    shown: list[str] = []
    root, handler = logging.getLogger(), logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    root.addHandler(handler)
    root.addFilter(_is_not_of_py4j)
    try:
        for place, text in ((py4j.java_gateway.__file__, "broken"), (__file__, "mine")):
            exec(compile(f"import logging; logging.error({text!r})", place, "exec"), {})
    finally:
        root.removeFilter(_is_not_of_py4j)
        root.removeHandler(handler)
    assert shown == ["mine"]


def ends(*scripts: str) -> tuple[list[int], list[str]]:
    """Returns the exit codes and messages of processes that run these programs together."""
    texts: list[str] = []
    processes = Processes(
        {str(n): [] for n in range(len(scripts))}, show=lambda event: texts.append(event["text"]), errors=_Quiet()
    )
    for child, script in zip(processes._children, scripts, strict=True):
        child.command = [sys.executable, "-c", script]
    codes, _ = processes.run()
    return codes, texts


class _Quiet(io.StringIO):
    def fileno(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_that_is_ended_because_another_failed_is_no_failure(is_first: bool) -> None:
    """A missing Java ends with 7, whichever stream finds it first, and whatever the others are about to do."""
    missing, slow = "raise SystemExit(7)", "import time; time.sleep(60)"
    codes, _ = ends(*((missing, slow, slow) if is_first else (slow, slow, missing)))
    assert combined_exit_code(codes) == 7


def test_a_process_whose_jvm_ends_each_time_is_given_up() -> None:
    """After as many times as one that is killed each time, with its own exit status."""
    codes, texts = ends(f'print(\'{{"event": "{JVM_ENDED}"}}\', flush=True); raise SystemExit(6)')
    assert codes == [6]
    assert [text for text in texts if "started again" in text] == [
        f"its JVM ended; started again ({n} of {RESTARTS_MAX})" for n in range(1, RESTARTS_MAX + 1)
    ]
