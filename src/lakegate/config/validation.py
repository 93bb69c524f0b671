"""Rules between several values of a pipeline; each rule records a fault or a note, none raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lakegate.config import keys
from lakegate.config.sections import Fields, Key
from lakegate.config.value_types import suggestion
from lakegate.config.yaml_nodes import Faults, shown_key
from lakegate.turns.protocol.ordering import After, NoRule, OrderRule, Strict, lint

_KAFKA_OPTIONS_TAKEN: Final[Mapping[str, str]] = {
    "subscribe": "kafka",
    "subscribepattern": "kafka",
    "assign": "kafka",
    "kafka.bootstrap.servers": "servers",
    "maxoffsetspertrigger": "max_rows_per_batch",
    "minoffsetspertrigger": "max_rows_per_batch",
}
_FILES_OPTIONS_TAKEN: Final[Mapping[str, str]] = {
    "path": "files",
    "latestfirst": "files, which are taken in the order of arrival",
    "maxfilespertrigger": "max_rows_per_batch",
    "maxbytespertrigger": "max_rows_per_batch",
    "cleansource": "nothing: files stay where they are",
    "maxfileage": "nothing: no file is too old to be read",
    "filenameonly": "nothing: two files of one name in two folders are two files",
    "ignorecorruptfiles": "nothing: a damaged file stops the stream",
    "ignoremissingfiles": "nothing: a file that is gone before it was read stops the stream",
    "pathglobfilter": "files, with a glob such as in/*.json",
    "modifiedbefore": "files, with a glob of those to read",
    "modifiedafter": "files, with a glob of those to read",
    "recursivefilelookup": "files: a folder stands for all files below it, in/*.json for those of one folder",
    "basepath": "nothing: folders name=value below the source give columns",
    "mode": "on_bad_record",
    "columnnameofcorruptrecord": "on_bad_record",
}
_CLIENT_OPTIONS_TAKEN: Final = frozenset(
    {"bootstrap.servers", "group.id", "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store"}
)
"""Settings of a sync's client: only the target states where reading begins."""
_PROPERTY_REFUSED: Final = "delta.setTransactionRetentionDuration"
"""Deleting transaction ids would delete the record of written batches (rule 7 of turns)."""


def check(file: Fields, faults: Faults) -> tuple[str, ...]:
    """Returns notes on a pipeline whose values were read one by one; contradictions are added to `faults`."""
    tables = file.get(keys.TABLES) or {}
    streams = file.get(keys.STREAMS) or {}
    if not file.has(keys.STREAMS) and not file.has(keys.SYNC):
        faults.add(file.mark, keys.STREAMS.name, "missing", "at least one stream, or one sync")
    elif file.get(keys.STREAMS) == {}:
        faults.add(file.mark_of(keys.STREAMS), keys.STREAMS.name, "no stream in it", "at least one stream")
    if file.get(keys.SYNC) == {}:
        faults.add(file.mark_of(keys.SYNC), keys.SYNC.name, "no sync in it", "at least one sync")
    _check_spark(file, faults)
    notes: list[str] = []
    for table in tables.values():
        if table.is_readable:
            _check_table(table, faults)
    _check_places(file, tables, streams, faults)
    for stream in streams.values():
        if stream.is_readable:
            _check_stream(stream, tables, faults, notes)
            _check_inside(stream, file, tables, streams, faults)
    for name, sync in (file.get(keys.SYNC) or {}).items():
        if name in streams:
            faults.add(sync.mark, sync.at, "a stream has this name, too", "names that `lakegate run` can tell apart")
        if sync.is_readable:
            _check_sync(sync, tables, faults)
    notes += _check_order(streams, tables, faults)
    return tuple(notes)


