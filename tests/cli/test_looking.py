"""The commands that look and do not run, on files made by hand; the JSON forms are promises and kept word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from lakegate.cli.app import COMMANDS
from lakegate.ids import Epoch, JobName, Nonce
from lakegate.telemetry.events import LeftOut
from lakegate.telemetry.ledger import LedgerSink
from lakegate.turns.protocol.lock_record import JobState, LockRecord, Ticket
from lakegate.turns.protocol.ordering import After, rule_to_json
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.cli.command import lakegate, state_of
from tests.ops.lake import FILE, LOCK, Lake, after_a_run, dead_holder
from tests.report.sample import COMPARISON


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A pipeline that has run."""
    return after_a_run(tmp_path)


def test_verify_of_a_whole_pipeline_ends_with_0(lake: Lake) -> None:
    """Nothing broken: exit 0, and what was looked at is said."""
    ran = lakegate("verify", "--spec", lake.root, "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.json == {
        "format": 1,
        "pipeline": "p",
        "is_whole": True,
        "counts": {"turns": 3, "commits": 6, "batches": 4},
        "violations": [],
        "unchecked": [],
    }
    assert lakegate("verify", "--spec", lake.root).out == (
        "3 turns, none overlap; 4 batches, each exactly once; 6 commits in order\n"
    )


def test_verify_of_a_broken_pipeline_ends_with_4_and_names_it(lake: Lake) -> None:
    """A doubled batch: exit 4, in every form of output, with table and versions."""
    lake.batch(3)
    for output in ("text", "json", "jsonl"):
        ran = lakegate("verify", "--spec", lake.root, "--output", output)
        assert ran.code == 4
        assert "batch 3 is there 2 times, in versions 5 and 6" in ran.out
        assert ran.err.startswith("lakegate: 1 violation found; nothing was changed.")


def test_verify_finds_a_table_that_is_gone(lake: Lake) -> None:
    """The table's folder deleted: every batch of the commit log is missed, and so is every version of the ledger."""
    for file in lake.log.iterdir():
        file.unlink()
    ran = lakegate("verify", "--spec", lake.root)
    assert ran.code == 4
    assert "batches 0 to 3 in the checkpoint's commit log, and not in the table" in ran.out


def test_history_has_the_newest_first_and_a_limit(lake: Lake) -> None:
    """Turns as in the ledger."""
    ran = lakegate("history", "t", "--limit", "2", "--spec", lake.root, "--output", "json")
    assert ran.code == 0, ran.err
    assert ran.json["format"] == 1
    assert ran.json["table"] == "t"
    assert [turn["epoch"] for turn in ran.json["turns"]] == [3, 2]
    assert ran.json["turns"][0] == {
        "lock": "L",
        "job": "In",
        "epoch": 3,
        "query_id": "q1",
        "run": "r1",
        "batches": [3, 3],
        "predecessor": None,
        "asked_at_ms": 1_000_295,
        "granted_at_ms": 1_000_300,
        "first_write_at_ms": 1_000_301,
        "commit_log_at_ms": 1_000_399,
        "released_at_ms": 1_000_400,
        "versions": {str(lake.table): [5]},
        "outcome": "completed",
        "reason": None,
        "boot_id": "b",
        "granted_up_ms": 1_000_300,
        "released_up_ms": 1_000_400,
        "closed_by": None,
    }
    by_path = lakegate("history", lake.table, "--spec", lake.root)
    assert [line.split()[0] for line in by_path.out.splitlines()] == ["epoch", "3", "2", "1"]
    unknown = lakegate("history", "other", "--spec", lake.root)
    assert (unknown.code, "The tables are: t" in unknown.err) == (2, True)


