"""Converts fault-free fields to the pipeline's data, with every default filled in. Nothing here can fail."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Literal, cast

from lakegate.config import keys
from lakegate.config.model import (
    Append,
    ChangeFilesSource,
    CoordinatorSpec,
    EnvelopeFilesSource,
    EnvelopeTopicsSource,
    Erase,
    FilesSource,
    KafkaSource,
    Maintain,
    Mutate,
    Pipeline,
    Source,
    StreamKind,
    StreamSpec,
    SyncSpec,
    TableSource,
    TableSpec,
    Transform,
    Unmatched,
)
from lakegate.config.sections import Fields
from lakegate.config.validation import lock_of, order_of
from lakegate.config.value_types import Reader, duration_text


def assemble(file: Fields, reader: Reader, *, notes: tuple[str, ...], transforms: Mapping[str, Transform]) -> Pipeline:
    """Returns the pipeline; `transforms` is user code by the name of its stream."""
    storage = file.get(keys.STORAGE)
    if storage is None:
        storage = posixpath.join(reader.base_dir, "_lakegate")
        reader.record_default(keys.STORAGE.name, storage)
    coordinator = _coordinator(file, storage, reader)
    tables = {name: _table(name, fields, reader) for name, fields in (file.get(keys.TABLES) or {}).items()}
    streams = tuple(
        _stream(name, fields, storage, reader, transforms.get(name))
        for name, fields in (file.get(keys.STREAMS) or {}).items()
    )
    syncs = tuple(_sync(name, fields, reader) for name, fields in (file.get(keys.SYNC) or {}).items())
    return Pipeline(
        name=file[keys.NAME],
        storage=storage,
        keep_ledger_ms=file[keys.KEEP_LEDGER_FOR],
        coordinator=coordinator,
        log_store=file.get(keys.LOG_STORE) or "auto",
        spark=file.get(keys.SPARK) or {},
        tables=tables,
        streams=streams,
        syncs=syncs,
        notes=notes,
        entries=tuple(reader.entries),
    )


def _coordinator(file: Fields, storage: str, reader: Reader) -> CoordinatorSpec:
    fields = file.get(keys.COORDINATOR)
    url = None if fields is None else fields.get(keys.URL)
    timeout_ms = None if fields is None else fields.get(keys.LOCK_TIMEOUT)
    if url is None:
        url = f"sqlite:{posixpath.join(storage, 'turns.db')}"
        reader.record_default("coordinator.url", url)
    if timeout_ms is None:
        timeout_ms = keys.LOCK_TIMEOUT.default or 0
        reader.record_default("coordinator.lock_timeout", duration_text(timeout_ms))
    return CoordinatorSpec(url=url, lock_timeout_ms=timeout_ms)


def _table(name: str, fields: Fields, reader: Reader) -> TableSpec:
    if not fields.has(keys.LOCK):
        reader.record_default(fields.path_of(keys.LOCK), name)
    return TableSpec(
        name=name,
        path=fields.get(keys.TABLE_PATH),
        catalog_name=fields.get(keys.CATALOG_NAME),
        lock=lock_of(fields, name),
        columns=fields.get(keys.COLUMNS),
        partition_by=fields.get(keys.PARTITION_BY) or (),
        cluster_by=fields.get(keys.CLUSTER_BY) or (),
        properties=fields.get(keys.PROPERTIES) or {},
    )


def _stream(name: str, fields: Fields, storage: str, reader: Reader, transform: Transform | None) -> StreamSpec:
    source, checkpoint, every_ms = fields.get(keys.SOURCE), fields.get(keys.CHECKPOINT), fields.get(keys.EVERY)
    if checkpoint is None and source is not None:
        checkpoint = posixpath.join(storage, "checkpoints", name)
        reader.record_default(fields.path_of(keys.CHECKPOINT), checkpoint)
    if every_ms is None and fields.has(keys.MAINTAIN):
        every_ms = keys.MAINTAIN_EVERY_MS
        reader.record_default(fields.path_of(keys.EVERY), duration_text(every_ms))
    return StreamSpec(
        name=name,
        table=fields[keys.TABLE],
        every_ms=every_ms,
        order=order_of(fields),
        absent_after_ms=fields[keys.ABSENT_AFTER],
        priority=fields.get(keys.PRIORITY) or 0,
        aging_ms=fields[keys.AGING],
        source=None if source is None else _source(source, reader),
        kind=_kind(fields, reader),
        max_rows_per_batch=fields[keys.MAX_ROWS_PER_BATCH],
        coverage=fields[keys.COVERAGE],
        turn_limit_batches=_turn_limit(fields, reader),
        on_bad_record=fields[keys.ON_BAD_RECORD],
        on_new_column=fields[keys.ON_NEW_COLUMN],
        checkpoint=checkpoint,
        transform=transform,
    )


def _sync(name: str, fields: Fields, reader: Reader) -> SyncSpec:
    return SyncSpec(
        name=name,
        source=_changes(fields, reader),
        to=fields[keys.SYNC_TO],
        table=fields.get(keys.SYNC_TABLE),
        tables=fields.get(keys.SYNC_TABLES) or {},
        key=fields.get(keys.SYNC_KEY) or (),
        plan=fields[keys.SYNC_PLAN],
        mode=fields[keys.SYNC_MODE],
        parallelism=fields[keys.SYNC_PARALLELISM],
        on_violation=fields[keys.SYNC_ON_VIOLATION],
        on_schema_change=fields[keys.SYNC_ON_SCHEMA_CHANGE],
        ddl=fields[keys.SYNC_DDL],
        foreign_key_actions=fields[keys.SYNC_FOREIGN_KEY_ACTIONS],
        patience_ms=fields[keys.SYNC_PATIENCE],
        source_dsn=fields.get(keys.SYNC_SOURCE_DSN),
    )


def _changes(
    fields: Fields, reader: Reader
) -> ChangeFilesSource | EnvelopeFilesSource | EnvelopeTopicsSource | TableSource:
    source = fields[keys.SYNC_FROM]
    if isinstance(source, str):
        start = fields.get(keys.SYNC_START)
        if start is None:
            reader.record_default(fields.path_of(keys.SYNC_START), "snapshot")
        number = start[keys.START_VERSION] if isinstance(start, Fields) else None
        return TableSource(table=source, start=number or ("latest" if start == "latest" else "snapshot"))
    among = cast("Fields", source)  # the only other type besides a name
    transactions = among.get(keys.SYNC_TRANSACTIONS)
    topics = among.get(keys.SYNC_KAFKA)
    if topics is not None:
        return EnvelopeTopicsSource(
            topics=topics,
            servers=among[keys.SERVERS],
            transactions=transactions,
            bytes_as=among.get(keys.SYNC_BYTES),
            placeholder=among[keys.SYNC_PLACEHOLDER],
            options=among.get(keys.SYNC_OPTIONS) or {},
        )
    path = among[keys.SYNC_FILES]
    if among.get(keys.SYNC_FORMAT) == "debezium":
        beside = None if transactions is None else posixpath.join(reader.base_dir, transactions)
        return EnvelopeFilesSource(
            path=path,
            transactions=beside,
            bytes_as=among.get(keys.SYNC_BYTES),
            placeholder=among[keys.SYNC_PLACEHOLDER],
        )
    return ChangeFilesSource(
        path=path,
        format=cast("Literal['json', 'parquet'] | None", among.get(keys.SYNC_FORMAT)),
        transaction=among[keys.SYNC_TRANSACTION],
    )


def _turn_limit(stream: Fields, reader: Reader) -> int:
    fields = stream.get(keys.TURN_LIMIT)
    if fields is not None:
        return fields[keys.BATCHES]
    batches = keys.BATCHES.default or 0
    reader.record_default(f"{stream.path_of(keys.TURN_LIMIT)}.batches", str(batches))
    return batches


def _source(fields: Fields, reader: Reader) -> Source:
    options = fields.get(keys.OPTIONS) or {}
    topics = fields.get(keys.KAFKA)
    if topics is not None:
        if not fields.has(keys.VALUE):
            reader.record_default(fields.path_of(keys.VALUE), "json")
        return KafkaSource(
            topics=topics,
            servers=fields[keys.SERVERS],
            value="json",
            schema=fields[keys.SOURCE_SCHEMA],
            options=options,
        )
    if not fields.has(keys.FORMAT):
        reader.record_default(fields.path_of(keys.FORMAT), "parquet")
    return FilesSource(
        path=fields[keys.FILES],
        format=fields.get(keys.FORMAT) or "parquet",
        schema=fields.get(keys.SOURCE_SCHEMA),
        options=options,
    )


def _kind(stream: Fields, reader: Reader) -> StreamKind:
    if (append := stream.get(keys.APPEND)) is not None:
        return Append(
            columns=append.get(keys.APPEND_COLUMNS) or {},
            key=append.get(keys.APPEND_KEY) or (),
            on_duplicate=append[keys.ON_DUPLICATE],
        )
    if (mutate := stream.get(keys.MUTATE)) is not None:
        return Mutate(
            match=mutate[keys.MATCH],
            set=mutate.get(keys.SET) or {},
            delete_when=mutate.get(keys.DELETE_WHEN),
            sequence_by=mutate.get(keys.SEQUENCE_BY),
            applies_to=mutate[keys.APPLIES_TO],
            stand_for_ms=mutate.get(keys.STAND_FOR),
            unmatched=_unmatched(mutate, reader),
        )
    if (erase := stream.get(keys.ERASE)) is not None:
        return Erase(
            match=erase[keys.MATCH],
            lift_when=erase.get(keys.LIFT_WHEN),
            physical_within_ms=erase.get(keys.PHYSICAL_WITHIN),
        )
    maintain = stream[keys.MAINTAIN]
    return Maintain(
        optimize=maintain[keys.OPTIMIZE],
        zorder_by=maintain.get(keys.ZORDER_BY) or (),
        vacuum_older_than_ms=maintain.get(keys.VACUUM_OLDER_THAN),
    )


def _unmatched(mutate: Fields, reader: Reader) -> Unmatched:
    fields = mutate.get(keys.UNMATCHED)
    if fields is not None:
        return Unmatched(retry_for_ms=fields[keys.RETRY_FOR], then="dead_letter")
    retry_for_ms = keys.RETRY_FOR.default or 0
    if mutate[keys.APPLIES_TO] == "arrived":
        reader.record_default(f"{mutate.path_of(keys.UNMATCHED)}.retry_for", duration_text(retry_for_ms))
    return Unmatched(retry_for_ms=retry_for_ms, then="dead_letter")
