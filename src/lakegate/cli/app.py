"""The frame of the command: the application with its command modules, and how errors end the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module

import typer

import lakegate
from lakegate.errors import INTERRUPTED_EXIT_CODE, LakegateError

app = typer.Typer(
    name="lakegate",
    help="Many Spark writers, one Delta table, in a stated order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Output(StrEnum):
    """The values of --output, which every command has."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


COMMANDS = (
    "init",
    "demo",
    "doctor",
    "check",
    "run",
    "turn",
    "status",
    "pause",
    "history",
    "timeline",
    "locks",
    "metrics",
    "requests",
    "dead_letters",
    "erasure",
    "sync",
    "sync_verify",
    "adopt",
    "verify",
    "explain",
    "order",
    "jars",
    "report",
    "hooks",
    "config",
    "schema",
)
"""Modules of this package; importing one registers its commands on `app`. They appear in the help in this order."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"lakegate {lakegate.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", help="Print Spark's log lines; a file takes them otherwise."),
) -> None:
    if verbose:
        os.environ["LAKEGATE_SPARK_LOGS"] = "-"  # child processes inherit it


def _needed(arguments: Sequence[str]) -> Sequence[str]:
    """Returns the modules of the command that is named, to start faster; all of them for the help, and for an unknown command."""
    command = next((one for one in arguments if not one.startswith("-")), "").replace("-", "_")
    return [name for name in COMMANDS if name == command or name.startswith(f"{command}_")] or COMMANDS


def run() -> None:
    """Runs the command line and ends the process with the exit status of the outcome."""
    for name in _needed(sys.argv[1:]):
        import_module(f"lakegate.cli.{name}")
    try:
        app()
    except LakegateError as error:
        print(f"lakegate: {error}", file=sys.stderr)
        _name_log()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("lakegate: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        # The reader of our output has gone, as in `lakegate … | head`; this keeps Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from lakegate.delta.storage_errors import refusal

        refused = refusal(error)
        if refused is None:
            _name_log()
            raise
        print(f"lakegate: {refused}", file=sys.stderr)
        _name_log()
        sys.exit(refused.exit_code)


def _name_log() -> None:
    """Names the log file of Spark, after an error."""
    launch = sys.modules.get("lakegate.spark.launch")  # without a session it was not imported
    file = None if launch is None else launch.log_file()
    if file is not None:
        print(f"lakegate: Spark's log is {file}", file=sys.stderr)
