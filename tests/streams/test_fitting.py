"""Values as the table's types: a cast that does not give the value back is a misfit, for records, keys and set values alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakegate.config import Append, Erase
from lakegate.spark.fitting import fitted
from lakegate.spark.sources import Known, with_json
from tests.stream_bench import Bench, mutate, stream, table

FITS: dict[str, list[str]] = {
    "BIGINT": [
        "7.0D",
        "-0.0D",
        "7.00BD",
        "'7'",
        "'-12'",
        "true",
        "9007199254740993",
        "CAST(3 AS FLOAT)",
        "'9223372036854775807'",
    ],
    "INT": ["2147483647L", "2147483647D", "'0'"],
    "DOUBLE": [
        "7",
        "9007199254740992L",
        "1.5BD",
        "0.1BD",
        "CAST(0.1 AS FLOAT)",
        "'1.5'",
        "'100'",
        "'0.10'",
        "'NaN'",
        "'1.0E10'",
    ],
    "FLOAT": ["1.5D", "double('NaN')", "double('Infinity')", "16777216", "'0.25'"],
    "DECIMAL(10,2)": ["1.5BD", "1.5D", "7", "'1.5'", "'1.500'", "'-3'"],
    "STRING": ["7", "7.9D", "1.10BD", "true", "DATE'2024-02-29'", "TIMESTAMP'2024-01-01 10:00:00.5'", "X'C3A4'"],
    "DATE": ["'2024-02-29'", "TIMESTAMP'2024-02-29 00:00:00'", "TIMESTAMP_NTZ'2024-02-29 00:00:00'"],
    "TIMESTAMP": [
        "'2024-01-05 10:00:00'",
        "'2024-01-05T10:00:00.120'",
        "'2024-01-05T10:00:00Z'",
        "'2024-01-05T10:00:00.5+02:00'",
        "DATE'2024-01-05'",
        "TIMESTAMP_NTZ'2024-01-05 10:00:00.000001'",
    ],
    "TIMESTAMP_NTZ": ["'2024-01-05T10:00:00'", "TIMESTAMP'2024-01-05 10:00:00'", "DATE'2024-01-05'"],
    "BOOLEAN": ["'true'", "1", "0"],
    "BINARY": ["'ä'"],
    "CHAR(3)": ["'ab'", "'ab  '", "'abc'", "12"],
    "VARCHAR(3)": ["'abc'", "'ab   '"],
    "ARRAY<INT>": ["array(1L, null)", "array()"],
    "MAP<STRING, INT>": ["map('a', 1.0D)", "map()"],
    "STRUCT<a: INT, b: STRING>": ["named_struct('b', 'x', 'a', 1L)", "named_struct('a', '7')"],
}
MISFITS: dict[str, list[str]] = {
    "BIGINT": [
        "7.9D", "9223372036854775808D", "double('NaN')", "7.5BD", "' 7'", "'+7'", "'07'", "'7.0'", "'7e0'", "'0x7'",
        "DATE'2024-01-01'", "TIMESTAMP'2024-01-01 00:00:00'", "X'07'",
    ],
    "INT": ["2147483648L", "1e10D", "CAST(2147483648 AS FLOAT)", "'2147483648'"],
    "DOUBLE": [
        "9007199254740993L", "9223372036854775807L", "12345678901234567890.1BD", "' 1.5'", "'1.5d'",
        "'1e3'", "'0.12345678901234567890123'",
    ],
    "FLOAT": ["0.1D", "16777217", "2147483647", "1e40D"],
    "DECIMAL(10,2)": ["1.256BD", "1.256D", "double('NaN')", "'1.256'", "'+1.5'", "123456789L", "'1e1'"],
    "STRING": ["X'FF'", "array(1)", "named_struct('a', 1)"],
    "DATE": ["'2024'", "'2024-1-5'", "'2024-01-05T10:00:00'", "'2024-02-30'", "TIMESTAMP'2024-02-29 12:00:00'", "20"],
    "TIMESTAMP": [
        "1700000000000L", "1700000000L", "1.5D", "true", "'2024-01-05'", "'2024-01-05 10'", "'10:00:00'", "'1700000000000'",
        "'2024-01-05T10:00:00.1234567Z'", "TIMESTAMP_NTZ'2024-03-31 02:30:00'", "'2024-03-31 02:30:00'",
    ],
    "TIMESTAMP_NTZ": ["'2024-01-05T10:00:00Z'", "'2024-01-05'", "1700000000L"],
    "BOOLEAN": ["'TRUE'", "'yes'", "'1'", "2", "0.5D"],
    "CHAR(3)": ["'abcd'", "1234"],
    "VARCHAR(3)": ["'toolong'"],
    "ARRAY<INT>": ["array(1L, 2147483648L)", "array('01')", "'[1]'"],
    "ARRAY<STRUCT<a: INT>>": ["array(named_struct('a', 1L), named_struct('a', 2147483648L))"],
    "MAP<STRING, INT>": ["map('a', 1.5D)"],
    "MAP<INT, STRING>": ["map('01', 'a')"],
    "STRUCT<a: INT, b: STRING>": ["named_struct('a', 1.5D, 'b', 'x')"],
}  # fmt: skip


def column(kind: str) -> StructField:
    """Makes a column as a table's log has it: CHAR and VARCHAR are STRING with a note."""
    if "CHAR" in kind:
        return StructField(
            "x", StructType.fromDDL("x STRING")["x"].dataType, True, {"__CHAR_VARCHAR_TYPE_STRING": kind.lower()}
        )
    return StructType.fromDDL(f"x {kind}")["x"]


