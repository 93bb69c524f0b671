"""The origin of every value, and the precedence of the origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegate.config import Entry
from lakegate.errors import InvalidRequest
from lakegate.settings import (
    JobSettings,
    environment,
    find_spec,
    load_pipeline,
    read_properties,
    resolve_job,
    shown,
    spec_argument,
    spec_folder,
)
from lakegate.turns.protocol.ordering import After, NoRule, Strict

SPEC = """\
name: p
coordinator: {lock_timeout: 5s}
tables:
  t: {path: ./t, lock: L}
streams:
  One: {table: t, source: {files: ./in}, append: {}}
  Two: {table: t, after: One, absent_after: 3h, source: {files: ./in2}, append: {}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "lake" / "deep").mkdir(parents=True)
    path = tmp_path / "lake" / "lakegate.yml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def origins(entries: tuple[Entry, ...] | list[Entry]) -> dict[str, tuple[str, str]]:
    return {entry.key: (entry.value, entry.origin) for entry in entries}


def job(conf: dict[str, str] | None = None, *, cli: dict[str, str] | None = None, **environ: str) -> JobSettings:
    """A job with a name and a lock, and whatever is given."""
    given = {"spark.job.coordinator.name": "J", "spark.job.coordinator.lock.name": "L", **(conf or {})}
    return resolve_job(given, cli=cli, environ=environ, cwd="/work")


class TestFindingTheFile:
    def test_option_goes_before_variable_before_search(self, spec: Path, tmp_path: Path) -> None:
        """--spec, then LAKEGATE_SPEC, then upward from here."""
        other = tmp_path / "other.yml"
        other.touch()
        environ = {"LAKEGATE_SPEC": "other.yml"}
        assert find_spec("lake/lakegate.yml", environ=environ, cwd=str(tmp_path)) == spec
        assert find_spec(environ=environ, cwd=str(tmp_path)) == other
        assert find_spec(environ={}, cwd=str(spec.parent / "deep")) == spec
        assert find_spec(environ={"LAKEGATE_SPEC": ""}, cwd=str(spec.parent)) == spec

    def test_folder_stands_for_the_file_in_it(self, spec: Path) -> None:
        """`--spec lake` means lake/lakegate.yml."""
        assert find_spec("lake", environ={}, cwd=str(spec.parent.parent)) == spec

    def test_missing_file_is_reported_with_advice(self, tmp_path: Path) -> None:
        """No file found, or a named file missing: exit 2, with the origin of the name."""
        with pytest.raises(InvalidRequest, match="lakegate init") as raised:
            find_spec(environ={}, cwd=str(tmp_path))
        assert raised.value.exit_code == 2
        with pytest.raises(InvalidRequest, match="named by --spec"):
            find_spec("no.yml", environ={}, cwd=str(tmp_path))
        with pytest.raises(InvalidRequest, match="named by LAKEGATE_SPEC"):
            find_spec(environ={"LAKEGATE_SPEC": "no.yml"}, cwd=str(tmp_path))


