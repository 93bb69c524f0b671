"""Positions of a source: whose they are, what is sent again, and that nothing is old because its number is lower elsewhere."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lakegate.errors import Corrupt, InvalidRequest
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.source_position import waiting
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from tests.cli.command import lakegate
from tests.syncs.envelopes import ended, mysql, of_tx, postgres
from tests.syncs.topics import Topics

Groups = list[tuple[Change, ...]]


def read(logs: Any, place: str | None = None, after: int = -1, *, now_s: float = 1.0, **tables: str) -> Groups:
    """Reads the changes of the logs after a position."""
    return list(DebeziumChanges(logs=logs, tables=tables, clock=lambda: now_s).transactions(after, place))


def ids(groups: Groups) -> list[Any]:
    """The ids of rows; a mark is None."""
    return [
        None if one.op == "mark" else (one.after or one.before or {}).get("id") for group in groups for one in group
    ]


def in_pieces(logs: Topics, whole: dict[str, list[Any]], steps: int) -> list[Any]:
    """Reads logs that grow in the given number of steps; the reader restarts after each group."""
    found: list[Any] = []
    place, after = None, -1
    for step in range(1, steps + 1):
        for name, messages in whole.items():
            logs.growing[name][:] = messages[: -(-len(messages) * step // steps)]
        while groups := read(logs, place, after):
            group = groups[0] if groups[0][0].op != "mark" or len(groups) == 1 else groups[1]
            place, after = group[-1].place, group[-1].seq
            if group[0].op == "mark":
                break
            found += ids([group])
    return found


def files(folder: Path, **contents: Sequence[Any]) -> EnvelopeFiles:
    """Files of a folder."""
    (folder / "data").mkdir(exist_ok=True)
    for name, lines in contents.items():
        (folder / "data" / name).write_text("".join(json.dumps(one) + "\n" for one in lines))
    return EnvelopeFiles(files=str(folder / "data"))


# ------------------------------------------------------------------------------------------ whose a position is


def two_servers() -> list[dict[str, Any]]:
    """Makes a log with high positions, and one with low positions and a clock that is late or early."""
    high = [mysql(40, n, name="one", server_id=1, ts_ms=10_000 + n) for n in (100, 300, 500)]
    low = [mysql(3, n, name="two", server_id=2, ts_ms=n * 100) for n in (200, 400, 600)]
    return [one for pair in zip(high, low, strict=True) for one in pair]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_logs_of_two_servers_in_one_topic_are_distinguished(steps: int) -> None:
    """Neither is old because the other's number is higher; what each sends again is dropped."""
    rows = two_servers()
    whole = {"orders/0": [*rows[:4], *rows[1:3], *rows[2:]]}
    assert in_pieces(Topics(**{"orders/0": []}), whole, steps) == [100, 200, 300, 400, 500, 600]


def test_two_databases_and_two_connectors_are_two_sources(tmp_path: Path) -> None:
    """PostgreSQL's databases have a connector each, with a log of its own; so have SQL Server's; MySQL's share one."""
    pairs = [
        (postgres(900, db="a", id=1), postgres(5, db="b", id=2)),
        (postgres(900, name="x", id=1), postgres(5, name="y", id=2)),
        (mysql(9, 1, id=1), mysql(1, 1, connector="mariadb", id=2)),
    ]
    for n, (high, low) in enumerate(pairs):
        assert ids(read(Topics(t=[high, low]))) == [1, 2]
        (tmp_path / f"{n}").mkdir()
        assert sorted(ids(read(files(tmp_path / f"{n}", a=[high], b=[low])))) == [1, 2]
    with pytest.raises(Corrupt, match="positions went back"):  # one log, though the rows are of two databases
        read(Topics(t=[mysql(9, 1, db="a", id=1, ts_ms=5), mysql(1, 1, db="b", id=2, ts_ms=6)]))


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("file", [7, 120, 500])
def test_a_fail_over_with_gtids_goes_on(steps: int, file: int) -> None:
    """The new primary has other positions, lower or higher, and sends the end of what was sent: it is known by its GTIDs."""
    before = [mysql(120, 900 + n, gtid=f"{UUID}:{n}", id=n) for n in (41, 42, 43)]
    half = [mysql(120, 1_000 + n, gtid=f"{UUID}:44", id=n) for n in (44, 45)]
    again = [mysql(file, 300 + n, gtid=f"{UUID}:{n}", id=n) for n in (42, 43)]
    whole = [mysql(file, 400 + n, gtid=f"{UUID}:44", id=n) for n in (44, 45, 46)]
    new = [mysql(file, 500 + n, gtid=f"aaaa:{n}", server_id=9, id=100 + n) for n in (1, 2)]
    logs = {"t": [*before, *half, *again, *whole, *new, *whole[1:], *new]}
    assert in_pieces(Topics(t=[]), logs, steps) == [41, 42, 43, 44, 45, 46, 101, 102]


