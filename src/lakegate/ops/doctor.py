"""`lakegate doctor`: checks this machine, Spark and the tables; each line gives advice if a check fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lakegate.config import Pipeline
from lakegate.delta.gate import OUTSIDE_CONF
from lakegate.delta.local_files import LocalLog, can_hard_link, local_path, writable
from lakegate.delta.ownership import FILE, FOLDER, FORGETTING
from lakegate.errors import LakegateError, Unavailable
from lakegate.ops.finding import Finding, of_error
from lakegate.spark import jars
from lakegate.spark.jars import JarSources
from lakegate.spark.java import JavaSources, find_java
from lakegate.turns.ports import TurnStore

DELTA_LINE = "4.4"


def machine(java: JavaSources, sources: JarSources, sets: Sequence[str]) -> Iterator[Finding]:
    """Checks Java, PySpark with Delta, and the jars."""
    yield from _said("Java", lambda: _java(java))
    yield from _said("PySpark", _pyspark)
    yield from _said("jars", lambda: _jars(sources, sets))


def place(pipeline: Pipeline, store: Callable[[], AbstractContextManager[TurnStore | None]]) -> Iterator[Finding]:
    """Checks storage, coordinator, tables and checkpoints of a pipeline, as far as possible without Spark."""
    yield from _said("storage", lambda: _storage(pipeline))
    yield from _said("coordinator", lambda: _coordinator(pipeline, store))
    for table in pipeline.tables.values():
        where = f"table {table.name}"
        path = None if table.path is None else local_path(table.path)
        if path is None:
            what = "not a path on this machine's disk, so not checked"
            yield Finding(level="note", where=where, what=what, advice=_for_s3(table.path))
            continue
        yield from _said(where, partial(_hard_links, path))
        yield from _table(where, path, table.lock)
    for stream in pipeline.streams:
        if stream.checkpoint is None:
            continue
        where = f"checkpoint of {stream.name}"
        if local_path(stream.checkpoint) is None:
            what = f"{stream.checkpoint} is not on this machine's disk: verify cannot compare it with the table"
            yield Finding(level="warning", where=where, what=what, advice=_for_s3(stream.checkpoint))
        else:
            yield Finding(level="ok", where=where, what=f"local, {stream.checkpoint}")


def _for_s3(place: str | None) -> str:
    return f"Look with: lakegate doctor --table {place}" if place is not None and place.startswith("s3a:") else ""


def _said(where: str, look: Callable[[], str]) -> Iterator[Finding]:
    """Yields the line of one check: its result, or the error that a run would end with."""
    try:
        yield Finding(level="ok", where=where, what=look())
    except LakegateError as error:
        yield from of_error(error, where)


def _java(sources: JavaSources) -> str:
    java = find_java(sources)
    return f"version {java.version} at {java.home}, found by {java.found_by}"


def _pyspark() -> str:
    line = jars.spark_line()
    try:
        delta = version("delta-spark")
    except PackageNotFoundError as error:
        raise Unavailable("delta-spark is not installed", advice="pip install 'delta-spark>=4.4,<4.5'") from error
    if not delta.startswith(f"{DELTA_LINE}."):
        raise Unavailable(
            f"delta-spark {delta} does not match the jars of this release",
            advice=f"pip install 'delta-spark>={DELTA_LINE},<4.5'",
        )
    return f"{version('pyspark')} (line {line}) with delta-spark {delta}"


def _jars(sources: JarSources, sets: Sequence[str]) -> str:
    own = jars.own_jar()
    lacking = jars.missing(sets, sources=sources)
    if lacking:
        size_mb = sum(jar.size_bytes for jar in lacking) / 1e6
        raise Unavailable(
            f"{len(lacking)} jars are not in {sources.cache_dir} yet ({size_mb:.0f} MB)",
            advice="The first run fetches them; now, with: lakegate jars fetch",
        )
    damaged = [one.jar.name for one in jars.verify(sets, sources=sources) if one.state == "damaged"]
    if damaged:
        raise Unavailable(f"damaged: {', '.join(damaged)}", advice="Delete them, then: lakegate jars fetch")
    return f"{' and '.join(sets)} complete in {sources.cache_dir}, and {own.name}"


def _storage(pipeline: Pipeline) -> str:
    reason = writable(pipeline.storage)
    if reason is not None:
        raise Unavailable(reason, advice="Make it writable, or name another `storage`")
    return f"{pipeline.storage} can be written"


def _coordinator(pipeline: Pipeline, store: Callable[[], AbstractContextManager[TurnStore | None]]) -> str:
    with store() as opened:
        if opened is None:
            return f"{pipeline.coordinator.url} is created by the first run"
        lease = "no lease: a turn ends with its process" if opened.lease_s is None else f"lease {opened.lease_s:g} s"
        return f"{pipeline.coordinator.url} answers ({lease})"


def _hard_links(path: Path) -> str:
    reason = can_hard_link(path)
    if reason is not None:
        raise Unavailable(
            f"the file system under {path} has no hard links ({reason}), so a commit there is not put-if-absent",
            advice="Put the table on a local disk with a Unix file system",
        )
    return f"{path} is on a file system with hard links, so a commit is put-if-absent"


def _table(where: str, path: Path, lock: str) -> Iterator[Finding]:
    log = LocalLog(path)
    if not log.exists:
        yield Finding(level="ok", where=where, what="is created by the first run")
        return
    try:
        definition = log.definition()
    except LakegateError as error:
        yield Finding(level="note", where=where, what=f"its definition was not read: {error.message}")
        definition = None
    if definition is not None:
        features = ", ".join(sorted(definition.features)) or "none"
        yield Finding(level="ok", where=where, what=f"table features: {features}")
        if FORGETTING in definition.properties:
            yield Finding(
                level="fault",
                where=where,
                what=f"has {FORGETTING}, with which Delta forgets who may write",
                advice=f"ALTER TABLE … UNSET TBLPROPERTIES ('{FORGETTING}')",
                exit_code=2,
            )
        else:
            yield Finding(level="ok", where=where, what="Delta keeps its tokens for ever")
    for note in sorted((path / FOLDER / "publish").glob("*.note")):
        yield Finding(
            level="warning",
            where=where,
            what=f"a publish of several tables is open ({note.stem}), and writers wait for it",
            advice="If its driver has died, the next statement of Lakegate ends it, or: "
            f"lakegate.snapshot(spark, ['{path}'])",
        )
    if (path / FOLDER / FILE).is_file():
        what = f"governed, lock {lock}; drivers with Lakegate's gate refuse their commits to it outside of a turn"
        yield Finding(level="ok", where=where, what=what)
        what = f"not stopped: a session with {OUTSIDE_CONF}=pass, and drivers without the gate, such as those of another engine"
        yield Finding(
            level="note", where=where, what=what, advice="Keep such writers away, or start them with lakegate.session"
        )
    else:
        what = "not governed: the table does not name its lock to other pipelines, and nothing stops other writers"
        yield Finding(level="warning", where=where, what=what, advice=f"lakegate adopt {path} --lock {lock}")
