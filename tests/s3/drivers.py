"""Spark drivers on the server: processes with a session for S3, that run a program, or do one by one what a test asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.log_store_jvm import settings_for
from lakegate.demo.aws_server import AwsServer
from tests.conftest import FAST_CONF, ROOT


def conf_for(aws: AwsServer) -> dict[str, str]:
    """Settings of a session that reaches a server."""
    return {**FAST_CONF, **{f"spark.hadoop.{key}": value for key, value in settings_for(aws).items()}}


class Process:
    """A Python process that reads and writes lines."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )

    def tell(self, line: str) -> None:
        """Gives it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def said(self) -> str:
        """Returns its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        assert line, self._log.read_text()[-3000:]
        return line

    def end(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.communicate()


class Driver(Process):
    """Runs a program, to whose text `spark` is known."""

    def __init__(self, program: str, aws: AwsServer, log: Path, *arguments: str, log_store: str = "auto") -> None:
        start = "import json, sys\nimport lakegate\n"
        start += f"spark = lakegate.session('driver', s3=True, log_store={log_store!r}, conf=json.loads(sys.argv[1]))\n"
        super().__init__(["-c", start + program, json.dumps(conf_for(aws)), *arguments], log)

    def go(self) -> None:
        """Lets it go on."""
        self.tell("go")


class Asked(Process):
    """Does what it is asked: functions of `in_driver.py`, by their names."""

    def __init__(self, aws: AwsServer, log: Path) -> None:
        super().__init__(["-m", "tests.s3.in_driver", json.dumps(conf_for(aws))], log)
        assert self.said() == "ready"

    def ask(self, step: str, *arguments: Any) -> Any:
        """Returns the function's result."""
        self.tell(json.dumps([step, arguments]))
        answer = json.loads(self.said())
        assert "error" not in answer, answer["error"]
        return answer["answer"]
