"""Files of a source that are not read are found by a listing and Spark's log of files, without Spark."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lakegate.errors import Corrupt
from lakegate.spark.source_files import (
    Listing,
    PassedOver,
    TakenFiles,
    base_of,
    far_listing,
    globbed,
    is_glob,
    listing,
    moved,
    passed_over,
    spark_path,
)
from lakegate.spark.source_schema import Footers, folder_columns, folder_values


def write(root: Path, name: str, text: str = "x") -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def log_file(checkpoint: Path, name: str, *entries: tuple[str, int, int]) -> None:
    """A file of Spark's log: path, time of modification in ms, batch."""
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "timestamp": at, "batchId": batch}) for path, at, batch in entries]
    (folder / name).write_text("\n".join(["v1", *lines]))


def reasons(found: list[PassedOver]) -> dict[str, list[str]]:
    return {one.reason: [os.path.basename(path) for path in one.files] for one in found}


def test_every_file_that_is_not_read_as_it_is_now_is_named_by_its_reason(tmp_path: Path) -> None:
    """Rewritten, hidden by name or folder, a link that leads nowhere, without a byte, not taken; markers of jobs are not named."""
    source = tmp_path / "in"
    for name in ("read", "rewritten", "late"):
        write(source, name)
    write(source, "longer", "more of the same time")
    for name in ("_hidden", ".hidden", "copy._COPYING_", "_temporary/0/part", "_metadata2", "_SUCCESS", ".read.crc"):
        write(source, name)
    write(source, "empty", "")
    (source / "link").symlink_to(source / "nowhere")
    there = listing(str(source))
    taken = TakenFiles(tmp_path / "checkpoint")
    for name in ("read", "rewritten", "longer", "empty"):
        taken.files[str(source / name)] = there.files[str(source / name)].modified_ms
    taken.files[str(source / "rewritten")] -= 1
    taken.files[str(source / "gone")] = 1
    taken.sizes = {str(source / "longer"): 1, str(source / "read"): 1}
    found = passed_over(there, taken, is_drained=True)
    assert reasons(found) == {
        "rewritten": ["longer", "rewritten"],
        "unread": ["late"],
        "hidden": [".hidden", "_hidden", "_metadata2", "part", "copy._COPYING_"],
        "link": ["link"],
        "empty": ["empty"],
    }
    assert "unread" not in reasons(passed_over(there, taken, is_drained=False))
    assert str(next(one for one in found if one.reason == "hidden")).startswith("5 files of the source: hidden")


def test_a_name_cannot_move_the_cursor_of_a_terminal(tmp_path: Path) -> None:
    """Control characters of a file's name are not printed."""
    write(tmp_path / "in", "_a\x1b[2Jb")
    (said,) = passed_over(listing(str(tmp_path / "in")), None, is_drained=True)
    assert "\x1b" not in str(said)
    assert "_a?[2Jb" in str(said)


def test_what_was_taken_is_read_from_a_compacted_log_and_what_was_added_since(tmp_path: Path) -> None:
    """Names are decoded; a file that is compacted between two looks changes nothing."""
    log_file(tmp_path, "0", ("file:///in/a%20b%25.json", 10, 0))
    taken = TakenFiles(tmp_path).refresh()
    assert taken.files == {"/in/a b%.json": 10}
    log_file(tmp_path, "1.compact", ("file:///in/a%20b%25.json", 10, 0), ("file:///in/c", 20, 1))
    log_file(tmp_path, "2", ("file:///in/d", 30, 2))
    assert taken.refresh().files == {"/in/a b%.json": 10, "/in/c": 20, "/in/d": 30}
    assert TakenFiles(tmp_path).refresh().files == taken.files
    (tmp_path / "offsets").mkdir()
    for batch, offset in enumerate((1, 2)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{offset}}}')
    assert taken.of_batch(0) == ["/in/a b%.json", "/in/c"]
    assert taken.of_batch(1) == ["/in/d"]
    taken.refuse_lost()
    (tmp_path / "offsets/2").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(Corrupt, match="ends before its offsets"):
        taken.refuse_lost()
    taken.note_sizes({"/in/c": 7, "/in/d": 8})
    taken.note_sizes({"/in/d": 8})
    with (tmp_path / "lakegate/sizes.jsonl").open("a") as file:
        file.write('{"/in/e"')
    assert TakenFiles(tmp_path).refresh().sizes == {"/in/c": 7, "/in/d": 8}
    assert taken.newest(2) == ["/in/d", "/in/c"]


