"""Mutate streams on real Delta tables: each case that real data does not contain, and a crash at every step."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.errors import InvalidRequest
from tests.replay import Change, Mutations, Replay
from tests.stream_bench import DAY_MS, Crash
from tests.streams.three_streams import RECORD, REQUEST, bench, foreign, persons, records, requests

MOVE = {"match": {"person": "alias"}, "set_": {"person": "person"}, "delete_when": "op = 'delete'"}


def test_standing_requests_change_what_is_there_and_what_comes(session: SparkSession, tmp_path: Path) -> None:
    """`arrived_and_later`: the last request of a key decides on later rows; no match is no error."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    result = b.run("Mut", requests("a>p", "c>q", "a>r"), REQUEST, 0)
    assert (result.rows_in, result.rows_written) == (3, 1)
    b.run("In", records("3:a", "4:c", "5:b"), RECORD, 1)
    assert persons(b) == {"1": "r", "2": "b", "3": "r", "4": "q", "5": "b"}
    assert b.states("Mut") == {"file0#0": "superseded", "file0#1": "applied", "file0#2": "applied"}
    assert not b.stream("Mut").has_sweep_work()
    assert b.stream("Mut").idle_at() == {b.target: b.log.head(b.target)}


@pytest.mark.also_without_caches
def test_delete_then_update_of_one_key(session: SparkSession, tmp_path: Path) -> None:
    """In one batch (a) as in two (b): rows that are there are deleted, later rows follow the update."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("a-", "a>p", "b-"), REQUEST, 0)
    b.run("Mut", requests("b>p"), REQUEST, 1)
    b.run("In", records("4:a", "5:b"), RECORD, 1)
    assert persons(b) == {"3": "c", "4": "p", "5": "p"}


def test_a_key_of_two_columns_matches_rows_with_both_values(session: SparkSession, tmp_path: Path) -> None:
    """The values of two keys, one of each, are no key: such rows are not counted, and the table has no commit."""
    b = bench(session, tmp_path, match={"id": "CAST(n AS STRING)", "person": "alias"})
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    head = b.log.head(b.target)
    crossed = b.run("Mut", [(1, "b", "x", "set"), (2, "a", "x", "set")], REQUEST, 0)
    assert (crossed.rows_written, b.log.head(b.target)) == (0, head)
    assert b.run("Mut", [(1, "a", "p", "set"), (2, "a", "y", "set")], REQUEST, 1).rows_written == 1
    assert persons(b) == {"1": "p", "2": "b"}


@pytest.mark.slow
def test_null_keys_and_late_sequences(session: SparkSession, tmp_path: Path) -> None:
    """No key, no sequence: dead with a reason. A lower sequence: superseded, in this batch or a later one, never applied."""
    b = bench(session, tmp_path, sequence_by="CASE WHEN n < 90 THEN n END")
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    first = [(5, "a", "p5", "set"), (3, "a", "p3", "set"), (1, None, "x", "set"), (99, "b", "x", "set")]
    b.run("Mut", first, REQUEST, 0)
    assert b.states("Mut") == {
        "file0#0": "applied",
        "file0#1": "superseded",
        "file0#2": "dead",
        "file0#3": "dead",
    }
    b.run("Mut", [(4, "a", "p4", "set"), (5, "a", "again", "set")], REQUEST, 1)
    assert b.requests("Mut")["file1#0"][0] == "superseded"
    b.run("In", records("3:a"), RECORD, 1)
    assert persons(b) == {"1": "again", "2": "b", "3": "again"}


CHAINS = {
    "a lead, a contact, another": (["L>C", "C>D"], {"1": "D", "2": "D", "3": "D", "4": "D"}),
    "and back": (["L>C", "C>L"], {"1": "L", "2": "L", "3": "L", "4": "L"}),
    "the other way round": (["C>D", "L>C"], {"1": "C", "2": "D", "3": "C", "4": "D"}),
    "deleted on the way": (["L>C", "C-"], {}),
}


@pytest.mark.slow
def test_moved_keys_compose_in_source_order(session: SparkSession, tmp_path: Path) -> None:
    """A lead that becomes a contact that becomes another: rows there and later rows go the whole way, in two batches too.

    Each case has its own names in one table.
    """
    b = bench(session, tmp_path, **MOVE)

    def named(case: int, *texts: str) -> list[str]:
        return [re.sub(r"(?<![0-9])([A-Z0-9])", rf"{case}.\1", text) for text in texts]

    cases = list(enumerate(CHAINS.values()))
    b.run("In", records(*[row for case, _ in cases for row in named(case, "1:L", "2:C")]), RECORD, 0)
    for batch in (0, 1):
        said = [text for case, (texts, _) in cases for text in named(case, texts[batch])]
        b.run("Mut", requests(*said), REQUEST, batch)
    b.run("In", records(*[row for case, _ in cases for row in named(case, "3:L", "4:C")]), RECORD, 1)
    assert persons(b) == {
        f"{case}.{id_}": f"{case}.{person}" for case, (_, expected) in cases for id_, person in expected.items()
    }


@pytest.mark.slow
def test_request_waits_until_it_has_matched_once(session: SparkSession, tmp_path: Path) -> None:
    """`arrived`: the kept requests of a silent topic meet later rows, in order, once; and the job reports that it has work."""
    b = bench(session, tmp_path, applies_to="arrived")
    b.run("In", records("1:a"), RECORD, 0)
    result = b.run("Mut", requests("a>p", "c-", "c>q"), REQUEST, 0)
    assert (result.requests_matched, result.requests_waiting) == (1, 2)
    assert not b.stream("Mut").has_sweep_work()
    b.run("In", records("2:a", "3:c"), RECORD, 1)
    assert b.stream("Mut").has_sweep_work()
    assert b.sweep("Mut", 0).requests_matched == 1
    assert persons(b) == {"1": "p", "2": "a"}
    assert b.states("Mut") == {"file0#0": "applied", "file0#1": "applied", "file0#2": "waiting"}
    assert not b.stream("Mut").has_sweep_work()
    b.run("In", records("4:c"), RECORD, 2)
    b.session.sql(f"OPTIMIZE delta.`{b.target}`").collect()  # mixes rows that were tested with one that was not
    assert b.stream("Mut").has_sweep_work()
    b.sweep("Mut", 1)
    assert persons(b) == {"1": "p", "2": "a", "4": "q"}
    b.run("In", records("5:c"), RECORD, 3)
    assert not b.stream("Mut").has_sweep_work()
    assert persons(b)["5"] == "c"


@pytest.mark.matrix
def test_never_matched_request_dies_after_its_time(session: SparkSession, tmp_path: Path) -> None:
    """`unmatched`: after `retry_for` a request that never matched is a dead letter; one that was replayed waits again."""
    from lakegate.streams.requests.admin import drop_requests, list_requests, replay_requests

    b = bench(session, tmp_path, applies_to="arrived")
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("c>q", "d>q"), REQUEST, 0)
    b.clock.now_ms += 31 * DAY_MS
    assert b.stream("Mut").has_sweep_work()
    b.sweep("Mut", 0)
    assert b.requests("Mut")["file0#0"] == ("dead", "no row has matched within 30d")
    assert not b.stream("Mut").has_sweep_work()
    b.run("In", records("2:c"), RECORD, 1)
    spec = b.streams[1]
    ids = {request.source_position or "": request.request_id for request in list_requests(b.context(), spec, ["dead"])}
    assert replay_requests(b.turn("ops", 0), b.context(), spec, [ids["file0#0"]]) == 1
    assert drop_requests(b.turn("ops", 1), b.context(), spec, [ids["file0#1"]], reason="asked for twice") == 1
    assert b.stream("Mut").has_sweep_work()
    b.sweep("Mut", 1)
    assert persons(b) == {"1": "a", "2": "q"}
    assert b.states("Mut") == {"file0#0": "applied"}


@pytest.mark.matrix
def test_standing_request_ends_after_its_time(session: SparkSession, tmp_path: Path) -> None:
    """`stand_for`: later rows meet the request until its time is over."""
    b = bench(session, tmp_path, stand_for_ms=DAY_MS)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("a>p"), REQUEST, 0)
    b.run("In", records("2:a"), RECORD, 1)
    b.clock.now_ms += 2 * DAY_MS
    b.run("In", records("3:a"), RECORD, 2)
    assert persons(b) == {"1": "p", "2": "p", "3": "a"}


@pytest.mark.matrix
def test_rows_of_others_follow_at_the_next_sweep(session: SparkSession, tmp_path: Path) -> None:
    """Rows appended by a writer without turns meet the active requests when the stream sweeps; then the stream is idle."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("a>p", "b-"), REQUEST, 0)
    foreign(b, ("8", "a", "a"), ("9", "b", "b"))
    assert b.stream("Mut").has_sweep_work()
    b.sweep("Mut", 0)
    assert persons(b) == {"1": "p", "8": "p"}
    assert not b.stream("Mut").has_sweep_work()


