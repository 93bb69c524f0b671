"""Requests with coverage `publish` follow appends of their driver that are written, and whose turns come before theirs."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.delta.actions import Captured, Changes, FileChange
from lakegate.ids import TableLocation, Version
from lakegate.rows.committer import publisher
from lakegate.rows.conflict.commit_protocol import RebasedAhead, Speculation
from lakegate.rows.execution import Execution
from lakegate.streams.requests.apply import TargetRows
from lakegate.streams.requests.precompute import MatchedRows, PrecomputedChange
from lakegate.streams.requests.resolver import RequestReader
from tests.delta.delta_tables import commit_paths
from tests.stream_bench import Bench, Crash, table
from tests.streams.staged_batches import ERASURE, noting
from tests.streams.three_streams import COLUMNS, RECORD, REQUEST, bench, foreign, persons, records, requests
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

VECTORS = {"delta.enableDeletionVectors": "true"}
BEFORE = ["In"]


class Waiting:
    """An append that is written, and mutations that follow it, none of them put."""

    def __init__(self, b: Bench, *said: str, rows: tuple[str, ...]) -> None:
        self.b = b
        self.rows, self.row_frame = b.stream("In"), b.batch(records(*rows), RECORD, 1)
        self.rows.stage(self.row_frame, 1, before=())
        self.requests, self.request_frame = b.stream("Mut"), b.batch(requests(*said), REQUEST, 1)
        self.requests.stage(self.request_frame, 1, before=BEFORE)

    def append(self, **more: Any) -> None:
        """Puts the rows."""
        self.rows.run_batch(self.b.turn("In", 1, **more), self.row_frame, 1)

    def mutate(self) -> dict[str, int | None]:
        """Puts the requests; rows that each one has met."""
        self.requests.run_batch(self.b.turn("Mut", 1), self.request_frame, 1)
        return {row.source_position: row.matched_rows for row in self.b.request_rows("Mut") if row.batch == 1}


@pytest.fixture
def b(session: SparkSession, tmp_path: Path) -> Bench:
    """A table with rows, and a standing request that meets none."""
    b = bench(session, tmp_path)
    b.table = table(COLUMNS, properties=VECTORS)
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    return b


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records statements that are executed, read or matched."""
    done: list[str] = []
    for owner, name in ((Execution, "run"), (Execution, "run_on"), (RequestReader, "read"), (TargetRows, "meet")):
        monkeypatch.setattr(owner, name, noting(done, getattr(owner, name)))
    return done


@pytest.mark.parametrize(
    ("said", "rows", "counts", "left"),
    [
        (
            ("a>p", "d>q", "y>w"),
            ("8:d", "9:a", "7:u"),
            (2, 1, 0),
            {"1": "p", "2": "b", "3": "c", "7": "u", "8": "q", "9": "p"},
        ),
        (("d>q",), ("8:d", "7:u"), (1,), {"1": "a", "2": "b", "3": "c", "7": "u", "8": "q"}),
        (("a>p",), ("8:d",), (1,), {"1": "p", "2": "b", "3": "c", "8": "d"}),
    ],
    ids=["rows of both", "none that are there", "none that come"],
)
def test_requests_rebase_onto_an_append_before_it_is_put(
    b: Bench,
    done: list[str],
    said: tuple[str, ...],
    rows: tuple[str, ...],
    counts: tuple[int, ...],
    left: dict[str, str],
) -> None:
    """The requests' changes to its rows are computed while they wait, and only put in their turn."""
    waiting = Waiting(b, *said, rows=rows)
    waiting.requests.keep_up(before=BEFORE)
    followed = done.count("run_on")
    assert followed == ("d" in rows[0] and "d>q" in said)
    waiting.requests.keep_up(before=BEFORE)
    assert done.count("run_on") == followed, "once is enough"
    waiting.append()
    done.clear()
    assert tuple(waiting.mutate().values()) == counts
    assert done == []
    assert persons(b) == left