def test_status_before_anything_ran_makes_nothing(tmp_path: Path) -> None:
    """Looking is not touching: no store, no folder."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    ran = lakegate("status", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    assert "Lock L, no turn yet" in ran.out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lakegate.yml"]


def test_status_tells_a_dead_holder_and_why_others_wait(lake: Lake) -> None:
    """A lock held by a dead process is said to be one, with what comes of it; nothing is changed by looking."""
    store = SqliteTurnStore(lake.storage / "turns.db")
    assert store.compare_and_set(LOCK, dead_holder(lake.root), 0) == "done"
    ran = lakegate("status", "--spec", lake.root)
    assert ran.code == 0, ran.err
    assert "In has the turn (epoch 4, batch 4) since 1970-01-01 00:16:40.000, pid 77 on h" in ran.out
    assert "its process is gone: the next job that asks closes the turn" in ran.out
    assert "1. Gone, asked 1970-01-01 00:16:40.500: its run has ended" in ran.out
    assert "in doubt: lakegate/q2 of epoch 2" in ran.out
    assert store.read(LOCK).version == 1
    store.close()


def test_status_in_json_is_kept_word_for_word(lake: Lake) -> None:
    """The form that machines read."""
    store = SqliteTurnStore(lake.storage / "turns.db")
    store.compare_and_set(LOCK, dead_holder(lake.root), 0)
    store.close()
    ran = lakegate("status", "--spec", lake.root, "--output", "json")
    said = ran.json
    job = {
        "is_alive": False,
        "idle_since_ms": None,
        "idle_at": {},
        "priority": 0,
        "paused": None,
        "paused_since_ms": None,
    }
    late_ms = said["locks"][0]["jobs"][0].pop("overdue_ms")
    assert time.time() * 1000 - late_ms == pytest.approx(999_000 + 3_600_000, abs=60_000)
    assert said == {
        "format": 1,
        "pipeline": "p",
        "erasures": [{"job": "Gone", "left": None, "note": "nothing was erased yet"}],
        "sources": [],
        "syncs": [],
        "requests": [{"job": "Gone", "kept": [], "note": None}],
        "lags": [],
        "locks": [
            {
                "lock": "L",
                "epoch": 4,
                "holder": {
                    "job": "In",
                    "epoch": 4,
                    "since_ms": 1_000_000,
                    "host": "h",
                    "pid": 77,
                    "batch": 4,
                    "is_alive": False,
                },
                "queue": [
                    {"job": "Gone", "asked_at_ms": 1_000_500, "reason": "its run has ended, so it does not count"}
                ],
                "jobs": [
                    {
                        **job,
                        "job": "In",
                        "rule": "first come, first served",
                        "turns": 3,
                        "last_epoch": 3,
                        "completed_at_ms": 999_000,
                        "lost": None,
                        "in_doubt": 0,
                        "every_ms": 3_600_000,
                        "is_late": True,
                        "waiting_for": None,
                    },
                    {
                        **job,
                        "job": "Gone",
                        "rule": "after In",
                        "turns": 0,
                        "last_epoch": None,
                        "completed_at_ms": None,
                        "lost": [2, None],
                        "in_doubt": 1,
                        "every_ms": None,
                        "overdue_ms": 0,
                        "is_late": False,
                        "waiting_for": "its run has ended, so it does not count",
                    },
                ],
                "in_doubt": [["lakegate/q2", 2]],
                "next": None,
            }
        ],
    }
    kinds = [line["kind"] for line in lakegate("status", "--spec", lake.root, "--output", "jsonl").lines]
    assert kinds == ["lock", "erasure", "requests"]


def test_a_live_job_waits_with_the_reason_of_its_rule(lake: Lake) -> None:
    """A job that waits by a rule shows the rule's reason, not that another job has the turn at the moment."""
    store = SqliteTurnStore(lake.storage / "turns.db")
    session = store.open_session(LOCK, JobName("Gone"))
    made = dead_holder(lake.root)
    ticket = Ticket(job=JobName("Gone"), session=session.id, nonce=Nonce("m"), asked_at_ms=1_000_500)
    jobs = {**made.jobs, JobName("Gone"): JobState(done=Epoch(3), rule=rule_to_json(After(("In",)), None))}
    store.compare_and_set(
        LOCK, LockRecord(lock=LOCK, epoch=Epoch(4), holder=made.holder, tickets=(ticket,), jobs=jobs), 0
    )
    ran = lakegate("status", "--spec", lake.root)
    assert "waits for In: no turn since epoch 3" in ran.out
    assert re.search(r"Gone +running +after In", ran.out)
    store.close()


