"""The plan takes away what may go, in an order that keeps the table readable at each point, and says of the rest why it stays."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from lakegate.erasure.columns import KeyColumn
from lakegate.erasure.completion import Left, Plan, TableState, planned
from lakegate.erasure.folder import TableSearch
from lakegate.erasure.history import DAY_MS
from lakegate.erasure.persons import Person, Persons
from lakegate.erasure.storage import Place
from lakegate.ops.certify import person
from lakegate.syncs.targets.sqlite import CONTROL
from tests.cli.command import lakegate, state_of
from tests.erasure.planted import PLANTED, Plant, change_data, hidden, live, note, orphan, predicate
from tests.erasure.written import FIELDS, Written, people

FILE = """\
name: p
storage: ./_lakegate
tables:
  t: {path: ./t}
streams:
  Gone:
    table: t
    source: {files: ./gone, format: parquet, schema: "person STRING"}
    erase: {match: {person: person}}
"""
SHORT = {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.logRetentionDuration": "interval 0 hours"}


def made(root: Path, **properties: str) -> Written:
    """A table with one file of two persons."""
    table = Written(root)
    table.define(*FIELDS, **{**SHORT, **properties})
    table.commit(table.add("a.parquet", people("ada", "eve"), stats={"numRecords": 2}))
    return table


def state(table: Path, **more: object) -> TableState:
    """What is found of `bob` in a table."""
    search = TableSearch(Place(str(table), {}), (person("person=bob"),), "salt", anywhere=False)
    search.run(lambda done, total: None)
    known: dict[str, object] = {
        "location": str(table),
        "history": search.history,
        "entries": search.seen_entries,
        "named": frozenset(search.found),
        "unread": frozenset(search.not_looked_at),
        "now_ms": search.now_ms,
        "files_kept_ms": search.kept_ms("deletedFileRetentionDuration"),
        "log_kept_ms": search.kept_ms("logRetentionDuration"),
        "live": "it is there",
    }
    return TableState(**{**known, **more})  # type: ignore[arg-type]


def actions(plan: Plan) -> list[str]:
    return [step.action for step in plan.steps]


def aged(folder: Path, days: float = 3) -> None:
    """Makes all files older."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (file.stat().st_mtime - days * 86_400,) * 2)


WANTED = {
    "live": ["stays"],
    "old_version": ["vacuum"],
    "hidden": ["purge"],
    "change_data": ["vacuum"],
    "orphan": ["vacuum"],
    "statistics": ["checkpoint", "stays"],
    "partition_value": ["checkpoint", "stays", "stays"],
    "removed_partition_value": ["checkpoint", "stays"],
    "folder": ["vacuum"],
    "path_in_the_log": ["checkpoint", "stays"],
    "predicate": ["checkpoint", "stays"],
    "user_metadata": ["checkpoint", "stays"],
    "checkpoint": ["checkpoint", "stays"],
    "parsed_statistics": ["checkpoint", "stays"],
    "sidecar": ["stays"],
    "json_checkpoint": ["checkpoint", "stays"],
    "checksum": ["checkpoint", "stays"],
    "last_checkpoint": ["checkpoint"],
    "note": ["stays"],
}
"""What becomes of `bob` in each place, when everything is three days old."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda one: one.__name__)
def test_each_place_has_a_step_or_a_reason_to_stay(tmp_path: Path, plant: Plant) -> None:
    """No finding is passed over."""
    table = made(tmp_path / "t")
    plant(table)
    aged(table.root)
    plan = planned(state(table.root))
    assert [*actions(plan), *("stays" for _ in plan.left)] == WANTED[plant.__name__]
    assert all(left.why for left in plan.left)


def test_nothing_is_done_where_nothing_is_found(tmp_path: Path) -> None:
    """Not even a checkpoint."""
    assert planned(state(made(tmp_path / "t").root)) == Plan(steps=(), left=())


def young(table: Written, name: str) -> list[Left]:
    plan = planned(state(table.root))
    assert plan.steps == ()
    return [left for left in plan.left if name in left.files]


@pytest.mark.parametrize("plant", [orphan, change_data], ids=lambda one: one.__name__)
def test_a_young_file_that_may_be_a_running_writes_is_left_for_a_day(tmp_path: Path, plant: Plant) -> None:
    """Although the table keeps removed files for no time; of change data only until a commit names it."""
    table = made(tmp_path / "t")
    plant(table)
    names = {"orphan": "part-unknown.parquet", "change_data": "_change_data/cdc.parquet"}
    name = names[plant.__name__]
    if plant is change_data:
        assert actions(planned(state(table.root))) == ["vacuum"]
        (table.log / f"{table.version:020d}.json").unlink()
    (left,) = young(table, name)
    written_ms = (table.root / name).stat().st_mtime_ns // 1_000_000
    assert left.at_ms == written_ms + DAY_MS
    aged(table.root, days=1.1)
    assert actions(planned(state(table.root))) == ["vacuum"]


def test_removed_files_stay_for_the_time_of_the_table(tmp_path: Path) -> None:
    """From their removal on."""
    table = made(tmp_path / "t", **{"delta.deletedFileRetentionDuration": "interval 5 days"})
    live(table)
    removed_ms = time.time_ns() // 1_000_000
    table.commit({"remove": {"path": "b.parquet", "deletionTimestamp": removed_ms, "dataChange": True}})
    aged(table.root, days=30)
    assert [left.at_ms for left in young(table, "b.parquet")] == [removed_ms + 5 * DAY_MS]


def test_files_that_stock_commands_do_not_delete_are_named(tmp_path: Path) -> None:
    """Those under hidden names, and those of another table's folder."""
    table, other = made(tmp_path / "t"), made(tmp_path / "other")
    note(table)
    path = other.file("b.parquet", people("bob"))
    table.commit({"remove": {"path": f"file:{path}", "deletionTimestamp": 5, "dataChange": True}})
    aged(tmp_path)
    reasons = {left.files: left.why for left in planned(state(table.root)).left}
    assert "begin with _" in reasons["_lakegate/requests.json",]
    assert "outside" in reasons[f"file:{path}",]


