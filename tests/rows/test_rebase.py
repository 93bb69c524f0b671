"""Contents of a rebased commit other than rows: row ids, tokens, domains, the definition."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from lakegate.delta.actions import Action, Captured, changes
from lakegate.ids import Version
from lakegate.rows.conflict.commit_protocol import Published, publish
from lakegate.rows.conflict.effects import Describe, Execute, FindEntered, Put, PutReply, ReadChanges, WriteVectors
from lakegate.rows.conflict.read_set import Reads, Statement
from lakegate.rows.conflict.rebase import Again, Partly, Rebased, Superseded, _wide, rebase

NUMBERED = {"baseRowId": 7, "defaultRowCommitVersion": 3}


def rebased(reads: Reads, actions: list[Action], *won: Action) -> Any:
    """Returns the outcome for a commit whose rows no winning commit concerns."""
    lost = Captured(version=Version(4), actions=tuple(actions), info={})
    protocol = rebase(Statement(reads=reads), lost, changes(Version(4), [won]))
    answer: Any = None
    try:
        while True:
            assert protocol.send(answer) == WriteVectors(())
            answer = ()
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("reads", [Reads.NOTHING, Reads.ROWS, Reads.PLACES])
def test_new_files_are_numbered_by_the_transaction_that_commits(reads: Reads) -> None:
    """A winning commit may have used the numbers of the lost commit; a file that keeps its path keeps its numbers, too."""
    high = Action("domainMetadata", {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":9}'})
    new = Action("add", {"path": "new", **NUMBERED, "later": 1})
    earlier = Action("domainMetadata", {"domain": "delta.rowTracking"})
    found = rebased(reads, [high, Action("remove", {"path": "old", **NUMBERED}), new], earlier)
    assert isinstance(found, Rebased)
    assert found.actions == (
        Action("remove", {"path": "old", **NUMBERED}),
        Action("add", {"path": "new", "later": 1}),
    )


@pytest.mark.parametrize(("stored", "is_superseded"), [(4, False), (5, True), (6, True)])
def test_a_token_that_is_in_the_table_is_not_written_again(stored: int, *, is_superseded: bool) -> None:
    """Equal or larger numbers have been applied, or fence."""
    actions = [Action("txn", {"appId": "x", "version": 5}), Action("add", {"path": "new"})]
    found = rebased(Reads.NOTHING, actions, Action("txn", {"appId": "x", "version": stored}))
    assert isinstance(found, Superseded) == is_superseded


@pytest.mark.parametrize(
    "earlier", [Action("metaData", {}), Action("protocol", {}), Action("domainMetadata", {"domain": "d"})]
)
def test_another_definition_has_the_statement_planned_again(earlier: Action) -> None:
    """Schema, protocol, or the same domain."""
    actions = [Action("domainMetadata", {"domain": "d"}), Action("add", {"path": "new"})]
    assert isinstance(rebased(Reads.NOTHING, actions, earlier), Again)


def test_an_update_whose_file_was_replaced_is_executed_on_files_that_concern_it() -> None:
    """On what its rows are in now, and on the file of its own that is left; not on what came without such rows."""
    actions = (
        *(Action("remove", {"path": path}) for path in ("moved", "left")),
        Action("add", {"path": "of its own"}),
    )
    lost = Captured(version=Version(4), actions=actions, info={})
    earlier = [Action("remove", {"path": "moved"}), Action("add", {"path": "copy"}), Action("add", {"path": "other"})]
    protocol = rebase(Statement(reads=Reads.ROWS, is_divisible=True), lost, changes(Version(4), [earlier]))
    asked = protocol.send(None)
    assert isinstance(asked, FindEntered)
    assert sorted(file.path for file in asked.files) == ["copy", "other"]
    with pytest.raises(StopIteration) as end:
        protocol.send({"copy": BitMap64([3])})
    outcome = end.value.value
    assert isinstance(outcome, Partly)
    assert sorted(file["path"] for file in outcome.files) == ["copy", "left"]
    assert outcome.kept == ()


@pytest.mark.parametrize("reads", [Reads.ROWS, Reads.KEYS, Reads.TABLE, Reads.PLACES])
def test_a_file_that_was_added_again_and_taken_is_not_brought_back(reads: Reads) -> None:
    """It is in none of the files that were lost: nobody had removed it when it was first named."""
    actions = [Action("remove", {"path": "old"}), Action("add", {"path": "new"})]
    again, taken = Action("add", {"path": "old", "dataChange": False}), Action("remove", {"path": "old"})
    lost = Captured(version=Version(4), actions=tuple(actions), info={})
    won = changes(Version(4), [[again], [taken]])
    with pytest.raises(StopIteration) as end:
        rebase(Statement(reads=reads), lost, won).send(None)
    assert end.value.value == Again("statistics or row ids of files were written again")
    moved = changes(Version(4), [[taken, Action("add", {"path": "copy", "dataChange": False})]])
    assert (won.is_file_said_anew, moved.is_file_said_anew) == (True, False)


# -------------------------------------------------------------------------------------------------------- the protocol


def answered(protocol: Any, *steps: tuple[type, Any]) -> Published:
    """Runs publishing with these expected effects and their answers; returns its end."""
    effect = protocol.send(None)
    for place, (asked, answer) in enumerate(steps):
        assert isinstance(effect, asked)
        if place == len(steps) - 1:
            with pytest.raises(StopIteration) as end:
                protocol.send(answer)
            published: Published = end.value.value
            return published
        effect = protocol.send(answer)
    raise AssertionError("there is a last step")


NEW = (Action("txn", {"appId": "x", "version": 5}), Action("add", {"path": "new"}))


def test_a_stock_commit_that_arrived_though_its_store_denied_it_is_known_again() -> None:
    """A client that repeats a put finds the version taken, by itself."""
    lost = Captured(version=Version(4), actions=NEW, info={"txnId": "a"})
    own = [*NEW, Action("commitInfo", {"txnId": "a"})]
    other = [Action("commitInfo", {"txnId": "b"}), Action("add", {"path": "its"})]
    published = answered(
        publish(),
        (Execute, lost),
        (Describe, Statement(reads=Reads.NOTHING)),
        (ReadChanges, changes(Version(4), [own, other])),
    )
    assert (published.version, published.level, published.lost_puts) == (5, 0, 0)


@pytest.mark.parametrize(("stored", "is_superseded"), [(4, False), (6, True)])
def test_tokens_that_were_committed_during_a_re_execution_fence(stored: int, *, is_superseded: bool) -> None:
    """They are in the snapshot of the second execution, which does not look at them."""
    reads = Statement(reads=Reads.NOTHING)
    first, second = (Captured(version=Version(version), actions=NEW, info={}) for version in (4, 6))
    redefined, token = [Action("metaData", {})], [Action("txn", {"appId": "x", "version": stored})]
    steps: list[tuple[type, Any]] = [
        (Describe, reads),
        (ReadChanges, changes(Version(4), [redefined])),
        (Execute, second),
        (Describe, reads),
        (ReadChanges, changes(Version(4), [redefined, token])),
    ]
    if not is_superseded:
        steps += [(ReadChanges, changes(Version(6), [])), (WriteVectors, ()), (Put, PutReply(True, "b"))]
    published = answered(publish(first), *steps)
    assert (published.is_superseded, published.version) == ((True, None) if is_superseded else (False, 7))


@pytest.mark.parametrize("before", ["", ',"tightBounds":true', ',"tightBounds": false'])
def test_the_statistics_of_a_file_with_a_merged_vector_keep_every_digit(before: str) -> None:
    """A decimal that was rounded is no bound: other readers would skip a file that has the row."""
    bounds = (
        '"minValues":{"d":-0.0,"e":1.50},"maxValues":{"d":99999999999999.1234,"s":"digits1.5","i":9007199254740993}'
    )
    assert _wide(f'{{"numRecords":3,{bounds}{before}}}') == f'{{"numRecords":3,{bounds},"tightBounds":false}}'
