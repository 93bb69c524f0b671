"""Folding requests equals interpreting them one by one, wherever the source is cut into batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegate.streams.requests.rules import (
    NULL_KEY,
    NULL_SEQUENCE,
    Admitted,
    Meaning,
    Request,
    admit,
    compose,
    follow,
    last_of_key,
    settle,
)

KEYS = ["a", "b", "c", "d"]


@dataclass(slots=True)
class Row:
    """A row of the table: its key, and the request whose values it holds."""

    key: str
    holds: str | None = None


@dataclass
class OneByOne:
    """The oracle: each request alone, on each row alone."""

    meaning: Meaning
    rows: list[Row] = field(default_factory=list)
    rules: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)

    def _change(self, rows: list[Row], request: Request) -> bool:
        """Apply one request to those of `rows` that have its key."""
        hit = [row for row in rows if row.key == request.key]
        for row in hit:
            if request.deletes:
                rows.remove(row)
            elif request.op == "update":
                row.key, row.holds = request.moves_to or row.key, request.id
        return bool(hit)

    def request(self, request: Request) -> None:
        if request.key is None:
            return
        if self.meaning.has_sequence:
            if request.sequence is None or request.sequence < self.highest.get(request.key, -1):
                return
            self.highest[request.key] = request.sequence
        if self.meaning.is_standing:
            self._change(self.rows, request)
            self.rules.append(request)
            return
        if not self.meaning.moves_rows:
            self.retry(key=request.key)
        if not self._change(self.rows, request):
            self.waiting.append(request)

    def retry(self, key: str | None = None) -> None:
        """Each waiting request once, in order, on the rows there are."""
        for request in list(self.waiting):
            if key in (None, request.key) and self._change(self.rows, request):
                self.waiting.remove(request)

    def arrive(self, key: str) -> None:
        row = Row(key)
        late = [row]
        if self.meaning.is_standing and self.meaning.moves_rows:
            for rule in self.rules:  # as if it had been there from the start; an erased person ends the way
                if late and row.key == rule.key:
                    self._change(late, rule)
        elif self.meaning.is_standing:
            for rule in [rule for rule in self.rules if rule.key == key][-1:]:
                self._change(late, rule)
        self.rows.extend(late)


@dataclass
class Folded:
    """The streams' use of the request rules, on rows in memory."""

    meaning: Meaning
    rows: list[Row] = field(default_factory=list)
    standing: dict[str, Request] = field(default_factory=dict)  # key → what it does to late rows
    waiting: list[Request] = field(default_factory=list)
    highest: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def batch(self, requests: list[Request]) -> None:
        admitted = admit(requests, self.highest, has_sequence=self.meaning.has_sequence)
        keys = {request.key for request in admitted.in_order}
        again = [] if self.meaning.moves_rows else [request for request in self.waiting if request.key in keys]
        self._apply(admitted, again)
        for request in admitted.in_order:
            if request.sequence is not None:
                self.highest[str(request.key)] = request.sequence  # in order: never lower than before

    def retry(self) -> None:
        self._apply(Admitted(in_order=(), superseded={}, dead={}), list(self.waiting))

    def _apply(self, admitted: Admitted, again: list[Request]) -> None:
        took_part = {request.id: request for request in [*again, *admitted.in_order]}
        paths = compose([*again, *admitted.in_order])
        matched: dict[str, int] = {}
        for row in list(self.rows):
            if row.key in paths:
                matched[row.key] = matched.get(row.key, 0) + 1
                self._change(row, paths[row.key].last)
        settled = settle(admitted, meaning=self.meaning, waiting=again, paths=paths, matched=matched)
        self.states |= {id_: outcome.state for id_, outcome in settled.items()}
        waits = [request for request in took_part.values() if settled[request.id].state == "waiting"]
        self.waiting = [request for request in self.waiting if request.id not in took_part] + waits
        if self.meaning.is_standing and self.meaning.moves_rows:
            ends = {key: request.moves_to or key for key, request in self.standing.items() if not request.deletes}
            carried = {key: path.last for key, path in follow(ends, paths).items()}
            self.standing = {key: path.last for key, path in paths.items()} | self.standing | carried
        elif self.meaning.is_standing:
            self.standing |= last_of_key(admitted.in_order)

    def _change(self, row: Row, request: Request) -> None:
        if request.deletes:
            self.rows.remove(row)
        elif request.op == "update":
            row.key, row.holds = request.moves_to or row.key, request.id

    def arrive(self, key: str) -> None:
        row = Row(key)
        self.rows.append(row)
        if key in self.standing:
            self._change(row, self.standing[key])


