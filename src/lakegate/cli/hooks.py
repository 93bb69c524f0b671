"""lakegate hooks: the receivers of messages about runs."""

from __future__ import annotations

import time

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, document, say
from lakegate.errors import InvalidRequest, Unavailable

hooks = typer.Typer(help="The receivers of messages about runs.", no_args_is_help=True)
app.add_typer(hooks, name="hooks")


@hooks.callback()
def _group() -> None:
    """The receivers of messages about runs."""


@hooks.command("test")
def send_command(
    name: str | None = typer.Argument(None, metavar="[NAME]", help="A hook of the file. Default: all."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Send a test message to each hook now, in one attempt; ends with 6 if one does not accept it."""
    from lakegate.telemetry.hook_messages import trial
    from lakegate.telemetry.hooks import send

    pipeline = settings.load_pipeline(spec)
    chosen = [hook for hook in pipeline.hooks if name in (None, hook.name)]
    if not chosen:
        known = ", ".join(hook.name for hook in pipeline.hooks)
        what = "the file has no hook" if name is None else f"there is no hook {name!r}"
        raise InvalidRequest(
            f"{what}; nothing was sent",
            advice=f"The hooks are: {known}" if known else "Add a section on_event: to lakegate.yml",
        )
    message = trial(pipeline.name, time.time_ns() // 1_000_000)
    troubles = {hook.name: send(hook, message) for hook in chosen}
    if output is Output.TEXT:
        for one, trouble in troubles.items():
            say(f"{one}: {'accepted' if trouble is None else trouble.text}")
    else:
        rows = [{"hook": one, "error": trouble and trouble.text} for one, trouble in troubles.items()]
        document(output, "hooks", rows)
    failed = [one for one, trouble in troubles.items() if trouble is not None]
    if failed:
        raise Unavailable(f"{len(failed)} of {len(troubles)} hooks did not accept the message: {', '.join(failed)}")
