"""Values of Debezium's envelopes and of change files: each arrives as it was, or its row is refused; none is changed."""

from __future__ import annotations

import base64
import json
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.database_servers import Database, fresh_sqlite
from lakegate.errors import ConstraintViolated, InvalidRequest
from lakegate.syncs.plan import json_numbers, values
from lakegate.syncs.plan.dead_letters import kept_row, kept_text
from lakegate.syncs.plan.net_changes import canonical
from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.plan.values import Bits, Duration, Misfit, Placeholders
from lakegate.syncs.runner import AppliedBatch, SyncSettings, run
from lakegate.syncs.sources import debezium_envelope
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_envelope import Reading, RowChanged
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from lakegate.syncs.targets import postgres_values
from lakegate.syncs.targets.encode import encoded, geometry_of
from tests.cli.command import lakegate as command
from tests.syncs.short_changes import c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fresh, sync

PLACEHOLDER = "__debezium_unavailable_value"


def field(type: str, logical: str | None = None, **more: Any) -> dict[str, Any]:
    """The schema of the column `x`."""
    return {"field": "x", "type": type, "optional": True, **({"name": logical} if logical else {}), **more}


def message(value: Any, schema: dict[str, Any] | None, *, op: str = "c", id: int = 1, lsn: int = 1) -> dict[str, Any]:
    """An envelope of the row `{id, x}` of the table t; without a schema if it has none."""
    source = {"connector": "postgresql", "schema": "s", "table": "t", "lsn": lsn, "ts_ms": lsn,
              "sequence": json.dumps(["0", str(lsn)])}  # fmt: skip
    payload = {"op": op, "before": None, "after": {"id": id, "x": value}, "source": source}
    if schema is None:
        return payload
    fields = [{"field": "id", "type": "int32"}, schema]
    images = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    return {"schema": {"type": "struct", "fields": images}, "payload": payload}


def decoded(value: Any, schema: dict[str, Any] | None, reading: Reading = debezium_envelope.DEFAULT) -> Any:
    """Returns the value of `x` in the envelope."""
    read = debezium_envelope.read(message(value, schema), None, reading)
    assert isinstance(read, RowChanged)
    assert read.after is not None
    return read.after.get("x", "not sent")