@pytest.mark.matrix
def test_moved_keys_of_others_rows_only(session: SparkSession, tmp_path: Path) -> None:
    """Where keys move, a sweep moves the new rows of a key and not those that were moved there on purpose."""
    b = bench(session, tmp_path, **MOVE)
    b.run("In", records("1:L"), RECORD, 0)
    b.run("Mut", requests("C>D", "L>C"), REQUEST, 0)
    foreign(b, ("8", "C", "C"), ("9", "L", "L"))
    b.sweep("Mut", 0)
    assert persons(b) == {"1": "C", "8": "D", "9": "C"}
    assert not b.stream("Mut").has_sweep_work()


@pytest.mark.matrix
@pytest.mark.parametrize("step", ["apply", "settle"])
def test_a_sweep_that_ended_between_its_steps_moves_no_row_twice(
    session: SparkSession, tmp_path: Path, step: str
) -> None:
    """A row that it has moved to another key is not a new row of that key; one that came since is."""
    b = bench(session, tmp_path, **MOVE)
    b.run("In", records("1:L"), RECORD, 0)
    b.run("Mut", requests("C>D", "L>C"), REQUEST, 0)
    foreign(b, ("8", "C", "C"), ("9", "L", "L"))
    with pytest.raises(Crash):
        b.sweep("Mut", 0, crash_after=frozenset({step}))
    assert persons(b) == {"1": "C", "8": "D", "9": "C"}
    foreign(b, ("10", "C", "C"))
    for batch in (1, 2):
        if b.stream("Mut").has_sweep_work():
            b.sweep("Mut", batch)
    assert persons(b) == {"1": "C", "8": "D", "9": "C", "10": "D"}
    assert not b.stream("Mut").has_sweep_work()


