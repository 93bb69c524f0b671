"""Makes a release: version, changelog, commit, tag, and the files to publish. `make release VERSION=0.2.0`.

The wheel and the source archive are built twice from the tagged commit, in two folders; different bytes end the release.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
UNRELEASED = "(not released yet)"
"""Mark of the first version in CHANGELOG.md, whose section is written by hand."""


def run(*command: str, cwd: Path = ROOT, epoch: int | None = None) -> str:
    """Returns what a program prints; its failure ends the release."""
    environment = {**os.environ, **({} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)})}
    answer = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {answer.returncode}\n{answer.stdout}{answer.stderr}")
    return answer.stdout


def exported(revision: str, folder: Path) -> Path:
    """Writes the files of a commit into a folder, without those that git ignores; returns the folder."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def build(revision: str, out: Path) -> list[Path]:
    """Builds wheel and source archive of a commit, twice; returns their paths, sorted.

    Raises:
        SystemExit: A build failed, or the two differ.
    """
    epoch = int(run("git", "log", "-1", "--format=%ct", revision))
    with tempfile.TemporaryDirectory() as scratch:
        made = []
        for name in ("first", "second"):
            source, files = exported(revision, Path(scratch) / name / "source"), Path(scratch) / name / "dist"
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(files), cwd=source, epoch=epoch)
            made.append({path.name: path.read_bytes() for path in sorted(files.iterdir())})
        first, second = made
        different = [name for name in first if first[name] != second.get(name)]
        if different or first.keys() != second.keys():
            raise SystemExit(f"two builds of {revision} differ: {', '.join(different) or 'other files'}")
    out.mkdir(parents=True, exist_ok=True)
    for name, content in first.items():
        (out / name).write_bytes(content)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in first.items())
    (out / "SHA256SUMS").write_text(sums)
    return [out / name for name in first]


def prepare(version: str, root: Path = ROOT) -> None:
    """Writes the version into the two files that state it, and the changes since the last release into the changelog."""
    for name, pattern, line in (
        ("pyproject.toml", r'^version = ".*"$', f'version = "{version}"'),
        ("src/lakegate/__init__.py", r'^__version__ = ".*"$', f'__version__ = "{version}"'),
    ):
        text, count = re.subn(pattern, line, (root / name).read_text(), count=1, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"{name} states no version")
        (root / name).write_text(text)
    changelog, heading = root / "CHANGELOG.md", f"## {version} {UNRELEASED}"
    text = changelog.read_text()
    if heading in text:
        fragments = [path.name for path in (root / "changes").glob("*.*.md")]
        if fragments:
            raise SystemExit(f"put these into the section {version} of CHANGELOG.md first: {', '.join(fragments)}")
        changelog.write_text(text.replace(heading, f"## {version} ({datetime.now(UTC):%Y-%m-%d})"))
    else:
        run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, cwd=root)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="as 0.2.0 or 0.2.0rc1")
    parser.add_argument("--build-only", action="store_true", help="build the last commit; change and tag nothing")
    arguments = parser.parse_args()
    if not VERSION.fullmatch(arguments.version):
        raise SystemExit(f"{arguments.version} is no version: 0.2.0 or 0.2.0rc1 is")
    tag = f"v{arguments.version}"
    if not arguments.build_only:
        if run("git", "status", "--porcelain"):
            raise SystemExit("there are changes that are not committed")
        if run("git", "tag", "--list", tag):
            raise SystemExit(f"the tag {tag} is there already")
        prepare(arguments.version)
        run("git", "commit", "--all", "--message", f"Release {arguments.version}")
        run("git", "tag", "--annotate", tag, "--message", f"Release {arguments.version}")
    for path in build("HEAD", ROOT / "dist"):
        print(path.relative_to(ROOT))
    if not arguments.build_only:
        print(f"Publish them: git push origin HEAD {tag}, then upload dist/*.whl and dist/*.tar.gz")


if __name__ == "__main__":
    main()
