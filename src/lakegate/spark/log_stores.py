"""The log store behind the gate for a table's file system, and the settings in which two log stores differ.

All drivers that write one table must have the same log store: otherwise they do not see each other's commits. The note of a
governed table names it, and each driver compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from lakegate.errors import InvalidRequest

GATE: Final = "io.github.lakegate.GateLogStore"
GATED_SCHEMES: Final = ("file", "s3a", "s3", "s3n", "hdfs", "viewfs", "abfs", "abfss", "gs")
"""`s3` and `s3n` are gated only to be refused: a table has one address."""
BEHIND: Final = "spark.lakegate.logStore.s3a"
CLASSES: Final = {
    "conditional": "io.github.lakegate.ConditionalPutLogStore",
    "dynamodb": "io.github.lakegate.DynamoDbLogStore",
    "single_driver": "io.delta.storage.S3SingleDriverLogStore",
}
"""The log stores behind the gate on S3, by their names in `lakegate.yml`."""
CHECKPOINTS_KEY: Final = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINTS: Final = "io.github.lakegate.S3CheckpointFileManager"
VACUUM_KEY: Final = "spark.databricks.delta.vacuum.logging.enabled"

DELTAS_KEY, DELTAS_STORE = "spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore"
"""The setting of Delta's own store for several clusters. It is not in the jars: ours keeps the same entries."""
DYNAMODB_KEYS: Final = ("spark.io.delta.storage.S3DynamoDBLogStore.", "io.delta.storage.S3DynamoDBLogStore.")
"""Delta's own prefixes: a site that uses Delta's log store keeps its settings."""
DYNAMODB_TABLE, DYNAMODB_REGION = ("ddb.tableName", "delta_log"), ("ddb.region", "us-east-1")
"""Key and default, both from Delta."""

_ENDPOINT: Final = "spark.hadoop.fs.s3a.endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStore:
    """A log store as the note of a governed table names it."""

    name: str
    """`link`, `conditional`, `dynamodb`, `single_driver` or `stock`."""
    args: Mapping[str, str] = field(default_factory=dict)


def gate_settings() -> dict[str, str]:
    """Returns the settings that put the gate in front of every file system on which tables may be."""
    return {f"spark.delta.logStore.{scheme}.impl": GATE for scheme in GATED_SCHEMES}


def without_deltas_store(given: Mapping[str, str], log_store: str) -> tuple[dict[str, str], str]:
    """Returns settings without the one that names Delta's `S3DynamoDBLogStore`, and the log store that they ask for.

    So the settings of Delta's documentation can be used as they are: `dynamodb` stands behind the gate.

    Raises:
        InvalidRequest: `log_store` asks for another one.
    """
    if given.get(DELTAS_KEY) != DELTAS_STORE:
        return dict(given), log_store
    if log_store not in ("auto", "dynamodb"):
        raise InvalidRequest(
            f"{DELTAS_KEY} asks for entries in DynamoDB, and log_store for another store of commits; no session was made",
            advice="Leave one of them out",
            log_store=log_store,
        )
    return {key: value for key, value in given.items() if key != DELTAS_KEY}, "dynamodb"


def s3_settings(log_store: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for S3 that `given` lacks: the log store, safe checkpoints, and the access to a private server.

    Raises:
        InvalidRequest: `log_store` is no known name, or `given` makes commits unsafe.
    """
    wanted = class_of(log_store)
    flags = {flag.strip() for flag in given.get("spark.hadoop.fs.s3a.performance.flags", "").split(",")}
    if flags & {"create", "*"} or given.get("spark.hadoop.fs.s3a.create.performance", "").lower() == "true":
        raise InvalidRequest(
            "fs.s3a.performance.flags with create lets S3A overwrite a file that it must not overwrite; no session was made",
            advice="Leave the flag out",
        )
    if given.get("spark.hadoop.fs.s3a.create.conditional.enabled", "true").lower() == "false":
        raise InvalidRequest(
            "fs.s3a.create.conditional.enabled=false takes away the conditional puts that commits and checkpoints on S3 need; no "
            "session was made",
            advice="Leave it out; for a server without conditional puts: log_store: dynamodb",
        )
    _require_checkpoints(given.get(CHECKPOINTS_KEY, CHECKPOINTS))
    require_vacuum(given.get(VACUUM_KEY, "true"))
    settings = {BEHIND: wanted, CHECKPOINTS_KEY: CHECKPOINTS}
    if _ENDPOINT in given:
        # A private server is reached by its address alone: its buckets have no host names, and its region has no meaning.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.endpoint.region"] = "us-east-1"
    return settings


def require_checkpoints(spark: SparkSession) -> None:
    """Raises `InvalidRequest` unless a session writes checkpoints on S3 by conditional puts."""
    _require_checkpoints(spark.conf.get(CHECKPOINTS_KEY, None))


def _require_checkpoints(found: str | None) -> None:
    if found != CHECKPOINTS:
        raise InvalidRequest(
            "with this way to write checkpoints, two runs of one query on S3 can plan the same batch differently; "
            "nothing was started",
            advice=f"Leave {CHECKPOINTS_KEY} as lakegate.session(…, s3=True) sets it: {CHECKPOINTS}",
            found=found or "(Spark's own)",
        )


def require_vacuum(is_logged: str) -> None:
    """Raises `InvalidRequest` unless a VACUUM on S3 begins with a commit, which the gate can refuse."""
    if is_logged.lower() != "true":
        raise InvalidRequest(
            f"without {VACUUM_KEY} a VACUUM on S3 is no commit, and deletes files of a table outside of its turns; nothing "
            "was started",
            advice="Leave it as lakegate.session(…, s3=True) sets it: true",
        )


def class_of(log_store: str) -> str:
    """Returns the class for a name of `log_store`; `auto` means `conditional`.

    Raises:
        InvalidRequest: the name is unknown.
    """
    try:
        return CLASSES["conditional" if log_store == "auto" else log_store]
    except KeyError:
        raise InvalidRequest(
            f"there is no log_store {log_store!r}; nothing was done", advice=f"One of: auto, {', '.join(CLASSES)}"
        ) from None


def log_store_of(spark: SparkSession, location: str) -> LogStore:
    """Returns the log store with which this session commits to `location`."""
    scheme = location.partition(":")[0].lower() if ":" in location else "file"
    if scheme == "file":
        return LogStore(name="link")
    if scheme != "s3a":
        return LogStore(name="stock")
    found = spark.conf.get(BEHIND, CLASSES["conditional"])
    name = next((name for name, one in CLASSES.items() if one == found), str(found))
    if name != "dynamodb":
        return LogStore(name=name)
    table, region = (_dynamodb(spark, *key) for key in (DYNAMODB_TABLE, DYNAMODB_REGION))
    return LogStore(name=name, args={"table": table, "region": region})


def _dynamodb(spark: SparkSession, key: str, otherwise: str) -> str:
    # As the log store reads them: settings of the session, and Hadoop's.
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    return next((str(found) for prefix in DYNAMODB_KEYS if (found := hadoop.get(prefix + key)) is not None), otherwise)
