"""lakegate turn: runs another program in a turn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from lakegate import settings
from lakegate.cli.app import app
from lakegate.cli.output import SPEC
from lakegate.errors import InvalidRequest

_COMMAND = "-- COMMAND [ARGUMENT]..."


class _BeforeACommand(TyperCommand):
    """A command whose own options come first: arguments from the first other word on belong to the program."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the usage; Typer would put the words of `_COMMAND` into brackets once more."""
        return ["[OPTIONS]", _COMMAND]


@app.command("turn", cls=_BeforeACommand, context_settings={"allow_interspersed_args": False})
def turn_command(
    command: list[str] = typer.Argument(None, metavar=_COMMAND, help="The program to run."),
    lock: str | None = typer.Option(None, "--lock", metavar="L", help="The lock. Default: job.coordinator.lock.name."),
    job: str | None = typer.Option(None, "--job", metavar="J", help="The job. Default: job.coordinator.name."),
    predecessor: str | None = typer.Option(
        None, "--predecessor", metavar="J", help="The job whose turn must have been the last; several with commas."
    ),
    timeout: str | None = typer.Option(
        None, "--timeout", metavar="TIME", help="How long to wait for the turn, as 10m."
    ),
    coordinator: str | None = typer.Option(
        None, "--coordinator", metavar="URL", help="The store of turns. Default: that of the file."
    ),
    properties: Path | None = typer.Option(
        None, "--properties", metavar="FILE", help="A Spark properties file with job.coordinator.* keys."
    ),
    spec: str | None = SPEC,
) -> None:
    """Run a program in a turn: maintenance, a notebook. Its exit status is the exit status of this command.

    The program is ended if the turn is lost, and no other job has the turn while it runs. Its turn is named by LAKEGATE_LOCK,
    LAKEGATE_JOB and LAKEGATE_EPOCH.
    """
    from lakegate.ops.external_command import run_in_turn

    try:
        pipeline = settings.load_pipeline(spec)
    except InvalidRequest:
        if spec is not None or coordinator is None:
            raise
        pipeline = None
    given = {
        "name": job,
        "lock.name": lock,
        "predecessor": predecessor,
        "url": coordinator,
        "lock.timeout": timeout,
    }
    conf = {}
    if properties is not None:
        try:
            conf = settings.read_properties(properties.read_text())
        except OSError as error:
            raise InvalidRequest(f"{properties} cannot be read: {error.strerror}; nothing was done") from error
    resolved = settings.resolve_job(
        conf, cli={key: value for key, value in given.items() if value is not None}, pipeline=pipeline
    )
    status = run_in_turn(resolved, command or [])
    if status:
        sys.exit(status)
