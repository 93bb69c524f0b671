"""A certificate cannot be changed, and none can be taken out of the chain of a table, without a check that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakegate.delta import deletion_vectors
from tests.cli.command import lakegate
from tests.erasure.written import FIELDS, Written, made, people

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


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.chdir(tmp_path)
    return made(tmp_path / "t")


def chain(table: Written, number: int) -> list[Path]:
    """Some certificates of the table."""
    for _ in range(number):
        assert lakegate("erasure", "certify", "--table", table.root, "--person", "person=bob", "--out", "out").code == 0
    return sorted(Path("out").glob("*.json"))


def verified(*files: str | Path) -> tuple[int, str]:
    ran = lakegate("erasure", "verify", *files)
    return ran.code, ran.out


def test_a_chain_holds(table: Written) -> None:
    """And each file has a page to read, without a value."""
    files = chain(table, 2)
    code, out = verified("--files", *files)
    assert (code, out.count("holds; its verdict is clean; 3 files unchanged, 0 gone, 0 not compared")) == (0, 2)
    pages = [file.with_suffix(".html").read_text() for file in files]
    assert all("bob" not in page and "Nothing of these persons was found" in page for page in pages)


def test_a_changed_certificate_does_not_hold(table: Written) -> None:
    """One digit is enough."""
    (file,) = chain(table, 1)
    file.write_text(file.read_text().replace('"version": 1', '"version": 0'))
    code, out = verified(file)
    assert code == 4
    assert "its hash is not that of its content" in out


def test_a_certificate_that_is_taken_out_or_replaced_breaks_the_chain(table: Written) -> None:
    """The next one names the hash of the one before it."""
    first, second, third = chain(table, 3)
    first.unlink()
    assert verified(second)[0] == 4
    assert verified(third)[0] == 0
    Path("out").rename("kept")
    other = chain(table, 2)[1]
    (Path("kept") / second.name).write_text(other.read_text())
    code, out = verified(Path("kept") / third.name)
    assert code == 4
    assert "number 2 is not the one that it names" in out


def test_files_that_changed_since_are_reported_and_gone_ones_are_not(table: Written) -> None:
    """A file that is gone holds nothing; one with other bytes was not looked at."""
    table.file("b.parquet", people("eve"))
    (file,) = chain(table, 1)
    (table.root / "b.parquet").unlink()
    assert verified("--files", file)[0] == 0
    table.file("b.parquet", people("bob"))
    code, out = verified("--files", file)
    assert code == 4
    assert "another content than looked at" in out


def test_what_is_found_is_exit_status_4_and_in_the_document(table: Written) -> None:
    """With the certificate's file."""
    table.file("b.parquet", people("bob"))
    ran = lakegate(
        "erasure", "certify", "--table", table.root, "--person", "person=bob", "--out", "out", "--output", "json"
    )
    assert (ran.code, ran.json["verdict"], ran.json["found"]) == (4, "found", 1)
    assert json.loads(Path(ran.json["file"]).read_text())["verdict"] == "found"


def test_a_folder_with_certificates_of_another_table_is_refused(table: Written, tmp_path: Path) -> None:
    """Two chains in one folder would be mixed up; before anything is looked at, so not for the column that is not there."""
    chain(table, 1)
    other = made(tmp_path / "other")
    ran = lakegate("erasure", "certify", "--table", other.root, "--person", "nobody=bob", "--out", "out")
    assert (ran.code, len(list(Path("out").glob("*.json")))) == (2, 1)
    assert "certificates of another table" in ran.err


@pytest.mark.parametrize("more", [[], ["--person", "person=a", "--requests", "Gone"]])
def test_either_persons_or_requests_are_needed(table: Written, more: list[str]) -> None:
    """Exit status 2, and no certificate."""
    assert lakegate("erasure", "certify", "--table", table.root, "--out", "out", *more).code == 2
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------------------ with a pipeline


KEY = pa.struct([("person", pa.string())])


def requested(
    root: Path, *keys: str | None, state: str = "applied", op: str = "erase", hidden: tuple[int, ...] = ()
) -> Written:
    """The request table of `Gone`, with erasures."""
    requests = Written(root / "_lakegate" / "requests" / "Gone")
    requests.define(("op", "string", {}), ("state", "string", {}), partition_by=("state",))
    rows = pa.table({"key": pa.array([{"person": key} for key in keys], KEY), "op": [op] * len(keys)})
    vector = {"deletionVector": deletion_vectors.write_inline(BitMap64(hidden))} if hidden else {}
    requests.commit(requests.add("state=x/r.parquet", rows, partitionValues={"state": state}, **vector))
    return requests


