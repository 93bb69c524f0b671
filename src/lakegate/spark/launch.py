"""Starts the JVM of a local session with no setting in its command line, which every user of the machine can read.

On a terminal its log lines go to a file. Elsewhere they go to standard error, as Spark's do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from lakegate.errors import Unavailable
from lakegate.private_files import make_folder, open_file

LOOPBACK = "127.0.0.1"
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_HARMLESS_OPTIONS = ("-X", "-ea", "-da", "--add-opens", "--add-exports", "--enable-native-access")
"""JVM options that hold no secret; a `-D…` or the options of an agent may. Spark's launcher checks some of them."""
_LOG_NAME = re.compile(r"spark-\d{8}-\d{6}-\d+\.log")
LOGS_KEPT = 20
"""Number of the newest log files that stay in a folder."""
_log: Path | None = None


def start_jvm(
    settings: Mapping[str, str],
    environ: MutableMapping[str, str],
    defaults: Mapping[str, str],
    logs: Path | None = None,
) -> None:
    """Starts the JVM of this process with `settings`, and with those of `defaults` that the user has not set elsewhere.

    PySpark passes each setting to `spark-submit` as `--conf key=value`. Here the settings are in a file that only this user can
    read. The file is deleted when the JVM has started. A running JVM stays as it is.

    Args:
        settings: Spark configuration.
        environ: The environment of this process, which the JVM inherits.
        defaults: Weaker settings.
        logs: Folder for the log file of the JVM; None, or a folder that cannot be written: standard error.

    Raises:
        Unavailable: The JVM ended before it was ready.
    """
    with tempfile.TemporaryDirectory(prefix="lakegate-") as name:
        folder = Path(name)  # mkdtemp: mode 0700, and a name that nobody can predict
        given = {key: _without_secrets(key, value, folder) for key, value in settings.items()}
        arguments = shlex.split(environ.get(SUBMIT_ARGUMENTS) or "pyspark-shell")
        own = folder / "spark.properties"
        # Of a key that stands twice Spark takes the last value.
        of_user = _spark_defaults(environ) + _of_user(arguments)
        own.write_text(_lines(defaults) + of_user + _lines(given), encoding="latin-1")
        more = {SUBMIT_ARGUMENTS: shlex.join(["--properties-file", str(own), *arguments])}
        if {**defaults, **settings}.get("spark.driver.bindAddress") == LOOPBACK:
            more["SPARK_LOCAL_IP"] = (
                environ.get("SPARK_LOCAL_IP") or LOOPBACK
            )  # the web UI listens there, and not by bindAddress
        with _added(more, environ):
            _start(logs)


def log_file() -> Path | None:
    """Returns the log file of this process's JVM; None if there is no JVM, or if its log lines go to standard error."""
    return _log


def _start(logs: Path | None) -> None:
    try:
        if logs is None or SparkContext._gateway is not None:
            SparkContext._ensure_initialized()
        else:
            _start_with_log(logs)
    except PySparkRuntimeError as error:
        where = "in its lines above" if _log is None else f"in {_log}"
        raise Unavailable("Spark's JVM ended while it started", advice=f"Look for the reason {where}") from error


def _start_with_log(logs: Path) -> None:
    global _log
    file = logs / f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        make_folder(logs)
        output = open_file(file, os.O_WRONLY | os.O_APPEND)
    except OSError:
        SparkContext._ensure_initialized()
        return
    _log = file
    try:
        _remove_old(logs)
        with _progress():
            launch: Any = launch_gateway
            SparkContext._ensure_initialized(gateway=launch(popen_kwargs={"stdout": output, "stderr": output}))
    finally:
        os.close(output)


def _progress() -> contextlib.AbstractContextManager[object]:
    """Shows on a terminal that the JVM starts; not in a child process, whose input is a pipe."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("Starting Spark")


def _remove_old(logs: Path) -> None:
    named = sorted(file for file in logs.iterdir() if _LOG_NAME.fullmatch(file.name))
    for file in named[:-LOGS_KEPT]:
        file.unlink(missing_ok=True)


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _spark_defaults(environ: Mapping[str, str]) -> str:
    """Returns the text of the user's `spark-defaults.conf`; empty if there is none."""
    home = environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    file = Path(environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    return file.read_text(encoding="latin-1") + "\n" if file.exists() else ""


def _of_user(arguments: list[str]) -> str:
    """Returns the text of the properties file named in `arguments`, and removes it from them: Spark reads only one such file."""
    text = ""
    while "--properties-file" in arguments[:-1]:
        at = arguments.index("--properties-file")
        text = Path(arguments[at + 1]).read_text(encoding="latin-1") + "\n"
        del arguments[at : at + 2]
    return text


def _without_secrets(key: str, value: str, folder: Path) -> str:
    """Moves JVM options in `value` that may hold a secret to a file of arguments, which Java reads by itself."""
    if key not in _JAVA_OPTIONS:
        return value
    options = shlex.split(value)
    hidden = [option for option in options if not option.startswith(_HARMLESS_OPTIONS)]
    if not hidden:
        return value
    file = folder / f"{key}.arguments"
    quoted = ('"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for option in hidden)
    file.write_text("".join(quoted), encoding="utf-8")
    return shlex.join([*(option for option in options if option not in hidden), f"@{file}"])


def _escaped(text: str) -> str:
    """Escapes `text` as a key or a value of a Java properties file."""
    special = {
        "\\": "\\\\",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        " ": "\\ ",
        "=": "\\=",
        ":": "\\:",
        "#": "\\#",
        "!": "\\!",
    }
    return "".join(special.get(one) or (one if " " < one < "\x7f" else _units(one)) for one in text)


def _units(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


@contextlib.contextmanager
def _added(more: Mapping[str, str], environ: MutableMapping[str, str]) -> Iterator[None]:
    """Adds `more` to `environ` while a program is started."""
    before = {name: environ[name] for name in more if name in environ}
    environ.update(more)
    try:
        yield
    finally:
        for name in more:
            del environ[name]
        environ.update(before)
