"""A coordinator's URL `dynamodb://TABLE?region=REGION&option=value` as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lakegate.config.options import BadPlace, choice, duration, options_of

SESSION_MS: Final = 30_000
"""Longer than ZooKeeper's: a run stays alive by writes that cost money, and waiters notice changes by polling."""
CALL_MS: Final = 10_000

OPTIONS: Final = ("region", "endpoint", "create", "session_timeout", "call_timeout")
"""Every option, in the order of the reference."""

_URL = re.compile(r"dynamodb://([^/?#\s]+)/?(?:\?([^#\s%]*))?")
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z]+(-[a-z]+)+-\d{1,2}")
_ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbPlace:
    """The address of the store of turns in DynamoDB, and its settings; without any secret."""

    table: str
    region: str
    endpoint: str | None = None
    """None: the region's default endpoint."""
    create: bool = False
    """Create the table if it is missing."""
    session_timeout_ms: int = SESSION_MS
    call_timeout_ms: int = CALL_MS


def read_dynamodb(url: str) -> DynamodbPlace:
    """Returns the address that a URL names.

    Raises:
        BadPlace: the URL has another form.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise BadPlace("not dynamodb://TABLE?region=REGION&option=value")
    table, query = found.groups()
    if "@" in table:
        raise BadPlace("a key before the table: keys are taken from where the AWS tools take them")
    if not _TABLE.fullmatch(table):
        raise BadPlace("a table that is not 3 to 255 letters, digits, _, - and .")
    options = options_of(query, OPTIONS)
    region, endpoint = options.get("region"), options.get("endpoint")
    if region is None:
        raise BadPlace("no region=…: a table of the same name may be in each")
    if not _REGION.fullmatch(region):
        raise BadPlace("region that is not the name of one, like eu-west-1")
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise BadPlace("endpoint that is not http://host:port or https://host:port")
    return DynamodbPlace(
        table=table,
        region=region,
        endpoint=endpoint,
        create=choice(options, "create", ("true", "false"), "false") == "true",
        session_timeout_ms=duration(options, "session_timeout", SESSION_MS),
        call_timeout_ms=duration(options, "call_timeout", CALL_MS),
    )