def test_the_persons_of_a_streams_erasures_are_looked_for(table: Written) -> None:
    """In the table; and in the stream's own requests, which name them as long as the erasure is in force."""
    Path("lakegate.yml").write_text(FILE)
    requested(table.root.parent, "bob", "ben")
    table.file("b.parquet", people("ben"))
    ran = lakegate("erasure", "certify", "--table", "t", "--requests", "Gone", "--output", "json")
    certificate = json.loads(Path(ran.json["file"]).read_text())
    assert (ran.code, len(certificate["persons"])) == (4, 2)
    places = {(one["place"], one["column"], one["rows"]) for one in certificate["found"]}
    assert places == {("orphan", "person", 1), ("requests of Gone", "key.person", 2)}
    assert Path(ran.json["file"]).parent == table.root.parent / "_lakegate" / "certificates" / "t"


def dead_letter(storage: Path) -> str:
    letters = Written(storage / "dead_letters" / "Gone")
    letters.commit(letters.add("d.parquet", pa.table({"raw": ['{"person": "bob", "x": 1}']})))
    return "dead letters of Gone"


def ledger(storage: Path) -> str:
    (storage / "ledger").mkdir(parents=True)
    (storage / "ledger" / "1.jsonl").write_text('{"reason": "cannot cast bob"}\n')
    return "ledger"


def checkpoint(storage: Path) -> str:
    (storage / "checkpoints" / "Gone" / "offsets").mkdir(parents=True)
    (storage / "checkpoints" / "Gone" / "offsets" / "0").write_text("v1\nfile:/in/person=bob/1.parquet")
    return "checkpoints of Gone"


def log(storage: Path) -> str:
    (storage / "spark.log").parent.mkdir(parents=True)
    (storage / "spark.log").write_text("WARN the value 'bob' of the type STRING")
    return "storage"


@pytest.mark.parametrize("plant", [dead_letter, ledger, checkpoint, log], ids=lambda one: one.__name__)
def test_a_person_is_found_in_the_storage_of_the_pipeline(table: Written, plant: object) -> None:
    """Each place of it is looked through."""
    Path("lakegate.yml").write_text(FILE)
    assert callable(plant)
    place = plant(table.root.parent / "_lakegate")
    ran = lakegate("erasure", "certify", "--table", "t", "--person", "person=bob", "--out", "out")
    certificate = json.loads(Path("out/certificate-00001.json").read_text())
    assert (ran.code, {one["place"] for one in certificate["found"]}) == (4, {place})


@pytest.mark.parametrize(
    ("keys", "more", "message"),
    [
        ([None], {}, "key is NULL"),
        (["bob"], {"op": "lift"}, "no erasure of the stream is in force"),
        (["bob"], {"state": "dead"}, "no erasure of the stream is in force"),
        (["bob"], {"hidden": (0,)}, "no erasure of the stream is in force"),
    ],
)
def test_requests_that_name_nobody_are_refused(
    table: Written, keys: list[str | None], more: dict[str, Any], message: str
) -> None:
    """A lifted or dead erasure proves nothing, and NULL is nobody's key."""
    Path("lakegate.yml").write_text(FILE)
    requested(table.root.parent, *keys, **more)
    ran = lakegate("erasure", "certify", "--table", "t", "--requests", "Gone")
    assert (ran.code, message in ran.err) == (2, True)


def test_a_composite_key_is_found_only_where_all_of_it_is(tmp_path: Path) -> None:
    """`DE` alone is not the person `DE 7`."""
    from lakegate.erasure.persons import Person
    from lakegate.ops.certify import Question, certify

    table = Written(tmp_path / "t")
    table.define(*FIELDS)
    key = Person((("id", "7"), ("person", "DEU")))
    rows = pa.table({"id": pa.array([7, 8, 7], pa.int64()), "person": ["ITA", "DEU", "DEU"]})
    table.commit(table.add("a.parquet", rows.slice(0, 2), stats={"minValues": {"id": 7}, "maxValues": {"id": 8}}))
    question = Question(table=str(table.root), persons=(key,))
    assert certify(question).verdict == "clean"
    pq.write_table(rows, table.root / "b.parquet")
    table.commit({"add": {"path": "c", "stats": '{"minValues": {"id": 7, "person": "DEU"}}'}})
    assert sorted((one.place, one.where) for one in certify(question).found) == [
        ("commit", "add: statistics"),
        ("commit", "add: statistics"),
        ("orphan", "rows"),
    ]
