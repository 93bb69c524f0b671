"""Erase streams on real Delta tables, and all three kinds interleaved at random against a plain replay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.config import Append, Erase
from tests.replay import Change, Mutations, Replay
from tests.stream_bench import Bench, Crash, mutate, stream, table

RECORD = "id string, alias string"
COLUMNS = "id STRING, alias STRING, person STRING"
REQUEST = "alias string, person string, op string"
ERASURE = "person string, op string"


def bench(
    session: SparkSession, root: Path, *, erase: Erase | None = None, columns: str = COLUMNS, **kind: Any
) -> Bench:
    """Ingestion, a mutate stream that sets the person of an alias, and one that erases persons; dead letters are kept."""
    given = {"match": {"alias": "alias"}, "set_": {"person": "person"}, "delete_when": "op = 'delete'", **kind}
    streams = (
        stream("In", Append(columns={"person": "alias"}), on_bad_record="dead_letter"),
        stream("Mut", mutate(**given)),
        stream("TTL", erase or Erase(match={"person": "person"}, lift_when="op = 'lift'")),
    )
    return Bench(session, str(root), streams, table(columns))


def ids(b: Bench) -> list[str]:
    return [row[0] for row in b.rows("id")]


def test_rows_of_an_erased_person_never_come_back(session: SparkSession, tmp_path: Path) -> None:
    """A late row after its erasure, an alias that leads to an erased person, a mutation into one: none is ever in the table."""
    b = bench(session, tmp_path)
    b.run("In", [("1", "a"), ("2", "P"), ("3", "b")], RECORD, 0)
    b.run("Mut", [("a", "P", "set")], REQUEST, 0)
    assert b.run("TTL", [("P", "erase"), ("nobody", "erase")], ERASURE, 0).rows_written == 2
    assert ids(b) == ["3"]
    b.run("In", [("4", "P"), ("5", "a"), ("6", "b")], RECORD, 1)
    assert ids(b) == ["3", "6"]
    first = b.log.head(b.target)
    b.run("Mut", [("b", "P", "set")], REQUEST, 1)
    assert ids(b) == []
    for version in range(first, b.log.head(b.target) + 1):
        assert "P" not in {row[0] for row in b.rows("person", version=version)}


@pytest.mark.matrix
def test_mutation_out_of_an_erased_person_concerns_later_rows(session: SparkSession, tmp_path: Path) -> None:
    """Rows gone stay gone; rows of the alias that come later follow the mutation that leads elsewhere."""
    b = bench(session, tmp_path)
    b.run("In", [("1", "a")], RECORD, 0)
    b.run("TTL", [("P", "erase")], ERASURE, 0)
    b.run("Mut", [("a", "P", "set"), ("a", "Q", "set")], REQUEST, 0)
    assert ids(b) == []
    b.run("In", [("2", "a")], RECORD, 1)
    assert b.rows("id", "person") == [("2", "Q")]


@pytest.mark.slow
def test_lift_and_return(session: SparkSession, tmp_path: Path) -> None:
    """A person who comes back has rows from then on; in one batch, erase and lift still delete what was there."""
    b = bench(session, tmp_path)
    b.run("In", [("1", "P"), ("2", "Q")], RECORD, 0)
    b.run("TTL", [("P", "erase")], ERASURE, 0)
    b.run("TTL", [("P", "lift"), ("Q", "erase"), ("Q", "lift")], ERASURE, 1)
    assert ids(b) == []
    b.run("In", [("3", "P"), ("4", "Q")], RECORD, 1)
    assert ids(b) == ["3", "4"]
    assert b.states("TTL") == {
        "file0#0": "superseded",
        "file1#0": "applied",
        "file1#1": "superseded",
        "file1#2": "applied",
    }


@pytest.mark.slow
def test_kept_requests_and_dead_letters_of_the_person_go_too(session: SparkSession, tmp_path: Path) -> None:
    """What other streams keep about an erased person is deleted in the same turn; a crash before `settle` repeats nothing."""
    b = bench(session, tmp_path, applies_to="arrived")
    b.run("In", [("1", "a"), ("!", '{"person":"P"'), ("!", '{"person":"PP"')], RECORD, 0)
    b.run("Mut", [("x", "P", "set"), ("y", "Q", "set"), (None, "P", "set"), (None, "Q", "set")], REQUEST, 0)
    with pytest.raises(Crash):
        b.run("TTL", [("P", "erase")], ERASURE, 0, crash_before=frozenset({"settle"}))
    again = b.turn("TTL", 0)
    b.stream("TTL").run_batch(again, b.batch([("P", "erase")], ERASURE, 0), 0)
    # A statement that finds nothing to delete makes no commit, so it may be asked again.
    assert again.written[-1] == "settle"
    assert "store" not in again.written
    assert b.states("Mut") == {"file0#1": "waiting", "file0#3": "dead"}
    letters = session.read.format("delta").load(f"{tmp_path}/_lakegate/dead_letters/In")
    assert [row.raw for row in letters.collect()] == ['{"person":"PP"']
    assert b.states("TTL") == {"file0#0": "applied"}


@pytest.mark.matrix
def test_foreign_rows_of_an_erased_person_go_at_the_next_sweep(session: SparkSession, tmp_path: Path) -> None:
    """Rows that a writer without turns brings back make work for the erase stream, and are gone after it."""
    b = bench(session, tmp_path)
    b.run("In", [("1", "a")], RECORD, 0)
    b.run("TTL", [("P", "erase")], ERASURE, 0)
    assert not b.stream("TTL").has_sweep_work()
    session.createDataFrame([("9", "P", "P")], COLUMNS).write.format("delta").mode("append").save(b.target)
    assert b.stream("TTL").has_sweep_work()
    b.sweep("TTL", 0)
    assert ids(b) == ["1"]
    assert b.stream("TTL").idle_at() == {b.target: b.log.head(b.target)}


@pytest.mark.matrix
def test_person_named_by_columns_that_no_request_sets(session: SparkSession, tmp_path: Path) -> None:
    """An erasure by (org, person), a mutation that sets the person only: the row's own org decides, row by row."""
    columns = "id STRING, alias STRING, org STRING, person STRING"
    erase = Erase(match={"org": "org", "person": "person"}, lift_when=None)
    b = bench(session, tmp_path, erase=erase, columns=columns)
    record = "id string, alias string, org string"
    b.run("In", [("1", "a", "o1"), ("2", "a", "o2"), ("3", "a", None)], record, 0)
    b.run("TTL", [("o1", "P")], "org string, person string", 0)
    b.run("Mut", [("a", "P", "set"), ("a", "R", "set")], REQUEST, 0)
    assert b.rows("id", "person") == [("2", "R"), ("3", "R")]


