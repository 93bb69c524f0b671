"""Carries one changed row from PostgreSQL's log to PostgreSQL: from the source's commit until the target shows it.

`lakegate sync run` follows the source in a process of its own. The same change, applied from memory, is the part that the target
takes. Both in interleaved pairs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import figures, machine, write
from harness.changes import Changes
from lakegate.demo.database_servers import Database, fresh_postgres, postgres_server
from lakegate.syncs.plan.change import Change
from lakegate.syncs.runner import SyncSettings, carry, run

ROWS = 10_000
PAIRS = 200
WARM = 20
PAUSE_S = 0.02
"""Between two commits, so that the sync is idle again."""
TABLE = "(id bigint PRIMARY KEY, email text UNIQUE)"


def main() -> None:
    """Measures and writes the result."""
    spent_ms: dict[str, list[float]] = {"log": [], "memory": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with postgres_server(folder / "server") as server:
            source, there = fresh_postgres(server), fresh_postgres(server)
            source.execute(f"CREATE TABLE people {TABLE}")
            source.execute(f"INSERT INTO people SELECT n, 'm' || n FROM generate_series(0, {ROWS - 1}) n")
            there.execute(f"CREATE TABLE people {TABLE}", f"CREATE TABLE given {TABLE}")
            origin = {"postgres": source.dsn, "tables": ["people"]}
            (folder / "lakegate.yml").write_text(
                f"name: bench\nsync:\n  crm:\n    from: {json.dumps(origin)}\n    to: {json.dumps(there.dsn)}\n"
            )
            command = [sys.executable, "-m", "lakegate", "sync", "run", "--spec", str(folder)]
            subprocess.run([*command, "--until-idle"], check=True, capture_output=True)
            follower = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            try:
                measure(source, there, spent_ms)
            finally:
                follower.send_signal(signal.SIGTERM)
                follower.wait(60)
            ((same,),) = there.query("SELECT count(*) FROM people JOIN given USING (id, email)")
    assert same == ROWS, f"{same} rows of {ROWS} are the same"
    write("postgres", {"machine": machine(), **{f"{kind}_ms": figures(samples) for kind, samples in spent_ms.items()}})


def measure(source: Database, there: Database, spent_ms: dict[str, list[float]]) -> None:
    """Changes rows one by one."""
    target = there.target()
    given = [
        Change(seq=n, tx=str(n), table="given", op="u", before=None, after={"id": n, "email": f"m{n}"})
        for n in range(ROWS)
    ]
    list(run(Changes(given), target, stream="given"))
    progress = target.open_stream("given")
    with source.connect() as writer, there.connect() as reader:
        writer.execute("SET synchronous_commit = on")  # the test server has it off, and then writes its log later
        for number in range(WARM + PAIRS):
            writer.execute("UPDATE people SET email = %s WHERE id = %s", (f"x{number}", number))
            begun = time.perf_counter()
            while reader.execute("SELECT email FROM people WHERE id = %s", (number,)).fetchone() != (f"x{number}",):
                time.sleep(0.0005)
            log_ms = (time.perf_counter() - begun) * 1000
            time.sleep(PAUSE_S)
            seq, after = ROWS + number, {"id": number, "email": f"x{number}"}
            changes = Changes([Change(seq=seq, tx=str(seq), table="given", op="u", before={"id": number}, after=after)])
            begun = time.perf_counter()
            (done,) = carry(changes, target, progress, SyncSettings())
            memory_ms = (time.perf_counter() - begun) * 1000
            progress = replace(progress, last_batch=done.batch, position=done.through, place=done.place)
            time.sleep(PAUSE_S)
            if number >= WARM:
                spent_ms["log"].append(log_ms)
                spent_ms["memory"].append(memory_ms)
    target.close()


if __name__ == "__main__":
    main()
