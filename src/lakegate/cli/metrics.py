"""lakegate metrics: prints, writes or serves the metrics for Prometheus; also the alert rules and the dashboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import lakegate
from lakegate import settings
from lakegate.cli.app import app
from lakegate.cli.output import SPEC, say
from lakegate.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from lakegate.config import Pipeline

ALERTS, DASHBOARD = "alerts.yml", "dashboard.json"


@app.command("metrics")
def metrics_command(
    textfile: Path | None = typer.Option(
        None,
        "--textfile",
        metavar="FILE",
        help="Write them to a file, atomically, for the node exporter; ends in .prom.",
    ),
    serve: int | None = typer.Option(
        None, "--serve", min=1, max=65535, metavar="PORT", help="Serve them over HTTP until Ctrl-C."
    ),
    address: str = typer.Option("127.0.0.1", "--address", metavar="HOST", help="The address for --serve."),
    alerts: bool = typer.Option(False, "--alerts", help="Print the alert rules for Prometheus instead."),
    dashboard: bool = typer.Option(False, "--dashboard", help="Print the dashboard for Grafana instead."),
    spec: str | None = SPEC,
) -> None:
    """Print the pipeline's metrics in Prometheus' text format, made from the lock records, the ledger and the requests."""
    if sum((textfile is not None, serve is not None, alerts, dashboard)) > 1:
        raise InvalidRequest(
            "--textfile, --serve, --alerts and --dashboard exclude each other; nothing was done",
            advice="Give one of them",
        )
    if alerts or dashboard:
        typer.echo(shipped(ALERTS if alerts else DASHBOARD), nl=False)
        return
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server, write_to_textfile

    registry = CollectorRegistry()
    registry.register(_Collector(settings.load_pipeline(spec)))
    try:
        if textfile is not None:
            write_to_textfile(str(textfile), registry)
        elif serve is not None:
            start_http_server(serve, addr=address, registry=registry)
            say(f"http://{address}:{serve}/metrics", err=True)
            threading.Event().wait()
        else:
            typer.echo(generate_latest(registry).decode(), nl=False)
    except OSError as error:
        where = textfile or f"{address}:{serve}"
        raise Unavailable(f"the metrics cannot be written to {where}: {error.strerror}") from error


def shipped(name: str) -> str:
    """Returns a file that comes with the package."""
    return (files("lakegate.report") / "ops" / name).read_text(encoding="utf-8")


class _Collector:
    """Collects the metrics again at each scrape."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def collect(self) -> Iterator[Family]:
        from lakegate.ops.inspection import actions_of, delays_of, kept_of, status_of, totals_of
        from lakegate.report.metrics import MetricsInput, families

        pipeline = self._pipeline
        facts = MetricsInput(
            pipeline=pipeline.name,
            version=lakegate.__version__,
            now_ms=time.time_ns() // 1_000_000,
            locks=status_of(pipeline),
            turns=totals_of(pipeline),
            actions=actions_of(pipeline),
            kept=[(one.job, one.kept) for one in kept_of(pipeline)],
            delays=[(one.sync, one.delay) for one in delays_of(pipeline) if one.delay is not None],
        )
        yield from families(facts)
