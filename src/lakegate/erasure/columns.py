"""The key columns of a search: under which names the files and the log of a table hold them, in any of its versions.

A renamed or dropped column keeps its physical name in old files. Rules for editors: pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["text", "number", "float", "date", "timestamp", "boolean", "binary"]
PHYSICAL = "delta.columnMapping.physicalName"
KINDS: Mapping[str, Kind] = {
    "string": "text",
    "byte": "number",
    "short": "number",
    "integer": "number",
    "long": "number",
    "decimal": "number",
    "float": "float",
    "double": "float",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "boolean": "boolean",
    "binary": "binary",
}
"""Delta's types without parameters → how their values are compared."""

Path = tuple[str, ...]


def decoded(path: str) -> str:
    """Returns a path of the log without its percent signs; those of a partition's value need it twice."""
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), path.encode()).decode(
        errors="replace"
    )


@dataclass(slots=True)
class KeyColumn:
    """A column that a person is named by, with all the names that it had."""

    name: str
    """As asked for; fields of structs with dots."""
    paths: set[Path] = field(default_factory=set)
    """In Parquet files and statistics: names of the fields from the outside in, in lower case."""
    names: set[str] = field(default_factory=set)
    """Of the field itself, as schemas and files have them."""
    kinds: set[Kind] = field(default_factory=set)

    @property
    def lower_names(self) -> set[str]:
        """The names in lower case."""
        return {name.lower() for name in self.names}


def key_columns(names: Iterable[str], schemas: Iterable[str]) -> dict[str, KeyColumn]:
    """Returns the columns by the names that were asked for; one that no version has is without paths.

    Args:
        names: As a version of the table has them; case is ignored.
        schemas: `schemaString` of the table's versions.
    """
    found = {name: KeyColumn(name=name) for name in names}
    fields = [one for schema in set(schemas) for one in _fields(json.loads(schema), (), ())]
    for name, column in found.items():
        wanted = name.lower()
        own = [one for one in fields if ".".join(one[0]).lower() == wanted]
        # The same physical column under its other names.
        physical = {one[1] for one in own}
        for logical, path, kind in [*own, *(one for one in fields if one[1] in physical)]:
            column.paths.add(tuple(part.lower() for part in path))
            column.names |= {logical[-1], path[-1], name.rpartition(".")[2]}
            column.kinds.add(kind)
    return found


def _fields(kind: Any, logical: Path, physical: Path) -> Iterator[tuple[Path, Path, Kind]]:
    """Yields logical path, physical path and kind of each field that has a plain value, also inside of arrays and maps."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for one in fields:
                name = str(one["name"])
                own = str((one.get("metadata") or {}).get(PHYSICAL, name))
                yield from _fields(one["type"], (*logical, name), (*physical, own))
        case {"type": "array", "elementType": element}:
            yield from _fields(element, logical, physical)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _fields(key, (*logical, "key"), (*physical, "key"))
            yield from _fields(value, (*logical, "value"), (*physical, "value"))
        case str():
            plain = KINDS.get(kind.partition("(")[0])
            if plain is not None:
                yield logical, physical, plain
