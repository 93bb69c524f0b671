"""Row-level concurrency explored: whatever the writers' order and whatever is lost, the table is what a serial run gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from pyroaring import BitMap64

from harness import rows
from harness.row_statements import (
    Change,
    append,
    copy,
    delete,
    insert_absent,
    merge,
    merge_by_source,
    merge_some,
    optimize,
    restore,
    timed,
    update,
)
from harness.row_tables import file_of
from harness.rows import Found, Scenario, explore
from harness.simulator import planted
from lakegate.delta.actions import Action, Captured, Changes, changes
from lakegate.effects import Steps, perform
from lakegate.ids import Version
from lakegate.rows.conflict import commit_protocol, group_commit, rebase
from lakegate.rows.conflict.effects import Describe, Execute, ReadChanges, Reserve
from lakegate.rows.conflict.read_set import Statement
from lakegate.rows.conflict.rebase import Again

FILES = (((1, 0), (2, 1)), ((3, 0),))
MARKED_FILES, MARKED = (((1, 0), (9, 0), (2, 1), (3, 1)),), ((1,),)
"""One file of which a row is marked from the beginning."""
ALL = (
    *(delete(0), delete(1), update(0, 1), update(1, 0), merge(1, 5), merge(4, 5), merge(2, None), append(4, 0)),
    *(copy(0), optimize(), restore((9, 0)), insert_absent((1, 4), 5), merge_by_source(1, 5, 0), timed(0, 5)),
    *(merge(1, 5, inserts=False), merge(2, None, inserts=False), merge_some(1, 0, (2, 1)), merge_some(2, 1, (2, 0))),
)
FEW = (delete(0), update(0, 1), update(1, 0), merge(4, 0), append(4, 0), optimize())
READ_MOVED_TAKEN = (insert_absent((1, 4), 5), optimize(), delete(0))
"""A row that one has found, another moves, and a third one takes."""


def explored(
    changes: tuple[Change, ...],
    number: int,
    faults: int = 0,
    *,
    outside: frozenset[int] = frozenset(),
    marks: bool = True,
    has_vectors: bool = True,
    has_feed: bool = False,
    executions_max: int = 99,
    follows: int = 0,
    speculates: bool = False,
) -> Found:
    """All choices of so many statements, on both tables; the first violation ends it."""
    whole = Found()
    for chosen in itertools.combinations_with_replacement(changes, number):
        for files, marked in ((FILES, ()), (MARKED_FILES, MARKED)) if marks else ((FILES, ()),):
            found = explore(
                Scenario(
                    files=files,
                    marked=marked,
                    writers=chosen,
                    outside=outside,
                    marks=marks,
                    has_vectors=has_vectors,
                    has_feed=has_feed,
                    faults=faults,
                    executions_max=executions_max,
                    follows=follows,
                    speculates=speculates,
                )
            )
            whole.states += found.states
            whole.levels += found.levels
            if found.violation:
                whole.violation = f"{[change.name for change in chosen]}: {found.violation}"
                return whole
    return whole


@pytest.mark.parametrize(
    ("marks", "has_vectors"), [(True, True), (False, True), (False, False)], ids=["marks", "rewrites", "no vectors"]
)
def test_every_pair_is_serial(*, marks: bool, has_vectors: bool) -> None:
    """Any two statements, with up to two lost requests, lost or late answers, or crashes."""
    assert explored(ALL, 2, faults=2, marks=marks, has_vectors=has_vectors).violation == ""


def test_the_change_feed_shows_each_commit() -> None:
    """Of any two, with what was executed again on some files: readers of such a commit look at nothing but its change files."""
    assert explored(ALL, 2, has_feed=True).violation == ""
    assert explored(ALL, 2, has_feed=True, marks=False).violation == ""


def test_three_at_once_are_serial_and_come_to_an_end() -> None:
    """Chains of winning commits; no statement is executed more than three times, and every level is needed."""
    found = explored(FEW, 3, executions_max=3)
    assert found.violation == ""
    assert set(found.levels) == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "rewrites"])
def test_a_row_that_was_moved_and_then_taken_is_missed_where_it_was_read(*, marks: bool) -> None:
    """It is in no file that the table had, nor in one that it has: all three of them, in every order, and twice each."""
    assert explored(READ_MOVED_TAKEN, 3, faults=int(marks), marks=marks).violation == ""


@pytest.mark.parametrize(
    ("marks", "has_vectors"), [(True, True), (False, True), (False, False)], ids=["marks", "rewrites", "no vectors"]
)
def test_a_change_rebased_before_its_turn_is_serial(*, marks: bool, has_vectors: bool) -> None:
    """Any two statements that are computed ahead, follow the other once before they are put, and again as they are; or one
    of three twice."""
    assert explored(ALL, 2, follows=1, marks=marks, has_vectors=has_vectors).violation == ""
    assert explored((update(0, 1), delete(0), append(4, 0)), 3, follows=2, marks=marks).violation == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marks", "has_vectors"), [(True, True), (False, True), (False, False)], ids=["marks", "rewrites", "no vectors"]
)
def test_a_change_rebased_onto_an_append_before_that_is_put_is_serial(*, marks: bool, has_vectors: bool) -> None:
    """It may be put then, or another statement come first, or not come at all; what follows takes it up or not."""
    for change in ALL:
        assert (
            explored(
                (change, append(4, 0)), 2, follows=1, speculates=True, marks=marks, has_vectors=has_vectors
            ).violation
            == ""
        )
    few = (update(0, 1), merge(4, 5), append(4, 0))
    assert explored(few, 3, follows=1, speculates=True, marks=marks, has_vectors=has_vectors).violation == ""


def test_a_change_rebased_ahead_of_its_turn_is_not_put_after_its_successor() -> None:
    """Its token is looked for from the first execution on, not only since it has last followed."""
    token = Action("txn", {"appId": "stream", "version": 7})
    staged = Captured(version=Version(3), actions=(Action("add", file_of("f", [(1, 1)])), token), info={})
    protocol = commit_protocol.publish(staged, Version(1))
    assert isinstance(protocol.send(None), Describe)
    asked = protocol.send(Statement(reads=rebase.Reads.NOTHING))
    assert asked == ReadChanges(Version(1))
    with pytest.raises(StopIteration) as end:
        protocol.send(changes(Version(1), [(token,), (Action("add", file_of("g", [(2, 2)])),)]))
    assert end.value.value.is_superseded


def test_a_planted_bug_leaves_nothing_behind() -> None:
    """Later results do not come from a cache filled with the bug."""
    with planted(rebase, "_read_test", no_image_test):
        assert explored(READ_MOVED_TAKEN, 2).violation
    assert explored(READ_MOVED_TAKEN, 2).violation == ""


@pytest.mark.slow
def test_a_reservation_stops_all_but_writers_without_a_gate() -> None:
    """They may cost another execution. Where all pass a gate three are enough."""
    few = (update(0, 1), append(4, 0))
    assert explored(few, 4, executions_max=3).violation == ""
    assert "was executed 4 times" in explored(few, 4, outside=frozenset({3}), executions_max=3).violation


def test_a_reservation_is_renewed_before_each_execution() -> None:
    """It may have run out, or have been overlooked: who is overtaken all the same does not go on without one."""
    asked: list[str] = []
    protocol = commit_protocol.publish()
    effect = protocol.send(None)
    for version in map(Version, range(6)):
        asked.append(type(effect).__name__)
        assert isinstance(effect, Execute)
        effect = protocol.send(Captured(version=version, actions=(Action("add", file_of("f", [(1, 1)])),), info={}))
        assert isinstance(effect, Describe)
        effect = protocol.send(Statement(reads=rebase.Reads.TABLE))
        assert isinstance(effect, ReadChanges)
        effect = protocol.send(changes(version, [(Action("add", file_of(f"won{version}", [(2, 2)])),)]))
        if isinstance(effect, Reserve):
            asked.append("Reserve")
            effect = protocol.send(None)
    assert asked == ["Execute", "Execute", *["Reserve", "Execute"] * 4, "Reserve"]


@pytest.mark.matrix
@pytest.mark.timeout(7200)
def test_the_whole_set() -> None:
    """All triples with a fault, and four writers."""
    assert explored(ALL, 3, faults=1).violation == ""
    assert explored(ALL, 3, faults=1, marks=False).violation == ""
    assert explored(ALL, 3, faults=1, marks=False, has_vectors=False).violation == ""
    assert explored((delete(0), update(0, 1), append(4, 0), optimize()), 4, executions_max=3).violation == ""
    assert explored((update(0, 1), append(4, 0)), 4, outside=frozenset({3})).violation == ""


# ------------------------------------------------------------------------------------------------------ planted bugs

real_read_test, real_write_test, real_moved = rebase._read_test, rebase._write_test, rebase._moved
real_rebase, real_follow, real_is_free = rebase.rebase, commit_protocol._rebase_and_commit, rows._is_free


def no_image_test(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """Ignores new matching rows."""
    if statement.reads is rebase.Reads.ROWS:
        return {}
    return (yield from real_read_test(statement, won, may_mark=may_mark))


def no_key_test(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """A MERGE that inserts takes no notice of one that inserted."""
    if statement.reads is rebase.Reads.KEYS:
        return {}
    return (yield from real_read_test(statement, won, may_mark=may_mark))


def no_pre_image_test(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """Lets a MERGE look for new rows, but not for deleted rows that it matched and did not write."""
    return (yield from real_read_test(replace(statement, writes_all_matched=True), won, may_mark=may_mark))


def gone_files_not_looked_into(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """A MERGE takes rows of a file that is gone for rows that are in one that came."""
    if statement.reads is rebase.Reads.KEYS:
        won = replace(won, files={path: change for path, change in won.files.items() if change.after is not None})
    return (yield from real_read_test(statement, won, may_mark=may_mark))


def condition_forgotten(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """A MERGE looks for keys of its source alone, and forgets what it does to rows without one."""
    return (yield from real_read_test(replace(statement, has_condition=False), won, may_mark=may_mark))


def always_divided(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """Executes in parts a statement whose result differs between executions."""
    return (yield from real_rebase(replace(statement, is_divisible=True), lost, won))


def inserts_divided(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """A MERGE that inserts what is absent is executed on some files, which do not tell what is absent."""
    is_keyed = statement.reads is rebase.Reads.KEYS and not statement.has_condition
    return (yield from real_rebase(replace(statement, is_divisible=is_keyed or statement.is_divisible), lost, won))


def keys_that_came_left_as_they_are(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """Lets a MERGE keep its result, and leaves new rows with keys of its source unchanged."""
    rebased = yield from real_rebase(statement, lost, won)
    is_one = isinstance(rebased, rebase.Partly) and rebased.reason == rebase.KEYS_CAME
    return rebase.Rebased(actions=rebased.kept, level=1) if is_one else rebased


def stock_put_during_a_reservation(scenario: Scenario, state: Any, writer: int, step: Any) -> bool:
    """The gate keeps back what follows others, and lets the stock commit through."""
    return isinstance(step, Execute) or real_is_free(scenario, state, writer, step)


def reads_of_the_table_forgotten(statement: Statement, won: Changes, *, may_mark: bool) -> Steps[Any]:
    """INSERT … SELECT from itself is taken for a blind append."""
    if statement.reads is rebase.Reads.TABLE:
        return {}
    return (yield from real_read_test(statement, won, may_mark=may_mark))


def union_always(lost: Captured, won: Changes, entered: Any, *, may_mark: bool) -> Steps[Any]:
    """An UPDATE joins vectors as a DELETE may."""
    return (yield from real_write_test(lost, won, entered, may_mark=True))


def nothing_is_restored(won: Changes) -> Steps[bool]:
    """Ignores rows that are restored in existing files."""
    return False
    yield


def no_base_vector(file: Any) -> Steps[BitMap64]:
    """Forgets the rows that were marked before."""
    return BitMap64()
    yield


def concurrent_vector_forgotten(lost: Captured, won: Changes, entered: Any, *, may_mark: bool) -> Steps[Any]:
    """The captured actions are put as they are."""
    return {}
    yield


def no_look_for_own(statement: Statement, lost: Captured, since: Version) -> Steps[Any]:
    """A put whose answer was lost is taken for one that was never made."""
    protocol = real_follow(statement, lost, since)
    answer: Any = None
    try:
        while True:
            effect = protocol.send(answer)
            answer = yield effect
            if isinstance(answer, Changes):
                answer = replace(answer, transaction_ids={})
    except StopIteration as end:
        return end.value


def moved_files_ignored(self: Changes) -> Any:
    """Files that OPTIMIZE wrote are taken for files that hold nothing new."""
    return ()


def marks_though_it_copies(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """A DELETE that rewrote files is treated like one that marked rows."""
    entered = yield from real_read_test(statement, won, may_mark=statement.marks_rows)
    if isinstance(entered, Again):
        return entered
    vectors = yield from real_write_test(lost, won, entered, may_mark=statement.marks_rows)
    if isinstance(vectors, Again):
        return vectors
    actions = yield from rebase._rewritten(lost, won, vectors)
    return rebase.Rebased(actions=actions, level=2 if vectors else 1)


def _changed_parts(statement: Statement, lost: Captured, won: Changes, change: Callable[[Any], Any]) -> Steps[Any]:
    rebased = yield from real_rebase(statement, lost, won)
    return change(rebased) if isinstance(rebased, rebase.Partly) else rebased


def captured_part_dropped(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """Changes only the files of new matching rows, and forgets the statement's earlier changes."""
    return _changed_parts(statement, lost, won, lambda part: replace(part, kept=()))