def test_gtids_out_of_order_are_no_repetition() -> None:
    """A replica commits in another order than its source did, and MariaDB counts by domain and server."""
    rows = [mysql(1, 100 + n, gtid=f"{UUID}:{gtid}", id=gtid) for n, gtid in enumerate((10, 13, 11, 12, 20, 15))]
    assert ids(read(Topics(t=[*rows, *rows[1:]]))) == [10, 13, 11, 12, 20, 15]
    rows = [mysql(1, 100 + n, connector="mariadb", gtid=gtid, id=n + 1) for n, gtid in enumerate(("0-1-7", "0-2-3"))]
    assert ids(read(Topics(t=[*rows, *rows]))) == [1, 2]


def test_a_log_that_was_begun_again_is_refused_and_never_taken_for_repetitions(tmp_path: Path) -> None:
    """Without GTIDs: by a server that was not there, by a new snapshot, by the clock, or as nothing known comes with it."""
    last = mysql(120, 900)
    wrong = {
        "from a server that was not seen before": [mysql(7, 300, server_id=9)],
        "after a new snapshot": [mysql(1, 1, op="r", id=5, snapshot="first"), mysql(7, 300)],
        "younger": [mysql(7, 300, ts_ms=1_700_000_001_000)],
        "none of the delivered changes": [mysql(7, 300), mysql(7, 400), mysql(120, 901)],
    }
    for says, rows in wrong.items():
        with pytest.raises(Corrupt, match=f"positions went back.*{says}.*offset="):
            read(Topics(t=[last, *rows]))
        with pytest.raises(Corrupt, match="positions went back"):
            read(files(tmp_path, c=[last, *rows]))
    with pytest.raises(Corrupt, match="none of the delivered changes"):  # files are complete: it is known at once
        read(files(tmp_path, c=[last, mysql(7, 300)]))
    (group,) = read(Topics(t=[last, mysql(7, 300)]), now_s=3.0)
    waits = waiting(group[-1].place)
    assert waits is not None
    assert "topic=t, offset=1" in waits[0]
    assert waits[1] == 3_000
    lower = [postgres(100, before=90), postgres(50, before=40, id=9, ts_ms=60), postgres(120, before=110)]
    with pytest.raises(Corrupt, match="positions went back"):  # a new timeline, or a source that was restored
        read(Topics(t=lower))
    incremental = mysql(1, 1, op="r", id=5, snapshot="incremental")
    assert ids(read(Topics(t=[last, incremental, last, mysql(120, 901)]))) == [900, 5, 901]


@pytest.mark.parametrize("as_files", [True, False])
def test_tables_that_meet_in_one_are_refused_unless_the_settings_say_so(as_files: bool, tmp_path: Path) -> None:
    """Of two schemas, of two databases, renamed into one; also when the second comes much later."""

    def logs(*rows: dict[str, Any]) -> Any:
        return files(tmp_path, c=rows) if as_files else Topics(t=list(rows))

    rows = [postgres(1, schema="sales", table="orders"), postgres(2, schema="archive", table="orders")]
    with pytest.raises(InvalidRequest, match=r"two tables.*table=orders first=sales.orders second=archive.orders"):
        read(logs(*rows))
    with pytest.raises(InvalidRequest, match="two tables"):
        read(logs(*rows), orders="purchases")  # which does not say that both are meant
    for said in ({"sales.orders": "o", "archive.orders": "o"}, {"*.orders": "o"}):
        assert {one.table for group in read(logs(*rows), **said) for one in group} == {"o"}
    renamed = read(logs(*rows), **{"archive.orders": "old_orders"})
    assert [one.table for group in renamed for one in group] == ["orders", "old_orders"]
    with pytest.raises(InvalidRequest, match="two tables"):
        read(logs(postgres(1, table="people"), postgres(2, table="persons")), people="persons")
    (first,) = read(logs(rows[0]))
    with pytest.raises(InvalidRequest, match="two tables"):
        read(logs(*rows), first[-1].place, 0)


# ------------------------------------------------------------------------------------------ what is sent again


def history() -> list[tuple[str, list[dict[str, Any]]]]:
    """Transactions A to F; each has rows in both tables, with positions that overlap."""
    found = []
    for n, name in enumerate("ABCDEF"):
        base, count = 100 * n, 2 + n % 3
        rows = [
            of_tx(name, i + 1, postgres(base + 3 * i + 100, before=base, table="tu"[(n + i) % 2], id=10 * n + i + 1))
            for i in range(count)
        ]
        found.append((name, rows))
    return found


