"""The reference agrees with the code: the real readers read its examples, and its tables name what exists.

After a change of the command: `LAKEGATE_WRITE_REFERENCE=1 pytest tests/docs/test_reference.py` rewrites command.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import delta.exceptions
import pytest
from typer.main import get_command

import lakegate
from lakegate import errors
from lakegate.telemetry.ledger import from_line, to_line
from lakegate.turns.effect_runner import user_metadata
from lakegate.turns.protocol.lock_record import record_from_json
from tests.docs.markdown import DOCS, fences, named, pages

REFERENCE = DOCS / "reference"


def example(page: str) -> str:
    """The JSON example of a page."""
    return next(fence.text for fence in fences(REFERENCE / page) if fence.kind == "json")


def rows(page: str, name: str) -> list[str]:
    """The first cells of the table between `<!-- name -->` and `<!-- end -->`, without their ticks."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    table = text.split(f"<!-- {name} -->\n")[1].split("<!-- end -->")[0]
    return [found for line in table.splitlines()[2:] for found in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_the_ledgers_example_is_a_row_of_the_ledger() -> None:
    """It is read and written back as it stands."""
    line = example("ledger.md").strip()
    assert to_line(from_line(line)) == line


def test_the_ledgers_keys_are_all_explained() -> None:
    """Each key of a row is named on the page."""
    page = (REFERENCE / "ledger.md").read_text(encoding="utf-8")
    assert [key for key in json.loads(example("ledger.md")) if f"`{key}`" not in page] == []


def test_the_lock_records_example_is_a_record() -> None:
    """It is read and written back with every key."""
    text = example("lock-record.md")
    assert json.loads(record_from_json(text).to_json()) == json.loads(text)


def test_the_user_metadatas_example_is_what_a_commit_carries() -> None:
    """The same keys in the same order."""
    said = json.loads(example("user-metadata.md"))
    made = user_metadata(said["lock"], said["job"], said["epoch"], said["batch"], said["step"], said["offsets"])
    assert example("user-metadata.md").strip() == made


def test_the_governing_notes_example_is_read() -> None:
    """No key of it is unknown."""
    from lakegate.delta.ownership import _parsed
    from lakegate.ids import TableLocation

    note = _parsed(TableLocation("/lake/engagement"), example("table-json.md"))
    assert (note.lock, note.log_store, dict(note.others)) == ("ENGAGEMENT_HVS_DATA", "link", {})


def test_the_request_table_has_the_columns_that_the_page_names() -> None:
    """In the order in which they stand."""
    from pyspark.sql.types import StructType

    from lakegate.streams.requests.table import STATES, layout

    assert rows("request-table.md", "columns") == layout(StructType([]), None, None).names
    page = (REFERENCE / "request-table.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page.split("| state |")[1].split("##")[0], re.MULTILINE) == list(STATES)


def test_every_error_is_in_the_table_with_its_exit_code() -> None:
    """Those that `errors.py` defines, each with the status that the command ends with."""
    text = (REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    table = text.split("<!-- errors -->\n")[1].split("<!-- end -->")[0]
    said = {name: int(code) for name, code in re.findall(r"^\| `(\w+)` \| (\d+) \|", table, re.MULTILINE)}
    there = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LakegateError)
    }
    assert said == there
    assert ", ".join(map(str, errors.EXIT_CODE_PRECEDENCE)) in text


def test_every_name_of_the_package_is_in_the_reference() -> None:
    """What `import lakegate` offers is on the page, and nothing else."""
    assert sorted(rows("python-api.md", "names")) == sorted(lakegate.__all__)


# ------------------------------------------------------------------------------------------------------- the command


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be typed, in the order of the help."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def section(path: str, command: Any) -> str:
    """Returns a command as Markdown: its usage, its effect, its options."""
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    typed = [*(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])]
    if not command.context_settings.get("allow_interspersed_args", True):
        typed.reverse()  # an option behind the argument would be the argument's own
    typed.insert(0, path)
    lines = [f"### {path}", "", f"`{' '.join(typed)}`", "", _prose(command.help), ""]
    explained = [one for one in arguments if getattr(one, "help", None)]
    if explained or options:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{_named(one)}` | {_prose(getattr(one, 'help', ''))} |" for one in explained]
        lines += [f"| {_option(one)} | {_prose(one.help)} |" for one in options]
        lines.append("")
    return "\n".join(lines)


def _prose(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _named(one: Any) -> str:
    return one.metavar if _is_written_out(one) else (one.metavar or one.name or "").strip("[].").upper()


def _is_written_out(one: Any) -> bool:
    """Returns whether the command states its own usage, such as `-- COMMAND [ARGUMENT]...`."""
    return " " in (one.metavar or "")


def _argument(one: Any) -> str:
    name = _named(one)
    if _is_written_out(one):
        return name
    name += "..." if one.nargs == -1 else ""
    return name if one.required else f"[{name}]"


def _option(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    if one.is_flag:
        return names
    kind = one.type_descriptor.annotation
    words = [str(choice.value) for choice in kind] if issubclass(kind, Enum) else [kind.__name__.upper()]
    value = one.metavar or "\\|".join(words)
    return f"{names} `{value}`"


def application() -> Any:
    """The whole command."""
    from lakegate.cli.app import COMMANDS, app

    for name in COMMANDS:
        import_module(f"lakegate.cli.{name}")
    # Other tests may have brought the modules in before, in another order than the command itself does.
    app.registered_commands.sort(key=lambda one: _place(one.callback, COMMANDS))
    app.registered_groups.sort(key=lambda one: _place(_first_callback(one), COMMANDS))
    return get_command(app)


def _first_callback(group: Any) -> Any:
    return group.typer_instance.registered_commands[0].callback


def _place(callback: Any, order: tuple[str, ...]) -> int:
    return order.index(callback.__module__.removeprefix("lakegate.cli."))


def reference() -> str:
    """The generated part of the page."""
    return "\n".join(section(path, command) for path, command in commands(application(), "lakegate"))


def test_the_reference_of_the_command_is_what_the_command_has() -> None:
    """docs/reference/command.md is generated below its mark, and never edited there."""
    page = REFERENCE / "command.md"
    text = page.read_text(encoding="utf-8")
    head = text.split("<!-- generated -->\n")[0]
    expected = f"{head}<!-- generated -->\n\n{reference()}"
    if os.environ.get("LAKEGATE_WRITE_REFERENCE") == "1":
        page.write_text(expected, encoding="utf-8")
        text = expected
    assert text == expected


def test_the_usage_of_a_command_with_a_program_is_that_of_the_reference() -> None:
    """Options first: behind the program's name they would be the program's."""
    turn = dict(commands(application(), "lakegate"))["lakegate turn"]
    typed = "lakegate turn [OPTIONS] -- COMMAND [ARGUMENT]..."
    assert turn.get_usage(turn.context_class(turn, info_name="lakegate turn")) == f"Usage: {typed}"
    assert f"`{typed}`" in (REFERENCE / "command.md").read_text(encoding="utf-8")


SAID = re.compile(r"(?:^\$ |`)lakegate ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    """A page that tells a reader to type a command that does not exist is worse than none."""
    there = [path.split()[1:] for path, _ in commands(application(), "lakegate")]
    unknown = [
        f"{first} {second}"
        for first, second in SAID.findall(page.read_text(encoding="utf-8"))
        if not any(words in ([first], [first, second]) or (not second and words[0] == first) for words in there)
    ]
    assert unknown == []


def test_each_conflict_exception_of_delta_has_its_section() -> None:
    """Messages of conflicts name the section."""
    headings = re.findall(r"^## (\w+)$", (REFERENCE / "conflict-exceptions.md").read_text(), re.MULTILINE)
    base = "DeltaConcurrentModificationException"
    assert sorted(headings) == sorted(set(delta.exceptions.__all__) - {base})
    assert len(headings) == 7
