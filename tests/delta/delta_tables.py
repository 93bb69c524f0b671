"""Small Delta tables for tests, and commits of other writers put straight into their logs."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakegate.delta.idempotent_writes import create_table
from lakegate.delta.jvm import Jvm
from lakegate.ids import Epoch, TableLocation, TokenId, Version
from lakegate.ports import WriteToken
from lakegate.rows.committer import publisher
from lakegate.rows.result import Result
from lakegate.rows.sql import statement
from lakegate.turns.protocol.fencing import Token, query_token

QUERY = query_token("q")
COLUMNS = "id BIGINT, v STRING"


def number(epoch: int, batch: int, step: int = 0) -> int:
    """`txn.version` of a token."""
    return Token(epoch=Epoch(epoch), batch=batch, step=step).pack()


def write_token(epoch: int, batch: int, step: int = 0, *, token_id: TokenId = QUERY, name: str = "work") -> WriteToken:
    """A token with the metadata of a step."""
    said = {"lakegate": 1, "epoch": epoch, "batch": batch, "step": name, "offsets": f"sha-{batch}"}
    return WriteToken(token_id=token_id, number=number(epoch, batch, step), user_metadata=json.dumps(said))


def make_table(session: SparkSession, path: Path, columns: str = COLUMNS, **properties: str) -> TableLocation:
    """An empty table; properties without their prefix `delta.`."""
    table = TableLocation(str(path))
    create_table(session, table, columns, properties={f"delta.{key}": value for key, value in properties.items()})
    return table


def rows(session: SparkSession, *ids: int, v: str = "a") -> DataFrame:
    """Rows of `COLUMNS` in one file."""
    return session.createDataFrame([(i, v) for i in ids], COLUMNS).coalesce(1)


def ids(session: SparkSession, table: TableLocation) -> list[int]:
    """The ids in a table, sorted."""
    return sorted(row.id for row in session.read.format("delta").load(table).select("id").collect())


def follow(session: SparkSession, ours: str, winner: str) -> Result:
    """Commits a statement after another statement that committed since the first was computed; returns its outcome."""
    dml = statement(session, ours)
    assert dml is not None
    staged = publisher(session).stage(dml)
    session.sql(winner)
    return publisher(session).finish(staged)


def commit_paths(table: TableLocation) -> list[Path]:
    """The commit files of a table, in order."""
    return sorted(path for path in Path(table, "_delta_log").iterdir() if re.fullmatch(r"\d{20}\.json", path.name))


def foreign_commit(table: TableLocation, *actions: Mapping[str, Any], user_metadata: str | None = None) -> Version:
    """The next commit, as another engine in another process makes it: a file in the log, unknown to this JVM."""
    version = int(commit_paths(table)[-1].stem) + 1
    info: dict[str, Any] = {"timestamp": 1, "operation": "WRITE", "txnId": str(uuid.uuid4())}
    if user_metadata is not None:
        info["userMetadata"] = user_metadata
    lines = [json.dumps({"commitInfo": info}), *(json.dumps(action) for action in actions)]
    with Path(table, "_delta_log", f"{version:020d}.json").open("x") as file:
        file.write("\n".join(lines) + "\n")
    return Version(version)


def txn(app_id: str, version: int) -> dict[str, Any]:
    """A SetTransaction action."""
    return {"txn": {"appId": app_id, "version": version}}


def last_add(table: TableLocation) -> dict[str, Any]:
    """The body of the newest `add` action."""
    adds = [line for path in commit_paths(table) for line in path.read_text().split("\n") if '"add"' in line[:8]]
    body: dict[str, Any] = json.loads(adds[-1])["add"]
    return body


def remove_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """The action that takes a file out of the table."""
    return {
        "remove": {
            "path": add["path"],
            "deletionTimestamp": 1,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": add["partitionValues"],
            "size": add["size"],
        }
    }


@contextmanager
def stale_transaction(session: SparkSession, table: TableLocation) -> Iterator[tuple[Jvm, Any]]:
    """Yields a transaction of stock settings on the table's present version; any commit inside the block wins against it."""
    jvm = Jvm(session)
    log = jvm.delta_log(table)
    snapshot = jvm.snapshot(log)
    with jvm.active():
        yield jvm, log.startTransaction(jvm.none, jvm.root.scala.Some(snapshot))


def commit_stock(jvm: Jvm, transaction: Any, *actions: Mapping[str, Any]) -> int:
    """Commit with Delta's own checks and retries."""
    operation = getattr(jvm.root, "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate$")
    sequence = jvm.to_seq(jvm.action(action) for action in actions)
    with jvm.active():
        return int(transaction.commit(sequence, getattr(operation, "MODULE$"), jvm.to_map({})))