class TestLoadingTheFile:
    def test_paths_are_relative_to_the_file_and_origins_to_here(self, spec: Path) -> None:
        """Wherever the command is typed, the file means the same."""
        pipeline = load_pipeline(environ={}, cwd=str(spec.parent / "deep"))
        assert pipeline.tables["t"].path == str(spec.parent / "t")
        assert origins(pipeline.entries)["name"] == ("p", f"{spec}:1")
        above = load_pipeline("lake", environ={}, cwd=str(spec.parent.parent))
        assert origins(above.entries)["name"] == ("p", "lake/lakegate.yml:1")

    def test_each_layer_goes_before_the_next(self, spec: Path) -> None:
        """Command line, environment, Spark conf, file, default."""
        cwd = str(spec.parent)
        conf = {"spark.job.coordinator.lock.timeout": "1s", "job.coordinator.url": "memory:"}
        environ = {"LAKEGATE_JOB_COORDINATOR_LOCK_TIMEOUT": "2s"}
        cli = {"lock.timeout": "3s"}
        expected = [
            ({}, {}, {}, 5000, "lakegate.yml:2"),
            (conf, {}, {}, 1000, "Spark conf spark.job.coordinator.lock.timeout"),
            (conf, environ, {}, 2000, "environment LAKEGATE_JOB_COORDINATOR_LOCK_TIMEOUT"),
            (conf, environ, cli, 3000, "command line"),
        ]
        for of_conf, of_environ, of_cli, timeout_ms, origin in expected:
            pipeline = load_pipeline(conf=of_conf, environ=of_environ, cli=of_cli, cwd=cwd)
            assert pipeline.coordinator.lock_timeout_ms == timeout_ms
            assert origins(pipeline.entries)["coordinator.lock_timeout"][1] == origin
        assert pipeline.coordinator.url == "memory:"
        assert origins(load_pipeline(environ={}, cwd=cwd).entries)["coordinator.url"][1] == "default"

    def test_no_layer_drops_a_short_coordinator(self, spec: Path) -> None:
        """Wherever the patience comes from, turns are kept in the store that the file names."""
        spec.write_text(SPEC.replace("{lock_timeout: 5s}", "zookeeper://h:2181/turns"), encoding="utf-8")
        layers: list[dict[str, dict[str, str]]] = [
            {"cli": {"lock.timeout": "3s"}, "environ": {}},
            {"environ": {"LAKEGATE_JOB_COORDINATOR_LOCK_TIMEOUT": "3s"}},
            {"conf": {"spark.job.coordinator.lock.timeout": "3s"}, "environ": {}},
        ]
        for layer in layers:
            coordinator = load_pipeline(cwd=str(spec.parent), **layer).coordinator
            assert (coordinator.url, coordinator.lock_timeout_ms) == ("zookeeper://h:2181/turns", 3000)

    def test_paths_from_elsewhere_are_relative_to_here(self, spec: Path) -> None:
        """A path typed on the command line means what the shell would mean by it."""
        here = str(spec.parent / "deep")
        pipeline = load_pipeline(cli={"storage": "./s", "url": "sqlite:t.db"}, environ={}, cwd=here)
        assert pipeline.storage == f"{here}/s"
        assert pipeline.coordinator.url == f"sqlite:{here}/t.db"

    def test_faults_from_elsewhere_come_with_those_of_the_file(self, spec: Path) -> None:
        """All at once, each with its origin."""
        spec.write_text(SPEC.replace("append: {}}", "apend: {}}"), encoding="utf-8")
        with pytest.raises(InvalidRequest) as raised:
            load_pipeline(environ={"LAKEGATE_JOB_COORDINATOR_STORAGE": "s3a://b"}, cwd=str(spec.parent))
        wheres = [fault.where for fault in raised.value.faults]
        assert "environment LAKEGATE_JOB_COORDINATOR_STORAGE" in wheres
        assert "lakegate.yml:6" in wheres

    def test_unreadable_files_are_reported(self, spec: Path) -> None:
        """Another encoding, or a file of another size altogether."""
        spec.write_bytes(b"name: p\nstorage: \xff\xfe\n")
        with pytest.raises(InvalidRequest, match=r"lakegate\.yml:2: not UTF-8"):
            load_pipeline(environ={}, cwd=str(spec.parent))
        spec.write_bytes(b"#" * 3_000_000)
        with pytest.raises(InvalidRequest, match="characters long"):
            load_pipeline(environ={}, cwd=str(spec.parent))

    def test_byte_order_mark_is_no_part_of_the_file(self, spec: Path) -> None:
        """Editors on Windows write one."""
        spec.write_text(SPEC, encoding="utf-8-sig")
        assert load_pipeline(environ={}, cwd=str(spec.parent)).name == "p"

    def test_shown_keeps_sections_together(self, spec: Path) -> None:
        """Defaults, which are known later than written values, are shown within their section."""
        sections = [entry.key.split(".")[:2] for entry in shown(load_pipeline(environ={}, cwd=str(spec.parent)))]
        streams = [section[1] for section in sections if section[0] == "streams"]
        assert streams == sorted(streams)
        assert "One" in streams
        assert "Two" in streams


