"""Changes of single rows become few statements with the same effect, and the thread of a writer loses and repeats none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.errors import CommitInDoubt, ConstraintViolated, InvalidRequest, Unavailable
from lakegate.rows.keyed_changes import SHAPES_MAX, Change, FoldedRow, RowRefused, fold, split, statements
from lakegate.rows.keyed_writer import KeyedWriter

Table = dict[object, dict[str, object]]
BAD = "bad"
"""A value that the table refuses."""


def change(key: object, **values: object) -> Change:
    """An upsert, or without values a delete."""
    return Change(key=key, values={"id": key, **values}, is_delete=not values, size_bytes=10)


def replay(table: Table, is_delete: bool, is_anew: bool, values: Mapping[str, object]) -> None:
    """What one row of a statement does to a table."""
    key = values["id"]
    if is_delete:
        table.pop(key, None)
    else:
        table[key] = {**({} if is_anew else table.get(key, {})), **values}


CHANGES = st.lists(
    st.tuples(st.integers(0, 4), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))).map(
        lambda said: change(said[0], **said[1])
    ),
    max_size=30,
)


@given(CHANGES, st.sets(st.integers(0, 4)))
def test_folded_changes_do_what_the_changes_do_one_by_one(changes: list[Change], there: set[int]) -> None:
    """Whatever was in the table; with each key once, in few statements."""
    serial: Table = {key: {"id": key, "a": "old", "b": "old"} for key in there}
    folded: Table = {key: dict(row) for key, row in serial.items()}
    for each in changes:
        replay(serial, each.is_delete, False, each.values)
    made = statements(fold(changes))
    rows = [row for statement in made for row in statement]
    assert len({row.values["id"] for row in rows}) == len(rows)
    assert sorted(id(each) for row in rows for each in row.changes) == sorted(map(id, changes))
    for statement in made:
        assert len({row.shape for row in statement}) <= SHAPES_MAX
    for row in rows:
        replay(folded, *row.shape[:2], row.values)
    assert folded == serial


def test_rows_of_many_shapes_are_distributed_over_statements() -> None:
    """The fewest that the limit of shapes allows."""
    rows = [FoldedRow.of(change(key, **{f"c{key % 17}": 1})) for key in range(100)]
    made = statements(rows)
    assert [len({row.shape for row in statement}) for statement in made] == [8, 8, 1]
    assert sorted(row.values["id"] for row in rows) == sorted(row.values["id"] for each in made for row in each)


def test_a_refused_statement_is_split_down_to_single_changes_in_their_order() -> None:
    """Halves of keys first, then the changes of a key."""
    folded = fold([change(1, a=1), change(2, a=2), change(1, a=3), change(3, a=4)])
    first, second = split(folded)
    assert [row.values["id"] for row in first] == [1]
    assert [row.values["id"] for row in second] == [2, 3]
    one, other = split(first)
    assert (one[0].values["a"], other[0].values["a"]) == (1, 3)
    assert split(one) == []


# ------------------------------------------------------------------------------------------------- the writer's thread


@dataclass
class Checked:
    """Columns that take everything."""

    table: str = "t"

    def upsert(self, row: Mapping[str, object]) -> Change:
        """An upsert of `id`."""
        return Change(key=row["id"], values=row, is_delete=False, size_bytes=10)


@dataclass
class Counting:
    """Counts no files."""

    files: int = 0

    def count(self, result: object) -> None:
        """Counts nothing."""

    def join(self) -> None:
        """Waits for nothing."""


@dataclass
class Done:
    """The result of a statement."""

    version: int


@dataclass
class Merges:
    """A table in memory, which refuses bad values; `gate` blocks statements, `error` is what the next ones raise."""

    gate: threading.Event = field(default_factory=threading.Event)
    made: list[list[Mapping[str, object]]] = field(default_factory=list)
    begun: int = 0
    error: BaseException | None = None

    def merge(self, rows: Sequence[FoldedRow]) -> Any:
        """Does a statement."""
        self.begun += 1
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        if any(row.values.get("a") == BAD for row in rows):
            raise RowRefused("[CHECK]")
        self.made.append([row.values for row in rows])
        return Done(len(self.made))


@contextmanager
def writing(merges: Merges, **limits: Any) -> Iterator[KeyedWriter]:
    """A writer to a table in memory."""
    with KeyedWriter(cast("Any", Checked()), merges.merge, cast("Any", Counting()), **limits) as writer:
        try:
            yield writer
        finally:
            merges.gate.set()


def soon(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; fails after a time that no machine needs."""
    waiting = threading.Event()
    for _ in range(4000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not happen")


def test_rows_that_come_while_a_statement_runs_are_written_together() -> None:
    """One statement for all of them, with each key once."""
    merges = Merges()
    with writing(merges, delay_s=0) as writer:
        first = writer.upsert({"id": 0, "a": 0})
        soon(lambda: merges.begun == 1)
        others = [writer.upsert({"id": number % 3, "a": number}) for number in range(30)]
        merges.gate.set()
        assert first.result(20).version == 1
        assert {done.result(20).version for done in others} == {2}
    assert merges.made == [[{"id": 0, "a": 0}], [{"id": key, "a": 27 + key} for key in range(3)]]


@pytest.mark.parametrize("limits", [{"flush_rows": 4}, {"flush_bytes": 40}], ids=["rows", "bytes"])
def test_a_flush_takes_at_most_so_much_and_does_not_wait_then(limits: Mapping[str, int]) -> None:
    """The delay is a minute: only the number of rows, or of bytes, makes the flushes."""
    merges = Merges()
    merges.gate.set()
    with writing(merges, delay_s=60, **limits) as writer:
        done = [writer.upsert({"id": number}) for number in range(8)]
        assert [each.result(20).version for each in done] == [1] * 4 + [2] * 4
        waiting = writer.upsert({"id": 9})
        assert not waiting.done()
        writer.flush()
        assert waiting.result(0).version == 3


def test_giving_blocks_while_too_many_rows_wait() -> None:
    """Four flushes of two rows wait while one is written; the next row is taken when it is."""
    merges = Merges()
    with writing(merges, delay_s=0, flush_rows=2) as writer:
        for number in range(2):
            writer.upsert({"id": number})
        soon(lambda: merges.begun == 1 and not writer._waiting)
        for number in range(8):
            writer.upsert({"id": number})
        blocked = threading.Thread(target=lambda: writer.upsert({"id": 100}), daemon=True)
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        merges.gate.set()
        blocked.join(20)
        assert not blocked.is_alive()
    assert sum(map(len, merges.made)) == 11


def test_only_the_refused_row_fails() -> None:
    """Also among several changes of one key: those before it and after it are written in their order."""
    merges = Merges()
    with writing(merges, delay_s=60) as writer:
        good = [writer.upsert({"id": number, "a": number}) for number in range(50)]
        bad = writer.upsert({"id": 7, "a": BAD})
        after = writer.upsert({"id": 7, "b": 1})
        merges.gate.set()
    assert isinstance(bad.exception(0), ConstraintViolated)
    assert all(done.exception(0) is None for done in [*good, after])
    written = [row for each in merges.made for row in each]
    assert [row for row in written if row["id"] == 7] == [{"id": 7, "a": 7}, {"id": 7, "b": 1}]
    assert len(written) == 51
    assert writer.rows_failed == 1


def test_an_error_that_is_not_about_a_row_fails_all_and_is_not_repeated() -> None:
    """The rows may be written: only the caller can look. Later rows are written again."""
    merges = Merges(error=CommitInDoubt())
    merges.gate.set()
    with writing(merges, delay_s=60) as writer:
        # Of nine shapes: two statements.
        done = [writer.upsert({"id": number, f"c{number}": 1}) for number in range(9)]
        writer.flush()
        assert all(isinstance(each.exception(0), CommitInDoubt) for each in done)
        assert merges.begun == 1
        merges.error = None
        later = writer.upsert({"id": 1})
    assert later.result(0).version == 1
    assert merges.made == [[{"id": 1}]]


def test_when_the_thread_ends_unexpectedly_nothing_hangs() -> None:
    """Futures of rows that were taken or wait fail; flush and close return; a row that is given later is not taken."""
    merges = Merges(error=SystemExit())
    with writing(merges, delay_s=0, flush_rows=1) as writer:
        taken, waiting = writer.upsert({"id": 1}), writer.upsert({"id": 2})
        merges.gate.set()
        for done in (taken, waiting):
            assert isinstance(done.exception(20), SystemExit)
        writer.flush()
        with pytest.raises(Unavailable, match="thread has ended"):
            writer.upsert({"id": 3})


def test_a_closed_writer_has_written_all_and_takes_no_more() -> None:
    """After an error in the block, too; a second close does nothing."""
    merges = Merges()
    with suppress(KeyError), writing(merges, delay_s=60) as writer:
        done = writer.upsert({"id": 1})
        raise KeyError
    assert done.result(0).version == 1
    writer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        writer.upsert({"id": 2})
    assert not writer._thread.is_alive()
    assert len(merges.made) == 1


def test_a_row_that_is_cancelled_while_it_waits_is_not_written() -> None:
    """And the others are."""
    merges = Merges()
    with writing(merges, delay_s=60) as writer:
        kept, cancelled = writer.upsert({"id": 1}), writer.upsert({"id": 2})
        assert cancelled.cancel()
    assert merges.made == [[{"id": 1}]]
    assert kept.result(0).rows == 1


def test_a_callback_may_give_rows_and_close_but_not_wait() -> None:
    """It runs in the writer's thread, which would wait for itself."""
    merges = Merges()
    refused: list[BaseException] = []
    more: list[Future[Any]] = []

    def chained(_: object) -> None:
        more.extend(writer.upsert({"id": number}) for number in range(20))
        try:
            writer.flush()
        except InvalidRequest as error:
            refused.append(error)
        writer.close()

    with writing(merges, delay_s=0, flush_rows=2) as writer:
        writer.upsert({"id": 1}).add_done_callback(chained)
        merges.gate.set()
        soon(lambda: len(refused) == 1)
    assert len(refused) == 1
    assert len(more) == 20
    assert all(each.result(20) for each in more)


def test_rows_of_many_threads_are_all_written_in_the_order_of_each() -> None:
    """Each thread has keys of its own; the last value of each is the last one that it gave."""
    merges = Merges()
    merges.gate.set()
    with writing(merges, delay_s=0.001, flush_rows=50) as writer, ThreadPoolExecutor(8) as pool:

        def give(thread: int) -> list[Future[Any]]:
            return [writer.upsert({"id": (thread, n % 5), "a": n}) for n in range(400)]

        done = [each for given in pool.map(give, range(8)) for each in given]
    assert all(each.result(0) for each in done)
    last: Table = {}
    for statement in merges.made:
        assert len({row["id"] for row in statement}) == len(statement)
        last |= {row["id"]: dict(row) for row in statement}
    assert {key: row["a"] for key, row in last.items()} == {(t, n % 5): n for t in range(8) for n in range(395, 400)}