@pytest.mark.matrix
def test_a_commit_that_was_rebased_onto_ahead_is_adopted_when_it_is_put(b: Bench, done: list[str]) -> None:
    """So only later commits are left to rebase onto."""
    waiting = Waiting(b, "a>p", "b>q", rows=("9:a",))
    known = waiting.requests.known()
    waiting.requests.keep_up(before=BEFORE)
    waiting.append()
    assert waiting.requests.known() != known
    done.clear()
    waiting.requests.keep_up(before=())
    assert done == []
    foreign(b, ("8", "b", "b"))
    waiting.requests.keep_up(before=())
    assert done.count("run_on") == 1
    done.clear()
    assert sum(count or 0 for count in waiting.mutate().values()) == 4
    assert done == []
    assert persons(b) == {"1": "p", "2": "q", "3": "c", "8": "q", "9": "p"}


@pytest.mark.matrix
def test_requests_rebase_only_onto_appends_whose_turns_come_before(b: Bench, done: list[str]) -> None:
    """A later one is no concern of the requests, until it stands in the log."""
    waiting = Waiting(b, "a>p", rows=("9:a",))
    done.clear()
    waiting.requests.keep_up(before=["Other"])
    assert done == []
    waiting.mutate()
    assert persons(b) == {"1": "p", "2": "b", "3": "c"}
    waiting.append()
    assert persons(b)["9"] == "p", "computed again, as a request is active now"


@pytest.mark.matrix
@pytest.mark.parametrize("instead", ["another", "also", "nothing", "changed"])
def test_an_append_that_requests_rebased_onto_may_not_come(b: Bench, session: SparkSession, instead: str) -> None:
    """Another append may come instead, or as well, or none; or a person was erased, so that the append has other rows."""
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    waiting = Waiting(b, "a>p", "d>q", rows=("8:d", "9:a"))
    waiting.requests.keep_up(before=BEFORE)
    left = {"1": "p", "2": "b", "3": "c"}
    if instead in ("another", "also"):
        foreign(b, ("7", "d", "d"))
        left["7"] = "q"
    if instead == "changed":
        b.run("TTL", [("d", "erase")], ERASURE, 1)
    if instead in ("also", "changed"):
        waiting.append()
        left |= {"9": "p"} | ({"8": "q"} if instead == "also" else {})
    waiting.mutate()
    assert persons(b) == left
    pending = publisher(session).pending_appends
    assert pending.adds(b.target) == ({} if instead in ("also", "changed") else pending.adds(b.target, BEFORE))


@pytest.mark.matrix
def test_an_append_is_withdrawn_when_its_turn_has_ended(b: Bench, session: SparkSession) -> None:
    """For each way in which a turn may end."""
    waiting = Waiting(b, "a>p", rows=("9:a",))
    assert len(publisher(session).pending_appends.adds(b.target)) == 1
    assert publisher(session).pending_appends.adds(b.target, ["Other"]) == {}
    with pytest.raises(Crash):
        waiting.append(crash_after=frozenset({"append"}))
    assert publisher(session).pending_appends.adds(b.target) == {}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "properties",
    [
        {"delta.enableChangeDataFeed": "true"},
        {"delta.enableRowTracking": "true"},
        pytest.param({"delta.enableDeletionVectors": "false"}, marks=pytest.mark.matrix),
        pytest.param({"delta.columnMapping.mode": "name"}, marks=pytest.mark.matrix),
        pytest.param({"delta.enableInCommitTimestamps": "true"}, marks=pytest.mark.matrix),
    ],
    ids=lambda properties: next(iter(properties)).removeprefix("delta."),
)
def test_tables_of_every_kind(session: SparkSession, tmp_path: Path, properties: Mapping[str, str]) -> None:
    """Where rows have ids, which are given when they are put, nothing is announced."""
    b = bench(session, tmp_path)
    b.table = table(COLUMNS, properties={**VECTORS, **properties})
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    waiting = Waiting(b, "a>p", "d>q", rows=("8:d", "9:a", "7:u"))
    assert bool(publisher(session).pending_appends.adds(b.target)) == ("delta.enableRowTracking" not in properties)
    waiting.requests.keep_up(before=BEFORE)
    waiting.append()
    assert list(waiting.mutate().values()) == [2, 1]
    assert persons(b) == {"1": "p", "2": "b", "7": "u", "8": "q", "9": "p"}
    if "delta.enableChangeDataFeed" in properties:
        feed = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(b.target)
        last = feed.where("_change_type = 'update_postimage'").select("id", "person").collect()
        assert {row.id: row.person for row in last} == {"1": "p", "8": "q", "9": "p"}


