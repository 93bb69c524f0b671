"""Files of changes: their formats; a file that comes late, is deleted, or is rewritten is reported, not ignored."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakegate.errors import CheckpointMismatch, Corrupt, InvalidRequest
from lakegate.syncs.plan.change import Change
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from lakegate.syncs.sources.files import ChangeFiles
from lakegate.syncs.sources.lines import RECORD_BYTES_MAX
from tests.syncs.envelopes import postgres

Groups = list[tuple[Change, ...]]


def line(seq: int, id: int = 0, *, tx: Any = None, table: str = "t", op: str = "c", **more: Any) -> dict[str, Any]:
    """A change."""
    return {"seq": seq, "tx": tx, "table": table, "op": op, "after": {"id": id or seq, **more}}


def put(path: Path, *changes: Any) -> Path:
    """A file of changes."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in changes))
    return path


def read(folder: Path, place: str | None = None, after: int = -1, **tables: str) -> Groups:
    """Reads the changes of a folder after a position."""
    return list(ChangeFiles(files=str(folder), tables=tables).transactions(after, place))


def envelopes(folder: Path, place: str | None = None, after: int = -1) -> Groups:
    """The same of Debezium's."""
    return list(DebeziumChanges(logs=EnvelopeFiles(files=str(folder))).transactions(after, place))


def ids(groups: Groups) -> list[list[Any]]:
    """The ids of rows, by group."""
    return [[(one.after or one.before or {}).get("id") for one in group] for group in groups]


def end(groups: Groups) -> tuple[str | None, int]:
    """The place and the position behind them."""
    return groups[-1][-1].place, groups[-1][-1].seq


# ------------------------------------------------------------------------------------------------- shared positions