def sent(told: list[tuple[str, list[dict[str, Any]]]], cuts: list[tuple[int, int, int]]) -> dict[str, list[Any]]:
    """The logs of a connector that dies: (of transaction, behind so many rows, goes on from transaction)."""
    logs: dict[str, list[Any]] = {"t": [], "u": [], "ends": []}

    def send(number: int, rows_max: int | None = None) -> None:
        name, rows = told[number]
        for row in rows[:rows_max]:
            logs[row["source"]["table"]].append(row)
        if rows_max is None:
            counts = {table: sum(row["source"]["table"] == table for row in rows) for table in "tu"}
            logs["ends"].append(ended(name, **{table: n for table, n in counts.items() if n}))

    number = 0
    for of, behind, back in [*cuts, (len(told), 0, 0)]:
        while number < of:
            send(number)
            number += 1
        if of < len(told):
            send(of, behind)
            number = back
    return logs


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    "cuts",
    [
        [(1, 1, 0)], [(1, 2, 1)], [(3, 1, 0), (3, 2, 1), (4, 1, 2)], [(5, 3, 0), (5, 1, 0)], [(2, 0, 0), (2, 3, 2)],
        [(4, 1, 3), (4, 1, 3), (4, 1, 0)],
    ],
)  # fmt: skip
def test_what_is_sent_again_behind_a_part_of_a_later_transaction_is_dropped(
    cuts: list[tuple[int, int, int]], is_whole: bool, tmp_path: Path
) -> None:
    """With and without metadata, over topics and over files, read at once and in pieces."""
    logs = sent(history(), cuts)
    told = [row["after"]["id"] for _, rows in history() for row in rows]
    for steps in (1, 3, 8):
        topics = Topics("ends" if is_whole else None, **{name: [] for name in logs if is_whole or name != "ends"})
        found = in_pieces(topics, {name: logs[name] for name in topics.growing}, steps)
        assert found == told if is_whole else sorted(found) == told, steps
    (tmp_path / "ends").write_text("".join(json.dumps(one) + "\n" for one in logs["ends"]))
    source = files(tmp_path, t=logs["t"], u=logs["u"])
    if is_whole:
        source = EnvelopeFiles(files=source.files, transactions=str(tmp_path / "ends"))
    assert ids(read(source)) == told


@pytest.mark.slow
def test_many_transactions_are_sent_again_behind_half_of_one() -> None:
    """More than are known by their names, so that their ends are known by their changes alone."""
    told = [(f"T{n}", [of_tx(f"T{n}", 1, postgres(10 * n + 10, before=10 * n, id=n + 1))]) for n in range(200)]
    half = [of_tx("H", i, postgres(5_000 + i, before=4_999, id=1_000 + i)) for i in (1, 2)]
    told.append(("H", half))
    assert in_pieces(Topics("ends", t=[], u=[], ends=[]), sent(told, [(200, 1, 0)]), 1) == [
        *range(1, 201),
        1_001,
        1_002,
    ]


def test_changes_that_share_a_position_are_compared() -> None:
    """Those that are the same are one; a reader that stops between two of them loses and doubles neither."""
    shared = [postgres(100, before=90, id=n) for n in (1, 2, 3)]
    rows = [postgres(95, before=90, id=9), *shared, postgres(200, before=190, id=4)]
    for steps in (1, 2, 3, 5):
        assert in_pieces(Topics(t=[]), {"t": [*rows[:3], *rows[2:]]}, steps) == [9, 1, 2, 3, 4]
        assert in_pieces(Topics(t=[]), {"t": [*rows, *rows[1:]]}, steps) == [9, 1, 2, 3, 4]


def test_tables_that_one_statement_emptied_are_one_group() -> None:
    """In one topic or in several: emptied alone, the parent's would break the foreign key."""
    both = [postgres(100, table=name, op="t") for name in ("firm", "staff")]
    later = postgres(101, table="firm", op="t")
    for logs in (Topics(t=[*both, later]), Topics(firm=[both[0], later], staff=both[1:])):
        assert [[one.table for one in group] for group in read(logs)] == [["firm", "staff"], ["firm"]]


