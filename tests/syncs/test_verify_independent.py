"""`sync verify` finds what the sync's own reader and fold got wrong, as it uses neither; `sync repair` writes what it finds."""

from __future__ import annotations

import ast
import random
import sqlite3
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import lakegate
from lakegate.demo.database_servers import fresh_sqlite
from lakegate.syncs.plan.record import Record
from lakegate.syncs.plan.table_schema import Column, ForeignKey, TableSchema
from lakegate.syncs.replay import Replay
from lakegate.syncs.sources.records import UNREADABLE, Records, add_envelopes, decoded, messages_of
from tests.syncs.sync_of_files import FIRM, STAFF, begin, bring, execute, found, line, sync


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_what_cascades_at_the_source_is_expected_of_the_target(tmp_path: Path, action: str) -> None:
    """A parent moves to another key, another one goes and is made again, and no record is of the children."""
    begin(tmp_path, FIRM, STAFF.format(action))
    firm = [{"id": n, "name": f"f{n}"} for n in range(3)]
    staff = [{"id": 10 + n, "firm_id": n, "n": "x"} for n in range(3)]
    records = [line(n, 1, "firm", "c", None, one) for n, one in enumerate(firm)]
    records += [line(3 + n, 1, "staff", "c", None, one) for n, one in enumerate(staff)]
    records += [
        line(6, 2, "firm", "u", firm[0], {**firm[0], "id": 7}),
        line(7, 3, "firm", "d", firm[1], None), line(8, 3, "firm", "c", None, firm[1]),
    ]  # fmt: skip
    bring(tmp_path, "1", *records)
    assert sync(tmp_path, "run", "--once").code == 0
    right = [(10, 7), (11, None), (12, 2)] if action == "SET NULL" else [(10, 7), (12, 2)]
    assert execute(tmp_path / "t.db", "SELECT id, firm_id FROM staff ORDER BY id") == right
    assert sync(tmp_path, "verify").code == 0
    # As a sync that knows no actions would leave it.
    wrong = ["DELETE FROM staff WHERE id = 10", "INSERT OR REPLACE INTO staff VALUES (11, 1, 'x')"]
    execute(tmp_path / "t.db", *wrong)
    ran = sync(tmp_path, "verify", "--output", "json")
    assert ran.code == 4
    kinds = {(one["kind"], one["key"][0]) for one in found(ran)["staff"]["listed"]}
    assert kinds == {("missing", 10), ("different" if action == "SET NULL" else "extra", 11)}
    assert sync(tmp_path, "repair", "s").code == 0
    assert execute(tmp_path / "t.db", "SELECT id, firm_id FROM staff ORDER BY id") == right
    assert sync(tmp_path, "verify").code == 0
    assert sync(tmp_path, "run", "--once").code == 0  # the position is as it was


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_sync_says_whether_its_changes_show_what_actions_did(tmp_path: Path, action: str, size: int) -> None:
    """A parent goes and comes again, in one transaction and in two; another's key moves away and back: files do not tell more."""
    lost = [(10, None)] if action == "SET NULL" else []
    for key, expected in (("auto", [*lost, (20, 2)]), ("in_log", [(10, 1), (20, 2)])):
        root = tmp_path / key
        root.mkdir()
        begin(root, FIRM, STAFF.format(action), more=f"    foreign_key_actions: {key}\n")
        bring(
            root,
            "a",
            line(0, 0, "firm", "c", None, {"id": 1, "name": "a"}),
            line(1, 0, "firm", "c", None, {"id": 2, "name": "b"}),
            line(2, 0, "staff", "c", None, {"id": 10, "firm_id": 1, "n": "x"}),
            line(3, 0, "staff", "c", None, {"id": 20, "firm_id": 2, "n": "y"}),
        )
        assert sync(root, "run", "--until-idle").code == 0
        bring(
            root,
            "b",
            line(4, 1, "firm", "d", {"id": 1, "name": "a"}, None),
            line(5, size, "firm", "c", None, {"id": 1, "name": "again"}),
            line(6, size, "firm", "u", {"id": 2, "name": "b"}, {"id": 7, "name": "b"}),
            line(7, size, "firm", "u", {"id": 7, "name": "b"}, {"id": 2, "name": "c"}),
        )
        assert sync(root, "run", "--until-idle").code == 0
        assert execute(root / "t.db", "SELECT id, firm_id FROM staff ORDER BY id") == expected
        assert sync(root, "verify").code == 0


