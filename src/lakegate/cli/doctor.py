"""lakegate doctor: checks this machine, Spark, and the pipeline's storage, coordinator and tables."""

from __future__ import annotations

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.check import print_findings
from lakegate.cli.output import OUTPUT, SPEC
from lakegate.errors import InvalidRequest
from lakegate.ops.finding import exit_code


@app.command("doctor")
def doctor_command(
    no_spark: bool = typer.Option(False, "--no-spark", help="Do not start Spark."),
    table: str | None = typer.Option(None, "--table", metavar="s3a://…", help="Check a table, or a checkpoint, on S3."),
    deep: bool = typer.Option(False, "--deep", help="With --table: many concurrent writers test the server."),
    repair: bool = typer.Option(
        False, "--repair", help="With --table: repair differences between DynamoDB and the log."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Check Java, Spark, jars, and the storage, coordinator and tables of the file if there is one; give advice."""
    from lakegate.ops.inspection import diagnose, diagnose_s3

    if table is None and (deep or repair):
        raise InvalidRequest("--deep and --repair need --table; nothing was done", advice="Add --table s3a://…")

    try:
        settings.spec_argument(spec)
    except InvalidRequest:
        if spec is not None:
            raise
        pipeline = None
    else:
        pipeline = settings.load_pipeline(spec)
    if table is None:
        found = list(diagnose(pipeline, has_spark=not no_spark))
    else:
        found = list(diagnose_s3(pipeline, table, is_deep=deep, is_mended=repair))
    print_findings(found, output, pipeline=None if pipeline is None else pipeline.name)
    if exit_code(found):
        raise typer.Exit(exit_code(found))
