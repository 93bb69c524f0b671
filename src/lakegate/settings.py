"""Resolves every setting: command line, environment, Spark conf, file, default, in this order of precedence.

The only module that reads the environment. Its results are plain data that remember their origin.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from lakegate.config.places import CoordinatorUrl, Location
from lakegate.config.value_types import (
    LOCK_NAME,
    PRIORITY,
    Duration,
    Entry,
    Reader,
    ValueType,
    duration_text,
    name_type,
)
from lakegate.config.yaml_nodes import TEXT_LENGTH_MAX, Faults, Mark, Scalar, suggestion
from lakegate.errors import Fault, InvalidRequest
from lakegate.spark import jars, java
from lakegate.turns.protocol.ordering import NoRule, OrderRule, Strict

if TYPE_CHECKING:
    from lakegate.config import CoordinatorSpec, Pipeline, StreamSpec
    from lakegate.config.reading import Override

T = TypeVar("T")

SPEC_NAME: Final = "lakegate.yml"

_PREFIX: Final = "job.coordinator."
_VARIABLE_PREFIX: Final = "LAKEGATE_JOB_COORDINATOR_"
_JOB_KEYS: Final = ("name", "lock.name", "predecessor", "priority", "url", "storage", "lock.timeout", "tables")
_STORAGE: Final = Location(schemes=())
_FILE_PATHS: Final[Mapping[str, tuple[tuple[str, ...], ValueType[object]]]] = {
    "url": (("coordinator", "url"), CoordinatorUrl()),
    "lock.timeout": (("coordinator", "lock_timeout"), Duration()),
    "storage": (("storage",), _STORAGE),
}
"""The job keys that override a value of the file; the other keys belong to one job, and each stream has its own value."""

_JOB: Final = name_type("a job's name")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings of a job without a stream in `lakegate.yml`; `JobCoordinator` is built from them."""

    job: str
    lock: str
    order: OrderRule
    absent_after_ms: int | None
    """For `After` rules, which only a file has."""
    priority: int
    coordinator: CoordinatorSpec
    storage: str
    tables: tuple[str, ...]
    """The tables named in advance, as absolute paths; other tables are found at their first write."""
    notes: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = field(default=(), repr=False)


def environment() -> Mapping[str, str]:
    """Returns the current environment."""
    return dict(os.environ)


def process_environment() -> MutableMapping[str, str]:
    """Returns the environment that child processes inherit."""
    return os.environ


def jar_sources() -> jars.JarSources:
    """Returns the possible sources of jars."""
    return jars.jar_sources(environment())


def java_sources() -> java.JavaSources:
    """Returns the possible locations of Java."""
    return java.java_sources(environment())


def zookeeper_passwords() -> tuple[str | None, str | None]:
    """Returns the password of the user in a coordinator's URL, and that of the key file; never part of a URL."""
    environ = environment()
    return environ.get("LAKEGATE_ZOOKEEPER_PASSWORD"), environ.get("LAKEGATE_ZOOKEEPER_KEY_PASSWORD")


def working_directory() -> str:
    """Returns the folder to which relative paths of a pipeline written in Python refer."""
    return os.path.abspath(os.getcwd())


def is_submitted() -> bool:
    """Returns True if spark-submit started this process, with its own JVM and settings."""
    return "PYSPARK_GATEWAY_PORT" in environment()


