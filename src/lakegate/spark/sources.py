"""Reads a source: files or Kafka as a streaming DataFrame whose rows carry their position in the source.

Four columns are added to those of the record:
`_lg_order` (a struct that sorts in source order within a batch), `_lg_position` (the same for people: file#row, or
topic/partition/offset), `_lg_bad` (why the record did not parse, null if it did) and `_lg_raw` (its text if it did not).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from lakegate.config import FilesSource, KafkaSource, Source
from lakegate.delta.jvm import JVM_ERRORS, first_line
from lakegate.delta.storage_errors import refusal
from lakegate.errors import Corrupt, Fault, InvalidRequest, LostTurn, Unavailable
from lakegate.quoting import quoted
from lakegate.spark.fitting import fitted
from lakegate.spark.source_files import (
    FileState,
    Listing,
    PassedOver,
    TakenFiles,
    as_glob,
    base_of,
    far_listing,
    is_glob,
    is_local,
    listing,
    moved,
    passed_over,
    plain,
    printable,
    spark_path,
)
from lakegate.spark.source_schema import NO_VALUE, Footers, folder_columns, left_out

ORDER, POSITION, BAD, RAW = "_lg_order", "_lg_position", "_lg_bad", "_lg_raw"
RECORD = "_lg_record"
"""Added to these four on the way into a table: the record's columns as the source, or the user's function, returned them."""
SOURCE_COLUMNS = (ORDER, POSITION, BAD, RAW, RECORD)
_CORRUPT, _TEXT, _VALUE = "_lg_corrupt", "_lg_text", "_lg_value"
_NUMBERS = itertools.count()
_OF_FILES = ("multiline", "encoding", "charset", "linesep")
"""Options of a file reader that a reader of single records does not use."""
LINE_SAMPLE_BYTES = 1 << 20
_PARTITION_BYTES = 16 << 20
"""Of a micro-batch that is smaller, one task writes one file."""
_INT_MAX = 2**31 - 1
_RECORD_BYTES = 1 << 10
"""The size of a record of Kafka, of which Spark knows no size."""
TAKEN_FOOTERS_MAX = 100
"""The number of last taken files whose columns are known, in addition to those of the waiting files."""
NOTHING_PASSED_OVER = {
    "maxFileAge": "36500d",  # Spark's default skips files a week older than the newest, such as copies that keep times
    "fileNameOnly": "false",
    "latestFirst": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}
"""Options of Spark's file source that override the session's settings."""


@dataclass(slots=True, kw_only=True)
class Known:
    """A stream's knowledge of its source, kept from one look to the next; see `looked_at`."""

    taken: TakenFiles | None = None
    """The files that the stream has taken; None where there is no checkpoint."""
    there: Listing | None = None
    """The source's files, as of the last look."""
    footers: Footers = field(default_factory=Footers)
    folders: Mapping[str, DataType] = field(default_factory=dict)
    """Columns that folders `name=value` give, as of the last look."""
    schema: StructType | None = None
    """The schema of the Parquet files, as of the last look that found any."""
    lines: dict[str, tuple[FileState, int]] = field(default_factory=dict)
    """Waiting text files → their state when their lines were estimated, and the number of lines."""
    records: JsonRecords | None = None
    """The fields left out of JSON records."""
    texts: str | None = None
    """Name of the function that splits whole files into JSON records."""

    def waiting(self) -> list[str]:
        """Returns the source's files that are not taken yet."""
        assert self.there is not None, "the source was looked at"
        taken = {} if self.taken is None else self.taken.files
        return [path for path in self.there.files if path not in taken]


