"""All data of a stream's source is read or reported: every form of `files`, and all files that Spark's source skips in silence."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import lakegate as lg
from lakegate.config import FilesSource
from lakegate.errors import Corrupt, InvalidRequest, LakegateError, Unavailable
from lakegate.ops.inspection import sources_of, verify_pipeline
from lakegate.pipeline import PipelineRun
from lakegate.spark.source_files import Listing, listing
from lakegate.spark.sources import Known, listed, partition_count, placed, read_stream
from lakegate.streams.supervisor import RunReport

DAY_S = 86_400


class Lake:
    """A folder with sources, one table, and a pipeline on it."""

    def __init__(self, session: SparkSession, root: Path) -> None:
        self.session, self.root = session, root

    def put(self, name: str, *, days_old: float = 0, **columns: Any) -> Path:
        """A Parquet file, or lines of JSON."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if ".json" in name:
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            text = "".join(json.dumps(row) + "\n" for row in rows).encode()
            path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        else:
            parquet.write_table(pa.table(columns), path)
        at = time.time() - days_old * DAY_S
        os.utime(path, (at, at))
        return path

    def make(self, *streams: dict[str, Any]) -> lg.Pipeline:
        """A pipeline of append streams, and of erase streams where `match` is given; of tables `t0`, `t1`, … by `table`."""
        made = lg.Pipeline("p", storage=str(self.root / "_lakegate"))
        tables: dict[str, Any] = {}
        for number, keys in enumerate(streams):
            name = keys.pop("table", "t")
            table = tables.get(name) or tables.setdefault(name, made.table(name, path=str(self.root / name)))
            (table.erase if "match" in keys else table.append)(name=keys.pop("name", f"S{number}"), **keys)
        return made

    def run(self, *streams: dict[str, Any]) -> dict[str, RunReport]:
        self.last = self.make(*[dict(keys) for keys in streams])
        return self.last.run(until_idle=True, spark=self.session)

    def rows(self, table: str = "t", *columns: str) -> list[tuple[Any, ...]]:
        frame = self.session.read.format("delta").load(str(self.root / table))
        return sorted((tuple(row) for row in frame.select(*(columns or frame.columns)).collect()), key=repr)

    def built(self) -> Any:
        return self.last.build(base_dir=str(self.root))


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> Lake:
    return Lake(session, tmp_path)


@pytest.mark.slow
def test_a_file_of_any_age_is_read(lake: Lake) -> None:
    """Copies that keep their times come with times of long ago: rows are brought, and an erasure is carried out."""
    streams = {"source": lg.files("in")}, {"source": lg.files("del"), "match": {"id": "id"}}
    streams = tuple(
        {**one, "source": lg.files(str(lake.root / at))} for one, at in zip(streams, ("in", "del"), strict=True)
    )
    lake.put("in/1.parquet", id=["a", "b", "c"])
    lake.put("del/1.parquet", id=["a"])
    lake.run(*streams)
    lake.put("in/2.parquet", days_old=9, id=["late", "b"])
    lake.put("in/3.parquet", days_old=9000, id=["older"])
    lake.put("del/2.parquet", days_old=9, id=["b"])
    reports = lake.run(*streams)
    assert lake.rows() == [("c",), ("late",), ("older",)]
    assert all(report.passed_over == () for report in reports.values())