class Erasing:
    """Persons to be erased, their requests written and not put, and mutations that lead to them."""

    def __init__(self, b: Bench, *erased: str, batch: int = 1) -> None:
        self.b, self.batch = b, batch
        self.erasures = b.stream("TTL")
        self.erased = b.batch([(person, "erase") for person in erased], ERASURE, batch)
        self.mutations, self.requests = b.stream("Mut"), b.batch(requests("a>p", "b>q"), REQUEST, 1)

    def announce(self) -> None:
        """Computes the erasures."""
        self.erasures.stage(self.erased, self.batch, before=())

    def erase(self, **more: Any) -> None:
        """Puts them."""
        self.erasures.run_batch(self.b.turn("TTL", self.batch, **more), self.erased, self.batch)

    def mutate(self) -> None:
        """Puts the mutations."""
        self.mutations.run_batch(self.b.turn("Mut", 1), self.requests, 1)


ERASURES = ["TTL"]


@pytest.mark.matrix
@pytest.mark.parametrize("when", ["before", "after", "while it is stored", "while it is applied"])
def test_written_erasures_are_treated_as_active(b: Bench, done: list[str], when: str) -> None:
    """Mutations with a later turn are decided with these erasures: in their turn nothing is decided or changed again."""
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    erasing = Erasing(b, "p")
    if when != "after":
        erasing.announce()
    known = erasing.mutations.known()
    erasing.mutations.stage(erasing.requests, 1, before=ERASURES)
    if when == "after":
        erasing.announce()
        assert erasing.mutations.known() != known
        erasing.mutations.keep_up(before=ERASURES)
    step = {"while it is stored": "apply", "while it is applied": "settle"}.get(when)
    done.clear()

    def keep_up(name: str) -> None:
        if name == step:
            erasing.mutations.keep_up(before=ERASURES)
            assert "read" not in done

    erasing.erase(between=keep_up)
    done.clear()
    erasing.mutate()
    assert "read" not in done
    assert "run" not in done
    assert persons(b) == {"2": "q", "3": "c"}


