"""A pipeline written in Python: the keys of `lakegate.yml`, collected call by call and validated the same way.

Rules for editors: this module repeats no check of the file's rules; it only collects the mapping that the file would have
contained. Texts are taken literally: `${NAME}` is for files, Python has `os.environ`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, TypeVar, Unpack

from lakegate.config.model import LineageWord, Pipeline
from lakegate.config.reading import Override, validate
from lakegate.config.sections import Section
from lakegate.config.streams import (
    Append,
    AppliesTo,
    Erase,
    Maintain,
    Mutate,
    OnBadRecord,
    OnDuplicate,
    OnNewColumn,
    Otherwise,
    Transform,
)
from lakegate.config.yaml_nodes import Faults, from_values
from lakegate.errors import Fault, InvalidRequest
from lakegate.notebook import Shown

F = TypeVar("F", bound=Transform)
Names = str | Sequence[str]
After = str | Mapping[str, Names]
"""`"X"`, `{"any": ["X", "Y"]}` or `{"all": ["X", "Y"]}`."""
SourceKeys = Mapping[str, object]
"""The result of `kafka`, `files` or `files_json`; the keys of `source:`."""


def kafka(
    topics: Names, *, servers: str, schema: str, value: str = "json", options: Mapping[str, object] | None = None
) -> SourceKeys:
    """Returns a Kafka source: one or more topics; `schema` is Spark DDL of the decoded value."""
    return {"kafka": topics, "servers": servers, "value": value, "schema": schema, "options": options}


def files(
    path: str, *, format: str = "parquet", schema: str | None = None, options: Mapping[str, object] | None = None
) -> SourceKeys:
    """Returns a source of files: a folder, a file or a glob; without `schema` that of the Parquet files is used."""
    return {"files": path, "format": format, "schema": schema, "options": options}


def files_json(path: str, *, schema: str, options: Mapping[str, object] | None = None) -> SourceKeys:
    """Returns a source of files with one JSON record per line."""
    return files(path, format="json", schema=schema, options=options)


class ExpectationKeys(TypedDict, total=False):
    """Keys of an expectation."""

    where: Required[str]
    otherwise: Otherwise


class StreamKeys(TypedDict, total=False):
    """Keys of every stream, as in the file."""

    source: Required[SourceKeys]
    every: str
    after: After
    strict: Names
    absent_after: str
    max_rows_per_batch: int
    turn_limit: Mapping[str, int]
    on_bad_record: OnBadRecord
    expect: Mapping[str, ExpectationKeys]
    on_new_column: OnNewColumn
    checkpoint: str
    coverage: str
    priority: int
    aging: str


class AppendKeys(StreamKeys, total=False):
    """Keys of a stream that appends rows."""

    columns: Mapping[str, str]
    key: Names
    on_duplicate: OnDuplicate


class MutateKeys(StreamKeys, total=False):
    """Keys of a stream that changes rows."""

    match: Required[Mapping[str, str]]
    applies_to: Required[AppliesTo]
    set: Mapping[str, str]
    delete_when: str
    sequence_by: str
    stand_for: str
    unmatched: Mapping[str, str]


class EraseKeys(StreamKeys, total=False):
    """Keys of a stream that deletes rows."""

    match: Required[Mapping[str, str]]
    lift_when: str
    physical_within: str


class MaintainKeys(TypedDict, total=False):
    """Keys of a stream that maintains the table's files."""

    optimize: bool
    zorder_by: Names
    vacuum_older_than: str
    every: str
    after: After
    strict: Names
    absent_after: str
    priority: int
    aging: str


