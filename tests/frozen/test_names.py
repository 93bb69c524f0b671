"""Names that users call, set and read: signatures, errors, settings, steps and control tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakegate
from lakegate import errors, settings
from lakegate.streams import interfaces
from lakegate.streams.requests.table import STATES
from lakegate.syncs.targets import mariadb, postgres, sqlite
from tests.conftest import ROOT
from tests.frozen import assert_frozen

SETTING = re.compile(r"\b(LAKEGATE_[A-Z0-9_]*[A-Z0-9]|spark\.lakegate\.\w+)(?![\w.]|\{)")


def test_the_public_names_have_their_signatures() -> None:
    """Of functions and classes, with public members; of errors, with exit code and base."""
    lines = [line for name in lakegate.__all__ for line in described(name, getattr(lakegate, name))]
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.LakegateError):
            lines.append(f"{name}({error.__mro__[1].__name__}) ends with {error.exit_code}")
    assert_frozen("public.txt", "".join(f"{line}\n" for line in lines))


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing a module below it would put the module in the place of what the name means."""
    modules = {one.stem for one in Path(ROOT, "src", "lakegate").iterdir()}
    assert modules.isdisjoint(lakegate.__all__)


def described(name: str, value: Any) -> Iterator[str]:
    """A line for the name, and one for each public member of a class."""
    yield f"{name}{_signature(value)}"
    if not inspect.isclass(value):
        return
    fields = getattr(value, "__dataclass_fields__", {})
    for member in sorted(one for one in dir(value) if not one.startswith("_") and one not in fields):
        found = inspect.getattr_static(value, member)
        if isinstance(found, property):
            yield f"{name}.{member}: {inspect.signature(found.fget or found).return_annotation}"
        elif getattr(getattr(value, member), "__module__", "").startswith(lakegate.__name__):
            yield f"{name}.{member}{_signature(getattr(value, member))}"


def _signature(value: Any) -> str:
    return str(inspect.signature(value)) if callable(value) else f" = {value!r}"


def test_the_names_of_settings_steps_and_control_tables_are_as_they_were() -> None:
    """Whatever a user writes into a file, a session or an environment, and whatever a target or a log holds."""
    lines = sorted({f"setting {found}" for text in sources() for found in SETTING.findall(text)})
    lines += [f"setting job.coordinator.{key}" for key in settings._JOB_KEYS]
    lines += [f"step {name.lower()} = {value}" for name, value in vars(interfaces).items() if type(value) is int]
    lines += [f"state of a request {state}" for state in STATES]
    for kind, module in (("sqlite", sqlite), ("postgres", postgres), ("mariadb", mariadb)):
        lines += [f"{kind}: {' '.join(statement.split())}" for statement in module.CONTROL]
    assert_frozen("names.txt", "".join(f"{line}\n" for line in lines))


def sources() -> Iterator[str]:
    """The texts of the product."""
    for folder, pattern in (("src/lakegate", "*.py"), ("java", "*.java")):
        for file in sorted(Path(ROOT, folder).rglob(pattern)):
            yield file.read_text(encoding="utf-8")
