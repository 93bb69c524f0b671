"""Columns of a request table: their names as they can be stored, and where they are when the table has other names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.streams.requests.column_names import Found, column_name, find_columns, is_same, stored_name


@given(st.text())
def test_a_name_comes_back_from_how_it_is_stored(name: str) -> None:
    """Whatever is in it, and no character is left that Parquet or Delta refuse."""
    assert column_name(stored_name(name)) == name
    assert not set(stored_name(name)) & set(" ,;{}()\n\t=")


CASES = [
    (["id"], ["col-1"], {"person": "col-1", "v": "col-2"}, ["person"], []),
    (["id"], ["col-1"], {"id": "col-2", "person": "col-1"}, ["person"], []),
    (["ID"], None, {"id": "id"}, ["id"], []),
    (["id"], None, {"person": "id"}, ["person"], []),
    (["id"], ["col-1"], {"id": "col-9"}, ["id"], []),
    (["a", "b"], ["1", "2"], {"b": "1", "a": "2"}, ["b", "a"], []),
    (["id", "v"], ["col-1", "col-2"], {"v": "col-2"}, ["v"], ["id"]),
    (["id"], None, {"v": "v"}, [], ["id"]),
]


@pytest.mark.parametrize(("stored", "physical", "table", "names", "missing"), CASES)
def test_a_column_is_known_by_its_physical_name_and_else_by_its_name(
    stored: list[str], physical: list[str] | None, table: dict[str, str], names: list[str], missing: list[str]
) -> None:
    """A rename, a swap, a recreated column, requests older than the note of physical names; a missing column is reported."""
    assert find_columns(stored, physical, table) == Found(names=tuple(names), missing=tuple(missing))


def test_columns_are_the_same_in_the_same_order() -> None:
    """Case does not count, the place does: requests are stored by it."""
    assert is_same(["Id", "v"], ["id", "V"])
    assert not is_same(["id", "v"], ["v", "id"])
    assert not is_same(["id"], ["id", "v"])