def test_what_comes_back_from_a_cast_fits_and_nothing_else_does(session: SparkSession) -> None:
    """Every pair of types that can meet: numbers, texts, times in a zone with summer time, bytes, lengths, nested values."""
    own = session.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    own.conf.set("spark.sql.codegen.wholeStage", "false")
    own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    wrong = []
    for is_right, cases in ((True, FITS), (False, MISFITS)):
        for kind, values in cases.items():
            one = own.range(1).select(*[F.expr(sql).alias(f"_{i}") for i, sql in enumerate(values)])
            pairs = [fitted(F.col(f"_{i}"), one.schema[f"_{i}"].dataType, column(kind)) for i in range(len(values))]
            cells = [cell.alias(f"c{n}") for n, pair in enumerate(pairs) for cell in pair]
            (row,) = one.select(*cells).collect()
            for i, sql in enumerate(values):
                if (row[2 * i + 1] is None) != is_right or (row[2 * i] is None) == is_right:
                    wrong.append((kind, sql, row[2 * i], row[2 * i + 1]))
    assert wrong == []


@pytest.mark.slow
def test_a_value_is_never_changed_to_fit(session: SparkSession, tmp_path: Path) -> None:
    """Records, keys of erasures and mutations, and set values: what would be changed is set aside with the record as it came."""
    kinds = {
        "In": Append(key=("id",), on_duplicate="keep_first"),
        "Mut": mutate(match={"id": "id"}, set_={"price": "price"}, applies_to="arrived"),
        "TTL": Erase(match={"id": "id"}, lift_when=None),
    }
    streams = tuple(stream(name, kind, on_bad_record="dead_letter") for name, kind in kinds.items())
    b = Bench(session, str(tmp_path), streams, table("id BIGINT, price DECIMAL(10, 2), at TIMESTAMP, name CHAR(4)"))
    record = "id double, price double, at bigint, name string"
    b.run("In", [(7.0, 1.1, None, "a"), (8.0, 1.1, None, "b")], record, 0)
    b.run("In", [(7.9, 2.0, None, "c"), (9.0, 1.26, None, "d"), (10.0, 1.256, None, "e")], record, 1)
    b.run("In", [(11.0, 1.0, 1_700_000_000_000, "f")], record, 2)
    assert b.rows("id") == [(7,), (8,), (9,)]
    b.run("Mut", [(7.9, 5.0), (8.0, 5.256), (9.0, 5.5)], "id double, price double", 0)
    assert [str(price) for _, price in b.rows("id", "price")] == ["1.10", "1.10", "5.50"]
    b.run("TTL", [(7.9,), (9.0,)], "id double", 0)
    assert b.rows("id") == [(7,), (8,)]
    letters = {name: letters_of(b, name) for name in kinds}
    assert letters == {
        "In": {
            ('{"id":7.9,"price":2.0,"name":"c"}', "does not fit: id is not bigint"),
            ('{"id":10.0,"price":1.256,"name":"e"}', "does not fit: price is not decimal(10,2)"),
            ('{"id":11.0,"price":1.0,"at":1700000000000,"name":"f"}', "does not fit: at is not timestamp"),
        },
        "Mut": {
            ('{"id":7.9,"price":5.0}', "does not fit: id is not bigint"),
            ('{"id":8.0,"price":5.256}', "does not fit: price is not decimal(10,2)"),
        },
        "TTL": {('{"id":7.9}', "does not fit: id is not bigint")},
    }


