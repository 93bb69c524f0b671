"""The house itself: what is committed, what is locked, what is built."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakegate
from lakegate.spark.jars import OWN_JAR
from tests.conftest import ROOT
from tests.repository import committed, locked_versions

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK_FILES = ("requirements.lock", "src/lakegate/spark/jars.lock")
# Put together here, so that this file does not carry them either.
INDEX_HOSTS = ("pypi" + ".org", "python" + "hosted", "maven" + ".org", "maven" + "-central", "npm" + "js.")


def test_no_committed_file_names_a_package_index() -> None:
    """Locks are the same behind any mirror: no host of an index or of a Maven repository stands in any committed file."""
    found = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in committed()
        for host in INDEX_HOSTS
        if host.encode() in path.read_bytes()
    ]
    assert found == []


@pytest.mark.parametrize("name", LOCK_FILES)
def test_lock_files_carry_no_address(name: str) -> None:
    """Versions and hashes, no URL and no file path of any kind."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(r"://|@|--(extra-)?index|--find-links", line)] == []


def test_every_locked_package_has_a_hash() -> None:
    """`--require-hashes` has something to check for each of them."""
    entries = re.split(r"^(?=[a-z])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 40
    assert [entry.split("==")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_holds_what_the_project_asks_for() -> None:
    """Each dependency, extra and test tool is in the lock, and Spark and Delta at the version that the tests run on."""
    project = PYPROJECT["project"]
    asked = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
        *PYPROJECT["dependency-groups"]["test"],
    ]
    names = {re.split(r"[\[<>=~!;, ]", requirement)[0].lower().replace("_", "-") for requirement in asked}
    versions = locked_versions()
    assert names - versions.keys() == set()
    pins = dict(pin.split("==") for pin in PYPROJECT["tool"]["uv"]["constraint-dependencies"])
    assert {name: versions[name] for name in pins} == pins


def test_the_version_is_one() -> None:
    """The package and its metadata agree."""
    assert lakegate.__version__ == PYPROJECT["project"]["version"]


def test_importing_lakegate_needs_nothing_but_python() -> None:
    """`import lakegate` brings in the standard library alone; what a name needs comes when it is used."""
    script = (
        "import sys; before = set(sys.modules); import lakegate; lakegate.__version__\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['lakegate']"


def reads_environment(tree: ast.AST) -> bool:
    """Returns whether a module reads the environment; setting a variable for a child process is not reading it."""
    written = {
        id(target.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript)
    }
    return any(
        (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in (("os", "environ"), ("os", "getenv"), ("os", "environb"))
            and id(node) not in written
        )
        or (isinstance(node, ast.ImportFrom) and node.module == "os")
        for node in ast.walk(tree)
    )


def test_only_settings_reads_the_environment() -> None:
    """Every value has an origin that `config show --origin` can name."""
    package = ROOT / "src" / "lakegate"
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if reads_environment(ast.parse(path.read_text()))
    }
    assert readers == {"settings.py"}


def test_the_help_of_the_makefile_names_every_target() -> None:
    """`make` alone lists what can be made."""
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    told = re.findall(r"@echo 'make ([a-z0-9-]+)", makefile)
    assert set(told) == set(phony.split()) - {"help"}


@pytest.mark.slow
@pytest.mark.jdk
def test_the_jar_that_is_installed_is_the_one_that_the_sources_give(tmp_path: Path) -> None:
    """Compiling is reproducible, byte for byte, and nobody forgot to compile after the last change."""
    from hatch_build import JAR, compile_jar

    jars = []
    for name in ("one", "two"):
        (tmp_path / name / JAR).parent.mkdir(parents=True)
        (tmp_path / name / "java").symlink_to(ROOT / "java")
        jars.append(compile_jar(tmp_path / name).read_bytes())
    assert jars[0] == jars[1]
    before = (tmp_path / "two" / JAR).stat()
    assert (
        compile_jar(tmp_path / "two").stat().st_mtime_ns == before.st_mtime_ns
    )  # else no archive of classes fits any more
    assert OWN_JAR.read_bytes() == jars[0], "stale: run make env"
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "java" / "io").rglob("*.java")) < 6000


@pytest.mark.jdk
def test_without_a_jdk_the_build_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback: the apt and the brew line."""
    from hatch_build import compile_jar

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SystemExit, match=r"apt-get install openjdk-17-jdk-headless\n.*brew install"):
        compile_jar(ROOT)


def test_no_module_has_the_name_of_one_of_the_standard_library() -> None:
    """A reader who sees `inspect` thinks of Python's."""
    modules = [path for path in (ROOT / "src").rglob("*.py") if path.stem in sys.stdlib_module_names]
    assert modules == []


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields what a module imports, anywhere in it: the dotted path of each module or name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_module_of_tests() -> None:
    """What tests share is in modules whose names say what they hold; a module of tests can be changed for its own sake."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("tests", "benchmarks", "harness")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imported(ast.parse(path.read_text()))
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert found == []


def test_no_binary_is_committed() -> None:
    """Jars are fetched by the lock or compiled here; a name that git no longer ignores brings one in unseen."""
    assert [path for path in committed() if path.suffix in (".jar", ".class", ".so", ".whl")] == []