@dataclass(frozen=True)
class Arrive:
    key: str


Event = Request | Arrive


def events(*, ops: list[str], moves_rows: bool, has_sequence: bool) -> st.SearchStrategy[list[Event]]:
    request = st.builds(
        Request,
        id=st.just(""),
        key=st.sampled_from([*KEYS, None]) if has_sequence else st.sampled_from(KEYS),
        op=st.sampled_from(ops),
        sequence=st.one_of(st.none(), st.integers(0, 5)) if has_sequence else st.none(),
        moves_to=st.sampled_from(KEYS) if moves_rows else st.none(),
        is_doomed=st.sampled_from([False, False, False, True]) if "update" in ops else st.just(False),
    )
    several = st.lists(st.one_of(request, st.builds(Arrive, key=st.sampled_from(KEYS))), max_size=16)
    return several.map(
        lambda them: [replace(e, id=f"r{i}") if isinstance(e, Request) else e for i, e in enumerate(them)]
    )


def run(meaning: Meaning, them: list[Event], cuts: set[int]) -> tuple[OneByOne, Folded]:
    """Both interpreters over the same events; the folded one gets runs of requests, cut at `cuts` and at arrivals."""
    oracle, folded = OneByOne(meaning), Folded(meaning)
    batch: list[Request] = []
    for i, event in enumerate(them):
        if batch and (i in cuts or isinstance(event, Arrive)):
            folded.batch(batch)
            batch = []
        match event:
            case Request():
                oracle.request(event)
                batch.append(event)
            case Arrive(key):
                oracle.arrive(key)
                folded.arrive(key)
                if not meaning.is_standing:
                    oracle.retry()
                    folded.retry()
    folded.batch(batch)
    return oracle, folded


def rows(of: OneByOne | Folded) -> list[tuple[str, str]]:
    return sorted((row.key, row.holds or "") for row in of.rows)


CUTS = st.sets(st.integers(0, 15))


@pytest.mark.parametrize("moves_rows", [False, True])
@pytest.mark.parametrize("has_sequence", [False, True])
@given(data=st.data(), cuts=CUTS)
@settings(max_examples=60)
def test_standing_requests_equal_one_by_one(
    moves_rows: bool, has_sequence: bool, data: st.DataObject, cuts: set[int]
) -> None:
    """`arrived_and_later`: existing rows and later rows end as if each request had run alone."""
    if moves_rows and has_sequence:
        return  # refused by `check`
    meaning = Meaning(is_standing=True, moves_rows=moves_rows, has_sequence=has_sequence)
    them = data.draw(events(ops=["update", "delete"], moves_rows=moves_rows, has_sequence=has_sequence))
    oracle, folded = run(meaning, them, cuts)
    assert rows(folded) == rows(oracle)


@pytest.mark.parametrize("moves_rows", [False, True])
@pytest.mark.parametrize("has_sequence", [False, True])
@given(data=st.data(), cuts=CUTS)
@settings(max_examples=60)
def test_requests_that_wait_equal_one_by_one(
    moves_rows: bool, has_sequence: bool, data: st.DataObject, cuts: set[int]
) -> None:
    """`arrived`: a request waits until it has matched once, in its order, and never applies again."""
    if moves_rows and has_sequence:
        return
    meaning = Meaning(is_standing=False, moves_rows=moves_rows, has_sequence=has_sequence)
    them = data.draw(events(ops=["update", "delete"], moves_rows=moves_rows, has_sequence=has_sequence))
    oracle, folded = run(meaning, them, cuts)
    assert rows(folded) == rows(oracle)
    if moves_rows:
        assert [r.id for r in folded.waiting] == [r.id for r in oracle.waiting]


@given(them=events(ops=["erase", "lift"], moves_rows=False, has_sequence=False), cuts=CUTS)
@settings(max_examples=60)
def test_erasures_equal_one_by_one(them: list[Event], cuts: set[int]) -> None:
    """An erasure deletes existing rows and keeps later rows out until it is lifted."""
    meaning = Meaning(is_standing=True, moves_rows=False, has_sequence=False)
    oracle, folded = run(meaning, them, cuts)
    assert rows(folded) == rows(oracle)