def listed(spark: SparkSession, path: str) -> Listing:
    """Lists the files of a source, on any file system.

    Raises:
        Unavailable: there is no such file or folder, or it cannot be read.
        Corrupt: see `listing`.
    """
    if is_local(path):
        is_there = is_glob(path) or os.path.exists(plain(path))
        found = listing(path) if is_there else None
    else:
        jvm: Any = spark._jvm
        jsession: Any = spark._jsparkSession
        try:
            text = jvm.io.github.lakegate.Bulk.listing(path, jsession.sessionState().newHadoopConf())
        except JVM_ERRORS as error:
            raise refusal(error) or Unavailable(
                f"the source {path} cannot be read; nothing was read", reason=first_line(error)
            ) from error
        found = None if text is None else far_listing(text)
    if found is None:
        raise Unavailable(f"the source {path} does not exist; nothing was read", advice="Make it, or correct `files`")
    return found


def compared(
    spark: SparkSession, source: FilesSource, there: Listing, taken: TakenFiles, *, is_drained: bool
) -> list[PassedOver]:
    """Returns the files of a source that are not read, or not read in their present state; see `passed_over`."""
    if is_local(source.path):
        return passed_over(there, taken, is_drained=is_drained)

    def still_there(paths: Sequence[str]) -> Sequence[str]:
        now = listed(spark, source.path).files
        return [path for path in paths if path in now]

    return passed_over(there, taken, is_drained=is_drained, still_there=still_there)


def looked_at(spark: SparkSession, source: FilesSource, known: Known) -> None:
    """Lists the source's files and reads which of them Spark has taken; on a local disk also the footers of Parquet files.

    Raises:
        Unavailable: there is no such file or folder, or it cannot be read.
        Corrupt: a waiting file is no Parquet file; or the checkpoint's log of files is damaged, or belongs to another source.
        InvalidRequest: the source is a Delta table.
    """
    known.there = listed(spark, source.path)
    if known.there.tables:
        raise InvalidRequest(
            "the source holds a Delta table, whose files have rows that the table does not have any more; nothing was read",
            advice="Name a folder without it. Write the table's rows out as files, or read its changes with a sync",
            table=printable(known.there.tables[0]),
        )
    if known.taken is not None:
        _refuse_other_source(source, known.there, known.taken.refresh())
        known.taken.refuse_lost()
        if (again := moved(known.there, known.taken)) is not None:
            raise InvalidRequest(
                "a file that was read was moved within the source, and would be read again; nothing was read",
                advice="Move it out of the source; or, to have it read again, give it a new time (touch)",
                before=printable(again[0]),
                file=printable(again[1]),
            )
    if not is_local(source.path):
        return
    if source.format == "parquet":
        # Of the taken files the newest: the stream may name a column that only they have, and the last ones are read again if
        # their batch was not finished.
        newest = [] if known.taken is None else known.taken.newest(TAKEN_FOOTERS_MAX)
        files, taken = known.there.files, {} if known.taken is None else known.taken.files
        older = {path: files[path] for path in newest if path in files and files[path].modified_ms == taken[path]}
        known.footers.read({path: files[path] for path in known.waiting()}, older)
    known.folders = folder_columns(known.there.files, known.there.base)


def read_stream(spark: SparkSession, source: Source, known: Known, *, max_rows_per_batch: int) -> DataFrame:
    """Returns the source as a streaming DataFrame.

    Args:
        spark: The session.
        source: The source's definition.
        known: The stream's knowledge of its source; kept from one call to the next.
        max_rows_per_batch: Limit of a micro-batch. Files are never split, so a larger file makes a batch of its own.

    Raises:
        InvalidRequest: the schema cannot be read, or a folder without files gives none to infer it from.
        Unavailable: there is no such folder.
        Corrupt: see `looked_at`.
    """
    match source:
        case FilesSource():
            looked_at(spark, source, known)
            return _files(spark, source, known, max_rows_per_batch)
        case KafkaSource():
            return _kafka(spark, source, known, max_rows_per_batch)


