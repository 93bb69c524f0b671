"""Makes a Spark session with Delta and the commit rules that Lakegate needs, or reports why a session cannot be used."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from lakegate.errors import InvalidRequest
from lakegate.redaction import setting
from lakegate.spark.jars import JarSources, Progress, fetch, own_jar, spark_line
from lakegate.spark.java import JavaSources, find_java
from lakegate.spark.launch import LOOPBACK, start_jvm
from lakegate.spark.log_stores import (
    BEHIND,
    GATE,
    VACUUM_KEY,
    class_of,
    gate_settings,
    require_checkpoints,
    require_vacuum,
    s3_settings,
    without_deltas_store,
)

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
LOG_STORE_KEY = "spark.delta.logStore.file.impl"
S3_FILES = "org.apache.hadoop.fs.s3a.S3AFileSystem"
S3_LINES = ("4.1",)
"""Spark lines with whose Hadoop the set `s3a` was tested."""
KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

LOCAL_DEFAULTS = {
    # Without it Spark asks the resolver for this machine's name, which on laptops often gives a wrong address.
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # The web UI has no password: it shows statements with their values, and everybody on the machine could end jobs in it.
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
GATE_DEFAULTS = {
    # A commit that waits at the gate must not hold the lock of Delta's log: the commit before it needs that lock.
    "spark.databricks.delta.commitLock.enabled": "false",
    # The gate refuses commits. Delta makes a commit before a VACUUM deletes files, but on S3 only with this setting.
    VACUUM_KEY: "true",
    # The minimum time for which others let a statement go first that has lost twice.
    "spark.lakegate.holdMs": "30000",
}
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux shows a container its limit of memory in bytes."""
ONLY_AT_START = ("spark.master", "spark.jars", "spark.submit.deployMode")
START_ANEW = (
    "Call lakegate.session(…) before anything else starts Spark (in a notebook: restart the kernel), or submit with: "
    'spark-submit --jars "$(lakegate jars path)" '
    f"--conf spark.sql.extensions={DELTA_EXTENSION} --conf spark.sql.catalog.spark_catalog={DELTA_CATALOG} "
    f"--conf {LOG_STORE_KEY}={GATE} --conf {VACUUM_KEY}=true"
)


def session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = False,
    s3: bool = False,
    log_store: str = "auto",
    sources: JarSources,
    java: JavaSources,
    environ: MutableMapping[str, str],
    submitted: bool = False,
    logs: Path | None = None,
    progress: Progress | None = None,
) -> SparkSession:
    """Returns a session in which Delta works and a commit on local disk is put-if-absent between processes.

    An existing session is returned if it is suitable, with `conf` applied to it. Otherwise Java is searched for, the jars are
    fetched (the first time only) and a JVM is started. The master is `local[*]` unless `conf` or
    spark-submit names one.

    Args:
        name: The application's name.
        conf: Spark configuration; its entries override the ones set here, lists of jars and of extensions are joined.
        kafka: Kafka sources and sinks are wanted.
        s3: Tables on S3 are wanted.
        log_store: How commits are written there: `auto`, `conditional`, `dynamodb` or `single_driver`.
        sources: Where the jars may come from.
        java: Where a Java runtime may be.
        environ: The environment of this process, which the JVM inherits.
        submitted: This process was started by spark-submit, so it already has a JVM and settings.
        logs: Folder for the log file of the JVM; None: its log lines go to standard error.
        progress: Called for each jar that is fetched.

    Raises:
        InvalidRequest: The existing session, or the one that `conf` asks for, cannot be used; nothing was changed.
        MissingExtra: No Java 17 or 21.
        Unavailable: A jar cannot be fetched, or the JVM does not start.
    """
    given, log_store = without_deltas_store(conf or {}, log_store)
    s3 = s3 or len(given) < len(conf or {})
    if s3 and spark_line() not in S3_LINES:
        raise InvalidRequest(
            "tables on S3 are not in this version with this Spark; no session was made",
            advice=f"Use Spark {' or '.join(S3_LINES)}",
            spark=spark_line(),
        )
    _refuse_connect(given)
    if f"{LOG_STORE_KEY.removesuffix('.file.impl')}.class" in given:
        raise InvalidRequest(
            "spark.delta.logStore.class replaces the store of commits for all paths; no session was made",
            advice="Leave it out; for other schemes than file use spark.delta.logStore.<scheme>.impl",
        )
    for_s3 = s3_settings(log_store, given) if s3 else {}
    existing = _existing_session()
    if existing is not None:
        require_fit(existing, kafka=kafka, s3=s3, log_store=log_store)
        _apply(existing, given)
        return existing
    given = for_s3 | given
    if submitted:
        _adopt_submitted(given)
    else:
        sets = ["delta", *(["kafka"] if kafka else []), *(["s3a"] if s3 else [])]
        _complete(given, sets, sources=sources, progress=progress)
        environ["JAVA_HOME"] = str(find_java(java).home)
        defaults: dict[str, str] = {}
        if given["spark.master"].startswith("local"):
            environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            defaults = LOCAL_DEFAULTS | _fitting(given["spark.master"])
        start_jvm(given, environ, defaults, logs)
    builder = SparkSession.builder.appName(name)
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        require_fit(spark, kafka=kafka, s3=s3, log_store=log_store)
    except InvalidRequest:
        spark.stop()
        raise
    return spark


