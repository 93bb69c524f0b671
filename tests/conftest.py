"""Fixtures that tests share: one Spark session per process, the servers, the data sets, and skips for what is missing here.

A test says what it needs by marker (`spark`, `kafka`, `zookeeper`, `postgres`, `mariadb`, `browser`, `data`, `jdk`, `wheel`);
where that is missing, the test is skipped by name. LAKEGATE_REQUIRE=all (or a list: LAKEGATE_REQUIRE=kafka,data) makes such a
skip a failure.

Tests have three sizes. `make test` runs each promise once; `make test-all` adds the tests marked `slow`; `make matrix` runs
those marked `matrix` (LAKEGATE_MATRIX=1). Of a test with several cases that needs Spark or a server, `make test` runs the first
case; `make test-all` runs the others if they need a server, and `make matrix` if they need Spark; `every_case` takes a test out of
this rule.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from lakegate.delta.jvm import CACHES_CONF
from lakegate.demo.database_servers import installed_postgres, lacks_mariadb, lacks_postgres
from lakegate.errors import LakegateError
from lakegate.spark.jars import JarSources, jar_sources
from lakegate.spark.java import JavaSources, find_java, java_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakegate.demo.aws_server import AwsServer

pytest.register_assert_rewrite("harness.conformance")  # or a fault found there would not be shown

ROOT = Path(__file__).parent.parent
CHROMIUM = Path("/usr/bin/chromium")
UV = ROOT / ".tools" / "bin" / "uv"

# Most JVMs run each path a few times only: compiling it well costs more than it gives. Never in measurements.
# The small code cache that this brings is full after a minute of Spark, and then nothing more is compiled.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=400m"
ARCHIVE = ROOT / ".venv" / "tests.jsa"
"""What `tests.jvm_archive` writes; without it every JVM starts as users have it, which takes twice as long."""
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Plans of a few rows, each met once or twice: making code of them takes a sixth to a third of the time that such tests take."""
SMALL_CONF = {
    "spark.ui.enabled": "false",
    # Where a call of the DataFrame API was made costs some calls of the JVM for each column: a tenth of the time of a batch.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
FAST_CONF = {
    **UNCOMPILED,
    **SMALL_CONF,
    "spark.master": "local[2]",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    # Planning such a plan again takes longer than running it. What runs in a process of its own does so, as for users.
    "spark.sql.adaptive.enabled": "false",
    "spark.default.parallelism": "1",
    # VACUUM lists a table's files with as many tasks as this says: 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Tests play writers outside of Lakegate in the JVM of its streams. What users have, `refuse`, is what the commands and the
    # demo run with in processes of their own, and tests/streams/test_implicit_turns.py.
    "spark.lakegate.outside": "pass",
}
# Delta keeps what it knows of every table for an hour, 2 to 3 MB each, and a run of the tests makes hundreds. In a small heap a
# tenth of the time went into collecting it. And this JVM lives long enough for compiling well.
LASTING_CONF = {
    **FAST_CONF,
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": f"{QUICK_JVM} -XX:TieredStopAtLevel=4 -Xms2g",
}


def data_dir() -> Path:
    """Returns the folder of data sets: LAKEGATE_TEST_DATA, or ../shared/data next to the repository."""
    return Path(os.environ.get("LAKEGATE_TEST_DATA") or ROOT.parent / "shared" / "data")


@cache
def _lacks_java() -> str | None:
    try:
        find_java(java_sources(os.environ))
    except LakegateError as error:
        return str(error)
    return None


def _lacks_installing() -> str | None:
    if os.environ.get("LAKEGATE_OFFLINE"):
        return "LAKEGATE_OFFLINE is set"
    return None if UV.exists() else f"no {UV}: make env"


LACKS: dict[str, Callable[[], str | None]] = {
    "spark": _lacks_java,
    "kafka": _lacks_java,
    "zookeeper": _lacks_java,
    "browser": lambda: None if CHROMIUM.exists() else f"no browser at {CHROMIUM}: apt-get install chromium",
    "data": lambda: None if data_dir().is_dir() else f"no data sets at {data_dir()}: set LAKEGATE_TEST_DATA",
    "wheel": _lacks_installing,
    "postgres": lacks_postgres,
    "full_postgres": lambda: (
        None if installed_postgres() else "no PostgreSQL under /usr/lib/postgresql: apt-get install postgresql"
    ),
    "mariadb": lacks_mariadb,
    "jdk": lambda: None if shutil.which("javac") else "no javac: apt-get install openjdk-17-jdk-headless",
}
NEEDED_BY_FIXTURE = {
    "spark": "spark",
    "session": "spark",
    "kafka_servers": "kafka",
    "engagement_data": "data",
    "delta_tables": "data",
    "cdc_data": "data",
    "postgres": "postgres",
    "full_postgres": "full_postgres",
    "mortal_postgres": "postgres",
    "mariadb": "mariadb",
}


def pytest_configure() -> None:
    """Every JVM that a test starts, in whatever way, and be it by a command of a page, is one that is soon there; and no property
    is timed.
    """
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell starts it so behind an &; processes of tests inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    archive = f' "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable' if ARCHIVE.exists() else ""
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JVM + archive
    # A test that is slow because of other work on the machine is not wrong.
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(is_compiled=False)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # for `harness`


def submit_arguments(*, is_compiled: bool) -> str:
    """Returns arguments for drivers in processes of their own; `is_compiled`: Spark generates code for plans, as for users."""
    few = SMALL_CONF | ({} if is_compiled else UNCOMPILED)
    return " ".join([*(f"--conf {key}={value}" for key, value in few.items()), "pyspark-shell"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that is marked `also_without_caches` a second time, with the caches of the JVM off."""
    if metafunc.definition.get_closest_marker("also_without_caches") is not None:
        metafunc.fixturenames.append("delta_caches")
        off = pytest.param("off", id="without caches", marks=pytest.mark.slow)
        metafunc.parametrize("delta_caches", [pytest.param("on", id="with caches"), off], indirect=True)


def _place(item: pytest.Item) -> tuple[str, tuple[int, ...]]:
    """The place of a test and of its case in the source."""
    callspec = getattr(item, "callspec", None)
    return item.nodeid.split("[")[0], () if callspec is None else tuple(callspec.indices.values())


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by the fixtures that it asks for and by its size; deselect `matrix` unless it is wanted."""
    cases: Counter[tuple[Path, str]] = Counter()
    for item in sorted(items, key=_place):  # they come in random order, and the first case is always the same one
        for fixture, marker in NEEDED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
        marks = {mark.name for mark in item.iter_markers()}
        if not marks & {"every_case", "matrix"} and marks & LACKS.keys():
            one = item.path, item.nodeid.split("[")[0] + " without caches" * ("without caches" in item.nodeid)
            cases[one] += 1
            if cases[one] > 1 and "spark" in marks:
                item.add_marker("matrix")
            elif cases[one] > 1:
                item.add_marker("slow")
    if os.environ.get("LAKEGATE_MATRIX", "0") in ("", "0"):
        long = [item for item in items if item.get_closest_marker("matrix")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
    # What begins last is what all wait for: files first whose tests may take long, those without Spark last. Otherwise the order
    # is the random one.
    may_take: dict[Path, float] = {}
    for item in items:
        mark, has_spark = item.get_closest_marker("timeout"), item.get_closest_marker("spark") is not None
        may_take[item.path] = max(may_take.get(item.path, 0), mark.args[0] if mark else has_spark)
    items.sort(key=lambda item: -may_take[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip by name what this machine lacks, or fail where it was required."""
    required = os.environ.get("LAKEGATE_REQUIRE", "").split(",")
    for marker, lacks in LACKS.items():
        if item.get_closest_marker(marker) is not None and (reason := lacks()):
            if marker in required or "all" in required:
                pytest.fail(f"{marker} was required: {reason}", pytrace=False)
            pytest.skip(f"{marker}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what failed: a run that is cut short never comes to pytest's summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session")
def jars_from() -> JarSources:
    """Returns where the tests take jars from: the user's own cache and settings."""
    return jar_sources(os.environ)


@pytest.fixture(scope="session")
def java_from() -> JavaSources:
    """Returns where the tests take Java from."""
    return java_sources(os.environ)


@pytest.fixture(scope="session")
def spark(jars_from: JarSources, java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The one Spark session of this process; never stopped, as a JVM takes ten seconds. Most tests want `session`."""
    from lakegate.spark.session import session as make_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {**LASTING_CONF, "spark.sql.warehouse.dir": str(warehouse)}
    return make_session("tests", conf=conf, kafka=True, sources=jars_from, java=java_from, environ=os.environ)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session for one module of tests: its own settings and temporary views, in the same JVM."""
    return spark.newSession()


@pytest.fixture
def delta_caches(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Turns the JVM's caches on or off for one test; the setting is that of a driver which starts so."""
    turn = spark._jvm.io.github.lakegate.caches.Caches.turn  # type: ignore[union-attr]
    spark.sparkContext._conf.set(CACHES_CONF, request.param)
    turn(request.param == "on")
    yield
    spark.sparkContext._conf.set(CACHES_CONF, "on")
    turn(True)


@pytest.fixture(scope="module")
def jobs(session: SparkSession) -> Callable[[Callable[[], object]], int]:
    """Counts the Spark jobs of a call."""

    def run(work: Callable[[], object]) -> int:
        group = str(uuid.uuid4())
        session.sparkContext.setJobGroup(group, "counted")
        try:
            work()
        finally:
            session.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        return len(session.sparkContext.statusTracker().getJobIdsForGroup(group))

    return run


@pytest.fixture(scope="session")
def kafka_sasl_port() -> int:
    """Returns the port at which the same broker requires a login."""
    from lakegate.demo.servers import free_ports

    return free_ports(1)[0]


@pytest.fixture(scope="session")
def kafka_servers(
    jars_from: JarSources, java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory, kafka_sasl_port: int
) -> Iterator[str]:
    """The address of a Kafka broker that lives as long as the tests; topics are made on first use."""
    from lakegate.demo.servers import kafka_broker

    folder = tmp_path_factory.mktemp("kafka")
    with kafka_broker(folder, jars=jars_from, java=java_from, sasl_port=kafka_sasl_port) as servers:
        yield servers


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    """S3 and DynamoDB that live as long as the tests; each takes buckets and tables of its own, and heals what it breaks."""
    from lakegate.demo.aws_server import aws_server

    with aws_server(tmp_path_factory.mktemp("aws")) as server:
        yield server


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, tmp_path: Path) -> None:
    """In the environment, for this process and those that it starts, and nowhere else; and no fault of an earlier test."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    aws.heal()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server that lives as long as the tests."""
    from lakegate.demo.database_servers import postgres_server

    # Not among pytest's own folders, which only their owner may enter: the server is another user's if we are root.
    with tempfile.TemporaryDirectory(prefix="lakegate-postgres-") as folder, postgres_server(Path(folder) / "d") as dsn:
        yield dsn


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[str]:
    """A PostgreSQL server that a module of tests may let crash."""
    from lakegate.demo.database_servers import postgres_server

    with tempfile.TemporaryDirectory(prefix="lakegate-postgres-") as folder, postgres_server(Path(folder) / "d") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def full_postgres() -> Iterator[str]:
    """The same with ICU and the contributed types: a server that the machine has from its distribution."""
    from lakegate.demo.database_servers import installed_postgres, postgres_server

    programs = installed_postgres()
    assert programs is not None
    folder = tempfile.TemporaryDirectory(prefix="lakegate-postgres-")
    with folder, postgres_server(Path(folder.name) / "d", programs=programs) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """The address of a MariaDB server that lives as long as the tests."""
    from lakegate.demo.database_servers import mariadb_server

    # In memory where there is such a folder: each table that is made waits for the disk several times.
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=place, prefix="lakegate-mariadb-") as folder,
        mariadb_server(Path(folder)) as dsn,
    ):
        yield dsn


@pytest.fixture(scope="session")
def cdc_data() -> Path:
    """The folder of recorded change sequences."""
    return data_dir() / "cdc"


@pytest.fixture(scope="session")
def delta_tables() -> Path:
    """An archive of small tables that other engines wrote."""
    return data_dir() / "delta_tables.tar.gz"


@pytest.fixture(scope="session")
def engagement_data() -> Path:
    """The folder of the engagement data set: ingest/, mutation/, delete/, expected.json."""
    return data_dir() / "engagement"