def test_report_writes_one_page_and_prints_its_path(lake: Lake) -> None:
    """Turns of the ledger and commits of the log are in it."""
    page = lake.root / "out.html"
    ran = lakegate("report", "--html", page, "--spec", lake.root)
    assert (ran.code, ran.out) == (0, f"{page}\n"), ran.err
    assert "3 turns" in page.read_text()
    facts = lakegate("report", "--html", page, "--spec", lake.root, "--output", "json").json
    assert facts == {"format": 1, "file": str(page), "turns": 3, "commits": 6}
    nowhere = lakegate("report", "--html", lake.root / "no" / "out.html", "--spec", lake.root)
    assert nowhere.code == 6


def test_the_report_of_the_demo_s_lake_has_its_comparison(lake: Lake) -> None:
    """The demo leaves its findings next to the file; if they are damaged, the command names the file and writes no report."""
    page, title = lake.root / "out.html", "With turns, and without"
    lakegate("report", "--html", page, "--spec", lake.root)
    assert title not in page.read_text()
    left = lake.root / "comparison.json"
    left.write_text(COMPARISON.to_json())
    lakegate("report", "--html", page, "--spec", lake.root)
    assert title in page.read_text()
    page.unlink()
    left.write_text('{"notes": []}')
    ran = lakegate("report", "--html", page, "--spec", lake.root)
    assert ran.code == 4
    assert str(left) in ran.err
    assert not page.exists()


