"""A record that cannot be read is one bad record: it meets the policy for bad rows, and the rest goes on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from lakegate.errors import Corrupt
from lakegate.syncs.plan.change import UNREAD_BYTES_MAX
from lakegate.syncs.ports import ChangeSource
from lakegate.syncs.runner import AppliedBatch, SyncSettings, run
from lakegate.syncs.sources import files, lines
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from lakegate.syncs.sources.files import ChangeFiles
from tests.syncs.envelopes import ended, message, write
from tests.syncs.sync_of_files import begin, execute, sync
from tests.syncs.target_databases import fresh

T = "CREATE TABLE t (id int PRIMARY KEY, v text)"
SECRET = b"4711-secret"


def good(seq: int, tx: int | None = None) -> bytes:
    """A line that creates row `seq`."""
    return json.dumps({"seq": seq, "tx": tx or seq, "table": "t", "op": "c", "after": {"id": seq, "v": "x"}}).encode()


BAD: list[bytes] = [
    b'{"seq": 1, "tx": "1", ' + SECRET,
    b"\xff\xfe\xff" + SECRET,
    b"[" * 100_000,
    b"7",
    b'{"seq": -1, "op": "c"}',
    b'{"seq": 3, "tx": "3", "table": "t", "op": "c"}',
    b'{"seq": 3, "tx": "3", "table": "t", "op": "c", "after": {"v": "' + b"y" * 300_000 + b'"}}',
]


def applied(database: Database, source: ChangeSource, *, batches_max: int = 1 << 30, **how: Any) -> list[AppliedBatch]:
    """Runs the sync for some batches; returns the results."""
    target = database.target()
    done: list[AppliedBatch] = []
    try:
        going: Iterator[AppliedBatch] = run(
            source, target, stream="s", settings=SyncSettings(**{"on_violation": "quarantine", **how})
        )
        for one in going:
            done.append(one)
            if len(done) >= batches_max:
                break
        return done
    finally:
        target.close()


def found(database: Database) -> tuple[list[int], list[str]]:
    """Returns the keys of the table, and the positions of the quarantined records."""
    letters = [json.loads(row["row_key"])[0] for row in database.rows("lakegate_dead")]
    return sorted(row["id"] for row in database.rows("t")), sorted(one.rpartition("/")[2] for one in letters)


@pytest.mark.parametrize("size", [1, 100])
def test_lines_that_cannot_be_read_are_quarantined_once(
    size: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every place of a file, of a compressed one and of one that holds nothing else; each run ends after one batch."""
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 200_000)
    database, folder = fresh("sqlite", request), tmp_path / "c"
    database.execute(T)
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join([BAD[0], BAD[1], good(1), BAD[2], good(2), good(3, 2), BAD[3]]) + b"\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join([good(4), BAD[6], good(5)])))
    (folder / "c.jsonl").write_bytes(BAD[4] + b"\n" + BAD[5] + b"\n")
    where = [f"a.jsonl line={n}" for n in (1, 2, 4, 7)] + ["b.jsonl.gz line=2", "c.jsonl line=1", "c.jsonl line=2"]
    source = ChangeFiles(files=str(folder))
    while applied(database, source, batches_max=1, changes_max=size):
        assert len(set(found(database)[1])) == len(found(database)[1])
    assert found(database) == ([1, 2, 3, 4, 5], where)
    kept = [len(row["image"]) for row in database.rows("lakegate_dead")]
    assert max(kept) < 2 * UNREAD_BYTES_MAX
    with (folder / "c.jsonl").open("ab") as file:
        file.write(good(6) + b"\n" + BAD[0] + b"\n")
    (folder / "a.jsonl").rename(folder / "a.1.jsonl")
    assert sum(one.changes for one in applied(database, ChangeFiles(files=str(folder)), changes_max=size)) == 2
    assert found(database)[0] == [1, 2, 3, 4, 5, 6]
    assert sorted({*found(database)[1]} - {*where}) == ["c.jsonl line=4"]
    assert applied(database, ChangeFiles(files=str(folder))) == []


