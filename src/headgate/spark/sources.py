"""What a stream reads: files or Kafka as a streaming DataFrame whose rows know their place in the source.

Four columns are added to the record's own:
`_hg_order` (a struct that sorts in source order within a batch), `_hg_position` (the same for people: file#row, or
topic/partition/offset), `_hg_bad` (why the record did not parse, null if it did) and `_hg_raw` (its text if it did not).
"""

from __future__ import annotations

import glob as globbing
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from headgate.core.spec import FilesSource, KafkaSource, Source
from headgate.errors import Fault, InvalidRequest, Unavailable

ORDER, POSITION, BAD, RAW = "_hg_order", "_hg_position", "_hg_bad", "_hg_raw"
RECORD = "_hg_record"
"""Put beside these four on the way into a table: the record's columns as the source, or the user's function, gave them."""
SOURCE_COLUMNS = (ORDER, POSITION, BAD, RAW, RECORD)
KAFKA_DATA_LOSS = ("KAFKA_DATA_LOSS", "failOnDataLoss")
"""What Spark says where offsets of a checkpoint, or of a plan, are gone."""
_CORRUPT = "_hg_corrupt"
LINE_SAMPLE_BYTES = 1 << 20


def read_stream(spark: SparkSession, source: Source, *, max_rows_per_batch: int) -> DataFrame:
    """The source as a streaming DataFrame.

    Args:
        spark: The session.
        source: Where and what.
        max_rows_per_batch: Bound of a micro-batch. Files are taken whole, so one file above it makes one batch.

    Raises:
        InvalidRequest: the schema cannot be read, or a folder without files gives none to infer it from.
        Unavailable: there is no such folder.
    """
    match source:
        case FilesSource():
            return _files(spark, source, max_rows_per_batch)
        case KafkaSource():
            return _kafka(spark, source, max_rows_per_batch)


def schema_of(spark: SparkSession, source: Source) -> StructType:
    """The record's columns, as declared, or as the first of the Parquet files says.

    Raises:
        InvalidRequest: it cannot be parsed or inferred.
        Unavailable: the place does not exist.
    """
    if isinstance(source, FilesSource) and is_local(source.path) and not globbing.has_magic(source.path):
        if not Path(_plain(source.path)).exists():
            raise Unavailable(
                f"the source {source.path} does not exist; nothing was read", advice="Make it, or correct `files`"
            )
    if source.schema is not None:
        try:
            declared = StructType.fromDDL(source.schema)
        except ParseException as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidRequest(faults=[Fault(where="source.schema", what=reason, expected="Spark DDL")]) from error
        if not isinstance(declared, StructType):
            raise InvalidRequest(
                faults=[Fault(where="source.schema", what="one type", expected="columns, in Spark DDL")]
            )
        return declared
    assert isinstance(source, FilesSource)
    if is_local(source.path) and not local_files(source.path):
        raise InvalidRequest(
            f"the source {source.path} holds no file to read the schema from; nothing was read",
            advice='Put a file there, or state the schema: `schema: "…"`',
        )
    try:
        return spark.read.format(source.format).options(**source.options).load(source.path).schema
    except AnalysisException as error:
        raise Unavailable(
            f"the source {source.path} cannot be read: {error.getCondition() or error}",
            advice="Correct `files` or `format`",
        ) from error


def records_gone(error: BaseException) -> InvalidRequest | None:
    """The error in our words if Kafka has deleted records before they were read; None if it is another."""
    cause: BaseException | None = error
    while cause is not None:
        if any(word in str(cause) for word in KAFKA_DATA_LOSS):
            return InvalidRequest(
                "Kafka has deleted records, or a topic, that this job has not read to the end; its batch was not written",
                advice="Raise the topic's retention. To go on with what is left, for good, give the source the option "
                'failOnDataLoss: "false"; then take it out again',
            )
        cause = cause.__cause__
    return None


def placed(batch: DataFrame, source: Source) -> DataFrame:
    """A micro-batch of `read_stream` in which every row knows its place; to be called once, before anything else.

    Lines of text rise within a split, and splits within a file; only a batch, and no streaming query, can number them.
    The number in `_hg_position` counts the lines that one task reads, which is the place in the file where it reads one.
    """
    if not isinstance(source, FilesSource) or source.format == "parquet":
        return batch
    in_task = F.col(f"{ORDER}.row").bitwiseAND((1 << 33) - 1).cast("string")
    return batch.withColumn(ORDER, F.col(ORDER).withField("row", F.monotonically_increasing_id())).withColumn(
        POSITION, F.concat_ws("#", F.col(f"{ORDER}.file"), in_task)
    )


