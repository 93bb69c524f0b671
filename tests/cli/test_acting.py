"""Commands by which an operator changes the order of turns, on the real store; each act is reported and kept in the ledger."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lakegate.ids import Epoch, JobName, TableLocation, TokenId
from lakegate.telemetry.ledger import read_actions
from lakegate.turns.protocol.lock_record import JobState, LockRecord
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.cli.command import lakegate, state_of
from tests.ops.lake import FILE, LOCK, Lake, dead_holder, healthy


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A pipeline that has run, with its file."""
    made = healthy(tmp_path)
    made.write_ledger()
    (tmp_path / "lakegate.yml").write_text(FILE)
    return made


@pytest.fixture
def store(lake: Lake) -> SqliteTurnStore:
    """Returns the lake's store, where In holds the turn and Gone waits."""
    opened = SqliteTurnStore(lake.storage / "turns.db")
    assert opened.compare_and_set(LOCK, dead_holder(lake.root), 0) == "done"
    return opened


def now(store: SqliteTurnStore) -> LockRecord:
    found = store.read(LOCK).record
    assert found is not None
    return found


def test_a_pause_is_in_the_record_in_the_status_and_in_the_ledger(lake: Lake, store: SqliteTurnStore) -> None:
    """With the person and the reason; the ticket is removed; resuming ends the pause; both are recorded before and after."""
    ran = lakegate("pause", "Gone", "--reason", "  the source   is wrong ", "--spec", lake.root)
    assert ran.code == 0, ran.err
    pause = now(store).paused[JobName("Gone")]
    assert (pause.reason, "@" in pause.by, now(store).tickets) == ("the source is wrong", True, ())
    shown = lakegate("status", "--spec", lake.root).out
    assert f"Gone is paused by {pause.by}: the source is wrong (since " in shown
    assert re.search(r"Gone +paused +after In", shown)
    again = lakegate("pause", "Gone", "--reason", "more", "--spec", lake.root)
    assert (again.code, "already; nothing was changed" in again.err) == (2, True)
    ended = lakegate("resume", "Gone", "--spec", lake.root, "--output", "json")
    assert ended.json["resumed"]["reason"] == "the source is wrong"
    assert now(store).paused == {}
    acts = read_actions(lake.storage)
    assert [(act.action, act.job, act.outcome, act.by) for act in acts] == [
        ("pause", "Gone", "done", pause.by),
        ("resume", "Gone", "done", pause.by),
    ]
    lines = [file.read_text().splitlines() for file in (lake.storage / "ledger" / LOCK / "actions").iterdir()]
    assert [[json.loads(line)["outcome"] for line in one] for one in lines] == [["asked", "done"]] * 2


def test_breaking_a_lock_puts_the_holders_ids_in_doubt_as_a_dead_turn_does(lake: Lake, store: SqliteTurnStore) -> None:
    """The lock is free, the turn is lost, its ids are in doubt on its tables; the ledger has person, reason and turn."""
    ran = lakegate("locks", "break", LOCK, "--reason", "hangs", "--spec", lake.root)
    assert ran.code == 0, ran.err
    assert "the turn of In (epoch 4, pid 77 on h) on L is over" in ran.out
    after = now(store)
    assert (after.holder, after.job(JobName("In")).lost) == (None, (4, 4))
    assert after.doubts(TableLocation(str(lake.table))) == {TokenId("lakegate/q1")}
    (act,) = read_actions(lake.storage, LOCK)
    assert (act.action, act.job, act.epoch, act.token_ids, act.reason, act.outcome) == (
        "break", "In", 4, ("lakegate/q1",), "hangs", "done",
    )  # fmt: skip
    again = lakegate("locks", "break", LOCK, "--reason", "hangs", "--spec", lake.root)
    assert (again.code, "nobody has the turn on L" in again.err) == (2, True)
    drawn = lakegate("timeline", "--spec", lake.root).out
    assert re.search(r"In \|.*x.*\| 4 turns", drawn)
    assert "break In (epoch 4): hangs" in drawn
    assert lakegate("verify", "--spec", lake.root).code == 0