def require_files(spark: SparkSession, source: Source, known: Known, batch_id: int) -> None:
    """Checks that the files from which a batch was planned still exist: Spark silently skips missing ones.

    Raises:
        Corrupt: a file is missing; nothing of the batch was written.
        LostTurn: folders `name=value` were added while the query began, so that a column would have been empty.
    """
    if not isinstance(source, FilesSource) or known.taken is None or known.there is None:
        return
    files = known.taken.refresh().of_batch(batch_id)
    sizes: dict[str, int] = {}
    gone = []
    if is_local(source.path):
        for path in files:
            try:
                sizes[path] = os.stat(path).st_size
            except OSError:
                gone.append(path)
    elif (missing := _missing(spark, known.there.base, files)) is not None:
        gone = [missing]
    if gone:
        how_many = len(gone) if is_local(source.path) else "at least one"
        raise Corrupt(
            f"the source has lost {how_many} of the {len(files)} files that batch {batch_id} was planned from; nothing of "
            "the batch was written",
            advice="Put it back; or, to go on without it, put an empty file there instead",
            file=printable(gone[0]),
        )
    known.taken.note_sizes(sizes)
    if source.schema is not None and is_local(source.path):
        columns = {name.lower() for name in _declared(source.schema).names}
        late = columns & {
            name.lower() for name in folder_columns(files, known.there.base).keys() - known.folders.keys()
        }
        if late:
            raise LostTurn("folders that add a column appeared while the query began; the batch will run again")


def _missing(spark: SparkSession, base: str, files: Sequence[str]) -> str | None:
    """Returns one of these files that is missing on another file system; in one call. Names with a line break are skipped."""
    jvm: Any = spark._jvm
    jsession: Any = spark._jsparkSession
    folder = jvm.org.apache.hadoop.fs.Path(base)
    there = folder.getFileSystem(jsession.sessionState().newHadoopConf())
    found = jvm.io.github.lakegate.Bulk.missing(there, folder, "\n".join(one for one in files if "\n" not in one))
    return None if found is None else str(found)


def left_out_columns(source: Source, known: Known) -> list[str]:
    """Returns a sentence for each column of the waiting Parquet files that the stated schema leaves out."""
    if not isinstance(source, FilesSource) or source.schema is None or source.format != "parquet":
        return []
    found = left_out(known.footers.columns(), _declared(source.schema))
    return [
        f"the files have a column that the stated schema leaves out, and that is not read: {printable(name)} (in {printable(path)})"
        for name, path in sorted(found.items())
    ]


def _refuse_other_source(source: FilesSource, there: Listing, taken: TakenFiles) -> None:
    base = there.base.rstrip("/") + "/"
    if taken.files and not any(f"{path}/".startswith(base) for path in taken.files):
        raise Corrupt(
            "the checkpoint is of another source: it has taken no file of this one; nothing was read",
            advice="Restore the old `files`; or start a new checkpoint with --new-checkpoint JOB, which reads every file here",
            source=source.path,
            taken=printable(next(iter(taken.files))),
        )


def schema_of(spark: SparkSession, source: Source, known: Known | None = None) -> StructType:
    """Returns the record's columns: as declared, or merged from the Parquet files; and those of the folders' names.

    Args:
        spark: The session.
        source: The source's definition.
        known: The result of a look at the source; made here if it is None.

        Raises:
            InvalidRequest: the schema cannot be parsed or inferred.
            Unavailable: the source does not exist.
            Corrupt: see `looked_at`.
    """
    if isinstance(source, FilesSource) and known is None:
        known = Known()
        looked_at(spark, source, known)
    if source.schema is not None:
        return _declared(source.schema)
    assert isinstance(source, FilesSource)
    assert known is not None
    if not is_local(source.path):
        return _remote_schema(spark, source)
    waiting = known.waiting()
    try:
        schema = known.footers.merged(spark, waiting)
    except PySparkException as error:
        raise Unavailable(
            f"the source {source.path} cannot be read", reason=error.getCondition() or str(error)
        ) from error
    if not schema.fields and known.schema is not None:  # the files that were read have been removed
        return known.schema
    if not schema.fields:
        raise InvalidRequest(
            f"the source {source.path} holds no file to read the schema from; nothing was read",
            advice='Put a file there, or state the schema: `schema: "…"`',
        )
    own = {name.lower() for name in known.folders}
    fields = [one for one in schema.fields if one.name.lower() not in own]
    known.schema = StructType([*fields, *(StructField(name, kind) for name, kind in known.folders.items())])
    return known.schema


