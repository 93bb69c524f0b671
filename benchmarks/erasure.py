"""A person looked for in all bytes of a table of a million rows in 100 files, with 20 old versions that rewrote every file.

python -m benchmarks.erasure [ROWS]

Statistics exclude nothing: the persons are random. The baseline reads the same column of every version with pyarrow. It looks at
files that a version names and at nothing else, and makes no hashes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from random import Random
from typing import Any

from harness.machine import machine

ROWS, FILES, VERSIONS, SAMPLES = 1_000_000, 100, 20, 3
SCAN = """
import sys
import pyarrow.compute as pc
from deltalake import DeltaTable
path, person, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for version in range(first, last + 1):
    found = DeltaTable(path, version=version).to_pyarrow_dataset().scanner(columns=["person"], filter=pc.field("person") == person)
    assert found.count_rows() == 0
"""


def made(table: str, rows: int) -> None:
    """Writes the table; each later version has a copy of every file instead of the file, as if a row of each was changed."""
    import pyarrow as pa
    from deltalake import write_deltalake

    chance, each = Random(1), rows // FILES
    for number in range(FILES):
        persons = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(each)]
        ids = pa.array(range(number * each, (number + 1) * each), pa.int64())
        text = pa.array([f"text {place % 997} of a row" for place in range(each)])
        write_deltalake(table, pa.table({"id": ids, "person": persons, "text": text}), mode="append")
    log = Path(table, "_delta_log")
    live = [json.loads(line)["add"] for file in log.glob("*.json") for line in file.open() if '"add"' in line]
    for version in range(FILES, FILES + VERSIONS):
        copies = [{**add, "path": f"v{version}-{place}.parquet"} for place, add in enumerate(live)]
        for add, copy in zip(live, copies, strict=True):
            shutil.copyfile(f"{table}/{add['path']}", f"{table}/{copy['path']}")
        actions: list[Any] = [
            {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}} for add in live
        ]
        actions += [{"add": copy} for copy in copies]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
        live = copies


def measured(arguments: list[str]) -> tuple[float, float, int]:
    """Returns the time of a process and its processor time in milliseconds, and its peak memory in KiB."""
    begun = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, *arguments], os.environ)
    _, status, used = os.wait4(pid, 0)
    assert status == 0, status
    return (time.perf_counter() - begun) * 1000, (used.ru_utime + used.ru_stime) * 1000, used.ru_maxrss


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/t"
        # In a process of its own: a child's peak memory is at least what its parent has.
        subprocess.run([sys.executable, "-m", "benchmarks.erasure", "made", table, str(rows)], check=True)
        files = [one for one in Path(table).rglob("*") if one.is_file()]
        person = str(uuid.uuid4())
        certify = ["-m", "lakegate", "erasure", "certify", "--table", table, "--person", f"person={person}"]
        ways = {
            "certify": [*certify, "--out", f"{folder}/out"],
            "certify_anywhere": [*certify, "--anywhere", "--out", f"{folder}/out"],
            "pyarrow_scan_of_all_versions": ["-c", SCAN, table, person, str(FILES - 1), str(FILES + VERSIONS - 1)],
        }
        result: dict[str, list[tuple[float, float, int]]] = {}
        for name, arguments in ways.items():
            result[name] = [measured(arguments) for _ in range(SAMPLES)]
        from benchmarks.measure import figures, write  # with it comes Spark

        size = sum(one.stat().st_size for one in files)
        figured = {
            name: {"ms": figures(ms), "cpu_ms": figures(cpu_ms), "peak_mib": max(kib) // 1024}
            for name, samples in result.items()
            for ms, cpu_ms, kib in [zip(*samples, strict=True)]
        }
        write("erasure", {"machine": machine(), "rows": rows, "files": len(files), "bytes": size, "ways": figured})


if __name__ == "__main__":
    if sys.argv[1:2] == ["made"]:
        made(sys.argv[2], int(sys.argv[3]))
    else:
        main()