def test_tables_that_only_cascades_touch_are_named(tmp_path: Path) -> None:
    """Their rows are in no record: what differs is not known, and that is said."""
    begin(tmp_path, FIRM, STAFF.format("CASCADE"))
    bring(tmp_path, "1", line(0, 1, "firm", "c", None, {"id": 1, "name": "f"}))
    assert sync(tmp_path, "run", "--once").code == 0
    ran = sync(tmp_path, "verify", "--output", "json")
    assert ran.code == 0
    assert "compare it with --source" in found(ran)["staff"]["not_compared"]


def test_records_that_the_sync_passed_over_are_compared(tmp_path: Path) -> None:
    """A stream whose position was moved on: nothing is left to apply, and rows lack. What a run brings is no difference."""
    begin(tmp_path, FIRM)
    bring(tmp_path, "1", *(line(n, n, "firm", "c", None, {"id": n, "name": "f"}) for n in (5, 6)))
    assert sync(tmp_path, "run", "--once").code == 0
    bring(tmp_path, "2", line(8, 8, "firm", "c", None, {"id": 8, "name": "f"}))
    ran = sync(tmp_path, "verify", "--output", "json")
    assert (ran.code, ran.json["syncs"][0]["behind"]) == (0, 1)  # a run brings it
    execute(tmp_path / "t.db", "UPDATE lakegate_stream SET position = 8")
    ran = sync(tmp_path, "verify", "--output", "json")
    assert (ran.code, found(ran)["firm"]["listed"][0]["key"]) == (4, [8])


def envelope(
    op: str, lsn: int, before: Any, after: Any, *, table: str = "firm", tx: str | None = None, name: str = "a"
) -> Any:
    """A message of Debezium's."""
    source = {"name": name, "schema": "public", "table": table, "lsn": lsn, "ts_ms": lsn, "txId": lsn}
    source |= {"connector": "postgresql", "db": "d", "sequence": f'["{lsn - 1}","{lsn}"]'}
    transaction = None if tx is None else {"id": tx, "total_order": 1, "data_collection_order": 1}
    return {"op": op, "before": before, "after": after, "source": source, "transaction": transaction, "ts_ms": lsn}


def test_envelopes_are_compared_as_they_stand_in_the_files(tmp_path: Path) -> None:
    """What was sent again half-way is no change; a row that is lost, and rows that the sync does not see, are found."""
    begin(tmp_path, FIRM, source='files: "c/*.jsonl", format: debezium')
    one, two = ({"id": n, "name": "f"} for n in (1, 2))
    sent = [
        envelope("c", 10, None, one), envelope("u", 20, one, {**one, "name": "g"}), envelope("c", 30, None, two),
        envelope("c", 10, None, one),
    ]  # fmt: skip
    bring(tmp_path, "1", *sent)
    assert sync(tmp_path, "run", "--once").code == 0
    ran = sync(tmp_path, "verify", "--output", "json")
    assert (ran.code, found(ran)["firm"]["at_source"]) == (0, 2), ran.err
    execute(tmp_path / "t.db", "DELETE FROM firm WHERE id = 2", "UPDATE firm SET name = 'f' WHERE id = 1")
    ran = sync(tmp_path, "verify", "--output", "json")
    assert [(row["kind"], row["key"]) for row in found(ran)["firm"]["listed"]] == [("different", [1]), ("missing", [2])]
    assert sync(tmp_path, "repair", "s").code == 0
    assert execute(tmp_path / "t.db", "SELECT * FROM firm") == [(1, "g"), (2, "f")]