def is_local(path: str) -> bool:
    """Whether the path is of this machine's file system."""
    return "://" not in path or path.startswith("file:")


def local_files(path: str) -> list[Path]:
    """The data files that a folder, a file or a glob stands for, on this machine, in the order in which Spark takes them."""
    found: list[Path] = []
    for name in globbing.glob(_plain(path)):
        entry = Path(name)
        found += [entry] if entry.is_file() else [file for file in entry.rglob("*") if file.is_file()]
    seen = [file for file in found if not any(part.startswith(("_", ".")) for part in file.parts[1:][-3:])]
    return sorted(set(seen), key=lambda file: (file.stat().st_mtime_ns, str(file)))


def _plain(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def _files(spark: SparkSession, source: FilesSource, max_rows: int) -> DataFrame:
    schema = schema_of(spark, source)
    clash = [name for name in schema.names if name.lower() in (*SOURCE_COLUMNS, _CORRUPT)]
    if clash:
        raise InvalidRequest(f"the source has columns that Headgate adds itself: {', '.join(clash)}; nothing was read")
    reader = spark.readStream.format(source.format).options(**source.options)
    for option, value in _pace(source, max_rows).items():
        if option not in source.options:
            reader = reader.option(option, value)
    if source.format == "json":
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _CORRUPT)
        schema = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    frame = reader.schema(schema).load(source.path)
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
    if source.format == "json":
        bad = F.when(F.col(_CORRUPT).isNotNull(), F.lit("is not a JSON record of the stated schema"))
        raw = F.col(_CORRUPT)
    payload = [F.col(f"`{field.name}`") for field in schema.fields if field.name != _CORRUPT]
    return frame.select(*payload, order.alias(ORDER), place.alias(POSITION), bad.alias(BAD), raw.alias(RAW))


def _no_text() -> Column:
    return F.lit(None).cast("string")


def _pace(source: FilesSource, max_rows: int) -> dict[str, str]:
    """How many files make a micro-batch, so that their rows stay within `max_rows` unless one file alone is above it."""
    if not is_local(source.path):
        # Footers of a remote store cost a request each; a bound in bytes keeps the batch in the right order of magnitude.
        return {"maxBytesPerTrigger": str(max_rows * 100)}
    largest = max((_rows_in(file, source.format) for file in local_files(source.path)), default=0)
    return {"maxFilesPerTrigger": str(max(1, max_rows // max(1, largest)))}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was when its rows were counted."""

    path: Path
    modified_ns: int
    size_bytes: int


_rows_seen: dict[_Seen, int] = {}


def _rows_in(file: Path, kind: str) -> int:
    """Rows of a file: Parquet says so in its footer, lines of text are estimated from the first megabyte."""
    stat = file.stat()
    key = _Seen(file, stat.st_mtime_ns, stat.st_size)
    if key not in _rows_seen:
        if kind == "parquet":
            try:
                rows = parquet.read_metadata(file).num_rows
            except (OSError, ValueError):  # not Parquet: Spark will say so, with the file's name
                rows = 0
        else:
            with file.open("rb") as lines:
                sample = lines.read(LINE_SAMPLE_BYTES)
            rows = sample.count(b"\n") * max(1, stat.st_size // max(1, len(sample))) + 1
        _rows_seen[key] = rows
    return _rows_seen[key]


def _kafka(spark: SparkSession, source: KafkaSource, max_rows: int) -> DataFrame:
    schema = schema_of(spark, source)
    options = {
        "kafka.bootstrap.servers": source.servers,
        "subscribe": ",".join(source.topics),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(max_rows),
        **source.options,
    }
    frame = spark.readStream.format("kafka").options(**options).load()
    text = F.col("value").cast("string")
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(text, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    frame = frame.select(
        parsed.alias("_hg_value"),
        text.alias("_hg_text"),
        F.struct("topic", "partition", "offset").alias(ORDER),
        F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string")).alias(POSITION),
    )
    is_bad = F.col("_hg_text").isNull() | F.col(f"_hg_value.{_CORRUPT}").isNotNull()
    bad = F.when(F.col("_hg_text").isNull(), F.lit("has no value")).when(
        is_bad, F.lit("is not a JSON record of the stated schema")
    )
    payload = [F.col(f"_hg_value.`{field.name}`").alias(field.name) for field in schema.fields]
    raw = F.when(is_bad, F.coalesce("_hg_text", F.lit("")))
    return frame.select(*payload, ORDER, POSITION, bad.alias(BAD), raw.alias(RAW))
