"""Stock Delta statements that carry a token: appends, DML and user code, new tables; and how a conflict is reported.

Rules for editors:
- Delta takes the token of an append from the writer's options, that of DML from the session's settings. Settings hold
  for every write in the session until they are unset: set them only in a session that nobody else writes with.
- Delta skips a write *silently* when the stored number is equal or larger. So the token is read again after every
  write; the turn protocol does this, not this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from delta.exceptions import base as delta_exceptions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakegate.delta.jvm import JVM_ERRORS, USER_METADATA_CONF, Jvm, first_line, unless_gone
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.ports import StatementConflict, WriteToken
from lakegate.quoting import quoted, quoted_literal

APP_ID_CONF = "spark.databricks.delta.write.txnAppId"
NUMBER_CONF = "spark.databricks.delta.write.txnVersion"
AUTO_RESET_CONF = "spark.databricks.delta.write.txnVersion.autoReset.enabled"

CONFLICT = re.compile(
    r"\[(DELTA_(?:CONCURRENT_(?:APPEND|DELETE_READ|DELETE_DELETE|TRANSACTION|WRITE)"
    r"|METADATA_CHANGED|PROTOCOL_CHANGED|MAX_COMMIT_RETRIES_EXCEEDED))\b"
    r"|io\.delta\.exceptions\.(\w+)Exception"
)
"""Delta's names of the errors that mean: another writer committed first, and nothing of this statement is in the table."""
DELTA_CONFLICTS = (
    delta_exceptions.ConcurrentAppendException,
    delta_exceptions.ConcurrentDeleteDeleteException,
    delta_exceptions.ConcurrentDeleteReadException,
    delta_exceptions.ConcurrentTransactionException,
    delta_exceptions.ConcurrentWriteException,
    delta_exceptions.DeltaConcurrentModificationException,
    delta_exceptions.MetadataChangedException,
    delta_exceptions.ProtocolChangedException,
)
TOKEN_WITHOUT_NUMBER = "DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS"
"""Delta's name of the error for an id in the settings without a number."""