def require_fit(spark: SparkSession, *, kafka: bool = False, s3: bool = False, log_store: str = "auto") -> None:
    """Checks that `spark` can be used: classic, with Delta, with our log store; with S3 if that is wanted.

    Raises:
        InvalidRequest: Names what is missing, and how to start a session that has it.
    """
    if is_remote() or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise _connect_refused()
    spark_line(spark.version)  # SPARK_HOME may point to another Spark than that of the installed PySpark
    extensions = str(spark.conf.get("spark.sql.extensions", ""))
    wanted = [DELTA_EXTENSION, GATE, *([KAFKA_SOURCE] if kafka else []), *([S3_FILES] if s3 else [])]
    lacking = [name for name in wanted if not _loadable(spark, name)]
    if DELTA_EXTENSION not in extensions or DELTA_EXTENSION in lacking:
        raise InvalidRequest("this Spark session was made without Delta; nothing was changed", advice=START_ANEW)
    if GATE in lacking:
        raise InvalidRequest(
            "this Spark session was made without Lakegate's jar; nothing was changed", advice=START_ANEW
        )
    if KAFKA_SOURCE in lacking:
        raise InvalidRequest(
            "this Spark session was made without the Kafka source; nothing was changed",
            advice="Start with lakegate.session(…, kafka=True), or add the jars of: lakegate jars path delta kafka",
        )
    store = spark.conf.get(LOG_STORE_KEY, None)
    if store != GATE:
        raise InvalidRequest(
            "this Spark session has another store of commits for local disk, with which two processes can both "
            "believe that they wrote one version; nothing was changed",
            advice=START_ANEW,
            store=store or "(Delta's own)",
        )
    if s3:
        _require_s3(spark, log_store, has_jars=S3_FILES not in lacking)


def _require_s3(spark: SparkSession, log_store: str, *, has_jars: bool) -> None:
    gate = spark.conf.get("spark.delta.logStore.s3a.impl", None)
    behind = spark.conf.get(BEHIND, None)
    if not has_jars or gate != GATE or (behind is None and log_store != "auto"):
        raise InvalidRequest(
            "this Spark session was made without S3; nothing was changed",
            advice="Start with lakegate.session(…, s3=True), or spark-submit with the jars of: lakegate jars path delta s3a",
        )
    require_checkpoints(spark)
    require_vacuum(str(spark.conf.get(VACUUM_KEY, "")))
    if behind is not None and behind != class_of(log_store):
        raise InvalidRequest(
            "this Spark session has another store of commits for S3; nothing was changed",
            advice="Two stores do not see each other's commits: use the same `log_store` in every driver",
            log_store=behind,
            wanted=class_of(log_store),
        )