STEPS = ["store", "apply", "settle"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "applies_to"), [*[(step, "arrived_and_later") for step in STEPS], ("apply", "arrived")]
)
def test_crash_after_each_step_repeats_the_rest_only(
    session: SparkSession, tmp_path: Path, step: str, applies_to: str
) -> None:
    """The stored batch is applied and its outcome recorded, even if other streams had turns between crash and repetition."""
    b = bench(session, tmp_path, applies_to=applies_to)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    said = requests("b-", "b>p", "a>q", "c>r")
    with pytest.raises(Crash):
        b.run("Mut", said, REQUEST, 0, crash_after=frozenset({step}))
    b.run("In", records("3:b"), RECORD, 1)
    again = b.turn("Mut", 0)
    b.stream("Mut").run_batch(again, b.batch(said, REQUEST, 0), 0)
    assert again.written == STEPS[STEPS.index(step) + 1 :]
    states = b.states("Mut")
    if applies_to == "arrived_and_later":
        assert states == {"file0#0": "superseded", "file0#1": "applied", "file0#2": "applied", "file0#3": "applied"}
    else:
        assert states == {"file0#0": "applied", "file0#1": "waiting", "file0#2": "applied", "file0#3": "waiting"}
        if b.stream("Mut").has_sweep_work():
            b.sweep("Mut", 0)
    assert persons(b)["1"] == "q"
    # If the deletion was applied before the crash, a row that was added afterwards is a later one, and stays.
    assert ("3" in persons(b)) == (step != "store")


@pytest.mark.matrix
def test_the_outcome_of_an_applied_batch_is_recorded_however_old_it_is(session: SparkSession, tmp_path: Path) -> None:
    """Delta refuses time travel beyond the time that a table keeps removed files: a week, or the time of its property."""
    b = bench(session, tmp_path, applies_to="arrived")
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    session.sql(
        f"ALTER TABLE delta.`{b.target}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 second')"
    )
    said = requests("a>q", "c>r")
    with pytest.raises(Crash):
        b.run("Mut", said, REQUEST, 0, crash_after=frozenset({"apply"}))
    time.sleep(1.5)
    b.run("In", records("3:b"), RECORD, 1)
    b.run("Mut", said, REQUEST, 0)
    assert b.states("Mut") == {"file0#0": "applied", "file0#1": "waiting"}
    assert persons(b) == {"1": "q", "2": "b", "3": "b"}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("moves_rows", [False, True])
