"""A DynamoDB table for the turn store: one deadline for each call, and no guess about an unanswered call.

botocore sends the requests, with its retries off: it would send a change again whose answer was lost, and then report
its own change as somebody else's.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakegate.config.dynamodb import DynamodbPlace
from lakegate.errors import MissingExtra, StoreUnavailable

try:
    import botocore.session
    from botocore import exceptions as aws
    from botocore.config import Config
    from botocore.loaders import Loader
except ImportError as error:
    raise MissingExtra(
        "a coordinator in DynamoDB needs boto3; nothing was done", advice="pip install 'lakegate[aws]'"
    ) from error

from lakegate.turns.stores.dynamodb_errors import (
    Item,
    NoAnswer,
    NoTable,
    NotDone,
    Refused,
    TableExists,
    meaning,
    plain,
)

__all__ = ["ABSENT", "DynamodbTable", "Item", "NoAnswer", "NoTable", "WriteOutcome"]

KEY: Final = ("part", "name")
ABSENT: Final[Mapping[str, str | int]] = {}
"""The expectation that an item does not exist."""

ATTEMPT, ATTEMPT_MAX_S = 0.2, 1.0
"""The limit of one attempt for the connection, and again for the answer, as a part of a call's time."""
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
"""Pause before an attempt is repeated; doubled each time, with a random part."""
CREATE_S: Final = 120.0
"""How long to wait for a table that is being created; creation takes some ten seconds."""