def _check_spark(file: Fields, faults: Faults) -> None:
    for name in file.get(keys.SPARK) or {}:
        if name.removeprefix("spark.").startswith("job.coordinator."):
            what = f"{shown_key(name)} is for jobs without a file"
            expected = "coordinator: and the table's lock: instead"
            faults.add(file.mark_of(keys.SPARK), keys.SPARK.name, what, expected)


def _exactly_one(fields: Fields, choices: tuple[Key[object], ...], faults: Faults) -> None:
    given = [key.name for key in choices if fields.has(key)]
    names = ", ".join(key.name for key in choices if not key.is_later)
    if not given:
        faults.add(fields.mark, fields.at, f"none of {names}", f"one of {names}")
    elif len(given) > 1:
        faults.add(fields.mark_of(choices[0]), fields.at, f"{' and '.join(given)} together", f"one of {names}")


def _check_table(table: Fields, faults: Faults) -> None:
    _exactly_one(table, (keys.TABLE_PATH, keys.CATALOG_NAME), faults)
    if table.has(keys.PARTITION_BY) and table.has(keys.CLUSTER_BY):
        faults.add(table.mark_of(keys.CLUSTER_BY), table.at, "partition_by and cluster_by together", "one of them")
    for name in table.get(keys.PROPERTIES) or {}:
        if name.lower() == _PROPERTY_REFUSED.lower():
            what = f"{_PROPERTY_REFUSED} would let the table forget which batches were written"
            faults.add(table.mark_of(keys.PROPERTIES), table.path_of(keys.PROPERTIES), what, "it to be left out")


def _check_places(file: Fields, tables: Mapping[str, Fields], streams: Mapping[str, Fields], faults: Faults) -> None:
    """Refuses shared locations: two locks on one table, or two queries on one checkpoint, would protect nothing."""
    taken: dict[str, str] = {}
    places: list[tuple[Fields, Key[str]]] = [(file, keys.STORAGE)]
    places += [(table, keys.TABLE_PATH) for table in tables.values()]
    places += [(table, keys.CATALOG_NAME) for table in tables.values()]
    places += [(stream, keys.CHECKPOINT) for stream in streams.values()]
    for fields, key in places:
        place = fields.get(key)
        if place is None:
            continue
        place = place.lower() if key is keys.CATALOG_NAME else place
        first = taken.setdefault(place, fields.path_of(key))
        if first != fields.path_of(key):
            faults.add(fields.mark_of(key), fields.path_of(key), f"the same place as {first}", "a place of its own")


def _check_inside(
    stream: Fields, file: Fields, tables: Mapping[str, Fields], streams: Mapping[str, Fields], faults: Faults
) -> None:
    """Refuses a table, checkpoint or storage below a source's folder: a stream would read Lakegate's own files."""
    source = stream.get(keys.SOURCE)
    folder = None if source is None else source.get(keys.FILES)
    if source is None or folder is None:
        return
    places: list[tuple[Fields, Key[str]]] = [
        (file, keys.STORAGE),
        *((table, keys.TABLE_PATH) for table in tables.values()),
    ]
    places += [(one, keys.CHECKPOINT) for one in streams.values()]
    inside = folder.rstrip("/") + "/"
    for fields, key in places:
        place = fields.get(key)
        below = None if place is None or not f"{place}/".startswith(inside) else place[len(inside) :]
        # Spark reads nothing below a hidden folder.
        if below is not None and not any(part.startswith(("_", ".")) for part in below.split("/")):
            what = f"the source's folder holds what {fields.path_of(key)} names"
            faults.add(source.mark_of(keys.FILES), source.path_of(keys.FILES), what, "a folder of its own")
            return


