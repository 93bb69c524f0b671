"""Changes of a table's files, folded from the commits alone."""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from lakegate.delta.actions import Action, as_add, changes, parse, partition_columns, vector_of
from lakegate.errors import Corrupt
from lakegate.ids import Version


def add(path: str, vector: str | None = None, **more: Any) -> Action:
    return Action("add", {"path": path, **_vector(vector), **more})


def remove(path: str, vector: str | None = None) -> Action:
    return Action("remove", {"path": path, **_vector(vector)})


def _vector(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"deletionVector": {"storageType": "u", "pathOrInlineDv": name}}


def test_lines_keep_what_this_version_does_not_know() -> None:
    """Unknown fields, unknown actions, texts with odd line separators, and large numbers come back as they were."""
    lines = [
        '{"add":{"path":"a b\u2028c","size":12345678901234567890,"later":{"x":[1,2.5,null]},"stats":"{\\"numRecords\\":3}"}}',
        '{"laterAction":{"y":"\u00e9"}}',
    ]
    assert [action.to_json() for action in parse("\n".join(lines) + "\n")] == lines


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"add":1}', "null"])
def test_a_line_that_is_no_action_is_reported(line: str) -> None:
    """A damaged commit is never read as an empty one."""
    with pytest.raises(Corrupt):
        parse(line)


def test_a_file_s_new_vector_may_stand_before_the_removal_of_its_old_one() -> None:
    """Within a commit the order means nothing; over commits the first removal and the last addition count."""
    found = changes(
        Version(4),
        [
            [add("f", "2"), remove("f", "1"), add("new")],
            [remove("f", "2"), add("f", "3"), remove("new"), remove("old")],
        ],
    )
    assert found.version == 6
    assert {
        path: (change.before and vector_of(change.before), change.after and vector_of(change.after))
        for path, change in found.files.items()
    } == {"f": ("u1", "u3"), "old": (None, None)}
    assert [change.path for change in found.lost_rows] == ["f", "old"]
    assert found.came == ()


def test_the_rest_of_a_commit_is_noted() -> None:
    """Tokens, domains, the definition, and whose commit it is."""
    found = changes(
        Version(0),
        [
            [Action("commitInfo", {"txnId": "a"}), Action("txn", {"appId": "x", "version": 3})],
            [Action("commitInfo", {"txnId": "b"}), Action("domainMetadata", {"domain": "d"}), Action("metaData", {})],
        ],
    )
    assert (found.transactions, found.domains, found.is_definition_changed) == ({"x": 3}, {"d"}, True)
    assert found.transaction_ids == {"a": 1, "b": 2}
    assert not changes(Version(0), [[add("f")]]).is_definition_changed


def test_a_file_with_rewritten_statistics_has_the_same_rows() -> None:
    """No vector has changed, so no row has."""
    found = changes(Version(0), [[remove("f", "1"), add("f", "1", stats="{}")]])
    assert (found.lost_rows, found.came) == ((), ())


def test_a_second_removal_changes_nothing() -> None:
    """Other engines write such commits, and readers pass over them."""
    found = changes(Version(0), [[remove("f", "1")], [remove("f", "2")]])
    assert [(vector_of(change.before or {}), change.after) for change in found.files.values()] == [("u1", None)]


def test_logs_of_other_engines_fold_to_the_files_that_they_leave(delta_tables: Path) -> None:
    """Every whole log of the collected tables, against the protocol's rule that a file and its vector are one."""
    logs: dict[str, dict[int, str]] = defaultdict(dict)
    with tarfile.open(delta_tables) as archive:
        for member in archive:
            table, _, name = member.name.partition("/_delta_log/")
            if member.isfile() and len(name) == 25 and name.endswith(".json") and name[:20].isdigit():
                file = archive.extractfile(member)
                assert file is not None
                logs[table][int(name[:20])] = file.read().decode()
    whole = 0
    for table, texts in logs.items():
        if sorted(texts) != list(range(len(texts))):
            continue
        commits = [parse(texts[version]) for version in range(len(texts))]
        live: dict[tuple[str, str | None], Any] = {}
        for commit in commits:
            for action in commit:
                if action.kind == "remove":
                    live.pop((action.body["path"], vector_of(action.body)), None)
            for action in commit:
                if action.kind == "add":
                    live[(action.body["path"], vector_of(action.body))] = action.body
        found = changes(Version(-1), commits)
        assert {
            (path, vector_of(change.after)): json.dumps(change.after)
            for path, change in found.files.items()
            if change.after is not None
        } == {key: json.dumps(body) for key, body in live.items()}, table
        whole += 1
    assert whole > 100


def test_a_removed_file_is_an_add_again_with_the_partitions_that_are_null() -> None:
    """Delta's writer leaves null partition values out of a `remove`, and refuses an `add` without them."""
    schema = {"fields": [{"name": "p", "metadata": {"delta.columnMapping.physicalName": "col-1"}}, {"name": "q"}]}
    columns = partition_columns({"schemaString": json.dumps(schema), "partitionColumns": ["q", "p"]})
    assert columns == ("q", "col-1")
    removed = {"path": "f", "deletionTimestamp": 7, "extendedFileMetadata": True, "partitionValues": {"q": "1"}, "z": 1}
    assert as_add({**removed, "size": 5, "stats": None}, columns) == {
        "path": "f",
        "size": 5,
        "modificationTime": 7,
        "partitionValues": {"q": "1", "col-1": None},
        "dataChange": True,
        "z": 1,
    }
