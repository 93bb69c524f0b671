"""The meaning of DynamoDB's errors for the turn store: done, not done, unknown, or an error that a person must fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from botocore import exceptions as aws

from lakegate.errors import InvalidRequest

Item = dict[str, str | int]
"""Attribute → text or whole number."""

_FOR_NOW: Final = frozenset(
    ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "LimitExceededException")
)
_NO_CREDENTIALS: Final = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.ProfileNotFound,
    aws.TokenRetrievalError,
    aws.SSOTokenLoadError,
    aws.UnauthorizedSSOTokenError,
)


class NoAnswer(Exception):
    """A request whose answer did not come: it may have been carried out, or may not."""


class NotDone(Exception):
    """The request was refused for now: not executed, and may be repeated."""


class Refused(Exception):
    """The item was not as expected; `item`: the current item, None if there is none."""

    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item


class TableExists(Exception):
    """The table to be created exists, or is being created."""


class NoTable(InvalidRequest):
    """the table does not exist in this region, or not in this account; nothing was done"""

    default_advice = (
        "Check table, region and account; with create=true in the coordinator's URL the table is made if it is missing"
    )


def meaning(error: Exception, *, table: str, region: str) -> Exception:
    """Returns the exception to raise for an error of the client.

    Args:
        error: A `ClientError`, which the service answered, or a `BotoCoreError`, where nothing was answered or sent.
        table: For messages.
        region: For messages.
    """
    if isinstance(error, aws.ClientError):
        return _answered(error, table, region)
    if isinstance(error, _NO_CREDENTIALS):
        return InvalidRequest(
            f"no AWS credentials can be used ({error}); nothing was done",
            advice="Give this machine a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return NoAnswer(str(error))


def _answered(error: aws.ClientError, table: str, region: str) -> Exception:
    told = error.response["Error"]
    code, text = str(told.get("Code")), str(told.get("Message", ""))
    if code == "ConditionalCheckFailedException":
        found = error.response.get("Item")
        return Refused(plain(found) if found else None)
    if code in _FOR_NOW:
        return NotDone(code)
    if code == "ResourceInUseException":
        return TableExists()
    if code == "ResourceNotFoundException":
        return NoTable(table=table, region=region)
    if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
        return NoAnswer(f"{code}: {text}")
    message, advice = _to_mend(code, text)
    return InvalidRequest(f"{message}; nothing was done", advice=advice, table=table, region=region, said=text)


def _to_mend(code: str, text: str) -> tuple[str, str]:
    """Returns message and advice for a request that is refused permanently."""
    if code == "AccessDeniedException":
        action = re.search(r"dynamodb:\w+", text)
        return (
            f"AWS does not allow {action[0] if action else 'this'} on the table of the turns",
            "Give the job's role the actions that the how-to page on AWS lists",
        )
    if re.search(r"[Ss]ignature (expired|not yet current)", text):
        return "AWS refused the request for its time: this machine's clock is wrong", "Set the clock, by NTP"
    if code in ("ExpiredTokenException", "ExpiredToken"):
        return (
            "the AWS credentials have expired",
            "Renew them, or use a role, whose credentials are renewed by themselves",
        )
    if code in ("UnrecognizedClientException", "InvalidSignatureException", "IncompleteSignatureException"):
        return "AWS does not know these credentials", "Check the access key and its secret, and their account"
    if code == "ValidationException" and ("schema" in text or "Missing the key" in text or "key condition" in text):
        return "the table has another key than turns need", "Name another table: this one belongs to something else"
    return f"DynamoDB refused the request ({code})", ""


def plain(item: Mapping[str, Mapping[str, Any]]) -> Item:
    """Returns texts and whole numbers; attributes of other types do not belong to Lakegate."""
    found: Item = {}
    for name, value in item.items():
        if "S" in value:
            found[name] = str(value["S"])
        elif "N" in value:
            found[name] = int(value["N"])
    return found