class TestJobSettings:
    def test_defaults(self) -> None:
        """Without any setting, a job's turns are kept in its working folder."""
        settings = job()
        assert settings.storage == "/work/_lakegate"
        assert settings.coordinator.url == "sqlite:/work/_lakegate/turns.db"
        assert settings.coordinator.lock_timeout_ms == 60_000
        assert (settings.order, settings.priority, settings.tables) == (NoRule(), 0, ())
        assert origins(settings.entries)["job.coordinator.url"] == ("sqlite:/work/_lakegate/turns.db", "default")

    @pytest.mark.parametrize("prefix", ["job.coordinator.", "spark.job.coordinator."])
    def test_every_key_in_both_spellings_of_spark(self, prefix: str) -> None:
        """The article's keys, bare from code or with spark. for spark-submit."""
        conf = {
            "name": "J",
            "lock.name": "L",
            "predecessor": "A, B",
            "priority": "5",
            "url": "sqlite:t.db",
            "storage": "./s",
            "lock.timeout": "5s",
            "tables": "./a, file:/b",
        }
        settings = resolve_job({prefix + key: value for key, value in conf.items()}, environ={}, cwd="/work")
        assert (settings.job, settings.lock, settings.order) == ("J", "L", Strict(("A", "B")))
        assert settings.priority == 5
        assert settings.coordinator.url == "sqlite:/work/t.db"
        assert settings.coordinator.lock_timeout_ms == 5000
        assert (settings.storage, settings.tables) == ("/work/s", ("/work/a", "/b"))

    def test_default_priority_can_be_written(self) -> None:
        """What is shown as a default is a value."""
        assert job({"spark.job.coordinator.priority": "0"}).priority == 0

    def test_every_key_from_the_environment(self) -> None:
        """LAKEGATE_ before the key in capitals."""
        names = {
            "NAME": "J",
            "LOCK_NAME": "L",
            "PREDECESSOR": "A",
            "PRIORITY": "5",
            "URL": "memory:",
            "STORAGE": "/s",
            "LOCK_TIMEOUT": "5s",
            "TABLES": "/a",
        }
        environ = {f"LAKEGATE_JOB_COORDINATOR_{name}": value for name, value in names.items()}
        settings = resolve_job(environ=environ, cwd="/work")
        assert (settings.job, settings.lock, settings.order) == ("J", "L", Strict(("A",)))
        assert settings.priority == 5
        assert settings.coordinator.url == "memory:"
        assert settings.coordinator.lock_timeout_ms == 5000
        assert (settings.storage, settings.tables) == ("/s", ("/a",))

    def test_each_layer_goes_before_the_next(self) -> None:
        """Command line before environment before Spark conf before default, and each value knows its own."""
        conf = {"spark.job.coordinator.lock.timeout": "1s"}
        assert job().coordinator.lock_timeout_ms == 60_000
        assert job(conf).coordinator.lock_timeout_ms == 1000
        assert job(conf, LAKEGATE_JOB_COORDINATOR_LOCK_TIMEOUT="2s").coordinator.lock_timeout_ms == 2000
        top = job(conf, cli={"lock.timeout": "3s"}, LAKEGATE_JOB_COORDINATOR_LOCK_TIMEOUT="2s")
        assert top.coordinator.lock_timeout_ms == 3000
        assert origins(top.entries)["job.coordinator.lock.timeout"] == ("3s", "command line")
        assert origins(top.entries)["job.coordinator.name"] == ("J", "Spark conf spark.job.coordinator.name")

    def test_bare_keys_are_noted(self) -> None:
        """They work from code; spark-submit would drop them, and does so with little noise."""
        assert job().notes == ()
        (note,) = job({"job.coordinator.url": "memory:"}).notes
        assert "spark.job.coordinator.url" in note

    def test_two_spellings_of_one_value_may_agree_but_not_differ(self) -> None:
        """No guess is made which of two was meant."""
        assert job({"job.coordinator.name": "J"}).job == "J"
        with pytest.raises(InvalidRequest, match=r"another value than that of spark\.job\.coordinator\.name"):
            job({"job.coordinator.name": "K"})

    def test_missing_name_and_lock_are_reported_together_with_every_spelling(self) -> None:
        """What to write is in the message, and that spark-submit drops the bare form."""
        with pytest.raises(InvalidRequest) as raised:
            resolve_job({}, environ={}, cwd="/work")
        assert [fault.where for fault in raised.value.faults] == ["job.coordinator.name", "job.coordinator.lock.name"]
        assert "LAKEGATE_JOB_COORDINATOR_LOCK_NAME" in raised.value.faults[1].expected
        assert "spark-submit drops" in raised.value.faults[1].expected

    def test_unknown_keys_are_faults(self) -> None:
        """A mistyped key is never ignored, in Spark's settings or in the environment."""
        with pytest.raises(InvalidRequest, match='did you mean "predecessor"') as raised:
            job({"spark.job.coordinator.predecesor": "A"}, LAKEGATE_JOB_COORDINATOR_URI="x")
        assert 'did you mean "LAKEGATE_JOB_COORDINATOR_URL"' in str(raised.value)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("url", "dynamodb://t"),
            ("lock.timeout", "60"),
            ("lock.name", "a/b"),
            ("tables", "gs://b/t"),
            ("name", ""),
            ("priority", "-1"),
        ],
    )
    def test_values_of_a_wrong_form_are_faults(self, key: str, value: str) -> None:
        """The same forms as in the file."""
        with pytest.raises(InvalidRequest) as raised:
            job({f"spark.job.coordinator.{key}": value})
        assert [fault.where for fault in raised.value.faults] == [f"Spark conf spark.job.coordinator.{key}"]

    def test_no_fault_repeats_a_password(self) -> None:
        """Neither does what is shown."""
        with pytest.raises(InvalidRequest) as raised:
            job(LAKEGATE_JOB_COORDINATOR_URL="postgres://me:hunter2@h/db")
        assert "hunter2" not in str(raised.value)

    def test_arguments_of_a_call_are_not_called_a_command_line(self) -> None:
        """The fault names the real origin of the value."""
        with pytest.raises(InvalidRequest) as raised:
            resolve_job(cli={"name": "J", "lock.name": "a/b"}, environ={}, cwd="/work", cli_origin="JobCoordinator")
        assert [fault.where for fault in raised.value.faults] == ["JobCoordinator"]

    def test_empty_predecessor_is_none(self) -> None:
        """The article's way to say that a job has no predecessor."""
        assert job({"spark.job.coordinator.predecessor": ""}).order == NoRule()

    def test_empty_variable_counts_as_unset(self) -> None:
        """As everywhere in a shell."""
        assert job({"spark.job.coordinator.predecessor": "A"}, LAKEGATE_JOB_COORDINATOR_PREDECESSOR="").order == Strict(
            ("A",)
        )

    def test_file_stands_behind(self, spec: Path) -> None:
        """A job with a stream's name takes lock and order from the file; other layers still go before it."""
        pipeline = load_pipeline(environ={}, cwd=str(spec.parent))
        two = resolve_job({"spark.job.coordinator.name": "Two"}, environ={}, cwd="/work", pipeline=pipeline)
        assert (two.lock, two.order, two.absent_after_ms) == ("L", After(("One",)), 3 * 3_600_000)
        assert two.coordinator == pipeline.coordinator
        assert two.storage == pipeline.storage
        assert origins(two.entries)["job.coordinator.lock.name"] == ("L", "lakegate.yml:4")
        conf = {"spark.job.coordinator.predecessor": "X", "spark.job.coordinator.storage": "/s"}
        strict = resolve_job(conf, cli={"name": "Two"}, environ={}, cwd="/work", pipeline=pipeline)
        assert (strict.order, strict.absent_after_ms, strict.storage) == (Strict(("X",)), None, "/s")

    def test_other_job_takes_the_place_of_turns_from_the_file_only(self, spec: Path) -> None:
        """`lakegate turn --lock L --job backfill` in the folder of a pipeline."""
        pipeline = load_pipeline(environ={}, cwd=str(spec.parent))
        other = resolve_job(cli={"name": "backfill", "lock.name": "L"}, environ={}, cwd="/work", pipeline=pipeline)
        assert (other.order, other.coordinator.url) == (NoRule(), pipeline.coordinator.url)


