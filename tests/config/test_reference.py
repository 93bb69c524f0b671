"""The published JSON Schema and the reference page agree with the reader of the file.

After a change of the keys: `LAKEGATE_WRITE_REFERENCE=1 pytest tests/config/test_reference.py` rewrites both.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lakegate.config import Pipeline
from lakegate.config.reading import parse
from lakegate.config.schema import anchor_of, json_schema, sections, table_of, title_of
from lakegate.config.sections import has_default, meaning_and_default, type_of
from lakegate.config.value_types import Reader
from lakegate.config.yaml_nodes import Entries, Faults, from_yaml

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
WRITES = os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1"


def test_published_schema_is_what_the_keys_give() -> None:
    """docs/reference/lakegate.schema.json is generated, and never edited."""
    if WRITES:
        (REFERENCE / "lakegate.schema.json").write_text(json_schema(), encoding="utf-8")
    assert (REFERENCE / "lakegate.schema.json").read_text(encoding="utf-8") == json_schema()


def test_reference_has_every_key_of_every_section() -> None:
    """Each section's table in docs/reference/lakegate-yml.md is the one that the keys give, and none is missing."""
    page = (REFERENCE / "lakegate-yml.md").read_text(encoding="utf-8")
    tables = {title_of(section): table_of(section) for section in sections()}
    places = re.findall(r"<!-- keys: (.*?) -->", page)
    assert sorted(places) == sorted(tables)
    expected = re.sub(
        r"<!-- keys: (.*?) -->\n.*?<!-- end -->",
        lambda found: f"<!-- keys: {found[1]} -->\n{tables[found[1]]}<!-- end -->",
        page,
        flags=re.DOTALL,
    )
    if WRITES:
        (REFERENCE / "lakegate-yml.md").write_text(expected, encoding="utf-8")
        page = expected
    assert page == expected


def test_links_between_sections_of_the_reference_lead_to_headings() -> None:
    """The anchors that the tables link to are headings of the page."""
    page = (REFERENCE / "lakegate-yml.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", page, re.M)
    }
    assert {anchor_of(section) for section in sections()} <= headings


def test_example_of_each_key_is_a_value_of_it() -> None:
    """Each can be copied from the tables of the page."""
    environ = {"CRM_DSN": "sqlite:crm.db", "SOURCE_DSN": "sqlite:source.db", "OPS_URL": "https://host/path"}
    for section in sections():
        for key, (_, field) in section.keys_of_file().items():
            value_type = type_of(field)
            if value_type is None or not field.examples:
                continue
            faults = Faults()
            tree = from_yaml(f"{key}: {field.examples[0]}", origin=key, environ=environ, faults=faults)
            assert isinstance(tree, Entries)
            read = value_type.read(tree.entries[key], Reader(base_dir="/base", faults=faults))
            assert (read is not None, faults.found) == (True, []), f"{section.__name__}.{key}"


def test_default_of_each_key_is_a_value_of_it() -> None:
    """What `config show` prints for a key that is not written can be written."""
    for section in sections():
        for key, (_, field) in section.keys_of_file().items():
            value_type = type_of(field)
            if value_type is not None and has_default(field):
                _, default = meaning_and_default(field)
                faults = Faults()
                tree = from_yaml(f"{key}: {default}", origin=key, environ={}, faults=faults)
                assert isinstance(tree, Entries)
                read = value_type.read(tree.entries[key], Reader(base_dir="/base", faults=faults))
                assert (read, faults.found) == (field.default, []), f"{section.__name__}.{key}"


def test_example_of_the_reference_is_a_pipeline_without_a_fault() -> None:
    """What a reader copies from the page works."""
    page = (REFERENCE / "lakegate-yml.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    pipeline = parse(example, origin="lakegate.yml", base_dir="/base", environ={})
    assert [stream.name for stream in pipeline.streams] == ["Ingestion", "Mutation", "TTL", "Upkeep"]


DESIGN_KEYS = """
name storage coordinator.url coordinator.lock_timeout spark log_store tables.path tables.name tables.lock
tables.columns tables.partition_by tables.cluster_by tables.properties streams.table streams.every streams.after
streams.strict streams.priority streams.aging streams.absent_after streams.source.files streams.source.format
streams.source.kafka streams.source.servers streams.source.value streams.source.schema streams.source.options
streams.max_rows_per_batch streams.turn_limit.batches streams.append.columns streams.append.key
streams.append.on_duplicate streams.mutate.match streams.mutate.set streams.mutate.delete_when
streams.mutate.sequence_by streams.mutate.applies_to streams.mutate.stand_for streams.mutate.unmatched.retry_for
streams.mutate.unmatched.then streams.erase.match streams.erase.lift_when streams.erase.physical_within
streams.maintain.optimize streams.maintain.zorder_by streams.maintain.vacuum_older_than streams.on_bad_record
streams.on_new_column streams.checkpoint streams.coverage sync.from sync.start sync.to sync.table sync.tables
sync.key sync.plan sync.mode sync.parallelism sync.on_violation sync.on_schema_change
"""


def _properties(schema: Any, definitions: Any) -> dict[str, Any]:
    for one in [schema, *schema.get("anyOf", [])]:
        if "properties" in one:
            return dict(one["properties"])
        if "patternProperties" in one:
            return _properties(*one["patternProperties"].values(), definitions)
        if "$ref" in one:
            return _properties(definitions[one["$ref"].removeprefix("#/$defs/")], definitions)
    raise AssertionError(f"no properties in {schema}")


@pytest.mark.parametrize("path", DESIGN_KEYS.split())
def test_schema_holds_every_key_of_the_design(path: str) -> None:
    """No key of the file format is missing, whether or not this version has it."""
    node = schema = json.loads(json_schema())
    for name in path.split("."):
        node = _properties(node, schema["$defs"])[name]
    assert node["description"]


def test_schema_and_reader_know_the_same_keys() -> None:
    """A key that is not in the schema is unknown to the reader, too: both come from one table."""
    assert list(json.loads(json_schema())["properties"]) == list(Pipeline.keys_of_file())