_LOADER: Final = Loader()
"""A lock for loading the service's description, which is large and the same for all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome:
    """The outcome of a change."""

    is_done: bool
    item: Item | None = None
    """After a refused change: the item that is there instead; None: no item."""
    is_repeated: bool = False
    """An earlier attempt had no answer: the current item may be its work."""


class DynamodbTable:
    """A client of the table. Safe to use from several threads.

    Args:
        place: The address and settings.
        call_s: The deadline of each call.
    """

    def __init__(self, place: DynamodbPlace, call_s: float) -> None:
        self._place, self._call_s = place, call_s
        self._wait_s = min(ATTEMPT * call_s, ATTEMPT_MAX_S)
        self._failure = ""
        session = botocore.session.Session()
        session.register_component("data_loader", _LOADER)
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=self._wait_s,
            read_timeout=self._wait_s,
            tcp_keepalive=True,
            parameter_validation=False,
            user_agent_extra="lakegate",
        )
        try:
            self._client = session.create_client(
                "dynamodb", region_name=place.region, endpoint_url=place.endpoint, config=config
            )
        except aws.BotoCoreError as error:
            raise meaning(error, table=place.table, region=place.region) from error
        self._client.meta.events.register("before-parse.dynamodb", _check_whole)

    def get(self, part: str, name: str) -> Item | None:
        """Returns an item as it was last written; None if there is none.

        Raises:
            StoreUnavailable: no answer until the deadline.
            InvalidRequest: not allowed, or the table does not exist.
        """
        asked = {"Key": _typed({"part": part, "name": name}), "ConsistentRead": True}
        found = self._insist("get_item", asked, self.deadline()).get("Item")
        return None if found is None else plain(found)

    def items(self, part: str) -> Iterator[Item]:
        """Yields all items of one part, by name.

        Raises:
            StoreUnavailable: no answer until the deadline.
            InvalidRequest: not allowed, or the table does not exist.
        """
        deadline_s = self.deadline()
        asked: dict[str, Any] = {
            "KeyConditionExpression": "#p = :p",
            "ExpressionAttributeNames": {"#p": "part"},
            "ExpressionAttributeValues": _typed({":p": part}),
            "ConsistentRead": True,
        }
        while True:
            page = self._insist("query", asked, deadline_s)
            yield from map(plain, page["Items"])
            if not page.get("LastEvaluatedKey"):
                return
            asked["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def put(self, item: Item, expected: Mapping[str, str | int]) -> WriteOutcome:
        """Writes the whole item, if the current item has the expected values, or does not exist if `ABSENT` is expected.

        Raises:
            NoAnswer: the outcome is unknown.
            StoreUnavailable: the change was not made, and not answered in time.
            InvalidRequest: not allowed, or the table does not exist.
        """
        return self._change("put_item", {"Item": _typed(item)}, _condition(expected))

    def count_up(self, part: str, name: str, attribute: str, expected: Mapping[str, str | int]) -> WriteOutcome:
        """Adds one, or more than one if an answer was lost. Raises the errors of `put`."""
        asked = {"Key": _typed({"part": part, "name": name}), "UpdateExpression": "ADD #n :one"}
        condition = _condition(expected)
        condition["ExpressionAttributeNames"]["#n"] = attribute
        condition["ExpressionAttributeValues"] |= _typed({":one": 1})
        return self._change("update_item", asked, condition)

    def delete(
        self, part: str, name: str, expected: Mapping[str, str | int], *, within_s: float | None = None
    ) -> WriteOutcome:
        """Deletes the item, with a separate deadline if one is given. Raises the errors of `put`."""
        asked = {"Key": _typed({"part": part, "name": name})}
        return self._change("delete_item", asked, _condition(expected), within_s)

    def make(self) -> None:
        """Creates the table, billed per request, unless it exists or is being created; returns when the table can be used.

        Raises:
            StoreUnavailable: the table cannot be used yet.
            InvalidRequest: not allowed.
        """
        asked = {
            "KeySchema": [{"AttributeName": KEY[0], "KeyType": "HASH"}, {"AttributeName": KEY[1], "KeyType": "RANGE"}],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in KEY],
            "BillingMode": "PAY_PER_REQUEST",
        }
        deadline_s = time.monotonic() + CREATE_S
        with contextlib.suppress(TableExists):  # or is being created
            self._insist("create_table", asked, deadline_s)
        while True:
            try:
                if self._insist("describe_table", {}, deadline_s)["Table"]["TableStatus"] == "ACTIVE":
                    return
            except NoTable:
                pass  # not seen everywhere yet
            if time.monotonic() > deadline_s:
                raise StoreUnavailable("the table is still being made", table=self._place.table)
            time.sleep(0.5)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def unavailable(self) -> StoreUnavailable:
        """Returns the error for a table that did not answer in time."""
        reason = f" ({self._failure})" if self._failure else ""
        return StoreUnavailable(
            f"DynamoDB did not answer in time{reason}",
            table=self._place.table,
            region=self._place.region,
            retry_after_s=1.0,
        )

    def deadline(self) -> float:
        """Returns the deadline of a call that begins now, on `time.monotonic`."""
        return time.monotonic() + self._call_s

    # ------------------------------------------------------------------------------------------------------- attempts

    def _insist(self, operation: str, asked: dict[str, Any], deadline_s: float) -> Any:
        """Returns the answer to a read-only or idempotent request, which is repeated until it is answered."""
        for _ in self._attempts(deadline_s):
            try:
                return self._send(operation, asked)
            except (NoAnswer, NotDone):
                continue
        raise self.unavailable()

    def _change(
        self, operation: str, asked: dict[str, Any], condition: dict[str, Any], within_s: float | None = None
    ) -> WriteOutcome:
        asked = asked | condition | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        is_repeated = False
        for _ in self._attempts(self.deadline() if within_s is None else time.monotonic() + within_s):
            try:
                self._send(operation, asked)
                return WriteOutcome(is_done=True, is_repeated=is_repeated)
            except Refused as refused:
                return WriteOutcome(is_done=False, item=refused.item, is_repeated=is_repeated)
            except NoAnswer:
                is_repeated = True
            except NotDone:
                continue
        if is_repeated:
            raise NoAnswer(self._failure)
        raise self.unavailable()

    def _attempts(self, deadline_s: float) -> Iterator[None]:
        """Yields once, and again while another attempt can end before the deadline."""
        pause_s = PAUSE_S
        while True:
            yield
            drawn_s = pause_s * random.SystemRandom().uniform(0.5, 1.0)
            if time.monotonic() + drawn_s + 2 * self._wait_s > deadline_s:
                return
            time.sleep(drawn_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _send(self, operation: str, asked: dict[str, Any]) -> Any:
        """Sends a request once.

        Raises:
            Refused: the item is not as expected.
            NotDone: refused for now.
            NoAnswer: perhaps executed.
            TableExists: by `create_table` only.
            InvalidRequest: not allowed, or the table does not exist.
        """
        try:
            return getattr(self._client, operation)(TableName=self._place.table, **asked)
        except NoAnswer as error:
            self._failure = str(error)
            raise
        except (aws.ClientError, aws.BotoCoreError) as error:
            meant = meaning(error, table=self._place.table, region=self._place.region)
            if isinstance(meant, NoAnswer | NotDone):
                self._failure = str(meant)
            raise meant from error


def _check_whole(response_dict: Mapping[str, Any], **others: object) -> None:
    """Rejects a truncated answer, which botocore reads as empty: no run would be alive, and no record exist."""
    try:
        json.loads(response_dict["body"])
    except ValueError as error:
        raise NoAnswer("the answer was cut") from error


def _condition(expected: Mapping[str, str | int]) -> dict[str, Any]:
    """Returns the condition that every attribute has the expected value; without attributes, that the item does not exist."""
    if not expected:
        return {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": KEY[0]},
        }
    return {
        "ConditionExpression": " AND ".join(f"#c{n} = :c{n}" for n in range(len(expected))),
        "ExpressionAttributeNames": {f"#c{n}": name for n, name in enumerate(expected)},
        "ExpressionAttributeValues": _typed({f":c{n}": value for n, value in enumerate(expected.values())}),
    }


def _typed(item: Mapping[str, str | int]) -> dict[str, dict[str, str]]:
    return {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in item.items()}
