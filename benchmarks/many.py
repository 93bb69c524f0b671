"""A commit of ten million rows carried to PostgreSQL: time, and memory of the processes of `lakegate sync run`.

python -m benchmarks.many [ROWS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import lakegate
from benchmarks.measure import machine, write
from lakegate.demo.database_servers import Database, postgres_server

ROWS = 10_000_000
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
LOOK_S = 0.25


class Memory:
    """The maximum resident memory of a process and its children, sampled four times a second."""

    def __init__(self, pid: int) -> None:
        self._pid, self.most_kib = pid, dict.fromkeys(("all", "JVM", "Python"), 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_S):
            found = dict.fromkeys(self.most_kib, 0)
            for pid in _below(self._pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                kib = int(facts.get("VmRSS", "0 kB").split()[0])
                found["JVM" if facts["Name"].strip() == "java" else "Python"] += kib
                found["all"] += kib
            self.most_kib = {name: max(kib, found[name]) for name, kib in self.most_kib.items()}


def _below(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def main(rows: int = ROWS) -> None:
    """Measures and writes the result."""
    result: dict[str, Any] = {"machine": machine(), "rows": rows, "spark": SPARK}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with postgres_server(folder / "server") as server:
            database = Database("postgres", server)
            database.execute("CREATE TABLE people (id bigint PRIMARY KEY, email text UNIQUE, n bigint)")
            spark = lakegate.session("many", conf=SPARK)
            table = f"delta.`{folder}/people`"
            feed = "'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true'"
            spark.sql(f"CREATE TABLE {table} (id BIGINT, email STRING, n BIGINT) USING delta TBLPROPERTIES ({feed})")
            spark.sql(f"INSERT INTO {table} SELECT id, concat('m', id, '@example.org'), id % 97 FROM range({rows})")
            spark.stop()
            (folder / "lakegate.yml").write_text(
                f"name: many\nstorage: {folder}/_lakegate\nspark: {json.dumps(SPARK)}\n"
                f"tables: {{people: {{path: {folder}/people}}}}\n"
                f"sync: {{crm: {{from: people, start: {{version: 1}}, to: '{server}'}}}}\n"
            )
            command = [
                sys.executable,
                "-m",
                "lakegate",
                "sync",
                "run",
                "--once",
                "--spec",
                str(folder / "lakegate.yml"),
            ]
            begun = time.perf_counter()
            with subprocess.Popen(command) as process, Memory(process.pid) as memory:
                code = process.wait()
            took = time.perf_counter() - begun
            ((count, different, highest),) = database.query(
                "SELECT count(*), count(DISTINCT email), max(id) FROM people"
            )
        result |= {
            "exit_status": code,
            "seconds": round(took, 1),
            "rows_s": round(rows / took),
            "rows_in_target": [int(count), int(different), int(highest)],
            "most_memory_mib": {kind: round(kib / 1024) for kind, kib in memory.most_kib.items()},
        }
    write("many", result)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
