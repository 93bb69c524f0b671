"""Carries one changed row to PostgreSQL: from a table's change data feed, and from memory.

The same statements apply the same changes to two tables of one server, in interleaved pairs.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import lakegate
from benchmarks.measure import figures, machine, write
from harness.changes import Changes
from lakegate.demo.database_servers import Database, postgres_server
from lakegate.ids import TableLocation
from lakegate.syncs.plan.change import Change
from lakegate.syncs.ports import ChangeSource
from lakegate.syncs.runner import run
from lakegate.syncs.sources.delta_cdf import TableFeed

ROWS = 10_000
PAIRS = 30
WARM = 5
SPARK = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def main() -> None:
    """Measures and writes the result."""
    spent_ms: dict[str, list[float]] = {"feed": [], "memory": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with postgres_server(folder / "server") as server:
            database = Database("postgres", server)
            for table in ("fed", "given"):
                database.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, email text UNIQUE)")
            spark = lakegate.session("feed", conf=SPARK)
            lake = f"delta.`{folder}/people`"
            spark.sql(
                f"CREATE TABLE {lake} (id BIGINT, email STRING) USING delta TBLPROPERTIES "
                "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
            )
            spark.sql(f"INSERT INTO {lake} SELECT id, concat('m', id) FROM range({ROWS})")
            feed = TableFeed(spark=spark, location=TableLocation(f"{folder}/people"), table="fed", start=0)
            target = database.target()

            def carried_ms(source: ChangeSource, stream: str) -> float:
                begun = time.perf_counter()
                (done,) = run(source, target, stream=stream)
                assert done.changes >= 1
                return (time.perf_counter() - begun) * 1000

            carried_ms(feed, "fed")
            given = [
                Change(seq=n, tx=str(n), table="given", op="u", before=None, after=after(n, 0)) for n in range(ROWS)
            ]
            list(run(Changes(given), target, stream="given"))
            for number in range(WARM + PAIRS):
                spark.sql(f"UPDATE {lake} SET email = 'x{number}' WHERE id = {number}")
                seq = ROWS + number
                changes = Changes(
                    [Change(seq=seq, tx=str(seq), table="given", op="u", before={"id": number}, after=after(number, 1))]
                )
                took = {"feed": carried_ms(feed, "fed"), "memory": carried_ms(changes, "given")}
                if number >= WARM:
                    for kind, ms in took.items():
                        spent_ms[kind].append(ms)
            target.close()
            ((same,),) = database.query("SELECT count(*) FROM fed JOIN given USING (id, email)")
            spark.stop()
    assert same == ROWS, f"{same} rows of {ROWS} are the same"
    write("feed", {"machine": machine(), **{f"{kind}_ms": figures(samples) for kind, samples in spent_ms.items()}})


def after(n: int, step: int) -> dict[str, object]:
    """Returns the row that change `n` leaves."""
    return {"id": n, "email": f"x{n}" if step else f"m{n}"}


if __name__ == "__main__":
    main()
