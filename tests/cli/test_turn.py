"""Other programs in turns: one at a time, and ended with their turn, whichever process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.proxy import Proxy
from lakegate.demo.servers import zookeeper
from lakegate.ops.external_command import _Program
from lakegate.spark.java import JavaSources
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.host import is_running, start_of
from lakegate.turns.stores.sqlite import SqliteTurnStore

LIMIT_S = 60
LEASE_S = 8.0


def turn(
    folder: Path, job: str, *command: str, options: tuple[str, ...] = (), url: str | None = None
) -> subprocess.Popen[str]:
    """`lakegate turn` as a process of its own; the ledger is in the folder, and so are the turns if no other place is named."""
    place = ("--coordinator", url or f"sqlite:{folder}/turns.db")
    return subprocess.Popen(
        [sys.executable, "-m", "lakegate", "turn", "--lock", "L", "--job", job, *place, *options, "--", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def pid_in(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


def outcomes(folder: Path) -> list[tuple[str, str]]:
    return [(row.job, row.outcome) for row in read_ledger(str(folder / "_lakegate"))]


def test_a_program_runs_in_a_turn_and_gets_its_epoch(tmp_path: Path) -> None:
    """Its output, its input and its exit status are its own; one that fails has not completed its turn."""
    code, out, err = ended(turn(tmp_path, "J", "sh", "-c", "echo $LAKEGATE_LOCK $LAKEGATE_JOB $LAKEGATE_EPOCH"))
    assert (code, out.split()[:2], err) == (0, ["L", "J"], "")
    code, again, _ = ended(turn(tmp_path, "J", "sh", "-c", "echo $LAKEGATE_LOCK $LAKEGATE_JOB $LAKEGATE_EPOCH; exit 9"))
    assert code == 9
    assert int(again.split()[2]) == int(out.split()[2]) + 1
    record = SqliteTurnStore(str(tmp_path / "turns.db")).read("L").record
    assert record is not None
    assert record.holder is None
    assert record.job("J").done == int(out.split()[2])
    assert outcomes(tmp_path) == [("J", "completed"), ("J", "failed")]


def test_two_programs_are_never_in_their_turns_at_once(tmp_path: Path) -> None:
    """Each finds the other's mark gone."""
    guarded = "test ! -e mark && touch mark && sleep 0.3 && rm mark"
    running = [turn(tmp_path, f"J{n}", "sh", "-c", guarded) for n in range(4)]
    assert [ended(one)[0] for one in running] == [0] * 4


def test_a_program_that_cannot_be_run_is_said(tmp_path: Path) -> None:
    """As a shell says it."""
    code, _, err = ended(turn(tmp_path, "J", "no-such-program"))
    assert (code, "no-such-program: No such file" in err) == (127, True)
    code, _, err = ended(turn(tmp_path, "J"))
    assert (code, "no command was given" in err) == (2, True)


@pytest.mark.slow
def test_without_the_turn_nothing_is_run(tmp_path: Path) -> None:
    """The exit status is that of a turn that was not granted."""
    first = turn(tmp_path, "A", "sh", "-c", "touch started; sleep 60")
    try:
        wait_for((tmp_path / "started").exists)
        code, _, err = ended(turn(tmp_path, "B", "touch", "never", options=("--timeout", "1s")))
        assert code == 3
        assert "B was not given the turn on L" in err
        assert not (tmp_path / "never").exists()
    finally:
        first.send_signal(signal.SIGTERM)
        assert ended(first)[0] == 128 + signal.SIGTERM
    assert outcomes(tmp_path) == [("B", "gave_up"), ("A", "failed")]


def test_when_the_command_is_killed_its_program_is_gone_before_the_next_turn(tmp_path: Path) -> None:
    """kill -9 of the process that guards the turn; only the kernel is left to end the program."""
    first = turn(tmp_path, "A", "sh", "-c", "echo $$ > pid; trap '' TERM; sleep 600 & wait; sleep 600")
    pid = pid_in(tmp_path / "pid")
    start = start_of(pid)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    code, out, _ = ended(turn(tmp_path, "B", sys.executable, "-c", ASKS, str(pid), str(start)))
    assert (code, json.loads(out)) == (0, False)
    assert not is_running(pid, start)


def test_what_the_program_has_started_ends_with_it(tmp_path: Path) -> None:
    """The program itself ends at the first signal; its child process ignores signals."""
    deaf = f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 600; sleep 600"
    program = _Program(["sh", "-c", f'sh -c "{deaf.replace("$", chr(92) + "$")}" & wait'])
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(program.run, {})
        pid = pid_in(tmp_path / "pid")
        start = start_of(pid)
        program.end()
        assert status.result() == 128 + signal.SIGTERM
    wait_for(lambda: not is_running(pid, start))
    program.end()


ASKS = "import sys; from lakegate.turns.host import is_running; print(str(is_running(*map(int, sys.argv[1:]))).lower())"


def test_a_lost_turn_ends_the_program_or_is_reported_to_it(tmp_path: Path) -> None:
    """The run's own file is gone: the run does not count as alive, so its work does not count as done."""
    first = turn(tmp_path, "A", "sh", "-c", "touch started; while test ! -e go; do sleep 0.1; done")
    wait_for((tmp_path / "started").exists)
    for file in tmp_path.rglob("*"):
        if file.is_file() and "session" in str(file.relative_to(tmp_path)):
            file.unlink()
    (tmp_path / "go").touch()
    code, _, err = ended(first)
    assert (code, "the turn was lost" in err) == (5, True)


@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_program_whose_turn_is_lost_is_gone_before_its_lease_ends(java_from: JavaSources, tmp_path: Path) -> None:
    """The network to ZooKeeper is silent; the program does not listen to SIGTERM, and is killed before others may begin."""
    deaf = "trap '' TERM; echo $$ > pid; while true; do sleep 600; done"
    with zookeeper(tmp_path, java=java_from) as (node,), Proxy(node.port) as network:
        url = f"zookeeper://{network.address}/turns?session_timeout={LEASE_S:g}s&call_timeout=10s"
        first = turn(tmp_path, "A", "sh", "-c", deaf, url=url)
        try:
            pid = pid_in(tmp_path / "pid")
            start = start_of(pid)
            network.be("blackhole")
            cut_s = time.monotonic()
            wait_for(lambda: not is_running(pid, start))
            assert time.monotonic() - cut_s < LEASE_S
            network.be("pass")
            code, _, err = ended(first)
            assert (code, "the turn was lost, and sh was ended in the middle of it" in err) == (5, True), err
        finally:
            first.kill()
            first.communicate()
    assert outcomes(tmp_path) == [("A", "lost")]


@pytest.mark.parametrize("options", [("--timeout", "soon"), ("--properties", "none.conf")])
def test_bad_options_are_refused_before_anything_runs(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Exit status 2, and no program."""
    code, _, err = ended(turn(tmp_path, "J", "touch", "never", options=options))
    assert (code, bool(err)) == (2, True)
    assert not (tmp_path / "never").exists()
