"""Compiles java/ into the package's own jar when a wheel or an editable install is built.

Stubs stand in for the few classes of Delta and Hadoop that the sources name, so the build needs a JDK and nothing else:
no jar, no network. The jar's bytes depend on the sources and the compiler alone.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = "src/lakegate/spark/lakegate.jar"
MISSING_JDK = """\
javac was not found: building Lakegate from source needs a JDK 17 or later (using its wheel needs a Java runtime only).
  Debian, Ubuntu:  apt-get install openjdk-17-jdk-headless
  macOS:           brew install openjdk@17
or point JAVA_HOME to an installed one.
"""
EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first date that a zip archive can hold: the same bytes on each build


class JarHook(BuildHookInterface[Any]):
    """Hatchling's build hook: leaves the jar beside the sources, where the wheel and the editable install find it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile and pack; called by hatchling before it collects the wheel's files."""
        compile_jar(Path(self.root))


def compile_jar(root: Path) -> Path:
    """The path of the jar, freshly compiled from `root`/java.

    Raises:
        SystemExit: No javac on this machine; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=os.path.join(home, "bin")) if home else None
    javac = javac or shutil.which("javac")
    if javac is None:
        raise SystemExit(MISSING_JDK)
    sources = sorted(str(path) for path in (root / "java" / "io").rglob("*.java"))
    jar = root / JAR
    with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
        subprocess.run(
            [
                *(javac, "--release", "17", "-g:source,lines", "-proc:none", "-implicit:none", "-Xlint:all", "-Werror"),
                *("-sourcepath", str(root / "java" / "stubs"), "-d", scratch, *sources),
            ],
            check=True,
        )
        classes = sorted(Path(scratch).rglob("*.class"))
        packed = Path(scratch) / "packed.jar"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\n\r\n")
            for path in classes:
                _add(archive, path.relative_to(scratch).as_posix(), path.read_bytes())
        packed.chmod(0o644)
        # In one step: a driver that starts meanwhile sees a whole jar. The same jar keeps its time of modification, by which
        # an archive of Java classes is known to fit.
        if not (jar.is_file() and filecmp.cmp(packed, jar, shallow=False)):
            packed.replace(jar)
    return jar


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, EARLIEST)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
