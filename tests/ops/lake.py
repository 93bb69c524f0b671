"""A pipeline's files and its lock's record made by hand: all as runs leave them, so that a test can spoil one of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakegate.delta.local_files import LocalCheckpoint, LocalLog
from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId
from lakegate.ops.verify import Counted
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.ledger import LedgerSink
from lakegate.turns.protocol.fencing import Token
from lakegate.turns.protocol.lock_record import Holder, InDoubt, JobState, LockRecord, Ticket
from lakegate.turns.protocol.ordering import After, rule_to_json

LOCK = "L"
OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}'
FILE = """\
name: p
storage: ./_lakegate
tables:
  t: {path: ./table, lock: L}
streams:
  In:
    table: t
    every: 1h
    source: {files: ./in, format: parquet, schema: "id STRING"}
    append: {}
  Gone:
    table: t
    after: In
    source: {files: ./gone, format: parquet, schema: "id STRING"}
    erase: {match: {id: id}}
"""
"""The pipeline's `lakegate.yml`."""


@dataclass
class Lake:
    """An append stream `In` on a table; `turn` adds a turn with some batches."""

    root: Path
    rows: list[TurnEnded] = field(default_factory=list)
    now_ms: int = 1_000_000
    epoch: int = 0
    version: int = -1

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def storage(self) -> Path:
        return self.root / "_lakegate"

    @property
    def checkpoint(self) -> Path:
        return self.storage / "checkpoints" / "In"

    @property
    def log(self) -> Path:
        return self.table / "_delta_log"

    def commit(self, *actions: dict[str, Any], info: dict[str, Any] | None = None) -> int:
        """The next version."""
        self.version += 1
        self.log.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"timestamp": self.now_ms, "operation": "WRITE", **(info or {})}}, *actions]
        self.commit_file(self.version).write_text("\n".join(json.dumps(line) for line in lines))
        return self.version

    def commit_file(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def batch(self, batch: int, *, epoch: int | None = None, digest: str | None = None, job: str = "In") -> int:
        """The commit of one micro-batch."""
        epoch = self.epoch if epoch is None else epoch
        text = OFFSETS % batch
        said = {
            "lakegate": 1,
            "lock": LOCK,
            "job": job,
            "epoch": epoch,
            "batch": batch,
            "step": "append",
            "offsets": digest or hashlib.sha256(text.encode()).hexdigest(),
        }
        number = Token(epoch=Epoch(epoch), batch=batch).pack()
        return self.commit(
            {"txn": {"appId": "lakegate/q1", "version": number, "lastUpdated": self.now_ms}},
            {"add": {"path": f"part-{self.version + 1}.parquet", "size": 1, "dataChange": True}},
            info={"userMetadata": json.dumps(said)},
        )

    def spark_log(self, batch: int) -> None:
        """Spark's own files of one micro-batch."""
        for folder, text in (("offsets", OFFSETS % batch), ("commits", 'v1\n{"nextBatchWatermarkMs":0}')):
            (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
            (self.checkpoint / folder / str(batch)).write_text(text)
        (self.checkpoint / "metadata").write_text('{"id":"q1"}')

    def turn(self, *batches: int, job: str = "In", held_ms: int = 100) -> TurnEnded:
        """A turn that wrote these batches."""
        self.epoch += 1
        granted_ms = self.now_ms
        versions = []
        for batch in batches:
            versions.append(self.batch(batch))
            self.spark_log(batch)
        self.now_ms += held_ms
        row = TurnEnded(
            lock=LOCK,
            job=job,
            epoch=self.epoch,
            query_id="q1",
            run="r1",
            batches=(batches[0], batches[-1]) if batches else None,
            predecessor=None,
            asked_at_ms=granted_ms - 5,
            granted_at_ms=granted_ms,
            first_write_at_ms=granted_ms + 1,
            commit_log_at_ms=self.now_ms - 1,
            released_at_ms=self.now_ms,
            versions={str(self.table): tuple(versions)},
            outcome="completed",
            boot_id="b",
            granted_up_ms=granted_ms,
            released_up_ms=self.now_ms,
        )
        self.rows.append(row)
        self.now_ms += 50
        return row

    def write_ledger(self) -> None:
        """The ledger's files, as the rows are now."""
        for row in self.rows:
            LedgerSink(self.storage).emit(row)

    def counted(self) -> list[Counted]:
        """The stream, as `verify` wants it."""
        checkpoint = LocalCheckpoint(self.checkpoint)
        return [Counted(job="In", lock=LOCK, table=str(self.table), step="append", checkpoint=checkpoint)]

    def logs(self) -> dict[str, LocalLog]:
        """The table's log."""
        return {str(self.table): LocalLog(self.table)}


def healthy(root: Path) -> Lake:
    """Three turns, four batches, and a commit by hand in between."""
    lake = Lake(root)
    lake.commit({"metaData": {"id": "t", "schemaString": '{"type":"struct","fields":[]}', "partitionColumns": []}})
    lake.turn(0)
    lake.turn(1, 2)
    lake.commit({"add": {"path": "by-hand.parquet", "size": 1, "dataChange": False}}, info={"operation": "OPTIMIZE"})
    lake.turn(3)
    return lake


def after_a_run(root: Path) -> Lake:
    """A pipeline that has run, with its file."""
    made = healthy(root)
    made.write_ledger()
    (root / "lakegate.yml").write_text(FILE)
    for folder in ("in", "gone"):
        (root / folder).mkdir()
    return made


def dead_holder(root: Path) -> LockRecord:
    """The record of the lock: In holds the turn and its process is gone; Gone waits."""
    return LockRecord(
        lock=LOCK,
        epoch=Epoch(4),
        holder=Holder(
            nonce=Nonce("n"),
            session=SessionId("In@dead"),
            job=JobName("In"),
            run="r",
            host="h",
            boot_id="b",
            pid=77,
            pid_start=1,
            jvm_pid=None,
            jvm_start=None,
            token_ids=(TokenId("lakegate/q1"),),
            batch=4,
            tables=(TableLocation(str(root / "table")),),
            since_ms=1_000_000,
        ),
        tickets=(Ticket(job=JobName("Gone"), session=SessionId("Gone@dead"), nonce=Nonce("m"), asked_at_ms=1_000_500),),
        jobs={
            JobName("In"): JobState(done=Epoch(3), turns=3, completed_at_ms=999_000),
            JobName("Gone"): JobState(lost=(Epoch(2), None), rule=rule_to_json(After(("In",)), None)),
        },
        in_doubt=(InDoubt(token_id=TokenId("lakegate/q2"), epoch=Epoch(2), tables=()),),
    )