SEEDS = [
    (1, False, False),
    pytest.param(2, False, False, marks=pytest.mark.matrix),
    pytest.param(3, True, False, marks=pytest.mark.matrix),
    pytest.param(4, True, False, marks=pytest.mark.matrix),
    # Of these numbers many an append comes between a change of rows and the end of its batch.
    *[pytest.param(seed, False, True, marks=pytest.mark.matrix) for seed in (239, 24, 157, 395, 74, 282)],
    *[pytest.param(seed, True, True, marks=pytest.mark.matrix) for seed in (77, 175, 194, 218)],
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "is_ahead", "may_crash"), SEEDS)
def test_streams_interleaved_at_random_equal_a_plain_replay(
    session: SparkSession, tmp_path: Path, seed: int, is_ahead: bool, may_crash: bool
) -> None:
    """Appends, mutations and erasures in any order of turns give the table that one-by-one replay gives.

    `is_ahead`: any batch may have been computed any number of turns before its own. `may_crash`: a run may end after any of its
    steps, and others have turns before its next one. Once the rows are changed the batch counts; before that it counts for nothing.
    """
    chance = random.Random(seed)
    moves_rows = seed % 2 == 0
    match = "person" if moves_rows else "alias"
    b = bench(session, tmp_path, match={match: "alias"})
    replay = Replay(mutations={"Mut": Mutations(is_standing=True, moves_rows=moves_rows)})
    names = "abcdef"
    # Delta tables are not changed before they are there.
    turns = ["In", *chance.choices(["In", "Mut", "TTL"], weights=[3, 4, 2], k=9)]
    kinds = {name: b.stream(name) for name in set(turns)}
    frames: list[tuple[str, int, Any, Any]] = []
    for turn, name in enumerate(turns):
        batch = turns[:turn].count(name)
        rows: list[Any]
        if name == "In":
            rows, schema = [(f"{turn}.{i}", chance.choice(names)) for i in range(6)], RECORD
        elif name == "Mut":
            ops = ["set", "set", "set", "delete"]
            rows = [(chance.choice(names), chance.choice(names), chance.choice(ops)) for _ in range(4)]
            schema = REQUEST
        else:
            rows = [(chance.choice(names), chance.choice(["erase", "erase", "lift"])) for _ in range(1 + may_crash)]
            schema = ERASURE
        frames.append((name, batch, rows, b.batch(rows, schema, batch)))
    done = dict.fromkeys(kinds, 0)
    computed: set[tuple[str, int]] = set()
    begun: dict[str, tuple[int, list[Any], Any, bool]] = {}

    def take_effect(name: str, rows: list[Any]) -> None:
        if name == "In":
            replay.append([{"id": id_, "alias": alias, "person": alias} for id_, alias in rows])
        elif name == "Mut":
            changes = [Change(key={match: k}, set=None if op == "delete" else {"person": p}) for k, p, op in rows]
            replay.mutate("Mut", changes)
        else:
            for person, op in rows:
                replay.erase([person], lift=op == "lift")

    def finish(name: str) -> None:
        number, rows, frame, has_taken_effect = begun.pop(name)
        kinds[name].run_batch(b.turn(name, number), frame, number)
        if not has_taken_effect:
            take_effect(name, rows)

    def compare(turn: object) -> None:
        assert dict(b.rows("id", "person")) == {str(row["id"]): row["person"] for row in replay.rows}, f"turn {turn}"

    for turn, (name, batch, rows, frame) in enumerate(frames):
        if name in begun:
            finish(name)
            compare(f"before {turn}")
        for other, number, _, later in frames[turn:] if is_ahead else ():
            is_next = number == done[other] and other not in begun
            if is_next and (other, number) not in computed and chance.random() < 0.5:
                kinds[other].stage(later, number, before=())
                computed.add((other, number))
        may_end = may_crash and name != "In" and chance.random() < 0.7
        ends_after = frozenset({chance.choice(["store", "apply", "settle"])} if may_end else ())
        before = b.log.head(b.target)
        try:
            kinds[name].run_batch(b.turn(name, batch, crash_after=ends_after), frame, batch)
            take_effect(name, rows)
        except Crash as crash:
            kinds[name] = b.stream(name)
            is_changed = str(crash) != "store" and b.log.head(b.target) > before
            begun[name] = (batch, rows, frame, is_changed or str(crash) == "settle")
            if begun[name][-1]:
                take_effect(name, rows)
        done[name] += 1
        compare(turn)
        if not begun:
            assert not b.stream("Mut").has_sweep_work()
            assert not b.stream("TTL").has_sweep_work()
    for name in list(begun):
        finish(name)
    compare("last")