def test_unfinished_transactions_and_records_behind_the_position_are_counted(tmp_path: Path) -> None:
    """Neither is a difference."""
    (tmp_path / "c").mkdir()
    bring(tmp_path, "1", envelope("c", 1, None, {"id": 1}, tx="A"), envelope("c", 2, None, {"id": 2}, tx="B"))
    bring(tmp_path, "t", {"status": "BEGIN", "id": "A"}, {"status": "END", "id": "A", "event_count": 1})
    name = str(tmp_path / "c" / "1.jsonl")
    for end, beyond in ((1, 0), (0, 1)):
        with Records() as records:
            add_envelopes(
                records, messages_of(name), messages_of(str(tmp_path / "c" / "t.jsonl")), tables={}, ends={name: end}
            )
            assert (records.unfinished, records.beyond, list(records.tables)) == (1, beyond, ["firm"])
            assert len(list(records.in_order(with_beyond=True))) == 1


def test_a_quarantined_row_is_named_as_such(tmp_path: Path) -> None:
    """It is a difference, and the reason is known."""
    begin(
        tmp_path,
        "CREATE TABLE firm (id INTEGER PRIMARY KEY, name TEXT CHECK (name <> 'no'))",
        more="    on_violation: quarantine\n",
    )
    bring(tmp_path, "1", *(line(n, n, "firm", "c", None, {"id": n, "name": "no" if n else "f"}) for n in range(2)))
    assert sync(tmp_path, "run", "--once").code == 0
    ran = sync(tmp_path, "verify", "--output", "json")
    (only,) = found(ran)["firm"]["listed"]
    assert (ran.code, only["kind"], only["is_set_apart"], found(ran)["firm"]["set_apart"]) == (4, "missing", True, 1)
    assert "(quarantined)" in sync(tmp_path, "verify").out


@pytest.mark.slow
def test_the_sources_own_database_is_compared_as_a_whole(tmp_path: Path) -> None:
    """By its address: also rows older than the changes, tables that no record names, and columns of one side alone."""
    source = tmp_path / "source.db"
    execute(
        source,
        FIRM,
        STAFF.format("CASCADE"),
        "INSERT INTO firm VALUES (1, 'f'), (2, 'g')",
        "INSERT INTO staff VALUES (5, 2, 'x')",
    )
    begin(
        tmp_path,
        FIRM.replace("name TEXT", "name TEXT, own INT"),
        STAFF.format("CASCADE"),
        "INSERT INTO firm VALUES (1, 'old', 3)",
        "INSERT INTO staff VALUES (6, 1, 'y')",
        more=f'    source_dsn: "sqlite:{source}"\n',
    )
    bring(tmp_path, "1", line(0, 1, "firm", "c", None, {"id": 2, "name": "g"}))
    assert sync(tmp_path, "run", "--once").code == 0
    for arguments in ((), ("--source", f"sqlite:{source}")):
        ran = sync(tmp_path, "verify", "--output", "json", *arguments)
        tables = found(ran)
        assert (ran.code, tables["firm"]["different"], tables["staff"]["missing"], tables["staff"]["extra"]) == (
            4,
            1,
            1,
            1,
        )
        assert tables["firm"]["notes"] == ["columns only in the target, not compared: own"]
    assert sync(tmp_path, "repair", "s").code == 0
    assert execute(tmp_path / "t.db", "SELECT * FROM firm") == [(1, "f", 3), (2, "g", None)]
    assert execute(tmp_path / "t.db", "SELECT * FROM staff") == [(5, 2, "x")]
    assert sync(tmp_path, "verify").code == 0


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.mariadb
def test_a_source_of_another_kind_is_compared_in_the_targets_types(tmp_path: Path, postgres: str, mariadb: str) -> None:
    """PostgreSQL and MariaDB as the source of each other: dates, numbers, texts, documents, bytes."""
    from lakegate.demo.database_servers import fresh_mariadb, fresh_postgres

    pg, my = fresh_postgres(postgres), fresh_mariadb(mariadb)
    pg.execute("CREATE TABLE t (id bigint PRIMARY KEY, d date, at timestamp, n numeric(10,2), v text, j text, b bytea)",
               r"INSERT INTO t VALUES (1, '2026-01-02', '2026-01-02 03:04:05.5', 1.50, 'ä', '{}', '\x00ff')")  # fmt: skip
    my.execute("CREATE TABLE t (id bigint PRIMARY KEY, d date, at datetime(6), n decimal(12,4), v varchar(9), j text, b blob)",
               "INSERT INTO t VALUES (1, '2026-01-02', '2026-01-02 03:04:05.5', 1.5, 'ä', '{}', x'00ff')")  # fmt: skip
    (tmp_path / "c").mkdir()
    for source, target in ((pg, my), (my, pg)):
        (tmp_path / "lakegate.yml").write_text(
            f'name: p\nsync:\n  s:\n    from: {{files: "c/*.jsonl"}}\n    to: "{target.dsn}"\n    source_dsn: "{source.dsn}"\n'
        )
        bring(tmp_path, "1", line(0, 1, "t", "u", {"id": 1}, {"id": 1, "v": "ä"}))
        assert sync(tmp_path, "run", "--once").code == 0
        ran = sync(tmp_path, "verify", "--output", "json")
        assert (ran.code, found(ran)["t"]["at_source"]) == (0, 1), ran.out + ran.err
        target.execute("UPDATE t SET at = '2026-01-02 03:04:06'")
        ran = sync(tmp_path, "verify", "--output", "json")
        assert (ran.code, found(ran)["t"]["listed"][0]["columns"]) == (4, ["at"])
        target.execute("UPDATE t SET at = '2026-01-02 03:04:05.5'")