def test_changes_that_share_a_position_are_compared(tmp_path: Path) -> None:
    """Of one transaction, of several, in one file or in one for each table; what is the same is there once."""
    rows = [line(7, n, tx="a", n=n % 2) for n in (1, 2, 1, 2, 3)]
    put(tmp_path / "one" / "t.jsonl", *rows, line(8, 4, tx="b"), line(8, 5, tx="c"), line(8, 4, tx="d"))
    assert ids(read(tmp_path / "one")) == [[1, 2, 1, 2, 3], [4, 5, 4]]
    put(tmp_path / "one" / "again.jsonl", *rows, line(8, 4, tx="b"))
    assert ids(read(tmp_path / "one")) == [[1, 2, 1, 2, 3], [4, 5, 4]]
    put(tmp_path / "two" / "t.jsonl", line(7, 1, tx="a"), line(9, 2, tx="b"))
    put(tmp_path / "two" / "u.jsonl", line(7, 1, tx="a", table="u"), line(9, 2, tx="b", table="u"))
    assert [[one.table for one in group] for group in read(tmp_path / "two")] == [["t", "u"], ["t", "u"]]
    put(tmp_path / "twice" / "t.jsonl", *[line(n // 2, n // 2 + 1) for n in range(6)])
    assert ids(read(tmp_path / "twice")) == [[1], [2], [3]]
    assert ids(read(tmp_path / "twice", after=1)) == [[3]]


def test_two_sources_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Each counts from 0: the changes of one would be old by the numbers of the other."""
    put(tmp_path / "a.jsonl", *[line(n, n + 1, tx=f"a{n // 2}") for n in range(6)])
    put(tmp_path / "b.jsonl", *[line(n, n + 101, tx=f"b{n // 3}") for n in range(6)])
    with pytest.raises(Corrupt, match=r"two different changes have the same position.*file=.*\.jsonl"):
        read(tmp_path)
    put(tmp_path / "b.jsonl", line(3, 3, table="u"), line(9, table="t"))
    put(tmp_path / "a.jsonl", line(1, table="t"))
    with pytest.raises(InvalidRequest, match="two tables of the source"):
        read(tmp_path, t="u")


# ----------------------------------------------------------------------------- files that come, go and are rewritten


def test_a_late_file_is_reported(tmp_path: Path) -> None:
    """Also late lines of a file that was read; a copy of what was read is nothing new."""
    put(tmp_path / "b.jsonl", *[line(n) for n in (10, 11, 12)])
    place, after = end(read(tmp_path))
    assert after == 12
    put(tmp_path / "c.jsonl", line(10), line(11))
    assert read(tmp_path, place, after) == []
    put(tmp_path / "a.jsonl", line(5))
    with pytest.raises(Corrupt, match=r"came late.*file=.*a\.jsonl position=5"):
        read(tmp_path, place, after)
    put(tmp_path / "a.jsonl", line(13))
    put(tmp_path / "d.jsonl", line(9), line(14))
    with pytest.raises(Corrupt, match=r"came late.*file=.*d\.jsonl position=9"):
        read(tmp_path, place, after)
    put(tmp_path / "d.jsonl", line(14))
    place, after = end(read(tmp_path, place, after))
    put(tmp_path / "a.jsonl", line(13), line(14, 99))
    with pytest.raises(Corrupt, match=r"position.*file=.*a\.jsonl|position=14.*|came late"):
        read(tmp_path, place, after)


def test_a_file_that_was_rotated_rewritten_or_is_gone(tmp_path: Path) -> None:
    """A renamed file is the same; after it was read it may be deleted and its name reused; before that, this is reported."""
    for n in range(30):
        put(tmp_path / "c.jsonl", *[line(one) for one in range(n * 3, n * 3 + 3)])
        (tmp_path / "c.jsonl").rename(tmp_path / f"c.jsonl.{n}")
    put(tmp_path / "c.jsonl", line(90), line(91))
    groups = read(tmp_path)
    assert ids(groups) == [[one] for one in range(92)] or ids(groups)[1:] == [[one] for one in range(1, 92)]
    place, after = end(groups)
    (tmp_path / "c.jsonl").rename(tmp_path / "c.jsonl.30")
    (tmp_path / "c.jsonl.0").unlink()
    put(tmp_path / "c.jsonl", line(92))
    assert ids(read(tmp_path, place, after)) == [[92]]
    early = groups[60][-1]
    (tmp_path / "c.jsonl.1").unlink()  # read by then
    assert ids(read(tmp_path, early.place, early.seq))[0] == [61]
    (tmp_path / "c.jsonl.25").rename(tmp_path / "kept")
    kept = (tmp_path / "kept").read_text()
    assert ids(read(tmp_path, early.place, early.seq))[0] == [61]
    for text, says in ((kept.splitlines(keepends=True)[1], "is gone before all of it was read"), ("", "is gone")):
        (tmp_path / "kept").write_text(text)
        with pytest.raises(CheckpointMismatch, match=says):
            read(tmp_path, early.place, early.seq)
    (tmp_path / "kept").rename(tmp_path / "c.jsonl.25")
    with pytest.raises(CheckpointMismatch, match="was rewritten or became shorter before all of it was read"):
        read(tmp_path, early.place, early.seq)


def test_files_of_envelopes_are_known_by_what_they_hold(tmp_path: Path) -> None:
    """A rotated file goes on under its new name; the new one under the old name is read from its first line."""
    rows = [postgres(lsn, before=lsn - 1) for lsn in range(10, 100, 10)]
    put(tmp_path / "c.json", *rows[:4])
    place, after = end(envelopes(tmp_path))
    with (tmp_path / "c.json").open("a") as file:
        file.write(json.dumps(rows[4]) + "\n")
    (tmp_path / "c.json").rename(tmp_path / "c.json.1")
    put(tmp_path / "c.json", *rows[5:8])
    groups = envelopes(tmp_path, place, after)
    assert ids(groups) == [[50], [60], [70], [80]]
    (tmp_path / "c.json.1").unlink()
    put(tmp_path / "copy.json", *rows[5:])
    place, after = end(groups)
    assert ids(envelopes(tmp_path, place, after)) == [[90]]
    put(tmp_path / "late.json", postgres(45, before=44))
    with pytest.raises(Corrupt, match=r"positions went back.*a file came late.*file=.*late\.json line=1"):
        envelopes(tmp_path, place, after)
    (tmp_path / "late.json").unlink()
    (tmp_path / "copy.json").unlink()
    half = groups[1][-1]
    put(tmp_path / "c.json", *rows[7:8])
    with pytest.raises(CheckpointMismatch, match="rewritten or became shorter before all of it was read"):
        envelopes(tmp_path, half.place, half.seq)


def test_a_snapshot_that_was_copied_does_not_write_over_what_came_behind_it(tmp_path: Path) -> None:
    """Rows of a snapshot have no position: those of a file that was read are known by the file."""
    rows = [postgres(10, op="r", snapshot="true", id=1), postgres(20, before=19, op="u", id=1)]
    put(tmp_path / "c.json", *rows)
    place, after = end(envelopes(tmp_path))
    put(tmp_path / "d.json", *rows)
    assert all(one.op == "mark" for group in envelopes(tmp_path, place, after) for one in group)


# --------------------------------------------------------------------------------------------- what a file may be


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: b"\xef\xbb\xbf" + data])
def test_compressed_files_and_a_byte_order_mark_are_read(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Both kinds of files, whatever their names are."""
    for folder, rows, reader in (
        ("c", [line(0), line(1)], read), ("e", [postgres(1), postgres(2, before=1)], envelopes),
    ):  # fmt: skip
        data = "".join(json.dumps(one) + "\r\n" for one in rows).encode()
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.jsonl.gz").write_bytes(pack(data))
        groups = reader(tmp_path / folder)
        assert len(groups) == 2
        place, after = end(groups)
        assert reader(tmp_path / folder, place, after) == []
        (tmp_path / folder / "c.jsonl.gz").unlink()
        put(tmp_path / folder / "d", *([line(2)] if folder == "c" else [postgres(3, before=2)]))
        assert len(reader(tmp_path / folder, place, after)) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (gzip.compress(b"\n" * 9_999, mtime=0)[:-9], "compressed file is damaged or not complete"),
        ("{}".encode("utf-16"), "it is UTF-16"), (b"\x28\xb5\x2f\xfd123", "compressed with zstd"),
        (b"PK\x03\x04....", "a zip archive"), (b"PAR1....", "a Parquet file"), (b"\xff\n", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"), (b'{"seq": ' + b"9" * 9_999 + b"}", "not JSON"),
        (b'{"seq": 1e999999999}', "more than 150,000 places"), (b'{"seq": 1e99999999999999999999}', "more than 150,000"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(data: bytes, says: str, tmp_path: Path) -> None:
    """The file, and the line where there is one; never a traceback, never silence."""
    (tmp_path / "c.jsonl").write_bytes(data)
    for reader in (read, envelopes):
        with pytest.raises(Corrupt, match=rf"{says}.*file=.*c\.jsonl"):
            reader(tmp_path)


def test_an_enormous_line_meets_a_limit_and_not_the_memory(tmp_path: Path) -> None:
    """A file of half a megabyte that unpacks to one line of 192 megabytes."""
    with gzip.open(tmp_path / "c.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b'{"seq": 0, "x": "')
        for _ in range(192):
            file.write(b"x" * 1024 * 1024)
    for reader in (read, envelopes):
        tracemalloc.start()
        with pytest.raises(Corrupt, match=r"longer than 67,108,864 bytes.*line=1"):
            reader(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * RECORD_BYTES_MAX


def spread(folder: Path, rows: Sequence[Any], files: int) -> None:
    """Changes over many files."""
    for n in range(files):
        put(folder / f"{n:04}.jsonl", *rows[n::files])


def test_many_files_have_few_places(tmp_path: Path) -> None:
    """A place names all files: places that each group had for itself would fill the memory."""
    spread(tmp_path, [line(n) for n in range(3_000)], 300)
    texts = {id(group[-1].place) for group in read(tmp_path)}
    assert len(texts) <= 25
