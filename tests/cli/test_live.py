"""The server of `lakegate status --web`: it shows the state of stored files to those with its address, and only shows it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakegate import settings
from lakegate.cli.live import Question, Reader, is_known, pause_s
from lakegate.errors import Unavailable
from lakegate.ids import Epoch, JobName
from lakegate.ops.inspection import status_of
from lakegate.report import live
from lakegate.report.data import Outcome, TurnRow
from tests.cli.command import lakegate, state_of
from tests.cli.live_pipeline import TOKEN, LivePipeline, ask, served
from tests.report.sample import LOCK
from tests.waiting import WAIT_S_MAX, wait_until


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[LivePipeline]:
    """A pipeline in progress."""
    made = LivePipeline(tmp_path)
    yield made
    made.close()


def html(port: int) -> str:
    """The content of the page, once every question has an answer."""

    def read() -> str:
        return str(json.loads(ask(port, f"/{TOKEN}/state")[2])["html"])

    wait_until(lambda: "Being asked" not in read())
    return read()


def test_the_page_shows_what_the_files_say(pipeline: LivePipeline) -> None:
    """Holder, queue, next, pause, lateness, requests and dead letters by age, statements, an unknown delay, errors."""
    with served(pipeline.root) as port:
        shown = html(port)
    assert "<b>Ingestion</b> has had the turn for" in shown
    assert "Comes next, if the turn ends now: <b>Mutation</b>" in shown
    assert "Ingestion has the turn (epoch 1100, pid 77 on build-7)" in shown
    assert "paused by anna@build-7: the source is being repaired, for 12 min" in shown
    assert "overdue by 2 h" in shown
    assert ", LATE" in shown
    assert "<td>Mutation</td><td>waiting</td>" in shown
    assert "<td>Ingestion</td><td>set aside</td>" in shown
    assert "<td>engagement</td><td>OPTIMIZE</td>" in shown
    assert "<td>to-crm</td>" in shown
    assert "the target database does not answer" in shown
    assert live.ADVICE[Outcome.FAILED].replace("'", "&#x27;") in shown


def test_without_the_token_there_is_nothing(pipeline: LivePipeline) -> None:
    """Neither the page nor its content; not with a part of the token, or more than it."""
    with served(pipeline.root) as port:
        for path in ("/", "/state", f"/{TOKEN[:-1]}/state", f"/{TOKEN}x/state", f"/{TOKEN}", f"/%C3%A9/{TOKEN}/"):
            assert ask(port, path)[0] == 404, path
        assert ask(port, f"/{TOKEN}/")[0] == 200


def test_a_foreign_name_is_refused_and_an_ip_address_is_not(pipeline: LivePipeline) -> None:
    """A page on evil.example that rebinds its name to 127.0.0.1 reads nothing, even with the token."""
    with served(pipeline.root) as port:
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "[::1",
        ):
            assert ask(port, f"/{TOKEN}/state", host=host)[0] == 421, host
        for host in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}", socket.gethostname()):
            assert ask(port, f"/{TOKEN}/state", host=host)[0] == 200, host
    assert is_known("lake.example:80", "lake.example")
    assert not is_known("", "127.0.0.1")


def test_only_reading_is_allowed_and_it_changes_no_file(pipeline: LivePipeline) -> None:
    """No method but GET and HEAD, no header that lets another origin read, nothing kept by the browser."""
    before = state_of(pipeline.root)
    with served(pipeline.root) as port:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(port, f"/{TOKEN}/state", method=method)[0] == 405, method
        html(port)
        for path in (f"/{TOKEN}/", f"/{TOKEN}/state"):
            _, headers, _ = ask(port, path)
            assert not [name for name in headers if name.lower().startswith("access-control")]
            assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert state_of(pipeline.root) == before


def test_ten_viewers_share_one_reading(tmp_path: Path) -> None:
    """With a thousand turns: a second has one state for all; and the timeline is a window that says so."""
    pipeline = LivePipeline(tmp_path, turns=1_000)
    with served(tmp_path) as port, ThreadPoolExecutor(10) as viewers:
        began_s = time.monotonic()
        bodies = list(viewers.map(lambda _: ask(port, f"/{TOKEN}/state")[2], range(100)))
        took_s = time.monotonic() - began_s
    pipeline.close()
    assert len(set(bodies)) <= took_s + 1
    state = json.loads(bodies[-1])
    assert len(state["charts"]["charts"][0]["option"]["series"][0]["data"]) == live.TURNS_MAX
    assert f"The last {live.TURNS_MAX} turns on {LOCK}" in state["html"]


def test_a_reader_never_reads_for_more_than_a_quarter_of_the_time() -> None:
    """A ledger or a store that takes long is read less often."""
    assert pause_s(0.02, 1.0) == 1.0
    assert pause_s(3.0, 1.0) == 12.0


def test_charts_are_sent_when_they_have_changed(pipeline: LivePipeline) -> None:
    """A viewer that has them gets the rest; a turn that ends gives them another name."""
    reader = Reader(settings.load_pipeline(str(pipeline.root / "lakegate.yml")))
    whole = json.loads(reader.answer(""))
    bare = json.loads(reader.answer(whole["name"]))
    assert "charts" in whole
    assert bare == {"name": whole["name"], "html": whole["html"]}
    row = TurnRow(lock=LOCK, job="Late", run="late", epoch=9, asked_at_ms=1, granted_at_ms=2, outcome=Outcome.COMPLETED)
    pipeline.end(row)
    wait_until(lambda: "charts" in json.loads(reader.answer(whole["name"])))
    reader.close()


def test_a_question_that_hangs_blocks_nothing_and_a_failed_one_keeps_its_last_answer() -> None:
    """The page shows what it has, with its age, and why there is nothing newer."""
    released = threading.Event()
    answers: list[object] = [["a"], Unavailable("the target does not answer")]

    def asked() -> list[str]:
        released.wait(WAIT_S_MAX)
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return list(found)  # type: ignore[call-overload]

    question = Question(asked)
    assert question.latest().at_ms is None
    released.set()
    wait_until(lambda: question.latest().at_ms is not None)
    first = question.latest()
    assert (first.rows, first.note) == (("a",), None)
    question._due_s = 0.0
    wait_until(lambda: question.latest().note is not None)
    second = question.latest()
    assert (second.rows, second.at_ms, second.note) == (("a",), first.at_ms, "the target does not answer")


def test_a_damaged_ledger_and_a_lost_store_are_reported_and_the_page_stays(pipeline: LivePipeline) -> None:
    """What was read before stays; a store that was deleted is not made again."""
    reader = Reader(settings.load_pipeline(str(pipeline.root / "lakegate.yml")))
    assert "cannot be read" not in json.loads(reader.answer(""))["html"]
    file = next((pipeline.storage / "ledger").rglob("*.jsonl"))
    file.write_bytes(file.read_bytes() + b"{]\n")
    pipeline.close()
    for name in ("turns.db", "turns.db-wal", "turns.db-shm"):
        (pipeline.storage / name).unlink(missing_ok=True)
    wait_until(lambda: "Nobody has the turn." in json.loads(reader.answer(""))["html"])
    shown = json.loads(reader.answer(""))
    assert "The ledger cannot be read: a line of the ledger cannot be read" in shown["html"]
    assert shown["charts"]["charts"]
    assert not (pipeline.storage / "turns.db").exists()
    reader.close()


def test_the_next_job_is_the_one_that_gets_the_turn(pipeline: LivePipeline) -> None:
    """If the holder completes its turn; after a dead holder, whose turn is lost, its successor has to wait for it."""
    spec = settings.load_pipeline(str(pipeline.root / "lakegate.yml"))
    record, version = pipeline.store.read(LOCK).record, pipeline.store.read(LOCK).version
    assert record is not None
    ingestion = dataclasses.replace(record.jobs[JobName("Ingestion")], done=Epoch(1000))
    waits = dataclasses.replace(record, jobs={**record.jobs, JobName("Ingestion"): ingestion})
    assert pipeline.store.compare_and_set(LOCK, waits, version) == "done"
    assert status_of(spec)[0].next == "Mutation"
    pipeline.sessions.pop("Ingestion").close()
    assert status_of(spec)[0].next is None
    free = dataclasses.replace(record, holder=None)
    assert pipeline.store.compare_and_set(LOCK, free, version + 1) == "done"
    assert status_of(spec)[0].next == "Mutation"


def test_hostile_texts_are_escaped(pipeline: LivePipeline) -> None:
    """Names in a record, reasons in the ledger, the reason of a pause."""
    evil = "</td><script>alert(1)</script>\u202e" + "x" * 5_000
    pipeline.hold(evil, epoch=1101, waiting=evil, paused=evil)
    row = TurnRow(
        lock=LOCK, job=evil, run="r9", epoch=3, asked_at_ms=1, granted_at_ms=2, outcome=Outcome.FAILED, reason=evil
    )
    pipeline.end(row)
    with served(pipeline.root) as port:
        shown = html(port)
        body = ask(port, f"/{TOKEN}/state")[2]
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "\u202e" not in shown
    assert "\\u202e" not in body.replace("\\\\u202e", "")


def test_ctrl_c_ends_it_and_a_taken_port_is_an_error(pipeline: LivePipeline) -> None:
    """The address is printed first; SIGINT ends it with 130, as the other commands that serve."""
    command = [sys.executable, "-m", "lakegate", "status", "--web", "--spec", str(pipeline.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        host, _, rest = address.removeprefix("http://").partition("/")
        port = int(host.removeprefix("127.0.0.1:"))
        assert len(rest) > 30
        assert ask(port, f"/{rest}state")[0] == 200
        assert ask(port, "/")[0] == 404
        ran = lakegate("status", "--web", "--port", str(port), "--spec", pipeline.root)
        assert ran.code == 6
        assert ran.err.startswith(
            f"lakegate: the page cannot be served at 127.0.0.1:{port}: Address already in use. Leave"
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        assert children == "", "a JVM was started"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S_MAX) == 130
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_without_the_extra_the_error_names_it(pipeline: LivePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of `status` needs it."""
    for name in ("uvicorn", "starlette"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            ran = lakegate("status", "--web", "--spec", pipeline.root)
            assert (ran.code, "pip install 'lakegate[web]'" in ran.err) == (7, True)
            assert lakegate("status", "--spec", pipeline.root).code == 0


def test_options_that_do_not_go_together_are_refused(pipeline: LivePipeline) -> None:
    """A page has no JSON form and needs no repetition."""
    for options in (["--watch"], ["--fail-if-late"], ["--output", "json"]):
        ran = lakegate("status", "--web", *options, "--spec", pipeline.root)
        assert (ran.code, "--web excludes" in ran.err) == (2, True)
