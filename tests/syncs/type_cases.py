# ruff: noqa: E501  (a case reads best as one line)
"""The types of PostgreSQL and MySQL as Debezium sends them, and the column of each target that holds them: test and reference page."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, NamedTuple

Schema = dict[str, Any]
Held = tuple[str, str]
"""A column's type in a target, and the value as SQL writes it there."""


class Case(NamedTuple):
    """A type of a source with one value."""

    source: str
    """PostgreSQL or MySQL."""
    type: str
    schema: Schema
    value: Any
    """As the message says it."""
    postgres: Held
    mariadb: Held
    sqlite: Held


REFUSED = "refused"
"""Replaces a value in SQL: the target has no such value, and the row is quarantined or stops the sync."""


def s(type: str, logical: str | None = None, **more: Any) -> Schema:
    """A field's schema."""
    return {"type": type, "optional": True, **({"name": logical} if logical else {}), **more}


def b64(data: bytes) -> str:
    """Encodes bytes as in JSON."""
    return base64.b64encode(data).decode()


def number(value: int, scale: int) -> tuple[Schema, str]:
    """An exact number."""
    size = value.bit_length() // 8 + 1
    schema = s("bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": str(scale)})
    return schema, b64(value.to_bytes(size, "big", signed=True))


def array(items: Schema) -> Schema:
    """Of an array."""
    return s("array", items=items)


def time(name: str) -> Schema:
    """Of Debezium's times."""
    return s("string" if name.startswith(("Zoned", "Interval")) else "int64", f"io.debezium.time.{name}")


def same(type: str, literal: str) -> tuple[Held, Held, Held]:
    """The same type and value in all targets."""
    return (type, literal), (type, literal), (type, literal)


def wkb(kind: int, *points: tuple[float, float]) -> str:
    """Well-known binary of a point, a line or a ring."""
    flat = [one for point in points for one in point]
    counts = {1: (), 2: (len(points),), 3: (1, len(points))}[kind]
    return b64(struct.pack(f"<BI{len(counts)}I{len(flat)}d", 1, kind, *counts, *flat))


def shape(name: str, **more: Any) -> Schema:
    """Of a geometry."""
    return s("struct", f"io.debezium.data.geometry.{name}", **more)


UUID = "0b5f6fd0-43ab-4b7c-9a0f-5b4f5b9f0aaa"
POINT = {"x": 1.5, "y": 2.5, "wkb": wkb(1, (1.5, 2.5)), "srid": None}
GEOMETRY = {"wkb": wkb(1, (1.5, 2.5)), "srid": 4326}
RING = {"wkb": wkb(3, (0, 0), (0, 2), (3, 2), (3, 0), (0, 0)), "srid": None}
BYTES = b64(b"\x00\xffa")
BITS = s("bytes", "io.debezium.data.Bits", parameters={"length": "9"})
JSON = s("string", "io.debezium.data.Json")
TEXT = s("string")
MICROS = 1_700_000_000_123_456


def document(value: Any) -> str:
    """A literal of a document that is written as the sync writes it."""
    return "'" + json.dumps(value) + "'"


def listed(values: list[Any]) -> tuple[Held, Held]:
    """A list as MariaDB and SQLite hold it: JSON."""
    text = document(values)
    return ("json", text.replace("\\", "\\\\")), ("text", text)


def p(type: str, schema: Schema, value: Any, *held: Held) -> Case:
    """Of PostgreSQL."""
    return Case("PostgreSQL", type, schema, value, *held)


def m(type: str, schema: Schema, value: Any, *held: Held) -> Case:
    """Of MySQL."""
    return Case("MySQL", type, schema, value, *held)