# ------------------------------------------------------------------------------------------------------- the log


LOGGED = {"delta.logRetentionDuration": "interval 1 hour"}
"""A shorter time would let delta-rs delete commits with each checkpoint."""


def logged(root: Path, **properties: str) -> Path:
    """A table of delta-rs with checkpoints at 3 and 6; the commits 1 and 2 name `bob`, in a predicate and in statistics."""
    path = root / "t"
    write_deltalake(str(path), people("ada"), configuration={**SHORT, **LOGGED, **properties})
    write_deltalake(str(path), people("bob"), mode="append")
    DeltaTable(str(path)).delete("person = 'bob'")
    for number in range(3, 7):
        write_deltalake(str(path), people(f"p{number}"), mode="append")
        if number in (3, 6):
            DeltaTable(str(path)).create_checkpoint()
    return path


def rows(path: Path) -> list[str]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["person"].to_pylist())


def test_commits_go_from_the_oldest_on_and_the_table_is_readable_after_each(tmp_path: Path) -> None:
    """Up to the first checkpoint after the last commit that names the person; a process may be killed anywhere."""
    path = logged(tmp_path)
    before = rows(path)
    aged(path)
    (step,) = [one for one in planned(state(path)).steps if one.action == "clean log"]
    assert (step.before, sorted(step.files)) == (3, [f"_delta_log/{version:020d}.json" for version in range(3)])
    assert list(step.files) == sorted(step.files)
    for name in step.files:
        assert rows(path) == before
        (path / name).unlink()
    assert rows(path) == before
    assert not any(name.startswith("_delta_log/") for name in state(path).named)


def test_commits_of_the_last_day_stay(tmp_path: Path) -> None:
    """A write that began before them must still meet them: else it would put its commit in their place, and lose it."""
    path = logged(tmp_path)
    aged(path, days=0.5)
    plan = planned(state(path))
    (left,) = [one for one in plan.left if one.files[0].startswith("_delta_log/")]
    assert "clean log" not in actions(plan)
    checkpointed_ms = (path / "_delta_log" / f"{3:020d}.json").stat().st_mtime_ns // 1_000_000
    assert left.at_ms == checkpointed_ms + DAY_MS
    assert len(left.files) == 2


@pytest.mark.parametrize(
    ("properties", "more", "why"),
    [
        ({"delta.logRetentionDuration": "interval 10 days"}, {}, "versions below 3 are kept"),
        ({"delta.enableExpiredLogCleanup": "false"}, {}, "enableExpiredLogCleanup"),
        ({}, {"read_from": 2}, "a sync still reads from version 2"),
    ],
    ids=["retention", "property", "sync"],
)
def test_commits_that_somebody_needs_stay(
    tmp_path: Path, properties: dict[str, str], more: dict[str, object], why: str
) -> None:
    """By the table's settings, or because a sync has not read them."""
    path = logged(tmp_path, **properties)
    aged(path)
    plan = planned(state(path, **more))
    assert "clean log" not in actions(plan)
    assert [left.why for left in plan.left if why in left.why]
    assert "clean log" in actions(planned(state(logged(tmp_path / "other"), now_ms=2**50, read_from=3)))


