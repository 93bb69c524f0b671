"""Quarantined rows are applied when their obstacle is gone, and leave no letter."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.dead_letters import kept_image, kept_row, kept_text
from lakegate.syncs.plan.net_changes import NetRow
from lakegate.syncs.session import SyncSession
from tests.cli.command import lakegate
from tests.cli.sync_of_people import CLASH, bring, execute, pipeline
from tests.cli.sync_of_people import sync as command
from tests.syncs.short_changes import c, changes_of, d
from tests.syncs.target_databases import KINDS, fresh, sync

T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(9) UNIQUE, v int CHECK (v < 100))"


def row(id: int, uk: str, v: int) -> dict[str, Any]:
    """Makes a row."""
    return {"id": id, "uk": uk, "v": v}


def carried(database: Database, *batches: list[Any], mode: str = "atomic") -> None:
    """Each list as a batch of its own, behind those before it."""
    from dataclasses import replace

    steps = [step for batch in batches for step in batch]
    changes = [replace(one, is_partial=one.op == "u") for one in changes_of(*steps)]
    end = 0
    for batch in batches:
        end += len(batch)
        sync(database, changes[:end], on_violation="quarantine", mode=mode, parallelism=2)


def found(database: Database) -> tuple[list[tuple[Any, ...]], int]:
    """Returns the table's rows, and the number of quarantined rows."""
    return sorted(tuple(one.values()) for one in database.rows("t")), len(database.rows("lakegate_dead"))