def _check_stream(stream: Fields, tables: Mapping[str, Fields], faults: Faults, notes: list[str]) -> None:
    table = stream.get(keys.TABLE)
    if table is not None and table not in tables:
        what = f"there is no table {shown_key(table)}{suggestion(table, tables)}"
        expected = f"one of {', '.join(tables)}" if tables else "a table under tables:"
        faults.add(stream.mark_of(keys.TABLE), stream.path_of(keys.TABLE), what, expected)
    if stream.has(keys.AFTER) and stream.has(keys.STRICT):
        faults.add(stream.mark_of(keys.STRICT), stream.at, "after and strict together", "one of them")
    _exactly_one(stream, (keys.APPEND, keys.MUTATE, keys.ERASE, keys.MAINTAIN), faults)
    if not stream.has(keys.SOURCE) and not stream.has(keys.MAINTAIN):
        faults.add(stream.mark, stream.path_of(keys.SOURCE), "missing", "where its records come from: files or kafka")
    if (maintain := stream.get(keys.MAINTAIN)) is not None:
        _check_maintain(stream, maintain, tables.get(table or ""), faults)
    elif (source := stream.get(keys.SOURCE)) is not None:
        _check_source(source, faults)
    if (append := stream.get(keys.APPEND)) is not None:
        _check_append(append, faults)
    if (mutate := stream.get(keys.MUTATE)) is not None:
        _check_mutate(mutate, faults, notes)
    if (erase := stream.get(keys.ERASE)) is not None and not erase.has(keys.LIFT_WHEN):
        notes.append(
            f"{erase.at}: an erasure stays active for ever, also for a person who comes back; lift_when: would end it"
        )


def _check_source(source: Fields, faults: Faults) -> None:
    _exactly_one(source, (keys.FILES, keys.KAFKA), faults)
    is_kafka, is_files = source.has(keys.KAFKA), source.has(keys.FILES)
    if is_kafka and is_files:
        return
    if is_kafka and not source.has(keys.SERVERS):
        faults.add(source.mark, source.path_of(keys.SERVERS), "missing", "host:port of the brokers")
    wrong: tuple[Key[object], ...] = (keys.FORMAT,) if is_kafka else (keys.SERVERS, keys.VALUE) if is_files else ()
    for key in wrong:
        if source.has(key):
            faults.add(source.mark_of(key), source.path_of(key), f"not a key of {'kafka' if is_kafka else 'files'}")
    if (is_kafka or source.get(keys.FORMAT) == "json") and not source.has(keys.SOURCE_SCHEMA):
        of = "Kafka records" if is_kafka else "JSON files"
        faults.add(source.mark, source.path_of(keys.SOURCE_SCHEMA), "missing", f"the columns of {of} as Spark DDL")
    taken = _KAFKA_OPTIONS_TAKEN if is_kafka else _FILES_OPTIONS_TAKEN
    for name in source.get(keys.OPTIONS) or {}:
        if name.lower() in taken:
            what = f"{shown_key(name)} is not for you to set"
            faults.add(source.mark_of(keys.OPTIONS), source.path_of(keys.OPTIONS), what, taken[name.lower()])


_OF_SOURCES: Final[tuple[Key[object], ...]] = (
    keys.SOURCE,
    keys.MAX_ROWS_PER_BATCH,
    keys.TURN_LIMIT,
    keys.ON_BAD_RECORD,
    keys.ON_NEW_COLUMN,
    keys.CHECKPOINT,
    keys.COVERAGE,
)
"""Keys that concern records."""