@pytest.mark.every_case
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_micro_batch_of_many_small_files_has_one_partition(lake: Lake, format: str) -> None:
    """Spark reads each of them as a partition, on many cores or with this setting, and would write each as a file."""
    lake.session.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    for number in range(12):
        lake.put(f"in/{number}.{format}", id=[f"a{number}", "b"])
    source = FilesSource(path=f"{lake.root}/in", format=format, schema="id STRING")
    seen = []

    def note(batch: DataFrame, _: int) -> None:
        seen.append((partition_count(batch), partition_count(placed(batch, source)), placed(batch, source).count()))

    stream = read_stream(lake.session, source, Known(), max_rows_per_batch=1000).writeStream.foreachBatch(note)
    query = stream.option("checkpointLocation", f"{lake.root}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    ((before, partitions, count),) = seen
    assert before > 1
    assert (partitions, count) == (1, 24)


@pytest.mark.matrix
def test_every_form_of_a_path_is_read(lake: Lake) -> None:
    """One file, a folder, a glob, a slash at the end, names with special characters, folders in folders, JSON and gzip."""
    names = ["a b", "p%20q", "x[1]", "c{d,e}", "h#i", "plus+", "é", "s*r", "q?"]
    for name in names:
        lake.put(f"odd/{name}/f.parquet", id=[name])
        lake.put(f"flat/{name}.parquet", id=[name])
    lake.put("x1/f.parquet", id=["not meant"])
    lake.put("x[1]/f.parquet", id=["meant"])
    lake.put("one/a.parquet", id=["one"])
    lake.put("one/b.parquet", id=["two"])
    lake.put("j/a.json", id=["plain"])
    lake.put("j/b.json.gz", id=["packed"])
    (lake.root / "none").mkdir()
    wanted: dict[str, tuple[Any, list[str]]] = {
        "folder": (lg.files(f"{lake.root}/flat"), names),
        "slash": (lg.files(f"{lake.root}/one/"), ["one", "two"]),
        "nested": (lg.files(f"{lake.root}/odd"), names),
        "file": (lg.files(f"{lake.root}/one/a.parquet"), ["one"]),
        "uri": (lg.files(f"file:{lake.root}/one/b.parquet"), ["two"]),
        "glob": (lg.files(f"{lake.root}/one/[ab].par*"), ["one", "two"]),
        "braces": (lg.files(f"{lake.root}/{{one,none}}/*"), ["one", "two"]),
        "literal": (lg.files(f"{lake.root}/x[1]"), ["meant"]),
        "percent": (lg.files(f"{lake.root}/flat/p%20q.parquet"), ["p%20q"]),
        "odd_file": (lg.files(f"{lake.root}/flat/c{{d,e}}.parquet"), ["c{d,e}"]),
        "json": (lg.files_json(f"{lake.root}/j", schema="id STRING"), ["plain", "packed"]),
        "gz": (lg.files_json(f"{lake.root}/j/b.json.gz", schema="id STRING"), ["packed"]),
        "empty": (lg.files(f"{lake.root}/none", schema="id STRING"), []),
    }
    reports = lake.run(*({"name": name, "table": name, "source": source} for name, (source, _) in wanted.items()))
    for name, (_, ids) in wanted.items():
        if ids:
            assert lake.rows(name) == sorted(((one,) for one in ids), key=repr), name
        assert reports[name].passed_over == (), name
    assert sources_of(lake.built()) == []


@pytest.mark.matrix
def test_partition_folders_give_a_column_and_lose_no_file_next_to_them(lake: Lake) -> None:
    """Spark drops files next to such folders, and changes the order of columns when the first folder comes late."""
    source = lg.files(f"{lake.root}/in", schema="dt DATE, id STRING, h STRING, p DECIMAL(2, 1)")
    typed = lg.files(f"{lake.root}/typed")
    (lake.root / "in").mkdir()
    lake.put("typed/month=01/f.parquet", id=["a"])
    streams = {"name": "In", "source": source}, {"name": "Typed", "table": "typed_t", "source": typed}
    lake.run(*streams)
    lake.put("in/plain.parquet", id=["plain"])
    lake.put("in/dt=2026-01-01/f.parquet", id=["part"])
    lake.put("in/dt=__HIVE_DEFAULT_PARTITION__/h=a%3Ab c/f.parquet", id=["null"])
    lake.put("typed/month=02/f.parquet", id=["b"])
    lake.run(*streams)
    got = [(str(dt) if dt else None, key, h) for dt, key, h in lake.rows("t", "dt", "id", "h")]
    assert sorted(got, key=repr) == [("2026-01-01", "part", None), (None, "null", "a:b c"), (None, "plain", None)]
    assert lake.rows("typed_t") == [("a", 1), ("b", 2)]
    for folder in ("dt=2026-01-01 23:59", "p=1.26", "p=1.5"):
        lake.put(f"in/{folder}/f.parquet", id=[folder])
    lake.run({**streams[0], "on_bad_record": "dead_letter"})
    assert [row[0] for row in lake.rows("t", "id") if "=" in row[0]] == ["p=1.5"]
    letters = lake.session.read.format("delta").load(f"{lake.root}/_lakegate/dead_letters/In")
    assert {row.reason for row in letters.collect()} == {
        f"does not fit: {what} in the name of its folder" for what in ("dt is not date", "p is not decimal(2,1)")
    }


@pytest.mark.matrix
def test_a_column_that_comes_later_is_added_or_named(lake: Lake) -> None:
    """A column, and a field of a struct, of any file: with `add` in the table; with `ignore`, or a stated schema, reported."""
    add = {"name": "Add", "source": lg.files(f"{lake.root}/in"), "on_new_column": "add"}
    ignore = {"name": "Ignore", "table": "i", "source": lg.files(f"{lake.root}/in")}
    stated = {
        "name": "Stated",
        "table": "s",
        "source": lg.files(f"{lake.root}/in", schema="id STRING, at STRUCT<x: INT>"),
    }
    at = pa.struct([("x", pa.int32())])
    lake.put("in/1.parquet", id=["a"], at=pa.array([{"x": 1}], at))
    lake.run(add, ignore, stated)
    wider = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    lake.put("in/2.parquet", id=["b"], city=["Oslo"], at=pa.array([{"x": 2, "y": 3}], wider))
    lake.put("in/3.parquet", id=["c"], at=pa.array([{"x": 4}], at))
    shown: list[str] = []
    run = PipelineRun(
        lake.make(dict(add), dict(ignore), dict(stated)).build(base_dir=str(lake.root)),
        spark=lake.session,
        watchers=[Notices(shown)],
    )
    run.run("until_idle")
    assert lake.rows("t", "id", "city", "at.x", "at.y") == [
        ("a", None, 1, None),
        ("b", "Oslo", 2, 3),
        ("c", None, 4, None),
    ]
    assert lake.rows("i", "id", "at.x") == lake.rows("s", "id", "at.x") == [("a", 1), ("b", 2), ("c", 4)]
    for job in ("Ignore", "Stated"):
        assert any(line.startswith(f"{job}:") and "city" in line for line in shown), (job, shown)
        assert any(line.startswith(f"{job}:") and "at.y" in line for line in shown), (job, shown)


class Notices:
    """Collects the notices of streams."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def emit(self, event: Any) -> None:
        if type(event).__name__ == "Noticed":
            self.lines.append(f"{event.job}: {event.text}")


def test_files_that_are_passed_over_are_named_in_the_run_in_status_and_in_verify(lake: Lake) -> None:
    """Rewritten under its name, hidden, without a byte; a file that is rewritten fails `verify`."""
    streams = [{"name": "In", "source": lg.files(f"{lake.root}/in")}]
    for name in ("1", "2", "3", "_hidden"):
        lake.put(f"in/{name}.parquet", days_old=1, id=[name])
    (lake.root / "in" / "zero.parquet").touch()
    lake.run(*streams)
    lake.put("in/1.parquet", id=["new"])
    at_ns = (lake.root / "in/3.parquet").stat().st_mtime_ns
    os.utime(lake.put("in/3.parquet", id=["longer than it was"]), ns=(at_ns, at_ns))
    (report,) = lake.run(*streams).values()
    assert lake.rows() == [("1",), ("2",), ("3",)]
    (status,) = sources_of(lake.built())
    found = verify_pipeline(lake.built())
    for said in (report.passed_over, tuple(map(str, status.not_read))):
        names = ("1.parquet", "3.parquet", "_hidden", "zero")
        assert [any(name in line for line in said) for name in names] == [True] * 4, said
    assert [one.where for one in found.violations] == ["In"]
    assert "1.parquet" in found.violations[0].what
    assert any("_hidden.parquet" in line for line in found.unchecked)


@pytest.fixture
def mounted(lake: Lake) -> str:
    """The lake's folder as Hadoop reads it on another file system."""
    cluster = f"c{abs(hash(lake.root))}"
    context: Any = lake.session.sparkContext._jsc
    context.hadoopConfiguration().set(f"fs.viewfs.mounttable.{cluster}.link./lake", f"file://{lake.root}")
    return f"viewfs://{cluster}/lake"


def test_a_listing_of_another_file_system_is_that_of_the_disk(lake: Lake, mounted: str) -> None:
    """Of a folder, a file and a glob: the same files, those that are hidden, and Delta tables in it, below it and above."""
    names = ["a", "a b%20c%é+#", "day=1/_b=2/c", "_x/y=1/z", ".z", "d._COPYING_", "_SUCCESS", "f/_spark_metadata/0"]
    tables = ["t/_delta_log/0", "t/_delta_log/_sidecars/1", "t/day=1/h=2/p", "_t/_delta_log/0"]
    for name in (*names, *tables):
        path = lake.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (lake.root / "in/_empty").touch()

    def shown(found: Listing, root: str) -> list[object]:
        inner = [{path.removeprefix(root) for path in paths} for paths in (found.files, found.hidden, found.tables)]
        states = {path.removeprefix(root): (one.modified_ms, one.size_bytes) for path, one in found.files.items()}
        return [found.base.removeprefix(root).rstrip("/"), *inner, states]

    for path in (
        "in",
        "in/",
        "in/*",
        "in/{a,day=*}",
        "in/t/*",
        "in/t/day=1",
        "in/t/day=1/*/p",
        "in/[_.]*",
        "in/f/*",
        "in/none*",
    ):
        here, far = listing(f"{lake.root}/{path}"), listed(lake.session, f"{mounted}/{path}")
        assert shown(far, mounted) == shown(here, str(lake.root)), path
    assert list(listed(lake.session, f"{mounted}/in/a").files) == [f"{mounted}/in/a"]


@pytest.mark.matrix
def test_files_on_another_file_system_are_compared_as_well(lake: Lake, mounted: str) -> None:
    """Source, checkpoint or both: what Spark passes over is named in the run and in `verify`; what it reads again is refused."""
    places = {"Source": (mounted, str(lake.root)), "Checkpoint": (str(lake.root), mounted), "Both": (mounted, mounted)}

    def stream(name: str, path: str | None = None, **keys: Any) -> dict[str, Any]:
        source, checkpoint = places[name]
        files = lg.files(f"{source}/{path or name}", schema="id STRING")
        return {"name": name, "table": f"t{name}", "source": files, "checkpoint": f"{checkpoint}/cp/{name}", **keys}

    streams = [stream(name) for name in places]
    for name in places:
        for file in ("1", "a b%20c%", "_hidden", "_below/1"):
            lake.put(f"{name}/{file}.parquet", days_old=1, id=[file])
        for file in ("zero.parquet", "_SUCCESS"):
            (lake.root / name / file).touch()
    for report in lake.run(*streams).values():
        hidden, empty = report.passed_over
        assert "2 files of the source: hidden" in hidden
        assert "zero.parquet" in empty
    for name in places:
        lake.put(f"{name}/1.parquet", id=["new"])
    reports = lake.run(*streams)
    found = verify_pipeline(lake.built())
    compared = sources_of(lake.built(), spark=lake.session)
    assert [one.where for one in found.violations] == list(places)
    for (name, report), status in zip(reports.items(), compared, strict=True):
        assert lake.rows(f"t{name}") == [("1",), ("a b%20c%",)]
        assert "1 file of the source: rewritten" in report.passed_over[0]
        assert f"{name}/1.parquet" in report.passed_over[0]
        assert report.passed_over == tuple(map(str, status.not_read))
        assert any(line.startswith(f"{name}: 2 files of the source: hidden") for line in found.unchecked)
    assert [one.note is not None and "verify" in one.note for one in sources_of(lake.built())] == [True] * 3

    lake.put("elsewhere/1.parquet", id=["other"])
    for name in places:
        with pytest.raises(Corrupt, match="is of another source"):
            lake.run(stream(name, "elsewhere"))
        with pytest.raises(InvalidRequest, match="holds a Delta table"):
            lake.run(stream(name, "tBoth"))
        (lake.root / name / "done").mkdir()
        moved = (lake.root / name / "a b%20c%.parquet").rename(lake.root / name / "done/a b%20c%.parquet")
        with pytest.raises(InvalidRequest, match="was moved within the source") as refused:
            lake.run(stream(name))
        assert "done/a b%20c%.parquet" in str(refused.value)
        moved.unlink()
        late = lake.put(f"{name}/late.parquet", id=["late"])
        with pytest.raises(InvalidRequest, match="cannot be computed"):
            lake.run(stream(name, columns={"id": "cast(raise_error('no luck') AS STRING)"}))
        late.unlink()
        with pytest.raises(Corrupt, match=r"has lost .* of the 1 files"):
            lake.run(stream(name))
        late.touch()
        lake.run(stream(name))
        with pytest.raises(Unavailable, match="does not exist"):
            lake.run(stream(name, "nowhere"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda lake: (lake.root / "in/bad.parquet").write_bytes(b"no Parquet"),
            ["no whole Parquet file", "bad.parquet"],
        ),
        (
            lambda lake: lake.put("in/bad.parquet", id=["b"], at=pa.array([1], pa.timestamp("ns"))),
            ["nanoseconds", "bad.parquet", "column=at"],
        ),
        (
            lambda lake: (lake.put("in/bad.parquet", id=[1]), lake.put("in/c.parquet", id=["c"])),
            ["two types in one column", "column=id", "bad.parquet"],
        ),
        (
            lambda lake: lake.put("in/bad.parquet", id=[1]),
            ["two types in one column", "column=id", "file=", "bad.parquet"],
        ),
        (lambda lake: _tear(lake.put("in/bad.parquet", id=["b" * 1000])), ["damaged", "bad.parquet"]),
        (lambda lake: lake.put("stated/bad.parquet", id=[7]), ["another type", "stated/bad.parquet", "column=id"]),
        (
            lambda lake: (lake.root / "gz/bad.json.gz").write_bytes(gzip.compress(b'{"id": "b"}\n' * 9999)[:-20]),
            ["damaged", "bad.json.gz"],
        ),
    ],
    ids=["damaged", "nanoseconds", "two_types", "other_type", "torn", "stated", "gzip"],
)
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_tried_again(
    lake: Lake, spoil: Callable[[Lake], object], said: list[str]
) -> None:
    """One message with the file, the column and the advice; exit 4; an empty file instead of it lets the stream continue.

    A file is no record: also where bad records are set aside, the stream stops.
    """
    streams = [
        {"name": "In", "source": lg.files(f"{lake.root}/in")},
        {"name": "Stated", "source": lg.files(f"{lake.root}/stated", schema="id STRING"), "table": "u"},
        {"name": "Gz", "source": lg.files_json(f"{lake.root}/gz", schema="id STRING"), "table": "v"},
    ]
    streams = [{**one, "on_bad_record": "dead_letter"} for one in streams]
    lake.put("in/1.parquet", days_old=1, id=["a"])
    for name in ("stated", "gz"):
        (lake.root / name).mkdir()
    lake.run(streams[0])
    spoil(lake)
    streams = [one for one in streams if any(Path(str(one["source"]["files"])).glob("bad*"))]
    with pytest.raises(LakegateError) as refused:
        lake.run(*streams)
    assert refused.value.exit_code == 4, refused.value
    assert all(word in str(refused.value) for word in said), refused.value
    assert refused.value.advice
    next(Path(str(streams[0]["source"]["files"])).glob("bad*")).write_bytes(b"")
    lake.run(*streams)
    assert streams[0].get("table") is not None or ("a",) in lake.rows("t", "id")