def test_rows_meet_requests_that_were_applied_without_a_recorded_outcome(
    session: SparkSession, tmp_path: Path, step: str, moves_rows: bool
) -> None:
    """A run ended between two steps: any job with a turn before the next run finds the batch applied as a whole, or not at all."""
    b = bench(session, tmp_path, **(MOVE if moves_rows else {}))
    b.run("In", records("1:a", "2:x"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    said = requests("a>q", "y>z", "d>p", "d-")
    with pytest.raises(Crash):
        b.run("Mut", said, REQUEST, 1, crash_after=frozenset({step}))
    b.run("In", records("3:a", "4:x", "5:c", "6:d"), RECORD, 1)
    b.stream("Mut").run_batch(b.turn("Mut", 1), b.batch(said, REQUEST, 1), 1)
    moved: dict[str, str] = {"2": "z", "4": "z", "6": "p"} if moves_rows else {"2": "y", "4": "y"}
    assert persons(b) == {"1": "q", "3": "q", "5": "c", **moved}
    assert not b.stream("Mut").has_sweep_work()


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_erased_persons_stay_away_before_the_outcome_of_their_erasure_is_recorded(
    session: SparkSession, tmp_path: Path, step: str
) -> None:
    """Rows of a person whose rows are gone already do not come in, and none is moved to them; lifted ones do come in."""
    b = bench(session, tmp_path)
    erasures = "person string, op string"
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("TTL", [("b", "erase")], erasures, 0)
    said = [("a", "erase"), ("b", "lift")]
    with pytest.raises(Crash):
        b.run("TTL", said, erasures, 1, crash_after=frozenset({step}))
    b.run("In", records("4:a", "5:b"), RECORD, 1)
    b.run("Mut", requests("c>a"), REQUEST, 0)
    if step != "store":
        assert persons(b) == {"5": "b"}
    b.stream("TTL").run_batch(b.turn("TTL", 1), b.batch(said, erasures, 1), 1)
    # Was it stored only, then it comes after those rows, of which the one whose erasure stood then is away.
    assert persons(b) == ({} if step == "store" else {"5": "b"})
    assert not b.stream("TTL").has_sweep_work()


@pytest.mark.matrix
def test_a_batch_cut_anywhere_gives_the_same_table(session: SparkSession, tmp_path: Path) -> None:
    """Where the source is cut into two batches changes nothing: chains, deletions, erased persons, later rows.

    Each cut has its own names in one table.
    """
    said = ["a>b", "b>c", "x>E", "c-", "d>a", "x>y", "b>d", "e>e", "d>e", "f>E", "a>f", "y>z"]
    names = "abcdefxyzE"
    replay = Replay(mutations={"Mut": Mutations(is_standing=True, moves_rows=True)})
    replay.append([{"id": f"early {name}", "person": name} for name in names])
    replay.erase(["E"])
    changes = [(text.rstrip("-").split(">"), text.endswith("-")) for text in said]
    replay.mutate("Mut", [Change(key={"person": p[0]}, set=None if d else {"person": p[1]}) for p, d in changes])
    replay.append([{"id": f"late {name}", "person": name} for name in names])
    expected = {str(row["id"]): str(row["person"]) for row in replay.rows}

    cuts = range(len(said) + 1)

    def batch(cut: int, texts: list[str]) -> list[str]:
        return [re.sub(r"(\w)", rf"{cut}.\1", text) for text in texts]

    b = bench(session, tmp_path, **MOVE)
    b.run("In", [(f"{cut} early {name}", f"{cut}.{name}") for cut in cuts for name in names], RECORD, 0)
    b.run("TTL", [(f"{cut}.E", "erase") for cut in cuts], "person string, op string", 0)
    b.run("Mut", requests(*[text for cut in cuts for text in batch(cut, said[:cut])]), REQUEST, 0)
    b.run("Mut", requests(*[text for cut in cuts for text in batch(cut, said[cut:])]), REQUEST, 1)
    b.run("In", [(f"{cut} late {name}", f"{cut}.{name}") for cut in cuts for name in names], RECORD, 1)
    assert persons(b) == {f"{cut} {id_}": f"{cut}.{person}" for cut in cuts for id_, person in expected.items()}


@pytest.mark.slow
def test_a_changed_match_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Requests that were stored for other columns are not mixed with new ones; a column that is not there is named."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("a>p"), REQUEST, 0)
    other = bench(session, tmp_path, match={"id": "alias"})
    with pytest.raises(InvalidRequest, match="stored for other columns"):
        other.run("Mut", requests("a>p"), REQUEST, 1)
    with pytest.raises(InvalidRequest, match=r"Mut\.mutate\.match\.nobody"):
        bench(session, tmp_path, match={"nobody": "alias"}).run("Mut", requests("a>p"), REQUEST, 1)