@pytest.mark.parametrize("spoil", ["damaged", "gap"])
def test_commits_stay_if_the_checkpoint_does_not_stand_for_them(tmp_path: Path, spoil: str) -> None:
    """One that cannot be read; and one behind which a commit is missing."""
    path = logged(tmp_path)
    aged(path)
    log = path / "_delta_log"
    if spoil == "damaged":
        for version in (3, 6):
            (log / f"{version:020d}.checkpoint.parquet").write_bytes(b"PAR1")
    else:
        (log / f"{5:020d}.json").unlink()
        (log / f"{6:020d}.checkpoint.parquet").unlink()
    assert "clean log" not in actions(planned(state(path)))


def test_a_checkpoint_without_its_parts_stands_for_nothing(tmp_path: Path) -> None:
    """Its sidecar is gone: what is live is not certain, so the search is incomplete, and the commits before it stay."""
    table = made(tmp_path / "t")
    predicate(table)
    table.commit()
    pq.write_table(pa.table({"sidecar": [{"path": "gone.parquet"}]}), table.log / f"{3:020d}.checkpoint.a.parquet")
    aged(table.root)
    found = state(table.root)
    assert f"_delta_log/{3:020d}.checkpoint.a.parquet" in found.unread
    assert "clean log" not in actions(planned(found))
    parts = [f"{3:020d}.checkpoint.{number:010d}.{2:010d}.parquet" for number in (1, 2)]
    (table.log / f"{3:020d}.checkpoint.a.parquet").unlink()
    for part, is_whole in zip(parts, (False, True), strict=True):
        pq.write_table(pa.table({"add": [{"path": "a.parquet"}]}), table.log / part)
        aged(table.root)
        assert ("clean log" in actions(planned(state(table.root)))) is is_whole


def test_requests_under_another_lock_are_not_touched(table: Written, tmp_path: Path) -> None:
    """Its turns would not keep other jobs away from them."""
    requests = Written(tmp_path / "_lakegate" / "requests" / "Others")
    requests.define(("op", "string", {}), ("state", "string", {}), partition_by=("state",))
    key = pa.array([{"person": "bob"}], pa.struct([("person", pa.string())]))
    add = requests.add("r.parquet", pa.table({"key": key}), partitionValues={"state": "superseded"})
    requests.commit(add)
    ran = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", "--output", "json")
    assert (ran.json["steps"], [left["files"] for left in ran.json["left"]]) == ([], [["requests/Others/r.parquet"]])


@pytest.mark.parametrize("name", [f"{3:020d}.checkpoint.parquet", f"{3:020d}.json"])
def test_a_checkpoint_of_a_version_that_names_the_person_does_not_do(tmp_path: Path, name: str) -> None:
    """Itself, or by its commit, which would stay: the later one is taken."""
    path = logged(tmp_path)
    aged(path)
    plan = planned(state(path, named=state(path).named | {f"_delta_log/{name}"}))
    assert [step.before for step in plan.steps if step.action == "clean log"] == [6]


# --------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.chdir(tmp_path)
    Path("lakegate.yml").write_text(FILE)
    return made(tmp_path / "t")


def test_without_yes_nothing_is_changed(table: Written, tmp_path: Path) -> None:
    """The plan says what would be lost; status 0 if everything could go."""
    orphan(table)
    aged(table.root)
    before = state_of(tmp_path)
    ran = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob")
    assert (ran.code, state_of(tmp_path)) == (0, before)
    assert "delete files (VACUUM)" in ran.out
    assert "Nothing was changed" in ran.out
    assert "bob" not in ran.out
    as_json = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", "--output", "json")
    assert [(step["action"], step["files"]) for step in as_json.json["steps"]] == [("vacuum", ["part-unknown.parquet"])]


@pytest.mark.parametrize("more", [[], ["--yes"]])
def test_rows_of_a_person_who_is_there_are_not_deleted(table: Written, tmp_path: Path, more: list[str]) -> None:
    """Status 4, with what deletes them; nothing else of the person is touched."""
    live(table)
    orphan(table)
    predicate(table)
    aged(table.root)
    before = state_of(table.root)
    ran = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", *more)
    assert (ran.code, state_of(table.root)) == (4, before)
    assert "an erasure by an erase stream, or DELETE, removes them" in ran.out


def test_a_path_is_refused(table: Written) -> None:
    """Nobody knows its lock."""
    ran = lakegate("erasure", "complete", "--table", table.root, "--person", "person=bob")
    assert (ran.code, "a table of the file" in ran.err) == (2, True)


def has_read(stream: str, position: int) -> None:
    """The record of a sync in its target."""
    database = sqlite3.connect("crm.db")
    with contextlib.closing(database), database:
        for statement in CONTROL:
            database.execute(statement)
        database.execute(
            "INSERT INTO lakegate_stream (stream, epoch, last_batch, position) VALUES (?, 1, 1, ?)", (stream, position)
        )


