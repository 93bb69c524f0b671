"""Shows results in notebooks as tables; values are escaped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any


class Shown:
    """Adds the form in which a notebook shows an object: its name and a table of what it says."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<b>{escape(type(self).__name__)}</b>{_table(_words(self._shown()))}"

    def _shown(self) -> Mapping[str, object]:
        """Returns the rows of the table; of a dataclass, the fields of its `repr`."""
        return _fields(self)


def _fields(it: Any) -> Mapping[str, object]:
    return {one.name: getattr(it, one.name) for one in dataclasses.fields(it) if one.repr and one.name[0] != "_"}


def _words(fields: Mapping[str, object]) -> Mapping[str, object]:
    """Returns names of fields as words; keys of a value, such as a table's path, stay as they are."""
    return {name.replace("_", " "): value for name, value in fields.items()}


def _table(rows: Mapping[str, object]) -> str:
    cells = (
        f'<tr><th style="text-align:left">{escape(str(name))}</th><td style="text-align:left">{_cell(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


def _cell(value: object) -> str:
    match value:
        case None | () | []:
            return "&ndash;"
        case bool():
            return "yes" if value else "no"
        case str():
            return escape(value)
        case Mapping():
            return _table(value) if value else "&ndash;"
        case Iterable():
            return "<br>".join(map(_cell, value))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _table(_words(_fields(value)))
        case _:
            return escape(str(value))