@pytest.mark.parametrize("text", ["", "v1\n{", "v1\n[]", 'v1\n{"path": 3}', "v2\n", "v1\n" + "[" * 100_000])
def test_a_damaged_log_of_files_is_named(tmp_path: Path, text: str) -> None:
    """Any remains of a power cut raise `Corrupt`, with the file and the advice."""
    log_file(tmp_path, "0")
    (tmp_path / "sources" / "0" / "0").write_text(text)
    with pytest.raises(Corrupt, match="log of files is damaged") as refused:
        TakenFiles(tmp_path).refresh()
    assert "--new-checkpoint" in refused.value.advice


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.json", ["a.json", "b.json"]),
        ("{a,c}*", ["a.json", "c[1]"]),
        ("[!a].json", ["b.json"]),
        ("[^a].json", ["b.json"]),
        ("?.json", ["a.json", "b.json"]),
        ("c\\[1\\]", ["c[1]"]),
        ("{a,{b,x}}.json", ["a.json", "b.json"]),
        ("*/z", ["z"]),
    ],
)
def test_globs_are_those_of_hadoop(tmp_path: Path, pattern: str, names: list[str]) -> None:
    """Braces, negated characters and escapes are read as Spark reads them."""
    for name in ("a.json", "b.json", "c[1]", "d/z"):
        write(tmp_path, name)
    assert [os.path.basename(path) for path in globbed(f"{tmp_path}/{pattern}")] == names


def test_a_path_that_is_there_as_it_is_written_is_no_glob(tmp_path: Path) -> None:
    """A folder or file with special characters is read, and not what they would match."""
    for name in ("in[1]/x", "in1/x", "a{b,c}.json", "one.json"):
        write(tmp_path, name)
    assert not is_glob(f"{tmp_path}/in[1]")
    assert spark_path(f"{tmp_path}/in[1]") == f"{tmp_path}/in\\[1\\]"
    assert list(listing(f"{tmp_path}/in[1]").files) == [f"{tmp_path}/in[1]/x"]
    assert spark_path(f"file://{tmp_path}/one.json") == f"{tmp_path}/[o]ne.json"
    assert is_glob(f"{tmp_path}/in[2]")
    assert globbed(spark_path(f"{tmp_path}/a{{b,c}}.json")) == [f"{tmp_path}/a{{b,c}}.json"]
    assert globbed(spark_path(f"{tmp_path}/one.json")) == [f"{tmp_path}/one.json"]


def test_folders_give_columns_below_the_source_alone(tmp_path: Path) -> None:
    """`name=value` above the source, or in a file's own name, is no column; values have one type together."""
    base = base_of("/lake/env=prod/in/*/x")
    assert base == "/lake/env=prod/in"
    assert folder_values("/lake/env=prod/in/dt=2026-01-01/h=a%3Ab/k=v.json", base) == {"dt": "2026-01-01", "h": "a:b"}
    kinds = folder_columns([f"{base}/dt=2026-01-0{n}/n={n}/c=0{n}x/f" for n in (1, 2)], base)
    assert {name: kind.simpleString() for name, kind in kinds.items()} == {"dt": "date", "n": "int", "c": "string"}
    assert folder_columns([f"{base}/dt=2026-02-30/f"], base)["dt"].simpleString() == "string"


def test_a_folder_of_many_files_is_compared_in_one_pass(tmp_path: Path) -> None:
    """One pass over the folder, one look in a mapping for each file."""
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        for other in range(1000):
            os.close(os.open(folder / f"{other}.json", os.O_CREAT | os.O_WRONLY))
    began = time.perf_counter()
    there = listing(str(tmp_path))
    taken = TakenFiles(tmp_path)
    taken.files = {path: state.modified_ms for path, state in there.files.items()}
    found = passed_over(there, taken, is_drained=True)
    assert len(there.files) == 20_000
    assert reasons(found).keys() == {"empty"}
    assert time.perf_counter() - began < 10