def spark_logs(environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns the folder for the log files of Spark's JVM: LAKEGATE_SPARK_LOGS; None: its log lines go to standard error.

    Without the setting there are log files only if standard error is a terminal. `-` never makes one.
    """
    environ = environment() if environ is None else environ
    given = environ.get("LAKEGATE_SPARK_LOGS")
    is_terminal = sys.stderr is not None and sys.stderr.isatty()  # a process without a console has none
    if given == "-" or not (given or is_terminal):
        return None
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return Path(given).expanduser() if given else Path(state) / "lakegate"


LOG_FORMATS: Final = ("off", "json")


def log_format(environ: Mapping[str, str] | None = None) -> str:
    """Returns the format of log lines of `lakegate run` on standard error: LAKEGATE_LOG, `off` or `json`.

    Raises:
        InvalidRequest: another value.
    """
    given = (environment() if environ is None else environ).get("LAKEGATE_LOG") or "off"
    if given not in LOG_FORMATS:
        what = f"{given!r} is no way to write logs{suggestion(given, LOG_FORMATS)}"
        raise InvalidRequest(
            faults=[Fault(where="environment LAKEGATE_LOG", what=what, expected=" or ".join(LOG_FORMATS))]
        )
    return given


def find_spec(spec: str | None = None, *, environ: Mapping[str, str] | None = None, cwd: str | None = None) -> Path:
    """Finds the file of the pipeline: `spec`, else LAKEGATE_SPEC, else `lakegate.yml` here or in a folder above.

    Raises:
        InvalidRequest: There is none.
    """
    environ = environment() if environ is None else environ
    here = Path(cwd or os.getcwd())
    for given, origin in ((spec, "--spec"), (environ.get("LAKEGATE_SPEC"), "LAKEGATE_SPEC")):
        if given:
            path = here / given
            path = path / SPEC_NAME if path.is_dir() else path
            if not path.is_file():
                raise InvalidRequest(f"there is no file {path}, named by {origin}; nothing was done")
            return path
    for folder in (here, *here.parents):
        if (folder / SPEC_NAME).is_file():
            return folder / SPEC_NAME
    raise InvalidRequest(
        f"there is no {SPEC_NAME} in {here} or above it; nothing was done",
        advice="Make one with lakegate init, or name one with --spec FILE or LAKEGATE_SPEC",
    )


_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def spec_argument(spec: str | None = None) -> str:
    """Returns the value of `--spec` with which a child process finds the same pipeline; errors as of `find_spec`."""
    return _module_of(spec, environment()) or str(find_spec(spec))


def spec_folder(spec: str | None = None) -> Path:
    """Returns the folder to which relative paths of the pipeline refer; errors as of `find_spec`."""
    return Path(working_directory()) if _module_of(spec, environment()) else find_spec(spec).parent


def _module_of(spec: str | None, environ: Mapping[str, str]) -> str | None:
    """Returns `module:name` of a pipeline written in Python; None if the pipeline is a file."""
    given = spec or environ.get("LAKEGATE_SPEC") or ""
    return given if _MODULE.fullmatch(given) else None


def _imported(text: str, cwd: str, overrides: Sequence[Override]) -> Pipeline:
    """Returns the pipeline that a module of Python makes; `text`: `module:name`. The working directory is searched first.

    Raises:
        InvalidRequest: There is no such pipeline, or it has faults.
    """
    from lakegate.config.build import PipelineBuilder

    module, _, name = text.partition(":")
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            f"the pipeline {text} cannot be imported: {error}; nothing was done",
            advice="Name it as module:name, from the folder of the module",
        ) from error
    if not isinstance(found, PipelineBuilder):
        raise InvalidRequest(f"{text} is {type(found).__name__}, and not a lakegate.Pipeline; nothing was done")
    return found.build(base_dir=cwd, overrides=overrides)


def load_pipeline(
    spec: str | None = None,
    *,
    cli: Mapping[str, str] | None = None,
    conf: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Pipeline:
    """Loads the pipeline of a file; `url`, `storage` and `lock.timeout` from other sources override the file.

    Args:
        spec: The file, by default `find_spec` looks for it; or `module:name` of a pipeline written in Python.
        cli: Options of the command by their job key: `{"url": …}`.
        conf: Spark settings, or those of a `--properties` file.
        environ: The environment.
        cwd: The working directory.

    Raises:
        InvalidRequest: No file, or every fault of it.
    """
    from lakegate.config.reading import Override, parse  # its pydantic is not for commands without a pipeline

    environ = environment() if environ is None else environ
    cwd = os.path.abspath(cwd or os.getcwd())
    layers = _Layers(cli=cli or {}, environ=environ, conf=conf or {})
    overrides = []
    for key, (at, value_type) in _FILE_PATHS.items():
        node = _node(layers, key)
        if node is not None:
            # Relative to the working directory; a value that cannot be read is reported with the file's own faults.
            resolved = value_type.read(node, Reader(base_dir=cwd, faults=Faults()))
            value = resolved if isinstance(resolved, str) else node.text
            overrides.append(Override(path=at, value=value, origin=node.mark.where))
    if layers.faults:
        raise InvalidRequest(faults=layers.faults)
    if (module := _module_of(spec, environ)) is not None:
        return _imported(module, cwd, overrides)
    path = find_spec(spec, environ=environ, cwd=cwd)
    origin = os.path.relpath(path, cwd) if path.is_relative_to(cwd) else str(path)
    base_dir = os.path.dirname(os.path.abspath(path))
    return parse(_text_of(path), origin=origin, base_dir=base_dir, environ=environ, overrides=overrides)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # One character more than allowed lets the reader refuse the file; a character has at most four bytes.
            data = file.read(4 * TEXT_LENGTH_MAX + 4)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"the file {path} cannot be read ({error.strerror}); nothing was done") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(faults=[Fault(where=f"{path}:{line}", what="not UTF-8", expected="UTF-8 text")]) from error


def shown(pipeline: Pipeline) -> list[Entry]:
    """Returns every value in effect with its origin, secrets masked, grouped by section."""
    # Defaults that follow from other values are known last.
    places: dict[str, int] = {}
    for entry in pipeline.entries:
        places.setdefault(_section_of(entry.key), len(places))
    return sorted(pipeline.entries, key=lambda entry: places[_section_of(entry.key)])


def resolve_job(
    conf: Mapping[str, str] | None = None,
    *,
    cli: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    pipeline: Pipeline | None = None,
    cli_origin: str = "command line",
) -> JobSettings:
    """Resolves the settings of a job from the keys `job.coordinator.*`.

    Args:
        conf: Spark settings, or those of a `--properties` file; bare or with `spark.` before the key.
        cli: Options of the command by their key without the prefix: `{"lock.name": …, "name": …}`.
        environ: The environment, `LAKEGATE_JOB_COORDINATOR_LOCK_NAME` and its like.
        cwd: The folder to which relative paths refer.
        cli_origin: The name of `cli` in messages, when the values are arguments of a call.
        pipeline: A file with lower precedence; a job with the name of one of its streams takes that stream's order.

    Raises:
        InvalidRequest: every fault: a key missing, unknown, given twice differently, or of a wrong form.
    """
    from lakegate.config.model import CoordinatorSpec

    environ = environment() if environ is None else environ
    layers = _Layers(cli=cli or {}, environ=environ, conf=conf or {}, cli_origin=cli_origin)
    faults = Faults()
    reader = Reader(base_dir=os.path.abspath(cwd or os.getcwd()), faults=faults)
    name = _read(layers, "name", _JOB, reader)
    stream = None if pipeline is None else next((one for one in pipeline.streams if one.name == name), None)
    if pipeline is not None:
        layers.put_behind(_of_file(pipeline, stream))
    lock = _read(layers, "lock.name", LOCK_NAME, reader)
    storage = _read(layers, "storage", _STORAGE, reader)
    layers.put_behind(
        _defaults(storage or os.path.join(reader.base_dir, "_lakegate"), CoordinatorSpec().lock_timeout_ms)
    )
    storage = storage or _read(layers, "storage", _STORAGE, reader)
    url = _read(layers, "url", CoordinatorUrl(), reader)
    timeout_ms = _read(layers, "lock.timeout", Duration(), reader)
    tables = _read_tables(layers, reader)
    predecessors = _read_predecessors(layers, reader)
    priority = _read_priority(layers, reader)
    for key in ("name", "lock.name"):
        if layers.given(key) is None:
            faults.add(Mark(where=_PREFIX + key), "not set", _spellings(key))
    found = (*layers.faults, *faults.in_order())
    if found or name is None or lock is None or storage is None or url is None or timeout_ms is None:
        raise InvalidRequest(faults=found)
    order, absent_after_ms = _order(predecessors, stream)
    return JobSettings(
        job=name,
        lock=lock,
        order=order,
        absent_after_ms=absent_after_ms,
        priority=priority if priority is not None else 0 if stream is None else stream.priority,
        coordinator=CoordinatorSpec(url=url, lock_timeout_ms=timeout_ms),
        storage=storage,
        tables=tables,
        notes=tuple(layers.notes),
        entries=tuple(reader.entries),
    )


def _order(predecessors: tuple[str, ...] | None, stream: StreamSpec | None) -> tuple[OrderRule, int | None]:
    if predecessors is not None:
        return (Strict(predecessors) if predecessors else NoRule()), None
    return (NoRule(), None) if stream is None else (stream.order, stream.absent_after_ms)


def read_properties(text: str) -> dict[str, str]:
    """Reads the settings of a Spark properties file: `key value`, `key=value` or `key: value` per line, # comments."""
    settings = {}
    for line in text.splitlines():
        found = re.match(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]?\s*(.*?)\s*$", line)
        if found is not None:
            settings[found[1]] = found[2]
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A given value and its origin."""

    text: str
    origin: str


class _Layers:
    """The given values by job key: command line before environment before Spark conf, and added lower layers."""

    def __init__(
        self,
        *,
        cli: Mapping[str, str],
        environ: Mapping[str, str],
        conf: Mapping[str, str],
        cli_origin: str = "command line",
    ) -> None:
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self._given: dict[str, _Given] = {}
        for key, text in cli.items():
            if key not in _JOB_KEYS:
                raise ValueError(f"not a job key: {key}")
            self._given[key] = _Given(text=text, origin=cli_origin)
        self.put_behind(self._of_environment(environ))
        self.put_behind(self._of_conf(conf))

    def given(self, key: str) -> _Given | None:
        return self._given.get(key)

    def put_behind(self, layer: Iterable[tuple[str, _Given]]) -> None:
        """Adds the values of `layer` for keys that have no value yet."""
        for key, given in layer:
            self._given.setdefault(key, given)

    def _of_environment(self, environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
        known = {_variable(key): key for key in _JOB_KEYS}
        for name, text in environ.items():
            if name in known and text:
                yield known[name], _Given(text=text, origin=f"environment {name}")
            elif name.startswith(_VARIABLE_PREFIX) and name not in known:
                self._unknown(f"environment {name}", name, known)

    def _of_conf(self, conf: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
        first: dict[str, str] = {}
        for name, text in conf.items():
            if not name.removeprefix("spark.").startswith(_PREFIX):
                continue
            key = name.removeprefix("spark.").removeprefix(_PREFIX)
            if key not in _JOB_KEYS:
                self._unknown(f"Spark conf {name}", key, _JOB_KEYS)
                continue
            if conf[first.setdefault(key, name)] != text:
                what = f"another value than that of {first[key]}"
                self.faults.append(Fault(where=f"Spark conf {name}", what=what, expected="one of the two spellings"))
            if name.startswith(_PREFIX):
                self.notes.append(
                    f"{name} is written bare, and spark-submit drops settings that do not begin with spark.: "
                    f"there write spark.{name}"
                )
            yield key, _Given(text=text, origin=f"Spark conf {name}")

    def _unknown(self, where: str, word: str, known: Iterable[str]) -> None:
        what = f"not a key of the job coordinator{suggestion(word, known)}"
        self.faults.append(Fault(where=where, what=what, expected=f"one of {', '.join(known)}"))


def _of_file(pipeline: Pipeline, stream: StreamSpec | None) -> Iterator[tuple[str, _Given]]:
    """Yields the file's values for a job: the pipeline's own values, and the lock of the stream of its name."""
    origins = {entry.key: entry.origin for entry in pipeline.entries}
    values = [
        ("storage", pipeline.storage, "storage"),
        ("url", pipeline.coordinator.url, "coordinator.url"),
        ("lock.timeout", duration_text(pipeline.coordinator.lock_timeout_ms), "coordinator.lock_timeout"),
    ]
    if stream is not None:
        values.append(("lock.name", pipeline.lock_of(stream), f"tables.{stream.table}.lock"))
    for key, text, at in values:
        yield key, _Given(text=text, origin=origins.get(at, "default"))


def _defaults(storage: str, lock_timeout_ms: int) -> Iterator[tuple[str, _Given]]:
    yield "storage", _Given(text=storage, origin="default")
    yield "url", _Given(text=f"sqlite:{os.path.join(storage, 'turns.db')}", origin="default")
    yield "lock.timeout", _Given(text=duration_text(lock_timeout_ms), origin="default")


def _node(layers: _Layers, key: str) -> Scalar | None:
    given = layers.given(key)
    return None if given is None else Scalar(text=given.text, mark=Mark(where=given.origin, key=_PREFIX + key))


def _read(layers: _Layers, key: str, value_type: ValueType[T], reader: Reader) -> T | None:
    """Reads the value of a job key with the type of the file's key."""
    node = _node(layers, key)
    return None if node is None else value_type.read(node, reader)


def _read_priority(layers: _Layers, reader: Reader) -> int | None:
    node = _node(layers, "priority")
    # Here a number is written like any text.
    return None if node is None else PRIORITY.read(replace(node, is_plain=True), reader)


def _read_predecessors(layers: _Layers, reader: Reader) -> tuple[str, ...] | None:
    """Returns None if no predecessor was given; an empty tuple if none was stated explicitly."""
    node = _node(layers, "predecessor")
    if node is not None and not node.text.strip():
        reader.record(node, "")
        return ()
    if node is None:
        return None
    jobs = [_JOB.read(part, reader) for part in _parts(node)]
    return tuple(dict.fromkeys(job for job in jobs if job is not None))


def _read_tables(layers: _Layers, reader: Reader) -> tuple[str, ...]:
    node = _node(layers, "tables")
    if node is None:
        return ()
    tables = [Location().read(part, reader) for part in _parts(node)]
    return tuple(dict.fromkeys(table for table in tables if table is not None))


def _parts(node: Scalar) -> list[Scalar]:
    """Returns the parts of a comma list."""
    return [replace(node, text=part.strip()) for part in node.text.split(",") if part.strip()]


def _variable(key: str) -> str:
    return _VARIABLE_PREFIX + key.upper().replace(".", "_")


def _spellings(key: str) -> str:
    option = {"name": "--job", "lock.name": "--lock"}[key]
    return (
        f"{option}, {_variable(key)}, or the Spark setting spark.{_PREFIX}{key} "
        f"(spark-submit drops it without spark. before it)"
    )


def _section_of(key: str) -> str:
    parts = key.split(".")
    return ".".join(parts[:2]) if parts[0] in ("tables", "streams", "sync") else parts[0]