@given(them=events(ops=["update", "delete"], moves_rows=False, has_sequence=True), cuts=CUTS)
@settings(max_examples=60)
def test_every_request_has_an_end(them: list[Event], cuts: set[int]) -> None:
    """No request is lost: each is applied, superseded, waiting or dead."""
    meaning = Meaning(is_standing=False, moves_rows=False, has_sequence=True)
    _, folded = run(meaning, them, cuts)
    requests = {event.id for event in them if isinstance(event, Request)}
    assert set(folded.states) == requests
    assert set(folded.states.values()) <= {"applied", "superseded", "waiting", "dead"}


def update(id_: str, key: str | None, to: str | None = None, **more: object) -> Request:
    return Request(id=id_, key=key, op="update", moves_to=to, **more)


def delete(id_: str, key: str) -> Request:
    return Request(id=id_, key=key, op="delete")


def test_null_key_and_null_sequence_are_dead_letters() -> None:
    """A request that cannot be ordered or matched is dead, with the reason, and others go on."""
    admitted = admit(
        [update("1", None, sequence=1), update("2", "a"), update("3", "a", sequence=1)], {}, has_sequence=True
    )
    assert admitted.dead == {"1": NULL_KEY, "2": NULL_SEQUENCE}
    assert [request.id for request in admitted.in_order] == ["3"]


def test_equal_sequence_is_in_order() -> None:
    """Only a lower sequence is late; of two equal ones the later in the source wins."""
    admitted = admit([update("1", "a", sequence=5), update("2", "a", sequence=5)], {"a": 5}, has_sequence=True)
    assert [request.id for request in admitted.in_order] == ["1", "2"]


def test_chain_and_cycle_of_moved_keys() -> None:
    """L→C, C→D takes a row of L to D; L→C, C→L takes it back to L."""
    chain = compose([update("1", "L", "C"), update("2", "C", "D")])
    assert (chain["L"].ends_at, chain["C"].ends_at) == ("D", "D")
    cycle = compose([update("1", "L", "C"), update("2", "C", "L")])
    assert (cycle["L"].ends_at, cycle["C"].ends_at) == ("L", "L")


def test_no_request_leads_out_of_an_erased_person() -> None:
    """A path that reaches an erased person ends there: the row is deleted, and what follows finds nothing."""
    paths = compose([update("1", "L", "C", is_doomed=True), update("2", "C", "D")])
    assert paths["L"].ends_at is None
    assert [request.id for request in paths["L"].requests()] == ["1"]


def test_standing_effects_are_carried_on_by_a_later_batch() -> None:
    """A stored effect that leaves rows at C goes on to D when C→D comes; one that ends elsewhere stays."""
    carried = follow({"x": "C", "y": "E"}, compose([update("2", "C", "D")]))
    assert {effect: path.ends_at for effect, path in carried.items()} == {"x": "D"}


def test_update_waits_behind_a_deletion_that_has_not_matched() -> None:
    """Pending delete and update of one key: the first rows are deleted, the next are updated."""
    meaning = Meaning(is_standing=False, moves_rows=False, has_sequence=False)
    queue = [delete("1", "a"), update("2", "a")]
    admitted = admit(queue, {}, has_sequence=False)
    nothing = settle(admitted, meaning=meaning, waiting=(), paths=compose(queue), matched={})
    assert {id_: s.state for id_, s in nothing.items()} == {"1": "waiting", "2": "waiting"}
    empty = Admitted(in_order=(), superseded={}, dead={})
    first = settle(empty, meaning=meaning, waiting=queue, paths=compose(queue), matched={"a": 3})
    assert {id_: (s.state, s.matched_rows) for id_, s in first.items()} == {"1": ("applied", 3), "2": ("waiting", 0)}


def test_a_long_cycle_is_folded_in_linear_time() -> None:
    """Ten thousand moves of one row are one path, not ten thousand copies of it."""
    requests = [update(str(i), "LC"[i % 2], "LC"[(i + 1) % 2]) for i in range(10_000)]
    assert sum(1 for _ in compose(requests)["L"].requests()) == 10_000
