"""lakegate init: writes a first lakegate.yml."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, say
from lakegate.errors import InvalidRequest, Unavailable

TEMPLATE = """\
# yaml-language-server: $schema=./lakegate.schema.json
# A pipeline: three streams write to one Delta table, in turns. Every key: docs/reference/lakegate-yml.md
# Look at it with `lakegate check`, run it with `lakegate run --until-idle`, see who waits with `lakegate status`.
name: {name}
storage: ./lake/_lakegate             # checkpoints, ledger, request tables, and who has the turn; on this machine's disk

tables:
  engagement:
    path: ./lake/engagement
    lock: ENGAGEMENT                  # the streams of one lock take turns
    columns: "engagement_id STRING NOT NULL, org_id STRING, alias_id STRING, person_id STRING, engagement_time TIMESTAMP"
    partition_by: [org_id]
    properties: {{delta.enableDeletionVectors: "true", delta.enableChangeDataFeed: "true"}}

streams:
  # Brings records. A record that comes again, in another file or as another offset, is kept once.
  Ingestion:
    table: engagement
    every: 1h                         # its pace; --once and --until-idle ignore it
    source:
      files: ./in/ingest              # a folder, a file or a glob; files are taken in the order of arrival
      format: parquet
      schema: "engagement_id STRING, org_id STRING, alias_id STRING, engagement_time TIMESTAMP"
    append:
      columns: {{person_id: alias_id}}  # table column: SQL over the record
      key: [engagement_id]
      on_duplicate: keep_first

  # Changes records, those that are there and those that come later: a lead becomes a contact.
  Mutation:
    table: engagement
    every: 1h
    after: Ingestion                  # served when Ingestion had a turn since, or has nothing to do
    source:
      files: ./in/mutation
      format: parquet
      schema: "alias_id STRING, new_person_id STRING, seq BIGINT"
    mutate:
      match: {{alias_id: alias_id}}     # table column: SQL over the request
      set: {{person_id: new_person_id}}
      sequence_by: seq
      applies_to: arrived_and_later

  # Erases a person's records, now and whenever more of them arrive.
  TTL:
    table: engagement
    every: 1d
    after: Mutation
    source:
      files: ./in/delete
      format: parquet
      schema: "person_id STRING"
    erase:
      match: {{person_id: person_id}}
"""
SCHEMA_NAME = "lakegate.schema.json"
"""The file that the first line of the template names: editors complete and check the keys with it."""
FOLDERS = ("in/ingest", "in/mutation", "in/delete")


@app.command("init")
def init_command(
    folder: Path = typer.Argument(Path("."), metavar="[FOLDER]", help="The folder to write to. Default: here."),
    output: Output = OUTPUT,
) -> None:
    """Write a commented lakegate.yml with three streams; never overwrites a file."""
    from lakegate.config.schema import json_schema

    place = Path(settings.working_directory()) / folder
    file = place / settings.SPEC_NAME
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", place.resolve().name).strip("-_")[:64] or "engagement"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(TEMPLATE.format(name=name))
        with suppress(FileExistsError), (place / SCHEMA_NAME).open("x", encoding="utf-8") as schema:
            schema.write(json_schema())
    except FileExistsError as error:
        raise InvalidRequest(
            f"{error.filename or file} exists already; nothing was written",
            advice="Choose another folder, or move the file away",
        ) from error
    except OSError as error:
        raise Unavailable(f"{file} cannot be written: {error.strerror}") from error
    if output is not Output.TEXT:
        typer.echo(
            json.dumps(
                {
                    "format": FORMAT,
                    "file": str(file),
                    "schema": str(place / SCHEMA_NAME),
                    "folders": [str(place / f) for f in FOLDERS],
                }
            )
        )
        return
    say(f"wrote {file}, and {SCHEMA_NAME} for editors")
    say(f"Put files into {', '.join(FOLDERS)} below it, then: lakegate check")