def u(tx: int, id: int, **values: Any) -> Any:
    """A change that shows a part of the row."""
    return (tx, "t", "u", {"id": id}, {"id": id, **values})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_change_that_makes_a_row_right_brings_in_what_waited_for_it(
    kind: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """Row 1 breaks a rule; row 2 waits for its value, and row 3, of a later batch, for row 2's. Then row 1 is corrected."""
    database = fresh(kind, request)
    database.execute(T, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    bad = [u(1, 1, uk="z", v=500), u(1, 2, uk="a")]
    waits = [c(2, row(3, "b", 3))]
    carried(database, bad, waits, mode=mode)
    assert found(database) == ([(1, "a", 1), (2, "b", 2)], 3)
    carried(database, bad, waits, [c(3, row(9, "y", 9))], mode=mode)
    assert found(database)[1] == 3  # of no concern to them
    carried(database, bad, waits, [c(3, row(9, "y", 9))], [u(4, 1, v=5)], mode=mode)
    assert found(database) == ([(1, "z", 5), (2, "a", 2), (3, "b", 3), (9, "y", 9)], 0)


def test_a_row_that_stays_wrong_has_one_letter(request: pytest.FixtureRequest) -> None:
    """Its last image counts; a deletion ends it, and so does a table that is emptied."""
    database = fresh("sqlite", request)
    database.execute(T)
    steps = [[c(1, row(1, "a", 500))], [u(2, 1, uk="b")], [c(3, row(2, "c", 700))]]
    carried(database, *steps)
    assert found(database) == ([], 2)
    assert json.loads(database.rows("lakegate_dead")[0]["image"])["uk"] == "b"
    steps += [[d(4, {"id": 1})]]
    carried(database, *steps)
    assert found(database)[1] == 1
    carried(database, *steps, [(5, "t", "t", None, None)])
    assert found(database) == ([], 0)


def test_random_histories_with_bad_rows_end_right_when_all_is_corrected(request: pytest.FixtureRequest) -> None:
    """When all rows of the source fit, the target has them and no letter is left, whichever rows were quarantined before."""
    for seed in range(4):
        chance = random.Random(seed)
        database = fresh("sqlite", request)
        database.execute(T)
        rows: dict[int, dict[str, Any]] = {}
        batches: list[list[Any]] = []
        for tx in range(30):
            id = chance.randrange(6)
            uk, v = f"k{chance.randrange(9)}", chance.choice([1, 2, 300])
            if any(one["uk"] == uk for n, one in rows.items() if n != id):
                continue
            if id in rows and chance.random() < 0.2:
                rows.pop(id)
                batches.append([d(tx, {"id": id})])
            elif id in rows:
                rows[id] = row(id, uk, v)
                batches.append([u(tx, id, uk=uk, v=v) if chance.random() < 0.5 else u(tx, id, uk=uk)])
            else:
                rows[id] = row(id, uk, v)
                batches.append([c(tx, rows[id])])
        batches += [[u(100 + id, id, v=7)] for id in rows]
        carried(database, *batches)
        assert found(database) == (sorted((id, one["uk"], 7) for id, one in rows.items()), 0), seed


def session(root: Path) -> SyncSession:
    """The sync of a file."""
    from lakegate.settings import load_pipeline

    spec = load_pipeline(str(root))
    return SyncSession(spec, spec.sync("crm"))


def test_a_row_is_corrected_sent_again_and_dropped(tmp_path: Path) -> None:
    """By its id; what is refused again stays apart; what is dropped is not written; the position stays."""
    pipeline(tmp_path, settings="on_violation: quarantine")
    bring(tmp_path, "1", CLASH)
    assert command(tmp_path, "run", "--once").code == 0
    with session(tmp_path) as one:
        (letter,) = one.kept_rows()
        assert (letter.key, letter.image) == ((4,), {"id": 4, "email": "c"})
        with pytest.raises(InvalidRequest, match="no such quarantined row"):
            one.drop_letters(["7.7"])
        with pytest.raises(InvalidRequest, match="cannot be corrected this way"):
            one.retry_letters([letter.id], {"nonsense": 1})
        assert one.retry_letters([letter.id], {}) == (0, 1)
        (letter,) = one.kept_rows()
        position = one.standing().position
        assert one.retry_letters([letter.id], {"email": "free"}) == (1, 0)
        assert (one.kept_rows(), one.standing().position) == ((), position)
    assert execute(tmp_path, "SELECT email FROM people WHERE id = 4") == [("free",)]
    bring(tmp_path, "2", [{"seq": 9, "tx": "9", "table": "people", "op": "c", "after": {"id": 9, "email": "a"}}])
    assert command(tmp_path, "run", "--once").code == 0
    with session(tmp_path) as one:
        assert one.drop_letters([row.id for row in one.kept_rows()]) == 1
        assert one.standing().dead_rows == 0
    assert execute(tmp_path, "SELECT count(*) FROM people WHERE id = 9") == [(0,)]


def test_the_command_lists_corrects_and_drops_rows_of_a_sync(tmp_path: Path) -> None:
    """Values only on demand; ids as they are listed; what is refused again is said."""
    pipeline(tmp_path, settings="on_violation: quarantine")
    bring(tmp_path, "1", CLASH)
    assert command(tmp_path, "run", "--once").code == 0

    def letters(*arguments: str) -> Any:
        return lakegate("dead-letters", *arguments, "--spec", tmp_path)

    (listed,) = letters("list", "crm", "--output", "json").json["dead_letters"]
    assert ("values" in listed, listed["kind"]) == (False, "row")
    (shown,) = letters("list", "crm", "--values", "--output", "json").json["dead_letters"]
    assert json.loads(shown["values"]) == {"key": [4], "row": {"id": 4, "email": "c"}}
    again = letters("retry", "crm", listed["id"])
    assert (again.code, "refused again" in again.err) == (2, True)
    (listed,) = letters("list", "crm", "--output", "json").json["dead_letters"]
    assert letters("retry", "crm", listed["id"], "--set", "email=free").code == 0
    assert execute(tmp_path, "SELECT email FROM people WHERE id = 4") == [("free",)]
    assert letters("list", "crm").out == "crm has nothing set aside\n"
    bring(tmp_path, "2", [{"seq": 9, "tx": "9", "table": "people", "op": "c", "after": {"id": 9, "email": "a"}}])
    assert command(tmp_path, "run", "--once").code == 0
    (listed,) = letters("list", "crm", "--output", "json").json["dead_letters"]
    assert letters("drop", "crm", listed["id"]).code == 0
    assert letters("drop", "crm", listed["id"]).code == 2


def test_a_kept_row_is_read_as_it_was() -> None:
    """Bytes, long numbers, where it comes from, and what could not be kept."""
    image = {"id": 1, "raw": b"\x00\xff", "n": 12345678901234567890, "doc": {"a": [1, None]}}
    made = NetRow(0, "t", (1, b"k"), image, (2, b"k"), 5, True)
    again = kept_row(3, 0, "t", kept_text(made.key), kept_image(made, None), 5, "why")
    assert (again.key, again.image, again.origin, again.is_partial, again.id) == (
        (1, b"k"),
        image,
        (2, b"k"),
        True,
        "3.0",
    )
    short = kept_row(3, 0, "t", "[1]", kept_image(made._replace(image={"id": 1, "v": "x" * 500}), 200), 5, "why")
    assert (short.lacks_values, short.image) == (True, {"id": 1, "v": {"lakegate_left_out_bytes": 502}})
