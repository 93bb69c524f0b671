"""headgate doctor: whether this machine, Spark and the pipeline's places are fit."""

from __future__ import annotations

import typer

from headgate import settings
from headgate.checks.finding import exit_code
from headgate.cli.app import Output, app
from headgate.cli.check import print_findings
from headgate.cli.output import OUTPUT, SPEC
from headgate.errors import InvalidRequest


@app.command("doctor")
def doctor_command(
    no_spark: bool = typer.Option(False, "--no-spark", help="Do not start Spark."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Look at Java, Spark, jars, and the storage, coordinator and tables of the file if there is one; say what to do."""
    from headgate.inspect import diagnose

    try:
        settings.find_spec(spec)
    except InvalidRequest:
        if spec is not None:
            raise
        pipeline = None
    else:
        pipeline = settings.load_pipeline(spec)
    found = list(diagnose(pipeline, has_spark=not no_spark))
    print_findings(found, output, pipeline=None if pipeline is None else pipeline.name)
    if exit_code(found):
        raise typer.Exit(exit_code(found))