def deliver(
    database: Database,
    folder: Path,
    *messages: dict[str, Any],
    reading: Reading = debezium_envelope.DEFAULT,
    **settings: Any,
) -> list[AppliedBatch]:
    """Carries messages over from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.json").write_text("".join(json.dumps(one) + "\n" for one in messages))
    target = database.target()
    source = DebeziumChanges(logs=EnvelopeFiles(files=str(folder)), reading=reading)
    try:
        return list(run(source, target, stream="s", settings=SyncSettings(**settings)))
    finally:
        target.close()


# --------------------------------------------------------------------------------------- values that stand for no value


@pytest.mark.parametrize("text", [PLACEHOLDER, "__not sent/+?é"])
def test_a_placeholder_of_any_type_keeps_the_value(text: str, tmp_path: Path) -> None:
    """Of texts, bytes, arrays of texts, numbers, bytes and UUIDs, hstore and geometries, whatever the connector calls it."""
    data = text.encode()
    uuid = "b68a35a7-17ad-35b3-af2a-ae46edb4545a" if text == PLACEHOLDER else values._uuid_of(data)
    sent: list[Any] = [
        text, base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex(), [text],
        {text: text}, json.dumps({text: text}, ensure_ascii=False, separators=(",", ":")), [{text: text}],
        [one - 256 if one > 127 else one for one in data], [float(one) for one in data], [base64.b64encode(data).decode()], [uuid],
        [base64.b64encode(bytes([one])).decode() for one in data],
        {"wkb": base64.b64encode(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")).decode(), "srid": 4326},
    ]  # fmt: skip
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, x TEXT)", "INSERT INTO t VALUES (1, 0, '[5, 6]')")
    messages = [message(value, None, op="u", lsn=n) for n, value in enumerate(sent, 1)]
    reading = Reading(unavailable=Placeholders(text))
    deliver(database, tmp_path / "m", *messages, reading=reading)
    assert database.query("SELECT x FROM t") == [("[5, 6]",)]
    assert [decoded(one, None, reading) for one in ([1], [], {}, "x", [[]], ["x"])] == [[1], [], {}, "x", [[]], ["x"]]
    assert Placeholders("hex:ff00").has(base64.b64encode(b"\xff\x00").decode())


# ------------------------------------------------------------------------------------------------------- values by rule


@pytest.mark.parametrize(
    ("logical", "value", "text"),
    [
        ("MicroTimestamp", 9_223_372_036_825_200_000, "infinity"), ("MicroTimestamp", -9_223_372_036_832_400_000, "-infinity"),
        ("Timestamp", 9_223_372_036_825_200, "infinity"), ("MicroTimestamp", 317_346_336_000_000_000, "12026-04-22T00:00:00"),
        ("MicroTimestamp", -63_517_823_999_500_000, "0044-03-15T00:00:00.500000 BC"),
        ("Date", 2_147_483_647, "infinity"), ("Date", -2_147_472_692, "infinity"), ("Date", -2_147_472_691, "-infinity"),
        ("Date", 3_673_000, "12026-05-02"), ("Date", -719_529, "0002-12-31 BC"),
        ("ZonedTimestamp", "-infinity", "-infinity"), ("ZonedTimestamp", "+12026-01-01T00:00:00Z", "12026-01-01T00:00:00+00:00"),
        ("ZonedTimestamp", "-0043-03-15T00:00:00.5Z", "0044-03-15T00:00:00.5+00:00 BC"),
        ("ZonedTimestamp", "2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456789+00:00"),
        ("NanoTimestamp", 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789"), ("NanoTime", -1_001, "-00:00:00.000001001"),
        ("IsoDate", "2017-09-15Z", "2017-09-15"), ("IsoTime", "18:01:26.5Z", "18:01:26.5"),
    ],
)  # fmt: skip
def test_moments_that_python_does_not_have_are_texts(logical: str, value: Any, text: str) -> None:
    """Infinities, years before the first and past 9999, nanoseconds: as PostgreSQL reads them."""
    assert decoded(value, field("int64", f"io.debezium.time.{logical}")) == text


def test_a_value_that_cannot_be_decoded_is_its_rows_fault(tmp_path: Path) -> None:
    """With `quarantine` the row is quarantined, and others continue; with `stop` the row is named."""
    days, amount = field("int32", "io.debezium.time.Date"), field("bytes", "org.apache.kafka.connect.data.Decimal")
    sent = [message("x", days), message("%%%", amount, id=2, lsn=2), message(20_000, days, id=3, lsn=3)]
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    with pytest.raises(ConstraintViolated, match="x is not what its schema says"):
        deliver(database, tmp_path / "m", *sent)
    assert database.query("SELECT * FROM t") == []
    (done,) = deliver(database, tmp_path / "m", *sent, on_violation="quarantine")
    assert done.complete is not None
    assert [one.row.key for one in done.complete.dead] == [(1,), (2,)]
    assert database.query("SELECT * FROM t") == [(3, "2024-10-04")]


def test_a_quarantined_row_keeps_the_types_of_its_values() -> None:
    """Sent again, a text that may stand for bytes is refused again, and a value that was not decoded is no text."""
    at, amount = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), Decimal("12345678901234567.80")
    sent = [
        Bits("001"), Duration(5), values.BareText("AA=="), values.BareNumber(5), values.Undecoded("x", "why"), at,
        at.date(), amount, b"\x00", "text", 5, 1.5, None, True, {"a": [1, None]}, [Bits("1"), b"\xff", [at.date()]],
    ]  # fmt: skip
    image = {f"c{n}": value for n, value in enumerate(sent)}
    row = kept_row(1, 2, "t", "[1]", kept_text(image), 3, "why")
    assert row.image == image
    assert [type(one) for one in row.image.values()] == [type(one) for one in sent]


def test_a_bit_string_never_has_more_digits_than_it_needs() -> None:
    """A column without a length says two thousand million; a fixed one has its zeros, a varying one has those of no length."""

    def bits(data: bytes, length: int) -> Any:
        return decoded(
            base64.b64encode(data).decode(), field("bytes", "io.debezium.data.Bits", parameters={"length": str(length)})
        )

    assert bits(b"\x05", 2_147_483_647) == bits(b"\x05", 21_474_836) == "101"
    assert (bits(b"\x05", 9), bits(b"", 3)) == ("000000101", "000")
    for kind, type_, digits in [
        ("varbit", "bit varying(9)", "101"),
        ("bit", "bit(9)", "000000101"),
        ("bit", "bit(3)", "101"),
    ]:
        assert encoded(Column(name="x", type=type_, kind=kind), Bits("101"), postgres_values.encode) == digits


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_schema_what_a_value_stands_for_is_refused(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Bytes as text, days and microseconds as numbers: also in arrays, in keys and where a text would do as a value."""
    blob = {"postgres": "bytea", "mariadb": "varbinary(50)", "sqlite": "BLOB"}[kind]
    cases = [
        (blob, "AP9hYg=="),
        ("date", 10_101),
        ("timestamp NULL" if kind == "mariadb" else "timestamp", 991_231_235_959),
        ("time", 120_000),
    ]
    cases += {
        "postgres": [("interval", 1_500_000), ("bytea[]", ["AA=="]), ("date[]", [10_101])],
        "mariadb": [("bit(64)", "VQE="), ("datetime", 1_700_000_000_000)],
        "sqlite": [("interval", 1_500_000), ("datetime", 1_700_000_000_000), ("decimal(9,2)", "BM4=")],
    }[kind]  # type: ignore[operator]
    database = fresh(kind, request)
    database.execute(*(f"CREATE TABLE t{n} (id int PRIMARY KEY, x {type_})" for n, (type_, _) in enumerate(cases)))
    sent = [message(value, None, lsn=n + 1) for n, (_, value) in enumerate(cases)]
    for n, one in enumerate(sent):
        one["source"]["table"] = f"t{n}"
    (done,) = deliver(database, tmp_path / "m", *sent, on_violation="quarantine")
    assert done.complete is not None
    assert sorted(one.row.table for one in done.complete.dead) == sorted(f"t{n}" for n in range(len(cases)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("how", "text"), [("base64", "AP9h+g=="), ("base64-url-safe", "AP9h-g=="), ("hex", "00ff61fa")]
)
def test_bytes_without_a_schema_are_read_as_the_sync_says(
    kind: str, how: Any, text: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In columns of bytes; a column of texts keeps the text."""
    blob = {"postgres": "bytea", "mariadb": "varbinary(50)", "sqlite": "BLOB"}[kind]
    database = fresh(kind, request)
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, x {blob})", "CREATE TABLE o (id int PRIMARY KEY, x varchar(50))"
    )
    other = message(text, None, lsn=2)
    other["source"]["table"] = "o"
    deliver(database, tmp_path / "m", message(text, None), other, reading=Reading(bytes_as=how))
    assert [bytes(one) for (one,) in database.query("SELECT x FROM t")] == [b"\x00\xffa\xfa"]
    assert database.query("SELECT x FROM o") == [(text,)]


# -------------------------------------------------------------------------------------------------- numbers and documents


def test_numbers_have_the_digits_that_they_are_written_with() -> None:
    """In documents, too, and whatever a float would make of them; what JSON has no word for is written by one rule."""
    text = '{"a": 12345678901234567.89, "b": 1.10, "c": 1E+400, "d": [1, 2.5, -0.0, 100000000000000000001]}'
    assert json_numbers.dumps(json_numbers.loads(text)) == text
    assert json_numbers.dumps({"at": date(2026, 1, 2), "b": b"a", "n": float("nan"), "m": [("k", 1)]}) == (
        '{"at": "2026-01-02", "b": "\\\\x61", "n": "NaN", "m": {"k": 1}}'
    )
    one = canonical((1.1, 2.0, 3))
    assert one == canonical((json_numbers.loads("1.10"), 2, json_numbers.loads("3.00")))
    assert hash(one) == hash(canonical((1.1, 2, 3.0)))
    assert canonical((Decimal("1e999999999"),))  # in no time


def test_a_wrapped_line_keeps_its_digits(tmp_path: Path) -> None:
    """`{"key": …, "value": …}` with a number that a float would change."""
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
    (tmp_path / "m").mkdir()
    line = json.dumps({"key": {"id": 1}, "value": message("N", None)}).replace('"N"', "12345678901234567.89")
    (tmp_path / "m" / "m.json").write_text(line + "\n")
    target = database.target()
    list(
        run(DebeziumChanges(logs=EnvelopeFiles(files=str(tmp_path / "m"))), target, stream="s", settings=SyncSettings())
    )
    target.close()
    assert database.query("SELECT x FROM t") == [("12345678901234567.89",)]


def test_a_float_that_is_no_number_is_not_lost(tmp_path: Path) -> None:
    """SQLite's driver takes NaN for NULL."""
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x REAL)")
    sent = [message(word, field("double"), id=n, lsn=n) for n, word in enumerate(("NaN", "Infinity", "-Infinity"), 1)]
    deliver(database, tmp_path / "m", *sent)
    assert database.query("SELECT x FROM t ORDER BY id") == [("NaN",), (float("inf"),), (float("-inf"),)]


@pytest.mark.mariadb
def test_numbers_that_mariadb_has_not_are_their_rows_fault(request: pytest.FixtureRequest) -> None:
    """NaN and infinities are quarantined, as is a row that breaks a key."""
    database = fresh("mariadb", request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, x double)")
    rows = [{"id": n, "x": x} for n, x in enumerate((1.5, float("nan"), float("inf"), json_numbers.loads("1e400")))]
    (done,) = sync(database, changes_of(*(c(n, row) for n, row in enumerate(rows))), on_violation="quarantine")
    assert done.complete is not None
    assert [one.row.key for one in done.complete.dead] == [(1,), (2,), (3,)]
    assert database.query("SELECT x FROM t") == [(1.5,)]


# ------------------------------------------------------------------------------------------------- shapes, arrays, names


def test_a_geometry_keeps_its_reference_system() -> None:
    """The binary itself, or the field next to it, names the system."""
    plain = bytes.fromhex("0101000000000000000000F83F0000000000000440")
    extended = bytes.fromhex("0101000020E6100000000000000000F83F0000000000000440")
    big_endian = bytes.fromhex("00000000013FF80000000000004004000000000000")
    for wkb, srid, found in [(plain, None, (plain, 0)), (plain, 4326, (plain, 4326)), (extended, 4326, (plain, 4326)),
                             (extended, None, (plain, 4326)), (big_endian, 3857, (big_endian, 3857))]:  # fmt: skip
        assert geometry_of({"wkb": base64.b64encode(wkb).decode(), "srid": srid}) == found
    column = Column(name="x", type="geometry", kind="geometry")
    value = {"wkb": base64.b64encode(plain).decode(), "srid": 4326}
    assert encoded(column, value, postgres_values.encode) == extended.hex()
    with pytest.raises(Misfit):
        encoded(column, {"wkb": "AA==", "srid": 1}, postgres_values.encode)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("text[]", ["a", 'q"\\', "{,}", "", "NULL", None], '{"a","q\\"\\\\","{,}","","NULL",NULL}'),
        ("int4[]", [[1, 2], [3, None]], '{{"1","2"},{"3",NULL}}'), ("int4[]", [], "{}"), ("int4[]", [[], []], "{}"),
        ("bytea[]", [b"\x00\xff"], '{"\\\\x00ff"}'), ("bool[]", [True, False], '{"true","false"}'),
        ("jsonb[]", [{"a": 1}, '{"b":1.10}', [1]], '{"{\\"a\\": 1}","{\\"b\\":1.10}","[1]"}'),
        ("float8[]", [1.5, float("nan"), float("-inf")], '{"1.5","NaN","-Infinity"}'),
        ("hstore", {"a": "1", 'q"': None}, '"a"=>"1", "q\\""=>NULL'), ("hstore", '{"a":"1"}', '"a"=>"1"'),
        ("hstore", '"a"=>"1"', '"a"=>"1"'), ("hstore", [("a", "1")], '"a"=>"1"'), ("hstore", "{}", ""),
        ("vector", [1.5, 2], "[1.5,2]"), ("halfvec", [0.1], "[0.1]"),
        ("sparsevec", {"dimensions": 5, "vector": {"1": 0.5, "3": 2.0}}, "{1:0.5,3:2.0}/5"),
        ("sparsevec", {"dimensions": 5, "vector": [[1, 0.5]]}, "{1:0.5}/5"),
        ("circle", {"x": 1, "y": 2, "radius": 3}, "<(1.0,2.0),3.0>"), ("line", {"a": 1, "b": 2, "c": 3}, "{1.0,2.0,3.0}"),
        ("bit", True, "1"), ("int2", True, 1),
        ("numeric", {"scale": 1, "value": "Fw=="}, json_numbers.loads("2.30000").normalize()),
        ("jsonb", True, "true"), ("json", [("a", 1)], '{"a": 1}'), ("text", True, "true"),
    ],
)  # fmt: skip
def test_postgres_gets_the_text_that_its_type_reads(kind: str, value: Any, text: Any) -> None:
    """Arrays of any depth and any element, hstore, vectors, shapes."""
    assert encoded(Column(name="x", type=kind, kind=kind), value, postgres_values.encode) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_dot_in_a_name_is_a_part_of_it(kind: str, request: pytest.FixtureRequest) -> None:
    """Of a column, in the key, in a unique key and elsewhere; of a table, with a foreign key; each can be changed and deleted."""
    q = "`{}`" if kind == "mariadb" else '"{}"'
    database = fresh(kind, request)
    parent, child = q.format("v1.orders"), q.format("v1.lines")
    number, code, note = q.format("o.id"), q.format("o.code"), q.format("o.note")
    database.execute(
        f"CREATE TABLE {parent} ({number} int PRIMARY KEY, {code} varchar(9) UNIQUE, {note} varchar(9))",
        f"CREATE TABLE {child} (id int PRIMARY KEY, {number} int, FOREIGN KEY ({number}) REFERENCES {parent} ({number}))",
    )

    def order(id: int, value: str) -> dict[str, Any]:
        return {"o.id": id, "o.code": value, "o.note": None}

    made = [c(1, order(1, "a"), "v1.orders"), c(1, order(2, "b"), "v1.orders"), c(1, {"id": 1, "o.id": 1}, "v1.lines")]
    swap = [u(2, order(1, "a"), "v1.orders", **{"o.code": "b"}), u(2, order(2, "b"), "v1.orders", **{"o.code": "a"})]
    gone = [c(3, order(3, "c"), "v1.orders"), d(3, {"o.id": 3}, "v1.orders")]
    sync(database, changes_of(*made), mode="parallel")
    sync(database, changes_of(*made, *swap, *gone), mode="parallel")
    assert sorted(database.query(f"SELECT * FROM {parent}")) == [(1, "b", None), (2, "a", None)]
    assert database.query(f"SELECT * FROM {child}") == [(1, 1)]


