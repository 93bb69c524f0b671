"""Properties of reading `lakegate.yml` that hold for any text and any pipeline."""

from __future__ import annotations

import re
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakegate.config import Pipeline, parse
from lakegate.config.value_types import duration_ms, duration_text
from lakegate.errors import InvalidRequest
from lakegate.redaction import masked

FEW = settings(max_examples=60)

# Not of digits alone: what YAML's older version writes without quotes (09), the version that is read here takes for a number.
NAMES = st.text("abcXYZ019_-", min_size=1, max_size=8).filter(
    lambda name: name[0] not in "_-" and any(letter in "abcXYZ" for letter in name)
)
VOCABULARY = """
name storage coordinator url lock_timeout spark tables path lock streams table every after strict any all source files format
kafka servers schema options append mutate erase match set applies_to arrived sequence_by turn_limit batches sync 1h 5 true
./x s3a://b/x ${X} ${Y:-z} ${ parquet json engagement One Two null [] {} & * ! | >
"""
WORDS = st.sampled_from(VOCABULARY.split())
LEAVES = st.one_of(WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.dates())
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(WORDS, st.text(max_size=8)), inner, max_size=5)
    ),
    max_leaves=25,
)


def read(text: str, **environ: str) -> Pipeline | InvalidRequest:
    """Returns the pipeline or the expected error; any other exception fails the test."""
    try:
        return parse(text, origin="lakegate.yml", base_dir="/base", environ=environ)
    except InvalidRequest as error:
        return error


@given(st.text())
@example("%YAML 9.9\n---\nx")
@example("? ")
@example("- - - - - -")
@example('"\\UFFFFFFFF"')
@example("name: !!int x")
@example("\ufeffname: x")
@example("a: |\n  ${")
@FEW
def test_any_text_is_a_pipeline_or_an_invalid_request(text: str) -> None:
    """No text makes the reader fail in another way."""
    read(text, X="1")


@given(
    st.lists(st.one_of(WORDS, st.sampled_from([": ", "\n", "  ", "\n    ", "- ", ", ", "{", "}", "[", "]", "'", '"'])))
)
@FEW
def test_any_heap_of_words_is_a_pipeline_or_an_invalid_request(words: list[str]) -> None:
    """The same for texts that look more like a file."""
    read("".join(words), X="1")


@given(TREES)
@FEW
def test_any_tree_is_a_pipeline_or_an_invalid_request(tree: Any) -> None:
    """The same for every tree that YAML can say, with known keys in wrong places."""
    read(yaml.safe_dump(tree, allow_unicode=True), X="1")


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """Valid files: one to three tables, one to four streams, an order without cycles."""
    tables = draw(st.lists(NAMES, min_size=1, max_size=3, unique_by=str.lower))
    streams: dict[str, Any] = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower)):
        stream: dict[str, Any] = {
            "table": draw(st.sampled_from(tables)),
            "source": {"files": f"./in/{name}", "format": "parquet"},
            "append": {"key": ["id"], "on_duplicate": draw(st.sampled_from(["allow", "keep_first"]))},
            "every": draw(st.sampled_from(["1h", "15m", "1d"])),
            "max_rows_per_batch": draw(st.integers(1, 10**12)),
        }
        earlier = [other for other in streams if streams[other]["table"] == stream["table"]]
        if earlier and draw(st.booleans()):
            stream["after"] = draw(st.sampled_from(earlier))
        streams[name] = stream
    return {
        "name": draw(NAMES),
        "tables": {table: {"path": f"./lake/{table}"} for table in tables},
        "streams": streams,
    }


@given(pipelines())
@FEW
def test_valid_files_are_read_back(document: dict[str, Any]) -> None:
    """What was written arrives, streams in the order written."""
    pipeline = read(yaml.safe_dump(document, sort_keys=False))
    assert isinstance(pipeline, Pipeline), str(pipeline)
    assert [stream.name for stream in pipeline.streams] == list(document["streams"])
    for stream in pipeline.streams:
        written = document["streams"][stream.name]
        assert stream.table == written["table"]
        assert stream.max_rows_per_batch == written["max_rows_per_batch"]
        assert stream.every_ms == duration_ms(written["every"])


MISTAKES = {
    "unknown key": ("    evry: 1h", "evry"),
    "bad duration": ("    every: soon", "every"),
    "bad count": ("    max_rows_per_batch: none", "max_rows_per_batch"),
    "bad choice": ("    on_bad_record: cry", "on_bad_record"),
    "bad aging": ("    aging: soon", "aging"),
    "bad coverage": ("    coverage: whole", "coverage"),
    "place": ("    checkpoint: gs://b/c", "checkpoint"),
}


@given(st.data())
@FEW
def test_every_planted_mistake_is_reported_with_its_line(data: st.DataObject) -> None:
    """Of any mistakes in any streams, amid blank lines and comments, each is found, with its own line, and no other."""
    lines = ["name: p", "tables: {t: {path: ./t}}", "streams:"]
    planted = []
    for i in range(data.draw(st.integers(1, 4))):
        lines += [f"  S{i}:", "    table: t", f"    source: {{files: ./in{i}}}", "    append:"]
        for kind in data.draw(st.lists(st.sampled_from(sorted(MISTAKES)), unique=True)):
            lines += data.draw(st.sampled_from([[], [""], ["    # a comment"]]))
            text, key = MISTAKES[kind]
            lines.append(text)
            planted.append((f"lakegate.yml:{len(lines)}", f"S{i}", key))
    result = read("\n".join(lines) + "\n")
    if not planted:
        assert isinstance(result, Pipeline), str(result)
        return
    assert isinstance(result, InvalidRequest)
    assert [fault.where for fault in result.faults] == [where for where, _, _ in planted]
    for fault, (_, stream, key) in zip(result.faults, planted, strict=True):
        assert f"streams.{stream}" in fault.what
        assert key in fault.what


@given(st.integers(1, 36_500 * 86_400_000))
@FEW
def test_durations_are_read_as_they_are_shown(value_ms: int) -> None:
    """Text and milliseconds say the same."""
    assert duration_ms(duration_text(value_ms)) == value_ms


@given(st.text("aZ9!$%^*()+.,_-", min_size=4, max_size=20), NAMES)
@FEW
def test_password_in_a_url_is_masked(password: str, user: str) -> None:
    """Any text between the user and the host is hidden, and the rest is kept."""
    text = masked("servers", f"jdbc:x://{user}:{password}@host:1/db")
    assert text == f"jdbc:x://{user}:***@host:1/db"


@given(st.text(), st.text())
@FEW
def test_masking_is_stable(key: str, value: str) -> None:
    """Masking a masked text changes nothing."""
    once = masked(key, value)
    assert masked(key, once) == once


@given(TREES, st.text("abcdefgh", min_size=12, max_size=12))
@FEW
def test_no_fault_repeats_what_came_from_the_environment(tree: Any, secret: str) -> None:
    """Wherever a reference stands, rightly or wrongly, its value is in no message."""
    text = re.sub(r"\$\{X\}", "${SECRET_PLACE}", yaml.safe_dump(tree, allow_unicode=True))
    result = read(text, SECRET_PLACE=secret)
    if isinstance(result, InvalidRequest) and secret not in text:
        assert secret not in str(result)
