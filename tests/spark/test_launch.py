"""The log lines of a session's JVM: in a file on a terminal, on standard error elsewhere."""

from __future__ import annotations

import os
import pty
import select
import sys
from pathlib import Path

import pytest

from lakegate.settings import spark_logs
from lakegate.spark.jars import JarSources
from lakegate.spark.launch import LOGS_KEPT, _remove_old

SCRIPT = """
import sys
import lakegate
spark = lakegate.session("quiet", conf={"spark.driver.extraJavaOptions": sys.argv[1]} if len(sys.argv) > 1 else None)
print("rows", spark.range(3).count())
"""
NOISE = ("WARN", "incubator", "log4j", "Setting default log level")


def on_terminal(home: Path, *arguments: str, **environ: str) -> str:
    """Runs the script on a terminal; returns what a person sees."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environ, HOME=str(home), TERM="xterm")
        os.environ.pop("JDK_JAVA_OPTIONS", None)
        os.execv(sys.executable, [sys.executable, "-c", SCRIPT, *arguments])
    seen = b""
    while select.select([terminal], [], [], 300)[0]:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        seen += data
    os.waitpid(pid, 0)
    os.close(terminal)
    return seen.decode()


@pytest.mark.slow
def test_a_terminal_shows_no_line_of_spark_and_a_file_has_them(tmp_path: Path, jars_from: JarSources) -> None:
    """The file is in the user's state folder, and only its owner can read it; a JVM that does not start names the file."""
    cache = {"LAKEGATE_CACHE": str(jars_from.cache_dir.parent)}
    seen = on_terminal(tmp_path, **cache)
    assert "rows 3" in seen
    assert [word for word in NOISE if word in seen] == []
    (log,) = (tmp_path / ".local/state/lakegate").iterdir()
    assert "incubator" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600

    failed = on_terminal(tmp_path, "-agentlib:nosuchagent", **cache)
    (last,) = {*log.parent.iterdir()} - {log}
    assert "Spark's JVM ended while it started" in failed
    assert last.name in failed
    assert "nosuchagent" in last.read_text()


def test_log_files_are_made_on_a_terminal_or_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal the lines stay where a service manager or a notebook takes them."""
    home = {"HOME": "/home/a"}
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert spark_logs(home) is None
    assert spark_logs({**home, "LAKEGATE_SPARK_LOGS": "/var/log/spark"}) == Path("/var/log/spark")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert spark_logs(home) == Path("/home/a/.local/state/lakegate")
    assert spark_logs({**home, "XDG_STATE_HOME": "/state"}) == Path("/state/lakegate")
    assert spark_logs({**home, "LAKEGATE_SPARK_LOGS": "-"}) is None


def test_old_log_files_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    """A folder keeps the newest log files."""
    logs = [f"spark-20260101-{second:06}-7.log" for second in range(LOGS_KEPT + 3)]
    for name in [*logs, "spark-notes.log", "mine.txt"]:
        (tmp_path / name).touch()
    _remove_old(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {*logs[3:], "spark-notes.log", "mine.txt"}