def came_left_out(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """Ignores the new files of winning commits that changed the same rows."""
    own = {action.body.get("path") for action in lost.actions}
    return _changed_parts(
        statement,
        lost,
        won,
        lambda part: replace(part, files=tuple(f for f in part.files if f["path"] in own)) if not part.kept else part,
    )


def copies_not_marked(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """OPTIMIZE brings back rows that were deleted meanwhile."""
    return rebase.Rebased(actions=lost.actions, level=1)
    yield


def copies_of_gone_files_kept(statement: Statement, lost: Captured, won: Changes) -> Steps[Any]:
    """Only rows that a vector marks are looked for in what OPTIMIZE wrote, not those of files that are gone."""
    still_there = {
        path: change for path, change in won.files.items() if change.after is not None or change.before is None
    }
    return (yield from real_moved(statement, lost, replace(won, files=still_there)))


def stock_first_then_nothing() -> Steps[Any]:
    """Gives up a commit that lost, and reports success."""
    executed = yield from perform(Execute())
    version = None if isinstance(executed, Captured) else executed.version
    return commit_protocol.Published(version=version, level=0, attempts=1, lost_puts=0, reasons=(), is_superseded=False)


def no_look_for_stock_s_own(statement: Statement, lost: Captured, since: Version) -> Steps[Any]:
    """A stock commit that the store refused is taken for one that was never made."""
    return real_follow(statement, replace(lost, info={}), since)


def followed_as_it_was(staged: Captured, speculation: commit_protocol.Speculation | None) -> Steps[Any]:
    """Before its turn a commit is taken to follow what came, whatever it was."""
    won = yield from perform(ReadChanges(staged.version))
    assert isinstance(won, Changes)
    return commit_protocol.RebasedAhead(commit=replace(staged, version=won.version), level=1, reason=None)


BUGS: dict[str, tuple[Any, str, Any, Callable[[], Found]]] = {
    "no image test": (rebase, "_read_test", no_image_test, lambda: explored(ALL, 2)),
    "no key test": (rebase, "_read_test", no_key_test, lambda: explored(ALL, 2)),
    "no pre-image test": (rebase, "_read_test", no_pre_image_test, lambda: explored(ALL, 2)),
    "gone files not looked into": (
        rebase,
        "_read_test",
        gone_files_not_looked_into,
        lambda: explored(READ_MOVED_TAKEN, 3),
    ),
    "reads of the table forgotten": (rebase, "_read_test", reads_of_the_table_forgotten, lambda: explored(ALL, 2)),
    "condition forgotten": (rebase, "_read_test", condition_forgotten, lambda: explored(ALL, 2)),
    "always divided": (commit_protocol, "rebase", always_divided, lambda: explored(ALL, 2)),
    "inserts divided": (commit_protocol, "rebase", inserts_divided, lambda: explored(ALL, 2)),
    "keys that came left as they are": (
        commit_protocol,
        "rebase",
        keys_that_came_left_as_they_are,
        lambda: explored(ALL, 2),
    ),
    "union always": (rebase, "_write_test", union_always, lambda: explored(ALL, 2)),
    "restored rows not looked for": (rebase, "_are_rows_restored", nothing_is_restored, lambda: explored(ALL, 2)),
    "no base vector": (rebase, "_positions", no_base_vector, lambda: explored(ALL, 2)),
    "captured actions as they are": (rebase, "_write_test", concurrent_vector_forgotten, lambda: explored(ALL, 2)),
    "own put not looked for": (
        commit_protocol,
        "_rebase_and_commit",
        no_look_for_own,
        lambda: explored(ALL, 2, faults=1),
    ),
    "stock's own put not looked for": (
        commit_protocol,
        "_rebase_and_commit",
        no_look_for_stock_s_own,
        lambda: explored(ALL, 2, faults=1),
    ),
    "relocations ignored": (Changes, "came", property(moved_files_ignored), lambda: explored(ALL, 2)),
    "marks though it copies": (
        commit_protocol,
        "rebase",
        marks_though_it_copies,
        lambda: explored(ALL, 2, marks=False),
    ),
    "captured part dropped": (commit_protocol, "rebase", captured_part_dropped, lambda: explored(ALL, 2)),
    "files that came left out": (commit_protocol, "rebase", came_left_out, lambda: explored(ALL, 2)),
    "copies not marked": (rebase, "_moved", copies_not_marked, lambda: explored(ALL, 2)),
    "copies of files that are gone": (rebase, "_moved", copies_of_gone_files_kept, lambda: explored(ALL, 2)),
    "given up": (rows.publishing, "publish", stock_first_then_nothing, lambda: explored(ALL, 2)),
    "followed as it was": (commit_protocol, "rebase_ahead", followed_as_it_was, lambda: explored(FEW, 2, follows=1)),
    "expected commit, whatever came": (
        commit_protocol.Speculation,
        "has_come",
        lambda speculation, won: True,
        lambda: explored((update(0, 1), append(4, 0)), 2, follows=1, speculates=True),
    ),
    "a stock put during a reservation": (
        rows,
        "_is_free",
        stock_put_during_a_reservation,
        lambda: explored((update(0, 1), append(4, 0)), 4, executions_max=3),
    ),
    "never reserved": (
        commit_protocol,
        "LOSSES_FREE",
        99,
        lambda: explored((update(0, 1), append(4, 0)), 4, executions_max=3),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_exploration_finds_a_planted_bug(name: str) -> None:
    """The search does find what it looks for."""
    module, attribute, bug, search = BUGS[name]
    with ExitStack() as ends:
        ends.enter_context(planted(module, attribute, bug))
        assert search().violation


# -------------------------------------------------------------------------------------------------------------- groups


def wrong_groups(number: int = 3, changes: tuple[Change, ...] = ALL, *, has_feed: bool = False) -> str:
    """Returns the fault of the first wrong group: all choices of a first commit and `number` members, in every order."""
    for chosen in itertools.product(changes, repeat=number + 1):
        for files, marked in ((FILES, ()), (MARKED_FILES, MARKED)):
            wrong = rows.put_together(Scenario(files=files, marked=marked, writers=chosen, has_feed=has_feed))
            if wrong:
                return wrong
    return ""


@pytest.mark.slow
def test_a_group_does_what_its_members_do_one_after_the_other() -> None:
    """Any first commit and any two members after it; three members of the few changes."""
    assert wrong_groups(2) == ""
    assert wrong_groups(3, FEW) == ""
    assert wrong_groups(2, has_feed=True) == ""


def by_concatenation(head: Any, parts: Any) -> Any:
    """The members' actions in a row."""
    return tuple(action for part in parts for action in part)


def without_the_members_before(after: Any, commits: Any) -> Any:
    """Rebases each member onto the first commit alone."""
    return real_changes(after, commits[:1])


def without_a_look_at_change_files(actions: Any) -> Any:
    """Members that have them and members that do not are taken together."""
    kind = real_kind(actions)
    return None if kind is None else (False, kind[1])


real_changes, real_kind = group_commit.changes, group_commit._kind


@pytest.mark.parametrize(
    ("name", "planted_bug"),
    [
        ("combined", by_concatenation),
        ("changes", without_the_members_before),
        ("_kind", without_a_look_at_change_files),
    ],
)
def test_a_group_with_a_planted_bug_is_found(name: str, planted_bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a member that is added twice; members that do not see each other; a change feed that shows but some."""
    monkeypatch.setattr(group_commit, name, planted_bug)
    assert wrong_groups(2, has_feed=name == "_kind") != ""