def test_properties_files() -> None:
    """The forms that Spark's own properties files have."""
    text = """
# a comment
! another
spark.job.coordinator.name   J
job.coordinator.lock.name=L
job.coordinator.url : sqlite:a=b.db
spark.empty
"""
    assert read_properties(text) == {
        "spark.job.coordinator.name": "J",
        "job.coordinator.lock.name": "L",
        "job.coordinator.url": "sqlite:a=b.db",
        "spark.empty": "",
    }


def test_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read does not change under its reader."""
    monkeypatch.setenv("LAKEGATE_SPEC", "a")
    before = environment()
    monkeypatch.setenv("LAKEGATE_SPEC", "b")
    assert before["LAKEGATE_SPEC"] == "a"


FLOW = """
import lakegate as lg

flow = lg.Pipeline("written")
flow.table("t", path="./t").append(name="In", source=lg.files("./in"))
other = 1
"""


def test_a_pipeline_written_in_python_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its relative paths refer to the working directory, which is searched for the module."""
    (tmp_path / "flow_of_a_test.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for spec, environ in (("flow_of_a_test:flow", {}), (None, {"LAKEGATE_SPEC": "flow_of_a_test:flow"})):
        found = load_pipeline(spec, environ=environ)
        assert (found.name, found.tables["t"].path, [one.name for one in found.streams]) == (
            "written",
            str(tmp_path / "t"),
            ["In"],
        )
    moved = load_pipeline("flow_of_a_test:flow", environ={"LAKEGATE_JOB_COORDINATOR_STORAGE": "./other"})
    assert moved.storage == str(tmp_path / "other")
    assert (spec_argument("flow_of_a_test:flow"), spec_folder("flow_of_a_test:flow")) == (
        "flow_of_a_test:flow",
        tmp_path,
    )
    for spec, what in (
        ("flow_of_a_test:gone", "gone"),
        ("no_such_module_x:flow", "no_such_module_x"),
        ("flow_of_a_test:other", "is int"),
    ):
        with pytest.raises(InvalidRequest, match=what):
            load_pipeline(spec, environ={})
