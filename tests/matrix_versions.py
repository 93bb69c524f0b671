"""The part of the tests that depends on versions, on each Python and Spark that this machine can run; for `make matrix-versions`.

Each Python runs with the Spark of the lock, and the newest Python with the other line too. Prints a Markdown table for
docs/reference/compatibility.md, and ends with 1 if anything failed. Arguments replace the tests that are run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parent.parent
UV = ROOT / ".tools" / "bin" / "uv"
PYTHONS = ("3.11", "3.12", "3.13")
LOCKED_SPARK, OTHER_SPARK = "4.1.4", "4.2.0"
TESTS = ("tests/core", "tests/coordinator", "tests/conformance", "tests/spark", "tests/test_house.py")
LEFT_OUT = "not wheel and not matrix and not data and not browser"


def pythons() -> Iterator[tuple[str, Path]]:
    """Each Python of a known version that is here: on PATH, or one of pyenv's."""
    for version in PYTHONS:
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        on_path = which(f"python{version}")
        if of_pyenv:
            yield version, of_pyenv[-1]
        elif on_path:
            yield version, Path(on_path)


def environment(python: Path, name: str, spark: str) -> Path:
    """The python of an environment with the locked versions, and Spark at `spark`."""
    folder = ROOT / ".matrix" / name
    folder.mkdir(parents=True, exist_ok=True)
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^([a-z0-9.-]+==[^\\\n]+?) *\\?$", lock, flags=re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text(
        "\n".join(f"pyspark=={spark}" if pin.startswith("pyspark==") else pin for pin in pins), encoding="utf-8"
    )
    subprocess.run([UV, "venv", "--quiet", "--allow-existing", "--python", python, folder / "venv"], check=True)
    own = folder / "venv" / "bin" / "python"
    # --no-config: the project's own pin of PySpark is what is varied here.
    install = [UV, "pip", "install", "--quiet", "--no-config", "--python", own, "--constraint", constraints]
    group = ["--group", f"{ROOT / 'pyproject.toml'}:test"]
    subprocess.run([*install, *group, "-e", f"{ROOT}[java,kafka]"], check=True, cwd=ROOT)
    return own


def main(tests: list[str]) -> int:
    """Run every pair; the exit status says whether all passed."""
    found = list(pythons())
    pairs = [(version, python, LOCKED_SPARK) for version, python in found]
    pairs += [(version, python, OTHER_SPARK) for version, python in found[-1:]]
    rows = []
    failed = False
    for version, python, spark in pairs:
        print(f"== Python {version}, PySpark {spark}", flush=True)
        own = environment(python, f"{version}-{spark}", spark)
        started = time.monotonic()
        output = ROOT / ".matrix" / f"{version}-{spark}" / "pytest.txt"
        with output.open("w") as file:
            command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", LEFT_OUT, *tests]
            code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file).returncode
        last = output.read_text().strip().splitlines()[-1].strip("= ")
        print(f"   {last} ({time.monotonic() - started:.0f} s; {output})", flush=True)
        rows.append(f"| {version} | {spark} | {'yes' if code == 0 else '**no**'} | {last} |")
        failed = failed or code != 0
    print("\n| Python | PySpark | passes | tests |\n|---|---|---|---|\n" + "\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(TESTS)))
