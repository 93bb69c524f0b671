"""Translates errors of Spark that are faults of a stream's source, or of its checkpoint."""

from __future__ import annotations

import re

from lakegate.config import FilesSource, Source
from lakegate.delta.storage_errors import texts_of
from lakegate.errors import Corrupt, InvalidRequest, LakegateError, Unavailable
from lakegate.spark.source_files import (
    base_of,
    of_uri,
    printable,
)

KAFKA_DATA_LOSS = ("KAFKA_DATA_LOSS", "failOnDataLoss")
"""Words of Spark's errors where offsets of a checkpoint, or of a plan, no longer exist."""
_FILE_FAILED = re.compile(
    r"\[FAILED_READ_FILE(?:\.(\w+))?\] Encountered error while reading file ([^\n]*?)\.(?: |\n|$)"
)
_MISMATCH = re.compile(
    r"reading Parquet column (\S+)\. Expected Spark type (.+?), actual Parquet type (.+?)\.(?: |\n|$)", re.DOTALL
)
_PASSES = re.compile(
    "SocketTimeout|timed out|ConnectException|Connection reset|UnknownHost|NoHttpResponse|SdkClientException|BlockMissing"
    "|Input/output error|Too many open files|OutOfMemory"
)
"""Words of errors that are not a file's fault."""
_LOG_DAMAGED = re.compile(
    r"(?:Failed to read log file|Incomplete log file|MALFORMED_LOG_FILE|BATCH_METADATA_NOT_FOUND"
    r"|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED|ChecksumException|Invalid streaming checkpoint|UnsupportedLogVersion)[^\n]*"
)


def source_trouble(error: BaseException) -> LakegateError | None:
    """Returns our error for a fault of the source or its checkpoint; None for other errors, and for errors of ours.

    It covers records that Kafka has deleted unread, and a damaged file of the checkpoint. Files: see `file_trouble`.
    """
    if isinstance(error, LakegateError):
        return None
    texts = texts_of(error)
    if any(word in text for text in texts for word in KAFKA_DATA_LOSS):
        return InvalidRequest(
            "Kafka has deleted records, or a topic, that this job has not read to the end; its batch was not written",
            advice="Raise the topic's retention. To go on with what is left, for good, give the source the option "
            'failOnDataLoss: "false"; then take it out again',
        )
    damaged = next((found for text in texts if (found := _LOG_DAMAGED.search(text))), None)
    if damaged is not None:
        return Corrupt(
            f"a file of the checkpoint is damaged, as after a power cut: {printable(damaged[0])}; nothing was written",
            advice="Restore the checkpoint from a copy, or start a new one with --new-checkpoint JOB (its rows come again)",
        )
    return None


def file_trouble(error: BaseException, source: Source) -> LakegateError | None:
    """Returns our error for a faulty file of the source; None for other errors, and for errors that may pass."""
    if isinstance(error, LakegateError) or not isinstance(source, FilesSource):
        return None
    texts = texts_of(error)
    failed = next((found for text in texts if (found := _FILE_FAILED.search(text))), None)
    if failed is None or any(_PASSES.search(text) for text in texts):
        return None
    kind, path = failed[1] or "", of_uri(failed[2].strip())
    if not path.startswith(base_of(source.path)):  # a file of a table that the batch reads
        return None
    file = printable(path)
    differs = next((found for text in texts if (found := _MISMATCH.search(text))), None)
    if differs is not None:
        return Corrupt(
            "a file of the source has another type in a column than the stream reads; the batch was not written",
            advice="Write the file again with the column's type, or put an empty file there to go on without it",
            file=file,
            column=differs[1].strip("[]"),
            type=differs[3],
            wanted=differs[2],
        )
    if kind == "FILE_NOT_EXIST":
        return Corrupt(
            "the source has lost a file that the batch was planned from; nothing of the batch was written",
            advice="Put it back; or, to go on without it, put an empty file there instead",
            file=file,
        )
    if any("Permission denied" in text or "AccessControlException" in text for text in texts):
        return Unavailable(
            "a file of the source may not be read; the batch was not written",
            advice="Give the user of this process the right to read it",
            file=file,
        )
    return Corrupt(
        "a file of the source is damaged; the batch was not written",
        advice="Replace it with a whole file, or with an empty one to go on without it",
        file=file,
    )