def _check_maintain(stream: Fields, maintain: Fields, table: Fields | None, faults: Faults) -> None:
    for key in _OF_SOURCES:
        if stream.has(key):
            faults.add(stream.mark_of(key), stream.path_of(key), "a stream that maintains has no source")
    zorder_by = maintain.get(keys.ZORDER_BY) or ()
    if not maintain.get(keys.OPTIMIZE):
        if maintain.has(keys.ZORDER_BY):
            expected = "optimize: true"
            faults.add(
                maintain.mark_of(keys.ZORDER_BY), maintain.path_of(keys.ZORDER_BY), "nothing is optimized", expected
            )
        elif not maintain.has(keys.VACUUM_OLDER_THAN):
            expected = "optimize: true, or vacuum_older_than:, or both"
            faults.add(stream.mark_of(keys.MAINTAIN), maintain.at, "nothing to do in it", expected)
    if table is None or not zorder_by:
        return
    if table.has(keys.CLUSTER_BY):
        what = "the table has cluster_by, which orders its rows already"
        faults.add(maintain.mark_of(keys.ZORDER_BY), maintain.path_of(keys.ZORDER_BY), what, "one of them")
    partitions = {column.lower() for column in table.get(keys.PARTITION_BY) or ()}
    for column in zorder_by:
        if column.lower() in partitions:
            what = f"{shown_key(column)} is a column that the table is partitioned by"
            faults.add(maintain.mark_of(keys.ZORDER_BY), maintain.path_of(keys.ZORDER_BY), what, "other columns")


def _check_append(append: Fields, faults: Faults) -> None:
    if append.get(keys.ON_DUPLICATE) == "keep_first" and not append.has(keys.APPEND_KEY):
        what = "missing, and on_duplicate is keep_first"
        faults.add(append.mark_of(keys.ON_DUPLICATE), append.path_of(keys.APPEND_KEY), what, "the columns of the key")


def _check_mutate(mutate: Fields, faults: Faults, notes: list[str]) -> None:
    match, assigned = mutate.get(keys.MATCH), mutate.get(keys.SET)
    if match == {}:
        faults.add(mutate.mark_of(keys.MATCH), mutate.path_of(keys.MATCH), "no column in it", "at least one column")
    if not mutate.has(keys.DELETE_WHEN) and (assigned == {} or not mutate.has(keys.SET)):
        faults.add(mutate.mark_of(keys.SET), mutate.at, "neither set nor delete_when", "the new values of the rows")
    moved = sorted({column.lower() for column in match or {}} & {column.lower() for column in assigned or {}})
    if moved and mutate.has(keys.SEQUENCE_BY):
        names = ", ".join(shown_key(column) for column in moved)
        what = f"set assigns {names}, a column of match; a request that comes late could not be repaired"
        faults.add(mutate.mark_of(keys.SEQUENCE_BY), mutate.path_of(keys.SEQUENCE_BY), what, "it to be left out")
    elif moved:
        notes.append(f"{mutate.at}: set assigns a column of match, so requests apply in the order of the source")
    if mutate.has(keys.STAND_FOR) and mutate.get(keys.APPLIES_TO) == "arrived":
        expected = "applies_to: arrived_and_later"
        what = "an arrived request does not stand"
        faults.add(mutate.mark_of(keys.STAND_FOR), mutate.path_of(keys.STAND_FOR), what, expected)
    if mutate.has(keys.UNMATCHED) and mutate.get(keys.APPLIES_TO) == "arrived_and_later":
        notes.append(f"{mutate.at}: unmatched ends arrived requests only; these stand whether they match or not")