CASES: list[Case] = [
    p("smallint", s("int16"), -5, *same("smallint", "-5")),
    p("bigint", s("int64"), 2**63 - 1, *same("bigint", str(2**63 - 1))),
    p("numeric(p, s)", *number(-12345678901234567890123, 10), *same("decimal(40,10)", "-1234567890123.4567890123")[:2],
      ("text", "'-1234567890123.4567890123'")),
    p("numeric", s("struct", "io.debezium.data.VariableScaleDecimal"), {"scale": 3, "value": b64(b"\x03\xed")},
      ("numeric", "1.005"), ("decimal(38,10)", "1.005"), ("text", "'1.005'")),
    p("numeric, as a text", TEXT, "1.10", ("numeric", "1.10"), ("decimal(38,10)", "1.10"), ("text", "'1.10'")),
    p("money", *number(-1230, 2), ("money", "(-12.30)::numeric::money"), ("decimal(19,2)", "-12.30"), ("text", "'-12.30'")),
    p("real", s("float"), 0.1, ("real", "0.1"), ("float", "0.1"), ("real", "0.1")),
    p("double precision", s("double"), 5e-324, ("double precision", "5e-324"), ("double", "5e-324"), ("real", "5e-324")),
    p("double precision, NaN", s("double"), "NaN", ("double precision", "'NaN'"), ("double", REFUSED), ("text", "'NaN'")),
    p("double precision, infinity", s("double"), "-Infinity", ("double precision", "'-Infinity'"), ("double", REFUSED),
      ("real", "-9e999")),
    p("boolean", s("boolean"), True, ("boolean", "true"), ("boolean", "true"), ("boolean", "1")),
    p("char(n)", TEXT, "a  ", *same("char(3)", "'a  '")),
    p("text, varchar, citext, name", TEXT, "é😀 'q' \\", ("text", "'é😀 ''q'' \\'"), ("text", "'é😀 ''q'' \\\\'"),
      ("text", "'é😀 ''q'' \\'")),
    p("bytea", s("bytes"), BYTES, ("bytea", "'\\x00ff61'"), ("longblob", "x'00ff61'"), ("blob", "x'00ff61'")),
    p("bit(1)", s("boolean"), True, ("bit(1)", "B'1'"), ("bit(1)", "b'1'"), ("integer", "1")),
    p("bit(n)", BITS, b64(b"\x55"), ("bit(9)", "B'001010101'"), ("bit(9)", "b'001010101'"), ("text", "'001010101'")),
    p("bit varying", s("bytes", "io.debezium.data.Bits", parameters={"length": "2147483647"}), b64(b"\x05"),
      ("bit varying", "B'101'"), ("bit(64)", "b'101'"), ("text", "'101'")),
    p("uuid", s("string", "io.debezium.data.Uuid"), UUID, ("uuid", f"'{UUID}'"), ("uuid", f"'{UUID}'"), ("text", f"'{UUID}'")),
    p("json", JSON, '{"a": 1.10, "a": 2}', ("json", "'{\"a\": 1.10, \"a\": 2}'"), ("json", "'{\"a\": 1.10, \"a\": 2}'"),
      ("text", "'{\"a\": 1.10, \"a\": 2}'")),
    p("jsonb", JSON, '{"a": 12345678901234567.890}', *(((kind, "'{\"a\": 12345678901234567.890}'")) for kind in ("jsonb", "json", "text"))),
    p("xml", s("string", "io.debezium.data.Xml"), "<a/>", ("xml", "'<a/>'"), ("text", "'<a/>'"), ("text", "'<a/>'")),
    p("enum", s("string", "io.debezium.data.Enum"), "sad", ("mood", "'sad'"), ("enum('ok','sad')", "'sad'"), ("text", "'sad'")),
    p("date", time("Date"), 20_000, *same("date", "'2024-10-04'")),
    p("date, infinity", time("Date"), -2_147_472_692, ("date", "'infinity'"), ("date", REFUSED), ("text", "'infinity'")),
    p("date, before the year 1", time("Date"), -735_160, ("date", "'0044-03-15 BC'"), ("date", REFUSED), ("text", "'0044-03-15 BC'")),
    p("time", time("MicroTime"), 86_400_000_000, ("time", "'24:00:00'"), ("time(6)", "'24:00:00'"), ("text", "'24:00:00'")),
    p("timetz", time("ZonedTime"), "10:00:00.5Z", ("timetz", "'10:00:00.5Z'"), ("time(6)", "'10:00:00.5'"), ("text", "'10:00:00.5Z'")),
    p("timestamp(3)", time("Timestamp"), 1_700_000_000_123, ("timestamp(3)", "'2023-11-14 22:13:20.123'"),
      ("datetime(3)", "'2023-11-14 22:13:20.123'"), ("text", "'2023-11-14T22:13:20.123000'")),
    p("timestamp", time("MicroTimestamp"), MICROS, ("timestamp", "'2023-11-14 22:13:20.123456'"),
      ("datetime(6)", "'2023-11-14 22:13:20.123456'"), ("text", "'2023-11-14T22:13:20.123456'")),
    p("timestamp, infinity", time("MicroTimestamp"), 9_223_372_036_825_200_000, ("timestamp", "'infinity'"),
      ("datetime(6)", REFUSED), ("text", "'infinity'")),
    p("timestamp, past 9999", time("MicroTimestamp"), 317_346_336_000_000_000, ("timestamp", "'12026-04-22'"),
      ("datetime(6)", REFUSED), ("text", "'12026-04-22T00:00:00'")),
    p("timestamptz", time("ZonedTimestamp"), "2026-01-02T03:04:05.123456Z", ("timestamptz", "'2026-01-02 03:04:05.123456Z'"),
      ("timestamp(6) NULL", "'2026-01-02 03:04:05.123456'"), ("text", "'2026-01-02T03:04:05.123456+00:00'")),
    p("timestamptz, infinity", time("ZonedTimestamp"), "-infinity", ("timestamptz", "'-infinity'"), ("datetime(6)", REFUSED),
      ("text", "'-infinity'")),
    p("interval", time("MicroDuration"), 93_784_500_000, ("interval", "'26:03:04.5'"), ("time(6)", "'26:03:04.5'"),
      ("text", "'26:03:04.500000'")),
    p("interval, as a text", time("Interval"), "P1Y2M3DT4H5M6.78S", ("interval", "'P1Y2M3DT4H5M6.78S'"),
      ("varchar(40)", "'P1Y2M3DT4H5M6.78S'"), ("text", "'P1Y2M3DT4H5M6.78S'")),
    p("inet", TEXT, "10.0.0.1/24", ("inet", "'10.0.0.1/24'"), ("varchar(43)", "'10.0.0.1/24'"), ("text", "'10.0.0.1/24'")),
    p("int4range and other ranges", TEXT, "[1,5)", ("int4range", "'[1,5)'"), ("varchar(40)", "'[1,5)'"), ("text", "'[1,5)'")),
    p("tsvector", s("string", "io.debezium.data.TsVector"), "'a':1 'b':2", ("tsvector", "'''a'':1 ''b'':2'"),
      ("text", "'''a'':1 ''b'':2'"), ("text", "'''a'':1 ''b'':2'")),
    p("ltree", s("string", "io.debezium.data.Ltree"), "a.b", ("ltree", "'a.b'"), ("text", "'a.b'"), ("text", "'a.b'")),
    p("hstore, as JSON", JSON, '{"a":"1","b":null}', ("hstore", "'a=>1, b=>NULL'"), ("json", '\'{"a":"1","b":null}\''),
      ("text", '\'{"a":"1","b":null}\'')),
    p("hstore, as a map", s("map", keys=s("string"), values=s("string")), {"a": "1", "b": None}, ("hstore", "'a=>1, b=>NULL'"),
      ("json", document({"a": "1", "b": None})), ("text", document({"a": "1", "b": None}))),
    p("text[]", array(TEXT), ["a", "", 'q"\\,{}', "NULL", None], ("text[]", "ARRAY['a', '', 'q\"\\,{}', 'NULL', NULL]"),
      ("json", "json_array('a', '', 'q\"\\\\,{}', 'NULL', NULL)"), ("text", document(["a", "", 'q"\\,{}', "NULL", None]))),
    p("integer[]", array(s("int32")), [1, None, 3], ("integer[]", "ARRAY[1, NULL, 3]"), *listed([1, None, 3])),
    p("numeric(p, s)[]", array(number(1, 2)[0]), [number(12345678901234567890, 2)[1]],
      ("numeric(30,2)[]", "ARRAY[123456789012345678.90]"), ("json", "'[123456789012345678.90]'"), ("text", "'[123456789012345678.90]'")),
    p("uuid[]", array(s("string", "io.debezium.data.Uuid")), [UUID], ("uuid[]", f"ARRAY['{UUID}'::uuid]"), *listed([UUID])),
    p("date[]", array(time("Date")), [20_000, None], ("date[]", "ARRAY['2024-10-04'::date, NULL]"), *listed(["2024-10-04", None])),
    p("timestamp[]", array(time("MicroTimestamp")), [MICROS], ("timestamp[]", "ARRAY['2023-11-14 22:13:20.123456'::timestamp]"),
      *listed(["2023-11-14T22:13:20.123456"])),
    p("boolean[]", array(s("boolean")), [True, False], ("boolean[]", "ARRAY[true, false]"), *listed([True, False])),
    p("bytea[]", array(s("bytes")), [BYTES], ("bytea[]", "ARRAY['\\x00ff61'::bytea]"), ("json", "'[\"\\\\\\\\x00ff61\"]'"),
      ("text", document(["\\x00ff61"]))),
    p("enum[]", array(s("string", "io.debezium.data.Enum")), ["sad"], ("mood[]", "ARRAY['sad'::mood]"), *listed(["sad"])),
    p("int4range[]", array(TEXT), ["[1,5)"], ("int4range[]", "ARRAY['[1,5)'::int4range]"), *listed(["[1,5)"])),
    p("jsonb[]", array(JSON), ['{"a": 1}'], ("jsonb[]", "ARRAY['{\"a\": 1}'::jsonb]"), *listed(['{"a": 1}'])),
    p("point", shape("Point"), POINT, ("point", "'(1.5,2.5)'"), ("point", "ST_GeomFromText('POINT(1.5 2.5)')"), ("text", document(POINT))),
    p("box", shape("Geometry"), RING, ("box", "'(0,0),(3,2)'"), ("polygon", "ST_GeomFromText('POLYGON((0 0,0 2,3 2,3 0,0 0))')"),
      ("text", document(RING))),
    p("polygon", shape("Geometry"), RING, ("polygon", "'((0,0),(0,2),(3,2),(3,0))'"),
      ("polygon", "ST_GeomFromText('POLYGON((0 0,0 2,3 2,3 0,0 0))')"), ("text", document(RING))),
    p("circle", shape("Circle"), {"x": 1, "y": 2, "radius": 3}, ("circle", "'<(1,2),3>'"),
      ("json", document({"x": 1, "y": 2, "radius": 3})), ("text", document({"x": 1, "y": 2, "radius": 3}))),
    m("tinyint(1)", s("int16"), 2, *same("smallint", "2")),
    m("tinyint(1), as a boolean", s("boolean"), True, ("smallint", "1"), ("tinyint(1)", "1"), ("boolean", "1")),
    m("bigint unsigned", *number(2**64 - 1, 0), ("numeric(20)", str(2**64 - 1)), ("bigint unsigned", str(2**64 - 1)),
      ("text", f"'{2**64 - 1}'")),
    m("decimal(p, s)", *number(12345678901234567890123, 10), *same("decimal(40,10)", "1234567890123.4567890123")[:2],
      ("text", "'1234567890123.4567890123'")),
    m("bit(n)", BITS, b64(b"\x55\x01"), ("bit(9)", "B'101010101'"), ("bit(9)", "b'101010101'"), ("integer", "341")),
    m("date", time("Date"), 20_000, *same("date", "'2024-10-04'")),
    m("time, beyond a day", time("MicroTime"), -3_020_399_000_000, ("interval", "'-838:59:59'"), ("time(6)", "'-838:59:59'"),
      ("text", "'-838:59:59'")),
    m("datetime", time("Timestamp"), 1_700_000_000_000, ("timestamp", "'2023-11-14 22:13:20'"), ("datetime", "'2023-11-14 22:13:20'"),
      ("text", "'2023-11-14T22:13:20'")),
    m("timestamp", time("ZonedTimestamp"), "2026-03-29T02:30:00Z", ("timestamptz", "'2026-03-29 02:30:00Z'"),
      ("timestamp NULL", "'2026-03-29 02:30:00'"), ("text", "'2026-03-29T02:30:00+00:00'")),
    m("year", s("int32", "io.debezium.time.Year"), 2026, ("integer", "2026"), ("year", "2026"), ("integer", "2026")),
    m("enum", s("string", "io.debezium.data.Enum"), "b", ("text", "'b'"), ("enum('a','b')", "'b'"), ("text", "'b'")),
    m("set", s("string", "io.debezium.data.EnumSet"), "a,c", ("text", "'a,c'"), ("set('a','b','c')", "'a,c'"), ("text", "'a,c'")),
    m("json", JSON, '{"a":[1,2.50]}', ("jsonb", "'{\"a\":[1,2.50]}'"), ("json", "'{\"a\":[1,2.50]}'"), ("text", "'{\"a\":[1,2.50]}'")),
    m("binary, varbinary, blob", s("bytes"), BYTES, ("bytea", "'\\x00ff61'"), ("varbinary(16)", "x'00ff61'"), ("blob", "x'00ff61'")),
    m("geometry", shape("Geometry"), GEOMETRY, ("jsonb", document(GEOMETRY)), ("geometry", "ST_GeomFromText('POINT(1.5 2.5)', 4326)"),
      ("text", document(GEOMETRY))),
    m("vector", s("array", "io.debezium.data.FloatVector", items=s("float")), [1.5, 2.0], ("real[]", "ARRAY[1.5, 2]"), *listed([1.5, 2.0])),
]  # fmt: skip