def letters_of(b: Bench, name: str) -> set[tuple[Any, ...]]:
    """Text and reason of the stream's dead letters."""
    rows = b.session.read.format("delta").load(f"{b.root}/_lakegate/dead_letters/{name}")
    return {tuple(row) for row in rows.select("raw", "reason").collect()}


JSON_FITS: dict[str, list[str]] = {
    "DECIMAL(2,1)": ["1.2", "1.20", "-9.9", "0.00", '"1.2"', "1e0"],
    "TINYINT": ["127", "-128"],
    "FLOAT": ["0.1", "16777216", '"NaN"'],
    "DOUBLE": ["0.1", "0.10000000000000001", "9007199254740992", "5e-324"],
    "STRING": ["1.10", "12345678901234567890.123456789", '"2024"'],
    "DATE": ['"2024-02-29"'],
    "TIMESTAMP": ['"2024-03-31T03:30:00.120"', '"2024-01-05 10:00:00Z"', '"2024-03-31T02:30:00+00:00"'],
    "TIMESTAMP_NTZ": ['"2024-03-31T02:30:00"'],
    "MAP<STRING, TINYINT>": ['{"a": 1}'],
}
JSON_MISFITS: dict[str, list[str]] = {
    "DECIMAL(2,1)": ["1.26", "10", '"1.26"'],
    "TINYINT": ["128", "200", "300"],
    "INT": ["2147483648", "1.5"],
    "FLOAT": ["16777217", "1e40"],
    "DOUBLE": ["9007199254740993", "0.12345678901234567890123", "1e400", "1e-400"],
    "DATE": ['"2024"', '"2024-1-5"', '"2024-02-30"', '"2024-01-05T10:00:00"', '"19723"', "19723"],
    "TIMESTAMP": ['"2024-01-05"', '"10:00:00"', '"2024-01-05 10:00:00.1234567"', '"2024-03-31 02:30:00"', "1700000000000"],
    "TIMESTAMP_NTZ": ['"2024-01-05"', '"2024-01-05 10:00:00Z"'],
    "MAP<STRING, TINYINT>": ['{"a": 200}'],
    "ARRAY<STRUCT<d: DATE>>": ['[{"d": "2024-01-05"}, {"d": "2024"}]'],
}  # fmt: skip