def _refuse_connect(given: Mapping[str, str]) -> None:
    if is_remote() or "spark.remote" in given or given.get("spark.master", "").startswith("sc://"):
        raise _connect_refused()


def _connect_refused() -> InvalidRequest:
    return InvalidRequest(
        "Spark Connect sessions cannot be used: commits are checked in the driver's JVM, which Connect does not show; "
        "nothing was changed",
        advice="Run where the driver runs: spark-submit, or lakegate.session(…) with a master of local[*], yarn or k8s",
    )


def _existing_session() -> SparkSession | None:
    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _apply(spark: SparkSession, given: Mapping[str, str]) -> None:
    """Applies the settings that a running session can still change; if one cannot be changed, applies none."""
    before = {key: spark.conf.get(key, None) for key in given}
    fixed: list[str] = []
    for key, value in given.items():
        is_list = key in ("spark.jars", "spark.sql.extensions")
        if before[key] == value or (is_list and before[key] == _joined(before[key] or "", value)):
            continue
        try:
            if key in ONLY_AT_START:
                raise AnalysisException("Spark would accept it without effect")
            spark.conf.set(key, value)
        except AnalysisException:  # static, or of Spark's core
            fixed.append(f"{key}={setting(key, value)} (is {setting(key, before[key] or '')})")
    if not fixed:
        return
    for key, was in before.items():
        if spark.conf.get(key, None) != was:
            spark.conf.unset(key) if was is None else spark.conf.set(key, was)
    raise InvalidRequest(
        f"a Spark session runs already, and this cannot be changed in it: {', '.join(fixed)}; nothing was changed",
        advice="Stop it first (spark.stop()), or leave these settings out",
    )


def _complete(given: dict[str, str], sets: list[str], *, sources: JarSources, progress: Progress | None) -> None:
    """Adds to `given` the settings that a new JVM needs."""
    given.setdefault("spark.master", "local[*]")
    jars = [own_jar(), *fetch(sets, sources=sources, progress=progress)]
    given["spark.jars"] = _joined(given.get("spark.jars", ""), *map(str, jars))
    _add_delta(given, {})


def _fitting(master: str) -> dict[str, str]:
    """Returns settings that fit the size of this machine; Spark's and Delta's own fit a cluster.

    Spark shuffles into 200 partitions, and Delta reads the state of a table in 50: on two cores that is a second per shuffle of a
    few rows. Spark's heap is 1 GB on any machine; in local mode the executors use it, too.
    """
    threads = re.match(r"local\[(\d+)", master)
    cores = int(threads[1]) if threads else 1 if master == "local" else len(os.sched_getaffinity(0))
    memory_gb = _memory_bytes() >> 30
    return {
        "spark.sql.shuffle.partitions": str(min(200, 4 * cores)),
        "spark.databricks.delta.snapshotPartitions": str(min(50, cores)),
        "spark.driver.memory": f"{min(4, max(1, memory_gb // 8))}g",
    }


def _memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(limit.read_text()))
    return min(found)


def _adopt_submitted(given: dict[str, str]) -> None:
    """Adds to `given` what spark-submit did not set; jars are on its class path already, or cannot be added now."""
    SparkContext._ensure_initialized()
    told = dict(SparkConf(_jvm=SparkContext._jvm).getAll())
    _add_delta(given, told)


def _add_delta(given: dict[str, str], told: Mapping[str, str]) -> None:
    extensions = given.get("spark.sql.extensions", told.get("spark.sql.extensions", ""))
    given["spark.sql.extensions"] = _joined(extensions, DELTA_EXTENSION)
    defaults = {"spark.sql.catalog.spark_catalog": DELTA_CATALOG, **gate_settings(), **GATE_DEFAULTS}
    for key, value in defaults.items():
        if key not in told:
            given.setdefault(key, value)


def _joined(listed: str, *more: str) -> str:
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    return ",".join(dict.fromkeys([*entries, *more]))


def _loadable(spark: SparkSession, class_name: str) -> bool:
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(class_name)
    except Py4JJavaError:
        return False
    return True