def test_what_a_sync_waits_for_is_in_its_place_with_the_time() -> None:
    """The end of a transaction, changes of one, or that repetitions turn out to be such; and it goes when that comes."""
    (_, a), (_, b) = history()[:2]
    logs = Topics("ends", t=[], u=[], ends=[ended("0", t=1)])
    logs.growing["t"] = [of_tx("0", 1, postgres(5, id=500)), *(one for one in a if one["source"]["table"] == "t")]
    (first,) = read(logs, now_s=1.0)
    assert waiting(first[-1].place) == ("the end of transaction A", 1_000)
    logs.growing["ends"].append(ended("A", t=1, u=1))
    (mark,) = read(logs, first[-1].place, 0, now_s=2.0)
    assert mark[0].op == "mark"
    assert waiting(mark[0].place) == ("changes of transaction A: 1 of s.u", 2_000)
    assert read(logs, mark[0].place, 0, now_s=9.0) == []  # and it is not written again and again
    logs.growing["t"].append(None)
    logs.growing["u"] = [one for one in a if one["source"]["table"] == "u"]
    (group,) = read(logs, mark[0].place, 0)
    assert ids([group]) == [1, 2]
    assert waiting(group[-1].place) is None
    assert b


def test_the_commands_say_what_a_sync_waits_for(tmp_path: Path) -> None:
    """From the first pass on, though nothing was applied yet; a number that no float holds and a wrapped line are read."""
    (tmp_path / "e").mkdir()
    ends = tmp_path / "e" / "ends"
    ends.write_text(json.dumps({"status": "BEGIN", "id": "7"}) + "\n")
    row = of_tx("7", 1, postgres(100))
    row["after"]["n"] = "NUMBER"
    text = json.dumps({"key": {"id": 100}, "value": row}).replace('"NUMBER"', "12345678901234567.89")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "c.json").write_text(text + "\n")
    (tmp_path / "lakegate.yml").write_text(
        "name: p\nsync:\n  crm:\n    from: {files: data, format: debezium, transactions: e}\n    to: 'sqlite:t.db'\n"
    )
    database = sqlite3.connect(tmp_path / "t.db")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n TEXT)")
    ran = lakegate("sync", "run", "--until-idle", "--spec", tmp_path)
    assert (ran.code, "it waits for the end of transaction 7" in ran.out) == (0, True)
    status = lakegate("sync", "status", "--spec", tmp_path)
    assert re.search(r"crm +waiting.*\ncrm waits for the end of transaction 7 \(since .+\)", status.out), status.out
    ends.write_text(ends.read_text() + json.dumps(ended("7", t=1)) + "\n")
    assert lakegate("sync", "run", "--until-idle", "--spec", tmp_path).code == 0
    assert database.execute("SELECT id, n FROM t").fetchall() == [(100, "12345678901234567.89")]
    (status,) = lakegate("sync", "status", "--spec", tmp_path, "--output", "json").json["syncs"]
    assert "waits_for" not in status
    database.close()


def test_files_name_one_of_two_tables_and_transactions_are_whole(tmp_path: Path) -> None:
    """The other keeps its name; one of which the files have nothing is not waited for."""
    rows = [of_tx("7", 1, postgres(100, table="people")), of_tx("7", 2, postgres(101, table="orders"))]
    (tmp_path / "ends").write_text(json.dumps(ended("7", people=1, orders=1, audit=3)) + "\n")
    source = EnvelopeFiles(
        files=files(tmp_path, c=rows).files, transactions=str(tmp_path / "ends"), tables={"people": "crm_people"}
    )
    (group,) = DebeziumChanges(logs=source, tables=source.tables).transactions(-1)
    assert [one.table for one in group] == ["crm_people", "orders"]
    files(tmp_path, d=[of_tx("7", 3, postgres(102, table="audit"))])
    with pytest.raises(Corrupt, match="its transaction was applied without it"):
        list(DebeziumChanges(logs=source, tables=source.tables).transactions(1, group[-1].place))


def test_a_place_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has an offset and a position for each log, and neither a name of the source nor digests."""
    rows = [postgres(lsn, before=lsn - 1) for lsn in (10, 20, 30)]
    old = {"source": "debezium", "logs": {"t": [2, [19, 20], None, 0, 20], "u": [0, None, None, 0, 0]}}
    assert ids(read(Topics(t=[*rows[:2], *rows], u=[]), json.dumps(old), 1)) == [30]
    source = files(tmp_path, a=rows[:1], b=[rows[1], *rows])
    names = [str(tmp_path / "data" / name) for name in "ab"]
    old = {"source": "debezium", "at": source.files, "logs": {
        names[0]: [1, [9, 10], None, 0, 10], names[1]: [1, [19, 20], None, 0, 20]}}  # fmt: skip
    assert ids(read(source, json.dumps(old), 1)) == [30]