def _tear(path: Path) -> None:
    """A file whose footer is whole, and whose pages are not."""
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)


@pytest.mark.parametrize("spoil", ["empty", "other", "cut", "files", "path"])
def test_a_checkpoint_that_does_not_fit_is_one_clear_error(lake: Lake, spoil: str) -> None:
    """Offsets that are empty, cut off or of Kafka, a damaged log of files, another folder: exit 4 and what to do."""
    source = lg.files(f"{lake.root}/in")
    lake.put("in/1.parquet", id=["1"])
    lake.run({"name": "In", "source": source})
    checkpoint = lake.root / "_lakegate/checkpoints/In"
    lake.put("in/2.parquet", id=["2"])
    offsets = checkpoint / "offsets/0"
    texts = {
        "empty": "",
        "other": offsets.read_text().rpartition("\n")[0] + '\n{"topic":{"0":12}}',
        "cut": offsets.read_text()[:-5],
    }
    for crc in checkpoint.rglob(".*.crc"):
        crc.unlink()
    if spoil in texts:
        offsets.write_text(texts[spoil])
    elif spoil == "files":
        (checkpoint / "sources/0/0").write_text("v1\n{")
    else:
        lake.put("elsewhere/1.parquet", id=["1"])
        source = lg.files(f"{lake.root}/elsewhere")
    with pytest.raises(Corrupt) as refused:
        lake.run({"name": "In", "source": source})
    assert refused.value.exit_code == 4
    assert "checkpoint" in str(refused.value)
    assert "--new-checkpoint" in refused.value.advice
    assert "Exception" not in str(refused.value)
    assert lake.rows() == [("1",)]


