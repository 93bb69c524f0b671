"""`lakegate dead-letters`: what was set aside is listed without values, dropped, corrected, and sent again once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.streams.dead_letters import StreamLetters
from tests.cli.command import Ran, lakegate, state_of

pytestmark = pytest.mark.slow

FILE = """\
name: p
storage: ./_lakegate
coordinator: {lock_timeout: 10m}
tables:
  t: {path: ./table, lock: L}
streams:
  In:
    table: t
    source: {files: ./in, format: json, schema: "id STRING, v DOUBLE, at TIMESTAMP"}
    on_bad_record: dead_letter
    append: {columns: {double: "v * 2"}}
  Change:
    table: t
    after: In
    source: {files: ./change, format: json, schema: "id STRING, v DOUBLE"}
    on_bad_record: dead_letter
    mutate: {match: {id: id}, set: {v: v}, applies_to: arrived}
"""
AT = "2024-01-05T10:00:00.123456Z"


def put(folder: Path, name: str, *lines: dict[str, Any] | str) -> None:
    folder.mkdir(exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / name).write_text("".join(f"{text}\n" for text in texts))


@pytest.fixture
def root(session: SparkSession, tmp_path: Path) -> Path:
    """A pipeline that has run: three records and a request are set aside, and another request is dead."""
    (tmp_path / "lakegate.yml").write_text(FILE)
    session.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id STRING, v BIGINT, at TIMESTAMP, double BIGINT) USING delta"
    )
    for name, sql in {"positive": "v > 0", "small": "v < double"}.items():
        session.sql(f"ALTER TABLE delta.`{tmp_path / 'table'}` ADD CONSTRAINT {name} CHECK ({sql})")
    secret = {"id": "secret", "v": -7.0, "at": AT}
    put(tmp_path / "in", "0.json", {"id": "a", "v": 5, "at": AT}, secret, {"id": "b", "v": 1.5}, "{broken")
    put(tmp_path / "change", "0.json", {"id": "a", "v": -1}, {"id": "a", "v": 6}, {"id": "a", "v": 77})
    ran = lakegate("run", "--until-idle", "--together", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    return tmp_path


def of(root: Path, *arguments: str, code: int = 0) -> Ran:
    ran = lakegate("dead-letters", *arguments, "--spec", root, "--output", "json")
    assert ran.code == code, ran.out + ran.err
    return ran


def letters(root: Path, *arguments: str) -> dict[str, str]:
    """Reason → id."""
    rows = of(root, "list", *arguments).json["dead_letters"]
    return {row["reason"]: row["id"] for row in rows}


def rows(session: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    frame = session.read.format("delta").load(str(root / "table"))
    return sorted(tuple(row) for row in frame.selectExpr("id", "v", "double", "unix_micros(at) % 1000000").collect())


@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_what_was_set_aside_is_listed_corrected_and_sent_again_once(
    session: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the command is killed behind each of its steps; what is refused again stays; nothing else is touched."""
    assert rows(session, root) == [("a", 6, 10, 123456)]
    listed = of(root, "list")
    found = letters(root)
    assert sorted(found) == [
        "does not fit: v is not bigint",
        "is not a JSON record of the stated schema",
        "violates the constraint positive",
        "violates the constraint small",
    ]
    assert "secret" not in listed.out
    told = of(root, "list", "In", "--values").json["dead_letters"]
    assert any('"id":"secret"' in row["values"] for row in told)
    before = state_of(root / "table")
    assert "not dead letters of In: d-0" in of(root, "drop", "In", "d-0", code=2).err
    id_ = found["violates the constraint positive"]
    assert "not dead letters of In" in of(root, "retry", "In", id_, "--set", "v=1", code=2).err, "it is of Change"
    assert (
        "have no column w"
        in of(root, "retry", "In", found["does not fit: v is not bigint"], "--set", "w=1", code=2).err
    )
    assert "there is no stream or sync 'Out'" in of(root, "list", "Out", code=2).err
    unfit = found["does not fit: v is not bigint"]
    assert rows(session, root) == [("a", 6, 10, 123456)]
    assert before.keys() <= state_of(root / "table").keys()

    of(root, "drop", "In", found["is not a JSON record of the stated schema"], "--reason", "noise")
    assert "1 of 1 were refused again" in of(root, "retry", "In", unfit, "--set", "v=2.5", code=2).err
    unfit = letters(root, "In")["does not fit: v is not bigint"]

    negative = letters(root, "In")
    (secret,) = [id_ for reason, id_ in negative.items() if reason == "violates the constraint positive"]
    steps = {"mark": "mark", "sent": "_end"}
    for step, name in steps.items():
        real = getattr(StreamLetters, name)

        def killed(self: StreamLetters, *words: Any, step: str = step, real: Any = real) -> Any:
            if step == "mark":
                real(self, *words)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(StreamLetters, name, killed)
            assert lakegate("dead-letters", "retry", "In", secret, "--set", "v=9", "--spec", root).code == 130
        assert any("is being sent again" in row["reason"] for row in of(root, "list", "In").json["dead_letters"])
        assert "is being sent again" in of(root, "drop", "In", secret, code=2).err
    assert of(root, "retry", "In", secret, "--set", "v=9").json["sent_again"] == 1
    assert of(root, "retry", "In", unfit, "--set", "v=3", "--set", f"at={AT}").json["sent_again"] == 1
    assert rows(session, root) == [("a", 6, 10, 123456), ("b", 3, 6, 123456), ("secret", 9, 18, 123456)]
    assert letters(root, "In") == {}

    (refused,) = [row["id"] for row in of(root, "list", "Change").json["dead_letters"] if row["kind"] == "request"]
    assert "refused again" in of(root, "retry", "Change", refused, code=2).err
    assert of(root, "retry", "Change", refused, "--set", "v=7").json["sent_again"] == 1
    assert ("a", 7, 10, 123456) in rows(session, root)
    (record,) = [row["id"] for row in of(root, "list", "Change").json["dead_letters"]]
    assert of(root, "retry", "Change", record, "--set", "v=4", "--set", "id=b").json["sent_again"] == 1
    assert ("b", 4, 6, 123456) in rows(session, root)
    assert of(root, "list").json["dead_letters"] == []
    ran = lakegate("run", "--until-idle", "--together", "--spec", root)
    assert ran.code == 0, ran.err
    assert lakegate("verify", "--spec", root).code == 0