def test_config_shows_values_origins_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value in effect with where it came from; what the environment gave is shown as a reference."""
    monkeypatch.setenv("WHERE", "/very/secret/place")
    (tmp_path / "lakegate.yml").write_text(FILE.replace("./table", '"${WHERE}"'))
    ran = lakegate("config", "show", "--origin", "--spec", tmp_path, "--output", "json")
    assert ran.code == 0, ran.err
    values = {row["key"]: row for row in ran.json["values"]}
    assert values["tables.t.path"]["value"] == "${WHERE}"
    assert values["tables.t.path"]["origin"].endswith("lakegate.yml:4")
    assert values["coordinator.lock_timeout"] == {"key": "coordinator.lock_timeout", "value": "1m", "origin": "default"}
    assert "origin" not in lakegate("config", "show", "--spec", tmp_path, "--output", "jsonl").lines[0]
    assert "secret" not in ran.out + lakegate("config", "show", "--spec", tmp_path).out


def test_order_lint_says_what_a_strict_rule_costs(tmp_path: Path) -> None:
    """Warnings end with 0; a cycle is a fault of the file and ends with 2."""
    (tmp_path / "lakegate.yml").write_text(FILE.replace("after: In", "strict: In"))
    ran = lakegate("order", "lint", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    assert "Gone: strict after In" in ran.out
    (tmp_path / "lakegate.yml").write_text(FILE.replace("every: 1h", "after: Gone"))
    cycle = lakegate("order", "lint", "--spec", tmp_path)
    assert cycle.code == 2
    assert "on an empty history nobody can begin" in cycle.err


def test_init_writes_a_file_that_passes_check_and_never_over_another(tmp_path: Path) -> None:
    """The first file is right as it stands, once its folders are there."""
    ran = lakegate("init", tmp_path / "new", "--output", "json")
    assert ran.code == 0, ran.err
    for folder in ran.json["folders"]:
        assert lakegate("check", "--no-spark", "--spec", tmp_path / "new").code == 6
        Path(folder).mkdir(parents=True)
    checked = lakegate("check", "--no-spark", "--spec", tmp_path / "new")
    assert checked.code == 0, checked.out
    before = (tmp_path / "new" / "lakegate.yml").read_text()
    (line, *_) = before.splitlines()
    schema = tmp_path / "new" / line.rpartition("$schema=")[2]
    assert schema.read_text() == lakegate("schema").out
    assert "streams" in json.loads(schema.read_text())["properties"]
    again = lakegate("init", tmp_path / "new")
    assert (again.code, "nothing was written" in again.err) == (2, True)
    assert (tmp_path / "new" / "lakegate.yml").read_text() == before


def test_a_dry_run_counts_what_waits_and_changes_nothing(lake: Lake) -> None:
    """New files with their bytes and rows, a batch that was begun, and both tables of an erasure; a taken file counts no more."""
    source = lake.root / "in"
    source.mkdir(exist_ok=True)
    for name, rows in (("taken", 5), ("new", 3), ("more", 4)):
        parquet.write_table(pa.table({"id": ["a"] * rows}), source / f"{name}.parquet")
    taken = source / "taken.parquet"
    log = lake.checkpoint / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    entry = {"path": taken.as_uri(), "timestamp": taken.stat().st_mtime_ns // 1_000_000, "batchId": 0}
    (log / "0").write_text(f"v1\n{json.dumps(entry)}")
    (lake.checkpoint / "offsets" / "99").write_text("v1\n{}\n{}")
    before = state_of(lake.root)
    ran = lakegate("run", "--dry-run", "--spec", lake.root, "--output", "json")
    assert ran.code == 0, ran.err
    assert state_of(lake.root) == before
    into, gone = ran.json["streams"]
    size = sum((source / name).stat().st_size for name in ("new.parquet", "more.parquet"))
    assert (into["files"], into["rows"], into["size_bytes"], into["begun_batch"]) == (2, 7, size, 99)
    assert (into["writes"], into["version"]) == ([str(lake.table)], lake.version)
    assert gone["writes"] == [str(lake.storage / "requests" / "Gone"), str(lake.table)]
    assert (gone["files"], gone["note"]) == (0, None)
    (source / "new.parquet").write_bytes(b"no footer")
    shown = lakegate("run", "In", "--dry-run", "--spec", lake.root).out.splitlines()
    assert shown[1:3] == [
        "  ends batch 99, which an earlier run began",
        f"  reads 2 new files, {9 + (source / 'more.parquet').stat().st_size:,} bytes",
    ]
    assert shown[-1] == "Nothing was run."


def test_doctor_without_a_file_looks_at_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has a level, what was looked at, and what was found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEGATE_SPEC", raising=False)
    ran = lakegate("doctor", "--no-spark", "--output", "json")
    assert ran.json["pipeline"] is None
    assert [one["where"] for one in ran.json["findings"]][:2] == ["Java", "PySpark"]
    assert set(ran.json["findings"][0]) == {"level", "where", "what", "advice", "exit_code"}


def test_doctor_says_who_is_stopped_and_finds_the_property_that_forgets(lake: Lake) -> None:
    """Whom the gate refuses and whom nothing stops, and that tokens must be kept: both are said of each table."""
    ran = lakegate("doctor", "--no-spark", "--spec", lake.root)
    assert "warning: table t: not governed" in ran.out
    (lake.table / "_lakegate" / "publish").mkdir(parents=True)
    (lake.table / "_lakegate" / "publish" / "7.note").write_text("{}")
    assert (
        "warning: table t: a publish of several tables is open (7)"
        in lakegate("doctor", "--no-spark", "--spec", lake.root).out
    )
    (lake.table / "_lakegate" / "table.json").write_text("{}")
    governed = lakegate("doctor", "--no-spark", "--spec", lake.root).out
    assert "not governed" not in governed
    assert "ok: table t: governed, lock L; drivers with Lakegate's gate refuse" in governed
    assert (
        "note: table t: not stopped: a session with spark.lakegate.outside=pass, and drivers without the gate"
        in governed
    )
    first = lake.commit_file(0)
    lines = [json.loads(line) for line in first.read_text().split("\n")]
    lines[1]["metaData"]["configuration"] = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    first.write_text("\n".join(map(json.dumps, lines)))
    forgetting = lakegate("doctor", "--no-spark", "--spec", lake.root)
    assert forgetting.code == 2
    assert "UNSET TBLPROPERTIES" in forgetting.out


def test_check_in_json_is_kept_word_for_word(tmp_path: Path) -> None:
    """The form that machines read; a fault sets the exit status, a note does not."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    (tmp_path / "in").mkdir()
    ran = lakegate("check", "--no-spark", "--spec", tmp_path, "--output", "json")
    assert ran.code == 6
    assert (ran.json["format"], ran.json["pipeline"], ran.json["exit_code"]) == (1, "p", 6)
    assert ran.json["findings"][-2] == {
        "level": "fault",
        "where": f"{tmp_path / 'lakegate.yml'}:14: streams.Gone.source.files",
        "what": f"{tmp_path / 'gone'} does not exist",
        "advice": "Make it, or correct `files`",
        "exit_code": 6,
    }
    levels = [line["level"] for line in lakegate("check", "--no-spark", "--spec", tmp_path, "--output", "jsonl").lines]
    assert levels == ["note", "note", "fault", "note"]


