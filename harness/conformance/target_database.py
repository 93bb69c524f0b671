"""Conformance suite of `TargetDatabase`: the rules that every adapter keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakegate.errors import CommitInDoubt, Fenced
from lakegate.syncs.plan.apply_protocol import ALL, Applied, SyncProgress, Violated
from lakegate.syncs.plan.change import Change, Op
from lakegate.syncs.plan.conflict_graph import Assignment, Edge, assign
from lakegate.syncs.plan.net_changes import Net, fold
from lakegate.syncs.ports import TargetDatabase

OpenTarget = Callable[[], TargetDatabase]
Rows = Callable[[], dict[int, Any]]


def changes(*steps: tuple[Op, int, Any]) -> list[Change]:
    """Makes changes of `t (id, uk)`, each a transaction of its own: (op, id, uk)."""
    made = []
    for seq, (op, id, uk) in enumerate(steps):
        after = None if op == "d" else {"id": id, "uk": uk}
        before = None if op == "c" else {"id": id}
        made.append(Change(seq=seq, tx=str(seq), table="t", op=op, before=before, after=after))
    return made


class TargetDatabaseConformance:
    """To use it, make a subclass with two fixtures: `open_target`, a factory of handles on one database with a table
    `t (id, uk)`; and `rows`, id → uk as another connection sees them.

    `id` is the primary key and `uk` is unique; rows 1 'x' and 2 'y' are there.
    """

    def staged(self, target: TargetDatabase, *steps: tuple[Op, int, Any], slots: int = 1) -> Net:
        """Stages and plans a batch."""
        net = fold(changes(*steps), target.tables(["t"]))
        assert target.stage(net, slots) == ()
        target.assign(assign(target.look(net, duplicates=False), rows=len(net.rows), slots=slots))
        return net

    def test_a_definition_says_identity_and_keys(self, open_target: OpenTarget) -> None:
        """Tables that do not exist are left out."""
        target = open_target()
        tables = target.tables(["t", "absent"])
        assert set(tables) == {"t"}
        assert tables["t"].identity == ("id",)
        assert sorted((sorted(key.columns), key.is_primary) for key in tables["t"].unique_keys) == [
            (["id"], True), (["uk"], False),
        ]  # fmt: skip

    def test_rows_and_position_come_together(self, open_target: OpenTarget, rows: Rows) -> None:
        """Before the commit no handle sees either; after it every handle sees both."""
        target = open_target()
        target.open_stream("s")
        net = self.staged(target, ("u", 1, "y"), ("u", 2, "x"), ("c", 3, "z"))
        assert rows() == {1: "x", 2: "y"}
        assert target.apply(net, ALL, finish=True) == Applied()
        assert rows() == {1: "y", 2: "x", 3: "z"}
        assert open_target().open_stream("s") == SyncProgress(epoch=2, last_batch=1, position=2)

    def test_the_row_that_releases_a_value_is_found_in_the_target(self, open_target: OpenTarget) -> None:
        """The events do not say which values the rows held."""
        target = open_target()
        target.open_stream("s")
        net = fold(changes(("u", 1, "y"), ("d", 2, None)), target.tables(["t"]))
        target.stage(net, 1)
        found = target.look(net, duplicates=False)
        (number,) = [i for i, key in enumerate(target.tables(["t"])["t"].unique_keys) if not key.is_primary]
        assert found.edges == (Edge(1, 0, number),)
        assert found.clashes == ()

    def test_a_part_of_a_row_that_is_not_there_is_refused(self, open_target: OpenTarget) -> None:
        """The missing columns cannot be found; for a row in the target, or one that the batch makes, they can."""
        target = open_target()
        target.open_stream("s")
        partial = [
            replace(one, after={"id": one.after["id"]}, is_partial=True) if one.op == "u" and one.after else one
            for one in changes(("u", 1, "?"), ("u", 5, "?"), ("c", 6, "z"), ("u", 6, "?"))
        ]
        moved = replace(partial[0], before={"id": 7}, after={"id": 8})
        net = fold([*partial, moved], target.tables(["t"]))
        refused = [net.rows[one.row].key for one in target.stage(net, 1)]
        assert sorted(refused) == [(5,), (8,)]

    def test_a_holder_outside_the_batch_is_named(self, open_target: OpenTarget) -> None:
        """The violation is reported as drift, with the key of the holder."""
        target = open_target()
        target.open_stream("s")
        net = fold(changes(("c", 7, "y")), target.tables(["t"]))
        target.stage(net, 1)
        (clash,) = target.look(net, duplicates=False).clashes
        assert (clash.row, clash.is_drift) == (0, True)
        assert "2" in clash.holder

    def test_a_violation_is_an_answer_and_changes_nothing(self, open_target: OpenTarget, rows: Rows) -> None:
        """Neither rows nor position change; without the quarantined row the rest is applied."""
        target = open_target()
        target.open_stream("s")
        net = self.staged(target, ("c", 5, "new"), ("c", 7, "y"))
        assert isinstance(target.apply(net, ALL, finish=True), Violated)
        assert rows() == {1: "x", 2: "y"}
        target.assign(Assignment(slots=1, slot_of={1: -1}))
        assert target.apply(net, ALL, finish=True) == Applied()
        assert rows() == {1: "x", 2: "y", 5: "new"}

    def test_a_trial_changes_nothing(self, open_target: OpenTarget, rows: Rows) -> None:
        """A trial reports what would happen."""
        target = open_target()
        target.open_stream("s")
        net = self.staged(target, ("c", 5, "new"), ("d", 1, None))
        assert target.apply(net, 0, is_trial=True) == Applied()
        assert rows() == {1: "x", 2: "y"}

    def test_a_batch_in_slots_is_pending_until_all_are_in(self, open_target: OpenTarget, rows: Rows) -> None:
        """The end writes the position; a process that opens the stream before that learns where the batch must end."""
        target = open_target()
        target.open_stream("s")
        net = self.staged(target, ("c", 5, "a"), ("c", 6, "b"), slots=2)
        target.begin(net)
        assert target.apply(net, 0) == Applied()
        with pytest.raises(CommitInDoubt):
            target.finish(net, 2, ())
        again = open_target()
        assert again.open_stream("s").pending == 1
        net = self.staged(again, ("c", 5, "a"), ("c", 6, "b"), slots=2)
        again.begin(net)
        for slot in (1, 0):
            assert again.apply(net, slot) == Applied()
        again.finish(net, 2, ())
        assert rows() == {1: "x", 2: "y", 5: "a", 6: "b"}
        assert open_target().open_stream("s") == SyncProgress(epoch=3, last_batch=1, position=1)

    def test_applied_again_it_changes_nothing(self, open_target: OpenTarget, rows: Rows) -> None:
        """The same batch, after the reply to its end was lost: the rows already have their final images."""
        for _ in range(2):
            target = open_target()
            target.open_stream("s")
            net = self.staged(target, ("u", 1, "y"), ("u", 2, "x"), ("c", 3, "z"), ("d", 3, None), slots=3)
            target.begin(net)
            for slot in range(3):
                assert target.apply(net, slot) == Applied()
            assert rows() == {1: "y", 2: "x"}

    def test_a_writer_of_an_older_epoch_changes_nothing(self, open_target: OpenTarget, rows: Rows) -> None:
        """Every step that would write is refused."""
        zombie, target = open_target(), open_target()
        zombie.open_stream("s")
        net = self.staged(zombie, ("c", 5, "a"))
        target.open_stream("s")
        steps: list[Callable[[], object]] = [
            lambda: zombie.stage(net, 1),
            lambda: zombie.look(net, duplicates=False),
            lambda: zombie.begin(net),
            lambda: zombie.apply(net, 0),
            lambda: zombie.apply(net, ALL, finish=True),
            lambda: zombie.finish(net, 1, ()),
        ]
        for step in steps:
            with pytest.raises(Fenced):
                step()
        assert rows() == {1: "x", 2: "y"}

    def test_a_batch_that_was_applied_is_refused(self, open_target: OpenTarget, rows: Rows) -> None:
        """Another handle of the same epoch brought it in."""
        one, other = open_target(), open_target()
        one.open_stream("s", epoch=4)
        other.open_stream("s", epoch=4)
        late = self.staged(one, ("c", 5, "a"))
        net = self.staged(other, ("c", 5, "a"), ("d", 5, None))
        assert other.apply(net, ALL, finish=True) == Applied()
        with pytest.raises(Fenced):
            one.apply(late, ALL, finish=True)
        assert rows() == {1: "x", 2: "y"}
