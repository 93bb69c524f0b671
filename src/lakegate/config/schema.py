"""The JSON Schema and the tables of the reference, generated from the sections that the reader reads.

A test keeps `docs/reference/lakegate.schema.json` and `docs/reference/lakegate-yml.md` equal to the output of this module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from lakegate.config.model import Pipeline
from lakegate.config.sections import Section, meaning_and_default, section_of, type_of
from lakegate.config.value_types import JsonSchema

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _OfFile(GenerateJsonSchema):
    """The JSON Schema of what a user writes: a key without a value is left out, so null is not a value."""

    def nullable_schema(self, schema: Any) -> JsonSchema:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> str:
    """Returns the JSON Schema of `lakegate.yml`, for editors."""
    file = Pipeline.model_json_schema(mode="serialization", schema_generator=_OfFile)
    return json.dumps({"$schema": SCHEMA_DIALECT, **file}, indent=2, ensure_ascii=False) + "\n"


def sections(section: type[Section] = Pipeline) -> Iterator[type[Section]]:
    """Yields every section of the file once, each before those inside it."""
    yield section
    for _, field in section.keys_of_file().values():
        if (inner := section_of(field)) is not None:
            yield from sections(inner)


def title_of(section: type[Section]) -> str:
    """Returns the title of a section in the reference."""
    return "the file" if section is Pipeline else str(section.model_config.get("title"))


def table_of(section: type[Section]) -> str:
    """Returns the reference's Markdown table of one section."""
    rows = ["| key | type | default | meaning | example |", "|---|---|---|---|---|"]
    rows += [_row(key, field) for key, (_, field) in section.keys_of_file().items()]
    return "\n".join(rows) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    meaning, default = meaning_and_default(field)
    if field.is_required():
        default = "required"
    elif default and not default.startswith("`") and " " not in default:
        default = f"`{default}`"
    value_type, inner = type_of(field), section_of(field)
    word = "section" if value_type is None else value_type.word
    if inner is not None:
        word = f"{word} [{title_of(inner)}](#{anchor_of(inner)})"
    example = f"`{field.examples[0]}`" if field.examples else ""
    return f"| `{key}` | {word} | {default} | {meaning} | {example} |".replace("  ", " ")


def anchor_of(section: type[Section]) -> str:
    """Returns the heading's anchor in the reference."""
    return title_of(section).lower().replace(".", "").replace(" ", "-")