@pytest.mark.parametrize(
    ("start", "position", "is_kept"),
    [("{version: 1}", None, True), ("latest", None, False), ("latest", 1, True), ("latest", 2, False)],
)
def test_a_sync_of_the_file_keeps_the_commits_that_it_has_not_read(
    table: Written, start: str, position: int | None, is_kept: bool
) -> None:
    """By its start before it has begun, then by what its target has."""
    table.root.rename("other")
    aged(logged(table.root.parent))
    sync = f'sync: {{crm: {{from: t, start: {start}, key: [id], to: "sqlite:crm.db"}}}}\n'
    Path("lakegate.yml").write_text(FILE + sync)
    with contextlib.closing(sqlite3.connect("crm.db")) as database, database:
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, person TEXT)")
    if position is not None:
        has_read("p/crm", position)
    ran = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", "--output", "json")
    assert ("clean log" not in [step["action"] for step in ran.json["steps"]]) is is_kept
    assert any("a sync still reads" in left["why"] for left in ran.json["left"]) is is_kept


def test_values_are_not_shown_in_paths(table: Written) -> None:
    """Hashes instead."""
    table.file("person=bob/b.parquet", pa.table({"id": [1]}))
    aged(table.root)
    ran = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", "--output", "json")
    assert "bob" not in ran.out
    assert "person=#" in ran.out


def test_a_request_in_force_stays_and_one_that_ended_goes(table: Written, tmp_path: Path) -> None:
    """So do dead letters and checkpoints, each with a reason; of ledger and logs the values go."""
    storage = tmp_path / "_lakegate"
    requests = Written(storage / "requests" / "Gone")
    requests.define(("op", "string", {}), ("state", "string", {}), partition_by=("state",))
    key = pa.array([{"person": "bob"}], pa.struct([("person", pa.string())]))
    for name in ("applied", "superseded"):
        rows_ = pa.table({"key": key, "op": ["erase"]})
        requests.commit(requests.add(f"state={name}/r.parquet", rows_, partitionValues={"state": name}))
    letters = Written(storage / "dead_letters" / "Gone")
    letters.define(("raw", "string", {}))
    letters.commit(letters.add("d.parquet", pa.table({"raw": ['{"person": "bob"}']})))
    (storage / "checkpoints").mkdir()
    (storage / "checkpoints" / "0").write_text("file:/in/person=bob/1.parquet")
    (storage / "ledger").mkdir()
    (storage / "ledger" / "1.jsonl").write_text('{"reason": "cannot cast bob"}\n')
    plan = lakegate("erasure", "complete", "--table", "t", "--person", "person=bob", "--output", "json")
    assert plan.code == 4
    assert [(step["action"], step["files"]) for step in plan.json["steps"]] == [
        ("delete requests", ["state=superseded/r.parquet"]),
        ("mask texts", ["ledger/1.jsonl"]),
    ]
    reasons = {left["files"][0]: left["why"] for left in plan.json["left"]}
    assert "lift_when" in reasons["state=applied/r.parquet"]
    assert "dead-letters drop" in reasons["d.parquet"]
    assert "checkpoints/0" in reasons


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            '{"reason": "cannot cast José O\'Neil", "epoch": 4711}',
            '{"reason": "cannot cast *************", "epoch": 4711}',
        ),
        ("<td>José O'Neil</td> José O'Neilson", "<td>*************</td> José O'Neilson"),
        ('{"a": "id 4711 of t", "b": [4711], "c":4711}', '{"a": "id **** of t", "b": [4711], "c":4711}'),
        ("14711", "14711"),
    ],
)
def test_a_masked_text_keeps_its_size_and_stays_json(text: str, kept: str) -> None:
    """Whole words only, as many stars as bytes; a number of JSON stays, and so does the file's name in the certificate."""
    columns = {name: KeyColumn(name=name, names={name}, kinds={"text"}) for name in ("name", "id")}
    known = Persons([Person((("name", "José O'Neil"),)), Person((("id", "4711"),))], columns, "salt")
    assert known.without(text) == kept.replace("*************", "*" * len("José O'Neil".encode()))
    assert len(known.without(text).encode()) == len(text.encode())


def test_hidden_rows_of_a_file_are_purged_before_it_is_deleted(tmp_path: Path) -> None:
    """The old file is deleted when the table keeps it no more."""
    table = made(tmp_path / "t")
    hidden(table)
    assert actions(planned(state(table.root))) == ["purge"]
    path = json.loads((table.log / f"{table.version:020d}.json").read_text().splitlines()[1])["add"]["path"]
    table.commit({"remove": {"path": path, "deletionTimestamp": 5, "dataChange": False}})
    assert actions(planned(state(table.root))) == ["vacuum"]
