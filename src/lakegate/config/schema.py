"""The JSON Schema and the tables of the reference, generated from the keys that the reader reads.

A test keeps `docs/reference/lakegate.schema.json` and `docs/reference/lakegate-yml.md` equal to the output of this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from lakegate.config.keys import FILE_SECTION
from lakegate.config.sections import Either, Key, Named, Section, default_text
from lakegate.config.value_types import Choice, JsonSchema

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
    """Returns the JSON Schema of `lakegate.yml`, for editors: every key of the design, also those not in this version."""
    file: JsonSchema = {
        "$schema": SCHEMA_DIALECT,
        "title": "lakegate.yml",
        "description": "A pipeline of Lakegate. A text may hold ${NAME} or ${NAME:-default}.",
        **FILE_SECTION.schema(),
        "anyOf": [{"required": ["streams"]}, {"required": ["sync"]}],
    }
    return json.dumps(file, indent=2, ensure_ascii=False) + "\n"


def sections() -> Iterator[Section]:
    """Yields every section of the file once, each before those inside it."""
    waiting = [FILE_SECTION]
    while waiting:
        section = waiting.pop(0)
        yield section
        waiting = [inner for key in section.keys if (inner := section_of(key)) is not None] + waiting


def section_of(key: Key[object]) -> Section | None:
    """Returns the section that a key's value is, or may be."""
    match key.kind:
        case Section() as section:
            return section
        case Named(of=section) | Either(section=section):
            return section
        case _:
            return None


def table_of(section: Section) -> str:
    """Returns the reference's Markdown table of one section."""
    rows = ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
    rows += [_row(key) for key in section.keys]
    return "\n".join(rows) + "\n"


def _row(key: Key[object]) -> str:
    default = "required" if key.is_required else default_text(key)
    if default and not key.is_required and not default.startswith("`") and " " not in default:
        default = f"`{default}`"
    meaning = f"**Not in this version.** {key.meaning}" if key.is_later else key.meaning
    if isinstance(key.kind, Choice) and key.kind.later:
        meaning += f" Not in this version: {', '.join(f'`{word}`' for word in key.kind.later)}."
    word, inner = key.kind.word, section_of(key)
    if inner is not None:
        word = f"{word} [{inner.title}](#{anchor_of(inner)})"
    example = f"`{key.example}`" if key.example else ""
    return f"| `{key.name}` | {word} | {default} | {meaning} | {example} |".replace("  ", " ")


def anchor_of(section: Section) -> str:
    """Returns the heading's anchor in the reference."""
    return section.title.lower().replace(".", "").replace(" ", "-")
