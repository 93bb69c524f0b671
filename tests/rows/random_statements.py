"""Draws tables of all types with hostile values, and statements that change few of their rows, as SQL texts."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

LONG = "x" * 32
TYPES = {
    "TINYINT": ("0Y", "1Y", "-1Y", "127Y", "-128Y"),
    "SMALLINT": ("0S", "7S", "-1S", "32767S", "-32768S"),
    "INT": ("0", "1", "2", "-3", "2147483647", "-2147483648"),
    "BIGINT": ("0L", "1L", "5L", "-9L", "9223372036854775807L", "-9223372036854775808L"),
    "FLOAT": ("0.0F", "-0.0F", "1.5F", "-2.25F", "float('NaN')", "float('Infinity')", "3.4028234E38F", "0.1F"),
    "DOUBLE": (
        "0.0D",
        "-0.0D",
        "1.5D",
        "0.1D",
        "double('NaN')",
        "double('-Infinity')",
        "4.9E-324D",
        "9007199254740993D",
    ),
    "DECIMAL(5,2)": ("0BD", "1.50BD", "-1.5BD", "999.99BD", "-999.99BD"),
    "DECIMAL(18,4)": ("0BD", "1.5000BD", "1.5BD", "-0.0001BD", "99999999999999.9999BD"),
    "DECIMAL(38,10)": (
        "0BD",
        "1.5BD",
        "1.5000000000BD",
        "9999999999999999999999999999.9999999999BD",
        "-0.0000000001BD",
    ),
    "STRING": (
        *("''", "'a'", "'A'", "'ab%'", "'é'", "'😀'", "'\uffee'", "' 7 '", "'7'", "'null'", "'a b/c=d'"),
        *(f"'{LONG}'", f"'{LONG}y'", f"'{LONG}z😀'", f"'{'😀' * 40}'"),
    ),
    "BINARY": ("X''", "X'00'", "X'FF'", "X'61'", "X'" + "AB" * 40 + "'"),
    "BOOLEAN": ("true", "false"),
    "DATE": tuple(
        f"DATE '{day}'"
        for day in ("0001-01-01", "1500-02-28", "1582-10-04", "1582-10-15", "1970-01-01", "2024-02-29", "9999-12-31")
    ),
    "TIMESTAMP": tuple(
        f"TIMESTAMP '{time}'"
        for time in (
            *("1500-01-01 00:00:00", "1582-10-10 12:00:00", "1969-12-31 23:59:59.999999", "1883-11-18 12:01:00"),
            *("2024-03-31 02:30:00", "2024-10-27 02:30:00", "2024-10-27 01:30:00Z", "2024-11-03 01:30:00.123456"),
            *("2024-11-03 09:30:00.123456Z", "9999-12-30 23:59:59.999"),
        )
    ),
    "TIMESTAMP_NTZ": tuple(
        f"TIMESTAMP_NTZ '{time}'"
        for time in ("1500-01-01 00:00:00", "2024-03-31 02:30:00", "2024-10-27 02:30:00.000001", "9999-12-31 23:59:59")
    ),
    "STRUCT<X: INT, y: STRING>": ("struct(1, 'a')", "struct(NULL, '')", "struct(-3, NULL)"),
    "ARRAY<INT>": ("array(1, NULL)", "array()", "array(2147483647)"),
}
NAMES = (
    *("b", "Sh", "i", "l", "fl", "db", "d1", "d2", "d3"),
    *("s", "bin", "bo", "dt", "ts", "tn", "st", "ar"),
)
"""In the order of `TYPES`."""
COPIED = ("st", "ar")
SCALARS = {name: kind for name, kind in zip(NAMES, TYPES, strict=True) if name not in COPIED}
NUMBERS = ("b", "Sh", "i", "l", "fl", "db", "d1", "d2", "d3")
PARTITIONS = ("b", "i", "l", "d1", "s", "bo", "dt", "ts", "tn", "db")
ZONES = ("Europe/Berlin", "UTC", "America/Los_Angeles")
COMPARED = ("=", "<=>", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Case:
    """A table and what is done with it."""

    ddl: str
    """After the name of the table."""
    rows: str
    """A query of its first rows."""
    before: tuple[str, ...]
    """Statements of stock Delta before the table is copied; `{t}` stands for the table."""
    statements: tuple[str, ...]
    zone: str
    is_ansi: bool
    columns: dict[str, str]
    """Name → type."""


def literal(chance: Random, kind: str, *, nulls: int = 6) -> str:
    """Draws a value of a type, one in `nulls` NULL."""
    if chance.randint(1, nulls) == 1:
        return "NULL"
    return chance.choice(TYPES[kind])


def spelled(chance: Random, name: str) -> str:
    """Draws how a statement spells a column."""
    return chance.choice((name, name, name.upper(), f"`{name}`"))


def test_of(chance: Random, columns: dict[str, str], prefix: str) -> str:
    """Draws a condition on one column, or on two."""
    name = chance.choice([*columns])
    kind, column = columns[name], prefix + spelled(chance, name)

    def one(nulls: int = 12) -> str:
        return literal(chance, kind, nulls=nulls)

    compared = chance.choice(COMPARED)
    forms = [
        *[f"{column} {compared} {one()}" for _ in range(8)],  # what follows fails more often
        f"{one()} {compared} {column}",
        *(f"{column} IN ({one()}, {one(3)}, {one()})", f"{column} NOT IN ({one()}, {one(4)})"),
        *(f"{column} IS NULL", f"{column} IS NOT NULL", f"{column} BETWEEN {one()} AND {one()}"),
        f"coalesce({column}, {one(99)}) = {one(99)}",
        f"{column} IN ({', '.join(chance.sample(TYPES[kind], len(TYPES[kind])))}, {one(2)})",
        f"CASE WHEN {column} IS NULL THEN {column} IS NULL ELSE {column} {compared} {one()} END",
    ]
    if name in NUMBERS:
        other = chance.choice([each for each in NUMBERS if each in columns])
        forms += [
            *(f"{column} {compared} {prefix}{other}", f"{column} {compared} 1.50", f"{column} {compared} '7'"),
            *(f"abs({column}) {compared} 1", f"{column} + {prefix}{other} > 1", f"1 / {column} > 0.5"),
            *(f"{column} % 2 = 1", f"CAST({column} AS STRING) = '1.50'", f"CAST({column} AS TINYINT) = 1"),
            *(
                f"CAST({column} AS DECIMAL(20,6)) {compared} 1.5",
                f"{column} {compared} 200",
                f"round({column}, 1) = 1.5",
            ),
        ]
    elif name == "s":
        forms += [
            *(f"{column} LIKE 'a%'", f"{column} LIKE '%{LONG[:3]}_'", f"length({column}) {compared} 1"),
            *(f"upper({column}) = 'A'", f"{column} || 'b' > 'ab'", f"CAST({column} AS INT) = 7", f"{column} = 7"),
            *(f"{column} RLIKE '^.$'", f"try_cast({column} AS INT) {compared} 7", f"trim({column}) = '7'"),
        ]
    elif name in ("dt", "ts", "tn"):
        forms += [
            *(f"year({column}) {compared} 2024", f"{column} {compared} '2024-02-29'"),
            *(f"CAST({column} AS STRING) LIKE '2024%'", f"CAST({column} AS DATE) = DATE '2024-10-27'"),
            f"date_trunc('MONTH', {column}) = TIMESTAMP '2024-10-01 00:00:00'",
        ]
    elif name == "bo":
        forms += [column, f"NOT {column}"]
    return chance.choice(forms)


def condition(chance: Random, columns: dict[str, str], prefix: str = "") -> str:
    """Draws a condition."""
    text = test_of(chance, columns, prefix)
    for _ in range(chance.randint(0, 2)):
        word = chance.choice(("AND", "AND", "OR"))
        text = f"({text}) {word} ({test_of(chance, columns, prefix)})"
        if chance.randint(0, 5) == 0:
            text = f"NOT ({text})"
    return text


def value(chance: Random, columns: dict[str, str], name: str, prefix: str = "") -> str:
    """Draws what is assigned to a column."""
    kind = columns[name]
    forms = [literal(chance, kind), literal(chance, kind), literal(chance, kind)]
    if name in COPIED:
        return chance.choice(forms)
    column = prefix + spelled(chance, name)
    scalars = {other: kind for other, kind in columns.items() if other in SCALARS}
    other, test = chance.choice([*scalars]), test_of(chance, scalars, prefix)
    forms += [
        *(
            column,
            f"coalesce({column}, {forms[0]})",
            f"CAST({prefix}{other} AS {kind})",
            f"try_cast({prefix}{other} AS {kind})",
        ),
        f"CASE WHEN {test} THEN {forms[0]} ELSE {column} END",
    ]
    if name in NUMBERS:
        number = chance.choice([each for each in NUMBERS if each in columns])
        forms += [f"{column} + 1", f"-{column}", f"{column} * 2", f"{prefix}{number}", "1.005", f"1 / {column}", "'7'"]
    elif name == "s":
        forms += [
            f"upper({column})",
            f"concat({column}, '{LONG}')",
            f"CAST({prefix}{other} AS STRING)",
            "7",
            f"repeat({column}, 30)",
        ]
    elif name == "dt":
        forms += [f"date_add({column}, 1)", "'2024-02-29'", f"add_months({column}, 1)"]
    elif name in ("ts", "tn"):
        forms += [f"{column} + INTERVAL 1 DAY", "'2024-10-27 02:30:00'", f"date_trunc('HOUR', {column})"]
    return chance.choice(forms)


def assignments(chance: Random, columns: dict[str, str], prefix: str = "") -> str:
    """Draws the assignments of an UPDATE."""
    scalars = [name for name in columns if name in SCALARS]
    names = chance.sample(scalars, chance.randint(1, min(3, len(scalars))))
    return ", ".join(f"{spelled(chance, name)} = {value(chance, columns, name, prefix)}" for name in names)


def merge(chance: Random, columns: dict[str, str]) -> str:
    """Draws a MERGE of local rows."""
    scalars = {name: kind for name, kind in columns.items() if name in SCALARS}
    key, *more = chance.sample([*scalars], chance.randint(1, 3))
    wide = {"TINYINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(5,2)": "DECIMAL(18,4)", "DATE": "TIMESTAMP"}
    of_source = {key: chance.choice((scalars[key], wide.get(scalars[key], scalars[key])))}
    of_source |= {name: scalars[name] for name in more}
    # Mostly different keys; equal ones let stock Delta refuse the statement.
    keys = [*TYPES[scalars[key]], "NULL"]
    chosen = chance.sample(keys, chance.randint(1, min(5, len(keys))))
    if chance.randint(0, 9) == 0:
        chosen.append(chosen[0])
    rows = [
        [
            f"CAST({each} AS {of_source[key]})",
            *(f"CAST({literal(chance, scalars[name])} AS {scalars[name]})" for name in more),
        ]
        for each in chosen
    ]
    values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
    matches = [f"t.{key} = s.{key}"]
    if more and chance.choice((False, True)):
        matches.append(
            chance.choice((f"t.{more[0]} = s.{more[0]}", f"s.{more[0]} <=> t.{more[0]}", f"t.{more[0]} < s.{more[0]}"))
        )
    if chance.choice((False, True)):
        matches.append(f"({condition(chance, scalars, 't.')})")
    clauses = []
    for _ in range(chance.randint(0, 3)):
        also = chance.choice(
            (
                "",
                f" AND ({test_of(chance, scalars, 't.')})",
                f" AND ({test_of(chance, {n: scalars[n] for n in of_source}, 's.')})",
                " AND s.number < 2",
            )
        )
        does = chance.choice(
            (
                "DELETE",
                f"UPDATE SET {assignments(chance, columns, 't.')}",
                f"UPDATE SET {', '.join(f'{name} = s.{name}' for name in of_source)}",
            )
        )
        clauses.append(f"WHEN MATCHED{also} THEN {does}")
        if not also:
            break
    if not clauses or chance.choice((False, True)):
        also = chance.choice(("", f" AND ({test_of(chance, {n: scalars[n] for n in of_source}, 's.')})"))
        names = [*of_source]
        clauses.append(
            f"WHEN NOT MATCHED{also} THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        )
    return (
        f"MERGE INTO {{t}} t USING (SELECT * FROM VALUES {values} AS v(number, {', '.join(of_source)})) s "
        f"ON {' AND '.join(matches)} {' '.join(clauses)}"
    )


def insert(chance: Random, columns: dict[str, str]) -> str:
    """Draws an INSERT; sometimes of values of other types."""
    names = chance.sample([*columns], len(columns))
    rows = []
    for _ in range(chance.randint(1, 3)):
        rows.append(
            "(" + ", ".join(f"CAST({literal(chance, columns[name])} AS {columns[name]})" for name in names) + ")"
        )
    if chance.randint(0, 9) == 0:
        rows = ["(" + ", ".join("'7'" for _ in names) + ")"]
    return f"INSERT INTO {{t}} ({', '.join(names)}) VALUES {', '.join(rows)}"


def case_of(seed: int, *, statements: int) -> Case:
    """Draws a table with a number of statements; a seed gives the same ones in each run.

    Each choice is uniform, so that a case of many choices is seldom an empty one.
    """
    chance = Random(seed)
    chosen = set(chance.sample([*SCALARS], chance.randint(4, 12))) | {"i", "s"}
    if chance.choice((False, True)):
        chosen |= set(COPIED)
    kinds = dict(zip(NAMES, TYPES, strict=True))
    columns = {name: kinds[name] for name in chance.sample(NAMES, len(NAMES)) if name in chosen}
    scalars = {name: kind for name, kind in columns.items() if name in SCALARS}
    has_vectors = chance.randint(0, 3) > 0
    properties = [f"'delta.enableDeletionVectors' = '{str(has_vectors).lower()}'"]
    placed = chance.choice(("", "", "partitioned", "partitioned", "clustered"))
    place = ""
    if placed == "partitioned":
        place = f"PARTITIONED BY ({chance.choice([name for name in PARTITIONS if name in columns])})"
    elif placed == "clustered":
        place = f"CLUSTER BY ({chance.choice([name for name in scalars if name not in ('bo', 'bin')])})"
    mapped = chance.choice(("none", "none", "name", "id"))
    if mapped != "none":
        properties.append(f"'delta.columnMapping.mode' = '{mapped}'")
    if chance.choice((False, True)):
        properties.append("'delta.enableChangeDataFeed' = 'true'")
    if placed != "clustered" and chance.randint(0, 5) == 0:  # Delta wants statistics of these columns
        properties.append("'delta.dataSkippingNumIndexedCols' = '2'")
    defined = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    ddl = f"({defined}) USING delta {place} TBLPROPERTIES ({', '.join(properties)})"
    count = chance.randint(8, 24)
    rows = ", ".join(
        "(" + ", ".join(f"CAST({literal(chance, kind)} AS {kind})" for kind in columns.values()) + ")"
        for _ in range(count)
    )
    before = []
    if chance.choice((False, True)):
        before.append(f"DELETE FROM {{t}} WHERE {condition(chance, scalars)}")
    if chance.randint(0, 2) == 0:
        before.append("ALTER TABLE {t} ADD CONSTRAINT small CHECK (i < 1000000 OR s = 'a')")
    if chance.randint(0, 2) == 0:
        before.append("ALTER TABLE {t} ADD CONSTRAINT named CHECK (s IS NOT NULL OR i >= 0)")
    texts = []
    # Without vectors stock Delta writes a file per task, and the metrics of the next statement count the files that it rewrites.
    for _ in range(statements if has_vectors else 1):
        kind = chance.choice(("DELETE", "UPDATE", "UPDATE", "MERGE", "MERGE", "INSERT"))
        if kind == "DELETE":
            texts.append(f"DELETE FROM {{t}} WHERE {condition(chance, scalars)}")
        elif kind == "UPDATE":
            texts.append(f"UPDATE {{t}} SET {assignments(chance, columns)} WHERE {condition(chance, scalars)}")
        elif kind == "MERGE":
            texts.append(merge(chance, columns))
        else:
            texts.append(insert(chance, columns))
    return Case(
        ddl,
        f"SELECT /*+ REPARTITION(3) */ * FROM VALUES {rows} AS v({', '.join(columns)})",
        tuple(before),
        tuple(texts),
        chance.choice(ZONES),
        chance.choice((False, True)),
        columns,
    )