class PipelineBuilder(Shown):
    """Collects a pipeline; `build` validates it and returns its data."""

    def __init__(
        self,
        name: str,
        *,
        storage: str | None = None,
        keep_ledger_for: str | None = None,
        coordinator: str | Mapping[str, object] | None = None,
        spark: Mapping[str, object] | None = None,
        log_store: str | None = None,
        on_event: Mapping[str, Mapping[str, object]] | None = None,
        lineage: LineageWord | None = None,
    ) -> None:
        self.name = name
        self._keys: dict[str, object] = {
            "name": name,
            "storage": storage,
            "keep_ledger_for": keep_ledger_for,
            "coordinator": coordinator,
            "spark": spark,
            "log_store": log_store,
            "on_event": on_event,
            "lineage": lineage,
        }
        self._tables: dict[str, object] = {}
        self._streams: dict[str, object] = {}
        self._transforms: dict[str, Transform] = {}

    def table(
        self,
        table: str,
        /,
        *,
        path: str | None = None,
        name: str | None = None,
        lock: str | None = None,
        columns: str | None = None,
        partition_by: Names | None = None,
        cluster_by: Names | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> TableBuilder:
        """Adds a table to the pipeline, by its `path` or its catalog `name`.

        Raises:
            InvalidRequest: The pipeline already has a table of that name.
        """
        if table in self._tables:
            raise _twice("table", table)
        self._tables[table] = {
            "path": path,
            "name": name,
            "lock": lock,
            "columns": columns,
            "partition_by": partition_by,
            "cluster_by": cluster_by,
            "properties": properties,
        }
        return TableBuilder(self, table)

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: tables {', '.join(self._tables)}; streams {', '.join(self._streams)}>"

    def _shown(self) -> Mapping[str, object]:
        return {"name": self.name, "tables": list(self._tables), "streams": list(self._streams)}

    def build(self, *, base_dir: str, overrides: Sequence[Override] = ()) -> Pipeline:
        """Returns the pipeline's data.

        Args:
            base_dir: Absolute folder to which relative paths refer.
            overrides: Values that override those of the program.

        Raises:
            InvalidRequest: lists every fault with the path of its key.
        """
        faults = Faults()
        document = {**self._keys, "tables": self._tables, "streams": self._streams}
        tree = from_values(document, key="", faults=faults)
        return validate(tree, base_dir=base_dir, faults=faults, transforms=dict(self._transforms), overrides=overrides)

    def _add_stream(self, name: str, stream: Mapping[str, object]) -> StreamBuilder:
        if name in self._streams:
            raise _twice("stream", name)
        self._streams[name] = stream
        return StreamBuilder(name, self._transforms)


class TableBuilder:
    """Adds streams to a table, one per call; as a decorator it also takes the code of the stream's micro-batches."""

    def __init__(self, pipeline: PipelineBuilder, name: str) -> None:
        self._pipeline = pipeline
        self.name = name

    def append(self, *, name: str, **given: Unpack[AppendKeys]) -> StreamBuilder:
        """Adds a stream that appends rows.

        Raises:
            InvalidRequest: The pipeline already has a stream of that name.
        """
        return self._add(name, "append", Append, given)

    def mutate(self, *, name: str, **given: Unpack[MutateKeys]) -> StreamBuilder:
        """Adds a stream that changes rows.

        Raises:
            InvalidRequest: The pipeline already has a stream of that name.
        """
        return self._add(name, "mutate", Mutate, given)

    def erase(self, *, name: str, **given: Unpack[EraseKeys]) -> StreamBuilder:
        """Adds a stream that deletes rows for good.

        Raises:
            InvalidRequest: The pipeline already has a stream of that name.
        """
        return self._add(name, "erase", Erase, given)

    def maintain(self, *, name: str, **given: Unpack[MaintainKeys]) -> None:
        """Adds a stream without a source that compacts the table's files and deletes old ones; daily unless `every` is given.

        Raises:
            InvalidRequest: The pipeline already has a stream of that name.
        """
        self._add(name, "maintain", Maintain, given)

    def _add(self, name: str, kind: str, section: type[Section], given: Mapping[str, object]) -> StreamBuilder:
        of_kind = section.keys_of_file()
        stream: dict[str, object] = {"table": self.name}
        stream.update((key, value) for key, value in given.items() if key not in of_kind)
        stream[kind] = {key: value for key, value in given.items() if key in of_kind}
        return self._pipeline._add_stream(name, stream)


class StreamBuilder:
    """A stream that was added; calling it with a function sets the code of its micro-batches."""

    def __init__(self, name: str, transforms: dict[str, Transform]) -> None:
        self.name = name
        self._transforms = transforms

    def __call__(self, function: F) -> F:
        """Runs `function`, DataFrame to DataFrame, on each micro-batch before it is written or read as requests.

        Raises:
            InvalidRequest: The stream already has a function.
        """
        if self.name in self._transforms:
            raise _twice("function of the stream", self.name)
        self._transforms[self.name] = function
        return function


def _twice(thing: str, name: str) -> InvalidRequest:
    return InvalidRequest(faults=[Fault(where="pipeline", what=f"the {thing} {name!r} is there twice")])