def test_a_file_that_is_gone_before_it_was_read_stops_the_stream(lake: Lake) -> None:
    """Spark leaves out a planned file that is missing; the stream stops until the file, or an empty one instead, exists."""
    stream = {"name": "In", "source": lg.files(f"{lake.root}/in")}
    path = lake.put("in/1.parquet", id=["a"])
    with pytest.raises(InvalidRequest, match="cannot be computed"):
        lake.run({**stream, "columns": {"n": "cast(raise_error('no luck') AS INT)"}})
    path.unlink()
    lake.put("in/2.parquet", id=["b"])
    good = {**stream, "columns": {"n": "1"}}
    with pytest.raises(Corrupt, match="has lost 1 of the 1 files"):
        lake.run(good)
    path.touch()
    lake.run(good)
    assert lake.rows("t", "id") == [("b",)]


def test_a_delta_table_is_no_source_of_files(lake: Lake) -> None:
    """Its files hold deleted rows."""
    lake.put("in/1.parquet", id=["a"])
    lake.run({"source": lg.files(f"{lake.root}/in")})
    with pytest.raises(InvalidRequest, match="holds a Delta table"):
        lake.run({"name": "Other", "table": "u", "source": lg.files(f"{lake.root}/t")})


def test_what_a_line_of_json_holds_is_read_or_refused_or_named(lake: Lake) -> None:
    """Spark drops a second value in a line, all of an array but its first element in Kafka, and fields that the schema lacks."""
    lines = [
        '{"id": "a", "n": {"x": 1}}',
        "",
        '{"id": "b"}{"id": "lost"}',
        '{"id": "c"} and more',
        '[{"id": "d"}, {"id": "lost"}]',
        '{"id": "e", "id": "lost"}',
        "null",
        '"text"',
        "{'id': 'f', 'city': 'Oslo', 'n': {'x': 2, 'y': 3}, 'tags': {'any': 1}, 'list': [{'k': 1, 'l': 2}]}",
        '{"ID": "lost", "n": null}',
    ]
    path = lake.root / "in/a.json"
    path.parent.mkdir()
    path.write_text("\ufeff" + "\n".join(lines))
    schema = "id VARCHAR(9), n STRUCT<x: INT>, tags MAP<STRING, INT>, list ARRAY<STRUCT<k: INT>>"
    source = lg.files_json(f"{lake.root}/in", schema=schema)
    (report,) = lake.run({"name": "In", "source": source, "on_bad_record": "dead_letter"}).values()
    assert lake.rows("t", "id", "n.x") == [("a", 1), ("f", 2), (None, None)]
    letters = lake.session.read.format("delta").load(str(lake.root / "_lakegate/dead_letters/In"))
    assert sorted((row.raw[:12], row.reason) for row in letters.collect()) == [
        ('"text"', "is not a JSON record of the stated schema"),
        ('[{"id": "d"}', "is a JSON array, and not one record"),
        ("null", "is not a JSON record of the stated schema"),
        ('{"id": "b"}{', "has more behind its first JSON value"),
        ('{"id": "c"} ', "has more behind its first JSON value"),
        ('{"id": "e", ', "has a field twice"),
    ]
    named = [line.rpartition(": ")[2] for line in report.passed_over]
    assert named == ["ID", "city", "list.l", "n.y"]