@pytest.mark.matrix
def test_erasures_are_announced_before_it_is_known_what_they_do(
    b: Bench, session: SparkSession, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations that are computed at the same time are decided with them."""
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    erasing, stage = Erasing(b, "p"), TargetRows.stage
    location = TableLocation(f"{b.root}/_lakegate/requests/TTL")

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(TargetRows, "stage", stage)
        wait_until(lambda: publisher(session).pending_appends.of(location, "TTL") is not None)
        erasing.mutations.stage(erasing.requests, 1, before=ERASURES)
        return stage(*given)

    monkeypatch.setattr(TargetRows, "stage", meanwhile)
    erasing.announce()
    erasing.erase()
    done.clear()
    erasing.mutate()
    assert "read" not in done
    assert persons(b) == {"2": "q", "3": "c"}


@pytest.mark.matrix
@pytest.mark.parametrize("instead", ["later", "another", "also", "not applied", "of no concern"])
def test_erasures_that_were_treated_as_active_may_not_come(b: Bench, done: list[str], instead: str) -> None:
    """Their turn comes later after all, or others came in their place, or after them; or their run ended between two steps."""
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    erasing = Erasing(b, "p")
    erasing.announce()
    erasing.mutations.stage(erasing.requests, 1, before=ERASURES if instead != "of no concern" else ["In"])
    if instead == "another":
        b.run("TTL", [("q", "erase")], ERASURE, 1)
    elif instead == "also":
        erasing.erase()
        b.run("TTL", [("p", "lift"), ("q", "erase")], ERASURE, 2)
    elif instead == "not applied":
        with pytest.raises(Crash):
            erasing.erase(crash_before=frozenset({"apply"}))
    done.clear()
    erasing.mutate()
    assert ("read" in done) == (instead != "of no concern")
    assert persons(b) == {"1": "p", "3": "c"} | ({} if instead in ("another", "also") else {"2": "q"})


@pytest.mark.matrix
def test_written_erasures_are_withdrawn_when_they_are_stored(b: Bench, session: SparkSession) -> None:
    """And when something else is written in their place."""
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    location = TableLocation(f"{b.root}/_lakegate/requests/TTL")
    erasing, seen = Erasing(b, "p"), []
    erasing.announce()
    told = publisher(session).pending_appends.of(location, "TTL")
    assert told is not None
    assert (told.batch, len(told.adds)) == (1, 1)
    with pytest.raises(Crash):
        erasing.erase(
            between=lambda step: seen.append((step, publisher(session).pending_appends.of(location, "TTL"))),
            crash_after=frozenset({"apply"}),
        )
    assert dict(seen) == {"store": told, "apply": None}
    later = Erasing(b, "q", batch=2)
    later.announce()
    assert publisher(session).pending_appends.of(location, "TTL") is None, "what an earlier run has stored comes first"


@pytest.mark.matrix
def test_outcomes_of_requests_are_written_concurrently_with_their_change(
    b: Bench, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rows that they will have met; written again if another commit came in between after all."""
    looked = threading.Event()
    real = PrecomputedChange.count_matches

    def look(*given: Any) -> MatchedRows:
        found = real(*given)
        looked.set()
        return found

    monkeypatch.setattr(PrecomputedChange, "count_matches", look)
    locations = [b.target, TableLocation(f"{b.root}/_lakegate/requests/Mut")]
    for batch, row in enumerate([None, ("9", "b", "b")], 1):
        kind, frame = b.stream("Mut"), b.batch(requests("a>p" if row is None else "b>q"), REQUEST, batch)
        kind.stage(frame, batch, before=())
        looked.clear()
        done.clear()

        def come(step: str, row: tuple[str, str, str] | None = row) -> None:
            if step == "apply" and row is not None:
                assert looked.wait(60)
                foreign(b, row)

        kind.run_batch(b.turn("Mut", batch, between=come), frame, batch)
        assert ("run" in done) == (row is not None)
        (said,) = [one for one in b.request_rows("Mut") if one.batch == batch]
        change, settled = (json.loads(commit_paths(location)[-1].read_text().splitlines()[0]) for location in locations)
        tested = change["commitInfo"]["readVersion"]
        assert (said.state, said.matched_rows, said.tested_version) == ("applied", 1 if row is None else 2, tested)
        facts = json.loads(settled["commitInfo"]["userMetadata"])["user"]
        assert facts["tested"] == (tested if row is None else 1), "what stands has not met the row of others yet"
        assert settled["commitInfo"]["operationParameters"]["mode"] == "Overwrite"
    assert persons(b) == {"1": "p", "2": "q", "3": "c", "9": "q"}


def test_an_expected_commit_has_come_only_if_it_changed_nothing_else() -> None:
    """Another definition of the table may ask for other files of a commit, as a change feed does."""
    files = {"f": FileChange("f", None, {"path": "f"})}
    speculation = Speculation(
        files=files,
        rebased=RebasedAhead(commit=Captured(version=Version(1), actions=(), info={}), level=1, reason=None),
    )
    assert speculation.has_come(Changes(version=Version(3), files=files, transactions={"stream": 1}))
    for more in ({"is_definition_changed": True}, {"is_file_said_anew": True}, {"domains": frozenset({"d"})}):
        assert not speculation.has_come(Changes(version=Version(3), files=files, **more))
    assert not speculation.has_come(Changes(version=Version(3), files={}))