def _check_sync(sync: Fields, tables: Mapping[str, Fields], faults: Faults) -> None:
    def refuse(fields: Fields, unwanted: tuple[Key[object], ...], what: str) -> None:
        for key in unwanted:
            if fields.has(key):
                faults.add(fields.mark_of(key), fields.path_of(key), what, "it to be left out")

    source = sync.get(keys.SYNC_FROM)
    if isinstance(source, str):
        if source not in tables:
            known = ", ".join(tables) or "none"
            what = f"there is no table {shown_key(source)}"
            faults.add(sync.mark_of(keys.SYNC_FROM), sync.path_of(keys.SYNC_FROM), what, f"one under tables: {known}")
        refuse(sync, (keys.SYNC_TABLES,), "the source is one table: its target is named by `table`")
    elif isinstance(source, Fields):
        refuse(sync, (keys.SYNC_START,), "only a table has a snapshot and versions")
        _exactly_one(source, (keys.SYNC_FILES, keys.SYNC_KAFKA), faults)
        is_kafka, is_files = source.has(keys.SYNC_KAFKA), source.has(keys.SYNC_FILES)
        if is_kafka and not is_files:
            if not source.has(keys.SERVERS):
                faults.add(source.mark, source.path_of(keys.SERVERS), "missing", "host:port of the brokers")
            if source.get(keys.SYNC_FORMAT) in ("json", "parquet"):
                what = "topics are read in Debezium's format"
                faults.add(source.mark_of(keys.SYNC_FORMAT), source.path_of(keys.SYNC_FORMAT), what, "debezium")
        elif is_files and not is_kafka:
            refuse(source, (keys.SERVERS, keys.SYNC_OPTIONS), "it belongs to kafka")
        if is_kafka or source.get(keys.SYNC_FORMAT) == "debezium":
            refuse(source, (keys.SYNC_TRANSACTION,), "envelopes say their transaction themselves")
            refuse(sync, (keys.SYNC_TABLE,), "envelopes say their table: name its target under `tables`")
        else:
            refuse(source, (keys.SYNC_TRANSACTIONS,), "only Debezium has transaction metadata apart")
            refuse(source, (keys.SYNC_BYTES, keys.SYNC_PLACEHOLDER), "only Debezium's envelopes need it")
        placeholder = source.get(keys.SYNC_PLACEHOLDER) or ""
        if placeholder.startswith("hex:") and not re.fullmatch(r"hex:([0-9a-fA-F]{2})+", placeholder):
            path = source.path_of(keys.SYNC_PLACEHOLDER)
            faults.add(source.mark_of(keys.SYNC_PLACEHOLDER), path, "not hex", "pairs of hex digits behind `hex:`")
        _check_client(source, faults)
    if sync.has(keys.SYNC_TABLE) and sync.has(keys.SYNC_TABLES):
        faults.add(sync.mark_of(keys.SYNC_TABLE), sync.at, "table and tables together", "one of them")


def _check_client(source: Fields, faults: Faults) -> None:
    for name in source.get(keys.SYNC_OPTIONS) or {}:
        if name in _CLIENT_OPTIONS_TAKEN:
            what = f"{shown_key(name)} is not for you to set"
            faults.add(source.mark_of(keys.SYNC_OPTIONS), source.path_of(keys.SYNC_OPTIONS), what, "it to be left out")


def order_of(stream: Fields) -> OrderRule:
    """Returns the order rule of a stream."""
    after, strict = stream.get(keys.AFTER), stream.get(keys.STRICT)
    if after is not None:
        return after
    return NoRule() if strict is None else Strict(strict)


def lock_of(table: Fields, name: str) -> str:
    """Returns the lock of a table; its own name if none is given."""
    return table.get(keys.LOCK) or name


def _check_order(streams: Mapping[str, Fields], tables: Mapping[str, Fields], faults: Faults) -> list[str]:
    by_lock: dict[str, dict[str, OrderRule]] = {}
    elsewhere: dict[str, OrderRule] = {}
    for name, stream in streams.items():
        table = stream.get(keys.TABLE)
        if table is not None and table in tables:
            by_lock.setdefault(lock_of(tables[table], table), {})[name] = order_of(stream)
        else:
            elsewhere[name] = NoRule()
    notes = []
    for lock, rules in by_lock.items():
        # A stream whose table is wrong may belong to this lock: its name is not reported as unknown, too.
        paces = {name: streams[name].get(keys.EVERY) for name in rules}
        for finding in lint({**rules, **elsewhere}, paces):
            if finding.severity == "warning":
                notes.append(f"lock {lock}: {finding.text}")
                continue
            stream = streams[finding.job]
            key: Key[object] = keys.AFTER if isinstance(rules[finding.job], After) else keys.STRICT
            expected = f"streams of the lock {lock}: {', '.join(rules)}"
            faults.add(stream.mark_of(key), stream.path_of(key), finding.text, expected)
    return notes