def test_actions_are_replayed_as_a_database_takes_them(tmp_path: Path) -> None:
    """Random histories of three tables in a chain, against SQLite itself with the same statements."""
    column = [Column(name=name, type="int", kind="int") for name in ("id", "up")]
    for seed in range(30):
        chance = random.Random(seed)
        on = [chance.choice(["CASCADE", "SET NULL", "SET DEFAULT"]) for _ in range(2)]
        names = ("a", "b", "c")
        keys = [
            ForeignKey(
                table=names[n + 1], columns=("up",), parent=names[n], parent_columns=("id",),
                on_delete=on[n], on_update="CASCADE", defaults=(("up", 4),),  # type: ignore[arg-type]
            )
            for n in range(2)
        ]  # fmt: skip
        tables = {
            name: TableSchema(
                name=name, columns=tuple(column), identity=("id",), foreign_keys=tuple(keys[n - 1 : n]) if n else ()
            )
            for n, name in enumerate(names)
        }
        oracle = fresh_sqlite(tmp_path)
        oracle.execute(
            "CREATE TABLE a (id int PRIMARY KEY, up int)",
            *(
                f"CREATE TABLE {names[n + 1]} (id int PRIMARY KEY, up int DEFAULT 4 REFERENCES {names[n]} (id) ON DELETE {on[n]} "
                "ON UPDATE CASCADE)"
                for n in range(2)
            ),
        )
        connection = oracle.connect()
        connection.execute("PRAGMA foreign_keys = ON")
        records = []
        for tx in range(40):
            name, id = chance.choice(names), chance.randrange(5)
            here = connection.execute(f"SELECT up FROM {name} WHERE id = ?", (id,)).fetchone()
            level = names.index(name)
            ups = (
                [None]
                if not level
                else [None, *(one for (one,) in connection.execute(f"SELECT id FROM {names[level - 1]}"))]
            )
            before = {"id": id, "up": here[0]} if here else None
            if here is None:
                after = {"id": id, "up": chance.choice(ups)}
                connection.execute(f"INSERT INTO {name} VALUES (?, ?)", (id, after["up"]))
                records.append(Record(table=name, op="c", before=None, after=after, tx=str(tx)))
            elif chance.random() < 0.3:
                try:
                    connection.execute(f"DELETE FROM {name} WHERE id = ?", (id,))
                except sqlite3.IntegrityError:  # the parent that SET DEFAULT names is not there
                    continue
                records.append(Record(table=name, op="d", before=before, after=None, tx=str(tx)))
            else:
                new = chance.randrange(5)
                if new != id and connection.execute(f"SELECT 1 FROM {name} WHERE id = ?", (new,)).fetchone():
                    continue
                connection.execute(f"UPDATE {name} SET id = ? WHERE id = ?", (new, id))
                records.append(Record(table=name, op="u", before=before, after={"id": new}, tx=str(tx)))
        with Replay(tables) as replay:
            replay.take(records)
            for name in names:
                rows = {(row["id"], row["up"]) for chunk in replay.chunks(name, 3) for _, row in chunk}
                assert rows == set(connection.execute(f"SELECT id, up FROM {name}")), (seed, name)
        connection.close()


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (
            "AJY=",
            {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
            Decimal("1.50"),
        ),
        (20454, {"type": "int32", "name": "io.debezium.time.Date"}, date(2026, 1, 1)),
        (
            1767225600500,
            {"type": "int64", "name": "io.debezium.time.Timestamp"},
            datetime(2026, 1, 1, 0, 0, 0, 500_000),
        ),
        ("infinity", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, UNREADABLE),
        (317346336000000000, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, UNREADABLE),
        (120_000, {"type": "int64", "name": "io.debezium.time.MicroTime"}, "00:00:00.120000"),
        ("AP8=", {"type": "bytes"}, b"\x00\xff"),
        (93784500000, {"type": "int64", "name": "io.debezium.time.MicroDuration"}, UNREADABLE),
        ([1], {"type": "array"}, UNREADABLE),
        ("x", {"type": "string"}, "x"),
    ],
)
def test_a_value_is_read_by_its_type_or_not_at_all(value: Any, schema: Any, expected: Any) -> None:
    """With a decoder of its own: what it does not know is left out and said, never taken as it looks."""
    assert decoded(value, schema) == expected