def test_a_value_of_json_is_never_changed_to_fit_the_stated_schema(session: SparkSession) -> None:
    """Spark rounds decimals, completes dates, takes numbers for seconds, and 200 for -56; what is read is what is written."""
    own = session.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    own.conf.set("spark.sql.codegen.wholeStage", "false")
    own.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    kinds = sorted(JSON_FITS.keys() | JSON_MISFITS.keys())
    schema = StructType(
        [StructField(f"c{i}", StructType.fromDDL(f"x {kind}")["x"].dataType) for i, kind in enumerate(kinds)]
    )
    texts = [
        (f'{{"c{i}": {text}}}', is_right, kind, text)
        for is_right, cases in ((True, JSON_FITS), (False, JSON_MISFITS))
        for i, kind in enumerate(kinds)
        for text in cases.get(kind, [])
    ]
    frame = own.createDataFrame(texts, "_lg_text string, is_right boolean, kind string, text string")
    read = with_json(own, frame, schema, Known(), {}).select(
        "is_right",
        "kind",
        "text",
        F.col("_lg_bad").alias("bad"),
        *[F.col(f"_lg_value.c{kinds.index(kind)}").alias(kind) for kind in ("STRING", "DOUBLE")],
    )
    rows = read.collect()
    assert [(row.kind, row.text, row.bad) for row in rows if (row.bad is None) != row.is_right] == []
    values = {row.text: row[row.kind] for row in rows if row.is_right and row.kind in ("STRING", "DOUBLE")}
    assert all(values[text] == text for text in JSON_FITS["STRING"] if not text.startswith('"'))
    assert values["5e-324"] == 5e-324


@pytest.mark.matrix
def test_keys_that_the_table_takes_for_one_are_one(session: SparkSession, tmp_path: Path) -> None:
    """Zero with and without a sign, NaN, texts of a CHAR with and without blanks: the last of two requests decides."""
    kinds = {"In": Append(), "Mut": mutate(match={"d": "d", "c": "c"}, set_={"v": "v"})}
    b = Bench(
        session,
        str(tmp_path),
        tuple(stream(*one) for one in kinds.items()),
        table("d DOUBLE, c CHAR(4), v MAP<STRING, INT>"),
    )
    record = "d double, c string, v map<string, int>"
    nan = float("nan")
    b.run("In", [(0.0, "a", {"x": 1}), (-0.0, "a ", None), (nan, "b", None)], record, 0)
    b.run(
        "Mut", [(-0.0, "a", {"x": 2}), (0.0, "a   ", {"x": 3}), (nan, "b ", {"x": 4}), (-nan, "b", {"x": 5})], record, 0
    )
    assert sorted(b.states("Mut").values()) == ["applied", "applied", "superseded", "superseded"]
    assert [row[0] for row in b.rows("v")] == [{"x": 3}, {"x": 3}, {"x": 5}]
    b.run("In", [(-0.0, "a", None), (nan, "b", None)], record, 1)
    assert [row[0] for row in b.rows("v")] == [{"x": 3}, {"x": 3}, {"x": 3}, {"x": 5}, {"x": 5}]


@pytest.mark.matrix
def test_a_row_is_known_by_all_its_values_whatever_their_types(session: SparkSession, tmp_path: Path) -> None:
    """A mutation that waits moves its row, on a table with a MAP within another type, a VARIANT, and names that need quotes."""
    kinds = {
        "In": Append(columns={"j": "parse_json(j)"}),
        "Mut": mutate(match={"the id": "`the id`"}, set_={"the id": "nid"}, applies_to="arrived"),
    }
    columns = "`the id` STRING, m ARRAY<MAP<STRING, INT>>, j VARIANT"
    properties = {"delta.columnMapping.mode": "name"}
    b = Bench(
        session, str(tmp_path), tuple(stream(*one) for one in kinds.items()), table(columns, properties=properties)
    )
    record = "`the id` string, m array<map<string, int>>, j string"
    b.run("In", [("z", None, "[1]")], record, 0)
    b.run("Mut", [("a", "b")], "`the id` string, nid string", 0)
    b.run("In", [("a", [{"x": 1}], "[2]"), ("a", None, None)], record, 1)
    b.sweep("Mut", 0)
    assert b.rows("`the id`") == [("b",), ("b",), ("z",)]
    assert b.states("Mut") == {"file0#0": "applied"}
