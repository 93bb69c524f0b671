"""Checks a table on S3: whether its server refuses a second writer, what the settings allow, and damaged states."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lakegate.delta.storage_errors import described, reason
from lakegate.ops.finding import Finding

RACERS, KEYS = 8, 20
COMMIT: Final = re.compile(r"(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
DAMAGED, UNAVAILABLE = 4, 6
PRECONDITION_FAILED: Final = 412
"""The HTTP status for a failed condition."""


def examine(
    jvm: Any, conf: Any, location: str, log_store: str, *, is_deep: bool, is_mended: bool, store_class: str
) -> Iterator[Finding]:
    """Yields the checks and their findings.

    Args:
        jvm: py4j's view of a JVM with the jars of S3 and Lakegate's.
        conf: Hadoop's settings in the session.
        location: `s3a://bucket/path` of a table, or of a checkpoint.
        log_store: `conditional`, `dynamodb` or `single_driver`.
        is_deep: Threads compete for keys.
        is_mended: Damaged states are repaired where possible.
        store_class: The class of the log store.
    """
    where = location
    try:
        path = jvm.org.apache.hadoop.fs.Path(location)
        files = path.getFileSystem(conf)
        yield from _flags(where, conf)
        if log_store == "single_driver":
            what = "log_store single_driver: two drivers lose commits; you must ensure that there is only one"
            yield Finding(level="warning", where=where, what=what, advice="log_store: conditional")
        else:
            yield from _server(where, jvm, files, path, is_deep=is_deep, is_needed=log_store == "conditional")
        yield from _versions(where, jvm, files, path)
        if log_store == "dynamodb":
            said = getattr(jvm, store_class)(conf).examine(path, is_mended, conf)
            if said:
                advice = "Mended" if is_mended else "Look at the table, then: lakegate doctor --table … --repair"
                yield Finding(
                    level="warning" if is_mended else "fault", where=where, what=said, advice=advice, exit_code=DAMAGED
                )
            else:
                yield Finding(level="ok", where=where, what="entries in DynamoDB agree with the log")
    except Exception as error:
        thrown = getattr(error, "java_exception", None)
        if thrown is None:
            raise
        text = str(thrown.getMessage() or thrown)
        known = reason(text)
        advice = "Nothing was changed" if known is None else f"{known.advice}. Nothing was changed"
        yield Finding(level="fault", where=where, what=described(text), advice=advice, exit_code=UNAVAILABLE)


def _flags(where: str, conf: Any) -> Iterator[Finding]:
    flags = {flag.strip() for flag in str(conf.get("fs.s3a.performance.flags") or "").split(",")}
    unsafe = [
        name
        for name, is_set in (
            ("fs.s3a.performance.flags", bool(flags & {"create", "*"})),
            ("fs.s3a.create.performance", str(conf.get("fs.s3a.create.performance")).lower() == "true"),
            (
                "fs.s3a.create.conditional.enabled",
                str(conf.get("fs.s3a.create.conditional.enabled")).lower() == "false",
            ),
        )
        if is_set
    ]
    if unsafe:
        what = f"with {', '.join(unsafe)} as set, S3A ignores the put-if-absent condition and overwrites"
        yield Finding(level="fault", where=where, what=what, advice="Leave the setting out", exit_code=2)
    else:
        yield Finding(level="ok", where=where, what="no setting of S3A disables conditions")


def _server(where: str, jvm: Any, files: Any, path: Any, *, is_deep: bool, is_needed: bool) -> Iterator[Finding]:
    """Checks that of two or many writers of one key only one succeeds."""
    store = jvm.io.github.lakegate.ConditionalPutLogStore
    folder = jvm.org.apache.hadoop.fs.Path(path, f"_lakegate/probe-{uuid.uuid4().hex}")

    def acknowledged_writers(key: int, writers: int) -> int:
        scratch = jvm.org.apache.hadoop.fs.Path(folder, str(key))

        def is_let_through(number: int) -> bool:
            try:
                return bool(store.put(files, scratch, bytes([number])))
            except Exception as error:
                thrown = getattr(error, "java_exception", None)
                if thrown is None or store.status(thrown) != PRECONDITION_FAILED:
                    raise
                return True  # refused; it then read the object, which another writer had replaced meanwhile

        with ThreadPoolExecutor(writers) as pool:
            return sum(pool.map(is_let_through, range(writers)))

    try:
        doubled = [
            key for key in range(KEYS if is_deep else 1) if acknowledged_writers(key, RACERS if is_deep else 2) != 1
        ]
    finally:
        files.delete(folder, True)
    tried = f"{RACERS} writers of each of {KEYS} keys" if is_deep else "two writers of a key"
    if not doubled:
        yield Finding(level="ok", where=where, what=f"of {tried}, the server lets one through")
        return
    what = f"of {tried}, the server let more than one through ({len(doubled)} keys): commits would be lost"
    if is_needed:
        yield Finding(level="fault", where=where, what=what, advice="Use log_store: dynamodb", exit_code=2)
    else:
        yield Finding(level="warning", where=where, what=what, advice="Checkpoints on it are not safe")


def _versions(where: str, jvm: Any, files: Any, path: Any) -> Iterator[Finding]:
    log = jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
    names = str(jvm.io.github.lakegate.Bulk.names(files, log)).split("\n")
    versions = sorted(int(name[1]) for name in map(COMMIT.fullmatch, names) if name)
    checkpoints = [int(name[1]) for name in map(CHECKPOINT.fullmatch, names) if name]
    if not versions:
        if checkpoints:
            what = "a checkpoint and no commit: the log is damaged"
            yield Finding(level="fault", where=where, what=what, exit_code=DAMAGED)
        else:
            yield Finding(level="note", where=where, what="no Delta table yet")
        return
    missing = sorted(set(range(versions[0], versions[-1])) - set(versions))
    if missing:
        what = f"commits {', '.join(map(str, missing[:10]))} are missing between {versions[0]} and {versions[-1]}"
        advice = "Stop all writers; restore them from the bucket's older versions, or RESTORE from a copy"
        yield Finding(level="fault", where=where, what=what, advice=advice, exit_code=DAMAGED)
    elif versions[0] > 0 and not any(one >= versions[0] - 1 for one in checkpoints):
        what = f"commits before {versions[0]} are gone, and no checkpoint has them"
        yield Finding(level="fault", where=where, what=what, exit_code=DAMAGED)
    else:
        yield Finding(level="ok", where=where, what=f"commits {versions[0]} to {versions[-1]} without a gap")