def test_a_file_that_was_moved_within_the_source_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """As others move what was read into a folder `done`; one of another time or size is new."""
    write(tmp_path, "in/a")
    taken = TakenFiles(tmp_path)
    taken.files = {path: state.modified_ms for path, state in listing(str(tmp_path / "in")).files.items()}
    assert moved(listing(str(tmp_path / "in")), taken) is None
    (tmp_path / "in/done").mkdir()
    (tmp_path / "in/a").rename(tmp_path / "in/done/a")
    there = listing(str(tmp_path / "in"))
    assert moved(there, taken) == (str(tmp_path / "in/a"), str(tmp_path / "in/done/a"))
    taken.sizes = {str(tmp_path / "in/a"): 99}
    assert moved(there, taken) is None


def test_a_folder_that_a_spark_query_writes_has_the_files_of_its_log(tmp_path: Path) -> None:
    """Of the newest compacted log, and what was added since; by a glob, and from a folder above, all files are read."""
    paths = {name: write(tmp_path, f"in/{name}") for name in ("a", "b", "c d", "left")}
    log = tmp_path / "in/_spark_metadata"
    log.mkdir()
    for name, logged in {"0": ["left"], "1.compact": ["a"], "2": ["b"], "3": ["c d"]}.items():
        entries = [json.dumps({"path": "file://" + paths[one].replace(" ", "%20"), "action": "add"}) for one in logged]
        (log / name).write_text("\n".join(["v1", *entries]))
    found = listing(f"{tmp_path}/in/")
    assert set(found.files) == {paths["a"], paths["b"], paths["c d"]}
    assert reasons(passed_over(found, None, is_drained=True)) == {"unlogged": ["left"]}
    for path in (f"{tmp_path}/in/*", str(tmp_path)):
        assert set(listing(path).files) == set(paths.values())
    (log / "3").write_text("v1\n{")
    with pytest.raises(Corrupt, match="damaged"):
        listing(f"{tmp_path}/in")


def test_s3_tells_a_time_in_seconds_or_in_milliseconds(tmp_path: Path) -> None:
    """The same time is no other one; another second is, and on other file systems a millisecond."""
    taken = TakenFiles(tmp_path)
    taken.files = {f"{root}/{name}": 7_000 for root in ("s3a://lake", "hdfs://lake") for name in ("same", "other")}
    text = "{0}\n0 -1 {0}\n7004 1 {0}/same\n8000 1 {0}/other\n"
    for root, names in {"s3a://lake": ["other"], "hdfs://lake": ["other", "same"]}.items():
        assert reasons(passed_over(far_listing(text.format(root)), taken, is_drained=True)) == {"rewritten": names}


def test_a_delta_table_below_a_source_is_found(tmp_path: Path) -> None:
    """At any depth, unless it is hidden."""
    write(tmp_path, "in/_hidden/_delta_log/0.json")
    assert listing(str(tmp_path / "in")).tables == ()
    write(tmp_path, "in/below/t/_delta_log/0.json")
    table = str(tmp_path / "in/below/t")
    assert listing(str(tmp_path / "in")).tables == (table,)
    write(tmp_path, "in/below/t/day=1/h=2/part.parquet")
    for path in (f"{table}/*", f"{table}/day=1/*/*.parquet", f"{table}/day=1", f"{table}/day=1/h=2/part.parquet"):
        assert listing(path).tables == (table,), path


def test_a_file_that_was_read_may_be_damaged_later(tmp_path: Path) -> None:
    """It is named as rewritten, and stops nothing; one that waits stops the stream."""
    write(tmp_path, "in/a", "no Parquet")
    files = listing(str(tmp_path / "in")).files
    Footers().read({}, files)
    with pytest.raises(Corrupt, match="no whole Parquet file"):
        Footers().read(files, {})


def test_nothing_is_found_where_nothing_is() -> None:
    """An empty source, and one of which it is not known what was taken."""
    assert passed_over(Listing(), TakenFiles(Path("none")), is_drained=True) == []
    assert passed_over(Listing(), None, is_drained=True) == []