@pytest.mark.postgres
def test_a_name_of_two_tables_is_refused(request: pytest.FixtureRequest) -> None:
    """`other.t` may be a table in a schema, and it may be a table whose name has a dot: if it is both, nothing is guessed."""
    database = fresh("postgres", request)
    schema = database.query("SELECT current_schema()")[0][0] + "_2"
    database.execute(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    sync(database, changes_of(c(1, {"id": 1}, f"{schema}.t")))
    assert database.query(f"SELECT id FROM {schema}.t") == [(1,)]
    database.execute(f'CREATE TABLE "{schema}.t" (id int PRIMARY KEY)')
    with pytest.raises(InvalidRequest, match="matches two tables"):
        sync(database, changes_of(c(1, {"id": 2}, f"{schema}.t")), stream="other")


def test_nested_times_and_bytes_of_parquet_images(tmp_path: Path) -> None:
    """Images as structs: times, dates, bytes and exact numbers, at the top and below."""
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    from lakegate.syncs.sources.files import ChangeFiles

    moment, amount = datetime.datetime(2026, 1, 2, 3, 4, 5), decimal.Decimal("12345678901234567.80")
    nested = {"at": moment, "day": moment.date(), "n": amount, "b": b"\x00a", "t": moment.time(), "l": [moment.date()]}
    row = {"id": 1, "tm": moment.time(), "du": datetime.timedelta(hours=26, microseconds=5), "x": nested}
    (tmp_path / "c").mkdir()
    table = pa.table({"seq": [0], "tx": ["1"], "table": ["t"], "op": ["c"], "after": pa.array([row])})
    pq.write_table(table, tmp_path / "c" / "c.parquet")
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, tm TEXT, du TEXT, x TEXT)")
    target = database.target()
    list(run(ChangeFiles(files=str(tmp_path / "c")), target, stream="s", settings=SyncSettings()))
    target.close()
    ((_, tm, du, text),) = database.query("SELECT * FROM t")
    assert (tm, du) == ("03:04:05", "26:00:00.000005")
    assert json.loads(text, parse_float=str) == {
        "at": "2026-01-02T03:04:05", "day": "2026-01-02", "n": "12345678901234567.80", "b": "\\x0061", "t": "03:04:05",
        "l": ["2026-01-02"],
    }  # fmt: skip


