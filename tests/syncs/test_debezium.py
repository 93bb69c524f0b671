"""Debezium's envelopes: what each says, in which order they are applied, and that none is lost, doubled or torn."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.changes import scenarios
from lakegate.demo.database_servers import fresh_sqlite
from lakegate.errors import CheckpointMismatch, ConstraintViolated, Corrupt, InvalidRequest
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.net_changes import fold
from lakegate.syncs.plan.table_schema import Column, TableSchema, UniqueKey
from lakegate.syncs.plan.values import Undecoded
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources import debezium_envelope
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_envelope import NotAnEnvelope, RowChanged, TransactionEnded
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from tests.syncs.envelopes import ended, envelopes, message, write
from tests.syncs.short_changes import c, changes_of
from tests.syncs.target_databases import KINDS, SQLITE_LACKS, begin, expected, fresh, state, sync

pytestmark = pytest.mark.data


def changes(folder: Path, place: str | None = None, after: int = -1, *, whole: bool = True) -> list[tuple[Change, ...]]:
    """Reads the changes from `data/` and `ends/` of the folder."""
    return list(reader(folder, whole=whole).transactions(after, place))


def reader(folder: Path, *, whole: bool = True) -> DebeziumChanges:
    """The source over the folder."""
    transactions = str(folder / "ends") if whole else None
    return DebeziumChanges(logs=EnvelopeFiles(files=str(folder / "data"), transactions=transactions))


def ids(groups: list[tuple[Change, ...]]) -> list[list[int]]:
    """The id of each change, by transaction."""
    return [[(one.after or one.before or {})["id"] for one in group] for group in groups]


# ------------------------------------------------------------------------------------------------------ one envelope


def test_real_envelopes_are_read_or_named(cdc_data: Path) -> None:
    """Of 456 messages of many tools: what is Debezium's is read as a row, an end or nothing; all else is refused."""
    found: dict[str, int] = defaultdict(int)
    rows = []
    for path in sorted((cdc_data / "samples").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            value = json.loads(line)["message"]
            try:
                read = debezium_envelope.read(value)
            except NotAnEnvelope:
                read = "refused"
            found[f"{path.stem}: {type(read).__name__}"] += 1
            if isinstance(read, RowChanged):
                rows.append(read)
    assert sum(found.values()) == 456
    assert {one.op for one in rows} == {"c", "u", "d", "t"}
    by_name = {name: n for name, n in found.items() if "RowChanged" in name and not name.startswith("debezium")}
    assert by_name == {}  # Canal's, Maxwell's and the others are not taken for Debezium's
    assert found["debezium: RowChanged"] == 48
    told = {one: found[f"debezium-docs-{one}: RowChanged"] for one in ("postgresql", "mysql", "sqlserver", "db2")}
    assert told == {"postgresql": 4, "mysql": 4, "sqlserver": 2, "db2": 2}
    postgres = [one for one in rows if one.collection == "public.customers"]
    assert [(one.op, one.order) for one in postgres][:1] == [("c", None)]  # of a snapshot
    assert next(one for one in postgres if one.op == "u").before == {"id": 1}
    server = [one.order for one in rows if one.collection == "testDB.dbo.customers"]
    assert server == sorted(server)
    assert (0x27 << 48 | 0x758 << 16 | 5, 0x27 << 48 | 0x758 << 16 | 3) in server


def test_values_are_decoded_by_their_schema() -> None:
    """Numbers that stand for moments and amounts become those; a value that was not sent is left out."""

    def field(name: str, type: str, logical: str | None = None, **parameters: str) -> dict[str, Any]:
        return {"field": name, "type": type, "name": logical, "parameters": parameters}

    fields = [
        field("id", "int32"), field("d", "int32", "io.debezium.time.Date"),
        field("m", "int64", "io.debezium.time.MicroTimestamp"), field("z", "string", "io.debezium.time.ZonedTimestamp"),
        field("n", "bytes", "org.apache.kafka.connect.data.Decimal", scale="3"), field("b", "bytes"),
        field("toast", "string"), field("null", "int32", "io.debezium.time.Date"),
    ]  # fmt: skip
    amount = -(10**37) - 1
    after = {
        "id": 7, "d": 20_000, "m": 1_700_000_000_123_456, "z": "2026-01-02T03:04:05.678+02:00",
        "n": base64.b64encode(amount.to_bytes(16, "big", signed=True)).decode(), "b": "AAEC",
        "toast": debezium_envelope.UNAVAILABLE, "null": None,
    }  # fmt: skip
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    read = debezium_envelope.read({"schema": schema, "payload": {**message("r", 1), "after": after}})
    assert isinstance(read, RowChanged)
    assert read.after == {
        "id": 7, "d": date(2024, 10, 4), "m": datetime(2023, 11, 14, 22, 13, 20, 123456), "b": b"\x00\x01\x02",
        "z": datetime(2026, 1, 2, 1, 4, 5, 678000, tzinfo=UTC), "n": Decimal("-10000000000000000000000000000000000.001"),
        "null": None,
    }  # fmt: skip
    for op in "cru":  # only of a row that was there before can the rest be what the target has: a snapshot shows all
        one = debezium_envelope.read({"schema": schema, "payload": {**message(op, 1), "after": after}})
        assert isinstance(one, RowChanged)
        assert one.is_partial == (op != "r")
    wrong = debezium_envelope.read(
        {"schema": schema, "payload": {**message("c", 1), "after": {"id": 7, "d": "x", "b": "AAE="}}}
    )
    assert isinstance(wrong, RowChanged)
    assert wrong.after is not None
    assert isinstance(wrong.after["d"], Undecoded)  # its row is refused; the message is one
    assert (wrong.after["id"], wrong.after["b"]) == (7, b"\x00\x01")


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "00:00:00"), (45_296_000_007, "12:34:56.000007"), (86_399_999_999, "23:59:59.999999"),
        (86_400_000_000, "24:00:00"), (108_000_000_000, "30:00:00"), (-3_600_000_000, "-01:00:00"),
        (-500_000, "-00:00:00.500000"), (-3_020_399_000_000, "-838:59:59"),
    ],
)  # fmt: skip
def test_a_time_is_what_it_is_at_the_source(microseconds: int, text: str) -> None:
    """Below zero and beyond a day, too: MySQL has times of up to 838 hours, PostgreSQL the end of a day."""
    for name, per_second in (("MicroTime", 10**6), ("NanoTime", 10**9)):
        fields = [{"field": "t", "type": "int64", "name": f"io.debezium.time.{name}"}]
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        after = {"t": microseconds * (per_second // 10**6)}
        read = debezium_envelope.read({"schema": schema, "payload": message("c", 1, after=after)})
        assert isinstance(read, RowChanged)
        assert read.after == {"t": text}


@pytest.mark.parametrize("kind", KINDS)
def test_times_are_written_as_they_are_or_refused(kind: str, request: pytest.FixtureRequest) -> None:
    """Ordinary ones everywhere; one of a day and more where the column has it."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v time(6))")
    texts = ["00:00:00", "12:34:56.000007", *(["30:00:00", "-01:00:00"] if kind != "postgres" else ["24:00:00"])]
    sync(database, [*changes_of(*(c(1, {"id": n, "v": text}) for n, text in enumerate(texts)))])
    as_text = {"postgres": "v::text", "mariadb": "CAST(v AS char)", "sqlite": "v"}[kind]
    found = [text for (text,) in database.query(f"SELECT {as_text} FROM t ORDER BY id")]
    assert [one.replace(".000000", "") for one in found] == texts
    if kind == "postgres":
        with pytest.raises((ConstraintViolated, InvalidRequest)):
            sync(database, changes_of(*((c(2, {"id": 9, "v": "30:00:00"})),)), stream="other")


def test_what_a_message_may_be() -> None:
    """Tombstones, heartbeats, begins and messages say nothing; a deleted row may be known by its key alone."""
    nothing = [None, {"ts_ms": 1}, {"status": "BEGIN", "id": "1"}, {**message("m", 1)}, {"schema": {}, "payload": None}]
    assert [debezium_envelope.read(one) for one in nothing] == [None] * len(nothing)
    assert debezium_envelope.read(ended("7", t=2)) == TransactionEnded(id="7", counts={"s.t": 2})
    gone = debezium_envelope.read(message("d", 1), {"schema": {}, "payload": {"id": 3}})
    assert isinstance(gone, RowChanged)
    assert gone.before == {"id": 3}
    for bad, says in [
        ({"id": 1}, "has no op"), ([1], "not an object"), (message("x", 1), "op 'x' is not known"),
        (message("c", 1), "after is missing"), (message("d", 1), "neither a before-image nor a key"),
        ({**message("c", 1, after={"id": 1}), "source": {}}, "names no table"),
        ({**message("c", 1, after={"id": 1}), "transaction": {"id": "1"}}, "its position or its transaction"),
        ({"schema": {}, "payload": 1}, "payload is not an object"), ({"status": "END", "id": "1"}, "how many events"),
    ]:  # fmt: skip
        with pytest.raises(NotAnEnvelope, match=says):
            debezium_envelope.read(bad)


# -------------------------------------------------------------------------------------------------- their transactions


def test_a_transaction_is_held_back_until_it_is_whole(tmp_path: Path) -> None:
    """And then it comes in the order in which transactions ended, its rows in their order, wherever they lie."""
    row = [{"id": n} for n in range(9)]
    of_b = [message("c", 20, after=row[2], tx="B")]
    of_a = [message("c", 21, after=row[n], tx="A", n=n + 1) for n in (0, 1, 3)]
    of_a[2]["transaction"]["total_order"] = 3
    write(tmp_path / "data" / "a", *of_b, of_a[1])
    write(tmp_path / "data" / "b", None, of_a[0])
    write(tmp_path / "ends" / "t", {"status": "BEGIN", "id": "B"}, ended("B", t=1), ended("A", t=3))
    first = changes(tmp_path)
    assert ids(first) == [[2]]
    write(tmp_path / "data" / "c", of_a[2], message("c", 30, after=row[4], tx="C"))
    assert ids(changes(tmp_path, first[0][-1].place, first[0][-1].seq)) == [[0, 1, 3]]
    both = changes(tmp_path)
    assert ids(both) == [[2], [0, 1, 3]]
    assert [one.seq for group in both for one in group] == [0, 1, 2, 3]
    assert ids(list(reader(tmp_path).transactions(-1, None, until=both[0][-1].place))) == [[2]]


def test_what_the_connector_sends_again_is_dropped(tmp_path: Path) -> None:
    """Half a transaction and then the whole, a whole one twice, and all of it behind a restart; the number stays right."""
    one = [message("c", 10, after={"id": n}, tx="A", n=n) for n in (1, 2)]
    two = [message("c", 20 + n, after={"id": n}, tx="B", n=n - 2) for n in (3, 4)]
    three = [message("c", 30, after={"id": 5}, tx="C")]
    write(tmp_path / "data" / "t", one[0], *one, *two, *one, *two, *three)
    write(tmp_path / "ends" / "t", ended("A", t=2), ended("B", t=2), ended("A", t=2), ended("B", t=2), ended("C", t=1))
    whole = changes(tmp_path)
    assert ids(whole) == [[1, 2], [3, 4], [5]]
    for n, group in enumerate(whole):
        assert ids(changes(tmp_path, group[-1].place, group[-1].seq)) == ids(whole[n + 1 :])
    alone = changes(tmp_path, whole=False)
    assert ids(alone) == [[1], [2], [3], [4], [5]]


def test_a_transaction_that_can_never_be_whole_is_an_error(tmp_path: Path) -> None:
    """A change of it is missing and later ones follow, or the source's log was restarted: the sync reports it."""
    write(tmp_path / "data" / "t", message("c", 10, after={"id": 1}, tx="A"), message("c", 30, after={"id": 3}, tx="C"))
    write(tmp_path / "ends" / "t", ended("A", t=2), ended("C", t=1))
    with pytest.raises(
        Corrupt, match=r"does not have as many changes as its end says.*transaction=A expected=2 found=1"
    ):
        changes(tmp_path)
    back = message("c", 5, after={"id": 9})
    back["source"]["ts_ms"] = 1_000
    write(tmp_path / "data" / "t", message("c", 10, after={"id": 1}), back)
    with pytest.raises(Corrupt, match=r"positions went back.*file=.*t line=2"):
        changes(tmp_path, whole=False)


def test_a_bad_message_is_named_and_what_is_before_it_is_applied(tmp_path: Path) -> None:
    """File and line; and a position of another source is refused."""
    write(tmp_path / "data" / "t", message("c", 1, after={"id": 1}), {"key": {"id": 2}, "value": {"op": "?"}})
    going = reader(tmp_path, whole=False).transactions(-1)
    assert ids([next(going)]) == [[1]]
    with pytest.raises(Corrupt, match=r"not a Debezium envelope: op '\?' is not known.*file=.*t line=2"):
        next(going)
    (tmp_path / "data" / "t").write_text("{")
    with pytest.raises(Corrupt, match=r"it is not JSON.*line=1"):
        changes(tmp_path, whole=False)
    with pytest.raises(CheckpointMismatch, match="it is of change files, and this sync reads debezium"):
        changes(tmp_path, after=7)
    with pytest.raises(CheckpointMismatch, match=r"it is of debezium at /other, and this sync reads those at /.*/data"):
        changes(tmp_path, '{"source":"debezium","at":"/other","logs":{}}', 7)
    with pytest.raises(CheckpointMismatch, match="it is of delta, and this sync reads debezium"):
        changes(tmp_path, '{"source":"delta"}', 7)


def test_the_place_moves_over_messages_that_say_nothing(tmp_path: Path) -> None:
    """A tombstone behind the last delete, ends of transactions of other tables; never over a change that is held back."""

    def offsets(place: str | None) -> list[int]:
        return [one[0] for one in json.loads(place or "")["logs"].values()]

    gone = [message("c", 10, after={"id": 1}, tx="A"), message("d", 11, {"id": 1}, tx="A", n=2), None]
    write(tmp_path / "data" / "t", *gone)
    write(tmp_path / "ends" / "t", {"status": "BEGIN", "id": "A"}, ended("A", t=2))
    (group,) = changes(tmp_path)
    place = group[-1].place
    assert (ids([group]), offsets(place)) == ([[1, 1]], [3, 2])
    assert changes(tmp_path, place, 1) == []  # and it is not sent again
    begun = [message("c", 20, after={"id": 2}, tx="C"), None]
    write(tmp_path / "data" / "t", *gone, None, *begun)
    write(tmp_path / "ends" / "t", None, None, ended("B"), {"status": "BEGIN", "id": "C"}, ended("C", t=2))
    ((mark,),) = changes(tmp_path, place, 1)
    assert (mark.op, mark.seq, offsets(mark.place)) == ("mark", 1, [4, 4])
    assert changes(tmp_path, mark.place, 1) == []
    write(tmp_path / "data" / "t", *gone, None, *begun, message("c", 21, after={"id": 3}, tx="C", n=2), None)
    (rest,) = changes(tmp_path, mark.place, 1)
    assert (ids([rest]), offsets(rest[-1].place)) == ([[2, 3]], [8, 5])


# ------------------------------------------------------------------------------------------------------------ the ends


def people(folder: Path, ddl: str, *messages: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of `t` after these messages of one transaction, in an SQLite database."""
    database = fresh_sqlite(folder)
    database.execute(*ddl.split("; "))
    for n, one in enumerate(messages, 1):
        body = one.get("value", one)
        body.get("payload", body)["transaction"] = {"id": "A", "total_order": n}
    write(folder / "data" / "t", *messages)
    write(folder / "ends" / "t", ended("A", t=len(messages)))
    target = database.target()
    list(run(reader(folder), target, stream="s"))
    target.close()
    return database.query("SELECT * FROM t ORDER BY id")


COLUMNS = "(id INTEGER PRIMARY KEY, email TEXT, name TEXT NOT NULL DEFAULT 'new', n INTEGER NOT NULL DEFAULT 0)"


@pytest.mark.parametrize("shown", ["nulls", "empty", "a default", "a default without its schema"])
@pytest.mark.parametrize("is_keyed", [True, False])
def test_a_row_that_came_and_went_is_gone_whatever_stands_in_for_its_values(
    tmp_path: Path, shown: str, is_keyed: bool
) -> None:
    """A source that knows the key of a deleted row alone sends stand-ins for the rest: they are not another row's values."""
    before = {"id": 1, "email": None, "name": {"nulls": None, "empty": ""}.get(shown, "new"), "n": 0}
    gone = message("d", 11, before)
    if shown == "a default":
        fields = [{"field": "name", "type": "string", "default": "new"}]
        gone = {"schema": {"fields": [{"field": "before", "fields": fields}]}, "payload": gone}
    came = message("c", 10, after={"id": 1, "email": "a@x", "name": "Ann", "n": 5})
    last = {"key": {"id": 1}, "value": gone} if is_keyed else gone
    assert people(tmp_path, f"CREATE TABLE t {COLUMNS}", came, last) == []


def test_a_deleted_row_whose_values_are_all_defaults_is_known_by_its_key() -> None:
    """If the schema says so, and only in PostgreSQL; what a whole before-image shows is kept."""
    fields = [{"field": "name", "type": "string", "default": "new"}]
    schema = {"fields": [{"field": "before", "fields": fields}]}

    def before(shown: dict[str, Any], key: Any = None, **more: Any) -> Any:
        one = message("d", 1, shown)
        one["source"].update(more)
        read = debezium_envelope.read({"schema": schema, "payload": one}, {"id": 1} if key is None else key)
        assert isinstance(read, RowChanged)
        return read.before

    assert before({"id": 1, "name": "new", "n": 0}) == {"id": 1}
    assert before({"id": 1, "name": "new"}, {"schema": {}, "payload": {"id": 1}}) == {"id": 1}
    for shown in ({"id": 1, "name": "new", "n": 5}, {"id": 1, "name": "old"}, {"name": None}):
        assert before(shown) == shown
    assert before({"id": 1, "name": "new"}, connector="mysql") == {"id": 1, "name": "new"}


def test_a_row_under_a_new_key_keeps_a_large_value_that_was_not_sent(tmp_path: Path) -> None:
    """The change of a key comes as a deleted row and a created one; what is not sent of that is what the target has."""
    ddl = "CREATE TABLE t (id INTEGER PRIMARY KEY, email TEXT, body TEXT); INSERT INTO t VALUES (1, 'a', 'BIG'), (5, 'e', 'E')"
    gone, came = (message("d", 10, {"id": 1, "email": None, "body": None}), message("c", 10, after={}))
    came["after"] = {"id": 2, "email": "a", "body": debezium_envelope.UNAVAILABLE}
    other = message("c", 11, after={"id": 1, "email": "n", "body": "new"})
    database = people(tmp_path, ddl, message("d", 9, {"id": 5, "email": None, "body": None}), gone, came, other)
    assert database == [(1, "n", "new"), (2, "a", "BIG")]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_created_row_that_lacks_a_large_value_is_never_written_without_it(tmp_path: Path, is_whole: bool) -> None:
    """Its old row is not known, as the two changes do not follow each other or stand alone: that is refused, not NULL."""
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)", "INSERT INTO t VALUES (1, 'BIG')")
    gone = message("d", 10, {"id": 1, "body": None}, tx="A" if is_whole else None)
    came = message(
        "c", 10 + is_whole, after={"id": 2, "body": debezium_envelope.UNAVAILABLE}, tx="A" if is_whole else None, n=2
    )
    write(tmp_path / "data" / "t", gone, came)
    write(tmp_path / "ends" / "t", ended("A", t=2))
    target = database.target()
    with pytest.raises(ConstraintViolated, match="shows only a part of the row"):
        list(run(reader(tmp_path, whole=is_whole), target, stream="s"))
    target.close()
    assert database.query("SELECT * FROM t") == [(1, "BIG")]


@pytest.mark.parametrize("is_deferrable", [True, False])
def test_whole_rows_show_which_row_leaves_a_key_that_two_have_for_a_moment(is_deferrable: bool) -> None:
    """The one that was there before the transaction, if the deleted row's values are not those of the one that came."""
    key = UniqueKey(name="pk", parts=("id",), columns=frozenset({"id"}), is_primary=True, is_deferrable=is_deferrable)
    columns = tuple(Column(name=one, type="text") for one in ("id", "email", "name"))
    table = TableSchema(name="t", columns=columns, identity=("id",), unique_keys=(key,))

    def ends(gone: dict[str, Any]) -> Any:
        came = Change(seq=1, tx="A", table="t", op="c", after={"id": 2, "email": "a@x", "name": "Ann"})
        left = Change(seq=2, tx="A", table="t", op="d", before={"id": 2, **gone})
        return fold([came, left], {"t": table}).rows[0].image

    assert ends({"email": "b@x", "name": "Bob"}) is not None
    assert ends({"email": None, "name": ""}) is None
    # Half of it may be defaults: then who may stand under one key at a time decides.
    assert (ends({"email": None, "name": "new"}) is not None) == is_deferrable


@pytest.mark.parametrize("images", ["full", "none"])
def test_recorded_scenarios_end_as_at_the_source(cdc_data: Path, tmp_path: Path, images: str) -> None:
    """Each table's changes in a file of its own, read in pieces of any size, with the connector's repetitions."""
    done = 0
    for scenario in scenarios(cdc_data / "scenarios.json"):
        if scenario.id in SQLITE_LACKS or any(change.op == "ddl" for change in scenario.changes):
            continue
        folder = tmp_path / f"{done}"
        folder.mkdir()
        database = fresh_sqlite(folder)
        begin(database, scenario)
        target = database.target()
        keys = {name: table.identity for name, table in target.tables(scenario.tables).items()}
        if images == "full" or all(keys.values()):  # a row without a key is known by its values alone
            data, ends = envelopes(scenario, keys, images)
            for cut in (len(data) // 3, len(data)):
                for table in {one["source"]["table"] for one in data}:
                    mine = [one for one in data[:cut] if one["source"]["table"] == table]
                    write(folder / "data" / table, *mine, *mine[-2:])
                write(folder / "ends" / "t", *ends)
                list(run(reader(folder), target, stream="s", settings=SyncSettings(changes_max=7)))
            assert state(database, list(scenario.final)) == expected(scenario), scenario.id
            done += 1
        target.close()
    assert done >= 25
