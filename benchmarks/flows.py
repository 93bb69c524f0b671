"""Counts the modules and own calls that a reader of three flows has to follow.

Flows: a micro-batch of one mutation request; `DeltaTable.update`, alone and after another commit took its version; a file of two
changes to PostgreSQL. A *return* is a call into another module that the flow has entered before.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lakegate
from benchmarks.measure import write
from lakegate.delta.gate import Gate
from lakegate.demo.database_servers import fresh_postgres, postgres_server

OWN = str(Path(lakegate.__file__).parent)
SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


class Counts:
    """Counts own calls; each thread has its own stack, and its own last module."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.threads: set[int] = set()
        self.calls = self.returns = self.depth = 0
        self._local = threading.local()

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Receives the events of `sys.setprofile`."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(OWN) or _is_body(code):
            return
        if event == "return":
            self._local.depth = max(0, getattr(self._local, "depth", 0) - 1)
            return
        self._local.depth = getattr(self._local, "depth", 0) + 1
        self.depth = max(self.depth, self._local.depth)
        self.calls += 1
        self.threads.add(threading.get_ident())
        if code.co_filename != getattr(self._local, "module", None):
            self.returns += code.co_filename in self.modules
            self.modules.add(code.co_filename)
            self._local.module = code.co_filename

    def figures(self) -> dict[str, int]:
        """Returns the counts."""
        return {
            "modules": len(self.modules),
            "calls": self.calls,
            "returns": self.returns,
            "deepest": self.depth,
            "threads": len(self.threads),
        }


def _is_body(code: Any) -> bool:
    """Returns True for the body of a module or a class, which runs when it is imported."""
    return not code.co_flags & inspect.CO_OPTIMIZED


@contextmanager
def counted(found: dict[str, dict[str, int]], flow: str) -> Iterator[None]:
    """Counts what the block does, in all threads that it starts."""
    counts = Counts()
    threading.setprofile(counts.profile)
    sys.setprofile(counts.profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, whatever the stub says
    found[flow] = counts.figures()


def mutation(spark: Any, folder: Path, found: dict[str, dict[str, int]]) -> None:
    """Runs a mutation stream of one request once; its target exists, its table of requests does not."""
    target, requests = folder / "target", folder / "in"
    spark.createDataFrame([("1", "a"), ("2", "a"), ("3", "b")], "id STRING, person STRING").write.format("delta").save(
        str(target)
    )
    requests.mkdir()
    (requests / "1.json").write_text('{"alias": "a", "new": "p"}\n')
    pipeline = lakegate.Pipeline("flows", storage=str(folder / "_lakegate"))
    pipeline.table("t", path=str(target)).mutate(
        name="Mutation",
        source=lakegate.files_json(str(requests), schema="alias STRING, new STRING"),
        match={"person": "alias"},
        set={"person": "new"},
        applies_to="arrived",
    )
    with counted(found, "a mutation micro-batch of one request"):
        pipeline.run(once=True, spark=spark)
    assert {row["person"] for row in spark.read.format("delta").load(str(target)).collect()} == {"p", "b"}


def update(spark: Any, folder: Path, found: dict[str, dict[str, int]]) -> None:
    """Updates one row alone, and again while another commit takes the version."""
    where = str(folder / "rows")
    made = spark.createDataFrame([(n, 0) for n in range(10)], "id INT, v INT").repartition(1).write.format("delta")
    made.option("delta.enableDeletionVectors", "true").save(where)
    table = lakegate.DeltaTable.forPath(spark, where)
    table.update("id = 0", {"v": "1"})
    with counted(found, "DeltaTable.update alone"):
        table.update("id = 1", {"v": "1"})
    once: list[Callable[[], object]] = [lambda: spark.sql(f"INSERT INTO delta.`{where}` VALUES (99, 0)")]
    run = Gate.run

    def overtaken(self: Gate, work: Callable[[], object], **given: Any) -> Any:
        """Lets another commit come first, once, unseen by the profile."""

        is_first = bool(once)
        ran = run(self, work, **{**given, "is_staged": is_first or given.get("is_staged", False)})
        if is_first:
            profile = sys.getprofile()
            sys.setprofile(None)
            once.pop()()
            sys.setprofile(profile)
        return ran

    Gate.run = overtaken  # type: ignore[assignment]  # a commit that comes first at exactly this moment
    try:
        with counted(found, "DeltaTable.update after a lost commit"):
            result = table.update("id = 2", {"v": "1"})
    finally:
        Gate.run = run  # type: ignore[method-assign]
    assert result.level == 1, result


def sync(folder: Path, found: dict[str, dict[str, int]]) -> None:
    """Applies two changes, a swap of two unique values, from a file to PostgreSQL."""
    changes = folder / "changes.jsonl"
    rows = [{"id": 1, "email": "b"}, {"id": 2, "email": "a"}]
    before = [{"id": 1, "email": "a"}, {"id": 2, "email": "b"}]
    lines = [
        json.dumps({"seq": n, "tx": "1", "table": "people", "op": "u", "before": old, "after": new})
        for n, (old, new) in enumerate(zip(before, rows, strict=True), 1)
    ]
    changes.write_text("\n".join(lines) + "\n")
    with postgres_server(folder / "server") as server:
        database = fresh_postgres(server)
        database.execute("CREATE TABLE people (id bigint PRIMARY KEY, email text UNIQUE)")
        database.execute("INSERT INTO people VALUES (1, 'a'), (2, 'b')")
        with counted(found, "a file to PostgreSQL"):
            lakegate.sync({"files": str(changes)}, to=database.dsn, name="flows")
        assert sorted(database.query("SELECT id, email FROM people")) == [(1, "b"), (2, "a")]


def main() -> None:
    """Counts, and writes the result."""
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        spark = lakegate.session("flows", conf=SPARK)
        mutation(spark, folder, found)
        update(spark, folder, found)
        spark.stop()
        sync(folder, found)
    write("flows", dict(found))


if __name__ == "__main__":
    main()