def test_cells_of_parquet_that_cannot_be_read_are_quarantined(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that is no JSON, one that is too large, and a row without its image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(files, "RECORD_BYTES_MAX", 1_000)
    images = ['{"id": 0}', "{", '{"id": 2, "v": "' + "y" * 5_000 + '"}', None, '{"id": 4}']
    seqs, text = list(range(5)), [str(n) for n in range(5)]
    pq.write_table(
        pa.table({"seq": seqs, "tx": text, "table": ["t"] * 5, "op": ["c"] * 5, "after": images}),
        tmp_path / "a.parquet",
    )
    database = fresh("sqlite", request)
    database.execute(T)
    source = ChangeFiles(files=str(tmp_path / "a.parquet"))
    applied(database, source, changes_max=1)
    assert found(database) == ([0, 4], ["a.parquet row=2", "a.parquet row=3", "a.parquet row=4"])
    assert applied(database, source) == []
    with pytest.raises(Corrupt, match=r"after is not JSON.*row=2"):
        list(source.transactions(-1))


def test_the_commands_show_and_drop_what_cannot_be_read(tmp_path: Path) -> None:
    """Where and why, values only on demand; verify says what it could not compare; with `stop` the run ends as ever."""
    begin(tmp_path, T)
    (tmp_path / "c" / "a.jsonl").write_bytes(good(1) + b"\n" + BAD[0] + b"\n" + good(2) + b"\n")
    stopped = sync(tmp_path, "run", "--until-idle")
    assert (stopped.code, "line=2" in stopped.err, SECRET.decode() in stopped.err) == (4, True, False)
    assert execute(tmp_path / "t.db", "SELECT count(*) FROM lakegate_dead") == [(0,)]
    with (tmp_path / "lakegate.yml").open("a") as file:
        file.write("    on_violation: quarantine\n")
    assert "1 quarantined" in sync(tmp_path, "run", "--until-idle").out
    assert execute(tmp_path / "t.db", "SELECT id FROM t") == [(1,), (2,)]
    verified = sync(tmp_path, "verify")
    assert (verified.code, "1 record that cannot be read: not compared" in verified.out) == (0, True)

    from tests.cli.command import lakegate

    listed = lakegate("dead-letters", "list", "s", "--output", "json", "--spec", tmp_path)
    (letter,) = listed.json["dead_letters"]
    assert (letter["kind"], letter["position"]) == ("record", f"file={tmp_path}/c/a.jsonl line=2")
    assert "not JSON" in letter["reason"]
    assert SECRET.decode() not in listed.out
    shown = lakegate("dead-letters", "list", "s", "--values", "--spec", tmp_path)
    assert SECRET.decode() in shown.out.replace("\n", "")
    refused = lakegate("dead-letters", "retry", "s", letter["id"], "--spec", tmp_path)
    assert (refused.code, "cannot be sent again" in refused.err) == (2, True)
    assert lakegate("dead-letters", "drop", "s", letter["id"], "--spec", tmp_path).code == 0
    assert execute(tmp_path / "t.db", "SELECT count(*) FROM lakegate_dead") == [(0,)]


def envelopes(folder: Path) -> DebeziumChanges:
    """Makes a source of the envelopes in `data/` and `ends/`."""
    return DebeziumChanges(logs=EnvelopeFiles(files=str(folder / "data"), transactions=str(folder / "ends")))


def write_lines(path: Path, *lines_: Any) -> None:
    """Messages, and lines as they are."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines_))


def created(lsn: int, tx: str, n: int = 1) -> dict[str, Any]:
    """An envelope that creates row `lsn`."""
    return message("c", lsn, after={"id": lsn, "v": "x"}, tx=tx, n=n)


@pytest.mark.parametrize("size", [1, 100])
def test_a_transaction_is_applied_without_the_message_that_cannot_be_read(
    size: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In its middle, before its first row, as its only row; one that names its transaction is known at once."""
    database = fresh("sqlite", request)
    database.execute(T)
    bad = b'{"op": "c", ' + SECRET
    data: list[Any] = [
        created(1, "A"), bad, created(3, "A", 3), bad, created(5, "B", 2), bad, created(7, "D"),
        {**created(8, "E"), "op": "?"}, created(9, "E", 2),
    ]  # fmt: skip
    write_lines(tmp_path / "data" / "t", *data)
    write(tmp_path / "ends" / "e", ended("A", t=3), ended("B", t=2), ended("C", t=1), ended("D", t=1), ended("E", t=2))
    while applied(database, envelopes(tmp_path), batches_max=1, changes_max=size):
        pass
    where = ["t line=2", "t line=4", "t line=6", "t line=8"]
    assert found(database) == ([1, 3, 5, 7, 9], where)
    # The last one may be late: it is waited for until a later transaction has come. What is sent again is dropped.
    write_lines(tmp_path / "data" / "t", *data, created(10, "F"), bad)
    write(
        tmp_path / "ends" / "e", ended("A", t=3), ended("B", t=2), ended("C", t=1), ended("D", t=1), ended("E", t=2),
        ended("F", t=2),
    )  # fmt: skip
    applied(database, envelopes(tmp_path), changes_max=size)
    assert found(database)[0] == [1, 3, 5, 7, 9]
    target = database.target()
    progress = target.progress("s")
    target.close()
    assert progress is not None
    assert "changes of transaction F: 1 of s.t" in (progress.place or "")
    write_lines(tmp_path / "data" / "t2", created(9, "E", 2), created(10, "F"), created(12, "G"))
    write(tmp_path / "ends" / "e2", ended("G", t=1))
    applied(database, envelopes(tmp_path), changes_max=size)
    assert found(database) == ([1, 3, 5, 7, 9, 10, 12], sorted([*where, "t line=11"]))
    # A change of a transaction that was applied without one is never dropped as if it were known.
    write_lines(tmp_path / "data" / "t3", created(11, "F", 2))
    with pytest.raises(Corrupt, match="went back"):
        applied(database, envelopes(tmp_path), changes_max=size)


def test_messages_without_metadata_that_cannot_be_read_are_quarantined(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is too large; an end of a transaction that cannot be read stops, as nothing is complete without it."""
    monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 50_000)
    database = fresh("sqlite", request)
    database.execute(T)
    large = b'{"op": "c", "after": "' + b"y" * 60_000 + b'"}'
    write_lines(tmp_path / "data" / "t", b"x", message("c", 1, after={"id": 1, "v": "x"}), large, b"[]", b'{"a": 1}',
                message("c", 2, after={"id": 2, "v": "x"}), {**message("c", 3), "source": 7})  # fmt: skip
    source = DebeziumChanges(logs=EnvelopeFiles(files=str(tmp_path / "data")))
    while applied(database, source, batches_max=1, changes_max=2):
        pass
    assert found(database) == ([1, 2], [f"t line={n}" for n in (1, 3, 4, 5, 7)])
    write_lines(tmp_path / "ends" / "e", b"x")
    database = fresh("sqlite", request)
    database.execute(T)
    with pytest.raises(Corrupt, match=r"not JSON.*ends/e line=1"):
        applied(database, envelopes(tmp_path))
