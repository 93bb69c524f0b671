"""One DynamoDB table as the store of turns needs it: one deadline for each call, and no guess about a call without an answer.

botocore does the talking, but repeats nothing: it would send a change whose answer was lost once more, and be told that
its own change is another's.
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

__all__ = ["ABSENT", "Item", "NoAnswer", "NoTable", "Outcome", "Table"]

KEY: Final = ("part", "name")
ABSENT: Final[Mapping[str, str | int]] = {}
"""What is expected of an item that must not exist."""

ATTEMPT, ATTEMPT_MAX_S = 0.2, 1.0
"""How long one attempt may wait for the connection, and again for the answer: this part of a call's time, and no longer."""
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
"""Before an attempt is repeated; doubled each time, and drawn."""
CREATE_S: Final = 120.0
"""How long a table that is being made is waited for; it takes some ten seconds."""

_LOADER: Final = Loader()
"""Of the service's description, which is large and the same for all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a change."""

    is_done: bool
    item: Item | None = None
    """Of a change that was refused: what is there instead; None: nothing."""
    is_repeated: bool = False
    """An earlier attempt had no answer: what is there may be its work."""


class Table:
    """A client of the table. Safe to use from several threads.

    Args:
        place: Where, and how.
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
        """An item as it was last written; None if there is none.

        Raises:
            StoreUnavailable: no answer until the deadline.
            InvalidRequest: it is not allowed, or there is no such table.
        """
        asked = {"Key": _typed({"part": part, "name": name}), "ConsistentRead": True}
        found = self._insist("get_item", asked, self.deadline()).get("Item")
        return None if found is None else plain(found)

    def items(self, part: str) -> Iterator[Item]:
        """All items of one part, by name.

        Raises:
            StoreUnavailable: no answer until the deadline.
            InvalidRequest: it is not allowed, or there is no such table.
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

    def put(self, item: Item, expected: Mapping[str, str | int]) -> Outcome:
        """Writes the whole item, if what is there has these values, or is `ABSENT`.

        Raises:
            NoAnswer: the outcome is not known.
            StoreUnavailable: it was not done, and not answered in time.
            InvalidRequest: it is not allowed, or there is no such table.
        """
        return self._change("put_item", {"Item": _typed(item)}, _condition(expected))

    def count_up(self, part: str, name: str, attribute: str, expected: Mapping[str, str | int]) -> Outcome:
        """Adds one, or more than one where an answer was lost. Raises what `put` does."""
        asked = {"Key": _typed({"part": part, "name": name}), "UpdateExpression": "ADD #n :one"}
        condition = _condition(expected)
        condition["ExpressionAttributeNames"]["#n"] = attribute
        condition["ExpressionAttributeValues"] |= _typed({":one": 1})
        return self._change("update_item", asked, condition)

    def delete(
        self, part: str, name: str, expected: Mapping[str, str | int], *, within_s: float | None = None
    ) -> Outcome:
        """Takes the item away, with a deadline of its own if one is given. Raises what `put` does."""
        asked = {"Key": _typed({"part": part, "name": name})}
        return self._change("delete_item", asked, _condition(expected), within_s)

    def make(self) -> None:
        """Makes the table, paid by request, unless it is there or somebody else is making it; returns when it can be used.

        Raises:
            StoreUnavailable: it cannot be used yet.
            InvalidRequest: it is not allowed.
        """
        asked = {
            "KeySchema": [{"AttributeName": KEY[0], "KeyType": "HASH"}, {"AttributeName": KEY[1], "KeyType": "RANGE"}],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in KEY],
            "BillingMode": "PAY_PER_REQUEST",
        }
        deadline_s = time.monotonic() + CREATE_S
        with contextlib.suppress(TableExists):  # or is on its way
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
        """Gives up the connections."""
        self._client.close()

    def unavailable(self) -> StoreUnavailable:
        """The error for a table that did not answer in time."""
        reason = f" ({self._failure})" if self._failure else ""
        return StoreUnavailable(
            f"DynamoDB did not answer in time{reason}",
            table=self._place.table,
            region=self._place.region,
            retry_after_s=1.0,
        )

    def deadline(self) -> float:
        """Of a call that begins now, on `time.monotonic`."""
        return time.monotonic() + self._call_s

    # ------------------------------------------------------------------------------------------------------- attempts

    def _insist(self, operation: str, asked: dict[str, Any], deadline_s: float) -> Any:
        """The answer to a request that changes nothing, or nothing when repeated: sent again until it is answered."""
        for _ in self._attempts(deadline_s):
            try:
                return self._send(operation, asked)
            except (NoAnswer, NotDone):
                continue
        raise self.unavailable()

    def _change(
        self, operation: str, asked: dict[str, Any], condition: dict[str, Any], within_s: float | None = None
    ) -> Outcome:
        asked = asked | condition | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        is_repeated = False
        for _ in self._attempts(self.deadline() if within_s is None else time.monotonic() + within_s):
            try:
                self._send(operation, asked)
                return Outcome(is_done=True, is_repeated=is_repeated)
            except Refused as refused:
                return Outcome(is_done=False, item=refused.item, is_repeated=is_repeated)
            except NoAnswer:
                is_repeated = True
            except NotDone:
                continue
        if is_repeated:
            raise NoAnswer(self._failure)
        raise self.unavailable()

    def _attempts(self, deadline_s: float) -> Iterator[None]:
        """Once, and again for as long as an attempt can end before the deadline."""
        pause_s = PAUSE_S
        while True:
            yield
            drawn_s = pause_s * random.SystemRandom().uniform(0.5, 1.0)
            if time.monotonic() + drawn_s + 2 * self._wait_s > deadline_s:
                return
            time.sleep(drawn_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _send(self, operation: str, asked: dict[str, Any]) -> Any:
        """One request, sent once.

        Raises:
            Refused: the item is not as expected.
            NotDone: not now.
            NoAnswer: perhaps done.
            TableExists: of `create_table` only.
            InvalidRequest: it is not allowed, or there is no such table.
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
    """botocore takes an answer that was cut for one without content: nobody would be alive, and no record be there."""
    try:
        json.loads(response_dict["body"])
    except ValueError as error:
        raise NoAnswer("the answer was cut") from error


def _condition(expected: Mapping[str, str | int]) -> dict[str, Any]:
    """Every attribute has the value that is expected; without any, the item does not exist."""
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
