"""A pipeline in progress, made of stored files: a lock record, ledger lines, requests, dead letters and a table's log."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import uvicorn

from lakegate import settings
from lakegate.cli.live import application
from lakegate.ids import Epoch, JobName, Nonce, SessionId, TokenId
from lakegate.report.data import TurnRow
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.ledger import LedgerSink
from lakegate.turns.protocol.lock_record import Holder, JobState, LockRecord, Pause, Ticket
from lakegate.turns.protocol.ordering import After, rule_to_json
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.report.sample import LOCK, sample

FILE = f"""\
name: crm
storage: ./_lakegate
tables:
  engagement: {{path: ./table, lock: {LOCK}}}
streams:
  Ingestion:
    table: engagement
    every: 1h
    source: {{files: ./in, format: parquet, schema: "id STRING"}}
    append: {{}}
  Mutation:
    table: engagement
    every: 1h
    after: Ingestion
    source: {{files: ./mutations, format: parquet, schema: "id STRING, new_id STRING"}}
    mutate: {{match: {{id: id}}, set: {{id: new_id}}, applies_to: arrived}}
  TTL:
    table: engagement
    after: Mutation
    source: {{files: ./erasures, format: parquet, schema: "id STRING"}}
    erase: {{match: {{id: id}}}}
sync:
  to-crm:
    from: engagement
    to: "sqlite:crm.db"
"""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class LivePipeline:
    """The pipeline in a folder; `close` ends its sessions."""

    def __init__(self, root: Path, *, turns: int = 60, seed: int = 3, **made: str) -> None:
        self.root = root
        self.storage = root / "_lakegate"
        (root / "lakegate.yml").write_text(FILE)
        for folder in ("in", "mutations", "erasures"):
            (root / folder).mkdir()
        self.storage.mkdir()
        rows = sample(seed, turns=turns, is_compared=False, **made).turns
        now_ms = time.time_ns() // 1_000_000
        self._later_ms = now_ms - 5_000 - max(row.released_at_ms or 0 for row in rows)
        for row in rows:
            self.end(row)
        self.store = SqliteTurnStore(self.storage / "turns.db")
        self.sessions = {job: self.store.open_session(LOCK, JobName(job)) for job in ("Ingestion", "Mutation")}
        self.hold("Ingestion", epoch=1100)
        self._requests()
        self._table()

    def end(self, row: TurnRow) -> None:
        """Adds a turn to the ledger, `_later_ms` after its own times."""
        kept = {field.name: getattr(row, field.name) for field in dataclasses.fields(TurnEnded)}
        for name in ("asked_at_ms", "granted_at_ms", "first_write_at_ms", "commit_log_at_ms", "released_at_ms"):
            kept[name] = kept[name] and kept[name] + self._later_ms
        kept["released_at_ms"] = kept["released_at_ms"] or kept["granted_at_ms"]  # a lost turn has none in the sample
        LedgerSink(self.storage).emit(TurnEnded(**{**kept, "run": row.run or "r"}))

    def hold(
        self, job: str, *, epoch: int, waiting: str = "Mutation", paused: str = "the source is being repaired"
    ) -> None:
        """Gives the turn to a job; another one waits, and TTL is paused."""
        now_ms = time.time_ns() // 1_000_000
        session = self.sessions[job].id if job in self.sessions else SessionId("dead")
        other = self.sessions[waiting].id if waiting in self.sessions else SessionId("dead too")
        record = LockRecord(
            lock=LOCK,
            epoch=Epoch(epoch),
            holder=Holder(
                nonce=Nonce("n"),
                session=session,
                job=JobName(job),
                run="r",
                host="build-7",
                boot_id="b",
                pid=77,
                pid_start=1,
                jvm_pid=None,
                jvm_start=None,
                token_ids=(TokenId("lakegate/q1"),),
                batch=4,
                tables=(),
                since_ms=now_ms - 3_200,
            ),
            tickets=(Ticket(job=JobName(waiting), session=other, nonce=Nonce("m"), asked_at_ms=now_ms - 2_500),),
            jobs={
                JobName("Ingestion"): JobState(done=Epoch(epoch - 1), turns=40, completed_at_ms=now_ms - 3 * HOUR_MS),
                JobName("Mutation"): JobState(
                    done=Epoch(epoch - 2),
                    turns=39,
                    completed_at_ms=now_ms - 50 * MINUTE_MS,
                    rule=rule_to_json(After(("Ingestion",)), None),
                ),
            },
            paused={JobName("TTL"): Pause(by="anna@build-7", reason=paused, since_ms=now_ms - 12 * MINUTE_MS)},
        )
        assert self.store.compare_and_set(LOCK, record, self.store.read(LOCK).version) == "done"

    def _requests(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for place, column, state, ages in (
            ("requests/Mutation", "first_seen_ms", "waiting", (1_000, 2 * HOUR_MS, 50 * HOUR_MS)),
            ("dead_letters/Ingestion", "at_ms", None, (5 * MINUTE_MS, 40 * 24 * HOUR_MS)),
        ):
            folder = self.storage / place
            (folder / "_delta_log").mkdir(parents=True)
            pyarrow.parquet.write_table(pa.table({column: [now_ms - age for age in ages]}), folder / "a.parquet")
            add = {"path": "a.parquet", "partitionValues": {"state": state} if state else {}, "size": 1}
            (folder / "_delta_log" / f"{0:020d}.json").write_text(json.dumps({"add": add}))

    def _table(self) -> None:
        log = self.root / "table" / "_delta_log"
        log.mkdir(parents=True)
        for version, (operation, job) in enumerate([("WRITE", "Ingestion"), ("MERGE", "Mutation"), ("OPTIMIZE", None)]):
            info: dict[str, object] = {"timestamp": time.time_ns() // 1_000_000 - 9_000, "operation": operation}
            if job:
                info["userMetadata"] = json.dumps({"lakegate": 1, "job": job})
            (log / f"{version:020d}.json").write_text(json.dumps({"commitInfo": info}))

    def close(self) -> None:
        """Ends the sessions."""
        for session in self.sessions.values():
            session.close()
        self.store.close()


TOKEN = "secret-of-the-test"


@contextlib.contextmanager
def served(root: Path) -> Iterator[int]:
    """Serves the page of the pipeline until the block ends; yields the port."""
    app = application(settings.load_pipeline(str(root / "lakegate.yml")), address="127.0.0.1", token=TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def ask(
    port: int, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """Sends a request; returns status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
