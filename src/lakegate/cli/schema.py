"""lakegate schema: prints the JSON Schema of lakegate.yml."""

from __future__ import annotations

import typer

from lakegate.cli.app import app


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of lakegate.yml, for editors: lakegate schema > lakegate.schema.json."""
    from lakegate.config.schema import json_schema

    typer.echo(json_schema(), nl=False)