def test_what_a_stream_has_not_read_is_named_by_status_and_verify(lake: Lake) -> None:
    """Files by their reason, and what was left out by the ledger; a file that was rewritten is a violation."""
    taken = lake.checkpoint / "sources" / "0" / "0"
    taken.parent.mkdir(parents=True)
    for name in ("read", "rewritten", "_hidden", "waiting"):
        (lake.root / "in" / f"{name}.parquet").write_text(name)
    entries = [
        (name, (lake.root / "in" / name).stat().st_mtime_ns // 1_000_000)
        for name in ("read.parquet", "rewritten.parquet")
    ]
    entries[1] = (entries[1][0], entries[1][1] - 1)
    lines = [
        json.dumps({"path": f"file://{lake.root}/in/{name}", "timestamp": at, "batchId": 0}) for name, at in entries
    ]
    taken.write_text("\n".join(["v1", *lines]))
    LedgerSink(lake.storage).emit(LeftOut(lock=LOCK, job="In", text="records have a field: city", at_ms=1_000_000))
    text = lakegate("status", "--spec", lake.root)
    assert text.code == 0, text.err
    (source,) = lakegate("status", "--spec", lake.root, "--output", "json").json["sources"]
    assert [(one["reason"], one["count"]) for one in source["not_read"]] == [
        ("rewritten", 1),
        ("waiting", 1),
        ("hidden", 1),
    ]
    assert source["left_out"] == [{"text": "records have a field: city", "at_ms": 1_000_000}]
    verified = lakegate("verify", "--spec", lake.root)
    assert verified.code == 4
    for said in (text.out, verified.out):
        assert re.search(r"In: 1 file of the source: rewritten after .*/in/rewritten\.parquet", said), said
        assert re.search(r"In: 1 file of the source: hidden .*/in/_hidden\.parquet", said), said
        assert re.search(r"In: 1 file of the source: not read yet: .*/in/waiting\.parquet", said), said
        assert "In: records have a field: city" in said
    assert "violated: In: 1 file of the source: rewritten" in verified.out


def test_a_command_loads_its_own_modules_alone(tmp_path: Path) -> None:
    """It starts faster; the help and an unknown command know all."""
    program = (
        "import sys; from lakegate.cli import main\ntry: main()\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )

    def loaded(*arguments: str) -> tuple[int, set[str]]:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        names = done.stderr.splitlines()[-1]
        return done.returncode, {name for name in COMMANDS if f"'lakegate.cli.{name}'" in names}

    assert loaded("sync", "--help") == (0, {"sync", "sync_verify"})
    assert loaded("--verbose", "dead-letters", "--help") == (0, {"dead_letters"})
    assert loaded("--help") == (0, set(COMMANDS))
    assert loaded("statsu") == (2, set(COMMANDS))