def append(
    df: DataFrame,
    location: TableLocation,
    token: WriteToken,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """Appends rows with Delta's own writer, the token in the same commit. Creates the table if there is none.

    Args:
        df: The rows.
        location: The table.
        token: Carried by the commit; nothing is written if the stored number is equal or larger.
        options: Options of Delta's writer, as `mergeSchema`.

    Raises:
        StatementConflict: Another writer changed the table's definition, or used this token, in the meantime.
    """
    writer = df.write.format("delta").mode("append").options(**(options or {}))
    writer = writer.option("txnAppId", token.token_id).option("txnVersion", str(token.number))
    with conflicts():
        writer.option("userMetadata", token.user_metadata).save(location)


@contextmanager
def tokened(session: SparkSession, token: WriteToken) -> Iterator[None]:
    """Makes every Delta write in `session` carry the token; restores the previous settings afterwards.

    Only one write changes the table: a second one with the same token would be skipped silently (see `single_write`).
    """
    with confs(
        session,
        {APP_ID_CONF: token.token_id, NUMBER_CONF: str(token.number), USER_METADATA_CONF: token.user_metadata},
    ):
        yield


@contextmanager
def single_write(session: SparkSession, token: WriteToken) -> Iterator[None]:
    """Does the same as `tokened` for unknown code: a second write raises instead of being skipped silently.

    Delta removes the number from the session's settings when it uses it. So a second write has an id without a number,
    which Delta refuses before anything is written. A DELETE that finds nothing uses no number; an UPDATE or MERGE that
    finds nothing does, in a commit without files.

    Raises:
        InvalidRequest: A second write was begun; the first one is in the table, and a retry will recognize it.
        StatementConflict: See `conflicts`.
    """
    with confs(session, {AUTO_RESET_CONF: "true"}), tokened(session, token):
        try:
            with conflicts():
                yield
        except Exception as error:
            if any(TOKEN_WITHOUT_NUMBER in text for text in _texts_of(error)):
                raise second_write() from error
            raise


def second_write() -> InvalidRequest:
    """Returns the error for a write whose token an earlier write has used."""
    return InvalidRequest(
        "a second write without a step: the batch's first write is in its table, the second was not begun",
        advice="Wrap each write in `with turn.step(name)`, in the same order in every batch",
    )


@contextmanager
def conflicts() -> Iterator[None]:
    """Raises `StatementConflict` for a conflict, in whatever wrapping Delta, Spark or py4j raises it.

    The transaction that lost has written nothing to the table; read its token again before the statement is repeated.
    """
    try:
        yield
    except StatementConflict:
        raise
    except Exception as error:
        name = conflict_name(error)
        if name is None:
            raise
        raise StatementConflict(name) from error  # its text names partitions, which are values


def conflict_name(error: BaseException) -> str | None:
    """Returns Delta's name of the conflict, if the error is a conflict or was caused by one; else None."""
    for text in _texts_of(error):
        if found := CONFLICT.search(text):
            return found[1] or found[2]
    return None


def create_table(
    session: SparkSession,
    location: TableLocation,
    columns: str,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Creates an empty table as version 0; a table that exists, or that another creates first, is used if its columns agree.

    Args:
        session: Any session with Delta.
        location: Where the table is to be.
        columns: As in CREATE TABLE: `id BIGINT NOT NULL, name STRING`.
        partition_by: Columns.
        cluster_by: Columns of liquid clustering; not together with `partition_by`.
        properties: Table properties.

    Raises:
        InvalidRequest: The existing table has other columns or partitions; or the columns cannot be parsed.
    """
    clauses = [f"CREATE TABLE delta.{quoted(location)} ({columns}) USING delta"]
    if partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(map(quoted, partition_by))})")
    if cluster_by:
        clauses.append(f"CLUSTER BY ({', '.join(map(quoted, cluster_by))})")
    if properties:
        listed = ", ".join(f"{quoted_literal(key)} = {quoted_literal(value)}" for key, value in properties.items())
        clauses.append(f"TBLPROPERTIES ({listed})")
    statement = " ".join(clauses)
    jvm = Jvm(session)
    wanted = _parsed_columns(jvm, statement)
    try:
        if not _exists(jvm, location):
            session.sql(statement)
            return
    except JVM_ERRORS:
        if not _exists(jvm, location):
            raise
    _compare(jvm, location, wanted, partition_by)


@contextmanager
def confs(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Sets settings of a session for the duration of a block; restores the previous values afterwards."""
    before = {key: session.conf.get(key, None) for key in values}

    def restore() -> None:
        for key, was in before.items():
            if was is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, was)

    try:
        for key, value in values.items():
            session.conf.set(key, value)
        yield
    finally:
        unless_gone(restore)


def _texts_of(error: BaseException) -> Iterator[str]:
    """Yields the texts of Delta's and Spark's errors in the chain of an error, including causes in the JVM."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DELTA_CONFLICTS):
            yield f"io.delta.exceptions.{type(cause).__name__}"
        elif isinstance(cause, JVM_ERRORS):
            yield str(cause)
            yield str(getattr(cause, "_stackTrace", None) or "")
        cause = cause.__cause__


def _exists(jvm: Jvm, location: TableLocation) -> bool:
    return bool(jvm.snapshot(jvm.delta_log(location)).version() >= 0)


def _parsed_columns(jvm: Jvm, statement: str) -> list[tuple[str, str, bool]]:
    """Returns name, type and nullability of each column of a CREATE statement, as Spark's own parser reads them."""
    try:
        with jvm.active():
            plan = jvm.jsession.sessionState().sqlParser().parsePlan(statement)
            schema = jvm.char_as_string(plan.tableSchema())
    except JVM_ERRORS as error:
        raise InvalidRequest(
            "the table's columns or properties cannot be parsed; nothing was made", reason=first_line(error)
        ) from error
    return _columns(schema)


def _compare(
    jvm: Jvm, location: TableLocation, wanted: list[tuple[str, str, bool]], partition_by: Sequence[str]
) -> None:
    metadata = jvm.snapshot(jvm.delta_log(location)).metadata()
    found = _columns(metadata.schema().json())
    partitions = jvm.from_seq(metadata.partitionColumns())
    if found == wanted and partitions == list(partition_by):
        return
    raise InvalidRequest(
        "there is a table with other columns or partitions already; it was not changed",
        advice="Correct `columns` and `partition_by`, or choose another path",
        table=location,
        found=_shown(found, partitions),
        wanted=_shown(wanted, partition_by),
    )


def _columns(schema: str) -> list[tuple[str, str, bool]]:
    fields = StructType.fromJson(json.loads(schema)).fields
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in fields]


def _shown(columns: list[tuple[str, str, bool]], partition_by: Sequence[str]) -> str:
    listed = ", ".join(f"{name} {kind}{'' if nullable else ' NOT NULL'}" for name, kind, nullable in columns)
    return f"({listed})" + (f" partitioned by ({', '.join(partition_by)})" if partition_by else "")
