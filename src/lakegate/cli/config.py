"""lakegate config: the values in effect, and the origin of each."""

from __future__ import annotations

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, document, table

config = typer.Typer(help="The values in effect.", no_args_is_help=True)
app.add_typer(config, name="config")


@config.callback()
def _group() -> None:
    """The values in effect."""


@config.command("show")
def show_command(
    origin: bool = typer.Option(False, "--origin", help="Print the origin of each value."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Print every value in effect; secrets are masked."""
    pipeline = settings.load_pipeline(spec)
    entries = settings.shown(pipeline)
    if output is not Output.TEXT:
        rows = [{"key": one.key, "value": one.value, **({"origin": one.origin} if origin else {})} for one in entries]
        document(output, "values", rows, pipeline=pipeline.name)
    elif origin:
        table(("key", "value", "origin"), [(one.key, one.value, one.origin) for one in entries])
    else:
        table(("key", "value"), [(one.key, one.value) for one in entries])
