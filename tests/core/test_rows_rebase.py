"""What a rebased commit carries beside rows: row ids, tokens, domains, the definition."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from headgate.core.ids import Version
from headgate.core.rows.actions import Action, changes
from headgate.core.rows.effects import Captured, FindEntered, WriteVectors
from headgate.core.rows.rebase import Again, Partly, Rebased, Superseded, rebase
from headgate.core.rows.statement import Reads, Statement

NUMBERED = {"baseRowId": 7, "defaultRowCommitVersion": 3}


def rebased(reads: Reads, actions: list[Action], *won: Action) -> Any:
    """The outcome for a commit whose rows no winner concerns."""
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
    """Numbers of the lost commit may be a winner's by now; a file that keeps its place keeps its own, too."""
    high = Action("domainMetadata", {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":9}'})
    new = Action("add", {"path": "new", **NUMBERED, "later": 1})
    winner = Action("domainMetadata", {"domain": "delta.rowTracking"})
    found = rebased(reads, [high, Action("remove", {"path": "old", **NUMBERED}), new], winner)
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
    "winner", [Action("metaData", {}), Action("protocol", {}), Action("domainMetadata", {"domain": "d"})]
)
def test_another_definition_has_the_statement_planned_again(winner: Action) -> None:
    """Schema, protocol, or the same domain."""
    actions = [Action("domainMetadata", {"domain": "d"}), Action("add", {"path": "new"})]
    assert isinstance(rebased(Reads.NOTHING, actions, winner), Again)


def test_an_update_whose_file_was_replaced_is_executed_on_files_that_concern_it() -> None:
    """On what its rows are in now, and on the file of its own that is left; not on what came without such rows."""
    actions = (
        *(Action("remove", {"path": path}) for path in ("moved", "left")),
        Action("add", {"path": "of its own"}),
    )
    lost = Captured(version=Version(4), actions=actions, info={})
    winner = [Action("remove", {"path": "moved"}), Action("add", {"path": "copy"}), Action("add", {"path": "other"})]
    protocol = rebase(Statement(reads=Reads.ROWS), lost, changes(Version(4), [winner]))
    asked = protocol.send(None)
    assert isinstance(asked, FindEntered)
    assert sorted(file.path for file in asked.files) == ["copy", "other"]
    with pytest.raises(StopIteration) as end:
        protocol.send({"copy": BitMap64([3])})
    outcome = end.value.value
    assert isinstance(outcome, Partly)
    assert sorted(file["path"] for file in outcome.files) == ["copy", "left"]
    assert outcome.kept == ()
