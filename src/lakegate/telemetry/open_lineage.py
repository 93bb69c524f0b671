"""Passes messages about runs to OpenLineage, by its own client, which is configured as its own documentation says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from uuid import NAMESPACE_URL, uuid5

from lakegate.errors import InvalidRequest, MissingExtra
from lakegate.telemetry.hook_messages import Message

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import OutputDatasetFacet, RunFacet
    from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
    from openlineage.client.generated.job_type_job import JobTypeJobFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
except ImportError as error:
    raise MissingExtra("OpenLineage's client is not installed", advice="pip install 'lakegate[openlineage]'") from error

PRODUCER = f"urn:lakegate:{version('lakegate')}"


def emitter() -> Callable[[Message], None]:
    """Returns a function that sends a message, and waits for the answer as long as the client's settings say.

    Raises:
        InvalidRequest: The client refuses its settings.
    """
    try:
        client = OpenLineageClient()
    except Exception as error:
        raise InvalidRequest(
            "OpenLineage's client refuses its settings; nothing was run",
            advice="Correct openlineage.yml, or the variables whose names begin with OPENLINEAGE",
            reason=type(error).__name__,  # its text may repeat a secret
        ) from error
    return lambda message: client.emit(event_of(message))


def event_of(message: Message) -> RunEvent:
    """Returns a message of `LineageRuns` as an event of OpenLineage."""
    rows, reason = message["rows"], message["reason"]
    counts: dict[str, OutputDatasetFacet] = {}
    if rows is not None:
        counts["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=rows, producer=PRODUCER)
    trouble: dict[str, RunFacet] = {}
    if reason is not None:
        trouble["errorMessage"] = ErrorMessageRunFacet(message=reason, programmingLanguage="python", producer=PRODUCER)
    # The same for each report of the run, by whatever process: a repeated report is no second run.
    run_id = uuid5(NAMESPACE_URL, f"lakegate/{message['namespace']}/{message['job']}/{message['run']}")
    kind = JobTypeJobFacet(processingType="STREAMING", integration="LAKEGATE", producer=PRODUCER)
    return RunEvent(
        eventType=RunState[message["state"]],
        eventTime=datetime.fromtimestamp(message["at_ms"] / 1000, UTC).isoformat(timespec="milliseconds"),
        run=Run(runId=str(run_id), facets=trouble),
        job=Job(namespace=message["namespace"], name=message["job"], facets={"jobType": kind}),
        producer=PRODUCER,
        inputs=[InputDataset(namespace=one.namespace, name=one.name) for one in message["inputs"]],
        outputs=[
            OutputDataset(namespace=one.namespace, name=one.name, outputFacets=counts) for one in message["outputs"]
        ],
    )