def test_sqlite_keeps_what_its_affinities_keep(tmp_path: Path) -> None:
    """A bit string is a number in a column of numbers; an interval is a text, or microseconds in a column of numbers."""
    bits, wait = (
        field("bytes", "io.debezium.data.Bits", parameters={"length": "9"}),
        field("int64", "io.debezium.time.MicroDuration"),
    )
    for type_, schema, value, found in [
        ("text", bits, "VQA=", "001010101"), ("integer", bits, "VQA=", 85), ("bit(9)", bits, "VQA=", 85),
        ("interval", wait, 93_784_500_000, "26:03:04.500000"), ("text", wait, 1, "00:00:00.000001"), ("bigint", wait, 1, 1),
    ]:  # fmt: skip
        database = fresh_sqlite(tmp_path)
        database.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, x {type_})")
        deliver(database, tmp_path / type_, message(value, schema))
        assert sqlite3.connect(database.dsn.removeprefix("sqlite:")).execute("SELECT x FROM t").fetchall() == [(found,)]


def test_verify_calls_nothing_different_that_arrived_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, bytes without a schema, placeholders of bytes and texts, numbers as they are written."""
    moments = ("Date", 20_000), ("MicroTimestamp", 1_700_000_000_123_456), ("MicroTime", 36_000_000_000)
    sent = [
        message(value, field("int64", f"io.debezium.time.{name}"), id=n, lsn=n)
        for n, (name, value) in enumerate(moments, 1)
    ]
    sent += [
        message("2026-01-01T00:00:00Z", field("string", "io.debezium.time.ZonedTimestamp"), id=4, lsn=4),
        message("x", None, id=5, lsn=5), message("__not_sent", None, op="u", id=5, lsn=6),
    ]  # fmt: skip
    blob = {**message("AP9hYg==", None, lsn=7)}
    blob["source"] = {**blob["source"], "table": "b"}
    database = fresh_sqlite(tmp_path)
    database.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)", "CREATE TABLE b (id INTEGER PRIMARY KEY, x BLOB)"
    )
    (tmp_path / "m.json").write_text("".join(json.dumps(one) + "\n" for one in [*sent, blob]))
    keys = "format: debezium, bytes: base64, placeholder: __not_sent"
    (tmp_path / "lakegate.yml").write_text(
        f"name: n\nsync:\n  s:\n    from: {{files: m.json, {keys}}}\n    to: '{database.dsn}'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert command("sync", "run", "--until-idle").code == 0
    shown = command("sync", "verify")
    assert (shown.code, "no difference" in shown.out) == (0, True), shown.out