def test_a_password_is_no_argument_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused in every place of an address, and never repeated; taken from a variable that the argument names."""
    begin(tmp_path, FIRM)
    bring(tmp_path, "a", line(0, 0, "firm", "c", None, {"id": 1, "name": "a"}))
    assert sync(tmp_path, "run", "--until-idle").code == 0
    for command_ in (["verify"], ["repair", "s"]):
        for dsn in ("postgresql://u:s3cret@h/d", "mysql://h/d?password=s3cret", "postgresql://h/d?sslpassword=s3cret"):
            refused = sync(tmp_path, *command_, "--source", dsn)
            assert (refused.code, "has a password" in refused.err, "s3cret" in refused.err) == (2, True, False)
        assert sync(tmp_path, *command_, "--source", "${NO_SUCH_DSN}").code == 2
    execute(tmp_path / "source.db", FIRM, "INSERT INTO firm VALUES (1, 'b')")
    monkeypatch.setenv("SOURCE_OF_T", f"sqlite:{tmp_path}/source.db")
    assert sync(tmp_path, "verify", "--source", "${SOURCE_OF_T}").code == 4


def test_the_comparison_shares_no_code_with_what_applies_changes() -> None:
    """Neither reader, nor decoder, nor fold, nor plan: what they do wrong must be seen."""
    root = Path(lakegate.__file__).parent
    shared = {
        "lakegate.syncs.plan.table_schema",
        "lakegate.syncs.plan.record",
        "lakegate.errors",
        "lakegate.syncs.sources.lines",
    }
    for name in ("syncs/sources/records.py", "syncs/replay.py"):
        tree = ast.parse((root / name).read_text())
        used = {
            one.module
            for one in ast.walk(tree)
            if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("lakegate")
        }
        assert used <= shared | {"lakegate.syncs.sources.files"}, name
