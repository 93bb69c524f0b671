"""headgate order: what the order rules of the file come to."""

from __future__ import annotations

import typer

from headgate import settings
from headgate.cli.app import Output, app
from headgate.cli.output import OUTPUT, SPEC, document, styled
from headgate.core.turns.order import describe, lint

order = typer.Typer(help="The order of the streams.", no_args_is_help=True)
app.add_typer(order, name="order")


@order.callback()
def _group() -> None:
    """The order of the streams."""


@order.command("lint")
def lint_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Find cycles and unknown names (exit 2), and what a `strict` rule costs."""
    # Errors in the rules are faults of the file, which is refused with all of them; what is left are warnings.
    pipeline = settings.load_pipeline(spec)
    rows = []
    for lock in dict.fromkeys(table.lock for table in pipeline.tables.values()):
        streams = pipeline.streams_of_lock(lock)
        rules = {stream.name: stream.order for stream in streams}
        findings = lint(rules, {stream.name: stream.every_ms for stream in streams})
        rows.append(
            {
                "lock": lock,
                "rules": {name: describe(rule) for name, rule in rules.items()},
                "findings": [{"severity": one.severity, "job": one.job, "text": one.text} for one in findings],
            }
        )
        if output is Output.TEXT:
            styled(f"Lock {lock}", "bold")
            for name, rule in rules.items():
                typer.echo(f"  {name}: {describe(rule)}")
            for finding in findings:
                styled(f"  {finding.severity}: {finding.text}", "yellow")
            if not findings:
                typer.echo("  nothing to say against it")
    if output is not Output.TEXT:
        document(output, "locks", rows, pipeline=pipeline.name)
