"""The image, the compose file and the manifest, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

from lakegate import settings
from lakegate.cli.app import COMMANDS, app
from tests.conftest import ROOT
from tests.repository import committed

FOLDER = ROOT / "examples" / "containers"
COMPOSE = yaml.safe_load((FOLDER / "compose.yml").read_text())
MANIFEST = list(yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text()))
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
SET = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def drivers() -> dict[str, dict[str, Any]]:
    """Compose's services that run the command."""
    return {
        name: one
        for name, one in COMPOSE["services"].items()
        if one.get("image") == "lakegate" and "entrypoint" not in one
    }


def containers() -> list[dict[str, Any]]:
    """The manifest's containers."""
    pods = [
        one["spec"].get("template") or one["spec"]["jobTemplate"]["spec"]["template"]
        for one in MANIFEST
        if one["kind"] != "PersistentVolumeClaim"
    ]
    return [container for pod in pods for container in pod["spec"]["containers"]]


@pytest.fixture(scope="module")
def command() -> Any:
    """The command with all its parts."""
    for name in COMMANDS:
        __import__(f"lakegate.cli.{name}")
    return get_command(app)


@pytest.mark.parametrize(
    "arguments",
    [one["command"] for one in drivers().values()] + [one["args"] for one in containers()],
    ids=lambda arguments: " ".join(arguments),
)
def test_each_container_runs_a_command_that_is_there(command: Any, arguments: list[str]) -> None:
    """With options that it has, and streams of the file."""
    at, rest = command, list(arguments)
    while hasattr(at, "commands"):
        at = at.commands[rest.pop(0)]
    context = at.make_context(at.name, rest, parent=typer.Context(command), resilient_parsing=False)
    pipeline = settings.load_pipeline(str(FOLDER), environ={"CRM_DSN": "postgresql://p@h/d"})
    known = {one.name for one in (*pipeline.streams, *pipeline.syncs)}
    given = [context.params[one.name] for one in at.params if one.param_type_name == "argument"]
    named = [name for value in given for name in ([value] if isinstance(value, str) else value or ())]
    assert set(named) <= known
    assert bool(named) == ("run" in arguments)


def test_settings_of_the_file_are_given_to_each_container() -> None:
    """Those without a default, by both; and the defaults name services of the compose file."""
    needed = {name for name, default in SET.findall((FOLDER / "lakegate.yml").read_text()) if not default}
    assert needed == {"CRM_DSN"}
    for one in drivers().values():
        assert needed <= set(one["environment"])
    assert all(one["envFrom"] == [{"secretRef": {"name": "lakegate"}}] for one in containers())
    hosts = dict(SET.findall((FOLDER / "lakegate.yml").read_text()))
    for default in filter(None, hosts.values()):
        assert default.split("//")[-1].split(":")[0] in COMPOSE["services"]


def test_services_volumes_and_files_are_there() -> None:
    """What a service waits for or mounts; and nothing listens beyond this machine."""
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for name, what in service.get("depends_on", {}).items():
            assert ("healthcheck" in services[name]) == (what["condition"] == "service_healthy")
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (FOLDER / source).is_file() if source.startswith(".") else source in volumes
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert re.search(r":[\w.-]*\d", service["image"]) or service["image"] == "lakegate", "a version is named"
    claims = {one["metadata"]["name"] for one in MANIFEST if one["kind"] == "PersistentVolumeClaim"}
    for one in MANIFEST[1:]:
        pod = (one["spec"].get("template") or one["spec"]["jobTemplate"]["spec"]["template"])["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v
        } == claims
        labels = one["spec"].get("template", {}).get("metadata", {}).get("labels")
        assert one["kind"] == "CronJob" or one["spec"]["selector"]["matchLabels"] == labels


def test_the_image_copies_files_of_the_repository_and_installs_known_extras() -> None:
    """All that the build of the wheel reads."""
    tracked = {path.relative_to(ROOT).parts[0] for path in committed()}
    copied = [
        shlex.split(line)[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ") and "--from" not in line
    ]
    assert {name for names in copied for name in names} <= tracked
    project = (ROOT / "pyproject.toml").read_text()
    (read,) = re.findall(r"^only-include = \[(.*)\]$", project, re.MULTILINE)
    assert set(re.findall(r'"([^"]+)"', read)) | {"pyproject.toml"} == {name for names in copied for name in names}
    (extras,) = re.findall(r"\.whl\)\[([\w,-]+)\]", DOCKERFILE)
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    (sets,) = re.findall(r"lakegate jars fetch ([\w ]+)$", DOCKERFILE, re.MULTILINE)
    locked = (ROOT / "src/lakegate/spark/jars.lock").read_text()
    assert all(name in locked for name in sets.split())


def test_the_pipeline_is_read(tmp_path: Path) -> None:
    """With the settings of the compose file."""
    pipeline = settings.load_pipeline(str(FOLDER), environ=drivers()["crm"]["environment"])
    assert [stream.name for stream in pipeline.streams] == ["Ingestion", "Mutation"]
    assert pipeline.needs_s3