def test_breaking_the_turn_of_a_program_leaves_no_doubt(lake: Lake, store: SqliteTurnStore) -> None:
    """It has no tables, and so nothing to write with."""
    held = now(store).holder
    assert held is not None
    program = replace(now(store), holder=replace(held, tables=()))
    assert store.compare_and_set(LOCK, program, store.read(LOCK).version) == "done"
    ran = lakegate("locks", "break", LOCK, "--reason", "hangs", "--spec", lake.root)
    assert (ran.code, "is over" in ran.out, "in doubt" in ran.out) == (0, True, False), ran.err
    assert now(store).in_doubt == ()
    assert [act.token_ids for act in read_actions(lake.storage, LOCK)] == [()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pause", "Nobody", "--reason", "x"), "there is no stream 'Nobody'"),
        (("pause", "Gone", "--reason", " "), "a reason of 1 to 500 characters"),
        (("pause", "Gone", "--reason", "x" * 501), "a reason of 1 to 500 characters"),
        (("resume", "Gone"), "Gone is not paused"),
        (("locks", "break", "M", "--reason", "x"), "there is no lock 'M'"),
        (("timeline", "--since", "soon"), "expected a duration"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    lake: Lake, store: SqliteTurnStore, arguments: tuple[str, ...], says: str
) -> None:
    """Exit 2, with what to do; neither the record nor the ledger is touched."""
    before = state_of(lake.storage)
    ran = lakegate(*arguments, "--spec", lake.root)
    assert (ran.code, says in ran.err) == (2, True), ran.err
    assert state_of(lake.storage) == before


def test_before_anything_ran_there_is_nothing_to_act_on(tmp_path: Path) -> None:
    """No store is made by a pause."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    for arguments in (("pause", "In", "--reason", "x"), ("locks", "break", "L", "--reason", "x")):
        ran = lakegate(*arguments, "--spec", tmp_path)
        assert (ran.code, "no job has asked for a turn on L yet" in ran.err) == (2, True), ran.err
    assert lakegate("timeline", "--spec", tmp_path).out == "no turn yet\n"
    assert lakegate("locks", "list", "--spec", tmp_path, "--output", "json").json["locks"][0]["epoch"] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["lakegate.yml"]


def test_an_act_that_cannot_be_written_down_is_not_done(lake: Lake, store: SqliteTurnStore) -> None:
    """The ledger comes first: no lock is broken unseen."""
    (lake.storage / "ledger" / LOCK / "actions").write_text("a file instead of a folder")
    ran = lakegate("locks", "break", LOCK, "--reason", "hangs", "--spec", lake.root)
    assert (ran.code, "ledger" in ran.err) == (6, True), ran.err
    assert now(store).holder is not None


def test_locks_list_names_every_lock_of_the_coordinator(lake: Lake, store: SqliteTurnStore) -> None:
    """Also one of another pipeline."""
    store.compare_and_set("OTHER", LockRecord(lock="OTHER", epoch=Epoch(9)), 0)
    rows = lakegate("locks", "list", "--spec", lake.root, "--output", "json").json["locks"]
    assert [(row["lock"], row["holder"], row["is_alive"], row["waiting"]) for row in rows] == [
        ("L", "In", False, 1),
        ("OTHER", None, None, 0),
    ]
    assert re.search(r"OTHER +9 +nobody", lakegate("locks", "list", "--spec", lake.root).out)


@pytest.mark.parametrize(
    ("completed_s_ago", "is_idle", "is_paused", "code"),
    [
        (3_500, False, False, 0),
        (7_000, False, False, 0),
        (7_500, False, False, 3),
        (7_500, False, True, 0),
        (90_000, True, False, 0),
    ],
)
def test_a_probe_fails_when_a_whole_turn_was_missed(
    lake: Lake, completed_s_ago: int, is_idle: bool, is_paused: bool, code: int
) -> None:
    """In runs every hour: late two hours after its last turn; not while it is idle, or paused."""
    completed_at_ms = time.time_ns() // 1_000_000 - completed_s_ago * 1000
    job = JobState(done=Epoch(3), turns=3, completed_at_ms=completed_at_ms, idle_since_ms=1 if is_idle else None)
    store = SqliteTurnStore(lake.storage / "turns.db")
    store.compare_and_set(LOCK, LockRecord(lock=LOCK, epoch=Epoch(3), jobs={JobName("In"): job}), 0)
    if is_paused:
        assert lakegate("pause", "In", "--reason", "x", "--spec", lake.root).code == 0
    ran = lakegate("status", "--fail-if-late", "--spec", lake.root)
    assert ran.code == code, ran.out + ran.err
    assert bool(re.search(r"lakegate: late: In by 1 h \d+ min", ran.err)) == (code == 3)
    assert lakegate("status", "--spec", lake.root).code == 0


def test_watch_shows_it_again_until_it_is_interrupted(lake: Lake, store: SqliteTurnStore) -> None:
    """Each time with its instant; Ctrl-C ends it with 130."""
    command = [sys.executable, "-m", "lakegate", "status", "--watch", "--interval", "0.1", "--spec", str(lake.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heads = 0
        for line in process.stdout:
            heads += line.startswith("p at ")
            if heads == 3:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_who_holds_and_waits_is_drawn_over_time(lake: Lake, store: SqliteTurnStore) -> None:
    """A line for each job, waiting apart from holding; in JSON the turns as the ledger has them."""
    first = lake.rows[0]
    waits = replace(first, job="Gone", epoch=9, run="r9", asked_at_ms=first.asked_at_ms, granted_at_ms=1_000_500)
    lake.rows = [replace(waits, released_at_ms=1_001_000)]
    lake.write_ledger()
    shown = lakegate("timeline", "--spec", lake.root)
    assert re.search(r"Gone \|-+█+\| 1 turn", shown.out), shown.out
    assert "- waited, █ completed" in shown.out
    events = lakegate("timeline", "--spec", lake.root, "--output", "json").json["events"]
    assert [(one["kind"], one["epoch"]) for one in events] == [("turn", 1), ("turn", 2), ("turn", 3), ("turn", 9)]
    assert lakegate("timeline", "--since", "1h", "--spec", lake.root).out == "no turn since 1h\n"


def test_order_simulate_replays_the_paces(lake: Lake) -> None:
    """Lengths as in the ledger, or as said; every lock with its jobs; what cannot be read is refused."""
    ran = lakegate("order", "simulate", "--days", "3", "--takes", "Gone=20m", "--spec", lake.root, "--output", "json")
    assert ran.code == 0, ran.err
    (lock,) = ran.json["locks"]
    assert [job["job"] for job in lock["jobs"]] == ["In", "Gone"]
    assert lock["jobs"][0]["turns"] in range(70, 75)
    shown = lakegate("order", "simulate", "--days", "3", "--takes", "Gone=20m", "--spec", lake.root).out
    assert re.search(r"In +first come, first served +1 h +100 ms", shown), shown
    wrong = lakegate("order", "simulate", "--takes", "Nobody=1m", "--takes", "In=soon", "--spec", lake.root)
    assert (wrong.code, wrong.err.count("--takes")) == (2, 2), wrong.err
    assert lakegate("order", "simulate", "--days", "0", "--spec", lake.root).code == 2