@pytest.mark.matrix
def test_files_of_json_that_are_not_lines_are_read_record_by_record(lake: Lake) -> None:
    """With `multiLine` Spark reads the first value of a file and drops the others; a file that cannot be decoded is named."""
    lake.put("many/1.parquet").unlink()
    (lake.root / "many/two.json").write_text('{"id": "a",\n "n": 1}\n{"id": "b", "other": 1}')
    (lake.root / "many/list.json").write_text('[{"id": "c"},\n{"id": "d", "id": "lost"}, 7, {"id": "e"}]')
    (lake.root / "many/torn.json.gz").write_bytes(gzip.compress(b'[{"id": "f"}, {"id": "lost'))
    (lake.root / "many/torn2.json").write_text('[{"id": "g"}')
    lake.put("latin/1.parquet").unlink()
    (lake.root / "latin/a.json").write_bytes('{"id": "ä"}\n\n{"id": "ö", "n": "x"}'.encode("latin-1"))
    (lake.root / "plain").mkdir()
    (lake.root / "plain/a.json").write_bytes(b'{"id": "a"}\n{"id": "\xe4"}\n')
    options = {"many": {"multiLine": "true"}, "latin": {"encoding": "ISO-8859-1", "lineSep": "\n"}, "plain": {}}
    streams = [
        {
            "name": name,
            "table": f"{name}_t",
            "source": lg.files(f"{lake.root}/{name}", format="json", schema="id STRING, n INT", options=own),
            "on_bad_record": "dead_letter",
        }
        for name, own in options.items()
    ]
    reports = lake.run(*streams)
    assert {name: [row[0] for row in lake.rows(f"{name}_t", "id")] for name in options} == {
        "many": ["a", "b", "c", "e", "f", "g"],
        "latin": ["ä"],
        "plain": ["a"],
    }
    letters = {
        name: sorted(
            (row.raw, row.reason)
            for row in lake.session.read.format("delta").load(f"{lake.root}/_lakegate/dead_letters/{name}").collect()
        )
        for name in options
    }
    no_record = "is not a JSON record of the stated schema"
    assert letters["many"] == [
        (', {"id": "lost', no_record),
        ("7", no_record),
        ("[", "is a JSON array, and not one record"),  # it ends within it
        ('{"id": "d", "id": "lost"}', "has a field twice"),
    ]
    assert letters["latin"] == [('{"id": "ö", "n": "x"}', no_record)]
    assert [reason for _, reason in letters["plain"]] == ["is not in UTF-8"]
    assert [line.rpartition(": ")[2] for line in reports["many"].passed_over] == ["other"]


def test_a_folder_that_a_spark_query_writes_is_read_as_its_log_says(lake: Lake) -> None:
    """What a query that failed has left there is no part of its output, and may be half a file: it is named, and not read."""
    lake.put("from/1.json", id=["a", "b"])
    rows = lake.session.readStream.schema("id STRING").json(f"{lake.root}/from")
    query = rows.writeStream.option("checkpointLocation", f"{lake.root}/cp").trigger(availableNow=True)
    query.format("parquet").start(f"{lake.root}/in").awaitTermination()
    lake.put("in/left.parquet", id=["left"])
    (lake.root / "in/half.parquet").write_bytes(b"PAR1")
    (report,) = lake.run({"name": "In", "source": lg.files(f"{lake.root}/in")}).values()
    assert lake.rows() == [("a",), ("b",)]
    (said,) = report.passed_over
    assert "2 files of the source: not in the log of the Spark query" in said
    assert "half.parquet" in said
    assert "left.parquet" in said
