"""The streams and syncs of a pipeline as jobs of OpenLineage, and what they read and write as datasets.

Source: OpenLineage, "Naming Conventions".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from lakegate.config.model import Pipeline, TableSpec
from lakegate.config.streams import FilesSource, KafkaSource, Source
from lakegate.config.syncs import (
    ChangeFilesSource,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    PostgresSource,
    SyncSpec,
    TableSource,
)
from lakegate.telemetry.lineage_runs import Dataset, LineageJob

_PORTS: Final = {"postgres": 5432, "mysql": 3306}


def lineage_of(pipeline: Pipeline) -> Mapping[str, LineageJob] | None:
    """Returns stream or sync → its job of OpenLineage; None where the file does not ask for lineage."""
    if pipeline.lineage is None:
        return None
    namespace = f"{pipeline.name}@{pipeline.storage}"
    jobs = {
        one.name: LineageJob(
            namespace=namespace,
            name=one.name,
            inputs=() if one.source is None else tuple(_of_source(one.source)),
            outputs=(of_table(pipeline.table_of(one), namespace),),
        )
        for one in pipeline.streams
    }
    for sync in pipeline.syncs:
        inputs, outputs = tuple(_read_by(sync, pipeline, namespace)), tuple(_written_by(sync))
        jobs[sync.name] = LineageJob(namespace=namespace, name=sync.name, inputs=inputs, outputs=outputs)
    return jobs


def of_path(path: str) -> Dataset:
    """Returns the dataset of a path: a file or folder of this machine, or an object of a store; of a glob, its folder."""
    path = re.sub(r"/[^/]*[*?\[{].*", "", path)
    scheme, found, rest = path.partition("://")
    if not found or scheme == "file":
        return Dataset("file", re.sub("^file:/*", "/", path))
    authority, _, name = rest.partition("/")
    return Dataset(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{authority}", name or "/")


def of_table(table: TableSpec, namespace: str) -> Dataset:
    """Returns the dataset of a table; a table of a catalog without a path is named in the pipeline's namespace."""
    return Dataset(namespace, table.catalog_name or table.name) if table.path is None else of_path(table.path)


def of_topics(servers: str, topics: tuple[str, ...]) -> Iterator[Dataset]:
    """Yields the datasets of Kafka topics; the first broker names the cluster."""
    for topic in topics:
        yield Dataset(f"kafka://{servers.partition(',')[0].strip()}", topic)


def of_database(address: str, table: str | None) -> Dataset:
    """Returns the dataset of a table of a database, or of the whole database; no part of it is a user or a password."""
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite":
        return Dataset("file", rest if table is None else f"{rest}/{table}")
    kind = "postgres" if scheme.startswith("postgres") else "mysql"
    place, _, database = rest.removeprefix("//").partition("?")[0].rpartition("@")[2].partition("/")
    host = place if re.search(r":\d+$", place) else f"{place or 'localhost'}:{_PORTS[kind]}"
    schema = "public." if kind == "postgres" and table is not None and "." not in table else ""
    return Dataset(f"{kind}://{host}", database if table is None else f"{database}.{schema}{table}")


def _of_source(source: Source) -> Iterator[Dataset]:
    match source:
        case FilesSource():
            yield of_path(source.path)
        case KafkaSource():
            yield from of_topics(source.servers, source.topics)


def _read_by(sync: SyncSpec, pipeline: Pipeline, namespace: str) -> Iterator[Dataset]:
    match sync.source:
        case TableSource(table=table):
            yield of_table(pipeline.tables[table], namespace)
        case PostgresSource(dsn=dsn, tables=tables):
            for one in tables or (None,):
                yield of_database(dsn, one)
        case EnvelopeTopicsSource(servers=servers, topics=topics):
            yield from of_topics(servers, topics)
        case ChangeFilesSource(path=path) | EnvelopeFilesSource(path=path):
            yield of_path(path)


def _written_by(sync: SyncSpec) -> Iterator[Dataset]:
    """Yields the tables that the file names; the whole database where it names none."""
    named = sync.table or (sync.source.table if isinstance(sync.source, TableSource) else None)
    for table in (named,) if named is not None else tuple(sync.tables.values()) or (None,):
        yield of_database(sync.to, table)
