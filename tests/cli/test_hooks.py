"""Hooks through the command: `hooks test`, a sync, and streams whose processes are children of the one that was started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lakegate.cli.app import Output
from lakegate.cli.processes import Processes
from lakegate.cli.progress import Printer
from lakegate.cli.run import _Watch
from lakegate.demo.database_servers import fresh_sqlite
from lakegate.telemetry.events import to_json
from lakegate.telemetry.hook_messages import Hook
from lakegate.telemetry.hooks import Hooks
from lakegate.turns.lateness import LateStreams
from tests.cli.command import lakegate
from tests.cli.sync_of_people import CLASH, SWAP, bring, pipeline, sync
from tests.syncs.envelopes import postgres, write
from tests.telemetry.ended_turns import turn
from tests.telemetry.webhooks import receiver

STREAM = '{table: t, source: {files: ./in, format: json, schema: "id STRING"}, on_bad_record: dead_letter, append: {}}'


def spec(root: Path, hooks: str, *streams: str) -> Path:
    text = "name: p\nstorage: ./_lakegate\ntables: {t: {path: ./table, lock: L}}\nstreams:\n"
    text += "".join(f"  {name}: {STREAM}\n" for name in streams or ("In",))
    (root / "lakegate.yml").write_text(text + hooks)
    return root


def test_a_test_message_is_sent_to_each_hook(tmp_path: Path) -> None:
    """The exit status is 6 if one does not accept it; no output repeats an address."""
    with receiver() as to:
        command = f"{{command: [{sys.executable}, -c, raise SystemExit(1)]}}"
        root = spec(tmp_path, f'on_event:\n  ops: {{webhook: "{to.url}"}}\n  page: {command}\n')
        ran = lakegate("hooks", "test", "ops", "--spec", root)
        assert (ran.code, ran.out, ran.err) == (0, "ops: accepted\n", "")
        assert [(message["event"], message["pipeline"]) for message in to.messages] == [("test", "p")]
        both = lakegate("hooks", "test", "--spec", root)
        assert (both.code, both.out) == (6, "ops: accepted\npage: the command ended with exit status 1\n")
        assert "1 of 2 hooks did not accept the message: page" in both.err
        rows = lakegate("hooks", "test", "ops", "--spec", root, "--output", "json").json
        assert rows == {"format": 1, "hooks": [{"hook": "ops", "error": None}]}
        shown = lakegate("config", "show", "--spec", root)
        assert "on_event.ops.webhook" in shown.out
        assert "s3cr3t" not in both.out + both.err + shown.out
    unknown = lakegate("hooks", "test", "nobody", "--spec", root)
    assert (unknown.code, "The hooks are: ops, page" in unknown.err) == (2, True)
    none = lakegate("hooks", "test", "--spec", spec(tmp_path, ""))
    assert (none.code, "Add a section on_event: to lakegate.yml" in none.err) == (2, True)


def test_a_sync_reports_the_rows_that_it_quarantines_and_its_child_does_not(tmp_path: Path) -> None:
    """A child prints its events for its parent."""
    with receiver() as to:
        root = pipeline(tmp_path, settings="on_violation: quarantine")
        with (root / "lakegate.yml").open("a") as file:
            file.write(f'on_event: {{ops: {{webhook: "{to.url}"}}}}\n')
        bring(root, "1", SWAP)
        bring(root, "2", CLASH)
        assert sync(root, "run", "--once").code == 0
        (message,) = to.messages
        assert (message["event"], message["job"], message["lock"]) == ("dead_letters", "crm", None)
        assert message["details"] == {"batch": 1, "dead_letters": 1}
        bring(root, "3", [{**one, "seq": one["seq"] + 9} for one in CLASH[:1]])
        child = subprocess.Popen(
            [sys.executable, "-m", "lakegate", "sync", "run", "--once", "--child", "--output", "jsonl"],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            lines = [json.loads(line) for line in child.stdout]
        assert [(line["event"], line.get("dead")) for line in lines] == [("BatchApplied", 1), ("SyncReport", None)]
        assert len(to.messages) == 1


def test_a_sync_that_is_behind_is_one_message_for_each_run_that_begins_so(tmp_path: Path) -> None:
    """Changes of long ago: it is behind when they are applied, and level when the source has no more."""
    fresh_sqlite(tmp_path).execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    target = next(tmp_path.glob("*.db"))
    hook = "{command: [sh, -c, 'cat >>messages; echo >>messages'], events: sync_behind}"
    (tmp_path / "lakegate.yml").write_text(
        f"name: p\nsync: {{crm: {{from: {{files: c, format: debezium}}, to: 'sqlite:{target}'}}}}\non_event: {{page: {hook}}}\n"
    )
    for number in (1, 2):
        write(tmp_path / "c" / str(number), postgres(number, ts_ms=1_700_000_000_000))
        ran = subprocess.run(
            [sys.executable, "-m", "lakegate", "sync", "run", "--until-idle", "--output", "jsonl"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        assert [(one["event"], one.get("is_behind")) for one in events] == [
            ("BatchApplied", None),
            ("SyncBehind", True),
            ("SyncBehind", False),
            ("SyncReport", None),
        ]
        messages = [json.loads(line) for line in (tmp_path / "messages").read_text().splitlines()]
        assert [(one["event"], one["job"]) for one in messages] == [("sync_behind", "crm")] * number


def test_what_children_print_is_sent_once_by_their_parent() -> None:
    """A lost turn that two children report: the one that closed it, and the one that was started again."""
    by_other, by_itself = ({**to_json(turn("lost")), "closed_by": by} for by in ("Out", None))
    with receiver() as to:
        hooks = Hooks("p", [Hook(name="ops", webhook=to.url)])
        streams = LateStreams(None, [])  # type: ignore[arg-type]  # nobody looks
        watch = _Watch(Printer(Output.JSON), hooks, streams, "memory:")
        processes = Processes({"In": [], "Out": []}, show=watch.show)
        for child, event in zip(processes._children, (by_itself, by_other), strict=True):
            child.command = [sys.executable, "-c", f"print({json.dumps(json.dumps(event))})"]
        assert processes.run()[0] == [0, 0]
        hooks.close()
        assert [message["event"] for message in to.messages] == ["lost"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_of_several_processes_sends_each_message_once(tmp_path: Path) -> None:
    """Both streams set a record aside; their processes are children, and only the process that was started sends."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"id": "a"}\n{broken s3cr3t\n')
    with receiver() as to:
        root = spec(tmp_path, f'on_event: {{ops: {{webhook: "{to.url}"}}}}\n', "One", "Two")
        ran = lakegate("run", "--once", "--spec", root)
        assert ran.code == 0, ran.err
        found = sorted(
            (message["event"], message["job"], message["details"]["dead_letters"]) for message in to.messages
        )
    assert found == [("dead_letters", "One", 1), ("dead_letters", "Two", 1)]
    assert ran.err.count("1 record set aside") == 2
    assert "s3cr3t" not in json.dumps(to.messages)