def _declared(text: str) -> StructType:
    try:
        declared = StructType.fromDDL(text)
    except ParseException as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidRequest(faults=[Fault(where="source.schema", what=reason, expected="Spark DDL")]) from error
    if not isinstance(declared, StructType):
        raise InvalidRequest(faults=[Fault(where="source.schema", what="one type", expected="columns, in Spark DDL")])
    return declared


def _remote_schema(spark: SparkSession, source: FilesSource) -> StructType:
    try:
        options = {**source.options, "mergeSchema": "true"}
        return spark.read.format(source.format).options(**options).load(source.path).schema
    except AnalysisException as error:
        raise Unavailable(
            f"the source {source.path} cannot be read",
            advice="Correct `files` or `format`",
            reason=error.getCondition() or str(error),
        ) from error


def placed(batch: DataFrame, source: Source, records: int | None = None) -> DataFrame:
    """Adds to each row of a `read_stream` micro-batch its position, and joins small partitions; call it once, before anything else.

    Lines of text are in ascending order within a split, and splits within a file; only a batch can number them, a streaming query
    cannot. The number in `_lg_position` counts the lines that one task reads: the line in the file, if the task reads one file.

    The batch is written with as many files as it has partitions. Spark reads each partition of Kafka, and on many cores each file,
    as a partition of its own, however few records it has.

    Args:
        batch: The micro-batch.
        source: Its source.
        records: At most so many records are in the batch; None if that is unknown. The size of files is known to Spark.
    """
    size_bytes = _size_bytes(batch) if records is None else records * _RECORD_BYTES
    if isinstance(source, FilesSource) and source.format != "parquet":
        in_task = F.col(f"{ORDER}.row").bitwiseAND((1 << 33) - 1).cast("string")
        batch = batch.withColumn(ORDER, F.col(ORDER).withField("row", F.monotonically_increasing_id())).withColumn(
            POSITION, F.concat_ws("#", F.col(f"{ORDER}.file"), in_task)
        )
    return batch.coalesce(min(size_bytes // _PARTITION_BYTES + 1, _INT_MAX))


def partition_count(frame: DataFrame) -> int:
    """Returns the number of partitions of a data frame, from its physical plan: no job is run."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def _size_bytes(batch: DataFrame) -> int:
    """Returns Spark's estimate of a micro-batch's size: of files their size, of other sources 2^63 - 1."""
    return int(batch._jdf.queryExecution().analyzed().stats().sizeInBytes())


def _files(spark: SparkSession, source: FilesSource, known: Known, max_rows: int) -> DataFrame:
    schema = schema_of(spark, source, known)
    clash = [name for name in schema.names if name.lower() in (*SOURCE_COLUMNS, _CORRUPT, _TEXT, _VALUE)]
    if clash:
        raise InvalidRequest(f"the source has columns that Lakegate adds itself: {', '.join(clash)}; nothing was read")
    reader = spark.readStream.format(source.format).options(**source.options).options(**NOTHING_PASSED_OVER)
    for option, value in _pace(source, known, max_rows).items():
        reader = reader.option(option, value)
    is_text = source.format == "json"
    how = {name.lower(): value for name, value in source.options.items()}
    whole = is_text and (how.get("multiline", "").lower() == "true" or bool(how.keys() & {"encoding", "charset"}))
    if is_text:
        reader = reader.format("text").option("wholetext", str(whole).lower())
    read = StructType([StructField("value", StringType())]) if is_text else schema
    if is_local(source.path) or not _has_folders(spark, source):
        # Without this option Spark takes columns from folder names, and silently drops files next to or below other folders.
        reader = reader.option("recursiveFileLookup", "true")
    frame = reader.schema(read).load(_path_for(spark, source.path))
    if whole:
        texts = _texts(spark, known, how)(F.col("value").cast("binary"))
        frame = frame.select(F.explode(texts).alias(_TEXT), "_metadata")
    elif is_text:  # a blank line is no record, and a byte order mark is no part of one
        frame = frame.select(F.expr("ltrim('\ufeff', value)").alias(_TEXT), "_metadata").where(
            F.col(_TEXT).rlike(r"\S")
        )
    meta = "_metadata"
    # Parquet knows a row's index in its file. Lines of text do not, and a streaming query cannot number them: see `placed`.
    row = F.col(f"{meta}.row_index") if source.format == "parquet" else F.lit(None).cast("bigint")
    split = F.lit(0).cast("bigint") if source.format == "parquet" else F.col(f"{meta}.file_block_start")
    order = F.struct(
        F.col(f"{meta}.file_modification_time").alias("modified_at"),
        F.col(f"{meta}.file_path").alias("file"),
        split.alias("split"),
        row.alias("row"),
    )
    place = F.concat_ws("#", F.col(f"{meta}.file_path"), row.cast("string"))
    bad, raw = _no_text(), _no_text()
    if is_text:
        frame = with_json(spark, frame, schema, known, how)
        bad, raw = F.col(BAD), F.when(F.col(BAD).isNotNull(), F.col(_TEXT))
    payload: list[Column] = []
    folders = {name.lower(): name for name in known.folders}
    for one in schema.fields:
        own = _field(one.name, f"{_VALUE}." if is_text else "")
        if one.name.lower() in folders:
            own, misfit = _of_folder(folders[one.name.lower()], one, own, base_of(source.path))
            bad = F.coalesce(bad, misfit)
        payload.append(own.alias(one.name))
    return frame.select(*payload, order.alias(ORDER), place.alias(POSITION), bad.alias(BAD), raw.alias(RAW))


def _path_for(spark: SparkSession, path: str) -> str:
    """Returns the path in the form that Spark's file source needs; see `spark_path`."""
    if is_local(path) or is_glob(path):
        return spark_path(path)
    jvm: Any = spark._jvm
    jsession: Any = spark._jsparkSession
    place = jvm.org.apache.hadoop.fs.Path(path)
    try:
        status = place.getFileSystem(jsession.sessionState().newHadoopConf()).getFileStatus(place)
    except JVM_ERRORS:  # the path does not exist, or may not be read: Spark reports it
        return path
    return as_glob(path) if status.isFile() else path


def _has_folders(spark: SparkSession, source: FilesSource) -> bool:
    """Returns True if Spark finds folders `name=value` in a source that is not on this machine's disk."""
    probe = "_lg_probe"
    try:
        found = spark.read.format(source.format).schema(f"{probe} STRING").load(source.path).schema
    except AnalysisException:  # there is no file yet
        return False
    return found.names != [probe]


def _texts(spark: SparkSession, known: Known, options: Mapping[str, str]) -> Callable[[Column], Column]:
    """Returns a function that splits a whole file (bytes) into texts of records: JSON values with `multiLine`, else lines."""
    if known.texts is None:
        jvm: Any = spark._jvm
        line = None if options.get("multiline", "").lower() == "true" else r"\r\n|\r|\n"
        if line is not None and (own := options.get("linesep")):
            line = re.escape(own)
        split = jvm.io.github.lakegate.JsonTexts(options.get("encoding", options.get("charset", "UTF-8")), line)
        known.texts = _registered(spark, split, "array<string>")
    name = known.texts
    return lambda file: F.call_function(name, file)


def _registered(spark: SparkSession, function: Any, kind: str) -> str:
    """Registers a Java function of one column for this session; returns its name."""
    jsession: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    name = f"lakegate_json_{next(_NUMBERS)}"
    jsession.udf().register(name, function, jvm.org.apache.spark.sql.types.DataType.fromDDL(kind))
    return name


def _of_folder(name: str, wanted: StructField, own: Column, base: str) -> tuple[Column, Column]:
    """Returns a column's value from the file's folder `name=value`, else from the record; and the reason if it does not fit."""
    depth = len([part for part in base.split("/") if part])
    inner = F.regexp_replace("_metadata.file_path", f"^(file:)?/*([^/]+/){{{depth}}}", "/")
    text = F.regexp_extract(inner, f".*/{re.escape(quote(name))}=([^/]*)/", 1)
    has_folder = inner.rlike(f"/{re.escape(quote(name))}=[^/]*/")
    decoded = F.url_decode(F.url_decode(F.regexp_replace(text, r"\+", "%252B")))
    decoded = F.when(decoded != NO_VALUE, decoded)
    value, misfit = fitted(decoded, StringType(), StructField(wanted.name, _as_text(wanted.dataType)))
    shapes = {IntegralType: r"^[-+]?\d+$", DateType: r"^\d{4}-\d{1,2}-\d{1,2}$"}  # month=01, day=2024-1-5
    for kind, pattern in shapes.items():
        if isinstance(wanted.dataType, kind):
            value = F.when(decoded.rlike(pattern), decoded.try_cast(wanted.dataType))
            misfit = F.when(
                value.isNull(), F.lit(f"does not fit: {wanted.name} is not {wanted.dataType.simpleString()}")
            )
    misfit = F.when(has_folder & decoded.isNotNull(), F.concat(misfit, F.lit(" in the name of its folder")))
    return F.when(has_folder, value).otherwise(own), misfit


def _no_text() -> Column:
    return F.lit(None).cast("string")


def _pace(source: FilesSource, known: Known, max_rows: int) -> dict[str, str]:
    """Returns the options that limit the files of a micro-batch to `max_rows` rows, unless a single file has more."""
    if not is_local(source.path):
        # Footers of a remote store cost one request each; a limit in bytes keeps the batch in the right order of magnitude.
        return {"maxBytesPerTrigger": str(max_rows * 100)}
    if source.format == "parquet":
        largest = known.footers.most_rows()
    else:
        assert known.there is not None
        states = {path: known.there.files[path] for path in known.waiting()}
        seen = known.lines
        known.lines = {
            path: seen[path] if path in seen and seen[path][0] == state else (state, _lines_of(path, state.size_bytes))
            for path, state in states.items()
        }
        largest = max((lines for _, lines in known.lines.values()), default=0)
    return {"maxFilesPerTrigger": str(max(1, max_rows // max(1, largest)))}


def _lines_of(path: str, size_bytes: int) -> int:
    """Estimates the lines of a file from its first megabyte."""
    try:
        with open(path, "rb") as lines:
            sample = lines.read(LINE_SAMPLE_BYTES)
    except OSError:  # the file is missing, or may not be read: Spark reports it
        return 0
    return sample.count(b"\n") * max(1, size_bytes // max(1, len(sample))) + 1


def _kafka(spark: SparkSession, source: KafkaSource, known: Known, max_rows: int) -> DataFrame:
    schema = schema_of(spark, source)
    options = {
        "kafka.bootstrap.servers": source.servers,
        "subscribe": ",".join(source.topics),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(max_rows),
        "kafka.isolation.level": "read_committed",  # no records of aborted transactions
        **source.options,
    }
    frame = spark.readStream.format("kafka").options(**options).load()
    text = F.col("value").cast("string")
    order = F.struct("topic", "partition", "offset")
    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    frame = frame.select(text.alias(_TEXT), order.alias(ORDER), place.alias(POSITION))
    frame = with_json(spark, frame, schema, known, {})
    payload = [_field(name, f"{_VALUE}.").alias(name) for name in schema.names]
    raw = F.when(F.col(BAD).isNotNull(), F.coalesce(_TEXT, F.lit("")))
    return frame.select(*payload, ORDER, POSITION, BAD, raw.alias(RAW))


def _field(name: str, within: str = "") -> Column:
    return F.col(within + quoted(name))


def with_json(
    spark: SparkSession, frame: DataFrame, schema: StructType, known: Known, options: Mapping[str, str]
) -> DataFrame:
    """Parses the JSON record in `_lg_text` to `_lg_value`, and adds in `_lg_bad` the reason if it is bad, else NULL.

    Args:
        spark: The session.
        frame: Rows with `_lg_text`.
        schema: The schema of the records.
        known: Keeps the function that checks the records.
        options: Options of Spark's JSON reader, by their names in lower case.
    """
    if known.records is None or known.records.schema != schema:
        known.records = JsonRecords(spark, schema, options)
    fields = [StructField(one.name, _as_text(one.dataType)) for one in schema.fields]
    with_corrupt = StructType([*fields, StructField(_CORRUPT, StringType())])
    how = {name: value for name, value in options.items() if name not in _OF_FILES}
    how |= {"mode": "PERMISSIVE", "columnnameofcorruptrecord": _CORRUPT}
    frame = frame.withColumns(
        {
            _VALUE: F.from_json(known.records.exact(F.col(_TEXT)), with_corrupt, how),
            "_lg_refused": known.records.refusal(F.col(_TEXT)),
        }
    )
    is_bad = F.col(_VALUE).isNull() | F.col(f"{_VALUE}.{_CORRUPT}").isNotNull()
    bad = F.when(F.col(_TEXT).isNull(), F.lit("has no value"))
    bad = bad.when(~F.is_valid_utf8(_TEXT), F.lit("is not in UTF-8"))  # Spark would read other characters
    bad = bad.when(F.col("_lg_refused").isNull() & is_bad, F.lit("is not a JSON record of the stated schema"))
    bad = F.coalesce(bad, "_lg_refused")
    return frame.withColumn(BAD, bad)


def _as_text(kind: DataType) -> DataType:
    """Replaces CHAR and VARCHAR, which `from_json` refuses, with STRING; the table's column limits their length."""
    match kind:
        case CharType() | VarcharType():
            return StringType()
        case StructType():
            return StructType([StructField(one.name, _as_text(one.dataType)) for one in kind.fields])
        case ArrayType():
            return ArrayType(_as_text(kind.elementType))
        case MapType():
            return MapType(_as_text(kind.keyType), _as_text(kind.valueType))
    return kind


class JsonRecords:
    """Finds the parts of JSON records that Spark silently drops or changes: repeated values, unknown fields, digits."""

    def __init__(self, spark: SparkSession, schema: StructType, options: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        jsession: Any = spark._jsparkSession
        self.schema = schema
        self._names = jvm.io.github.lakegate.FieldNames()
        jsession.sparkContext().register(self._names, "lakegate_json")
        zone = options.get("timezone") or spark.conf.get("spark.sql.session.timeZone") or "UTC"
        has_patterns = bool(options.keys() & {"dateformat", "timestampformat", "timestampntzformat"})
        make = jvm.io.github.lakegate.JsonRecord
        self._refusal, self._exact = (
            _registered(spark, make(schema.json(), self._names, zone, has_patterns, is_exact), "string")
            for is_exact in (False, True)
        )

    def refusal(self, text: Column) -> Column:
        """Returns the reason why a record is refused, else NULL; collects the names of its fields that the schema lacks."""
        return F.call_function(self._refusal, text)

    def exact(self, text: Column) -> Column:
        """Returns the record for Spark's reader: numbers for columns of text become texts, with all their digits."""
        return F.call_function(self._exact, text)

    def left_out(self) -> list[str]:
        """Returns the dotted names of fields found so far that the schema lacks; at most a hundred."""
        return [printable(name) for name in str(self._names.value()).split("\n") if name]
