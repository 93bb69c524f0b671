"""A person is found in whatever place of a table's bytes the values are, and nowhere else."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from lakegate.delta import deletion_vectors
from lakegate.erasure.certificate import Certificate
from lakegate.erasure.folder import VANISHED, TableSearch
from lakegate.erasure.persons import Person
from lakegate.erasure.storage import Place
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.ops.certify import Question, certify, person
from tests.erasure.planted import PLANTED, live, old_version
from tests.erasure.written import FIELDS, Written, made, people


def looked(table: Written, *persons: str, **more: Any) -> Certificate:
    """The certificate for some `COLUMN=VALUE`."""
    question = Question(table=str(table.root), persons=tuple(map(person, persons)), **more)
    return certify(question)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_person_is_found_wherever_the_values_are(tmp_path: Path, plant: Callable[[Written], None]) -> None:
    """In this one place; nobody else is found; and no value is in the certificate."""
    table = made(tmp_path / "t")
    assert looked(table, "person=bob").verdict == "clean"
    plant(table)
    certificate = looked(table, "person=bob")
    assert (certificate.verdict, certificate.not_looked_at) == ("found", ())
    assert {(one.place, one.where) for one in certificate.found} == set(
        zip(PLANTED[plant][::2], PLANTED[plant][1::2], strict=True)
    )
    assert looked(table, "person=bo").verdict == looked(table, "person=bobby").verdict == "clean"
    assert "bob" not in certificate.to_json()


def test_rows_are_counted_as_visible_and_hidden(tmp_path: Path) -> None:
    """A deletion vector hides one of two rows of a person; both are in the bytes."""
    table = made(tmp_path / "t")
    add = table.add("b.parquet", people("bob", "ada", "bob"))
    vector = deletion_vectors.write_inline(BitMap64([2]))
    table.commit({"add": {**add["add"], "deletionVector": vector}})
    found = looked(table, "person=bob").found
    assert {(one.place, one.rows) for one in found} == {("live", 1), ("hidden", 1)}


def test_a_row_group_that_its_statistics_exclude_is_not_read(tmp_path: Path) -> None:
    """Only the second of two row groups can hold the person; it is read, and the certificate says so."""
    table = made(tmp_path / "t")
    table.file("b.parquet", people("ann", "ann", "bob", "bob"), row_group_size=2)
    (file,) = (one for one in looked(table, "person=bob").looked_at if one.path.endswith("b.parquet"))
    assert (file.row_groups, file.row_groups_read, file.columns) == (2, 1, ("person",))


MAPPED = {"delta.columnMapping.physicalName": "col-7"}


@pytest.mark.parametrize("asked", ["person", "human"])
def test_a_renamed_column_is_found_under_its_physical_name(tmp_path: Path, asked: str) -> None:
    """By its old name, and by its new name; in data and in statistics."""
    table = Written(tmp_path / "t")
    table.define(("person", "string", MAPPED))
    stats = {"minValues": {"col-7": "bob"}}
    table.commit(table.add("a.parquet", pa.table({"col-7": ["bob"]}), stats=stats))
    table.define(("human", "string", MAPPED))
    certificate = looked(table, f"{asked}=bob")
    assert {(one.place, one.where) for one in certificate.found} == {("live", "rows"), ("commit", "add: statistics")}
    assert certificate.columns == {asked: ("col-7",)}


def test_a_dropped_column_is_still_looked_at(tmp_path: Path) -> None:
    """No version that can be queried by name has it; its bytes are there."""
    table = Written(tmp_path / "t")
    table.define(("id", "long", {}), ("person", "string", MAPPED))
    table.commit(table.add("a.parquet", pa.table({"col-7": ["bob"]})))
    table.define(("id", "long", {}))
    assert {one.place for one in looked(table, "person=bob").found} == {"live"}


SAME_VALUES: list[tuple[str, Any, pa.Array]] = [
    ("7", "integer", pa.array([7], pa.int32())),
    ("7.0", "long", pa.array([7], pa.int64())),
    ("1.5", "decimal(10,2)", pa.array(["1.50"], pa.string()).cast(pa.decimal128(10, 2))),
    ("2024-05-01T10:00:00+02:00", "timestamp", pa.array([1714550400000000], pa.timestamp("us", "UTC"))),
    ("2024-05-01", "timestamp_ntz", pa.array([1714521600000000], pa.timestamp("us"))),
    ("2024-05-01", "date", pa.array([19844], pa.date32())),
    ("true", "boolean", pa.array([True])),
    ("0.5", "double", pa.array([0.5])),
    ("0x0aff", "binary", pa.array([b"\x0a\xff"])),
    ("bob", "string", pa.array(["bob"], pa.large_string())),
    ("bob", "string", pa.array(["bob"]).dictionary_encode()),
    ("bob", "string", pa.array(["bob"], pa.string_view())),
]


@pytest.mark.parametrize(
    ("text", "kind", "values"), SAME_VALUES, ids=[f"{one[2].type} {one[0]}" for one in SAME_VALUES]
)
def test_values_are_compared_as_values(tmp_path: Path, text: str, kind: str, values: pa.Array) -> None:
    """However the text writes them."""
    table = Written(tmp_path / "t")
    table.define(("key", kind, {}))
    table.commit(table.add("a.parquet", pa.table({"key": values})))
    assert [one.rows for one in looked(table, f"key={text}").found] == [1]


def test_a_widened_column_is_compared_in_each_files_type(tmp_path: Path) -> None:
    """int, then long: a value that only the long can hold is no error in the old file, and no row of it."""
    table = Written(tmp_path / "t")
    table.define(("key", "integer", {}))
    table.commit(table.add("a.parquet", pa.table({"key": pa.array([7], pa.int32())})))
    table.define(("key", "long", {}))
    table.commit(table.add("b.parquet", pa.table({"key": pa.array([7, 2**40], pa.int64())})))
    assert sorted(one.path[-9:] for one in looked(table, "key=7").found) == ["a.parquet", "b.parquet"]
    assert [one.path[-9:] for one in looked(table, f"key={2**40}").found] == ["b.parquet"]


NESTED = {"type": "struct", "fields": [{"name": "mail", "type": "string", "nullable": True, "metadata": {}}]}


def test_a_field_of_a_struct_a_list_and_a_map_is_found(tmp_path: Path) -> None:
    """Each by its path with dots."""
    table = Written(tmp_path / "t")
    table.define(
        ("who", NESTED, {}),
        ("all", {"type": "array", "elementType": NESTED, "containsNull": True}, {}),
        ("by", {"type": "map", "keyType": "string", "valueType": NESTED, "valueContainsNull": True}, {}),
    )
    rows = pa.table(
        {
            "who": [{"mail": "x@y"}, None, {"mail": "bob@y"}],
            "all": [[], None, [{"mail": "a"}, {"mail": "bob@y"}]],
            "by": pa.array(
                [None, [("k", {"mail": "bob@y"})], []], pa.map_(pa.string(), pa.struct([("mail", pa.string())]))
            ),
        }
    )
    table.commit(table.add("a.parquet", rows))
    for column in ("who.mail", "all.mail", "by.value.mail"):
        assert [one.rows for one in looked(table, f"{column}=bob@y").found] == [1], column
    assert looked(table, "who.mail=a").verdict == "clean"


def test_anywhere_finds_the_value_as_a_word_in_other_columns(tmp_path: Path) -> None:
    """Inside of JSON; not as a part of a longer word; and not without the option."""
    table = Written(tmp_path / "t")
    table.define(*FIELDS, ("raw", "string", {}))
    raw = pa.array(['{"who": "bob@y.org"}', "bob@y.organic", None])
    table.commit(table.add("a.parquet", people("ada", "eve", None).append_column("raw", raw)))
    assert looked(table, "person=bob@y.org").verdict == "clean"
    found = looked(table, "person=bob@y.org", is_anywhere=True).found
    assert [(one.column, one.rows) for one in found] == [("raw", 1)]


def test_a_long_value_is_found_in_shortened_statistics(tmp_path: Path) -> None:
    """Delta keeps 32 characters: a person may not hide behind the rest."""
    table = made(tmp_path / "t")
    name = "b" * 40
    table.commit(table.add("b.parquet", people("eve"), stats={"maxValues": {"person": "b" * 32 + "\uffff"}}))
    assert [one.where for one in looked(table, f"person={name}").found] == ["add: statistics"]


def test_the_earliest_version_is_the_first_whose_files_are_there(tmp_path: Path) -> None:
    """A vacuumed file ends the versions in which it was live."""
    table = made(tmp_path / "t")
    old_version(table)
    assert (looked(table, "person=bob").version, looked(table, "person=bob").earliest_version) == (3, 0)
    (table.root / "b.parquet").unlink()
    certificate = looked(table, "person=bob")
    assert (certificate.verdict, certificate.earliest_version) == ("clean", 3)


def test_it_says_when_the_rest_may_be_gone_by_the_tables_settings(tmp_path: Path) -> None:
    """An old file after the time that the table keeps it, from its removal on."""
    table = Written(tmp_path / "t")
    table.define(*FIELDS, **{"delta.deletedFileRetentionDuration": "interval 2 days"})
    table.commit(table.add("b.parquet", people("bob")))
    table.commit({"remove": {"path": "b.parquet", "deletionTimestamp": 5, "dataChange": True}})
    (found,) = looked(table, "person=bob").found
    assert (found.gone_at_ms, found.by) == (5 + 2 * 86_400_000, "VACUUM")


def test_a_short_number_is_found_in_a_text_that_names_the_column_alone(tmp_path: Path) -> None:
    """`7` is in half of all metadata; in a predicate on the column it is the person."""
    table = made(tmp_path / "t")
    table.commit(info={"operationMetrics": {"numFiles": "7"}, "userMetadata": '{"batch": "7"}'})
    assert looked(table, "id=7").verdict == "clean"
    table.commit(info={"operationParameters": {"predicate": '["(id#12L = 7)"]'}})
    assert [one.where for one in looked(table, "id=7").found] == ["commitInfo: operationParameters.predicate"]


def damaged(table: Written) -> str:
    """A file whose pages are overwritten, while its footer is whole."""
    path = table.file("b.parquet", people(*["bob"] * 1000), compression="gzip", use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset + 30
    content[start : start + 10] = b"\xff" * 10
    path.write_bytes(content)
    return "damaged"


def cut(table: Written) -> str:
    path = table.file("b.parquet", people("bob"))
    path.write_bytes(path.read_bytes()[:-20])
    return "damaged"


def encrypted(table: Written) -> str:
    path = table.file("b.parquet", people("bob"))
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")
    return "encrypted"


def compressed(table: Written) -> str:
    (table.root / "notes.gz").write_bytes(gzip.compress(b"bob"))
    return "compressed (gzip)"


def damaged_commit(table: Written) -> str:
    table.commit()
    (table.log / f"{table.version:020d}.json").write_text('{"add": {"pa')
    return "damaged"


def unknown_type(table: Written) -> str:
    """UUIDs and times of day are such; a comparison that is not made finds nothing."""
    table.file("b.parquet", pa.table({"person": pa.array([1], pa.time64("us"))}))
    return "a type that is not known"


@pytest.mark.parametrize(
    "spoil", [unknown_type, damaged, cut, encrypted, compressed, damaged_commit], ids=lambda one: one.__name__
)
def test_a_file_that_cannot_be_searched_makes_the_certificate_incomplete(
    tmp_path: Path, spoil: Callable[[Written], str]
) -> None:
    """It is named, with the reason; it is not among the files that were looked at."""
    table = made(tmp_path / "t")
    reason = spoil(table)
    certificate = looked(table, "person=bob")
    assert certificate.verdict == "incomplete"
    (one,) = certificate.not_looked_at
    assert reason in one.reason
    assert one.path not in {known.path for known in certificate.looked_at}


def test_a_file_that_vanishes_meanwhile_is_not_clean(tmp_path: Path) -> None:
    """VACUUM takes it between the listing and the reading: its rows may have gone elsewhere."""
    table = made(tmp_path / "t")
    gone = table.file("b.parquet", people("eve"))
    place = Place(str(table.root), {})
    listed = place.list()
    gone.unlink()
    search = TableSearch(place, (person("person=bob"),), "salt", anywhere=False)
    search.entries = lambda: listed  # type: ignore[method-assign]
    search.run(lambda done, total: None)
    assert [(one.path, one.reason) for one in search.not_looked_at.values()] == [(str(gone), VANISHED)]
    assert str(gone) not in {one.path for one in search.looked_at.values()}


def test_a_file_that_is_written_meanwhile_is_looked_at(tmp_path: Path) -> None:
    """A second listing finds it."""
    table = made(tmp_path / "t")
    written: list[Path] = []

    def meanwhile(done: int, total: int) -> None:
        if not written:
            written.append(table.file("late.parquet", people("bob")))

    certificate = certify(Question(table=str(table.root), persons=(person("person=bob"),)), progress=meanwhile)
    assert [one.place for one in certificate.found] == ["orphan"]


@pytest.mark.parametrize(
    ("persons", "message"),
    [
        (["nobody=1"], "no version of the table has the column"),
        (["id=seven"], "none of its column's type"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, persons: list[str], message: str) -> None:
    """Nothing is certified."""
    table = made(tmp_path / "t")
    with pytest.raises(InvalidRequest, match=message):
        looked(table, *persons)


@pytest.mark.parametrize("text", ["person", "person=", "=bob"])
def test_a_person_needs_a_column_and_a_value(text: str) -> None:
    """An empty value names nobody."""
    with pytest.raises(InvalidRequest, match="COLUMN=VALUE"):
        person(text)


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    """Nothing in it was looked at."""
    with pytest.raises(InvalidRequest, match="no Delta table"):
        looked(Written(tmp_path), "id=1")


def test_a_store_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    """A file in the place of the folder; and a store that is not known."""
    (tmp_path / "t").write_text("")
    with pytest.raises(Unavailable, match="cannot be listed"):
        looked(Written(tmp_path / "t"), "id=1")
    with pytest.raises(InvalidRequest, match="local disks and on S3 only"):
        certify(Question(table="abfs://c@a/t", persons=(person("id=1"),)))


def test_a_partition_is_a_column_of_all_rows(tmp_path: Path) -> None:
    """A key of a partition column and a data column is found in the file; so is one of the partition column alone."""
    table = Written(tmp_path / "t")
    table.define(*FIELDS, partition_by=("person",))
    rows = pa.table({"id": pa.array([6, 7], pa.int64())})
    table.commit(table.add("x/a.parquet", rows, partitionValues={"person": "bob"}))
    table.commit(table.add("x/b.parquet", rows, partitionValues={"person": "eve"}))
    table.file("person=bob/c.parquet", rows)

    def in_rows(*values: tuple[str, str]) -> set[tuple[str, str, int]]:
        found = certify(Question(table=str(table.root), persons=(Person(values),))).found
        return {(one.place, one.column, one.rows) for one in found if one.where == "rows"}

    assert in_rows(("id", "7"), ("person", "bob")) == {("live", "id", 1), ("orphan", "id", 1)}
    assert in_rows(("person", "bob")) == {("live", "partition", 2), ("orphan", "partition", 2)}
    assert in_rows(("id", "8"), ("person", "bob")) == set()


def test_a_value_with_special_characters_is_found_in_a_folders_name(tmp_path: Path) -> None:
    """Escaped once on disk, twice in the log; also one that looks escaped itself."""
    table = made(tmp_path / "t")
    table.file("person=a%3Ab/b.parquet", pa.table({"id": [1]}))
    table.file("person=%2541b/b.parquet", pa.table({"id": [1]}))
    table.commit({"remove": {"path": "person=c%253Ad/b.parquet", "dataChange": True}})
    for value in ("a:b", "%41b", "c:d"):
        certificate = looked(table, f"person={value}")
        assert "path" in " ".join(one.where for one in certificate.found), value
        assert value not in certificate.to_json()


def test_a_parquet_file_under_another_name_is_searched_by_its_columns(tmp_path: Path) -> None:
    """A leftover of a copy: its pages are compressed, so a search for text would pass it over."""
    table = made(tmp_path / "t")
    table.file("b.parquet.copying", people(*["bob"] * 100), compression="gzip")
    assert [(one.where, one.rows) for one in looked(table, "person=bob").found] == [("rows", 100)]
    (table.root / "empty.parquet").write_bytes(b"")
    assert looked(table, "person=eva").verdict == "clean"


def test_a_file_outside_of_the_folder_that_the_log_names_is_searched(tmp_path: Path) -> None:
    """As of a shallow clone; one that is on an unknown store is named."""
    table, other = made(tmp_path / "t"), made(tmp_path / "other")
    path = other.file("b.parquet", people("bob"))
    table.commit({"add": {"path": f"file:{path}", "size": 1, "partitionValues": {}, "dataChange": True}})
    assert [(one.place, one.path) for one in looked(table, "person=bob").found] == [("live", f"file:{path}")]
    table.commit({"add": {"path": "abfss://c@a/b.parquet", "size": 1, "partitionValues": {}, "dataChange": True}})
    assert [one.path for one in looked(table, "person=bob").not_looked_at] == ["abfss://c@a/b.parquet"]


@pytest.mark.parametrize("storage", [".", "t/_lakegate", "t"])
def test_a_storage_around_or_inside_of_the_table_is_searched(tmp_path: Path, storage: str) -> None:
    """Neither folder hides the other: the table's files as the table's, a request by its nested key."""
    table = made(tmp_path / "t")
    live(table)
    folder = tmp_path / storage / "requests" / "Gone"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"key": [{"person": "bob"}]}), folder / "r.parquet")
    found = looked(table, "person=bob", storage=str(tmp_path / storage)).found
    assert {("live", "person"), ("requests of Gone", "key.person")} <= {(one.place, one.column) for one in found}


@pytest.mark.parametrize(
    "text",
    [
        '{"who": "Jos\\u00e9 O\'Neil"}',
        "file:/in/person=Jos%C3%A9%20O'Neil/1",
        "who = 'José O''Neil'",
        "'José O\\'Neil'",
    ],
)
def test_a_value_is_found_in_a_text_that_escapes_it(tmp_path: Path, text: str) -> None:
    """As JSON, as a URI, and as SQL; in a file, in a column, and in a commit."""
    table = made(tmp_path / "t")
    who = "person=José O'Neil"
    (table.root / "note.txt").write_text(text)
    assert [one.place for one in looked(table, who).found] == ["other file"]
    (table.root / "note.txt").unlink()
    table.commit(info={"userMetadata": f"note: {text}"})
    assert [one.place for one in looked(table, who).found] == ["commit"] or "%" in text


def test_a_table_of_another_writer_is_searched(tmp_path: Path) -> None:
    """Written by delta-rs, with a DELETE and a checkpoint: the person is in the old file and the predicate, and nowhere else."""
    path = str(tmp_path / "t")
    write_deltalake(path, people("ada", "bob", "eve"))
    DeltaTable(path).delete("person = 'bob'")
    DeltaTable(path).create_checkpoint()
    certificate = certify(Question(table=path, persons=(person("person=bob"),)))
    assert certificate.not_looked_at == ()
    assert {(one.place, one.where) for one in certificate.found} == {
        ("old version", "rows"),
        ("commit", "commitInfo: operationParameters.predicate"),
    }
